"""Views: re-observed objects, one (`view`) or many (`views_of`).

A view moves an origin (`training.reobserve.origins`) to a redshift at which the pattern can detect it, and observes it
at the visits of the pattern with its filters and errors. In 70 % of the views the peaks are aligned within four days,
in the others at random. Points where the origin is too uncertain or too far outside its filters are left out, and a
view with too few points is rejected: `make_views` draws another.

A view is an object of the record like any other: ``source`` is the survey of the pattern, ``raw_label`` the source
of its origin, ``quality`` ``view``; it has the group and the part of its origin.

Every class has every survey in the same proportion, so that the survey does not reveal the class; origins
are drawn evenly over the sources of a class first, so that one large simulation does not drown the real objects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import DETECTION_SNR, njy_of_magnitude
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.reobserve.origins import ACHROMATIC, Colours, Event, event_of, no_templates, read_colours
from nightjar_alerts.training.reobserve.patterns import ONE_BAND, Library, Pattern, build_library
from nightjar_alerts.training.reobserve.pulses import PERIODIC, Flare, Pulse, made_up_pulses, pulse_of, read_flares
from nightjar_alerts.training.reobserve.templates import template_objects
from nightjar_alerts.training.simulate.photometry import distance_modulus
from nightjar_alerts.training.sky.load import part_of
from nightjar_alerts.training.sky.readers import LABELS_TO_MEASURE
from nightjar_alerts.training.sky.record import PARTS, SkyObject, SurveySample, collect, join

Float = NDArray[np.float64]
Rng = np.random.Generator

JITTER_DAYS: Final = 4.0
ALIGNED: Final = 0.7
SD_OF_PEAK: Final = 0.13
LARGEST_SHIFT: Final = 1.45
"""Largest factor in (1 + z) by which an object is moved; outside its filters only as far as colours allow."""
SHIFT_UNKNOWN: Final = 1.12
"""The same where its redshift is not known: little, so that it hardly shows."""
MIN_REDSHIFT, MAX_REDSHIFT = 0.004, 3.5
FREE_BRIGHTNESS: Final = 0.3
"""Fraction of extragalactic views with the brightness of the pattern; these have no redshift."""
TAIL_DAYS: Final = (12.0, 120.0)
LARGEST_SCATTER: Final = 2.5
"""True errors over stated ones, at most."""
OVERSTATED: Final = (0.4, 0.9)
"""True errors over stated ones where surveys state too much: alerts of ZTF 0.5 to 0.6, compilations 0.4 to 0.9."""
OVER_A_TEMPLATE: Final = 0.7
"""Share of views of nuclei that are differences from a template of one day."""
LIGHT_OF_NUCLEI: Final = (1.8, 0.7)
"""Centre and scatter of ln(light of nucleus and host over the largest difference): 2 to 20 times."""
MOST: Final = 220
"""Maximum number of points of a view; those closest to the peak are kept."""


@dataclass(frozen=True, slots=True)
class ViewRules:
    """Rules of a view: what it must show, and how far stated errors may be wrong.

    ``understated`` is the centre and scatter of ln(true error / stated error), ``overstated`` the share of views whose
    stated errors are too large instead, ``of_flux`` the largest unstated error as a share of flux, ``wild`` the share
    of points that lie far off.
    """

    detections: int = 3
    understated: tuple[float, float] = (0.08, 0.22)
    overstated: float = 0.15
    of_flux: float = 0.01
    wild: float = 0.002


@dataclass(frozen=True, slots=True, eq=False)
class NoiselessView:
    """Finds of a pattern's visits at its rows ``rows_K``; fluxes in nJy, (K,).

    ``flux_K`` is flux above the quiescent one, ``total_K`` what the pattern's errors grow with, and ``light_K`` all
    light in the aperture, of which errors leave out a share.
    """

    rows_K: NDArray[np.intp]
    flux_K: Float
    total_K: Float
    light_K: Float
    z: float


def view_of_event(event: Event, pattern: Pattern, colours: Colours, rng: np.random.Generator) -> NoiselessView | None:
    """View a transient or a nucleus through a pattern; None when it shows too little or is too uncertain."""
    moved = _move(event, pattern, rng)
    if moved is None:
        return None
    z, stretch, scale = moved
    aligned = rng.random() < ALIGNED
    if event.steady or not aligned:
        low, high = float(pattern.mjd[0]), float(pattern.mjd[-1])
        start = rng.uniform(low, high) if not event.steady else pattern.centre + rng.normal(0.0, 60.0)
        peak = start
    else:
        peak = pattern.centre + rng.normal(0.0, JITTER_DAYS)
    days = (pattern.mjd - peak) / stretch
    wave = pattern.log_wavelength - np.log(stretch)
    inside = np.clip(wave, *event.edges)
    is_covered = np.abs(wave - inside) <= colours.furthest(event.label)
    if event.steady:
        is_covered &= (days > event.first) & (days < event.last)
    rows = np.flatnonzero(is_covered)
    if len(rows) > MOST:
        rows = np.sort(rows[np.argsort(np.abs(days[rows]), kind="stable")[:MOST]])
    if len(rows) < 3:
        return None
    flux, sure = _flux(event, days[rows], inside[rows], pattern.error[rows] / scale, rng)
    log_ratio = colours.draw(event.label, rng).log_ratio(
        days[rows] / (1.0 + _redshift(event)), inside[rows] - _rest(event), wave[rows] - _rest(event)
    )
    outside = wave[rows] != inside[rows]
    own = _own_slope(event, days[rows], inside[rows]) * (wave[rows] - inside[rows])
    flux = flux * np.exp(np.where(outside, np.where(np.isfinite(log_ratio), log_ratio, own), 0.0))
    if event.steady:
        return _nucleus(event, pattern, rows[sure], flux[sure], inside[rows][sure], z, rng)
    rows, flux = rows[sure], scale * flux[sure]
    return NoiselessView(rows, flux, np.abs(flux), np.abs(flux), z)


def _nucleus(
    event: Event, pattern: Pattern, rows: NDArray[np.intp], flux_K: Float, inside_K: Float, z: float, rng: Rng
) -> NoiselessView | None:
    """Return what is left of a nucleus over a template: the mean of all years, or what it was on one day, in all bands.

    Within weeks a nucleus hardly varies: over a template of one day it is a constant of either sign, many times its
    errors, which is what surveys report of most of them.
    """
    if len(rows) < 3:
        return None
    if rng.random() < OVER_A_TEMPLATE:
        epoch = np.full(len(rows), rng.uniform(event.first, event.last))
        flux_K = flux_K - (event.process.expected(epoch, inside_K) - event.process.mean)
    peak = pattern.peak * np.exp(rng.normal(0.0, 0.7))
    flux_K = flux_K * peak / max(float(np.abs(flux_K).max()), 0.2 * event.process.amplitude, 1e-6)
    light_K = np.maximum(peak * np.exp(rng.normal(*LIGHT_OF_NUCLEI)) + flux_K, np.abs(flux_K))
    return NoiselessView(rows, flux_K, light_K if pattern.tells_total else np.abs(flux_K), light_K, z)


def _redshift(event: Event) -> float:
    return event.z if np.isfinite(event.z) else 0.05


def _rest(event: Event) -> float:
    return float(np.log1p(_redshift(event)))


def _move(event: Event, pattern: Pattern, rng: np.random.Generator) -> tuple[float, float, float] | None:
    """Redshift (NaN: not given), stretch of times and wavelengths, and flux factor of a view."""
    peak = pattern.peak * np.exp(rng.normal(0.0, 0.7))
    needed = peak / event.peak_flux
    galactic = event.label in ACHROMATIC
    if galactic:
        return np.nan, 1.0, needed
    if not np.isfinite(event.z) or event.z <= 0:
        stretch = float(np.exp(rng.uniform(-1, 1) * np.log(SHIFT_UNKNOWN)))
        return np.nan, stretch, needed
    largest = SHIFT_UNKNOWN if event.steady else LARGEST_SHIFT
    low = max(MIN_REDSHIFT, (1.0 + event.z) / largest - 1.0)
    high = min(MAX_REDSHIFT, (1.0 + event.z) * largest - 1.0)
    z_K = np.exp(np.linspace(np.log(low), np.log(high), 60))
    factor_K = _dimming(event.z, z_K)
    z = float(np.interp(-np.log(needed), -np.log(factor_K), z_K))
    factor = float(_dimming(event.z, np.array([z]))[0])
    stretch = (1.0 + z) / (1.0 + event.z)
    if event.steady or not event.z_known or rng.random() < FREE_BRIGHTNESS:
        return z if event.steady and event.z_known else np.nan, stretch, needed
    if factor * event.peak_flux < 4.0 * float(np.median(pattern.error)):
        return None  # nowhere near enough for this pattern to see it
    return z, stretch, factor


def _dimming(z_from: float, z_to: Float) -> Float:
    """Factor of flux density per hertz from one redshift to another, without K correction (the process shifts)."""
    moduli = distance_modulus(z_to) - distance_modulus(np.array([z_from]))
    return np.asarray(10.0 ** (-0.4 * moduli) * (1.0 + z_to) / (1.0 + z_from))


def _flux(
    event: Event, days: Float, inside: Float, error: Float, rng: np.random.Generator
) -> tuple[Float, NDArray[np.bool_]]:
    """Draw the origin's flux at these places, and where it is sure enough; zero before, a tail after."""
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
    sooner = event.process.expected(np.full(len(inside), event.last - 12.0), inside)
    decay = 12.0 / np.maximum(np.log(np.maximum(sooner, 1e-9) / np.maximum(late, 1e-9)), 1e-3)
    tail = np.exp(-np.maximum(days - event.last, 0.0) / np.clip(decay, *TAIL_DAYS))
    return np.where(after, flux * tail, flux), (spread < SD_OF_PEAK * event.peak_flux) | before


