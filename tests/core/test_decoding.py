"""Errors of decoded values: every invalid value has a pointer and a reason, which do not depend on msgspec's texts."""

import json
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from nightjar_alerts.core.decoding import (
    JSON_READER,
    MAX_ELEMENTS,
    MAX_NAMES,
    MSGPACK_READER,
    OBJECT_READER,
    Reader,
    decode_light_curve,
    diagnose_light_curve,
    find_error,
)
from nightjar_alerts.core.errors import FieldError, InvalidLightCurve, pointer, unknown_field
from nightjar_alerts.core.request import LightCurveIn, Options
from support.edge import curve

ENCODERS = {JSON_READER: msgspec.json.encode, MSGPACK_READER: msgspec.msgpack.encode}
EVERYTHING = {
    **curve(3, mag=[1.0, None, 2.0], mag_err=[0.1, None, 0.2], detected=[True] * 3, upper_limit=[False] * 3),
    "metadata": {"mwebv": 0.1, "z_final": None},
    "filters": {"F": {"wavelength_nm": 500, "width_nm": 40.0}},
    "reference_flux": {"g": 1},
    "flux_kind": "total",
    "ra": 10.0,
    "dec": -5,
}
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 7, -1, 2**53, 10**30, 1.5, -1e300, "", "g", "x" * 201, "\ud800", "AAAA"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["F", "mwebv", "ra", "a/b"]), inner),
    max_leaves=4,
)


def encoded(value: object, reader: Reader) -> Any:
    if reader is JSON_READER:
        return json.dumps(value).encode()
    return msgspec.msgpack.encode(value) if reader is MSGPACK_READER else value


def parts_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for name, part in items for inner in parts_of(part, (*path, name)))]


def changed(value: Any, path: tuple[Any, ...], new: object) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


def exists(error: FieldError, document: Any) -> bool:
    """Return whether a pointer refers to a value of a document, or to the place of a missing one."""
    pointers = {pointer(path) for path in parts_of(document)}
    parent = error.pointer.rpartition("/")[0]
    return error.pointer in pointers or (error.reason == "missing" and parent in pointers)


@pytest.mark.parametrize("reader", [JSON_READER, MSGPACK_READER, OBJECT_READER])
@given(path=st.sampled_from(parts_of(EVERYTHING)), new=VALUES)
def test_decoding_of_any_change_succeeds_or_names_the_error(reader: Reader, path: tuple[Any, ...], new: object) -> None:
    document = changed(EVERYTHING, path, new)
    try:
        sent = encoded(document, reader)
    except (UnicodeEncodeError, OverflowError):  # msgpack has no such text or integer
        return
    if reader is JSON_READER and rb"\ud800" in sent:  # malformed, which the callers have checked
        return
    try:
        reader.decode(sent, LightCurveIn)
        valid = True
    except msgspec.DecodeError:
        valid = False
    found = diagnose_light_curve(sent, reader)
    if isinstance(found, LightCurveIn):
        assert valid
        return
    assert not valid or reader is JSON_READER  # base64 decodes as a column of bytes
    for error in found.errors:
        assert error.reason != "invalid"
        assert exists(error, document)


