"""Distances in a flat Lambda-CDM universe (H0 70 km/s/Mpc, Omega_m 0.3) by the trapezoid rule on one grid.

Notable: radiation is ignored, so distances are good to 0.1 % below z = 4 (Hogg 1999, astro-ph/9905116, eqs 14-16, 28).
"""

import numpy as np

from training.simulate.photometry import Floats

HUBBLE = 70.0  # km / s / Mpc
OMEGA_M = 0.3
LIGHT_SPEED = 299792.458  # km / s
MAX_REDSHIFT = 4.0


def expansion(redshift: Floats) -> Floats:
    """E(z) = H(z) / H0."""
    rate: Floats = np.sqrt(OMEGA_M * (1.0 + redshift) ** 3 + 1.0 - OMEGA_M)
    return rate


_GRID: Floats = np.linspace(0.0, MAX_REDSHIFT, 4001)
_STEPS: Floats = 0.5 * (1.0 / expansion(_GRID[1:]) + 1.0 / expansion(_GRID[:-1])) * np.diff(_GRID)
_COMOVING: Floats = np.concatenate([[0.0], np.cumsum(_STEPS)]) * LIGHT_SPEED / HUBBLE


def comoving_distance(redshift: Floats) -> Floats:
    """Line-of-sight comoving distance in Mpc, 0 <= z <= 4."""
    return np.interp(redshift, _GRID, _COMOVING)


def distance_modulus(redshift: Floats) -> Floats:
    """M - M in magnitudes, without K correction, z > 0."""
    luminosity_distance = (1.0 + redshift) * comoving_distance(redshift)
    modulus: Floats = 5.0 * np.log10(luminosity_distance) + 25.0
    return modulus


def volume_element(redshift: Floats) -> Floats:
    """Comoving volume per unit redshift over the whole sky, Mpc^3."""
    volume: Floats = 4.0 * np.pi * LIGHT_SPEED / HUBBLE * comoving_distance(redshift) ** 2 / expansion(redshift)
    return volume
