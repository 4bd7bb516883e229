"""Predicted seconds of a run: a model with five terms, fitted at warm-up and refitted while serving.

    seconds(B, L, N) = c0 + c1 * B * L + c2 * B * L**2 + c3 * B + c4 * N

for B curves of N points in total, padded to L: a fixed cost per run, layers that process padding, attention, the cost
per curve whatever its length (its metadata tokens), and layers that process real points only. The terms are fitted to
this machine and this graph, so a graph that packs its tokens and a graph that pads them each get suitable batches.

**While serving** (:class:`LiveCost`) the model is updated in two ways. The speed of the whole machine changes with
other processes and with the CPU frequency: a scale factor follows the wall time, run by run. The five terms also change
relative to each other (workers that share a cache, lengths that the warm-up did not have): every few hundred runs they
are refitted to the latest runs of each shape seen, and to the warm-up runs of the other shapes. All shapes have equal
weight, so that frequent shapes do not displace rare ones.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median, median_low
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class RunSample(NamedTuple):
    """A measured run: number of curves, padded length, number of points without padding, seconds."""

    batch: int
    length: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """Predicted seconds of one run; every coefficient is in seconds and non-negative.

    Per run ``c0``, per padded point ``c1``, per padded pair of points ``c2``, per curve ``c3``, per real point ``c4``.
    """

    c0: float
    c1: float
    c2: float
    c3: float = 0.0
    c4: float = 0.0

    def seconds(self, batch: int, length: int, tokens: int | None = None) -> float:
        """Return the seconds of a run of ``batch`` curves padded to ``length``; unpadded without ``tokens``."""
        real = batch * length if tokens is None else tokens
        return self.c0 + batch * (self.c3 + length * (self.c1 + length * self.c2)) + self.c4 * real

    def scaled(self, factor: float) -> "CostModel":
        """Return the model of a machine that is ``factor`` times slower."""
        return CostModel(*(factor * term for term in (self.c0, self.c1, self.c2, self.c3, self.c4)))

    @classmethod
    def fit(cls, samples: Sequence[RunSample]) -> "CostModel":
        """Fit by least squares with non-negative coefficients.

        Residuals are relative, so that a run of 1 ms counts as much as a run of 100 ms. With five unknowns the
        constrained optimum is found exactly: it is the best of the unconstrained optima over all subsets of columns.

        Raises
        ------
        ValueError
            If there are no samples, or a measured duration is not positive.
        """
        if not samples or not all(sample.seconds > 0 for sample in samples):
            raise ValueError("fitting a cost model needs measured durations, all positive")
        batch, length, tokens, seconds = np.array(samples, dtype=np.float64).T
        terms = np.stack([np.ones_like(batch), batch * length, batch * length**2, batch, tokens], axis=1)
        return cls(*_non_negative_least_squares(terms / seconds[:, None]))


def _non_negative_least_squares(terms: NDArray[np.float64]) -> list[float]:
    """Return the non-negative x that minimises ``|terms @ x - 1|``, for a handful of columns."""
    columns = terms.shape[1]
    unit = terms / np.linalg.norm(terms, axis=0)
    best, best_error = np.zeros(columns), np.inf
    for size in range(1, columns + 1):
        for subset in map(list, combinations(range(columns), size)):
            solution = np.linalg.lstsq(unit[:, subset], np.ones(len(unit)), rcond=None)[0]
            error = float(np.sum((unit[:, subset] @ solution - 1) ** 2))
            # The tolerance leaves out a term that improves the fit by no more than rounding errors.
            if (solution >= 0).all() and error < best_error - 1e-12:
                best, best_error = np.zeros(columns), error
                best[subset] = solution
    return [float(value) for value in best / np.linalg.norm(terms, axis=0)]


LIVE_WEIGHT = 0.02  # weight of one run in the moving average of the scale: about fifty runs count
PLAUSIBLE_RATIO = 10.0  # beyond this ratio of measured to predicted, a run was interrupted rather than slow
REFIT_RUNS = 256
RUNS_PER_SHAPE = 9  # runs remembered per shape; their median counts
MIN_SHAPES = 6  # one more than the cost model has terms

_Shape = tuple[int, int, int]


class LiveCost:
    """The cost model in use, in :attr:`model`. Safe to use from any thread.

    Parameters
    ----------
    fitted : the warm-up fit.
    samples : the runs that it was fitted to.
    """

    def __init__(self, fitted: CostModel, samples: Sequence[RunSample] = ()) -> None:
        # Other threads read `model` without the lock: it is never changed in place, only replaced as a whole.
        self._first = self._fitted = self.model = fitted
        self._scale = 1.0
        self._warm_up = {_shape(sample): sample for sample in samples}
        self._recent: dict[_Shape, deque[RunSample]] = {}
        self._since_fit = 0
        self._lock = Lock()

    def update(self, run: RunSample, wall_seconds: float) -> bool:
        """Update the model with a measured run; return True when it is time to :meth:`refit`.

        Parameters
        ----------
        run : its seconds are measured on the clock of the warm-up.
        wall_seconds : its wall time, which includes delays by other processes.
        """
        with self._lock:
            ratio = wall_seconds / self.model.seconds(run.batch, run.length, run.tokens)
            self._scale *= 1.0 + LIVE_WEIGHT * (min(max(ratio, 1 / PLAUSIBLE_RATIO), PLAUSIBLE_RATIO) - 1.0)
            self.model = self._fitted.scaled(self._scale)
            if run.seconds <= 0:  # the clock did not tick
                return False
            self._recent.setdefault(_shape(run), deque(maxlen=RUNS_PER_SHAPE)).append(run)
            self._since_fit += 1
            if due := self._since_fit >= REFIT_RUNS:
                self._since_fit = 0
            return due

    def refit(self) -> None:
        """Refit the terms; takes about a millisecond, during which other threads may call :meth:`update`."""
        samples = self.samples()
        if len(samples) < MIN_SHAPES:
            return
        fitted = CostModel.fit(samples)
        with self._lock:
            before = sum(self._fitted.seconds(*sample[:3]) / sample.seconds for sample in samples)
            after = sum(fitted.seconds(*sample[:3]) / sample.seconds for sample in samples)
            self._scale *= before / after  # keeps the predicted wall times the same on average
            self._fitted, self.model = fitted, fitted.scaled(self._scale)

    def samples(self) -> list[RunSample]:
        """Return one sample per shape: the median of its latest runs, or the warm-up run scaled by the median drift."""
        with self._lock:
            recent = {shape: self._median_run(list(runs)) for shape, runs in self._recent.items()}
        drift = median(map(self._ratio_to_warm_up, recent.values())) if recent else 1.0
        unseen = [sample for shape, sample in self._warm_up.items() if shape not in recent]
        return [*recent.values(), *(sample._replace(seconds=drift * sample.seconds) for sample in unseen)]

    def _ratio_to_warm_up(self, run: RunSample) -> float:
        return run.seconds / self._first.seconds(*run[:3])

    def _median_run(self, runs: Sequence[RunSample]) -> RunSample:
        # By the ratio, since sizes within one shape differ by up to a factor of two. The low median is the ratio of a
        # run, not the mean of two.
        ratios = [self._ratio_to_warm_up(run) for run in runs]
        return runs[ratios.index(median_low(ratios))]


def _shape(run: RunSample) -> _Shape:
    """Group similar runs: batch and length to a factor of two, padding in quarters."""
    return run.batch.bit_length(), run.length.bit_length(), 4 * run.tokens // (run.batch * run.length)
