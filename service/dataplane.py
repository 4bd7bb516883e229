"""The one way from light curves to answers, for every task and transport: featurise, queue, wait, explain.

Each item gets exactly one outcome, in order. An item that was refused before it got here (a light curve that broke
a rule, a packet that cannot be classified) passes through with its reason, so a transport hands over everything it
received and counts nothing itself. A request is admitted as a whole or refused as a whole: half an answer would
have to be asked for again.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Generic, Literal, TypeVar

import numpy as np
import structlog

from models.lightcurve import LightCurveError
from service.inference.batching import Prediction, Program, Question, Waiting
from service.inference.engine import Engine
from service.inference.failures import DeadlineExceeded, EngineClosed, EngineDead, EngineFailure, InferenceFailed
from service.metrics import Metrics
from service.statistics import ModelStatistics

log = structlog.get_logger(__name__)

ItemT = TypeVar("ItemT", bound=Sized)
Status = Literal["classified", "forecast", "abstained", "rejected", "failed"]

INLINE_CURVES, INLINE_POINTS = 8, 5_000
"""What is featurised on the event loop, about half a millisecond of work; anything larger goes to a thread."""

FAILURE_REASONS: dict[type[EngineFailure], str] = {
    DeadlineExceeded: "deadline_exceeded",
    InferenceFailed: "inference_failed",
}
"""Reason codes of the status ``failed``."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An item that nothing will be said about: ``abstained`` (nothing wrong with it) or ``rejected`` (unreadable)."""

    status: Literal["abstained", "rejected"]
    reason: str
    detail: str = ""


_REFUSED = (LightCurveError, Refusal)


@dataclass(frozen=True, slots=True)
class AskOptions:
    """What applies to a whole request.

    ``deadline`` is in ``time.monotonic()`` seconds. ``surveys`` labels the items in metrics: one name for all of
    them or one for each.
    """

    deadline: float | None = None
    surveys: str | Sequence[str] = "none"


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What became of one item.

    ``prediction`` is present exactly when the network answered (``classified``, ``forecast``); ``reason``
    (machine-readable) and ``detail`` (for people) otherwise; ``pointer`` names the value at fault inside a rejected
    light curve. The rest describes what the network saw: ``missing_metadata`` counts the columns that were missing,
    ``detections`` the observations that the survey calls detected.
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
    featurise_seconds: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    question: Question
    missing_metadata: int
    seconds: float


