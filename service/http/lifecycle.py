"""Service of one process: its lifecycle from start to drain, and the objects shared by its requests.

Models are loaded, verified and warmed up in a thread, while ``/healthz`` and ``/startupz`` respond. If an engine fails
or hangs (:mod:`service.engine.watchdog`), the process becomes not ready at once and exits with a non-zero status,
so that an orchestrator replaces it.
"""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import structlog
from anyio import CapacityLimiter, to_thread
from starlette.requests import Request

from nightjar_alerts.core.items import Item
from nightjar_alerts.models.bundle import BundleError
from nightjar_alerts.models.runtime import ProviderError
from nightjar_alerts.service.http.edge.admission import Admission
from nightjar_alerts.service.http.edge.budget import ConcurrencyLimiter, MemoryBudget
from nightjar_alerts.service.http.edge.counts import RedisUnavailable, SharedCounts
from nightjar_alerts.service.http.edge.errors import NOT_FOUND, RETRY_AFTER_UNAVAILABLE, UNAVAILABLE, ProblemError
from nightjar_alerts.service.http.edge.keys import KeyRing, Quotas
from nightjar_alerts.service.http.turns import SlicedWork, Turns
from nightjar_alerts.service.observe.live import LiveFeed
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.observe.tracing import tracing_to
from nightjar_alerts.service.registry.loader import LoadOne, load_one
from nightjar_alerts.service.registry.manager import ModelManager
from nightjar_alerts.service.registry.names import NotReady, UnknownModel
from nightjar_alerts.service.registry.serving import ModelHandle, ServedModel
from nightjar_alerts.service.settings import Settings

T = TypeVar("T")

DECODE_THREADS = 2  # decoding holds the GIL: more threads would only use more memory
LARGE_BYTES = 1024 * 1024
"""Size above which bodies are decoded one at a time: decoding JSON takes up to sixteen times its size in memory."""

log = structlog.get_logger(__name__)


