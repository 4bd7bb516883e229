"""How a classification develops: the light curve as it stood after each detection, and how steady the classes were."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nightjar_alerts.models.lightcurve import Float64, LightCurve

MAX_STEPS = 100
"""Steps of one light curve; of more detections a sample is taken."""

RECENT_DETECTIONS = 5
"""Last detections over which the variation is averaged; a sample of the steps holds each of them."""


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """A light curve at the times of its detections.

    Attributes
    ----------
    mjd : shape (steps,), ascending times of detections, days.
    curves : the observations up to each of these times.
    detections : number of detections up to each of these times.
    times : number of distinct times of detections; more than ``len(mjd)`` where steps were sampled.
    """

    mjd: Float64
    curves: Sequence[LightCurve]
    detections: Sequence[int]
    times: int

    @property
    def sampled(self) -> bool:
        """True where the steps are a sample."""
        return self.times > len(self.mjd)


def history(curve: LightCurve, max_steps: int = MAX_STEPS) -> History:
    """Return a light curve as it stood after each of its detections.

    Detections of one time (two filters of one visit) make one step. A step holds every observation up to its time,
    non-detections included; observations after the last detection belong to none. A light curve without a detection
    has one step, at its last observation. Beyond ``max_steps`` the first step, the last :data:`RECENT_DETECTIONS` and
    evenly spaced ones between them are kept. The metadata is that of the whole light curve at every step.

    Parameters
    ----------
    max_steps : more than ``RECENT_DETECTIONS``.
    """
    order = np.argsort(curve.mjd, kind="stable")
    mjd = curve.mjd[order]
    times = np.unique(mjd[curve.detected[order]])
    if not times.size:
        times = mjd[-1:]
    kept = times[sample(times.size, max_steps)]
    ends = np.searchsorted(mjd, kept, side="right")
    curves = [curve.rows(order[:end]) for end in ends]
    return History(kept, curves, [int(np.count_nonzero(each.detected)) for each in curves], times.size)


def sample(number: int, most: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return ascending indices of at most ``most`` steps: the first, the last RECENT_DETECTIONS, and others between."""
    if number <= most:
        return np.arange(number)
    early = np.linspace(0, number - RECENT_DETECTIONS, most - RECENT_DETECTIONS, endpoint=False).astype(np.int64)
    return np.concatenate([early, np.arange(number - RECENT_DETECTIONS, number)])


@dataclass(frozen=True, slots=True)
class Stability:
    """How steady a sequence of posteriors is.

    Attributes
    ----------
    class_changes : steps whose most probable class differs from that of the step before.
    last_change_mjd : time of the last of these, None without any.
    recent_variation : mean total-variation distance, half the sum of absolute differences of probability, of the
        successive posteriors of the last RECENT_DETECTIONS steps: 0 where they are equal, 1 where they have no class in
        common; None for a single step.
    """

    class_changes: int
    last_change_mjd: float | None
    recent_variation: float | None


def stability(mjd: Sequence[float], probabilities_SC: Sequence[Sequence[float]]) -> Stability:
    """Return how steady posteriors are.

    Parameters
    ----------
    mjd : time of each step, ascending.
    probabilities_SC : probability of each class at each step.
    """
    if len(probabilities_SC) < 2:
        return Stability(0, None, None)
    posterior_SC = np.asarray(probabilities_SC, dtype=np.float64)
    top_S = np.argmax(posterior_SC, axis=1)
    changes = np.flatnonzero(top_S[1:] != top_S[:-1]) + 1
    recent_SC = posterior_SC[-RECENT_DETECTIONS:]
    variation = 0.5 * np.abs(np.diff(recent_SC, axis=0)).sum(axis=1)
    last = float(mjd[changes[-1]]) if changes.size else None
    return Stability(int(changes.size), last, float(np.mean(variation)))
