"""Application and server process.

On SIGTERM the service becomes not ready at once, but keeps serving for ``drain_delay`` seconds, so that load balancers
notice. Then it accepts no new connections, finishes the requests in progress and exits with 0. SIGINT skips the delay,
and a second signal skips all waiting. The process exits with 1 if a model cannot be loaded or an engine fails.

The application has middleware, routes and the OpenAPI document around one :class:`service.http.lifecycle.Service`. All
exceptions reach the outermost middleware (:class:`service.http.edge.middleware.RequestMiddleware`), which converts them
to responses.
"""

import asyncio
import errno
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
from typing import TYPE_CHECKING, Any, NoReturn

import structlog
import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from nightjar_alerts.models.common import how_to_install
from nightjar_alerts.service.grpc import GrpcError
from nightjar_alerts.service.http import openapi
from nightjar_alerts.service.http.admin import AdminServer
from nightjar_alerts.service.http.edge.errors import raise_problem, reraise
from nightjar_alerts.service.http.edge.middleware import AuthMiddleware, RequestMiddleware
from nightjar_alerts.service.http.edge.protocol import service_config
from nightjar_alerts.service.http.edge.sites import SiteMiddleware
from nightjar_alerts.service.http.lifecycle import Service, State
from nightjar_alerts.service.http.oip import routes as oip
from nightjar_alerts.service.http.routes import alerts, classify, evolution, live, meta, page, tables
from nightjar_alerts.service.process import (
    SWITCH_SECONDS,
    VERSION,
    configure_log,
    pin_malloc_thresholds,
    warn_about_environment,
)
from nightjar_alerts.service.settings import Settings, is_loopback

if TYPE_CHECKING:
    from nightjar_alerts.service.grpc.server import GrpcServer

DESCRIPTION = """Nightjar classifies astronomical alerts: it takes multiband light curves or alert packets and returns
calibrated class probabilities and embeddings. Errors are `application/problem+json` documents (RFC 9457) whose `errors`
point at the invalid values. Responses have the headers `X-Request-ID`, `traceresponse` (W3C Trace Context) and, for
inference requests, `Server-Timing`. The request header `Nightjar-Deadline-Ms` sets a deadline."""

TAGS = {
    "Classification": "Classify light curves, alert packets as the surveys send them, and tables.",
    "Models": "List the served models with their classes, bands, limits and scores.",
    "Open Inference Protocol": "Use the models through clients of KServe, Triton or MLServer (protocol version 2).",
    "Operations": "Check the health of the service and collect its metrics.",
}


def create_app(service: Service) -> FastAPI:
    """Build the application; its lifespan starts and stops the service."""
    settings = service.settings
    app = FastAPI(
        title="Nightjar",
        version=VERSION,
        summary="Real-time classification of astronomical alerts",
        description=DESCRIPTION,
        openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        lifespan=_lifespan,
        generate_unique_id_function=lambda route: route.name,
        openapi_url=None,  # served with the pages, as bytes
        docs_url=None,
        redoc_url=None,
        exception_handlers={HTTPException: raise_problem, RequestValidationError: raise_problem, Exception: reraise},
    )
    app.state.service = service
    for router, tag in (
        (classify.router, "Classification"),
        (alerts.router, "Classification"),
        (tables.router, "Classification"),
        (evolution.router, "Classification"),
        (meta.models_router, "Models"),
        (oip.router, "Open Inference Protocol"),
        (meta.probes, "Operations"),
    ):
        app.include_router(router, tags=[tag])
    app.include_router(meta.problems)
    if settings.enable_docs:
        app.include_router(meta.pages)
        app.include_router(page.router)
    if settings.live_key:
        app.include_router(live.router)
    document = openapi.document(app, settings)
    app.openapi = lambda: document  # type: ignore[method-assign]  # FastAPI's documented way to replace it
    return app


def wrap_app(app: FastAPI, service: Service) -> ASGIApp:
    """Wrap the application in its middleware; the last is the outermost."""
    settings = service.settings
    wrapped: ASGIApp = AuthMiddleware(app, service.admission)
    if settings.cors_origins:
        wrapped = CORSMiddleware(
            wrapped,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "HEAD", "POST"),
            allow_headers=("*",),
            expose_headers=("*",),
        )
    if not settings.keys:
        wrapped = SiteMiddleware(wrapped, settings.allowed_hosts, settings.cors_origins)
    return RequestMiddleware(
        wrapped,
        metrics=service.metrics,
        root_path=settings.root_path,
        is_draining=lambda: service.state is State.DRAINING,
    )


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    service: Service = app.state.service
    await service.start()
    yield {}
    await service.stop()


