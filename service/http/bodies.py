"""Bodies of ``/v1/classify``: one light curve, or ``{"light_curves": [...]}``, each with optional ``options``.

:func:`decode_valid` decodes a whole body in one step, the fast path. Only a body that this rejects is decoded again
light curve by light curve and field by field (:func:`decode`), so that every invalid field has its error and an invalid
light curve does not affect the others.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from nightjar_alerts.core.decoding import (
    JSON_READER,
    MAX_ELEMENTS,
    OBJECT_READER,
    UNDECODABLE,
    BytesReader,
    Reader,
    build_light_curve,
    decode_fields,
    decode_light_curve,
    diagnose_light_curve,
    field_types,
    load_nonfinite_json,
)
from nightjar_alerts.core.errors import InvalidLightCurve, is_key_error, to_field_error
from nightjar_alerts.core.request import (
    DEFAULT_OPTIONS,
    BatchClassifyRequest,
    ClassifyRequest,
    LightCurveIn,
    Options,
)
from nightjar_alerts.core.validation import validate_light_curves
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.service.http.deadlines import check_deadline
from nightjar_alerts.service.http.edge.body import BOM, MAX_NAMES
from nightjar_alerts.service.http.edge.errors import INVALID, MALFORMED, TOO_LARGE, ProblemError, invalid_field
from nightjar_alerts.service.http.query import default_query
from nightjar_alerts.service.settings import Settings


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A decoded body.

    Attributes
    ----------
    light_curves : fields or errors of each light curve, in order.
    options : options in the body, or the defaults.
    given_options : names of the options in the body, which take precedence over query parameters.
    binary_columns : whether a column may be bytes. False for JSON, where msgspec decodes base64 text as bytes.
    single : whether the body is a single light curve without ``light_curves``, whose errors are those of the request.
    """

    light_curves: Sequence[LightCurveIn | InvalidLightCurve]
    options: Options
    given_options: frozenset[str] = frozenset()
    binary_columns: bool = True
    single: bool = False


def decode_rows(rows: Sequence[dict[str, Any]], settings: Settings) -> RequestBody:
    """Decode light curves whose columns are arrays, or lists if an array cannot contain them.

    Raises
    ------
    ProblemError
        422 without rows, 413 for too many.
    """
    if not rows:
        raise invalid_field("/light_curves", "empty", "must not be empty")
    _check_count(len(rows), settings)
    curves = [diagnose_light_curve(row, OBJECT_READER, f"/light_curves/{index}") for index, row in enumerate(rows)]
    return RequestBody(curves, DEFAULT_OPTIONS)


def _check_json(data: bytes) -> bytes:
    """Return JSON without a byte order mark. Raises ProblemError (400) for too many objects and names."""
    data = data.removeprefix(BOM)
    if len(data) > MAX_NAMES and data.count(b"{") + data.count(b":") > MAX_NAMES:
        raise ProblemError(MALFORMED, f"the document has more than {MAX_NAMES} objects and names")
    return data


def decode_valid(data: bytes, settings: Settings, reader: BytesReader) -> RequestBody | None:
    """Decode a body in one step; None if it is invalid.

    Raises
    ------
    ProblemError
        413 for too many light curves, 422 for a deadline that is too long, 400 for JSON with too many objects and
        names.
    """
    document: BatchClassifyRequest | ClassifyRequest
    if reader is JSON_READER:
        data = _check_json(data)
    try:
        try:  # batches first: their speed matters, and a single light curve fails at its first name
            document = reader.decode(data, BatchClassifyRequest)
        except msgspec.ValidationError:
            document = reader.decode(data, ClassifyRequest)
    except UNDECODABLE:
        return None
    options = document.options
    check_deadline(options.deadline_ms, "/options/deadline_ms", settings)
    given = _given_options(data, reader) if options is not DEFAULT_OPTIONS else frozenset()
    if isinstance(document, BatchClassifyRequest):
        _check_count(len(document.light_curves), settings)
        return RequestBody(document.light_curves, options, given, reader.binary_columns)
    return RequestBody([document], options, given, reader.binary_columns, single=True)


