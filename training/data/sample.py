"""Labelled light curves as ragged arrays: the one container of training data.

Notable:

- all points are in a band of the networks; `training.data.survey_readers` maps filters to bands;
- ``flux`` is difference flux or, for variables, total flux minus a baseline, in nJy; ``total_flux`` is NaN where it is
  not known. A published upper limit has flux 0 and is not detected (`Sample.limit`);
- a missing number is NaN, a missing label -1. A classifier gets only the points and `Sample.metadata_of`.

Legend: N objects, P points of all objects together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.common import replacing
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.metadata import METADATA_COLUMNS, metadata_row
from nightjar_alerts.models.taxonomy import ELASTICC

UNLABELLED: Final = -1
BY_HASH: Final = -1
SIMULATED: Final = "simulated"
PARTS: Final = ("train", "valid", "test")
NO_METADATA: Final = np.full(len(METADATA_COLUMNS), np.nan, dtype=np.float32)
LABELS: Final = {name: number for number, name in enumerate(ELASTICC.names)}

ContextPolicy = Literal["nothing", "redshift", "everything"]

_POINTS: Final = {
    "mjd": np.float64,
    "flux": np.float32,
    "flux_err": np.float32,
    "total_flux": np.float32,
    "band": np.int8,
    "detected": np.bool_,
    "foreign": np.bool_,
    "wavelength": np.float32,
}
_NUMBERS: Final = ("z", "z_err", "z_phot", "z_phot_err", "mwebv", "period")
_TEXTS: Final = ("source", "object_id", "group", "raw_label", "quality")


@dataclass(slots=True)
class SurveyObject:
    """Object of one survey. Points as in `Sample`; ``names`` are all its names, for grouping."""

    source: str
    object_id: str
    mjd: NDArray[np.float64]
    flux: NDArray[np.floating]
    flux_err: NDArray[np.floating]
    band: NDArray[np.int8]
    detected: NDArray[np.bool_]
    foreign: NDArray[np.bool_]
    wavelength: NDArray[np.floating]
    total_flux: NDArray[np.floating] | None = None
    label: int = UNLABELLED
    raw_label: str = ""
    quality: str = ""
    z: float = np.nan
    z_err: float = np.nan
    z_phot: float = np.nan
    z_phot_err: float = np.nan
    mwebv: float = np.nan
    period: float = np.nan
    metadata: NDArray[np.float32] = field(default_factory=lambda: NO_METADATA)
    names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Sample:
    """Light curves with their objects: of one file, of many surveys, or drawn as inputs of a network.

    `sample_of` makes one of the columns that are known; all others are NaN, False or an empty text.

    Attributes
    ----------
    offsets : i64 (N + 1,); object i owns points ``offsets[i]:offsets[i + 1]``, sorted by time.
    mjd : f64 (P,), TAI days. flux, flux_err, total_flux : f32 (P,), nJy. In samples of `training.data.drawn`, ``mjd``
        is f32 days since the first point, and fluxes are in the unit of the network.
    band : integers (P,), index into `models.lightcurve.BANDS`. detected : bool (P,).
    foreign : bool (P,), the filter is not near the LSST filter of its band. wavelength : f32 (P,), nm, of the filter.
    source, object_id, raw_label, quality : text (N,). ``source`` is a survey, `SIMULATED`, or a kind of outlier.
    group : (N,), the same for all rows of one physical object: its name, or a number in drawn samples.
    label : i64 (N,), index into ``classes``, -1 where unknown.
    z, z_err, z_phot, z_phot_err, mwebv, period : f64 (N,), NaN where unknown; period in days.
    part : i8 (N,), index into `PARTS`, or `BY_HASH` where `training.data.dataset.split_indices` decides.
    metadata : f32 (N, 64) in the order of `METADATA_COLUMNS`, as far as the survey itself has them.
    classes : class names of the labels. weight : f64 (N,), sampling weights; None: by class.
    """

    offsets: NDArray[np.int64]
    mjd: NDArray[np.floating]
    flux: NDArray[np.float32]
    flux_err: NDArray[np.float32]
    total_flux: NDArray[np.float32]
    band: NDArray[np.integer]
    detected: NDArray[np.bool_]
    foreign: NDArray[np.bool_]
    wavelength: NDArray[np.float32]
    source: NDArray[np.str_]
    object_id: NDArray[np.str_]
    group: NDArray[Any]
    raw_label: NDArray[np.str_]
    quality: NDArray[np.str_]
    label: NDArray[np.int64]
    z: NDArray[np.float64]
    z_err: NDArray[np.float64]
    z_phot: NDArray[np.float64]
    z_phot_err: NDArray[np.float64]
    mwebv: NDArray[np.float64]
    period: NDArray[np.float64]
    part: NDArray[np.int8]
    metadata: NDArray[np.float32]
    classes: tuple[str, ...] = ELASTICC.names
    weight: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.label)

    @property
    def limit(self) -> NDArray[np.bool_]:
        """Points that are published upper limits, bool (P,)."""
        flags: NDArray[np.bool_] = (self.flux == 0) & ~self.detected
        return flags

    def limit_at(self, at: slice) -> NDArray[np.bool_]:
        """Return `limit` for some points only, which is much faster than for all points."""
        flags: NDArray[np.bool_] = (self.flux[at] == 0) & ~self.detected[at]
        return flags

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of points of each object, i64 (N,)."""
        return np.diff(self.offsets)

    @property
    def detections(self) -> NDArray[np.int64]:
        """Number of detections of each object, i64 (N,)."""
        return self.count(self.detected)

    def points(self, index: int) -> slice:
        """Return the slice of the points of object ``index``."""
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    def count(self, flags_P: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Count the flagged points of each object, i64 (N,)."""
        total = np.concatenate(([0], np.cumsum(flags_P)))
        counts: NDArray[np.int64] = total[self.offsets[1:]] - total[self.offsets[:-1]]
        return counts

    def points_of(self, rows: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the offsets of the objects ``rows`` alone, and the indices of their points."""
        lengths = self.lengths[rows]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        return offsets, np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])

    def take(self, rows: NDArray[Any]) -> "Sample":
        """Return the objects ``rows`` (indices or a mask), in that order."""
        chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return self._select(*self.points_of(chosen), chosen)

    def keep_points(self, flags_P: NDArray[np.bool_]) -> "Sample":
        """Return a sample of the flagged points, without objects that have none."""
        counts = self.count(flags_P)
        return self._select(np.concatenate(([0], np.cumsum(counts[counts > 0]))), flags_P, counts > 0)

    def _select(self, offsets: NDArray[np.int64], points: NDArray[Any], objects: NDArray[Any]) -> "Sample":
        columns = {name: getattr(self, name)[points if name in _POINTS else objects] for name in COLUMNS}
        weight = None if self.weight is None else self.weight[objects]
        return replace(self, offsets=offsets, weight=weight, **columns)

    def metadata_of(self, index: int, context: ContextPolicy) -> dict[str, float]:
        """Return the metadata of an object: nothing, its redshift and dust, or everything that its survey provides.

        The error of a spectroscopic redshift is 0.001 unless it is known.
        """
        if context == "nothing":
            return {}
        if context == "everything":
            row = self.metadata[index]
            if len(known := np.flatnonzero(np.isfinite(row))):
                return {METADATA_COLUMNS[column]: float(row[column]) for column in known.tolist()}
        values = {"mwebv": float(self.mwebv[index])}
        z, error = self.z[index], self.z_err[index]
        if np.isfinite(z):
            values |= {"z_final": float(z), "z_final_err": float(error) if np.isfinite(error) else 0.001}
        elif np.isfinite(self.z_phot[index]) and np.isfinite(self.z_phot_err[index]):
            values |= {"z_final": float(self.z_phot[index]), "z_final_err": float(self.z_phot_err[index])}
        return {name: value for name, value in values.items() if np.isfinite(value)}

    def curve(self, index: int, context: ContextPolicy = "everything") -> LightCurve:
        """Return one object as a light curve for the service. Raises LightCurveError for invalid values."""
        if not 0 <= index < len(self):
            raise IndexError(f"object {index} of {len(self)}")
        at = self.points(index)
        return LightCurve.from_columns(
            mjd=self.mjd[at],
            flux=self.flux[at],
            flux_err=self.flux_err[at],
            band=self.band[at],
            detected=self.detected[at],
            metadata=self.metadata_of(index, context),
            object_id=str(self.object_id[index]),
        )


