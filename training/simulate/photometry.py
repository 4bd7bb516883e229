"""Photometry and distances of simulated objects: bands, colours, dust, redshifts.

**Colours**: LSST bands, blackbodies and dust. Bands are represented by their effective wavelength instead of the filter
curve; the error is some hundredths of a magnitude for a smooth spectrum, far below the scatter within classes.

**Distances** in a flat Lambda-CDM universe (H0 70 km/s/Mpc, Omega_m 0.3), by astropy. Radiation is ignored, which
changes distances by less than 0.1 % below z = 4.

**Redshifts and Milky Way dust** of objects. An event rate per comoving volume of (1+z)^alpha gives p(z) proportional to
dV/dz (1+z)^(alpha-1), where 1/(1+z) is the time dilation of the rate. Objects that are far too faint to be detected are
not simulated, which hardly changes the distribution of detected objects and saves most of the work.
"""

import math
from typing import TypeAlias

import numpy as np
from astropy.cosmology import FlatLambdaCDM
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

WAVELENGTH: Floats = np.array([3671.0, 4827.0, 6223.0, 7546.0, 8691.0, 9712.0])  # effective, Angstrom, u g r i z Y
# A_band / E(B-V) on the SFD scale for R_V = 3.1 (Schlafly & Finkbeiner 2011, ApJ 737, 103, table 6, LSST)
MILKY_WAY_DUST: Floats = np.array([4.145, 3.237, 2.273, 1.684, 1.323, 1.088])
REFERENCE_WAVELENGTH = 5500.0  # Angstrom, where host dust is quoted as A_V
HC_OVER_K = 1.438777e8  # h c / k in Angstrom kelvin


def planck(wavelength: Floats, temperature: Floats) -> Floats:
    """Return B_nu up to a constant factor; wavelength in Angstrom, temperature in kelvin, broadcast together."""
    # the cap avoids overflow; there the Wien tail is far below the dynamic range of any survey
    spectrum: Floats = wavelength**-3 / np.expm1(np.minimum(HC_OVER_K / (wavelength * temperature), 200.0))
    return spectrum


def colours_of_temperature(temperature: Floats) -> Floats:
    """Return the AB magnitude in each band minus that in r of blackbodies, [n, 6]."""
    spectrum = planck(WAVELENGTH[None, :], temperature[:, None])
    colours: Floats = -2.5 * np.log10(spectrum / spectrum[:, 2:3])
    return colours


def host_dust(wavelength: Floats, a_v: Floats) -> Floats:
    """Return the attenuation in magnitudes at rest wavelength (Angstrom) for A_V: a power law of index -1.3.

    Close to R_V = 3.1 Milky Way extinction between 3000 and 10000 Angstrom (Cardelli, Clayton & Mathis 1989); the
    2175 Angstrom bump is left out.
    """
    attenuation: Floats = a_v * (wavelength / REFERENCE_WAVELENGTH) ** -1.3
    return attenuation


COSMOLOGY = FlatLambdaCDM(H0=70.0, Om0=0.3)
MAX_REDSHIFT = 4.0  # of what is simulated
WHOLE_SKY = 4.0 * math.pi  # steradians


def comoving_distance(redshift: Floats) -> Floats:
    """Return the line-of-sight comoving distance in Mpc."""
    distance: Floats = COSMOLOGY.comoving_distance(redshift).value
    return distance


def distance_modulus(redshift: Floats) -> Floats:
    """Return m - M in magnitudes, without K correction, z > 0."""
    modulus: Floats = COSMOLOGY.distmod(redshift).value
    return modulus


def volume_element(redshift: Floats) -> Floats:
    """Return the comoving volume per unit redshift over the whole sky, Mpc^3."""
    volume: Floats = COSMOLOGY.differential_comoving_volume(redshift).value * WHOLE_SKY
    return volume


FAINTEST_PEAK = 24.6  # AB; fainter peaks cannot have two detections in single visits


def redshifts(rng: np.random.Generator, n: int, low: float, high: float, rate_index: float) -> Floats:
    """Draw ``n`` redshifts in [low, high] from the volumetric rate (1+z)^rate_index."""
    grid = np.linspace(low, high, 512)
    density = volume_element(grid) * (1.0 + grid) ** (rate_index - 1.0)
    cumulative = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
    return np.interp(rng.uniform(0.0, cumulative[-1], n), cumulative, grid)


def milky_way_dust(rng: np.random.Generator, n: int, galactic: bool) -> Floats:
    """Draw E(B-V) towards each object.

    For extragalactic objects it is log-normal around 0.02 mag with a tail to 0.5, since the wide survey avoids the
    plane; sources inside the Galaxy are concentrated at low latitude.
    """
    plane = rng.random(n) < (0.55 if galactic else 0.06)
    median = np.where(plane, 0.12, 0.018)
    dust: Floats = median * np.exp(np.where(plane, 0.9, 0.6) * rng.standard_normal(n))
    return np.clip(dust, 0.004, 1.0)
