"""The models of a process, whatever it answers through: what a transport, or a worker without one, asks.

    repository = ModelRepository(settings, metrics, tracer, on_failure)
    await repository.start()
    with repository.classifier(survey="ztf", key=object_id) as lease:
        outcomes = await lease.ask(curves, AskOptions(deadline))
    await repository.stop()

What is served is changed by its ``changes`` and ``trials`` and, where the settings say so, by a watch over the folder.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from models.bundle import BundleError
from models.lightcurve import LightCurve
from service.inference.engine import Engine
from service.inference.programs import ForecastItem
from service.metrics import Metrics
from service.repository.cache import ResultCache
from service.repository.changes import Changes
from service.repository.intake import Failure, Intake, Refused
from service.repository.loading import LoadOne, Models, QuietLoader, load_configured, load_one
from service.repository.opening import Opener
from service.repository.references import Reference
from service.repository.remote import RedisResults
from service.repository.routing import DEFAULT, FORECAST, ZTF, UnknownModel
from service.repository.served import Lease, Served, ServedClassifier
from service.repository.shelf import Shelf
from service.repository.steps import Steps
from service.repository.trials import Trials
from service.settings import Settings
from service.tracing.tracer import Tracer

LoadModels = Callable[[Settings], Models]

log = structlog.get_logger(__name__)


class NotReady(Exception):
    """Nothing is served yet."""


class ModelRepository:
    """What a process serves. Every method is called on one event loop.

    Parameters
    ----------
    on_failure : called on the event loop, with the reason for people, when a model that answers can do so no more: the
        process has to be replaced.
    load_models, load : how models come into being, those of the settings and all others.

    Attributes
    ----------
    changes : every way to change what is served under which name.
    trials : of new versions, beside those that answer.
    shelf : what is served, and under which names.
    intake : what lies in the folders, and what could not be loaded.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        tracer: Tracer,
        on_failure: Callable[[str], None],
        load_models: LoadModels | None = None,
        load: LoadOne = load_one,
    ) -> None:
        self._settings, self._load_models = settings, load_models or load_configured
        self._cache = _cache(settings, metrics)
        self._loader = QuietLoader(settings, load)
        self.shelf = Shelf(Opener(settings, metrics, tracer, self._cache, on_failure), settings.drain_timeout)
        self.intake = Intake(settings.repository, self._loader, metrics)
        steps = Steps(self.shelf, self.intake)
        self.changes, self.trials = Changes(steps), Trials(steps, metrics)
        self.started = False
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
        if models.forecaster is not None:
            await self.changes.begin(models.forecaster, FORECAST)
        if models.ztf is not None:
            await self.changes.begin(models.ztf, ZTF)
        if models.fallback is not None:
            await self.changes.begin_fallback(models.fallback)
        await self.changes.sync()
        for alias, target in self._settings.aliases.items():
            try:
                await self.changes.set_alias(alias, Reference.parse(target))
            except (Refused, UnknownModel) as error:
                raise BundleError(f"the alias {alias} cannot lead to {target}: {error}") from error
        self.started = self._loader.quiet = True
        if self._settings.repository_poll:
            self._watch = asyncio.create_task(self._keep_watch(self._settings.repository_poll))

    async def stop(self) -> None:
        """Finish what is queued, stop every thread, let go of everything."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        self._loader.close()
        await self.shelf.close()
        if self._cache is not None:
            await self._cache.close()

    def classifier(self, name: str = "", *, survey: str = "", key: str = "") -> Lease[LightCurve]:
        """The right to ask a classifier.

        Parameters
        ----------
        name : an alias, ``name`` or ``name@version``; empty for the one of the survey, or the default.
        survey : where the light curve comes from.
        key : of the object, or else of whoever asks: a canary's share is divided by it.

        Raises
        ------
        UnknownModel, NotReady
            When no classifier is served under the name, or none at all yet.
        """
        self._check_started()
        return self.shelf.lease(name or self.shelf.routes.for_survey(survey), "classification", key)

    def forecaster(self, name: str = "", *, key: str = "") -> Lease[ForecastItem]:
        """The right to ask a forecaster; raises likewise."""
        self._check_started()
        return self.shelf.lease(name or FORECAST, "forecast", key)

    def of_any_task(self, name: str, key: str = "") -> Lease[Any]:
        """The right to ask a model, whatever it is for; raises likewise."""
        self._check_started()
        return self.shelf.lease(name, None, key)

    def _check_started(self) -> None:
        if not self.started:
            raise NotReady

    @property
    def default(self) -> ServedClassifier:
        """The classifier that answers where a request names none. Raises NotReady."""
        return self.classifier().served

    @property
    def served(self) -> list[Served[Any]]:
        """Every model that requests can reach, those of the settings first. Raises NotReady."""
        self._check_started()
        return list(self.shelf.served.values())

    @property
    def failures(self) -> Iterable[Failure]:
        """Bundles that cannot be served."""
        return self.intake.failures.values()

    @property
    def engines(self) -> Iterable[Engine]:
        """Every engine that answers requests."""
        return self.shelf.engines

    async def _keep_watch(self, seconds: float) -> None:
        """Take up what is new in the folder, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.changes.sync()
            except Exception as error:  # an unreadable disk today may be readable tomorrow
                log.error("the repository could not be read", exc_info=error)


def _cache(settings: Settings, metrics: Metrics) -> ResultCache | None:
    if not settings.cache_bytes:
        return None
    remote = None
    if settings.cache_redis_url:
        remote = RedisResults(settings.cache_redis_url, settings.cache_redis_seconds, metrics)
    cache = ResultCache(settings.cache_bytes, metrics, remote)
    metrics.cache_bytes.set_function(lambda: cache.held_bytes)
    return cache
