"""Middleware around every request, in pure ASGI.

Starlette's ``BaseHTTPMiddleware`` would cost a quarter of the throughput and hide that a client has left.
:class:`Edge` is the outermost layer: request id, trace, metrics, log, and where alone exceptions become replies.
:class:`Gate` guards ``/v1`` and the models of ``/v2``, but for probes: API key, then a bound on requests in progress.

Innermost is a way around the framework: finding a route and reading parameters takes FastAPI a third of the time that a
request of one light curve needs. An address that is known exactly and has no parameters needs neither. All else, wrong
methods included, goes on to the routes, which describe the same endpoints to clients and readers.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import nullcontext
from random import getrandbits
from time import monotonic
from typing import NamedTuple

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nightjar_alerts.service.engine.queue import wait
from nightjar_alerts.service.http.edge.errors import INTERNAL, OVERLOADED, ProblemError, problem_of, problem_response
from nightjar_alerts.service.http.edge.keys import ANYBODY, KeyRing, Quotas
from nightjar_alerts.service.http.edge.protocol import ARRIVED
from nightjar_alerts.service.http.edge.receive import RETRY_AFTER_FULL, ClientGone
from nightjar_alerts.service.http.edge.turns import neighbourhood
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.observe.tracing import RANDOM, Answered, Tracer

CLIENT_CLOSED_REQUEST = 499  # nginx's code; it appears in metrics only, there is nobody left to read it
UNMATCHED = "unmatched"
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")  # replies repeat text of requests: never as a page
_GUARDED = re.compile(r"/v1/|/v2/models/(?!.+/ready$)")
_GUARDED_AS_WELL = {
    "metrics": r"/metrics$",
    "docs": r"/$|/docs$|/openapi\.json$|/problems/",
    "v2": r"/v2(?:/|$)",
}
_ACCEPTED_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")

log = structlog.get_logger(__name__)


class Edge:
    """Names, counts, times and logs a request, and turns whatever escapes the application into a problem document."""

    def __init__(self, app: ASGIApp, metrics: Metrics, tracer: Tracer | None = None) -> None:
        self.app, self.metrics, self.tracer = app, metrics, tracer or Tracer()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; anything else (the lifespan) passes through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        started, status = state.get(ARRIVED) or monotonic(), 0
        request_id, trace = _request_id(scope), None
        if self.tracer.exports or any(name == b"traceparent" for name, _ in scope["headers"]):
            trace = self.tracer.context(scope["headers"])
        trace_id, response = _new_trace() if trace is None else (trace.trace_id, trace.response)
        named = [(b"x-request-id", request_id.encode()), (b"traceresponse", response), _NO_SNIFFING]
        state["request_id"] = request_id

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *named]
            await send(message)

        # Not unbound afterwards: the task of a request ends with it.
        structlog.contextvars.bind_contextvars(request_id=request_id, trace_id=trace_id)
        with nullcontext() if trace is None else self.tracer.recording(trace, is_guarded(scope["path"])) as recorded:
            self.metrics.in_progress += 1
            try:
                await self.app(scope, receive, send_named)
            except ClientGone:
                status = CLIENT_CLOSED_REQUEST
            except (Exception, asyncio.CancelledError) as error:
                problem = self._problem(error, scope["path"])
                if not status:  # else part of a reply is out already; uvicorn closes the connection
                    await problem_response(problem, scope["path"], request_id)(scope, receive, send_named)
                status = problem.kind.status
                del problem  # in the frames of whose traceback it would keep itself, and the body, for a while
            finally:
                self.metrics.in_progress -= 1
            ended, route = monotonic(), getattr(scope.get("route"), "path", UNMATCHED)
            self._record(scope, route, status, ended - started)
            if recorded is not None:
                answered = Answered(scope["method"], scope["path"], route, status, request_id, started, ended)
                self.tracer.request(recorded, answered)

    def _problem(self, error: BaseException, path: str) -> ProblemError:
        problem = problem_of(error)
        if is_guarded(path):  # a probe that asks whether we are ready is not turned away
            self.metrics.rejected.labels(problem.kind.slug).inc()
        if problem.kind is INTERNAL:
            log.error("unexpected exception", exc_info=error)
        return problem

    def _record(self, scope: Scope, route: str, status: int, seconds: float) -> None:
        self.metrics.request(route, status, seconds)
        # A line for every alert of a stream would be a flood, so an answered request is logged for debugging only.
        tell = log.debug if status < 400 else log.info if status < 500 else log.warning
        client = (scope.get("client") or ("",))[0]
        tell("request", client=client, method=scope["method"], route=route, status=status, seconds=round(seconds, 6))


def is_guarded(path: str) -> bool:
    """Return True for a path where work is done: it needs a key, where keys are asked for, and room."""
    return _GUARDED.match(path) is not None


def _request_id(scope: Scope) -> str:
    """Return the client's own id where it is harmless to repeat, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _ACCEPTED_ID.fullmatch(value):
            return str(value, "ascii")
    return f"{getrandbits(128):032x}"


