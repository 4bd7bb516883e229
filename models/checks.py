"""Warnings about implausible light curves: wrong units, magnitudes as flux, total flux, wrong times, constant flux.

Notable:

- thresholds were chosen on half of the objects of some thirty public data sets and measured on the other half;
  ``docs/tables.md`` has the rates of false alarms and of detection;
- the depth of a light curve is the AB magnitude of five times its median flux error. No survey has a depth that is too
  faint by a factor of 1000 (7.5 mag). The same factor too bright, and the factor of 36 between FLUXCAL and nJy, can be
  detected only if the survey is given;
- difference flux is near zero before and after a transient. Flux that stays far above zero for months is total flux;
  this cannot be detected in short light curves;
- the checks take about ten microseconds for a light curve without warnings.
"""

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import NJY_ZERO_POINT, njy_of_magnitude

Floats = NDArray[np.floating[Any]]


class PhotometryWarning(NamedTuple):
    """Probable error in the values of a light curve: a code, and a sentence with the remedy."""

    reason: str
    detail: str


DEEPEST, SHALLOWEST = 26.5, 8.0
"""Limits (AB magnitude at 5 sigma) of plausible depths: SNLS reaches 25.5, and the errors of the brightest stars of
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
"""Depths of the shallowest and deepest light curves of a survey; bright sources have larger errors, so less depth."""

OTHER_SURVEYS: Final = frozenset(
    {
        *(
            "sdss",
            "snls",
            "ps1",
            "yse",
            "swift",
            "uvot",
            "ptf",
            "iptf",
            "tess",
            "kepler",
            "k2",
            "hst",
            "jwst",
            "catalina",
        ),
        *("crts", "css", "asas", "macho", "eros", "linear", "nsvs", "hipparcos", "skymapper", "goto", "blackgem"),
        *("meerlicht", "decam", "hsc", "plasticc", "mallorn", "csp", "cfa", "kait", "aavso", "wise", "neowise", "wfst"),
        "rubin",
    }
)
"""Surveys whose depths are not known."""
MAGNITUDES: Final = (5.0, 32.0)
MIN_POINTS: Final = 20
MIN_SPAN_DAYS: Final = 100.0
FRACTION_ABOVE_ZERO: Final = 0.9
MIN_DEGREES: Final = 10
"""Minimum degrees of freedom for a light curve to be called constant."""
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
    band : shape (n,), filter of each point; without it there is no check for constant flux.
    check_total : whether to check for total flux.
    metadata : of the object.
    """
    found = []
    if survey and (detail := _unknown_survey(survey)):
        found.append(PhotometryWarning("unknown_survey", detail))
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


@lru_cache(maxsize=1024)
def _unknown_survey(name: str) -> str:
    """Return what to send instead of an unknown survey; empty for a known one."""
    if name in SURVEY_DEPTHS or name in OTHER_SURVEYS:
        return ""
    known = ", ".join(SURVEY_DEPTHS)
    if meant := _similar_survey(name):
        return f"the survey {name} is not known: send {meant} if that is meant (known: {known})"
    return f"the survey {name} is not known, so that it changes nothing (known: {known})"


def _similar_survey(name: str) -> str:
    transposed = [known for known in SURVEY_DEPTHS if sorted(known) == sorted(name)]
    return "".join(transposed[:1] or get_close_matches(name, SURVEY_DEPTHS, 1, 0.8))


def _error_of_depth(depth: float) -> float:
    return float(njy_of_magnitude(depth)) / 5.0


_LIMITS: Final = {
    survey: (_error_of_depth(deepest), _error_of_depth(shallowest))
    for survey, (shallowest, deepest) in {"": (SHALLOWEST, DEEPEST), **SURVEY_DEPTHS}.items()
}
"""Smallest and largest plausible median error, nJy."""


def _depth_warning(flux: Floats, flux_err: Floats, survey: str) -> PhotometryWarning | None:
    """Return a warning if the median error is implausible for the given survey, or for all surveys if none is given."""
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
    """Return a warning if the flux of every filter is consistent with a constant.

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
    """Return a warning for times that are JD - 2450000, as OGLE and ASAS write them."""
    if mjd.min() < 2_000.0 or mjd.max() > _CCD_MJD[0]:
        return None
    detail = f"times near {mjd[0]:.1f} are no MJD of this century, but look like JD - 2450000: add 49999.5"
    return PhotometryWarning("times_look_like_jd", detail)


def looks_like_total_flux(mjd: NDArray[np.float64], flux: Floats, flux_err: Floats) -> bool:
    """Return True for flux that stays so far above zero that it must be total flux.

    There must be at least :data:`MIN_POINTS` points over :data:`MIN_SPAN_DAYS` days, nine tenths of them 3 sigma above
    zero. In addition, 95 % of the points must have a signal-to-noise ratio of at least 2, with points in 14 months, or
    of at least 6, with points in three months and the faintest fluxes at least a quarter of the brightest.
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
"""Minimum change from the last extreme, in standard errors that include :data:`SCATTER`."""
SCATTER: Final = 0.03
"""Calibration scatter, as a fraction of the flux."""
MIN_REVERSALS: Final = 3
"""Minimum number of reversals of a variable star in one filter; a transient has fewer."""
TRANSIENT_RATIO: Final = 4.0
"""Minimum ratio of the brightest to the faintest flux of a transient that rises or falls."""
OUTBURST_RATIO: Final = 10.0
STEADY_RATIO: Final = 1.5
"""Maximum ratio of the brightest to the faintest flux over :data:`STEADY_DAYS` of a source that is no transient."""
STEADY_DAYS: Final = 80.0
STEADY_POINTS: Final = 10
NEAR_ZERO: Final = 0.2
"""Minimum fraction of the fluxes of a difference light curve that are less than 3 sigma above zero."""
CLEAR_PEAK: Final = 10.0


@np.errstate(over="ignore")  # of fluxes that are not plausible
def kind_of_source(
    mjd: NDArray[np.float64], flux: Floats, flux_err: Floats, band: NDArray[Any]
) -> Literal["total", "difference", ""]:
    """Return whether a light curve is clearly total flux or clearly difference flux; empty if neither.

    Flux that comes near zero, or that changes by a large factor in one rise and fall, is the difference flux of a
    transient. Flux that stays above zero and repeatedly reverses, or hardly changes for months, is the total flux of a
    variable or constant star.

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
        end = int(len(places) >= 8)  # ignore one outlier
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
