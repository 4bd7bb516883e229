"""Views: re-observed objects, one (`view`) or many (`views_of`).

A view moves an origin (`training.data.reobserve.origins`) to a redshift at which the cadence can detect it, and
observes it at the visits of the cadence with its filters and errors. In 70 % of the views the peak is within about four
days of the peak of the cadence, in the others its time is random. Points where the origin is too uncertain or too far
outside its filters are left out. A view with too few points is rejected, and `make_views` draws another.

A view is a `SurveyObject` whose ``source`` is the survey of the cadence, ``raw_label`` the source of its origin and
``quality`` ``view``. It has the group and the part of its origin.

Every class has the surveys in the same proportions, so that the survey does not reveal the class. The source of an
origin is drawn first, by the square root of its number of origins, so that one large simulation does not dominate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import DETECTION_SNR, njy_of_magnitude
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.reobserve.origins import (
    ACHROMATIC,
    Colours,
    Event,
    event_of,
    no_templates,
    read_colours,
)
from nightjar_alerts.training.data.reobserve.patterns import ONE_BAND, Cadence, CadenceLibrary, build_library
from nightjar_alerts.training.data.reobserve.pulses import (
    PERIODIC,
    Flare,
    Pulse,
    pulse_of,
    read_flares,
    synthetic_pulses,
)
from nightjar_alerts.training.data.reobserve.templates import template_objects
from nightjar_alerts.training.data.sample import PARTS, Sample, SurveyObject, collect, join
from nightjar_alerts.training.data.survey_readers import EVALUATION_LABELS
from nightjar_alerts.training.data.surveys import part_of
from nightjar_alerts.training.simulate.photometry import distance_modulus

Float = NDArray[np.float64]
Rng = np.random.Generator

JITTER_DAYS: Final = 4.0
ALIGNED: Final = 0.7
MAX_PEAK_SD: Final = 0.13
MAX_SHIFT: Final = 1.45
"""Largest factor in (1 + z) by which an object is moved."""
SHIFT_UNKNOWN: Final = 1.12
"""Largest factor for an object of unknown redshift: so small that it has little effect."""
MIN_REDSHIFT, MAX_REDSHIFT = 0.004, 3.5
FREE_BRIGHTNESS: Final = 0.3
"""Fraction of extragalactic views scaled to the brightness of the cadence; these have no redshift."""
TAIL_DAYS: Final = (12.0, 120.0)
MAX_SCATTER: Final = 2.5
"""Maximum ratio of true to reported errors."""
OVERSTATED: Final = (0.4, 0.9)
"""Ratio of true to reported errors of surveys that overestimate: ZTF alerts 0.5 to 0.6, compilations 0.4 to 0.9."""
SINGLE_EPOCH_TEMPLATES: Final = 0.7
"""Fraction of views of nuclei that are differences from a template of one day."""
NUCLEUS_FLUX: Final = (1.8, 0.7)
"""Centre and scatter of ln(flux of nucleus and host / largest difference flux): ratios of 2 to 20."""
MAX_POINTS: Final = 220
"""Maximum number of points of a view; those closest to the peak are kept."""


@dataclass(frozen=True, slots=True)
class ViewRules:
    """Minimum number of detections of a view, and accuracy of its reported errors.

    ``log_error_ratio`` is the centre and scatter of ln(true error / reported error), ``overstated`` the fraction of
    views whose errors are overestimated instead, ``of_flux`` the largest unreported error as a fraction of flux,
    ``outlier_fraction`` the fraction of outlying points.
    """

    detections: int = 3
    log_error_ratio: tuple[float, float] = (0.08, 0.22)
    overstated: float = 0.15
    of_flux: float = 0.01
    outlier_fraction: float = 0.002


@dataclass(frozen=True, slots=True, eq=False)
class NoiselessView:
    """Noise-free fluxes at the visits ``rows_K`` of a cadence; nJy, (K,).

    ``flux_K`` is the flux above quiescence, ``total_K`` the flux that determines the errors of the cadence, and
    ``light_K`` all light in the aperture, to which unreported errors are proportional.
    """

    rows_K: NDArray[np.intp]
    flux_K: Float
    total_K: Float
    light_K: Float
    z: float


def view_of_event(event: Event, cadence: Cadence, colours: Colours, rng: np.random.Generator) -> NoiselessView | None:
    """Return the fluxes of a transient or a nucleus at a cadence's visits; None if too few are certain enough."""
    moved = _move(event, cadence, rng)
    if moved is None:
        return None
    z, stretch, scale = moved
    aligned = rng.random() < ALIGNED
    if event.steady or not aligned:
        low, high = float(cadence.mjd[0]), float(cadence.mjd[-1])
        start = rng.uniform(low, high) if not event.steady else cadence.centre + rng.normal(0.0, 60.0)
        peak = start
    else:
        peak = cadence.centre + rng.normal(0.0, JITTER_DAYS)
    days = (cadence.mjd - peak) / stretch
    wave = cadence.log_wavelength - np.log(stretch)
    inside = np.clip(wave, *event.edges)
    is_covered = np.abs(wave - inside) <= colours.max_extrapolation(event.label)
    if event.steady:
        is_covered &= (days > event.first) & (days < event.last)
    rows = np.flatnonzero(is_covered)
    if len(rows) > MAX_POINTS:
        rows = np.sort(rows[np.argsort(np.abs(days[rows]), kind="stable")[:MAX_POINTS]])
    if len(rows) < 3:
        return None
    flux, sure = _flux(event, days[rows], inside[rows], cadence.error[rows] / scale, rng)
    log_ratio = colours.draw(event.label, rng).log_ratio(
        days[rows] / (1.0 + _redshift(event)), inside[rows] - _rest(event), wave[rows] - _rest(event)
    )
    outside = wave[rows] != inside[rows]
    own = _own_slope(event, days[rows], inside[rows]) * (wave[rows] - inside[rows])
    flux = flux * np.exp(np.where(outside, np.where(np.isfinite(log_ratio), log_ratio, own), 0.0))
    if event.steady:
        return _nucleus(event, cadence, rows[sure], flux[sure], inside[rows][sure], z, rng)
    rows, flux = rows[sure], scale * flux[sure]
    return NoiselessView(rows, flux, np.abs(flux), np.abs(flux), z)


