"""The server process: uvicorn, with an orderly end.

SIGTERM: not ready at once, still serving for ``drain_delay`` so that load balancers notice, then no new connections,
requests in progress are finished, exit 0. SIGINT skips the pause. A second signal skips whatever is being waited for.
A model that cannot be served, or an engine that cannot go on, ends the process with status 1.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import structlog
import uvicorn

from service.http.admin.server import AdminServer
from service.http.app import create_app
from service.http.edge.protocol import EdgeConfig
from service.http.lifecycle import Service
from service.memory import fix_thresholds
from service.observe import logs
from service.settings import Settings, is_loopback, unknown_settings

log = structlog.get_logger(__name__)

SWITCH_SECONDS = 5e-4
"""For how long a thread may keep the interpreter when another asks for it. A core has nothing to do while a run that
has ended waits for its worker's turn, and with the 5 ms that Python allows by default that is often the case."""


class Server(uvicorn.Server):
    """uvicorn's server for one service; ``exit_status`` is set when :meth:`run` returns."""

    def __init__(self, service: Service) -> None:
        refused = service.metrics.rejected.labels
        super().__init__(EdgeConfig(create_app(service), service.settings, lambda slug: refused(slug).inc()))
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
        """Begin to answer, here and where models are administered."""
        await super().startup(sockets)
        try:
            await self.admin.open()
        except OSError as error:
            log.critical("the admin interface cannot be served", reason=str(error))
            self.fail()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End both."""
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
    logs.configure(settings)
    if not _may_listen(settings):
        return 1
    fix_thresholds()
    sys.setswitchinterval(SWITCH_SECONDS)
    for name in unknown_settings(os.environ):
        log.warning("unknown setting", name=name)
    server = Server(Service(settings))
    gc.collect()
    gc.freeze()  # what is there now stays: looking through it again takes the interpreter for tens of milliseconds
    server.run()
    if server.exit_status:
        _leave(server.exit_status)
    return 0


def _may_listen(settings: Settings) -> bool:
    """Whether to answer on this address; without keys, everybody who reaches it may ask, which somebody must want."""
    if settings.keys or is_loopback(settings.host):
        return True
    if settings.allow_anonymous:
        log.warning("anybody who reaches this address may ask: no API keys are set", host=settings.host)
        return True
    detail = "no API keys are set: set NIGHTJAR_API_KEYS, or NIGHTJAR_ALLOW_ANONYMOUS=true where anybody may ask"
    log.critical("this address is not served", host=settings.host, reason=detail)
    return False


def _leave(status: int) -> NoReturn:
    """End the process at once: a run that hangs cannot be joined, and a runtime torn down under it may crash."""
    logging.shutdown()
    os._exit(status)
