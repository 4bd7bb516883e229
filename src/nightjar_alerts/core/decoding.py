"""Decoding of light curves from bytes (JSON, msgpack) or from objects with arrays to :class:`LightCurveIn`.

The fast path decodes a whole value in one step. Only a value that it rejects is decoded field by field, to find the
error of every invalid field.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Annotated, Any, Final, Literal, Protocol, get_args, get_origin

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from nightjar_alerts.core.errors import FieldError, InvalidLightCurve, pointer, to_field_error
from nightjar_alerts.core.request import MAX_ID_LENGTH, FilterIn, LightCurveIn, missing_columns
from nightjar_alerts.models.common import without_surrogates

MAX_ELEMENTS: Final = 2**20
"""Maximum length of a list that is decoded element by element, at some fifty bytes each."""
MAX_NONFINITE_BYTES: Final = 512 * 1024
"""Maximum length of JSON with NaN or infinity that is decoded, so that the error points at the value. Python's parser,
which accepts these, then holds the GIL for at most 50 ms."""
NEVER_EMPTY: Final = ("mjd", "flux", "flux_err", "mag", "mag_err", "band")
_NONFINITE = re.compile(r"NaN|Infinity")

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of a value that is invalid, or not encoded correctly."""


class Reader(Protocol):
    """Access to the parts of a document in one format.

    Attributes
    ----------
    binary_columns : whether bytes are a column of values. False for JSON, where msgspec decodes base64 text as bytes.
    """

    binary_columns: bool

    def decode(self, value: Any, kind: Any) -> Any:
        """Decode a value as a type. Raises msgspec.ValidationError."""

    def fields(self, value: Any, struct: type[Struct]) -> Mapping[str, Any]:
        """Return the undecoded fields of an object. Raises msgspec.ValidationError for names not in ``struct``."""

    def elements(self, value: Any) -> list[Any]:
        """Return the undecoded elements of a list. Raises msgspec.ValidationError."""


@cache
def _raw_struct(struct: type[Struct]) -> Any:
    """Return a struct with the same fields whose values are not decoded."""
    fields = [(field.name, Raw | UnsetType, UNSET) for field in msgspec.structs.fields(struct)]
    return msgspec.defstruct(f"{struct.__name__}Fields", fields, forbid_unknown_fields=True, kw_only=True)


@cache
def field_types(struct: type[Struct]) -> Mapping[str, tuple[Any, bool]]:
    """Return the type of each field of a struct, and whether it is required."""
    return {field.name: (field.type, field.required) for field in msgspec.structs.fields(struct)}


class BytesReader:
    """Reader of encoded JSON or msgpack."""

    def __init__(self, module: ModuleType, binary_columns: bool) -> None:
        self.binary_columns = binary_columns
        self._decoder = cache(module.Decoder)  # one per type

    def decode(self, value: Any, kind: Any) -> Any:
        """Decode a value."""
        return self._decoder(kind).decode(value)

    def fields(self, value: Any, struct: type[Struct]) -> Mapping[str, Any]:
        """Return the undecoded fields of an object."""
        found = self.decode(value, _raw_struct(struct))
        return {name: raw for name in field_types(struct) if (raw := getattr(found, name)) is not UNSET}

    def elements(self, value: Any) -> list[Any]:
        """Return the undecoded elements of a list."""
        found: list[Any] = self.decode(value, Annotated[list[Raw], Meta(max_length=MAX_ELEMENTS)])
        return found


class ObjectReader:
    """Reader of Python objects: dictionaries whose columns may be arrays."""

    binary_columns = True

    def decode(self, value: Any, kind: Any) -> Any:
        """Check and convert a value; arrays are returned unchanged, and text is never decoded as base64."""
        if isinstance(value, np.ndarray):
            return value
        try:
            return msgspec.convert(value, kind, builtin_types=(bytes,))
        except UnicodeEncodeError:
            raise msgspec.ValidationError("Unpaired surrogate") from None

    def fields(self, value: Any, struct: type[Struct]) -> Mapping[str, Any]:
        """Return the fields of an object."""
        if not isinstance(value, dict):
            raise msgspec.ValidationError(f"Expected `object`, got `{type(value).__name__}`")
        for name in value:
            if name not in field_types(struct):
                raise msgspec.ValidationError(f"Object contains unknown field `{name}`")
        return value

    def elements(self, value: Any) -> list[Any]:
        """Return the elements of a list."""
        if not isinstance(value, list):
            raise msgspec.ValidationError(f"Expected `array`, got `{type(value).__name__}`")
        return value


JSON_READER, MSGPACK_READER = BytesReader(msgspec.json, False), BytesReader(msgspec.msgpack, True)
OBJECT_READER = ObjectReader()


def load_nonfinite_json(data: bytes) -> Any:
    """Parse short JSON with NaN or infinity, which standard JSON does not allow.

    Raises ValueError for any other text, and for unpaired surrogates, which cannot be encoded in a response.
    """
    text = data.decode()
    if len(data) > MAX_NONFINITE_BYTES or not _NONFINITE.search(text):
        raise ValueError("no number that is not finite")
    document = json.loads(text)
    json.dumps(document, ensure_ascii=False).encode()
    return document


