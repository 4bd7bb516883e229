"""Reading a request's body line by line while it comes, without ever holding all of it."""

import asyncio
from collections import deque

from starlette.types import Receive

from service.http.errors import MALFORMED, TIMEOUT, TOO_LARGE, ProblemError
from service.http.formats.lines import Lines
from service.http.receive import ClientGone
from service.settings import Settings


class LineBody:
    """The lines of one request. Nothing is received unless a group of them is asked for.

    Parameters
    ----------
    settings : ``max_json_bytes`` of them in a line, ``max_stream_curves`` lines, ``body_timeout`` seconds to wait for
        the next whole line.
    """

    def __init__(self, receive: Receive, settings: Settings) -> None:
        self._receive, self._settings = receive, settings
        self._lines = Lines(settings.max_json_bytes)
        self._ready: deque[bytes] = deque()
        self._fault: ProblemError | None = None
        self._more = True
        self._count = 0
        self._handed = 0

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
            async with asyncio.timeout(self._settings.body_timeout):
                while self._more and not self._ready:
                    await self._receive_some()
        except TimeoutError:
            raise ProblemError(TIMEOUT, f"no whole line arrived within {self._settings.body_timeout:g} s") from None
        if self._ready:
            return self._take(most_lines, most_bytes)
        if self._fault is not None:
            raise self._fault
        if not self._count:
            raise ProblemError(MALFORMED, "the body is empty")
        return None

    async def _receive_some(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        self._more = message.get("more_body", False)
        try:
            for line in self._lines.feed(message.get("body", b"")):
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
