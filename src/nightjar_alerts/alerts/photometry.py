"""Conversion of surveys' photometry to MJD (TAI, mid-exposure), difference flux in nJy, and one row per exposure.

The surveys' modules (:mod:`alerts.surveys`) use these functions in their conversions. A conversion takes the
columns of one list of observations and returns :class:`Photometry`, with NaN where a value is missing.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import MAX_ABS_MJD, SECONDS_PER_DAY, UNKNOWN

Bands = Mapping[Any, int]
"""Index into :data:`models.photometry.FILTERS` of each value that a survey uses for a filter."""

# Rows closer than this in one band are one exposure: the times of Rubin's detections and forced points are identical,
# and no survey starts two exposures of one field within ten seconds.
SAME_EXPOSURE_DAYS: Final = 10.0 / SECONDS_PER_DAY
# Rows with the same visit number may be further apart, but not days: test packets reuse visit 1, and ELAsTiCC 0.9 gives
# every row the same ccdVisitId (which is therefore not used).
SAME_VISIT_DAYS: Final = 0.01

Float64 = NDArray[np.float64]
PhotometryColumns = Mapping[str, Sequence[Any]]


class Flaw(IntEnum):
    """Reason why a row has no usable flux. In arrays use ``value``, because NumPy is slow for enum members."""

    UPPER_LIMIT = 1  # an exposure without a detection
    WITHDRAWN = 2
    FLAGGED = 3  # forced photometry with a warning
    BAD_SIGN = 4


@dataclass(frozen=True, slots=True)
class Photometry:
    """Observations in columns of shape (n,).

    Attributes
    ----------
    mjd : TAI days, mid-exposure, NaN if missing.
    flux, flux_err : nJy, NaN if missing.
    band : index into ``models.photometry.FILTERS``, -1 if unknown.
    detected : whether the row is a detection.
    visit : visit number, 0 or negative if there is none.
    flaw : reason why the flux is not usable, as :class:`Flaw`; 0 if there is none.
    """

    mjd: Float64
    flux: Float64
    flux_err: Float64
    band: NDArray[np.int64]
    detected: NDArray[np.bool_]
    visit: NDArray[np.int64]
    flaw: NDArray[np.int8]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.mjd)

    def at(self, index: NDArray[Any]) -> "Photometry":
        """Return the rows at ``index``."""
        return Photometry(*(getattr(self, name)[index] for name in _COLUMNS))


_COLUMNS: Final = tuple(column.name for column in fields(Photometry))

Convert = Callable[[PhotometryColumns, bool, Bands], Photometry]
"""Converts a list of observations to photometry; arguments: columns by role, whether they are detections, filters."""


EARLIEST_MJD: Final = 15_020.0
"""MJD of 1900. Earlier times are sentinels such as 0 and -999."""


def numbers(values: Sequence[Any]) -> Float64:
    """Return a column as floats, NaN where a value is missing or not a number."""
    try:
        return np.array(values, dtype=np.float64)  # None becomes NaN
    except (ValueError, TypeError, OverflowError):
        return np.array([_number(value) for value in values], dtype=np.float64)


def _number(value: Any) -> float:
    try:
        return np.nan if value is None else float(value)
    except (ValueError, TypeError, OverflowError):
        return np.nan


def whole_numbers(values: Sequence[Any]) -> NDArray[np.int64]:
    """Return a column as integers, 0 where a value is missing or not an integer."""
    if set(map(type, values)) <= _WHOLE:
        with suppress(OverflowError):  # integers of more than 64 bits
            return np.array([value or 0 for value in values], dtype=np.int64)
    return np.array([_whole(value) for value in values], dtype=np.int64)


_WHOLE: Final = frozenset({int, type(None)})


def _whole(value: Any) -> int:
    if isinstance(value, str):
        with suppress(ValueError):
            value = int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value if isinstance(value, int) and abs(value) < 2**63 else 0


def filters_of(values: Sequence[Any], bands: Bands) -> NDArray[np.int64]:
    """Return the filter indices of a column, :data:`UNKNOWN` if the survey has no such filter."""
    found = [bands.get(value, UNKNOWN) for value in values]
    if UNKNOWN in found:
        found = [_filter(value, bands) for value in values]
    return np.array(found, dtype=np.int64)


def _filter(value: Any, bands: Bands) -> int:
    if isinstance(value, str):
        name = value.strip()
        value = int(name) if len(name) < 4 and name.isdecimal() and name not in bands else name
    return bands.get(value, UNKNOWN)


def no_flaws(count: int) -> NDArray[np.int8]:
    """Return the column ``flaw`` of rows without flaws."""
    return np.zeros(count, dtype=np.int8)


def in_njy(columns: PhotometryColumns, detection: bool, bands: Bands, mjd: Float64) -> Photometry:
    """Return rows whose fluxes are already difference fluxes in nJy, at converted times."""
    return Photometry(
        mjd=mjd,
        flux=numbers(columns["flux"]),
        flux_err=numbers(columns["flux_err"]),
        band=filters_of(columns["band"], bands),
        detected=np.full(len(mjd), detection),
        visit=np.zeros(len(mjd), dtype=np.int64),
        flaw=no_flaws(len(mjd)),
    )


def scaled(rows: Photometry, njy_per_unit: float) -> Photometry:
    """Return the rows with fluxes and errors in nJy."""
    return replace(rows, flux=rows.flux * njy_per_unit, flux_err=rows.flux_err * njy_per_unit)


@np.errstate(over="ignore", invalid="ignore")
def usable(rows: Photometry) -> NDArray[np.bool_]:
    """Return which rows have a time, a band, and a flux and positive error that are finite in single precision."""
    flux, error = rows.flux.astype(np.float32), rows.flux_err.astype(np.float32)
    return has_band_and_time(rows) & np.isfinite(flux) & np.isfinite(error) & (error > 0)


def has_band_and_time(rows: Photometry) -> NDArray[np.bool_]:
    """Return which rows have a band and a time that can be an MJD."""
    return (rows.band >= 0) & is_mjd(rows.mjd)


def is_mjd(times: Float64) -> NDArray[np.bool_]:
    """Return which times can be an MJD of an exposure."""
    return (times >= EARLIEST_MJD) & (times < MAX_ABS_MJD)


def why_unusable(rows: Photometry, index: int) -> str:
    """Return the reason why a row is not usable: its flaw, or the first missing one of time, flux and error."""
    if rows.flaw[index]:
        return Flaw(rows.flaw[index]).name.lower()
    if not is_mjd(rows.mjd[index : index + 1])[0]:
        return "no_time"
    return "no_error" if np.isfinite(rows.flux[index]) else "no_flux"


def concatenate(parts: Sequence[Photometry]) -> Photometry:
    """Concatenate the rows of several lists."""
    return Photometry(*(np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS))


def merge(rows: Photometry) -> Photometry:
    """Return one row for each exposure and band, from rows in order of preference.

    The first usable row gives time and flux; the exposure is detected if any of its rows is a detection, even without
    a usable flux. Exposures without a usable row are left out.
    """
    rows = rows.at(has_band_and_time(rows))
    if len(rows) < 2:  # fast path: most new objects have one point
        return rows.at(usable(rows))
    groups = exposures(rows)
    has_usable = groups.chosen < len(rows)
    return replace(rows.at(groups.chosen[has_usable]), detected=groups.detected[has_usable])


class Exposures(NamedTuple):
    """Rows grouped to exposures, by band and time.

    Attributes
    ----------
    chosen : shape (e,), index of the first usable row of each exposure; the number of rows if there is none.
    detected : shape (e,), whether any of its rows is a detection.
    of_row : shape (n,), index of the exposure of each row.
    """

    chosen: NDArray[np.intp]
    detected: NDArray[np.bool_]
    of_row: NDArray[np.intp]


def exposures(rows: Photometry) -> Exposures:
    """Group rows to exposures by band and time, and choose a row for each.

    Parameters
    ----------
    rows : with a band and a time, in order of preference, at least one.
    """
    order = np.lexsort((rows.mjd, rows.band))
    firsts = _first_of_exposure(rows.at(order))
    candidates = np.where(usable(rows), np.arange(len(rows)), len(rows))[order]
    of_row = np.empty(len(rows), dtype=np.intp)
    of_row[order] = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(rows)))
    chosen = np.minimum.reduceat(candidates, firsts)
    return Exposures(chosen, np.logical_or.reduceat(rows.detected[order], firsts), of_row)


def _first_of_exposure(rows: Photometry) -> NDArray[np.intp]:
    """Return the indices at which a new exposure begins in rows sorted by band and time."""
    gap = np.diff(rows.mjd)
    same_visit = (np.diff(rows.visit) == 0) & (rows.visit[1:] > 0)
    same = (np.diff(rows.band) == 0) & ((gap < SAME_EXPOSURE_DAYS) | (same_visit & (gap < SAME_VISIT_DAYS)))
    return np.flatnonzero(np.concatenate(([True], ~same)))
