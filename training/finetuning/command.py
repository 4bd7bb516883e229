"""The command ``nightjar-train finetune``."""

import argparse
from pathlib import Path

from nightjar_alerts.training.options import (
    Commands,
    add_command,
    add_tables,
    at_least,
    chosen_tables,
    print_json,
    progress,
    shell_names,
)


def add_finetune(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands, "finetune", _finetune, "train on your own labels: from a labelled table to a bundle; resumable"
    )
    parser.add_argument("table", type=Path, help="table of light curves that `nightjar classify` reads, with labels")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="bundle folder to write")
    parser.add_argument("--label", default="", metavar="COLUMN", help="class of each object; default: found by name")
    parser.add_argument(
        "--from", dest="backbone", default="astro-moe-elasticc", metavar="MODEL",
        help="shipped bundle, bundle folder or run folder to start from; default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--group", default="", metavar="COLUMN",
        help="what related objects share, such as a host; they stay on one side of every split",
    )  # fmt: skip
    parser.add_argument("--seed", type=at_least(0), default=0, help="seed of splits, views and fits")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device that heads are fitted on")
    parser.add_argument("--threads", type=at_least(1), help="torch threads; default: torch's choice")
    add_tables(parser)


def _finetune(options: argparse.Namespace) -> None:
    """Fine-tune, and print the result as JSON."""
    from nightjar_alerts.training.finetuning.run import as_json, finetune

    with shell_names():
        result = finetune(
            options.table,
            options.output,
            label=options.label,
            group=options.group,
            backbone=options.backbone,
            options=chosen_tables(options),
            seed=options.seed,
            device=options.device,
            threads=options.threads,
            say=progress,
        )
    print_json(as_json(result))
