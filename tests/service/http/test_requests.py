"""JSON requests: no coercion, a pointer for every error, isolated invalid light curves."""

import json
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from nightjar_alerts.core.decoding import JSON_READER, MAX_NAMES, MAX_NONFINITE_BYTES, JsonReader
from nightjar_alerts.core.errors import FieldError, InvalidLightCurve
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.service.http.bodies import decode, decode_valid, diagnose
from nightjar_alerts.service.http.edge.errors import ProblemError
from support.bodies import Read, read_json, read_text
from support.edge import curve, settings

SETTINGS = settings(max_points=100, max_curves=5)


def read(document: object) -> Read:
    return read_json(document, SETTINGS)


def refusal(document: object) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        read(document)
    return caught.value


def fault(document: object) -> tuple[str, str]:
    """Return pointer and reason of the first invalid value."""
    error = refusal(document)
    assert error.kind.status == 422
    assert all(found.detail for found in error.errors)
    return error.errors[0].pointer, error.errors[0].reason


def test_json_single_light_curve_is_read() -> None:
    asked = read(curve(3, metadata={"mwebv": 0.1, "z_final": None, "hostgal_snsep": -9}, options={"embedding": True}))
    (record,) = asked.items
    assert isinstance(record, LightCurve)
    assert (asked.single, asked.options.embedding, asked.options.deadline_ms) == (True, True, None)
    assert (record.object_id, dict(record.metadata), len(record)) == ("SN 2099zz", {"mwebv": 0.1}, 3)
    np.testing.assert_array_equal(record.flux, [1000, 1001, 1002])
    assert record.detected.all()


def test_json_flux_unit_is_converted() -> None:
    (record,) = read(curve(1, flux_unit="uJy")).items
    assert isinstance(record, LightCurve)
    assert record.flux[0] == 1_000_000


def test_json_times_in_any_order_are_read() -> None:
    (record,) = read(curve(3, mjd=[60_002, 60_000, 60_001])).items
    assert isinstance(record, LightCurve)


BAD_CURVES: list[tuple[dict[str, Any], str, str]] = [
    ({"flux": [1.0, True, 2.0]}, "/flux/1", "not_a_number"),
    ({"flux": [1.0, "2.0", 2.0]}, "/flux/1", "not_a_number"),
    ({"flux": [1.0, None, 2.0]}, "/flux/1", "not_a_number"),
    ({"flux": [1.0, [2.0], 2.0]}, "/flux/1", "not_a_number"),
    ({"flux": [1.0, 2.0]}, "/flux", "length_mismatch"),
    ({"flux": [1.0, 1e300, 2.0]}, "/flux/1", "not_finite"),
    ({"flux": 5}, "/flux", "not_a_list"),
    ({"flux": {}}, "/flux", "not_a_list"),
    ({"flux": "123"}, "/flux", "not_a_list"),
    ({"flux_err": [1.0, 0.0, 1.0]}, "/flux_err/1", "not_positive"),
    ({"flux_err": [1.0, 1.0, -2.0]}, "/flux_err/2", "not_positive"),
    ({"mjd": []}, "/mjd", "empty"),
    ({"mjd": [60_000.0, 2_460_001.0, 60_002.0]}, "/mjd/1", "time_out_of_range"),
    ({"band": ["g", "q", "r"]}, "/band/1", "unknown_band"),
    ({"band": ["g", 2, "r"]}, "/band/1", "not_a_string"),
    ({"detected": [1, 0, 1]}, "/detected/0", "not_a_boolean"),
    ({"detected": [True]}, "/detected", "length_mismatch"),
    ({"metadata": {"mwebv": "0.1"}}, "/metadata/mwebv", "not_a_number"),
    ({"metadata": {"mwebv": False}}, "/metadata/mwebv", "not_a_number"),
    ({"metadata": {"zspec": -0.5}}, "/metadata/zspec", "implausible_metadata"),
    ({"metadata": {"hostgal_zphot": 20}}, "/metadata/hostgal_zphot", "implausible_metadata"),
    ({"metadata": {"zspec": 0.1, "zspec_err": -1}}, "/metadata/zspec_err", "implausible_metadata"),
    ({"metadata": {"mwebv": -0.1}}, "/metadata/mwebv", "implausible_metadata"),
    ({"metadata": {"redshift": 0.1}}, "/metadata/redshift", "unknown_field"),
    ({"metadata": [1]}, "/metadata", "not_an_object"),
    ({"flux_unit": "Jy"}, "/flux_unit", "not_one_of"),
    ({"object_id": 2**53}, "/object_id", "inexact_integer"),
    ({"object_id": 1.5}, "/object_id", "not_a_string"),
    ({"object_id": True}, "/object_id", "not_a_string"),
    ({"object_id": "x" * 201}, "/object_id", "too_long"),
    ({"magnitude": [1]}, "/magnitude", "unknown_field"),
]


