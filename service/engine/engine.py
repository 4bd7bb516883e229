"""The engine: waiting light curves, worker threads, one network. Inference never runs on the event loop.

Worker threads call the same session at the same time, each run on its own core. A worker binds its batch late: it asks
its policy (:func:`service.engine.policy.choose`) at the moment it is free, so whatever arrived meanwhile can
join. There may be more workers than runs at a time: when the queue is so long that choosing early loses nothing, the
others prepare the inputs of the next runs. The event loop and the workers meet in two places only: the backlog,
under one lock, and one ``call_soon_threadsafe`` per finished batch that resolves the futures of all its light curves.

A caller that goes away takes its waiting light curves with it; those already running are computed and forgotten,
and batch mates notice nothing. When a worker thread dies every light curve in the engine fails at once, ``alive``
turns false, and ``on_death`` is called on the event loop: such a process must be replaced.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from nightjar_alerts.service.engine.batch import (
    DeadlineExceeded,
    EngineClosed,
    EngineDead,
    EngineError,
    Graph,
    ModelInput,
    Prediction,
    Program,
    QueueEntry,
    RunGraph,
    RunReport,
    answer,
)
from nightjar_alerts.service.engine.policy import BatchLimits, CostModel, LiveCost, Policy, RunSample, choose
from nightjar_alerts.service.engine.queue import Door, RequestQueue, ThroughputEstimate
from nightjar_alerts.service.observe.tracing import RECORDING

Settled = list[tuple[QueueEntry, Prediction | EngineError]]

SHORTEST_WAIT = 1e-4  # seconds, of a worker that holds a batch back
REPLY_SECONDS = 5e-4
"""Pause of a worker with nothing to run before it learns from its last runs: the event loop, which sends their replies,
needs the interpreter first."""
WATCH_SECONDS = 0.5


class Guard(Protocol):
    """Watch over the runs of an engine, as :class:`service.engine.supervise.Supervisor` does."""

    @property
    def trouble(self) -> str:
        """Reason not to send more work just now; empty when there is none."""

    def watch(self, elapsed: float) -> BaseException | None:
        """Return the fatal error, or None; called on the event loop every ``elapsed`` seconds."""


RunListener = Callable[[RunReport, float], None]
"""Called after every run with its report and its predicted seconds, in the worker thread that ran it: metrics,
statistics and traces."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Size of an engine and the bounds on its queue.

    Attributes
    ----------
    workers : runs at the same time.
    batches : batches bound at the same time, those that wait for their run included; 0 means as many as ``workers``.
    limits : bounds on one batch.
    policy : chooses the light curves that run together.
    max_queued_seconds : predicted wait beyond which :class:`Overloaded` is raised. A request that finds the queue empty
        is taken whatever its size.
    max_queued_items : the same bound as a number of light curves.
    """

    workers: int = 1
    batches: int = 0
    limits: BatchLimits = field(default_factory=BatchLimits)
    policy: Policy = choose
    max_queued_seconds: float = 10.0
    max_queued_items: int = 10_000

    @property
    def threads(self) -> int:
        """Number of worker threads."""
        return max(self.workers, self.batches)


class Engine:
    """Answers light curves in batches. Every method is called on the event loop that called :meth:`start`.

    Parameters
    ----------
    run : graph inputs to graph outputs; called from as many threads at once as ``options`` has workers.
    program : conversions of the graph's task.
    cost : predicted seconds of a run on this machine, from warm-up.
    samples : the runs that ``cost`` was fitted to.
    clock : that measured the runs of the warm-up, in seconds.
    listeners : each called after every run.
    on_death : called on the event loop when the engine dies, as a worker thread ended or its guard found a fatal error.
    guard : asked every :data:`WATCH_SECONDS` whether something is fatal.
    """

    def __init__(
        self,
        run: RunGraph,
        program: Program[Any],
        cost: CostModel,
        options: EngineOptions = EngineOptions(),
        *,
        samples: Sequence[RunSample] = (),
        clock: Callable[[], float] = monotonic,
        listeners: Sequence[RunListener] = (),
        on_death: Callable[[BaseException], None] | None = None,
        guard: Guard | None = None,
    ) -> None:
        threads, workers = options.threads, options.workers
        # More threads than runs at a time: those without a slot make inputs ready while others compute.
        slot = threading.Semaphore(workers) if threads > workers else contextlib.nullcontext()
        self._graph, self._program = Graph(run, slot, clock), program
        self._workers, self._limits = workers, options.limits
        self._cost = LiveCost(cost, samples)
        self._listeners, self._on_death, self._guard = tuple(listeners), on_death, guard
        self._watching: asyncio.Task[None] | None = None
        self._backlog = RequestQueue(options.policy)
        self._drain_rate = ThroughputEstimate(workers)
        self._door = Door(self._backlog, self._drain_rate, options.max_queued_seconds, options.max_queued_items)
        self._changed = threading.Condition()  # guards the backlog, its drain rate and what follows
        self._running: dict[threading.Thread, tuple[float, list[QueueEntry]]] = {}
        self._unlearned: set[threading.Thread] = set()  # workers that have still to learn from their last runs
        self._idle = 0
        self._stopping = False
        self._accepting = False
        self._dead = False
        # Daemons: a run that hangs for good must not keep the process from ending.
        self._threads = [threading.Thread(target=self._work, name=f"engine-{i}", daemon=True) for i in range(threads)]

    async def start(self) -> None:
        """Start the worker threads and accept work."""
        self._loop = asyncio.get_running_loop()
        self._accepting = True
        for thread in self._threads:
            thread.start()
        if self._guard is not None:
            self._watching = asyncio.create_task(self._keep_watch(self._guard))

    @property
    def alive(self) -> bool:
        """False once a worker thread has died."""
        return not self._dead

    @property
    def trouble(self) -> str:
        """Reason not to send more work just now, for people; empty when there is none."""
        return "" if self._guard is None else self._guard.trouble

    @property
    def accepting(self) -> bool:
        """True while work is taken: started, alive and not draining."""
        return self._accepting and not self._dead

    @property
    def depth(self) -> int:
        """Light curves waiting for a worker."""
        return len(self._backlog)

    @property
    def running(self) -> int:
        """Light curves in the runs under way."""
        with self._changed:
            return sum(len(batch) for _, batch in self._running.values())

    @property
    def queued_seconds(self) -> float:
        """Predicted seconds until everything that waits now has been started on."""
        return self._backlog.seconds / self._drain_rate.value

    @property
    def learned(self) -> list[RunSample]:
        """Measured seconds of runs of every shape seen, at warm-up and since."""
        return self._cost.samples()

    @property
    def oldest_run_seconds(self) -> float:
        """Age of the longest run under way, 0 when there is none: a run that hangs shows here and nowhere else."""
        # No lock, for probes must not wait for anything: list() of a dict's values is one step of the interpreter.
        return max((monotonic() - started for started, _ in list(self._running.values())), default=0.0)

    def check_capacity(self, lengths: Iterable[int], *, priority: float = 0.0, client: str = "") -> None:
        """Raise what :meth:`enqueue` would raise for light curves of these lengths, before work is spent on them."""
        self._check_capacity([self._cost.model.seconds(1, length) for length in lengths], priority, client)

    def _check_capacity(self, seconds: Sequence[float], priority: float, client: str) -> None:
        if self._dead:
            raise EngineDead
        if not self._accepting:
            raise EngineClosed
        self._door.check(seconds, priority, client)

    def enqueue(
        self, questions: Sequence[ModelInput], deadline: float | None = None, *, priority: float = 0.0, client: str = ""
    ) -> list[QueueEntry]:
        """Queue light curves, all of them or none; the answers arrive in their futures.

        Parameters
        ----------
        deadline : ``time.monotonic()`` seconds after which an answer is worth nothing.
        priority : head start in seconds, which also moves the bound on the predicted wait.
        client : name by which those who wait share the engine fairly.

        Raises
        ------
        Overloaded, EngineClosed, EngineDead
            When nothing was queued. The futures may raise DeadlineExceeded, InferenceFailed, OutOfMemory, RunHung,
            EngineClosed, EngineDead.
        """
        lengths = [len(question) for question in questions]
        seconds = [self._cost.model.seconds(1, length) for length in lengths]
        self._check_capacity(seconds, priority, client)
        now, recording = monotonic(), RECORDING.get()
        span = None if recording is None else recording.ref
        entries = [
            QueueEntry(
                length,
                now,
                deadline,
                question,
                self._loop.create_future(),
                alone,
                priority=priority,
                client=client,
                span=span,
            )
            for question, length, alone in zip(questions, lengths, seconds, strict=True)
        ]
        with self._changed:
            if self._dead:  # died since the check above: nobody would ever look at the backlog again
                raise EngineDead
            self._backlog.add(entries)
            if self._may_bind():  # else a worker would wake to find that it has to wait
                self._changed.notify(min(len(entries), self._worth_waking))
        return entries

    def withdraw(self, entries: Iterable[QueueEntry], why: type[EngineError] | None = None) -> int:
        """Forget light curves whose caller has gone; those not yet running cost nothing more. Returns how many.

        Parameters
        ----------
        why : failure of futures that somebody still waits for; without it they are cancelled.
        """
        abandoned = []
        for entry in entries:
            if not entry.future.done() or entry.future.cancelled():
                abandoned.append(entry)
            else:
                entry.future.exception()  # marked as seen, or asyncio would log an error that its caller never took
        if not abandoned:  # the usual case, in which the workers need not be disturbed
            return 0
        with self._changed:
            for entry in abandoned:
                self._backlog.remove(entry)
        for entry in abandoned:  # outside of the lock: cancelling runs callbacks of the callers
            if why is None:
                entry.future.cancel()
            elif not entry.future.done():
                entry.future.set_exception(why())
        return len(abandoned)

    async def submit(self, question: ModelInput, deadline: float | None = None) -> Prediction:
        """Answer one light curve; raises what :meth:`enqueue` and its future raise."""
        entries = self.enqueue([question], deadline)
        try:
            return await entries[0].future
        finally:
            self.withdraw(entries)

    async def drain(self, timeout: float) -> bool:
        """Stop accepting, finish what is queued; False when the timeout came first."""
        self._accepting = False
        end = monotonic() + timeout
        while (self.depth or self.running or self._unlearned) and not self._dead:
            if monotonic() >= end:
                return False
            await asyncio.sleep(0.005)
        await asyncio.sleep(0)  # the last answers may have been handed to the loop in this very turn
        return not self._dead

    async def stop(self, timeout: float = 5.0) -> None:
        """Stop the workers after their runs under way; what still waits, or hangs, fails with EngineClosed."""
        self._accepting = False
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None  # its traceback would keep the engine, and the network, alive
        with self._changed:
            self._stopping = True
            remaining = self._backlog.clear()
            self._changed.notify_all()
        _settle([(entry, EngineClosed()) for entry in remaining])
        end = monotonic() + (0.0 if self._dead else timeout)  # a thread that hangs is not waited for
        for thread in self._threads:
            if thread.ident is not None:  # None: never started
                # Not joined here: the loop has still to settle what the last runs answer.
                await asyncio.to_thread(thread.join, max(0.0, end - monotonic()))
        with self._changed:
            hanging = [entry for _, batch in self._running.values() for entry in batch]
        _settle([(entry, EngineClosed()) for entry in hanging])

    async def _keep_watch(self, guard: Guard) -> None:
        while not self._dead:
            await asyncio.sleep(WATCH_SECONDS)
            if (broken := guard.watch(WATCH_SECONDS)) is not None:
                self._die(broken)

    def _work(self) -> None:
        settled: Settled = []
        reports: list[RunReport] = []
        try:
            while (batch := self._next_batch(settled, reports)) is not None:
                self._learn(reports)  # in a pause, or before the next run at the latest
                settled, reports = [], []
                if batch:
                    answers, reports = answer(self._graph, self._program, batch)
                    settled = list(zip(batch, answers, strict=True))
            self._learn(reports)
        except BaseException as error:  # a SystemExit or a bug alike: this thread ends, and nobody else would notice
            self._die(error)

    def _next_batch(self, settled: Settled, reports: Sequence[RunReport]) -> list[QueueEntry] | None:
        """Deliver the last batch, wait for work and bind the next; returns None when the engine stops.

        Returns an empty batch where nothing comes at once and there are reports to learn from meanwhile.
        """
        with self._changed:
            self._finish(settled, reports)
            while not self._stopping:
                now, pause = monotonic(), None
                if self._may_bind():
                    batch, late = self._backlog.take(now, self._cost.model, self._limits, self._free_workers)
                    if late:
                        self._deliver([(entry, DeadlineExceeded()) for entry in late])
                    if batch:
                        return self._bind(now, batch)
                    if late:
                        continue
                    self._drain_rate.idle()
                    pause = self._backlog.held_for(now, self._limits)
                # wait() releases the lock. Without a time limit a worker sleeps until something arrives; with one it
                # wakes to bind a batch that was held back.
                self._idle += 1
                quiet = REPLY_SECONDS if reports else None
                woken = self._changed.wait(quiet if pause is None else max(pause, SHORTEST_WAIT))
                self._idle -= 1
                if not woken and pause is None:
                    return []
        return None

    def _may_bind(self) -> bool:
        """Return True if a batch chosen now would run at once, or be no better if it were chosen later."""
        return len(self._running) < self._workers or len(self._backlog) >= self._limits.ample

    @property
    def _worth_waking(self) -> int:
        """Workers that may find something to do: those that could run it at once, or all where the queue is long."""
        return len(self._threads) if len(self._backlog) >= self._limits.ample else self._workers - len(self._running)

    @property
    def _free_workers(self) -> int:
        """Workers that could run something at once, the caller included."""
        return max(1, min(self._idle + 1, self._workers - len(self._running)))

    def _bind(self, now: float, batch: list[QueueEntry]) -> list[QueueEntry]:
        # Still in the hold of the lock in which the batch left the backlog: drain(), stop() and _die() find every light
        # curve in one of the two.
        self._running[threading.current_thread()] = (now, batch)
        if len(self._running) >= self._workers:
            self._drain_rate.busy(now)
        return batch

    def _finish(self, settled: Settled, reports: Sequence[RunReport]) -> None:
        # In one hold of the lock, so that drain() does not return before the answers are on the loop. They go last:
        # as soon as the loop has them it wants the interpreter.
        if (run := self._running.pop(threading.current_thread(), None)) is not None:
            self._drain_rate.cleared(monotonic(), sum(entry.seconds for entry in run[1]))
        if reports:
            self._unlearned.add(threading.current_thread())
        if settled:
            self._deliver(settled)

    def _learn(self, reports: Sequence[RunReport]) -> None:
        for report in reports:
            run = RunSample(report.size, report.length, report.tokens, report.work_seconds)
            predicted = self._cost.model.seconds(run.batch, run.length, run.tokens)
            if self._cost.update(run, report.run_seconds):
                self._cost.refit()  # nobody waits for it: the answers are out
            for listener in self._listeners:
                listener(report, predicted)
        self._unlearned.discard(threading.current_thread())  # one step of the interpreter, hence no lock

    def _deliver(self, settled: Settled) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is waiting any more
            self._loop.call_soon_threadsafe(_settle, settled)

    def _die(self, error: BaseException) -> None:
        # Called by a worker thread that ends, or by the watch, on the event loop itself: nothing here depends on which.
        with self._changed:
            self._dead = self._stopping = True
            # Everybody's light curves, those of sound workers too: whether they would still be answered is unknown, and
            # a caller who is told now can ask another replica.
            lost = [entry for _, batch in self._running.values() for entry in batch] + self._backlog.clear()
            self._running.clear()
            self._changed.notify_all()
        self._deliver([(entry, EngineDead()) for entry in lost])
        if self._on_death is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_death, error)


def _settle(settled: Settled) -> None:
    for entry, result in settled:
        # Withdrawn by its caller, or failed by _die() or stop() while a sound worker went on with its run.
        if entry.future.done():
            continue
        if isinstance(result, EngineError):
            entry.future.set_exception(result)
        else:
            entry.future.set_result(result)
