"""Formats of bodies and replies by their content types: JSON, lines of JSON (NDJSON), msgpack; and the choice of one.

JSON is the format for people, and the reference that the others are held to. msgpack has the same documents, a quarter
to a half as large and many times quicker to read: a column may be ``bin`` instead of a list, its little-endian values
in one piece (:data:`service.http.forms.DTYPES`), and an embedding is always ``bin`` in a reply. Lengths that a
body declares and does not keep, or a nesting without end, are refused by its decoder before memory is spent on them.

Arrow (:mod:`service.http.arrow`) needs pyarrow, which only the ``arrow`` extra installs and only the first Arrow
request imports; without it the format does not exist. A format without a reader is a stream, which
:mod:`service.http.routes.light_curves` reads.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple

import msgspec
import orjson

from nightjar_alerts.service.http.edge.errors import MALFORMED, NOT_ACCEPTABLE, UNSUPPORTED, ProblemError
from nightjar_alerts.service.http.forms import Answers, Options, embedding_bytes, embedding_text
from nightjar_alerts.service.settings import Settings

JSON_TYPE = "application/json"
LINES_TYPE = "application/x-ndjson"

FORGIVEN_BYTES = 512 * 1024
"""Length up to which a text with numbers that JSON cannot hold is read all the same. Python's own parser, which takes
them, keeps the interpreter from every other thread until it is done: 50 ms for so many bytes."""

MOST_PARTS = 2**18
"""Lists, objects and named values of a document; a thousand light curves with all of their metadata have a third. Each
takes up to a hundred bytes of memory, and one of its text: eight million kept every other thread waiting for 2.3 s."""
_TOO_MANY_PARTS = f"a document of more than {MOST_PARTS} lists, objects and names"

_NOT_FINITE = re.compile(r"NaN|Infinity|[0-9.][eE]\+?[0-9]{3}|(?<![0-9])[0-9]{309}")
_LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]", re.DOTALL)
"""Half a character, which Python's parser lets through: no reply could repeat it."""
_NEAR = 400
"""Characters, from the first fault on, that are searched for a number that caused it."""


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
    if len(text) > MOST_PARTS and sum(map(text.count, (b"[", b"{", b":"))) > MOST_PARTS:
        raise ValueError(_TOO_MANY_PARTS)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if _is_forgiven(text, error):
            with suppress(ValueError, RecursionError):
                return json.loads(text.decode())
        where = f"line {error.lineno}, column {error.colno}"
    raise ValueError(f"not one valid UTF-8 JSON document: {where}")  # not of orjson's, which holds all of the text


def _is_forgiven(text: bytes, error: orjson.JSONDecodeError) -> bool:
    """Return whether a number stands where the fault is, in a text that Python's parser may read instead."""
    if len(text) > FORGIVEN_BYTES or not _NOT_FINITE.search(error.doc, max(0, error.pos - 2), error.pos + _NEAR):
        return False
    return _LONE_SURROGATE.search(text) is None


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
        if len(body) > _HARMLESS_BYTES and not _is_usual(body):
            _check_parts(body)
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError, KeyError):
        raise ProblemError(MALFORMED, "the body is not one valid msgpack document with UTF-8 text") from None


_HARMLESS_BYTES = 4096
"""Length up to which nothing in a body is worth a look before it is decoded."""

_Numbers = bytes | list[int | float] | None


class _UsualCurve(msgspec.Struct, forbid_unknown_fields=True):
    object_id: str | int | None = None
    mjd: _Numbers = None
    flux: _Numbers = None
    flux_err: _Numbers = None
    band: bytes | list[str] | None = None
    detected: bytes | list[bool] | None = None
    metadata: bytes | Annotated[dict[str, int | float | None], msgspec.Meta(max_length=200)] | None = None
    flux_unit: str | None = None
    flux_kind: str | None = None
    survey: str | None = None


