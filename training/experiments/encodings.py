"""Positional encodings of ASTROMER (Moreno et al. 2023) on Catalina's periodic variables: one band, 13 classes.

For each encoding: pretrain by masked reconstruction on the objects outside the labelled sample; freeze the encoder;
train classifiers on up to 500 objects per class in each of 3 folds, at full, 3/4, 1/2 and 1/4 cadence.

- reconstruction: RMSE (mag) and R2 of the probed observations in windows of objects held out from pretraining and
  validation; half of a window is probed, of which 60 % are hidden, 20 % random and 20 % unchanged. For comparison, R2
  is 0 for the mean of the window, 0.10 for half of the value at the position itself, and 0.38 for the mean of the
  visible observations within half an hour, which requires times (the survey has four exposures per visit);
- convergence: the validation RMSE is measured every ``every`` steps; training ends after ``patience`` validations
  without a better one, or after ``steps``. The result is the number of epochs (passes over the pretraining objects)
  until the RMSE is first within 2 % of the best, which is less noisy than the step of the best;
- classification: the vectors of the frozen encoder are computed once per cadence and classified by two heads, the
  paper's two LSTMs and a perceptron on their mean. Batches are class-balanced, a tenth of the training folds is used
  for early stopping, and the held-out fold is used once. Heads are trained and tested at the same cadence.

Notable: the paper pretrains 2 blocks of 4 x 64 heads on windows of 200 observations of MACHO (1.5 million curves) and
uses LSTMs of 256. The defaults train in minutes on a CPU core: windows of 128, a width of 64, LSTMs of 64. The paper's
network (on a GPU) is ``--window 200 --d-model 256 --d-ff 128 --lstm-width 256 --batch 512 --patience 40``. Frequencies
are those of the authors' branch (base 1000, exponent 1, no 2 pi); ``rotary`` and ``modulation`` are not in the paper.

Run::

    nightjar-train experiment encodings --data FILE --encoding pea
    nightjar-train experiment table encodings

Legend: N objects, B windows of a batch, L observations of the longest, W observations of a window, D width, C classes.

**Catalina's** southern periodic variables (Drake et al. 2017) have one band, 13 classes and magnitudes. The Parquet
file has one row per object: ``object_id``, ``class`` and the list columns ``mjd`` (days), ``mag`` and ``magerr``
(V_CSS magnitudes).

Notable:

- two observations with the invalid MJD -2,409,998.5 are dropped, and of observations at the same time (14,223 repeat
  the previous time) the first is kept;
- the labelled sample is drawn by object before pretraining, so that none of its light curves is used for pretraining;
- thinning removes observations of a window but keeps its span, as for a survey with a slower cadence; the observations
  of a sparser version of a window are a subset of those of denser ones.
"""

import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nightjar_alerts.models.lightcurve import Bool, Float32, Float64, Int64
from nightjar_alerts.models.networks.astromer import AstromerConfig, AstromerPretraining, LstmHead, PoolHead, Window
from nightjar_alerts.models.networks.network import Reconstruction
from nightjar_alerts.training.data.batches import TrainingBatch, draw_indices
from nightjar_alerts.training.data.targets import MaskingConfig, draw_masking
from nightjar_alerts.training.experiments.runner import (
    ExperimentOptions,
    RunIdentity,
    RunRecord,
    epochs,
    minutes,
    write_record,
)
from nightjar_alerts.training.fit.checkpoints import load_best, read_log
from nightjar_alerts.training.fit.loop import StepLoss, Task, fit, to_device
from nightjar_alerts.training.fit.tasks import MaskedBatch, reconstruction_loss, reconstruction_scores
from nightjar_alerts.training.metrics import confusion, macro_f1
from nightjar_alerts.training.recipes.schema import FitConfig, OptimizerConfig, ScheduleConfig, ValidationConfig

CADENCES = {"full": 1.0, "3/4": 0.75, "1/2": 0.5, "1/4": 0.25}
PER_CLASS, ENCODING_FOLDS, ENCODING_STEPS = 500, 3, 20_000
EncodingHead = Literal["lstm", "pool"]
EncodingName = Literal["baseline", "trainable", "fourier", "recurrent", "tupe", "concat", "pea", "rotary", "modulation"]


