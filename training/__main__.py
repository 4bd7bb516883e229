"""The command ``nightjar-train``: simulate light curves, train a recipe, export a bundle, score it, write its card.

A whole run, resumable at every step::

    nightjar-train simulate --out build/sim.parquet --per-class 3000
    nightjar-train train default --data build/sim.parquet
    nightjar-train export runs/default-0 build/astro-moe --data build/sim.parquet
    nightjar-train baseline --data build/sim.parquet --report build/baseline.json
    nightjar-train evaluate build/astro-moe --data build/sim.parquet --report build/report.json \\
        --html build/report.html --baseline build/baseline.json
    nightjar-train card build/astro-moe --report build/report.json --baseline build/baseline.json

Commands import what they need when they run, so that ``--help`` is fast.
"""

import json
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

if missing := [
    name for name in ("onnxruntime", "pyarrow", "pydantic_settings", "torch", "tqdm") if find_spec(name) is None
]:
    sys.exit(f"nightjar-train: {' and '.join(missing)} not installed: pip install 'nightjar-alerts[train]'")

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, CliApp, CliPositionalArg, CliSubCommand, SettingsConfigDict

from nightjar_alerts.training.experiments import EXPERIMENTS
from nightjar_alerts.training.importers.commands import Import
from nightjar_alerts.training.makers import Adapt, Makers


class TrainingCommand(BaseModel):
    """Base of the subcommands. The docstring of a subcommand is its help text."""

    model_config = ConfigDict(use_attribute_docstrings=False, extra="forbid")


class Simulate(TrainingCommand):
    """Write simulated, labelled light curves to a Parquet file, all classes in equal numbers."""

    out: Path = Field(description="Parquet file to write")
    per_class: int = Field(default=3000, ge=1, description="number of objects of each class")
    survey: Literal["rubin", "any"] = Field(
        default="rubin", description="survey of the 20 classes: Rubin, or a random one"
    )
    classes: list[str] = Field(default=[], description="class to simulate; repeat for several; default: all")
    seed: int = Field(default=1, ge=0, description="random seed")
    workers: int = Field(default=2, ge=1, description="number of processes; does not change the result")

    def cli_cmd(self) -> None:
        """Run the simulator."""
        from nightjar_alerts.training.simulate.generate import simulate

        options: dict[str, Any] = self.model_dump(include={"classes", "survey"})
        simulate(self.out, self.per_class, self.seed, self.workers, **options)


class Train(TrainingCommand):
    """Train a recipe; run the same command again to resume."""

    recipe: CliPositionalArg[str] = Field(description="name of a recipe; see `describe`")
    data: Path = Field(description="Parquet file of `simulate`")
    out: Path | None = Field(default=None, description="run folder; default runs/<recipe>-<seed>")
    seed: int = Field(default=0, ge=0, description="seed of weights, sampling and augmentation")
    steps: int | None = Field(default=None, ge=1, description="number of steps; default: the recipe's")
    threads: int | None = Field(default=None, ge=1, description="torch threads; default: torch's choice")
    device: Literal["cpu", "cuda"] | None = Field(default=None, description="default: the recipe's")
    pretrained: Path | None = Field(default=None, description="run folder with the initial weights")
    max_minutes: float | None = Field(default=None, gt=0, description="save and stop after this time")

    def cli_cmd(self) -> None:
        """Train or resume, then print the result as JSON, from one process only."""
        from nightjar_alerts.training.fit.distributed import is_first
        from nightjar_alerts.training.fit.train import train

        named = _recipe(self.recipe)
        schedule = named.schedule.model_copy(update={"steps": self.steps or named.schedule.steps})
        changes = {"seed": self.seed, "schedule": schedule, "threads": self.threads or named.threads}
        recipe = named.model_copy(update={**changes, "device": self.device or named.device})
        folder = self.out or Path("runs") / f"{recipe.name}-{recipe.seed}"
        result = train(recipe, self.data, folder, pretrained=self.pretrained, max_minutes=self.max_minutes)
        if is_first():
            _print({"run": str(folder), **result._asdict()})