@pytest.mark.parametrize(("changes", "pointer", "reason"), BAD_CURVES)
def test_json_single_invalid_light_curve_is_a_problem(changes: dict[str, Any], pointer: str, reason: str) -> None:
    assert fault(curve(3, **changes)) == (pointer, reason)


@pytest.mark.parametrize(("changes", "pointer", "reason"), BAD_CURVES)
def test_json_invalid_light_curve_is_rejected_alone(changes: dict[str, Any], pointer: str, reason: str) -> None:
    first, bad, last = read({"light_curves": [curve(3), curve(3, **changes), curve(3)]}).items
    assert isinstance(bad, InvalidLightCurve)
    assert (bad.errors[0].pointer, bad.errors[0].reason) == (f"/light_curves/1{pointer}", reason)
    assert isinstance(first, LightCurve)
    assert isinstance(last, LightCurve)


def test_json_missing_fields_are_all_named() -> None:
    pointers = [found.pointer for found in refusal({"object_id": "x"}).errors]
    assert pointers == ["/mjd", "/flux", "/flux_err", "/band"]


@pytest.mark.parametrize("document", [[], 1, "x", None, True, [curve()]])
def test_json_body_that_is_no_object_is_a_problem(document: object) -> None:
    assert fault(document) == ("", "not_an_object")


@pytest.mark.parametrize("item", [[], 1, "x", None])
def test_json_light_curve_that_is_no_object_is_rejected(item: object) -> None:
    (bad,) = read({"light_curves": [item]}).items
    assert isinstance(bad, InvalidLightCurve)
    assert bad.errors == (FieldError(pointer="/light_curves/0", reason="not_an_object", detail="must be an object"),)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"light_curves": []}, ("/light_curves", "empty")),
        ({"light_curves": {}}, ("/light_curves", "not_a_list")),
        ({"light_curves": None}, ("/light_curves", "not_a_list")),
        ({"light_curves": [curve()], "flux": []}, ("/flux", "unknown_field")),
        ({"light_curves": [curve()], "options": []}, ("/options", "not_an_object")),
        ({"light_curves": [curve()], "options": {"embeding": True}}, ("/options/embeding", "unknown_field")),
        ({"light_curves": [curve()], "options": {"embedding": 1}}, ("/options/embedding", "not_a_boolean")),
        ({"light_curves": [curve()], "options": {"deadline_ms": 1.5}}, ("/options/deadline_ms", "not_an_integer")),
        ({"light_curves": [curve()], "options": {"deadline_ms": 0}}, ("/options/deadline_ms", "too_small")),
        ({**curve(), "options": {"deadline_ms": 10**9}}, ("/options/deadline_ms", "deadline_too_long")),
    ],
)
def test_json_invalid_envelope_is_a_problem(document: object, expected: tuple[str, str]) -> None:
    assert fault(document) == expected


def test_json_too_many_light_curves_is_a_problem() -> None:
    error = refusal({"light_curves": [curve()] * 6})
    assert (error.kind.status, error.limit) == (413, 5)


def test_json_too_many_points_are_rejected_unread() -> None:
    assert fault(curve(3, flux=[1.0] * 101)) == ("/flux", "too_many_points")


@pytest.mark.parametrize("where", ["", "metadata", "options"])
def test_json_many_unknown_names_give_few_errors(where: str) -> None:
    names = {f"name {i}": 1 for i in range(100_000)}
    error = refusal({**curve(), **names} if not where else {**curve(), where: names})
    assert 1 <= len(error.errors) <= 20


def test_json_object_ids_keep_every_digit() -> None:
    asked = read({"light_curves": [curve(object_id=2**53 - 1), curve(object_id=str(2**63 - 1))]})
    assert [item.object_id for item in asked.items] == ["9007199254740991", "9223372036854775807"]


