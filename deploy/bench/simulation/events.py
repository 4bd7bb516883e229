"""Discrete-event simulation of the engine: a queue, workers, and the real engine's scheduling functions.

The simulation includes arrivals, the choice of every batch, the time of its run, and expiry, but not HTTP and decoding.
Time is simulated and everything is deterministic, so minutes of traffic take a second or two.

Policies of general model servers have the same signature as the engine's own. They take the oldest items and pad them,
up to a number of requests (Triton, TorchServe, LitServe, mosec), up to a budget of padded tokens
(text-embeddings-inference), or after a delay in which others may arrive. None of them uses the cost of a run.

:func:`replay` runs the real engine with the same traffic in this process, for comparison. Light curves with the lengths
of the trace are generated in advance; each is submitted at its arrival, and latency is measured from the intended
arrival.

The cost of runs is measured first, with as many threads as the engine has workers: assembly, graph and copying of the
outputs, in wall-clock time. The simulation uses these times; the policy uses the fit of the warm-up, which times the
graph only.
"""

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from statistics import fmean
from time import perf_counter
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deploy.bench.workload import Trace
from nightjar_alerts.core.adapter import Adapter, ModelInput, padded_length
from nightjar_alerts.core.cost import CostModel, RunSample
from nightjar_alerts.core.items import Prediction
from nightjar_alerts.core.load import LoadedModel
from nightjar_alerts.core.policy import BatchLimits, Policy, QueueItem, choose, plan
from nightjar_alerts.core.warmup import BatchShape, dummy_batch, warm_up_shapes
from nightjar_alerts.service.engine.batch import RunReport
from nightjar_alerts.service.engine.engine import Engine, EngineOptions
from nightjar_alerts.service.engine.errors import DeadlineExceeded

PolicyName = Literal["nightjar", "one_by_one", "fifo_count_64", "fifo_token_budget", "window_5ms"]

ITEMS = 64
TOKENS = 4096
"""Maximum number of padded observations in a batch by token budget: about 64 light curves of the median length."""
BUDGET_ITEMS = 512
WINDOW_SECONDS = 0.005
UNBOUNDED = 2**62


@dataclass(frozen=True, slots=True)
class Contender:
    """Policy and its limits; ``delay`` is the time in seconds for which a batch that is not full is held back."""

    policy: Policy
    limits: BatchLimits
    delay: float = 0.0

    def held_until(self, queue: Sequence[QueueItem], now: float, cost: CostModel) -> float:
        """Return when a batch with the oldest item may run: ``now``, or at the end of the delay."""
        end = queue[0].enqueued + self.delay
        if now >= end:
            return now
        size = len(self.policy(queue, now, cost, self.limits))
        return now if size == self.limits.max_items or size < len(queue) else end


def one_by_one(queue: Sequence[QueueItem], now: float, cost: CostModel, limits: BatchLimits) -> list[int]:
    """Return the oldest item."""
    return [0] if queue else []


def fifo(queue: Sequence[QueueItem], now: float, cost: CostModel, limits: BatchLimits) -> list[int]:
    """Return the oldest items in order of arrival that fit into ``limits``."""
    count, length = 0, 0
    for item in queue[: limits.max_items]:
        padded = max(length, item.length)
        if count and (count + 1) * padded > limits.max_tokens:
            break
        count, length = count + 1, padded
    return list(range(count))


def contenders(ours: BatchLimits) -> dict[PolicyName, Contender]:
    """Return the engine's policy with its limits, and those of other servers with their usual limits."""
    count = BatchLimits(max_tokens=UNBOUNDED, max_items=ITEMS, window=ITEMS, shares=False)
    budget = BatchLimits(max_tokens=TOKENS, max_items=BUDGET_ITEMS, window=BUDGET_ITEMS, shares=False)
    return {
        "nightjar": Contender(choose, ours),
        "one_by_one": Contender(one_by_one, replace(count, max_items=1, window=1)),
        "fifo_count_64": Contender(fifo, count),
        "fifo_token_budget": Contender(fifo, budget),
        "window_5ms": Contender(fifo, count, WINDOW_SECONDS),
    }


class SimulatedRun(NamedTuple):
    """Batch: indices of light curves, padded length, total number of observations, start and end (seconds)."""

    items: tuple[int, ...]
    length: int
    tokens: int
    started: float
    ended: float


@dataclass(frozen=True, slots=True)
class Machine:
    """Workers and the cost of runs.

    Attributes
    ----------
    workers : number of concurrent runs.
    predicted : time of a run as predicted by the policy.
    occupied : time for which a run occupies a worker while the others are busy, too, from assembling its inputs to
        returning its results.
    """

    workers: int
    predicted: CostModel
    occupied: CostModel


