"""Positional encodings of ASTROMER (Moreno et al. 2023) on Catalina's periodic variables: one band, 13 classes.

For each encoding: pretrain by masked reconstruction on the objects outside the labelled sample; freeze the encoder;
train classifiers on up to 500 objects per class in each of 3 folds, at full, 3/4, 1/2 and 1/4 cadence.

- reconstruction: RMSE (mag) and R2 of the probed observations in windows of objects held out from pretraining and
  validation; half of a window is probed, of which 60 % are hidden, 20 % random and 20 % shown as they are;
  Yardsticks for R2: 0 for the window's mean, 0.10 for half of the value shown at the place itself, 0.38 with the mean
  of what is visible within half an hour, for which times must be compared (the survey exposes four times a visit);
- convergence: the validation RMSE is measured every ``every`` steps; training ends after ``patience`` of them without a
  better one, or after ``steps``. Reported are the epochs (passes over the pretraining objects) until the RMSE was first
  within 2 % of the best: the step of the best itself depends on noise in the last digits;
- classification: the frozen encoder's vectors are computed once per cadence. Two heads read them: the paper's two LSTMs
  and a perceptron on their mean. Batches are class-balanced, a tenth of the training folds decides when to stop, and
  the held-out fold is used once. Heads are trained and tested at the same cadence.

Notable: the paper pretrains 2 blocks of 4 x 64 heads on windows of 200 observations of MACHO (1.5 million curves) and
uses LSTMs of 256. The defaults here are what a CPU core does in minutes: windows of 128, a width of 64, LSTMs of 64.
``--window 200 --d-model 256 --d-ff 128 --lstm-width 256 --batch 512 --patience 40`` is the paper's network (on a GPU).
Frequencies are those of the authors' branch (base 1000, exponent 1, no 2 pi); ``rotary`` and ``modulation`` are not in
the paper.

Run::

    nightjar-train experiment encodings --data FILE --encoding pea
    nightjar-train experiment table encodings

Legend: N objects, B windows of a batch, L observations of the longest, W observations of a window, D width, C classes.

**Catalina's** southern periodic variables (Drake et al. 2017) have one band, 13 classes and magnitudes. The Parquet
file holds one row per object: ``object_id``, ``class`` and the list columns ``mjd`` (days), ``mag`` and
``magerr`` (V_CSS magnitudes).

Notable:

- two observations carry a Modified Julian Date of -2,409,998.5, which is no date, and 14,223 repeat the time of the
  observation before them: the first kind is dropped, of the second kind the first is kept;
- the labelled sample is drawn by object before anything is trained, so that no curve of it is ever pretrained on;
- thinning takes observations out of a window and keeps its span, as a survey with a slower cadence would have seen the
  same years; thinner versions of a window are subsets of denser ones.
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
from nightjar_alerts.training.recipes.schema import FitConfig, OptimiserConfig, ScheduleConfig, ValidationConfig
from nightjar_alerts.training.score.metrics import confusion, macro_f1

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

    def cli_cmd(self) -> None:
        """Pretrain, then train the classifiers."""
        if (pretrained := pretrain(self)) is not None:
            classify(self, pretrained)


EARLIEST_MJD = 50_000.0  # the survey began at 53,550
FEWEST_POINTS = 5  # ASTROMER drops shorter curves


class CatalinaError(ValueError):
    """The file is not a table of Catalina light curves."""


@dataclass(frozen=True, eq=False)
class Catalina:
    """All objects: concatenated observations, and ``offsets`` i64[N + 1] that cut them into objects.

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
        When columns are missing or lists of one object differ in length.
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
    long_enough = np.bincount(owner[rows], minlength=len(names)) >= FEWEST_POINTS
    rows = rows[long_enough[owner[rows]]]
    counts = np.bincount(owner[rows], minlength=len(names))[long_enough]
    classes, label = np.unique(names[long_enough], return_inverse=True)
    ends = np.concatenate(([0], np.cumsum(counts)))
    return Catalina(ends, mjd[rows], mag[rows], mag_err[rows], label.astype(np.int64), tuple(classes.tolist()))


