"""Patterns: real sequences of visits of surveys, with bands, errors and limits.

Notable:

- a pattern has the visits of one real object, without its class. A survey that publishes detections only has no visits
  before and after: its sequence is tiled in time, so that long events are not truncated;
- errors grow with flux. For each survey and band the running median of ln(error) against ln(flux) is kept, and used as
  a ratio: an error at another flux is the pattern's own error times the ratio of the survey's medians;
- published limits stay limits only at visits that were limits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.training.sky.readers import MEASURE_ONLY
from nightjar_alerts.training.sky.record import SurveySample

Float = NDArray[np.float64]

FAMILIES: Final = {
    "cfa3": "lowz", "cfa124": "lowz", "csp_dr3": "lowz", "kait": "lowz", "loss": "lowz",
    "ogle_dn": "ogle", "ogle_ews2025": "ogle", "ogle2_ulens": "ogle", "crts_mantra": "catalina", "css": "catalina",
}  # fmt: skip
"""Sources that are one survey as far as looking is concerned."""
ONE_BAND: Final = frozenset({"ogle", "catalina", "gaia_alerts", "asas_dsct"})
NO_PATTERNS: Final = frozenset({"osc", "at2017gfo", "slsne", "crater2_decam", "asas_dsct"}) | MEASURE_ONLY
"""Compilations of many telescopes, three nights of one field, and stars brighter than any transient."""
EXTENT: Final = 400.0
"""Days to either side of a pattern's centre that its tiles cover."""
TILED_SHARE: Final = 0.10
"""A survey of which a smaller share of the measured points lies below three sigma publishes detections alone."""


def family(source: str) -> str:
    """Return the survey a source belongs to."""
    return FAMILIES.get(source, source)


