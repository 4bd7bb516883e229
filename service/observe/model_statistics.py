"""Statistics of a model over windows of time, with distributions in little memory.

Kept are counts and durations of a model's work since the service started, and in the last minutes. Prometheus holds
distributions of the same events; this keeps them for each model, as clients of the Open Inference Protocol read them
(:meth:`ModelStatistics.totals`) and as ``/v1/models/{name}/stats`` tells them (:meth:`ModelStatistics.period`). The
unit of counting is the light curve, whichever request it came in.

A distribution counts values in buckets whose bounds grow by a constant factor. So a quantile has a relative error of at
most 5 %, whatever the values are, and two distributions can be added.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import ceil, exp, log
from operator import mul

import numpy as np

from nightjar_alerts.service.engine.batch import Prediction, RunReport

GROWTH = 1.1
_STEP = log(GROWTH)
SMALLEST = 1e-9  # what is smaller counts as this: no stage is quicker than a nanosecond
MOST_NOTED = 256
"""Values of a distribution that wait to be counted."""


class Distribution:
    """Counts of positive values. Not thread-safe by itself.

    Values are noted first, and counted together when somebody reads them or there are :data:`MOST_NOTED`.
    """

    __slots__ = ("_buckets", "_count", "_largest", "_notes", "_total")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._notes: list[float] = []
        self._count, self._total, self._largest = 0, 0.0, 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value, several times over if asked."""
        if times == 1:
            self.add_all([value])
        else:
            self._add([value], [times])

    def add_all(self, values: Iterable[float]) -> None:
        """Count each of the values once."""
        self._notes.extend(values)
        if len(self._notes) >= MOST_NOTED:
            self._count_noted()

    def _count_noted(self) -> None:
        values, self._notes = self._notes, []
        if values:
            self._add(values, [1] * len(values))

    def _add(self, values: Sequence[float], times: Sequence[int]) -> None:
        buckets = np.floor(np.log(np.maximum(values, SMALLEST)) / _STEP).astype(np.int64)
        for bucket, count in zip(buckets.tolist(), times, strict=True):
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self._count += sum(times)
        self._total += sum(map(mul, values, times))
        self._largest = max(self._largest, *values)

    def merge(self, other: "Distribution") -> None:
        """Count everything that the other has counted."""
        other._count_noted()
        for bucket, times in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + times
        self._count += other._count
        self._total += other._total
        self._largest = max(self._largest, other._largest)

    @property
    def count(self) -> int:
        """Number of the values."""
        return self._count + len(self._notes)

    @property
    def total(self) -> float:
        """Sum of the values."""
        self._count_noted()
        return self._total

    @property
    def largest(self) -> float:
        """Largest of the values, 0 without any."""
        self._count_noted()
        return self._largest

    @property
    def mean(self) -> float:
        """Mean of the values, 0 without any; exact."""
        return self.total / self.count if self.count else 0.0

    def quantiles(self, *shares: float) -> Iterator[float]:
        """Values that these shares of all values do not exceed, 0 without any.

        Parameters
        ----------
        shares : between 0 and 1, in ascending order.
        """
        self._count_noted()
        passed, bounds = 0, iter(sorted(self._buckets.items()))
        bucket = 0
        for share in shares:
            while passed < max(1, ceil(share * self.count)) and (following := next(bounds, None)):
                bucket, times = following
                passed += times
            # The middle of the bucket, as ratios go; but the largest value is known exactly.
            yield min(exp((bucket + 0.5) * _STEP), self.largest)


SLOT_SECONDS = 10.0
LONGEST_WINDOW = 900.0


@dataclass(slots=True)
class Total:
    """Number of times that something was done, and the seconds it took in all."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count something that took ``seconds``, ``count`` times."""
        self.count += count
        self.seconds += count * seconds


@dataclass(slots=True)
class RunTotals:
    """Runs of one batch size: padding its inputs, inference, copying its answers out."""

    assemble: Total = field(default_factory=Total)
    run: Total = field(default_factory=Total)
    split: Total = field(default_factory=Total)


@dataclass(slots=True)
class Totals:
    """Everything that is counted.

    Attributes
    ----------
    answered, failed : light curves that got an answer, or should have got one: an error of the network, a deadline, a
        refusal for lack of room, a client that left. Each took as long as its request spent in the data plane.
    queued, assembled, ran, split : of each light curve that was run: waiting, and the batch that it went with.
    hits, misses : light curves looked up among the results that are kept.
    runs : successful runs by batch size.
    last_run : seconds since 1970, 0 before the first.
    """

    answered: Total = field(default_factory=Total)
    failed: Total = field(default_factory=Total)
    queued: Total = field(default_factory=Total)
    assembled: Total = field(default_factory=Total)
    ran: Total = field(default_factory=Total)
    split: Total = field(default_factory=Total)
    hits: Total = field(default_factory=Total)
    misses: Total = field(default_factory=Total)
    runs: dict[int, RunTotals] = field(default_factory=dict)
    last_run: float = 0.0


