"""Run an experiment through the training loop, record the result, and tabulate the records of several seeds.

    nightjar-train experiment position --width 432 --seed 41
    nightjar-train experiment table position

A run writes ``build/experiments/<experiment>/<variant>-<seed>.json``: the command, the settings, the steps done of the
steps published, the machine and the metrics. A table combines runs of the same variant, number of steps and machine;
its spread is the sample standard deviation over seeds (n - 1).

Notable:

- the reported metrics are those of the *last* weights, as in the published experiments; validation scores are only
  logged;
- ``--steps`` shortens a run together with its warm-up and cosine;
- in the published RoMAE runs the cosine starts at step 0 and follows a linear warm-up. Here the cosine starts at the
  end of the warm-up; peak and end are the same, and the difference in between is a few per cent.
"""

import shlex
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_settings import BaseSettings, CliApp, CliPositionalArg, CliSubCommand, SettingsConfigDict
from torch import nn

from nightjar_alerts.models.common import markdown_table, processor_name
from nightjar_alerts.models.lightcurve import Int64
from nightjar_alerts.training.experiments import EXPERIMENTS
from nightjar_alerts.training.fit.checkpoints import LOG, read_log
from nightjar_alerts.training.fit.loop import Task, fit
from nightjar_alerts.training.recipes.schema import FitConfig, OptimizerConfig, ScheduleConfig, ValidationConfig

RECORDS = Path("build/experiments")
HEADER = ("variant", "metric", "seeds", "mean ± s.d.", "paper", "floor", "steps", "min a run", "machine")


