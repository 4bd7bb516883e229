"""Request bodies with limits of size and time, and cancellation of work whose client disconnects.

:class:`Body` is the only reader of bodies: of whole ones, also of the admin API, and of the chunks of streams
(:mod:`service.http.edge.lines`). Bytes are counted as they arrive, because a Content-Length may be wrong and a chunked
body has none. When a client disconnects, its work is cancelled; Starlette alone would run the handler to its end.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from typing import Final, NoReturn, TypeVar

from starlette.requests import Request
from starlette.types import Message, Receive

from nightjar_alerts.service.http.edge.budget import Reservation
from nightjar_alerts.service.http.edge.decompression import CODINGS
from nightjar_alerts.service.http.edge.errors import (
    TIMEOUT,
    UNSUPPORTED,
    ProblemError,
    body_too_large,
)

T = TypeVar("T")

BOM: Final = b"\xef\xbb\xbf"
WATCH_AFTER_SECONDS: Final = 0.1
"""Time after which a request is cancelled if its client disconnects; most requests are finished before."""


class ClientDisconnected(Exception):
    """The client closed its connection before the response was sent."""


class Body:
    """A request body, received once: as a whole, or chunk by chunk.

    Parameters
    ----------
    receive : ASGI function that returns the messages of the request.
    reservation : what the bytes of :meth:`read` are charged to; None for bodies too small to count.
    declared : the Content-Length of the request; empty or invalid if unknown.

    Attributes
    ----------
    more : whether data may follow.
    """

    def __init__(self, receive: Receive, reservation: Reservation | None = None, declared: str = "") -> None:
        self._receive, self._reservation, self._declared = receive, reservation, declared
        self._size = 0
        self.more = True

    async def read(self, limit: int, timeout: float) -> bytes:
        """Read the whole body, which may be empty.

        Raises
        ------
        ProblemError
            413 beyond ``limit`` bytes, 408 after ``timeout`` seconds, 429 without memory for it.
        ClientDisconnected
            If the client disconnects before the end; a truncated body is never returned.
        """
        if self._declared.isdecimal() and int(self._declared) > limit:
            raise body_too_large(limit)
        chunks = list[bytes]()
        try:
            async with asyncio.timeout(timeout):
                while self.more:
                    chunk = await self.read_chunk()
                    if self._size + len(chunk) > limit:
                        raise body_too_large(limit)
                    if chunk:
                        self.charge(len(chunk))
                        chunks.append(chunk)
        except TimeoutError:
            raise ProblemError(TIMEOUT, f"the body did not arrive within {timeout:g} s") from None
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def read_chunk(self) -> bytes:
        """Receive the next bytes, of any number. Raises ClientDisconnected."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        self.more = bool(message.get("more_body", False))
        chunk: bytes = message.get("body", b"")
        return chunk

    def charge(self, size: int) -> None:
        """Charge further bytes, such as those of the decompressed body. Raises ProblemError (429)."""
        self._size += size
        if self._reservation is not None:
            self._reservation.resize(self._size)

    async def watch(self) -> NoReturn:
        """Wait until the client disconnects and raise ClientDisconnected; further data are discarded."""
        await _disconnect(self._receive)
        raise ClientDisconnected


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that returns an already read body, and then calls ``receive``."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_next() -> Message:
        return messages.pop() if messages else await receive()

    return receive_next


def get_content_coding(request: Request) -> str:
    """Return the Content-Encoding of a body in lower case, or "". Raises ProblemError (415) if unsupported."""
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding in ("", "identity"):
        return ""
    coding = "gzip" if coding == "x-gzip" else coding
    if coding not in CODINGS:
        raise ProblemError(UNSUPPORTED, f"supported values of Content-Encoding: {', '.join(CODINGS)}")
    return coding


def get_media_type(request: Request, accepted: Iterable[str], other: Mapping[str, str] | None = None) -> str:
    """Return the media type of a body in lower case, without parameters; empty if the request has none.

    Parameters
    ----------
    other : path of the endpoint for each media type that another one accepts.

    Raises
    ------
    ProblemError
        415 for a media type that is not accepted, or an unsupported Content-Encoding.
    """
    get_content_coding(request)
    name = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    accepted = tuple(accepted)
    if other and name in other:
        raise ProblemError(UNSUPPORTED, f"{name} is read by {other[name]}: send the table there")
    if name and name not in accepted:
        raise ProblemError(UNSUPPORTED, f"supported values of Content-Type: {', '.join(accepted)}")
    return name


async def cancel_on_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Return the result of ``work``, started after the body was read; cancel it if the client disconnects.

    The connection is watched after :data:`WATCH_AFTER_SECONDS`; earlier disconnects are noticed then.
    """
    task = asyncio.current_task()
    assert task is not None
    watches: list[asyncio.Future[None]] = []

    def cancel(_: object) -> None:
        task.cancel()

    def watch() -> None:
        watches.append(asyncio.ensure_future(_disconnect(request.receive)))
        watches[0].add_done_callback(cancel)

    later = asyncio.get_running_loop().call_later(WATCH_AFTER_SECONDS, watch)
    try:
        return await work
    except asyncio.CancelledError:
        if any(future.done() for future in watches) and not task.uncancel():  # cancelled by the client alone
            raise ClientDisconnected from None
        raise
    finally:
        later.cancel()
        for future in watches:
            future.remove_done_callback(cancel)
            future.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
