"""A training run on light curves: from a recipe and a data file to a run folder.

Run, and run again to resume; with torchrun on several processes (``training.fit.distributed``)::

    nightjar-train train default --data build/sim.parquet
    torchrun --nproc-per-node 2 -m nightjar_alerts.training train default --data build/sim.parquet --threads 1

The pace is that of batches grouped by length and packed, against a plain padded loop on the same curves::

    nightjar-train throughput default --data build/sim.parquet

Both sides train the recipe's network from the same start with the same optimiser, on the same draws and views of the
same objects, prepared by a background thread each. The recipe's side sorts each pool by length and leaves padding out
of everything but attention (``parts.packing``). The plain side is the loop one writes first: curves in the order in
which they were drawn, every batch padded to its longest, every layer run over every place. Its padding is marked as
observed, which makes any network do that work; so only its time is meaningful, not its loss.

Rounds are interleaved, the side that begins alternates, and each round gives one ratio, so that whatever else the
machine does meets both sides alike. A round is one pool of batches, everything counted: drawing, featurising, padding,
moving, forward, backward, update.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from nightjar_alerts.models.bundle import sha256_of
from nightjar_alerts.models.lightcurve import Int64
from nightjar_alerts.models.networks.zoo import NetworkTask, build, transfer
from nightjar_alerts.training.data.batches import (
    TrainingBatch,
    batches_of_pool,
    collate,
    draw_examples,
    draw_pool,
    pooled,
)
from nightjar_alerts.training.data.dataset import Dataset, read_dataset, require_labels, split_indices
from nightjar_alerts.training.data.mixture import is_mixture, read_mixture
from nightjar_alerts.training.fit.checkpoints import CHECKPOINT, RunConfig, best_path, fingerprint, load_best
from nightjar_alerts.training.fit.distributed import Ranks
from nightjar_alerts.training.fit.loop import FitResult, Interval, Task, begin, fit, train_step
from nightjar_alerts.training.fit.tasks import ClassificationTask, ForecastingTask, MaskedReconstruction
from nightjar_alerts.training.recipes.schema import Recipe

SCALES_DRAW = 2**32 + 3  # a draw of its own
SCALES_OBJECTS, SCALES_BATCH = 4_000, 64  # whose statistics are the measure of all others

TASKS: dict[NetworkTask, Callable[[Recipe, Dataset, dict[str, Int64]], Task]] = {
    "classify": ClassificationTask,
    "reconstruct": MaskedReconstruction,
    "forecast": ForecastingTask,
}


def train(
    recipe: Recipe,
    data: Path,
    folder: Path,
    *,
    pretrained: Path | None = None,
    max_minutes: float | None = None,
    progress: bool = True,
) -> FitResult:
    """Train a recipe on a data file, from the start or from the folder's checkpoint.

    A classifier gets the number of classes of the file, not of the recipe.

    Parameters
    ----------
    pretrained : run folder whose best weights the network starts from, wherever name and shape agree.
    max_minutes : save and return after this long, at the next step; call again to resume.

    Raises
    ------
    RunError
        When the folder holds a different run.
    DatasetError
        When a classifier is to be trained on a file with unlabelled objects or without two classes.
    FloatingPointError
        When the loss stops being finite.
    ValueError
        When the data are too few to have training and validation objects, or nothing fits of the pretrained weights.
    """
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    dataset = read_mixture(data) if is_mixture(data) else read_dataset(data)
    if recipe.task == "classify":
        require_labels(dataset, data)
        recipe = with_classes(recipe, len(dataset.classes))
    split = split_indices(dataset, recipe.data.fractions, recipe.data.turn)
    if not len(split["train"]) or not len(split["validation"]):
        raise ValueError(f"{data} has too few objects for training and validation: {len(dataset)}")
    source, origin = fingerprint(data, len(dataset)), {}
    if pretrained is not None:
        origin = {"pretrained": str(pretrained), "pretrained_sha256": sha256_of(best_path(pretrained))}
    identity = RunConfig(recipe=recipe, data=source, **origin)
    network = start(recipe, dataset, split["train"])
    if pretrained is not None and not (folder / CHECKPOINT).exists():
        transfer(load_best(pretrained), network, heads=recipe.keep_heads)
    task = TASKS[recipe.task](recipe, dataset, split)
    return fit(network, task, recipe, folder, identity, max_minutes=max_minutes, progress=progress)


def with_classes(recipe: Recipe, n_classes: int) -> Recipe:
    """Return the recipe with a network of ``n_classes``."""
    return recipe.model_copy(update={"network": recipe.network.model_copy(update={"n_classes": n_classes})})


def start(recipe: Recipe, dataset: Dataset, train_indices: Int64) -> nn.Module:
    """Build a seeded, untrained network; a classifier learns its metadata scales from the training objects."""
    torch.manual_seed(recipe.seed)
    network = build(recipe.network, recipe.task)
    if recipe.task == "classify":
        network.fit_inputs(dataset.metadata[train_indices])  # type: ignore[operator]  # a classifier has it; nn.Module does not
        fit_statistics = getattr(network, "fit_statistics", None)
        if fit_statistics is not None:
            fit_statistics(partial(_sample_inputs, network, recipe, dataset, train_indices))
    return network


def _sample_inputs(
    network: nn.Module, recipe: Recipe, dataset: Dataset, train_indices: Int64
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield batches of a fixed sample of the training objects, each seen as training might see it."""
    rng = np.random.default_rng((recipe.seed, SCALES_DRAW))
    sample = rng.permutation(train_indices)[:SCALES_OBJECTS]
    examples = draw_examples(dataset, sample, recipe.data, recipe.augmentation, rng)
    for start in range(0, len(examples), SCALES_BATCH):
        yield collate(examples[start : start + SCALES_BATCH]).inputs_of(network)


