"""Sources in the Galaxy and in nuclei that do not repeat: microlensing, active nuclei, dwarf novae, flares.

Microlensing by one star or a pair of stars, and of one or two sources; without parallax.

Class uLens. A single lens follows Paczynski 1986 (eq. 1). A binary lens follows the lens equation of two point masses,
solved as the complex quintic of Witt & Mao 1995 at every point within a few Einstein radii: its light curves have
several peaks and the sharp rises and falls of caustic crossings. Blended light that is not lensed is added; colours
are constant. Events happen at a uniform time with a log-normal Einstein time about 25 days (Wyrzykowski+ 2015).
Notable: the source is a point, so at a caustic its magnification is cut at what a disc of finite size would reach.

Aperiodic variables: active nuclei, dwarf novae, M-dwarf flares.

Active nuclei: damped random walk in magnitude (Kelly+ 2009; amplitudes and time scales after MacLeod+ 2010), driven by
the same shocks in every band but slower, weaker and later towards the red, over a red host. Dwarf novae: outbursts with
a linear rise and decline in magnitude around a plateau (Otulakowska-Hypka+ 2016), every fourth a superoutburst. M-dwarf
flares: the empirical template of Davenport+ 2014 on a 9,000 to 14,000 K blackbody.
Notable: flares last minutes, so they are drawn around visits; a volume-complete draw would be all but never seen.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from training.simulate import photometry
from training.simulate.cadence import SURVEY_NIGHTS, SURVEY_START, TEMPLATE_SPAN, Signal, Visits, subtract_template
from training.simulate.periodic import star_magnitudes
from training.simulate.photometry import (
    MILKY_WAY_DUST,
    WAVELENGTH,
    Floats,
    Ints,
    colours_of_temperature,
    magnitude_to_njy,
)

Complexes: TypeAlias = NDArray[np.complex128]

BINARY_SOURCES, BINARY_LENSES = 0.1, 0.3  # shares of the events
FAR = 3.5  # Einstein radii beyond which two lenses act as one, to better than 2 %
RESIDUAL = 1e-4  # a root of the quintic is an image if it solves the lens equation this well


@dataclass(frozen=True, eq=False)
class _Lenses:
    """The lenses of ``n`` events: ``paired`` bool[n], mass ``ratio``, ``separation``, ``angle`` of the track in rad.

    ``limit`` is the magnification that the source's size allows.
    """

    paired: NDArray[np.bool_]
    ratio: Floats
    separation: Floats
    angle: Floats
    limit: Floats


def microlensing(rng: np.random.Generator, visits: Visits, milky_way: Floats) -> Signal:
    """Stars magnified by a passing mass; three in ten lenses and one in ten sources are double."""
    n = visits.n
    star = magnitude_to_njy(
        star_magnitudes(rng, rng.uniform(16.5, 23.0, n), np.exp(rng.normal(np.log(4700.0), 0.15, n)), milky_way)
    )
    crossing = np.exp(rng.normal(np.log(25.0), 0.9, n)).clip(2.0, 400.0)  # Einstein time, days
    peak = rng.uniform(SURVEY_START, SURVEY_START + SURVEY_NIGHTS, n)
    nearest = rng.uniform(0.0, 1.0, (2, n)) + 0.003
    offset = crossing * rng.normal(0.0, 1.2, n)
    kind = rng.random(n)
    share = np.where(kind < BINARY_SOURCES, rng.uniform(0.1, 0.5, n), 0.0)
    lenses = _pairs(rng, kind > 1.0 - BINARY_LENSES)
    source = rng.beta(2.5, 1.0, n)  # the rest is blended light that is not lensed

    def total(mjd: Floats, own: Ints, band: Ints) -> Floats:
        first = _gain((mjd - peak[own]) / crossing[own], nearest[0, own], lenses, own)
        second = magnification((mjd - peak[own] - offset[own]) / crossing[own], nearest[1, own])
        gain = (1.0 - share[own]) * first + share[own] * second
        return star[own, band] * (1.0 + source[own] * (gain - 1.0))

    return subtract_template(rng, visits, total)


def magnification(time: Floats, nearest: Floats) -> Floats:
    """Point-lens magnification at ``time`` Einstein times from closest approach ``nearest`` (Paczynski 1986, eq. 1)."""
    u2 = time**2 + nearest**2
    gain: Floats = (u2 + 2.0) / np.sqrt(u2 * (u2 + 4.0))
    return gain


def binary_magnification(source: Complexes, ratio: Floats, separation: Floats) -> Floats:
    """Magnification of point sources by two masses of sum 1, f64[P].

    Parameters
    ----------
    source : positions in Einstein radii of the total mass, from the midpoint of the lenses, which lie on the real axis.
    ratio : mass of the lens at +separation / 2 over that of the lens at -separation / 2.
    """
    right = ratio / (1.0 + ratio)
    masses = np.stack([right, 1.0 - right], axis=-1)[:, None, :]
    places = (0.5 * separation)[:, None, None] * np.array([1.0, -1.0])
    companion = np.zeros((len(source), 5, 5), dtype=np.complex128)
    companion[:, 1:, :-1] = np.eye(4)
    coefficients = _quintic(source, 0.5 * separation, 0.5 - right)
    companion[:, :, -1] = -coefficients[:, :5] / coefficients[:, 5:]
    image = np.linalg.eigvals(companion)
    distance = image.conj()[..., None] - places
    solved = image - (masses / distance).sum(axis=-1)
    shear = np.abs((masses / distance**2).sum(axis=-1)) ** 2
    real = np.abs(solved - source[:, None]) < RESIDUAL
    gain: Floats = np.where(real, 1.0 / np.maximum(np.abs(1.0 - shear), 1e-9), 0.0).sum(axis=1)
    return gain


def _pairs(rng: np.random.Generator, paired: NDArray[np.bool_]) -> _Lenses:
    n = len(paired)
    return _Lenses(
        paired=paired,
        ratio=10.0 ** rng.uniform(-1.5, 0.0, n),
        separation=10.0 ** rng.uniform(-0.25, 0.3, n),
        angle=rng.uniform(0.0, 2.0 * np.pi, n),
        limit=10.0 ** rng.uniform(0.9, 1.7, n),
    )


def _gain(time: Floats, nearest: Floats, lenses: _Lenses, own: Ints) -> Floats:
    """Magnification of the first source of each event, by one lens or two."""
    gain = magnification(time, nearest)
    rows = np.flatnonzero(lenses.paired[own] & (np.hypot(time, nearest) < FAR))
    which = own[rows]
    track = (time[rows] + 1j * nearest[rows]) * np.exp(1j * lenses.angle[which])
    # events are aimed at the centre of mass, which is right of the midpoint by this much of the separation
    ratio, separation = lenses.ratio[which], lenses.separation[which]
    track += 0.5 * separation * (ratio - 1.0) / (ratio + 1.0)
    gain[rows] = np.minimum(binary_magnification(track, ratio, separation), lenses.limit[which])
    return gain


def _quintic(source: Complexes, half: Floats, imbalance: Floats) -> Complexes:
    """Coefficients, lowest first, of the polynomial whose roots hold the images (Witt & Mao 1995, with total mass 1).

    The lenses are at +``half`` and -``half`` with masses 1/2 -+ ``imbalance``.
    """
    w, v, z, d = source, source.conj(), half, imbalance
    return np.stack(
        [
            z**2
            * (4 * d**2 * w + 2 * d * z + 4 * d * w * v * z + v * z**2 + w * v**2 * z**2 - 2 * d * z**3 - w * z**4),
            -4 * d * w * z - 4 * d**2 * z**2 - z**2 - 2 * w * v * z**2 - 4 * d * v * z**3 - v**2 * z**4 + z**6,
            w + 2 * d * z - 4 * d * w * v * z - 2 * w * v**2 * z**2 + 4 * d * z**3 + 2 * w * z**4,
            2 * w * v + 4 * d * v * z + 2 * v**2 * z**2 - 2 * z**4,
            -v + w * v**2 - 2 * d * z - w * z**2,
            z**2 - v**2,
        ],
        axis=1,
    )


WALK_LEAD = 100.0  # days of the walk before the first template, for bands that lag
WALK_DAYS = int(WALK_LEAD + TEMPLATE_SPAN) + SURVEY_NIGHTS + 2
OUTBURSTS = 160
FLARES = 6


def active_nucleus(rng: np.random.Generator, visits: Visits, milky_way: Floats) -> Signal:
    """Quasars and Seyferts, 0.03 < z < 3.5, r < 23.5; class AGN.

    At rest wavelength l the walk's amplitude goes as l^-0.48 and its time scale as l^0.17 (MacLeod+ 2010); its lag, as
    l^(4/3) and L^(1/3) like the light travel time across a thin disc, is about 2 days at 4000 Angstrom and M -23
    (Fausnaugh+ 2016).
    """
    redshift, r = _nuclei(rng, visits.n)
    slope = rng.normal(-0.5, 0.25, visits.n)[:, None]  # F_nu ~ nu^slope
    colours = -2.5 * slope * np.log10(WAVELENGTH[2] / WAVELENGTH)
    mean = r[:, None] + colours + MILKY_WAY_DUST * milky_way[:, None]
    host = r[:, None] + rng.normal(1.0, 1.0, (visits.n, 1)) + np.array([2.6, 0.8, 0.0, -0.4, -0.6, -0.8])
    galaxy = magnitude_to_njy(host + MILKY_WAY_DUST * milky_way[:, None])
    spread = 0.18 * np.exp(0.4 * rng.standard_normal(visits.n))  # mag at rest 4000 Angstrom
    rest = WAVELENGTH / (4000.0 * (1.0 + redshift[:, None]))
    timescale = 200.0 * np.exp(0.6 * rng.standard_normal(visits.n)) * (1.0 + redshift)
    walk = _damped_walk(rng, timescale[:, None] * rest**0.17)
    amplitude = spread[:, None] * rest**-0.48
    absolute = r - photometry.distance_modulus(redshift)
    crossing = 2.0 * 10.0 ** (-0.4 / 3.0 * (absolute + 23.0)) * np.exp(0.4 * rng.standard_normal(visits.n))
    lag = np.minimum(crossing * (1.0 + redshift), 30.0)[:, None] * rest ** (4.0 / 3.0)

    def total(mjd: Floats, own: Ints, band: Ints) -> Floats:
        day = np.maximum(mjd - (SURVEY_START - TEMPLATE_SPAN - WALK_LEAD) - lag[own, band], 0.0)
        left = np.minimum(day.astype(np.int64), WALK_DAYS - 2)
        start, end = walk[left, own, band], walk[left + 1, own, band]
        change = amplitude[own, band] * (start + (day - left) * (end - start))
        return galaxy[own, band] + magnitude_to_njy(mean[own, band] + change)

    signal = subtract_template(rng, visits, total)
    return Signal(signal.difference, signal.steady, redshift)


def _nuclei(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Redshift and apparent r of ``n`` nuclei brighter than 23.5, log-normal in luminosity with evolving density."""
    redshift, r = np.empty(0), np.empty(0)
    while len(r) < n:
        z = photometry.redshifts(rng, 4096, 0.03, 3.5, 0.5)
        absolute = rng.normal(-22.0, 1.4, len(z)) - 0.5 * z
        apparent = absolute + photometry.distance_modulus(z) - 1.25 * np.log10(1.0 + z)
        seen = (apparent < 23.5) & (apparent > 16.0)
        redshift, r = np.concatenate([redshift, z[seen]]), np.concatenate([r, apparent[seen]])
    return redshift[:n], r[:n]