@dataclass(frozen=True, slots=True)
class TraceOutcome:
    """Outcome of a trace: time of each light curve's result (seconds; NaN if it expired), and the runs."""

    trace: Trace
    answered: NDArray[np.float64]
    runs: list[SimulatedRun]
    peak_waiting: int


class PolicyError(RuntimeError):
    """A policy violated its contract."""


@dataclass(slots=True)
class _Engine:
    trace: Trace
    contender: Contender
    machine: Machine
    deadline: float | None
    waiting: OrderedDict[int, QueueItem] = field(default_factory=OrderedDict)
    busy: list[float] = field(default_factory=list)  # heap of the ends of running batches
    runs: list[SimulatedRun] = field(default_factory=list)
    arrived: int = 0
    peak: int = 0

    def admit(self, now: float) -> None:
        """Queue the light curves that have arrived by now."""
        last = int(np.searchsorted(self.trace.arrival, now, side="right"))
        for index in range(self.arrived, last):
            arrival = float(self.trace.arrival[index])
            end = None if self.deadline is None else arrival + self.deadline
            self.waiting[index] = QueueItem(int(self.trace.length[index]), arrival, end)
        self.arrived = last
        self.peak = max(self.peak, len(self.waiting))

    def dispatch(self, now: float) -> float:
        """Occupy idle workers; return the time of the next call."""
        limits, machine = self.contender.limits, self.machine
        while self.waiting and len(self.busy) < machine.workers:
            window = list(islice(self.waiting.items(), limits.window))
            items = [item for _, item in window]
            free = machine.workers - len(self.busy)
            if (end := self.contender.held_until(items, now, machine.predicted)) > now:
                return end
            chosen, late = plan(items, len(self.waiting), now, machine.predicted, limits, free, self.contender.policy)
            self._start([window[index][0] for index in chosen], now)
            for index in (*chosen, *late):
                del self.waiting[window[index][0]]
            if not chosen and not late:
                raise PolicyError("the policy chose nothing from a queue that is not empty")
        return np.inf

    def _start(self, numbers: list[int], now: float) -> None:
        if not numbers:
            return
        lengths = [self.waiting[number].length for number in numbers]
        padded, tokens = max(lengths), sum(lengths)
        ended = now + self.machine.occupied.seconds(len(numbers), padded, tokens)
        heapq.heappush(self.busy, ended)
        self.runs.append(SimulatedRun(tuple(numbers), padded, tokens, now, ended))


def simulate(trace: Trace, contender: Contender, machine: Machine, deadline: float | None = None) -> TraceOutcome:
    """Run a trace through the engine.

    Parameters
    ----------
    deadline : seconds after its arrival at which a light curve's answer is worth nothing; None: never.

    Raises
    ------
    PolicyError
        If the policy chooses nothing from a queue that is not empty.
    """
    engine = _Engine(trace, contender, machine, deadline)
    wake = np.inf
    while engine.arrived < len(trace.arrival) or engine.waiting:
        arrival = float(trace.arrival[engine.arrived]) if engine.arrived < len(trace.arrival) else np.inf
        # A held batch has a free worker, so its release needs no other event.
        now = min(arrival, wake, engine.busy[0] if engine.busy else np.inf)
        while engine.busy and engine.busy[0] <= now:
            heapq.heappop(engine.busy)
        engine.admit(now)
        wake = engine.dispatch(now)
    answered = np.full(len(trace.arrival), np.nan)
    for run in engine.runs:
        answered[list(run.items)] = run.ended
    return TraceOutcome(trace, answered, engine.runs, engine.peak)


REPEATS = 7
ROOM = 10**9  # queue limit, so that a replay rejects nothing


def occupation(model: LoadedModel, workers: int, repeats: int = REPEATS) -> CostModel:
    """Measure the time of a run while all workers are busy, and fit a cost model to the shapes of the warm-up.

    Uses means, not medians, because interruptions by other processes also delay a queue.
    """
    adapter = Adapter(model.bundle.manifest)
    samples = []
    with ThreadPoolExecutor(workers) as threads:
        for shape in warm_up_shapes(adapter.max_points):
            inputs = dummy_batch(adapter, shape)
            work = [threads.submit(_busy_seconds, model, adapter, inputs, repeats) for _ in range(workers)]
            seconds = fmean(second for done in work for second in done.result())
            length = padded_length(adapter.assemble(inputs))
            samples.append(RunSample(len(inputs), length, sum(map(len, inputs)), seconds))
    return CostModel.fit(samples)