class Encodings(ExperimentOptions):
    """Pretrain ASTROMER with one positional encoding, then classify with its frozen encoder."""

    experiment: ClassVar[str] = "encodings"

    data: Path = Field(description="Parquet file of Catalina light curves")
    encoding: EncodingName = Field(description="time encoding")
    window: int = Field(default=128, ge=2, description="number of observations of a window")
    d_model: int = Field(default=64, ge=2, description="width of the encoder")
    n_heads: int = Field(default=4, ge=1, description="attention heads")
    n_blocks: int = Field(default=2, ge=1, description="encoder blocks")
    d_ff: int = Field(default=64, ge=1, description="hidden width of the feed-forward part")
    batch: int = Field(default=32, ge=1, description="windows per pretraining step")
    lr: float = Field(default=3e-3, gt=0, description="peak learning rate, constant after the warm-up")
    every: int = Field(default=250, ge=1, description="pretraining steps between validations")
    patience: int = Field(default=8, ge=1, description="validations without a better RMSE that end the pretraining")
    head: Literal["lstm", "pool", "both"] = Field(default="both", description="classifiers")
    lstm_width: int = Field(default=64, ge=1, description="width of both LSTMs")
    head_steps: int = Field(
        default=250, ge=1, description="maximum number of steps of an LSTM head; four times as many for a pooled head"
    )
    per_class: int = Field(default=PER_CLASS, ge=1, description="number of labelled training objects of a class")

    @property
    def heads(self) -> tuple[EncodingHead, ...]:
        """The classifiers to train."""
        return ("lstm", "pool") if self.head == "both" else (self.head,)

    def cli_cmd(self) -> None:
        """Pretrain, then train the classifiers."""
        if (pretrained := pretrain(self)) is not None:
            classify(self, pretrained)


EARLIEST_MJD = 50_000.0  # before the start of the survey at 53,550
MIN_POINTS = 5  # ASTROMER drops shorter light curves


class CatalinaError(ValueError):
    """The file is not a table of Catalina light curves."""


@dataclass(frozen=True, eq=False)
class Catalina:
    """All objects: concatenated observations, and ``offsets`` i64[N + 1] of the objects.

    ``mjd`` f64[P] days, sorted within each object; ``mag``, ``mag_err`` f32[P] V_CSS magnitudes; ``label`` i64[N] into
    ``classes``, which are in alphabetical order.
    """

    offsets: Int64
    mjd: Float64
    mag: Float32
    mag_err: Float32
    label: Int64
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.label)

    def points(self, index: int) -> slice:
        """Return the slice of an object's observations."""
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))


class LabelledSample(NamedTuple):
    """Objects for pretraining, and those for each fold of the classifiers."""

    unlabelled: Int64
    folds: tuple[Int64, ...]


class Windows(NamedTuple):
    """Windows padded at the end with zeros: B curves of up to L observations.

    ``mag_BL``, ``mag_err_BL`` magnitudes; ``time_BL`` float32 days since the window's first observation; ``mask_BL``
    True for an observation; ``label_B``.
    """

    mag_BL: Float32
    mag_err_BL: Float32
    time_BL: Float32
    mask_BL: Bool
    label_B: Int64


def read_catalina(path: Path) -> Catalina:
    """Read the Parquet file; objects with fewer than five valid observations are left out.

    Raises
    ------
    CatalinaError
        If columns are missing or lists of one object differ in length.
    """
    table = pq.read_table(path)
    if missing := sorted({"class", "mjd", "mag", "magerr"} - set(table.column_names)):
        raise CatalinaError(f"{path} has no column {', '.join(missing)}")
    columns = {name: table[name].combine_chunks() for name in ("mjd", "mag", "magerr")}
    offsets = columns["mjd"].offsets.to_numpy().astype(np.int64)
    if any((column.offsets.to_numpy() != offsets).any() for column in columns.values()):
        raise CatalinaError(f"{path}: mjd, mag and magerr of an object differ in length")
    mjd, mag, mag_err = (column.values.to_numpy()[offsets[0] : offsets[-1]] for column in columns.values())
    names = np.array(table["class"].to_pylist())
    return _clean(offsets - offsets[0], mjd, mag.astype(np.float32), mag_err.astype(np.float32), names)


