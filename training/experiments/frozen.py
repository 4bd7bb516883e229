"""Classifiers on the vectors of a frozen ASTROMER encoder: three folds, four cadences, two heads.

Legend: N objects, W observations of a window, D width, C classes, B batch.
"""

from collections.abc import Generator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from models.astromer import AstromerPretraining
from models.astromer_heads import LstmHead, PoolHead
from models.astromer_window import Window
from models.lightcurve import Int64
from training.data.batches import draw_indices
from training.experiments.catalina import Catalina, thinned_windows
from training.experiments.encodings import CADENCES, Encodings, Head
from training.experiments.magnitudes import Pretrained, run_folder, to_batch
from training.experiments.results import Record, machine, write_record
from training.experiments.runs import Identity, minutes
from training.fit.checkpoints import load_best
from training.fit.loop import Step, Task, fit, to_device
from training.recipes.schema import FitConfig, OptimiserConfig, ScheduleConfig, ValidationConfig
from training.score.metrics import confusion, macro_f1

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
        """Some of the objects, cut to the longest of them."""
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

    def loss(self, network: nn.Module, batch: Vectors) -> Step:
        """Cross-entropy of a batch."""
        return Step(cross_entropy(network(batch.x_NWD, batch.mask_NW)[0], batch.label_N), {})

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


def classify(options: Encodings, pretrained: Pretrained) -> None:
    """Train every head at every cadence in every fold; one record for each head and fold."""
    network, data, sample = pretrained
    objects = np.concatenate(sample.folds)
    ends = np.cumsum([0, *(len(fold) for fold in sample.folds)])
    folds = [make_fold(ends, number) for number in range(len(sample.folds))]
    scores: dict[tuple[Head, int], dict[str, float]] = {}
    spent: dict[tuple[Head, int], float] = {}
    for name, cadence in CADENCES.items():
        vectors = encode(network.eval(), data, objects, options.window, cadence)
        for head in options.heads:
            for number, fold in enumerate(folds):
                f1, took = train_head(options, head, vectors, fold, f"{name.replace('/', '')}-{number}")
                scores.setdefault((head, number), {})[f"macro-F1, {name}"] = f1
                spent[head, number] = spent.get((head, number), 0.0) + took
    for (head, number), metrics in scores.items():
        write_record(_record(options, head, number, metrics, spent[head, number]), options.records)


def make_fold(ends: Int64, number: int) -> Fold:
    """Fold ``number`` of consecutive ranges of objects is for the report, a tenth of the others for validation."""
    every = np.arange(ends[-1])
    test = every[ends[number] : ends[number + 1]]
    rest = np.random.default_rng(number).permutation(np.setdiff1d(every, test))
    cut = max(1, round(VALIDATION * len(rest)))
    return Fold(np.sort(rest[cut:]), np.sort(rest[:cut]), test)


def train_head(options: Encodings, head: Head, vectors: Vectors, fold: Fold, name: str) -> tuple[float, float]:
    """Macro-F1 on the test objects of the weights that were best on the validation objects, and the minutes it took."""
    task = HeadTask(vectors, fold, options.seed)
    torch.manual_seed(options.seed)
    width, classes = vectors.x_NWD.shape[2], int(vectors.label_N.max()) + 1
    network = LstmHead(width, options.lstm_width, classes) if head == "lstm" else PoolHead(width, POOL_WIDTHS, classes)
    config, folder = _fit_config(options, head), run_folder(options) / f"{head}-{name}"
    identity = Identity(variant=f"{head}-{name}", settings=options.settings(), fit=config)
    result = fit(network, task, config, folder, identity, progress=False)
    network.load_state_dict(load_best(folder))
    with torch.inference_mode():
        return task.f1(network.eval(), fold.test), minutes(folder, result.step)


def _fit_config(options: Encodings, head: Head) -> FitConfig:
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


def _record(options: Encodings, head: Head, number: int, metrics: dict[str, float], spent: float) -> Record:
    steps = _fit_config(options, head).schedule.steps
    return Record(
        experiment=options.experiment,
        variant=f"{options.encoding}-{head}",
        seed=number,  # the spread of a classifier is that over folds
        metrics=metrics,
        settings=options.settings(),
        command=options.command(),
        steps=steps,
        published_steps=steps,
        minutes=spent,
        machine=machine(options.device),
        threads=options.threads,
    )
