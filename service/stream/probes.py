"""HTTP server of a worker: ``/metrics``, ``/healthz``, ``/readyz`` and the live view.

It has its own thread and event loop, so that it responds while the worker loads its model and can report a hung event
loop. Connections have the limits of the service (:mod:`service.http.edge.protocol`). A part of them is kept for clients
on this machine, so that a flood from others does not keep their probes out, and no client gets more than a share.
"""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final
from uuid import uuid4

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from nightjar_alerts.service.http.edge.errors import (
    NOT_ALLOWED,
    ProblemError,
    problem_response,
    raise_problem,
    reraise,
)
from nightjar_alerts.service.http.edge.protocol import ConnectionLimits, ServerConfig
from nightjar_alerts.service.http.edge.sites import SiteMiddleware
from nightjar_alerts.service.http.routes import page
from nightjar_alerts.service.http.routes.live import stream_events
from nightjar_alerts.service.observe.live import LiveFeed
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.messages import SourceStatus

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LIMITS: Final = ConnectionLimits(
    max_connections=256,  # a quarter of the file descriptors that a process often has
    header_timeout=10,
    stall_timeout=10,
    keep_alive=5,
    kept_for_loopback=64,
    max_per_client=64,
)
STOP_SECONDS: Final = 2
"""Seconds for requests in progress when the worker ends."""


class ProgressMonitor:
    """Progress monitor: times of the last consumed and finished messages, and the status of the source.

    A worker is not ready while it cannot consume, or consumes nothing although messages are pending. It is unhealthy,
    so that a supervisor restarts it, if there is no progress for minutes although messages are pending, without an
    external error: a restart does not repair a broker, sink, registry or disk. It is also unhealthy if it is not a
    member of its group although the brokers respond; no messages are pending then, since it has no partitions.

    Parameters
    ----------
    unready_after : seconds without a consumed message, while messages are pending, after which it is not ready.
    unhealthy_after : seconds without progress after which it is unhealthy.
    external_error : returns the current external errors; empty if there are none.
    """

    def __init__(
        self,
        metrics: Metrics,
        unready_after: float,
        unhealthy_after: float,
        external_error: Callable[[], str],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._metrics = metrics
        self._unready_after = unready_after
        self._unhealthy_after = unhealthy_after
        self._external_error = external_error
        self._clock = clock
        self._consumed_at = self._moved_at = self._error_at = self._member_at = clock()
        self._lagging: set[tuple[str, str]] = set()  # labels of the metric of lag
        self.status = SourceStatus()

    def record_consumed(self) -> None:
        """Record that messages were consumed."""
        self._consumed_at = self._moved_at = self._clock()

    def record_finished(self) -> None:
        """Record that a batch has ended."""
        self._moved_at = self._clock()

    def observe(self, status: SourceStatus, in_flight: int) -> None:
        """Record the status of the source and set the metrics; called every few seconds.

        Parameters
        ----------
        in_flight : number of messages consumed but not finished.
        """
        self.status, now = status, self._clock()
        if status.waiting <= 0:
            self._consumed_at = now
            if not in_flight:
                self._moved_at = now
        if self._external_error() or status.error or status.assigned == 0:
            self._error_at = now
        if self._external_error() or status.error or status.member:
            self._member_at = now
        metrics = self._metrics
        for labels, lag in status.lag.items():
            metrics.stream_lag.labels(*labels).set(lag)
        for labels in self._lagging - status.lag.keys():
            metrics.stream_lag.remove(*labels)
        self._lagging = set(status.lag)
        metrics.stream_assigned.set(status.assigned or 0)
        metrics.stream_untaken.set(now - self._consumed_at)
        metrics.stream_not_ready.set(bool(self._external_error() or self.unready()))

    def unready(self) -> str:
        """Return why nothing is consumed; empty while messages are consumed or none are pending."""
        if self.status.error:
            return f"source: {self.status.error}"
        since = self._clock() - self._consumed_at
        if self.status.waiting > 0 and since > self._unready_after:
            return f"source: nothing consumed for {since:.0f} s although {self.status.waiting} messages wait"
        return self._membership_error(self._unready_after)

    def unhealthy(self) -> str:
        """Return an error that requires a restart; empty if there is none."""
        now = self._clock()
        if self._external_error() or self.status.error:
            return ""
        since = now - max(self._moved_at, self._error_at)
        if since > self._unhealthy_after:
            return f"nothing has moved for {since:.0f} s although messages wait"
        return self._membership_error(self._unhealthy_after)

    def _membership_error(self, longest: float) -> str:
        since = self._clock() - self._member_at
        if self.status.member or since <= longest:
            return ""
        return f"source: not a member of its group for {since:.0f} s although the brokers answer"


@dataclass(frozen=True, slots=True)
class LiveView:
    """Live view of a worker: its feed of results, and the SHA-256 of the key that grants access."""

    feed: LiveFeed
    key: str


class Probes:
    """HTTP server of a worker's probes and metrics, for GET, HEAD and OPTIONS. Raises OSError if it cannot listen.

    Parameters
    ----------
    unhealthy, unready : return the reason why the worker is unhealthy or not ready; empty if it is healthy or ready.
    live : live view served at ``/live/events``; None to disable it.
    allowed_hosts : further host names; see :class:`service.http.edge.sites.SiteMiddleware`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        metrics: Metrics,
        unhealthy: Callable[[], str],
        unready: Callable[[], str],
        live: LiveView | None = None,
        allowed_hosts: str = "",
    ) -> None:
        self._closing = threading.Event()
        app = SiteMiddleware(self._app(metrics, unhealthy, unready, live), allowed_hosts)
        config = ServerConfig(
            _with_problems(app), LIMITS, lifespan="off", proxy_headers=False, timeout_graceful_shutdown=STOP_SECONDS
        )
        self._server = uvicorn.Server(config)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # so that :: includes IPv4
        self._listening = socket.create_server((host, port), family=family, dualstack_ipv6=dual)
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._server.run, args=([self._listening],), name="probes", daemon=True)
        self._thread.start()

    def _app(
        self, metrics: Metrics, unhealthy: Callable[[], str], unready: Callable[[], str], live: LiveView | None
    ) -> Starlette:
        async def render_metrics(request: Request) -> Response:
            return Response(metrics.render(), media_type=METRICS_TYPE)

        async def healthz(request: Request) -> Response:
            return _status(unhealthy())

        async def readyz(request: Request) -> Response:
            return _status(unready())

        routes = [Route("/metrics", render_metrics), Route("/healthz", healthz), Route("/readyz", readyz)]
        if live is not None:

            async def events(request: Request) -> Response:
                return stream_events(request, live.feed, live.key, self._closing.is_set)

            pages = [Route("/", page.live), Route("/live", page.live), Route("/page/{name:path}", page.file)]
            routes += [Route("/live/events", events), *pages]
        return Starlette(routes=routes, exception_handlers={HTTPException: raise_problem, Exception: reraise})

    def close(self) -> None:
        """Stop listening, and end the requests in progress."""
        self._closing.set()
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()  # which uvicorn leaves open if it stops before it has started


def _status(error: str) -> Response:
    return PlainTextResponse(f"{error or 'ok'}\n", 503 if error else 200)


def _with_problems(app: ASGIApp) -> ASGIApp:
    """Return an application that responds with the problems that ``app`` raises, and to OPTIONS."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except ProblemError as error:
            if scope["method"] == "OPTIONS" and error.kind is NOT_ALLOWED:
                response = Response(status_code=204, headers={"Allow": error.allow or ""})
            else:
                response = problem_response(error, scope["path"], uuid4().hex)
            await response(scope, receive, send)

    return respond
