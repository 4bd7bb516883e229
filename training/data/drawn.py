"""Light curves drawn from a training set as inputs of the networks.

Light curves are drawn once and written to a folder, so that statistics can be computed while the network is still
training, and embeddings afterwards. The folder has ``PART.npz`` for the parts ``train``, ``validation`` and
``outliers`` (objects of no known class), and the names of the classes.

Legend: N light curves.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from nightjar_alerts.models.lightcurve import Bool, Int64, RaggedBatch
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.networks.network import INPUTS
from nightjar_alerts.training.data.batches import draw_examples, draw_weighted
from nightjar_alerts.training.data.dataset import SPLITS, Dataset, split_indices
from nightjar_alerts.training.recipes.schema import Recipe

CURVES_AT_ONCE: Final = 64
_REDSHIFT: Final = METADATA_COLUMNS.index("z_final")


_POINTS: Final = ("time", "flux", "flux_err", "band", "detected")


@dataclass(frozen=True, eq=False)
class DrawnCurves:
    """Light curves as network inputs, with label, source and object.

    Attributes
    ----------
    curves : the light curves.
    label : i64[N], -1 for no known class.
    source : survey of each light curve, ``simulated`` for the simulator, or the kind of outlier.
    object_index : i64[N], the same for all draws of an object.
    """

    curves: RaggedBatch
    label: Int64
    source: NDArray[np.str_]
    object_index: Int64

    def __len__(self) -> int:
        return len(self.label)

    @property
    def length(self) -> Int64:
        """Number of points, [N]."""
        lengths: Int64 = np.diff(self.curves.offsets)
        return lengths

    @property
    def detections(self) -> Int64:
        """Number of detections, [N]."""
        total = np.concatenate(([0], np.cumsum(self.curves.detected)))
        counts: Int64 = total[self.curves.offsets[1:]] - total[self.curves.offsets[:-1]]
        return counts

    @property
    def bands(self) -> Int64:
        """Number of bands with a point, [N]."""
        has_point = np.zeros((len(self), 8), dtype=np.bool_)
        has_point[np.repeat(np.arange(len(self)), self.length), self.curves.band] = True
        count: Int64 = has_point.sum(1).astype(np.int64)
        return count

    @property
    def has_redshift(self) -> Bool:
        """Whether the redshift is given, [N]."""
        flags: Bool = np.isfinite(self.curves.metadata[:, _REDSHIFT])
        return flags

    def take(self, rows: Int64) -> "DrawnCurves":
        """Return some of the light curves, in that order."""
        return DrawnCurves(take(self.curves, rows), self.label[rows], self.source[rows], self.object_index[rows])

    def batches(self, size: int = CURVES_AT_ONCE) -> Iterator[tuple[Int64, dict[str, torch.Tensor]]]:
        """Yield rows and padded inputs of all light curves, sorted by length."""
        order = np.argsort(self.length, kind="stable")
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            padded = take(self.curves, rows).padded()
            yield rows, {name: torch.from_numpy(padded[name]) for name in INPUTS}

    def save(self, path: Path) -> None:
        """Write to one uncompressed npz without pickles."""
        arrays: dict[str, NDArray[Any]] = {name: getattr(self.curves, name) for name in (*_POINTS, "offsets")}
        arrays |= {
            "metadata": self.curves.metadata,
            "label": self.label,
            "source": self.source,
            "object_index": self.object_index,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, allow_pickle=False, **arrays)


def read_drawn(path: Path) -> DrawnCurves:
    """Read a file of `DrawnCurves.save`."""
    with np.load(path, allow_pickle=False) as arrays:
        curves = RaggedBatch(**{name: arrays[name] for name in ("offsets", *_POINTS, "metadata")})
        return DrawnCurves(curves, arrays["label"], arrays["source"], arrays["object_index"])


def take(curves: RaggedBatch, rows: Int64) -> RaggedBatch:
    """Return some of the sequences, in that order."""
    lengths = np.diff(curves.offsets)[rows]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    picked = np.repeat(curves.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
    points = {name: getattr(curves, name)[picked] for name in _POINTS}
    return RaggedBatch(offsets=offsets, **points, metadata=curves.metadata[rows])


def join_drawn(parts: Sequence[DrawnCurves]) -> DrawnCurves:
    """Concatenate several sets; objects of different sets get different indices."""
    lengths = np.concatenate([part.length for part in parts])
    points = {name: np.concatenate([getattr(part.curves, name) for part in parts]) for name in (*_POINTS, "metadata")}
    shifts = np.cumsum([0, *(int(part.object_index.max(initial=-1)) + 1 for part in parts)])
    return DrawnCurves(
        RaggedBatch(offsets=np.concatenate(([0], np.cumsum(lengths))), **points),
        np.concatenate([part.label for part in parts]),
        np.concatenate([part.source for part in parts]),
        np.concatenate([part.object_index + shift for part, shift in zip(parts, shifts, strict=False)]),
    )


def draw_from_mixture(dataset: Dataset, recipe: Recipe, part: str, number: int, seed: int) -> DrawnCurves:
    """Draw light curves of one part of a mixture, with the recipe's augmentation."""
    rng = np.random.default_rng((seed, SPLITS.index(part)))
    rows = draw_weighted(dataset, split_indices(dataset, recipe.data.fractions)[part], number, recipe, rng)
    return draw_curves(dataset, rows, recipe, rng)


def draw_curves(dataset: Dataset, rows: Int64, recipe: Recipe, rng: np.random.Generator) -> DrawnCurves:
    """Draw a light curve of each chosen object with the recipe's augmentation; those without a point are left out."""
    examples = [
        draw_examples(dataset, rows[n : n + 1], recipe.data, recipe.augmentation, rng) for n in range(len(rows))
    ]
    kept = [index for index, drawn in enumerate(examples) if drawn]
    names = [dataset.object_id[int(rows[index])].partition(":") for index in kept]
    return DrawnCurves(
        RaggedBatch.collate([examples[index][0].tokens for index in kept]),
        np.array([examples[index][0].label for index in kept], dtype=np.int64),
        np.array([source if colon else "simulated" for source, colon, _ in names], dtype=np.str_),
        rows[kept],
    )


PARTS: Final = ("train", "validation", "outliers")


CLASSES: Final = "classes.json"


def classes_of(folder: Path) -> tuple[str, ...]:
    """Return the class names of a folder, in the order of its labels."""
    return tuple(json.loads((folder / CLASSES).read_text(encoding="utf-8")))
