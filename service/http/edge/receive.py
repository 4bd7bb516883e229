"""Request bodies from slow, lying and vanishing clients: whole, compressed, or line by line while they come.

Bytes are counted as they arrive (a Content-Length can lie and a chunked body has none), the whole body has a deadline,
and all bodies held at once share one budget. A client that goes away ends its own work: Starlette alone would let a
handler run to its end for nobody.

A compressed body is inflated in a thread, piece by piece, each charged to the budget before the next is made: a few
kilobytes can decompress to gigabytes, but here they get as far as the limit on the body's size and a mebibyte more.

A stream of lines may last for a night, but its client must keep sending: it begins with a minute of patience, waiting
for it uses that up, and every byte that is no end of a line adds to it. Otherwise five hundred streams of three bytes a
second would keep everybody out. Lines are cut a few kilobytes at a time, and blank ones are counted: a body of nothing
but ends of lines is a line for every byte.
"""

import asyncio
import math
import zlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from itertools import takewhile
from time import monotonic
from typing import Any, Self, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from nightjar_alerts.service.http.edge.errors import (
    MALFORMED,
    OVERLOADED,
    TIMEOUT,
    TOO_LARGE,
    UNSUPPORTED,
    ProblemError,
)
from nightjar_alerts.service.settings import Settings

T = TypeVar("T")

RETRY_AFTER_FULL = 1.0
UNWATCHED_SECONDS = 0.1  # work that has ended by then is not worth a task that looks out for the client's end


class ClientDisconnected(Exception):
    """The client closed its connection before it got an answer."""


