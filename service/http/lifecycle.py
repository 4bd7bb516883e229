"""From nothing to ready, and from ready to gone.

Starting (load the bundle, verify hashes and golden vectors, open the session, warm up) happens in a thread while the
event loop already answers ``/healthz`` and ``/startupz``. A worker thread that dies makes the process not ready at once
and ends it with a non-zero status: an orchestrator can replace it, a hung service nobody notices.
"""

import asyncio
from collections.abc import Callable, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

import structlog
from starlette.requests import Request

from models.bundle import Bundle, BundleError, Manifest
from models.lightcurve import LightCurve
from models.runtime import ProviderError
from service.dataplane import DataPlane
from service.http.errors import NOT_FOUND, RETRY_AFTER_UNAVAILABLE, UNAVAILABLE, ProblemError
from service.http.receive import BodyBudget
from service.http.writers import ClassWriter, ForecastWriter
from service.inference.batching import Program, RunReport
from service.inference.engine import Engine
from service.inference.loaded import LoadedModel, load_model
from service.inference.programs import Classification, Forecasting, ForecastItem
from service.inference.scheduling import BatchLimits
from service.metrics import Metrics
from service.settings import Settings
from service.statistics import ModelStatistics

T = TypeVar("T")
ItemT = TypeVar("ItemT", bound=Sized)
WriterT = TypeVar("WriterT")

DECODE_THREADS = 2  # decoding holds the interpreter lock: more threads would only hold more memory
STUCK_SECONDS = 60.0

log = structlog.get_logger(__name__)


