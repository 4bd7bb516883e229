"""From true difference flux to measured flux and reported error.

Notable: the error has the sky (from the visit's depth), the photon noise of everything under the aperture (source and
the steady light below it, which a difference image does not show) and a calibration floor; the reported error is
itself only right to some per cent, and one point in a thousand is three times worse than it claims.
"""

import numpy as np

from training.simulate.cadence import Visits
from training.simulate.photometry import Floats, magnitude_to_njy

# photo-electrons per nJy in a 30 s visit, from instrumental zero points in mag/(e/s)
ELECTRONS_PER_NJY: Floats = 30.0 * 10.0 ** (0.4 * (np.array([27.0, 28.4, 28.2, 27.9, 27.5, 26.7]) - 31.4))
CALIBRATION_FLOOR: Floats = np.array([0.010, 0.006, 0.006, 0.006, 0.008, 0.010])  # of the total flux
OUTLIER_FRACTION = 0.001


def observe(rng: np.random.Generator, visits: Visits, difference: Floats, steady: Floats) -> tuple[Floats, Floats]:
    """Measured difference flux and reported 1-sigma error, f64[P] nJy, from true ``difference`` and ``steady`` flux."""
    sky = magnitude_to_njy(visits.depth) / 5.0
    total = np.maximum(difference + steady, 0.0)
    photons = (total + steady) / ELECTRONS_PER_NJY[visits.band]  # the template contributes its own photon noise
    floor = CALIBRATION_FLOOR[visits.band] * total
    sigma = np.sqrt(sky**2 + photons + floor**2)
    deviate = rng.standard_normal(len(sigma))
    tail = rng.random(len(sigma)) < OUTLIER_FRACTION
    flux = difference + sigma * np.where(tail, 3.0, 1.0) * deviate
    error: Floats = sigma * np.exp(0.04 * rng.standard_normal(len(sigma)))
    return flux, error
