"""What a run costs while serving: the fit of the warm-up, followed by what runs are measured to take.

Two things change. The machine as a whole gets slower and faster (other processes, a clock that changes): a scale
follows the time on the wall, run by run. And the five terms change in proportion to each other (workers that share a
cache, lengths that the warm-up did not have): every few hundred runs they are fitted again, to the latest runs of each
shape seen, and to the warm-up's where a shape has not been seen. The shapes count alike, however common: what traffic
is mostly made of must not make the model forget what the rest costs.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median, median_low
from threading import Lock

from service.inference.scheduling import CostModel, Sample

LIVE_WEIGHT = 0.02  # of one run in the live scale: a memory of about fifty runs
PLAUSIBLE = 10.0  # beyond this ratio of measured to predicted, a run was interrupted rather than slow
REFIT_RUNS = 256
PER_SHAPE = 9  # runs remembered of each shape; their median counts
MIN_SHAPES = 6  # one more than the cost model has terms

_Shape = tuple[int, int, int]


class LiveCost:
    """The cost model in use, as :attr:`model`. Safe to use from any thread.

    Parameters
    ----------
    fitted : what the warm-up found.
    samples : the runs that it was fitted to.
    """

    def __init__(self, fitted: CostModel, samples: Sequence[Sample] = ()) -> None:
        self._first = self._fitted = self.model = fitted
        self._scale = 1.0
        self._warm_up = {_shape(sample): sample for sample in samples}
        self._recent: dict[_Shape, deque[Sample]] = {}
        self._since_fit = 0
        self._lock = Lock()

    def update(self, run: Sample, wall_seconds: float) -> bool:
        """Learn from a run; whether it is time to :meth:`refit`.

        Parameters
        ----------
        run : its seconds are by the clock of the warm-up.
        wall_seconds : the same by the clock on the wall.
        """
        with self._lock:
            ratio = wall_seconds / self.model.seconds(run.batch, run.length, run.tokens)
            self._scale *= 1.0 + LIVE_WEIGHT * (min(max(ratio, 1 / PLAUSIBLE), PLAUSIBLE) - 1.0)
            self.model = self._fitted.scaled(self._scale)
            if run.seconds <= 0:  # the clock did not tick
                return False
            self._recent.setdefault(_shape(run), deque(maxlen=PER_SHAPE)).append(run)
            self._since_fit += 1
            if due := self._since_fit >= REFIT_RUNS:
                self._since_fit = 0
            return due

    def refit(self) -> None:
        """Fit the terms again; about a millisecond of work, in which others may go on updating."""
        samples = self.samples()
        if len(samples) < MIN_SHAPES:
            return
        fitted = CostModel.fit(samples)
        with self._lock:
            before = sum(self._fitted.seconds(*sample[:3]) / sample.seconds for sample in samples)
            after = sum(fitted.seconds(*sample[:3]) / sample.seconds for sample in samples)
            self._scale *= before / after  # what it says of the wall stays, on average
            self._fitted, self.model = fitted, fitted.scaled(self._scale)

    def samples(self) -> list[Sample]:
        """What is known of each shape: the median of its latest runs, or the warm-up's, as much slower as they."""
        with self._lock:
            recent = {shape: self._typical(list(runs)) for shape, runs in self._recent.items()}
        drift = median(map(self._slowness, recent.values())) if recent else 1.0
        unseen = [sample for shape, sample in self._warm_up.items() if shape not in recent]
        return [*recent.values(), *(sample._replace(seconds=drift * sample.seconds) for sample in unseen)]

    def _slowness(self, run: Sample) -> float:
        return run.seconds / self._first.seconds(*run[:3])

    def _typical(self, runs: Sequence[Sample]) -> Sample:
        slowness = [self._slowness(run) for run in runs]
        return runs[slowness.index(median_low(slowness))]


def _shape(run: Sample) -> _Shape:
    """Runs alike: batch and length to a factor of two, and how much of it was padding, in quarters."""
    return run.batch.bit_length(), run.length.bit_length(), 4 * run.tokens // (run.batch * run.length)
