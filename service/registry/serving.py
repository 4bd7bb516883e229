"""Served models, and the handles by which requests use them.

A request acquires all its models (:class:`acquired`) before its first await, and releases them once its light curves
are classified. A model that is no longer served is stopped when no request holds it.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from nightjar_alerts.core.adapter import TaskAdapter
from nightjar_alerts.core.failures import MESSAGES, ErrorKind, kind_of
from nightjar_alerts.core.items import Item, Outcome
from nightjar_alerts.core.load import LoadedModel
from nightjar_alerts.core.serializer import Role
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.runtime import Provider
from nightjar_alerts.routing import may_be_supernova
from nightjar_alerts.service.cache import ModelCache, ResultCache
from nightjar_alerts.service.engine.engine import Engine, engine_options
from nightjar_alerts.service.inference import DataPlane, InferOptions
from nightjar_alerts.service.observe.recorder import ModelRecorder, Recorder
from nightjar_alerts.service.registry.names import Reference
from nightjar_alerts.service.registry.shadow import Shadow
from nightjar_alerts.service.settings import CommonSettings

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False, weakref_slot=True)
class ServedModel:
    """A loaded model with its engine and data plane.

    Attributes
    ----------
    count : called with the role and the number of light curves of each request.
    requests : number of requests that hold the model; changed on the event loop only, hence no lock.
    reference : name and version of the model.
    """

    loaded: LoadedModel
    engine: Engine
    plane: DataPlane
    count: Callable[[Role, int], None] = lambda role, light_curves: None
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
        recorder: Recorder,
        cache: ResultCache | None,
        on_failure: Callable[[str], None],
    ) -> "ServedModel":
        """Start the engine of a loaded model.

        Parameters
        ----------
        cache : shared result cache; None without a cache.
        on_failure : called on the event loop with the reason when the engine has failed.
        """
        adapter, metrics = TaskAdapter(loaded.bundle.manifest), recorder.model(loaded.bundle)
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
            listener=metrics.record_run,
            trace=metrics.trace_batch,
            on_recovery=partial(_recovered, metrics),
            on_death=partial(_died, metrics, on_failure),
        )
        await engine.start()
        metrics.serve(engine, loaded.provider, loaded.load_seconds)
        view = None if cache is None else ModelCache(cache, loaded.bundle, loaded.provider)
        return cls(loaded, engine, DataPlane(engine, adapter, metrics, view), metrics.record_request)

    async def stop(self, timeout: float) -> None:
        """Finish the queued work within ``timeout`` seconds, and stop the engine."""
        await self.engine.drain(timeout)
        await self.engine.stop()
        self.plane.recorder.close()

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


def _recovered(metrics: ModelRecorder) -> None:
    metrics.record_error(ErrorKind.OUT_OF_MEMORY, recovered=True)
    log.error("engine fault", fault=str(ErrorKind.OUT_OF_MEMORY), recovered=True)


def _died(metrics: ModelRecorder, on_failure: Callable[[str], None], error: BaseException) -> None:
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
        """Return one outcome per item, in order; raises as :meth:`service.inference.DataPlane.infer`."""
        outcomes = await self.model.plane.infer(items, options)
        self.model.count(self.role, len(items))
        if self.shadow is not None:
            self.shadow.mirror(items, outcomes, self.model.engine)
        if self.subtypes is not None:
            return await self._add_subtypes(self.subtypes, items, outcomes, options or InferOptions())
        return outcomes

    async def _add_subtypes(
        self, subtypes: "ModelHandle", items: Sequence[Item], outcomes: Sequence[Outcome], options: InferOptions
    ) -> list[Outcome]:
        """Return the outcomes, with subtypes for light curves that may be supernovae."""
        chosen = {
            index: item
            for index, (item, outcome) in enumerate(zip(items, outcomes, strict=True))
            if outcome.prediction is not None
            and isinstance(item, LightCurve)
            and may_be_supernova(outcome.prediction.outputs["probabilities"], self.bundle.manifest.classes)
        }
        if not chosen:
            return list(outcomes)
        found = await subtypes.model.plane.infer_curves(list(chosen.values()), options)
        subtypes.model.count(subtypes.role, len(chosen))
        subtype = dict(zip(chosen, found, strict=True))
        return [replace(outcome, subtype=subtype.get(index)) for index, outcome in enumerate(outcomes)]


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
    :meth:`service.inference.DataPlane.infer`.

    Parameters
    ----------
    handles : handle of each item.
    """
    if len(set(handles)) == 1:
        return await handles[0].infer(items, options)
    indices: dict[ModelHandle, list[int]] = {}
    for index, handle in enumerate(handles):
        indices.setdefault(handle, []).append(index)
    tasks = [asyncio.create_task(handle.infer(*_select(items, options, part))) for handle, part in indices.items()]
    try:
        results = await asyncio.gather(*tasks)
    finally:  # after an error, withdraw the remaining light curves
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    outcomes: dict[int, Outcome] = {}
    for part, result in zip(indices.values(), results, strict=True):
        outcomes |= zip(part, result, strict=True)
    return [outcomes[index] for index in range(len(items))]


def _select(items: Sequence[Item], options: InferOptions, indices: Sequence[int]) -> tuple[list[Item], InferOptions]:
    surveys = options.surveys if isinstance(options.surveys, str) else [options.surveys[index] for index in indices]
    return [items[index] for index in indices], replace(options, surveys=surveys)
