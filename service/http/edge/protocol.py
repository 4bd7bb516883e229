"""HTTP/1.1 connections: uvicorn's h11 protocol with limits of time and size, and problem documents.

h11 handles one request of a connection at a time: pipelined requests wait unparsed. It also keeps the body of a request
with an ``Upgrade`` header. The subclass adds limits:

- headers arrive within ``header_timeout``, in at most :data:`MAX_HEADERS` lines and :data:`MAX_HEADER_BYTES` bytes;
- during a request, at most :data:`MAX_SURPLUS_BYTES` of further requests are received;
- a client that still sends a body after the response has :data:`DRAIN_SECONDS` to read the response;
- the connection of a client that does not read its response is closed after ``stall_timeout``;
- ``max_connections`` bounds the number of connections, and for some servers that of one client's;
- data with many short lines or chunks are parsed in small steps, between which other connections are served;
- pipelined requests start one at a time in turn, so that they do not delay other connections.

Only public attributes of :class:`uvicorn.protocols.http.h11_impl.H11Protocol` and of its objects are used. They are not
documented, so ``pyproject.toml`` bounds the version of uvicorn, and a test names each one that another version lacks.
"""

import asyncio
import logging
import sys
from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Network
from typing import Any
from uuid import uuid4

import h11
import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from nightjar_alerts.service.http.edge.errors import (
    HEADERS_TOO_LARGE,
    MALFORMED,
    NOT_IMPLEMENTED,
    RETRY_AFTER_UNAVAILABLE,
    TIMEOUT,
    UNAVAILABLE,
    ProblemError,
    problem_response,
)
from nightjar_alerts.service.settings import Settings, parse_address

log = structlog.get_logger(__name__)

MAX_HEADER_BYTES = 32 * 1024
MAX_HEADERS = 100
MAX_LINES = 512
"""Number of line ends in received data beyond which the data are parsed in steps."""
STEP_BYTES = 4096
POLL_SECONDS = 0.005
DRAIN_SECONDS = 2.0
REJECT_SECONDS = 1.0
MAX_SURPLUS_BYTES = 512 * 1024
"""Maximum size of further requests during a request, and of data after a rejected one."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of the connections of a server, in number and seconds.

    Attributes
    ----------
    kept_for_loopback : number of ``max_connections`` that only clients on this machine may use.
    max_per_client : maximum number of one address, or of one IPv6 /64 network, other than loopback; None for no limit.
    """

    max_connections: int
    header_timeout: float
    stall_timeout: float
    keep_alive: int
    kept_for_loopback: int = 0
    max_per_client: int | None = None


class ServerConfig(uvicorn.Config):
    """uvicorn configuration with :class:`LimitedProtocol`; ``options`` are further options of uvicorn.

    ``on_rejected`` is called with the slug of each problem that is sent without calling the application.
    """

    def __init__(
        self,
        app: Any,
        limits: ConnectionLimits,
        on_rejected: Callable[[str], None] = lambda slug: None,
        **options: Any,
    ) -> None:
        super().__init__(
            app,
            http=LimitedProtocol,
            ws="none",
            log_config=None,
            log_level=logging.ERROR,  # at lower levels, uvicorn logs a warning for every Upgrade header
            access_log=False,
            server_header=False,
            timeout_keep_alive=limits.keep_alive,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            **options,
        )
        self.limits, self.on_rejected = limits, on_rejected
        self.admitted: set[LimitedProtocol] = set()
        """Connections within the limits; the others are rejected and closed within a second."""
        self.pipelining: deque[LimitedProtocol] = deque()
        """Connections with pipelined requests, in the order of their turns."""


def service_config(
    app: Any, settings: Settings, lifespan: str, on_rejected: Callable[[str], None] = lambda slug: None
) -> ServerConfig:
    """Return the configuration of a server of the HTTP service."""
    return ServerConfig(
        app,
        ConnectionLimits(
            settings.max_connections, settings.header_timeout, settings.stall_timeout, settings.keep_alive
        ),
        on_rejected,
        host=settings.host,
        port=settings.port,
        lifespan=lifespan,
        proxy_headers=True,
        forwarded_allow_ips=settings.forwarded_allow_ips,
        timeout_graceful_shutdown=settings.drain_timeout,
    )


