"""Records of experiments: one JSON file a run, and Markdown tables with mean and spread over the seeds.

``build/experiments/<experiment>/<variant>-<seed>.json`` says what was run (command, settings, steps done of the steps
published, machine, threads) next to what came out, so that a row of a table can be run again. A table takes together
only runs of the same variant *and* the same number of steps: a fraction of the published budget is its own row.

The spread is the sample standard deviation over seeds (n - 1), left out for a single one.

Beside them stand the options that every trained experiment has on its command line (:class:`Options`). They are kept
apart from :mod:`training.experiments.runs` because they need no torch: ``--help`` answers at once.
"""

import shlex
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from training.common import markdown_table, processor_name

RECORDS = Path("build/experiments")
HEADER = ("variant", "metric", "seeds", "mean ± s.d.", "paper", "floor", "steps", "min a run", "machine")


class Record(BaseModel):
    """One run of one experiment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: str
    variant: str = Field(description="what the seeds have in common; part of the file's name")
    seed: int
    metrics: dict[str, float] = Field(description="name, with its unit where it has one -> value")
    paper: dict[str, str] = Field(default={}, description="metric -> the published figure, as printed")
    floor: dict[str, float] = Field(default={}, description="metric -> what no model can be below, on these data")
    settings: dict[str, Any] = Field(description="everything that decides the run, resolved")
    command: str
    steps: int = Field(ge=0, description="optimiser steps done")
    published_steps: int = Field(ge=0, description="optimiser steps of the published run")
    minutes: float = Field(ge=0)
    machine: str
    threads: int


def machine(device: str = "cpu") -> str:
    """Name of the processor, or of the GPU when ``device`` is ``cuda``."""
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    return processor_name()


def write_record(record: Record, records: Path = RECORDS) -> Path:
    """Write a run's record, over an earlier one of the same variant and seed; returns the file."""
    path = records / record.experiment / f"{record.variant}-{record.seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return path


def read_records(experiment: str, records: Path = RECORDS) -> list[Record]:
    """Return all records of an experiment, by variant and seed.

    Raises
    ------
    ValueError
        When there are none, or a file is not a record.
    """
    found = []
    for path in sorted((records / experiment).glob("*.json")):
        try:
            found.append(Record.model_validate_json(path.read_bytes()))
        except ValidationError as error:
            raise ValueError(f"{path} is not a record: {error}") from error
    if not found:
        raise ValueError(f"no records of experiment {experiment!r} under {records}")
    return sorted(found, key=lambda record: (record.variant, record.steps, record.seed))


def table(records: Iterable[Record]) -> str:
    """Markdown table, a row for each variant, number of steps and metric."""
    groups: dict[tuple[str, int, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.variant, record.steps, record.machine].append(record)
    rows = [row for group in groups.values() for row in _rows(group)]
    return markdown_table(HEADER, rows) + "\n"


def _rows(group: list[Record]) -> list[tuple[str, ...]]:
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


def _floor(metric: str, group: list[Record]) -> str:
    floors = [record.floor[metric] for record in group if metric in record.floor]
    return number(statistics.fmean(floors)) if floors else ""


def mean_and_spread(values: list[float]) -> str:
    """``mean ± sample standard deviation`` of one value per seed; the value alone when there is one."""
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.fmean(values))} ± {number(statistics.stdev(values), 2)}"


def number(value: float, digits: int = 4) -> str:
    """Round to significant digits, without a power of ten where that stays short."""
    text = f"{value:.{digits}g}"
    return text if "e" not in text or abs(value) < 1e-4 else f"{value:.0f}"


PLACES = frozenset({"records", "runs", "cache", "max_minutes"})  # decide where and when, not what


class Options(BaseModel):
    """Base of the experiments' commands."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: ClassVar[str]  # the sub-command's name

    seed: int = Field(default=0, ge=0, description="of the weights and of the order of the batches")
    steps: int | None = Field(default=None, ge=1, description="instead of the published number; the schedule shrinks")
    threads: int = Field(default=1, ge=1, description="torch threads; on few cores one process a core is fastest")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="where to train")
    max_minutes: float | None = Field(default=None, gt=0, description="save and stop after this long; run again")
    records: Path = Field(default=RECORDS, description="folder of the JSON records")
    runs: Path = Field(default=Path("runs/experiments"), description="folder of checkpoints and logs")

    def settings(self) -> dict[str, Any]:
        """Every option that decides the result."""
        return self.model_dump(mode="json", exclude=set(PLACES))

    def command(self) -> str:
        """Shell command that repeats the run: the options that differ from their defaults."""
        words = ["python", "-m", "training", "experiment", self.experiment]
        for name, value in self.model_dump(mode="json", exclude=set(PLACES), exclude_defaults=True).items():
            words += [f"--{name.replace('_', '-')}", str(value).lower() if isinstance(value, bool) else str(value)]
        return shlex.join(words)