def _clean(offsets: Int64, mjd: Float64, mag: Float32, mag_err: Float32, names: NDArray[np.str_]) -> Catalina:
    owner = np.repeat(np.arange(len(names)), np.diff(offsets))
    order = np.lexsort((mjd, owner))
    repeated = np.zeros(len(mjd), dtype=np.bool_)
    repeated[1:] = (np.diff(mjd[order]) == 0) & (np.diff(owner[order]) == 0)
    valid = np.isfinite(mag) & np.isfinite(mag_err) & (mag_err > 0) & (mjd > EARLIEST_MJD)
    rows = order[valid[order] & ~repeated]
    long_enough = np.bincount(owner[rows], minlength=len(names)) >= MIN_POINTS
    rows = rows[long_enough[owner[rows]]]
    counts = np.bincount(owner[rows], minlength=len(names))[long_enough]
    classes, label = np.unique(names[long_enough], return_inverse=True)
    ends = np.concatenate(([0], np.cumsum(counts)))
    return Catalina(ends, mjd[rows], mag[rows], mag_err[rows], label.astype(np.int64), tuple(classes.tolist()))


def draw_sample(label_N: Int64, per_class: int, n_folds: int, seed: int) -> LabelledSample:
    """Draw the labelled sample and divide it into stratified folds; all other objects are for pretraining.

    The number of objects of a class is such that ``per_class`` are for training if one fold is held out, or all.
    """
    rng = np.random.default_rng(seed)
    per_sample = per_class * n_folds // (n_folds - 1)
    folds: list[list[Int64]] = [[] for _ in range(n_folds)]
    for label in range(int(label_N.max()) + 1):
        drawn = rng.permutation(np.flatnonzero(label_N == label))[:per_sample]
        for number in range(n_folds):
            # Each class starts at another fold, so that the folds have equal sizes.
            folds[(number + label) % n_folds].append(drawn[number::n_folds])
    dealt = tuple(np.sort(np.concatenate(fold)) for fold in folds)
    return LabelledSample(np.setdiff1d(np.arange(len(label_N)), np.concatenate(dealt)), dealt)


def training_windows(data: Catalina, indices: Int64, length: int, rng: np.random.Generator) -> Windows:
    """Return a window of up to ``length`` consecutive observations of each object, with a random start."""
    counts = data.offsets[indices + 1] - data.offsets[indices]
    starts = data.offsets[indices] + (rng.random(len(indices)) * (np.maximum(counts - length, 0) + 1)).astype(np.int64)
    rows = [np.arange(start, start + min(int(count), length)) for start, count in zip(starts, counts, strict=True)]
    return gather(data, indices, rows)


def thinned_windows(data: Catalina, indices: Int64, length: int, cadence: float, seed: int) -> Windows:
    """Return a share ``cadence`` of the first ``length`` observations of each object, at least `MIN_POINTS`.

    Which ones is a function of (seed, object); what a slower cadence sees is part of what a faster one sees.
    """
    rows = []
    for index in indices:
        points = data.points(int(index))
        count = min(length, points.stop - points.start)
        rank = np.random.default_rng((seed, int(index))).permutation(count)
        rows.append(points.start + np.flatnonzero(rank < max(MIN_POINTS, round(cadence * count))))
    return gather(data, indices, rows)


def gather(data: Catalina, indices: Int64, rows: list[Int64]) -> Windows:
    """Pad the observations ``rows`` of each object to the longest."""
    lengths = np.array([len(part) for part in rows])
    mask_BL = np.arange(lengths.max()) < lengths[:, None]
    row_P = np.concatenate(rows)
    first_P = np.repeat(data.mjd[[part[0] for part in rows]], lengths)

    def padded(values_P: Float32) -> Float32:
        grid_BL = np.zeros(mask_BL.shape, dtype=np.float32)
        grid_BL[mask_BL] = values_P
        return grid_BL

    time_P = (data.mjd[row_P] - first_P).astype(np.float32)
    return Windows(padded(data.mag[row_P]), padded(data.mag_err[row_P]), padded(time_P), mask_BL, data.label[indices])


MASKING = MaskingConfig(probed=0.5, hidden=0.6, random=0.2, same=0.2)
CONVERGED = 1.02  # of the best validation RMSE
WARMUP = 200
HELD_OUT = 0.05  # share of the unlabelled objects for validation, and the same for testing


class PretrainedNetwork(NamedTuple):
    """A pretrained network with its best weights, its data and labelled sample."""

    network: AstromerPretraining
    data: Catalina
    sample: LabelledSample


class Parts(NamedTuple):
    """Unlabelled objects for training, validation and testing."""

    train: Int64
    validation: Int64
    test: Int64