def _nucleus(
    event: Event, cadence: Cadence, rows: NDArray[np.intp], flux_K: Float, inside_K: Float, z: float, rng: Rng
) -> NoiselessView | None:
    """Return the flux of a nucleus above a template: its mean, or its flux on one day in all bands.

    A nucleus hardly varies within weeks. Its difference from a template of one day is almost constant, of either sign
    and many times its error, like most nuclei that surveys report.
    """
    if len(rows) < 3:
        return None
    if rng.random() < SINGLE_EPOCH_TEMPLATES:
        epoch = np.full(len(rows), rng.uniform(event.first, event.last))
        flux_K = flux_K - (event.process.expected(epoch, inside_K) - event.process.mean)
    peak = cadence.peak * np.exp(rng.normal(0.0, 0.7))
    flux_K = flux_K * peak / max(float(np.abs(flux_K).max()), 0.2 * event.process.amplitude, 1e-6)
    light_K = np.maximum(peak * np.exp(rng.normal(*NUCLEUS_FLUX)) + flux_K, np.abs(flux_K))
    return NoiselessView(rows, flux_K, light_K if cadence.has_total_flux else np.abs(flux_K), light_K, z)


def _redshift(event: Event) -> float:
    return event.z if np.isfinite(event.z) else 0.05


def _rest(event: Event) -> float:
    return float(np.log1p(_redshift(event)))


def _move(event: Event, cadence: Cadence, rng: np.random.Generator) -> tuple[float, float, float] | None:
    """Draw redshift (NaN: none), stretch of times and wavelengths, and flux factor; None if it is not detectable."""
    peak = cadence.peak * np.exp(rng.normal(0.0, 0.7))
    needed = peak / event.peak_flux
    galactic = event.label in ACHROMATIC
    if galactic:
        return np.nan, 1.0, needed
    if not np.isfinite(event.z) or event.z <= 0:
        stretch = float(np.exp(rng.uniform(-1, 1) * np.log(SHIFT_UNKNOWN)))
        return np.nan, stretch, needed
    largest = SHIFT_UNKNOWN if event.steady else MAX_SHIFT
    low = max(MIN_REDSHIFT, (1.0 + event.z) / largest - 1.0)
    high = min(MAX_REDSHIFT, (1.0 + event.z) * largest - 1.0)
    z_K = np.exp(np.linspace(np.log(low), np.log(high), 60))
    factor_K = _dimming(event.z, z_K)
    z = float(np.interp(-np.log(needed), -np.log(factor_K), z_K))
    factor = float(_dimming(event.z, np.array([z]))[0])
    stretch = (1.0 + z) / (1.0 + event.z)
    if event.steady or not event.z_known or rng.random() < FREE_BRIGHTNESS:
        return z if event.steady and event.z_known else np.nan, stretch, needed
    if factor * event.peak_flux < 4.0 * float(np.median(cadence.error)):
        return None  # this cadence cannot detect it even at the smallest allowed redshift
    return z, stretch, factor


