"""Survey conventions to one: MJD (TAI, mid-exposure), difference flux in nJy, and one row for each exposure.

Each conversion takes the columns of one list of observations and returns :class:`Photometry` with NaN where a value is
missing. ZTF conventions are those of its alert documentation: ``jd`` is UTC at the *start* of the exposure,
``magpsf`` an AB magnitude of the absolute difference whose sign is ``isdiffpos``, ``forcediffimflux`` counts (DN) with
the zero point ``magzpsci``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.lightcurve import BANDS, MAX_ABS_MJD

SECONDS_PER_DAY: Final = 86400.0
JD_MINUS_MJD: Final = 2400000.5
NJY_ZERO_POINT: Final = 31.4
# TAI - UTC in seconds from an MJD (UTC) on; IERS Bulletin C. Nothing has changed since 2017, before ZTF's first alert.
LEAP_SECONDS: Final = ((-math.inf, 34.0), (56109.0, 35.0), (57204.0, 36.0), (57754.0, 37.0))
ZTF_EXPOSURE_SECONDS: Final = 30.0
ZTF_MISSING_FLUX: Final = -99999.0
ZTF_NO_WARNING: Final = "0"
ZTF_SIGN: Final = {"t": 1.0, "1": 1.0, "f": -1.0, "0": -1.0}

# LSST and ELAsTiCC name bands, ZTF numbers them. ZTF g, r, i differ slightly from LSST g, r, i; they share the index.
BAND_INDEX: Final[Mapping[Any, int]] = {
    **{name: index for index, name in enumerate(BANDS)},
    "y": BANDS.index("Y"),
    **{fid: BANDS.index(name) for fid, name in ((1, "g"), (2, "r"), (3, "i"))},
}

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
    band : index into ``models.lightcurve.BANDS``, -1 when unknown.
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


Convert = Callable[[Columns, bool], Photometry]


def rubin(columns: Columns, detection: bool) -> Photometry:
    """LSST and ELAsTiCC: MJD TAI mid-visit and nJy already; withdrawn rows lose their flux and their detection."""
    mjd = _numbers(columns["time"])
    standing = np.ones(len(mjd), dtype=np.bool_)
    if "withdrawn" in columns:
        standing = np.isnan(_numbers(columns["withdrawn"]))
    return Photometry(
        mjd=mjd,
        flux=np.where(standing, _numbers(columns["flux"]), np.nan),
        flux_err=_numbers(columns["flux_err"]),
        band=_bands(columns["band"]),
        detected=standing & detection,
        visit=np.array([visit or 0 for visit in columns.get("visit", [0] * len(mjd))], dtype=np.int64),
    )


@np.errstate(over="ignore", invalid="ignore")  # absurd values become infinite or NaN, and are dropped as unusable
def ztf_magnitudes(columns: Columns, detection: bool) -> Photometry:
    """ZTF candidates; rows without a magnitude are upper limits, which the canonical record does not hold."""
    magnitude = _numbers(columns["flux"])
    sign = np.array([ZTF_SIGN.get(flag, np.nan) for flag in columns["sign"]])
    flux = sign * _njy(magnitude)
    error = np.abs(flux) * _numbers(columns["flux_err"]) * (0.4 * math.log(10.0))
    return _ztf(columns, flux, error, detection & np.isfinite(flux))


@np.errstate(over="ignore", invalid="ignore")
def ztf_counts(columns: Columns, detection: bool) -> Photometry:
    """ZTF forced photometry; rows with a processing warning, no zero point, or the survey's two fillers are dropped."""
    counts = _numbers(columns["flux"])
    clean = np.array([status == ZTF_NO_WARNING for status in columns["status"]], dtype=np.bool_)
    clean &= (counts != ZTF_MISSING_FLUX) & (counts != 0.0)
    scale = _njy(_numbers(columns["zero_point"]))
    flux = np.where(clean, counts * scale, np.nan)
    return _ztf(columns, flux, _numbers(columns["flux_err"]) * scale, np.full(len(flux), detection))


def _ztf(columns: Columns, flux: Float64, error: Float64, detected: NDArray[np.bool_]) -> Photometry:
    start = _numbers(columns["time"]) - JD_MINUS_MJD
    exposure = np.full(len(flux), np.nan)
    if "exposure" in columns:
        exposure = _numbers(columns["exposure"])
    exposure = np.where(exposure > 0, exposure, ZTF_EXPOSURE_SECONDS)
    mjd = start + (tai_minus_utc(start) + exposure / 2) / SECONDS_PER_DAY
    return Photometry(mjd, flux, error, _bands(columns["band"]), detected, np.zeros(len(flux), dtype=np.int64))


def tai_minus_utc(mjd_utc: Float64) -> Float64:
    """TAI - UTC in seconds at MJD (UTC); constant (34 s) before July 2012, which no alert here predates."""
    starts, seconds = np.array(LEAP_SECONDS).T
    return np.asarray(seconds[np.searchsorted(starts, mjd_utc, side="right") - 1])


@np.errstate(over="ignore", invalid="ignore")
def usable(rows: Photometry) -> NDArray[np.bool_]:
    """Rows with a time, a band, and a flux and positive error that are finite in single precision."""
    flux, error = rows.flux.astype(np.float32), rows.flux_err.astype(np.float32)
    return placed(rows) & np.isfinite(flux) & np.isfinite(error) & (error > 0)


def placed(rows: Photometry) -> NDArray[np.bool_]:
    """Rows with a band and a time that can be an MJD."""
    return (rows.band >= 0) & (np.abs(rows.mjd) < MAX_ABS_MJD)


def merge(parts: Sequence[Photometry]) -> Photometry:
    """One row for each exposure and band, from lists of observations in order of preference.

    The first usable row gives time and flux; the exposure counts as detected when any of its rows is a detection, also
    one without a usable flux. Exposures without a usable row are left out.
    """
    rows = Photometry(
        *(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(Photometry))
    )
    rows = rows.at(placed(rows))
    if len(rows) < 2:  # most new objects have one point, and what follows takes as long for one as for a hundred
        return rows.at(usable(rows))
    order = np.lexsort((rows.mjd, rows.band))
    firsts = _first_of_exposure(rows.at(order))
    candidates = np.where(usable(rows), np.arange(len(rows)), len(rows))[order]
    chosen = np.minimum.reduceat(candidates, firsts)
    detected = np.logical_or.reduceat(rows.detected[order], firsts)
    kept = chosen < len(rows)
    best = rows.at(chosen[kept])
    return Photometry(best.mjd, best.flux, best.flux_err, best.band, detected[kept], best.visit)


def _first_of_exposure(rows: Photometry) -> NDArray[np.intp]:
    """Positions at which a new exposure begins, over rows sorted by band and time."""
    gap = np.diff(rows.mjd)
    same_visit = (np.diff(rows.visit) == 0) & (rows.visit[1:] != 0)
    same = (np.diff(rows.band) == 0) & ((gap < SAME_EXPOSURE_DAYS) | (same_visit & (gap < SAME_VISIT_DAYS)))
    return np.flatnonzero(np.concatenate(([True], ~same)))


def _numbers(values: Sequence[Any]) -> Float64:
    return np.array(values, dtype=np.float64)  # None becomes NaN


def _bands(values: Sequence[Any]) -> NDArray[np.int64]:
    return np.array([BAND_INDEX.get(value, -1) for value in values], dtype=np.int64)


def _njy(magnitude: Float64) -> Float64:
    return np.asarray(np.power(10.0, -0.4 * (magnitude - NJY_ZERO_POINT)))