class MagnitudeReconstruction(Task):
    """Masked reconstruction of magnitudes with ASTROMER's loss: the root of the mean of the errors of the windows."""

    def __init__(self, data: Catalina, parts: Parts, window: int, batch: int, seed: int) -> None:
        self.data, self.parts, self.window, self.batch, self.seed = data, parts, window, batch, seed
        self.validation = self.held_out(parts.validation)

    def batches(self, step: int) -> Generator[MaskedBatch, None, None]:
        """Yield the batches of shuffled epochs with new random windows and masks."""
        drawn = epochs(len(self.parts.train), self.batch, self.seed, step)
        for number, indices in enumerate(drawn, start=step):
            yield self._draw(self.parts.train[indices], np.random.default_rng((self.seed, number)))

    def loss(self, network: nn.Module, batch: MaskedBatch) -> StepLoss:
        """Return the error of the probed observations, mag."""
        output: Reconstruction = network(*batch.curves.inputs_of(network), batch.masking)
        return StepLoss(reconstruction_loss(output, batch.masking.probed_BL, "rmse"), {})

    def score(self, network: nn.Module) -> dict[str, float]:
        """Return RMSE (mag) and R2 of the validation windows."""
        return reconstruction_scores(network, self.validation)

    def held_out(self, indices: Int64) -> list[MaskedBatch]:
        """Return one masked window of each object, the same for every encoding."""
        rng = np.random.default_rng(0)
        return [self._draw(part, rng) for part in np.array_split(indices, max(1, len(indices) // self.batch))]

    def _draw(self, indices: Int64, rng: np.random.Generator) -> MaskedBatch:
        curves = training_windows(self.data, indices, self.window, rng)
        return MaskedBatch(to_batch(curves), draw_masking(curves.mask_BL, MASKING, rng))


def to_batch(curves: Windows) -> TrainingBatch:
    """Convert windows to network inputs in one band, with magnitudes instead of fluxes."""
    tensors = [torch.from_numpy(array) for array in curves]
    mag_BL, mag_err_BL, time_BL, mask_BL, label_B = tensors
    band_BL = torch.zeros(mask_BL.shape, dtype=torch.int64)
    return TrainingBatch(mag_BL, mag_err_BL, time_BL, band_BL, mask_BL, torch.zeros(len(label_B), 0), label_B)


def network_config(options: Encodings) -> AstromerConfig:
    """Return the configuration of the network: magnitudes centred per window, frequencies of the authors' branch."""
    return AstromerConfig(
        value="linear",
        time_encoding=options.encoding,
        pe_base=1000.0,
        pe_exponent=1.0,
        window=options.window,
        d_model=options.d_model,
        n_heads=options.n_heads,
        n_blocks=options.n_blocks,
        d_ff=options.d_ff,
        dropout=0.0,
        modulation_init_std=0.125,  # 1 / sqrt(64 harmonics): factors of about 1
    )


def split_unlabelled(unlabelled: Int64) -> Parts:
    """Split the unlabelled objects at random, the same way for every seed."""
    order = np.random.default_rng(0).permutation(unlabelled)
    held_out = max(1, round(HELD_OUT * len(order)))
    return Parts(order[2 * held_out :], np.sort(order[:held_out]), np.sort(order[held_out : 2 * held_out]))


def fit_config(options: Encodings) -> FitConfig:
    """Return the training settings: a constant learning rate after a warm-up, with early stopping."""
    schedule = ScheduleConfig(
        steps=options.steps or ENCODING_STEPS, warmup_steps=WARMUP, shape="constant", patience=options.patience
    )
    return FitConfig(
        name=f"{options.experiment} {options.encoding}",
        schedule=schedule,
        optimizer=OptimizerConfig(lr=options.lr),
        validation=ValidationConfig(every=options.every, log_every=max(1, min(50, options.every // 2))),
        seed=options.seed,
        threads=options.threads,
        device=options.device,
    )


def pretrain(options: Encodings) -> PretrainedNetwork | None:
    """Pretrain or resume, and write the record of the reconstruction; None if ``max_minutes`` ended the run."""
    data = read_catalina(options.data)
    sample = draw_sample(data.label, options.per_class, ENCODING_FOLDS, seed=0)
    task = MagnitudeReconstruction(
        data, split_unlabelled(sample.unlabelled), options.window, options.batch, options.seed
    )
    torch.manual_seed(options.seed)
    network, config = AstromerPretraining(network_config(options)), fit_config(options)
    folder = run_folder(options)
    identity = RunIdentity(variant=options.encoding, settings=options.settings(), fit=config)
    result = fit(network, task, config, folder, identity, max_minutes=options.max_minutes)
    if not result.finished:
        sys.stdout.write(f"stopped at step {result.step}: run the same command again to resume\n")
        return None
    network.load_state_dict(load_best(folder))
    write_record(_pretraining_record(options, network.eval(), task, folder, result.step), options.records)
    return PretrainedNetwork(network, data, sample)


def run_folder(options: Encodings) -> Path:
    """Return the run folder of the pretraining."""
    return options.runs / options.experiment / f"{options.encoding}-{options.d_model}-{options.seed}"


def converged(log: list[dict[str, float]]) -> int:
    """Return the first step at which the validation RMSE is within 2 % of the best of the run."""
    curve = [(int(line["step"]), line["validation_rmse"]) for line in log if "validation_rmse" in line]
    best = min(rmse for _, rmse in curve)
    return next(step for step, rmse in curve if rmse <= CONVERGED * best)


def _pretraining_record(
    options: Encodings, network: nn.Module, task: MagnitudeReconstruction, folder: Path, steps: int
) -> RunRecord:
    with torch.inference_mode():
        scores = reconstruction_scores(network, task.held_out(task.parts.test))
    budget = options.steps or ENCODING_STEPS  # recorded instead of the steps done, which depend on early stopping
    passes = options.batch / len(task.parts.train)
    metrics = {
        "RMSE (mag)": scores["rmse"],
        "R2": scores["r2"],
        "epochs to converge": converged(read_log(folder)) * passes,
        "epochs done": steps * passes,
    }
    return options.record(f"{options.encoding}-reconstruction", metrics, budget, minutes(folder, steps))


BATCH = 64
POOL_WIDTHS = (256, 128)  # ASTROMER's released head: 1024, 512, 256
VALIDATION = 0.1  # of the training folds
POOL_STEPS = 4  # factor on the steps of the pooled head, whose steps take a fiftieth of the time of the LSTMs


class Vectors(NamedTuple):
    """Encoded windows, observations before padding: ``x_NWD``, ``mask_NW``, ``label_N``; also used for batches."""

    x_NWD: Tensor
    mask_NW: Tensor
    label_N: Tensor

    def take(self, indices: Int64) -> "Vectors":
        """Return some of the objects, cut to the longest of them."""
        rows = torch.from_numpy(indices)
        mask_BW = self.mask_NW[rows]
        longest = int(mask_BW.sum(1).max())
        return Vectors(self.x_NWD[rows, :longest], mask_BW[:, :longest], self.label_N[rows])


class Fold(NamedTuple):
    """Labelled objects for training, validation and testing."""

    train: Int64
    validation: Int64
    test: Int64


class HeadTask(Task):
    """Class-balanced cross-entropy; macro-F1 on the validation objects."""

    def __init__(self, vectors: Vectors, fold: Fold, seed: int) -> None:
        self.vectors, self.fold, self.seed = vectors, fold, seed
        self.label_N = vectors.label_N.numpy()

    def batches(self, step: int) -> Generator[Vectors, None, None]:
        """Yield class-balanced batches."""
        while True:
            rng = np.random.default_rng((self.seed, step))
            yield self.vectors.take(draw_indices(self.label_N, self.fold.train, BATCH, balance=1.0, rng=rng))
            step += 1

    def loss(self, network: nn.Module, batch: Vectors) -> StepLoss:
        """Return the cross-entropy of a batch."""
        return StepLoss(cross_entropy(network(batch.x_NWD, batch.mask_NW)[0], batch.label_N), {})

    def score(self, network: nn.Module) -> dict[str, float]:
        """Return the macro-F1 of the validation objects."""
        return {"score": self.f1(network, self.fold.validation)}

    def f1(self, network: nn.Module, indices: Int64) -> float:
        """Return the macro-F1 of some objects."""
        device, classes = next(network.parameters()).device, int(self.label_N.max()) + 1
        counts = np.zeros((classes, classes), dtype=np.int64)
        for part in np.array_split(indices, max(1, len(indices) // (4 * BATCH))):
            batch = to_device(self.vectors.take(part), device)
            predicted_B = network(batch.x_NWD, batch.mask_NW)[0].argmax(1).cpu().numpy()
            counts += confusion(self.label_N[part], predicted_B, classes)
        return macro_f1(counts)


@torch.inference_mode()
def encode(network: AstromerPretraining, data: Catalina, indices: Int64, window: int, cadence: float) -> Vectors:
    """Return the vectors of the objects' windows at a cadence, on the CPU, computed in batches of similar length."""
    curves = thinned_windows(data, indices, window, cadence, seed=0)
    batch, device = to_batch(curves), next(network.parameters()).device
    x_NWD = torch.zeros(*curves.mask_BL.shape, network.config.d_model)
    order = np.argsort(curves.mask_BL.sum(1), kind="stable")
    for part in np.array_split(order, max(1, len(order) // (4 * BATCH))):
        rows = torch.from_numpy(part)
        longest = int(curves.mask_BL[part].sum(1).max())
        mag_BL, time_BL, mask_BL = (
            column[rows, :longest].to(device) for column in (batch.flux_BL, batch.time_BL, batch.mask_BL)
        )
        newest = Window.newest(mask_BL, window)
        value_BW, time_BW = (newest.centre(x_BL, newest.mean(x_BL)) for x_BL in (mag_BL, time_BL))
        x_NWD[rows, :longest] = network.encoder(value_BW, time_BW, mask_BL).cpu()
    return Vectors(x_NWD, batch.mask_BL, batch.label_B)


def classify(options: Encodings, pretrained: PretrainedNetwork) -> None:
    """Train every head at every cadence in every fold; one record for each head and fold."""
    network, data, sample = pretrained
    objects = np.concatenate(sample.folds)
    ends = np.cumsum([0, *(len(fold) for fold in sample.folds)])
    folds = [make_fold(ends, number) for number in range(len(sample.folds))]
    scores: dict[tuple[EncodingHead, int], dict[str, float]] = {}
    spent: dict[tuple[EncodingHead, int], float] = {}
    for name, cadence in CADENCES.items():
        vectors = encode(network.eval(), data, objects, options.window, cadence)
        for head in options.heads:
            for number, fold in enumerate(folds):
                f1, took = train_head(options, head, vectors, fold, f"{name.replace('/', '')}-{number}")
                scores.setdefault((head, number), {})[f"macro-F1, {name}"] = f1
                spent[head, number] = spent.get((head, number), 0.0) + took
    for (head, number), metrics in scores.items():
        steps = _head_fit_config(options, head).schedule.steps
        # The table shows the spread over seeds, here over folds.
        record = options.record(f"{options.encoding}-{head}", metrics, steps, spent[head, number], seed=number)
        write_record(record, options.records)


def make_fold(ends: Int64, number: int) -> Fold:
    """Return fold ``number`` of consecutive ranges of objects for testing, and a tenth of the others for validation."""
    every = np.arange(ends[-1])
    test = every[ends[number] : ends[number + 1]]
    rest = np.random.default_rng(number).permutation(np.setdiff1d(every, test))
    cut = max(1, round(VALIDATION * len(rest)))
    return Fold(np.sort(rest[cut:]), np.sort(rest[:cut]), test)


def train_head(options: Encodings, head: EncodingHead, vectors: Vectors, fold: Fold, name: str) -> tuple[float, float]:
    """Train a head; return the macro-F1 of its best weights on the test objects, and the minutes."""
    task = HeadTask(vectors, fold, options.seed)
    torch.manual_seed(options.seed)
    width, classes = vectors.x_NWD.shape[2], int(vectors.label_N.max()) + 1
    network = LstmHead(width, options.lstm_width, classes) if head == "lstm" else PoolHead(width, POOL_WIDTHS, classes)
    config, folder = _head_fit_config(options, head), run_folder(options) / f"{head}-{name}"
    identity = RunIdentity(variant=f"{head}-{name}", settings=options.settings(), fit=config)
    result = fit(network, task, config, folder, identity, progress=False)
    network.load_state_dict(load_best(folder))
    with torch.inference_mode():
        return task.f1(network.eval(), fold.test), minutes(folder, result.step)


def _head_fit_config(options: Encodings, head: EncodingHead) -> FitConfig:
    steps = options.head_steps * (1 if head == "lstm" else POOL_STEPS)
    every = max(1, steps // 5)
    return FitConfig(
        name=head,
        schedule=ScheduleConfig(steps=steps, warmup_steps=steps // 10),
        optimizer=OptimizerConfig(lr=3e-3 if head == "lstm" else 1e-3),
        validation=ValidationConfig(every=every, log_every=every),
        seed=options.seed,
        threads=options.threads,
        device=options.device,
    )
