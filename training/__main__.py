"""The command ``nightjar-train``: light curves, training, evaluation, and bundles for the service.

A whole run, resumable at every step::

    nightjar-train simulate --out build/sim.parquet --per-class 3000
    nightjar-train fit default --data build/sim.parquet
    nightjar-train export runs/default-0 build/astro-moe --data build/sim.parquet
    nightjar-train evaluate build/astro-moe --data build/sim.parquet --report build/report.json --html build/report.html
    nightjar-train card build/astro-moe --report build/report.json

Tools that made the shipped models are in the group ``nightjar-train makers``. Commands import what they need when they
run, so that ``--help`` is fast.
"""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from nightjar_alerts.models.common import how_to_install, interruptible_imports

if missing := [
    name for name in ("onnxruntime", "pyarrow", "pydantic_settings", "torch", "tqdm") if find_spec(name) is None
]:
    sys.exit(f"nightjar-train: {' and '.join(missing)} not installed: {how_to_install('train')}")

with interruptible_imports("nightjar-train"):
    from pydantic import ValidationError

    from nightjar_alerts.tables import TableOptions
    from nightjar_alerts.training.experiments import EXPERIMENTS
    from nightjar_alerts.training.finetuning.command import add_finetune
    from nightjar_alerts.training.makers import add_makers
    from nightjar_alerts.training.options import (
        Commands,
        add_command,
        add_pretrained,
        add_recipe,
        add_tables,
        at_least,
        chosen_recipe,
        chosen_tables,
        chosen_weights,
        means_of,
        print_json,
        progress,
        shell_names,
        write_json,
    )

SIGNALLED = 128
"""Exit status after a signal, less its number."""