@pytest.mark.parametrize(("name", "echoed"), [("x", "x"), (7, "7"), (None, ""), ("x" * 500, ""), ([1], "")])
def test_json_invalid_light_curve_keeps_its_object_id(name: object, echoed: str) -> None:
    (bad,) = read({"light_curves": [{"object_id": name}]}).items
    assert isinstance(bad, InvalidLightCurve)
    assert bad.object_id == echoed


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b'{"flux": NaN',
        b'{"flux": Nan}',
        b'{"flux": NaN, "object_id": "\xff"}',
        b'{"flux": NaN, "a": ' + b"9" * 100_000 + b"}",
        b"NaN" + b"[" * 100_000,
        b'{"a": "\xff"}',
        b'{"mjd":[60310.1],"band":["g"],"flux":[1],"flux_err":[1],"options":{"prior":"\xff"}}',
        b'{"mjd":[60310.1],"band":["g"],"flux":[1],"flux_err":[1],"options":{"\xff":1}}',
        b"{} {}",
        b"[1,]",
        b'"\\ud800"',
        b'{"flux": NaN, "object_id": "\\ud800"}',
        b'{"flux": NaN, "object_id": "a\\uDC00\\ud83d"}',
        b'{"\\udfff": NaN}',
        b"{" + b",".join(b'"%x":0' % place for place in range(MAX_NAMES)) + b"}",
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 50_000,
    ],
    ids=lambda body: repr(body[:16]),
)
def test_json_invalid_document_is_malformed(body: bytes) -> None:
    with pytest.raises(ProblemError) as caught:
        decode(body, SETTINGS, JSON_READER)
    assert caught.value.kind.status == 400


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1E+999", "9" * 400 + ".0"])
def test_json_number_not_finite_is_named(number: str) -> None:
    good, bad = curve(3), json.dumps(curve(3)).replace("1001.0", number)
    with pytest.raises(ProblemError) as caught:
        read_text(bad.encode(), SETTINGS)
    assert caught.value.kind.status == 422
    assert [(error.pointer, error.reason) for error in caught.value.errors] == [("/flux/1", "not_finite")]
    many = f'{{"light_curves": [{json.dumps(good)}, {bad}]}}'
    first, second = read_text(many.encode(), SETTINGS).items
    assert isinstance(first, LightCurve)
    assert isinstance(second, InvalidLightCurve)
    assert second.pointer == "/light_curves/1/flux/1"


def test_json_number_not_finite_in_any_field_is_named() -> None:
    for field in ("object_id", "detected", "metadata", "flux_unit", "band", "options"):
        with pytest.raises(ProblemError) as caught:
            read_text(json.dumps({**curve(3), field: float("nan")}).encode(), SETTINGS)
        assert caught.value.errors[0].pointer == f"/{field}"
    with pytest.raises(ProblemError) as caught:
        read_text(json.dumps({**curve(3), "metadata": {"mwebv": float("inf")}}).encode(), SETTINGS)
    assert caught.value.errors[0].pointer == "/metadata/mwebv"