def _busy_seconds(model: LoadedModel, adapter: Adapter, inputs: Sequence[ModelInput], repeats: int) -> list[float]:
    seconds = []
    for _ in range(1 + repeats):
        started = perf_counter()
        adapter.split(model.graph(adapter.assemble(inputs)), len(inputs))
        seconds.append(perf_counter() - started)
    return seconds[1:]  # the first run of a shape allocates


def fitted(runs: Sequence[SimulatedRun]) -> CostModel:
    """Fit a cost model whose total equals the measured total of all runs.

    A simulation with this model differs from a replay only by errors of its queue and policy; one with
    :func:`occupation` also by changes of the machine's speed.
    """
    samples = [RunSample(len(run.items), run.length, run.tokens, run.ended - run.started) for run in runs]
    model = CostModel.fit(samples)
    predicted = sum(model.seconds(batch, length, tokens) for batch, length, tokens, _ in samples)
    return model.scaled(sum(sample.seconds for sample in samples) / predicted)


async def replay(
    trace: Trace,
    model: LoadedModel,
    workers: int,
    limits: BatchLimits,
    deadline: float | None = None,
    policy: Policy = choose,
    inputs: Sequence[ModelInput] | None = None,
) -> TraceOutcome:
    """Run the real engine with a trace, in real time.

    Parameters
    ----------
    deadline : seconds after its arrival at which a light curve's answer is worth nothing; None: never.
    inputs : model input of each light curve of the trace; made-up ones by default.
    """
    adapter = Adapter(model.bundle.manifest)
    inputs = _dummy_inputs(adapter, trace) if inputs is None else inputs
    runs: list[SimulatedRun] = []
    engine = Engine(
        model.graph,
        adapter,
        model.cost,
        EngineOptions(workers, limits, policy, max_queued_seconds=ROOM),
        samples=model.samples,
        clock=model.clock,
        listener=lambda report, _: runs.append(_as_run(report)),
    )
    await engine.start()
    try:
        return await _drive(engine, trace, inputs, deadline, runs)
    finally:
        await engine.stop()


async def _drive(
    engine: Engine, trace: Trace, inputs: Sequence[ModelInput], deadline: float | None, runs: list[SimulatedRun]
) -> TraceOutcome:
    loop = asyncio.get_running_loop()
    answered = np.full(len(inputs), np.nan)
    futures = []
    sent, peak, start = 0, 0, loop.time() - float(trace.arrival[0])
    while sent < len(inputs):
        due = int(np.searchsorted(trace.arrival, loop.time() - start, side="right"))
        for first, last in _together(trace, sent, due):
            end = None if deadline is None else start + float(trace.arrival[first]) + deadline
            for number, entry in enumerate(engine.enqueue(inputs[first:last], end), start=first):
                entry.future.add_done_callback(_clock(answered, number, loop, start))
                futures.append(entry.future)
        sent, peak = due, max(peak, engine.depth)
        if sent < len(inputs):
            await asyncio.sleep(max(0.0, float(trace.arrival[sent]) - (loop.time() - start)))
    results = await asyncio.gather(*futures, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, DeadlineExceeded):
            raise result
    return TraceOutcome(trace, answered, runs, peak)


def _together(trace: Trace, first: int, last: int) -> list[tuple[int, int]]:
    """Return the index ranges between ``first`` and ``last`` that arrive at the same time, as in one request."""
    cuts = [first + 1 + int(n) for n in np.flatnonzero(np.diff(trace.arrival[first:last]))]
    edges = [first, *cuts, last]
    return [(a, b) for a, b in pairwise(edges) if a < b]


def _clock(
    answered: NDArray[np.float64], number: int, loop: asyncio.AbstractEventLoop, start: float
) -> Callable[[asyncio.Future[Prediction]], None]:
    def note(future: asyncio.Future[Prediction]) -> None:
        if not future.cancelled() and future.exception() is None:
            answered[number] = loop.time() - start

    return note


def _as_run(report: RunReport) -> SimulatedRun:
    """Convert a report to a run; the indices of its light curves and its start are unknown."""
    seconds = report.assemble_seconds + report.run_seconds + report.split_seconds
    return SimulatedRun(tuple(range(report.size)), report.length, report.tokens, 0.0, seconds)


def _dummy_inputs(adapter: Adapter, trace: Trace) -> list[ModelInput]:
    input_by_length = {
        length: dummy_batch(adapter, BatchShape(1, length, 0))[0] for length in set(trace.length.tolist())
    }
    return [input_by_length[length] for length in trace.length.tolist()]
