"""Decoded bodies to light curves, and outcomes to results, for every format and endpoint.

Two forms of body: one bare curve, or ``{"light_curves": [...]}``; either may carry ``options``. A whole body is decoded
at once by the structs of :mod:`service.http.forms`. Only if that fails is it read again, curve by curve and field by
field, so that every wrong field has its error and a wrong curve fails alone. The errors are those of msgspec, in the
words of this interface (:data:`_REASONS`).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Annotated, Any, Final, Literal, Protocol, TypeVar, get_args, get_origin

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from numpy.typing import NDArray
from starlette.requests import Request

from nightjar_alerts.models.bulk import light_curves
from nightjar_alerts.models.lightcurve import Columns, LightCurve, LightCurveError, without_median
from nightjar_alerts.models.metadata import LARGEST, METADATA_COLUMNS, clean_metadata
from nightjar_alerts.models.photometry import NAMES, nearest_band
from nightjar_alerts.models.posterior import PriorError
from nightjar_alerts.service.answers.replies import MAX_FIELD_ERRORS, FieldError, pointer
from nightjar_alerts.service.answers.serializer import (
    ResultSerializer,
    default_serializer,
    result_serializer,
    serialize_all,
)
from nightjar_alerts.service.dataplane import Outcome
from nightjar_alerts.service.http.edge import errors
from nightjar_alerts.service.http.edge.errors import INVALID, MALFORMED, TOO_LARGE, ProblemError
from nightjar_alerts.service.http.edge.receive import BOM
from nightjar_alerts.service.http.forms import (
    DEFAULT_OPTIONS,
    DTYPES,
    MAX_FILTER_NAME,
    MAX_ID_LENGTH,
    MAX_SAFE_INTEGER,
    BatchClassifyRequest,
    ClassifyRequest,
    ClassifyResults,
    FilterIn,
    LightCurveIn,
    Options,
)
from nightjar_alerts.service.registry.serving import ModelHandle
from nightjar_alerts.service.settings import Settings

FormT = TypeVar("FormT", bound=Struct)

MOST_PARTS: Final = 2**18
"""Objects and named values of a JSON document; a thousand light curves with all of their metadata have a third."""
MOST_ITEMS: Final = 2**20
"""Values that are looked at one by one, each of which takes some fifty bytes, where a document holds an error."""
FORGIVEN_BYTES: Final = 512 * 1024
"""Length up to which a JSON text with NaN or infinity is read all the same, so that the error names the value. Python's
own parser, which takes them, keeps the interpreter lock until it is done: 50 ms for so many bytes."""
_NOT_FINITE = re.compile(r"NaN|Infinity")


class InvalidCurve(LightCurveError):
    """A curve that breaks one or more rules of the request; the first stands for it where one is wanted."""

    def __init__(self, errors: Iterable[FieldError], object_id: str = "") -> None:
        self.errors = tuple(errors)[:MAX_FIELD_ERRORS]
        self.object_id = object_id
        super().__init__(self.errors[0].pointer, self.errors[0].reason, self.errors[0].detail)


Form = LightCurveIn | InvalidCurve
Item = LightCurve | InvalidCurve


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """A decoded body.

    Attributes
    ----------
    forms : one entry for each curve, in order: its fields, or its errors.
    packed : whether a column may be bytes; in JSON they stand for base64 text, which is no column.
    set_options : options that the body names, which count more than query parameters; empty where there are none.
    """

    forms: Sequence[Form]
    options: Options
    packed: bool
    bare: bool = False
    set_options: frozenset[str] = frozenset()


class NotWhole(Exception):
    """A body that cannot be decoded at once and has to be decoded in parts, which takes longer."""


_PATH = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_MESSAGE = re.compile(r"^(?P<text>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
_REASONS: Final[Sequence[tuple[str, str, str]]] = (
    ("Expected `array` of length >=", "empty", "must not be empty"),
    ("Expected `str` of length <=", "too_long", ""),
    ("Expected `object` of length <=", "too_long", ""),
    ("Expected `str` matching", "string_pattern_mismatch", ""),
    ("Expected `int` >=", "too_small", ""),
    ("Expected `float` >", "greater_than", ""),
    ("Expected `float` <", "less_than", ""),
    ("Expected `str | object", "prior_type", "must be a name or an object of weights by class"),
    ("Invalid enum value", "not_one_of", ""),
    ("Number out of range", "not_finite", "must be finite"),
    ("Invalid base64", "not_a_list", "must be a list"),
)
_TYPES: Final[Sequence[tuple[str, str, str]]] = (
    ("array", "not_a_list", "must be a list"),
    ("object", "not_an_object", "must be an object"),
    ("str", "not_a_string", "must be a string"),
    ("float", "not_a_number", "must be a number"),
    ("int", "not_an_integer", "must be an integer"),
    ("bool", "not_a_boolean", "must be true or false"),
)
"""msgspec's messages by their beginning, and the types that they name as expected, the first that is found."""


