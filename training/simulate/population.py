"""Where objects are: redshift priors and Milky Way dust.

Notable: an event rate per comoving volume of (1+z)^alpha gives p(z) proportional to dV/dz (1+z)^(alpha-1), the 1/(1+z)
being time dilation of the rate. Objects far too faint at maximum to be detected are not simulated at all, which all
but leaves the distribution of detected objects unchanged and saves most of the work.
"""

import numpy as np

from training.simulate import cosmology
from training.simulate.photometry import Floats

FAINTEST_PEAK = 24.6  # AB; a peak fainter than this has no chance of two detections in single visits


def redshifts(rng: np.random.Generator, n: int, low: float, high: float, rate_index: float) -> Floats:
    """``n`` redshifts in [low, high] from the volumetric rate (1+z)^rate_index."""
    grid = np.linspace(low, high, 512)
    density = cosmology.volume_element(grid) * (1.0 + grid) ** (rate_index - 1.0)
    cumulative = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
    return np.interp(rng.uniform(0.0, cumulative[-1], n), cumulative, grid)


def milky_way_dust(rng: np.random.Generator, n: int, galactic: bool) -> Floats:
    """E(B-V) towards each object.

    Extragalactic fields are log-normal about 0.02 mag with a tail to 0.5 (the wide survey avoids the plane); sources
    inside the Galaxy crowd to low latitude but share the high-latitude range.
    """
    plane = rng.random(n) < (0.55 if galactic else 0.06)
    median = np.where(plane, 0.12, 0.018)
    dust: Floats = median * np.exp(np.where(plane, 0.9, 0.6) * rng.standard_normal(n))
    return np.clip(dust, 0.004, 1.0)
