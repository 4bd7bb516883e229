"""What one model has done since the service started: counts and total durations, for whoever asks.

Prometheus holds distributions of the same events; this is their plain sum, kept per model and per batch size, as
clients of the Open Inference Protocol read it. The unit of counting is the light curve, whichever request it came in.
"""

import threading
import time
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field

from service.inference.batching import Prediction, RunReport


@dataclass(slots=True)
class Total:
    """How often something was done, and how many seconds that took in all."""

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
    queued, assembled, ran, split : of each light curve that was answered: waiting, and the batch that it went with.
    runs : successful runs by batch size.
    last_run : seconds since 1970, 0 before the first.
    """

    answered: Total = field(default_factory=Total)
    failed: Total = field(default_factory=Total)
    queued: Total = field(default_factory=Total)
    assembled: Total = field(default_factory=Total)
    ran: Total = field(default_factory=Total)
    split: Total = field(default_factory=Total)
    runs: dict[int, RunTotals] = field(default_factory=dict)
    last_run: float = 0.0


class ModelStatistics:
    """Totals of one model. Safe to use from any thread."""

    def __init__(self) -> None:
        self._totals = Totals()
        self._lock = threading.Lock()

    def record_run(self, report: RunReport) -> None:
        """Count a run and the light curves that it answered; called in the engine's worker threads."""
        with self._lock:
            totals = self._totals
            totals.last_run = time.time()
            by_size = totals.runs.setdefault(report.size, RunTotals())
            by_size.assemble.add(report.assemble_seconds)
            by_size.run.add(report.run_seconds)
            by_size.split.add(report.split_seconds)
            for answer in report.answers:
                if isinstance(answer, Prediction):
                    totals.queued.add(answer.queue_seconds)
                    totals.assembled.add(answer.assemble_seconds)
                    totals.ran.add(answer.run_seconds)
                    totals.split.add(report.split_seconds)

    def record_request(self, answered: Iterable[bool], seconds: float) -> None:
        """Count what became of the light curves of a request: whether each was answered."""
        outcomes = list(answered)
        with self._lock:
            self._totals.answered.add(seconds, sum(outcomes))
            self._totals.failed.add(seconds, len(outcomes) - sum(outcomes))

    def totals(self) -> Totals:
        """A copy of everything counted so far."""
        with self._lock:
            return deepcopy(self._totals)