def _dimming(z_from: float, z_to: Float) -> Float:
    """Return the factor of flux density per hertz from one redshift to another, without K correction.

    The wavelengths at which the process is evaluated are shifted instead.
    """
    moduli = distance_modulus(z_to) - distance_modulus(np.array([z_from]))
    return np.asarray(10.0 ** (-0.4 * moduli) * (1.0 + z_to) / (1.0 + z_from))


def _flux(
    event: Event, days: Float, inside: Float, error: Float, rng: np.random.Generator
) -> tuple[Float, NDArray[np.bool_]]:
    """Draw the origin's flux with a rise before its first point and a tail after its last, and flag certain points."""
    at = days if event.steady else np.clip(days, event.first if event.rises else -np.inf, event.last)
    flux, spread = event.process.draw(at, inside, rng, 0.7 * error)
    if event.steady:
        return flux - event.process.mean, spread < 0.6 * event.process.amplitude
    flux = np.maximum(flux, 0.0)
    before, after = days < event.first, days > event.last
    if event.rises:
        rise = np.clip(1.0 - (event.first - days) / _rise_days(event, inside), 0.0, 1.0)
        flux = np.where(before, flux * rise**2, flux)
    else:
        flux = np.where(before, 0.0, flux)
    late = event.process.expected(np.full(len(inside), event.last), inside)
    earlier = event.process.expected(np.full(len(inside), event.last - 12.0), inside)
    decay = 12.0 / np.maximum(np.log(np.maximum(earlier, 1e-9) / np.maximum(late, 1e-9)), 1e-3)
    tail = np.exp(-np.maximum(days - event.last, 0.0) / np.clip(decay, *TAIL_DAYS))
    return np.where(after, flux * tail, flux), (spread < MAX_PEAK_SD * event.peak_flux) | before


def _rise_days(event: Event, inside: Float) -> Float:
    """Return the days from zero flux to the first point, for a fireball with the slope at that point."""
    first = event.process.expected(np.full(len(inside), event.first), inside)
    later = event.process.expected(np.full(len(inside), event.first + 1.0), inside)
    slope = np.maximum(later - first, 1e-3 * event.peak_flux)
    return np.asarray(np.clip(2.0 * np.maximum(first, 0.0) / slope, 2.0, 20.0))


def _own_slope(event: Event, days: Float, inside: Float) -> Float:
    """Return d ln(flux) / d ln(wavelength) of the process at the edge, clipped to -3 to 4."""
    at = np.clip(days, event.first, event.last)
    step = 0.12
    inward = np.where(inside < 0.5 * sum(event.edges), inside + step, inside - step)
    here = np.maximum(event.process.expected(at, inside), 0.02 * event.peak_flux)
    there = np.maximum(event.process.expected(at, inward), 0.02 * event.peak_flux)
    return np.asarray(np.clip(np.log(here / there) / (inside - inward), -3.0, 4.0))


def view_of_pulse(pulse: Pulse, cadence: Cadence, rng: np.random.Generator) -> NoiselessView | None:
    """Return difference and total flux of a periodic variable at a cadence's visits."""
    rows = np.arange(len(cadence.mjd))
    if len(rows) > MAX_POINTS:
        first = int(rng.integers(len(rows) - MAX_POINTS + 1))
        rows = rows[first : first + MAX_POINTS]
    phase = (cadence.mjd[rows] / pulse.period + rng.random()) % 1.0
    magnitude = pulse.magnitude(phase, cadence.band[rows])
    total = njy_of_magnitude(magnitude)
    swing = float(np.quantile(total, 0.9) - np.quantile(total, 0.1))
    if not np.isfinite(swing) or swing <= 0:
        return None
    total *= cadence.peak * np.exp(rng.normal(0.0, 0.9)) / swing
    flux = total.copy()
    few_exposures = rng.random() < 0.3
    for number in np.unique(cadence.band[rows]):
        in_band = cadence.band[rows] == number
        level = np.median(total[in_band])
        if few_exposures:  # the reference of a few exposures is anywhere within the range
            level = np.mean(rng.choice(total[in_band], size=min(4, int(in_band.sum()))))
        flux[in_band] -= level
    return NoiselessView(rows, flux, total, total, np.nan)


