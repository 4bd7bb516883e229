"""Sources in the Galaxy and in nuclei: microlensing, active nuclei, dwarf novae, flares, periodic variables.

**Microlensing** (class uLens) by one star or a pair of stars, and of one or two sources; without parallax. A single
lens follows Paczynski 1986 (eq. 1). A binary lens follows the lens equation of two point masses, solved as the complex
quintic of Witt & Mao 1995 at every point within a few Einstein radii: its light curves have several peaks and the sharp
rises and falls of caustic crossings. Blended light that is not lensed is added; colours are constant. Events happen at
a uniform time with a log-normal Einstein time about 25 days (Wyrzykowski+ 2015). The source is a point, so at a caustic
its magnification is cut at what a disc of finite size would reach.

**Active nuclei**: damped random walk in magnitude (Kelly+ 2009; amplitudes and time scales after MacLeod+ 2010) with
the same random steps in every band, but slower, weaker and later towards the red, on a red host.

**Dwarf novae**: outbursts with a linear rise and decline in magnitude around a plateau (Otulakowska-Hypka+ 2016), every
fourth a superoutburst.

**M-dwarf flares**: the empirical template of Davenport+ 2014 on a 9,000 to 14,000 K blackbody. Flares last minutes, so
they are drawn around visits; flares at random times would hardly ever be observed.

**Periodic variables**: RR Lyrae, Cepheids, delta Scuti stars, eclipsing binaries. Pulsators follow a skewed sine,
arctan(s sin x / (1 - s cos x)), which is the Fourier series sum s^k sin(kx)/k: a sine at s = 0, the steep-rise sawtooth
of RRab stars near s = 0.8; Cepheids add the second harmonic's bump. Period sets luminosity, temperature, amplitude and
shape (period-luminosity-colour relations; Bailey diagram; Hertzsprung progression), amplitude falls towards the red as
for a pulsating photosphere, and red light lags. Distances are drawn so that the mean flux is neither saturated nor too
faint, so the absolute brightness is only known from the period.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import njy_of_magnitude
from nightjar_alerts.training.simulate import photometry
from nightjar_alerts.training.simulate.cadence import (
    SURVEY_NIGHTS,
    SURVEY_START,
    TEMPLATE_SPAN,
    Signal,
    Visits,
    subtract_template,
)
from nightjar_alerts.training.simulate.photometry import (
    MILKY_WAY_DUST,
    WAVELENGTH,
    Floats,
    Ints,
    colours_of_temperature,
)

Complexes: TypeAlias = NDArray[np.complex128]

BINARY_SOURCES, BINARY_LENSES = 0.1, 0.3  # shares of the events
FAR = 3.5  # Einstein radii beyond which two lenses act as one, to better than 2 %
RESIDUAL = 1e-4  # largest residual of the lens equation at which a root of the quintic is an image


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
    """Return the fluxes of lensed stars; three in ten lenses and one in ten sources are double; class uLens."""
    n = visits.n
    star = njy_of_magnitude(
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
    """Return the point-lens magnification at ``time`` Einstein times from closest approach (Paczynski 1986, eq. 1)."""
    u2 = time**2 + nearest**2
    gain: Floats = (u2 + 2.0) / np.sqrt(u2 * (u2 + 4.0))
    return gain


def binary_magnification(source: Complexes, ratio: Floats, separation: Floats) -> Floats:
    """Return the magnification of point sources by two masses of sum 1, f64[P].

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
    """Return the magnification of the first source of each event, by one lens or two."""
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
    """Return the coefficients, lowest first, of the polynomial whose roots include the images (Witt & Mao 1995).

    The total mass is 1.

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
AMPLITUDE_BY_COLOUR, TIMESCALE_BY_COLOUR = -0.479, 0.17
LARGEST_AMPLITUDE = 0.6  # mag
OUTBURSTS = 160
FLARES = 6


def active_nucleus(rng: np.random.Generator, visits: Visits, milky_way: Floats) -> Signal:
    """Quasars and Seyferts, 0.03 < z < 3.5, r < 23.5; class AGN.

    The walk's amplitude and time scale are those of :func:`_variability`, the first as l^-0.48 and the second as l^0.17
    of rest wavelength l (MacLeod+ 2010); its lag, as l^(4/3) and L^(1/3) like the light travel time across a thin disc,
    is about 2 days at 4000 Angstrom and M -23 (Fausnaugh+ 2016).
    """
    redshift, r = _nuclei(rng, visits.n)
    slope = rng.normal(-0.5, 0.25, visits.n)[:, None]  # F_nu ~ nu^slope
    colours = -2.5 * slope * np.log10(WAVELENGTH[2] / WAVELENGTH)
    mean = r[:, None] + colours + MILKY_WAY_DUST * milky_way[:, None]
    host = r[:, None] + rng.normal(1.0, 1.0, (visits.n, 1)) + np.array([2.6, 0.8, 0.0, -0.4, -0.6, -0.8])
    galaxy = njy_of_magnitude(host + MILKY_WAY_DUST * milky_way[:, None])
    absolute = r - photometry.distance_modulus(redshift)
    spread, timescale = _variability(rng, absolute)
    rest = WAVELENGTH / (4000.0 * (1.0 + redshift[:, None]))
    walk = _damped_walk(rng, (timescale * (1.0 + redshift))[:, None] * rest**TIMESCALE_BY_COLOUR)
    amplitude = spread[:, None] * rest**AMPLITUDE_BY_COLOUR
    crossing = 2.0 * 10.0 ** (-0.4 / 3.0 * (absolute + 23.0)) * np.exp(0.4 * rng.standard_normal(visits.n))
    lag = np.minimum(crossing * (1.0 + redshift), 30.0)[:, None] * rest ** (4.0 / 3.0)

    def total(mjd: Floats, own: Ints, band: Ints) -> Floats:
        day = np.maximum(mjd - (SURVEY_START - TEMPLATE_SPAN - WALK_LEAD) - lag[own, band], 0.0)
        day_before = np.minimum(day.astype(np.int64), WALK_DAYS - 2)
        start, end = walk[day_before, own, band], walk[day_before + 1, own, band]
        change = amplitude[own, band] * (start + (day - day_before) * (end - start))
        return galaxy[own, band] + njy_of_magnitude(mean[own, band] + change)

    signal = subtract_template(rng, visits, total)
    return Signal(signal.difference, signal.steady, redshift)


def _variability(rng: np.random.Generator, absolute: Floats) -> tuple[Floats, Floats]:
    """Draw amplitude (mag) and time scale (days at rest) of damped random walks at rest 4000 Angstrom, each f64[n].

    They follow the regression of MacLeod+ 2010 (equation 7 and table 1) on luminosity and black-hole mass, with the
    distribution of mass at a luminosity (their section 5). The scatter is that of fits to 9,258 quasars of Stripe 82
    (MacLeod+ 2012, Suberlak+ 2021), in which larger amplitudes have longer time scales. The amplitude is the structure
    function at long times divided by the root of 2.
    """
    luminosity = absolute + 23.0
    mass = 2.0 - 0.27 * absolute + (0.58 + 0.011 * absolute) * rng.standard_normal(len(absolute)) - 9.0
    common, own, slow = rng.standard_normal((3, len(absolute)))
    structure = 10.0 ** (-0.51 + 0.131 * luminosity + 0.18 * mass)
    timescale = 10.0 ** (2.4 + 0.03 * luminosity + 0.21 * mass)
    amplitude = structure / np.sqrt(2.0) * np.exp(0.25 * common + 0.3 * own)
    return np.minimum(amplitude, LARGEST_AMPLITUDE), timescale * np.exp(0.5 * common + 0.6 * slow)


def _nuclei(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Draw redshift and apparent r of ``n`` nuclei brighter than 23.5, log-normal in luminosity, with evolution."""
    redshift, r = np.empty(0), np.empty(0)
    while len(r) < n:
        z = photometry.redshifts(rng, 4096, 0.03, 3.5, 0.5)
        absolute = rng.normal(-22.0, 1.4, len(z)) - 0.5 * z
        apparent = absolute + photometry.distance_modulus(z) - 1.25 * np.log10(1.0 + z)
        is_bright = (apparent < 23.5) & (apparent > 16.0)
        redshift, r = np.concatenate([redshift, z[is_bright]]), np.concatenate([r, apparent[is_bright]])
    return redshift[:n], r[:n]


