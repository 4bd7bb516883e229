"""From each survey's conventions to ours: MJD (TAI, mid-exposure), difference flux in nJy, one row for each exposure.

Each conversion takes the columns of one list of observations and returns :class:`Photometry` with NaN where a value is
missing. ZTF conventions are those of its alert documentation: ``jd`` is UTC at the *start* of the exposure,
``magpsf`` an AB magnitude of the absolute difference whose sign is ``isdiffpos``, ``forcediffimflux`` counts (DN) with
the zero point ``magzpsci``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.photometry import (
    BANDS,
    MAX_ABS_MJD,
    SECONDS_PER_DAY,
    UNKNOWN,
    mjd_tai_of_jd,
    njy_of_magnitude,
    njy_with_error,
)

ZTF_EXPOSURE_SECONDS: Final = 30.0
ZTF_MISSING_FLUX: Final = -99999.0
ZTF_NO_WARNING: Final = "0"
ZTF_SIGN: Final = {"t": 1.0, "1": 1.0, "f": -1.0, "0": -1.0}

Bands = Mapping[Any, int]
"""Place in :data:`models.photometry.FILTERS` of each value that a survey has for a filter."""
LSST_FILTERS: Final[Bands] = {**{name: place for place, name in enumerate(BANDS)}, "y": BANDS.index("Y")}
# ZTF g, r, i differ slightly from LSST g, r, i; they share the name.
ZTF_FILTERS: Final[Bands] = {1: BANDS.index("g"), 2: BANDS.index("r"), 3: BANDS.index("i")}

# Rows closer than this in one band are one exposure: real Rubin pairs of detection and forced point agree to the bit,
# and no survey here starts two exposures of one field within ten seconds.
SAME_EXPOSURE_DAYS: Final = 10.0 / SECONDS_PER_DAY
# Rows with one visit number may be further apart, but not days: test packets reuse visit 1, and ELAsTiCC 0.9 gives
# every row the same ccdVisitId (which is why that field is not read at all).
SAME_VISIT_DAYS: Final = 0.01

Float64 = NDArray[np.float64]
Columns = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Photometry:
    """Observations in columns of shape (n,).

    Attributes
    ----------
    mjd : TAI days, mid-exposure, NaN when missing.
    flux, flux_err : nJy, NaN when missing.
    band : index into ``models.photometry.FILTERS``, -1 when unknown.
    detected : whether the row is a detection.
    visit : visit number, 0 when there is none.
    """

    mjd: Float64
    flux: Float64
    flux_err: Float64
    band: NDArray[np.int64]
    detected: NDArray[np.bool_]
    visit: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.mjd)

    def at(self, index: NDArray[Any]) -> "Photometry":
        """Rows at ``index``."""
        return Photometry(*(getattr(self, column.name)[index] for column in fields(self)))


Convert = Callable[[Columns, bool, Bands], Photometry]
"""Turns a list of observations into photometry: columns by role, whether they are detections, the survey's filters."""


def rubin(columns: Columns, detection: bool, bands: Bands = LSST_FILTERS) -> Photometry:
    """Convert LSST and ELAsTiCC: MJD TAI mid-visit, nJy; withdrawn rows lose their flux and their detection."""
    mjd = _numbers(columns["time"])
    standing = np.ones(len(mjd), dtype=np.bool_)
    if "withdrawn" in columns:
        standing = np.isnan(_numbers(columns["withdrawn"]))
    return Photometry(
        mjd=mjd,
        flux=np.where(standing, _numbers(columns["flux"]), np.nan),
        flux_err=_numbers(columns["flux_err"]),
        band=_bands(columns["band"], bands),
        detected=standing & detection,
        visit=np.array([visit or 0 for visit in columns.get("visit", [0] * len(mjd))], dtype=np.int64),
    )


@np.errstate(over="ignore", invalid="ignore")  # absurd values become infinite or NaN, and are dropped as unusable
def ztf_magnitudes(columns: Columns, detection: bool, bands: Bands = ZTF_FILTERS) -> Photometry:
    """Convert ZTF candidates; rows without a magnitude are upper limits, which the canonical record does not hold."""
    sign = np.array([ZTF_SIGN.get(flag, np.nan) for flag in columns["sign"]])
    flux, error = njy_with_error(_numbers(columns["flux"]), _numbers(columns["flux_err"]))
    flux *= sign
    return _ztf(columns, flux, error, detection & np.isfinite(flux), bands)


@np.errstate(over="ignore", invalid="ignore")
def ztf_counts(columns: Columns, detection: bool, bands: Bands = ZTF_FILTERS) -> Photometry:
    """Convert ZTF forced photometry; rows with a warning, no zero point, or the survey's two fillers are dropped."""
    counts = _numbers(columns["flux"])
    clean = np.array([status == ZTF_NO_WARNING for status in columns["status"]], dtype=np.bool_)
    clean &= (counts != ZTF_MISSING_FLUX) & (counts != 0.0)
    scale = njy_of_magnitude(_numbers(columns["zero_point"]))
    flux = np.where(clean, counts * scale, np.nan)
    return _ztf(columns, flux, _numbers(columns["flux_err"]) * scale, np.full(len(flux), detection), bands)


def boom_lsst(columns: Columns, detection: bool, bands: Bands = LSST_FILTERS) -> Photometry:
    """Convert LSST photometry of BOOM: Julian dates (UTC) at mid-exposure, nJy."""
    return _plain(columns, detection, bands, mjd_tai_of_jd(_numbers(columns["time"])))


