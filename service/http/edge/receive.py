"""Reading requests from slow, lying and vanishing clients.

Bytes are counted as they arrive (a Content-Length can lie and a chunked body has none), the whole body has a deadline,
and all bodies held at once share one budget. A client that goes away ends its own work: Starlette alone would let a
handler run to its end for nobody.
"""

import asyncio
from collections.abc import Awaitable, Collection, Iterable
from typing import TypeVar

from starlette.requests import Request
from starlette.types import Receive

from service.http.edge.errors import MALFORMED, OVERLOADED, TIMEOUT, TOO_LARGE, UNSUPPORTED, ProblemError

T = TypeVar("T")

RETRY_AFTER_FULL = 1.0
UNWATCHED_SECONDS = 0.1  # work that has ended by then is not worth a task that looks out for the client's end


class ClientGone(Exception):
    """The client closed its connection before it got an answer."""


class BodyBudget:
    """Bytes of request bodies held in memory, over all requests."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, size: int) -> None:
        """Reserve bytes. Raises ProblemError (429) when that would exceed the limit."""
        if self.held + size > self.limit:
            detail = "this service holds as many request bodies as its memory allows"
            raise ProblemError(OVERLOADED, detail, retry_after=RETRY_AFTER_FULL)
        self.held += size

    def give_back(self, size: int) -> None:
        """Release bytes taken before."""
        self.held -= size


class Body:
    """One request body, its bytes charged to the budget until the ``with`` block ends."""

    def __init__(self, request: Request, budget: BodyBudget) -> None:
        self._request, self._budget = request, budget
        self._chunks: list[bytes] = []
        self._size = 0

    def __enter__(self) -> "Body":
        """Start with nothing read."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the bytes back, whatever happened."""
        self._budget.give_back(self._size)
        self._chunks.clear()

    async def read(self, limit: int, timeout: float) -> bytes:
        """Read it all.

        Raises
        ------
        ProblemError
            413 beyond ``limit`` bytes, 408 after ``timeout`` seconds, 429 when the budget is spent, 400 when empty.
        ClientGone
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
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    def charge(self, size: int) -> None:
        """Charge bytes that were made of the body, its decompressed form. Raises ProblemError (429)."""
        self._budget.take(size)
        self._size += size

    def _check_declared(self, limit: int) -> None:
        declared = self._request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise too_large(limit)

    async def _read_chunk(self, limit: int) -> bool:
        """Whether there is more to come."""
        message = await self._request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if chunk := message.get("body", b""):
            if self._size + len(chunk) > limit:
                raise too_large(limit)
            self.charge(len(chunk))
            self._chunks.append(chunk)
        return bool(message.get("more_body", False))


def too_large(limit: int) -> ProblemError:
    """The problem (413) of a body longer than ``limit`` bytes."""
    return ProblemError(TOO_LARGE, f"the body is longer than {limit} bytes", limit=limit)


def content_coding(request: Request, accepted: Collection[str] = ()) -> str:
    """How the body is compressed, in lower case; empty when it is not. Raises ProblemError (415) if not accepted."""
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding in ("", "identity"):
        return ""
    if coding not in accepted:
        instead = f"or with one of: {', '.join(accepted)}" if accepted else "only"
        raise ProblemError(UNSUPPORTED, f"bodies are read without a Content-Encoding {instead}")
    return coding


def media_type(request: Request, accepted: Iterable[str], codings: Collection[str] = ()) -> str:
    """Media type of the body, without parameters and in lower case; empty when the client sent none.

    Raises
    ------
    ProblemError
        415 for a type that is not accepted, or for a body compressed otherwise than in one of ``codings``.
    """
    content_coding(request, codings)
    name = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    accepted = tuple(accepted)
    if name and name not in accepted:
        raise ProblemError(UNSUPPORTED, f"send the body as one of: {', '.join(accepted)}")
    return name


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Return the result of ``work``, started after the body was read; ClientGone cancels it when the client leaves.

    That is looked out for once the work has taken :data:`UNWATCHED_SECONDS`; who has left before is noticed then.
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
            raise ClientGone from None
        raise
    finally:
        later.cancel()
        for each in watches:
            each.remove_done_callback(leave)
            each.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