class DataPlane(Generic[ItemT]):
    """Answers items of one task with one engine.

    Parameters
    ----------
    program : the engine's; says how the network wants its input.
    statistics : of the model; the engine's runs are recorded there as well.
    """

    def __init__(
        self, engine: Engine, program: Program[ItemT], metrics: Metrics, statistics: ModelStatistics | None = None
    ) -> None:
        self._engine = engine
        self._program = program
        self._metrics = metrics
        self.statistics = statistics or ModelStatistics()
        self._featurising = asyncio.Lock()  # one thread at a time: a second would only fight for the interpreter

    async def ask(
        self, items: Sequence[ItemT | LightCurveError | Refusal], options: AskOptions | None = None
    ) -> list[Outcome]:
        """One outcome per item, in order. When the caller is cancelled, what still waits is withdrawn.

        Raises
        ------
        Overloaded, EngineClosed, EngineDead
            For the request as a whole; nothing of it is answered.
        DeadlineExceeded
            When the deadline passed before any light curve was answered; if some were, the others are ``failed``.
        """
        options = options or AskOptions()
        sound = [item for item in items if not isinstance(item, _REFUSED)]
        answered = iter(await self._timed(sound, options.deadline) if sound else ())
        outcomes = [_refused(item) if isinstance(item, _REFUSED) else next(answered) for item in items]
        self._count(outcomes, options.surveys)
        return outcomes

    async def _timed(self, items: Sequence[ItemT], deadline: float | None) -> list[Outcome]:
        started = monotonic()
        try:
            outcomes = await self._answer(items, deadline)
        except (EngineFailure, asyncio.CancelledError):
            self.statistics.record_request([False] * len(items), monotonic() - started)
            raise
        asked = [outcome for outcome in outcomes if outcome.status != "abstained"]  # those never reach the network
        self.statistics.record_request((outcome.prediction is not None for outcome in asked), monotonic() - started)
        return outcomes

    def _count(self, outcomes: Sequence[Outcome], surveys: str | Sequence[str]) -> None:
        names = [surveys] * len(outcomes) if isinstance(surveys, str) else surveys
        kinds = Counter((name, item.status, item.reason) for name, item in zip(names, outcomes, strict=True))
        for labels, count in kinds.items():
            self._metrics.outcomes.labels(*labels).inc(count)

    async def _answer(self, items: Sequence[ItemT], deadline: float | None) -> list[Outcome]:
        # Before any work is spent; enqueueing asks again, with the lengths known and others possibly ahead by then.
        self._engine.check_room(map(self._program.longest, items))
        prepared = await self._prepare(items)
        usable = [item for item in prepared if isinstance(item, _Prepared)]
        results = await self._wait([item.question for item in usable], deadline) if usable else []
        explained = iter(self._explain(usable, results))
        return [next(explained) if isinstance(item, _Prepared) else item for item in prepared]

    async def _wait(self, questions: Sequence[Question], deadline: float | None) -> list[Prediction | EngineFailure]:
        entries = self._engine.enqueue(questions, deadline)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if deadline is None else deadline - monotonic()):
                    for entry in entries:
                        with suppress(EngineFailure):
                            await entry.future
        finally:
            self._metrics.withdrawn.inc(self._engine.withdraw(entries))
        results = [_result(entry) for entry in entries]
        _log_failures(results)
        return results

    async def _prepare(self, items: Sequence[ItemT]) -> list[_Prepared | Outcome]:
        if len(items) <= INLINE_CURVES and sum(map(len, items)) <= INLINE_POINTS:
            return self._featurise(items)
        async with self._featurising:
            return await asyncio.to_thread(self._featurise, items)

    def _featurise(self, items: Sequence[ItemT]) -> list[_Prepared | Outcome]:
        prepared: list[_Prepared | Outcome] = []
        for item in items:
            started = monotonic()
            try:
                question = self._program.prepare(item)
            except LightCurveError as error:  # sound, but not for this network
                prepared.append(Outcome("abstained", reason=error.reason, detail=str(error)))
                continue
            missing = int(np.count_nonzero(np.isnan(question.tokens.metadata)))
            seconds = monotonic() - started
            self._metrics.stage("featurise", seconds)
            prepared.append(_Prepared(question, missing, seconds))
        return prepared

    def _explain(self, prepared: Sequence[_Prepared], results: Sequence[Prediction | EngineFailure]) -> list[Outcome]:
        for result in results:
            if isinstance(result, EngineClosed | EngineDead):
                raise result
        if results and all(isinstance(result, DeadlineExceeded) for result in results):
            raise DeadlineExceeded
        return [self._outcome(item, result) for item, result in zip(prepared, results, strict=True)]

    def _outcome(self, item: _Prepared, result: Prediction | EngineFailure) -> Outcome:
        tokens = item.question.tokens
        seen = Outcome(
            status="failed",
            truncated=tokens.truncated,
            points_per_band=tokens.points_per_band,
            missing_metadata=item.missing_metadata,
            detections=int(np.count_nonzero(tokens.detected)),
            featurise_seconds=item.seconds,
        )
        if isinstance(result, Prediction):
            return replace(seen, status=self._program.answered, prediction=result)
        return replace(seen, reason=FAILURE_REASONS[type(result)], detail=str(result))


def _refused(item: LightCurveError | Refusal) -> Outcome:
    if isinstance(item, Refusal):
        return Outcome(item.status, reason=item.reason, detail=item.detail)
    return Outcome("rejected", reason=item.reason, detail=str(item), pointer=item.pointer)


def _result(entry: Waiting) -> Prediction | EngineFailure:
    """What a light curve got; one that is still without an answer, hence cancelled, ran out of time."""
    if entry.future.cancelled():
        return DeadlineExceeded()
    error = entry.future.exception()
    if error is None:
        return entry.future.result()
    return error if isinstance(error, EngineFailure) else InferenceFailed()


def _log_failures(results: Sequence[Prediction | EngineFailure]) -> None:
    """One line per request, with the first cause: the client only learns that the network failed."""
    failures = [result for result in results if isinstance(result, InferenceFailed)]
    if failures:
        log.error("inference failed", light_curves=len(failures), exc_info=failures[0].__cause__)