def error_of(error: msgspec.ValidationError, parent: str = "") -> FieldError:
    """Return an error of msgspec in the words of this interface; ``parent`` points to the value that was decoded."""
    match = _MESSAGE.match(str(error))
    assert match is not None
    text = match["text"]
    where = parent + pointer(name or index for name, index in _PATH.findall(match["path"] or ""))
    if text.startswith("Object missing required field"):
        return FieldError(pointer=where + pointer([text.split("`")[1]]), reason="missing", detail="required field")
    if text.startswith("Object contains unknown field"):
        name = text.partition("`")[2][:-1]
        return FieldError(pointer=where + pointer([name]), reason="unknown_field", detail="there is no such field")
    if text.startswith("Invalid base64") and where.endswith("/metadata"):
        return FieldError(pointer=where, reason="not_an_object", detail="must be an object")
    for beginning, reason, detail in _REASONS:
        if text.startswith(beginning):
            return FieldError(pointer=where, reason=reason, detail=detail or text.replace("`", ""))
    expected = text.partition(", got")[0]
    for name, reason, detail in _TYPES:
        if name in expected:
            return FieldError(pointer=where, reason=reason, detail=detail)
    return FieldError(pointer=where, reason="invalid", detail=text.replace("`", ""))


class Reader(Protocol):
    """Access to the parts of a document, as far as it is decoded."""

    packed: bool

    def typed(self, value: Any, kind: Any) -> Any:
        """Decode a value. Raises msgspec.ValidationError."""

    def members(self, value: Any, form: type[Struct]) -> Mapping[str, Any]:
        """Return the values of an object by their names. Raises msgspec.ValidationError for names not in ``form``."""

    def items(self, value: Any) -> list[Any]:
        """Return the values of a list. Raises msgspec.ValidationError."""


@cache
def _raw_members(form: type[Struct]) -> Any:
    """Return a struct with the names of a form, whose values are not decoded yet."""
    fields = [(field.name, Raw | UnsetType, UNSET) for field in msgspec.structs.fields(form)]
    return msgspec.defstruct(f"{form.__name__}Members", fields, forbid_unknown_fields=True, kw_only=True)


@cache
def _field_types(form: type[Struct]) -> Mapping[str, tuple[Any, bool]]:
    """Return type and whether it is required, of each field of a form by its name."""
    return {field.name: (field.type, field.required) for field in msgspec.structs.fields(form)}


class Encoded:
    """Reader of JSON or msgpack, whose parts are decoded one by one."""

    def __init__(self, module: ModuleType, packed: bool) -> None:
        self.packed = packed
        self._decoder = cache(module.Decoder)  # one for each type

    def typed(self, value: Any, kind: Any) -> Any:
        """Decode a value."""
        return self._decoder(kind).decode(value)

    def members(self, value: Any, form: type[Struct]) -> Mapping[str, Any]:
        """Return the undecoded values of an object."""
        found = self.typed(value, _raw_members(form))
        return {name: raw for name in _field_types(form) if (raw := getattr(found, name)) is not UNSET}

    def items(self, value: Any) -> list[Any]:
        """Return the undecoded values of a list."""
        found: list[Any] = self.typed(value, Annotated[list[Raw], Meta(max_length=MOST_ITEMS)])
        return found