class MemoryBudget:
    """Bytes of request bodies held in memory, over all requests.

    A client with several bodies has half of it at most: whoever sends many large ones shuts nobody else out.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._held_by: Counter[str] = Counter()
        self._bodies_of: Counter[str] = Counter()

    def reserve(self, client: str) -> "Reservation":
        """Return what one request may hold on account of a client inside a ``with`` block."""
        return Reservation(self, client)

    def begin(self, client: str) -> None:
        """Count a body of a client."""
        self._bodies_of[client] += 1

    def end(self, client: str) -> None:
        """Count a body of a client no more."""
        self._bodies_of[client] -= 1
        if not self._bodies_of[client]:
            del self._bodies_of[client], self._held_by[client]

    def take(self, size: int, client: str) -> None:
        """Reserve bytes, give them back where ``size`` is negative. Raises ProblemError (429) beyond a limit."""
        if size > 0:
            if self.held + size > self.limit:
                detail = "request body memory limit reached; retry later"
                raise ProblemError(OVERLOADED, detail, retry_after=RETRY_AFTER_FULL)
            if self._bodies_of[client] > 1 and self._held_by[client] + size > self.limit // 2:
                detail = "request body memory limit of this client reached; retry later"
                raise ProblemError(OVERLOADED, detail, retry_after=RETRY_AFTER_FULL)
        self.held += size
        self._held_by[client] += size


class Reservation:
    """Bytes that one request holds of a budget."""

    def __init__(self, budget: MemoryBudget, client: str) -> None:
        self._budget, self._client = budget, client
        self.size = 0

    def __enter__(self) -> Self:
        """Begin to hold."""
        self._budget.begin(self._client)
        return self

    def __exit__(self, *_: object) -> None:
        """Give everything back."""
        self.hold(0)
        self._budget.end(self._client)

    def hold(self, size: int) -> None:
        """Hold so many bytes from now on. Raises ProblemError (429) when that would exceed a limit."""
        self._budget.take(size - self.size, self._client)
        self.size = size


class Body:
    """One request body, its bytes charged to a share of the budget."""

    def __init__(self, request: Request, reservation: Reservation) -> None:
        self._request, self._reservation = request, reservation
        self._chunks: list[bytes] = []
        self._size = 0

    async def read(self, limit: int, timeout: float) -> bytes:
        """Read it all.

        Raises
        ------
        ProblemError
            413 beyond ``limit`` bytes, 408 after ``timeout`` seconds, 429 when the budget is spent, 400 when empty.
        ClientDisconnected
            When the client went away in the middle.
        """
        self._check_declared(limit)
        try:
            async with asyncio.timeout(timeout):
                while await self._read_chunk(limit):
                    pass
        except TimeoutError:
            raise ProblemError(TIMEOUT, f"the body did not arrive within {timeout:g} s") from None
        if not self._size:
            raise ProblemError(MALFORMED, "the body is empty")
        chunks, self._chunks = self._chunks, []  # else the body would be there twice for as long as it is held
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def charge(self, size: int) -> None:
        """Charge bytes that were made of the body, its decompressed form. Raises ProblemError (429)."""
        self._reservation.hold(self._size + size)
        self._size += size

    def _check_declared(self, limit: int) -> None:
        declared = self._request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise too_large(limit)

    async def _read_chunk(self, limit: int) -> bool:
        """Read a piece; returns True while there is more to come."""
        message = await self._request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        if chunk := message.get("body", b""):
            if self._size + len(chunk) > limit:
                raise too_large(limit)
            self.charge(len(chunk))
            self._chunks.append(chunk)
        return bool(message.get("more_body", False))


def too_large(limit: int) -> ProblemError:
    """Return the problem (413) of a body longer than ``limit`` bytes."""
    return ProblemError(TOO_LARGE, f"the body is longer than {limit} bytes", limit=limit)


def get_content_coding(request: Request) -> str:
    """Return the coding of a compressed body in lower case, empty without. Raises ProblemError (415) for others."""
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding in ("", "identity"):
        return ""
    coding = "gzip" if coding == "x-gzip" else coding
    if coding not in CODINGS:
        raise ProblemError(UNSUPPORTED, f"send the body without Content-Encoding, or as one of: {', '.join(CODINGS)}")
    return coding


def get_media_type(request: Request, accepted: Iterable[str]) -> str:
    """Media type of the body, without parameters and in lower case; empty when the client sent none.

    Raises
    ------
    ProblemError
        415 for a type that is not accepted, or for a coding that is not read.
    """
    get_content_coding(request)
    name = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    accepted = tuple(accepted)
    if name and name not in accepted:
        raise ProblemError(UNSUPPORTED, f"send the body as one of: {', '.join(accepted)}")
    return name


async def cancel_on_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Return the result of ``work``, started after the body was read; cancel it when the client leaves.

    The client is watched once the work has taken :data:`UNWATCHED_SECONDS`; one that left before is noticed then.
    """
    task = asyncio.current_task()
    assert task is not None
    watches: list[asyncio.Future[None]] = []

    def leave(_: object) -> None:
        task.cancel()

    def watch() -> None:
        watches.append(asyncio.ensure_future(_disconnect(request.receive)))
        watches[0].add_done_callback(leave)

    later = asyncio.get_running_loop().call_later(UNWATCHED_SECONDS, watch)
    try:
        return await work
    except asyncio.CancelledError:
        if any(each.done() for each in watches) and not task.uncancel():  # the client's doing, and nobody else's
            raise ClientDisconnected from None
        raise
    finally:
        later.cancel()
        for each in watches:
            each.remove_done_callback(leave)
            each.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


CODINGS = ("gzip", "deflate", "zstd")
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}  # zlib's window sizes; RFC 9110: deflate is zlib
_FED, _MADE = 64 * 1024, 1024 * 1024
_FED_ZSTD = 128  # each four bytes may become a block of 128 kB
_LARGEST_WINDOW = 8 * 1024 * 1024  # RFC 9659: what a decoder of the zstd coding has to support

InThread = Callable[[Callable[[], bytes | None]], Awaitable[bytes | None]]


async def inflate(data: bytes, coding: str, limit: int, charge: Callable[[int], None], in_thread: InThread) -> bytes:
    """Decompress a body.

    Parameters
    ----------
    coding : one of :data:`CODINGS`.
    limit : bytes of the decompressed body.
    charge : called with the size of every piece; may raise.
    in_thread : runs a function in a thread.

    Raises
    ------
    ProblemError
        413 beyond the limit, 400 when the body is cut short, corrupt or followed by something else.
    """
    pieces, size, inflated = decompressed(data, coding), 0, list[bytes]()
    while (piece := await in_thread(partial(next, pieces, None))) is not None:
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        charge(len(piece))
        inflated.append(piece)
    if not size:
        raise ProblemError(MALFORMED, "the body is empty")
    return b"".join(inflated)


