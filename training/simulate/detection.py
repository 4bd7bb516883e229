"""Which points a difference-imaging survey would detect, and which of them an alert history holds.

Notable: the detection chance is a logistic curve in |S/N|, one half at 5, which is what difference-image detections of
the ELAsTiCC challenge follow to 3 % between S/N 3 and 12. An object exists for the survey once it has two detections.
Its history then runs from 30 days before the first detection (forced photometry reaches no further back) to the last.
"""

import numpy as np
from numpy.typing import NDArray

from training.simulate.cadence import Visits
from training.simulate.photometry import Floats

HALF_EFFICIENCY_SNR = 5.0
EFFICIENCY_WIDTH = 1.0
MINIMUM_SNR = 3.0
MINIMUM_DETECTIONS = 2
PRE_TRIGGER_DAYS = 30.0


def detect(rng: np.random.Generator, flux: Floats, error: Floats) -> NDArray[np.bool_]:
    """Detection flag of each point, bool[P]; negative difference flux is detected like positive."""
    snr = np.abs(flux) / error
    exponent = np.clip((HALF_EFFICIENCY_SNR - snr) / EFFICIENCY_WIDTH, -50.0, 50.0)
    return (snr > MINIMUM_SNR) & (rng.random(len(snr)) < 1.0 / (1.0 + np.exp(exponent)))


def history(visits: Visits, detected: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], Floats]:
    """Points that the last alert's history holds, bool[P], and each object's trigger MJD, f64[n] (+inf if never seen).

    Objects with fewer than two detections keep no point.
    """
    first, last = np.full(visits.n, np.inf), np.full(visits.n, -np.inf)
    np.minimum.at(first, visits.owner[detected], visits.mjd[detected])
    np.maximum.at(last, visits.owner[detected], visits.mjd[detected])
    count = np.bincount(visits.owner[detected], minlength=visits.n)
    inside = (visits.mjd >= first[visits.owner] - PRE_TRIGGER_DAYS) & (visits.mjd <= last[visits.owner])
    return inside & (count[visits.owner] >= MINIMUM_DETECTIONS), first