class Decoded:
    """Reader of a document that is plain objects already."""

    packed = True

    def typed(self, value: Any, kind: Any) -> Any:
        """Check a value; an array stays as it is, and text is never base64."""
        return value if isinstance(value, np.ndarray) else msgspec.convert(value, kind, builtin_types=(bytes,))

    def members(self, value: Any, form: type[Struct]) -> Mapping[str, Any]:
        """Return the values of an object."""
        if not isinstance(value, dict):
            raise msgspec.ValidationError(f"Expected `object`, got `{type(value).__name__}`")
        for name in value:
            if name not in _field_types(form):
                raise msgspec.ValidationError(f"Object contains unknown field `{name}`")
        return value

    def items(self, value: Any) -> list[Any]:
        """Return the values of a list."""
        if not isinstance(value, list):
            raise msgspec.ValidationError(f"Expected `array`, got `{type(value).__name__}`")
        return value


JSON_READER, MSGPACK_READER, PLAIN_READER = Encoded(msgspec.json, False), Encoded(msgspec.msgpack, True), Decoded()
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def parse_json(body: bytes, settings: Settings, at_once: bool = False) -> ParsedBody:
    """Parse a JSON body; raises as :func:`parse`."""
    body = body.removeprefix(BOM)
    if len(body) > MOST_PARTS and body.count(b"{") + body.count(b":") > MOST_PARTS:
        raise ProblemError(MALFORMED, f"the document has more than {MOST_PARTS} objects and names")
    return parse(body, JSON_READER, settings, at_once)


def parse_msgpack(body: bytes, settings: Settings, at_once: bool = False) -> ParsedBody:
    """Parse a msgpack body; raises as :func:`parse`."""
    return parse(body, MSGPACK_READER, settings, at_once)


def parse(body: bytes, reader: Encoded, settings: Settings, at_once: bool = False) -> ParsedBody:
    """Parse a body.

    Raises
    ------
    NotWhole
        If ``at_once``, for a body that has to be decoded in parts.
    ProblemError
        400 for a body that is not one document, 422 for an error of the envelope or of a bare curve, 413 for too many
        curves.
    """
    document: BatchClassifyRequest | ClassifyRequest
    try:
        try:
            document = reader.typed(body, BatchClassifyRequest)
        except msgspec.ValidationError:
            document = reader.typed(body, ClassifyRequest)
    except _UNREADABLE as error:
        if at_once:
            raise NotWhole from None
        if isinstance(error, msgspec.ValidationError):
            return _parse_in_parts(body, reader, settings)
        return _parse_not_finite(body, reader, settings, error)
    options = document.options
    check_deadline(options.deadline_ms, "/options/deadline_ms", settings)
    named = _set_options(body, reader) if options is not DEFAULT_OPTIONS else frozenset()
    if isinstance(document, BatchClassifyRequest):
        _check_count(len(document.light_curves), settings)
        return ParsedBody(document.light_curves, options, reader.packed, set_options=named)
    return ParsedBody([document], options, reader.packed, bare=True, set_options=named)


class _Envelope(Struct):
    light_curves: Raw | UnsetType = UNSET
    options: Raw | UnsetType = UNSET


def _set_options(body: Any, reader: Reader) -> frozenset[str]:
    """Return the names of the options in a body that is known to be valid."""
    envelope = reader.typed(body, _Envelope)
    return frozenset(reader.members(envelope.options, Options)) if envelope.options is not UNSET else frozenset()


def _parse_not_finite(body: bytes, reader: Encoded, settings: Settings, error: Exception) -> ParsedBody:
    """Parse a short JSON text with NaN or infinity, which JSON does not have; any other is malformed (400)."""
    if reader is JSON_READER and len(body) <= FORGIVEN_BYTES:
        with suppress(ValueError, RecursionError):
            text = body.decode()
            if _NOT_FINITE.search(text):
                return _parse_in_parts(_loads(text), PLAIN_READER, settings)
    kind = "JSON" if reader is JSON_READER else "msgpack"
    position = re.search(r"\(byte (\d+)\)", str(error))
    where = f": byte {position[1]}" if position else ""
    raise ProblemError(MALFORMED, f"the body is not one valid UTF-8 {kind} document{where}") from None


