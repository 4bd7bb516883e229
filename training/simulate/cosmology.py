"""Distances in a flat Lambda-CDM universe (H0 70 km/s/Mpc, Omega_m 0.3), by astropy.

Notable: radiation is ignored, which changes distances by less than 0.1 % below z = 4.
"""

import math

from astropy.cosmology import FlatLambdaCDM

from training.simulate.photometry import Floats

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