def decompressed(data: bytes, coding: str) -> Iterator[bytes]:
    """Yield the decompressed data in pieces of a few mebibytes at most. Raises ProblemError (400)."""
    return _zstd(data) if coding == "zstd" else _zlib(data, coding)


def _zlib(data: bytes, coding: str) -> Iterator[bytes]:
    inflater = zlib.decompressobj(_WINDOWS[coding])
    try:
        for start in range(0, len(data), _FED):
            fed = data[start : start + _FED]
            while fed and not inflater.eof:
                yield inflater.decompress(fed, _MADE)
                fed = inflater.unconsumed_tail
            if inflater.eof and (inflater.unused_data or start + _FED < len(data)):
                raise ProblemError(MALFORMED, f"something follows the {coding} data of the body")
        yield inflater.flush()
    except zlib.error:
        raise ProblemError(MALFORMED, f"the body is not valid {coding} data") from None
    if not inflater.eof:
        raise ProblemError(MALFORMED, f"the {coding} data of the body are cut short")


def _zstd(data: bytes) -> Iterator[bytes]:
    import zstandard

    made, size = list[bytes](), 0
    inflater: Any = None
    try:
        for start in range(0, len(data), _FED_ZSTD):
            fed = data[start : start + _FED_ZSTD]
            while fed:
                if inflater is None:
                    inflater = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj()
                made.append(inflater.decompress(fed))
                size += len(made[-1])
                fed = inflater.unused_data if inflater.eof else b""  # of the next frame
                inflater = None if inflater.eof else inflater
            if size >= _MADE:
                yield b"".join(made)
                made, size = [], 0
    except zstandard.ZstdError:
        raise ProblemError(MALFORMED, "the body is not valid zstd data") from None
    if inflater is not None:
        raise ProblemError(MALFORMED, "the zstd data of the body are cut short")
    yield b"".join(made)


PATIENCE_SECONDS = 60.0
BOM = b"\xef\xbb\xbf"
STEP_BYTES = 16 * 1024
"""Bytes of a stream that are cut into lines in one go."""


class Lines:
    """Lines of a stream of bytes, without their ends; blank ones are left out.

    Parameters
    ----------
    limit : most bytes in a line.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self.pending = 0  # bytes of the unfinished line
        self.blank = 0  # lines that were left out

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that end in ``data``. Raises ProblemError (413) at the first that is too long."""
        first, *others = data.split(b"\n")
        self._hold(first)
        if others:
            yield from self._whole([self._take_line(), *others[:-1]])
            self._hold(others[-1])

    def _whole(self, lines: list[bytes]) -> Iterator[bytes]:
        """Yield lines that came whole, but for blank ones, for which no Python code runs."""
        too_long = max(map(len, lines), default=0) > self._limit
        if too_long:
            lines = list(takewhile(lambda line: len(line) <= self._limit, lines))
        nonblank = list(filter(bytes.strip, filter(None, lines)))
        self.blank += len(lines) - len(nonblank)
        yield from nonblank
        if too_long:
            raise self._too_long()

    def rest(self) -> Iterator[bytes]:
        """Yield what has come since the last end of a line, if anything: a stream may end without one."""
        yield from filter(bytes.strip, [self._take_line()])

    def _take_line(self) -> bytes:
        line = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self.pending = [], 0
        return line

    def _hold(self, piece: bytes) -> None:
        self.pending += len(piece)
        if self.pending > self._limit:
            raise self._too_long()
        self._pieces.append(piece)

    def _too_long(self) -> ProblemError:
        return ProblemError(TOO_LARGE, f"a line is longer than {self._limit} bytes", limit=self._limit)