class State(StrEnum):
    """Where the process is in its life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Models(NamedTuple):
    """What a process serves: a classifier and, where one is configured, a forecaster."""

    classifier: LoadedModel
    forecaster: LoadedModel | None = None


def load_configured(settings: Settings) -> Models:
    """Load the bundles that the settings name, on the provider they name."""
    classifier = load_model(settings.bundle, settings.provider, settings.threads_per_run)
    if settings.forecast_bundle is None:
        return Models(classifier)
    forecaster = load_model(settings.forecast_bundle, settings.provider, settings.threads_per_run, task="forecast")
    return Models(classifier, forecaster)


@dataclass(frozen=True, slots=True)
class Served(Generic[ItemT, WriterT]):
    """A bundle with everything that answers in its name."""

    bundle: Bundle
    engine: Engine
    plane: DataPlane[ItemT]
    replies: WriterT


ServedClassifier = Served[LightCurve, ClassWriter]
ServedForecaster = Served[ForecastItem, ForecastWriter]


class Service:
    """One service process: its settings, its metrics and, once ready, its models.

    ``on_failure`` is called when the process cannot go on and has to be replaced.

    Parameters
    ----------
    load : how the models come into being; takes seconds, runs in a thread.
    """

    def __init__(self, settings: Settings, load: Callable[[Settings], Models] | None = None) -> None:
        self.settings = settings
        self._load = load or load_configured
        self.metrics = Metrics()
        self.budget = BodyBudget(settings.max_held_bytes)
        self.decoders = ThreadPoolExecutor(DECODE_THREADS, thread_name_prefix="decode")
        self.state = State.STARTING
        self.on_failure: Callable[[], None] = lambda: None
        self._classifier: ServedClassifier | None = None
        self._forecaster: ServedForecaster | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin loading and return; readiness comes later."""
        self._tasks = [asyncio.create_task(self._boot()), asyncio.create_task(self.metrics.sample_loop_lag())]

    async def _boot(self) -> None:
        try:
            await self._serve(await asyncio.to_thread(self._load, self.settings))
        except (BundleError, ProviderError) as error:
            log.critical("the model cannot be served", reason=str(error))
            self._fail()
        except Exception as error:  # whatever else keeps a process from serving must end it too
            log.critical("starting failed", exc_info=error)
            self._fail()

    async def _serve(self, models: Models) -> None:
        if models.forecaster is not None:
            self._forecaster = await self._serve_one(models.forecaster, Forecasting, ForecastWriter)
        self._classifier = await self._serve_one(models.classifier, Classification, ClassWriter)
        if self.state is State.STARTING:
            self.state = State.READY
        manifest = models.classifier.bundle.manifest
        seconds = sum(model.load_seconds for model in models if model is not None)
        log.info("ready", model=manifest.name, version=manifest.version, seconds=round(seconds, 3))

    async def _serve_one(
        self,
        loaded: LoadedModel,
        program_of: Callable[[Manifest], Program[ItemT]],
        writer_of: Callable[[Bundle], WriterT],
    ) -> Served[ItemT, WriterT]:
        task, program = loaded.bundle.manifest.task, program_of(loaded.bundle.manifest)
        count, statistics = self.metrics.run_recorder(task), ModelStatistics()

        def record(report: RunReport, predicted_seconds: float) -> None:
            count(report, predicted_seconds)
            statistics.record_run(report)

        engine = Engine(
            loaded.run,
            program,
            loaded.cost,
            workers=self.settings.concurrent_runs,
            limits=BatchLimits(max_tokens=self.settings.max_batch_tokens),
            max_queued_seconds=self.settings.max_queued_seconds,
            on_run=record,
            on_death=self._engine_died,
        )
        await engine.start()
        self.metrics.watch(task, engine)
        self.metrics.set_model(loaded.bundle, loaded.provider, loaded.load_seconds)
        plane = DataPlane(engine, program, self.metrics, statistics)
        return Served(loaded.bundle, engine, plane, writer_of(loaded.bundle))

    def _engine_died(self, error: BaseException) -> None:
        log.critical("an inference thread died", exc_info=error)
        self._fail()

    def _fail(self) -> None:
        self.state = State.FAILED
        self.on_failure()

    def begin_drain(self) -> None:
        """Say not ready from now on; requests are still answered."""
        if self.state is not State.FAILED:
            self.state = State.DRAINING

    async def stop(self) -> None:
        """Finish what is queued and stop every thread."""
        self.begin_drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(engine.drain(self.settings.drain_timeout) for engine in self._engines))
        await asyncio.gather(*(engine.stop() for engine in self._engines))
        self.decoders.shutdown(wait=False, cancel_futures=True)

    @property
    def started(self) -> bool:
        """Whether the models have been loaded."""
        return self._classifier is not None

    @property
    def alive(self) -> bool:
        """Whether no worker thread has died and no run hangs."""
        if not self.started:
            return self.state is not State.FAILED
        return all(engine.alive and engine.oldest_run_seconds < STUCK_SECONDS for engine in self._engines)

    @property
    def _engines(self) -> list[Engine]:
        return [model.engine for model in (self._classifier, self._forecaster) if model is not None]

    @property
    def served(self) -> list[ServedClassifier | ServedForecaster]:
        """Every model that answers. Raises ProblemError (503) while there is none."""
        return [self.classifier, *([self._forecaster] if self._forecaster else [])]

    @property
    def bundles(self) -> list[Bundle]:
        """What is served. Raises ProblemError (503) while there is nothing."""
        return [model.bundle for model in self.served]

    @property
    def classifier(self) -> ServedClassifier:
        """The model that classifies. Raises ProblemError (503) while there is none."""
        if self._classifier is None:
            raise self.not_ready()
        return self._classifier

    @property
    def forecaster(self) -> ServedForecaster:
        """The model that forecasts. Raises ProblemError: 503 while starting, 404 when none is configured."""
        if self._classifier is None:  # the last to be there
            raise self.not_ready()
        if self._forecaster is None:
            detail = "no forecasting model is configured here: its operator would set NIGHTJAR_FORECAST_BUNDLE"
            raise ProblemError(NOT_FOUND, detail)
        return self._forecaster

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Result of ``work``, done in one of a few threads: a burst waits for its turn instead of filling memory."""
        return await asyncio.get_running_loop().run_in_executor(self.decoders, work)

    def not_ready(self) -> ProblemError:
        """Return the problem that says where the process is in its life."""
        return ProblemError(UNAVAILABLE, f"the service is {self.state}", retry_after=RETRY_AFTER_UNAVAILABLE)


def service_of(request: Request) -> Service:
    """The service that a request came to."""
    service: Service = request.app.state.service
    return service