COLUMNS: Final = tuple(f.name for f in fields(Sample) if f.name not in ("offsets", "classes", "weight"))


def sample_of(
    *,
    offsets: NDArray[np.int64],
    mjd: NDArray[np.floating],
    flux: NDArray[np.float32],
    flux_err: NDArray[np.float32],
    band: NDArray[np.integer],
    detected: NDArray[np.bool_],
    **known: Any,
) -> Sample:
    """Return a sample; ``known`` are further fields. Columns that are not given take no memory."""
    points, objects = len(mjd), len(offsets) - 1
    columns: dict[str, NDArray[Any]] = {
        "total_flux": _all(np.float32(np.nan), points),
        "foreign": _all(np.False_, points),
        "wavelength": _all(np.float32(np.nan), points),
        "metadata": np.broadcast_to(NO_METADATA, (objects, len(NO_METADATA))),
        "label": _all(np.int64(UNLABELLED), objects),
        "part": _all(np.int8(BY_HASH), objects),
        **{name: _all(np.float64(np.nan), objects) for name in _NUMBERS},
        **{name: _all(np.str_(""), objects) for name in _TEXTS},
    }
    if "group" not in known and "object_id" in known:
        known["group"] = known["object_id"]
    given = {"mjd": mjd, "flux": flux, "flux_err": flux_err, "band": band, "detected": detected}
    return Sample(**{"offsets": offsets, **columns, **given, **known})


