"""The models that a process serves: loaded, named, leased to whoever asks, taken out of service.

A route of the HTTP interface asks it, and so does a worker of a stream:

    repository = ModelRepository(settings, metrics, tracer, on_failure)
    await repository.start()
    with repository.classifier(survey="ztf", key=object_id) as lease:
        outcomes = await lease.infer(curves, InferOptions(deadline))
    await repository.stop()

What is served is changed by its ``changes`` and ``trials`` and, where the settings say so, by a watch over the folder.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import structlog

from nightjar_alerts.models.bundle import BundleError, Task
from nightjar_alerts.models.posterior import Posterior
from nightjar_alerts.service.dataplane import DataPlane
from nightjar_alerts.service.engine.batch import program_of
from nightjar_alerts.service.engine.engine import Engine, EngineOptions, RunListener
from nightjar_alerts.service.engine.load import LoadedModel
from nightjar_alerts.service.engine.policy import BatchLimits, most_items
from nightjar_alerts.service.engine.supervise import MEANINGS, Fault, fault_of, supervise
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.observe.tracing import Tracer
from nightjar_alerts.service.registry.cache import ResultCache
from nightjar_alerts.service.registry.changes import Changes, ChangeSteps, Trials
from nightjar_alerts.service.registry.live import LiveModels, Served, ServedClassifier
from nightjar_alerts.service.registry.load import (
    BundleFolders,
    Failure,
    LoadOne,
    Models,
    QuietLoader,
    Refused,
    load_configured,
    load_one,
)
from nightjar_alerts.service.registry.names import DEFAULT, NotReady, Reference, UnknownModel
from nightjar_alerts.service.settings import CommonSettings

log = structlog.get_logger(__name__)


class ModelOpener:
    """Gives models an engine and a data plane, and takes them away.

    Parameters
    ----------
    cache : of results, shared by all models; None where nothing is kept.
    on_failure : called on the event loop with the reason, for people, when a model that answered no longer can.
    """

    def __init__(
        self,
        settings: CommonSettings,
        metrics: Metrics,
        tracer: Tracer,
        cache: ResultCache | None,
        on_failure: Callable[[str], None],
    ) -> None:
        self._settings, self._metrics, self._tracer = settings, metrics, tracer
        self._cache, self._on_failure = cache, on_failure

    async def open(self, loaded: LoadedModel) -> Served[Any]:
        """Start to answer with a model."""
        bundle = loaded.bundle
        program, task, taxonomy = program_of(bundle.manifest), bundle.manifest.task, bundle.manifest.taxonomy
        bands = bundle.manifest.band_map.labels
        notes = self._metrics.notes(task, () if taxonomy is None else taxonomy.names, bands)
        listeners: list[RunListener] = [notes.record_run]
        if self._tracer.exports:
            listeners.append(partial(self._tracer.run, task))
        supervisor = supervise(loaded, self._settings.hung_run_seconds, partial(self._fault, task))
        engine = Engine(
            supervisor,
            program,
            loaded.cost,
            EngineOptions(
                workers=self._settings.workers or loaded.layout.runs,
                batches=self._settings.groups_in_flight or loaded.layout.batches,
                limits=self._limits(loaded),
                max_queued_seconds=self._settings.max_queued_seconds,
            ),
            samples=loaded.samples,
            clock=loaded.clock,
            listeners=listeners,
            on_death=partial(self._died, task),
            guard=supervisor,
        )
        await engine.start()
        self._metrics.watch(task, engine)
        self._metrics.set_model(bundle, loaded.provider, loaded.load_seconds)
        results = None if self._cache is None else self._cache.view(bundle, loaded.provider)
        plane = DataPlane(engine, program, self._metrics, notes, results)
        return Served(loaded, engine, plane, self._metrics.model_counter(bundle))

    def _limits(self, loaded: LoadedModel) -> BatchLimits:
        width, delay = self._settings.max_batch_tokens or loaded.max_tokens, self._settings.max_delay_ms / 1000
        return BatchLimits(max_tokens=width, max_items=most_items(width), max_delay=delay)

    async def close(self, served: Served[Any], timeout: float) -> None:
        """Stop a model that nobody asks any more, once what it still runs has ended."""
        await served.engine.drain(timeout)
        await served.engine.stop()
        await asyncio.to_thread(served.loaded.keep, served.engine.learned)  # a file is written
        # Only now: what ended during the drain is counted as well.
        self._metrics.end_notes(served.plane.notes)
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


LoadModels = Callable[[CommonSettings], Models]


class ModelRepository:
    """Models of a process and the right to ask them. Every method is called on one event loop.

    Parameters
    ----------
    on_failure : called on the event loop with the reason, for people, when a model that answered no longer can: the
        process has to be replaced.
    load_models, load : load the models of the settings, and any other model.

    Attributes
    ----------
    classifier, of_any_task : lease a model, as ``live`` does.
    changes : every way to change what is served under which name.
    trials : of new versions, beside those that answer.
    live : the models that are served, and under which names.
    folders : what lies in the folders, and what could not be loaded.
    """

    def __init__(
        self,
        settings: CommonSettings,
        metrics: Metrics,
        tracer: Tracer,
        on_failure: Callable[[str], None],
        load_models: LoadModels | None = None,
        load: LoadOne = load_one,
    ) -> None:
        self._settings, self._load_models = settings, load_models or load_configured
        self._cache = _cache(settings, metrics)
        self._loader = QuietLoader(settings, load)
        self.live = LiveModels(ModelOpener(settings, metrics, tracer, self._cache, on_failure), settings.drain_timeout)
        # Leases come straight from the live models: nothing stands between whoever asks and the models that answer.
        self.classifier = self.live.classifier
        self.of_any_task = self.live.of_any_task
        self.folders = BundleFolders(settings.repository, self._loader, metrics)
        steps = ChangeSteps(self.live, self.folders)
        self.changes, self.trials = Changes(steps), Trials(steps, metrics)
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load what the settings name, and what is in the folder.

        Raises
        ------
        BundleError, ProviderError
            When a bundle of the settings cannot be served, or an alias leads nowhere. A bundle of the folder that
            cannot be served is noted, and the others go on.
        """
        models = await asyncio.to_thread(self._load_models, self._settings)
        await self.changes.begin(models.classifier, DEFAULT)
        for survey, model in models.of_surveys.items():
            await self.changes.begin(model, survey)
        await self.changes.sync()  # before the aliases, which may lead to what lies in the folder
        for alias, target in self._settings.aliases.items():
            try:
                await self.changes.set_alias(alias, Reference.parse(target))
            except (Refused, UnknownModel) as error:
                raise BundleError(f"the alias {alias} cannot lead to {target}: {error}") from error
        self._check_prior()
        self._check_folders()
        self.live.started = self._loader.quiet = True  # from here on loading yields to requests
        if self._settings.repository_poll:
            self._watch = asyncio.create_task(self._keep_watch(self._settings.repository_poll))

    def _check_prior(self) -> None:
        """Raise BundleError where no model has the prior that the settings name: most likely a typing mistake."""
        name = self._settings.prior
        classifiers = [each for each in self.live.served.values() if each.task == "classification"]
        offered = {each for served in classifiers for each in Posterior(served.bundle.manifest).names}
        if name and name not in offered:
            raise BundleError(f"NIGHTJAR_PRIOR: no model has {name!r}; there are {', '.join(sorted(offered))}")

    def _check_folders(self) -> None:
        """Warn of folders that are not there: they may come later, or their names may be mistaken."""
        for name, folder in (("repository", self._settings.repository), ("schemas", self._settings.schemas)):
            if folder is not None and not folder.is_dir():
                log.warning("a folder of the settings is not there", setting=name, path=str(folder))

    async def stop(self) -> None:
        """Finish what is queued, stop every thread, let go of everything."""
        # The watch and the loader end first: no model may come in while they are being closed.
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        self._loader.close()
        await self.live.close()

    @property
    def started(self) -> bool:
        """Return True once the models have been loaded."""
        return self.live.started

    @property
    def default(self) -> ServedClassifier:
        """The classifier that answers where a request names none. Raises NotReady."""
        return self.classifier().served

    @property
    def served(self) -> list[Served[Any]]:
        """Every model that requests can reach, those of the settings first. Raises NotReady."""
        if not self.started:
            raise NotReady
        return list(self.live.served.values())

    @property
    def failures(self) -> Iterable[Failure]:
        """Bundles that cannot be served."""
        return self.folders.failures.values()

    @property
    def engines(self) -> Iterable[Engine]:
        """Every engine that answers requests."""
        return self.live.engines

    async def _keep_watch(self, seconds: float) -> None:
        """Take up what is new in the folder, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.changes.sync()
            except Exception as error:  # an unreadable disk today may be readable tomorrow
                log.error("the repository could not be read", exc_info=error)


def _cache(settings: CommonSettings, metrics: Metrics) -> ResultCache | None:
    if not settings.cache_bytes:
        return None
    cache = ResultCache(settings.cache_bytes, metrics)
    metrics.cache_bytes.set_function(lambda: cache.size_bytes)
    return cache
