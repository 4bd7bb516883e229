"""Aperiodic variables: active nuclei, dwarf novae, M-dwarf flares.

Active nuclei: damped random walk in magnitude (Kelly+ 2009; amplitudes and time scales after MacLeod+ 2010), driven by
the same shocks in every band but slower, weaker and later towards the red, over a red host. Dwarf novae: outbursts with
a linear rise and decline in magnitude around a plateau (Otulakowska-Hypka+ 2016), every fourth a superoutburst. M-dwarf
flares: the empirical template of Davenport+ 2014 on a 9,000 to 14,000 K blackbody.
Notable: flares last minutes, so they are drawn around visits; a volume-complete draw would be all but never seen.
"""

import numpy as np

from training.simulate import cosmology, population
from training.simulate.cadence import SURVEY_NIGHTS, SURVEY_START, Visits
from training.simulate.periodic import star_magnitudes
from training.simulate.photometry import (
    MILKY_WAY_DUST,
    WAVELENGTH,
    Floats,
    Ints,
    colours_of_temperature,
    magnitude_to_njy,
)
from training.simulate.signal import TEMPLATE_SPAN, Signal, subtract_template

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
    absolute = r - cosmology.distance_modulus(redshift)
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
        z = population.redshifts(rng, 4096, 0.03, 3.5, 0.5)
        absolute = rng.normal(-22.0, 1.4, len(z)) - 0.5 * z
        apparent = absolute + cosmology.distance_modulus(z) - 1.25 * np.log10(1.0 + z)
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
