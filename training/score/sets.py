"""Thresholds of the prediction sets that a bundle serves: by coverage and, where one would not hold, by detections.

Split conformal prediction (``training.score.conformal``) on validation objects in views as served, with the score that
:class:`models.confidence.PredictionSets` tells of: 1 - p of the true class, 0 where it is the most probable one.

Notable: a threshold holds on average over all light curves, so it may promise too much where the network knows least.
Two halves of the objects are played against each other: if the threshold of one half covers the other half's light
curves of some number of detections by more than ``TOLERANCE`` (and twice the standard error) less or more than stated,
every number of detections gets its own.

Legend: N rows (views of objects), C classes.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.confidence import PredictionSets, SetThresholds
from models.lightcurve import Bool, Int64
from training.score.calibrate import DETECTION_GROUPS
from training.score.conformal import conformal_quantile
from training.score.metrics import Float

COVERAGES = (0.8, 0.9, 0.95, 0.99)
DEFAULT = 0.9
TOLERANCE = 0.02
SMALLEST_GROUP = 200  # rows; smaller ones share the thresholds of the next


class SetsFit(NamedTuple):
    """Fitted thresholds, and what one threshold for all covered in each group, stated 0.9, that decided on groups."""

    sets: PredictionSets
    coverage_of_one: dict[str, float]


def lac_scores(p_NC: Float, label_N: Int64) -> NDArray[np.float64]:
    """1 - p of the true class, 0 where no class is more probable; shape (N,)."""
    truth_N = p_NC[np.arange(len(label_N)), label_N].astype(np.float64)
    return np.where(p_NC.argmax(1) == label_N, 0.0, 1.0 - truth_N)


def fit_sets(p_NC: Float, label_N: Int64, detections_N: Int64, object_N: Int64) -> SetsFit:
    """Fit thresholds to calibrated probabilities of validation objects.

    Raises
    ------
    ValueError
        Without objects.
    """
    if not len(label_N):
        raise ValueError("prediction sets need at least one validation object")
    score_N, starts = lac_scores(p_NC, label_N), _groups(detections_N)
    found = _coverage_of_one(score_N, detections_N, object_N, starts)
    kept = starts if any(far for _, far in found.values()) else (0,)
    groups = [_thresholds(score_N[_within(detections_N, kept, place)], kept[place]) for place in range(len(kept))]
    sets = PredictionSets(coverages=COVERAGES, default=DEFAULT, groups=tuple(groups), split="validation")
    return SetsFit(sets, {str(start): coverage for start, (coverage, _) in found.items()})


def _thresholds(score_N: NDArray[np.float64], start: int) -> SetThresholds:
    largest = tuple(min(conformal_quantile(score_N, 1 - coverage), 1.0) for coverage in COVERAGES)
    return SetThresholds(detections=start, largest=largest, views=len(score_N))


def _groups(detections_N: Int64) -> tuple[int, ...]:
    """First number of detections of every group, each with enough rows; always from 0 on."""
    starts = [0]
    for start in DETECTION_GROUPS[1:]:
        before = np.count_nonzero((detections_N >= starts[-1]) & (detections_N < start))
        if before >= SMALLEST_GROUP and np.count_nonzero(detections_N >= start) >= SMALLEST_GROUP:
            starts.append(start)
    return tuple(starts)


def _within(detections_N: Int64, starts: tuple[int, ...], place: int) -> Bool:
    inside_N: Bool = np.searchsorted(starts, detections_N, side="right") - 1 == place
    return inside_N


def _coverage_of_one(
    score_N: NDArray[np.float64], detections_N: Int64, object_N: Int64, starts: tuple[int, ...]
) -> dict[int, tuple[float, bool]]:
    """Coverage in every group of one threshold from the other half of the objects, and whether that is too far off."""
    _, place_N = np.unique(object_N, return_inverse=True)
    half_N = np.random.default_rng(0).permutation(place_N.max() + 1)[place_N] % 2
    largest_N = np.array([conformal_quantile(score_N[half_N != half], 1 - DEFAULT) for half in (0, 1)])[half_N]
    covered_N = score_N <= largest_N
    found = {}
    for place, start in enumerate(starts):
        inside_N = _within(detections_N, starts, place)
        coverage = float(covered_N[inside_N].mean()) if inside_N.any() else float("nan")
        error = np.sqrt(DEFAULT * (1 - DEFAULT) / max(1, len(np.unique(object_N[inside_N]))))
        found[start] = coverage, bool(abs(coverage - DEFAULT) > max(TOLERANCE, 2 * error))
    return found
