"""A watch over the runs of one model: what hangs, what runs out of memory, what has lost its provider.

A :class:`Supervisor` takes the place of the graph that it watches. Usually it only notes when a run began. Otherwise:

- a run takes many times as long as predicted: it is interrupted, and its callers are told to try again. One that cannot
  be interrupted, stuck inside a kernel or a driver, is fatal once it has taken twice that long;
- a run of one light curve fails: its curve may be to blame, or the device, the driver, the memory. A run of made-up
  light curves, known to have worked, tells which, so no client can bring the service down by what it sends. If that run
  fails as well, the session is opened again, once, and the light curve has another try there. If that does not help
  either, or has been done lately, it is fatal;
- a run wants more memory than there is: a batch is tried again in halves, as every batch that fails; the caller of a
  light curve alone is told to try again.

:class:`FatalEngineError` ends the worker thread that raises it, and with it the engine: all
that wait are answered at once, and the process is replaced.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from threading import get_ident
from time import monotonic
from typing import Protocol, runtime_checkable

from nightjar_alerts.service.engine.batch import (
    Arrays,
    OutOfMemory,
    RunGraph,
    RunHung,
    is_out_of_memory,
    padded_length,
    program_of,
    staging,
)
from nightjar_alerts.service.engine.load import LoadedModel
from nightjar_alerts.service.engine.machine import Shape, probe
from nightjar_alerts.service.engine.policy import CostModel

HUNG_FACTOR = 30.0  # times the predicted duration; under the heaviest load that we met runs took 10 times as long
REOPEN_SECONDS = 300.0  # a provider lost twice within these is not worth a third session


class Fault(StrEnum):
    """Faults of an engine."""

    THREAD_DIED = "thread_died"
    OUT_OF_MEMORY = "out_of_memory"
    RUN_HUNG = "run_hung"
    PROVIDER_LOST = "provider_lost"


MEANINGS = {
    Fault.THREAD_DIED: "an inference thread died",
    Fault.OUT_OF_MEMORY: "there is no memory left for inference",
    Fault.RUN_HUNG: "an inference run hangs",
    Fault.PROVIDER_LOST: "the execution provider fails every run",
}


class FatalEngineError(BaseException):
    """The engine cannot go on. Not an ``Exception``: it must not pass for a failed batch and be tried in halves."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(MEANINGS[fault])
        self.fault = fault


def fault_of(error: BaseException) -> Fault:
    """Return the fault that an engine died of."""
    return error.fault if isinstance(error, FatalEngineError) else Fault.THREAD_DIED


@runtime_checkable
class Recoverable(Protocol):
    """A graph whose runs can be interrupted, and its session opened again, as :class:`models.runtime.SessionRun`."""

    def interrupt(self, inputs: Arrays) -> None:
        """Make the run of these inputs raise."""

    def reopen(self) -> None:
        """Open a new session."""


@dataclass(slots=True, eq=False)
class _Run:
    """A run under way; ``seconds`` counts only time during which the watchdog was awake."""

    inputs: Arrays
    limit: float
    seconds: float = 0.0
    interrupted: bool = False


OnFault = Callable[[Fault, bool], None]
"""Called with every fault, and whether the engine goes on; from any thread."""


def supervise(loaded: LoadedModel, floor: float, on_fault: OnFault) -> "Supervisor":
    """Watch over the runs of a loaded model; the supervisor stands in for its ``run``."""
    program = program_of(loaded.bundle.manifest)
    known_good = program.assemble(probe(program, Shape(1, 4, 0)))
    return Supervisor(loaded.run, loaded.cost, known_good, floor, on_fault)


