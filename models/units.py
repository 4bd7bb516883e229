"""Units of the canonical light curve and what converts to them: the one place of every zero point and time scale.

Flux is in nJy: AB zero is 3631 Jy = 10**(0.4 * 31.4) nJy (Oke & Gunn 1983, ApJ 266, 713), to the 0.01 per cent by
which the two round numbers disagree. FLUXCAL is the unit of SNANA, of zero point 27.5. Time is MJD (TAI) in days.
"""

import math
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

NJY_ZERO_POINT: Final = 31.4
FLUXCAL_ZERO_POINT: Final = 27.5

FluxUnit = Literal["nJy", "uJy", "FLUXCAL"]
"""Units that requests and networks may use."""
SourceUnit = Literal["nJy", "uJy", "mJy", "Jy", "FLUXCAL"]
"""Units that an archive may use."""

NJY_PER_UNIT: Final[dict[SourceUnit, float]] = {
    "nJy": 1.0,
    "uJy": 1e3,
    "mJy": 1e6,
    "Jy": 1e9,
    "FLUXCAL": 10 ** (0.4 * (NJY_ZERO_POINT - FLUXCAL_ZERO_POINT)),
}

SECONDS_PER_DAY: Final = 86_400.0
JD_MINUS_MJD: Final = 2_400_000.5
MAX_ABS_MJD: Final = 200_000.0  # a Julian date is near 2,460,000: catching it here beats classifying nonsense
# TAI - UTC in seconds from an MJD (UTC) on; IERS Bulletin C. Nothing has changed since 2017.
LEAP_SECONDS: Final = ((-math.inf, 34.0), (56109.0, 35.0), (57204.0, 36.0), (57754.0, 37.0))

DETECTION_SNR: Final = 5.0
"""Flux over error from which on a point counts as detected where the survey does not say."""

Float64 = NDArray[np.float64]


def flux_to_njy(flux: ArrayLike, unit: SourceUnit) -> Float64:
    """Flux in nJy from a flux in ``unit`` (linear, so it serves errors as well)."""
    return np.asarray(flux, dtype=np.float64) * NJY_PER_UNIT[unit]


def njy_to(flux: ArrayLike, unit: SourceUnit) -> Float64:
    """Flux in ``unit`` from a flux in nJy."""
    return np.asarray(flux, dtype=np.float64) / NJY_PER_UNIT[unit]


@np.errstate(over="ignore", invalid="ignore")  # absurd magnitudes become infinite or NaN, and are dropped as unusable
def njy_of_magnitude(magnitude: ArrayLike) -> Float64:
    """Flux in nJy of an AB magnitude: ``10**(-0.4 (m - 31.4))``; also nJy per unit of a flux of that zero point."""
    return np.asarray(np.power(10.0, -0.4 * (np.asarray(magnitude, dtype=np.float64) - NJY_ZERO_POINT)))


@np.errstate(over="ignore", invalid="ignore")
def njy_with_error(magnitude: ArrayLike, error: ArrayLike) -> tuple[Float64, Float64]:
    """Flux and its error in nJy of an AB magnitude and its error: ``dF = 0.4 ln(10) F dm``."""
    flux = njy_of_magnitude(magnitude)
    return flux, np.asarray(flux * np.asarray(error, dtype=np.float64) * (0.4 * math.log(10.0)))


def magnitude_of(flux_njy: float) -> float:
    """AB magnitude of a flux in nJy; infinite at 0 and NaN below."""
    if flux_njy > 0:
        return NJY_ZERO_POINT - 2.5 * math.log10(flux_njy)
    return math.inf if flux_njy == 0 else math.nan


def tai_minus_utc(mjd_utc: ArrayLike) -> Float64:
    """TAI - UTC in seconds at MJD (UTC); constant (34 s) before July 2012."""
    starts, seconds = np.array(LEAP_SECONDS).T
    return np.asarray(seconds[np.searchsorted(starts, mjd_utc, side="right") - 1])


def mjd_tai_of_jd(jd_utc: ArrayLike, middle_seconds: ArrayLike = 0.0) -> Float64:
    """MJD (TAI) of a Julian date (UTC), ``middle_seconds`` later: an exposure's middle from its start."""
    mjd = np.asarray(jd_utc, dtype=np.float64) - JD_MINUS_MJD
    return np.asarray(mjd + (tai_minus_utc(mjd) + np.asarray(middle_seconds)) / SECONDS_PER_DAY)