def boom_ztf(columns: Columns, detection: bool, bands: Bands) -> Photometry:
    """Convert ZTF photometry of BOOM: Julian dates (UTC) at the start of the exposure, signed fluxes."""
    rows = _plain(columns, detection, bands, _ztf_middle(columns))
    return replace(rows, detected=rows.detected & np.isfinite(rows.flux))


def boom_ztf_unit(lists: Sequence[Columns]) -> float:
    """Return nJy per unit of BOOM's ZTF fluxes, worked out from the magnitudes beside them.

    Its streams call the unit nJy, but hold fluxes in uJy (zero point 23.9) times 1e9, hence units of 1e-15 Jy. Without
    a magnitude the fluxes are taken for nJy.
    """
    ratios = []
    for columns in lists:
        if "magnitude" in columns:
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                ratio = np.abs(_numbers(columns["flux"])) / njy_of_magnitude(_numbers(columns["magnitude"]))
            ratios += ratio[np.isfinite(ratio) & (ratio > 0)].tolist()
    return 1e-6 if ratios and float(np.median(ratios)) > 1e3 else 1.0


def _plain(columns: Columns, detection: bool, bands: Bands, mjd: Float64) -> Photometry:
    """Fluxes as they stand."""
    return Photometry(
        mjd=mjd,
        flux=_numbers(columns["flux"]),
        flux_err=_numbers(columns["flux_err"]),
        band=_bands(columns["band"], bands),
        detected=np.full(len(mjd), detection),
        visit=np.zeros(len(mjd), dtype=np.int64),
    )


def _ztf(columns: Columns, flux: Float64, error: Float64, detected: NDArray[np.bool_], bands: Bands) -> Photometry:
    band, visit = _bands(columns["band"], bands), np.zeros(len(flux), dtype=np.int64)
    return Photometry(_ztf_middle(columns), flux, error, band, detected, visit)


def _ztf_middle(columns: Columns) -> Float64:
    """Middle of the exposure, MJD (TAI), from its start, JD (UTC)."""
    start = _numbers(columns["time"])
    exposure = np.full(len(start), np.nan)
    if "exposure" in columns:
        exposure = _numbers(columns["exposure"])
    return mjd_tai_of_jd(start, np.where(exposure > 0, exposure, ZTF_EXPOSURE_SECONDS) / 2)


def scaled(rows: Photometry, njy_per_unit: float) -> Photometry:
    """Return the rows with fluxes and errors in nJy."""
    return replace(rows, flux=rows.flux * njy_per_unit, flux_err=rows.flux_err * njy_per_unit)


@np.errstate(over="ignore", invalid="ignore")
def usable(rows: Photometry) -> NDArray[np.bool_]:
    """Rows with a time, a band, and a flux and positive error that are finite in single precision."""
    flux, error = rows.flux.astype(np.float32), rows.flux_err.astype(np.float32)
    return placed(rows) & np.isfinite(flux) & np.isfinite(error) & (error > 0)


def placed(rows: Photometry) -> NDArray[np.bool_]:
    """Rows with a band and a time that can be an MJD."""
    return (rows.band >= 0) & (np.abs(rows.mjd) < MAX_ABS_MJD)


def concatenate(parts: Sequence[Photometry]) -> Photometry:
    """Rows of several lists, one after the other."""
    return Photometry(
        *(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(Photometry))
    )


def merge(parts: Sequence[Photometry]) -> Photometry:
    """One row for each exposure and band, from lists of observations in order of preference.

    The first usable row gives time and flux; the exposure counts as detected when any of its rows is a detection, also
    one without a usable flux. Exposures without a usable row are left out.
    """
    rows = concatenate(parts)
    rows = rows.at(placed(rows))
    if len(rows) < 2:  # most new objects have one point, and what follows takes as long for one as for a hundred
        return rows.at(usable(rows))
    groups = exposures(rows)
    has_usable = groups.chosen < len(rows)
    return replace(rows.at(groups.chosen[has_usable]), detected=groups.detected[has_usable])


class Exposures(NamedTuple):
    """Rows of one band that belong together, by band and time.

    Attributes
    ----------
    chosen : shape (e,), the first usable row of each, the number of rows where there is none.
    detected : shape (e,), whether any of its rows is a detection.
    of_row : shape (n,), the exposure of each row.
    """

    chosen: NDArray[np.intp]
    detected: NDArray[np.bool_]
    of_row: NDArray[np.intp]


def exposures(rows: Photometry) -> Exposures:
    """Find the rows of each exposure in a band, and which of them stands for it.

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
    """Positions at which a new exposure begins, over rows sorted by band and time."""
    gap = np.diff(rows.mjd)
    same_visit = (np.diff(rows.visit) == 0) & (rows.visit[1:] != 0)
    same = (np.diff(rows.band) == 0) & ((gap < SAME_EXPOSURE_DAYS) | (same_visit & (gap < SAME_VISIT_DAYS)))
    return np.flatnonzero(np.concatenate(([True], ~same)))


def _numbers(values: Sequence[Any]) -> Float64:
    return np.array(values, dtype=np.float64)  # None becomes NaN


def _bands(values: Sequence[Any], bands: Bands) -> NDArray[np.int64]:
    return np.array([bands.get(value, UNKNOWN) for value in values], dtype=np.int64)