class _UsualBody(_UsualCurve):
    light_curves: Annotated[list[_UsualCurve], msgspec.Meta(max_length=MOST_PARTS // 16)] | None = None
    options: Annotated[dict[str, str | int | float | bool | None], msgspec.Meta(max_length=200)] | None = None


_USUAL = msgspec.msgpack.Decoder(_UsualBody)


def _is_usual(body: bytes) -> bool:
    """Return True for a body of the usual types, whose decoding is known to be harmless; costs what decoding does."""
    try:
        _USUAL.decode(body)
    except msgspec.ValidationError:
        return False
    return True


_HEADS: dict[int, tuple[int, int, str]] = {
    **dict.fromkeys((*range(0x80), 0xC0, 0xC2, 0xC3, *range(0xE0, 0x100)), (0, 0, "")),
    **{0x80 + count: (0, count, "names") for count in range(16)},
    **{0x90 + count: (0, count, "list") for count in range(16)},
    **{0xA0 + size: (0, size, "text") for size in range(32)},
    **{0xC4 + place: (1 << place, 0, "") for place in range(3)},
    **{0xC7 + place: (1 << place, 1, "") for place in range(3)},
    **{first: (0, size, "") for first, size in zip(range(0xCA, 0xD4), (4, 8, 1, 2, 4, 8, 1, 2, 4, 8), strict=True)},
    **{0xD4 + place: (0, 1 + (1 << place), "") for place in range(5)},
    **{0xD9 + place: (1 << place, 0, "text") for place in range(3)},
    **{0xDC + place: (2 << place, 0, "list") for place in range(2)},
    **{0xDE + place: (2 << place, 0, "names") for place in range(2)},
}
"""By the first byte of a value: bytes of its length, what is added to that, and what the length counts: values of a
list, or of names, or else bytes."""

_PLAIN = (
    b"[\x00-\x7f\xc0\xc2\xc3\xe0-\xff]|\xcb.{8}|\xca.{4}|[\xcc\xd0].|[\xcd\xd1]..|[\xce\xd2].{4}|[\xcf\xd3].{8}|"
    + (b"|".join(b"\\x%02x.{%d}" % (0xA0 + size, size) for size in range(32)))
)
_RUNS = [(count, re.compile(b"(?s:%s){%d}" % (_PLAIN, count))) for count in (1024, 32, 1)]
"""So many numbers or short texts, one after the other."""


def _check_parts(body: bytes) -> None:
    """Raise ProblemError (400) where a document has other names than texts, or too many parts.

    A name may be a list, and one that is hashed as others are is compared with each of them: 16,000 such names kept
    every other thread waiting for 3 s. Raises IndexError or KeyError for what is no msgpack.
    """
    at, parts, open_values = 0, 0, [(1, False)]  # values that are still to come of each list, or of names
    while open_values:
        count, is_named = open_values.pop()
        if not is_named:
            at, count = _skip_plain(body, at, count)
        if not count:
            continue
        open_values.append((count - 1, is_named))
        parts += 1
        if parts > MOST_PARTS:
            raise ProblemError(MALFORMED, f"the body is {_TOO_MANY_PARTS}")
        if is_named:
            at, size, kind = _head(body, at)
            if kind != "text":
                raise ProblemError(MALFORMED, "the body has a name that is no text")
            at += size
        at, size, kind = _head(body, at)
        if kind in ("list", "names"):
            open_values.append((size, kind == "names"))
        else:
            at += size


def _skip_plain(body: bytes, at: int, count: int) -> tuple[int, int]:
    """Return where the numbers and short texts end that a list of so many begins with, and how many come then."""
    for length, run in _RUNS:
        while count >= length and (match := run.match(body, at)) is not None:
            at, count = match.end(), count - length
    return at, count


def _head(body: bytes, at: int) -> tuple[int, int, str]:
    """Return where the content of a value begins, its size, and what that counts."""
    width, size, kind = _HEADS[body[at]]
    start = at + 1 + width
    return start, size + int.from_bytes(body[at + 1 : start], "big"), kind


def write_msgpack(answers: Answers) -> bytes:
    """One document."""
    results = [
        {**result, "embedding": embedding_bytes(result["embedding"], answers.options)}
        if "embedding" in result
        else result
        for result in answers.results
    ]
    return _ENCODER.encode({"model": answers.model, "results": results})


ARROW_TYPE = "application/vnd.apache.arrow.stream"


class Format(NamedTuple):
    """One format: its media type, how light curves are read from it and how answers are written in it.

    ``slow_start`` says that reading and writing are for a thread, whatever the size: a library is loaded on the way;
    ``one_model`` that a reply has room for the classes of a single model.
    """

    media_type: str
    read: Callable[[bytes, Settings], object] | None
    write: Callable[[Answers], bytes]
    slow_start: bool = False
    one_model: bool = False


def _read_json(body: bytes, _: Settings) -> object:
    return read_json(body)


def _read_msgpack(body: bytes, _: Settings) -> object:
    return read_msgpack(body)


def _read_arrow(body: bytes, settings: Settings) -> object:
    from nightjar_alerts.service.http import arrow

    return arrow.read_arrow(body, settings.max_curves)


def _write_arrow(answers: Answers) -> bytes:
    from nightjar_alerts.service.http import arrow

    return arrow.write_arrow(answers)


JSON = Format(JSON_TYPE, _read_json, write_json)
LINES = Format(LINES_TYPE, None, write_lines)
ARROW = Format(ARROW_TYPE, _read_arrow, _write_arrow, slow_start=True, one_model=True)
MSGPACK = tuple(Format(name, _read_msgpack, write_msgpack) for name in MSGPACK_TYPES)

FORMATS: dict[str, Format] = {each.media_type: each for each in (JSON, *MSGPACK, LINES, ARROW)}


@cache  # looking for a library costs more than a light curve
def available() -> Mapping[str, Format]:
    """Return the formats that can be used here."""
    return {name: each for name, each in FORMATS.items() if each is not ARROW or find_spec("pyarrow") is not None}


def body_format(media_type: str) -> Format:
    """Return the format of a body, JSON when it names none. Raises ProblemError (415) when it is not installed."""
    if media_type and media_type not in available():
        raise ProblemError(
            UNSUPPORTED, f"{media_type} is not installed here: its operator would install the arrow extra"
        )
    return FORMATS[media_type] if media_type else JSON


def reply_format(accept: str, sent: Format) -> Format:
    """Choose the format that an Accept header prefers; among equals the one ``sent``, then the table's order.

    Raises
    ------
    ProblemError
        406 when none of those accepted is there, or when a stream of lines is to be answered as anything else.
    """
    if accept in ("", "*/*"):
        return sent
    weights = _weights(accept) or {"*/*": 1.0}
    usable: Collection[Format] = [sent, *available().values()] if sent.read else [sent]
    best = max(usable, key=lambda each: _weight(each.media_type, weights))
    if not _weight(best.media_type, weights):
        names = ", ".join(dict.fromkeys(each.media_type for each in usable))
        raise ProblemError(NOT_ACCEPTABLE, f"replies to {sent.media_type} are given as: {names}")
    return best


def _weight(media_type: str, weights: dict[str, float]) -> float:
    """Return the weight of a media type: the most specific range that covers it decides."""
    ranges = (media_type, media_type.partition("/")[0] + "/*", "*/*")
    return next((weights[each] for each in ranges if each in weights), 0.0)


def _weights(accept: str) -> dict[str, float]:
    """Media ranges of an Accept header with their weights; parameters other than ``q`` are not looked at."""
    weights: dict[str, float] = {}
    for part in accept.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if name:
            weights[name] = min((_quality(each) for each in parameters), default=1.0)
    return weights


def _quality(parameter: str) -> float:
    name, _, value = parameter.partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return min(max(float(value), 0.0), 1.0)
    except ValueError:
        return 1.0
