"""The admin interface's own server, beside that of the service and on the same event loop."""

import asyncio
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from service.http.admin import routes
from service.http.admin.routes import AdminGate
from service.http.edge.errors import to_the_edge
from service.http.edge.keys import KeyRing
from service.http.edge.middleware import Edge
from service.http.edge.protocol import EdgeConfig
from service.http.lifecycle import Service
from service.http.routes import about
from service.process import VERSION


def create_admin_app(service: Service) -> FastAPI:
    """Build the application around a service that somebody else starts and stops."""
    app = FastAPI(
        title="Nightjar's administration",
        version=VERSION,
        redirect_slashes=False,
        openapi_url=None,
        exception_handlers={HTTPException: to_the_edge, RequestValidationError: to_the_edge},
    )
    app.state.service = service
    app.add_middleware(AdminGate, keys=KeyRing({"admin": service.settings.admin_keys}), max_requests=1)
    app.add_middleware(Edge, metrics=service.metrics, tracer=service.tracer)
    for router in (routes.router, routes.triton_router, about.problems):
        app.include_router(router)
    return app


class AdminServer(uvicorn.Server):
    """uvicorn's server for the admin interface; does nothing where the settings name no place for it."""

    def __init__(self, service: Service) -> None:
        config = EdgeConfig(create_admin_app(service), service.settings)
        config.lifespan = "off"  # the service's own server starts and stops it
        super().__init__(config)
        self._settings = service.settings
        self._serving: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the service's own server."""
        yield

    async def open(self) -> None:
        """Begin to answer. Raises OSError when the address cannot be had."""
        sockets = _sockets(self._settings.admin_host, self._settings.admin_port, self._settings.admin_socket)
        if sockets:
            self._serving = asyncio.create_task(self.serve(sockets))
            while not self.started and not self._serving.done():
                await asyncio.sleep(0.005)

    async def shut(self) -> None:
        """Finish what is being answered, and leave the address."""
        if self._serving is not None:
            self.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)
        if self._settings.admin_socket is not None:
            self._settings.admin_socket.unlink(missing_ok=True)


def _sockets(host: str, port: int | None, path: Path | None) -> list[socket.socket]:
    sockets = []
    if port is not None:
        sockets.append(socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET))
    if path is not None:
        sockets.append(_bound_path(path))
    return sockets


def _bound_path(path: Path) -> socket.socket:
    """Bind a Unix socket for this user alone, in place of one that a killed process left behind."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.bind(str(path))
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    except OSError:
        opened.close()
        raise
    return opened
