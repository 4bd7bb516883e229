"""Batches and the failures of their runs: one run of the graph for several light curves, halved when it fails.

A batch is assembled, run and split in a worker thread. Transports turn failures into replies; nothing here knows about
HTTP.

A :class:`Program` decides what goes into the graph and what comes out of it. There is one for each task that a network
may have been trained for (:func:`program_of`); everything else, from the queue to the isolation of failures, is the
same for all of them. A program knows nothing of queues, threads or HTTP; the engine and the data plane know nothing of
probabilities or fluxes.

A run that raises is bisected until the light curve that causes it fails alone, so that one poisonous curve never
costs its batch mates their answers. A run that hung is not bisected, as its halves may hang too. A row that comes back
not finite fails alone.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import isfinite
from time import monotonic
from typing import Any, Final, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.bundle import Manifest
from nightjar_alerts.models.forecast import Queries, make_queries, pad_queries
from nightjar_alerts.models.lightcurve import Float64, Int64, LightCurve, RaggedBatch, Tokens, featurise
from nightjar_alerts.models.photometry import FluxUnit
from nightjar_alerts.service.engine.policy import QueueItem
from nightjar_alerts.service.observe.tracing import SpanRef, TracedRun, traced_run


class EngineError(Exception):
    """Base of every refusal and every failure of the engine."""


class Overloaded(EngineError):
    """The backlog is too long to take this request; ``retry_after`` predicts how many seconds until it fits."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too much work is queued; try again in {retry_after:.1f} s")
        self.retry_after = retry_after


class DeadlineExceeded(EngineError):
    """The deadline passed, or would have passed before the run could end."""

    def __init__(self) -> None:
        super().__init__("the deadline passed before an answer could be computed")


class InferenceFailed(EngineError):
    """The network failed on this one light curve, alone; ``__cause__`` holds the reason, for the log only."""

    def __init__(self) -> None:
        super().__init__("the network failed on this light curve")


class RunAborted(EngineError):
    """Base of failures that are no fault of the light curve: a later try may succeed."""


class OutOfMemory(RunAborted):
    """There was not enough memory to run this light curve, even alone."""

    def __init__(self) -> None:
        super().__init__("there was not enough memory to run this light curve")


class RunHung(RunAborted):
    """The run that this light curve was in took many times as long as predicted, and was given up."""

    def __init__(self) -> None:
        super().__init__("the run took far too long and was given up")


class EngineClosed(EngineError):
    """The engine is starting, draining or stopped and takes no work."""

    def __init__(self) -> None:
        super().__init__("the engine is not accepting work")


class EngineDead(EngineError):
    """A worker thread died; the process has to be replaced."""

    def __init__(self) -> None:
        super().__init__("the inference engine has failed")


