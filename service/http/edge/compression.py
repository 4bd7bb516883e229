"""Compressed request bodies: inflated in a thread, piece by piece, each charged to the budget before the next is made.

A few kilobytes can decompress to gigabytes; here they get as far as the limit on the body's size and a mebibyte more.
"""

import zlib
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from service.http.edge.errors import MALFORMED, ProblemError
from service.http.edge.receive import too_large

CODINGS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}  # zlib's window sizes; RFC 9110: deflate is zlib
_FED, _MADE = 64 * 1024, 1024 * 1024

OffLoop = Callable[[Callable[[], bytes | None]], Awaitable[bytes | None]]


async def inflate(data: bytes, coding: str, limit: int, charge: Callable[[int], None], off_loop: OffLoop) -> bytes:
    """Decompress a body.

    Parameters
    ----------
    coding : one of :data:`CODINGS`.
    limit : bytes of the decompressed body.
    charge : called with the size of every piece; may raise.
    off_loop : runs a function in a thread.

    Raises
    ------
    ProblemError
        413 beyond the limit, 400 when the body is cut short, corrupt or followed by something else.
    """
    made, size, left = _inflated(data, coding), 0, list[bytes]()
    while (piece := await off_loop(partial(next, made, None))) is not None:
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        charge(len(piece))
        left.append(piece)
    return b"".join(left)


def _inflated(data: bytes, coding: str) -> Iterator[bytes]:
    inflater = zlib.decompressobj(CODINGS[coding])
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