@pytest.mark.parametrize(
    ("kind", "value", "reason", "detail"),
    [
        (Annotated[list[float], Meta(min_length=1)], [], "empty", "must not be empty"),
        (Annotated[str, Meta(max_length=3)], "four", "too_long", "must have at most 3 characters"),
        (Annotated[str, Meta(pattern="^a$")], "b", "string_pattern_mismatch", "must match ^a$"),
        (Annotated[dict[str, int], Meta(max_length=1)], {"a": 1, "b": 2}, "too_long", "must have at most 1 members"),
        (Annotated[int, Meta(ge=1)], 0, "too_small", "must be at least 1"),
        (Annotated[float, Meta(ge=1)], 0, "greater_than", "must be at least 1"),
        (Annotated[float, Meta(gt=0)] | None, 0.0, "greater_than", "must be greater than 0"),
        (Annotated[float, Meta(lt=1)], 1, "less_than", "must be less than 1"),
        (Annotated[float, Meta(le=1)], 1.5, "less_than", "must be at most 1"),
        (Annotated[float, Meta(le=1)], float("nan"), "not_finite", "must be finite"),
        (Literal["a", "b"], "c", "not_one_of", "must be one of: a, b"),
        (Literal["a"] | Literal["b"], 5, "not_one_of", "must be one of: a, b"),
        (list[str], "\ud800", "not_unicode", "contains half of a UTF-16 surrogate pair"),
        (Options, {"prior": 5}, "prior_type", "must be a name or an object of weights by class"),
        (Options, {"deadline_ms": 1.5}, "not_an_integer", "must be an integer"),
        (Options, {"coverge": 0.5}, "unknown_field", "unknown field; send coverage"),
        (dict[str, int], {5: 1}, "key_not_a_string", "object keys must be strings"),
        (list[bool], 5, "not_a_list", "must be a list"),
    ],
)
def test_find_error_states_what_the_value_violates(kind: Any, value: object, reason: str, detail: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        OBJECT_READER.decode(value, kind)
    error = find_error(value, kind, OBJECT_READER, "/x")
    assert (error.reason, error.detail) == (reason, detail)


@pytest.mark.parametrize("number", ["1e999", "9" * 5000])
def test_json_number_beyond_python_is_not_finite(number: str) -> None:
    found = decode_light_curve(json.dumps(curve(3)).replace("1001.0", number).encode(), JSON_READER)
    assert isinstance(found, InvalidLightCurve)
    assert [(error.pointer, error.reason) for error in found.errors] == [("/flux/1", "not_finite")]


@pytest.mark.parametrize("value", [{1: 2.0}, msgspec.msgpack.Ext(5, b"x")])
def test_msgpack_value_that_json_lacks_is_named(value: object) -> None:
    found = decode_light_curve(msgspec.msgpack.encode({**curve(3), "metadata": value}), MSGPACK_READER)
    assert isinstance(found, InvalidLightCurve)
    assert [error.pointer for error in found.errors] == ["/metadata"]


@pytest.mark.parametrize("reader", [JSON_READER, MSGPACK_READER])
def test_long_list_with_an_error_is_not_opened(reader: Any) -> None:
    found = decode_light_curve(ENCODERS[reader]({**curve(3), "flux": [1] * MAX_ELEMENTS + ["x", 1]}), reader)
    assert isinstance(found, InvalidLightCurve)
    assert [(error.pointer, error.reason) for error in found.errors] == [("/flux", "too_long")]


@pytest.mark.parametrize("reader", [JSON_READER, MSGPACK_READER])
def test_object_with_too_many_names_is_not_opened(reader: Any) -> None:
    sent = ENCODERS[reader](dict.fromkeys(map(str, range(MAX_NAMES + 1)), 0))
    found = decode_light_curve(sent, reader)
    assert isinstance(found, InvalidLightCurve)
    assert [(error.pointer, error.reason) for error in found.errors] == [("", "too_long")]


def test_repeated_name_with_an_invalid_value_is_an_error() -> None:
    sent = json.dumps(curve(3, metadata={"mwebv": 1})).replace('"mwebv"', '"mwebv": "x", "mwebv"')
    found = decode_light_curve(sent.encode(), JSON_READER)
    assert isinstance(found, InvalidLightCurve)
    assert (found.pointer, found.reason) == ("/metadata", "invalid")


@pytest.mark.parametrize(
    ("name", "similar"),
    [("fluxerr", "flux_err"), ("FLUX", "flux"), ("time", "mjd"), ("magnitude", "mag"), ("filter", "band")],
)
def test_unknown_field_names_the_field_that_is_meant(name: str, similar: str) -> None:
    error = unknown_field("", name, LightCurveIn.__struct_fields__)
    assert (error.pointer, error.detail) == (f"/{name}", f"unknown field; send {similar}")


def test_unknown_field_unlike_any_other_is_only_named() -> None:
    assert unknown_field("", "xyzzy", LightCurveIn.__struct_fields__).detail == "unknown field"


def test_field_error_escapes_unpaired_surrogates() -> None:
    error = FieldError(pointer="/\ud800", reason="unknown_field", detail="\udfff")
    assert msgspec.json.decode(msgspec.json.encode(error)) == {
        "pointer": "/\\ud800",
        "reason": "unknown_field",
        "detail": "\\udfff",
    }