class Describe(TrainingCommand):
    """Print the resolved recipe and the size of its network as JSON."""

    recipe: CliPositionalArg[str] = Field(description="astro-moe-pe, astro-moe-tm, multiband-astromer, default ...")

    def cli_cmd(self) -> None:
        """Print the description."""
        from nightjar_alerts.models.networks.zoo import build, count_parameters

        recipe = _recipe(self.recipe)
        parameters = count_parameters(build(recipe.network, recipe.task))
        _print({"recipe": recipe.model_dump(mode="json"), "parameters": parameters})


class Throughput(TrainingCommand):
    """Measure training throughput in light curves per second, with packing and with padding (minutes)."""

    recipe: CliPositionalArg[str] = Field(description="name of a classifier's recipe; see `describe`")
    data: Path = Field(description="Parquet file of `simulate`")
    rounds: int = Field(default=3, ge=1, description="number of pairs of timings")
    threads: int | None = Field(default=None, ge=1, description="torch threads; default: the recipe's")
    device: Literal["cpu", "cuda"] | None = Field(default=None, description="default: the recipe's")

    def cli_cmd(self) -> None:
        """Measure, then print both rates and their ratio as JSON."""
        from nightjar_alerts.training.fit.train import throughput

        named = _recipe(self.recipe)
        changes = {"threads": self.threads or named.threads, "device": self.device or named.device}
        say = partial(print, file=sys.stderr, flush=True)
        _print(throughput(named.model_copy(update=changes), self.data, self.rounds, say))


class Export(TrainingCommand):
    """Calibrate a run's best weights and export them as a bundle."""

    run: CliPositionalArg[Path] = Field(description="run folder of `train`")
    out: CliPositionalArg[Path] = Field(description="bundle folder to write; must be empty")
    data: Path = Field(description="data file of the run; its validation split is used for calibration")
    name: str = Field(default="astro-moe", description="name of the bundle")
    version: str = Field(default="1.0.0", description="semantic version of the bundle")

    def cli_cmd(self) -> None:
        """Export, then print what was written as JSON."""
        from nightjar_alerts.training.export.bundle import release

        say = partial(print, file=sys.stderr, flush=True)
        bundle = release(self.run, self.data, self.out, name=self.name, version=self.version, say=say)
        calibration = bundle.manifest.calibration.model_dump()
        _print({"bundle": str(bundle.path), "sha256": bundle.sha256, "calibration": calibration})


class Unpack(TrainingCommand):
    """Read the weights of a bundle back into a run folder, for `train --pretrained`."""

    bundle: CliPositionalArg[Path] = Field(description="folder of a classifier's bundle")
    out: CliPositionalArg[Path] = Field(description="run folder to write")

    def cli_cmd(self) -> None:
        """Unpack, then print the run folder."""
        from nightjar_alerts.training.export.weights import unpack

        _print({"run": str(unpack(self.bundle, self.out))})


class Evaluate(TrainingCommand):
    """Score a bundle, and run folders of other seeds, on an untouched split."""

    models: CliPositionalArg[list[Path]] = Field(description="bundle to report on, then run folders for the spread")
    data: Path = Field(description="Parquet file of `simulate`")
    report: Path = Field(description="JSON file to write")
    html: Path | None = Field(default=None, description="HTML page to write, with the report as a single file")
    baseline: list[Path] = Field(default=[], description="JSON file of `baseline` to add to the page; repeatable")
    split: str = Field(default="test", description="train, validation or test")
    objects: int | None = Field(default=None, ge=1, description="score a sample of this size; default: all")
    left_out: list[str] = Field(default=[], description="class outside the models' training; repeatable")

    def cli_cmd(self) -> None:
        """Score, write the report and print the scores of every view."""
        from nightjar_alerts.training.score.evaluate import evaluate
        from nightjar_alerts.training.score.page import read_baselines, write_page

        baselines = read_baselines(self.baseline)  # fails before scoring, which can take hours
        report = evaluate(self.models, self.data, self.split, self.objects, left_out=self.left_out)
        _write_report(self.report, report)
        if self.html is not None:
            write_page(self.html, report, baselines)