def _rise_days(event: Event, inside: Float) -> Float:
    """Days from zero to the first point, as a fireball with the slope at that point would need."""
    first = event.process.expected(np.full(len(inside), event.first), inside)
    later = event.process.expected(np.full(len(inside), event.first + 1.0), inside)
    slope = np.maximum(later - first, 1e-3 * event.peak_flux)
    return np.asarray(np.clip(2.0 * np.maximum(first, 0.0) / slope, 2.0, 20.0))


def _own_slope(event: Event, days: Float, inside: Float) -> Float:
    """D ln(flux) / d ln(wavelength) of the process itself at the edge, within reason."""
    at = np.clip(days, event.first, event.last)
    step = 0.12
    inward = np.where(inside < 0.5 * sum(event.edges), inside + step, inside - step)
    here = np.maximum(event.process.expected(at, inside), 0.02 * event.peak_flux)
    there = np.maximum(event.process.expected(at, inward), 0.02 * event.peak_flux)
    return np.asarray(np.clip(np.log(here / there) / (inside - inward), -3.0, 4.0))


def view_of_pulse(pulse: Pulse, pattern: Pattern, rng: np.random.Generator) -> NoiselessView | None:
    """View a periodic variable through a pattern: the difference from a reference, and the total."""
    rows = np.arange(len(pattern.mjd))
    if len(rows) > MOST:
        first = int(rng.integers(len(rows) - MOST + 1))
        rows = rows[first : first + MOST]
    phase = (pattern.mjd[rows] / pulse.period + rng.random()) % 1.0
    magnitude = pulse.magnitude(phase, pattern.band[rows])
    total = njy_of_magnitude(magnitude)
    swing = float(np.quantile(total, 0.9) - np.quantile(total, 0.1))
    if not np.isfinite(swing) or swing <= 0:
        return None
    total *= pattern.peak * np.exp(rng.normal(0.0, 0.9)) / swing
    flux = total.copy()
    few = rng.random() < 0.3
    for number in np.unique(pattern.band[rows]):
        here = pattern.band[rows] == number
        level = np.median(total[here])
        if few:  # a template of a few exposures is anywhere within the range
            level = np.mean(rng.choice(total[here], size=min(4, int(here.sum()))))
        flux[here] -= level
    return NoiselessView(rows, flux, total, total, np.nan)


