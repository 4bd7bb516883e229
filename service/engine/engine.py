"""The engine: a queue of light curves, worker threads and one network. Inference never runs on the event loop.

Worker threads call the same session concurrently, one run per core. Each repeats four steps: take a batch, run it,
deliver the results, record the run. A worker chooses its batch when it becomes idle
(:func:`core.policy.choose`), so light curves that arrived in the meantime can join. The event loop and the
workers share only the queue, under one lock. Each finished batch makes one ``call_soon_threadsafe`` call, which
resolves the futures of its entries.

An entry owns its future and its deadline. When its caller disconnects, the future is cancelled: a queued entry is
dropped when a batch is chosen, and the result of a running entry is discarded. Other entries are not affected.

The engine does not restart itself. When a worker thread ends, a run hangs, or every run fails, all light curves in the
engine fail at once, ``alive`` becomes false, and ``on_death`` is called on the event loop: the process must be
replaced.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from nightjar_alerts.core.adapter import Adapter, Graph, ModelInput
from nightjar_alerts.core.cost import CostModel, LiveCost, RunSample
from nightjar_alerts.core.failures import RunError
from nightjar_alerts.core.items import Prediction, RunResult
from nightjar_alerts.core.machine import batch_limits, default_workers
from nightjar_alerts.core.policy import BatchLimits, Policy, choose
from nightjar_alerts.service.engine.batch import BatchRunner, QueueEntry, RunReport, TraceBatch
from nightjar_alerts.service.engine.errors import DeadlineExceeded, EngineClosed, EngineDead
from nightjar_alerts.service.engine.queue import Admission, RequestQueue, ThroughputEstimate
from nightjar_alerts.service.engine.watchdog import Watchdog

if TYPE_CHECKING:  # importing onnxruntime is slow
    from nightjar_alerts.models.runtime import Provider

REPLY_SECONDS = 5e-4
"""Pause of an idle worker before it records its runs, so that the event loop gets the GIL and sends the replies
first."""
WATCH_SECONDS = 0.5

RunListener = Callable[[RunReport, float], None]
"""Called in the worker thread after every run, with its report and its predicted seconds."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Size of an engine and the bound on its queue.

    Attributes
    ----------
    workers : number of concurrent runs.
    limits : bounds on one batch.
    policy : batching policy.
    max_queued_seconds : predicted wait beyond which :class:`Overloaded` is raised. A request that arrives while the
        queue is empty is accepted whatever its size.
    hung_run_seconds : minimum run time before a run counts as hung; see :class:`service.engine.watchdog.Watchdog`.
    """

    workers: int = 1
    limits: BatchLimits = field(default_factory=BatchLimits)
    policy: Policy = choose
    max_queued_seconds: float = 10.0
    hung_run_seconds: float = 10.0


def engine_options(
    provider: "Provider",
    workers: int = 0,
    max_batch_tokens: int = 0,
    max_queued_seconds: float = 10.0,
    hung_run_seconds: float = 10.0,
) -> EngineOptions:
    """Return the options of an engine; 0 selects the default of the execution provider."""
    return EngineOptions(
        workers=workers or default_workers(provider),
        limits=batch_limits(provider, max_batch_tokens),
        max_queued_seconds=max_queued_seconds,
        hung_run_seconds=hung_run_seconds,
    )


class Engine:
    """Runs light curves in batches. Call every method on the event loop that called :meth:`start`.

    Parameters
    ----------
    graph : called concurrently from ``options.workers`` threads.
    adapter : converts between light curves and arrays.
    cost : cost model of this machine, fitted at warm-up.
    samples : warm-up runs that ``cost`` was fitted to.
    clock : clock that measured ``samples``, in seconds.
    listener : called after every run.
    trace : see :data:`service.engine.batch.TraceBatch`.
    on_recovery : called in a worker thread when a run failed for lack of memory and the engine continues.
    on_death : called on the event loop with the error that stopped the engine.
    """

    def __init__(
        self,
        graph: Graph,
        adapter: Adapter,
        cost: CostModel,
        options: EngineOptions = EngineOptions(),
        *,
        samples: Sequence[RunSample] = (),
        clock: Callable[[], float] = monotonic,
        listener: RunListener = lambda report, predicted_seconds: None,
        trace: TraceBatch = lambda *_: None,
        on_recovery: Callable[[], None] = lambda: None,
        on_death: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._cost = LiveCost(cost, samples)
        self._watchdog = Watchdog(self._cost, options.hung_run_seconds)
        self._runner = BatchRunner(graph, adapter, self._watchdog, clock, trace, on_recovery)
        self._workers, self._limits = options.workers, options.limits
        self._listener, self._on_death = listener, on_death
        self._queue = RequestQueue(options.policy)
        self._throughput = ThroughputEstimate(options.workers)
        self._admission = Admission(self._queue, self._throughput, options.max_queued_seconds)
        self._changed = threading.Condition()  # guards the queue, the throughput and the fields below
        self._running: dict[threading.Thread, tuple[float, list[QueueEntry]]] = {}
        self._unrecorded = 0  # batches delivered but not recorded yet
        self._idle = 0
        self._stopping = False
        self._accepting = False
        self._dead = False
        self._watch: asyncio.Task[None] | None = None
        # Daemon threads, so that a hung run does not keep the process from exiting.
        self._threads = [
            threading.Thread(target=self._work, name=f"engine-{number}", daemon=True) for number in range(self._workers)
        ]

    async def start(self) -> None:
        """Start the worker threads and accept work."""
        self._loop = asyncio.get_running_loop()
        self._accepting = True
        for thread in self._threads:
            thread.start()
        self._watch = asyncio.create_task(self._check_runs())

    @property
    def alive(self) -> bool:
        """False once the engine has failed for good."""
        return not self._dead

    @property
    def accepting(self) -> bool:
        """True while work is accepted: started, alive and not draining."""
        return self._accepting and not self._dead

    @property
    def depth(self) -> int:
        """Number of queued light curves."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """Number of light curves in the current runs."""
        with self._changed:
            return sum(len(batch) for _, batch in self._running.values())

    @property
    def queued_seconds(self) -> float:
        """Predicted seconds until all light curves queued now have been started."""
        return self._queue.seconds / self._throughput.value

    @property
    def oldest_run_seconds(self) -> float:
        """Age of the longest current run, 0 if there is none."""
        # No lock, since probes must not wait: list() of a dict's values is atomic in CPython.
        return max((monotonic() - started for started, _ in list(self._running.values())), default=0.0)

    def check_capacity(self, lengths: Iterable[int], client: str = "") -> None:
        """Raise as :meth:`enqueue` would for light curves of these lengths, before they are featurised."""
        self._admit(sum(self._cost.model.seconds(1, length) for length in lengths), client)

    def _admit(self, seconds: float, client: str) -> None:
        if self._dead:
            raise EngineDead
        if not self._accepting:
            raise EngineClosed
        self._admission.check(seconds, client)

    def enqueue(
        self, inputs: Sequence[ModelInput], deadline: float | None = None, *, client: str = "", span: object = None
    ) -> list[QueueEntry]:
        """Queue all light curves or none; the results arrive in the futures of the entries.

        Parameters
        ----------
        deadline : ``time.monotonic()`` seconds after which the result is not needed.
        client : name of the client; the queue is fair between clients.
        span : tracing span of the request.

        Raises
        ------
        Overloaded, EngineClosed, EngineDead
            If nothing was queued. The futures may raise DeadlineExceeded, InferenceFailed, OutOfMemory, EngineClosed
            or EngineDead.
        """
        lengths = [len(model_input) for model_input in inputs]
        seconds = [self._cost.model.seconds(1, length) for length in lengths]
        self._admit(sum(seconds), client)
        now = monotonic()
        entries = [
            QueueEntry(length, now, deadline, model_input, self._loop.create_future(), cost, client=client, span=span)
            for model_input, length, cost in zip(inputs, lengths, seconds, strict=True)
        ]
        with self._changed:
            if self._dead:  # failed since the check above: no worker would process the queue
                raise EngineDead
            self._queue.add(entries)
            self._changed.notify(min(len(entries), self._workers))
        return entries

    async def submit(self, model_input: ModelInput, deadline: float | None = None) -> Prediction:
        """Return the prediction of one light curve; raises as :meth:`enqueue` and its futures do."""
        (entry,) = self.enqueue([model_input], deadline)
        return await entry.future

    async def drain(self, timeout: float) -> bool:
        """Stop accepting work and finish what is queued; return False on timeout."""
        self._accepting = False
        end = monotonic() + timeout
        while (self.depth or self.running or self._unrecorded) and not self._dead:
            if monotonic() >= end:
                return False
            await asyncio.sleep(0.005)
        await asyncio.sleep(0)  # the last results may have been sent to the event loop in this iteration
        return not self._dead

    async def stop(self, timeout: float = 5.0) -> None:
        """Stop the workers after their current runs; queued and hung light curves fail with EngineClosed."""
        self._accepting = False
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None  # its traceback would keep the engine and the network in memory
        with self._changed:
            self._stopping = True
            remaining = self._queue.clear()
            self._changed.notify_all()
        _resolve([(entry, EngineClosed()) for entry in remaining])
        end = monotonic() + (0.0 if self._dead else timeout)  # hung threads are not waited for
        for thread in self._threads:
            if thread.ident is not None:  # None: never started
                # Not joined here: the event loop has yet to resolve the futures of the last runs.
                await asyncio.to_thread(thread.join, max(0.0, end - monotonic()))
        with self._changed:
            hung = [entry for _, batch in self._running.values() for entry in batch]
        _resolve([(entry, EngineClosed()) for entry in hung])

    async def _check_runs(self) -> None:
        while not self._dead:
            await asyncio.sleep(WATCH_SECONDS)
            if (error := self._watchdog.check(WATCH_SECONDS)) is not None:
                self._die(error)

    # In the worker threads.

    def _work(self) -> None:
        try:
            while (batch := self._take()) is not None:
                results, reports = self._runner.run_batch(batch)
                self._deliver(batch, results)
                self._record(reports)
        except BaseException as error:  # SystemExit or a bug ends this thread, which nothing else reports
            self._die(error)

    def _take(self) -> list[QueueEntry] | None:
        """Wait for queued light curves and choose the next batch; return None when the engine stops."""
        with self._changed:
            while not self._stopping:
                now = monotonic()
                batch, expired = self._queue.take(now, self._cost.model, self._limits, self._idle + 1)
                self._send([(entry, DeadlineExceeded()) for entry in expired])
                if batch:
                    # Under the same lock that removed the batch from the queue, so that drain(), stop() and _die() find
                    # every light curve either in the queue or in a run.
                    self._running[threading.current_thread()] = (now, batch)
                    if len(self._running) == self._workers:
                        self._throughput.busy(now)
                    return batch
                if not expired:
                    self._wait()
        return None

    def _deliver(self, batch: Sequence[QueueEntry], results: Sequence[RunResult]) -> None:
        """End a run and send its results to the event loop."""
        with self._changed:
            # Under one lock, so that drain() does not return before the results are on the event loop. They are sent
            # last, since the event loop needs the GIL as soon as it has them.
            self._running.pop(threading.current_thread(), None)  # _die() may have removed it
            self._throughput.cleared(monotonic(), sum(entry.seconds for entry in batch))
            self._unrecorded += 1
            self._send(list(zip(batch, results, strict=True)))

    def _record(self, reports: Sequence[RunReport]) -> None:
        """Update the cost model and report the runs, once the event loop has had time to send the replies."""
        with self._changed:
            if not len(self._queue) and not self._stopping:
                self._wait(REPLY_SECONDS)
        for report in reports:
            run = RunSample(report.size, report.length, report.tokens, report.work_seconds)
            predicted = self._cost.model.seconds(run.batch, run.length, run.tokens)
            if self._cost.update(run, report.run_seconds):
                self._cost.refit()
            self._listener(report, predicted)
        with self._changed:
            self._unrecorded -= 1

    def _wait(self, seconds: float | None = None) -> None:
        """Release the lock and wait, as an idle worker, until the queue or the engine changes."""
        self._throughput.idle()
        self._idle += 1
        self._changed.wait(seconds)
        self._idle -= 1

    def _send(self, results: Sequence[tuple[QueueEntry, RunResult]]) -> None:
        if results:
            with contextlib.suppress(RuntimeError):  # the event loop has closed, so no caller is waiting
                self._loop.call_soon_threadsafe(_resolve, results)

    def _die(self, error: BaseException) -> None:
        # Called from a worker thread that ends, or on the event loop by _check_runs().
        with self._changed:
            if self._dead:
                return
            self._dead = self._stopping = True
            # Light curves in the runs of other workers fail too: those runs may not finish, and a caller that gets the
            # error now can try another replica.
            lost = [entry for _, batch in self._running.values() for entry in batch] + self._queue.clear()
            self._running.clear()
            self._changed.notify_all()
        self._send([(entry, EngineDead()) for entry in lost])
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._on_death, error)


def _resolve(results: Sequence[tuple[QueueEntry, RunResult]]) -> None:
    for entry, result in results:
        # Cancelled by its caller, or failed by _die() or stop() while its run finished.
        if entry.future.done():
            continue
        if isinstance(result, RunError):
            entry.future.set_exception(result)
            entry.future.exception()  # marks it as retrieved, else asyncio logs it if the caller has disconnected
        else:
            entry.future.set_result(result)
