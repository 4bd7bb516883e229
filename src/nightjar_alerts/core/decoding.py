"""Decoding of light curves from bytes (JSON, msgpack) or from objects with arrays to :class:`LightCurveIn`.

The fast path decodes a whole value in one step. Only a value that it rejects is decoded field by field, to find the
error of every invalid field. An error is found by comparing the value that was sent with the type that its field
declares (:func:`find_error`); the texts of msgspec's errors are not used.
"""

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import ModuleType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol, Union, get_args, get_origin

import msgspec
import numpy as np
from msgspec import Meta, Raw, Struct

from nightjar_alerts.core.errors import (
    NOT_UNICODE,
    NOT_UNICODE_TEXT,
    FieldError,
    InvalidLightCurve,
    pointer,
    unknown_field,
)
from nightjar_alerts.core.request import MAX_ID_LENGTH, LightCurveIn, missing_columns
from nightjar_alerts.models.common import without_surrogates

MAX_ELEMENTS: Final = 2**20
"""Maximum length of a list that is decoded element by element, at some fifty bytes each; of JSON, also the maximum
number of all values within it."""
MAX_NAMES: Final = 2**18
"""Maximum number of objects and named values in JSON; a thousand light curves with all metadata have a third."""
MAX_NONFINITE_BYTES: Final = 512 * 1024
"""Maximum length of JSON with NaN or infinity that is decoded, so that the error points at the value. Python's parser,
which accepts these, then holds the GIL for at most 50 ms."""
NEVER_EMPTY: Final = ("mjd", "flux", "flux_err", "mag", "mag_err", "band")
_NONFINITE = re.compile(r"NaN|Infinity")

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of a value that is invalid, or not encoded correctly."""


class Unreadable(NamedTuple):
    """Reason why a value has no Python equivalent, whatever type its field declares."""

    reason: str
    detail: str


NOT_FINITE: Final = Unreadable("not_finite", "must be finite")
TOO_LONG: Final = Unreadable(
    "too_long", f"more than {MAX_ELEMENTS} values or {MAX_NAMES} names, of which one is invalid"
)
KEY_NOT_A_STRING: Final = Unreadable("key_not_a_string", "object keys must be strings")
_NO_TEXT: Final = Unreadable(NOT_UNICODE, NOT_UNICODE_TEXT)


class Reader(Protocol):
    """Access to the parts of a document in one format.

    Attributes
    ----------
    binary_columns : whether bytes are a column of values. False for JSON, where msgspec decodes base64 text as bytes.
    """

    binary_columns: bool

    def decode(self, value: Any, kind: Any) -> Any:
        """Decode a value as a type. Raises msgspec.ValidationError."""

    def open(self, value: Any, kind: Any = None) -> Any:
        """Return a value as it was sent: a scalar, a list or dictionary of undecoded members, or why it is unreadable.

        Parameters
        ----------
        kind : type that the value should have.
        """


@cache
def field_types(struct: type[Struct]) -> Mapping[str, tuple[Any, bool]]:
    """Return the type of each field of a struct, and whether it is required."""
    return {field.name: (field.type, field.required) for field in msgspec.structs.fields(struct)}


_Opened = (
    int
    | float
    | str
    | bool
    | None
    | Annotated[list[Raw], Meta(max_length=MAX_ELEMENTS)]
    | Annotated[dict[str, Raw], Meta(max_length=MAX_NAMES)]
)


class BytesReader(ABC):
    """Reader of an encoded format."""

    def __init__(self, module: ModuleType, binary_columns: bool) -> None:
        self.binary_columns = binary_columns
        self._decoder = cache(module.Decoder)  # one per type

    def decode(self, value: Any, kind: Any) -> Any:
        """Decode a value."""
        return self._decoder(kind).decode(value)

    @abstractmethod
    def open(self, value: Any, kind: Any = None) -> Any:
        """Return a scalar, or a list or dictionary of undecoded members."""


class JsonReader(BytesReader):
    """Reader of encoded JSON."""

    def open(self, value: Any, kind: Any = None) -> Any:
        """Return a scalar, or a list or dictionary of undecoded members."""
        data = bytes(value).lstrip(b" \t\r\n")
        # Counted first, because msgspec checks the length of a list only after it has built all of it.
        count, most = (data.count(b","), MAX_ELEMENTS) if data[:1] == b"[" else (data.count(b":"), MAX_NAMES)
        if count > most:
            return TOO_LONG
        try:
            return self.decode(data, _Opened)
        except msgspec.ValidationError:
            return NOT_FINITE  # other values have a Python equivalent


class MsgpackReader(BytesReader):
    """Reader of encoded msgpack."""

    def open(self, value: Any, kind: Any = None) -> Any:
        """Return a scalar, or a list or dictionary of undecoded members."""
        with suppress(msgspec.ValidationError):
            return self.decode(value, _Opened)
        with suppress(msgspec.ValidationError):
            return self.decode(value, bytes)
        first = bytes(value)[0]
        if first & 0xF0 == 0x80 or first in (0xDE, 0xDF):  # the formats of a map
            try:
                self.decode(value, _AnyObject)
            except msgspec.ValidationError:
                return KEY_NOT_A_STRING
            return TOO_LONG
        return TOO_LONG if first in (0xDC, 0xDD) else _EXTENSION


class _AnyObject(Struct):
    """An object, whose members are skipped."""


_EXTENSION: Final = object()
"""A value of an extension type of msgpack, which no field declares."""


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
            raise msgspec.ValidationError(NOT_UNICODE_TEXT) from None

    def open(self, value: Any, kind: Any = None) -> Any:
        """Return the value."""
        if isinstance(value, str):
            return value if without_surrogates(value) == value else _NO_TEXT
        if isinstance(value, Mapping):
            return dict(value) if all(isinstance(name, str) for name in value) else KEY_NOT_A_STRING
        return list(value) if isinstance(value, list | tuple | set | frozenset) else value


JSON_READER, MSGPACK_READER = JsonReader(msgspec.json, False), MsgpackReader(msgspec.msgpack, True)
OBJECT_READER = ObjectReader()


class _Form(NamedTuple):
    """One of the types that a field declares, with its constraints."""

    kind: Any
    constraints: tuple[Meta, ...] = ()


@cache
def _forms(kind: Any) -> Mapping[type, _Form]:
    """Return the types that a declaration allows, by the Python type of their decoded values."""
    origin = get_origin(kind)
    if origin is Annotated:
        base, *constraints = get_args(kind)
        plain = _forms(base).items()
        return {form: each._replace(constraints=(*each.constraints, *constraints)) for form, each in plain}
    if origin in (Union, UnionType):
        forms: dict[type, _Form] = {}
        for member in get_args(kind):
            for form, each in _forms(member).items():
                both = form in forms and get_origin(each.kind) is Literal
                forms[form] = _Form(Literal[(*get_args(forms[form].kind), *get_args(each.kind))]) if both else each
        return forms
    if origin is Literal:
        return {str: _Form(kind)}
    plain = origin or kind
    return {dict if issubclass(plain, Struct | Mapping) else plain: _Form(kind)}


def allows(kind: Any, form: type) -> bool:
    """Return whether a declaration allows values of a Python type, such as str."""
    return form in _forms(kind)


_EXPECTED: Final[Mapping[type, tuple[str, str]]] = {
    list: ("not_a_list", "must be a list"),
    dict: ("not_an_object", "must be an object"),
    str: ("not_a_string", "must be a string"),
    float: ("not_a_number", "must be a number"),
    int: ("not_an_integer", "must be an integer"),
    bool: ("not_a_boolean", "must be true or false"),
}
"""Reason and detail for a value of another type. Of several types that a field allows, the first one counts."""


def find_error(value: Any, kind: Any, reader: Reader, where: str) -> FieldError:
    """Return the first error of a value that cannot be decoded as a type; ``where`` is its JSON pointer."""
    detail = "invalid value, of a name that is given twice"  # of which only the last one is found
    return _first_error(value, kind, reader, where) or FieldError(pointer=where, reason="invalid", detail=detail)


def _first_error(value: Any, kind: Any, reader: Reader, where: str) -> FieldError | None:
    found = reader.open(value, kind)
    if isinstance(found, Unreadable):
        return FieldError(pointer=where, reason=found.reason, detail=found.detail)
    forms = _forms(kind)
    form = forms.get(type(found))
    if form is None and type(found) is int:
        form = forms.get(float)
    if form is None:
        return _wrong_type(forms, where)
    if isinstance(found, list):
        errors = _element_errors(found, get_args(form.kind)[0], reader, where)
    elif isinstance(found, dict):
        errors = _member_errors(found, form.kind, reader, where)
    else:
        errors = iter(())
    return next(errors, None) or _constraint_error(found, form, where)


def _wrong_type(forms: Mapping[type, _Form], where: str) -> FieldError:
    if str in forms and get_origin(forms[str].kind) is Literal:
        return _not_one_of(forms[str], where)
    if str in forms and dict in forms:
        return FieldError(pointer=where, reason="prior_type", detail="must be a name or an object of weights by class")
    reason, detail = next((text for form, text in _EXPECTED.items() if form in forms), ("invalid", "invalid value"))
    return FieldError(pointer=where, reason=reason, detail=detail)


def _not_one_of(form: _Form, where: str) -> FieldError:
    names = ", ".join(filter(None, get_args(form.kind)))
    return FieldError(pointer=where, reason="not_one_of", detail=f"must be one of: {names}")


def _element_errors(elements: Sequence[Any], kind: Any, reader: Reader, where: str) -> Iterator[FieldError]:
    for index, element in enumerate(elements):
        # An array within a list is invalid, but the reader of objects, which accepts arrays as columns, returns it.
        if not _is_valid(element, kind, reader) or isinstance(element, np.ndarray):
            yield find_error(element, kind, reader, f"{where}/{index}")


def _member_errors(members: Mapping[str, Any], kind: Any, reader: Reader, where: str) -> Iterator[FieldError]:
    if get_origin(kind):  # dict or Mapping
        value_kind = get_args(kind)[1]
        types: Mapping[str, tuple[Any, bool]] = dict.fromkeys(members, (value_kind, False))
    else:
        types = field_types(kind)
    for name, member in members.items():
        if name not in types:
            yield unknown_field(where, name, types)
        elif not _is_valid(member, types[name][0], reader):
            yield find_error(member, types[name][0], reader, where + pointer([name]))
    for name, (_, required) in types.items():
        if required and name not in members:
            yield missing_field(where, name)


def missing_field(where: str, name: str) -> FieldError:
    """Return the error of a required field that the object at ``where`` lacks."""
    return FieldError(pointer=where + pointer([name]), reason="missing", detail="required field")


def _is_valid(value: Any, kind: Any, reader: Reader) -> bool:
    try:
        reader.decode(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _constraint_error(found: Any, form: _Form, where: str) -> FieldError | None:
    """Return the error of a value that has the right type."""
    if get_origin(form.kind) is Literal:
        return None if found in get_args(form.kind) else _not_one_of(form, where)
    for limits in form.constraints:
        if failed := _failed_constraint(found, limits, form.kind):
            return FieldError(pointer=where, reason=failed[0], detail=failed[1])
    if type(found) is int and form.kind is float and abs(found) > 2**1000:
        return FieldError(pointer=where, reason=NOT_FINITE.reason, detail=NOT_FINITE.detail)
    return None


_UNIT_OF_LENGTH: Final[Mapping[type, str]] = {str: "characters", list: "values", dict: "members"}


def _failed_constraint(found: Any, limits: Meta, kind: Any) -> tuple[str, str] | None:
    """Return reason and detail of the first constraint that a value violates."""
    if isinstance(found, str | list | dict):
        if limits.min_length is not None and len(found) < limits.min_length:
            return "empty", "must not be empty"
        if limits.max_length is not None and len(found) > limits.max_length:
            return "too_long", f"must have at most {limits.max_length} {_UNIT_OF_LENGTH[type(found)]}"
        if limits.pattern is not None and isinstance(found, str) and not re.search(limits.pattern, found):
            return "string_pattern_mismatch", f"must match {limits.pattern}"
    if isinstance(found, float) and not math.isfinite(found):
        return NOT_FINITE
    if isinstance(found, int | float):
        if limits.gt is not None and not found > limits.gt:
            return "greater_than", f"must be greater than {limits.gt:g}"
        if limits.ge is not None and not found >= limits.ge:
            return "too_small" if kind is int else "greater_than", f"must be at least {limits.ge:g}"
        if limits.lt is not None and not found < limits.lt:
            return "less_than", f"must be less than {limits.lt:g}"
        if limits.le is not None and not found <= limits.le:
            return "less_than", f"must be at most {limits.le:g}"
    return None


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


def open_fields(opened: Any, struct: type[Struct], where: str) -> Mapping[str, Any] | FieldError:
    """Return the undecoded fields of an object that :meth:`Reader.open` opened, or the error if it is not one."""
    if isinstance(opened, Unreadable):
        return FieldError(pointer=where, reason=opened.reason, detail=opened.detail)
    if not isinstance(opened, dict):
        return _wrong_type({dict: _Form(struct)}, where)
    types = field_types(struct)
    unknown = next((name for name in opened if name not in types), None)
    return opened if unknown is None else unknown_field(where, unknown, types)


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
                errors.append(missing_field(parent, name))
            continue
        try:
            values[name] = reader.decode(fields[name], kind)
        except msgspec.ValidationError:
            errors.append(find_error(fields[name], kind, reader, parent + pointer([name])))
            continue
        if column_error := find_column_error(name, values[name], reader.binary_columns, parent):
            errors.append(column_error)
    return values, errors


def find_column_error(name: str, column: Any, binary_columns: bool, parent: str) -> FieldError | None:
    """Return the error of a column that its type accepts: bytes in JSON, or empty bytes or arrays.

    Lists have these errors by their type, so that the same light curve has the same errors in every format.
    """
    if isinstance(column, bytes) and not binary_columns:
        return _wrong_type(_forms(field_types(LightCurveIn)[name][0]), f"{parent}/{name}")
    if name in NEVER_EMPTY and isinstance(column, bytes | np.ndarray) and not len(column):
        return FieldError(pointer=f"{parent}/{name}", reason="empty", detail="must not be empty")
    return None


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
        opened = reader.open(value)
    except UNDECODABLE:
        return InvalidLightCurve([FieldError(pointer=parent, reason="invalid", detail="invalid text")])
    fields = open_fields(opened, LightCurveIn, parent)
    if isinstance(fields, FieldError):
        object_id = opened.get("object_id") if isinstance(opened, dict) else None
        return InvalidLightCurve([fields], _decode_object_id(object_id, reader))
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


def _decode_object_id(value: Any, reader: Reader) -> str:
    """Return the object id of an invalid light curve, by which the client can identify it; empty without a valid id."""
    with suppress(*UNDECODABLE):
        return "" if value is None else short_id(reader.decode(value, str | int))
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
