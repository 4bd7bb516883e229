"""Options of the published experiments and records of their runs; what each does is said where it runs.

No torch here, so that ``--help`` answers at once: :mod:`training.experiments.regression` (position, pendulum),
:mod:`training.experiments.series` (UEA), :mod:`training.experiments.arms` (Astro-MoE),
:mod:`training.experiments.encoding_runs` (encodings) and :mod:`training.experiments.attention` import their options
from here.

A run writes one JSON file; tables in Markdown have mean and spread over the seeds.
``build/experiments/<experiment>/<variant>-<seed>.json`` says what was run (command, settings, steps done of the steps
published, machine, threads) next to what came out, so that a row of a table can be run again. A table takes together
only runs of the same variant *and* the same number of steps: a fraction of the published budget is its own row.

The spread is the sample standard deviation over seeds (n - 1), left out for a single one.
"""

import shlex
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nightjar_alerts.models.common import markdown_table, processor_name

RECORDS = Path("build/experiments")
HEADER = ("variant", "metric", "seeds", "mean ± s.d.", "paper", "floor", "steps", "min a run", "machine")


class RunRecord(BaseModel):
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


def write_record(record: RunRecord, records: Path = RECORDS) -> Path:
    """Write a run's record, over an earlier one of the same variant and seed; returns the file."""
    path = records / record.experiment / f"{record.variant}-{record.seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return path


def read_records(experiment: str, records: Path = RECORDS) -> list[RunRecord]:
    """Return all records of an experiment, by variant and seed.

    Raises
    ------
    ValueError
        When there are none, or a file is not a record.
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
    """Markdown table, a row for each variant, number of steps and metric."""
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
    """``mean ± sample standard deviation`` of one value per seed; the value alone when there is one."""
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.fmean(values))} ± {number(statistics.stdev(values), 2)}"


def number(value: float, digits: int = 4) -> str:
    """Round to significant digits, without a power of ten where that stays short."""
    text = f"{value:.{digits}g}"
    return text if "e" not in text or abs(value) < 1e-4 else f"{value:.0f}"


PLACES = frozenset({"records", "runs", "cache", "max_minutes"})  # decide where and when, not what


class ExperimentOptions(BaseModel):
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
        words = ["nightjar-train", "experiment", self.experiment]
        for name, value in self.model_dump(mode="json", exclude=set(PLACES), exclude_defaults=True).items():
            words += [f"--{name.replace('_', '-')}", str(value).lower() if isinstance(value, bool) else str(value)]
        return shlex.join(words)


N_TOKENS = 10
LOW, HIGH = 1.0, 50.0
POSITION_TRAIN, POSITION_TEST = 20_000, 4_000
VARIANCE = (HIGH - LOW) ** 2 / 12
POSITION_PAPER = {180: "0.062 ± 0.007", 432: "0.0057 ± 0.002", 720: "0.0031 ± 0.002"}
POSITION_PAPER_WITHOUT_CLS = "200.33"


def draw_positions(split: Literal["train", "test"]) -> NDArray[np.float32]:
    """Positions [N, L] of a split; the same ones for every model seed."""
    n, stream = (POSITION_TRAIN, 0) if split == "train" else (POSITION_TEST, 1)
    return np.random.default_rng((40, stream)).uniform(LOW, HIGH, (n, N_TOKENS)).astype(np.float32)


class Position(ExperimentOptions):
    """Reconstruct the position of each token, with and without [CLS]; test MSE."""

    experiment: ClassVar[str] = "position"

    seed: int = Field(default=40, ge=0, description="of the weights and of the order of the batches; published: 40..44")
    width: int = Field(default=180, ge=12, multiple_of=12, description="d of the network; published: 180, 432, 720")
    cls: bool = Field(default=True, description="whether there is a [CLS] token; without one 200 is the best")


PENDULUM_TRAIN, PENDULUM_BATCH, PENDULUM_EPOCHS, PENDULUM_WARMUP = 2_000, 16, 50, 1_000
PUBLISHED_MEAN, PUBLISHED_STD = 0.002, 0.0021
PENDULUM_PAPER = {"cls": "3.32e-3 as printed; S5: 3.41e-3", "frames": "S5: 3.41e-3"}

PendulumHead = Literal["cls", "frames"]
Scale = Literal["published", "measured"]


class Pendulum(ExperimentOptions):
    """Regress the angle of a pendulum from noisy images; MSE per element."""

    experiment: ClassVar[str] = "pendulum"

    seed: int = Field(default=42, ge=0, description="of the weights and of the order of the batches; published: 42..61")
    head: PendulumHead = Field(
        default="cls", description="cls: 100 numbers from [CLS] (published); frames: 2 from each token"
    )
    scale: Scale = Field(default="published", description="constants that standardise the pixels")
    cache: Path = Field(default=Path("build/experiments/pendulum-data"), description="folder of the drawn images")


class Setting(NamedTuple):
    """Fine-tuning of a set."""

    epochs: int
    batch: int
    smoothing: float
    dropout: float


SETS = {
    "BasicMotions": Setting(50, 8, 0.0, 0.0),
    "Epilepsy": Setting(150, 16, 0.2, 0.2),
    "JapaneseVowels": Setting(100, 16, 0.1, 0.1),
    "RacketSports": Setting(100, 16, 0.1, 0.1),
}


class UEA(ExperimentOptions):
    """Classify multivariate series of which three in ten time steps are missing; test accuracy."""

    experiment: ClassVar[str] = "uea"

    seed: int = Field(default=69, ge=0, description="of the dropped steps, the weights and the batches")
    data: Path = Field(description="folder with the sets")
    name: Literal["BasicMotions", "Epilepsy", "JapaneseVowels", "RacketSports"] = Field(description="which set")
    size: Literal["tiny-shallow", "tiny", "small", "base"] = Field(default="tiny", description="of the encoder")
    dropped: float = Field(default=0.3, ge=0, lt=1, description="share of the time steps of every series")
    lr: float = Field(default=1e-3, gt=0, description="peak learning rate of AdamW")
    pretrain_epochs: int = Field(default=0, ge=0, description="masked pretraining on the training side; published: 400")

    @property
    def setting(self) -> Setting:
        """Fine-tuning of the chosen set."""
        return SETS[self.name]


Arm = Literal["tm", "pe", "pe-band", "dense", "pe-dense", "pretrained", "trees"]
ARM_FOLDS = 5
ARM_STEPS = {"simulated": 1_500, "mallorn": 1_000}
ARM_PUBLISHED_STEPS = 400_000


class AstroMoEArm(ExperimentOptions):
    """Train one arm of Astro-MoE's comparisons; macro-F1 on untouched objects."""

    experiment: ClassVar[str] = "astro-moe"

    seed: int = Field(default=0, ge=0, description="of weights, draws and, for MALLORN, which fold is held out")
    dataset: Literal["simulated", "mallorn"] = Field(description="which data")
    data: Path = Field(description="Parquet file of `simulate`, or the folder of MALLORN")
    arm: Arm = Field(description="what is compared")
    width: int = Field(default=64, ge=8, multiple_of=8, description="of the light-curve branch; the paper's is 192")
    batch: int = Field(default=16, ge=2, description="curves of a step")
    lr: float = Field(default=1e-3, gt=0, description="peak learning rate")
    pretrain_steps: int = Field(default=1_000, ge=1, description="steps of masked reconstruction, for `pretrained`")
    objects: int = Field(default=2_000, ge=1, description="test objects of the simulated set")
    examples: int = Field(default=10_000, ge=100, description="training draws of the boosted trees")


