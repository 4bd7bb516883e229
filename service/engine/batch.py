"""Batches of the engine: :mod:`core.runner` with times, a watchdog, traces and a report of each run.

A worker thread assembles, runs and splits a batch. A batch that fails is bisected, and a light curve whose outputs are
not finite fails without affecting the rest of the batch.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.core.adapter import Adapter, Arrays, Graph, ModelInput, padded_length
from nightjar_alerts.core.failures import InferenceFailed
from nightjar_alerts.core.items import Prediction, RunResult
from nightjar_alerts.core.policy import QueueItem
from nightjar_alerts.core.runner import run_batch
from nightjar_alerts.service.engine.watchdog import Watchdog

EXPERT_LOADS = ("input_expert_load", "expert_load")


@dataclass(frozen=True, slots=True, eq=False)
class QueueEntry(QueueItem):
    """A queued light curve. Cancel its future to withdraw it: the queue drops entries whose future is done.

    Attributes
    ----------
    input : the light curve as the network sees it.
    future : receives the prediction; used on the event loop only.
    seconds : predicted duration of a run of this light curve alone.
    client : name of the client; the queue is fair between clients.
    span : tracing span of the request, None where it is not traced.
    """

    input: ModelInput
    future: asyncio.Future[Prediction]
    seconds: float
    client: str = field(default="", kw_only=True)
    span: object = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True, eq=False)
class RunReport:
    """Record of one successful run, for metrics, traces and the live cost model.

    Attributes
    ----------
    entries, results : the light curves, and the prediction or error of each.
    tokens : total number of points, without padding.
    length : points that each light curve was padded to.
    started : ``time.monotonic()`` when assembling began.
    assemble_seconds, run_seconds, split_seconds : wall time of padding, of the run, and of copying the rows.
    work_seconds : duration of the run on the clock of the warm-up: processor time on a CPU, which excludes other
        processes, else wall time.
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


TraceBatch = Callable[[Sequence[QueueEntry], float, float, float], object]
"""Called in the worker thread after a run that includes traced requests, with the entries and with the start of
assembling, start of the run and end of the run (``time.monotonic()`` seconds); returns the span of the batch."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchRunner:
    """Runs batches. Safe to use from several threads.

    Attributes
    ----------
    watchdog : watches every run.
    clock : measures ``RunReport.work_seconds``.
    trace : see :data:`TraceBatch`.
    on_recovery : called when a run failed for lack of memory and the engine continues.
    """

    graph: Graph
    adapter: Adapter
    watchdog: Watchdog
    clock: Callable[[], float] = monotonic
    trace: TraceBatch = lambda *_: None
    on_recovery: Callable[[], None] = lambda: None

    def run_batch(self, batch: Sequence[QueueEntry]) -> tuple[list[RunResult], list[RunReport]]:
        """Return the results in the order of ``batch``, and the reports of the successful runs.

        Raises
        ------
        ModelFailedError
            If a dummy light curve fails as well.
        """
        reports: list[RunReport] = []

        def run(entries: Sequence[QueueEntry]) -> list[RunResult]:
            reports.append(self._run_once(entries))
            return list(reports[-1].results)

        return run_batch(batch, run, self._run_graph, self.adapter, self.on_recovery), reports

    def _run_once(self, batch: Sequence[QueueEntry]) -> RunReport:
        started = monotonic()
        arrays = self.adapter.assemble([entry.input for entry in batch])
        began, work = monotonic(), self.clock()
        outputs = self._run_graph(arrays)
        work, ended = self.clock() - work, monotonic()
        rows = self.adapter.split(outputs, len(batch))
        split = monotonic()
        is_traced = any(entry.span is not None for entry in batch)
        span = self.trace(batch, started, began, ended) if is_traced else None
        assemble_seconds, run_seconds = began - started, ended - began
        return RunReport(
            entries=batch,
            results=[
                row
                if isinstance(row, InferenceFailed)
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

    def _run_graph(self, arrays: Arrays) -> Arrays:
        with self.watchdog.watch(len(arrays["mask"]), padded_length(arrays)):
            return self.graph(arrays)