def draw_sample(label_N: Int64, per_class: int, n_folds: int, seed: int) -> LabelledSample:
    """Draw the labelled sample and deal it into stratified folds; everything else is for pretraining.

    Each class gives as many objects as leave ``per_class`` of it in training when one fold is held out, or all it has.
    """
    rng = np.random.default_rng(seed)
    per_sample = per_class * n_folds // (n_folds - 1)
    folds: list[list[Int64]] = [[] for _ in range(n_folds)]
    for label in range(int(label_N.max()) + 1):
        drawn = rng.permutation(np.flatnonzero(label_N == label))[:per_sample]
        for number in range(n_folds):
            # Class by class the deal starts at another fold, or the first would get every odd object.
            folds[(number + label) % n_folds].append(drawn[number::n_folds])
    dealt = tuple(np.sort(np.concatenate(fold)) for fold in folds)
    return LabelledSample(np.setdiff1d(np.arange(len(label_N)), np.concatenate(dealt)), dealt)


def training_windows(data: Catalina, indices: Int64, length: int, rng: np.random.Generator) -> Windows:
    """One window of up to ``length`` consecutive observations of each object, its start drawn at random."""
    counts = data.offsets[indices + 1] - data.offsets[indices]
    starts = data.offsets[indices] + (rng.random(len(indices)) * (np.maximum(counts - length, 0) + 1)).astype(np.int64)
    places = [np.arange(start, start + min(int(count), length)) for start, count in zip(starts, counts, strict=True)]
    return gather(data, indices, places)


def thinned_windows(data: Catalina, indices: Int64, length: int, cadence: float, seed: int) -> Windows:
    """Return a share ``cadence`` of the first ``length`` observations of each object, five at least.

    Which ones is a function of (seed, object); what a slower cadence sees is part of what a faster one sees.
    """
    places = []
    for index in indices:
        points = data.points(int(index))
        count = min(length, points.stop - points.start)
        rank = np.random.default_rng((seed, int(index))).permutation(count)
        places.append(points.start + np.flatnonzero(rank < max(FEWEST_POINTS, round(cadence * count))))
    return gather(data, indices, places)


def gather(data: Catalina, indices: Int64, places: list[Int64]) -> Windows:
    """Pad the observations at ``places`` of each object to the longest."""
    lengths = np.array([len(place) for place in places])
    mask_BL = np.arange(lengths.max()) < lengths[:, None]
    place_P = np.concatenate(places)
    first_P = np.repeat(data.mjd[[place[0] for place in places]], lengths)

    def padded(values_P: Float32) -> Float32:
        grid_BL = np.zeros(mask_BL.shape, dtype=np.float32)
        grid_BL[mask_BL] = values_P
        return grid_BL

    time_P = (data.mjd[place_P] - first_P).astype(np.float32)
    return Windows(
        padded(data.mag[place_P]), padded(data.mag_err[place_P]), padded(time_P), mask_BL, data.label[indices]
    )


MASKING = MaskingConfig(probed=0.5, hidden=0.6, random=0.2, same=0.2)
CONVERGED = 1.02  # of the best validation RMSE
WARMUP = 200
HELD_OUT = 0.05  # of the unlabelled objects for validation, and as many for the reported scores


class PretrainedNetwork(NamedTuple):
    """A pretrained network with its best weights, and the data and sample that it came from."""

    network: AstromerPretraining
    data: Catalina
    sample: LabelledSample


class Parts(NamedTuple):
    """Unlabelled objects: to train on, to decide when to stop, to report on."""

    train: Int64
    validation: Int64
    test: Int64


