"""LSST bands, AB fluxes in nJy, blackbody colours and dust: the arithmetic every light-curve family shares.

Notable: bands are represented by their effective wavelength, not by the filter curve. That costs some hundredths of a
magnitude for a smooth spectrum, far below the intrinsic scatter of the classes.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from models.units import NJY_ZERO_POINT

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

WAVELENGTH: Floats = np.array([3671.0, 4827.0, 6223.0, 7546.0, 8691.0, 9712.0])  # effective, Angstrom, u g r i z Y
# A_band / E(B-V) on the SFD scale for R_V = 3.1 (Schlafly & Finkbeiner 2011, ApJ 737, 103, table 6, LSST)
MILKY_WAY_DUST: Floats = np.array([4.145, 3.237, 2.273, 1.684, 1.323, 1.088])
REFERENCE_WAVELENGTH = 5500.0  # Angstrom, where host dust is quoted as A_V
HC_OVER_K = 1.438777e8  # h c / k in Angstrom kelvin


def magnitude_to_njy(magnitude: Floats) -> Floats:
    """AB magnitudes as fluxes in nJy."""
    flux: Floats = 10.0 ** (0.4 * (NJY_ZERO_POINT - magnitude))
    return flux


def njy_to_magnitude(flux: Floats) -> Floats:
    """Positive fluxes in nJy as AB magnitudes."""
    magnitude: Floats = NJY_ZERO_POINT - 2.5 * np.log10(flux)
    return magnitude


def planck(wavelength: Floats, temperature: Floats) -> Floats:
    """B_nu up to a constant factor; wavelength in Angstrom, temperature in kelvin, broadcast together."""
    # the exponent is capped where the Wien tail has long left every survey's dynamic range
    spectrum: Floats = wavelength**-3 / np.expm1(np.minimum(HC_OVER_K / (wavelength * temperature), 200.0))
    return spectrum


def colours_of_temperature(temperature: Floats) -> Floats:
    """AB magnitude in each band minus that in r for blackbodies; temperature [n] -> [n, 6]."""
    spectrum = planck(WAVELENGTH[None, :], temperature[:, None])
    colours: Floats = -2.5 * np.log10(spectrum / spectrum[:, 2:3])
    return colours


def host_dust(wavelength: Floats, a_v: Floats) -> Floats:
    """Attenuation in magnitudes at rest wavelength (Angstrom) for A_V: a power law of index -1.3.

    Close to R_V = 3.1 Milky Way extinction between 3000 and 10000 Angstrom (Cardelli, Clayton & Mathis 1989); the
    2175 Angstrom bump is left out.
    """
    attenuation: Floats = a_v * (wavelength / REFERENCE_WAVELENGTH) ** -1.3
    return attenuation
