"""Light curves drawn from a training set as inputs of the networks.

Light curves are drawn once and written to a folder, so that statistics can be computed while the network is still
training, and embeddings afterwards. The folder has ``PART.npz`` for the parts ``train``, ``validation`` and
``outliers`` (objects of no known class), and the names of the classes.

Legend: N light curves.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from nightjar_alerts.models.lightcurve import Bool, Int64, RaggedBatch
from nightjar_alerts.models.networks.network import INPUTS
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.training.data.batches import draw_examples, draw_weighted
from nightjar_alerts.training.data.dataset import SPLITS, split_indices
from nightjar_alerts.training.data.sample import Sample, join, sample_of
from nightjar_alerts.training.recipes.schema import Recipe

CURVES_AT_ONCE: Final = 64
_POINTS: Final = {"time": "mjd", "flux": "flux", "flux_err": "flux_err", "band": "band", "detected": "detected"}
"""Columns of points in a folder, and in a `Sample`."""


def drawn_sample(curves: RaggedBatch, label: Int64, source: NDArray[np.str_], number: Int64) -> Sample:
    """Return network inputs as a sample; ``number`` is the same for all draws of an object."""
    return sample_of(
        offsets=curves.offsets,
        mjd=curves.time,
        flux=curves.flux,
        flux_err=curves.flux_err,
        band=curves.band,
        detected=curves.detected,
        metadata=curves.metadata,
        label=label,
        source=source,
        group=number,
    )


def network_inputs(drawn: Sample, rows: Int64) -> RaggedBatch:
    """Return some of the light curves as input of a network, in that order."""
    offsets, picked = drawn.points_of(rows)
    points = {name: getattr(drawn, column)[picked] for name, column in _POINTS.items()}
    return RaggedBatch(offsets=offsets, **points, metadata=drawn.metadata[rows])


def bands_seen(drawn: Sample) -> Bool:
    """Return whether each light curve has a point in each of the bands, ``(N, bands)``."""
    has_point = np.zeros((len(drawn), len(BANDS)), dtype=np.bool_)
    has_point[np.repeat(np.arange(len(drawn)), drawn.lengths), drawn.band] = True
    return has_point


def count_bands(drawn: Sample) -> Int64:
    """Return the number of bands with a point of each light curve, ``(N,)``."""
    count: Int64 = bands_seen(drawn).sum(1).astype(np.int64)
    return count


def padded_batches(drawn: Sample, size: int = CURVES_AT_ONCE) -> Iterator[tuple[Int64, dict[str, torch.Tensor]]]:
    """Yield rows and padded inputs of all light curves, sorted by length."""
    order = np.argsort(drawn.lengths, kind="stable")
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        padded = network_inputs(drawn, rows).padded()
        yield rows, {name: torch.from_numpy(padded[name]) for name in INPUTS}


def write_drawn(drawn: Sample, path: Path) -> None:
    """Write to one uncompressed npz without pickles."""
    arrays: dict[str, NDArray[Any]] = {name: getattr(drawn, column) for name, column in _POINTS.items()}
    arrays |= {name: getattr(drawn, name) for name in ("offsets", "metadata", "label", "source")}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, allow_pickle=False, **arrays, object_index=drawn.group)


def read_drawn(path: Path) -> Sample:
    """Read a file of `write_drawn`."""
    with np.load(path, allow_pickle=False) as arrays:
        curves = RaggedBatch(**{name: arrays[name] for name in ("offsets", *_POINTS, "metadata")})
        return drawn_sample(curves, arrays["label"], arrays["source"], arrays["object_index"])


def join_drawn(parts: Sequence[Sample]) -> Sample:
    """Concatenate several sets; objects of different sets get different numbers."""
    shifts = np.cumsum([0, *(int(part.group.max(initial=-1)) + 1 for part in parts)])
    return join([replace(part, group=part.group + shift) for part, shift in zip(parts, shifts, strict=False)])


def draw_from_mixture(dataset: Sample, recipe: Recipe, part: str, number: int, seed: int) -> Sample:
    """Draw light curves of one part of a mixture, with the recipe's augmentation."""
    rng = np.random.default_rng((seed, SPLITS.index(part)))
    rows = draw_weighted(dataset, split_indices(dataset, recipe.data.fractions)[part], number, recipe, rng)
    return draw_curves(dataset, rows, recipe, rng)


def draw_curves(dataset: Sample, rows: Int64, recipe: Recipe, rng: np.random.Generator) -> Sample:
    """Draw a light curve of each chosen object with the recipe's augmentation; those without a point are left out."""
    examples = [
        draw_examples(dataset, rows[n : n + 1], recipe.data, recipe.augmentation, rng) for n in range(len(rows))
    ]
    kept = [index for index, drawn in enumerate(examples) if drawn]
    return drawn_sample(
        RaggedBatch.collate([examples[index][0].tokens for index in kept]),
        np.array([examples[index][0].label for index in kept], dtype=np.int64),
        np.array([dataset.source[rows[index]] for index in kept], dtype=np.str_),
        rows[kept],
    )


PARTS: Final = ("train", "validation", "outliers")


CLASSES: Final = "classes.json"


def classes_of(folder: Path) -> tuple[str, ...]:
    """Return the class names of a folder, in the order of its labels."""
    return tuple(json.loads((folder / CLASSES).read_text(encoding="utf-8")))
