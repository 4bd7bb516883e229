"""HTTP connections with limits on the clients that uvicorn waits for without end.

Headers must arrive in time, in size and in number, replies must be read, the number of connections is bounded, and what
is not HTTP gets a problem document like every other fault. What is neither header nor body (extensions of chunks,
trailers behind the last of them) is parsed, kept by nobody, and bounded as well. A request refused before its body was
read gets a lingering close: closing at once would reset the connection, and the client, still sending, would never see
why.

All of this happens before any key is looked at, so nothing here may cost much more than it cost to send. Connections
and requests begin in turns (:mod:`service.http.edge.turns`). Requests sent ahead of their turn (pipelining) are parsed
at once and each becomes a few kilobytes of objects: a handful may wait, and the connection ends with one more. Where
every place is taken, a connection that lingers or is idle gives its own to a newcomer
(:class:`service.http.edge.turns.ConnectionPlaces`): ten thousand clients that say nothing keep nobody out.

The base class is not a public interface of uvicorn, hence the upper bound of its version in ``pyproject.toml`` and the
test that names every attribute used here.
"""

import asyncio
from asyncio import TimerHandle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic
from typing import Any
from uuid import uuid4
from weakref import ref

import structlog
import uvicorn
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from nightjar_alerts.service.http.edge.errors import (
    HEADERS_TOO_LARGE,
    MALFORMED,
    RETRY_AFTER_UNAVAILABLE,
    TIMEOUT,
    UNAVAILABLE,
    ProblemError,
    problem_response,
)
from nightjar_alerts.service.http.edge.receive import SENT
from nightjar_alerts.service.http.edge.turns import ConnectionPlaces, Turns, neighbourhood
from nightjar_alerts.service.settings import Settings

log = structlog.get_logger(__name__)

MAX_HEADER_BYTES = 32 * 1024
MAX_HEADERS = 100
MAX_AHEAD = 8
"""Requests of one connection that may wait behind the one at work; browsers send none, tools for benchmarks a few."""
MAX_AHEAD_BYTES = 64 * 1024
"""Most bytes of requests sent ahead, beyond those that came in one piece with the request at work."""
MAX_UNREAD_BYTES = 64 * 1024
"""Bytes received of a connection whose turn to be read has not come, beyond which nothing more is received of it."""
LINGER_SECONDS = 2.0
ONE_PIECE_BYTES = 64 * 1024
"""Most bytes of a reply, head and body, that is sent in one piece."""
FRAMING = 8
"""Bytes that may be spent on each byte of a body sent in chunks; a chunk of a single byte takes five more."""
ARRIVED = "arrived"
"""Key of a request's state: when its headers were there, ``time.monotonic()`` seconds."""