CADENCES = {"full": 1.0, "3/4": 0.75, "1/2": 0.5, "1/4": 0.25}
PER_CLASS, ENCODING_FOLDS, ENCODING_STEPS = 500, 3, 20_000
EncodingHead = Literal["lstm", "pool"]
EncodingName = Literal["baseline", "trainable", "fourier", "recurrent", "tupe", "concat", "pea", "rotary", "modulation"]


class Encodings(ExperimentOptions):
    """Pretrain ASTROMER with one positional encoding, then classify with its frozen encoder."""

    experiment: ClassVar[str] = "encodings"

    data: Path = Field(description="Parquet file of Catalina light curves")
    encoding: EncodingName = Field(description="how time enters")
    window: int = Field(default=128, ge=2, description="observations the network sees")
    d_model: int = Field(default=64, ge=2, description="width of the encoder")
    n_heads: int = Field(default=4, ge=1, description="attention heads")
    n_blocks: int = Field(default=2, ge=1, description="encoder blocks")
    d_ff: int = Field(default=64, ge=1, description="hidden width of the feed-forward part")
    batch: int = Field(default=32, ge=1, description="windows of a pretraining step")
    lr: float = Field(default=3e-3, gt=0, description="peak learning rate, constant after the warm-up")
    every: int = Field(default=250, ge=1, description="pretraining steps between validations")
    patience: int = Field(default=8, ge=1, description="validations without a better RMSE that end the pretraining")
    head: Literal["lstm", "pool", "both"] = Field(default="both", description="classifiers")
    lstm_width: int = Field(default=64, ge=1, description="of both LSTMs")
    head_steps: int = Field(
        default=250, ge=1, description="most steps of an LSTM head; of a pooled one four times that"
    )
    per_class: int = Field(default=PER_CLASS, ge=1, description="labelled objects of a class to train on")

    @property
    def heads(self) -> tuple[EncodingHead, ...]:
        """The classifiers to train."""
        return ("lstm", "pool") if self.head == "both" else (self.head,)


class AttentionExperiment(BaseModel):
    """Measure error, time and memory of every kind of attention by length."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lengths: list[int] = Field(default=[65, 128, 256, 512, 1024, 2048, 4096], description="tokens of a row")
    tokens: int = Field(default=16384, ge=1, description="tokens of a batch")
    width: int = Field(default=192, description="of the layer")
    n_heads: int = Field(default=4, description="of the layer")
    rounds: int = Field(default=5, ge=1, description="timings of each kind; medians are reported")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="where to run")
    bfloat16: bool = Field(default=False, description="time under automatic mixed precision; errors stay float32")
    threads: int = Field(default=1, ge=1, description="torch threads")
    seed: int = Field(default=0, ge=0, description="of weights, draws and tokens")
    records: Path = Field(default=RECORDS, description="folder of the JSON records")

    def command(self) -> str:
        """Shell command that repeats the measurement: the options that differ from their defaults."""
        changed = self.model_dump(mode="json", exclude={"records"}, exclude_defaults=True)
        if "lengths" in changed:
            changed["lengths"] = ",".join(map(str, self.lengths))
        options = [f"--{name.replace('_', '-')} {str(value).lower()}" for name, value in changed.items()]
        return " ".join(["nightjar-train experiment attention", *options])
