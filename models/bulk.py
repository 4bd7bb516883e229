"""Vectorised construction and validation of many light curves.

A NumPy operation on sixty numbers costs as much as one on six thousand, so the light curves of a request are validated
together. Only a light curve that may be invalid is built alone, by ``LightCurve.from_columns``, which locates the
error. Tests require both ways to give the same results.
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
    """Concatenated points of several light curves; curve k is ``[offsets[k]:offsets[k + 1]]`` of every column."""

    offsets: Int64
    mjd: Float64
    flux: Float32
    flux_err: Float32
    band: Int64
    detected: Bool


MAX_STEP_POINTS: Final = 16_384
"""Maximum number of points in one step; larger steps are no faster and would delay other requests."""

ItemT = TypeVar("ItemT")


def _portions(items: Sequence[ItemT], sizes: Iterable[int]) -> Iterator[Sequence[ItemT]]:
    """Divide items, in order, into portions of about :data:`MAX_STEP_POINTS` points each."""
    first = points = 0
    for index, size in enumerate(sizes):
        if points and points + size > MAX_STEP_POINTS:
            yield items[first:index]
            first, points = index, 0
        points += size
    if first < len(items):
        yield items[first:]


def light_curves(many: Sequence[Columns]) -> list[LightCurve | LightCurveError]:
    """Build each light curve; the result for an invalid one is its error."""
    sizes = (len(columns.mjd) if isinstance(columns.mjd, Sized) else 1 for columns in many)
    return [curve for portion in _portions(many, sizes) for curve in _light_curves(portion)]


def _light_curves(many: Sequence[Columns]) -> list[LightCurve | LightCurveError]:
    arrays_of_each = [_arrays(columns) for columns in many]
    regular = [(arrays, columns) for arrays, columns in zip(arrays_of_each, many, strict=True) if arrays is not None]
    if not regular:
        return [_build_alone(columns) for columns in many]
    regular_columns = [columns for _, columns in regular]
    records = iter(_records(_concatenate([arrays for arrays, _ in regular], regular_columns), regular_columns))
    return [
        (next(records) if arrays is not None else None) or _build_alone(columns)
        for arrays, columns in zip(arrays_of_each, many, strict=True)
    ]


_Numbers = NDArray[np.number[Any]]
_Arrays = tuple[_Numbers, _Numbers, _Numbers, NDArray[np.integer[Any]], Bool | None]


def _arrays(columns: Columns) -> _Arrays | None:
    """Return columns as unvalidated arrays of shape (n,); None if their lengths differ or are zero.

    Numeric arrays are not converted here; :func:`_concatenate` converts all of them at once.
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
        return band if band.dtype == np.uint8 else band.astype(np.int64)  # the range is checked in _valid
    return band_column(band)


def _concatenate(arrays: Sequence[_Arrays], many: Sequence[Columns]) -> _Points:
    mjd, flux, flux_err, band, _ = zip(*arrays, strict=True)
    lengths = np.array([len(days) for days in mjd])
    unit = np.repeat([NJY_PER_UNIT[columns.flux_unit] for columns in many], lengths)
    with np.errstate(over="ignore"):  # values beyond float32 become inf, which _valid rejects
        flux32, err32 = ((_float64(column) * unit).astype(np.float32) for column in (flux, flux_err))
        strong = np.abs(flux32) >= DETECTION_SNR * err32
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    for (*_, detections), start, end in zip(arrays, offsets, offsets[1:], strict=False):
        if detections is not None:
            strong[start:end] = detections
    return _Points(offsets, _float64(mjd), flux32, err32, np.concatenate(band).astype(np.int64, copy=False), strong)


def _float64(columns: Sequence[_Numbers]) -> Float64:
    return np.concatenate(columns).astype(np.float64, copy=False)


def _valid(points: _Points) -> list[bool]:
    """Return whether each light curve is certainly valid; False for unsorted ones, which may be valid, too."""
    holds = np.isfinite(points.flux) & np.isfinite(points.flux_err) & (points.flux_err > 0)
    holds &= np.abs(points.mjd) < MAX_ABS_MJD  # which NaN is not
    holds &= (points.band >= 0) & (points.band < len(BANDS))
    rising = np.empty_like(holds)
    np.greater(points.mjd[1:], points.mjd[:-1], out=rising[1:])
    rising[points.offsets[:-1]] = True
    valid: list[bool] = np.logical_and.reduceat(holds & rising, points.offsets[:-1]).tolist()
    return valid


def _records(points: _Points, many: Sequence[Columns]) -> list[LightCurve | None]:
    """Return slices of the points as light curves; None for a light curve that must be built alone."""
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
            ra=columns.ra,
            dec=columns.dec,
            reference_flux=columns.reference_flux,
        )
        if valid
        else None
        for columns, valid, start, end in zip(many, _valid(points), ends, ends[1:], strict=False)
    ]


def _build_alone(columns: Columns) -> LightCurve | LightCurveError:
    try:
        return columns.light_curve()
    except LightCurveError as error:
        return error