class LineBody:
    """The lines of one request. Nothing is received unless a group of them is asked for.

    Parameters
    ----------
    settings : ``max_json_bytes`` of them in a line, ``max_stream_curves`` lines and as many blank ones,
        ``body_timeout`` seconds to wait for the next whole line, ``stream_rate`` bytes a second while it is waited for.
    """

    def __init__(self, receive: Receive, settings: Settings) -> None:
        self._receive, self._settings = receive, settings
        self._lines = Lines(settings.max_json_bytes)
        self._came, self._cut = b"", 0  # what was received last, and how much of it has been cut into lines
        self._ready: deque[bytes] = deque()
        self._ready_bytes = 0
        self._fault: ProblemError | None = None
        self._more = True
        self._count = 0
        self._handed = 0
        self._patience = PATIENCE_SECONDS if settings.stream_rate else math.inf

    @property
    def held(self) -> int:
        """Bytes that were received and not yet handed out, or handed out last."""
        return len(self._came) - self._cut + self._lines.pending + self._ready_bytes + self._handed

    async def group(self, most_lines: int, most_bytes: int) -> list[bytes] | None:
        """Return lines that are there, waiting for one if there is none; None at the end.

        Raises
        ------
        ProblemError
            413 for a line too long or one too many, 408 when none came in time, 400 for a body without any. The lines
            before the fault have been returned by then.
        ClientDisconnected
            When the client went away in the middle.
        """
        self._handed = 0
        try:
            async with asyncio.timeout(min(self._settings.body_timeout, self._patience)):
                while self._wants(most_lines, most_bytes):
                    await self._go_on()
        except TimeoutError:
            if not self._ready:
                raise self._too_slow() from None
        if self._ready:
            return self._take(most_lines, most_bytes)
        if self._fault is not None:
            raise self._fault
        if not self._count:
            raise ProblemError(MALFORMED, "the body is empty")
        return None

    def _too_slow(self) -> ProblemError:
        if self._patience > 1e-3:
            return ProblemError(TIMEOUT, f"no whole line arrived within {self._settings.body_timeout:g} s")
        return ProblemError(TIMEOUT, f"the stream is slower than {self._settings.stream_rate:g} bytes a second")

    def _wants(self, most_lines: int, most_bytes: int) -> bool:
        """Tell whether a group needs more lines; it waits for none but the first."""
        if not self._ready:
            return self._more or bool(self._came)
        return bool(self._came) and len(self._ready) < most_lines and self._ready_bytes < most_bytes

    async def _go_on(self) -> None:
        """Cut a step of what has come, of which there may be a lot: the event loop belongs to everybody."""
        if self._came:
            await asyncio.sleep(0)
        else:
            await self._receive_some()
        step = self._came[self._cut : self._cut + STEP_BYTES]
        self._cut += len(step)
        if self._cut == len(self._came):
            self._came, self._cut = b"", 0
        try:
            self._cut_lines(step)
        except ProblemError as fault:
            self._fault, self._more, self._came, self._cut = fault, False, b"", 0

    async def _receive_some(self) -> None:
        started = monotonic()
        try:
            message = await self._receive()
        finally:
            if self._settings.stream_rate:
                self._patience -= monotonic() - started
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        self._more = message.get("more_body", False)
        self._came = body = message.get("body", b"")
        if self._settings.stream_rate:
            worth = len(body) - body.count(b"\n")  # blank lines buy nothing
            self._patience = min(PATIENCE_SECONDS, self._patience + worth / self._settings.stream_rate)

    def _cut_lines(self, step: bytes) -> None:
        if not self._count and not self._lines.pending:
            step = step.removeprefix(BOM)
        for line in self._lines.feed(step):
            self._add(line)
        if not self._more and not self._came:
            for line in self._lines.rest():
                self._add(line)
        limit = self._settings.max_stream_curves
        if self._lines.blank > limit:
            raise ProblemError(TOO_LARGE, f"more than {limit} blank lines in one stream", limit=limit)

    def _add(self, line: bytes) -> None:
        limit = self._settings.max_stream_curves
        if self._count == limit:
            raise ProblemError(TOO_LARGE, f"more than {limit} light curves in one stream", limit=limit)
        self._count += 1
        self._ready.append(line)
        self._ready_bytes += len(line)

    def _take(self, most_lines: int, most_bytes: int) -> list[bytes]:
        group = [self._ready.popleft()]
        size = len(group[0])
        while self._ready and len(group) < most_lines and (size := size + len(self._ready[0])) <= most_bytes:
            group.append(self._ready.popleft())
        self._handed = sum(map(len, group))
        self._ready_bytes -= self._handed
        return group

    async def watch(self) -> None:
        """Wait until the client has gone, which raises ClientDisconnected; what it still sends is dropped."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        raise ClientDisconnected