def _loads(text: str) -> Any:
    """Parse JSON with NaN or infinity. Raises ValueError, also for half a surrogate pair, which no reply can repeat."""
    document = json.loads(text)
    json.dumps(document, ensure_ascii=False).encode()
    return document


def _parse_in_parts(body: Any, reader: Reader, settings: Settings) -> ParsedBody:
    """Parse a body that holds an error."""
    try:
        if isinstance(body, bytes):  # an error of the document itself comes first
            reader.typed(body, Raw)
            if reader is JSON_READER:
                body.decode()
        many = _names_light_curves(body, reader)
        try:
            members = reader.members(body, BatchClassifyRequest if many else ClassifyRequest)
        except msgspec.ValidationError as error:
            raise _invalid(error) from None
        options, named = DEFAULT_OPTIONS, frozenset[str]()
        if "options" in members:
            options, named = _options_in_parts(members["options"], reader, settings)
        if not many:
            form = _form_in_parts({name: members[name] for name in members if name != "options"}, reader, "")
            return ParsedBody([form], options, reader.packed, bare=True, set_options=named)
        if isinstance(body, bytes) and reader is JSON_READER and body.count(b",") > MOST_ITEMS:
            raise ProblemError(TOO_LARGE, f"more than {MOST_ITEMS} values in a document with an error")
        try:
            curves = reader.items(members["light_curves"])
        except msgspec.ValidationError as error:
            raise _invalid(error, "/light_curves") from None
        if not curves:
            raise _wrong("/light_curves", "empty", "must not be empty")
        _check_count(len(curves), settings)
        forms = [curve_form(curve, reader, f"/light_curves/{index}") for index, curve in enumerate(curves)]
        return ParsedBody(forms, options, reader.packed, set_options=named)
    except _UNREADABLE as error:
        if isinstance(error, msgspec.ValidationError):
            if "`key`" in str(error):
                raise ProblemError(MALFORMED, "object keys must be strings") from None
            raise _invalid(error) from None
        assert isinstance(reader, Encoded)
        return _parse_not_finite(body, reader, settings, error)


def _names_light_curves(body: Any, reader: Reader) -> bool:
    if isinstance(body, bytes):
        return reader.typed(body, _Envelope).light_curves is not UNSET
    return isinstance(body, dict) and "light_curves" in body


def _invalid(error: msgspec.ValidationError, parent: str = "") -> ProblemError:
    if "`key`" in str(error):
        return ProblemError(MALFORMED, "object keys must be strings")
    return ProblemError(INVALID, errors=[error_of(error, parent)])


def _check_count(count: int, settings: Settings) -> None:
    if count > settings.max_curves:
        limit = settings.max_curves
        raise ProblemError(TOO_LARGE, f"{count} light curves, at most {limit} in one request", limit=limit)


def _options_in_parts(value: Any, reader: Reader, settings: Settings) -> tuple[Options, frozenset[str]]:
    try:
        members = reader.members(value, Options)
    except msgspec.ValidationError as error:
        raise _invalid(error, "/options") from None
    values, found = form_values(members, Options, reader, "/options")
    if found:
        raise ProblemError(INVALID, errors=found)
    options = Options(**values)
    check_deadline(options.deadline_ms, "/options/deadline_ms", settings)
    return options, frozenset(values)


def form_values(
    members: Mapping[str, Any], form: type[Struct], reader: Reader, parent: str
) -> tuple[dict[str, Any], list[FieldError]]:
    """Decode the fields of a form one by one; returns their values and the error of each that is wrong or missing."""
    values: dict[str, Any] = {}
    found: list[FieldError] = []
    for name, (kind, required) in _field_types(form).items():
        if name in members:
            try:
                values[name] = reader.typed(members[name], kind)
            except msgspec.ValidationError as error:
                wrong = error_of(error, parent + pointer([name]))
                if name == "filters":
                    wrong = _filter_error(members[name], reader, parent) or wrong
                if wrong.reason == "not_a_string" and _is_choice(kind):
                    wrong = FieldError(pointer=wrong.pointer, reason="not_one_of", detail="must be one of the names")
                found.append(wrong)
        elif required:
            found.append(FieldError(pointer=parent + pointer([name]), reason="missing", detail="required field"))
    return values, found