class MagnitudeReconstruction(Task):
    """Masked reconstruction of magnitudes: the root of the mean over windows of each window's error, as ASTROMER's."""

    def __init__(self, data: Catalina, parts: Parts, window: int, batch: int, seed: int) -> None:
        self.data, self.parts, self.window, self.batch, self.seed = data, parts, window, batch, seed
        self.validation = self.held_out(parts.validation)

    def batches(self, step: int) -> Generator[MaskedBatch, None, None]:
        """Shuffled epochs with new random windows and masks."""
        drawn = epochs(len(self.parts.train), self.batch, self.seed, step)
        for number, indices in enumerate(drawn, start=step):
            yield self._draw(self.parts.train[indices], np.random.default_rng((self.seed, number)))

    def loss(self, network: nn.Module, batch: MaskedBatch) -> StepLoss:
        """Error of the probed observations, mag."""
        output: Reconstruction = network(*batch.curves.inputs_of(network), batch.masking)
        return StepLoss(reconstruction_loss(output, batch.masking.probed_BL, "rmse"), {})

    def score(self, network: nn.Module) -> dict[str, float]:
        """RMSE (mag) and R2 on the validation windows."""
        return reconstruction_scores(network, self.validation)

    def held_out(self, indices: Int64) -> list[MaskedBatch]:
        """One masked window of each object, the same for every encoding."""
        rng = np.random.default_rng(0)
        return [self._draw(part, rng) for part in np.array_split(indices, max(1, len(indices) // self.batch))]

    def _draw(self, indices: Int64, rng: np.random.Generator) -> MaskedBatch:
        curves = training_windows(self.data, indices, self.window, rng)
        return MaskedBatch(to_batch(curves), draw_masking(curves.mask_BL, MASKING, rng))


def to_batch(curves: Windows) -> TrainingBatch:
    """Windows as network inputs, magnitudes in the place of fluxes; one band."""
    tensors = [torch.from_numpy(array) for array in curves]
    mag_BL, mag_err_BL, time_BL, mask_BL, label_B = tensors
    band_BL = torch.zeros(mask_BL.shape, dtype=torch.int64)
    return TrainingBatch(mag_BL, mag_err_BL, time_BL, band_BL, mask_BL, torch.zeros(len(label_B), 0), label_B)


def network_config(options: Encodings) -> AstromerConfig:
    """Return configuration of the network: magnitudes as they are, centred per window, the branch's frequencies."""
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
    """Cut the unlabelled objects at random, the same way for every seed."""
    order = np.random.default_rng(0).permutation(unlabelled)
    held_out = max(1, round(HELD_OUT * len(order)))
    return Parts(order[2 * held_out :], np.sort(order[:held_out]), np.sort(order[held_out : 2 * held_out]))


def fit_config(options: Encodings) -> FitConfig:
    """Adam at a constant rate after a warm-up; patience ends the run."""
    schedule = ScheduleConfig(
        steps=options.steps or ENCODING_STEPS, warmup_steps=WARMUP, shape="constant", patience=options.patience
    )
    return FitConfig(
        name=f"{options.experiment} {options.encoding}",
        schedule=schedule,
        optimiser=OptimiserConfig(lr=options.lr),
        validation=ValidationConfig(every=options.every, log_every=max(1, min(50, options.every // 2))),
        seed=options.seed,
        threads=options.threads,
        device=options.device,
    )


def pretrain(options: Encodings) -> PretrainedNetwork | None:
    """Pretrain or resume, write the record of the reconstruction; None when ``max_minutes`` ended the run."""
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
    """Return the folder in which the pretraining keeps its checkpoints."""
    return options.runs / options.experiment / f"{options.encoding}-{options.d_model}-{options.seed}"


def converged(log: list[dict[str, float]]) -> int:
    """First step at which the validation RMSE was within 2 % of the best of the run."""
    curve = [(int(line["step"]), line["validation_rmse"]) for line in log if "validation_rmse" in line]
    best = min(rmse for _, rmse in curve)
    return next(step for step, rmse in curve if rmse <= CONVERGED * best)


def _pretraining_record(
    options: Encodings, network: nn.Module, task: MagnitudeReconstruction, folder: Path, steps: int
) -> RunRecord:
    with torch.inference_mode():
        scores = reconstruction_scores(network, task.held_out(task.parts.test))
    budget = options.steps or ENCODING_STEPS  # the record's steps: patience ends encodings at different ones
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
POOL_STEPS = 4  # a step of the pooled head costs a fiftieth of one of the LSTMs


class Vectors(NamedTuple):
    """Encoded windows, observations first: ``x_NWD``, ``mask_NW``, ``label_N``; also a batch."""

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
    """Objects to train on, to decide when to stop, and to report on."""

    train: Int64
    validation: Int64
    test: Int64


class HeadTask(Task):
    """Class-balanced cross-entropy; macro-F1 on the validation objects."""

    def __init__(self, vectors: Vectors, fold: Fold, seed: int) -> None:
        self.vectors, self.fold, self.seed = vectors, fold, seed
        self.label_N = vectors.label_N.numpy()

    def batches(self, step: int) -> Generator[Vectors, None, None]:
        """Every class equally often."""
        while True:
            rng = np.random.default_rng((self.seed, step))
            yield self.vectors.take(draw_indices(self.label_N, self.fold.train, BATCH, balance=1.0, rng=rng))
            step += 1

    def loss(self, network: nn.Module, batch: Vectors) -> StepLoss:
        """Cross-entropy of a batch."""
        return StepLoss(cross_entropy(network(batch.x_NWD, batch.mask_NW)[0], batch.label_N), {})

    def score(self, network: nn.Module) -> dict[str, float]:
        """Macro-F1 of the validation objects."""
        return {"score": self.f1(network, self.fold.validation)}

    def f1(self, network: nn.Module, indices: Int64) -> float:
        """Macro-F1 of some objects."""
        device, classes = next(network.parameters()).device, int(self.label_N.max()) + 1
        counts = np.zeros((classes, classes), dtype=np.int64)
        for part in np.array_split(indices, max(1, len(indices) // (4 * BATCH))):
            batch = to_device(self.vectors.take(part), device)
            predicted_B = network(batch.x_NWD, batch.mask_NW)[0].argmax(1).cpu().numpy()
            counts += confusion(self.label_N[part], predicted_B, classes)
        return macro_f1(counts)


@torch.inference_mode()
def encode(network: AstromerPretraining, data: Catalina, indices: Int64, window: int, cadence: float) -> Vectors:
    """Vectors of the objects' windows at a cadence, on the CPU; batches of similar length save padding."""
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
        place = Window.newest(mask_BL, window)
        value_BW, time_BW = (place.centre(x_BL, place.mean(x_BL)) for x_BL in (mag_BL, time_BL))
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
        # The spread of a classifier is that over folds, so a fold takes the place of the seed.
        record = options.record(f"{options.encoding}-{head}", metrics, steps, spent[head, number], seed=number)
        write_record(record, options.records)


def make_fold(ends: Int64, number: int) -> Fold:
    """Fold ``number`` of consecutive ranges of objects is for the report, a tenth of the others for validation."""
    every = np.arange(ends[-1])
    test = every[ends[number] : ends[number + 1]]
    rest = np.random.default_rng(number).permutation(np.setdiff1d(every, test))
    cut = max(1, round(VALIDATION * len(rest)))
    return Fold(np.sort(rest[cut:]), np.sort(rest[:cut]), test)


def train_head(options: Encodings, head: EncodingHead, vectors: Vectors, fold: Fold, name: str) -> tuple[float, float]:
    """Macro-F1 on the test objects of the weights that were best on the validation objects, and the minutes it took."""
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
        optimiser=OptimiserConfig(lr=3e-3 if head == "lstm" else 1e-3),
        validation=ValidationConfig(every=every, log_every=every),
        seed=options.seed,
        threads=options.threads,
        device=options.device,
    )