log = structlog.get_logger(__name__)

YOUNG_OBJECTS = 10_000
"""Number of new objects that triggers the garbage collector. Requests create no reference cycles, and with Python's
default of 700 a large body would be scanned many times during decoding, with the GIL held."""


class Server(uvicorn.Server):
    """uvicorn server of one service; ``exit_status`` is set when :meth:`run` returns."""

    def __init__(self, service: Service) -> None:
        rejected = service.metrics.rejected.labels
        app = wrap_app(create_app(service), service)
        super().__init__(service_config(app, service.settings, "on", lambda slug: rejected(slug).inc()))
        self.service = service
        self.admin = AdminServer(service)
        self.grpc = None if service.settings.grpc_port is None else _grpc_server(service)
        self.exit_status = 0
        self._stopping = False
        service.on_failure = self.fail

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals on the event loop, as uvicorn would raise the signal again and not exit with 0."""
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
        """Listen on the addresses of the service and of the admin API."""
        try:
            await super().startup(sockets)
        except SystemExit:  # uvicorn cannot listen, and has logged the reason
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
            log.critical("cannot listen on the address of the admin API", reason=str(error))
            self.fail()
        if self.grpc is not None:
            try:
                await self.grpc.open()
            except OSError as error:
                log.critical("cannot listen for gRPC", port=self.service.settings.grpc_port, reason=str(error))
                self.fail()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the admin API, the gRPC server and the service."""
        if self.grpc is not None:
            self.service.ending = asyncio.create_task(self.grpc.close(lambda: self.force_exit))
        await self.admin.close()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop gracefully at the first signal; each further signal skips waiting."""
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
        """Stop with exit status 1."""
        self.exit_status = 1
        self.should_exit = True

    def _exit(self) -> None:
        self.should_exit = True


def _grpc_server(service: Service) -> "GrpcServer":
    """Return the gRPC server. Raises GrpcError without the extra ``grpc``."""
    # Its core would write to standard error, in a format of its own, about what clients send.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from nightjar_alerts.service.grpc.server import GrpcServer
    except ImportError as error:
        raise GrpcError(f"gRPC needs the grpc extra: {how_to_install('grpc')}") from error
    return GrpcServer(service)


def serve(settings: Settings) -> int:
    """Serve until stopped; return the exit status."""
    configure_log(settings)
    if not _may_listen(settings) or not _is_free(settings):
        return 1
    pin_malloc_thresholds()
    sys.setswitchinterval(SWITCH_SECONDS)
    warn_about_environment(settings)
    server = Server(Service(settings))
    gc.collect()
    gc.freeze()  # scanning the permanent objects of the startup would take tens of milliseconds
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
    server.run()
    if server.exit_status:
        _exit_at_once(server.exit_status)
    return 0


def _may_listen(settings: Settings) -> bool:
    """Return whether the service may listen: without API keys only on loopback, unless anonymous access is enabled."""
    if settings.keys or is_loopback(settings.host):
        return True
    if settings.allow_anonymous:
        log.warning("anonymous access is enabled: no API keys are set", host=settings.host)
        return True
    detail = "no API keys are set: set NIGHTJAR_API_KEYS, or NIGHTJAR_ALLOW_ANONYMOUS=true for anonymous access"
    log.critical("refusing to listen without API keys", host=settings.host, reason=detail)
    return False


def _is_free(settings: Settings) -> bool:
    """Return whether the ports are free, before models are loaded; other errors of the address are the server's."""
    for name, port in (("port", settings.port), ("grpc_port", settings.grpc_port or 0)):
        try:
            for family, kind, protocol, _, address in socket.getaddrinfo(
                settings.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                with socket.socket(family, kind, protocol) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return True
            setting = f"NIGHTJAR_{name.upper()} (--{name.replace('_', '-')})"
            detail = f"port {port} is taken by another process: set {setting} to a free one"
            log.critical("the port is taken", host=settings.host, port=port, reason=detail)
            return False
    return True


def _exit_at_once(status: int) -> NoReturn:
    """Exit without joining threads: a run may hang, and unloading onnxruntime during a run may crash."""
    logging.shutdown()
    os._exit(status)