class Baseline(TrainingCommand):
    """Train trees on features of the same objects as a recipe, and score them on the same split."""

    data: Path = Field(description="Parquet file of `simulate`")
    report: Path = Field(description="JSON file to write")
    classifier: Literal["boosted", "forest"] = Field(default="boosted", description="boosted trees or random forest")
    features: Literal["summary", "light-curve", "union"] = Field(
        default="union", description="built-in features, those of the light-curve package, or both"
    )
    recipe: str = Field(default="default", description="recipe whose split, limits and augmentation to use")
    seed: int = Field(default=0, ge=0, description="seed of sampling and trees")
    examples: int = Field(default=60_000, ge=100, description="training examples")
    split: str = Field(default="test", description="train, validation or test")
    objects: int | None = Field(default=None, ge=1, description="score a sample of this size; default: all")

    def cli_cmd(self) -> None:
        """Train, score, write the report and print the scores of every view."""
        from nightjar_alerts.training.score.baseline import baseline

        recipe = _recipe(self.recipe).model_copy(update={"seed": self.seed})
        report = baseline(
            recipe,
            self.data,
            classifier=self.classifier,
            feature_set=self.features,
            examples=self.examples,
            split=self.split,
            objects=self.objects,
        )
        _write_report(self.report, report)


class CrossValidate(TrainingCommand):
    """Train a recipe, and trees, on every fold of a real data set; score complete light curves. Resumable."""

    recipe: CliPositionalArg[str] = Field(description="name of a classifier's recipe; see `describe`")
    data: Path = Field(description="Parquet file of `import`")
    report: Path = Field(description="JSON file to write")
    runs: Path | None = Field(default=None, description="folder for the runs; default runs/<recipe>-folds")
    folds: int = Field(default=5, ge=2, description="number of folds")
    seed: int = Field(default=0, ge=0, description="seed of weights, sampling and augmentation")
    steps: int | None = Field(default=None, ge=1, description="number of steps; default: the recipe's")
    pretrained: Path | None = Field(default=None, description="run folder with the initial weights of every fold")
    network: bool = Field(default=True, description="train the network; false: trees only")
    trees: list[Literal["boosted", "forest"]] = Field(
        default=["boosted", "forest"], description="trees to train on the same folds"
    )
    features: Literal["summary", "light-curve", "union"] = Field(default="union", description="features of the trees")

    def cli_cmd(self) -> None:
        """Train missing folds, score, write the report and print its table."""
        from nightjar_alerts.training.score.folds import crossvalidate, table

        named = _recipe(self.recipe)
        schedule = named.schedule.model_copy(update={"steps": self.steps or named.schedule.steps})
        runs = (self.runs or Path("runs") / f"{named.name}-folds") if self.network else None
        report = crossvalidate(
            named.model_copy(update={"seed": self.seed, "schedule": schedule}),
            self.data,
            runs,
            folds=self.folds,
            pretrained=self.pretrained,
            trees=self.trees,
            features=self.features,
        )
        self.report.parent.mkdir(parents=True, exist_ok=True)
        self.report.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        print(table(report))