def _new_trace() -> tuple[str, bytes]:
    """Return the id of a trace that begins here and of which nothing is recorded, and what the reply says of it."""
    trace_id = f"{getrandbits(128) or 1:032x}"
    return trace_id, f"00-{trace_id}-{getrandbits(64) or 1:016x}-{RANDOM:02x}".encode()


class Places:
    """A number of places, shared fairly: whoever has few is let in while others have many.

    Parameters
    ----------
    limit : number of places; those of other clients count only up to one's own number, as in a fair queue.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken: Counter[str] = Counter()

    def take(self, share: str) -> None:
        """Take a place. Raises ProblemError (429) when there is none."""
        others = [count for name, count in self._taken.items() if name != share]
        if wait(self._taken[share] + 1, others, rate=1.0) > self.limit:
            if not self._taken[share]:
                del self._taken[share]
            detail = f"{self.limit} requests are in progress"
            raise ProblemError(OVERLOADED, detail, limit=self.limit, retry_after=RETRY_AFTER_FULL)
        self._taken[share] += 1

    def give_back(self, share: str) -> None:
        """Give a place back."""
        self._taken[share] -= 1
        if not self._taken[share]:
            del self._taken[share]


class Gate:
    """Lets a guarded request in when it shows a known key, the key has not reached a limit, and there is room.

    Parameters
    ----------
    quotas : None where no key has limits.
    also : what needs a key besides ``/v1`` and the models of ``/v2``, as in :attr:`Settings.protected_paths`.
    metrics : count the requests of each key.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyRing,
        max_requests: int,
        quotas: Quotas | None = None,
        also: Collection[str] = (),
        metrics: Metrics | None = None,
    ) -> None:
        self.app, self.keys, self.quotas, self.metrics = app, keys, quotas, metrics
        self._keyed = bool(keys)
        self.places = Places(max_requests)
        self._also = re.compile("|".join(_GUARDED_AS_WELL[name] for name in also) or r"(?!)")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or not is_guarded(scope["path"]):
            if self._keyed and scope["type"] == "http" and self._also.match(scope["path"]):
                self.keys.holder(scope)
            await self.app(scope, receive, send)
            return
        key = self.keys.holder(scope) if self._keyed else ANYBODY
        client = key if self._keyed else ""
        share = client or neighbourhood(scope.get("client"))
        if self.metrics is not None:
            self.metrics.requests_of_key[key,].inc()
        if self.quotas is not None:
            await self.quotas.admit(key)
        self.places.take(share)
        scope.setdefault("state", {}).update(client=client, key=key, share=share)
        try:
            await self.app(scope, receive, send)
        finally:
            self.places.give_back(share)


class Shortcut(NamedTuple):
    """An endpoint as it answers without parameters; stands for its route, by whose ``path`` requests are counted."""

    path: str
    endpoint: Callable[[Request], Awaitable[Response]]


class PlainRequest(Request):
    """A request whose headers are looked up by their names in lower case, of several of a name the first.

    Looking one up in Starlette's own takes longer than to make this of all of them.
    """

    @property
    def headers(self) -> Mapping[str, str]:  # type: ignore[override]  # a mapping is all that shortcuts ask for
        """Return the headers."""
        if self._plain is None:
            self._plain = {str(name, "latin-1"): str(value, "latin-1") for name, value in self.scope["headers"][::-1]}
        return self._plain

    _plain: dict[str, str] | None = None


class Direct:
    """Takes the shortcuts: methods and paths that lead to one. As the innermost middleware, around the framework.

    Parameters
    ----------
    app : takes everything else, and is the application of every request.
    """

    def __init__(self, app: ASGIApp, shortcuts: Mapping[tuple[str, str], Shortcut]) -> None:
        self.app, self.shortcuts = app, shortcuts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        shortcut = None
        if scope["type"] == "http" and not scope["query_string"]:
            shortcut = self.shortcuts.get((scope["method"], scope["path"]))
        if shortcut is None:
            await self.app(scope, receive, send)
            return
        scope["route"], scope["app"] = shortcut, self.app
        response = await shortcut.endpoint(PlainRequest(scope, receive, send))
        await response(scope, receive, send)