def _filter_error(value: Any, reader: Reader, parent: str) -> FieldError | None:
    """Return the first error of a described filter; msgspec does not say which member of a mapping is wrong."""
    with suppress(msgspec.ValidationError):
        filters = value if isinstance(value, dict) else reader.typed(value, dict[str, Raw])
        for name, described in filters.items():
            try:
                reader.typed(described, FilterIn)
            except msgspec.ValidationError as error:
                return error_of(error, parent + pointer(["filters", name]))
    return None


def _is_choice(kind: Any) -> bool:
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return get_origin(kind) is Literal


def curve_form(value: Any, reader: Reader, parent: str = "") -> Form:
    """Decode one light curve; ``parent`` points to it in the body."""
    try:
        form: LightCurveIn = reader.typed(value, LightCurveIn)
        return form
    except _UNREADABLE:
        pass
    try:
        members = reader.members(value, LightCurveIn)
    except _UNREADABLE as error:
        wrong = error if isinstance(error, msgspec.ValidationError) else msgspec.ValidationError("Invalid text")
        return InvalidCurve([error_of(wrong, parent)], _echoed_id(value, reader))
    return _form_in_parts(members, reader, parent)


def _form_in_parts(members: Mapping[str, Any], reader: Reader, parent: str) -> Form:
    values, found = form_values(members, LightCurveIn, reader, parent)
    if found:
        name = values.get("object_id", "")
        return InvalidCurve(found, str(name) if len(str(name)) <= MAX_ID_LENGTH else "")
    return LightCurveIn(**values)


class _Named(Struct):
    object_id: str | int = ""


def _echoed_id(value: Any, reader: Reader) -> str:
    """Return the name of a curve that is wrong in some other way, so that its sender can tell which it was."""
    with suppress(*_UNREADABLE):
        name = str(reader.typed(value, _Named).object_id)
        return name if len(name) <= MAX_ID_LENGTH else ""
    return ""


def light_curves_of(body: ParsedBody, settings: Settings) -> list[Item]:
    """Build the light curves of a body, or the errors of each. Raises ProblemError (422) for those of a bare curve."""
    parents = [""] if body.bare else [f"/light_curves/{index}" for index in range(len(body.forms))]
    items = _build(body.forms, parents, body.packed, settings)
    if body.bare and isinstance(items[0], InvalidCurve):
        raise ProblemError(INVALID, errors=items[0].errors)
    return items


def _build(forms: Sequence[Form], parents: Sequence[str], packed: bool, settings: Settings) -> list[Item]:
    columns = [
        form if isinstance(form, InvalidCurve) else _columns(form, settings.max_points, packed, parent)
        for form, parent in zip(forms, parents, strict=True)
    ]
    built = iter(_records([each for each in columns if isinstance(each, Columns)]))
    items: list[Item] = []
    for form, each, parent in zip(forms, columns, parents, strict=True):
        item = each if isinstance(each, InvalidCurve) else next(built)
        if isinstance(item, LightCurveError) and not isinstance(item, InvalidCurve):
            assert isinstance(each, Columns)
            error = FieldError(pointer=parent + item.pointer, reason=item.reason, detail=str(item))
            item = InvalidCurve([error], each.object_id)
        elif isinstance(item, LightCurve) and isinstance(form, LightCurveIn) and form.filters is not UNSET:
            item = replace(item, described_filters=_bands_of_filters(form.filters))
        items.append(item)
    return items


def _records(many: Sequence[Columns]) -> Sequence[LightCurve | LightCurveError]:
    if len(many) != 1:
        return light_curves(many) if many else []
    try:
        return [many[0].light_curve()]
    except LightCurveError as error:
        return [error]


_DTYPES: Final = {name: np.dtype(kind) for name, kind in DTYPES.items()}
_NUMBERS: Final = ("mjd", "flux", "flux_err")


