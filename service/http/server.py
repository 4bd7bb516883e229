"""The server process: uvicorn, with an orderly end.

SIGTERM: not ready at once, still serving for ``drain_delay`` so that load balancers notice, then no new connections,
requests in progress are finished, exit 0. SIGINT skips the pause. A second signal skips whatever is being waited for.
A model that cannot be served, or an engine that cannot go on, ends the process with status 1.

The application is middleware, routes and the OpenAPI document around one :class:`service.http.lifecycle.Service`.
Starlette turns exceptions into replies in three places; here they all travel to the outermost middleware
(:class:`service.http.edge.middleware.RequestMiddleware`), which knows one shape.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any, NoReturn

import structlog
import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from nightjar_alerts.service.http import openapi
from nightjar_alerts.service.http.admin import AdminServer
from nightjar_alerts.service.http.edge.errors import raise_problem, reraise
from nightjar_alerts.service.http.edge.keys import KeyRing
from nightjar_alerts.service.http.edge.middleware import AuthMiddleware, RequestMiddleware
from nightjar_alerts.service.http.edge.protocol import ServerConfig
from nightjar_alerts.service.http.lifecycle import Service
from nightjar_alerts.service.http.oip import routes as oip
from nightjar_alerts.service.http.routes import alerts, classify, evolution, meta
from nightjar_alerts.service.process import (
    SWITCH_SECONDS,
    VERSION,
    configure_log,
    fix_thresholds,
    warn_about_environment,
)
from nightjar_alerts.service.settings import Settings, is_loopback

DESCRIPTION = """Nightjar classifies astronomical alerts: multiband light curves in, calibrated class probabilities and
embeddings out. Every problem is an
`application/problem+json` document (RFC 9457) whose `errors` point at the values at fault. Replies carry
`X-Request-ID`, `traceresponse` (W3C Trace Context) and, where work was done, `Server-Timing`. The header
`Nightjar-Deadline-Ms` sets a deadline."""


def create_app(service: Service) -> FastAPI:
    """Build the application; its lifespan starts and stops the service."""
    settings = service.settings
    app = FastAPI(
        title="Nightjar",
        version=VERSION,
        summary="Real-time classification of astronomical alerts",
        description=DESCRIPTION,
        lifespan=_lifespan,
        generate_unique_id_function=lambda route: route.name,
        openapi_url=None,  # served with the pages, as bytes
        docs_url=None,
        redoc_url=None,
        exception_handlers={HTTPException: raise_problem, RequestValidationError: raise_problem, Exception: reraise},
    )
    app.state.service = service
    for router in (
        classify.router,
        alerts.router,
        evolution.router,
        meta.models_router,
        oip.router,
        meta.probes,
        meta.problems,
    ):
        app.include_router(router)
    if settings.enable_docs:
        app.include_router(meta.pages)
    document = openapi.document(app, settings)
    app.openapi = lambda: document  # type: ignore[method-assign]  # FastAPI's documented way to replace it
    return app


def wrap_app(app: FastAPI, service: Service) -> ASGIApp:
    """Put the middleware around the application, the outermost last."""
    settings = service.settings
    wrapped: ASGIApp = AuthMiddleware(
        app,
        keys=KeyRing(settings.keys),
        max_requests=settings.max_requests,
        quotas=service.quotas,
        also=settings.protected_paths,
        metrics=service.metrics,
    )
    if settings.cors_origins:
        wrapped = CORSMiddleware(
            wrapped,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "HEAD", "POST"),
            allow_headers=("*",),
            expose_headers=("*",),
        )
    return RequestMiddleware(wrapped, metrics=service.metrics, root_path=settings.root_path)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    service: Service = app.state.service
    await service.start()
    yield {}
    await service.stop()


log = structlog.get_logger(__name__)

YOUNG_OBJECTS = 10_000
"""New objects after which Python looks for cycles among them. Requests leave none behind, and with the 700 that are
usual a large body is looked through again and again while it is read, and no other thread does anything meanwhile."""


class Server(uvicorn.Server):
    """uvicorn's server for one service; ``exit_status`` is set when :meth:`run` returns."""

    def __init__(self, service: Service) -> None:
        rejected = service.metrics.rejected.labels
        app = wrap_app(create_app(service), service)
        super().__init__(ServerConfig(app, service.settings, lambda slug: rejected(slug).inc()))
        self.service = service
        self.admin = AdminServer(service)
        self.exit_status = 0
        self._stopping = False
        service.on_failure = self.fail

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals on the event loop. uvicorn's own handling would end the process by the signal, not with 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen at the service's address and at that of the admin interface."""
        try:
            await super().startup(sockets)
        except SystemExit:  # uvicorn cannot listen, and has logged why
            sys.exit(1)
        if self.exit_status:  # the model failed to load before the port was open
            await self.shutdown()
            return
        for server in self.servers:
            for listening in server.sockets:
                host, port = listening.getsockname()[:2]
                log.info("listening", host=host, port=port)
        try:
            await self.admin.open()
        except OSError as error:
            log.critical("cannot listen at the address of the admin interface", reason=str(error))
            self.fail()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the service's server and the admin interface's."""
        await self.admin.shut()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop: in good time at the first signal, sooner at every further one."""
        self.service.begin_drain()
        if self.should_exit:
            self.force_exit = True
        elif self._stopping or sig == signal.SIGINT or not self.service.settings.drain_delay:
            self.should_exit = True
        else:
            asyncio.get_running_loop().call_later(self.service.settings.drain_delay, self._exit)
        self._stopping = True
        log.info("stopping", signal=signal.Signals(sig).name)

    def fail(self) -> None:
        """Stop with an exit status that says so."""
        self.exit_status = 1
        self.should_exit = True

    def _exit(self) -> None:
        self.should_exit = True


def serve(settings: Settings) -> int:
    """Serve until told to stop; returns the exit status."""
    configure_log(settings)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of every request with an Upgrade header
    if not _may_listen(settings):
        return 1
    fix_thresholds()
    sys.setswitchinterval(SWITCH_SECONDS)
    warn_about_environment(settings)
    server = Server(Service(settings))
    gc.collect()
    gc.freeze()  # what is there now stays: looking through it again takes the interpreter for tens of milliseconds
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
    server.run()
    if server.exit_status:
        _leave(server.exit_status)
    return 0


def _may_listen(settings: Settings) -> bool:
    """Return whether to listen: without API keys only on a loopback address, unless anonymous access is enabled."""
    if settings.keys or is_loopback(settings.host):
        return True
    if settings.allow_anonymous:
        log.warning("anonymous access is enabled: no API keys are set", host=settings.host)
        return True
    detail = "no API keys are set: set NIGHTJAR_API_KEYS, or NIGHTJAR_ALLOW_ANONYMOUS=true for anonymous access"
    log.critical("refusing to listen without API keys", host=settings.host, reason=detail)
    return False


def _leave(status: int) -> NoReturn:
    """End the process at once: a run that hangs cannot be joined, and a runtime torn down under it may crash."""
    logging.shutdown()
    os._exit(status)
