"""A watch over the runs of one engine: hung runs, and runs that all fail.

A :class:`Watchdog` wraps the graph that it watches. It finds what the engine cannot survive, and never repairs it:

- a run takes many times its predicted duration: it hangs;
- a run of one light curve fails, and so does a run of a made-up light curve that is known to work: the execution
  provider is lost, or there is no memory left. If the made-up light curve runs, only the real one is to blame, so no
  client can end the service by an input that raises.

:class:`FatalEngineError` ends the engine, and the process exits with status 1. A supervisor (Kubernetes, systemd,
Docker) starts it again.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from nightjar_alerts.service.engine.adapter import Arrays, TaskAdapter
from nightjar_alerts.service.engine.batch import OutOfMemory, RunGraph, is_out_of_memory, padded_length
from nightjar_alerts.service.engine.policy import LiveCost
from nightjar_alerts.service.engine.warmup import BatchShape, dummy_batch

HUNG_FACTOR = 30.0  # times the predicted duration; under the heaviest load measured, runs took 10 times as long


class ErrorKind(StrEnum):
    """Kinds of errors of an engine, as metrics and logs name them."""

    THREAD_DIED = "thread_died"
    OUT_OF_MEMORY = "out_of_memory"
    RUN_HUNG = "run_hung"
    PROVIDER_LOST = "provider_lost"


MESSAGES = {
    ErrorKind.THREAD_DIED: "an inference thread died",
    ErrorKind.OUT_OF_MEMORY: "there is no memory left for inference",
    ErrorKind.RUN_HUNG: "an inference run hangs",
    ErrorKind.PROVIDER_LOST: "the execution provider fails every run",
}


class FatalEngineError(BaseException):
    """The engine cannot go on. Not an ``Exception``: it must not be taken for a failed batch and bisected."""

    def __init__(self, kind: ErrorKind) -> None:
        super().__init__(MESSAGES[kind])
        self.kind = kind


def kind_of(error: BaseException) -> ErrorKind:
    """Return the kind of the error that an engine died of."""
    return error.kind if isinstance(error, FatalEngineError) else ErrorKind.THREAD_DIED


@dataclass(slots=True, eq=False)
class _Run:
    """A current run; ``seconds`` counts only time during which the watchdog was called."""

    limit: float
    seconds: float = 0.0


class Watchdog:
    """A graph with a watch over its runs; call it like the graph. Safe to use from several threads.

    Parameters
    ----------
    cost : predicts the duration of a run.
    min_seconds : time that any run may take, however short its prediction.
    on_recovery : called when a batch, or a light curve alone, needed more memory than there is and the engine goes on.
    """

    def __init__(
        self,
        graph: RunGraph,
        adapter: TaskAdapter,
        cost: LiveCost,
        min_seconds: float,
        on_recovery: Callable[[], None] = lambda: None,
    ) -> None:
        self._graph, self._adapter, self._cost, self._min_seconds = graph, adapter, cost, min_seconds
        self._on_recovery = on_recovery
        self._current: dict[int, _Run] = {}

    def __call__(self, arrays: Arrays) -> Arrays:
        """Run the graph.

        Raises
        ------
        OutOfMemory
            If there was not enough memory for a light curve alone.
        FatalEngineError
            If no run can succeed any more.
        """
        try:
            return self._watched(arrays)
        except Exception as error:
            no_memory = is_out_of_memory(error)
            if len(arrays["mask"]) == 1:
                self._check_graph(error)
            if no_memory:
                self._on_recovery()
            if no_memory and len(arrays["mask"]) == 1:
                raise OutOfMemory from error
            raise  # the caller bisects a batch

    def check(self, elapsed: float) -> FatalEngineError | None:
        """Return the fatal error if a run hangs; called at short intervals.

        Parameters
        ----------
        elapsed : seconds between two calls, as planned. Runs age by these, not by the clock: a process that was stopped
            as a whole (SIGSTOP, a suspended machine) and goes on finds nothing hung.
        """
        for run in list(self._current.values()):  # atomic in CPython, hence no lock
            run.seconds += elapsed
            if run.seconds > run.limit:
                return FatalEngineError(ErrorKind.RUN_HUNG)
        return None

    def _watched(self, arrays: Arrays) -> Arrays:
        predicted = self._cost.model.seconds(len(arrays["mask"]), padded_length(arrays))
        thread = threading.get_ident()
        self._current[thread] = _Run(max(self._min_seconds, HUNG_FACTOR * predicted))
        try:
            return self._graph(arrays)
        finally:
            del self._current[thread]

    def _check_graph(self, error: Exception) -> None:
        """Run a made-up light curve; raise FatalEngineError if that fails as well."""
        try:
            self._watched(self._adapter.assemble(dummy_batch(self._adapter, BatchShape(1, 4, 0))))
        except Exception as again:
            kind = ErrorKind.OUT_OF_MEMORY if is_out_of_memory(again) else ErrorKind.PROVIDER_LOST
            raise FatalEngineError(kind) from error
