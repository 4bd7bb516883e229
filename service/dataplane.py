"""The one way from light curves to answers, for every task and transport: featurise, queue, wait, explain.

Each item gets exactly one outcome, in order. An item that was refused before it got here (a light curve that broke
a rule, a packet that cannot be classified) passes through with its reason, so a transport hands over everything it
received and counts nothing itself. A request is admitted as a whole or refused as a whole: half an answer would
have to be asked for again.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Generic, Literal, Protocol, TypeVar

import numpy as np
import structlog

from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError
from nightjar_alerts.service.engine.batch import (
    DeadlineExceeded,
    EngineClosed,
    EngineDead,
    EngineError,
    InferenceFailed,
    ModelInput,
    OutOfMemory,
    Prediction,
    Program,
    QueueEntry,
    Row,
    RunAborted,
    RunHung,
)
from nightjar_alerts.service.engine.engine import Engine
from nightjar_alerts.service.observe.metrics import Metrics, ModelMetrics
from nightjar_alerts.service.observe.tracing import RECORDING, add_runs, stage
from nightjar_alerts.service.threads import in_thread

log = structlog.get_logger(__name__)

ItemT = TypeVar("ItemT", bound=Sized)
Status = Literal["classified", "forecast", "abstained", "rejected", "failed"]

INLINE_CURVES, INLINE_POINTS = 8, 5_000
"""Most that is featurised on the event loop, about half a millisecond of work; anything larger goes to a thread."""

FAILURE_REASONS: dict[type[EngineError], str] = {
    DeadlineExceeded: "deadline_exceeded",
    InferenceFailed: "inference_failed",
    OutOfMemory: "out_of_memory",
    RunHung: "run_hung",
}
"""Reason codes of the status ``failed``."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """An item that no network is asked about: ``abstained`` (nothing wrong with it) or ``rejected`` (unreadable)."""

    status: Literal["abstained", "rejected"]
    reason: str
    detail: str = ""


_REFUSED = (LightCurveError, Skipped)


@dataclass(frozen=True, slots=True)
class InferOptions:
    """Options that apply to a whole request.

    ``deadline`` (``time.monotonic()`` seconds), ``priority`` and ``client`` are those of
    :meth:`service.engine.engine.Engine.enqueue`. ``surveys`` labels the items in metrics: one name for all of them
    or one for each.
    """

    deadline: float | None = None
    surveys: str | Sequence[str] = "none"
    priority: float = 0.0
    client: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Result of one item: answered, abstained, rejected or failed.

    ``prediction`` is present exactly when the network answered (``classified``, ``forecast``); ``reason``
    (machine-readable) and ``detail`` (for people) otherwise; ``pointer`` names the value at fault inside a rejected
    light curve. The rest describes what the network saw: ``missing_metadata`` counts the columns that were missing,
    ``detections`` the points that the survey calls detected, ``duplicates`` the rows of a time and band that has a more
    precise one, ``dropped_points``, by reason, the rows of a packet without a usable value, and ``other_filters``, by
    filter, the points left out because their filter stands for none of the network's bands; ``metadata`` is that of the
    light curve.
    """

    status: Status
    reason: str = ""
    detail: str = ""
    pointer: str = ""
    prediction: Prediction | None = None
    truncated: bool = False
    points_per_band: tuple[int, ...] = ()
    missing_metadata: int = 0
    detections: int = 0
    other_filters: Mapping[str, int] = field(default_factory=dict)
    duplicates: int = 0
    dropped_points: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, float] = field(default_factory=dict)
    featurise_seconds: float = 0.0

    @property
    def from_cache(self) -> bool:
        """True when the answer was read from the cache."""
        return self.prediction is not None and not self.prediction.batch_size


@dataclass(slots=True, eq=False)
class _Prepared:
    question: ModelInput
    curve: LightCurve
    missing_metadata: int
    key: bytes
    seconds: float = 0.0


class Results(Protocol):
    """Answers that a network gave before, by a digest of all that they depend on."""

    def key(self, question: ModelInput) -> bytes:
        """Compute the digest; called in a thread."""

    def find(self, keys: Sequence[bytes]) -> list[Row | None]:
        """Answers to questions of these keys, in order, None where there is none. Never fails."""

    def keep(self, results: Sequence[tuple[bytes, Row]]) -> None:
        """Remember answers."""


