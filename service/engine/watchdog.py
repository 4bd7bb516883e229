"""Watchdog of one engine: a run that takes many times its predicted duration counts as hung.

The engine cannot recover from a hung run: the process exits with status 1, and a supervisor (Kubernetes, systemd,
Docker) restarts it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nightjar_alerts.core.cost import LiveCost
from nightjar_alerts.core.failures import ErrorKind, ModelFailedError

HUNG_FACTOR = 30.0  # times the predicted duration; under the heaviest load measured, runs took 10 times as long


@dataclass(slots=True, eq=False)
class _Run:
    """A current run: its time limit and its age, both in seconds."""

    limit: float
    seconds: float = 0.0


class Watchdog:
    """Detects hung runs. Safe to use from several threads.

    Parameters
    ----------
    cost : predicts the duration of a run.
    min_seconds : minimum time limit of a run, however short its predicted duration.
    """

    def __init__(self, cost: LiveCost, min_seconds: float) -> None:
        self._cost, self._min_seconds = cost, min_seconds
        self._current: dict[int, _Run] = {}

    @contextmanager
    def watch(self, size: int, length: int) -> Iterator[None]:
        """Watch a run of ``size`` light curves, padded to ``length`` points, in this thread."""
        predicted = self._cost.model.seconds(size, length)
        thread = threading.get_ident()
        self._current[thread] = _Run(max(self._min_seconds, HUNG_FACTOR * predicted))
        try:
            yield
        finally:
            del self._current[thread]

    def check(self, elapsed: float) -> ModelFailedError | None:
        """Return the fatal error if a run has exceeded its limit; call it at regular intervals.

        Parameters
        ----------
        elapsed : planned interval between two calls, seconds. The age of a run is the sum of these intervals, not the
            elapsed wall time, so that no run counts as hung after the process was suspended (SIGSTOP, a sleeping
            machine).
        """
        for run in list(self._current.values()):  # atomic in CPython, hence no lock
            run.seconds += elapsed
            if run.seconds > run.limit:
                return ModelFailedError(ErrorKind.RUN_HUNG)
        return None