@dataclass(slots=True)
class Period:
    """Counts and distributions of one window of time.

    Attributes
    ----------
    began : ``time.monotonic()`` seconds.
    answered, failed, hits, misses : light curves, as in :class:`Totals`.
    stages : seconds: of each light curve in ``queue``, ``assemble`` and ``run``; of each request in the others, among
        which ``total`` is its time in the data plane.
    sizes : runs by the number of light curves in them.
    padding, cost_error : of each run: padded over real points, measured over predicted seconds.
    classes : answers by the index of their most probable class.
    """

    began: float
    answered: int = 0
    failed: int = 0
    hits: int = 0
    misses: int = 0
    stages: dict[str, Distribution] = field(default_factory=dict)
    sizes: Counter[int] = field(default_factory=Counter)
    padding: Distribution = field(default_factory=Distribution)
    cost_error: Distribution = field(default_factory=Distribution)
    classes: Counter[int] = field(default_factory=Counter)

    def stage(self, name: str, seconds: float, times: int = 1) -> None:
        """Count time spent in a stage."""
        if name not in self.stages:
            self.stages[name] = Distribution()
        self.stages[name].add(seconds, times)

    def run(self, report: RunReport, predicted_seconds: float) -> None:
        """Count a run and what it answered."""
        self.sizes[report.size] += 1
        self.padding.add(report.size * report.length / report.tokens)
        self.cost_error.add(report.run_seconds / predicted_seconds)
        answers = [answer for answer in report.answers if isinstance(answer, Prediction)]
        self.stages.setdefault("queue", Distribution()).add_all(answer.queue_seconds for answer in answers)
        self.stage("assemble", report.assemble_seconds, len(answers))
        self.stage("run", report.run_seconds, len(answers))
        if answers and "probabilities" in answers[0].outputs:
            self.classes.update(np.array([answer.outputs["probabilities"] for answer in answers]).argmax(1).tolist())

    def merge(self, other: "Period") -> None:
        """Count everything that happened in another period as well."""
        self.answered += other.answered
        self.failed += other.failed
        self.hits += other.hits
        self.misses += other.misses
        for name, distribution in other.stages.items():
            self.stages.setdefault(name, Distribution()).merge(distribution)
        self.sizes.update(other.sizes)
        self.padding.merge(other.padding)
        self.cost_error.merge(other.cost_error)
        self.classes.update(other.classes)


class ModelStatistics:
    """Totals of one model. Safe to use from any thread.

    Events may be recorded late: :class:`service.observe.metrics.ModelMetrics` records in batches.
    """

    def __init__(self) -> None:
        self._totals = Totals()
        self._lock = threading.Lock()
        self._before = Period(time.monotonic())  # what is too long ago for any window
        self._slots: dict[int, Period] = {}  # by their number since the beginning

    def record_run(self, report: RunReport, predicted_seconds: float, at: float | None = None) -> None:
        """Count a run and the light curves that it answered.

        Parameters
        ----------
        at : when it ended, ``time.monotonic()`` seconds; now by default, as everywhere here.
        """
        with self._lock:
            self._slot(at).run(report, predicted_seconds)
            totals = self._totals
            totals.last_run = time.time() - (0.0 if at is None else time.monotonic() - at)
            by_size = totals.runs.setdefault(report.size, RunTotals())
            by_size.assemble.add(report.assemble_seconds)
            by_size.run.add(report.run_seconds)
            by_size.split.add(report.split_seconds)
            waits = [answer.queue_seconds for answer in report.answers if isinstance(answer, Prediction)]
            totals.queued.count += len(waits)
            totals.queued.seconds += sum(waits)
            totals.assembled.add(report.assemble_seconds, len(waits))
            totals.ran.add(report.run_seconds, len(waits))
            totals.split.add(report.split_seconds, len(waits))

    def record_request(self, answered: int, failed: int, seconds: float, at: float | None = None) -> None:
        """Count what became of the light curves of a request that took so many seconds."""
        with self._lock:
            slot = self._slot(at)
            slot.answered += answered
            slot.failed += failed
            slot.stage("total", seconds)
            self._totals.answered.add(seconds, answered)
            self._totals.failed.add(seconds, failed)

    def record_lookup(self, hits: int, misses: int, seconds: float, at: float | None = None) -> None:
        """Count light curves that were looked up together among the results that are kept."""
        with self._lock:
            slot = self._slot(at)
            slot.hits += hits
            slot.misses += misses
            self._totals.hits.add(seconds, hits)
            self._totals.misses.add(seconds, misses)

    def record_stages(self, seconds: Mapping[str, float], at: float | None = None) -> None:
        """Count what a request spent in stages outside of the engine."""
        with self._lock:
            slot = self._slot(at)
            for name, value in seconds.items():
                slot.stage(name, value)

    def totals(self) -> Totals:
        """Return a copy of everything counted so far."""
        with self._lock:
            return deepcopy(self._totals)

    def period(self, seconds: float | None = None) -> Period:
        """Sum up the last ``seconds``, at most :data:`LONGEST_WINDOW`; without them, since the start.

        A window begins with a whole slot of :data:`SLOT_SECONDS`, so it may be shorter than asked for by up to one.
        """
        with self._lock:
            current = self._slot().began
            start = self._before.began if seconds is None else time.monotonic() - seconds
            slots = [self._slots[number] for number in sorted(self._slots)]
            periods = [slot for slot in slots if slot.began >= start or slot.began == current]
            merged = Period(self._before.began if seconds is None else periods[0].began)
            for period in [self._before, *periods] if seconds is None else periods:
                merged.merge(period)
            return merged

    def _slot(self, at: float | None = None) -> Period:
        """Return the slot of a moment, now by default; slots that leave the longest window are added to the total."""
        since = time.monotonic() - self._before.began
        number = int((since if at is None else at - self._before.began) // SLOT_SECONDS)
        oldest = int((since - LONGEST_WINDOW) // SLOT_SECONDS) - 1
        if number < oldest:
            return self._before
        if number not in self._slots:
            self._slots[number] = Period(self._before.began + number * SLOT_SECONDS)
            for old in [place for place in self._slots if place < oldest]:
                self._before.merge(self._slots.pop(old))
        return self._slots[number]