def _columns(form: LightCurveIn, most: int, packed: bool, parent: str) -> Columns | InvalidCurve:
    """Return the columns of a light curve, with what types cannot say checked.

    Parameters
    ----------
    most : points.
    packed : as in :class:`ParsedBody`.
    """
    sent = {name: getattr(form, name) for name in (*_NUMBERS, "band", "detected")}
    found = [
        FieldError(
            pointer=f"{parent}/{name}",
            reason="too_many_points",
            detail=f"at most {most} observations in a light curve are accepted",
        )
        for name, column in sent.items()
        if column is not None and _count(name, column) > most
    ]
    metadata: dict[str, float] = {}
    described: dict[str, str] = {}
    object_id = ""
    if not found:
        for name, column in sent.items():
            try:
                sent[name] = _column(name, column, packed)
            except LightCurveError as error:
                found.append(FieldError(pointer=parent + error.pointer, reason=error.reason, detail=str(error)))
        try:
            metadata = _metadata(form.metadata, packed)
        except LightCurveError as error:
            found.append(FieldError(pointer=parent + error.pointer, reason=error.reason, detail=str(error)))
        try:
            object_id = _object_id(form.object_id)
        except LightCurveError as error:
            found.append(FieldError(pointer=parent + error.pointer, reason=error.reason, detail=str(error)))
        try:
            described = _bands_of_filters(form.filters)
        except LightCurveError as error:
            found.append(FieldError(pointer=parent + error.pointer, reason=error.reason, detail=str(error)))
        if form.survey.endswith("\n"):  # which the pattern lets through
            detail = "has small letters, digits and hyphens only"
            found.append(FieldError(pointer=f"{parent}/survey", reason="string_pattern_mismatch", detail=detail))
    if found:
        name = str(form.object_id)
        return InvalidCurve(found, name if len(name) <= MAX_ID_LENGTH else "")
    # Medians are of filters, before two of them become one band.
    flux = sent["flux"] if form.flux_kind == "difference" else without_median(sent["flux"], sent["band"])
    if described and isinstance(sent["band"], list):
        sent["band"] = [described.get(name, name) for name in sent["band"]]
    return Columns(
        sent["mjd"],
        flux,
        sent["flux_err"],
        sent["band"],
        sent["detected"],
        metadata,
        object_id,
        form.flux_unit,
        form.survey,
    )


def _bands_of_filters(filters: Mapping[str, FilterIn] | UnsetType) -> dict[str, str]:
    """Return the band that stands for each described filter. Raises LightCurveError."""
    if filters is UNSET:
        return {}
    bands = {}
    for name, described in filters.items():
        where = "/filters" + pointer([name])
        if not 0 < len(name) <= MAX_FILTER_NAME:
            raise LightCurveError(where, "wrong_length", f"a name has 1 to {MAX_FILTER_NAME} characters")
        if name in NAMES:
            raise LightCurveError(
                where, "known_band", "this band is known: leave it out, or give the filter another name"
            )
        try:
            bands[name] = nearest_band(described.wavelength_nm)
        except ValueError as error:
            raise LightCurveError(f"{where}/wavelength_nm", "no_band", str(error)) from None
    return bands


def _count(name: str, column: Any) -> int:
    return len(column) // _DTYPES[name].itemsize if isinstance(column, bytes) else len(column)


def _column(name: str, column: Any, packed: bool) -> Any:
    """Return a column as light curves take it: arrays of numbers, names as a list. Raises LightCurveError."""
    if isinstance(column, bytes):
        column = _array(name, column, packed)
        if name == "detected":
            return _flags(column)
    if isinstance(column, np.ndarray):
        if not column.size and name != "detected":
            raise LightCurveError(f"/{name}", "empty", "must not be empty")
        return _flags(column) if name == "detected" else column
    if name not in _NUMBERS:
        return column
    try:
        return np.array(column, np.float64)
    except OverflowError:  # of an integer beyond every float
        index = next(index for index, value in enumerate(column) if abs(value) > 1e308)
        raise LightCurveError(f"/{name}/{index}", "not_finite", "must be finite") from None


def _array(name: str, column: bytes, packed: bool) -> NDArray[Any]:
    dtype = _DTYPES[name]
    if not packed:
        kind = ("not_an_object", "must be an object") if name == "metadata" else ("not_a_list", "must be a list")
        raise LightCurveError(f"/{name}", *kind)
    if len(column) % dtype.itemsize:
        message = f"{len(column)} bytes are no whole number of {dtype.name} values"
        raise LightCurveError(f"/{name}", "partial_value", message)
    return np.frombuffer(column, dtype)


