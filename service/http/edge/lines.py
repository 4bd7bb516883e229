"""Lines of a streamed NDJSON request body.

A stream may last for hours, but its client must keep sending: its idle budget starts at :data:`IDLE_BUDGET_SECONDS`,
waiting for data reduces it, and received bytes other than line ends increase it. Otherwise a few hundred streams of
three bytes per second could block all others. Data are split in small steps, and blank lines are limited, as a body of
line ends has a line per byte.
"""

import asyncio
import math
from collections import deque
from collections.abc import Iterator
from itertools import takewhile
from time import monotonic
from typing import Final, NoReturn

from starlette.types import Receive

from nightjar_alerts.service.http.edge.body import BOM, Body
from nightjar_alerts.service.http.edge.errors import MALFORMED, TIMEOUT, TOO_LARGE, ProblemError
from nightjar_alerts.service.settings import Settings

IDLE_BUDGET_SECONDS: Final = 60.0
STEP_BYTES: Final = 16 * 1024
"""Number of bytes that are split into lines in one step."""


class LineSplitter:
    """Splits a stream of bytes into lines without line ends; blank lines are skipped.

    Parameters
    ----------
    limit : maximum number of bytes in a line.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self.pending = 0  # bytes of the unfinished line
        self.blank = 0  # number of skipped blank lines

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that end in ``data``. Raises ProblemError (413) at the first line that is too long."""
        first, *others = data.split(b"\n")
        self._hold(first)
        if others:
            yield from self._skip_blank([self._take_line(), *others[:-1]])
            self._hold(others[-1])

    def _skip_blank(self, lines: list[bytes]) -> Iterator[bytes]:
        """Yield the nonblank lines; the filters run without Python code per line."""
        too_long = max(map(len, lines), default=0) > self._limit
        if too_long:
            lines = list(takewhile(lambda line: len(line) <= self._limit, lines))
        nonblank = list(filter(bytes.strip, filter(None, lines)))
        self.blank += len(lines) - len(nonblank)
        yield from nonblank
        if too_long:
            raise self._too_long()

    def rest(self) -> Iterator[bytes]:
        """Yield the last line if the stream does not end with a line end."""
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
    """The lines of one request. Data are received only when a group of lines is requested.

    Parameters
    ----------
    settings : ``max_json_bytes`` (of a line), ``max_stream_curves`` (lines, and blank lines), ``body_timeout`` (until
        the next complete line) and ``stream_rate`` (minimum, in bytes per second).
    """

    def __init__(self, receive: Receive, settings: Settings) -> None:
        self._body, self._settings = Body(receive), settings
        self._lines = LineSplitter(settings.max_json_bytes)
        self._chunk, self._split = b"", 0  # the last chunk, and how many bytes of it were split
        self._ready: deque[bytes] = deque()
        self._ready_bytes = 0
        self._error: ProblemError | None = None
        self._count = 0
        self._handed = 0
        self._idle_budget = IDLE_BUDGET_SECONDS if settings.stream_rate else math.inf

    @property
    def held(self) -> int:
        """Number of received bytes that were not returned yet or are in the last group returned."""
        return len(self._chunk) - self._split + self._lines.pending + self._ready_bytes + self._handed

    async def group(self, most_lines: int, most_bytes: int) -> list[bytes] | None:
        """Return the next lines, waiting for at least one; None at the end.

        Raises
        ------
        ProblemError
            413 for a line that is too long or for too many lines, 408 for none in time, 400 for a body without lines.
            The lines before the error are returned first.
        ClientDisconnected
            If the client disconnects before the end.
        """
        self._handed = 0
        try:
            async with asyncio.timeout(min(self._settings.body_timeout, self._idle_budget)):
                while self._needs_more(most_lines, most_bytes):
                    await self._advance()
        except TimeoutError:
            if not self._ready:
                raise self._too_slow() from None
        if self._ready:
            return self._take(most_lines, most_bytes)
        if self._error is not None:
            raise self._error
        if not self._count:
            raise ProblemError(MALFORMED, "the body is empty")
        return None

    def _too_slow(self) -> ProblemError:
        if self._idle_budget > 1e-3:
            return ProblemError(TIMEOUT, f"no complete line arrived within {self._settings.body_timeout:g} s")
        return ProblemError(TIMEOUT, f"the stream is slower than {self._settings.stream_rate:g} bytes per second")

    def _needs_more(self, most_lines: int, most_bytes: int) -> bool:
        """Return whether to split or receive more data; only the first line of a group is waited for."""
        if not self._ready:
            return self._error is None and (self._body.more or bool(self._chunk))
        return bool(self._chunk) and len(self._ready) < most_lines and self._ready_bytes < most_bytes

    async def _advance(self) -> None:
        """Receive a chunk, or split a step of it and let other tasks of the event loop run."""
        if self._chunk:
            await asyncio.sleep(0)
        else:
            await self._receive_chunk()
        step = self._chunk[self._split : self._split + STEP_BYTES]
        self._split += len(step)
        if self._split == len(self._chunk):
            self._chunk, self._split = b"", 0
        try:
            self._add_lines(step)
        except ProblemError as error:
            self._error, self._chunk, self._split = error, b"", 0

    async def _receive_chunk(self) -> None:
        started = monotonic()
        try:
            self._chunk = await self._body.read_chunk()
        finally:
            if self._settings.stream_rate:
                self._idle_budget -= monotonic() - started
        if self._settings.stream_rate:
            count = len(self._chunk) - self._chunk.count(b"\n")  # blank lines do not count
            self._idle_budget = min(IDLE_BUDGET_SECONDS, self._idle_budget + count / self._settings.stream_rate)

    def _add_lines(self, step: bytes) -> None:
        if not self._count and not self._lines.pending:
            step = step.removeprefix(BOM)
        for line in self._lines.feed(step):
            self._add(line)
        if not self._body.more and not self._chunk:
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

    async def watch(self) -> NoReturn:
        """Wait until the client disconnects and raise ClientDisconnected; further data are discarded."""
        await self._body.watch()
