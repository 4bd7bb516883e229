"""Served models, the handles by which requests refer to them, and how their engines are opened and closed.

A request acquires the handle of every model that it uses and releases it at its end. A model that is no longer served
stays open until its last handle is released, so no request ever meets a closed engine.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
import structlog

from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.lightcurve import Bool, LightCurve
from nightjar_alerts.models.runtime import Provider
from nightjar_alerts.service.dataplane import DataPlane, InferOptions, Item, Outcome
from nightjar_alerts.service.engine.adapter import TaskAdapter
from nightjar_alerts.service.engine.engine import Engine, engine_options
from nightjar_alerts.service.engine.load import LoadedModel
from nightjar_alerts.service.engine.watchdog import MESSAGES, ErrorKind, kind_of
from nightjar_alerts.service.observe.recorder import ModelRecorder, Recorder
from nightjar_alerts.service.registry.cache import ResultCache
from nightjar_alerts.service.registry.names import Reference, Role
from nightjar_alerts.service.registry.shadow import Shadow
from nightjar_alerts.service.settings import CommonSettings

log = structlog.get_logger(__name__)

LEAST_SUPERNOVA: Final = 0.1
"""Probability of a supernova, before priors, from which the model of supernova types classifies a light curve too."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class ServedModel:
    """A loaded bundle with its engine and data plane.

    Attributes
    ----------
    count : called with the role and the number of light curves of each request.
    references : handles in use; counted on the event loop alone, so without a lock.
    reference : name and version of the model.
    only_supernovae : True if every class is a type of supernova.
    """

    loaded: LoadedModel
    engine: Engine
    plane: DataPlane
    count: Callable[[Role, int], None] = lambda role, light_curves: None
    references: int = 0
    reference: Reference = field(init=False)
    only_supernovae: bool = field(init=False)
    _is_supernova: Bool = field(init=False, repr=False)
    _unreferenced: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Start without a reference."""
        self._unreferenced.set()
        self.reference = Reference(self.bundle.manifest.name, self.bundle.manifest.version)
        self._is_supernova = np.array(self.bundle.manifest.classes.supernovae)
        self.only_supernovae = bool(self._is_supernova.all())

    @property
    def bundle(self) -> Bundle:
        """Bundle that is served."""
        return self.loaded.bundle

    @property
    def provider(self) -> Provider:
        """Execution provider of the model."""
        return self.loaded.provider

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the probabilities."""
        return tuple(self.bundle.manifest.classes.names)

    def supernova_probability(self, outcome: Outcome) -> float:
        """Return the summed probability of the types of supernovae, before priors; 0 if it was not classified."""
        if outcome.prediction is None:
            return 0.0
        return float(outcome.prediction.outputs["probabilities"][self._is_supernova].sum())

    def acquire(self) -> None:
        """Add a reference."""
        self.references += 1
        self._unreferenced.clear()

    def release(self) -> None:
        """Remove a reference."""
        self.references -= 1
        if not self.references:
            self._unreferenced.set()

    async def wait_unreferenced(self) -> None:
        """Wait until no handle of the model is in use."""
        await self._unreferenced.wait()


@dataclass(frozen=True, slots=True)
class ModelHandle:
    """Reference to the model that answers a request; the model stays open inside ``with``.

    Handles of the same model in the same role are equal, so light curves can be grouped by handle.

    Attributes
    ----------
    role : ``canary`` if a version on trial answers in place of the current one; else empty.
    shadow : receives a copy of each request and its outcomes.
    subtypes : model of supernova types, which also classifies light curves that may be supernovae.
    """

    model: ServedModel
    role: Role = ""
    shadow: Shadow | None = None
    subtypes: "ModelHandle | None" = None

    def __enter__(self) -> "ModelHandle":
        """Acquire the models."""
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        """Release the models."""
        self.release()

    def acquire(self) -> None:
        """Acquire the model, and that of the types."""
        self.model.acquire()
        if self.subtypes is not None:
            self.subtypes.acquire()

    def release(self) -> None:
        """Release the model, and that of the types."""
        self.model.release()
        if self.subtypes is not None:
            self.subtypes.release()

    @property
    def bundle(self) -> Bundle:
        """Bundle of the model."""
        return self.model.bundle

    async def infer(self, items: Sequence[Item], options: InferOptions | None = None) -> list[Outcome]:
        """Return one outcome per item, in order; raises as :meth:`service.dataplane.DataPlane.infer` does."""
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
        """Classify the light curves that may be supernovae with the model of their types as well."""
        chosen = {
            index: item
            for index, (item, outcome) in enumerate(zip(items, outcomes, strict=True))
            if isinstance(item, LightCurve) and self.model.supernova_probability(outcome) >= LEAST_SUPERNOVA
        }
        if not chosen:
            return list(outcomes)
        found = await subtypes.model.plane.classify(list(chosen.values()), options)
        subtypes.model.count(subtypes.role, len(chosen))
        subtype = dict(zip(chosen, found, strict=True))
        return [replace(outcome, subtype=subtype.get(index)) for index, outcome in enumerate(outcomes)]


