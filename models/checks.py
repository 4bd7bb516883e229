"""Warnings about a light curve whose values fit no survey: units, magnitudes as flux, total flux, times, constancy.

Notable:

- thresholds were chosen on half of the objects of some thirty public data sets and measured on the other half; the page
  ``docs/tables.md`` has the false alarms and the shares that are caught;
- the depth of a light curve is the AB magnitude of five times its median flux error. A factor of 1000 (7.5 mag) too
  faint fits no survey; the same factor too bright, and the factor of 36 between FLUXCAL and nJy, show only where the
  survey is named;
- difference flux is near zero before and after a transient, and below a detection limit unknown. Flux that stays far
  above zero for months is that of the whole source. Short light curves do not show this;
- the cost is some ten microseconds for a light curve that nothing is wrong with.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import NJY_ZERO_POINT, njy_of_magnitude

Floats = NDArray[np.floating[Any]]


class PhotometryWarning(NamedTuple):
    """A probable error in the values of a light curve: a code, and a sentence with the remedy."""

    reason: str
    detail: str


DEEPEST, SHALLOWEST = 26.5, 8.0
"""Depths (AB magnitude at 5 sigma) that no survey has: SNLS reaches 25.5, and the errors of the brightest stars of
Hipparcos correspond to 8.5."""
SURVEY_DEPTHS: Final[Mapping[str, tuple[float, float]]] = {
    "asas-sn": (9.0, 19.5),
    "atlas": (13.0, 21.5),
    "des": (20.0, 26.5),
    "elasticc": (20.3, 25.7),
    "gaia": (15.0, 23.0),
    "lsst": (20.3, 25.7),
    "ogle": (15.0, 23.0),
    "panstarrs": (16.0, 25.0),
    "ztf": (15.2, 22.5),
}
"""Shallowest and deepest light curves of a survey; bright sources have larger errors, and so a smaller depth."""

MAGNITUDES: Final = (5.0, 32.0)
MIN_POINTS: Final = 20
MIN_SPAN_DAYS: Final = 100.0
FRACTION_ABOVE_ZERO: Final = 0.9
MIN_DEGREES: Final = 10
"""Degrees of freedom from which on a light curve can be called constant."""
CLEARLY_VARIABLE: Final = 12.0
"""Range of the fluxes, in units of the largest error, above which chi squared need not be computed."""
_CCD_MJD: Final = (15_000.0, 100_000.0)
_DAYS_OF_MONTH: Final = 30.0


def photometry_warnings(
    mjd: NDArray[np.float64],
    flux: Floats,
    flux_err: Floats,
    survey: str = "",
    *,
    band: NDArray[np.integer[Any]] | None = None,
    check_total: bool = True,
    metadata: Mapping[str, float] | None = None,
) -> tuple[PhotometryWarning, ...]:
    """Return the warnings that apply to a light curve.

    Parameters
    ----------
    mjd : shape (n,), days. flux, flux_err: shape (n,), nJy; errors are positive.
    survey : survey of the photometry, empty when unknown.
    band : shape (n,), filter of each point; without it nothing is said about constant sources.
    check_total : whether to check that the flux is a difference.
    metadata : of the object.
    """
    found = []
    if (depth := _depth_warning(flux, flux_err, survey)) is not None:
        found.append(depth)
    if check_total and looks_like_total_flux(mjd, flux, flux_err):
        detail = (
            "the flux stays far above zero for months, like the total flux of a source: set flux_kind to total, or "
            "subtract the flux of the reference image"
        )
        found.append(PhotometryWarning("total_flux", detail))
    if not (_CCD_MJD[0] < float(mjd[0]) < _CCD_MJD[1]) and (time := _time_warning(mjd)) is not None:
        found.append(time)
    if band is not None and (constant := _constant_warning(flux, flux_err, band)) is not None:
        found.append(constant)
    if metadata and "parallax" in metadata and not metadata.get("parallax_err", 0.0) > 0:
        detail = "the parallax has no parallax_err above zero, and is not used"
        found.append(PhotometryWarning("parallax_without_error", detail))
    return tuple(found)


def _error_of_depth(depth: float) -> float:
    return float(njy_of_magnitude(depth)) / 5.0


_LIMITS: Final = {
    survey: (_error_of_depth(deepest), _error_of_depth(shallowest))
    for survey, (shallowest, deepest) in {"": (SHALLOWEST, DEEPEST), **SURVEY_DEPTHS}.items()
}
"""Smallest and largest plausible median error, nJy."""


def _depth_warning(flux: Floats, flux_err: Floats, survey: str) -> PhotometryWarning | None:
    """Return a warning where the median error fits no survey, or not the one that is named."""
    limits = _LIMITS.get(survey) or _LIMITS[""]
    half = len(flux_err) / 2
    is_deep = np.count_nonzero(flux_err < limits[0]) > half
    if not is_deep and not np.count_nonzero(flux_err > limits[1]) > half:
        return None
    depth = NJY_ZERO_POINT - 2.5 * float(np.log10(5.0 * np.median(flux_err)))
    if is_deep and bool(np.all((flux > MAGNITUDES[0]) & (flux < MAGNITUDES[1]))):
        detail = "the fluxes look like magnitudes: send them as mag and mag_err"
        return PhotometryWarning("magnitudes_as_flux", detail)
    which = f"not that of {survey}" if survey in SURVEY_DEPTHS else "that of no survey"
    detail = f"the median error is that of a 5 sigma depth of {depth:.1f} mag, {which}: check flux_unit"
    return PhotometryWarning("implausible_depth", detail)


def _constant_warning(flux: Floats, flux_err: Floats, band: NDArray[np.integer[Any]]) -> PhotometryWarning | None:
    """Return a warning where the flux of every filter agrees with a constant one.

    Chi squared about the weighted mean of each filter is at most two standard deviations above its expectation, which
    is the number of degrees of freedom, nu; its variance is 2 nu. Difference flux is near zero in all filters of a
    constant source, so a wide range needs no chi squared.
    """
    if float(flux.max() - flux.min()) > CLEARLY_VARIABLE * float(flux_err.max()):
        return None
    weight = np.square(flux_err, dtype=np.float64) ** -1
    total = np.bincount(band, weight)
    used = total > 0
    degrees = len(flux) - np.count_nonzero(used)
    if degrees < MIN_DEGREES:
        return None
    mean = np.bincount(band, weight * flux)[used] / total[used]
    chi2 = float(np.dot(weight, np.square(flux, dtype=np.float64)) - np.dot(total[used], np.square(mean)))
    if chi2 > degrees + 2.0 * (2.0 * degrees) ** 0.5:
        return None
    detail = f"the flux does not vary within its errors (chi squared {chi2:.0f} for {degrees} degrees of freedom)"
    return PhotometryWarning("constant_flux", detail)


def _time_warning(mjd: NDArray[np.float64]) -> PhotometryWarning | None:
    """Return a warning for times that are JD less 2450000, as OGLE and ASAS write them."""
    if mjd.min() < 2_000.0 or mjd.max() > _CCD_MJD[0]:
        return None
    detail = f"times near {mjd[0]:.1f} are no MJD of this century, but look like JD - 2450000: add 49999.5"
    return PhotometryWarning("times_look_like_jd", detail)


def looks_like_total_flux(mjd: NDArray[np.float64], flux: Floats, flux_err: Floats) -> bool:
    """Return True for flux that stays above zero as only that of a whole source does.

    At least :data:`MIN_POINTS` points over :data:`MIN_SPAN_DAYS` days, nine tenths of them 3 sigma above zero. And of
    95 % of the points the signal-to-noise ratio is at least 2 over 14 months, or at least 6 over three months where the
    faintest fluxes are no less than a quarter of the brightest.
    """
    if len(mjd) < MIN_POINTS or np.count_nonzero(flux > 3.0 * flux_err) < FRACTION_ABOVE_ZERO * len(flux):
        return False
    if float(mjd.max() - mjd.min()) < MIN_SPAN_DAYS:
        return False
    months = len(np.unique(np.floor(mjd / _DAYS_OF_MONTH)))
    ratio = float(np.percentile(flux / flux_err, 5))
    return bool((months >= 14 and ratio >= 2.0) or (months >= 3 and ratio >= 6.0 and _is_steady(flux)))


def _is_steady(flux: Floats) -> bool:
    faint, bright = np.percentile(flux, (5, 95))
    return bool(faint >= 0.25 * bright)


SIGNIFICANT_CHANGE: Final = 4.0
"""Standard errors by which a flux has to differ from the last extreme, besides 3 % of calibration scatter."""
SCATTER: Final = 0.03
MIN_REVERSALS: Final = 3
"""Reversals of a variable star in one filter: a transient rises and falls, and has a second maximum at most."""
TRANSIENT_RATIO: Final = 4.0
"""Ratio of the fluxes of a source that rises or falls as a transient does."""
OUTBURST_RATIO: Final = 10.0
STEADY_RATIO: Final = 1.5
"""Ratio of the fluxes, over :data:`STEADY_DAYS`, of a source that no transient is as constant as."""
STEADY_DAYS: Final = 80.0
STEADY_POINTS: Final = 10
NEAR_ZERO: Final = 0.2
"""Fraction of the fluxes within 3 sigma of zero or below it, of a source that is absent at times."""
CLEAR_PEAK: Final = 10.0


def kind_of_source(
    mjd: NDArray[np.float64], flux: Floats, flux_err: Floats, band: NDArray[Any]
) -> Literal["total", "difference", ""]:
    """Return whether a light curve is clearly that of a whole source, or clearly a difference flux; empty if neither.

    A flux that comes near zero, or that changes by a large factor in one rise and fall, is that of a transient. One
    that stays above zero and reverses again and again, or hardly changes for months, is that of a variable or constant
    star.

    Parameters
    ----------
    mjd, flux, flux_err : shape (n,), in any order. band : shape (n,), filter of each point.
    """
    above = np.count_nonzero(flux > 3.0 * flux_err)
    if above < FRACTION_ABOVE_ZERO * len(flux):
        is_clear = len(flux) - above >= NEAR_ZERO * len(flux) and np.sort(flux / flux_err)[-2:].min() > CLEAR_PEAK
        return "difference" if is_clear else ""
    reversals, ratio, most = 0, 1.0, 0
    for name in dict.fromkeys(band):
        places = np.flatnonzero(band == name)
        if len(places) < 3:
            continue
        places = places[np.argsort(mjd[places], kind="stable")]
        reversals = max(reversals, _reversals(flux[places].tolist(), flux_err[places].tolist()))
        ordered = np.sort(flux[places])
        end = int(len(places) >= 8)  # one bad point is no extreme
        faint, bright = float(ordered[end]), float(ordered[-1 - end])
        ratio = max(ratio, bright / max(faint, 1e-6 * bright) if bright > 0 else 1.0)
        most = max(most, len(places))
    if reversals >= MIN_REVERSALS and ratio < OUTBURST_RATIO:
        return "total"
    if reversals <= 1 and ratio >= TRANSIENT_RATIO:
        return "difference"
    is_steady = most >= STEADY_POINTS and ratio < STEADY_RATIO and float(np.ptp(mjd)) >= STEADY_DAYS
    return "total" if is_steady or looks_like_total_flux(mjd, flux, flux_err) else ""


def _reversals(flux: Sequence[float], flux_err: Sequence[float]) -> int:
    """Count the significant maxima and minima of a series between its ends."""
    count, direction = 0, 0
    low = high = (flux[0], flux_err[0])
    for value, error in zip(flux[1:], flux_err[1:], strict=True):
        fall, rise = high[0] - value, value - low[0]
        if direction >= 0 and fall > SIGNIFICANT_CHANGE * math.hypot(error, high[1], SCATTER * high[0]):
            count += direction > 0
            direction, low = -1, (value, error)
        elif direction <= 0 and rise > SIGNIFICANT_CHANGE * math.hypot(error, low[1], SCATTER * value):
            count += direction < 0
            direction, high = 1, (value, error)
        high = max(high, (value, error)) if direction >= 0 else high
        low = min(low, (value, error)) if direction <= 0 else low
    return count
