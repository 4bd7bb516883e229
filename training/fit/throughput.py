"""Training throughput: batches grouped by length and packed, compared with a plain padded loop.

    nightjar-train makers throughput default --data build/sim.parquet

Both variants train the recipe's network from the same initial weights with the same optimizer, on the same views of the
same objects, each prepared by a background thread. The grouped variant sorts each pool by length and excludes padding
from everything but attention (``parts.packing``). The plain variant keeps the order in which light curves were drawn,
pads every batch to its longest, and runs every layer on the padding. To make any network do so, its padding is marked
as observed, so only its time is meaningful, not its loss.

Rounds are interleaved, the variant that starts alternates, and each round gives one ratio, so that other load of the
machine affects both variants equally. A round is one pool of batches, including drawing, featurising, padding, moving,
forward, backward and update.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from nightjar_alerts.models.lightcurve import Int64
from nightjar_alerts.training.data.batches import (
    TrainingBatch,
    batches_of_pool,
    collate,
    draw_pool,
    pooled,
)
from nightjar_alerts.training.data.dataset import read_dataset, split_indices
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.fit.distributed import Ranks
from nightjar_alerts.training.fit.loop import Interval, begin, train_step
from nightjar_alerts.training.fit.tasks import ClassificationTask
from nightjar_alerts.training.fit.train import start
from nightjar_alerts.training.recipes.schema import Recipe


class CountedBatch(NamedTuple):
    """A batch and its number of observations without padding."""

    batch: TrainingBatch
    observations: int


class TrainingPace(NamedTuple):
    """Result of one round of a variant: light curves per second, and share of padding in its batches."""

    curves_per_second: float
    padding: float


class Variant:
    """A training run with one kind of batches, one pool per round."""

    def __init__(
        self, recipe: Recipe, dataset: Sample, split: dict[str, Int64], make: Callable[[int], list[CountedBatch]]
    ) -> None:
        self.recipe, self.task = recipe, ClassificationTask(recipe, dataset, split)
        network = start(recipe, dataset, split["train"]).to(recipe.device)
        self.run = begin(network, recipe, Path(), Ranks())
        self.batches = pooled(make, recipe.batch.pool, 0)

    def train_pool(self) -> TrainingPace:
        """Train on the next pool."""
        curves, positions, observations, interval = 0, 0, 0, Interval()
        started = time.perf_counter()
        for _ in range(self.recipe.batch.pool):
            batch, observed = next(self.batches)
            train_step(self.run, self.task, batch, interval)
            curves, positions = curves + len(batch.label_B), positions + batch.mask_BL.numel()
            observations += observed
        interval.means(self.run.ranks)  # waits for the device
        return TrainingPace(curves / (time.perf_counter() - started), 1 - observations / positions)


def grouped_pool(dataset: Sample, indices: Int64, recipe: Recipe, number: int) -> list[CountedBatch]:
    """Return the batches of a pool as in training."""
    batches = batches_of_pool(dataset, indices, recipe, number)
    return [CountedBatch(batch, int(batch.mask_BL.sum())) for batch in batches]


def plain_pool(dataset: Sample, indices: Int64, recipe: Recipe, number: int) -> list[CountedBatch]:
    """Return batches of the same light curves in the order of drawing, with padding marked as observed."""
    examples = draw_pool(dataset, indices, recipe, np.random.default_rng((recipe.seed, number)))
    parts = np.array_split(np.arange(len(examples)), recipe.batch.pool)
    return [_fill(collate([examples[index] for index in part])) for part in parts]


def _fill(batch: TrainingBatch) -> CountedBatch:
    filled = batch._replace(
        flux_err_BL=torch.where(batch.mask_BL, batch.flux_err_BL, 1.0),  # avoids a division by zero
        mask_BL=torch.ones_like(batch.mask_BL),
    )
    return CountedBatch(filled, int(batch.mask_BL.sum()))


def throughput(recipe: Recipe, data: Path, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Time both variants and return medians and ranges over rounds.

    Raises
    ------
    ValueError
        If the recipe is not a classifier.
    """
    if recipe.task != "classify":
        raise ValueError(f"{recipe.name} is not the recipe of a classifier")
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    dataset = read_dataset(data)
    split = split_indices(dataset, recipe.data.fractions, recipe.data.turn)
    variants = {
        name: Variant(recipe, dataset, split, partial(pool, dataset, split["train"], recipe))
        for name, pool in {"grouped": grouped_pool, "plain": plain_pool}.items()
    }
    for variant in variants.values():
        variant.train_pool()  # the first pool allocates and compiles
    paces: dict[str, list[TrainingPace]] = {name: [] for name in variants}
    for number in range(rounds):
        for name in list(variants)[:: 1 if number % 2 else -1]:
            paces[name].append(variants[name].train_pool())
        now = {name: paces[name][-1].curves_per_second for name in variants}
        say(f"round {number + 1} of {rounds}: " + ", ".join(f"{name} {pace:.1f}/s" for name, pace in now.items()))
    for variant in variants.values():
        variant.batches.close()
    return {"recipe": recipe.name, "threads": torch.get_num_threads(), "rounds": rounds, **summarise(paces)}


def summarise(paces: dict[str, list[TrainingPace]]) -> dict[str, Any]:
    """Return median and range of both speeds and of their ratio, and the padding of both."""
    ratios = [
        grouped.curves_per_second / plain.curves_per_second
        for grouped, plain in zip(paces["grouped"], paces["plain"], strict=True)
    ]
    return {
        "ratio": _spread(ratios),
        **{f"{name}_curves_per_second": _spread([pace.curves_per_second for pace in paces[name]]) for name in paces},
        **{f"{name}_padding": round(statistics.mean(pace.padding for pace in paces[name]), 3) for name in paces},
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    figures = {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
    return {name: round(value, 2) for name, value in figures.items()}