class CountedBatch(NamedTuple):
    """A batch, and how many of its places are observations."""

    batch: TrainingBatch
    observations: int


class TrainingPace(NamedTuple):
    """One round of one side: light curves per second, and the share of padding in its batches."""

    curves_per_second: float
    padding: float


class Side:
    """A run that trains on one kind of batches, a pool a round."""

    def __init__(
        self, recipe: Recipe, dataset: Dataset, split: dict[str, Int64], make: Callable[[int], list[CountedBatch]]
    ) -> None:
        self.recipe, self.task = recipe, ClassificationTask(recipe, dataset, split)
        network = start(recipe, dataset, split["train"]).to(recipe.device)
        self.run = begin(network, recipe, Path(), Ranks())
        self.batches = pooled(make, recipe.batch.pool, 0)

    def train_pool(self) -> TrainingPace:
        """Train on the next pool."""
        curves, places, observations, interval = 0, 0, 0, Interval()
        started = time.perf_counter()
        for _ in range(self.recipe.batch.pool):
            batch, observed = next(self.batches)
            train_step(self.run, self.task, batch, interval)
            curves, places = curves + len(batch.label_B), places + batch.mask_BL.numel()
            observations += observed
        interval.means(self.run.ranks)  # waits for the device
        return TrainingPace(curves / (time.perf_counter() - started), 1 - observations / places)


def grouped_pool(dataset: Dataset, indices: Int64, recipe: Recipe, number: int) -> list[CountedBatch]:
    """Batches of a pool as training takes them."""
    batches = batches_of_pool(dataset, indices, recipe, number)
    return [CountedBatch(batch, int(batch.mask_BL.sum())) for batch in batches]


def plain_pool(dataset: Dataset, indices: Int64, recipe: Recipe, number: int) -> list[CountedBatch]:
    """Batches of the same curves in the order in which they were drawn, padding marked as observed."""
    examples = draw_pool(dataset, indices, recipe, np.random.default_rng((recipe.seed, number)))
    parts = np.array_split(np.arange(len(examples)), recipe.batch.pool)
    return [_fill(collate([examples[index] for index in part])) for part in parts]


def _fill(batch: TrainingBatch) -> CountedBatch:
    filled = batch._replace(
        flux_err_BL=torch.where(batch.mask_BL, batch.flux_err_BL, 1.0),  # an observation without error has no meaning
        mask_BL=torch.ones_like(batch.mask_BL),
    )
    return CountedBatch(filled, int(batch.mask_BL.sum()))


def throughput(recipe: Recipe, data: Path, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Time both sides; medians and ranges over rounds.

    Raises
    ------
    ValueError
        When the recipe does not classify.
    """
    if recipe.task != "classify":
        raise ValueError(f"{recipe.name} is no recipe of a classifier")
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    dataset = read_dataset(data)
    split = split_indices(dataset, recipe.data.fractions, recipe.data.turn)
    sides = {
        name: Side(recipe, dataset, split, partial(pool, dataset, split["train"], recipe))
        for name, pool in {"grouped": grouped_pool, "plain": plain_pool}.items()
    }
    for side in sides.values():
        side.train_pool()  # the first pool allocates and compiles
    paces: dict[str, list[TrainingPace]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[:: 1 if number % 2 else -1]:
            paces[name].append(sides[name].train_pool())
        now = {name: paces[name][-1].curves_per_second for name in sides}
        say(f"round {number + 1} of {rounds}: " + ", ".join(f"{name} {pace:.1f}/s" for name, pace in now.items()))
    for side in sides.values():
        side.batches.close()
    return {"recipe": recipe.name, "threads": torch.get_num_threads(), "rounds": rounds, **summarise(paces)}


def summarise(paces: dict[str, list[TrainingPace]]) -> dict[str, Any]:
    """Median and range of both paces and of their ratio, and the padding of both."""
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
