"""Decompression of request bodies in steps, so that a few kilobytes cannot exhaust the memory.

Each piece is decompressed in a thread and charged to the memory budget before the next one. A body may exceed its limit
by one piece.
"""

import zlib
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from nightjar_alerts.service.http.edge.errors import MALFORMED, ProblemError, body_too_large

CODINGS = ("gzip", "deflate", "zstd")
_WINDOWS = {
    "gzip": 16 + zlib.MAX_WBITS,
    "deflate": zlib.MAX_WBITS,
}  # zlib window sizes; deflate is the zlib format (RFC 9110)
_INPUT_BYTES, _OUTPUT_BYTES = 64 * 1024, 1024 * 1024
_ZSTD_INPUT_BYTES = 128  # four bytes may decompress to a block of 128 kB
_LARGEST_WINDOW = 8 * 1024 * 1024  # which a decoder of the zstd coding must support (RFC 9659)

InThread = Callable[[Callable[[], bytes | None]], Awaitable[bytes | None]]


async def inflate(data: bytes, coding: str, limit: int, charge: Callable[[int], None], in_thread: InThread) -> bytes:
    """Decompress a body.

    Parameters
    ----------
    coding : one of :data:`CODINGS`.
    limit : maximum size of the decompressed body in bytes.
    charge : called with the size of each piece; may raise.
    in_thread : runs a function in a thread.

    Raises
    ------
    ProblemError
        413 beyond the limit, 400 if the data are truncated, corrupt or followed by other data.
    """
    pieces, size, inflated = decompressed(data, coding), 0, list[bytes]()
    while (piece := await in_thread(partial(next, pieces, None))) is not None:
        size += len(piece)
        if size > limit:
            raise body_too_large(limit)
        charge(len(piece))
        inflated.append(piece)
    if not size:
        raise ProblemError(MALFORMED, "the body is empty")
    return b"".join(inflated)


def decompressed(data: bytes, coding: str) -> Iterator[bytes]:
    """Yield the decompressed data in pieces of at most a few mebibytes. Raises ProblemError (400)."""
    return _zstd(data) if coding == "zstd" else _zlib(data, coding)


def _zlib(data: bytes, coding: str) -> Iterator[bytes]:
    inflater = zlib.decompressobj(_WINDOWS[coding])
    try:
        for start in range(0, len(data), _INPUT_BYTES):
            chunk = data[start : start + _INPUT_BYTES]
            while chunk and not inflater.eof:
                yield inflater.decompress(chunk, _OUTPUT_BYTES)
                chunk = inflater.unconsumed_tail
            if inflater.eof and (inflater.unused_data or start + _INPUT_BYTES < len(data)):
                raise ProblemError(MALFORMED, f"other data follow the {coding} data of the body")
        yield inflater.flush()
    except zlib.error:
        raise ProblemError(MALFORMED, f"the body is not valid {coding} data") from None
    if not inflater.eof:
        raise ProblemError(MALFORMED, f"the {coding} data of the body are truncated")


def _zstd(data: bytes) -> Iterator[bytes]:
    import zstandard

    pieces, size = list[bytes](), 0
    inflater: Any = None
    try:
        for start in range(0, len(data), _ZSTD_INPUT_BYTES):
            chunk = data[start : start + _ZSTD_INPUT_BYTES]
            while chunk:
                if inflater is None:
                    inflater = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj()
                pieces.append(inflater.decompress(chunk))
                size += len(pieces[-1])
                chunk = inflater.unused_data if inflater.eof else b""  # start of the next frame
                inflater = None if inflater.eof else inflater
            if size >= _OUTPUT_BYTES:
                yield b"".join(pieces)
                pieces, size = [], 0
    except zstandard.ZstdError:
        raise ProblemError(MALFORMED, "the body is not valid zstd data") from None
    if inflater is not None:
        raise ProblemError(MALFORMED, "the zstd data of the body are truncated")
    yield b"".join(pieces)