def _damped_walk(rng: np.random.Generator, timescale: Floats) -> Floats:
    """Unit-variance Ornstein-Uhlenbeck processes on a daily grid, f64[WALK_DAYS, n, bands].

    ``timescale`` f64[n, bands] in days; the bands of an object feel the same shocks.
    """
    keep = np.exp(-1.0 / timescale)
    shock = rng.standard_normal((WALK_DAYS, len(timescale), 1))
    walk: Floats = shock * np.sqrt(1.0 - keep**2)
    walk[0] = shock[0]
    for day in range(1, WALK_DAYS):
        walk[day] += keep * walk[day - 1]
    return walk


def dwarf_nova(rng: np.random.Generator, visits: Visits, milky_way: Floats) -> Signal:
    """Accreting white dwarfs that brighten by 2 to 7 mag every few weeks to years; class Dwarf Novae.

    Source: Otulakowska-Hypka+ 2016 (durations, amplitudes, recurrence), Warner 1995.
    """
    n = visits.n
    peak = rng.uniform(16.2, 22.5, n)
    height = np.clip(rng.normal(4.0, 1.2, n), 1.8, 8.0)
    quiet = magnitude_to_njy(star_magnitudes(rng, peak + height, np.exp(rng.normal(np.log(6500.0), 0.2, n)), milky_way))
    bright = magnitude_to_njy(star_magnitudes(rng, peak, np.exp(rng.normal(np.log(13000.0), 0.2, n)), milky_way))
    recurrence = np.exp(rng.uniform(np.log(18.0), np.log(600.0), n))
    gaps = recurrence[:, None] * rng.gamma(4.0, 0.25, (n, OUTBURSTS))
    begin = SURVEY_START - TEMPLATE_SPAN - 30.0 - rng.random((n, 1)) * recurrence[:, None] + np.cumsum(gaps, axis=1)
    superburst = rng.random((n, OUTBURSTS)) < 0.25
    held = np.where(superburst, 11.0, 2.5) * np.exp(0.35 * rng.standard_normal((n, OUTBURSTS)))
    fainter = np.where(superburst, 0.0, np.abs(rng.normal(0.4, 0.3, (n, OUTBURSTS))))
    rise, fade = np.exp(rng.normal(np.log(0.9), 0.4, n)), np.exp(rng.normal(np.log(1.6), 0.35, n))  # days; days per mag
    stride = 1e6
    ladder = (begin - SURVEY_START + stride * np.arange(n)[:, None]).ravel()

    def total(mjd: Floats, own: Ints, band: Ints) -> Floats:
        last = np.searchsorted(ladder, mjd - SURVEY_START + stride * own, side="right") - 1
        last = np.clip(last - own * OUTBURSTS, 0, OUTBURSTS - 1)
        age = mjd - begin[own, last]
        dim = fainter[own, last] + height[own] * np.clip(1.0 - age / rise[own], 0.0, None)
        dim += 0.06 * np.maximum(age, 0.0) + np.maximum(age - rise[own] - held[own, last], 0.0) / fade[own]
        return quiet[own, band] + np.where(age > 0.0, bright[own, band] * 10.0 ** (-0.4 * dim), 0.0)

    return subtract_template(rng, visits, total)


