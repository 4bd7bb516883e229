"""Pure ASGI middleware.

Starlette's ``BaseHTTPMiddleware`` would cost a quarter of the throughput and hide disconnects of clients.
:class:`RequestMiddleware` is the outermost layer: request id, trace, metrics, access log, ``HEAD``, ``OPTIONS``, and
the conversion of all exceptions to responses. :class:`AuthMiddleware` admits requests
(:mod:`service.http.edge.admission`).
"""

import asyncio
import re
from collections.abc import Callable
from random import getrandbits
from time import monotonic

import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nightjar_alerts.service.http.edge.admission import Admission, is_guarded
from nightjar_alerts.service.http.edge.body import ClientDisconnected
from nightjar_alerts.service.http.edge.errors import (
    INTERNAL,
    NOT_ALLOWED,
    ProblemError,
    problem_response,
    to_problem,
)
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.observe.tracing import Headers

CLIENT_CLOSED_REQUEST = 499  # nginx's code, in metrics and logs only
UNMATCHED = "unmatched"
_CLOSE = (b"connection", b"close")
_NO_SNIFFING = (
    b"x-content-type-options",
    b"nosniff",
)  # responses may repeat text of requests
_ACCEPTED_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")

log = structlog.get_logger(__name__)


class RequestMiddleware:
    """Identifies, counts, times and logs requests, and returns exceptions as problem documents.

    Parameters
    ----------
    root_path : path prefix under which a proxy serves the service, whether or not the proxy strips it.
    is_draining : whether the process is about to stop. Responses then ask for a new connection, so that a proxy does
        not send a request on a connection at the moment in which the process closes it.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, root_path: str = "", is_draining: Callable[[], bool] = lambda: False
    ) -> None:
        self.app, self.metrics, self.root_path, self.is_draining = app, metrics, root_path, is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; other ASGI events (lifespan) are passed on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method, state = scope["method"], scope.setdefault("state", {})
        if method == "HEAD":  # routes support GET only; uvicorn omits the body
            scope = {**scope, "method": "GET"}
        if self.root_path:
            scope["root_path"] = self.root_path
        started, status = monotonic(), 0
        request_id, path = choose_request_id(scope["headers"]), route_path(scope)
        trace = self.metrics.tracing.start_request(method, scope["headers"], started, record=is_guarded(path))
        named = [(b"x-request-id", request_id.encode()), (b"traceresponse", trace.response), _NO_SNIFFING]
        state["request_id"] = request_id

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *named, *([_CLOSE] if self.is_draining() else [])]
            await send(message)

        # Not unbound, as the task ends with the request.
        structlog.contextvars.bind_contextvars(request_id=request_id, trace_id=trace.trace_id)
        problem: ProblemError | None = None
        with trace.active():
            self.metrics.in_progress += 1
            try:
                await self.app(scope, receive, send_named)
            except ClientDisconnected:
                status = CLIENT_CLOSED_REQUEST
            except (Exception, asyncio.CancelledError) as error:
                problem = count_problem(error, self.metrics, is_guarded(path))
                if method == "OPTIONS" and problem.kind is NOT_ALLOWED:
                    await Response(status_code=204, headers={"Allow": problem.allow or ""})(scope, receive, send_named)
                    problem = None
                elif not status:  # else the response has started, and uvicorn closes the connection
                    reply = problem_response(problem, scope["path"], request_id, scope.get("root_path", ""))
                    await reply(scope, receive, send_named)
                status = status if problem is None else problem.kind.status
            finally:
                self.metrics.in_progress -= 1
            ended, route = monotonic(), getattr(scope.get("route"), "path", UNMATCHED)
            self.metrics.record_http_request(route, status, ended - started)
            client = scope["client"][0] if scope.get("client") else ""
            log_access(client, state.get("key"), method, route, status, ended - started, problem)
            trace.end(method, scope["path"], route, status, ended, request_id)


def count_problem(error: BaseException, metrics: Metrics, guarded: bool) -> ProblemError:
    """Return the problem of an exception, counted and, if it is unexpected, logged.

    Parameters
    ----------
    guarded : whether the request is counted; a probe of a service that is not ready is not.
    """
    problem = to_problem(error)
    if guarded:
        metrics.rejected.labels(problem.kind.slug).inc()
    if problem.kind is INTERNAL:
        log.error("unexpected exception", exc_info=error)
    problem.__traceback__ = problem.__cause__ = problem.__context__ = None  # their frames keep the body in memory
    return problem


def log_access(
    client: str, key: str | None, method: str, route: str, status: int, seconds: float, problem: ProblemError | None
) -> None:
    """Log a request with its error and client, without any text from its body.

    Parameters
    ----------
    key : name of the API key, "" if none is required; None for a request that was not admitted.
    """
    if status < 400:  # one line per alert would be too many
        log.debug("request", client=client, method=method, route=route, status=status, seconds=round(seconds, 6))
        return
    fields: dict[str, object] = {"client": client}
    if key is not None:
        fields["key"] = key
    if problem is not None:
        fields["reason"] = problem.kind.slug
        if problem.errors:
            first = problem.errors[0]
            unknown = first.reason == "unknown_field"  # the last part is text of the client
            fields["error"] = first.reason
            fields["pointer"] = first.pointer.rpartition("/")[0] if unknown else first.pointer
    write = log.info if status < 500 else log.warning
    write("request", method=method, route=route, status=status, seconds=round(seconds, 6), **fields)


def route_path(scope: Scope) -> str:
    """Return the path of a request without the prefix under which a proxy serves this service."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root and path.startswith(root + "/") else path


def choose_request_id(headers: Headers) -> str:
    """Return the request id of the client if it is valid, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _ACCEPTED_ID.fullmatch(value):
            return str(value, "ascii")
    return f"{getrandbits(128):032x}"


class AuthMiddleware:
    """Admits the requests of an application, as :class:`Admission` states."""

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self.app, self.admission = app, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = route_path(scope)
        if not is_guarded(path) or scope["method"] == "OPTIONS":
            self.admission.check_unguarded(path, scope["headers"])
            await self.app(scope, receive, send)
            return
        started = False

        async def send_noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        host = scope["client"][0] if scope.get("client") else ""
        async with self.admission.admitted(scope["headers"], host, scope.setdefault("state", {}), lambda: started):
            await self.app(scope, receive, send_noted)