_NO_MEMORY = re.compile(r"bad[_ ]alloc|allocate memory|out of memory|OUT_OF_MEMORY|ALLOC_FAILED", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error, of numpy or of the runtime, says that memory ran out."""
    return isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)) is not None


def failure_of(error: Exception) -> EngineError:
    """Map an exception of a single-curve run to the failure that its client gets."""
    if isinstance(error, EngineError):
        return error
    failure = OutOfMemory() if isinstance(error, MemoryError) else InferenceFailed()
    failure.__cause__ = error
    return failure


Arrays = dict[str, NDArray[Any]]
RunGraph = Callable[[Arrays], Arrays]
"""Graph inputs to graph outputs, both by name; called from several threads at once."""

Row = dict[str, NDArray[Any]]
"""Answer of the graph about one light curve: outputs by name, without the batch axis."""


@runtime_checkable
class Staging(Protocol):
    """A graph that can copy inputs to its device ahead of a run, as :class:`models.runtime.DeviceRun`."""

    def stage(self, inputs: Arrays) -> Arrays:
        """Return the same inputs, copied to the device."""


def staging(run: RunGraph) -> Callable[[Arrays], Arrays] | None:
    """Return the function that copies inputs to a graph's device, None where the graph has none.

    To be called once for a graph: checking an object against a protocol takes longer than padding a batch.
    """
    return run.stage if isinstance(run, Staging) else None


EXPERT_LOADS = ("input_expert_load", "expert_load")
MASKS = ("mask", "query_mask")

Item_contra = TypeVar("Item_contra", contravariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class ModelInput:
    """One light curve as the network sees it; ``queries`` is None unless the network forecasts."""

    tokens: Tokens
    queries: Queries | None = None

    def __len__(self) -> int:
        """Return the number of points and queries, from which the cost of a run is predicted."""
        return len(self.tokens) if self.queries is None else len(self.tokens) + len(self.queries)

    @property
    def forecast_queries(self) -> Queries:
        """Queries of a question to a network that forecasts."""
        assert self.queries is not None
        return self.queries


class Program(Protocol[Item_contra]):
    """Conversions of a task between light curves and the graph; several threads call it at once."""

    @property
    def answered(self) -> Literal["classified", "forecast"]:
        """Status of an item that got its answer."""

    def curve(self, item: Item_contra) -> LightCurve:
        """Return the light curve that an item asks about."""

    def longest(self, item: Item_contra) -> int:
        """Upper bound on the length of the question that :meth:`prepare` makes of an item, without preparing it."""

    def prepare(self, item: Item_contra) -> ModelInput:
        """Featurise an item. Raises LightCurveError when the network can say nothing about it."""

    def assemble(self, questions: Sequence[ModelInput]) -> Arrays:
        """Graph inputs of one batch, padded."""

    def split(self, outputs: Arrays, questions: Sequence[ModelInput]) -> list[Row | None]:
        """Row of every question, copied so that none keeps the whole batch in memory; None for an invalid answer.

        Raises
        ------
        KeyError, ValueError
            When the graph answered something else than the task promises.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The network's answer for one light curve, and how long it took to get it.

    Attributes
    ----------
    outputs : the answer, as the program's ``split`` made it.
    batch_size : light curves in the run that gave the answer.
    queue_seconds, assemble_seconds, run_seconds : waiting for a worker; padding the batch; inference of the batch.
    traced : the batch's span, when a request in it is traced.
    """

    outputs: Row
    batch_size: int
    queue_seconds: float
    assemble_seconds: float
    run_seconds: float
    traced: TracedRun | None = None


@dataclass(frozen=True, slots=True, eq=False)
class QueueEntry(QueueItem):
    """A light curve in the engine.

    Attributes
    ----------
    future : of its answer; belongs to the event loop.
    seconds : predicted duration of a run of this light curve alone.
    client : name by which the queue is fair.
    span : of the request, None when it is not traced.
    """

    question: ModelInput
    future: asyncio.Future[Prediction]
    seconds: float
    client: str = field(default="", kw_only=True)
    span: SpanRef | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True, eq=False)
class RunReport:
    """Facts of one run of the graph, for metrics, traces and the live cost model.

    ``tokens`` counts real points and queries, ``length`` is what the questions were padded to. ``expert_load``
    holds assignments of real tokens to experts by graph output name, integers of shape (experts,) or (layers, experts).
    ``split_seconds`` is the time taken to copy the answers out of the outputs. ``work_seconds`` is the duration of the
    run by the clock of the warm-up, which leaves other processes out where it counts processor time.
    """

    questions: Sequence[ModelInput]
    answers: Sequence["Answer"]
    tokens: int
    length: int
    assemble_seconds: float
    run_seconds: float
    expert_load: Mapping[str, NDArray[np.int64]]
    split_seconds: float = 0.0
    work_seconds: float = 0.0
    traced: TracedRun | None = None

    @property
    def size(self) -> int:
        """Light curves in the run."""
        return len(self.questions)


Answer = Prediction | EngineError


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """The network, and how it is run.

    Attributes
    ----------
    run : graph inputs to graph outputs; several threads call it at once.
    slot : held during a run; bounds how many there are at a time, while the threads that wait for it have the inputs of
        the next run ready.
    clock : seconds, by which the work of a run is measured; see :class:`RunReport`.
    stage : copies inputs to the device ahead of a run; None where a run takes them as they are.
    """

    run: RunGraph
    slot: AbstractContextManager[object] = field(default_factory=nullcontext)
    clock: Callable[[], float] = monotonic
    stage: Callable[[Arrays], Arrays] | None = field(init=False)

    def __post_init__(self) -> None:
        """Look up whether the graph stages its inputs."""
        object.__setattr__(self, "stage", staging(self.run))


def answer(graph: Graph, program: Program[Any], batch: Sequence[QueueEntry]) -> tuple[list[Answer], list[RunReport]]:
    """Answers in the order of ``batch``, and a report of every run that succeeded."""
    try:
        report = _run_once(graph, program, batch)
        return list(report.answers), [report]
    except RunHung:
        return [RunHung() for _ in batch], []
    except Exception as error:  # whatever the runtime raises: its exceptions share no useful base class
        if len(batch) == 1:
            return [failure_of(error)], []
    middle = len(batch) // 2
    first, first_reports = answer(graph, program, batch[:middle])
    second, second_reports = answer(graph, program, batch[middle:])
    return first + second, first_reports + second_reports


def _run_once(graph: Graph, program: Program[Any], batch: Sequence[QueueEntry]) -> RunReport:
    started = monotonic()
    questions = [entry.question for entry in batch]
    inputs = program.assemble(questions)
    if graph.stage is not None:
        inputs = graph.stage(inputs)  # copied to a device while another run computes there
    assembled = monotonic()
    with graph.slot:
        began, work = monotonic(), graph.clock()
        outputs = graph.run(inputs)
        work, ended = graph.clock() - work, monotonic()
    rows = program.split(outputs, questions)
    copied = monotonic()
    queue_end = began - assembled + started  # waiting for the slot counts as queueing, assembling does not
    spans = [entry.span for entry in batch if entry.span is not None]
    traced = traced_run(spans, began) if spans else None
    return RunReport(
        questions=questions,
        answers=[
            InferenceFailed()
            if row is None
            else Prediction(row, len(batch), queue_end - entry.enqueued, assembled - started, ended - began, traced)
            for row, entry in zip(rows, batch, strict=True)
        ],
        tokens=sum(entry.length for entry in batch),
        length=padded_length(inputs),
        assemble_seconds=assembled - started,
        run_seconds=ended - began,
        expert_load={name: outputs[name] for name in EXPERT_LOADS if name in outputs},
        split_seconds=copied - ended,
        work_seconds=work,
        traced=traced,
    )


def padded_length(inputs: Arrays) -> int:
    """Points and queries that each light curve of a batch was padded to."""
    return sum(inputs[name].shape[1] for name in MASKS if name in inputs)


@dataclass(frozen=True, slots=True, eq=False)
class ForecastItem:
    """A light curve, and the times and bands at which to forecast its flux.

    Attributes
    ----------
    mjd : shape (q,), days, TAI, in the order asked; checked by :func:`models.forecast.check_queries`.
    band : shape (q,), index into :data:`models.photometry.FILTERS`.
    flux_unit : unit of the answer.
    """

    curve: LightCurve
    mjd: Float64
    band: Int64
    flux_unit: FluxUnit

    def __len__(self) -> int:
        """Return the number of points and of times asked for."""
        return len(self.curve) + len(self.mjd)

    @property
    def object_id(self) -> str:
        """Name of the object, empty when unknown."""
        return self.curve.object_id


class _Program:
    """Base of the programs: featurises the history, of which a network sees at most ``most_points``."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.most_points = manifest.limits.max_points_per_band * len(manifest.bands)

    def _history(self, curve: LightCurve) -> Tokens:
        manifest = self.manifest
        return featurise(curve, manifest.limits, manifest.flux_unit, manifest.metadata_columns, manifest.band_map)


class Classification(_Program):
    """A light curve in, class probabilities and an embedding out, and its novelty where the network tells it."""

    answered: Final = "classified"

    def curve(self, item: LightCurve) -> LightCurve:
        """Return the item itself."""
        return item

    def longest(self, item: LightCurve) -> int:
        """Points of the light curve, as far as the network's limits allow."""
        return min(len(item), self.most_points)

    def prepare(self, item: LightCurve) -> ModelInput:
        """Featurise. Raises LightCurveError when no point is in a band of the network."""
        return ModelInput(self._history(item))

    def made_up(self, curve: LightCurve) -> ModelInput:
        """Make a question for the warm-up."""
        return self.prepare(curve)

    def assemble(self, questions: Sequence[ModelInput]) -> Arrays:
        """Return the inputs of :meth:`models.lightcurve.RaggedBatch.padded`."""
        return RaggedBatch.collate([question.tokens for question in questions]).padded()

    def rows(self, inputs: Arrays) -> dict[str, tuple[int, ...]]:
        """Return the outputs that a graph must have, with the shape of their rows."""
        rows: dict[str, tuple[int, ...]] = {
            "probabilities": (len(self.manifest.classes.names),),
            "embedding": (self.manifest.embedding_dim,),
        }
        return rows if self.manifest.novelty is None else rows | {"novelty": ()}

    def split(self, outputs: Arrays, questions: Sequence[ModelInput]) -> list[Row | None]:
        """``probabilities`` (classes,), ``embedding`` (dim,) and perhaps ``novelty`` (), all float32 and finite."""
        names = ("probabilities", "embedding") + (() if self.manifest.novelty is None else ("novelty",))
        _check_rows(len(questions), *(outputs[name] for name in names))
        # One number instead of a mask of all: a sum of squares is finite only if every term is. One that overflows
        # sends finite rows the slower way, no more.
        if all(isfinite(np.vdot(outputs[name], outputs[name])) for name in names):
            finite = [True] * len(questions)
        else:
            finite_NB = [np.isfinite(outputs[name]).reshape(len(questions), -1).all(axis=1) for name in names]
            finite = np.all(finite_NB, axis=0).tolist()
        return [
            # Copies: a row that is a view would keep the whole batch in memory for as long as the cache keeps the row.
            {name: np.array(outputs[name][row]) for name in names} if is_finite else None
            for row, is_finite in enumerate(finite)
        ]


class Forecasting(_Program):
    """A light curve and times in, the flux to expect at each of them and its standard error out."""

    answered: Final = "forecast"

    def curve(self, item: ForecastItem) -> LightCurve:
        """Return its history."""
        return item.curve

    def longest(self, item: ForecastItem) -> int:
        """Points of the light curve, as far as the network's limits allow, and its queries."""
        return min(len(item.curve), self.most_points) + len(item.mjd)

    def prepare(self, item: ForecastItem) -> ModelInput:
        """Featurise. Raises LightCurveError when no point is in a band of the network."""
        tokens = self._history(item.curve)
        return ModelInput(
            tokens, make_queries(tokens, item.mjd, item.band, self.manifest.band_map, limit=len(item.mjd))
        )

    def made_up(self, curve: LightCurve) -> ModelInput:
        """Make a question for the warm-up, a quarter of it queries in the days after the history."""
        tokens = self._history(curve)
        ahead = np.arange(1 + len(tokens) // 3)  # days; at least one query, however short the history
        return ModelInput(
            tokens, Queries((tokens.time[-1] + 1 + ahead).astype(np.float32), np.resize(tokens.band, len(ahead)))
        )

    def assemble(self, questions: Sequence[ModelInput]) -> Arrays:
        """Return the inputs of the history and those of :func:`models.forecast.pad_queries`."""
        inputs = RaggedBatch.collate([question.tokens for question in questions]).padded()
        return inputs | pad_queries([question.forecast_queries for question in questions])

    def rows(self, inputs: Arrays) -> dict[str, tuple[int, ...]]:
        """Return the outputs that a graph must have, with the shape of their rows."""
        queries = inputs["query_mask"].shape[1]
        return {"forecast_flux": (queries,), "forecast_flux_err": (queries,)}

    def split(self, outputs: Arrays, questions: Sequence[ModelInput]) -> list[Row | None]:
        """``forecast_flux``, ``forecast_flux_err`` (queries,), finite and no error negative, in the network's unit."""
        flux, flux_err = outputs["forecast_flux"], outputs["forecast_flux_err"]
        _check_rows(len(questions), flux, flux_err)
        return [
            self._row(flux[row, : len(q.forecast_queries)], flux_err[row, : len(q.forecast_queries)])
            for row, q in enumerate(questions)
        ]

    @staticmethod
    def _row(flux: NDArray[np.float32], flux_err: NDArray[np.float32]) -> Row | None:
        if not (np.isfinite(flux).all() and np.isfinite(flux_err).all() and (flux_err >= 0).all()):
            return None
        return {"forecast_flux": flux.copy(), "forecast_flux_err": flux_err.copy()}


def _check_rows(expected: int, *outputs: NDArray[np.float32]) -> None:
    for output in outputs:
        if len(output) != expected:
            raise ValueError(f"the graph answered {len(output)} rows to {expected} light curves")


TaskProgram = Classification | Forecasting


def program_of(manifest: Manifest) -> TaskProgram:
    """Return the program of a bundle's task."""
    return Classification(manifest) if manifest.task == "classification" else Forecasting(manifest)
