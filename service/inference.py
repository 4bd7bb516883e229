"""Inference for all transports: featurise light curves, look them up in the cache, queue them, await the outcomes.

    predictor = Predictor(engine, Adapter(manifest), metrics)
    outcomes = await predictor.infer(curves)

Each item gets exactly one outcome, in order. Items that cannot be classified (an invalid light curve, a packet without
points) keep their reason, so transports pass on everything that they receive and leave the counting to this module. A
request is admitted or rejected as a whole. :mod:`core.classify` has the steps and the types that pass through them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from nightjar_alerts.core.adapter import Adapter, ModelInput
from nightjar_alerts.core.classify import Prepared, featurise, outcomes_of, prepared_of
from nightjar_alerts.core.failures import InferenceFailed, RunAborted, RunError
from nightjar_alerts.core.items import Item, Outcome, Prediction, RunResult, Skipped
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.service.cache import ModelCache
from nightjar_alerts.service.engine.batch import QueueEntry
from nightjar_alerts.service.engine.engine import Engine
from nightjar_alerts.service.engine.errors import DeadlineExceeded, EngineClosed, EngineDead
from nightjar_alerts.service.observe.metrics import ModelMetrics

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


class Predictor:
    """Classifies light curves with one engine. Call every method on the event loop of the engine.

    Parameters
    ----------
    adapter : adapter of the engine.
    cache : cached results of the model; None disables caching.
    """

    def __init__(
        self, engine: Engine, adapter: Adapter, metrics: ModelMetrics, cache: ModelCache | None = None
    ) -> None:
        self._engine, self._adapter, self._cache = engine, adapter, cache
        self._metrics = metrics
        # One thread, since a second one would only compete for the GIL.
        self._featuriser = ThreadPoolExecutor(1, "featurise")

    def close(self) -> None:
        """Stop the thread, once the engine accepts no more work."""
        self._featuriser.shutdown(wait=False)

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
        outcomes = await self.infer_uncounted(items, options)
        names = [options.surveys] * len(outcomes) if isinstance(options.surveys, str) else options.surveys
        counts = Counter[tuple[str, str, str]]()
        for name, item, outcome in zip(names, items, outcomes, strict=True):
            counts[name, outcome.status, outcome.reason] += 1
            curve = item.curve if isinstance(item, Skipped) else item
            if isinstance(curve, LightCurve) and not options.is_history:
                self._metrics.record_input(curve.survey or name, curve, outcome.prediction)
        self._metrics.record_outcomes(counts)
        return outcomes

    async def infer_uncounted(self, items: Sequence[Item], options: InferOptions) -> list[Outcome]:
        """Return one outcome per item, in order, as :meth:`infer`, but do not count them in the metrics."""
        curves = [item for item in items if isinstance(item, LightCurve)]
        # A check before features are computed. enqueue() decides, since other requests may be ahead by then.
        if curves and (self._engine.depth or not self._engine.accepting):
            self._engine.check_capacity(map(self._adapter.max_length, curves), options.client)
        prepared = await self._featurise(items, curves)
        inputs = [each.input for each in prepared_of(prepared)]
        results = await self._predict(inputs, options) if inputs else []
        _raise_for_all(results)
        return outcomes_of(prepared, results)

    async def _featurise(self, items: Sequence[Item], curves: Sequence[LightCurve]) -> list[Prepared | Outcome]:
        started = monotonic()
        if len(curves) <= INLINE_CURVES and sum(map(len, curves)) <= INLINE_POINTS:
            prepared = featurise(items, self._adapter)
        else:
            loop = asyncio.get_running_loop()
            prepared = await loop.run_in_executor(self._featuriser, featurise, items, self._adapter)
        if usable := len(prepared_of(prepared)):
            self._metrics.record_stage("featurise", started, monotonic(), usable)
        return prepared

    async def _predict(self, inputs: Sequence[ModelInput], options: InferOptions) -> list[RunResult]:
        """Look up results in the cache; run the network for the rest."""
        if self._cache is None:
            return await self._run(inputs, options)
        keys = [self._cache.key(model_input) for model_input in inputs]
        rows = self._cache.find(keys)
        missing = [index for index, row in enumerate(rows) if row is None]
        fresh = await self._run([inputs[index] for index in missing], options) if missing else []
        found = zip(missing, fresh, strict=True)
        self._cache.add([(keys[index], result.outputs) for index, result in found if isinstance(result, Prediction)])
        rest = iter(fresh)
        return [next(rest) if row is None else Prediction(row, 0) for row in rows]

    async def _run(self, inputs: Sequence[ModelInput], options: InferOptions) -> list[RunResult]:
        span = self._metrics.current_span()
        entries = self._engine.enqueue(inputs, options.deadline, client=options.client, span=span)
        try:
            with suppress(TimeoutError):
                remaining = None if options.deadline is None else options.deadline - monotonic()
                async with asyncio.timeout(remaining):
                    for entry in entries:
                        with suppress(RunError):
                            await entry.future
        finally:
            # Withdraw the rest after a disconnect or the deadline: the queue drops cancelled entries.
            withdrawn = sum(entry.future.cancel() or entry.future.cancelled() for entry in entries)
            if withdrawn:
                self._metrics.record_withdrawn(withdrawn)
        results = [_result(entry) for entry in entries]
        if span is not None:
            self._metrics.trace_predictions([result for result in results if isinstance(result, Prediction)])
        _log_failures(results)
        return results


def _result(entry: QueueEntry) -> RunResult:
    """Return the result of an entry; cancellation means that the deadline passed."""
    if entry.future.cancelled():
        return DeadlineExceeded()
    error = entry.future.exception()
    if error is None:
        return entry.future.result()
    return error if isinstance(error, RunError) else InferenceFailed()


def _raise_for_all(results: Sequence[RunResult]) -> None:
    """Raise an error that concerns the whole request."""
    for result in results:
        if isinstance(result, EngineClosed | EngineDead):
            raise result
    aborted = [result for result in results if isinstance(result, DeadlineExceeded | RunAborted)]
    if aborted and len(aborted) == len(results):
        raise aborted[0]


def _log_failures(results: Sequence[RunResult]) -> None:
    """Log the number of failures of a request and their first cause, which the client does not get."""
    failed = [result for result in results if isinstance(result, InferenceFailed)]
    if failed:
        log.error("inference failed", extra={"light_curves": len(failed)}, exc_info=failed[0].__cause__)
