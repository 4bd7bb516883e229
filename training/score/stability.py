"""How a classification settles while its light curve grows: flip rate, time to first stable class.

An object's top class is followed over K steps (days since the first alert, or number of detections):

- the flip rate is the share of the K - 1 transitions at which the top class changes;
- it is stable from the first step after which the top class never changes again. That is known in hindsight only, and
  an object that stops being observed is trivially stable, so the time at which it is stable *and right* is told beside.

Legend: N objects, K steps.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.lightcurve import Int64


class Stability(NamedTuple):
    """How the top classes of one model settle.

    Attributes
    ----------
    flip_rate : share of transitions that change the top class, over all objects.
    flips_per_object : mean number of changes.
    never_flipped : share of objects whose first answer is their last.
    stable_K : share of objects that are stable from each step on; 1 at the last.
    stable_and_right_K : share of objects that are, and whose class is the true one.
    median_step : step at which half of the objects are stable.
    median_step_right : step at which half of the objects that end up right are stable; NaN when none does.
    """

    flip_rate: float
    flips_per_object: float
    never_flipped: float
    stable_K: NDArray[np.float64]
    stable_and_right_K: NDArray[np.float64]
    median_step: float
    median_step_right: float


def first_stable(top_NK: Int64) -> Int64:
    """Index of the first step from which each object's top class stays what it is at the last, shape (N,)."""
    differs_NK = top_NK != top_NK[:, -1:]
    last_difference_N = differs_NK.shape[1] - 1 - differs_NK[:, ::-1].argmax(1)
    stable_N: Int64 = np.where(differs_NK.any(1), last_difference_N + 1, 0).astype(np.int64)
    return stable_N


def stability(top_NK: Int64, label_N: Int64, steps: Sequence[float]) -> Stability:
    """Follow top classes over steps.

    Parameters
    ----------
    top_NK : top class of each object at each step.
    steps : days or detections of the steps, ascending, at least one.

    Raises
    ------
    ValueError
        Without objects, or when the number of steps differs.
    """
    if not len(top_NK) or top_NK.shape[1] != len(steps) or not steps:
        raise ValueError(f"stability needs objects followed over all {len(steps)} steps, got {top_NK.shape}")
    flips_N = (top_NK[:, 1:] != top_NK[:, :-1]).sum(1)
    stable_N, right_N = first_stable(top_NK), top_NK[:, -1] == label_N
    by_step_NK = stable_N[:, None] <= np.arange(len(steps))
    value_N = np.asarray(steps, dtype=np.float64)[stable_N]
    return Stability(
        flip_rate=float(flips_N.mean() / max(1, len(steps) - 1)),
        flips_per_object=float(flips_N.mean()),
        never_flipped=float((flips_N == 0).mean()),
        stable_K=by_step_NK.mean(0),
        stable_and_right_K=(by_step_NK & right_N[:, None]).mean(0),
        median_step=_lower_median(value_N),
        median_step_right=_lower_median(value_N[right_N]),
    )


def _lower_median(value_N: NDArray[np.float64]) -> float:
    """Smallest value that at least half do not exceed: always one of the steps."""
    return float(np.quantile(value_N, 0.5, method="inverted_cdf")) if len(value_N) else float("nan")
