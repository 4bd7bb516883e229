"""Formats of bodies and replies: JSON, lines of JSON (NDJSON) and msgpack; :mod:`service.http.body.arrow` has Arrow.

JSON is the format for people, and the reference that the others are held to. msgpack has the same documents, a quarter
to a half as large and many times quicker to read: a column may be ``bin`` instead of a list, its little-endian values
in one piece (:data:`service.http.body.forms.DTYPES`), and an embedding is always ``bin`` in a reply. Lengths that a
body declares and does not keep, or a nesting without end, are refused by its decoder before memory is spent on them.
"""

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from service.http.body.forms import Options
from service.http.edge.errors import MALFORMED, ProblemError


class Answers(NamedTuple):
    """The answers to a request.

    Attributes
    ----------
    model : which network answered, as :class:`service.answers.replies.ClassifierProvenance`.
    classes, groups, bands : keys of the probabilities, of the hierarchy and of the points in every result.
    embedding_dim : length of the embeddings.
    results : one for each light curve, as :class:`replies.CurveResult` or ``CurveFailure``; an embedding
        is an array.
    options : what the caller wants of them.
    """

    model: Mapping[str, str]
    classes: Sequence[str]
    groups: Sequence[str]
    bands: Sequence[str]
    embedding_dim: int
    results: Sequence[Mapping[str, Any]]
    options: Options


def embedding_bytes(embedding: NDArray[np.float32], options: Options) -> bytes:
    """Little-endian values of the type asked for."""
    return _embedding(embedding, options).tobytes()


def embedding_text(embedding: NDArray[np.float32], options: Options) -> NDArray[Any] | str:
    """Return an embedding as a text format has it: numbers or base64, as asked for."""
    if options.embedding_encoding == "base64":
        return b64encode(embedding_bytes(embedding, options)).decode()
    return _embedding(embedding, options)


def _embedding(embedding: NDArray[np.float32], options: Options) -> NDArray[Any]:
    if options.embedding_dtype == "float32":
        return np.ascontiguousarray(embedding, "<f4")
    most = np.finfo(np.float16).max  # what is beyond would become infinite
    return np.clip(embedding, -most, most).astype("<f2")


JSON_TYPE = "application/json"
LINES_TYPE = "application/x-ndjson"

FORGIVEN_BYTES = 512 * 1024
"""Length up to which a text with numbers that JSON cannot hold is read all the same. Python's own parser, which takes
them, keeps the interpreter from every other thread until it is done: 50 ms for so many bytes."""

_NOT_FINITE = re.compile(r"NaN|Infinity|[0-9.][eE]\+?[0-9]{3}|(?<![0-9])[0-9]{309}")
_NEAR = 400
"""Characters from the first fault on in which the number stands that caused it, if one did."""


def read_json(body: bytes) -> object:
    """Parse a body that is one JSON document. Raises ProblemError (400) with the place of the first fault."""
    try:
        return parse(body)
    except ValueError as error:
        raise ProblemError(MALFORMED, f"the body is {error}") from None


def parse(text: bytes) -> object:
    """Parse one JSON document. Raises ValueError that says where the first fault is.

    Numbers that JSON cannot hold come through as NaN or infinity: Python writes them unasked, and the field that holds
    one is better named by the check of the light curve, which fails alone, than by a column of the text.
    In a text of more than :data:`FORGIVEN_BYTES` they are faults like any other.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if len(text) <= FORGIVEN_BYTES and _NOT_FINITE.search(error.doc, max(0, error.pos - 2), error.pos + _NEAR):
            with suppress(ValueError, RecursionError):
                return json.loads(text.decode())
        where = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"not one valid UTF-8 JSON document: {where}") from None


def write_json(answers: Answers) -> bytes:
    """One document."""
    results = [_plain(result, answers.options) for result in answers.results]
    return dump({"model": answers.model, "results": results})


def write_lines(answers: Answers) -> bytes:
    """One line for each result; which network answered is said elsewhere, once."""
    return b"".join(dump(_plain(result, answers.options)) + b"\n" for result in answers.results)


def dump(document: object) -> bytes:
    """JSON text of a document that may hold arrays."""
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _plain(result: Mapping[str, Any], options: Options) -> Mapping[str, Any]:
    if "embedding" not in result:
        return result
    return {**result, "embedding": embedding_text(result["embedding"], options)}


MSGPACK_TYPES = ("application/msgpack", "application/vnd.msgpack")

_DECODER = msgspec.msgpack.Decoder()
_ENCODER = msgspec.msgpack.Encoder()


def read_msgpack(body: bytes) -> object:
    """Parse one msgpack document. Raises ProblemError (400)."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ProblemError(MALFORMED, "the body is not one valid msgpack document with UTF-8 text") from None


def write_msgpack(answers: Answers) -> bytes:
    """One document."""
    results = [
        {**result, "embedding": embedding_bytes(result["embedding"], answers.options)}
        if "embedding" in result
        else result
        for result in answers.results
    ]
    return _ENCODER.encode({"model": answers.model, "results": results})
