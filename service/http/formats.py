"""Formats of requests and responses by media type (JSON, msgpack, Arrow, NDJSON), and content negotiation.

msgpack has the same documents as JSON at a quarter to a half of the size; columns may be the bytes of their
little-endian values (:data:`core.request.DTYPES`), and embeddings always are. Arrow
(:mod:`service.http.arrow`) needs pyarrow from the ``arrow`` extra, which is imported by the first Arrow request. NDJSON
requests are streams, read by :mod:`service.http.routes.ndjson`; every request may ask for an NDJSON response.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.util import find_spec
from typing import Final, NamedTuple

import msgspec

from nightjar_alerts.core.decoding import JSON_READER, MSGPACK_READER, BytesReader
from nightjar_alerts.core.serializer import encode_json
from nightjar_alerts.service.http.bodies import RequestBody, decode, decode_rows, decode_valid, diagnose
from nightjar_alerts.service.http.edge.errors import NOT_ACCEPTABLE, UNSUPPORTED, ProblemError
from nightjar_alerts.service.http.results import ClassifyResults, embedding_to_bytes, with_json_embeddings
from nightjar_alerts.service.settings import Settings

JSON_TYPE: Final = "application/json"
NDJSON_TYPE: Final = "application/x-ndjson"
NDJSON_TYPES: Final = (NDJSON_TYPE, "application/ndjson", "application/jsonl", "application/x-jsonlines")
MSGPACK_TYPES: Final = ("application/msgpack", "application/vnd.msgpack", "application/x-msgpack")
ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"


class RequestFormat(NamedTuple):
    """Format of a request body that is decoded as a whole.

    Attributes
    ----------
    decode : decodes a body; raises ProblemError if it is invalid.
    decode_valid : fast path, which returns None for an invalid body; None for a format that is always decoded in a
        thread, because it loads a library.
    diagnose : decodes a body for which the fast path returned None.
    """

    decode: Callable[[bytes, Settings], RequestBody]
    decode_valid: Callable[[bytes, Settings], RequestBody | None] | None
    diagnose: Callable[[bytes, Settings], RequestBody]


class ResponseFormat(NamedTuple):
    """Format of a response.

    Attributes
    ----------
    in_thread : whether responses are always encoded in a thread, because the format loads a library.
    single_model : whether a response can have the results of one model only.
    """

    media_type: str
    encode: Callable[[ClassifyResults], bytes]
    in_thread: bool = False
    single_model: bool = False


def _encode_json(results: ClassifyResults) -> bytes:
    return encode_json({"model": results.model, "results": with_json_embeddings(results)})


def encode_ndjson(results: ClassifyResults) -> bytes:
    """Encode one line per result, without the model, which a header names."""
    return b"".join(encode_json(result) + b"\n" for result in with_json_embeddings(results))


def _encode_msgpack(results: ClassifyResults) -> bytes:
    encoder = msgspec.msgpack.Encoder(enc_hook=partial(embedding_to_bytes, options=results.options))
    # msgspec gives a struct with more than 15 fields the long header of maps, even if few of them are present
    members = [result.members() for result in results.results]
    return encoder.encode({"model": results.model, "results": members})


def _decode_arrow(data: bytes, settings: Settings) -> RequestBody:
    from nightjar_alerts.service.http import arrow

    return decode_rows(arrow.read_arrow(data, settings.max_curves), settings)


def _encode_arrow(results: ClassifyResults) -> bytes:
    from nightjar_alerts.service.http import arrow

    return arrow.write_arrow(results)


JSON = ResponseFormat(JSON_TYPE, _encode_json)


def _request_format(reader: BytesReader) -> RequestFormat:
    return RequestFormat(
        partial(decode, reader=reader), partial(decode_valid, reader=reader), partial(diagnose, reader=reader)
    )


_MSGPACK_REQUEST = _request_format(MSGPACK_READER)
REQUEST_FORMATS: Final[Mapping[str, RequestFormat]] = {
    JSON_TYPE: _request_format(JSON_READER),
    **dict.fromkeys(MSGPACK_TYPES, _MSGPACK_REQUEST),
    ARROW_TYPE: RequestFormat(_decode_arrow, decode_valid=None, diagnose=_decode_arrow),
}
RESPONSE_FORMATS: Final[Mapping[str, ResponseFormat]] = {
    JSON_TYPE: JSON,
    **{name: ResponseFormat(name, _encode_msgpack) for name in MSGPACK_TYPES},
    NDJSON_TYPE: ResponseFormat(NDJSON_TYPE, encode_ndjson),
    ARROW_TYPE: ResponseFormat(ARROW_TYPE, _encode_arrow, in_thread=True, single_model=True),
}
CLASSIFY_TYPES: Final = (JSON_TYPE, *MSGPACK_TYPES, *NDJSON_TYPES, ARROW_TYPE)
"""Media types of a request to ``/v1/classify``."""


@cache  # find_spec() is slower than decoding a light curve
def is_available(media_type: str) -> bool:
    """Return whether the library of a format is installed."""
    return media_type != ARROW_TYPE or find_spec("pyarrow") is not None


def get_request_format(media_type: str) -> RequestFormat:
    """Return the format of a body; JSON if the media type is empty. Raises ProblemError (415) if not installed."""
    if not is_available(media_type):
        raise ProblemError(UNSUPPORTED, "Arrow support is not installed on the server; install nightjar-alerts[arrow]")
    return REQUEST_FORMATS[media_type or JSON_TYPE]


def negotiate_response(accept: str, media_type: str) -> ResponseFormat:
    """Select the format of a response by the Accept header; among equals, the format of the request is preferred.

    Parameters
    ----------
    media_type : media type of the request; JSON if empty. NDJSON requests only have NDJSON responses.

    Raises
    ------
    ProblemError
        406 if none of the accepted formats is available.
    """
    sent = RESPONSE_FORMATS[NDJSON_TYPE if media_type in NDJSON_TYPES else media_type or JSON_TYPE]
    if accept in ("", "*/*"):
        return sent
    usable = [sent]
    if sent.media_type != NDJSON_TYPE:
        usable += [form for form in RESPONSE_FORMATS.values() if is_available(form.media_type)]
    weights = _parse_accept(accept) or {"*/*": 1.0}
    best = max(usable, key=lambda form: _weight(form.media_type, weights))
    if not _weight(best.media_type, weights):
        names = ", ".join(dict.fromkeys(form.media_type for form in usable))
        raise ProblemError(NOT_ACCEPTABLE, f"available formats: {names}")
    return best


def _weight(media_type: str, weights: Mapping[str, float]) -> float:
    """Return the weight of a media type, given by the most specific media range that matches."""
    ranges = (media_type, media_type.partition("/")[0] + "/*", "*/*")
    return next((weights[name] for name in ranges if name in weights), 0.0)


def _parse_accept(accept: str) -> dict[str, float]:
    """Return the weight of each media range in an Accept header; parameters other than ``q`` are ignored."""
    weights: dict[str, float] = {}
    for part in accept.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if name:
            weights[name] = min((_quality(parameter) for parameter in parameters), default=1.0)
    return weights


def _quality(parameter: str) -> float:
    name, _, value = parameter.partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return min(max(float(value), 0.0), 1.0)
    except ValueError:
        return 1.0
