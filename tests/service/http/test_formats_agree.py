"""Every format gives one verdict on a light curve, and points at the same value."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.service.http import arrow
from nightjar_alerts.service.http.bodies import decode_rows
from nightjar_alerts.service.http.edge.errors import ProblemError
from nightjar_alerts.service.lightcurves.errors import InvalidLightCurve
from support.bodies import built, read_json, read_lines, read_msgpack, read_text
from support.edge import curve, settings
from support.wire import arrow_stream, arrow_table, packed

SETTINGS = settings(max_points=40, max_curves=5)
Curve = dict[str, Any]
Verdict = list[tuple[str, str]] | str

VALUES: dict[str, list[Any]] = {
    "object_id": ["", "x", "x" * 200, "x" * 201, "é", 7, 2**53 - 1, 2**53, True, None, 1.5, [], {}],
    "mjd": [[60_000, 60_001.5, 60_002], [60_002.0, 60_001.0, 60_000.0], [1.0, 2.0], [1.0, True, 2.0], [1.0, None, 2.0],
            [1.0, "2", 3.0], [], [60_000.0, 2_460_001.0, 60_002.0], None, 5, "abcd", {}, [0.0] * 41, [[1.0]] * 3],
    "flux": [[1e300, 1.0, 2.0], [1, 2, 3], [-1.0, 0.0, 1.0], [1.0, 2.0, 3.0, 4.0], [None, 1.0, 2.0], [], [False] * 3,
             "bright", None, {"a": 1}, 5],
    "flux_err": [[1.0, 0.0, 1.0], [1.0, 2.0, -1.0], [1.0, 1e-60, 1.0], [[1.0], [1.0], [1.0]], None, []],
    "band": [["g", "g", "g"], ["y", "Y", "c"], ["g", "q", "r"], ["g", 2, "r"], ["g", None, "r"], "grr", {"g": 1}, []],
    "detected": [None, [True, False, True], [True], [], [1, 0, 1], "yes", [None, True, True]],
    "metadata": [{}, {"mwebv": 0.1}, {"mwebv": None, "z_final": -9}, {"mwebv": "0.1"}, {"mwebv": True},
                 {"mwebv": 1e39}, {"redshift": 0.1}, [1], 5, "x", dict.fromkeys(METADATA_COLUMNS, 0.5)],
    "filters": [{}, {"F606W": {"wavelength_nm": 589, "width_nm": 230}}, {"g": {"wavelength_nm": 480}},
                {"J": {"wavelength_nm": 1250}}, {"Ha": {"wavelength_nm": 656.3, "width_nm": 5}}, {"x": {}}, {"": {}},
                {"x": {"wavelength_nm": "589"}}, {"x": {"wavelength_nm": 589, "shape": "box"}}, {"x": 589}, None, [1],
                {"n" * 33: {"wavelength_nm": 589}}, {f"f{k}": {"wavelength_nm": 589} for k in range(33)}, "F606W",
                {"a/b": {"wavelength_nm": -1}}],
    "flux_unit": ["nJy", "uJy", "FLUXCAL", "Jy", "", None, 5, ["nJy"]],
    "flux_kind": ["difference", "total", "both", None],
    "survey": ["", "ztf", "ZTF", "z" * 33, 5, None, "ztf\n"],
    "magnitude": [[1.0], None],
}  # fmt: skip
ONE = [curve(3, **{name: value}) for name, values in VALUES.items() for value in values]
PAIRS = [
    curve(3, **{first: VALUES[first][i], second: VALUES[second][j]})
    for (first, second), i, j in itertools.product(
        [("mjd", "metadata"), ("flux", "band"), ("object_id", "flux_err"), ("detected", "survey")],
        (1, 3, 4),
        (2, 3, 4, 5),
    )
    if i < len(VALUES[first]) and j < len(VALUES[second])
]
MISSING = [{name: value for name, value in curve(3).items() if name != left_out} for left_out in curve(3)]
CURVES = [*ONE, *PAIRS, *MISSING, {}]
OTHERS: list[Any] = [[], 1, "x", None, True, [curve(3)]]


def verdict(item: LightCurve | InvalidLightCurve, parent: str = "") -> Verdict:
    """Pointer and reason of every error, or the record."""
    if isinstance(item, InvalidLightCurve):
        return [(error.pointer.removeprefix(parent), error.reason) for error in item.errors]
    columns = (item.mjd, item.flux, item.flux_err, item.band, item.detected)
    rest = [item.object_id, item.metadata, item.survey, item.described_filters]
    return repr([column.tolist() for column in columns] + rest)


def bare(read: Callable[[Any], Any], value: Any) -> Verdict:
    """Verdict on a body of one curve."""
    try:
        return verdict(read(value).items[0])
    except ProblemError as problem:
        return [(error.pointer, error.reason) for error in problem.errors]


def in_json(value: Any) -> Verdict:
    return verdict(read_json({"light_curves": [curve(2), value]}, SETTINGS).items[1], "/light_curves/1")


def in_msgpack(value: Any) -> Verdict:
    body = msgspec.msgpack.encode({"light_curves": [curve(2), value]})
    return verdict(read_msgpack(body, SETTINGS).items[1], "/light_curves/1")


def in_a_line(value: Any) -> Verdict:
    return verdict(read_lines([b" ", json.dumps(value).encode()], SETTINGS)[1])


def in_rows(value: Any) -> Verdict:
    return verdict(built(decode_rows([value], SETTINGS), SETTINGS).items[0], "/light_curves/0")


def bare_json(value: Any) -> Verdict:
    return bare(lambda body: read_json(body, SETTINGS), value)


def bare_msgpack(value: Any) -> Verdict:
    return bare(lambda body: read_msgpack(msgspec.msgpack.encode(body), SETTINGS), value)


FORMATS = [in_msgpack, in_a_line, bare_json, bare_msgpack, in_rows]


def test_there_are_enough_bodies() -> None:
    verdicts = [in_json(each) for each in CURVES]
    assert len(CURVES) >= 130
    assert sum(isinstance(each, str) for each in verdicts) >= 25


@pytest.mark.parametrize("read", FORMATS, ids=lambda read: read.__name__)
def test_formats_give_the_same_verdict_on_a_curve(read: Callable[[Any], Verdict]) -> None:
    for value in CURVES:
        assert read(value) == in_json(value), value


@pytest.mark.parametrize("read", [in_msgpack, in_a_line, bare_json, bare_msgpack], ids=lambda read: read.__name__)
def test_formats_give_the_same_verdict_on_what_is_no_curve(read: Callable[[Any], Verdict]) -> None:
    for value in OTHERS:
        assert read(value) == [("", "not_an_object")], value


def test_arrow_gives_the_same_verdict_where_its_types_can_hold_the_curve() -> None:
    seen = 0
    for value in CURVES:
        try:
            table = arrow_table([value])
        except (pa.ArrowInvalid, pa.ArrowTypeError, KeyError, TypeError, OverflowError, AttributeError, ValueError):
            continue
        if not table.num_rows:
            continue  # no column, no row
        sent = {name: member for name, member in table.to_pylist()[0].items() if member is not None}
        if json.dumps(sent, sort_keys=True) != json.dumps(value, sort_keys=True):
            continue  # a type of the table has changed a value
        if value.get("object_id") == 2**53:
            continue  # Arrow's integers are exact
        try:
            rows = arrow.read_arrow(arrow_stream(table), 5)
        except ProblemError:
            continue  # of the schema, for all rows at once
        expected, found = (
            in_json(value),
            verdict(built(decode_rows(rows, SETTINGS), SETTINGS).items[0], "/light_curves/0"),
        )
        if isinstance(expected, str) or isinstance(found, str):
            assert isinstance(found, str) == isinstance(expected, str), value
        else:
            assert found[0] == expected[0], value
        seen += 1
    assert seen > 30


@pytest.mark.parametrize("changes", [{}, {"detected": [True, False, True]}, {"metadata": {"mwebv": 0.5}}])
def test_packed_columns_are_the_same_curve(changes: Curve) -> None:
    value = curve(3, **changes)
    assert in_msgpack(packed(value)) == in_json(value)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400])
@pytest.mark.parametrize("name", ["mjd", "flux", "flux_err"])
def test_number_that_is_not_finite_is_named_alike_in_every_text(name: str, number: str) -> None:
    value = curve(3)
    text = json.dumps(value | {name: [value[name][0], "HERE", value[name][2]]}).replace('"HERE"', number)
    many = f'{{"light_curves": [{json.dumps(curve(2))}, {text}]}}'
    expected = [(f"/{name}/1", "not_finite")]
    assert verdict(read_text(many.encode(), SETTINGS).items[1], "/light_curves/1") == expected
    assert bare(lambda body: read_text(body, SETTINGS), text.encode()) == expected
    assert verdict(read_lines([text.encode()], SETTINGS)[0]) == expected
    as_float = np.array([*value[name]])
    as_float[1] = float("inf")
    assert in_msgpack(value | {name: as_float.tolist()}) == expected
