"""Reading a request's body line by line while it comes, without ever holding all of it.

A stream may last for a night, but not for nothing: whoever is waited for loses patience, a minute of which comes with
the stream and more with every byte. Five hundred streams of three bytes a second would else keep everybody out.
"""

import asyncio
import math
from collections import deque
from collections.abc import Iterator
from time import monotonic

from starlette.types import Receive

from service.http.edge.errors import MALFORMED, TIMEOUT, TOO_LARGE, ProblemError
from service.http.edge.receive import ClientGone
from service.settings import Settings

PATIENCE_SECONDS = 60.0


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

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that end in ``data``. Raises ProblemError (413) at the first that is too long."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._hold(data[start:end])
            yield from self.rest()
            start = end + 1
        self._hold(data[start:])

    def rest(self) -> Iterator[bytes]:
        """Yield what has come since the last end of a line, if anything: a stream may end without one."""
        line = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self.pending = [], 0
        if line and not line.isspace():
            yield line

    def _hold(self, piece: bytes) -> None:
        self.pending += len(piece)
        if self.pending > self._limit:
            raise ProblemError(TOO_LARGE, f"a line is longer than {self._limit} bytes", limit=self._limit)
        self._pieces.append(piece)


class LineBody:
    """The lines of one request. Nothing is received unless a group of them is asked for.

    Parameters
    ----------
    settings : ``max_json_bytes`` of them in a line, ``max_stream_curves`` lines, ``body_timeout`` seconds to wait for
        the next whole line, ``stream_rate`` bytes a second while it is waited for.
    """

    def __init__(self, receive: Receive, settings: Settings) -> None:
        self._receive, self._settings = receive, settings
        self._lines = Lines(settings.max_json_bytes)
        self._ready: deque[bytes] = deque()
        self._fault: ProblemError | None = None
        self._more = True
        self._count = 0
        self._handed = 0
        self._patience = PATIENCE_SECONDS if settings.stream_rate else math.inf

    @property
    def held(self) -> int:
        """Bytes that were received and not yet handed out, or handed out last."""
        return self._lines.pending + sum(map(len, self._ready)) + self._handed

    async def group(self, most_lines: int, most_bytes: int) -> list[bytes] | None:
        """Return lines that are there, waiting for one if there is none; None at the end.

        Raises
        ------
        ProblemError
            413 for a line too long or one too many, 408 when none came in time, 400 for a body without any. The lines
            before the fault have been returned by then.
        ClientGone
            When the client went away in the middle.
        """
        self._handed = 0
        try:
            async with asyncio.timeout(min(self._settings.body_timeout, self._patience)):
                while self._more and not self._ready:
                    await self._receive_some()
        except TimeoutError:
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

    async def _receive_some(self) -> None:
        started = monotonic()
        try:
            message = await self._receive()
        finally:
            if self._settings.stream_rate:
                self._patience -= monotonic() - started
        if message["type"] == "http.disconnect":
            raise ClientGone
        self._more = message.get("more_body", False)
        body = message.get("body", b"")
        if self._settings.stream_rate:
            self._patience = min(PATIENCE_SECONDS, self._patience + len(body) / self._settings.stream_rate)
        try:
            for line in self._lines.feed(body):
                self._add(line)
            for line in () if self._more else self._lines.rest():
                self._add(line)
        except ProblemError as fault:
            self._fault, self._more = fault, False

    def _add(self, line: bytes) -> None:
        limit = self._settings.max_stream_curves
        if self._count == limit:
            raise ProblemError(TOO_LARGE, f"more than {limit} light curves in one stream", limit=limit)
        self._count += 1
        self._ready.append(line)

    def _take(self, most_lines: int, most_bytes: int) -> list[bytes]:
        group = [self._ready.popleft()]
        size = len(group[0])
        while self._ready and len(group) < most_lines and (size := size + len(self._ready[0])) <= most_bytes:
            group.append(self._ready.popleft())
        self._handed = sum(map(len, group))
        return group

    async def watch(self) -> None:
        """Wait until the client has gone, which raises ClientGone; what it still sends is dropped."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        raise ClientGone