def view_of_flare(flare: Flare, cadence: Cadence, rng: np.random.Generator) -> NoiselessView | None:
    """Return the fluxes of one to three flares of a star at a cadence's visits, each observed by a random visit."""
    rows = np.arange(min(len(cadence.mjd), MAX_POINTS))
    flux = np.zeros(len(rows))
    for _ in range(1 + int(rng.integers(3))):
        caught = cadence.mjd[rows[int(rng.integers(len(rows)))]]
        flux += flare.flux(cadence.mjd[rows] - caught + rng.uniform(*flare.bright), cadence.band[rows])
    if flux.max() <= 0:
        return None
    scale = cadence.peak * np.exp(rng.normal(0.0, 0.9)) / flux.max()
    total = scale * (flux + flare.quiescent_B[cadence.band[rows]])
    return NoiselessView(rows, scale * flux, total, total, np.nan)


def observe(
    noiseless: NoiselessView, cadence: Cadence, library: CadenceLibrary, rules: ViewRules, rng: np.random.Generator
) -> SurveyObject | None:
    """Add errors, scatter, detections and limits to noise-free fluxes; None if there are too few detections."""
    error = library.errors(cadence, noiseless.total_K, noiseless.rows_K)
    error_ratio = float(np.clip(np.exp(rng.normal(*rules.log_error_ratio)), 0.8, 2.5))
    if rng.random() < rules.overstated:
        error_ratio = float(rng.uniform(*OVERSTATED))
    unreported = rules.of_flux * rng.random() * noiseless.light_K
    scatter = np.minimum(np.hypot(error_ratio * error, unreported), MAX_SCATTER * error)
    flux = noiseless.flux_K + scatter * rng.standard_normal(len(error))
    is_outlier = rng.random(len(error)) < rules.outlier_fraction
    flux = flux + is_outlier * rng.normal(0.0, 8.0, len(error)) * error
    detected = (
        flux >= DETECTION_SNR * error if not _has_negative_flux(noiseless) else np.abs(flux) >= DETECTION_SNR * error
    )
    limit = cadence.limit[noiseless.rows_K] & ~detected
    is_reported = detected | ~np.bool_(cadence.only_detections) | limit
    if cadence.only_detections:
        is_reported &= _near_detections(cadence.mjd[noiseless.rows_K], detected)
    nights = len(np.unique(np.floor(cadence.mjd[noiseless.rows_K][detected])))
    if detected.sum() < rules.detections or nights < min(2, rules.detections) or is_reported.sum() < 4:
        return None
    flux = np.where(limit, 0.0, flux)
    rows = noiseless.rows_K[is_reported]
    return SurveyObject(
        source=cadence.survey, object_id="", mjd=cadence.mjd[rows], flux=flux[is_reported], flux_err=error[is_reported],
        band=cadence.band[rows], detected=detected[is_reported], foreign=cadence.foreign[rows],
        wavelength=np.exp(cadence.log_wavelength[rows]), quality="view", z=noiseless.z,
        total_flux=noiseless.total_K[is_reported] if _has_negative_flux(noiseless) else None,
    )  # fmt: skip


def _has_negative_flux(noiseless: NoiselessView) -> bool:
    """Return whether some fluxes are negative, as for a variable or a nucleus."""
    return bool((noiseless.flux_K < 0).any())