TEXT = st.text("grZ/~", max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
FIELDS = [*curve(), "detected", "metadata", "flux_unit", "options", "light_curves"]


@given(st.dictionaries(st.sampled_from(FIELDS), JSON | st.lists(st.floats() | st.sampled_from("gr"), max_size=4)))
def test_json_any_document_is_read_or_a_problem(document: dict[str, Any]) -> None:
    try:
        assert read(document).items
    except ProblemError as error:
        if error.kind.status not in (413, 422):
            raise


def test_json_every_metadata_column_is_read() -> None:
    (record,) = read(curve(2, metadata=dict.fromkeys(METADATA_COLUMNS, 0.5))).items
    assert isinstance(record, LightCurve)
    assert len(record.metadata) == len(METADATA_COLUMNS)


@pytest.mark.parametrize(
    "unit", [b"1" * 308 + b",", b"1" * 307 + b".", b"1e+99,", b"NaN ", b'"NaN",', b"9" * 400 + b","]
)
def test_json_malformed_document_takes_bounded_time(unit: bytes) -> None:
    """A regular expression with quadratic time took 3.9 s for 8 MiB of digits, with the GIL held; numbers 0.1 s."""
    malformed = b'{"mjd":[' + unit * ((8 << 20) // len(unit)) + b"x"
    valid = b'{"mjd":[' + b"60000.25," * ((8 << 20) // 9) + b"1]}"
    started = time.thread_time()
    decode(valid, SETTINGS, JSON_READER)
    valid_seconds = time.thread_time() - started
    started = time.thread_time()
    with pytest.raises(ProblemError) as caught:
        decode(malformed, SETTINGS, JSON_READER)
    assert caught.value.kind.status == 400
    assert time.thread_time() - started < 10 * valid_seconds


def test_json_number_not_finite_in_long_text_is_malformed() -> None:
    bad = json.dumps(curve(3)).replace("1001.0", "NaN").encode()
    with pytest.raises(ProblemError) as caught:
        decode(bad + b" " * MAX_NONFINITE_BYTES, SETTINGS, JSON_READER)
    assert caught.value.kind.status == 400


def test_json_byte_order_mark_is_skipped() -> None:
    assert isinstance(read_text(b"\xef\xbb\xbf" + json.dumps(curve(3)).encode(), SETTINGS).items[0], LightCurve)


def test_json_repeated_name_has_its_last_value() -> None:
    """As documented in docs/api.md, whether the first value is valid or not."""
    for first in ("7", '"x"', "null"):
        text = json.dumps(curve(3)).replace('"object_id"', f'"object_id": {first}, "object_id"', 1)
        assert read_text(text.encode(), SETTINGS).items[0].object_id == "SN 2099zz"


def test_json_total_flux_becomes_a_difference() -> None:
    sent = curve(4, flux=[10.0, 30.0, 20.0, 50.0], band=["g", "r", "g", "r"])
    (found,) = read_json({**sent, "flux_kind": "total"}, settings()).items
    assert isinstance(found, LightCurve)
    assert found.flux.tolist() == [-5.0, -10.0, 5.0, 10.0]


def test_json_surrogate_pair_is_read() -> None:
    sent = json.dumps(curve(3, object_id="\N{TELESCOPE}"))
    assert "\\ud83d" in sent
    with pytest.raises(ProblemError) as caught:
        read_text(sent.replace("1001.0", "NaN").encode(), SETTINGS)
    assert caught.value.errors[0].pointer == "/flux/1"


@pytest.mark.parametrize("number", ["1e39", "-3.5e38", "1e308"])
def test_json_metadata_beyond_float32_are_named(number: str) -> None:
    """They would be infinite in single precision, and the network would fail."""
    bad = json.dumps(curve(3, metadata={"mwebv": 1.0})).replace('"mwebv": 1.0', f'"mwebv": {number}')
    with pytest.raises(ProblemError) as caught:
        read_text(bad.encode(), SETTINGS)
    assert [(error.pointer, error.reason) for error in caught.value.errors] == [("/metadata/mwebv", "not_finite")]


def test_json_position_is_read_and_checked() -> None:
    (found,) = read(curve(1, ra=359.9, dec=-90)).items
    assert isinstance(found, LightCurve)
    assert (found.ra, found.dec) == (359.9, -90.0)
    assert fault(curve(1, ra=1.0)) == ("/dec", "missing")
    assert fault(curve(1, ra=1.0, dec=90.1)) == ("/dec", "less_than")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b'{\n "flux": [1,\n  2,,3]}', "line 3, column 5"),
        (b'{"flux": [1}', "line 1, column 12"),
        (b'{"object_id": "\xff"}', "byte 15 is not UTF-8"),
    ],
)
def test_json_malformed_document_is_located(text: bytes, where: str) -> None:
    with pytest.raises(ProblemError) as caught:
        decode(text, SETTINGS, JSON_READER)
    assert caught.value.detail == f"the body is not a valid UTF-8 JSON document: {where}"


def test_json_unknown_field_names_the_similar_one() -> None:
    assert refusal(curve(1, fluxerr=[1])).errors[0].detail == "unknown field; send flux_err"
    assert refusal({**curve(1), "options": {"covrage": 0.9}}).errors[0].detail == "unknown field; send coverage"


class CountingReader(JsonReader):
    """Reader that counts how often the whole body is decoded as a type."""

    def __init__(self) -> None:
        super().__init__(msgspec.json, False)
        self.kinds: list[Any] = []

    def decode(self, value: Any, kind: Any) -> Any:
        if kind is not Raw and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            self.kinds.append(kind.__name__)
        return super().decode(value, kind)


def test_json_invalid_body_is_not_decoded_as_a_whole_again() -> None:
    reader = CountingReader()
    body = json.dumps(curve(3, flux=[1, 2, "3"])).encode()
    assert decode_valid(body, SETTINGS, reader) is None
    reader.kinds.clear()
    assert diagnose(body, SETTINGS, reader).single
    assert not reader.kinds


def test_json_options_are_decoded_once() -> None:
    reader = CountingReader()
    body = decode(json.dumps({"light_curves": [curve(3)], "options": {"embedding": True}}).encode(), SETTINGS, reader)
    assert body.given_options == {"embedding"}
    assert reader.kinds == ["_Batch", "Options"]
