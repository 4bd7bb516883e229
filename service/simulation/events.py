"""The engine as discrete events: a queue, workers, and the scheduling functions that the real one calls.

What is simulated is what decides latency: arrivals, the choice of every batch, how long its run takes, expiry. Left out
is what happens before and after the engine, such as HTTP and decoding. Time is simulated and everything is
deterministic, so minutes of traffic take a second or two.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.inference.scheduling import CostModel, QueueItem, plan, release
from service.simulation.rivals import Contender
from service.simulation.traffic import Trace


class Run(NamedTuple):
    """One batch: which light curves, what they were padded to, observations in all, when it ran (seconds)."""

    items: tuple[int, ...]
    length: int
    tokens: int
    started: float
    ended: float


@dataclass(frozen=True, slots=True)
class Machine:
    """What work costs.

    Attributes
    ----------
    workers : runs at the same time.
    predicted : what the policy believes about the time of a run.
    occupied : how long a worker is busy with a run while the others are too, from assembling its inputs to handing
        over its answers.
    """

    workers: int
    predicted: CostModel
    occupied: CostModel


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a trace: when each light curve was answered (seconds; NaN: it expired), and the runs."""

    trace: Trace
    answered: NDArray[np.float64]
    runs: list[Run]
    peak_waiting: int


class PolicyError(RuntimeError):
    """A policy broke its contract."""


@dataclass(slots=True)
class _Engine:
    trace: Trace
    contender: Contender
    machine: Machine
    deadline: float | None
    waiting: OrderedDict[int, QueueItem] = field(default_factory=OrderedDict)
    busy: list[float] = field(default_factory=list)  # ends of the runs under way, a heap
    runs: list[Run] = field(default_factory=list)
    arrived: int = 0
    peak: int = 0

    def admit(self, now: float) -> None:
        """Queue what has arrived by now."""
        last = int(np.searchsorted(self.trace.arrival, now, side="right"))
        for index in range(self.arrived, last):
            arrival = float(self.trace.arrival[index])
            end = None if self.deadline is None else arrival + self.deadline
            self.waiting[index] = QueueItem(int(self.trace.length[index]), arrival, end)
        self.arrived = last
        self.peak = max(self.peak, len(self.waiting))

    def dispatch(self, now: float) -> float:
        """Occupy free workers; when to ask again although nothing may have happened by then."""
        limits, machine = self.contender.limits, self.machine
        while self.waiting and len(self.busy) < machine.workers:
            window = list(islice(self.waiting.items(), limits.window))
            items = [item for _, item in window]
            free = machine.workers - len(self.busy)
            chosen, late = plan(items, len(self.waiting), now, machine.predicted, limits, free, self.contender.policy)
            self._start([window[index][0] for index in chosen], now)
            for index in (*chosen, *late):
                del self.waiting[window[index][0]]
            if not chosen and not late:
                end = release(items, limits)
                if now >= end:
                    raise PolicyError("the policy chose nothing although the delay is over")
                return end
        return np.inf

    def _start(self, numbers: list[int], now: float) -> None:
        if not numbers:
            return
        lengths = [self.waiting[number].length for number in numbers]
        padded, tokens = max(lengths), sum(lengths)
        ended = now + self.machine.occupied.seconds(len(numbers), padded, tokens)
        heapq.heappush(self.busy, ended)
        self.runs.append(Run(tuple(numbers), padded, tokens, now, ended))


def simulate(trace: Trace, contender: Contender, machine: Machine, deadline: float | None = None) -> Outcome:
    """Run a trace through the engine.

    Parameters
    ----------
    deadline : seconds after its arrival at which a light curve's answer is worth nothing; None: never.

    Raises
    ------
    PolicyError
        When the policy holds a batch back for longer than its limits allow.
    """
    engine = _Engine(trace, contender, machine, deadline)
    wake = np.inf
    while engine.arrived < len(trace.arrival) or engine.waiting:
        arrival = float(trace.arrival[engine.arrived]) if engine.arrived < len(trace.arrival) else np.inf
        # A held batch can only be released by a worker that is free, as it was when the batch was held.
        now = min(arrival, wake, engine.busy[0] if engine.busy else np.inf)
        while engine.busy and engine.busy[0] <= now:
            heapq.heappop(engine.busy)
        engine.admit(now)
        wake = engine.dispatch(now)
    answered = np.full(len(trace.arrival), np.nan)
    for run in engine.runs:
        answered[list(run.items)] = run.ended
    return Outcome(trace, answered, engine.runs, engine.peak)
