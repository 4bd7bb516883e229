"""Many light curves at once: built by steps over all their points together.

A step over sixty numbers costs numpy as much as one over six thousand, so a request of many light curves is gone
through once. Only a curve that this finds something about is looked at alone, by ``LightCurve.from_columns``, which
names its fault. Tests hold the two ways to each other. (Featurising gains nothing: sorting all points together costs
more than looking at each light curve, most of which are sorted.)
"""

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nightjar_alerts.models.lightcurve import (
    Bool,
    Columns,
    Float32,
    Float64,
    Int64,
    LightCurve,
    LightCurveError,
    band_column,
)
from nightjar_alerts.models.photometry import BANDS, DETECTION_SNR, MAX_ABS_MJD, NJY_PER_UNIT


@dataclass(frozen=True, slots=True, eq=False)
class _Points:
    """Points of several light curves, concatenated; curve k is ``[offsets[k]:offsets[k + 1]]`` of every column."""

    offsets: Int64
    mjd: Float64
    flux: Float32
    flux_err: Float32
    band: Int64
    detected: Bool


MOST_TOGETHER: Final = 16_384
"""Points that are worked on together: more gain nothing, and a step over all of a large body keeps others waiting."""

ItemT = TypeVar("ItemT")


def _portions(items: Sequence[ItemT], sizes: Iterable[int]) -> Iterator[Sequence[ItemT]]:
    """Divide items, in order, into portions of about :data:`MOST_TOGETHER` points."""
    first = points = 0
    for place, size in enumerate(sizes):
        if points and points + size > MOST_TOGETHER:
            yield items[first:place]
            first, points = place, 0
        points += size
    if first < len(items):
        yield items[first:]


def light_curves(many: Sequence[Columns]) -> list[LightCurve | LightCurveError]:
    """Build records, each alone: a curve that breaks a rule has its error in its place."""
    sizes = (len(columns.mjd) if isinstance(columns.mjd, Sized) else 1 for columns in many)
    return [curve for portion in _portions(many, sizes) for curve in _light_curves(portion)]


def _light_curves(many: Sequence[Columns]) -> list[LightCurve | LightCurveError]:
    arrays_of_each = [_arrays(columns) for columns in many]
    regular = [(arrays, columns) for arrays, columns in zip(arrays_of_each, many, strict=True) if arrays is not None]
    if not regular:
        return [_alone(columns) for columns in many]
    regular_columns = [columns for _, columns in regular]
    records = iter(_records(_concatenate([arrays for arrays, _ in regular], regular_columns), regular_columns))
    return [
        (next(records) if arrays is not None else None) or _alone(columns)
        for arrays, columns in zip(arrays_of_each, many, strict=True)
    ]


_Numbers = NDArray[np.number[Any]]
_Arrays = tuple[_Numbers, _Numbers, _Numbers, NDArray[np.integer[Any]], Bool | None]


def _arrays(columns: Columns) -> _Arrays | None:
    """Columns as arrays of shape (n,), unchecked; None where they do not even have one common length above zero.

    Arrays of numbers stay as they are: together they are converted in one step.
    """
    mjd, flux, flux_err = _numbers(columns.mjd), _numbers(columns.flux), _numbers(columns.flux_err)
    try:
        band = _band(columns.band)
    except LightCurveError:
        return None
    detected = None if columns.detected is None else np.asarray(columns.detected, np.bool_)
    shape = mjd.shape
    regular = len(shape) == 1 and shape[0] > 0 and shape == flux.shape == flux_err.shape == band.shape
    return (mjd, flux, flux_err, band, detected) if regular and (detected is None or detected.shape == shape) else None


def _numbers(column: ArrayLike) -> _Numbers:
    plain = isinstance(column, np.ndarray) and column.dtype.kind in "fiu"
    return np.asarray(column) if plain else np.asarray(column, np.float64)


def _band(band: Sequence[str] | NDArray[Any]) -> NDArray[np.integer[Any]]:
    if isinstance(band, np.ndarray) and band.dtype.kind in "iu":
        return (
            band if band.dtype == np.uint8 else band.astype(np.int64)
        )  # their range is checked later, with all others
    return band_column(band)


def _concatenate(arrays: Sequence[_Arrays], many: Sequence[Columns]) -> _Points:
    mjd, flux, flux_err, band, _ = zip(*arrays, strict=True)
    lengths = np.array([len(days) for days in mjd])
    unit = np.repeat([NJY_PER_UNIT[columns.flux_unit] for columns in many], lengths)
    with np.errstate(over="ignore"):  # beyond float32 becomes inf, which the checks then see
        flux32, err32 = ((_float64(column) * unit).astype(np.float32) for column in (flux, flux_err))
        strong = np.abs(flux32) >= DETECTION_SNR * err32
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    for (*_, detections), start, end in zip(arrays, offsets, offsets[1:], strict=False):
        if detections is not None:
            strong[start:end] = detections
    return _Points(offsets, _float64(mjd), flux32, err32, np.concatenate(band).astype(np.int64, copy=False), strong)


def _float64(columns: Sequence[_Numbers]) -> Float64:
    return np.concatenate(columns).astype(np.float64, copy=False)


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