def _flags(column: NDArray[Any]) -> NDArray[np.bool_]:
    if column.dtype != np.bool_ and (column > 1).any():
        index = int(np.argmax(column > 1))
        raise LightCurveError(f"/detected/{index}", "not_a_boolean", "must be true or false")
    return column.astype(np.bool_)


def _metadata(metadata: Any, packed: bool) -> dict[str, float]:
    """Return metadata without what is missing. Raises LightCurveError."""
    if metadata is UNSET:
        return {}
    if isinstance(metadata, bytes | np.ndarray):
        row = _array("metadata", metadata, packed) if isinstance(metadata, bytes) else metadata
        if len(row) != len(METADATA_COLUMNS):
            message = f"must hold {len(METADATA_COLUMNS)} float32 values, NaN where one is missing, not {len(row)}"
            raise LightCurveError("/metadata", "wrong_length", message)
        present = {name: value for name, value in zip(METADATA_COLUMNS, row.tolist(), strict=True) if value == value}
    else:
        named = zip(type(metadata).__struct_fields__, msgspec.structs.astuple(metadata), strict=True)
        present = {name: value for name, value in named if value is not UNSET and value is not None}
    for name, value in present.items():
        if not abs(value) <= LARGEST:
            raise LightCurveError(f"/metadata/{name}", "not_finite", "must be finite in single precision")
    return clean_metadata(present)


def _object_id(name: str | int) -> str:
    if isinstance(name, int):
        if abs(name) > MAX_SAFE_INTEGER:
            message = "integers beyond 2**53 - 1 lose digits in JSON: send a string"
            raise LightCurveError("/object_id", "inexact_integer", message)
        return str(name)
    if len(name) > MAX_ID_LENGTH:
        raise LightCurveError("/object_id", "too_long", f"must have at most {MAX_ID_LENGTH} characters")
    return name


def parse_lines(lines: Sequence[bytes], settings: Settings) -> list[Item]:
    """Parse light curves, each a JSON text; one that is no JSON is invalid like any other."""
    forms = [_line_form(line) for line in lines]
    return _build(forms, [""] * len(forms), False, settings)


def _line_form(line: bytes) -> Form:
    try:
        form: LightCurveIn = JSON_READER.typed(line, LightCurveIn)
        return form
    except msgspec.ValidationError:
        with suppress(*_UNREADABLE):
            JSON_READER.typed(line, Raw)
            return curve_form(line, JSON_READER)
    except _UNREADABLE:
        with suppress(ValueError, RecursionError):
            if len(line) <= FORGIVEN_BYTES and _NOT_FINITE.search(text := line.decode()):
                return curve_form(_loads(text), PLAIN_READER)
    detail = "the line is not one valid UTF-8 JSON document"
    return InvalidCurve([FieldError(pointer="", reason="malformed", detail=detail)])


def parse_rows(rows: Sequence[dict[str, Any]], settings: Settings) -> ParsedBody:
    """Parse light curves whose columns are arrays, or plain objects where an array cannot hold them."""
    if not rows:
        raise _wrong("/light_curves", "empty", "must not be empty")
    _check_count(len(rows), settings)
    forms = [_row_form(row, f"/light_curves/{index}") for index, row in enumerate(rows)]
    return ParsedBody(forms, DEFAULT_OPTIONS, packed=True)


def _row_form(row: dict[str, Any], parent: str) -> Form:
    try:
        members = PLAIN_READER.members(row, LightCurveIn)
    except msgspec.ValidationError as error:
        return InvalidCurve([error_of(error, parent)], _echoed_id(row, PLAIN_READER))
    return _form_in_parts(members, PLAIN_READER, parent)


def read_query(request: Request, form: type[FormT]) -> FormT:
    """Read the query parameters of a request.

    Raises
    ------
    ProblemError
        422 for a parameter that is not in the form, is given twice or has a wrong value.
    """
    if not request.scope["query_string"]:
        default: FormT = _default(form)
        return default
    values: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        where = "/query" + pointer([name])
        if name not in _field_types(form):
            raise _wrong(where, "unknown_field", "there is no such parameter")
        if name in values:
            raise _wrong(where, "duplicate", "this parameter is given twice")
        values[name] = text
        if name == "prior" and text.lstrip().startswith("{"):
            try:
                values[name] = msgspec.json.decode(text)
            except msgspec.DecodeError:
                raise _wrong(where, "malformed", "must be a name or a JSON object of weights") from None
    read, found = form_values(values, form, _QUERY_READER, "/query")
    if found:
        raise ProblemError(INVALID, errors=found)
    return form(**read)