@dataclass(frozen=True, slots=True, eq=False)
class Noise:
    """ln(error) against ln(flux) of one survey and band, both rising."""

    log_flux_K: Float
    log_error_K: Float

    def ratio(self, flux: Float, than: Float) -> Float:
        """Error at one total flux over that at another (nJy)."""
        floor = np.exp(self.log_flux_K[0])
        return np.asarray(np.exp(self._at(np.maximum(flux, floor)) - self._at(np.maximum(than, floor))))

    def _at(self, flux: Float) -> Float:
        """Linear between the knots; beyond the last errors grow as the flux does."""
        log_flux = np.log(flux)
        beyond = np.maximum(0.0, log_flux - self.log_flux_K[-1])
        return np.asarray(np.interp(log_flux, self.log_flux_K, self.log_error_K) + beyond)


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """The visits of one object; all P points sorted by time.

    ``flux`` is the flux of each error: total flux where the survey has it (``tells_total``).
    """

    survey: str
    row: int
    mjd: Float
    band: NDArray[np.int8]
    log_wavelength: Float
    foreign: NDArray[np.bool_]
    flux: Float
    error: Float
    limit: NDArray[np.bool_]
    centre: float
    peak: float
    only_detections: bool
    tells_total: bool
    z: float


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """Patterns by survey, drawn at random, and the noise of every survey and band."""

    sky: SurveySample
    rows: dict[str, NDArray[np.intp]]
    noise: dict[tuple[str, int], Noise]
    only_detections: dict[str, bool]

    @property
    def surveys(self) -> tuple[str, ...]:
        """Names of the surveys that have patterns."""
        return tuple(self.rows)

    def draw(self, survey: str, rng: np.random.Generator) -> Pattern:
        """Draw a pattern of a survey."""
        rows = self.rows[survey]
        return self.pattern(survey, int(rows[rng.integers(len(rows))]), rng)

    def pattern(self, survey: str, row: int, rng: np.random.Generator) -> Pattern:
        """Return the visits of object ``row``, tiled where the survey publishes detections alone."""
        sky, at = self.sky, self.sky.points(row)
        order = np.argsort(sky.mjd[at], kind="stable")
        mjd, flux = sky.mjd[at][order], sky.flux[at][order].astype(np.float64)
        total = sky.total_flux[at][order].astype(np.float64)
        error = sky.flux_err[at][order].astype(np.float64)
        limit = sky.limit_at(at)[order]
        top = int(np.argmax(np.where(limit, -np.inf, flux - 0.8 * error)))
        tiles = self.only_detections[survey]
        place = np.arange(len(mjd))
        days = mjd.copy()
        if tiles:
            days, place = _tile(mjd, float(mjd[top]), rng)
        return Pattern(
            survey=survey, row=row, mjd=days, band=sky.band[at][order][place],
            log_wavelength=np.log(sky.wavelength[at][order][place].astype(np.float64)),
            foreign=sky.foreign[at][order][place], flux=np.where(np.isfinite(total), total, np.abs(flux))[place],
            error=error[place], limit=limit[place], centre=float(mjd[top]),
            peak=_peak(flux, error, top, varies=bool(np.isfinite(total).any())), only_detections=tiles,
            tells_total=bool(np.isfinite(total).any()), z=float(sky.z[row]),
        )  # fmt: skip

    def errors(self, pattern: Pattern, total_flux: Float, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Float:
        """Errors of a pattern's points ``rows`` if the total flux there were another, nJy."""
        errors, band, was = pattern.error[rows].copy(), pattern.band[rows], pattern.flux[rows]
        for number in np.unique(band):
            noise = self.noise.get((pattern.survey, int(number)))
            if noise is not None:
                here = band == number
                errors[here] *= noise.ratio(np.abs(total_flux[here]), was[here])
        return errors


def _peak(flux: Float, error: Float, top: int, *, varies: bool) -> float:
    """Brightness that a pattern was made at, nJy; of a variable the largest change, whichever way."""
    sure = np.abs(flux) - 0.8 * error if varies else flux[top] - 0.8 * error[top]
    return float(max(np.max(sure), 3.0 * error[top]))


def _tile(mjd: Float, peak: float, rng: np.random.Generator) -> tuple[Float, NDArray[np.intp]]:
    """Repeat a sequence of visits before and after itself until `EXTENT` days around its peak are covered."""
    span = float(mjd[-1] - mjd[0])
    gaps = np.diff(np.unique(np.floor(mjd)))
    gap = float(np.median(gaps)) if len(gaps) else 3.0
    step = max(span + min(gap, 10.0), 5.0)
    copies = int(min(np.ceil(EXTENT / step), 30))
    days = np.concatenate([mjd + number * step for number in range(-copies, copies + 1)])
    place = np.tile(np.arange(len(mjd)), 2 * copies + 1)
    own = np.repeat(np.arange(-copies, copies + 1) == 0, len(mjd))
    days = np.where(own, days, days + rng.uniform(-0.2, 0.2, len(days)))
    near = np.abs(days - peak) <= EXTENT
    order = np.argsort(days[near], kind="stable")
    return days[near][order], place[near][order]


def build_library(
    sky: SurveySample, rows: NDArray[np.bool_] | None = None, name: Callable[[str], str] = family
) -> Library:
    """Patterns of the objects ``rows`` (a mask; default all) of ``sky``, of surveys that can serve as patterns.

    Parameters
    ----------
    name : survey of a source, by default its `family`.
    """
    usable = np.ones(len(sky), dtype=np.bool_) if rows is None else rows.copy()
    usable &= (sky.lengths >= 5) & (sky.count(~sky.limit) >= 3) & ~np.isin(sky.source, sorted(NO_PATTERNS))
    survey = np.array([name(str(source)) for source in sky.source], dtype=np.str_)
    rows_by_survey = {str(key): np.flatnonzero(usable & (survey == key)) for key in np.unique(survey[usable])}
    noise, only = {}, {}
    for key, members in rows_by_survey.items():
        points = np.concatenate([np.arange(sky.offsets[row], sky.offsets[row + 1]) for row in members[:3000]])
        points = points[~sky.limit[points]]
        total = sky.total_flux[points]
        variable = bool(np.isfinite(total).any())
        faint = np.abs(sky.flux[points]) < 3.0 * sky.flux_err[points]
        only[key] = not variable and float(faint.mean()) < TILED_SHARE
        flux = np.where(np.isfinite(total), total, np.abs(sky.flux[points])).astype(np.float64)
        for number in range(len(BANDS)):
            here = sky.band[points] == number
            if here.sum() >= 60:
                noise[key, number] = _noise(flux[here], sky.flux_err[points][here].astype(np.float64))
    return Library(sky, rows_by_survey, noise, only)


def _noise(flux: Float, error: Float) -> Noise:
    """Return running medians in twelve quantiles of flux, made to rise."""
    flux = np.maximum(flux, np.median(error))
    edges = np.quantile(flux, np.linspace(0, 1, 13))
    place = np.clip(np.searchsorted(edges, flux, side="right") - 1, 0, 11)
    filled = [number for number in range(12) if (place == number).any()]
    log_flux = np.array([np.log(np.median(flux[place == number])) for number in filled])
    log_error = np.array([np.log(np.median(error[place == number])) for number in filled])
    return Noise(log_flux, np.maximum.accumulate(log_error))