class EdgeConfig(uvicorn.Config):
    """uvicorn's configuration, derived from the service's settings, which it carries along.

    ``on_refusal`` is told the slug of every problem that is answered without the application.
    """

    def __init__(self, app: Any, settings: Settings, on_refusal: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(
            app,
            host=settings.host,
            port=settings.port,
            http=LimitedProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=True,
            forwarded_allow_ips=settings.forwarded_allow_ips,
            timeout_keep_alive=settings.keep_alive,
            timeout_graceful_shutdown=settings.drain_timeout,
        )
        self.settings, self.on_refusal = settings, on_refusal
        self.turns = Turns()
        self.places: ConnectionPlaces[LimitedProtocol] = ConnectionPlaces()


class Ended(Exception):
    """Raised in the parser's callbacks when the connection ends: the rest of the piece that came is not parsed."""


class LingeringTransport(asyncio.Transport):
    """A transport whose ``close`` first lets a client that is still sending read the reply.

    Parameters
    ----------
    patience : seconds after which what the client has not read is dropped.
    lingers : called when the client is given time to read.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        still_sending: Callable[[], bool],
        patience: float,
        lingers: Callable[[], None] | None = None,
    ) -> None:
        self._transport, self._still_sending, self._patience = transport, still_sending, patience
        self._lingers = lingers
        self._lingering = self._held = self._paused = False
        self._ending: TimerHandle | None = None
        self._pieces: list[bytes | bytearray | memoryview] | None = None

    @contextmanager
    def in_one_piece(self) -> Iterator[None]:
        """Send what is written inside a ``with`` block at its end: a client wakes, and the system is asked, once.

        Unless it is large: then copying it would cost more than that saves.
        """
        self._pieces = []
        try:
            yield
        finally:
            self._send_pieces()

    def _send_pieces(self) -> None:
        pieces, self._pieces = self._pieces or [], None
        if sum(map(len, pieces)) <= ONE_PIECE_BYTES:
            pieces = [b"".join(pieces)]
        for piece in pieces:
            if piece:
                self._transport.write(piece)

    def close(self) -> None:
        """Close, at once or after the client had time to read; what it sends meanwhile is dropped."""
        if self.is_closing():
            return
        self._send_pieces()
        if not self._still_sending():
            self._transport.close()
            if self._transport.get_write_buffer_size():  # a peer that does not read would keep it open for ever
                self._ending = asyncio.get_running_loop().call_later(self._patience, self._transport.abort)
            return
        self._lingering, self._held, self._paused = True, False, False
        self._transport.write_eof()
        self._transport.resume_reading()
        self._ending = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.close)
        if self._lingers is not None:
            self._lingers()

    def lost(self) -> None:
        """Forget the connection, which has ended: objects that hold each other stay until Python looks for cycles."""
        self._still_sending, self._lingers = _nothing_comes, None
        if self._ending is not None:
            self._ending.cancel()

    def is_closing(self) -> bool:
        """Return True when nothing more will be answered."""
        return self._lingering or self._transport.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        if self._pieces is None:
            self._transport.write(data)
        else:
            self._pieces.append(data)

    def abort(self) -> None:
        """Close without sending what is buffered."""
        self._transport.abort()

    def pause_reading(self) -> None:
        """Stop receiving."""
        self._paused = True
        if not self._held:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receive again."""
        self._paused = False
        if not self._held:
            self._transport.resume_reading()

    def hold_reading(self) -> None:
        """Stop receiving until what has come was read, whatever else is asked for meanwhile."""
        if not self._held and not self.is_closing():
            self._held = True
            if not self._paused:
                self._transport.pause_reading()

    def go_on_reading(self) -> None:
        """Receive again, unless that was stopped otherwise."""
        if self._held:
            self._held = False
            if not self._paused and not self.is_closing():
                self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Look up a property of the socket."""
        return self._transport.get_extra_info(name, default)


def in_one_piece(scope: Scope) -> AbstractContextManager[None]:
    """Return a context in which a reply is sent in one piece, where the connection is one of ours."""
    sent = scope.get("state", {}).get(SENT)
    cycle = None if sent is None else sent()
    return nullcontext() if cycle is None else cycle.transport.in_one_piece()


def _nothing_comes() -> bool:
    """Tell that a connection that has ended sends nothing."""
    return False


class LimitedProtocol(HttpToolsProtocol):
    """One connection. At any time at most one of two timers runs: for headers to come in, for a reply to go out."""

    def __init__(
        self,
        config: EdgeConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._settings, self._on_refusal, self._places = config.settings, config.on_refusal, config.places
        self._turns = config.turns
        self._neighbourhood = ""
        self._unread = b""  # came, and waits for its turn
        self._arrived = 0.0  # the last piece, ``time.monotonic()`` seconds
        self._in_turn = False
        self._header_timer: TimerHandle | None = None
        self._stall_timer: TimerHandle | None = None
        self._header_bytes = 0
        self._refused = False
        self._in_headers = False
        self._unaccounted = 0  # bytes of the request at hand that belong neither to its headers nor to its body
        self._ahead = 0  # bytes that came while others waited for their turn
        self._ended = False  # nothing that comes is looked at any more

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        """Wait for the first request, or turn the connection away when there are too many."""
        self._way_out = LingeringTransport(transport, self._still_sending, self._settings.stall_timeout, self._linger)
        super().connection_made(self._way_out)
        self._neighbourhood = neighbourhood(self.client)
        if self._make_room():
            self._await_headers()
        elif len(self.connections) > 2 * self._settings.max_connections:  # a flood, not a crowd
            self.transport.abort()
        else:
            detail = "this service has as many connections as it allows"
            self._refuse(ProblemError(UNAVAILABLE, detail, retry_after=RETRY_AFTER_UNAVAILABLE))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, and let go of everything, so that it goes at once and not when cycles are looked for."""
        self._places.lost(self)
        self._unread = b""
        self._stop_timers()
        super().connection_lost(exc)
        self._way_out.lost()
        self.pipeline.clear()
        self.cycle = None  # type: ignore[assignment]  # as in the base class before the first request

    def data_received(self, data: bytes) -> None:
        """Read a piece when it is its client's turn, most often at once."""
        if self._ended or self.transport.is_closing():
            return
        self._arrived = monotonic()
        if self._unread:
            self._unread += data
        else:
            self._unread = data
            self._turns.add(self._neighbourhood, self._read)
        if len(self._unread) > MAX_UNREAD_BYTES:
            self._way_out.hold_reading()

    def _read(self) -> bool:
        """Read what has come; return True if that was anything."""
        data, self._unread = self._unread, b""
        self._way_out.go_on_reading()
        if not data or self._ended or self.transport.is_closing():
            return False
        self._in_turn = True
        try:
            self._parse(data)
        finally:
            self._in_turn = False
        return True

    def _parse(self, data: bytes) -> None:
        """Parse a piece; while headers are incomplete, only as much of it as headers may be long."""
        room = MAX_HEADER_BYTES + 1 - self._header_bytes
        if self._header_timer is not None and len(data) > room:
            self._parse_some(data[:room])
            if self._header_timer is not None or self._ended or self.transport.is_closing():
                return
            data = data[room:]
        self._parse_some(data)

    def _parse_some(self, data: bytes) -> None:
        """Parse, then see whether the headers of a request are still incomplete."""
        if self.pipeline:
            self._ahead += len(data)
        self._unaccounted += len(data)
        super().data_received(data)
        if self._ended:
            return
        if self._ahead > MAX_AHEAD_BYTES:
            self._end()
            return
        if self._unaccounted > MAX_HEADER_BYTES and self._header_timer is None:
            self.transport.abort()  # in the midst of a request, or of the reply to it: there is no place for an answer
            return
        if self._header_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_headers()
        if self._header_timer is not None:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                detail = f"the request line and headers are longer than {MAX_HEADER_BYTES} bytes"
                self._refuse(ProblemError(HEADERS_TOO_LARGE, detail, limit=MAX_HEADER_BYTES))

    def on_message_begin(self) -> None:
        """Begin to count what a request is made of; end the connection with one that is too far ahead."""
        self._in_headers, self._unaccounted = True, 0
        if self._ended or len(self.pipeline) >= MAX_AHEAD:
            self._end()
            raise Ended  # thousands more may have come in the same piece, and each would cost what a request does
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; what comes behind the body is a trailer, and must not pass for one (RFC 9110, 6.5.1)."""
        if self._in_headers and not self._ended:
            super().on_header(name, value)
            if len(self.headers) > MAX_HEADERS:
                detail = f"there are more than {MAX_HEADERS} headers"
                self._refuse_headers(ProblemError(HEADERS_TOO_LARGE, detail, limit=MAX_HEADERS))
                raise Ended

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Begin a request when it is its turn, and not at all when its client has left by then."""
        cycle.scope["state"][ARRIVED] = self._arrived if self._in_turn else monotonic()
        # Weakly, or request and scope would hold each other, and a body, until cycles are looked for.
        cycle.scope["state"][SENT] = ref(cycle)
        start = super()._start_asgi_task
        if self._in_turn:
            start(cycle, app)
            return

        def begin() -> bool:
            if not cycle.disconnected:
                start(cycle, app)
            return not cycle.disconnected

        self._turns.add(self._neighbourhood, begin)

    def on_body(self, body: bytes) -> None:
        """Hand on a piece of a body, which pays for the bytes it came in."""
        self._unaccounted = max(0, self._unaccounted - FRAMING * len(body))
        if not self._ended:
            super().on_body(body)

    def on_headers_complete(self) -> None:
        """Headers are in: from here the application watches over the body."""
        self._in_headers = False
        if self._ended:
            return
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):  # RFC 9112, 3.2
            self._refuse_headers(ProblemError(MALFORMED, "a request needs one Host header, and not two"))
            return
        self._places.works(self)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Tell the application that the body is complete."""
        if not self._ended:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Keep the connection only when the request has been read to its end."""
        if self._still_sending():
            self.server_state.total_requests += 1
            self.transport.close()
            return
        super().on_response_complete()
        if not self.pipeline:
            self._ahead = 0
            if self.cycle is not None and self.cycle.response_complete:  # else one sent ahead has begun, or all is lost
                self._places.waits(self, self._neighbourhood)

    def pause_writing(self) -> None:
        """Give a client that does not read its reply a while to start again."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self._settings.stall_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """Forget that the client did not read."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP, unless the connection has ended; uvicorn's own answer would be plain text."""
        if self._ended:
            return
        if self.cycle is not None and self.cycle.more_body and not (self.cycle.response_started or self.pipeline):
            self.cycle.disconnected = True  # of a body that is none: no other answer than this one is written
            self.cycle.message_event.set()
            self._refuse(ProblemError(MALFORMED, "the body is not sent as its headers say"))
            self._ended = True
            return
        self._refuse_headers(ProblemError(MALFORMED, "what was sent is not a valid HTTP/1.1 request"))

    def _still_sending(self) -> bool:
        return self._refused or (self.cycle is not None and self.cycle.more_body and not self.pipeline)

    def _linger(self) -> None:
        self._places.lingers(self, self._neighbourhood)

    def _make_room(self) -> bool:
        """End as many connections as there are too many with this one; return True if that makes room for it."""
        there = len(self.connections) - self._places.ending
        excess = max(0, there - self._settings.max_connections)
        ended = self._places.give_way(excess)
        for each in ended:
            each._end()
        return len(ended) == excess

    def _end(self) -> None:
        """End the connection: there is no place for an answer, or nobody who waits for one."""
        self._ended = True
        self.transport.abort()

    def _refuse_headers(self, error: ProblemError) -> None:
        """Refuse the request at hand, unless its client still waits for the reply to another."""
        if self.cycle is None or self.cycle.response_complete:
            self._refuse(error)
        else:
            self._end()
        self._ended = True

    def _await_headers(self) -> None:
        if self.cycle is None:
            self._places.waits(self, self._neighbourhood)
        self._header_bytes = 0
        self._header_timer = self.loop.call_later(self._settings.header_timeout, self._headers_late)

    def _headers_late(self) -> None:
        detail = f"the headers did not arrive within {self._settings.header_timeout:g} s"
        self._refuse(ProblemError(TIMEOUT, detail))

    def _refuse(self, error: ProblemError) -> None:
        """Answer on the connection itself, before or without a request, and close it."""
        if self.transport.is_closing():
            return
        self._refused = True
        request_id = uuid4().hex
        self._on_refusal(error.kind.slug)
        log.info("refused", status=error.kind.status, reason=error.kind.slug, request_id=request_id)
        response = problem_response(error, "", request_id)
        lines = [f"HTTP/1.1 {error.kind.status} {error.kind.title}".encode()]
        lines += [name + b": " + value for name, value in response.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
        self.transport.close()

    def _stop_timers(self) -> None:
        for timer in (self._header_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._header_timer = self._stall_timer = None


async def end_connections(state: ServerState, patient: bool) -> None:
    """End the connections of a server that stops, after the time that a lingering close gives clients to read.

    A process that ends before resets those whose clients are still sending, which may then never see their last reply.
    And closing a loop fails where something comes for a connection that was left open.
    """
    give_up = monotonic() + LINGER_SECONDS * patient
    while state.connections and monotonic() < give_up:
        await asyncio.sleep(0.02)
    for connection in list(state.connections):
        connection.transport.abort()
    give_up = monotonic() + 1.0  # each is lost in a round or two of the loop; nothing may keep a process from ending
    while state.connections and monotonic() < give_up:
        await asyncio.sleep(0)
