"""Light curves of many surveys as ragged arrays, with metadata of each object.

Notable:

- all points are in a band of the networks; `training.data.survey_readers` maps filters to bands;
- ``flux`` is difference flux or, for variables, total flux minus a baseline, in nJy; ``total_flux`` is NaN where it is
  not known. A published upper limit has flux 0 and is not detected (`Sample.limit`);
- a missing number is NaN, a missing label -1. A classifier gets only the points and `Sample.metadata_of`.

Legend: N objects, P points of all objects together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.common import replacing
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.taxonomy import ELASTICC

UNLABELLED: Final = -1
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
    """Objects of many surveys.

    Attributes
    ----------
    offsets : i64 (N + 1,); object i owns points ``offsets[i]:offsets[i + 1]``, sorted by time.
    mjd : f64 (P,), days. flux, flux_err, total_flux : f32 (P,), nJy.
    band : i8 (P,), index into `models.lightcurve.BANDS`. detected : bool (P,).
    foreign : bool (P,), the filter is not near the LSST filter of its band. wavelength : f32 (P,), nm, of the filter.
    source, object_id, group, raw_label, quality : text (N,). ``group`` is shared by all rows of one physical object.
    label : i64 (N,), index into `models.taxonomy.ELASTICC`, -1 where unknown.
    z, z_err, z_phot, z_phot_err, mwebv, period : f64 (N,), NaN where unknown; period in days.
    part : i8 (N,), index into `PARTS`.
    metadata : f32 (N, 64) in the order of `METADATA_COLUMNS`, as far as the survey itself has them.
    """

    offsets: NDArray[np.int64]
    mjd: NDArray[np.float64]
    flux: NDArray[np.float32]
    flux_err: NDArray[np.float32]
    total_flux: NDArray[np.float32]
    band: NDArray[np.int8]
    detected: NDArray[np.bool_]
    foreign: NDArray[np.bool_]
    wavelength: NDArray[np.float32]
    source: NDArray[np.str_]
    object_id: NDArray[np.str_]
    group: NDArray[np.str_]
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

    def points(self, index: int) -> slice:
        """Return the slice of the points of object ``index``."""
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    def count(self, flags_P: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Count the flagged points of each object, i64 (N,)."""
        total = np.concatenate(([0], np.cumsum(flags_P)))
        counts: NDArray[np.int64] = total[self.offsets[1:]] - total[self.offsets[:-1]]
        return counts

    def take(self, rows: NDArray[Any]) -> "Sample":
        """Return the objects ``rows`` (indices or a mask), in that order."""
        chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        lengths = self.lengths[chosen]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        picked = np.repeat(self.offsets[chosen] - offsets[:-1], lengths) + np.arange(offsets[-1])
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "offsets"}
        return Sample(offsets, **{name: v[picked] if name in _POINTS else v[chosen] for name, v in values.items()})

    def keep_points(self, flags_P: NDArray[np.bool_]) -> "Sample":
        """Return a sample of the flagged points, without objects that have none."""
        counts = self.count(flags_P)
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "offsets"}
        remaining = {name: v[flags_P] if name in _POINTS else v[counts > 0] for name, v in values.items()}
        return Sample(np.concatenate(([0], np.cumsum(counts[counts > 0]))), **remaining)

    def metadata_of(self, index: int, context: ContextPolicy) -> dict[str, float]:
        """Return the metadata of an object: nothing, its redshift and dust, or everything that its survey provides.

        The error of a spectroscopic redshift is 0.001 unless it is known.
        """
        if context == "nothing":
            return {}
        row = self.metadata[index]
        if context == "everything" and np.isfinite(row).any():
            return {n: float(v) for n, v in zip(METADATA_COLUMNS, row, strict=True) if np.isfinite(v)}
        values = {"mwebv": float(self.mwebv[index])}
        z, error = self.z[index], self.z_err[index]
        if np.isfinite(z):
            values |= {"z_final": float(z), "z_final_err": float(error) if np.isfinite(error) else 0.001}
        elif np.isfinite(self.z_phot[index]) and np.isfinite(self.z_phot_err[index]):
            values |= {"z_final": float(self.z_phot[index]), "z_final_err": float(self.z_phot_err[index])}
        return {name: value for name, value in values.items() if np.isfinite(value)}

    def curve(self, index: int, context: ContextPolicy = "nothing") -> LightCurve:
        """Return one object as a light curve for the service."""
        at = self.points(index)
        return LightCurve(
            mjd=self.mjd[at],
            flux=self.flux[at],
            flux_err=self.flux_err[at],
            band=self.band[at].astype(np.int64),
            detected=self.detected[at],
            metadata=self.metadata_of(index, context),
            object_id=str(self.object_id[index]),
        )

    def save(self, path: Path) -> None:
        """Write to one uncompressed npz without pickles, atomically."""
        arrays: Mapping[str, NDArray[Any]] = {f.name: getattr(self, f.name) for f in fields(self)}
        with replacing(path, ".npz") as partial:
            np.savez(partial, allow_pickle=False, **arrays)


def read_sample(path: Path) -> Sample:
    """Read a file of `Sample.save`."""
    with np.load(path, allow_pickle=False) as arrays:
        return Sample(**{f.name: arrays[f.name] for f in fields(Sample)})


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
    """Concatenate several samples."""
    values: dict[str, Any] = {
        f.name: np.concatenate([getattr(sample, f.name) for sample in samples])
        for f in fields(Sample)
        if f.name != "offsets"
    }
    lengths = np.concatenate([sample.lengths for sample in samples])
    return Sample(np.concatenate(([0], np.cumsum(lengths))), **values)


def _column(row: SurveyObject, name: str) -> NDArray[Any]:
    value = getattr(row, name)
    return np.full(len(row.mjd), np.nan, dtype=np.float32) if value is None else value


def _sorted(row: SurveyObject) -> SurveyObject:
    order = np.lexsort((row.band, row.mjd))
    for name in _POINTS:
        if getattr(row, name) is not None:
            setattr(row, name, getattr(row, name)[order])
    return row