def dwarf_flare(rng: np.random.Generator, visits: Visits, milky_way: Floats) -> Signal:
    """Flares on cool dwarfs, one to six per object, minutes to hours long, strongest in u; class M-dwarf Flare.

    Source: Davenport+ 2014 (template), Kowalski+ 2013 (temperatures).
    """
    n = visits.n
    quiet = magnitude_to_njy(star_magnitudes(rng, rng.uniform(16.2, 23.5, n), rng.normal(3150.0, 200.0, n), milky_way))
    hot = 10.0 ** (-0.4 * colours_of_temperature(rng.uniform(9000.0, 14000.0, n)))
    shape = hot / hot[:, :1] * 10.0 ** (-0.4 * (MILKY_WAY_DUST - MILKY_WAY_DUST[0]) * 0.7 * milky_way[:, None])
    begin = np.searchsorted(visits.owner, np.arange(n))
    count = np.maximum(np.bincount(visits.owner, minlength=n), 1)
    number = 1 + rng.poisson(1.5, n)
    extra = np.zeros(len(visits.mjd))
    own = visits.owner
    for flare in range(FLARES):
        half = np.exp(rng.normal(np.log(18.0 / 1440.0), 0.9, n))  # half-maximum duration in days
        near = np.minimum(begin + (rng.random(n) * count).astype(np.int64), len(own) - 1)
        peak = visits.mjd[near] - half * rng.exponential(1.0, n)
        strength = quiet[:, 0] * 10.0 ** rng.uniform(0.2, 2.6, n) * (flare < number)
        extra += strength[own] * shape[own, visits.band] * flare_template((visits.mjd - peak[own]) / half[own])
    return Signal(difference=extra, steady=quiet[own, visits.band], redshift=np.zeros(n))


def flare_template(x: Floats) -> Floats:
    """Relative flux of a flare at ``x`` half-widths from its peak (Davenport+ 2014, eqs 1 and 4)."""
    early, late = np.clip(x, -1.0, 0.0), np.clip(x, 0.0, 1e3)
    rise = 1.0 + 1.941 * early - 0.175 * early**2 - 2.246 * early**3 - 1.125 * early**4
    decay = 0.6890 * np.exp(-1.600 * late) + 0.3030 * np.exp(-0.2783 * late)
    return np.where(x < 0.0, np.where(x > -1.0, np.maximum(rise, 0.0), 0.0), decay)