def _near_detections(mjd: Float, detected: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Flag points from 30 days before the first detection to 5 days after the last, like limits in alerts."""
    detections = mjd[detected]
    if not len(detections):
        return np.zeros(len(mjd), dtype=np.bool_)
    inside: NDArray[np.bool_] = (mjd >= detections[0] - 30.0) & (mjd <= detections[-1] + 5.0)
    return inside


def view(
    origin: Event | Pulse | Flare,
    cadence: Cadence,
    library: CadenceLibrary,
    colours: Colours,
    rules: ViewRules,
    rng: np.random.Generator,
) -> SurveyObject | None:
    """Return one view of one origin, without object id and group; None if it has too few points or detections."""
    if isinstance(origin, Pulse):
        noiseless = view_of_pulse(origin, cadence, rng)
    elif isinstance(origin, Flare):
        noiseless, rules = view_of_flare(origin, cadence, rng), replace(rules, detections=1)
    else:
        noiseless = view_of_event(origin, cadence, colours, rng)
    if noiseless is None or len(noiseless.rows_K) < 3:
        return None
    survey_object = observe(noiseless, cadence, library, rules, rng)
    if survey_object is not None:
        survey_object.label = origin.label
    return survey_object


Origin = Event | Pulse | Flare

SHARES: Final[Mapping[str, float]] = {
    "Ia": 8.0, "II": 7.0, "Ib/c": 6.5, "SLSN": 5.0, "TDE": 5.5, "AGN": 7.0, "RR Lyrae": 4.0, "Cepheid": 3.0,
    "Delta Scuti": 3.0, "EB": 3.0, "Dwarf Novae": 4.0, "uLens": 4.0, "M-dwarf Flare": 2.5, "91bg": 2.5, "Iax": 1.5,
    "SN-like/Other": 3.0, "KN": 1.0, "ILOT": 0.5, "CART": 0.5, "PISN": 0.5,
}  # fmt: skip
"""Relative number of views of each class: neither the natural shares nor equal ones, with which many Ia would be
classified as rarer types."""
ORIGINS_PER_SOURCE: Final = 900
"""Maximum number of origins of one class and source."""
MAX_ATTEMPTS: Final = 6
POOR: Final = frozenset({"gaia_alerts", "eros1"})


@dataclass(frozen=True, slots=True, eq=False)
class Origins:
    """Origins by class index and source.

    An origin that is not an object of ``sample`` has a negative row; its source, name and part are in ``external``.
    """

    sample: Sample
    by_class: dict[int, dict[str, list[Origin]]]
    external: dict[int, tuple[str, str, int]]

    def count(self) -> dict[str, int]:
        """Count the origins of each class."""
        return {ELASTICC.names[label]: sum(map(len, origins.values())) for label, origins in self.by_class.items()}

    def draw(self, label: int, rng: np.random.Generator) -> Origin:
        """Draw an origin of a class: first a source, weighted by the square root of its number of origins."""
        sources = self.by_class[label]
        names = list(sources)
        weight = np.sqrt([len(sources[name]) for name in names])
        chosen = sources[names[rng.choice(len(names), p=weight / weight.sum())]]
        return chosen[int(rng.integers(len(chosen)))]


def find_origins(
    sample: Sample, part: int, *, seed: int = 0, flares: Path | None = None, most: int = ORIGINS_PER_SOURCE
) -> Origins:
    """Fit the objects of a part that have a class and enough points.

    Parameters
    ----------
    part : index into `PARTS`. flares : file of M-dwarf flares. most : maximum number of one class and source.
    """
    rng = np.random.default_rng(seed)
    usable = (sample.label >= 0) & (sample.part == part) & ~np.isin(sample.source, sorted(EVALUATION_LABELS))
    origins: dict[int, dict[str, list[Origin]]] = {}
    for label in np.unique(sample.label[usable]):
        for source in np.unique(sample.source[usable & (sample.label == label)]):
            rows = np.flatnonzero(usable & (sample.label == label) & (sample.source == source))
            fitted = _fitted(sample, rng.permutation(rows), int(label), most, rng)
            if fitted:
                origins.setdefault(int(label), {})[str(source)] = fitted
    external: dict[int, tuple[str, str, int]] = {}
    for name, flare in read_flares(flares) if flares is not None else []:
        if part_of(name) == part:
            external[flare.row] = "lclib_mdwarf", name, part
            origins.setdefault(flare.label, {}).setdefault("lclib_mdwarf", []).append(flare)
    return Origins(sample, origins, external)


def add_synthetic(origins: Origins, part: int, number: int, *, seed: int = 0) -> None:
    """Add synthetic origins for classes of periodic variables that have none."""
    rng = np.random.default_rng(seed)
    for label in sorted(PERIODIC - set(origins.by_class)):
        for pulse in synthetic_pulses(label, number, rng):
            row = -1_000_000 - len(origins.external)
            origins.external[row] = "made up", f"{ELASTICC.names[label]}-{-row}", part
            origins.by_class.setdefault(label, {}).setdefault("made up", []).append(replace(pulse, row=row))


def _fitted(sample: Sample, rows: NDArray[np.intp], label: int, most: int, rng: np.random.Generator) -> list[Origin]:
    fitted: list[Origin] = []
    for row in rows[: 4 * most]:
        origin = pulse_of(sample, int(row), rng) if label in PERIODIC else event_of(sample, int(row))
        if origin is not None:
            fitted.append(origin)
        if len(fitted) >= most:
            break
    return fitted


def survey_weights(library: CadenceLibrary) -> dict[str, float]:
    """Return the weight of each survey: more for Rubin, less for surveys with one band or poor photometry."""
    own = {"rubin": 2.0} | dict.fromkeys(ONE_BAND | POOR, 0.4)
    return {name: own.get(name, 1.0) for name in library.surveys}


def make_views(
    origins: Origins,
    library: CadenceLibrary,
    number: int,
    *,
    seed: int = 0,
    colours: Colours | None = None,
    surveys: Mapping[str, float] | None = None,
    shares: Mapping[str, float] = SHARES,
    rules: ViewRules | None = None,
) -> Sample:
    """Return about ``number`` views of ``origins`` with the cadences of ``library``.

    Parameters
    ----------
    surveys : weight of each survey; default: `survey_weights`. shares : relative number of views of each class.

    Notes
    -----
    A rejected view is drawn again with another origin and the same survey, up to `MAX_ATTEMPTS` times, so a class that
    a survey can hardly detect has fewer views.
    """
    rng = np.random.default_rng(seed)
    colours, rules = colours or no_templates(), rules or ViewRules()
    weights = surveys or survey_weights(library)
    names = [name for name in weights if name in library.rows]
    p = np.array([weights[name] for name in names])
    present = {label: shares.get(ELASTICC.names[label], 0.0) for label in origins.by_class}
    total = sum(present.values())
    rows: list[SurveyObject] = []
    groups: list[str] = []
    parts: list[int] = []
    for label, share in present.items():
        for count in range(round(number * share / total)):
            survey = names[int(rng.choice(len(names), p=p / p.sum()))]
            drawn = _draw_view(origins, library, label, survey, colours, rules, rng)
            if drawn is not None:
                row, group, part = drawn
                row.object_id = f"{row.object_id}~{seed}.{count}"
                rows.append(row)
                groups.append(group)
                parts.append(part)
    return collect(rows, groups, parts)


def _draw_view(
    origins: Origins,
    library: CadenceLibrary,
    label: int,
    survey: str,
    colours: Colours,
    rules: ViewRules,
    rng: np.random.Generator,
) -> tuple[SurveyObject, str, int] | None:
    """Draw a view with the name of its origin; return it with its group and part, None after `MAX_ATTEMPTS`."""
    for _ in range(MAX_ATTEMPTS):
        origin = origins.draw(label, rng)
        survey_object = view(origin, library.draw(survey, rng), library, colours, rules, rng)
        if survey_object is None:
            continue
        sample, row = origins.sample, origin.row
        if row < 0:
            source, name, part = origins.external[row]
            survey_object.object_id, survey_object.raw_label, group = name, source, name
        else:
            survey_object.object_id, survey_object.raw_label = str(sample.object_id[row]), str(sample.source[row])
            group, part = str(sample.group[row]), int(sample.part[row])
            survey_object.period, survey_object.mwebv = float(sample.period[row]), float(sample.mwebv[row])
        return survey_object, group, part
    return None


def views_of(
    sample: Sample,
    part: str,
    number: int,
    *,
    seed: int = 0,
    data: Path | None = None,
    through: Sequence[str] = (),
    classes: Sequence[str] = (),
    copies: int = 0,
) -> Sample:
    """Return views of the objects of one part with the cadences of that part.

    Parameters
    ----------
    data : folder of templates and flares. through : surveys of the cadences, with equal weights; default: all, with
    `survey_weights`. classes : classes to include; default: all. copies : origins per published fit
    (`training.data.reobserve.templates`), in addition to the real ones.
    """
    flares = None if data is None else data / "real" / "lclib_mdwarf.parquet"
    templates = None if data is None else data / "real" / "templates"
    part_index = PARTS.index(part)
    library = build_library(sample, sample.part == part_index)
    if templates is not None and copies:
        sample = join([sample, template_objects(templates, part_index, copies, seed=seed)])
    origins = find_origins(sample, part_index, seed=seed, flares=flares)
    surveys = dict.fromkeys(through, 1.0) if through else None
    shares = {name: share for name, share in SHARES.items() if name in classes} if classes else SHARES
    return make_views(
        origins, library, number, seed=seed, colours=read_colours(templates), surveys=surveys, shares=shares
    )