class _Texts(Decoded):
    """Reader of query parameters, which are texts."""

    def typed(self, value: Any, kind: Any) -> Any:
        """Read a text as the value that it stands for."""
        read = msgspec.convert(value, kind, strict=False)
        if read is None:  # msgspec takes the text "null" for null, which no query parameter can be
            msgspec.convert("none", kind, strict=False)  # raises, unless the kind allows text
            return value
        return read


_QUERY_READER = _Texts()
_default = cache(lambda form: form())


def _wrong(where: str, reason: str, detail: str) -> ProblemError:
    return ProblemError(INVALID, errors=[FieldError(pointer=where, reason=reason, detail=detail)])


def merged_options(body: ParsedBody, query: Options) -> Options:
    """Return the options of a request: those of its body, then those of its query, then the defaults."""
    if query == _default(type(query)):
        return body.options
    names = _field_types(Options)
    return Options(**{name: getattr(body.options if name in body.set_options else query, name) for name in names})


def check_deadline(deadline_ms: int | None, pointer: str, settings: Settings) -> None:
    """Reject a deadline beyond the longest one allowed. Raises ProblemError (422)."""
    if deadline_ms is not None and deadline_ms > settings.max_deadline_ms:
        raise _wrong(pointer, "deadline_too_long", f"must be at most {settings.max_deadline_ms} milliseconds")


def check_bare(body: ParsedBody, outcomes: Sequence[Outcome]) -> None:
    """Raise ProblemError (500) for a request of a single light curve that failed: there is nothing else to answer."""
    if body.bare and outcomes[0].status == "failed":
        raise ProblemError(errors.INTERNAL, outcomes[0].detail)


def classify_results(
    serializers: Sequence[ResultSerializer], items: Sequence[Item], outcomes: Sequence[Outcome], options: Options
) -> ClassifyResults:
    """Return the results of light curves, ready to be encoded in any format.

    Parameters
    ----------
    serializers : one for each light curve. The reply names the model of the first; results of other models name theirs.
    """
    replies = serializers[0]
    results = serialize_all(
        serializers,
        outcomes,
        [_identity(item) for item in items],
        [item.errors if isinstance(item, InvalidCurve) else () for item in items],
        options.embedding,
        options.coverage,
    )
    return ClassifyResults(
        replies.provenance, replies.classes, replies.groups, replies.bands, replies.embedding_dim, results, options
    )


def _identity(item: Item) -> dict[str, Any]:
    """Return what a result repeats of its light curve."""
    if isinstance(item, LightCurve) and item.described_filters:
        return {"object_id": item.object_id, "filters": dict(item.described_filters)}
    return {"object_id": item.object_id}


def serializer_for(handle: ModelHandle, prior: Any, default: str, where: str = "/options/prior") -> ResultSerializer:
    """Return the serializer of a model's results under a prior.

    Parameters
    ----------
    prior : of the request.
    default : name of the prior where the request names none, if the model has it.
    where : pointer to ``prior`` in the request.

    Raises
    ------
    ProblemError
        422 where the model cannot use the prior of the request.
    """
    try:
        return default_serializer(handle, default) if prior is None else result_serializer(handle, prior)
    except PriorError as error:
        raise _wrong(where + error.pointer, error.reason, str(error)) from None


def result_serializers(
    handles: Sequence[ModelHandle], prior: Any, default: str, where: str = "/options/prior"
) -> list[ResultSerializer]:
    """Return the serializer for each light curve, the same for all of a model. Raises as :func:`serializer_for`."""
    serializers = {handle: serializer_for(handle, prior, default, where) for handle in dict.fromkeys(handles)}
    return [serializers[handle] for handle in handles]


Parse = Callable[[bytes, Settings, bool], ParsedBody]
