"""From nothing to ready, and from ready to gone.

Starting (load the bundle, verify hashes and golden vectors, open the session, warm up) happens in a thread while the
event loop already answers ``/healthz`` and ``/startupz``. A worker thread that dies makes the process not ready at once
and ends it with a non-zero status: an orchestrator can replace it, a hung service nobody notices.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import structlog
from starlette.requests import Request

from models.bundle import Bundle, BundleError
from models.runtime import ProviderError
from service.dataplane import DataPlane
from service.http.errors import RETRY_AFTER_UNAVAILABLE, UNAVAILABLE, ProblemError
from service.http.receive import BodyBudget
from service.http.replies import ReplyWriter
from service.inference.engine import Engine
from service.inference.loaded import LoadedModel, load_model
from service.inference.scheduling import BatchLimits
from service.metrics import Metrics
from service.settings import Settings

T = TypeVar("T")

DECODE_THREADS = 2  # decoding holds the interpreter lock: more threads would only hold more memory
STUCK_SECONDS = 60.0

log = structlog.get_logger(__name__)


class State(StrEnum):
    """Where the process is in its life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


def load_configured(settings: Settings) -> LoadedModel:
    """Load the bundle that the settings name, on the provider they name."""
    return load_model(settings.bundle, settings.provider, settings.threads_per_run)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A bundle with everything that answers in its name."""

    bundle: Bundle
    engine: Engine
    plane: DataPlane
    replies: ReplyWriter


class Service:
    """One service process: its settings, its metrics and, once ready, its model.

    ``on_failure`` is called when the process cannot go on and has to be replaced.

    Parameters
    ----------
    load : how the model comes into being; takes seconds, runs in a thread.
    """

    def __init__(self, settings: Settings, load: Callable[[Settings], LoadedModel] | None = None) -> None:
        self.settings = settings
        self._load = load or load_configured
        self.metrics = Metrics()
        self.budget = BodyBudget(settings.max_held_bytes)
        self.decoders = ThreadPoolExecutor(DECODE_THREADS, thread_name_prefix="decode")
        self.state = State.STARTING
        self.on_failure: Callable[[], None] = lambda: None
        self._model: ServedModel | None = None
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

    async def _serve(self, loaded: LoadedModel) -> None:
        engine = Engine(
            loaded.run,
            loaded.cost,
            workers=self.settings.concurrent_runs,
            limits=BatchLimits(max_tokens=self.settings.max_batch_tokens),
            max_queued_seconds=self.settings.max_queued_seconds,
            on_run=self.metrics.record_run,
            on_death=self._engine_died,
        )
        await engine.start()
        manifest = loaded.bundle.manifest
        self.metrics.watch(engine)
        self.metrics.set_model(
            manifest.name,
            manifest.version,
            loaded.bundle.sha256,
            loaded.provider,
            manifest.taxonomy.names,
            loaded.load_seconds,
        )
        plane = DataPlane(engine, manifest, self.metrics)
        self._model = ServedModel(loaded.bundle, engine, plane, ReplyWriter(loaded.bundle))
        if self.state is State.STARTING:
            self.state = State.READY
        log.info("ready", model=manifest.name, version=manifest.version, seconds=round(loaded.load_seconds, 3))

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
        if self._model is not None:
            await self._model.engine.drain(self.settings.drain_timeout)
            await self._model.engine.stop()
        self.decoders.shutdown(wait=False, cancel_futures=True)

    @property
    def started(self) -> bool:
        """Whether the model has been loaded."""
        return self._model is not None

    @property
    def alive(self) -> bool:
        """Whether no worker thread has died and no run hangs."""
        if self._model is None:
            return self.state is not State.FAILED
        return self._model.engine.alive and self._model.engine.oldest_run_seconds < STUCK_SECONDS

    @property
    def model(self) -> ServedModel:
        """The model that is served. Raises ProblemError (503) while there is none."""
        if self._model is None:
            raise self.not_ready()
        return self._model

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