def view_of_flare(flare: Flare, pattern: Pattern, rng: np.random.Generator) -> NoiselessView | None:
    """One to three flares of a star, each caught at a random visit, and nothing between them."""
    rows = np.arange(min(len(pattern.mjd), MOST))
    flux = np.zeros(len(rows))
    for _ in range(1 + int(rng.integers(3))):
        caught = pattern.mjd[rows[int(rng.integers(len(rows)))]]
        flux += flare.flux(pattern.mjd[rows] - caught + rng.uniform(*flare.bright), pattern.band[rows])
    if flux.max() <= 0:
        return None
    scale = pattern.peak * np.exp(rng.normal(0.0, 0.9)) / flux.max()
    total = scale * (flux + flare.quiescent_B[pattern.band[rows]])
    return NoiselessView(rows, scale * flux, total, total, np.nan)


def observe(
    noiseless: NoiselessView, pattern: Pattern, library: Library, rules: ViewRules, rng: np.random.Generator
) -> SkyObject | None:
    """Measure what a pattern sees: errors, scatter, detections and limits; None when too little is detected."""
    error = library.errors(pattern, noiseless.total_K, noiseless.rows_K)
    wrong = float(np.clip(np.exp(rng.normal(*rules.understated)), 0.8, 2.5))
    if rng.random() < rules.overstated:
        wrong = float(rng.uniform(*OVERSTATED))
    unstated = rules.of_flux * rng.random() * noiseless.light_K
    scatter = np.minimum(np.hypot(wrong * error, unstated), LARGEST_SCATTER * error)
    flux = noiseless.flux_K + scatter * rng.standard_normal(len(error))
    wild = rng.random(len(error)) < rules.wild
    flux = flux + wild * rng.normal(0.0, 8.0, len(error)) * error
    detected = flux >= DETECTION_SNR * error if not _varies(noiseless) else np.abs(flux) >= DETECTION_SNR * error
    limit = pattern.limit[noiseless.rows_K] & ~detected
    is_reported = detected | ~np.bool_(pattern.only_detections) | limit
    if pattern.only_detections:
        is_reported &= _own_window(pattern.mjd[noiseless.rows_K], detected)
    nights = len(np.unique(np.floor(pattern.mjd[noiseless.rows_K][detected])))
    if detected.sum() < rules.detections or nights < min(2, rules.detections) or is_reported.sum() < 4:
        return None
    flux = np.where(limit, 0.0, flux)
    rows = noiseless.rows_K[is_reported]
    return SkyObject(
        source=pattern.survey, object_id="", mjd=pattern.mjd[rows], flux=flux[is_reported], flux_err=error[is_reported],
        band=pattern.band[rows], detected=detected[is_reported], foreign=pattern.foreign[rows],
        wavelength=np.exp(pattern.log_wavelength[rows]), quality="view", z=noiseless.z,
        total_flux=noiseless.total_K[is_reported] if _varies(noiseless) else None,
    )  # fmt: skip