class State(StrEnum):
    """State of the process."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Service:
    """Settings, metrics, limits and, once started, models of a process.

    ``on_failure`` is called when the process must be replaced. ``ending`` ends calls over gRPC at shutdown, at the same
    time as uvicorn ends requests over HTTP; models stop after both.

    Parameters
    ----------
    load : loads a bundle; called in a thread.
    """

    def __init__(self, settings: Settings, load: LoadOne = load_one) -> None:
        self.settings = settings
        self.metrics = Metrics(tracing_to(settings.otlp_endpoint, settings.trace_ratio))
        self.budget = MemoryBudget(settings.max_held_bytes)
        self.streams = ConcurrencyLimiter(settings.max_streams)
        self.live = LiveFeed() if settings.live_key else None
        shared = SharedCounts(settings.limits_redis_url) if settings.limits_redis_url else None
        limited = settings.key_limits or shared is not None
        self.quotas = Quotas(settings.key_limits, self.metrics, shared) if limited else None
        self.admission = Admission(
            KeyRing(settings.keys), settings.max_requests, self.quotas, settings.protected_paths, self.metrics
        )
        self._decoders = CapacityLimiter(DECODE_THREADS)
        self.turns, self.large_tables = Turns(), Turns()
        self.models = ModelManager(settings, self.metrics, self._fail, load)
        self.state = State.STARTING
        self._failure = ""
        self.on_failure: Callable[[], None] = lambda: None
        self.ending: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start loading the models; does not wait for it."""
        self._tasks = [asyncio.create_task(self._boot()), asyncio.create_task(self.metrics.sample_loop_lag())]

    async def _boot(self) -> None:
        try:
            await self.models.start()
        except (BundleError, ProviderError, RedisUnavailable) as error:
            log.critical("the model cannot be served", reason=str(error))
            self._fail("the model cannot be served")
        except Exception as error:  # a process that cannot serve must end
            log.critical("starting failed", exc_info=error)
            self._fail("starting failed")
        else:
            self._ready()

    def _ready(self) -> None:
        if self.state is State.STARTING:
            self.state = State.READY
        default = self.models.default
        seconds = sum(model.loaded.load_seconds for model in self.models.served)
        log.info("ready", model=default.reference.name, version=default.reference.version, seconds=round(seconds, 3))

    def _fail(self, reason: str) -> None:
        self.state, self._failure = State.FAILED, reason
        self.on_failure()

    def begin_drain(self) -> None:
        """Mark the service as draining; requests are still served."""
        if self.state is not State.FAILED:
            self.state = State.DRAINING

    async def stop(self) -> None:
        """Finish queued work and stop all threads."""
        self.begin_drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.ending is not None:
            await self.ending
        await self.models.stop()
        if self.quotas is not None:
            await self.quotas.close()
        await asyncio.to_thread(self.metrics.tracing.close)

    @property
    def started(self) -> bool:
        """True once the models have been loaded."""
        return self.models.started

    @property
    def alive(self) -> bool:
        """True while all engines run and the service has not failed."""
        return self.state is not State.FAILED and all(engine.alive for engine in self.models.engines)

    @property
    def unready(self) -> str:
        """Reason why the service is not ready; empty if it is ready."""
        if self.state is State.READY:
            return ""
        return f"the service has failed: {self._failure}" if self._failure else f"the service is {self.state}"

    def select_model(self, name: str = "", *, routing_key: str = "") -> ModelHandle:
        """Return the handle of a model. Raises ProblemError: 503 while starting, 404 for an unknown name."""
        try:
            return self.models.router.select(name, routing_key=routing_key)
        except (NotReady, UnknownModel) as error:
            raise self._no_model(error) from None

    def route(
        self, item: Item, name: str = "", *, survey: str = "", routing_key: str = "", substitute: bool = True
    ) -> tuple[ModelHandle, Item]:
        """Return the model for an item, and the item, as :meth:`ModelRouter.route`; raises as :meth:`select_model`."""
        try:
            return self.models.router.route(item, name, survey=survey, routing_key=routing_key, substitute=substitute)
        except (NotReady, UnknownModel) as error:
            raise self._no_model(error) from None

    def select_routed(self, *, routing_key: str = "") -> dict[str, ModelHandle]:
        """Return the models that light curves are routed to, by alias; raises as :meth:`select_model`."""
        try:
            return self.models.router.select_routed(routing_key=routing_key)
        except (NotReady, UnknownModel) as error:
            raise self._no_model(error) from None

    def _no_model(self, error: Exception) -> ProblemError:
        if isinstance(error, NotReady):
            return self.not_ready()
        return ProblemError(NOT_FOUND, "no model of this name is served; /v1/models lists the models")

    @property
    def served(self) -> list[ServedModel]:
        """The served models. Raises ProblemError (503) while starting."""
        try:
            return self.models.served
        except NotReady:
            raise self.not_ready() from None

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread, of which there are few; bursts wait."""
        return await to_thread.run_sync(work, limiter=self._decoders)

    async def run_in_turn(self, work: Callable[[], T], client: str) -> T:
        """Run ``work`` that needs much memory in a thread when it is the turn of the client.

        Only one runs at a time. Parsing holds the GIL, so two at a time would not be faster.
        """
        return await SlicedWork(self.turns, client).run(work)

    async def decode(self, work: Callable[[], T], size: int, client: str) -> T:
        """Decode ``size`` bytes of a body in a thread; if they are many, when it is the turn of the client."""
        return await (self.run_in_thread(work) if size <= LARGE_BYTES else self.run_in_turn(work, client))

    async def run_maybe_in_thread(self, work: Callable[[], T], thread: bool) -> T:
        """Run ``work`` in a thread if ``thread`` is true, else on the event loop, for short work."""
        return await self.run_in_thread(work) if thread else work()

    def not_ready(self) -> ProblemError:
        """Return the problem (503) of a service that is not ready."""
        return ProblemError(UNAVAILABLE, self.unready or None, retry_after=RETRY_AFTER_UNAVAILABLE)


def get_service(request: Request) -> Service:
    """Return the service that handles a request."""
    service: Service = request.app.state.service
    return service
