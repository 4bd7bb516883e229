"""Many light curves at once: the rules of ``LightCurve.from_columns``, looked at over all points together.

A check of sixty numbers costs numpy as much as one of six thousand, so a request of many light curves is checked in one
go. Only a curve that this finds something about is looked at alone, by ``from_columns``, which names the fault; a test
holds the two to each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.lightcurve import Bool, Columns, Float32, Float64, Int64, LightCurve, LightCurveError, band_column
from models.photometry import BANDS, DETECTION_SNR, MAX_ABS_MJD, NJY_PER_UNIT


@dataclass(frozen=True, slots=True, eq=False)
class _Points:
    """Points of several light curves, concatenated; curve k is ``[offsets[k]:offsets[k + 1]]`` of every column."""

    offsets: Int64
    mjd: Float64
    flux: Float32
    flux_err: Float32
    band: Int64
    detected: Bool


def light_curves(many: Sequence[Columns]) -> list[LightCurve | LightCurveError]:
    """Build records, each alone: a curve that breaks a rule has its error in its place."""
    arrays = [_arrays(columns) for columns in many]
    regular = [(found, columns) for found, columns in zip(arrays, many, strict=False) if found is not None]
    if not regular:
        return [_alone(columns) for columns in many]
    kept = [columns for _, columns in regular]
    records = iter(_records(_concatenate([found for found, _ in regular], kept), kept))
    return [
        (next(records) if found is not None else None) or _alone(columns)
        for found, columns in zip(arrays, many, strict=True)
    ]


_Arrays = tuple[Float64, Float64, Float64, Int64, Bool | None]


def _arrays(columns: Columns) -> _Arrays | None:
    """Columns as arrays of shape (n,), unchecked; None where they do not even have one common length above zero."""
    mjd, flux, flux_err = (np.asarray(column, np.float64) for column in (columns.mjd, columns.flux, columns.flux_err))
    try:
        band = _band(columns.band)
    except LightCurveError:
        return None
    detected = None if columns.detected is None else np.asarray(columns.detected, np.bool_)
    shapes = {array.shape for array in (mjd, flux, flux_err, band, detected) if array is not None}
    regular = len(shapes) == 1 and mjd.ndim == 1 and mjd.size > 0
    return (mjd, flux, flux_err, band, detected) if regular else None


def _band(band: Sequence[str] | NDArray[Any]) -> Int64:
    if isinstance(band, np.ndarray) and band.dtype.kind in "iu":
        return band.astype(np.int64)  # whose range is checked later, with all others
    return band_column(band)


def _concatenate(arrays: Sequence[_Arrays], many: Sequence[Columns]) -> _Points:
    mjd, flux, flux_err, band, _ = zip(*arrays, strict=True)
    lengths = np.array([len(days) for days in mjd])
    unit = np.repeat([NJY_PER_UNIT[columns.flux_unit] for columns in many], lengths)
    with np.errstate(over="ignore"):  # beyond float32 becomes inf, which the checks then see
        flux32 = (np.concatenate(flux) * unit).astype(np.float32)
        err32 = (np.concatenate(flux_err) * unit).astype(np.float32)
        strong = np.abs(flux32) >= DETECTION_SNR * err32
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    for (*_, given), start, end in zip(arrays, offsets, offsets[1:], strict=False):
        if given is not None:
            strong[start:end] = given
    return _Points(offsets, np.concatenate(mjd), flux32, err32, np.concatenate(band), strong)


def _sound(points: _Points) -> list[bool]:
    """Return which curves are beyond doubt; times that do not rise may be in order, but not for this quick look."""
    holds = np.isfinite(points.flux) & np.isfinite(points.flux_err) & (points.flux_err > 0)
    holds &= np.abs(points.mjd) < MAX_ABS_MJD  # which NaN is not
    holds &= (points.band >= 0) & (points.band < len(BANDS))
    rising = np.empty_like(holds)
    np.greater(points.mjd[1:], points.mjd[:-1], out=rising[1:])
    rising[points.offsets[:-1]] = True
    sound: list[bool] = np.logical_and.reduceat(holds & rising, points.offsets[:-1]).tolist()
    return sound


def _records(points: _Points, many: Sequence[Columns]) -> list[LightCurve | None]:
    """Slices of the points as records, None for a curve that has to be looked at alone."""
    ends = points.offsets.tolist()
    return [
        LightCurve(
            points.mjd[start:end],
            points.flux[start:end],
            points.flux_err[start:end],
            points.band[start:end],
            points.detected[start:end],
            dict(columns.metadata),
            columns.object_id,
            columns.survey,
        )
        if sound
        else None
        for columns, sound, start, end in zip(many, _sound(points), ends, ends[1:], strict=False)
    ]


def _alone(columns: Columns) -> LightCurve | LightCurveError:
    try:
        return columns.light_curve()
    except LightCurveError as error:
        return error
