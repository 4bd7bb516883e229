"""Every format by its content type, and the choice of one for a reply.

Arrow needs pyarrow, which only the ``arrow`` extra installs and only the first Arrow request imports; without it the
format does not exist. A format without a reader is a stream, which :mod:`service.http.line_stream` reads.
"""

from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

from service.http.body import formats
from service.http.body.formats import Answers
from service.http.edge.errors import NOT_ACCEPTABLE, UNSUPPORTED, ProblemError
from service.settings import Settings

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
    return formats.read_json(body)


def _read_msgpack(body: bytes, _: Settings) -> object:
    return formats.read_msgpack(body)


def _read_arrow(body: bytes, settings: Settings) -> object:
    from service.http.body import arrow

    return arrow.read_arrow(body, settings.max_curves)


def _write_arrow(answers: Answers) -> bytes:
    from service.http.body import arrow

    return arrow.write_arrow(answers)


JSON = Format(formats.JSON_TYPE, _read_json, formats.write_json)
LINES = Format(formats.LINES_TYPE, None, formats.write_lines)
ARROW = Format(ARROW_TYPE, _read_arrow, _write_arrow, slow_start=True, one_model=True)
MSGPACK = tuple(Format(name, _read_msgpack, formats.write_msgpack) for name in formats.MSGPACK_TYPES)

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
