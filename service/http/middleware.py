"""What happens around every request, as pure ASGI middleware.

Starlette's ``BaseHTTPMiddleware`` would cost a quarter of the throughput and hide that a client has left.
:class:`Edge` is the outermost layer: request id, trace, metrics, log, and where alone exceptions become replies.
:class:`Gate` guards ``/v1`` and the models of ``/v2``, but for probes: API key, then a bound on requests in progress.
"""

import asyncio
import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Collection
from time import monotonic
from uuid import uuid4

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.errors import INTERNAL, OVERLOADED, UNAUTHORIZED, ProblemError, problem_of, problem_response
from service.http.receive import ClientGone
from service.inference.admission import wait
from service.metrics import Metrics
from service.tracing.tracer import Answered, Tracer

CLIENT_CLOSED_REQUEST = 499  # nginx's code; it appears in metrics only, there is nobody left to read it
RETRY_AFTER_FULL = 1
CLIENT_CHARACTERS = 16  # of its key's digest, for the queue and the log
UNMATCHED = "unmatched"
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")  # replies repeat text of requests: never as a page
_GUARDED = re.compile(r"/v1/|/v2/models/(?!.+/ready$)")
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
        started, status = monotonic(), 0
        request_id, trace = _request_id(scope), self.tracer.context(scope["headers"])
        named = [(b"x-request-id", request_id.encode()), (b"traceresponse", trace.response), _NO_SNIFFING]
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *named]
            await send(message)

        with (
            structlog.contextvars.bound_contextvars(request_id=request_id, trace_id=trace.trace_id),
            self.tracer.recording(trace, is_guarded(scope["path"])) as recorded,
            self.metrics.inflight.track_inprogress(),
        ):
            try:
                await self.app(scope, receive, send_named)
            except ClientGone:
                status = CLIENT_CLOSED_REQUEST
            except (Exception, asyncio.CancelledError) as error:
                problem = self._problem(error, scope["path"])
                if not status:  # else part of a reply is out already; uvicorn closes the connection
                    await problem_response(problem, scope["path"], request_id)(scope, receive, send_named)
                status = problem.kind.status
            ended, route = monotonic(), getattr(scope.get("route"), "path", UNMATCHED)
            self._record(scope["method"], route, status, ended - started)
            answered = Answered(scope["method"], scope["path"], route, status, request_id, started, ended)
            self.tracer.request(recorded, answered)

    def _problem(self, error: BaseException, path: str) -> ProblemError:
        problem = problem_of(error)
        if is_guarded(path):  # a probe that asks whether we are ready is not turned away
            self.metrics.rejected.labels(problem.kind.slug).inc()
        if problem.kind is INTERNAL:
            log.error("unexpected exception", exc_info=error)
        return problem

    def _record(self, method: str, route: str, status: int, seconds: float) -> None:
        self.metrics.request(route, status, seconds)
        # A line for every alert of a stream would be a flood, so an answered request is logged for debugging only.
        tell = log.debug if status < 400 else log.info if status < 500 else log.warning
        tell("request", method=method, route=route, status=status, seconds=round(seconds, 6))


def is_guarded(path: str) -> bool:
    """Whether a path is one where work is done: it needs a key, where keys are asked for, and room."""
    return _GUARDED.match(path) is not None


def _request_id(scope: Scope) -> str:
    """The client's own id where it is harmless to repeat, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _ACCEPTED_ID.fullmatch(value):
            return str(value, "ascii")
    return uuid4().hex


class Gate:
    """Lets a guarded request in when it shows a known key and there is room for it."""

    def __init__(self, app: ASGIApp, keys: Collection[str], max_requests: int) -> None:
        self.app = app
        self.keys = tuple(bytes.fromhex(key) for key in keys)
        self.max_requests = max_requests
        self.in_progress: Counter[str] = Counter()  # by client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or not is_guarded(scope["path"]):
            await self.app(scope, receive, send)
            return
        client = self._client(scope)
        if self._is_full(client):
            detail = f"{self.max_requests} requests are in progress"
            raise ProblemError(OVERLOADED, detail, limit=self.max_requests, retry_after=RETRY_AFTER_FULL)
        scope.setdefault("state", {})["client"] = client
        self.in_progress[client] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.in_progress[client] -= 1
            if not self.in_progress[client]:
                del self.in_progress[client]

    def _client(self, scope: Scope) -> str:
        """Who asks: the start of its key's digest, nobody in particular where no keys are asked for.

        Every key is compared, each in constant time, so that timing tells nothing about any of them. Raises
        ProblemError (401) for one that is not known.
        """
        if not self.keys:
            return ""
        digest = hashlib.sha256(_presented_key(scope)).digest()
        if not sum(hmac.compare_digest(digest, known) for known in self.keys):
            raise ProblemError(UNAUTHORIZED)
        return digest.hex()[:CLIENT_CHARACTERS]

    def _is_full(self, client: str) -> bool:
        """Whether there is no room for one more request, counted as in a fair queue: others count up to one's own."""
        others = [count for name, count in self.in_progress.items() if name != client]
        return wait(self.in_progress[client] + 1, others, rate=1.0) > self.max_requests


def _presented_key(scope: Scope) -> bytes:
    headers: dict[bytes, bytes] = dict(scope["headers"])
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
