"""Evolution of a classification: the light curve up to each detection, and the stability of the posteriors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nightjar_alerts.models.lightcurve import Float64, LightCurve

MAX_STEPS = 100
"""Maximum number of steps of one light curve; if there are more detections, the steps are sampled."""

RECENT_DETECTIONS = 5
"""Number of last detections over which the variation is averaged; samples of the steps include all of them."""


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """Light curve up to each of its detections.

    Attributes
    ----------
    mjd : shape (steps,), ascending times of detections, days.
    curves : observations up to each of these times.
    detections : number of detections up to each of these times.
    times : number of distinct times of detections; more than ``len(mjd)`` if steps were sampled.
    """

    mjd: Float64
    curves: Sequence[LightCurve]
    detections: Sequence[int]
    times: int

    @property
    def sampled(self) -> bool:
        """True if the steps were sampled."""
        return self.times > len(self.mjd)


def history(curve: LightCurve, max_steps: int = MAX_STEPS) -> History:
    """Return a light curve up to each of its detections.

    Detections at the same time (two filters of one visit) make one step. A step has all observations up to its time,
    including non-detections; observations after the last detection are in no step. A light curve without detections has
    one step, at its last observation. If there are more than ``max_steps`` steps, the first one, the last
    :data:`RECENT_DETECTIONS` and evenly spaced ones between them are kept. All steps have the same metadata.

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
    """Return ascending indices of at most ``most`` of ``number`` steps, as :func:`history` samples them."""
    if number <= most:
        return np.arange(number)
    early = np.linspace(0, number - RECENT_DETECTIONS, most - RECENT_DETECTIONS, endpoint=False).astype(np.int64)
    return np.concatenate([early, np.arange(number - RECENT_DETECTIONS, number)])


@dataclass(frozen=True, slots=True)
class Stability:
    """Stability of a sequence of posteriors.

    Attributes
    ----------
    class_changes : number of steps whose most probable class differs from that of the previous step.
    last_change_mjd : time of the last such step, None if there is none.
    recent_variation : mean total-variation distance (half the sum of absolute differences of probability) between
        successive posteriors of the last RECENT_DETECTIONS steps: 0 if they are equal, 1 if they are disjoint; None for
        a single step.
    """

    class_changes: int
    last_change_mjd: float | None
    recent_variation: float | None


def stability(mjd: Sequence[float], probabilities_SC: Sequence[Sequence[float]]) -> Stability:
    """Compute the stability of a sequence of posteriors.

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
