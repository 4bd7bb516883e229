"""Bodies of ``/v1/classify``: one light curve, or ``{"light_curves": [...]}``, each with optional ``options``.

:func:`decode_valid` decodes a whole body in one step, the fast path. Only a body that this rejects is decoded again
light curve by light curve and field by field (:func:`decode`), so that every invalid field has its error and an invalid
light curve does not affect the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import orjson
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from nightjar_alerts.core.decoding import (
    JSON_READER,
    KEY_NOT_A_STRING,
    MAX_NAMES,
    OBJECT_READER,
    TOO_LONG,
    UNDECODABLE,
    BytesReader,
    Reader,
    build_light_curve,
    decode_fields,
    decode_light_curve,
    diagnose_light_curve,
    field_types,
    find_error,
    load_nonfinite_json,
    open_fields,
)
from nightjar_alerts.core.errors import FieldError, InvalidLightCurve
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
from nightjar_alerts.service.http.edge.body import BOM
from nightjar_alerts.service.http.edge.errors import INVALID, MALFORMED, TOO_LARGE, ProblemError, invalid_field
from nightjar_alerts.service.http.query import default_query
from nightjar_alerts.service.settings import Settings


class _Batch(Struct, kw_only=True, forbid_unknown_fields=True):
    """:class:`BatchClassifyRequest` with undecoded options."""

    light_curves: Annotated[list[LightCurveIn], Meta(min_length=1)]
    options: Raw | UnsetType = UNSET


class _Single(LightCurveIn):
    """:class:`ClassifyRequest` with undecoded options."""

    options: Raw | UnsetType = UNSET


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
    """Decode a body in one step; None if its light curves are invalid.

    Raises
    ------
    ProblemError
        413 for too many light curves, 422 for invalid options, 400 for JSON with too many objects and names.
    """
    document: _Batch | _Single
    if reader is JSON_READER:
        data = _check_json(data)
    try:
        try:  # batches first: their speed matters, and a single light curve fails at its first name
            document = reader.decode(data, _Batch)
        except msgspec.ValidationError:
            document = reader.decode(data, _Single)
        options, given = DEFAULT_OPTIONS, frozenset[str]()
        if document.options is not UNSET:
            options, given = _decode_options(document.options, reader, settings)
    except UNDECODABLE:  # also for text in the options that is not UTF-8
        return None
    if isinstance(document, _Batch):
        _check_count(len(document.light_curves), settings)
        return RequestBody(document.light_curves, options, given, reader.binary_columns)
    return RequestBody([document], options, given, reader.binary_columns, single=True)


def decode(data: bytes, settings: Settings, reader: BytesReader) -> RequestBody:
    """Decode a body, part by part if it is invalid. Raises ProblemError as :func:`diagnose`."""
    return decode_valid(data, settings, reader) or diagnose(data, settings, reader)


def diagnose(data: bytes, settings: Settings, reader: BytesReader) -> RequestBody:
    """Decode a body for which :func:`decode_valid` returned None, part by part.

    Raises
    ------
    ProblemError
        400 for a body that is not a valid document of its format, 422 for an invalid document or single light curve,
        413 for too many light curves, and for too many values in a document with an error.
    """
    if reader is JSON_READER:
        data = data.removeprefix(BOM)
    try:
        reader.decode(data, Raw)  # the whole document, so that a malformed one is malformed whatever else is wrong
        if reader is JSON_READER:
            data.decode()
        return _decode_parts(reader.open(data), reader, settings)
    except UNDECODABLE as error:
        if reader is not JSON_READER:
            raise ProblemError(MALFORMED, "the body is not a valid UTF-8 msgpack document") from None
        try:
            document = load_nonfinite_json(data)
        except (ValueError, RecursionError):
            where = _find_syntax_error(data, error)
            raise ProblemError(MALFORMED, f"the body is not a valid UTF-8 JSON document{where}") from None
        return _decode_parts(OBJECT_READER.open(document), OBJECT_READER, settings)


def _find_syntax_error(data: bytes, error: Exception) -> str:
    """Return where JSON is malformed, for a message; empty if finding it would take too much memory."""
    if isinstance(error, UnicodeDecodeError):
        return f": byte {error.start} is not UTF-8"
    if data.count(b"[") + data.count(b"{") > MAX_NAMES:
        return ""
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError as found:
        return f": line {found.lineno}, column {found.colno}"
    return ""


def _decode_parts(opened: Any, reader: Reader, settings: Settings) -> RequestBody:
    """Decode the parts of an invalid document one by one. Raises ProblemError, or UNDECODABLE for text that is not."""
    batch = isinstance(opened, dict) and "light_curves" in opened
    fields = _fields_at("", opened, BatchClassifyRequest if batch else ClassifyRequest)
    options, given = DEFAULT_OPTIONS, frozenset[str]()
    if "options" in fields:
        options, given = _decode_options(fields["options"], reader, settings)
    if not batch:
        columns = {name: fields[name] for name in fields if name != "options"}
        curve = build_light_curve(columns, reader, "")
        return RequestBody([curve], options, given, reader.binary_columns, single=True)
    elements = reader.open(fields["light_curves"])
    if elements is TOO_LONG:
        raise ProblemError(TOO_LARGE, TOO_LONG.detail)
    if not isinstance(elements, list):
        kind = field_types(BatchClassifyRequest)["light_curves"][0]
        raise ProblemError(INVALID, errors=[find_error(fields["light_curves"], kind, reader, "/light_curves")])
    if not elements:
        raise invalid_field("/light_curves", "empty", "must not be empty")
    _check_count(len(elements), settings)
    curves = [decode_light_curve(element, reader, f"/light_curves/{index}") for index, element in enumerate(elements)]
    return RequestBody(curves, options, given, reader.binary_columns)


def _decode_options(value: Any, reader: Reader, settings: Settings) -> tuple[Options, frozenset[str]]:
    """Return the options, and the names of those that were given. Raises ProblemError."""
    fields = _fields_at("/options", reader.open(value), Options)
    try:
        options = reader.decode(value, Options)
    except msgspec.ValidationError:  # or a name is given twice, of which the last one counts
        values, errors = decode_fields(fields, Options, reader, "/options")
        if errors:
            raise ProblemError(INVALID, errors=errors) from None
        options = Options(**values)
    check_deadline(options.deadline_ms, "/options/deadline_ms", settings)
    return options, frozenset(fields)


def _fields_at(where: str, opened: Any, struct: type[Struct]) -> Mapping[str, Any]:
    """Return the undecoded fields of an object. Raises ProblemError."""
    fields = open_fields(opened, struct, where)
    if not isinstance(fields, FieldError):
        return fields
    if opened is KEY_NOT_A_STRING:
        raise ProblemError(MALFORMED, KEY_NOT_A_STRING.detail)
    if opened is TOO_LONG:
        raise ProblemError(TOO_LARGE, TOO_LONG.detail)
    raise ProblemError(INVALID, errors=[fields])


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
