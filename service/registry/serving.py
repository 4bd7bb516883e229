"""Served models, and the handles by which requests use them.

A request acquires all its models (:class:`acquired`) before its first await, and releases them once its light curves
are classified. A model that is no longer served is stopped when no request holds it.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from nightjar_alerts.core.adapter import Adapter
from nightjar_alerts.core.classify import grouped, in_order, may_have_subtypes, with_subtypes
from nightjar_alerts.core.failures import MESSAGES, ErrorKind
from nightjar_alerts.core.items import Item, Outcome
from nightjar_alerts.core.load import LoadedModel
from nightjar_alerts.core.serializer import Role
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.runtime import Provider
from nightjar_alerts.service.cache import ModelCache, ResultCache
from nightjar_alerts.service.engine.engine import Engine, engine_options
from nightjar_alerts.service.engine.errors import kind_of
from nightjar_alerts.service.inference import InferOptions, Predictor
from nightjar_alerts.service.observe.metrics import Metrics, ModelMetrics
from nightjar_alerts.service.registry.names import Reference
from nightjar_alerts.service.registry.shadow import Shadow
from nightjar_alerts.service.settings import CommonSettings

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False, weakref_slot=True)
class ServedModel:
    """A loaded model with its engine.

    Attributes
    ----------
    requests : number of requests that hold the model; changed on the event loop only, hence no lock.
    reference : name and version of the model.
    """

    loaded: LoadedModel
    engine: Engine
    predictor: Predictor
    metrics: ModelMetrics
    requests: int = 0
    reference: Reference = field(init=False)
    _unused: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Set the reference, and mark the model as unused."""
        self._unused.set()
        self.reference = Reference(self.bundle.manifest.name, self.bundle.manifest.version)

    @classmethod
    async def start(
        cls,
        loaded: LoadedModel,
        settings: CommonSettings,
        metrics: Metrics,
        cache: ResultCache | None,
        on_failure: Callable[[str], None],
    ) -> "ServedModel":
        """Start the engine of a loaded model.

        Parameters
        ----------
        cache : shared result cache; None without a cache.
        on_failure : called on the event loop with the reason when the engine has failed.
        """
        adapter, model_metrics = Adapter(loaded.bundle.manifest), metrics.model(loaded.bundle)
        engine = Engine(
            loaded.graph,
            adapter,
            loaded.cost,
            engine_options(
                loaded.provider,
                settings.workers,
                settings.max_batch_tokens,
                settings.max_queued_seconds,
                settings.hung_run_seconds,
            ),
            samples=loaded.samples,
            clock=loaded.clock,
            listener=model_metrics.record_run,
            trace=model_metrics.trace_batch,
            on_recovery=partial(_recovered, model_metrics),
            on_death=partial(_died, model_metrics, on_failure),
        )
        await engine.start()
        model_metrics.serve(engine, loaded.provider, loaded.load_seconds)
        view = None if cache is None else ModelCache(cache, loaded.bundle, loaded.provider)
        return cls(loaded, engine, Predictor(engine, adapter, model_metrics, view), model_metrics)

    async def stop(self, timeout: float) -> None:
        """Finish the queued work within ``timeout`` seconds, and stop the engine."""
        await self.engine.drain(timeout)
        await self.engine.stop()
        self.predictor.close()
        self.metrics.close()

    @property
    def bundle(self) -> Bundle:
        """Served bundle."""
        return self.loaded.bundle

    @property
    def provider(self) -> Provider:
        """Execution provider of the model."""
        return self.loaded.provider

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the probabilities."""
        return tuple(self.bundle.manifest.classes.names)

    def acquire(self) -> None:
        """Count a request that uses the model."""
        self.requests += 1
        self._unused.clear()

    def release(self) -> None:
        """Count a request that has finished using the model."""
        self.requests -= 1
        if not self.requests:
            self._unused.set()

    async def wait_unused(self) -> None:
        """Wait until no request uses the model."""
        await self._unused.wait()


def _recovered(metrics: ModelMetrics) -> None:
    metrics.record_error(ErrorKind.OUT_OF_MEMORY, recovered=True)
    log.error("engine fault", fault=str(ErrorKind.OUT_OF_MEMORY), recovered=True)


def _died(metrics: ModelMetrics, on_failure: Callable[[str], None], error: BaseException) -> None:
    kind = kind_of(error)
    metrics.record_error(kind, recovered=False)
    log.critical("the engine died", fault=str(kind), exc_info=error)
    on_failure(MESSAGES[kind])


@dataclass(frozen=True, slots=True)
class ModelHandle:
    """The model chosen by the router for a request, with its role and shadow; acquire it with :class:`acquired`.

    Handles of the same model in the same role are equal, so light curves can be grouped by handle.

    Attributes
    ----------
    role : ``canary`` if the canary is used instead of the current version; else empty.
    shadow : shadow model, which receives a copy of the request and its outcomes; None without one.
    subtypes : supernova type model, which also classifies light curves that may be supernovae; None without one.
    """

    model: ServedModel
    role: Role = ""
    shadow: Shadow | None = None
    subtypes: "ModelHandle | None" = None

    @property
    def bundle(self) -> Bundle:
        """Bundle of the model."""
        return self.model.bundle

    async def infer(self, items: Sequence[Item], options: InferOptions | None = None) -> list[Outcome]:
        """Return one outcome per item, in order; raises as :meth:`service.inference.Predictor.infer`."""
        outcomes = await self.model.predictor.infer(items, options)
        self.model.metrics.record_request(self.role, len(items))
        if self.shadow is not None:
            self.shadow.mirror(items, outcomes, self.model.engine)
        if self.subtypes is not None:
            return await self._add_subtypes(self.subtypes, items, outcomes, options or InferOptions())
        return outcomes

    async def _add_subtypes(
        self, subtypes: "ModelHandle", items: Sequence[Item], outcomes: Sequence[Outcome], options: InferOptions
    ) -> list[Outcome]:
        """Return the outcomes, with subtypes for light curves that may be supernovae."""
        classes = self.bundle.manifest.classes
        chosen = [index for index, outcome in enumerate(outcomes) if may_have_subtypes(outcome, classes)]
        if not chosen:
            return list(outcomes)
        found = await subtypes.model.predictor.infer_uncounted([items[index] for index in chosen], options)
        subtypes.model.metrics.record_request(subtypes.role, len(chosen))
        return with_subtypes(outcomes, dict(zip(chosen, found, strict=True)))


class acquired:  # a class: a generator or an ExitStack would double the bookkeeping of a request
    """Context manager that acquires the models of handles for a request."""

    def __init__(self, handles: Iterable[ModelHandle]) -> None:
        chosen = set(handles)
        self._models = {handle.model for handle in chosen}
        self._models |= {handle.subtypes.model for handle in chosen if handle.subtypes is not None}

    def __enter__(self) -> None:
        """Acquire the models."""
        for model in self._models:
            model.acquire()

    def __exit__(self, *_: object) -> None:
        """Release the models."""
        for model in self._models:
            model.release()


async def infer_many(handles: Sequence[ModelHandle], items: Sequence[Item], options: InferOptions) -> list[Outcome]:
    """Send each item to its model; return one outcome per item, in order.

    If one model raises, the requests to the other models are cancelled; see
    :meth:`service.inference.Predictor.infer`.

    Parameters
    ----------
    handles : handle of each item.
    """
    if len(set(handles)) == 1:
        return await handles[0].infer(items, options)
    groups = grouped(handles)
    tasks = [asyncio.create_task(handle.infer(*_select(items, options, part))) for handle, part in groups.items()]
    try:
        results = await asyncio.gather(*tasks)
    finally:  # after an error, withdraw the remaining light curves
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return in_order(groups.values(), results)


def _select(items: Sequence[Item], options: InferOptions, indices: Sequence[int]) -> tuple[list[Item], InferOptions]:
    surveys = options.surveys if isinstance(options.surveys, str) else [options.surveys[index] for index in indices]
    return [items[index] for index in indices], replace(options, surveys=surveys)