def sample_of_curves(curves: Sequence[LightCurve], **known: Any) -> Sample:
    """Return a sample of light curves, with their names and metadata; ``known`` are further fields."""
    return sample_of(
        offsets=np.cumsum([0, *(len(curve) for curve in curves)]),
        mjd=np.concatenate([curve.mjd for curve in curves]),
        flux=np.concatenate([curve.flux for curve in curves]),
        flux_err=np.concatenate([curve.flux_err for curve in curves]),
        band=np.concatenate([curve.band for curve in curves]).astype(np.int8),
        detected=np.concatenate([curve.detected for curve in curves]),
        metadata=np.stack([metadata_row(curve.metadata, METADATA_COLUMNS) for curve in curves]),
        object_id=np.array([curve.object_id for curve in curves], dtype=np.str_),
        **known,
    )


def _all(value: np.generic, size: int) -> NDArray[Any]:
    """Return an array of equal values that takes the memory of one."""
    return np.broadcast_to(value, (size,))


def write_sample(sample: Sample, path: Path) -> None:
    """Write objects of surveys to one uncompressed npz without pickles, atomically."""
    arrays: Mapping[str, NDArray[Any]] = {name: getattr(sample, name) for name in ("offsets", *COLUMNS)}
    with replacing(path, ".npz") as partial:
        np.savez(partial, allow_pickle=False, **arrays)


def read_sample(path: Path) -> Sample:
    """Read a file of `write_sample`."""
    with np.load(path, allow_pickle=False) as arrays:
        return Sample(**{name: arrays[name] for name in ("offsets", *COLUMNS)})


def collect(
    objects: Iterable[SurveyObject], groups: Sequence[str] | None = None, parts: Sequence[int] | None = None
) -> Sample:
    """Return a sample of objects, with points sorted by time.

    Parameters
    ----------
    groups : group of each object; default: its id. parts : index into `PARTS` of each object; default: train.
    """
    rows = [_sorted(row) for row in objects]
    values: dict[str, Any] = {"offsets": np.cumsum([0, *(len(row.mjd) for row in rows)], dtype=np.int64)}
    for name, kind in _POINTS.items():
        columns = [_column(row, name) for row in rows]
        values[name] = np.concatenate(columns).astype(kind) if columns else np.zeros(0, dtype=kind)
    for name in _NUMBERS:
        values[name] = np.array([getattr(row, name) for row in rows], dtype=np.float64)
    for name in _TEXTS:
        texts = groups if name == "group" else [getattr(row, name) for row in rows]
        values[name] = np.array([row.object_id for row in rows] if texts is None else texts, dtype=np.str_)
    values["label"] = np.array([row.label for row in rows], dtype=np.int64)
    values["part"] = np.zeros(len(rows), np.int8) if parts is None else np.asarray(parts, dtype=np.int8)
    values["metadata"] = np.stack([row.metadata for row in rows]) if rows else np.zeros((0, len(NO_METADATA)), "f4")
    return Sample(**values)


def join(samples: Sequence[Sample]) -> Sample:
    """Concatenate several samples of the same classes. Sampling weights are kept if all samples have them."""
    columns: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in samples]) for name in COLUMNS}
    offsets = np.concatenate(([0], np.cumsum(np.concatenate([sample.lengths for sample in samples]))))
    weights = [sample.weight for sample in samples if sample.weight is not None]
    weight = np.concatenate(weights) if len(weights) == len(samples) else None
    return replace(samples[0], offsets=offsets, weight=weight, **columns)


def _column(row: SurveyObject, name: str) -> NDArray[Any]:
    value = getattr(row, name)
    return np.full(len(row.mjd), np.nan, dtype=np.float32) if value is None else value


def _sorted(row: SurveyObject) -> SurveyObject:
    order = np.lexsort((row.band, row.mjd))
    for name in _POINTS:
        if getattr(row, name) is not None:
            setattr(row, name, getattr(row, name)[order])
    return row