def _varies(noiseless: NoiselessView) -> bool:
    """Return whether flux goes both ways: a variable, or a nucleus."""
    return bool((noiseless.flux_K < 0).any())


def _own_window(mjd: Float, detected: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Upper limits of an alert survey, from 30 days before the first detection to shortly after the last."""
    detections = mjd[detected]
    if not len(detections):
        return np.zeros(len(mjd), dtype=np.bool_)
    inside: NDArray[np.bool_] = (mjd >= detections[0] - 30.0) & (mjd <= detections[-1] + 5.0)
    return inside


def view(
    origin: Event | Pulse | Flare,
    pattern: Pattern,
    library: Library,
    colours: Colours,
    rules: ViewRules,
    rng: np.random.Generator,
) -> SkyObject | None:
    """One view of one origin, without the names that its origin gives it; None when it shows too little."""
    if isinstance(origin, Pulse):
        noiseless = view_of_pulse(origin, pattern, rng)
    elif isinstance(origin, Flare):
        noiseless, rules = view_of_flare(origin, pattern, rng), replace(rules, detections=1)
    else:
        noiseless = view_of_event(origin, pattern, colours, rng)
    if noiseless is None or len(noiseless.rows_K) < 3:
        return None
    sky_object = observe(noiseless, pattern, library, rules, rng)
    if sky_object is not None:
        sky_object.label = origin.label
    return sky_object


Origin = Event | Pulse | Flare

SHARES: Final[Mapping[str, float]] = {
    "Ia": 8.0, "II": 7.0, "Ib/c": 6.5, "SLSN": 5.0, "TDE": 5.5, "AGN": 7.0, "RR Lyrae": 4.0, "Cepheid": 3.0,
    "Delta Scuti": 3.0, "EB": 3.0, "Dwarf Novae": 4.0, "uLens": 4.0, "M-dwarf Flare": 2.5, "91bg": 2.5, "Iax": 1.5,
    "SN-like/Other": 3.0, "KN": 1.0, "ILOT": 0.5, "CART": 0.5, "PISN": 0.5,
}  # fmt: skip
"""How many views of each class, relative to each other: neither nature's shares nor equal ones, which would let rare
neighbours swallow Ia."""
OF_A_SOURCE: Final = 900
"""Maximum number of origins of one class and source."""
TRIES: Final = 6
POOR: Final = frozenset({"gaia_alerts", "eros1"})


@dataclass(frozen=True, slots=True, eq=False)
class Origins:
    """Origins by class index and source, with what their views inherit.

    An origin that is no object of ``sky`` has a negative row, and its source, name and part are in ``stars``.
    """

    sky: SurveySample
    by_class: dict[int, dict[str, list[Origin]]]
    stars: dict[int, tuple[str, str, int]]

    def count(self) -> dict[str, int]:
        """Origins of each class."""
        return {ELASTICC.names[label]: sum(map(len, origins.values())) for label, origins in self.by_class.items()}

    def draw(self, label: int, rng: np.random.Generator) -> Origin:
        """Draw an origin of a class: its source by the square root of their numbers, then one of it."""
        sources = self.by_class[label]
        names = list(sources)
        weight = np.sqrt([len(sources[name]) for name in names])
        chosen = sources[names[rng.choice(len(names), p=weight / weight.sum())]]
        return chosen[int(rng.integers(len(chosen)))]


def find_origins(
    sky: SurveySample, part: int, *, seed: int = 0, flares: Path | None = None, most: int = OF_A_SOURCE
) -> Origins:
    """Fit every object of a part that has a class and enough points.

    Parameters
    ----------
    part : index into `PARTS`. flares : file of M-dwarf flares. most : of one class and source.
    """
    rng = np.random.default_rng(seed)
    usable = (sky.label >= 0) & (sky.part == part) & ~np.isin(sky.source, sorted(LABELS_TO_MEASURE))
    origins: dict[int, dict[str, list[Origin]]] = {}
    for label in np.unique(sky.label[usable]):
        for source in np.unique(sky.source[usable & (sky.label == label)]):
            rows = np.flatnonzero(usable & (sky.label == label) & (sky.source == source))
            fitted = _fitted(sky, rng.permutation(rows), int(label), most, rng)
            if fitted:
                origins.setdefault(int(label), {})[str(source)] = fitted
    stars: dict[int, tuple[str, str, int]] = {}
    for name, flare in read_flares(flares) if flares is not None else []:
        if part_of(name) == part:
            stars[flare.row] = "lclib_mdwarf", name, part
            origins.setdefault(flare.label, {}).setdefault("lclib_mdwarf", []).append(flare)
    return Origins(sky, origins, stars)


def add_made_up(origins: Origins, part: int, number: int, *, seed: int = 0) -> None:
    """Add synthetic origins for classes of periodic variables that have none."""
    rng = np.random.default_rng(seed)
    for label in sorted(PERIODIC - set(origins.by_class)):
        for pulse in made_up_pulses(label, number, rng):
            row = -1_000_000 - len(origins.stars)
            origins.stars[row] = "made up", f"{ELASTICC.names[label]}-{-row}", part
            origins.by_class.setdefault(label, {}).setdefault("made up", []).append(replace(pulse, row=row))


def _fitted(sky: SurveySample, rows: NDArray[np.intp], label: int, most: int, rng: np.random.Generator) -> list[Origin]:
    fitted: list[Origin] = []
    for row in rows[: 4 * most]:
        origin = pulse_of(sky, int(row), rng) if label in PERIODIC else event_of(sky, int(row))
        if origin is not None:
            fitted.append(origin)
        if len(fitted) >= most:
            break
    return fitted


def survey_weights(library: Library) -> dict[str, float]:
    """Weights by which surveys are looked through: those of many bands evenly, Rubin more, poor ones less."""
    own = {"rubin": 2.0} | dict.fromkeys(ONE_BAND | POOR, 0.4)
    return {name: own.get(name, 1.0) for name in library.surveys}


def make_views(
    origins: Origins,
    library: Library,
    number: int,
    *,
    seed: int = 0,
    colours: Colours | None = None,
    surveys: Mapping[str, float] | None = None,
    shares: Mapping[str, float] = SHARES,
    rules: ViewRules | None = None,
) -> SurveySample:
    """About ``number`` views of ``origins`` through the patterns of ``library``.

    Parameters
    ----------
    surveys : weights of the surveys to look through; default `survey_weights`. shares : of the classes.

    Notes
    -----
    A view that shows too little is drawn again with another origin, `TRIES` times, through the same survey; a class
    that a survey can hardly see therefore has fewer views there.
    """
    rng = np.random.default_rng(seed)
    colours, rules = colours or no_templates(), rules or ViewRules()
    weights = surveys or survey_weights(library)
    names = [name for name in weights if name in library.rows]
    p = np.array([weights[name] for name in names])
    present = {label: shares.get(ELASTICC.names[label], 0.0) for label in origins.by_class}
    total = sum(present.values())
    rows: list[SkyObject] = []
    groups: list[str] = []
    parts: list[int] = []
    for label, share in present.items():
        for count in range(round(number * share / total)):
            survey = names[int(rng.choice(len(names), p=p / p.sum()))]
            drawn = _one(origins, library, label, survey, colours, rules, rng)
            if drawn is not None:
                row, group, part = drawn
                row.object_id = f"{row.object_id}~{seed}.{count}"
                rows.append(row)
                groups.append(group)
                parts.append(part)
    return collect(rows, groups, parts)


def _one(
    origins: Origins,
    library: Library,
    label: int,
    survey: str,
    colours: Colours,
    rules: ViewRules,
    rng: np.random.Generator,
) -> tuple[SkyObject, str, int] | None:
    """Return a view with the name of its origin, its group and part."""
    for _ in range(TRIES):
        origin = origins.draw(label, rng)
        sky_object = view(origin, library.draw(survey, rng), library, colours, rules, rng)
        if sky_object is None:
            continue
        sky, row = origins.sky, origin.row
        if row < 0:
            source, name, part = origins.stars[row]
            sky_object.object_id, sky_object.raw_label, group = name, source, name
        else:
            sky_object.object_id, sky_object.raw_label = str(sky.object_id[row]), str(sky.source[row])
            group, part = str(sky.group[row]), int(sky.part[row])
            sky_object.period, sky_object.mwebv = float(sky.period[row]), float(sky.mwebv[row])
        return sky_object, group, part
    return None


def views_of(
    sky: SurveySample,
    part: str,
    number: int,
    *,
    seed: int = 0,
    data: Path | None = None,
    through: Sequence[str] = (),
    classes: Sequence[str] = (),
    copies: int = 0,
) -> SurveySample:
    """Return views of one part through its own patterns; templates and flares are taken from the folder ``data``.

    Parameters
    ----------
    through : the surveys of the patterns, evenly; default: all, by `survey_weights`. classes : classes to include;
    default: all. copies : origins per published fit (`training.reobserve.templates`), in addition to the real ones.
    """
    flares = None if data is None else data / "real" / "lclib_mdwarf.parquet"
    templates = None if data is None else data / "real" / "templates"
    side = PARTS.index(part)
    library = build_library(sky, sky.part == side)
    if templates is not None and copies:
        sky = join([sky, template_objects(templates, side, copies, seed=seed)])
    origins = find_origins(sky, side, seed=seed, flares=flares)
    surveys = dict.fromkeys(through, 1.0) if through else None
    shares = {name: share for name, share in SHARES.items() if name in classes} if classes else SHARES
    return make_views(
        origins, library, number, seed=seed, colours=read_colours(templates), surveys=surveys, shares=shares
    )