class LimitedProtocol(H11Protocol):
    """One connection."""

    def __init__(self, config: ServerConfig, *arguments: Any, **more: Any) -> None:
        super().__init__(config, *arguments, **more)
        self.limits, self.on_rejected = config.limits, config.on_rejected
        self.pipelining, self.admitted = config.pipelining, config.admitted
        self.network = ""  # client of the connection, as its limit counts it; empty for loopback
        self.timers: dict[str, TimerHandle] = {}
        self.unparsed = b""  # received data not parsed yet
        self.header_lines = 0
        self.rejected = False
        self.surplus = 0  # bytes received since the request was complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        """Wait for the first request, or reject the connection if there are too many."""
        super().connection_made(transport)
        self.network = _network(self.client[0]) if self.client else ""
        if self.has_room():
            self.admitted.add(self)
            self.start_timer("headers", self.limits.header_timeout, self.reject_slow_headers)
        elif len(self.connections) > 2 * self.limits.max_connections:
            self.transport.abort()
        else:
            detail = "too many open connections"
            self.reject(ProblemError(UNAVAILABLE, detail, retry_after=RETRY_AFTER_UNAVAILABLE))

    def has_room(self) -> bool:
        """Return True if the limits allow one more connection of this client."""
        limits = self.limits
        if self.network and limits.max_per_client is not None:
            mine = sum(other.network == self.network for other in self.admitted)
            if mine >= limits.max_per_client:
                return False
        kept = limits.kept_for_loopback if self.network else 0
        return len(self.admitted) < limits.max_connections - kept

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self.admitted.discard(self)
        for timer in self.timers.values():
            timer.cancel()
        self.timers.clear()
        self.unparsed = b""
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data, at once or in steps."""
        if self.rejected or self.conn.their_state in (h11.DONE, h11.MUST_CLOSE):
            self.surplus += len(data)  # reading continues, to notice the end of the connection
            if self.surplus > MAX_SURPLUS_BYTES:
                self.transport.abort()
                return
        if self.rejected:
            return
        if self.unparsed:
            self.unparsed += data
        elif data.count(b"\n") > MAX_LINES:
            self.unparsed = data
            self.loop.call_soon(self.parse_step)
        else:
            self.parse(data)
        if self.unparsed and not self.transport.is_closing():
            self.transport.pause_reading()

    def parse_step(self) -> None:
        """Parse one step of the received data, unless the application has paused reading."""
        if self.rejected or self.transport.is_closing() or not self.unparsed:
            return
        if self.flow.read_paused:
            self.loop.call_later(POLL_SECONDS, self.parse_step)
            return
        step, self.unparsed = self.unparsed[:STEP_BYTES], self.unparsed[STEP_BYTES:]
        self.parse(step)
        if self.unparsed:
            self.loop.call_soon(self.parse_step)
        elif not self.transport.is_closing() and not self.flow.read_paused:
            self.transport.resume_reading()

    def parse(self, data: bytes) -> None:
        """Parse data; too many headers are rejected before they are parsed."""
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE:
            if data[:1] in (b"\r", b"\n") and not self.conn.trailing_data[0]:
                data = data.lstrip(b"\r\n")  # empty lines before a request are ignored (RFC 9112, 2.2)
            head, end, _ = data.partition(b"\r\n\r\n")
            self.header_lines += head.count(b"\n")
            if self.header_lines > MAX_HEADERS + 1:
                detail = f"more than {MAX_HEADERS} headers"
                self.reject(ProblemError(HEADERS_TOO_LARGE, detail, limit=MAX_HEADERS))
                return
            self.header_lines = 0 if end else self.header_lines
            self.start_timer("headers", self.limits.header_timeout, self.reject_slow_headers)
            if not data:  # which h11 treats as the end of the connection
                return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self.header_lines = 0
            self.stop_timer("headers")
        if not self.is_draining():
            self.stop_timer("body")

    def on_response_complete(self) -> None:
        """Complete the response, at once or in turn with other connections that pipeline requests."""
        self.surplus = 0
        if self.conn.trailing_data[0] and not self.transport.is_closing():
            self.pipelining.append(self)
            if len(self.pipelining) == 1:
                self.loop.call_soon(self.pipelining[0].start_pipelined)
            return
        self.complete_response()

    def start_pipelined(self) -> None:
        """Start the next pipelined request of this connection, and schedule the next connection."""
        self.pipelining.popleft()
        if self.pipelining:
            self.loop.call_soon(self.pipelining[0].start_pipelined)
        self.complete_response()

    def complete_response(self) -> None:
        """Wait for the next request or start a pipelined one, with a time limit for reading the response."""
        super().on_response_complete()
        if self.transport.is_closing():
            if self.transport.get_write_buffer_size():
                self.loop.call_later(self.limits.stall_timeout, self.transport.abort)
        elif self.is_draining():
            self.start_timer("body", DRAIN_SECONDS, self.transport.close)

    def is_draining(self) -> bool:
        """Return True if a body is still arriving whose response was sent; False for that of the next request."""
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def pause_writing(self) -> None:
        """Start the time limit of a client that does not read its response."""
        super().pause_writing()
        self.start_timer("stall", self.limits.stall_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the time limit of a client that reads again."""
        self.stop_timer("stall")
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Respond to invalid HTTP with a problem document, instead of uvicorn's plain text."""
        hint = getattr(sys.exc_info()[1], "error_status_hint", 400)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started or not self.cycle.more_body:
                self.transport.abort()  # the client would mistake it for the response to the previous request
                return
        if hint == 431:
            detail = f"the request line and headers are longer than {MAX_HEADER_BYTES} bytes"
            self.reject(ProblemError(HEADERS_TOO_LARGE, detail, limit=MAX_HEADER_BYTES))
        elif hint == 501:
            self.reject(ProblemError(NOT_IMPLEMENTED, "the only Transfer-Encoding is chunked"))
        else:
            self.reject(ProblemError(MALFORMED, "not a valid HTTP/1.1 request"))

    def reject_slow_headers(self) -> None:
        """Reject a connection whose headers did not arrive in time."""
        detail = f"the headers did not arrive within {self.limits.header_timeout:g} s"
        self.reject(ProblemError(TIMEOUT, detail))

    def reject(self, error: ProblemError) -> None:
        """Send a problem document without calling the application, and close the connection."""
        if self.rejected or self.transport.is_closing():
            return
        request_id = uuid4().hex
        self.on_rejected(error.kind.slug)
        client = self.client[0] if self.client else ""
        log.info(
            "connection rejected",
            status=error.kind.status,
            reason=error.kind.slug,
            client=client,
            request_id=request_id,
        )
        response = problem_response(error, "", request_id)
        lines = [f"HTTP/1.1 {error.kind.status} {error.kind.title}".encode(), b"connection: close"]
        lines += [name + b": " + value for name, value in response.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
        # Closing at once would reset the connection of a client that is still sending before it reads the response.
        self.rejected = True
        self.transport.write_eof()
        self.unparsed = b""
        self.transport.resume_reading()  # to notice when the client closes the connection
        self.loop.call_later(REJECT_SECONDS, self.transport.close)

    def start_timer(self, name: str, seconds: float, act: Callable[[], object]) -> None:
        """Start a timer unless it is running."""
        if name not in self.timers:
            self.timers[name] = self.loop.call_later(seconds, act)

    def stop_timer(self, name: str) -> None:
        """Stop a timer if it is running."""
        if (timer := self.timers.pop(name, None)) is not None:
            timer.cancel()


def _network(host: str) -> str:
    """Return an IPv4 address, or the IPv6 /64 network that one client usually has; empty for loopback."""
    address = parse_address(host)
    if address is None or address.is_loopback:
        return ""
    return str(address) if isinstance(address, IPv4Address) else str(IPv6Network((address, 64), strict=False))