class Supervisor:
    """A graph with a watch over its runs; call it as the graph. Safe to use from several threads.

    Parameters
    ----------
    cost : predicts how long a run takes.
    known_good : inputs that the graph has run on, the smaller the better.
    floor : seconds that any run may take before it counts as hung, however short it was predicted.
    """

    def __init__(
        self, graph: RunGraph, cost: CostModel, known_good: Arrays, floor: float, on_fault: OnFault = lambda *_: None
    ) -> None:
        self._graph, self._cost, self._known_good, self._floor = graph, cost, known_good, floor
        self._on_fault = on_fault
        if (stage := staging(graph)) is not None:
            self.stage = stage  # the graph's own: only runs are watched, not copies to the device
        self._under_way: dict[int, _Run] = {}
        # Held while one thread judges and recovers: a second one would find the session just opened again, which is
        # fatal to do twice.
        self._judging = threading.Lock()
        self._reopened_at = -REOPEN_SECONDS
        self._reopening = False

    def __call__(self, inputs: Arrays) -> Arrays:
        """Run the graph.

        Raises
        ------
        RunHung
            When the run was interrupted.
        OutOfMemory
            When there was no memory for a light curve alone.
        FatalEngineError
            When no run can succeed any more.
        """
        opened = self._reopened_at
        try:
            return self._watched(inputs)
        except RunHung:
            self._on_fault(Fault.RUN_HUNG, True)
            raise
        except Exception as error:
            if len(inputs["mask"]) > 1:  # tried again in halves
                if is_out_of_memory(error):
                    self._on_fault(Fault.OUT_OF_MEMORY, True)
                raise
            return self._judged(inputs, error, opened)

    @property
    def trouble(self) -> str:
        """Reason not to send more work just now; empty when there is none."""
        if self._reopening:
            return MEANINGS[Fault.PROVIDER_LOST]
        hangs = any(run.interrupted for run in list(self._under_way.values()))
        return MEANINGS[Fault.RUN_HUNG] if hangs else ""

    def watch(self, elapsed: float) -> FatalEngineError | None:
        """Interrupt runs that hang; return what is fatal, None if nothing is. Called at short intervals.

        Parameters
        ----------
        elapsed : seconds between two calls, as planned. Runs age by these, not by the clock: a process that was
            stopped as a whole, and goes on, finds nothing hung.
        """
        for run in list(self._under_way.values()):  # one step of the interpreter, hence no lock
            run.seconds += elapsed
            if run.seconds > 2 * run.limit:
                return FatalEngineError(Fault.RUN_HUNG)
            if run.seconds > run.limit:
                run.interrupted = True  # first: the run's thread looks at it as soon as its call raises
                if isinstance(self._graph, Recoverable):
                    self._graph.interrupt(run.inputs)
        return None

    def _watched(self, inputs: Arrays) -> Arrays:
        predicted = self._cost.seconds(len(inputs["mask"]), padded_length(inputs))
        run = _Run(inputs, max(self._floor, HUNG_FACTOR * predicted))
        self._under_way[get_ident()] = run
        try:
            return self._graph(inputs)
        except Exception as error:
            if run.interrupted:
                raise RunHung from error
            raise
        finally:
            del self._under_way[get_ident()]

    def _judged(self, inputs: Arrays, error: Exception, opened: float) -> Arrays:
        """Find out what made a light curve fail alone: raise if it was the curve, else recover and try again.

        Parameters
        ----------
        opened : when the session that it failed on had been opened.
        """
        with self._judging:
            if opened != self._reopened_at:  # another thread has recovered meanwhile
                return self._watched(inputs)
            fault = self._fault()
            if fault is None:
                if is_out_of_memory(error):
                    self._on_fault(Fault.OUT_OF_MEMORY, True)
                    raise OutOfMemory from error
                raise error
            self._recover(fault)
        return self._watched(inputs)

    def _fault(self) -> Fault | None:
        """Run inputs that are known to work; return what is wrong with the graph, None if nothing is."""
        try:
            self._watched(self._known_good)
        except RunHung:
            return Fault.RUN_HUNG
        except Exception as error:
            return Fault.OUT_OF_MEMORY if is_out_of_memory(error) else Fault.PROVIDER_LOST
        return None

    def _recover(self, fault: Fault) -> None:
        """Open another session. Raises FatalEngineError when that is impossible, useless, or was done lately."""
        now = monotonic()
        if not isinstance(self._graph, Recoverable) or now < self._reopened_at + REOPEN_SECONDS:
            raise FatalEngineError(fault)
        self._reopening, self._reopened_at = True, now
        try:
            self._graph.reopen()
        except Exception as error:
            raise FatalEngineError(fault) from error
        finally:
            self._reopening = False
        if (still := self._fault()) is not None:
            raise FatalEngineError(still)
        self._on_fault(fault, True)