class DataPlane(Generic[ItemT]):
    """Answers items of one task with one engine.

    Parameters
    ----------
    program : the engine's; says how the network wants its input.
    notes : of the model's work; those of the engine's runs are taken there as well.
    results : where answers are kept and looked for; None where every question is asked anew.
    """

    def __init__(
        self,
        engine: Engine,
        program: Program[ItemT],
        metrics: Metrics,
        notes: ModelMetrics | None = None,
        results: Results | None = None,
    ) -> None:
        self._engine = engine
        self._results = results
        self._program = program
        self._metrics = metrics
        self.notes = notes or metrics.notes("classification")
        # One thread: a second would only fight for the interpreter. It ends with the plane.
        self._featurising = ThreadPoolExecutor(1, "featurise")

    async def infer(
        self, items: Sequence[ItemT | LightCurveError | Skipped], options: InferOptions | None = None
    ) -> list[Outcome]:
        """One outcome per item, in order. When the caller is cancelled, what still waits is withdrawn.

        Raises
        ------
        Overloaded, EngineClosed, EngineDead
            For the request as a whole; nothing of it is answered.
        DeadlineExceeded, OutOfMemory, RunHung
            When that is what kept every light curve from being answered; if some were, the others are ``failed``.
        """
        options = options or InferOptions()
        sound = [item for item in items if not isinstance(item, _REFUSED)]
        answered = iter(await self._timed(sound, options) if sound else ())
        outcomes = [_refused(item) if isinstance(item, _REFUSED) else next(answered) for item in items]
        self._count(outcomes, options.surveys)
        return outcomes

    async def _timed(self, items: Sequence[ItemT], options: InferOptions) -> list[Outcome]:
        started = monotonic()
        try:
            outcomes = await self._answer(items, options)
        except (EngineError, asyncio.CancelledError):
            self.notes.record_request(0, len(items), monotonic() - started)
            raise
        from_network = [
            outcome for outcome in outcomes if outcome.status != "abstained"
        ]  # those never reach the network
        answered = sum(outcome.prediction is not None for outcome in from_network)
        self.notes.record_request(answered, len(from_network) - answered, monotonic() - started)
        return outcomes

    def _count(self, outcomes: Sequence[Outcome], surveys: str | Sequence[str]) -> None:
        if len(outcomes) == 1:
            (only,), (name,) = outcomes, [surveys] if isinstance(surveys, str) else surveys
            self._metrics.outcome(name, only.status, only.reason)
            return
        names = [surveys] * len(outcomes) if isinstance(surveys, str) else surveys
        kinds = Counter((name, item.status, item.reason) for name, item in zip(names, outcomes, strict=True))
        for labels, count in kinds.items():
            self._metrics.outcome(*labels, count)

    async def _answer(self, items: Sequence[ItemT], options: InferOptions) -> list[Outcome]:
        # Before any work is spent; enqueueing asks again, with the lengths known and others possibly ahead by then.
        if self._engine.depth or not self._engine.accepting:
            lengths = map(self._program.longest, items)
            self._engine.check_capacity(lengths, priority=options.priority, client=options.client)
        traced = RECORDING.get() is not None
        with stage("featurise") if traced else nullcontext():
            prepared = await self._prepare(items)
        usable = [item for item in prepared if isinstance(item, _Prepared)]
        self.notes.record_stages({"featurise": sum(item.seconds for item in usable)})
        results = await self._look_up(usable, options) if usable else []
        if traced:
            add_runs(result for result in results if isinstance(result, Prediction))
        explained = iter(self._explain(usable, results))
        return [next(explained) if isinstance(item, _Prepared) else item for item in prepared]

    async def _look_up(self, prepared: Sequence[_Prepared], options: InferOptions) -> list[Prediction | EngineError]:
        """Look results up in the cache; run the network for the rest."""
        if self._results is None:
            return await self._wait([item.question for item in prepared], options)
        started, keys = monotonic(), [item.key for item in prepared]
        rows = self._results.find(keys)
        places = [place for place, row in enumerate(rows) if row is None]
        self.notes.record_lookup(len(rows) - len(places), len(places), monotonic() - started)
        fresh = await self._wait([prepared[place].question for place in places], options) if places else []
        new = zip(places, fresh, strict=True)
        self._results.keep([(keys[place], answer.outputs) for place, answer in new if isinstance(answer, Prediction)])
        rest = iter(fresh)
        return [next(rest) if row is None else Prediction(row, 0, 0.0, 0.0, 0.0) for row in rows]

    async def _wait(self, questions: Sequence[ModelInput], options: InferOptions) -> list[Prediction | EngineError]:
        entries = self._engine.enqueue(questions, options.deadline, priority=options.priority, client=options.client)
        late = None
        if options.deadline is not None:
            remaining = max(0.0, options.deadline - monotonic())
            late = asyncio.get_running_loop().call_later(remaining, self._withdraw, entries, DeadlineExceeded)
        try:
            for entry in entries:
                if not entry.future.done():
                    with suppress(EngineError):
                        await entry.future
        finally:
            if late is not None:
                late.cancel()
            self._withdraw(entries)
        results = [_result(entry) for entry in entries]
        _log_failures(results)
        return results

    def _withdraw(self, entries: Sequence[QueueEntry], why: type[EngineError] | None = None) -> None:
        if withdrawn := self._engine.withdraw(entries, why):
            self._metrics.withdrawn.inc(withdrawn)

    async def _prepare(self, items: Sequence[ItemT]) -> list[_Prepared | Outcome]:
        if len(items) <= INLINE_CURVES and sum(map(len, items)) <= INLINE_POINTS:
            return self._featurise(items)
        return await in_thread(self._featurising, partial(self._featurise, items))

    def _featurise(self, items: Sequence[ItemT]) -> list[_Prepared | Outcome]:
        started = monotonic()
        prepared = [self._prepared(item) for item in items]
        usable = [item for item in prepared if isinstance(item, _Prepared)]
        seconds = (monotonic() - started) / max(1, len(usable))
        for item in usable:
            item.seconds = seconds
            self._metrics.stage("featurise", seconds)
        return prepared

    def _prepared(self, item: ItemT) -> _Prepared | Outcome:
        try:
            question = self._program.prepare(item)
        except LightCurveError as error:  # sound, but not for this network
            return Outcome("abstained", reason=error.reason, detail=str(error))
        missing = int(np.count_nonzero(np.isnan(question.tokens.metadata)))
        key = b"" if self._results is None else self._results.key(question)
        return _Prepared(question, self._program.curve(item), missing, key)

    def _explain(self, prepared: Sequence[_Prepared], results: Sequence[Prediction | EngineError]) -> list[Outcome]:
        for result in results:
            if isinstance(result, EngineClosed | EngineDead):
                raise result
        if results and all(isinstance(result, DeadlineExceeded | RunAborted) for result in results):
            raise results[0]  # type: ignore[misc]  # an exception, as has just been established
        return [self._outcome(item, result) for item, result in zip(prepared, results, strict=True)]

    def _outcome(self, item: _Prepared, result: Prediction | EngineError) -> Outcome:
        tokens, prediction = item.question.tokens, result if isinstance(result, Prediction) else None
        return Outcome(
            status="failed" if prediction is None else self._program.answered,
            reason="" if isinstance(result, Prediction) else FAILURE_REASONS[type(result)],
            detail="" if isinstance(result, Prediction) else str(result),
            prediction=prediction,
            truncated=tokens.truncated,
            points_per_band=tokens.points_per_band,
            missing_metadata=item.missing_metadata,
            detections=int(np.count_nonzero(tokens.detected)),
            other_filters=tokens.other_filters,
            duplicates=item.curve.duplicates,
            dropped_points=item.curve.dropped,
            metadata=item.curve.metadata,
            featurise_seconds=item.seconds,
        )


def _refused(item: LightCurveError | Skipped) -> Outcome:
    if isinstance(item, Skipped):
        return Outcome(item.status, reason=item.reason, detail=item.detail)
    return Outcome("rejected", reason=item.reason, detail=str(item), pointer=item.pointer)


def _result(entry: QueueEntry) -> Prediction | EngineError:
    """Return the result of a light curve; one without an answer was cancelled, hence ran out of time."""
    if entry.future.cancelled():
        return DeadlineExceeded()
    error = entry.future.exception()
    if error is None:
        return entry.future.result()
    return error if isinstance(error, EngineError) else InferenceFailed()


def _log_failures(results: Sequence[Prediction | EngineError]) -> None:
    """One line per request, with the first cause: the client only learns that the network failed."""
    failures = [result for result in results if isinstance(result, InferenceFailed)]
    if failures:
        log.error("inference failed", light_curves=len(failures), exc_info=failures[0].__cause__)