def _damped_walk(rng: np.random.Generator, timescale: Floats) -> Floats:
    """Draw unit-variance Ornstein-Uhlenbeck processes on a daily grid, f64[WALK_DAYS, n, bands].

    ``timescale`` f64[n, bands] in days; the bands of an object have the same random steps.
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
    quiet = njy_of_magnitude(star_magnitudes(rng, peak + height, np.exp(rng.normal(np.log(6500.0), 0.2, n)), milky_way))
    bright = njy_of_magnitude(star_magnitudes(rng, peak, np.exp(rng.normal(np.log(13000.0), 0.2, n)), milky_way))
    recurrence = np.exp(rng.uniform(np.log(18.0), np.log(600.0), n))
    gaps = recurrence[:, None] * rng.gamma(4.0, 0.25, (n, OUTBURSTS))
    begin = SURVEY_START - TEMPLATE_SPAN - 30.0 - rng.random((n, 1)) * recurrence[:, None] + np.cumsum(gaps, axis=1)
    superburst = rng.random((n, OUTBURSTS)) < 0.25
    days_bright = np.where(superburst, 11.0, 2.5) * np.exp(0.35 * rng.standard_normal((n, OUTBURSTS)))
    fainter = np.where(superburst, 0.0, np.abs(rng.normal(0.4, 0.3, (n, OUTBURSTS))))
    rise, fade = np.exp(rng.normal(np.log(0.9), 0.4, n)), np.exp(rng.normal(np.log(1.6), 0.35, n))  # days; days per mag
    stride = 1e6
    ladder = (begin - SURVEY_START + stride * np.arange(n)[:, None]).ravel()

    def total(mjd: Floats, own: Ints, band: Ints) -> Floats:
        last = np.searchsorted(ladder, mjd - SURVEY_START + stride * own, side="right") - 1
        last = np.clip(last - own * OUTBURSTS, 0, OUTBURSTS - 1)
        age = mjd - begin[own, last]
        dim = fainter[own, last] + height[own] * np.clip(1.0 - age / rise[own], 0.0, None)
        dim += 0.06 * np.maximum(age, 0.0) + np.maximum(age - rise[own] - days_bright[own, last], 0.0) / fade[own]
        return quiet[own, band] + np.where(age > 0.0, bright[own, band] * 10.0 ** (-0.4 * dim), 0.0)

    return subtract_template(rng, visits, total)


def dwarf_flare(rng: np.random.Generator, visits: Visits, milky_way: Floats) -> Signal:
    """Flares on cool dwarfs, one to six per object, minutes to hours long, strongest in u; class M-dwarf Flare.

    Source: Davenport+ 2014 (template), Kowalski+ 2013 (temperatures).
    """
    n = visits.n
    quiet = njy_of_magnitude(star_magnitudes(rng, rng.uniform(16.2, 23.5, n), rng.normal(3150.0, 200.0, n), milky_way))
    hot = 10.0 ** (-0.4 * colours_of_temperature(rng.uniform(9000.0, 14000.0, n)))
    shape = hot / hot[:, :1] * 10.0 ** (-0.4 * (MILKY_WAY_DUST - MILKY_WAY_DUST[0]) * 0.7 * milky_way[:, None])
    begin = np.searchsorted(visits.object_index, np.arange(n))
    count = np.maximum(np.bincount(visits.object_index, minlength=n), 1)
    number = 1 + rng.poisson(1.5, n)
    extra = np.zeros(len(visits.mjd))
    own = visits.object_index
    for flare in range(FLARES):
        half = np.exp(rng.normal(np.log(18.0 / 1440.0), 0.9, n))  # half-maximum duration in days
        near = np.minimum(begin + (rng.random(n) * count).astype(np.int64), len(own) - 1)
        peak = visits.mjd[near] - half * rng.exponential(1.0, n)
        strength = quiet[:, 0] * 10.0 ** rng.uniform(0.2, 2.6, n) * (flare < number)
        extra += strength[own] * shape[own, visits.band] * flare_template((visits.mjd - peak[own]) / half[own])
    return Signal(difference=extra, steady=quiet[own, visits.band], redshift=np.zeros(n))


def flare_template(x: Floats) -> Floats:
    """Return the relative flux of a flare at ``x`` half-widths from its peak (Davenport+ 2014, eqs 1 and 4)."""
    early, late = np.clip(x, -1.0, 0.0), np.clip(x, 0.0, 1e3)
    rise = 1.0 + 1.941 * early - 0.175 * early**2 - 2.246 * early**3 - 1.125 * early**4
    decay = 0.6890 * np.exp(-1.600 * late) + 0.3030 * np.exp(-0.2783 * late)
    return np.where(x < 0.0, np.where(x > -1.0, np.maximum(rise, 0.0), 0.0), decay)


# amplitude in u g r i z Y over that in g
RR_LYRAE_AMPLITUDES: Floats = np.array([0.95, 1.0, 0.72, 0.57, 0.51, 0.50])
CEPHEID_AMPLITUDES: Floats = np.array([1.30, 1.0, 0.66, 0.51, 0.45, 0.42])
DELTA_SCUTI_AMPLITUDES: Floats = np.array([0.90, 1.0, 0.72, 0.57, 0.50, 0.47])
CEPHEID_RANGE = (15.9, 23.0)  # mean r
TRIES = 12  # distances drawn per Cepheid to find one in range
BAND_STEP: Floats = np.linspace(-0.35, 1.0, 6)  # multiplies a phase lag: u leads g, Y trails


@dataclass(frozen=True, eq=False)
class _Wave:
    """Light curves of ``n`` pulsators, f64[n] each: ``period`` days, ``amplitude`` mag in g, ``skew`` in (0, 1).

    ``bump`` is the second harmonic added to the skewed sine, over the amplitude, and ``bump_phase`` its phase in rad.
    """

    period: Floats
    amplitude: Floats
    skew: Floats
    bump: Floats
    bump_phase: Floats


def skewed_sine(phase: Floats, skew: Floats) -> Floats:
    """Return brightness in [-0.5, 0.5] with a rise that is steeper for larger ``skew`` in (0, 1); phase in cycles."""
    x = 2.0 * np.pi * phase
    wave: Floats = np.arctan2(skew * np.sin(x), 1.0 - skew * np.cos(x)) / (2.0 * np.arcsin(skew))
    return wave


def star_magnitudes(rng: np.random.Generator, r: Floats, temperature: Floats, milky_way: Floats) -> Floats:
    """Return mean AB magnitudes [n, 6] of stars of apparent ``r``: blackbody colours, a break below u, reddening."""
    colours = colours_of_temperature(temperature)
    colours[:, 0] += np.clip(0.55 + 0.15 * rng.standard_normal(len(r)), 0.1, 1.2)
    colours += 0.05 * rng.standard_normal(colours.shape)
    # a star is inside the dust column of the map, not behind all of it
    reddening = rng.uniform(0.4, 1.0, len(r)) * milky_way
    magnitudes: Floats = r[:, None] + colours + (MILKY_WAY_DUST - MILKY_WAY_DUST[2]) * reddening[:, None]
    return magnitudes


def rr_lyrae(rng: np.random.Generator, visits: Visits, milky_way: Floats) -> Signal:
    """RRab (three quarters) and RRc stars of the halo, 8 to 140 kpc; class RR Lyrae.

    Density falls as the cube of distance, hence uniform in distance modulus. Luminosity: Caceres & Catelan 2008 at
    log Z = -3; shapes: Sesar+ 2010 (ugriz amplitudes), Soszynski+ 2009 (OGLE).
    """
    n = visits.n
    fundamental = rng.random(n) < 0.75
    period = np.where(
        fundamental, rng.normal(0.575, 0.07, n).clip(0.42, 0.85), rng.normal(0.33, 0.04, n).clip(0.22, 0.44)
    )
    bailey = np.where(fundamental, 1.05 - 2.9 * (period - 0.575), 0.5)
    amplitude = np.clip(bailey + 0.14 * rng.standard_normal(n), 0.2, 1.5)
    skew = np.where(fundamental, np.clip(0.66 + 0.25 * (amplitude - 0.9), 0.4, 0.88), rng.uniform(0.1, 0.4, n))
    log_fundamental = np.log10(period) + np.where(fundamental, 0.0, 0.127)
    absolute = 0.35 - 1.035 * log_fundamental + 0.1 * rng.standard_normal(n)
    temperature = 6550.0 - 2500.0 * (log_fundamental + 0.24) + np.where(fundamental, 0.0, 500.0)
    r = absolute + rng.uniform(14.5, 20.8, n)
    mean = star_magnitudes(rng, r, temperature + 120.0 * rng.standard_normal(n), milky_way)
    wave = _Wave(period, amplitude, skew, bump=np.zeros(n), bump_phase=np.zeros(n))
    return _pulsator(rng, visits, mean, wave, RR_LYRAE_AMPLITUDES, lag=0.02)


def cepheid(rng: np.random.Generator, visits: Visits, milky_way: Floats) -> Signal:
    """Classical (seven tenths) and type II Cepheids, 1 to 60 days; class Cepheid.

    They are in the Magellanic Clouds, in galaxies out to 2.5 Mpc and, for type II, in the halo. Luminosity and period
    distribution: Soszynski+ 2008 (OGLE, moved to r); amplitudes: Ulaczyk+ 2013; bump: Simon & Lee 1981.
    """
    n = visits.n
    log_period = np.clip(0.6 + 0.35 * rng.standard_normal(n), 0.0, 1.78)
    # amplitudes dip near the 10 d resonance (Hertzsprung progression)
    dip = 1.0 - 0.45 * np.exp(-0.5 * ((log_period - 1.0) / 0.1) ** 2)
    amplitude = np.clip((0.75 + 0.15 * log_period) * dip * np.exp(0.25 * rng.standard_normal(n)), 0.15, 1.8)
    skew = np.clip(0.55 * dip + 0.12 * rng.standard_normal(n), 0.05, 0.85)
    classical = rng.random(n) < 0.7
    absolute = np.where(classical, -4.2 - 2.8 * (log_period - 1.0), -0.2 - 1.9 * log_period)
    r = absolute + 0.12 * rng.standard_normal(n) + _cepheid_moduli(rng, absolute, classical)
    mean = star_magnitudes(rng, r, 6000.0 - 550.0 * log_period + 150.0 * rng.standard_normal(n), milky_way)
    bump = np.where(classical, 0.16 * np.exp(-0.5 * ((log_period - 0.98) / 0.16) ** 2), 0.0)
    wave = _Wave(10.0**log_period, amplitude, skew, bump, bump_phase=1.0 - 3.0 * (log_period - 1.0))
    return _pulsator(rng, visits, mean, wave, CEPHEID_AMPLITUDES, lag=0.06)


def _cepheid_moduli(rng: np.random.Generator, absolute: Floats, classical: NDArray[np.bool_]) -> Floats:
    """Draw distance moduli f64[n] at which a Cepheid of ``absolute`` r is between 15.9 and 23."""
    shape = (TRIES, len(absolute))
    clouds = np.where(rng.random(shape) < 0.6, 18.5, 18.95) + 0.07 * rng.standard_normal(shape)
    elsewhere = np.where(classical, rng.uniform(21.0, 27.0, shape), rng.uniform(15.0, 21.5, shape))
    modulus = np.where(rng.random(shape) < 0.5, clouds, elsewhere)
    fits = (absolute + modulus > CEPHEID_RANGE[0]) & (absolute + modulus < CEPHEID_RANGE[1])
    chosen: Floats = modulus[fits.argmax(axis=0), np.arange(len(absolute))]
    return np.clip(chosen, CEPHEID_RANGE[0] - absolute, CEPHEID_RANGE[1] - absolute)


def delta_scuti(rng: np.random.Generator, visits: Visits, milky_way: Floats) -> Signal:
    """Short, small, near-sinusoidal pulsators of the disc, every fifth of high amplitude; class Delta Scuti.

    Luminosity: McNamara 2011 (V); density falls as the cube of distance beyond 0.6 kpc. Amplitudes: Breger 2000.
    """
    n = visits.n
    period = np.exp(rng.normal(np.log(0.085), 0.4, n)).clip(0.03, 0.28)
    high = rng.random(n) < 0.2
    amplitude = np.where(high, rng.uniform(0.3, 0.8, n), np.exp(rng.normal(np.log(0.09), 0.7, n)).clip(0.02, 0.35))
    skew = np.where(high, rng.uniform(0.3, 0.6, n), rng.uniform(0.05, 0.25, n))
    log_period = np.log10(period)
    r = -2.89 * log_period - 1.31 + 0.25 * rng.standard_normal(n) + rng.uniform(14.0, 19.8, n)
    temperature = 7500.0 - 900.0 * (log_period + 1.07) + 250.0 * rng.standard_normal(n)
    mean = star_magnitudes(rng, np.clip(r, 15.8, 21.5), temperature, milky_way)
    wave = _Wave(period, amplitude, skew, bump=np.zeros(n), bump_phase=np.zeros(n))
    return _pulsator(rng, visits, mean, wave, DELTA_SCUTI_AMPLITUDES, lag=0.01)


def _pulsator(
    rng: np.random.Generator, visits: Visits, mean: Floats, wave: _Wave, amplitude_ratio: Floats, lag: float
) -> Signal:
    """Return a wave in magnitudes with a weaker overtone mode, with amplitude ratio and phase lag of each band."""
    n = visits.n
    start, second_start = rng.random((2, n))
    second_period = wave.period * rng.uniform(0.70, 0.82, n)
    second = np.where(rng.random(n) < 0.25, rng.uniform(0.05, 0.3, n), 0.0) * wave.amplitude

    def total(mjd: Floats, own: Ints, band: Ints) -> Floats:
        phase = mjd / wave.period[own] + start[own] - lag * BAND_STEP[band]
        overtone = np.sin(2.0 * np.pi * (mjd / second_period[own] + second_start[own]))
        bump = wave.bump[own] * np.sin(4.0 * np.pi * phase + wave.bump_phase[own])
        brighter = wave.amplitude[own] * (skewed_sine(phase, wave.skew[own]) + bump) + 0.5 * second[own] * overtone
        return njy_of_magnitude(mean[own, band] - amplitude_ratio[band] * brighter)

    return subtract_template(rng, visits, total)


def eclipsing_binary(rng: np.random.Generator, visits: Visits, milky_way: Floats) -> Signal:
    """Detached systems (narrow flat-bottomed eclipses) and contact systems (continuous, equal minima); class EB.

    Source: Prsa+ 2011 (Kepler periods, depths), Drake+ 2017 (the share of contact systems).
    """
    n = visits.n
    contact = rng.random(n) < 0.45
    period = np.where(
        contact, np.exp(rng.normal(np.log(0.34), 0.2, n)), np.exp(rng.normal(np.log(2.2), 0.75, n)).clip(0.4, 30.0)
    )
    width = np.where(contact, 0.25, (0.10 * period**-0.45 * np.exp(0.3 * rng.standard_normal(n))).clip(0.01, 0.13))
    flatness = rng.uniform(1.0, 2.5, n)
    primary = np.where(contact, rng.uniform(0.15, 0.75, n), np.exp(rng.normal(np.log(0.45), 0.55, n)).clip(0.05, 1.6))
    secondary = primary * np.where(contact, rng.uniform(0.75, 1.0, n), rng.beta(1.5, 1.5, n))
    # the cooler star is eclipsed at the shallower minimum, so the colour change follows the difference of the depths
    tint = 0.15 * (primary - secondary)
    start, eccentric = rng.random(n), np.where(contact, 0.0, 0.04 * rng.standard_normal(n))
    mean = star_magnitudes(rng, rng.uniform(15.8, 21.8, n), np.exp(rng.normal(np.log(5600.0), 0.22, n)), milky_way)

    def total(mjd: Floats, own: Ints, band: Ints) -> Floats:
        phase = (mjd / period[own] + start[own]) % 1.0
        first = _minimum(phase, 0.0, width[own], flatness[own], contact[own])
        second = _minimum(phase, 0.5 + eccentric[own], width[own], flatness[own], contact[own])
        deeper = (primary[own] - tint[own] * BAND_STEP[band]) * first
        return njy_of_magnitude(mean[own, band] + deeper + (secondary[own] + tint[own] * BAND_STEP[band]) * second)

    return subtract_template(rng, visits, total)


def _minimum(phase: Floats, centre: Floats | float, width: Floats, flatness: Floats, contact: np.ndarray) -> Floats:
    """Return the depth profile in [0, 1] of the eclipse at ``centre``: super-Gaussian, or half a raised cosine."""
    distance = np.abs((phase - centre + 0.5) % 1.0 - 0.5)
    eclipse = np.exp(-np.minimum((distance / width) ** (2.0 * flatness), 100.0))
    overlap = np.where(distance < 0.25, np.cos(2.0 * np.pi * distance) ** 2, 0.0)
    return np.where(contact, overlap, eclipse)