def add_simulate(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(commands, "simulate", _simulate, "write simulated, labelled light curves to a Parquet file")
    parser.add_argument("--out", type=Path, required=True, help="Parquet file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that exists")
    parser.add_argument("--per-class", type=at_least(1), default=3000, help="number of objects of each class")
    parser.add_argument(
        "--survey",
        choices=("rubin", "any"),
        default="rubin",
        help="survey of the 20 classes: Rubin, or a random one for each object",
    )
    parser.add_argument(
        "--classes", action="append", default=[], metavar="CLASS", help="class to simulate; repeatable; default: all"
    )
    parser.add_argument("--seed", type=at_least(0), default=1, help="random seed of the objects")
    parser.add_argument("--workers", type=at_least(1), default=2, help="processes; the result does not depend on it")


def _simulate(options: argparse.Namespace) -> None:
    from nightjar_alerts.training.simulate.generate import simulate

    if options.out.exists() and not options.overwrite:
        raise FileExistsError(f"{options.out} exists: --overwrite replaces it")
    simulate(
        options.out, options.per_class, options.seed, options.workers, survey=options.survey, classes=options.classes
    )


def add_fit(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(commands, "fit", _fit, "train a recipe; run the same command again to resume")
    add_recipe(parser, "seed", "steps", "threads", "device")
    parser.add_argument("--data", type=Path, required=True, help="Parquet file of light curves, or JSON of a mixture")
    parser.add_argument("--out", type=Path, help="run folder; default: runs/<recipe>-<seed>")
    add_pretrained(parser)
    parser.add_argument("--max-minutes", type=float, help="save a checkpoint and stop after this time")


def _fit(options: argparse.Namespace) -> None:
    """Train or resume, then print the result as JSON, from one process only."""
    from nightjar_alerts.training.fit.distributed import is_first
    from nightjar_alerts.training.fit.train import train

    recipe, pretrained = chosen_recipe(options), chosen_weights(options)
    folder = options.out or Path("runs") / f"{recipe.name}-{recipe.seed}"
    result = train(recipe, options.data, folder, pretrained=pretrained, max_minutes=options.max_minutes)
    if is_first():
        print_json({"run": str(folder), **result._asdict()})


def add_evaluate(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands, "evaluate", _evaluate, "score bundles on a held-out part of simulated objects or of real surveys"
    )
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="bundles, then a table of labelled objects; without one, --data: bundles or run folders. Beside a "
        "table, a model may also be a file of stored results (.jsonl)",
    )
    table = parser.add_argument_group("on a table")
    table.add_argument("--label", default="", metavar="COLUMN", help="column of labels; default: by its name")
    table.add_argument(
        "--classes", action="append", default=[], metavar="LABEL=CLASS",
        help="class of the model for a label with another name, such as 'SN Ic=Ib/c'; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--on",
        choices=("simulated", "surveys"),
        default="simulated",
        help="a data file, or real surveys",
    )
    parser.add_argument("--data", type=Path, help="data file of labelled objects, or folder of surveys")
    parser.add_argument("--report", type=Path, help="JSON file of scores to write; on a table: evaluation.json")
    parser.add_argument(
        "--split", choices=("train", "validation", "test"), default="test", help="part of the objects to score"
    )
    parser.add_argument("--html", type=Path, help="HTML page to write; on a table: the name of the report with .html")
    simulated = parser.add_argument_group("on simulated objects")
    simulated.add_argument(
        "--baseline", type=Path, action="append", default=[], help="report of `makers baseline` to add; repeatable"
    )
    simulated.add_argument("--objects", type=at_least(1), help="score a sample of this size; default: all")
    simulated.add_argument(
        "--left-out",
        action="append",
        default=[],
        metavar="CLASS",
        help="class that no model was trained on; repeatable",
    )
    surveys = parser.add_argument_group("on surveys")
    surveys.add_argument("--cache", type=Path, help="folder that caches the surveys between calls")
    surveys.add_argument("--views", type=Path, help="npz file of `makers reobserve`; default: drawn anew")
    surveys.add_argument(
        "--view-number", type=at_least(0), default=6000, help="number of views to draw without a file; 0: none"
    )
    surveys.add_argument(
        "--unseen", type=Path, action="append", default=[], help="bundle trained on none of the surveys; repeatable"
    )
    surveys.add_argument(
        "--reports", type=Path, action="append", default=[], help="report whose models are added; repeatable"
    )
    surveys.add_argument(
        "--simulated", type=Path, action="append", default=[], help="report on simulated objects to add; repeatable"
    )
    surveys.add_argument(
        "--seeds", type=Path, action="append", default=[],
        help="report on the validation part of a bundle that differs in the seed only; repeatable",
    )  # fmt: skip
    surveys.add_argument(
        "--test-evaluations",
        type=at_least(1),
        default=1,
        help="number of uses of the test part until now",
    )
    add_tables(parser)


def _evaluate(options: argparse.Namespace) -> None:
    if options.data is None:
        _evaluate_on_table(options)
        return
    if options.report is None:
        raise ValueError("name the JSON file of scores with --report")
    if options.label or options.classes:
        raise ValueError("--label and --classes are for a table; data files have their labels")
    if chosen_tables(options) != TableOptions():
        raise ValueError("the options of tables have no effect with --data; data files have their columns")
    options.models = [Path(model) for model in options.models]
    if options.on == "surveys":
        _evaluate_on_surveys(options)
        return
    from nightjar_alerts.training.score.evaluate import evaluate
    from nightjar_alerts.training.score.page import read_baselines, write_page

    if not options.models:
        raise ValueError("name at least one bundle or run folder")
    baselines = read_baselines(options.baseline)  # fails before scoring, which can take hours
    report = evaluate(options.models, options.data, options.split, options.objects, left_out=options.left_out)
    write_json(options.report, report)
    print_json(means_of(report))
    if options.html is not None:
        write_page(options.html, report, baselines)


def _evaluate_on_table(options: argparse.Namespace) -> None:
    """Score bundles and stored results on a labelled table; write page and JSON, and print the scores."""
    from nightjar_alerts.training.score.labelled import evaluate_table
    from nightjar_alerts.training.score.report_page import write_page

    if len(options.models) < 2:
        raise ValueError("name a bundle and a table of labelled objects, or a data file with --data")
    *models, table = options.models
    if wrong := [text for text in options.classes if "=" not in text]:
        raise ValueError(f"--classes {wrong[0]}: write LABEL=CLASS")
    written = options.report or Path("evaluation.json")
    if written.is_dir() or any(written.resolve().parent == Path(model).resolve() for model in models):
        raise ValueError(f"--report {written}: name a file outside the folders of the models")
    page = options.html or written.with_suffix(".html")
    files = [path.resolve() for path in (written, page, *map(Path, options.models))]
    if files[0] in files[1:] or files[1] in files[2:]:
        raise ValueError(f"the report {written} and the page {page} must be two files, and none of those that are read")
    how = chosen_tables(options)
    classes_of = dict(text.rsplit("=", 1) for text in options.classes)
    with shell_names():
        report = evaluate_table(models, Path(table), label=options.label, classes_of=classes_of, options=how)
    for name, model in report.values["models"].items():
        if count := model["objects_learned_from"]:
            progress(f"warning: {name} learned from {count} of these objects, by their names; its scores are too good")
        for what in ("labels_without_a_class", "not_classified"):
            if counts := ", ".join(f"{one} ({count})" for one, count in model[what].items()):
                progress(f"{name}: not scored: {what.replace('_', ' ')}: {counts}")
    write_json(written, report.values)
    write_page(page, report)
    print_json(
        {
            "models": {name: model["scores"] for name, model in report.values["models"].items()},
            "differences": report.values["differences"],
            "guesses": report.values["table"]["guesses"],
            "left_out": report.values["table"]["left_out"],
            "report": str(written),
            "page": str(page),
        }
    )


def _evaluate_on_surveys(options: argparse.Namespace) -> None:
    from nightjar_alerts.training.data.reobserve.views import views_of
    from nightjar_alerts.training.data.sample import read_sample
    from nightjar_alerts.training.data.surveys import load_surveys
    from nightjar_alerts.training.score.report_page import write_page
    from nightjar_alerts.training.score.surveys import evaluate_on_surveys, report_on_surveys

    if options.html is not None and not options.models:
        raise ValueError("--html is the page of bundles: name one")
    if options.split == "train":
        raise ValueError("--split train has the objects that models were trained on; choose validation or test")
    part: Literal["valid", "test"] = "valid" if options.split == "validation" else "test"
    sample = load_surveys(options.data, options.cache)
    views = None
    if options.views is not None:
        views = read_sample(options.views)
    elif options.view_number:
        views = views_of(sample, part, options.view_number, data=options.data)
    report = evaluate_on_surveys(
        sample,
        {"seen": options.models, "left out": options.unseen},
        views=views,
        report_files=options.reports,
        simulated=options.simulated,
        seeds=options.seeds,
        test_evaluations=options.test_evaluations,
        part=part,
    )
    write_json(options.report, report, indent=None)
    if options.html is not None:
        write_page(options.html, report_on_surveys(options.models, sample, part))


def add_export(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands, "export", _export, "fit calibration, prediction sets and novelty to a run, and export it as a bundle"
    )
    parser.add_argument("run", type=Path, help="run folder of `fit`")
    parser.add_argument("out", type=Path, help="bundle folder to write; must be empty")
    fitted = parser.add_mutually_exclusive_group(required=True)
    fitted.add_argument("--data", type=Path, help="data file of the run; its validation part is used for the fits")
    fitted.add_argument(
        "--drawn",
        type=Path,
        action="append",
        default=[],
        help="folder of `makers draw` for the fits; repeatable",
    )
    parser.add_argument("--trees", type=Path, help="npz file of `makers trees` for an ensemble; needs --drawn")
    parser.add_argument("--about", type=Path, help="JSON file with sources and licences to store in the manifest")
    parser.add_argument("--name", default="astro-moe", help="name of the bundle in the manifest")
    parser.add_argument("--version", default="1.0.0", help="semantic version of the bundle")


def _export(options: argparse.Namespace) -> None:
    """Export, then print what was written as JSON."""
    from nightjar_alerts.training.export.bundle import export_run

    about = {} if options.about is None else json.loads(options.about.read_text(encoding="utf-8"))
    bundle = export_run(
        options.run,
        options.out,
        name=options.name,
        version=options.version,
        data=options.data,
        drawn=options.drawn,
        trees=options.trees,
        about=about,
        say=progress,
    )
    calibration = bundle.manifest.calibration.model_dump()
    print_json({"bundle": str(bundle.path), "sha256": bundle.sha256, "calibration": calibration})


def add_adapt(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands, "adapt", _adapt, "adapt the thresholds of a bundle to your survey with unlabelled light curves of it"
    )
    parser.add_argument("bundle", type=Path, help="bundle folder to adapt")
    parser.add_argument("out", type=Path, help="bundle folder to write; must be empty")
    parser.add_argument("--like", type=Path, required=True, help="Parquet file of `import`; its labels are ignored")
    parser.add_argument("--report", type=Path, help="JSON file of scores to write")
    parser.add_argument("--origins", type=Path, help="folder of labelled surveys; default: simulated objects")
    parser.add_argument("--views", type=at_least(200), default=4000, help="approximate number of re-observed objects")
    parser.add_argument("--version", help="version of the new bundle; default: the next patch")
    parser.add_argument("--seed", type=at_least(0), default=0, help="random seed of the views")


def _adapt(options: argparse.Namespace) -> None:
    """Adapt the bundle, write it and print the scores before and after."""
    from nightjar_alerts.training.export.adapt import adapt
    from nightjar_alerts.training.score.report import rounded

    adapted = adapt(
        options.bundle,
        options.like,
        options.out,
        origins=options.origins,
        number=options.views,
        version=options.version,
        seed=options.seed,
    )
    report = rounded(adapted.report)
    if options.report is not None:
        write_json(options.report, report, indent=None)
    print_json(report)


def add_describe(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands, "describe", _describe, "print a recipe as TOML and the size of its network, or list all recipes"
    )
    add_recipe(parser, optional=True)


def _describe(options: argparse.Namespace) -> None:
    from nightjar_alerts.models.networks.zoo import build, count_parameters
    from nightjar_alerts.training.recipes.catalogue import PURPOSES
    from nightjar_alerts.training.recipes.resolve import as_toml

    if options.recipe is None:
        sys.stdout.write("".join(f"{name}: {purpose}\n" for name, purpose in PURPOSES.items()))
        return
    recipe = chosen_recipe(options)
    counts = count_parameters(build(recipe.network, recipe.task))
    head = f"# {recipe.name}: {PURPOSES[recipe.name]}\n" if recipe.name in PURPOSES else ""
    head += f"# {counts.total:,} parameters, of which {counts.active:,} are active for a token:\n"
    head += "".join(f"#   {name} {number:,}\n" for name, number in counts.by_part.items())
    sys.stdout.write(f"{head}\n{as_toml(recipe)}")


def add_card(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(commands, "card", _card, "write the model card of a bundle with the scores of a report")
    parser.add_argument("bundle", type=Path, help="bundle folder; its manifest is rewritten")
    parser.add_argument("--report", type=Path, help="JSON file of `evaluate` or `makers ztf-types --folds`")
    parser.add_argument("--baseline", type=Path, help="JSON file of `makers baseline` on the same objects")


def _card(options: argparse.Namespace) -> None:
    """Write the card and print the bundle's new hash."""
    from nightjar_alerts.training.export.card import read_report, write_card

    bundle = write_card(options.bundle, read_report(options.report), read_report(options.baseline))
    print_json({"bundle": str(bundle.path), "sha256": bundle.sha256})


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    whole = argparse.ArgumentParser("nightjar-train", description="Train light-curve classifiers and export bundles.")
    commands = whole.add_subparsers(metavar="COMMAND", required=True)
    add_command(commands, "import", _unreachable, "convert files of a survey to a data file; `import FORMAT --help`")
    add_simulate(commands)
    add_finetune(commands)
    add_fit(commands)
    add_evaluate(commands)
    add_export(commands)
    add_adapt(commands)
    add_describe(commands)
    add_card(commands)
    experiment = add_command(
        commands, "experiment", _no_experiment, "run a published experiment; `experiment NAME --help` lists its options"
    )
    experiment.add_argument("name", help=f"{', '.join(EXPERIMENTS)} or table")
    add_makers(commands)
    return whole


def _unreachable(_: argparse.Namespace) -> None:
    raise AssertionError("`import` has its own parser")


def _no_experiment(options: argparse.Namespace) -> None:
    raise SystemExit(f"unknown experiment {options.name!r}; there are {', '.join(EXPERIMENTS)} and table")


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and run it; errors in files are one line on stderr and exit status 1."""
    from nightjar_alerts.models.bundle import BundleError

    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        with _terminable():
            _run(arguments)
    except ValidationError as error:
        lines = [f"error: {' '.join(map(str, details['loc']))}: {details['msg']}" for details in error.errors()]
        raise SystemExit("\n".join(lines)) from error
    except (BundleError, FloatingPointError, OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error
    except KeyboardInterrupt as error:
        print(f"nightjar-train: {str(error) or INTERRUPTED}", file=sys.stderr)
        raise SystemExit(SIGNALLED + getattr(error, "number", signal.SIGINT)) from error


INTERRUPTED = "interrupted; run the same command again: what a resumable command has finished is kept"


class _Terminated(KeyboardInterrupt):
    number = signal.SIGTERM


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end a command as SIGINT does; only the main thread may set handlers."""

    def stop(*_: object) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(arguments: list[str]) -> None:
    match arguments:
        case ["experiment", name, *options] if name in (*EXPERIMENTS, "table"):
            from nightjar_alerts.training.experiments import runner  # imports torch

            runner.main(name, options)
        case ["import", *options]:
            from nightjar_alerts.training.importers import commands

            commands.main(options)
        case _:
            parsed = parser().parse_args(arguments)
            parsed.run_command(parsed)


if __name__ == "__main__":
    main()
