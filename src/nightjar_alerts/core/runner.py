"""Run batches: bisection of a batch that fails, and the check after a light curve that fails alone.

If a run raises, the batch is bisected until the light curve that causes the error runs alone, so that the others still
get their results. When a light curve fails alone, a dummy light curve runs next. If that succeeds, the failure is
attributed to the light curve, so no client can stop a service with an input that raises. If the dummy fails too, the
execution provider has failed or memory is exhausted, and :class:`core.failures.ModelFailedError` ends the runner.

There are two runners: :class:`ThreadRunner`, which works in threads of this process, and the engine of the service,
which adds a queue, deadlines, a watchdog, times and traces. Both run batches by :func:`run_batch`.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from nightjar_alerts.core.adapter import Adapter, Graph, ModelInput
from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.core.failures import ErrorKind, InferenceFailed, ModelFailedError, error_of, is_out_of_memory
from nightjar_alerts.core.items import Prediction, RunResult
from nightjar_alerts.core.policy import BatchLimits, divide
from nightjar_alerts.core.warmup import BatchShape, dummy_batch

T = TypeVar("T")


def run_batch(
    batch: Sequence[T],
    run: Callable[[Sequence[T]], list[RunResult]],
    graph: Graph,
    adapter: Adapter,
    on_out_of_memory: Callable[[], None] = lambda: None,
) -> list[RunResult]:
    """Return one result per light curve of a batch, in order.

    Parameters
    ----------
    run : runs a batch once.
    graph : runs the dummy light curve.
    on_out_of_memory : called when a run failed for lack of memory, and others may follow.

    Raises
    ------
    ModelFailedError
        If a dummy light curve fails as well.
    """
    try:
        return run(batch)
    except Exception as error:  # the runtime's exceptions share no useful base class
        if len(batch) == 1:
            _check_graph(graph, adapter, error)
        if is_out_of_memory(error):
            on_out_of_memory()
        if len(batch) == 1:
            return [error_of(error)]
    middle = len(batch) // 2
    first = run_batch(batch[:middle], run, graph, adapter, on_out_of_memory)
    return first + run_batch(batch[middle:], run, graph, adapter, on_out_of_memory)


def _check_graph(graph: Graph, adapter: Adapter, error: Exception) -> None:
    """Run a dummy light curve after a real one failed; raise ModelFailedError if it fails as well."""
    try:
        graph(adapter.assemble(dummy_batch(adapter, BatchShape(1, 4, 0))))
    except Exception as again:
        kind = ErrorKind.OUT_OF_MEMORY if is_out_of_memory(again) else ErrorKind.PROVIDER_LOST
        raise ModelFailedError(kind) from error


@dataclass(frozen=True, slots=True)
class PendingRuns:
    """Runs of several light curves in threads.

    Attributes
    ----------
    batches : indices of the light curves of each batch, and its results.
    """

    batches: Sequence[tuple[Sequence[int], Future[list[RunResult]]]]

    def results(self) -> list[RunResult]:
        """Wait for the results; return them in the order of the light curves. Raises ModelFailedError."""
        results: dict[int, RunResult] = {}
        for indices, future in self.batches:
            results |= zip(indices, future.result(), strict=True)
        return [results[index] for index in range(len(results))]

    def cancel(self) -> None:
        """Cancel the runs that have not begun."""
        for _, future in self.batches:
            future.cancel()


class ThreadRunner:
    """Runs batches in threads of this process. Thread-safe.

    Parameters
    ----------
    workers : number of concurrent runs.
    limits : bounds on one batch.
    """

    def __init__(self, workers: int, limits: BatchLimits) -> None:
        self._workers, self._limits = workers, limits
        self._threads = ThreadPoolExecutor(workers, "nightjar")

    def start(self, graph: Graph, adapter: Adapter, cost: CostModel, inputs: Sequence[ModelInput]) -> PendingRuns:
        """Divide light curves into batches of similar length, and start their runs."""
        limits = self._limits.shared(len(inputs), self._workers)

        def run(batch: Sequence[ModelInput]) -> list[RunResult]:
            rows = adapter.split(graph(adapter.assemble(batch)), len(batch))
            return [row if isinstance(row, InferenceFailed) else Prediction(row, len(batch)) for row in rows]

        return PendingRuns(
            [
                (indices, self._threads.submit(run_batch, [inputs[index] for index in indices], run, graph, adapter))
                for indices in divide([len(each) for each in inputs], cost, limits)
            ]
        )

    def close(self) -> None:
        """Wait for the current runs, and stop the threads."""
        self._threads.shutdown()
