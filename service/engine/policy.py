"""The batching policy: pure functions of (queue, now, cost model), shared by server, simulator and tests.

Padding is what makes batching light curves dear on a CPU: lengths differ by a factor of a hundred, and in arrival
order most of a padded batch is padding. So a free worker takes the item that is due, the oldest unless priority or
fairness say otherwise (:mod:`service.engine.queue`), and adds the items nearest to it in length, but each one only
while the merged run is predicted to take less time than running the two apart. Of the batch that grows this way it runs
as many, nearest first, as make the ratio of the merged run's time to that of runs apart smallest: the others will find
better mates. Where nothing would be saved, the item runs alone.

Every batch holds the item that is due, hence an item waits for at most as many batches as there were items before it.
Priority is a head start in seconds, so that it cannot starve anybody either. There is no timer, unless
``BatchLimits.max_delay`` asks for one. The predictions come from a cost model of five terms,

    seconds(B, L, N) = c0 + c1 * B * L + c2 * B * L**2 + c3 * B + c4 * N

for B curves of N points in all, padded to L: a fixed cost per run, layers that see padding, attention, what a curve
costs whatever its length (its metadata tokens), and layers that see real points only. The terms are fitted to this
machine and this graph at warm-up, so a graph that packs its tokens and one that pads them each get the batches that
suit it.

**The cost model while serving** (:class:`LiveCost`): the fit of the warm-up, followed by what runs are measured to
take. Two things change. The machine as a whole gets slower and faster (other processes, a clock that changes): a scale
follows the time on the wall, run by run. And the five terms change in proportion to each other (workers that share a
cache, lengths that the warm-up did not have): every few hundred runs they are fitted again, to the latest runs of each
shape seen, and to the warm-up's where a shape has not been seen. The shapes count alike, however common: what traffic
is mostly made of must not make the model forget what the rest costs.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import median, median_low
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

USUAL_ITEMS, MOST_ITEMS = 32, 128
WINDOW = 512
"""Light curves due next, from which a batch is chosen: with 128 of them batches took 3 % longer."""
AMPLE = 128
"""Length of a queue from which a batch chosen before a worker is free is hardly worse than one chosen then."""


class RunSample(NamedTuple):
    """A measured run: curves, the length they were padded to, points in all, seconds."""

    batch: int
    length: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """Predicted seconds of one run; every coefficient is in seconds and not negative.

    Per run ``c0``, per padded point ``c1``, per padded pair of points ``c2``, per curve ``c3``, per real point ``c4``.
    """

    c0: float
    c1: float
    c2: float
    c3: float = 0.0
    c4: float = 0.0

    def seconds(self, batch: int, length: int, tokens: int | None = None) -> float:
        """Predicted duration of a run of ``batch`` curves padded to ``length``; without ``tokens`` none is padding."""
        real = batch * length if tokens is None else tokens
        return self.c0 + batch * (self.c3 + length * (self.c1 + length * self.c2)) + self.c4 * real

    def scaled(self, factor: float) -> "CostModel":
        """Return the same model on a machine ``factor`` times slower."""
        return CostModel(*(factor * term for term in (self.c0, self.c1, self.c2, self.c3, self.c4)))

    @classmethod
    def fit(cls, samples: Sequence[RunSample]) -> "CostModel":
        """Least squares under non-negative coefficients.

        Residuals are relative, so that a run of 1 ms counts as much as one of 100 ms. With five unknowns the
        constrained optimum is found exactly: it is the best of the unconstrained optima over subsets of the columns.

        Raises
        ------
        ValueError
            Without samples, or when a measured duration is not positive.
        """
        if not samples or not all(sample.seconds > 0 for sample in samples):
            raise ValueError("fitting a cost model needs measured durations, all positive")
        batch, length, tokens, seconds = np.array(samples, dtype=np.float64).T
        terms = np.stack([np.ones_like(batch), batch * length, batch * length**2, batch, tokens], axis=1)
        return cls(*_non_negative_least_squares(terms / seconds[:, None]))


def _non_negative_least_squares(terms: NDArray[np.float64]) -> list[float]:
    """Non-negative x minimising ``|terms @ x - 1|``, for a handful of columns."""
    columns = terms.shape[1]
    unit = terms / np.linalg.norm(terms, axis=0)
    best, best_error = np.zeros(columns), np.inf
    for size in range(1, columns + 1):
        for subset in map(list, combinations(range(columns), size)):
            solution = np.linalg.lstsq(unit[:, subset], np.ones(len(unit)), rcond=None)[0]
            error = float(np.sum((unit[:, subset] @ solution - 1) ** 2))
            # Terms that explain nothing more than rounding would are left out.
            if (solution >= 0).all() and error < best_error - 1e-12:
                best, best_error = np.zeros(columns), error
                best[subset] = solution
    return [float(value) for value in best / np.linalg.norm(terms, axis=0)]


@dataclass(frozen=True, slots=True, eq=False)
class QueueItem:
    """One waiting light curve.

    Attributes
    ----------
    length : points.
    enqueued : time of arrival, ``time.monotonic()`` seconds.
    deadline : time after which an answer is worth nothing; None: never.
    priority : head start in seconds: the item counts as if it had arrived that much earlier.
    """

    length: int
    enqueued: float
    deadline: float | None
    priority: float = field(default=0.0, kw_only=True)

    @property
    def rank(self) -> float:
        """Place in the queue, the smallest first."""
        return self.enqueued - self.priority


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds on one batch. The first item always fits, whatever its length.

    Attributes
    ----------
    max_tokens : padded points (batch times longest length); beyond about a thousand, activations leave the cache.
    max_items : light curves.
    window : how far behind the oldest item to look for mates; bounds the time one choice takes.
    max_delay : seconds after the arrival of the oldest item during which a batch that is not full may be held back for
        more mates; a worker asks again when something arrives, or when they are over (:func:`release`).
    shares : whether free workers share a short queue, see :meth:`shared`.
    """

    max_tokens: int = 1024
    max_items: int = USUAL_ITEMS
    window: int = WINDOW
    max_delay: float = 0.0
    shares: bool = True

    @property
    def ample(self) -> int:
        """QueueEntry light curves from which on a batch may as well be chosen before a worker is free."""
        return min(self.window, AMPLE)

    def shared(self, waiting: int, workers: int) -> "BatchLimits":
        """Bounds on a batch while ``workers`` are free, the caller included: its share of a short queue.

        Merging a short queue into one run saves work, but lets the other workers idle and everybody wait longer. Where
        a delay is asked for, waiting longer is what is wanted.
        """
        share = -(-waiting // workers)
        shares = self.shares and self.max_delay == 0 and share < self.max_items
        return replace(self, max_items=share) if shares else self


def most_items(max_tokens: int) -> int:
    """Bound on the light curves of a batch, from that on its padded points: one for each 32, within reason."""
    return min(max(USUAL_ITEMS, max_tokens // 32), MOST_ITEMS)


Policy = Callable[[Sequence[QueueItem], float, CostModel, BatchLimits], list[int]]
"""A batching policy such as :func:`choose`: (queue, now, cost model, limits) to the indices of the next batch.

It may answer nothing to a queue that is not empty only while ``now < release(queue, limits)``.
"""


def choose(queue: Sequence[QueueItem], now: float, cost: CostModel, limits: BatchLimits) -> list[int]:
    """Return the indices of the items to run next, the due one first; none to hold the batch back for more mates.

    Parameters
    ----------
    queue : waiting items in the order they are due, none expired (see :func:`expired`); only the first
        ``limits.window`` are looked at.
    now : ``time.monotonic()``; neither a merge nor a delay that is predicted to make any member miss its deadline is
        made.
    """
    if not queue:
        return []
    window = queue[: limits.window]
    anchor = window[0]
    chosen, length, tokens, latest = [0], anchor.length, anchor.length, _latest_end(anchor)
    planned = apart = cost.seconds(1, length)
    best = _Prefix(1, length, 1.0, planned, latest)
    gaps = [abs(item.length - anchor.length) for item in window]
    # A longer light curve pads all others, another one is padded itself; either way, the further from the anchor in
    # length, the less merging saves. Where one does not pay, those beyond it on its side are not looked at.
    pays = {"longer": True, "others": True}
    for index in sorted(range(1, len(window)), key=gaps.__getitem__):
        item, batch = window[index], len(chosen) + 1
        if batch > limits.max_items or batch * length > limits.max_tokens or not any(pays.values()):
            break
        side = "longer" if item.length > anchor.length else "others"
        if not pays[side]:
            continue
        padded, end, alone = max(length, item.length), min(latest, _latest_end(item)), cost.seconds(1, item.length)
        merged = cost.seconds(batch, padded, tokens + item.length)
        if merged >= planned + alone:
            pays[side] = False
        elif batch * padded <= limits.max_tokens and now + merged <= end:
            chosen.append(index)
            length, tokens, latest, planned, apart = padded, tokens + item.length, end, merged, apart + alone
            if planned / apart < best.share:
                best = _Prefix(batch, length, planned / apart, planned, latest)
    return [] if _held(best, window, now, cost, limits) else chosen[: best.size]


class _Prefix(NamedTuple):
    """The first ``size`` of a batch: padded length, time of the run over that of runs apart, time, latest end."""

    size: int
    length: int
    share: float
    seconds: float
    latest: float


def release(queue: Sequence[QueueItem], limits: BatchLimits) -> float:
    """Time from which on nothing may be held back: the one that has waited longest has waited for ``max_delay``."""
    return min(item.enqueued for item in queue[: limits.window]) + limits.max_delay


def _held(prefix: _Prefix, window: Sequence[QueueItem], now: float, cost: CostModel, limits: BatchLimits) -> bool:
    """Return True to wait for more mates; never where that would cost anybody in sight their deadline."""
    full = prefix.size >= limits.max_items or (prefix.size + 1) * prefix.length > limits.max_tokens
    if full or limits.max_delay == 0 or now >= (end := release(window, limits)):
        return False
    return end + prefix.seconds <= prefix.latest and all(
        item.deadline is None or end + cost.seconds(1, item.length) <= item.deadline for item in window
    )


def expired(queue: Sequence[QueueItem], now: float, cost: CostModel) -> list[int]:
    """Return the indices of items that would miss their deadline even if they ran alone and at once."""
    if not queue:
        return []
    latest = now + cost.seconds(1, max(item.length for item in queue))  # for most, one comparison is enough
    return [
        index
        for index, item in enumerate(queue)
        if item.deadline is not None and latest > item.deadline and now + cost.seconds(1, item.length) > item.deadline
    ]


class Plan(NamedTuple):
    """Indices of the items to run next, and of those it is too late for; either may be empty."""

    batch: list[int]
    late: list[int]


def plan(
    window: Sequence[QueueItem],
    waiting: int,
    now: float,
    cost: CostModel,
    limits: BatchLimits,
    workers: int,
    policy: Policy = choose,
) -> Plan:
    """Plan what a worker that has become free does next.

    Parameters
    ----------
    window : the first items of the queue, ``limits.window`` of them or all.
    waiting : items in the whole queue.
    workers : workers that are free, this one included.
    """
    late = expired(window, now, cost)
    bounds = limits.shared(waiting - len(late), workers)
    if not late:
        return Plan(policy(window, now, cost, bounds), late)
    gone = set(late)
    alive = [index for index in range(len(window)) if index not in gone]
    chosen = policy([window[index] for index in alive], now, cost, bounds)
    return Plan([alive[index] for index in chosen], late)


def _latest_end(item: QueueItem) -> float:
    return np.inf if item.deadline is None else item.deadline


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

    def __init__(self, fitted: CostModel, samples: Sequence[RunSample] = ()) -> None:
        # Other threads read `model` without the lock: it never changes in place, but is replaced as a whole.
        self._first = self._fitted = self.model = fitted
        self._scale = 1.0
        self._warm_up = {_shape(sample): sample for sample in samples}
        self._recent: dict[_Shape, deque[RunSample]] = {}
        self._since_fit = 0
        self._lock = Lock()

    def update(self, run: RunSample, wall_seconds: float) -> bool:
        """Learn from a run; return True when it is time to :meth:`refit`.

        Parameters
        ----------
        run : with its seconds by the clock of the warm-up.
        wall_seconds : its duration by the wall clock, in which other processes count.
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
            self._scale *= before / after  # predicted wall-clock times stay the same on average
            self._fitted, self.model = fitted, fitted.scaled(self._scale)

    def samples(self) -> list[RunSample]:
        """Return a sample of each shape: the median of its latest runs, or the warm-up's times the others' drift."""
        with self._lock:
            recent = {shape: self._typical(list(runs)) for shape, runs in self._recent.items()}
        drift = median(map(self._slowness, recent.values())) if recent else 1.0
        unseen = [sample for shape, sample in self._warm_up.items() if shape not in recent]
        return [*recent.values(), *(sample._replace(seconds=drift * sample.seconds) for sample in unseen)]

    def _slowness(self, run: RunSample) -> float:
        return run.seconds / self._first.seconds(*run[:3])

    def _typical(self, runs: Sequence[RunSample]) -> RunSample:
        # Runs of one shape differ in size by up to a factor of two, so seconds alone do not compare them. The low
        # median, as it has to be one of the runs and not the mean of two.
        slowness = [self._slowness(run) for run in runs]
        return runs[slowness.index(median_low(slowness))]


def _shape(run: RunSample) -> _Shape:
    """Group alike runs: batch and length to a factor of two, padding in quarters."""
    return run.batch.bit_length(), run.length.bit_length(), 4 * run.tokens // (run.batch * run.length)
