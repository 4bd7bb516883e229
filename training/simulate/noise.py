"""From true difference flux to measured flux and reported error.

Notable: the error has the sky (from the visit's depth), the photon noise of everything under the aperture (source and
the steady light below it, which a difference image does not show) and a calibration floor; the reported error is
itself only right to some per cent, and one point in a thousand is three times worse than it claims.
"""

from dataclasses import dataclass

import numpy as np

from training.simulate.cadence import Visits
from training.simulate.photometry import ZERO_POINT_NJY, Floats, magnitude_to_njy

OUTLIER_FRACTION = 0.001


@dataclass(frozen=True, eq=False)
class Camera:
    """``electrons`` f64[6]: photo-electrons per nJy; ``floor`` f64[6]: calibration error over total flux.

    ``misjudged`` is the scatter of the reported error about the true one, in e-folds.
    """

    electrons: Floats
    floor: Floats
    misjudged: float


def _electrons(seconds: float, zero_point: Floats) -> Floats:
    """Photo-electrons per nJy from instrumental zero points in mag/(e/s)."""
    electrons: Floats = seconds * 10.0 ** (0.4 * (zero_point - ZERO_POINT_NJY))
    return electrons


RUBIN = Camera(
    electrons=_electrons(30.0, np.array([27.0, 28.4, 28.2, 27.9, 27.5, 26.7])),
    floor=np.array([0.010, 0.006, 0.006, 0.006, 0.008, 0.010]),
    misjudged=0.04,
)
# Errors of bright detections in alerts of 6,000 ZTF supernovae are 4 % of the flux: the subtraction, not the photons.
ZTF = Camera(electrons=_electrons(30.0, np.full(6, 25.7)), floor=np.full(6, 0.045), misjudged=0.1)


def observe(
    rng: np.random.Generator, visits: Visits, difference: Floats, steady: Floats, camera: Camera = RUBIN
) -> tuple[Floats, Floats]:
    """Measured difference flux and reported 1-sigma error, f64[P] nJy, from true ``difference`` and ``steady`` flux."""
    sky = magnitude_to_njy(visits.depth) / 5.0
    total = np.maximum(difference + steady, 0.0)
    photons = (total + steady) / camera.electrons[visits.band]  # the template contributes its own photon noise
    floor = camera.floor[visits.band] * total
    sigma = np.sqrt(sky**2 + photons + floor**2)
    deviate = rng.standard_normal(len(sigma))
    tail = rng.random(len(sigma)) < OUTLIER_FRACTION
    flux = difference + sigma * np.where(tail, 3.0, 1.0) * deviate
    error: Floats = sigma * np.exp(camera.misjudged * rng.standard_normal(len(sigma)))
    return flux, error
