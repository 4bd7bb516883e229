"""Cadences: real sequences of visits of surveys, with bands, errors and limits.

Notable:

- a cadence has the visits of one real object, without its class. A survey that publishes detections only has no visits
  before and after, so its sequence is tiled in time to cover long events;
- errors grow with flux. For each survey and band the running median of ln(error) against ln(flux) is stored. The error
  at another flux is the error of the cadence times the ratio of these medians;
- upper limits are only published at visits that had an upper limit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.data.survey_readers import EVALUATION_ONLY

Float = NDArray[np.float64]

FAMILIES: Final = {
    "cfa3": "lowz", "cfa124": "lowz", "csp_dr3": "lowz", "kait": "lowz", "loss": "lowz",
    "ogle_dn": "ogle", "ogle_ews2025": "ogle", "ogle2_ulens": "ogle", "crts_mantra": "catalina", "css": "catalina",
}  # fmt: skip
"""Sources whose cadences belong to one survey."""
ONE_BAND: Final = frozenset({"ogle", "catalina", "gaia_alerts", "asas_dsct"})
NO_CADENCES: Final = frozenset({"osc", "at2017gfo", "slsne", "crater2_decam", "asas_dsct"}) | EVALUATION_ONLY
"""Compilations of many telescopes, three nights of one field, and stars brighter than any transient."""
EXTENT: Final = 400.0
"""Days before and after the centre of a cadence that its tiles cover."""
MIN_FAINT_SHARE: Final = 0.10
"""A survey with a smaller share of measured points below three sigma is assumed to publish detections only."""


def family(source: str) -> str:
    """Return the survey of a source."""
    return FAMILIES.get(source, source)


@dataclass(frozen=True, slots=True, eq=False)
class Noise:
    """ln(error) against ln(flux) of one survey and band, both increasing."""

    log_flux_K: Float
    log_error_K: Float

    def ratio(self, flux: Float, than: Float) -> Float:
        """Return the error at total flux ``flux`` divided by that at ``than``, both nJy."""
        floor = np.exp(self.log_flux_K[0])
        return np.asarray(np.exp(self._at(np.maximum(flux, floor)) - self._at(np.maximum(than, floor))))

    def _at(self, flux: Float) -> Float:
        """Return ln(error), linear between the knots; beyond the last knot errors are proportional to flux."""
        log_flux = np.log(flux)
        beyond = np.maximum(0.0, log_flux - self.log_flux_K[-1])
        return np.asarray(np.interp(log_flux, self.log_flux_K, self.log_error_K) + beyond)


@dataclass(frozen=True, slots=True, eq=False)
class Cadence:
    """The visits of one object, sorted by time.

    ``flux`` is the flux to which each error belongs: total flux if the survey has it (``has_total_flux``).
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
    has_total_flux: bool
    z: float


