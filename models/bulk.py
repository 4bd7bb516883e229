"""Many light curves at once: built and featurised by steps over all their points together.

A step over sixty numbers costs numpy as much as one over six thousand, so a request of many light curves is gone
through once. Only a curve that this finds something about is looked at alone: by ``LightCurve.from_columns``, which
names its fault, and by ``featurise``, which cuts it. Tests hold the two ways to each other.
"""

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from models.lightcurve import (
    Bool,
    Columns,
    Float32,
    Float64,
    Int64,
    LightCurve,
    LightCurveError,
    Limits,
    Tokens,
    band_column,
    featurise,
)
from models.metadata import metadata_row
from models.photometry import BANDS, DETECTION_SNR, MAX_ABS_MJD, NJY_PER_UNIT, BandMap, FluxUnit, njy_to


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


def featurise_each(
    curves: Sequence[LightCurve], limits: Limits, flux_unit: FluxUnit, columns: Sequence[str], bands: BandMap
) -> list[Tokens | LightCurveError]:
    """Turn each record into model input as :func:`models.lightcurve.featurise` does; its error stands in its place."""
    portions = _portions(curves, map(len, curves))
    return [one for portion in portions for one in _featurise_each(portion, limits, flux_unit, columns, bands)]


def _featurise_each(
    curves: Sequence[LightCurve], limits: Limits, flux_unit: FluxUnit, columns: Sequence[str], bands: BandMap
) -> list[Tokens | LightCurveError]:
    length_K = np.fromiter(map(len, curves), np.int64, len(curves))
    if len(curves) < 2 or not length_K.all():
        return [_featurised(curve, limits, flux_unit, columns, bands) for curve in curves]
    windows, strange_K = _windowed(curves, length_K, limits, bands)
    origin_K = windows.mjd[windows.offsets[:-1]]
    time_N = (windows.mjd - np.repeat(origin_K, np.diff(windows.offsets))).astype(np.float32)
    flux_N, err_N = (njy_to(column, flux_unit).astype(np.float32) for column in (windows.flux, windows.flux_err))
    count_KB = _count(windows, len(bands.labels))
    doubtful_K = strange_K | (count_KB > limits.max_points_per_band).any(axis=1)
    missing = np.full(len(columns), np.nan, np.float32)
    ends, counts = windows.offsets.tolist(), count_KB.tolist()
    return [
        _featurised(curve, limits, flux_unit, columns, bands)
        if doubtful or curve.unknown_filters
        else Tokens(
            time_N[start:end],
            flux_N[start:end],
            err_N[start:end],
            windows.band[start:end],
            windows.detected[start:end],
            metadata_row(curve.metadata, columns) if curve.metadata else missing,
            end - start < len(curve),
            tuple(count),
            origin,
        )
        for curve, doubtful, start, end, count, origin in zip(
            curves, doubtful_K.tolist(), ends, ends[1:], counts, origin_K.tolist(), strict=False
        )
    ]


def _windowed(curves: Sequence[LightCurve], length_K: Int64, limits: Limits, bands: BandMap) -> tuple[_Points, Bool]:
    """Points of all light curves, each sorted as a network sees it, from the window before its trigger on.

    ``band`` holds the network's integers, negative where a filter stands for none of its bands; told beside them is
    which light curves have such points.
    """
    start_K, curve_N = np.cumsum(length_K) - length_K, np.repeat(np.arange(len(curves)), length_K)
    mjd_N, flux_N, err_N, detected_N = (
        np.concatenate([getattr(curve, name) for curve in curves]) for name in ("mjd", "flux", "flux_err", "detected")
    )
    band_N = _bands(curves, curve_N, bands)
    order_N = np.lexsort((err_N, flux_N, band_N, mjd_N, curve_N))
    if limits.pre_trigger_days is not None:
        trigger_K = np.minimum.reduceat(np.where(detected_N, mjd_N, np.inf), start_K)
        trigger_K[np.isinf(trigger_K)] = -np.inf  # nothing is detected, and nothing left out
        keep_N = (mjd_N >= trigger_K[curve_N] - limits.pre_trigger_days)[order_N]
        order_N, length_K = order_N[keep_N], np.add.reduceat(keep_N, start_K, dtype=np.int64)
    offsets = np.concatenate(([0], np.cumsum(length_K)))
    points = _Points(offsets, mjd_N[order_N], flux_N[order_N], err_N[order_N], band_N[order_N], detected_N[order_N])
    return points, np.minimum.reduceat(band_N, start_K) < 0


def _count(points: _Points, labels: int) -> Int64:
    """Count the points of each light curve in each band of a network, (curves, labels)."""
    curves = len(points.offsets) - 1
    curve_N = np.repeat(np.arange(curves), np.diff(points.offsets))
    inside_N = points.band >= 0
    cells = np.bincount((curve_N * labels + points.band)[inside_N], minlength=curves * labels)
    return cells.reshape(curves, labels)


def _bands(curves: Sequence[LightCurve], curve_N: Int64, bands: BandMap) -> Int64:
    """Integer of the network's band for each point."""
    filter_N = np.concatenate([curve.band for curve in curves])
    tables = {curve.survey: bands.table(curve.survey) for curve in curves}
    if len(tables) == 1:
        return np.asarray(bands.table(curves[0].survey)[filter_N])
    table_SF = np.array([*tables.values()])
    place = {survey: place for place, survey in enumerate(tables)}
    return np.asarray(table_SF[np.array([place[curve.survey] for curve in curves])[curve_N], filter_N])


def _featurised(
    curve: LightCurve, limits: Limits, flux_unit: FluxUnit, columns: Sequence[str], bands: BandMap
) -> Tokens | LightCurveError:
    try:
        return featurise(curve, limits, flux_unit, columns, bands)
    except LightCurveError as error:
        return error
