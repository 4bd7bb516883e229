"""msgpack: the documents of the JSON interface, a quarter to a half as large and many times quicker to read.

A column may be ``bin`` instead of a list, its little-endian values in one piece (:data:`body.packed.DTYPES`).
An embedding is always ``bin`` in a reply. Lengths that a body declares and does not keep, or a nesting without end,
are refused by the decoder before memory is spent on them.
"""

import msgspec

from service.http.body.formats.answers import Answers, embedding_bytes
from service.http.edge.errors import MALFORMED, ProblemError

MEDIA_TYPES = ("application/msgpack", "application/vnd.msgpack")

_DECODER = msgspec.msgpack.Decoder()
_ENCODER = msgspec.msgpack.Encoder()


def read(body: bytes) -> object:
    """Parse one msgpack document. Raises ProblemError (400)."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ProblemError(MALFORMED, "the body is not one valid msgpack document with UTF-8 text") from None


def write(answers: Answers) -> bytes:
    """One document."""
    results = [
        {**result, "embedding": embedding_bytes(result["embedding"], answers.options)}
        if "embedding" in result
        else result
        for result in answers.results
    ]
    return _ENCODER.encode({"model": answers.model, "results": results})
