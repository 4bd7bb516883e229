"""Batches: one run of the network for several light curves, bisected when it fails; and the errors of the engine.

A worker thread assembles, runs and splits a batch. If the run raises, the batch is bisected until the light curve that
causes it fails alone, so one bad light curve never costs its batch mates their results. A row that is not finite fails
alone. Transports turn the errors into replies; nothing here knows about HTTP.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.service.engine.adapter import Arrays, ModelInput, Row, TaskAdapter
from nightjar_alerts.service.engine.policy import QueueItem


class EngineError(Exception):
    """Base of every rejection and every failure of the engine."""


class Overloaded(EngineError):
    """The queue is too long to accept this request; ``retry_after`` predicts the seconds until it fits."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too much work is queued; try again in {retry_after:.1f} s")
        self.retry_after = retry_after


class DeadlineExceeded(EngineError):
    """The deadline passed, or would have passed before the end of the run."""

    def __init__(self) -> None:
        super().__init__("the deadline passed before an answer could be computed")


class InferenceFailed(EngineError):
    """The network failed on this light curve when run alone; ``__cause__`` holds the reason, for the log only."""

    def __init__(self) -> None:
        super().__init__("the network failed on this light curve")


class RunAborted(EngineError):
    """Base of failures that the light curve did not cause: a later attempt may succeed."""


class OutOfMemory(RunAborted):
    """There was not enough memory to run this light curve, even alone."""

    def __init__(self) -> None:
        super().__init__("there was not enough memory to run this light curve")


class EngineClosed(EngineError):
    """The engine is starting, draining or stopped and accepts no work."""

    def __init__(self) -> None:
        super().__init__("the engine is not accepting work")


class EngineDead(EngineError):
    """The engine failed for good; the process has to be replaced."""

    def __init__(self) -> None:
        super().__init__("the inference engine has failed")


_NO_MEMORY = re.compile(r"bad[_ ]alloc|allocate memory|out of memory|OUT_OF_MEMORY|ALLOC_FAILED", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error of numpy or of the runtime says that memory ran out."""
    return isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)) is not None


def error_of(error: Exception) -> EngineError:
    """Map an exception of a single-curve run to the error that its caller gets."""
    if isinstance(error, EngineError):
        return error
    failed = OutOfMemory() if is_out_of_memory(error) else InferenceFailed()
    failed.__cause__ = error
    return failed


RunGraph = Callable[[Arrays], Arrays]
"""Graph inputs to graph outputs, both by name; called from several threads at once."""

EXPERT_LOADS = ("input_expert_load", "expert_load")


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """Outputs of the network for one light curve, and how long they took.

    Attributes
    ----------
    outputs : the row of :meth:`service.engine.adapter.TaskAdapter.split`.
    batch_size : light curves in the run; 0 for a cached result.
    queue_seconds, assemble_seconds, run_seconds : wait for a worker; padding of the batch; inference of the batch.
    run_started : ``time.monotonic()`` at the start of the run.
    run_span : tracing span of the batch, None where it is not traced.
    """

    outputs: Row
    batch_size: int
    queue_seconds: float
    assemble_seconds: float
    run_seconds: float
    run_started: float = 0.0
    run_span: object = None


@dataclass(frozen=True, slots=True, eq=False)
class QueueEntry(QueueItem):
    """A queued light curve. Cancel its future to withdraw it: the queue drops a finished future.

    Attributes
    ----------
    input : the light curve as the network sees it.
    future : of its prediction; belongs to the event loop.
    seconds : predicted duration of a run of this light curve alone.
    client : name among which the queue is fair.
    span : tracing span of the request, None where it is not traced.
    """

    input: ModelInput
    future: asyncio.Future[Prediction]
    seconds: float
    client: str = field(default="", kw_only=True)
    span: object = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True, eq=False)
class RunReport:
    """Facts of one successful run, for metrics, traces and the live cost model.

    Attributes
    ----------
    entries, results : the light curves, and the prediction or error of each.
    tokens : real points in all.
    length : points that each light curve was padded to.
    started : ``time.monotonic()`` when assembling began.
    assemble_seconds, run_seconds, split_seconds : wall time of padding, of the run, and of copying the rows.
    work_seconds : duration of the run by the clock of the warm-up, which excludes other processes where it counts
        processor time.
    expert_load : assignments of real tokens to experts by output name, integers of shape (experts,) or (layers,
        experts).
    """

    entries: Sequence[QueueEntry]
    results: Sequence["RunResult"]
    tokens: int
    length: int
    started: float
    assemble_seconds: float
    run_seconds: float
    split_seconds: float
    work_seconds: float
    expert_load: Mapping[str, NDArray[np.int64]]

    @property
    def size(self) -> int:
        """Number of light curves in the run."""
        return len(self.entries)


RunResult = Prediction | EngineError

TraceBatch = Callable[[Sequence[QueueEntry], float, float, float], object]
"""Called after a run that holds light curves of traced requests, in its worker thread: (entries, start of assembling,
start of the run, end of the run; ``time.monotonic()`` seconds) to the span of the batch."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchRunner:
    """Runs batches; several threads use it at once.

    Attributes
    ----------
    run : graph inputs to graph outputs.
    clock : seconds, by which the work of a run is measured, see :class:`RunReport`.
    trace : called for batches that hold light curves of traced requests.
    """

    run: RunGraph
    adapter: TaskAdapter
    clock: Callable[[], float] = monotonic
    trace: TraceBatch = lambda *_: None

    def run_batch(self, batch: Sequence[QueueEntry]) -> tuple[list[RunResult], list[RunReport]]:
        """Return results in the order of ``batch``, and a report of every run that succeeded."""
        try:
            report = self._run_once(batch)
            return list(report.results), [report]
        except Exception as error:  # the runtime's exceptions share no useful base class
            if len(batch) == 1:
                return [error_of(error)], []
        middle = len(batch) // 2
        first, first_reports = self.run_batch(batch[:middle])
        second, second_reports = self.run_batch(batch[middle:])
        return first + second, first_reports + second_reports

    def _run_once(self, batch: Sequence[QueueEntry]) -> RunReport:
        started = monotonic()
        arrays = self.adapter.assemble([entry.input for entry in batch])
        began, work = monotonic(), self.clock()
        outputs = self.run(arrays)
        work, ended = self.clock() - work, monotonic()
        rows = self.adapter.split(outputs, len(batch))
        split = monotonic()
        is_traced = any(entry.span is not None for entry in batch)
        span = self.trace(batch, started, began, ended) if is_traced else None
        assemble_seconds, run_seconds = began - started, ended - began
        return RunReport(
            entries=batch,
            results=[
                InferenceFailed()
                if row is None
                else Prediction(row, len(batch), started - entry.enqueued, assemble_seconds, run_seconds, began, span)
                for row, entry in zip(rows, batch, strict=True)
            ],
            tokens=sum(entry.length for entry in batch),
            length=padded_length(arrays),
            started=started,
            assemble_seconds=assemble_seconds,
            run_seconds=run_seconds,
            split_seconds=split - ended,
            work_seconds=work,
            expert_load={name: outputs[name] for name in EXPERT_LOADS if name in outputs},
        )


def padded_length(arrays: Arrays) -> int:
    """Return the number of points that each light curve of a batch was padded to."""
    return int(arrays["mask"].shape[1])