@dataclass(frozen=True, slots=True, eq=False)
class CadenceLibrary:
    """Cadences by survey, and the noise of every survey and band."""

    sample: Sample
    rows: dict[str, NDArray[np.intp]]
    noise: dict[tuple[str, int], Noise]
    only_detections: dict[str, bool]

    @property
    def surveys(self) -> tuple[str, ...]:
        """Names of the surveys that have cadences."""
        return tuple(self.rows)

    def draw(self, survey: str, rng: np.random.Generator) -> Cadence:
        """Draw a cadence of a survey."""
        rows = self.rows[survey]
        return self.cadence(survey, int(rows[rng.integers(len(rows))]), rng)

    def cadence(self, survey: str, row: int, rng: np.random.Generator) -> Cadence:
        """Return the visits of object ``row``, tiled if the survey publishes detections only."""
        sample, at = self.sample, self.sample.points(row)
        order = np.argsort(sample.mjd[at], kind="stable")
        mjd, flux = sample.mjd[at][order].astype(np.float64), sample.flux[at][order].astype(np.float64)
        total = sample.total_flux[at][order].astype(np.float64)
        error = sample.flux_err[at][order].astype(np.float64)
        limit = sample.limit_at(at)[order]
        top = int(np.argmax(np.where(limit, -np.inf, flux - 0.8 * error)))
        tiles = self.only_detections[survey]
        index = np.arange(len(mjd))
        days = mjd.copy()
        if tiles:
            days, index = _tile(mjd, float(mjd[top]), rng)
        return Cadence(
            survey=survey, row=row, mjd=days, band=sample.band[at][order][index].astype(np.int8),
            log_wavelength=np.log(sample.wavelength[at][order][index].astype(np.float64)),
            foreign=sample.foreign[at][order][index], flux=np.where(np.isfinite(total), total, np.abs(flux))[index],
            error=error[index], limit=limit[index], centre=float(mjd[top]),
            peak=_peak(flux, error, top, varies=bool(np.isfinite(total).any())), only_detections=tiles,
            has_total_flux=bool(np.isfinite(total).any()), z=float(sample.z[row]),
        )  # fmt: skip

    def errors(self, cadence: Cadence, total_flux: Float, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Float:
        """Return the errors of the points ``rows`` of a cadence for another total flux, nJy."""
        errors, band, flux = cadence.error[rows].copy(), cadence.band[rows], cadence.flux[rows]
        for number in np.unique(band):
            noise = self.noise.get((cadence.survey, int(number)))
            if noise is not None:
                in_band = band == number
                errors[in_band] *= noise.ratio(np.abs(total_flux[in_band]), flux[in_band])
        return errors


def _peak(flux: Float, error: Float, top: int, *, varies: bool) -> float:
    """Return the peak flux of a cadence's object, nJy; the largest change of either sign for a variable."""
    lower_bound = np.abs(flux) - 0.8 * error if varies else flux[top] - 0.8 * error[top]
    return float(max(np.max(lower_bound), 3.0 * error[top]))


def _tile(mjd: Float, peak: float, rng: np.random.Generator) -> tuple[Float, NDArray[np.intp]]:
    """Repeat a sequence of visits until `EXTENT` days before and after its peak are covered.

    Returns times with jitter, and the index of each visit in the original sequence.
    """
    span = float(mjd[-1] - mjd[0])
    gaps = np.diff(np.unique(np.floor(mjd)))
    gap = float(np.median(gaps)) if len(gaps) else 3.0
    step = max(span + min(gap, 10.0), 5.0)
    copies = int(min(np.ceil(EXTENT / step), 30))
    days = np.concatenate([mjd + number * step for number in range(-copies, copies + 1)])
    index = np.tile(np.arange(len(mjd)), 2 * copies + 1)
    is_original = np.repeat(np.arange(-copies, copies + 1) == 0, len(mjd))
    days = np.where(is_original, days, days + rng.uniform(-0.2, 0.2, len(days)))
    near = np.abs(days - peak) <= EXTENT
    order = np.argsort(days[near], kind="stable")
    return days[near][order], index[near][order]


def build_library(
    sample: Sample, rows: NDArray[np.bool_] | None = None, name: Callable[[str], str] = family
) -> CadenceLibrary:
    """Return the cadences of the objects ``rows`` (a mask; default: all) of ``sample``, without those of `NO_CADENCES`.

    Parameters
    ----------
    name : function from source to survey; default: `family`.
    """
    usable = np.ones(len(sample), dtype=np.bool_) if rows is None else rows.copy()
    usable &= (sample.lengths >= 5) & (sample.count(~sample.limit) >= 3) & ~np.isin(sample.source, sorted(NO_CADENCES))
    survey = np.array([name(str(source)) for source in sample.source], dtype=np.str_)
    rows_by_survey = {str(key): np.flatnonzero(usable & (survey == key)) for key in np.unique(survey[usable])}
    noise, only = {}, {}
    for key, members in rows_by_survey.items():
        points = np.concatenate([np.arange(sample.offsets[row], sample.offsets[row + 1]) for row in members[:3000]])
        points = points[~sample.limit[points]]
        total = sample.total_flux[points]
        variable = bool(np.isfinite(total).any())
        faint = np.abs(sample.flux[points]) < 3.0 * sample.flux_err[points]
        only[key] = not variable and float(faint.mean()) < MIN_FAINT_SHARE
        flux = np.where(np.isfinite(total), total, np.abs(sample.flux[points])).astype(np.float64)
        for number in range(len(BANDS)):
            here = sample.band[points] == number
            if here.sum() >= 60:
                noise[key, number] = _noise(flux[here], sample.flux_err[points][here].astype(np.float64))
    return CadenceLibrary(sample, rows_by_survey, noise, only)


def _noise(flux: Float, error: Float) -> Noise:
    """Return medians in twelve quantiles of flux, made monotonic."""
    flux = np.maximum(flux, np.median(error))
    edges = np.quantile(flux, np.linspace(0, 1, 13))
    quantile = np.clip(np.searchsorted(edges, flux, side="right") - 1, 0, 11)
    filled = [number for number in range(12) if (quantile == number).any()]
    log_flux = np.array([np.log(np.median(flux[quantile == number])) for number in filled])
    log_error = np.array([np.log(np.median(error[quantile == number])) for number in filled])
    return Noise(log_flux, np.maximum.accumulate(log_error))