class Card(TrainingCommand):
    """Write the model card of a bundle from its manifest and the reports of `evaluate` and `baseline`."""

    bundle: CliPositionalArg[Path] = Field(description="bundle folder; its manifest is rewritten")
    report: Path | None = Field(default=None, description="JSON file of `evaluate`")
    baseline: Path | None = Field(default=None, description="JSON file of `baseline`")

    def cli_cmd(self) -> None:
        """Write the card and print the bundle's new hash."""
        from nightjar_alerts.training.export.card import read_report, write_card

        bundle = write_card(self.bundle, read_report(self.report), read_report(self.baseline))
        _print({"bundle": str(bundle.path), "sha256": bundle.sha256})


class ExportAgain(TrainingCommand):
    """Export the weights of a bundle again with the current exporter and compare the golden outputs."""

    bundle: CliPositionalArg[Path] = Field(description="bundle folder")
    out: CliPositionalArg[Path] = Field(description="bundle folder to write; must not exist")

    def cli_cmd(self) -> None:
        """Export; print the nodes of both graphs and the largest difference of golden outputs."""
        from nightjar_alerts.training.export.weights import export_again

        _print(export_again(self.bundle, self.out))


class Cuda(TrainingCommand):
    """Copy a bundle and add a graph for CUDA, which the service uses on a GPU."""

    bundle: CliPositionalArg[Path] = Field(description="bundle folder")
    out: CliPositionalArg[Path] = Field(description="bundle folder to write; must not exist")

    def cli_cmd(self) -> None:
        """Add the graph and print its number of nodes; fail if a node has no CUDA kernel."""
        from nightjar_alerts.training.export.cuda import add_cuda

        _print(add_cuda(self.bundle, self.out))


class Experiment(TrainingCommand):
    """Run a published experiment, or print its records with `table`; `experiment NAME --help` lists the options."""

    name: CliPositionalArg[str] = Field(description=f"{', '.join(EXPERIMENTS)} or table")

    def cli_cmd(self) -> None:
        """Fail for unknown names; :func:`main` runs the known ones."""
        raise SystemExit(f"unknown experiment {self.name!r}; there are {', '.join(EXPERIMENTS)} and table")


class Training(BaseSettings):
    """Train light-curve classifiers and export them as bundles."""

    model_config = SettingsConfigDict(
        cli_prog_name="nightjar-train",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_use_class_docs_for_groups=True,
    )

    simulate: CliSubCommand[Simulate]
    import_: CliSubCommand[Import] = Field(alias="import")
    train: CliSubCommand[Train]
    throughput: CliSubCommand[Throughput]
    describe: CliSubCommand[Describe]
    export: CliSubCommand[Export]
    unpack: CliSubCommand[Unpack]
    evaluate: CliSubCommand[Evaluate]
    baseline: CliSubCommand[Baseline]
    crossvalidate: CliSubCommand[CrossValidate]
    card: CliSubCommand[Card]
    export_again: CliSubCommand[ExportAgain]
    cuda: CliSubCommand[Cuda]
    experiment: CliSubCommand[Experiment]
    sky: CliSubCommand[Makers]
    adapt: CliSubCommand[Adapt]

    def cli_cmd(self) -> None:
        """Run the chosen subcommand."""
        CliApp.run_subcommand(self)


def _recipe(name: str) -> Any:
    from nightjar_alerts.training.recipes.catalogue import RECIPES

    if name not in RECIPES:
        raise SystemExit(f"unknown recipe {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]()


def _write_report(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    _print({view: {name: score["mean"] for name, score in scores.items()} for view, scores in report["views"].items()})


def _print(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2))


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and run it; errors in files are one line on stderr and exit status 1."""
    from nightjar_alerts.models.bundle import BundleError

    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        match arguments:
            case ["experiment", name, *options] if name in (*EXPERIMENTS, "table"):
                from nightjar_alerts.training.experiments import runner

                runner.main(name, options)
            case _:
                CliApp.run(Training, cli_args=arguments)
    except ValidationError as error:
        lines = [f"error: {' '.join(map(str, details['loc']))}: {details['msg']}" for details in error.errors()]
        raise SystemExit("\n".join(lines)) from error
    except (BundleError, OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
