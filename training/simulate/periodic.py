"""Periodic variables: RR Lyrae, Cepheids, delta Scuti stars, eclipsing binaries.

Pulsators follow a skewed sine, arctan(s sin x / (1 - s cos x)), which is the Fourier series sum s^k sin(kx)/k: a sine
at s = 0, the steep-rise sawtooth of RRab stars near s = 0.8; Cepheids add the second harmonic's bump. Notable: period
sets luminosity, temperature, amplitude and shape (period-luminosity-colour relations; Bailey diagram; Hertzsprung
progression), amplitude falls towards the red as for a pulsating photosphere, and red light lags. Distances are drawn
where the mean light is neither saturated nor lost, so absolute brightness shows only through the period.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.simulate.cadence import Signal, Visits, subtract_template
from training.simulate.photometry import MILKY_WAY_DUST, Floats, Ints, colours_of_temperature, magnitude_to_njy

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
    """Brightness in [-0.5, 0.5] with a rise that steepens with ``skew`` in (0, 1); phase in cycles."""
    x = 2.0 * np.pi * phase
    wave: Floats = np.arctan2(skew * np.sin(x), 1.0 - skew * np.cos(x)) / (2.0 * np.arcsin(skew))
    return wave


def star_magnitudes(rng: np.random.Generator, r: Floats, temperature: Floats, milky_way: Floats) -> Floats:
    """Mean AB magnitudes [n, 6] of stars of apparent ``r``: blackbody colours, a break below u, reddening."""
    colours = colours_of_temperature(temperature)
    colours[:, 0] += np.clip(0.55 + 0.15 * rng.standard_normal(len(r)), 0.1, 1.2)
    colours += 0.05 * rng.standard_normal(colours.shape)
    # a star sits inside the dust column that the map gives, not behind all of it
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

    They sit in the Clouds, in other galaxies out to 2.5 Mpc and, if of type II, in the halo. Luminosity and period
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
    """Distance moduli f64[n] that put a Cepheid of ``absolute`` r between 15.9 and 23."""
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
    """Return a wave in magnitudes with a weaker overtone mode, in each band its amplitude ratio and phase lag."""
    n = visits.n
    start, second_start = rng.random((2, n))
    second_period = wave.period * rng.uniform(0.70, 0.82, n)
    second = np.where(rng.random(n) < 0.25, rng.uniform(0.05, 0.3, n), 0.0) * wave.amplitude

    def total(mjd: Floats, own: Ints, band: Ints) -> Floats:
        phase = mjd / wave.period[own] + start[own] - lag * BAND_STEP[band]
        overtone = np.sin(2.0 * np.pi * (mjd / second_period[own] + second_start[own]))
        bump = wave.bump[own] * np.sin(4.0 * np.pi * phase + wave.bump_phase[own])
        brighter = wave.amplitude[own] * (skewed_sine(phase, wave.skew[own]) + bump) + 0.5 * second[own] * overtone
        return magnitude_to_njy(mean[own, band] - amplitude_ratio[band] * brighter)

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
    # the cooler star is eclipsed at the shallower minimum: the colour change follows the difference of the two depths
    tint = 0.15 * (primary - secondary)
    start, eccentric = rng.random(n), np.where(contact, 0.0, 0.04 * rng.standard_normal(n))
    mean = star_magnitudes(rng, rng.uniform(15.8, 21.8, n), np.exp(rng.normal(np.log(5600.0), 0.22, n)), milky_way)

    def total(mjd: Floats, own: Ints, band: Ints) -> Floats:
        phase = (mjd / period[own] + start[own]) % 1.0
        first = _minimum(phase, 0.0, width[own], flatness[own], contact[own])
        second = _minimum(phase, 0.5 + eccentric[own], width[own], flatness[own], contact[own])
        deeper = (primary[own] - tint[own] * BAND_STEP[band]) * first
        return magnitude_to_njy(mean[own, band] + deeper + (secondary[own] + tint[own] * BAND_STEP[band]) * second)

    return subtract_template(rng, visits, total)


def _minimum(phase: Floats, centre: Floats | float, width: Floats, flatness: Floats, contact: np.ndarray) -> Floats:
    """Depth profile in [0, 1] of the eclipse at ``centre``: a super-Gaussian, or half a raised cosine in contact."""
    distance = np.abs((phase - centre + 0.5) % 1.0 - 0.5)
    eclipse = np.exp(-np.minimum((distance / width) ** (2.0 * flatness), 100.0))
    overlap = np.where(distance < 0.25, np.cos(2.0 * np.pi * distance) ** 2, 0.0)
    return np.where(contact, overlap, eclipse)
