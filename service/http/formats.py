"""Formats of bodies and replies by their content types: JSON, lines of JSON (NDJSON), msgpack; and the choice of one.

JSON is the format for people, and the reference that the others are held to. msgpack has the same documents, a quarter
to a half as large and many times quicker to read: a column may be ``bin`` instead of a list, its little-endian values
in one piece (:data:`service.http.forms.DTYPES`), and an embedding is always ``bin`` in a reply. Lengths that a
body declares and does not keep, or a nesting without end, are refused by its decoder before memory is spent on them.

Arrow (:mod:`service.http.arrow`) needs pyarrow, which only the ``arrow`` extra installs and only the first Arrow
request imports; without it the format does not exist. A format without a reader is a stream, which
:mod:`service.http.routes.light_curves` reads.
"""

from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import msgspec

from nightjar_alerts.service.answers.serializer import encode_json
from nightjar_alerts.service.http.curves import Parse, ParsedBody, parse_json, parse_msgpack, parse_rows
from nightjar_alerts.service.http.edge.errors import NOT_ACCEPTABLE, UNSUPPORTED, ProblemError
from nightjar_alerts.service.http.forms import ClassifyResults, Options, embedding_bytes, embedding_text
from nightjar_alerts.service.settings import Settings

JSON_TYPE = "application/json"
LINES_TYPE = "application/x-ndjson"


def write_json(response: ClassifyResults) -> bytes:
    """One document."""
    results = [_plain(result, response.options) for result in response.results]
    return encode_json({"model": response.model, "results": results})


def write_lines(response: ClassifyResults) -> bytes:
    """One line for each result; which network answered is said elsewhere, once."""
    return b"".join(encode_json(_plain(result, response.options)) + b"\n" for result in response.results)


def _plain(result: Mapping[str, Any], options: Options) -> Mapping[str, Any]:
    if "embedding" not in result:
        return result
    return {**result, "embedding": embedding_text(result["embedding"], options)}


MSGPACK_TYPES = ("application/msgpack", "application/vnd.msgpack", "application/x-msgpack")

_ENCODER = msgspec.msgpack.Encoder()


def write_msgpack(response: ClassifyResults) -> bytes:
    """One document."""
    results = [
        {**result, "embedding": embedding_bytes(result["embedding"], response.options)}
        if "embedding" in result
        else result
        for result in response.results
    ]
    return _ENCODER.encode({"model": response.model, "results": results})


ARROW_TYPE = "application/vnd.apache.arrow.stream"


class Format(NamedTuple):
    """One format: its media type, how light curves are read from it and how answers are written in it.

    ``in_thread``: bodies of any size are read and written in a thread, for the first one loads a library.
    ``single_model``: a reply holds the classes of a single model.
    """

    media_type: str
    read: Parse | None
    write: Callable[[ClassifyResults], bytes]
    in_thread: bool = False
    single_model: bool = False


def _read_arrow(body: bytes, settings: Settings, _: bool) -> ParsedBody:
    from nightjar_alerts.service.http import arrow

    return parse_rows(arrow.read_arrow(body, settings.max_curves), settings)


def _write_arrow(response: ClassifyResults) -> bytes:
    from nightjar_alerts.service.http import arrow

    return arrow.write_arrow(response)


JSON = Format(JSON_TYPE, parse_json, write_json)
LINES = Format(LINES_TYPE, None, write_lines)
LINES_ALIASES = ("application/ndjson", "application/jsonl", "application/x-jsonlines")
ARROW = Format(ARROW_TYPE, _read_arrow, _write_arrow, in_thread=True, single_model=True)
MSGPACK = tuple(Format(name, parse_msgpack, write_msgpack) for name in MSGPACK_TYPES)

FORMATS: dict[str, Format] = {each.media_type: each for each in (JSON, *MSGPACK, LINES, ARROW)} | dict.fromkeys(
    LINES_ALIASES, LINES
)


@cache  # looking for a library costs more than a light curve
def available() -> Mapping[str, Format]:
    """Return the formats that can be used here."""
    return {name: each for name, each in FORMATS.items() if each is not ARROW or find_spec("pyarrow") is not None}


def body_format(media_type: str) -> Format:
    """Return the format of a body, JSON when it names none. Raises ProblemError (415) when it is not installed."""
    if media_type and media_type not in available():
        raise ProblemError(
            UNSUPPORTED, f"{media_type} is not installed here: install nightjar-alerts[arrow] on the server"
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
