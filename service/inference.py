"""Inference for all transports: featurise light curves, look them up in the cache, queue them, await the outcomes.

    plane = DataPlane(engine, TaskAdapter(manifest))
    outcomes = await plane.infer(curves)

Each item gets exactly one outcome, in order. Items that cannot be classified (an invalid light curve, a packet without
points) keep their reason, so transports pass on everything that they receive and leave the counting to this module. A
request is admitted or rejected as a whole.

Types of a light curve from request to result:

    LightCurve        observations, validated             models.lightcurve
    ModelInput        features of one network             core.adapter
    QueueEntry        an input with its future            service.engine.batch
    Prediction        outputs of the network              service.engine.batch
    Outcome           prediction, or why there is none    this module
    PosteriorResult   calibrated under a prior            models.posterior
    ResultFields      result as sent to clients           core.serializer
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from nightjar_alerts.core.adapter import ModelInput, TaskAdapter
from nightjar_alerts.core.failures import (
    DeadlineExceeded,
    EngineClosed,
    EngineDead,
    EngineError,
    InferenceFailed,
    RunAborted,
)
from nightjar_alerts.core.items import Item, Outcome, Prediction, RunResult, Skipped, outcome_of, skipped_outcome
from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError
from nightjar_alerts.service.cache import ModelCache
from nightjar_alerts.service.engine.batch import QueueEntry
from nightjar_alerts.service.engine.engine import Engine
from nightjar_alerts.service.observe.recorder import ModelRecorder

log = logging.getLogger(__name__)

INLINE_CURVES, INLINE_POINTS = 8, 5_000
"""Maximum that is featurised on the event loop, about half a millisecond of work; larger requests use a thread."""


@dataclass(frozen=True, slots=True)
class InferOptions:
    """Options of a whole request.

    Attributes
    ----------
    deadline : ``time.monotonic()`` seconds after which a result is not needed; None for no deadline.
    surveys : label ``survey`` in ``nightjar_outcomes_total``, for all items or for each; ``none`` except for alerts.
    client : name of the client; the queue of the engine is fair between clients.
    is_history : True for steps of one light curve, which are left out of the input statistics.
    """

    deadline: float | None = None
    surveys: str | Sequence[str] = "none"
    client: str = ""
    is_history: bool = False


@dataclass(slots=True, eq=False)
class _Prepared:
    """A featurised light curve; ``seconds`` is the duration of featurising."""

    input: ModelInput
    curve: LightCurve
    seconds: float = 0.0


class DataPlane:
    """Classifies light curves with one engine. Call every method on the event loop of the engine.

    Parameters
    ----------
    adapter : adapter of the engine.
    recorder : receives metrics and traces; the default discards them.
    cache : cached results of the model; None disables caching.
    """

    def __init__(
        self,
        engine: Engine,
        adapter: TaskAdapter,
        recorder: ModelRecorder | None = None,
        cache: ModelCache | None = None,
    ) -> None:
        self._engine, self._adapter, self._cache = engine, adapter, cache
        self.recorder = recorder or ModelRecorder()
        # One thread, since a second one would only compete for the GIL.
        self._featuriser = ThreadPoolExecutor(1, "featurise")

    async def infer(self, items: Sequence[Item], options: InferOptions | None = None) -> list[Outcome]:
        """Return one outcome per item, in order. Cancelling the caller withdraws its queued light curves.

        Raises
        ------
        Overloaded, EngineClosed, EngineDead
            If the whole request was rejected.
        DeadlineExceeded, OutOfMemory
            If this happened to all light curves; if only to some, their status is ``failed``.
        """
        options = options or InferOptions()
        curves = [item for item in items if isinstance(item, LightCurve)]
        classified = iter(await self.infer_curves(curves, options) if curves else ())
        outcomes = [next(classified) if isinstance(item, LightCurve) else skipped_outcome(item) for item in items]
        names = [options.surveys] * len(outcomes) if isinstance(options.surveys, str) else options.surveys
        counts = Counter[tuple[str, str, str]]()
        for name, item, outcome in zip(names, items, outcomes, strict=True):
            counts[name, outcome.status, outcome.reason] += 1
            curve = item.curve if isinstance(item, Skipped) else item
            if isinstance(curve, LightCurve) and not options.is_history:
                self.recorder.record_input(curve.survey or name, curve, outcome.prediction)
        self.recorder.record_outcomes(counts)
        return outcomes

    async def infer_curves(self, curves: Sequence[LightCurve], options: InferOptions) -> list[Outcome]:
        """Return one outcome per light curve, in order, as :meth:`infer`, but do not count them in the metrics."""
        # A check before features are computed. enqueue() decides, since other requests may be ahead by then.
        if self._engine.depth or not self._engine.accepting:
            self._engine.check_capacity(map(self._adapter.max_length, curves), options.client)
        prepared = await self._prepare(curves)
        usable = [item for item in prepared if isinstance(item, _Prepared)]
        results = await self._predict(usable, options) if usable else []
        outcomes = iter(_to_outcomes(usable, results))
        return [next(outcomes) if isinstance(item, _Prepared) else item for item in prepared]

    async def _prepare(self, curves: Sequence[LightCurve]) -> list[_Prepared | Outcome]:
        started = monotonic()
        if len(curves) <= INLINE_CURVES and sum(map(len, curves)) <= INLINE_POINTS:
            prepared = self._featurise(curves)
        else:
            loop = asyncio.get_running_loop()
            prepared = await loop.run_in_executor(self._featuriser, self._featurise, curves)
        usable = [item for item in prepared if isinstance(item, _Prepared)]
        if usable:
            self.recorder.record_stage("featurise", started, monotonic(), len(usable))
        return prepared

    def _featurise(self, curves: Sequence[LightCurve]) -> list[_Prepared | Outcome]:
        started = monotonic()
        prepared: list[_Prepared | Outcome] = []
        for curve in curves:
            try:
                prepared.append(_Prepared(self._adapter.prepare(curve), curve))
            except LightCurveError as error:  # valid, but not for this network
                prepared.append(Outcome("abstained", reason=error.reason, detail=str(error)))
        usable = [item for item in prepared if isinstance(item, _Prepared)]
        seconds = (monotonic() - started) / max(1, len(usable))
        for item in usable:
            item.seconds = seconds
        return prepared

    async def _predict(self, prepared: Sequence[_Prepared], options: InferOptions) -> list[RunResult]:
        """Look up results in the cache; run the network for the rest."""
        inputs = [item.input for item in prepared]
        if self._cache is None:
            return await self._run(inputs, options)
        keys = [self._cache.key(model_input) for model_input in inputs]
        rows = self._cache.find(keys)
        missing = [index for index, row in enumerate(rows) if row is None]
        fresh = await self._run([inputs[index] for index in missing], options) if missing else []
        found = zip(missing, fresh, strict=True)
        self._cache.add([(keys[index], result.outputs) for index, result in found if isinstance(result, Prediction)])
        rest = iter(fresh)
        return [next(rest) if row is None else Prediction(row, 0, 0.0, 0.0, 0.0) for row in rows]

    async def _run(self, inputs: Sequence[ModelInput], options: InferOptions) -> list[RunResult]:
        span = self.recorder.current_span()
        entries = self._engine.enqueue(inputs, options.deadline, client=options.client, span=span)
        try:
            with suppress(TimeoutError):
                remaining = None if options.deadline is None else options.deadline - monotonic()
                async with asyncio.timeout(remaining):
                    for entry in entries:
                        with suppress(EngineError):
                            await entry.future
        finally:
            # Withdraw the rest after a disconnect or the deadline: the queue drops cancelled entries.
            withdrawn = sum(entry.future.cancel() or entry.future.cancelled() for entry in entries)
            if withdrawn:
                self.recorder.record_withdrawn(withdrawn)
        results = [_result(entry) for entry in entries]
        if span is not None:
            self.recorder.trace_predictions([result for result in results if isinstance(result, Prediction)])
        _log_failures(results)
        return results


def _result(entry: QueueEntry) -> RunResult:
    """Return the result of an entry; cancellation means that the deadline passed."""
    if entry.future.cancelled():
        return DeadlineExceeded()
    error = entry.future.exception()
    if error is None:
        return entry.future.result()
    return error if isinstance(error, EngineError) else InferenceFailed()


def _to_outcomes(prepared: Sequence[_Prepared], results: Sequence[RunResult]) -> list[Outcome]:
    """Return one outcome per result. Raises an error that concerns the whole request."""
    for result in results:
        if isinstance(result, EngineClosed | EngineDead):
            raise result
    aborted = [result for result in results if isinstance(result, DeadlineExceeded | RunAborted)]
    if aborted and len(aborted) == len(results):
        raise aborted[0]
    return [
        outcome_of(item.input, item.curve, result, item.seconds) for item, result in zip(prepared, results, strict=True)
    ]


def _log_failures(results: Sequence[RunResult]) -> None:
    """Log the number of failures of a request and their first cause, which the client does not get."""
    failed = [result for result in results if isinstance(result, InferenceFailed)]
    if failed:
        log.error("inference failed", extra={"light_curves": len(failed)}, exc_info=failed[0].__cause__)
