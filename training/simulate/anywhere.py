"""Light curves of every class at every brightness, observed by random surveys.

The cadence, bands and depth of surveys range from sparse all-sky surveys to nightly visits of a single field. Every
position has a random survey, drawn from ranges that include those of the Rubin Observatory, ZTF, Pan-STARRS, DES, SNLS,
SDSS, Foundation, Gaia, OGLE and Catalina, independently of the class of the object, so that bands, cadence and depth do
not reveal the class. Three positions in ten are observed by Rubin (`training.simulate.cadence`).

The astrophysics is that of the Rubin simulation; distances and measurements differ:

- explosions are moved to a distance at which their peak magnitude is uniform between the survey's limit and saturation,
  and stars and nuclei are scaled to such a magnitude, so that brightness reveals a class only with a redshift;
- reported errors are inaccurate by object and band, with an unreported error proportional to total flux, outliers and
  correlated errors of a night; zero points and templates have errors; histories are of forced photometry or detections
  only, of alerts or archives, some with upper limits (:class:`ReportStyles`).

:class:`ReportStyles` is independent of the class. Its ranges are those measured on real surveys: scatter of 0.8 to 2.5
reported errors, plus 0 to 1 % of the total flux.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import magnitude_of, njy_of_magnitude
from nightjar_alerts.training.data.dataset import LabelledObject
from nightjar_alerts.training.simulate import cadence, host, photometry, transients
from nightjar_alerts.training.simulate.cadence import (
    MINIMUM_DETECTIONS,
    SURVEY_NIGHTS,
    SURVEY_START,
    MeasuredPoints,
    Signal,
    Visits,
    objects,
)
from nightjar_alerts.training.simulate.photometry import Floats, Ints
from nightjar_alerts.training.simulate.transient_classes import KINDS

RUBIN_SHARE: Final = 0.3
# bands of a survey, as indices of u g r i z Y, and the share of such surveys
BAND_SETS: Final = (
    ((1, 2), 0.26), ((1, 2, 3), 0.12), ((1, 2, 3, 4), 0.24), ((0, 1, 2, 3, 4), 0.06), ((1, 2, 3, 4, 5), 0.06),
    ((0, 1, 2, 3, 4, 5), 0.06), ((2,), 0.05), ((3,), 0.06), ((1,), 0.03), ((2, 3), 0.03), ((0, 1), 0.01),
    ((1, 3), 0.02),
)  # fmt: skip
GAP: Final = (0.7, 12.0)  # days from one clear night with a visit to the next, within a season
DEPTH: Final = (17.0, 25.0)  # 5 sigma, AB
COLOUR_OF_DEPTH: Floats = np.array([-0.7, 0.1, 0.0, -0.3, -0.9, -1.6])  # depth of a band relative to r
YEARS: Final = (0.4, 9.0)  # length of a survey of variables
MAX_NIGHTS: Final = 420


def positions(rng: np.random.Generator, n: int, start: Floats | None = None, end: Floats | None = None) -> Visits:
    """Draw the visits of ``n`` positions, limited to [start, end] (f64[n], MJD) if given."""
    rubin = rng.random(n) < RUBIN_SHARE
    parts = [
        cadence.visits(rng, n, start, end),
        _random_survey(rng, n, start, end),
    ]
    chosen = [_select(part, rubin == is_rubin) for part, is_rubin in zip(parts, (True, False), strict=True)]
    object_index, mjd, band, depth = (
        np.concatenate([getattr(part, key) for part in chosen]) for key in ("object_index", "mjd", "band", "depth")
    )
    order = np.lexsort((mjd, object_index))
    return Visits(n, object_index[order], mjd[order], band[order], depth[order])


def _select(part: Visits, flags: NDArray[np.bool_]) -> Visits:
    rows = flags[part.object_index]
    return Visits(part.n, part.object_index[rows], part.mjd[rows], part.band[rows], part.depth[rows])


def _log_uniform(rng: np.random.Generator, limits: tuple[float, float], size: int | tuple[int, ...]) -> Floats:
    drawn: Floats = np.exp(rng.uniform(np.log(limits[0]), np.log(limits[1]), size))
    return drawn


def _random_survey(rng: np.random.Generator, n: int, start: Floats | None, end: Floats | None) -> Visits:
    if start is None or end is None:
        length = 365.25 * _log_uniform(rng, YEARS, n)
        first: Floats = cadence.SURVEY_START + rng.uniform(0.0, 365.0, n)
        last: Floats = first + length
    else:
        first, last = start - rng.uniform(0.0, 40.0, n), end
    night, object_index = _nights(rng, first, last)
    band, row = _bands(rng, n, object_index)
    hour = rng.uniform(0.0, 0.05, len(row)) + np.where(rng.random(n) < 0.5, 0.01, 0.08)[object_index[row]] * rng.random(
        len(row)
    )
    nightly = 0.35 * np.minimum(rng.standard_normal(len(night)), 1.0) - 0.1 * rng.exponential(1.0, len(night))
    deepest = rng.uniform(*DEPTH, n)
    level = deepest[:, None] + COLOUR_OF_DEPTH + 0.3 * rng.standard_normal((n, 6))
    depth = level[object_index[row], band] + nightly[row]
    return Visits(n, object_index[row], night[row] + hour, band, depth)


def _nights(rng: np.random.Generator, first: Floats, last: Floats) -> tuple[Floats, Ints]:
    """Return the nights (MJD) with a visit within the observing season, and the object index of each."""
    n = len(first)
    gap = np.maximum(_log_uniform(rng, GAP, n), (last - first) / MAX_NIGHTS)
    scatter = rng.uniform(0.05, 1.0, (n, 1))
    steps = gap[:, None] * np.exp(scatter * rng.standard_normal((n, MAX_NIGHTS)))
    steps = np.where(rng.random(n)[:, None] < 0.6, np.maximum(np.round(steps), 1.0), steps)
    night = first[:, None] + np.cumsum(steps, axis=1) - steps[:, :1] * rng.random((n, 1))
    season = np.where(rng.random(n) < 0.25, 366.0, rng.uniform(120.0, 300.0, n))
    day_of_year = np.mod(night + rng.uniform(0.0, 365.25, (n, 1)), 365.25)
    spell = np.floor(night / 5.0).astype(np.int64)
    cloudy = np.mod(spell * 2_654_435_761 + rng.integers(0, 2**31, (n, 1)), 1000) < rng.integers(0, 350, (n, 1))
    object_index, column = np.nonzero((night <= last[:, None]) & (day_of_year < season[:, None]) & ~cloudy)
    return night[object_index, column], object_index.astype(np.int64)


def _bands(rng: np.random.Generator, n: int, object_index: Ints) -> tuple[Ints, Ints]:
    """Return band and night of every visit: all bands of a survey in a night, or some of them."""
    sets, shares = zip(*BAND_SETS, strict=True)
    chosen = rng.choice(len(sets), n, p=np.array(shares) / sum(shares))
    has = np.zeros((len(sets), 6), dtype=np.bool_)
    for index, bands in enumerate(sets):
        has[index, list(bands)] = True
    number = has[chosen].sum(1)
    chance = np.where(rng.random(n) < 0.35, 1.0, rng.uniform(1.0 / number, 1.0))
    is_visited = has[chosen][object_index] & (rng.random((len(object_index), 6)) < chance[object_index, None])
    fallback = (has[chosen][object_index] * rng.random((len(object_index), 6))).argmax(1)
    empty = ~is_visited.any(1)
    is_visited[np.flatnonzero(empty), fallback[empty]] = True
    row, band = np.nonzero(is_visited)
    return band.astype(np.int64), row.astype(np.int64)


CANDIDATES: Final = 128
BRIGHTEST: Final = 14.8  # AB
NEAREST: Final = 5e-4  # redshift
MIN_SNR: Final = 4.0
OVERSTATED: Final = 0.25  # share of surveys with inaccurate errors that overestimate them
MAX_OVERSTATED: Final = 2.5  # largest factor of overestimated errors
NO_HOST: Final = 0.75  # share of objects without a published host
_HOST_COLUMNS: NDArray[np.bool_] = np.array([name.startswith("hostgal") for name in METADATA_COLUMNS])
_MODULI: Floats = photometry.distance_modulus(np.linspace(NEAREST, photometry.MAX_REDSHIFT, 8000))
_REDSHIFTS: Floats = np.linspace(NEAREST, photometry.MAX_REDSHIFT, 8000)

Variable = Callable[[np.random.Generator, Visits, Floats], Signal]


@dataclass(frozen=True, eq=False)
class ReportStyles:
    """Properties of the published data of the surveys of ``n`` objects.

    ``floor`` f64[n]: reported error over total flux; ``error_ratio`` f64[n, 6]: true over reported error;
    ``unreported`` f64[n]: further scatter over total flux; ``outliers`` f64[n]: probability of an outlier; ``nightly``
    f64[n]: share of the scatter that is common to the points of a night; ``threshold`` f64[n]: S/N of a detection;
    ``forced``, ``archive``, ``limits``, ``median`` bool[n]: with forced photometry; with points outside the alert
    window; non-detections are upper limits; flux of variables is relative to the median; ``zero`` f64[n, 6]: factor of
    the zero point; ``before`` f64[n]: days of history before the first detection.
    """

    floor: Floats
    error_ratio: Floats
    unreported: Floats
    outliers: Floats
    nightly: Floats
    threshold: Floats
    forced: NDArray[np.bool_]
    archive: NDArray[np.bool_]
    limits: NDArray[np.bool_]
    median: NDArray[np.bool_]
    zero: Floats
    before: Floats


def candidates(rng: np.random.Generator, name: str, first_id: int, variable: Variable | None) -> list[LabelledObject]:
    """Draw `CANDIDATES` objects of class ``name`` and return those that a survey detects.

    ``variable`` computes the flux of classes that are not explosions.
    """
    milky_way = photometry.milky_way_dust(rng, CANDIDATES, galactic=name not in host.HOSTS)
    visits, signal = _explosions(rng, name, milky_way) if variable is None else _variables(rng, milky_way, variable)
    report = _report(rng, CANDIDATES)
    flux, error = _measure(rng, visits, signal, report, is_variable=variable is not None)
    real = np.abs(signal.difference) >= MIN_SNR * error  # excludes objects detected by outliers only
    detected, is_published = _published(visits, flux, error, report, real)
    flux, error = _limits(visits, flux, error, detected, report)
    trigger = np.full(CANDIDATES, np.inf)
    np.minimum.at(trigger, visits.object_index[detected & is_published], visits.mjd[detected & is_published])
    metadata = host.metadata(rng, name, signal.redshift, milky_way)
    metadata[np.ix_(rng.random(CANDIDATES) < NO_HOST, _HOST_COLUMNS)] = np.nan
    return objects(
        name, first_id, MeasuredPoints(visits, flux, error, detected, is_published, trigger, metadata, signal.redshift)
    )


def _report(rng: np.random.Generator, n: int) -> ReportStyles:
    accurate = rng.random((n, 1)) < 0.4  # surveys with accurate errors
    error_ratio = np.exp(rng.uniform(np.log(0.8), np.log(2.5), (n, 1)) + 0.15 * rng.standard_normal((n, 6)))
    smaller = np.exp(rng.uniform(-np.log(MAX_OVERSTATED), 0.0, (n, 1)) + 0.1 * rng.standard_normal((n, 6)))
    error_ratio = np.where(rng.random((n, 1)) < OVERSTATED, smaller, error_ratio)
    return ReportStyles(
        floor=np.exp(rng.uniform(np.log(0.002), np.log(0.06), n)),
        error_ratio=np.where(accurate, 1.0, error_ratio),
        unreported=np.where(rng.random(n) < 0.3, 0.0, rng.uniform(0.0, 0.01, n)),
        outliers=np.where(rng.random(n) < 0.5, 0.001, rng.uniform(0.0, 0.02, n)),
        nightly=np.where(rng.random(n) < 0.6, 0.0, rng.uniform(0.0, 0.7, n)),
        threshold=rng.choice([3.0, 4.0, 5.0, 5.0, 5.0, 6.0], n),
        forced=rng.random(n) < 0.5,
        archive=rng.random(n) < 0.5,
        limits=rng.random(n) < 0.06,
        median=rng.random(n) < 0.5,
        zero=1.0 + 0.03 * rng.standard_normal((n, 6)),
        before=np.where(rng.random(n) < 0.5, 30.0, rng.uniform(0.0, 120.0, n)),
    )


def _explosions(rng: np.random.Generator, name: str, milky_way: Floats) -> tuple[Visits, Signal]:
    first, last = SURVEY_START, SURVEY_START + SURVEY_NIGHTS
    events = moved(rng, transients.draw(rng, KINDS[name], milky_way, first, last))
    visits = positions(rng, CANDIDATES, *transients.window(events))
    difference = transients.flux(events, visits)
    visits = _scaled_depth(rng, visits, difference)
    steady = _galaxy_light(rng, visits, difference)
    return visits, Signal(difference, steady, events.redshift)


def moved(rng: np.random.Generator, events: transients.Events) -> transients.Events:
    """Move explosions to distances at which their peak magnitudes are uniform, down to the deepest limit."""
    magnitude = magnitude_of(events.peak_flux / (1.0 + events.redshift))
    target = rng.uniform(BRIGHTEST, photometry.FAINTEST_PEAK, len(magnitude))
    modulus = photometry.distance_modulus(events.redshift) + target - magnitude
    redshift = np.interp(modulus, _MODULI, _REDSHIFTS)
    absolute = magnitude - photometry.distance_modulus(events.redshift)
    peak_flux = njy_of_magnitude(absolute + photometry.distance_modulus(redshift)) * (1.0 + redshift)
    return replace(events, redshift=redshift, peak_flux=peak_flux)


def _brightest(visits: Visits, light: Floats) -> Floats:
    """Return the largest flux of each object in any visit, nJy."""
    largest = np.full(visits.n, 1e-3)
    np.maximum.at(largest, visits.object_index, light)
    return largest


def _scaled_depth(rng: np.random.Generator, visits: Visits, light: Floats) -> Visits:
    """Shift the depth of the visits so that the S/N of each object at its brightest is between 6 and 400."""
    snr = np.exp(rng.uniform(np.log(6.0), np.log(400.0), visits.n))
    depth = magnitude_of(_brightest(visits, np.abs(light)) * 5.0 / snr)
    mean = np.bincount(visits.object_index, visits.depth, visits.n) / np.maximum(
        np.bincount(visits.object_index, minlength=visits.n), 1
    )
    shift = np.clip(depth - mean, -9.0, 3.0)
    return replace(visits, depth=visits.depth + shift[visits.object_index])


def _galaxy_light(rng: np.random.Generator, visits: Visits, light: Floats) -> Floats:
    """Draw the flux of the host in the aperture, nJy: from 0 to ten times the peak of the explosion."""
    share = np.where(rng.random(visits.n) < 0.4, 0.0, np.exp(rng.uniform(np.log(0.05), np.log(10.0), visits.n)))
    steady: Floats = (share * _brightest(visits, light))[visits.object_index]
    return steady


def _variables(rng: np.random.Generator, milky_way: Floats, variable: Variable) -> tuple[Visits, Signal]:
    visits = positions(rng, CANDIDATES)
    signal = variable(rng, visits, milky_way)
    brightest = magnitude_of(_brightest(visits, signal.difference + signal.steady))
    scale = njy_of_magnitude(rng.uniform(BRIGHTEST - 1.0, 23.0, CANDIDATES)) / njy_of_magnitude(brightest)
    difference, steady = (part * scale[visits.object_index] for part in (signal.difference, signal.steady))
    visits = _scaled_depth(rng, visits, difference)
    return visits, Signal(difference, steady, signal.redshift)


def _measure(
    rng: np.random.Generator, visits: Visits, signal: Signal, report: ReportStyles, *, is_variable: bool
) -> tuple[Floats, Floats]:
    """Return reported flux and error, f64[P] nJy."""
    object_index, band, points = visits.object_index, visits.band, len(visits.object_index)
    sky = njy_of_magnitude(visits.depth) / 5.0
    total = np.maximum(signal.difference + signal.steady, 0.0)
    error = np.hypot(sky, report.floor[object_index] * np.abs(signal.difference))
    error *= np.exp(0.1 * rng.standard_normal(points))
    night = np.unique(
        np.stack([object_index, np.floor(visits.mjd).astype(np.int64), band]), axis=1, return_inverse=True
    )[1]
    common = rng.standard_normal(night.max(initial=0) + 1)[night]
    share = report.nightly[object_index]
    deviate = np.sqrt(1.0 - share) * rng.standard_normal(points) + np.sqrt(share) * common
    deviate *= np.where(rng.random(points) < report.outliers[object_index], rng.uniform(3.0, 12.0, points), 1.0)
    scatter = np.hypot(error * report.error_ratio[object_index, band], report.unreported[object_index] * total)
    flux = report.zero[object_index, band] * signal.difference + scatter * deviate
    if is_variable:
        flux = np.where(report.median[object_index], flux - _medians(visits, flux)[object_index, band], flux)
    elif points:
        in_template = np.where(rng.random(visits.n) < 0.15, rng.uniform(0.0, 0.1, visits.n), 0.0)
        flux = flux - (in_template * _brightest(visits, signal.difference))[object_index]
    return flux, error


def _medians(visits: Visits, flux: Floats) -> Floats:
    """Return the median flux of every object and band, [n, 6]; 0 without points."""
    medians = np.zeros((visits.n, 6))
    key = visits.object_index * 6 + visits.band
    order = np.lexsort((flux, key))
    present, start, count = np.unique(key[order], return_index=True, return_counts=True)
    medians.ravel()[present] = flux[order][start + count // 2]
    return medians


def _published(
    visits: Visits, flux: Floats, error: Floats, report: ReportStyles, real: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return masks of detections and of published points, both bool[P]; an object needs two ``real`` detections."""
    object_index = visits.object_index
    detected = np.abs(flux) >= report.threshold[object_index] * error
    first, last = np.full(visits.n, np.inf), np.full(visits.n, -np.inf)
    np.minimum.at(first, object_index[detected], visits.mjd[detected])
    np.maximum.at(last, object_index[detected], visits.mjd[detected])
    enough = np.bincount(object_index[detected & real], minlength=visits.n) >= MINIMUM_DETECTIONS
    alerted = (visits.mjd >= first[object_index] - report.before[object_index]) & (visits.mjd <= last[object_index])
    is_published = (
        (report.archive[object_index] | alerted)
        & (report.forced[object_index] | report.limits[object_index] | detected)
        & enough[object_index]
    )
    return detected, is_published


def _limits(
    visits: Visits, flux: Floats, error: Floats, detected: NDArray[np.bool_], report: ReportStyles
) -> tuple[Floats, Floats]:
    """Replace flux by 0, with the limit as its error, for points of which only a limit is published."""
    limit = report.limits[visits.object_index] & ~detected
    return np.where(limit, 0.0, flux), error
