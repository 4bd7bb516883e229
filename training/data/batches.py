"""Batches: class-balanced samples of a dataset in random views, grouped by length.

Notable:

- light curves become tokens by :func:`models.lightcurve.featurise`, as in the service;
- the batch of a step depends on (seed, step) only: a pool of ``pool`` batches is drawn with its own generator, so a
  resumed run is identical to an uninterrupted one without stored sampler state;
- within a pool examples are sorted by length before they are divided into batches, which keeps padding low; the batches
  of a pool then come in random order;
- one background thread prepares the next pool while the current one trains.
"""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from nightjar_alerts.models.lightcurve import Int64, LightCurve, LightCurveError, RaggedBatch, Tokens, featurise
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.networks.network import INPUTS
from nightjar_alerts.training.data.augment import (
    AugmentationConfig,
    View,
    apply_view,
    degrade,
    draw_view,
    perturb,
    restrict,
)
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.recipes.schema import DataConfig, Recipe

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """Tokens of a light curve and its class index."""

    tokens: Tokens
    label: int


class TrainingBatch(NamedTuple):
    """Padded inputs and labels.

    Attributes
    ----------
    flux_BL, flux_err_BL, time_BL : float32, in the network's flux unit and in days since the first point.
    band_BL : int64. mask_BL : bool, True for a real observation.
    metadata_BF : float32, NaN where missing.
    label_B : int64.
    """

    flux_BL: Tensor
    flux_err_BL: Tensor
    time_BL: Tensor
    band_BL: Tensor
    mask_BL: Tensor
    metadata_BF: Tensor
    label_B: Tensor

    def inputs_of(self, network: Any) -> tuple[Tensor, ...]:
        """Return the arguments of a network, in the order of its ``input_names``."""
        tensors = dict(zip(INPUTS, self, strict=False))
        return tuple(tensors[name] for name in network.input_names)


def collate(examples: Sequence[Example]) -> TrainingBatch:
    """Pad examples to the longest of them."""
    padded = RaggedBatch.collate([example.tokens for example in examples]).padded()
    tensors = {name: torch.from_numpy(array) for name, array in padded.items()}
    return TrainingBatch(
        flux_BL=tensors["flux"],
        flux_err_BL=tensors["flux_err"],
        time_BL=tensors["time"],
        band_BL=tensors["band"],
        mask_BL=tensors["mask"],
        metadata_BF=tensors["metadata"],
        label_B=torch.tensor([example.label for example in examples], dtype=torch.int64),
    )


def to_tokens(curve: LightCurve, config: DataConfig) -> Tokens:
    """Featurise a light curve as the service does. Raises LightCurveError if no point is in the network's bands."""
    return featurise(curve, config.limits, config.flux_unit, METADATA_COLUMNS, config.bands)


def usable_tokens(curve: LightCurve, config: DataConfig) -> Tokens | None:
    """Return the tokens of a light curve; None if no point is in the network's bands."""
    try:
        return to_tokens(curve, config)
    except LightCurveError:
        return None


def view_examples(dataset: Sample, indices: Int64, config: DataConfig, view: View) -> list[Example]:
    """Return examples of the objects with a detection in a fixed view, in the order of ``indices``."""
    examples = []
    for index in indices:
        visible = apply_view(dataset.curve(int(index)), view)
        tokens = None if visible is None else usable_tokens(visible, config)
        if tokens is not None:
            examples.append(Example(tokens, int(dataset.label[index])))
    return examples


def draw_examples(
    dataset: Sample, indices: Int64, config: DataConfig, augmentation: AugmentationConfig, rng: np.random.Generator
) -> list[Example]:
    """Return one random view of every object, in the order of ``indices``.

    An object without a detection in its view is complete instead; an object without a point in the network's bands is
    left out.
    """
    examples = []
    for index in indices:
        curve = dataset.curve(int(index))
        if augmentation.degraded and rng.random() < augmentation.degraded:
            visible: LightCurve | None = degrade(curve, augmentation.degrade, rng)
        else:
            visible = apply_view(curve, draw_view(curve, augmentation, rng))
            if visible is not None and augmentation.perturbed and rng.random() < augmentation.perturbed:
                visible = perturb(visible, rng)
        if visible is not None and (augmentation.few_bands or augmentation.prefix or augmentation.common_metadata):
            visible = restrict(visible, augmentation, rng)
        tokens = (visible and usable_tokens(visible, config)) or usable_tokens(curve, config)
        if tokens is not None:
            examples.append(Example(tokens, int(dataset.label[index])))
    return examples


def draw_indices(label_N: Int64, indices: Int64, size: int, *, balance: float, rng: np.random.Generator) -> Int64:
    """Draw objects with replacement, classes in proportion to their share to the power ``1 - balance``.

    With a balance of 1, the numbers of draws of the classes differ by one at most.
    """
    if balance < 1:
        _, class_index, count = np.unique(label_N[indices], return_inverse=True, return_counts=True)
        weight = (count**-balance)[class_index]
        return rng.choice(indices, size, p=weight / weight.sum()) if balance else rng.choice(indices, size)
    members = [indices[label_N[indices] == label] for label in np.unique(label_N[indices])]
    rounds = -(-size // len(members))
    classes = np.concatenate([rng.permutation(len(members)) for _ in range(rounds)])[:size]
    return np.array([members[label][rng.integers(len(members[label]))] for label in classes], dtype=np.int64)


def draw_weighted(dataset: Sample, indices: Int64, size: int, recipe: Recipe, rng: np.random.Generator) -> Int64:
    """Draw objects with replacement by the weights of the dataset, or by class if it has none."""
    if dataset.weight is None:
        return draw_indices(dataset.label, indices, size, balance=recipe.batch.balance, rng=rng)
    weight = dataset.weight[indices]
    return rng.choice(indices, size, p=weight / weight.sum())


def batches_of_pool(dataset: Sample, indices: Int64, recipe: Recipe, number: int) -> list[TrainingBatch]:
    """Return the batches of a pool, a function of ``(recipe, number)``: views of similar length, in random order."""
    rng = np.random.default_rng((recipe.seed, number))
    examples = sorted(draw_pool(dataset, indices, recipe, rng), key=lambda example: len(example.tokens))
    parts = np.array_split(np.arange(len(examples)), recipe.batch.pool)  # some draws may have no example
    return [collate([examples[index] for index in parts[part]]) for part in rng.permutation(recipe.batch.pool)]


def draw_pool(dataset: Sample, indices: Int64, recipe: Recipe, rng: np.random.Generator) -> list[Example]:
    """Return the examples of one pool in the order in which they were drawn."""
    size = recipe.batch.size * recipe.batch.pool
    drawn = draw_weighted(dataset, indices, size, recipe, rng)
    return draw_examples(dataset, drawn, recipe.data, recipe.augmentation, rng)


def stream(
    dataset: Sample, indices: Int64, recipe: Recipe, first_step: int = 0
) -> Generator[TrainingBatch, None, None]:
    """Yield the training batches of ``first_step`` and all later steps, endlessly."""
    return pooled(lambda number: batches_of_pool(dataset, indices, recipe, number), recipe.batch.pool, first_step)


def pooled(make: Callable[[int], list[T]], size: int, first_step: int) -> Generator[T, None, None]:
    """Yield batches from ``first_step`` on; ``make`` returns the ``size`` batches of a pool by its number."""
    number, skip = divmod(first_step, size)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as worker:
        future = worker.submit(make, number)
        while True:
            batches = future.result()
            number += 1
            future = worker.submit(make, number)
            yield from batches[skip:]
            skip = 0