class acquired:  # in place of an ExitStack, which costs as much as the rest of a request's bookkeeping
    """Context manager that acquires several handles and releases them at its end."""

    def __init__(self, handles: Iterable[ModelHandle]) -> None:
        self._handles = tuple(handles)

    def __enter__(self) -> None:
        """Acquire the handles."""
        for handle in self._handles:
            handle.acquire()

    def __exit__(self, *_: object) -> None:
        """Release the handles."""
        for handle in self._handles:
            handle.release()


async def infer_many(handles: Sequence[ModelHandle], items: Sequence[Item], options: InferOptions) -> list[Outcome]:
    """Send each item to its model; return one outcome per item, in order.

    If one model rejects its items, the others are cancelled and its error is raised: see
    :meth:`service.dataplane.DataPlane.infer`.

    Parameters
    ----------
    handles : the model of each item.
    """
    if len(set(handles)) == 1:
        return await handles[0].infer(items, options)
    indices: dict[ModelHandle, list[int]] = {}
    for index, handle in enumerate(handles):
        indices.setdefault(handle, []).append(index)
    tasks = [asyncio.create_task(handle.infer(*_select(items, options, part))) for handle, part in indices.items()]
    try:
        results = await asyncio.gather(*tasks)
    finally:  # after an error the remaining light curves leave their queues
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


class ModelFactory:
    """Opens an engine and a data plane for loaded models, and closes them.

    Parameters
    ----------
    cache : results of all models; None without a cache.
    on_failure : called on the event loop with the reason when the engine of a served model has failed.
    """

    def __init__(
        self,
        settings: CommonSettings,
        recorder: Recorder,
        cache: ResultCache | None,
        on_failure: Callable[[str], None],
    ) -> None:
        self._settings, self._recorder = settings, recorder
        self._cache, self._on_failure = cache, on_failure

    async def open(self, loaded: LoadedModel) -> ServedModel:
        """Start the engine of a model."""
        settings, adapter = self._settings, TaskAdapter(loaded.bundle.manifest)
        recorder = self._recorder.model(loaded.bundle)
        engine = Engine(
            loaded.run,
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
            listener=recorder.record_run,
            trace=recorder.trace_batch,
            on_recovery=partial(self._recovered, recorder),
            on_death=partial(self._died, recorder),
        )
        await engine.start()
        recorder.serve(engine, loaded.provider, loaded.load_seconds)
        results = None if self._cache is None else self._cache.view(loaded.bundle, loaded.provider)
        return ServedModel(loaded, engine, DataPlane(engine, adapter, recorder, results), recorder.record_request)

    async def close(self, model: ServedModel, timeout: float) -> None:
        """Finish the queued work of a model, for at most ``timeout`` seconds, and stop its engine."""
        await model.engine.drain(timeout)
        await model.engine.stop()
        model.plane.recorder.close()

    @staticmethod
    def _recovered(recorder: ModelRecorder) -> None:
        recorder.record_error(ErrorKind.OUT_OF_MEMORY, recovered=True)
        log.error("engine fault", fault=str(ErrorKind.OUT_OF_MEMORY), recovered=True)

    def _died(self, recorder: ModelRecorder, error: BaseException) -> None:
        kind = kind_of(error)
        recorder.record_error(kind, recovered=False)
        log.critical("the engine died", fault=str(kind), exc_info=error)
        self._on_failure(MESSAGES[kind])