class RunRecord(BaseModel):
    """One run of one experiment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: str
    variant: str = Field(description="name of the configuration, the same for all seeds; part of the file name")
    seed: int
    metrics: dict[str, float] = Field(description="values by name and unit")
    paper: dict[str, str] = Field(default={}, description="published values by metric, as printed")
    floor: dict[str, float] = Field(default={}, description="smallest possible value on these data, by metric")
    settings: dict[str, Any] = Field(description="resolved configuration of the run")
    command: str
    steps: int = Field(ge=0, description="number of optimizer steps")
    published_steps: int = Field(ge=0, description="number of optimizer steps of the published run")
    minutes: float = Field(ge=0)
    machine: str
    threads: int


def machine(device: str = "cpu") -> str:
    """Return the name of the processor, or of the GPU if ``device`` is ``cuda``."""
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    return processor_name()


def write_record(record: RunRecord, records: Path = RECORDS) -> Path:
    """Write the record of a run, replacing one of the same variant and seed, and return the file."""
    path = records / record.experiment / f"{record.variant}-{record.seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return path


def read_records(experiment: str, records: Path = RECORDS) -> list[RunRecord]:
    """Return all records of an experiment, by variant and seed.

    Raises
    ------
    ValueError
        If there are none, or a file is not a record.
    """
    stored_records = []
    for path in sorted((records / experiment).glob("*.json")):
        try:
            stored_records.append(RunRecord.model_validate_json(path.read_bytes()))
        except ValidationError as error:
            raise ValueError(f"{path} is not a record: {error}") from error
    if not stored_records:
        raise ValueError(f"no records of experiment {experiment!r} under {records}")
    return sorted(stored_records, key=lambda record: (record.variant, record.steps, record.seed))


def table(records: Iterable[RunRecord]) -> str:
    """Return a Markdown table with a row for each variant, number of steps and metric."""
    groups: dict[tuple[str, int, str], list[RunRecord]] = defaultdict(list)
    for record in records:
        groups[record.variant, record.steps, record.machine].append(record)
    rows = [row for group in groups.values() for row in _rows(group)]
    return markdown_table(HEADER, rows) + "\n"


def _rows(group: list[RunRecord]) -> list[tuple[str, ...]]:
    first = group[0]
    steps = f"{first.steps:,}"
    if first.steps != first.published_steps:
        steps += f" of {first.published_steps:,}"
    minutes = number(statistics.fmean(record.minutes for record in group))
    seeds = ", ".join(str(record.seed) for record in group)
    return [
        (
            *(first.variant, metric, seeds, mean_and_spread([record.metrics[metric] for record in group])),
            *(first.paper.get(metric, ""), _floor(metric, group), steps, minutes, first.machine),
        )
        for metric in first.metrics
        if all(metric in record.metrics for record in group)
    ]


def _floor(metric: str, group: list[RunRecord]) -> str:
    floors = [record.floor[metric] for record in group if metric in record.floor]
    return number(statistics.fmean(floors)) if floors else ""


def mean_and_spread(values: list[float]) -> str:
    """Format mean ± sample standard deviation over seeds; only the value for one seed."""
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.fmean(values))} ± {number(statistics.stdev(values), 2)}"


def number(value: float, digits: int = 4) -> str:
    """Format with significant digits, without an exponent unless the number is small."""
    text = f"{value:.{digits}g}"
    return text if "e" not in text or abs(value) < 1e-4 else f"{value:.0f}"


NOT_SETTINGS = frozenset({"records", "runs", "cache", "max_minutes"})  # do not affect the result


class ExperimentOptions(BaseModel):
    """Base of the commands of experiments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: ClassVar[str]  # the sub-command's name

    seed: int = Field(default=0, ge=0, description="seed of the weights and of the order of the batches")
    steps: int | None = Field(default=None, ge=1, description="number of steps; default: as published")
    threads: int = Field(default=1, ge=1, description="torch threads; on few cores one process per core is fastest")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="device to train on")
    max_minutes: float | None = Field(default=None, gt=0, description="save and stop after this time; repeat to resume")
    records: Path = Field(default=RECORDS, description="folder of the JSON records")
    runs: Path = Field(default=Path("runs/experiments"), description="folder of checkpoints and logs")

    def settings(self) -> dict[str, Any]:
        """Return the options that affect the result."""
        return self.model_dump(mode="json", exclude=set(NOT_SETTINGS))

    def command(self) -> str:
        """Return the shell command of the run, without options at their defaults."""
        words = ["nightjar-train", "experiment", self.experiment]
        for name, value in self.model_dump(mode="json", exclude=set(NOT_SETTINGS), exclude_defaults=True).items():
            words += [f"--{name.replace('_', '-')}", str(value).lower() if isinstance(value, bool) else str(value)]
        return shlex.join(words)

    def record(self, variant: str, metrics: dict[str, float], steps: int, minutes: float, **more: Any) -> RunRecord:
        """Return the record of a run; ``more`` are further fields. ``published_steps`` defaults to ``steps``."""
        fields: dict[str, Any] = {
            "experiment": self.experiment,
            "variant": variant,
            "seed": self.seed,
            "metrics": metrics,
            "settings": self.settings(),
            "command": self.command(),
            "steps": steps,
            "published_steps": steps,
            "minutes": minutes,
            "machine": machine(self.device),
            "threads": self.threads,
        }
        return RunRecord(**(fields | more))

    def plan(self) -> "ExperimentPlan":
        """Build the plan for :func:`run`."""
        # Not abstract, since Astro-MoE and encodings override `cli_cmd` and have no plan.
        raise NotImplementedError

    def cli_cmd(self) -> None:
        """Train, measure and record."""
        run(self, self.plan())


class RunIdentity(BaseModel):
    """Content of a run folder's ``config.json``; a folder of another run is rejected."""

    model_config = ConfigDict(frozen=True)

    variant: str
    settings: dict[str, Any]
    fit: FitConfig


@dataclass(frozen=True, slots=True, eq=False)
class ExperimentPlan:
    """Network, task and metrics of an experiment.

    Attributes
    ----------
    variant : name of the configuration, the same for all seeds.
    measure : returns the metrics of the trained network, in evaluation mode.
    paper, floor : values for the metrics, as in :class:`RunRecord`.
    """

    variant: str
    network: nn.Module
    task: Task
    fit: FitConfig
    published_steps: int
    measure: Callable[[nn.Module], dict[str, float]]
    paper: dict[str, str] = field(default_factory=dict)
    floor: dict[str, float] = field(default_factory=dict)


