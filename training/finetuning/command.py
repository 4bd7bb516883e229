"""The command ``nightjar-train finetune``."""

import argparse
from pathlib import Path

from nightjar_alerts.classify_command import UsageError, add_table_options, table_options
from nightjar_alerts.tables import FILE_BOUNDS
from nightjar_alerts.training.options import Commands, add_command, at_least, print_json, progress


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
    add_table_options(parser.add_argument_group("tables", "what the columns mean, where the names do not say"))


def _finetune(options: argparse.Namespace) -> None:
    """Fine-tune, and print the result as JSON."""
    from nightjar_alerts.training.finetuning.run import as_json, finetune

    try:
        how = table_options(options, FILE_BOUNDS)
    except UsageError as error:
        raise ValueError(str(error)) from None
    result = finetune(
        options.table,
        options.output,
        label=options.label,
        group=options.group,
        backbone=options.backbone,
        options=how,
        seed=options.seed,
        device=options.device,
        threads=options.threads,
        say=progress,
    )
    print_json(as_json(result))
