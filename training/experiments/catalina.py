"""Catalina Southern periodic variables (Drake et al. 2017): one band, 13 classes, magnitudes.

The Parquet file holds one row per object: ``object_id``, ``class`` and the list columns ``mjd`` (days), ``mag`` and
``magerr`` (V_CSS magnitudes).

Notable:

- two observations carry a Modified Julian Date of -2,409,998.5, which is no date, and 14,223 repeat the time of the
  observation before them: the first kind is dropped, of the second kind the first is kept;
- the labelled sample is drawn by object before anything is trained, so that no curve of it is ever pretrained on;
- thinning takes observations out of a window and keeps its span, as a survey with a slower cadence would have seen the
  same years; thinner versions of a window are subsets of denser ones.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from models.lightcurve import Bool, Float32, Float64, Int64

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


class Sample(NamedTuple):
    """Objects for pretraining, and those for each fold of the classifiers."""

    unlabelled: Int64
    folds: tuple[Int64, ...]


class Curves(NamedTuple):
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
    kept = order[valid[order] & ~repeated]
    long_enough = np.bincount(owner[kept], minlength=len(names)) >= FEWEST_POINTS
    kept = kept[long_enough[owner[kept]]]
    counts = np.bincount(owner[kept], minlength=len(names))[long_enough]
    classes, label = np.unique(names[long_enough], return_inverse=True)
    ends = np.concatenate(([0], np.cumsum(counts)))
    return Catalina(ends, mjd[kept], mag[kept], mag_err[kept], label.astype(np.int64), tuple(classes.tolist()))


def draw_sample(label_N: Int64, per_class: int, n_folds: int, seed: int) -> Sample:
    """Draw the labelled sample and deal it into stratified folds; everything else is for pretraining.

    Each class gives as many objects as leave ``per_class`` of it in training when one fold is held out, or all it has.
    """
    rng = np.random.default_rng(seed)
    wanted = per_class * n_folds // (n_folds - 1)
    folds: list[list[Int64]] = [[] for _ in range(n_folds)]
    for label in range(int(label_N.max()) + 1):
        drawn = rng.permutation(np.flatnonzero(label_N == label))[:wanted]
        for number in range(n_folds):
            # Class by class the deal starts at another fold, or the first would get every odd object.
            folds[(number + label) % n_folds].append(drawn[number::n_folds])
    dealt = tuple(np.sort(np.concatenate(fold)) for fold in folds)
    return Sample(np.setdiff1d(np.arange(len(label_N)), np.concatenate(dealt)), dealt)


def training_windows(data: Catalina, indices: Int64, length: int, rng: np.random.Generator) -> Curves:
    """One window of up to ``length`` consecutive observations of each object, its start drawn at random."""
    counts = data.offsets[indices + 1] - data.offsets[indices]
    starts = data.offsets[indices] + (rng.random(len(indices)) * (np.maximum(counts - length, 0) + 1)).astype(np.int64)
    places = [np.arange(start, start + min(int(count), length)) for start, count in zip(starts, counts, strict=True)]
    return gather(data, indices, places)


def thinned_windows(data: Catalina, indices: Int64, length: int, cadence: float, seed: int) -> Curves:
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


def gather(data: Catalina, indices: Int64, places: list[Int64]) -> Curves:
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
    return Curves(
        padded(data.mag[place_P]), padded(data.mag_err[place_P]), padded(time_P), mask_BL, data.label[indices]
    )