def fit_config(
    options: ExperimentOptions, *, steps: int, warmup: int, lr: float, clip_norm: float | None, validations: int = 10
) -> FitConfig:
    """Return the loop configuration of a published run with ``options.steps``; AdamW, decay 0.01."""
    done = options.steps or steps
    return FitConfig(
        name=options.experiment,
        schedule=ScheduleConfig(steps=done, warmup_steps=round(warmup * done / steps), final_fraction=0.0),
        optimizer=OptimizerConfig(lr=lr, weight_decay=0.01, clip_norm=clip_norm),
        validation=ValidationConfig(every=max(1, done // validations), log_every=max(1, min(50, done // 10))),
        seed=options.seed,
        threads=options.threads,
        device=options.device,
    )


def run(options: ExperimentOptions, plan: ExperimentPlan) -> RunRecord | None:
    """Train or resume, measure and write the record; None if ``max_minutes`` ended the run early."""
    steps = plan.fit.schedule.steps
    folder = options.runs / options.experiment / f"{plan.variant}-{options.seed}-{steps}"
    identity = RunIdentity(variant=plan.variant, settings=options.settings(), fit=plan.fit)
    result = fit(plan.network, plan.task, plan.fit, folder, identity, max_minutes=options.max_minutes)
    if not result.finished:
        sys.stdout.write(f"stopped at step {result.step} of {steps}: run the same command again to resume\n")
        return None
    with torch.inference_mode():
        metrics = plan.measure(plan.network.eval())
    record = options.record(
        plan.variant,
        metrics,
        result.step,
        minutes(folder, steps),
        paper=plan.paper,
        floor=plan.floor,
        settings=options.settings() | {"fit": plan.fit.model_dump(mode="json")},
        published_steps=plan.published_steps,
    )
    sys.stdout.write(f"{write_record(record, options.records)}: {record.metrics}\n")
    return record


def minutes(folder: Path, steps: int) -> float:
    """Return the training time in minutes over all calls, from the seconds per step in the log."""
    seconds = [line["seconds_per_step"] for line in read_log(folder) if "seconds_per_step" in line]
    if not seconds:
        raise ValueError(f"{folder / LOG} has no seconds_per_step: fewer steps than one interval of the log")
    return round(float(np.mean(seconds)) * steps / 60.0, 2)


def epochs(n_examples: int, batch_size: int, seed: int, step: int) -> Iterator[Int64]:
    """Yield the example indices of the batches of ``step`` and all later steps; each epoch has all examples, shuffled.

    The last batch of an epoch is the remainder. Shuffles depend on (seed, epoch) only.
    """
    per_epoch = -(-n_examples // batch_size)
    epoch, first = divmod(step, per_epoch)
    while True:
        order = np.random.default_rng((seed, epoch)).permutation(n_examples)
        for start in range(first * batch_size, n_examples, batch_size):
            yield order[start : start + batch_size]
        epoch, first = epoch + 1, 0


class RecordsTable(BaseModel):
    """Print the records of an experiment as a Markdown table: mean and spread over the seeds of each variant."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: CliPositionalArg[str] = Field(description="name of the experiment")
    records: Path = Field(default=RECORDS, description="folder of the JSON records")

    def cli_cmd(self) -> None:
        """Read and print."""
        sys.stdout.write(table(read_records(self.experiment, self.records)))


class ExperimentSettings(BaseSettings):
    """Base of the command line of one experiment."""

    model_config = SettingsConfigDict(
        cli_prog_name="nightjar-train experiment",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_use_class_docs_for_groups=True,
    )

    def cli_cmd(self) -> None:
        """Run the only subcommand."""
        CliApp.run_subcommand(self)


def main(name: str, arguments: list[str]) -> None:
    """Parse the options of an experiment, or of ``table``, and run it. Only its module is imported."""
    options: Any = RecordsTable
    if name != "table":
        options = getattr(import_module(f"{__package__}.{name.replace('-', '_')}"), EXPERIMENTS[name])
    annotation = CliSubCommand[options]
    fields: dict[str, Any] = {name.replace("-", "_"): (annotation, ...)}
    CliApp.run(create_model("Experiment", __base__=ExperimentSettings, **fields), cli_args=[name, *arguments])
