"""From a loaded model to one that answers, and back to nothing."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from models.bundle import Task
from service.dataplane import DataPlane
from service.inference.batching import RunReport
from service.inference.engine import Engine
from service.inference.loaded import LoadedModel
from service.inference.programs import program_of
from service.inference.scheduling import BatchLimits, most_items
from service.inference.supervision import MEANINGS, Fault, fault_of, supervise
from service.metrics import Metrics
from service.repository.cache import ResultCache
from service.repository.served import Served
from service.settings import Settings
from service.statistics import ModelStatistics
from service.tracing.tracer import Tracer

log = structlog.get_logger(__name__)


class Opener:
    """Gives models an engine and a data plane, and takes them away.

    Parameters
    ----------
    cache : of results, shared by all models; None where nothing is kept.
    on_failure : called on the event loop with the reason, for people, when a model that answers can do so no more.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        tracer: Tracer,
        cache: ResultCache | None,
        on_failure: Callable[[str], None],
    ) -> None:
        self._settings, self._metrics, self._tracer = settings, metrics, tracer
        self._cache, self._on_failure = cache, on_failure

    async def open(self, loaded: LoadedModel) -> Served[Any]:
        """Start to answer with a model."""
        bundle, statistics = loaded.bundle, ModelStatistics()
        program, task, taxonomy = program_of(bundle.manifest), bundle.manifest.task, bundle.manifest.taxonomy
        count = self._metrics.run_recorder(task, () if taxonomy is None else taxonomy.names)

        def record(report: RunReport, predicted_seconds: float) -> None:
            count(report, predicted_seconds)
            statistics.record_run(report, predicted_seconds)
            self._tracer.run(task, report, predicted_seconds)

        supervisor = supervise(loaded, self._settings.hung_run_seconds, partial(self._fault, task))
        engine = Engine(
            supervisor,
            program,
            loaded.cost,
            workers=self._settings.workers or loaded.layout.runs,
            groups=self._settings.groups_in_flight or loaded.layout.groups,
            limits=self._limits(loaded),
            samples=loaded.samples,
            clock=loaded.clock,
            max_queued_seconds=self._settings.max_queued_seconds,
            on_run=record,
            on_death=partial(self._died, task),
            guard=supervisor,
        )
        await engine.start()
        self._metrics.watch(task, engine)
        self._metrics.set_model(bundle, loaded.provider, loaded.load_seconds)
        results = None if self._cache is None else self._cache.of(bundle, loaded.provider)
        plane = DataPlane(engine, program, self._metrics, statistics, results)
        return Served(loaded, engine, plane, self._metrics.model_counter(bundle))

    def _limits(self, loaded: LoadedModel) -> BatchLimits:
        width, delay = self._settings.max_batch_tokens or loaded.max_tokens, self._settings.max_delay_ms / 1000
        return BatchLimits(max_tokens=width, max_items=most_items(width), max_delay=delay)

    async def close(self, served: Served[Any], timeout: float) -> None:
        """Stop a model that nobody asks any more, once what it still runs has ended."""
        await served.engine.drain(timeout)
        await served.engine.stop()
        await asyncio.to_thread(served.loaded.keep, served.engine.learned)
        self._metrics.unwatch(served.task, served.engine)
        self._metrics.unset_model(served.bundle, served.provider)

    def _fault(self, task: Task, fault: Fault, recovered: bool) -> None:
        self._metrics.fault(task, fault, recovered)
        log.error("engine fault", task=task, fault=str(fault), recovered=recovered)

    def _died(self, task: Task, error: BaseException) -> None:
        fault = fault_of(error)
        self._fault(task, fault, recovered=False)
        log.critical("the engine died", task=task, fault=str(fault), exc_info=error)
        self._on_failure(MEANINGS[fault])
