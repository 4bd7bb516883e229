"""Calls of methods: received, admitted, answered and recorded as requests over HTTP.

All methods take and return one message, but are registered as streams. The wire is the same, and a handler then
decides when the message is received, after admission, and waits until its response was taken.

A message has no length that is known before it was received, so its bytes cannot be counted as they arrive.
:class:`Receiving` therefore bounds the number of messages that are received at once, so that they fit into
``max_held_bytes`` at their maximum size; HTTP/2 holds back all but 16 kB of a message that waits. Once received, a
message is charged to the memory budget of all requests, before it is decoded; so is a response until it was taken.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from math import inf
from time import monotonic
from typing import Any, Final

import grpc
import structlog
from starlette.types import Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from nightjar_alerts.service.engine.errors import DeadlineExceeded
from nightjar_alerts.service.grpc.codes import CODES, error_message, error_metadata
from nightjar_alerts.service.http.edge.admission import RequestState, is_guarded
from nightjar_alerts.service.http.edge.budget import ConcurrencyLimiter
from nightjar_alerts.service.http.edge.errors import DEADLINE, MALFORMED, TIMEOUT, TOO_LARGE, ProblemError
from nightjar_alerts.service.http.edge.middleware import (
    CLIENT_CLOSED_REQUEST,
    choose_request_id,
    count_problem,
    log_access,
)
from nightjar_alerts.service.http.lifecycle import Service

Metadata = list[tuple[str, str]]

END_SECONDS: Final = 0.1
"""Time in which gRPC cancels the task of a call that has failed, of which no message is read, as of one that ended."""


class Receiving:
    """Places for messages that are being received, shared fairly between clients, who wait for them."""

    def __init__(self, places: int) -> None:
        self._limiter = ConcurrencyLimiter(places)
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[None]:
        """Wait for a place and hold it."""
        while not self._acquire(client):
            await self._freed.wait()
        try:
            yield
        finally:
            self._limiter.release(client)
            self._freed.set()  # wakes all who wait: the limiter decides whose turn it is
            self._freed = asyncio.Event()

    def _acquire(self, client: str) -> bool:
        with suppress(ProblemError):
            self._limiter.acquire(client)
            return True
        return False


class Call:
    """One call.

    Parameters
    ----------
    host : address of the client.
    deadline : ``time.monotonic()`` seconds at which the client stops waiting; infinite without.

    Attributes
    ----------
    has_deadline : whether the client gave a deadline; ``deadline`` is at most ``max_deadline_ms`` away.
    """

    def __init__(
        self,
        context: "grpc.aio.ServicerContext[bytes, bytes]",
        headers: list[tuple[bytes, bytes]],
        host: str,
        deadline: float,
        service: Service,
        receiving: Receiving,
    ) -> None:
        self.context, self.headers, self.host, self.service = context, headers, host, service
        self.has_deadline = deadline < inf
        self.deadline = min(deadline, monotonic() + service.settings.max_deadline_ms / 1000)
        self.state: RequestState = {"request_id": choose_request_id(headers)}
        self.metadata: Metadata = []
        self._receiving = receiving

    @property
    def client_id(self) -> str:
        """Name of the API key or, without required keys, address of the client."""
        return str(self.state.get("client_id") or self.host)

    @property
    def routing_key(self) -> str:
        """Routing key for canaries: the API key, else the request id."""
        return str(self.state.get("key") or self.state["request_id"])

    async def receive(self, limit: int) -> bytes:
        """Receive the message, as :meth:`receive_next`; raises ProblemError (400) without one."""
        message = await self.receive_next(limit)
        if message is None:
            raise ProblemError(MALFORMED, "the call has no message")
        return message

    async def receive_next(self, limit: int) -> bytes | None:
        """Receive the next message; None at the end.

        Raises
        ------
        ProblemError
            408 if it does not arrive in time, 413 if it is longer than ``limit``.
        DeadlineExceeded
            If the deadline passes before.
        """
        timeout = self.service.settings.body_timeout
        try:
            async with asyncio.timeout(self.deadline - monotonic()), self._receiving.place(self.client_id):
                try:
                    async with asyncio.timeout(timeout):
                        with _ended_by_grpc():
                            message = await self.context.read()
                except TimeoutError:
                    raise ProblemError(TIMEOUT, f"the message did not arrive within {timeout:g} s") from None
        except TimeoutError:
            raise DeadlineExceeded from None
        if message is grpc.aio.EOF:
            await asyncio.sleep(END_SECONDS)
            return None
        if len(message) > limit:
            raise ProblemError(TOO_LARGE, f"the message is longer than {limit} bytes", limit=limit)
        return bytes(message)

    async def reply(self, response: bytes) -> None:
        """Send the response, and wait until it was taken."""
        with _ended_by_grpc():
            self.context.set_trailing_metadata(tuple(self.metadata))
            await self.context.write(response)


@contextmanager
def _ended_by_grpc() -> Iterator[None]:
    """Convert the errors of operations on a call that gRPC has ended, as its client left, to a cancellation."""
    try:
        yield
    except (grpc.aio.InternalError, grpc.aio.UsageError):
        raise asyncio.CancelledError from None


class Calls:
    """Makes handlers of methods, and runs their calls.

    Parameters
    ----------
    service : service that answers the calls.

    Attributes
    ----------
    in_progress : number of calls that are being answered.
    """

    def __init__(self, service: Service) -> None:
        settings = service.settings
        self.in_progress = 0
        self._service = service
        self._receiving = Receiving(max(2, settings.max_held_bytes // settings.grpc_max_message_bytes))
        self._unguarded = ConcurrencyLimiter(settings.max_streams)
        self._proxied = ProxyHeadersMiddleware(
            _ignore,  # type: ignore[arg-type]  # Starlette declares the types of ASGI in another way than uvicorn
            settings.forwarded_allow_ips,
        )

    def handler(
        self, method: str, path: str, run: Callable[[Call], Awaitable[None]]
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Return the handler of a method.

        Parameters
        ----------
        method : path of the method, as ``/package.Service/Method``.
        path : path over HTTP that has the same admission.
        run : receives the message and replies; may raise what a route may raise.
        """

        async def handle(_: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
            self.in_progress += 1
            try:
                await self._run(method, path, run, context)
            finally:
                self.in_progress -= 1

        return grpc.stream_stream_rpc_method_handler(handle)

    async def _run(
        self,
        method: str,
        path: str,
        run: Callable[[Call], Awaitable[None]],
        context: "grpc.aio.ServicerContext[bytes, bytes]",
    ) -> None:
        started, metrics, guarded = monotonic(), self._service.metrics, is_guarded(path)
        remaining = context.time_remaining()
        headers = _to_headers(context.invocation_metadata())
        host = await self._find_client(context.peer(), headers)
        call = Call(
            context, headers, host, inf if remaining is None else started + remaining, self._service, self._receiving
        )
        request_id: str = call.state["request_id"]
        trace = metrics.tracing.start_request(method, headers, started, record=guarded)
        call.metadata += [("x-request-id", request_id), ("traceresponse", trace.response.decode())]
        structlog.contextvars.bind_contextvars(request_id=request_id, trace_id=trace.trace_id)
        problem: ProblemError | None = None
        code, status = grpc.StatusCode.OK, 200
        with trace.active():
            metrics.in_progress += 1
            try:
                async with self._admitted(call, path, guarded):
                    await run(call)
            except asyncio.CancelledError:  # the client left or its deadline passed, or the service stops
                code, status = grpc.StatusCode.CANCELLED, CLIENT_CLOSED_REQUEST
                if monotonic() >= call.deadline:
                    code, status = grpc.StatusCode.DEADLINE_EXCEEDED, DEADLINE.status
                raise
            except Exception as error:
                problem = count_problem(error, metrics, guarded)
                code, status = grpc.StatusCode[CODES[problem.kind]], problem.kind.status
            finally:
                metrics.in_progress -= 1
                ended = monotonic()
                metrics.record_http_request(method, status, ended - started)
                log_access(host, call.state.get("key"), "gRPC", method, status, ended - started, problem)
                trace.end_call(method, code.value[0], status, ended, request_id)
        if problem is not None:
            with _ended_by_grpc():
                await context.abort(code, error_message(problem), (*call.metadata, *error_metadata(problem)))

    @asynccontextmanager
    async def _admitted(self, call: Call, path: str, guarded: bool) -> AsyncIterator[None]:
        """Admit a call as the request for a path over HTTP; others than guarded ones have a limit of their own."""
        admission = self._service.admission
        if guarded:
            async with admission.admitted(call.headers, call.host, call.state):
                yield
            return
        admission.check_unguarded(path, call.headers)
        self._unguarded.acquire(call.host)
        try:
            yield
        finally:
            self._unguarded.release(call.host)

    async def _find_client(self, peer: str, headers: list[tuple[bytes, bytes]]) -> str:
        """Return the address of the client, which a trusted proxy states in ``X-Forwarded-For``, as for HTTP."""
        scope: dict[str, Any] = {"type": "http", "scheme": "http", "client": (_peer_host(peer), 0), "headers": headers}
        await self._proxied(scope, _receive_nothing, _send_nothing)  # type: ignore[arg-type]  # has what it reads
        host: str = scope["client"][0]
        return host


_UNIX: Final = "unix"


def _peer_host(peer: str) -> str:
    """Return the address in gRPC's name of a peer, such as ``ipv4:192.0.2.1:5000`` or ``ipv6:%5B::1%5D:5000``."""
    kind, _, address = peer.partition(":")
    if kind == _UNIX:
        return _UNIX
    return address.rpartition(":")[0].removeprefix("%5B").removesuffix("%5D").strip("[]")


def _to_headers(metadata: Iterable[tuple[str, str | bytes]] | None) -> list[tuple[bytes, bytes]]:
    """Return metadata as headers of ASGI."""
    return [
        (name.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for name, value in metadata or ()
    ]


async def _ignore(scope: Scope, receive: Receive, send: Send) -> None:
    pass


async def _receive_nothing() -> Message:
    return {"type": "http.disconnect"}


async def _send_nothing(message: Message) -> None:
    pass
