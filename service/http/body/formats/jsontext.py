"""JSON, and lines of JSON (NDJSON): the format for people, and the reference that the others are held to."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from service.http.body.formats.answers import Answers, embedding_text
from service.http.body.forms import Options
from service.http.edge.errors import MALFORMED, ProblemError

MEDIA_TYPE = "application/json"
LINES_TYPE = "application/x-ndjson"

FORGIVEN_BYTES = 512 * 1024
"""Length up to which a text with numbers that JSON cannot hold is read all the same. Python's own parser, which takes
them, keeps the interpreter from every other thread until it is done: 50 ms for so many bytes."""

_NOT_FINITE = re.compile(r"NaN|Infinity|[0-9.][eE]\+?[0-9]{3}|(?<![0-9])[0-9]{309}")
_NEAR = 400
"""Characters from the first fault on in which the number stands that caused it, if one did."""


def read(body: bytes) -> object:
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


def write(answers: Answers) -> bytes:
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
