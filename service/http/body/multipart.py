"""Splitting a multipart body (``form-data`` or ``mixed``) into the bytes of its parts.

A form as a browser or ``curl -F`` sends it and a plain ``multipart/mixed`` read alike: every part is one packet,
whatever its name.
"""

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from service.http.edge.errors import MALFORMED, TOO_LARGE, ProblemError

MEDIA_TYPES = ("multipart/form-data", "multipart/mixed")
MAX_BOUNDARY = 70  # RFC 2046


class _Parts:
    """Collects parts from the parser's callbacks."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.parts: list[bytes] = []
        self.complete = False
        self._chunks: list[bytes] = []

    def begin(self) -> None:
        if len(self.parts) == self.limit:
            raise ProblemError(TOO_LARGE, f"at most {self.limit} packets in one request", limit=self.limit)
        self._chunks = []

    def data(self, data: bytes, start: int, end: int) -> None:
        self._chunks.append(data[start:end])

    def end(self) -> None:
        self.parts.append(b"".join(self._chunks))

    def finish(self) -> None:
        self.complete = True


def split_parts(body: bytes, content_type: str, limit: int) -> list[bytes]:
    """Bytes of every part, in order.

    Raises
    ------
    ProblemError
        400 without a usable boundary, for a body that does not parse, is cut short or has no part; 413 beyond ``limit``
        parts.
    """
    collected = _Parts(limit)
    parser = MultipartParser(
        _boundary(content_type),
        {
            "on_part_begin": collected.begin,
            "on_part_data": collected.data,
            "on_part_end": collected.end,
            "on_end": collected.finish,
        },
    )
    try:
        parser.write(body)
    except FormParserError:
        raise ProblemError(MALFORMED, "the multipart body does not parse") from None
    if not collected.complete:
        raise ProblemError(MALFORMED, "the multipart body is cut short: its closing boundary is missing")
    if not collected.parts:
        raise ProblemError(MALFORMED, "the multipart body has no part")
    return collected.parts


def _boundary(content_type: str) -> bytes:
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 0 < len(boundary) <= MAX_BOUNDARY:
        raise ProblemError(MALFORMED, f"multipart needs a boundary of 1 to {MAX_BOUNDARY} characters in Content-Type")
    return boundary