def decode_fields(
    fields: Mapping[str, Any], struct: type[Struct], reader: Reader, parent: str
) -> tuple[dict[str, Any], list[FieldError]]:
    """Decode fields one by one; return the values, and the error of each invalid or missing field."""
    values: dict[str, Any] = {}
    errors: list[FieldError] = []
    missing = missing_columns(fields) if issubclass(struct, LightCurveIn) else ()
    for name, (kind, required) in field_types(struct).items():
        if name not in fields:
            if required or name in missing:
                errors.append(FieldError(pointer=parent + pointer([name]), reason="missing", detail="required field"))
            continue
        try:
            values[name] = reader.decode(fields[name], kind)
        except msgspec.ValidationError as error:
            invalid = to_field_error(error, parent + pointer([name]))
            if name == "filters":
                invalid = _find_filter_error(fields[name], reader, parent) or invalid
            if invalid.reason == "not_a_string" and _is_literal(kind):
                detail = "must be one of the allowed names"
                invalid = FieldError(pointer=invalid.pointer, reason="not_one_of", detail=detail)
            errors.append(invalid)
            continue
        if column_error := find_column_error(name, values[name], reader.binary_columns, parent):
            errors.append(column_error)
    return values, errors


def find_column_error(name: str, column: Any, binary_columns: bool, parent: str) -> FieldError | None:
    """Return the error of a column that its type accepts: bytes in JSON, or empty bytes or arrays.

    Lists have these errors by their type, so that the same light curve has the same errors in every format.
    """
    if isinstance(column, bytes) and not binary_columns:
        reason, detail = ("not_an_object", "an object") if name == "metadata" else ("not_a_list", "a list")
        return FieldError(pointer=f"{parent}/{name}", reason=reason, detail=f"must be {detail}")
    if name in NEVER_EMPTY and isinstance(column, bytes | np.ndarray) and not len(column):
        return FieldError(pointer=f"{parent}/{name}", reason="empty", detail="must not be empty")
    return None


def _find_filter_error(value: Any, reader: Reader, parent: str) -> FieldError | None:
    """Return the first error in ``filters``: msgspec does not report which member of a mapping is invalid."""
    with suppress(msgspec.ValidationError):
        filters = value if isinstance(value, dict) else reader.decode(value, dict[str, Raw])
        for name, described in filters.items():
            try:
                reader.decode(described, FilterIn)
            except msgspec.ValidationError as error:
                return to_field_error(error, parent + pointer(["filters", name]))
    return None


def _is_literal(kind: Any) -> bool:
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return get_origin(kind) is Literal


def decode_light_curve(value: Any, reader: Reader, parent: str = "") -> LightCurveIn | InvalidLightCurve:
    """Decode one light curve; ``parent`` is its JSON pointer in the body."""
    try:
        decoded: LightCurveIn = reader.decode(value, LightCurveIn)
        return decoded
    except UNDECODABLE:
        return diagnose_light_curve(value, reader, parent)


def diagnose_light_curve(value: Any, reader: Reader, parent: str = "") -> LightCurveIn | InvalidLightCurve:
    """Decode one light curve field by field, with the error of every invalid field."""
    try:
        fields = reader.fields(value, LightCurveIn)
    except UNDECODABLE as error:
        invalid = error if isinstance(error, msgspec.ValidationError) else msgspec.ValidationError("Invalid text")
        return InvalidLightCurve([to_field_error(invalid, parent)], _find_object_id(value, reader))
    return build_light_curve(fields, reader, parent)


def build_light_curve(fields: Mapping[str, Any], reader: Reader, parent: str) -> LightCurveIn | InvalidLightCurve:
    """Build a light curve from undecoded fields."""
    values, errors = decode_fields(fields, LightCurveIn, reader, parent)
    if errors:
        return InvalidLightCurve(errors, short_id(values.get("object_id", "")))
    return LightCurveIn(**values)


def short_id(object_id: str | int) -> str:
    """Return an object id to repeat in an error; empty if it is too long. Unpaired surrogates are escaped."""
    text = without_surrogates(str(object_id))
    return text if len(text) <= MAX_ID_LENGTH else ""


class _ObjectId(Struct):
    object_id: str | int = ""


def _find_object_id(value: Any, reader: Reader) -> str:
    """Return the object id of an invalid light curve, by which the client can identify it; empty without a valid id."""
    with suppress(*UNDECODABLE):
        return short_id(reader.decode(value, _ObjectId).object_id)
    return ""


def decode_lines(lines: Sequence[bytes]) -> list[LightCurveIn | InvalidLightCurve]:
    """Decode lines of an NDJSON stream; each line is one light curve as JSON."""
    return [_decode_line(line) for line in lines]


def _decode_line(line: bytes) -> LightCurveIn | InvalidLightCurve:
    try:
        decoded: LightCurveIn = JSON_READER.decode(line, LightCurveIn)
        return decoded
    except UNDECODABLE:
        pass
    try:
        JSON_READER.decode(line, Raw)
        line.decode()
        return diagnose_light_curve(line, JSON_READER)
    except UNDECODABLE:
        with suppress(ValueError, RecursionError):
            return diagnose_light_curve(load_nonfinite_json(line), OBJECT_READER)
    detail = "the line is not a valid UTF-8 JSON document"
    return InvalidLightCurve([FieldError(pointer="", reason="malformed", detail=detail)])