def decode(data: bytes, settings: Settings, reader: BytesReader) -> RequestBody:
    """Decode a body, part by part if it is invalid.

    Raises
    ------
    ProblemError
        400 for a body that is not a valid document of its format, 422 for an invalid document or single light curve,
        413 for too many light curves.
    """
    body = decode_valid(data, settings, reader)
    if body is not None:
        return body
    if reader is JSON_READER:
        data = data.removeprefix(BOM)
    try:
        reader.decode(data, Raw)
        if reader is JSON_READER:
            data.decode()
        return _decode_parts(data, reader, settings)
    except msgspec.ValidationError as error:
        raise _to_problem(error) from None
    except UNDECODABLE as error:
        if reader is JSON_READER:
            try:
                return _decode_parts(load_nonfinite_json(data), OBJECT_READER, settings)
            except msgspec.ValidationError as invalid:
                raise _to_problem(invalid) from None
            except (ValueError, RecursionError):
                pass
        kind = "JSON" if reader is JSON_READER else "msgpack"
        position = re.search(r"\(byte (\d+)\)", str(error))
        where = f": byte {position[1]}" if position else ""
        raise ProblemError(MALFORMED, f"the body is not a valid UTF-8 {kind} document{where}") from None


class _Envelope(Struct):
    light_curves: Raw | UnsetType = UNSET
    options: Raw | UnsetType = UNSET


def _given_options(data: bytes, reader: BytesReader) -> frozenset[str]:
    """Return the names of the options in a valid body."""
    envelope = reader.decode(data, _Envelope)
    return frozenset(reader.fields(envelope.options, Options)) if envelope.options is not UNSET else frozenset()


def _decode_parts(document: Any, reader: Reader, settings: Settings) -> RequestBody:
    """Decode the parts of an invalid document one by one. Raises ProblemError or msgspec.ValidationError."""
    batch = _has_light_curves(document, reader)
    fields = reader.fields(document, BatchClassifyRequest if batch else ClassifyRequest)
    options, given = DEFAULT_OPTIONS, frozenset[str]()
    if "options" in fields:
        options, given = _decode_options(fields["options"], reader, settings)
    if not batch:
        columns = {name: fields[name] for name in fields if name != "options"}
        curve = build_light_curve(columns, reader, "")
        return RequestBody([curve], options, given, reader.binary_columns, single=True)
    if reader is JSON_READER and document.count(b",") > MAX_ELEMENTS:
        raise ProblemError(TOO_LARGE, f"more than {MAX_ELEMENTS} values in a document with an error")
    elements = _decode_at("/light_curves", reader.elements, fields["light_curves"])
    if not elements:
        raise invalid_field("/light_curves", "empty", "must not be empty")
    _check_count(len(elements), settings)
    curves = [decode_light_curve(element, reader, f"/light_curves/{index}") for index, element in enumerate(elements)]
    return RequestBody(curves, options, given, reader.binary_columns)


def _has_light_curves(document: Any, reader: Reader) -> bool:
    if isinstance(document, bytes):
        return reader.decode(document, _Envelope).light_curves is not UNSET
    return isinstance(document, dict) and "light_curves" in document


def _decode_options(value: Any, reader: Reader, settings: Settings) -> tuple[Options, frozenset[str]]:
    values, errors = decode_fields(_decode_at("/options", reader.fields, value, Options), Options, reader, "/options")
    if errors:
        raise ProblemError(INVALID, errors=errors)
    options = Options(**values)
    check_deadline(options.deadline_ms, "/options/deadline_ms", settings)
    return options, frozenset(values)


def _decode_at(where: str, decode: Callable[..., Any], *arguments: Any) -> Any:
    """Decode a part of a document. Raises ProblemError (422, or 400 for a key that is not a string)."""
    try:
        return decode(*arguments)
    except msgspec.ValidationError as error:
        raise _to_problem(error, where) from None


def _to_problem(error: msgspec.ValidationError, parent: str = "") -> ProblemError:
    if is_key_error(error):
        return ProblemError(MALFORMED, "object keys must be strings")
    return ProblemError(INVALID, errors=[to_field_error(error, parent)])


def _check_count(count: int, settings: Settings) -> None:
    if count > settings.max_curves:
        limit = settings.max_curves
        raise ProblemError(TOO_LARGE, f"{count} light curves, at most {limit} in one request", limit=limit)


def validate_body(body: RequestBody, settings: Settings) -> list[LightCurve | InvalidLightCurve]:
    """Validate the light curves of a body. Raises ProblemError (422) if a single light curve is invalid."""
    parents = [""] if body.single else [f"/light_curves/{index}" for index in range(len(body.light_curves))]
    curves = validate_light_curves(
        body.light_curves, settings.max_points, binary_columns=body.binary_columns, parents=parents
    )
    if body.single and isinstance(curves[0], InvalidLightCurve):
        raise ProblemError(INVALID, errors=curves[0].errors)
    return curves


def merge_options(body: RequestBody, query: Options) -> Options:
    """Return the options of a request: those in its body, else those in its query, else the defaults."""
    if query == default_query(type(query)):
        return body.options
    names: Mapping[str, Any] = field_types(Options)
    return Options(**{name: getattr(body.options if name in body.given_options else query, name) for name in names})
