"""JSON, msgpack, NDJSON and Arrow report the same errors of a light curve, with the same pointers.

:data:`BODIES` are light curves that JSON can hold; those in :data:`TYPED` can be sent as Arrow as well, whose columns
have types. There are at least 200 of them for each format.
"""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from nightjar_alerts.core.errors import InvalidLightCurve
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.service.http.bodies import decode_rows
from nightjar_alerts.service.http.edge.errors import ProblemError
from support.bodies import built, read_json, read_lines, read_msgpack, read_text
from support.edge import curve, settings

pytest.importorskip("pyarrow", reason="pyarrow is missing: pip install 'nightjar-alerts[tables]'")
import pyarrow as pa

from nightjar_alerts.service.http import arrow
from support.wire import arrow_stream, arrow_table, packed

SETTINGS = settings(max_points=40, max_curves=1000)
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
"""Values of fields that JSON can express."""

TYPED_VALUES: dict[str, list[Any]] = {
    "object_id": ["", "é", "x" * 200, "x" * 201],
    "mjd": [[60_002.0, 60_001.0, 60_000.0], [1.0, 2.0], [1.0, None, 2.0], [], [60_000.0, 2_460_001.0, 60_002.0],
            [60_000.0, math.nan, 60_002.0], [60_000.0] * 3, [1.0] * 41],
    "flux": [[-1.0, 0.0, 1.0], [1.0, 2.0, 3.0, 4.0], [None, 1.0, 2.0], [], [1e300, 1.0, 2.0], [1.0, 2.0, math.inf]],
    "flux_err": [[1.0, 0.0, 1.0], [1.0, 2.0, -1.0], [1.0, 1e-60, 1.0], [1.0, math.nan, 1.0], [1.0]],
    "band": [["g", "g", "g"], ["y", "Y", "c"], ["g", "q", "r"], ["g", None, "r"], []],
    "detected": [[True, False, True], [True], [], [None, True, True]],
    "metadata": [{"mwebv": 0.1}, {"z_final": -9.0}, {"mwebv": 1e39}],
    "filters": [{"F606W": {"wavelength_nm": 589.0, "width_nm": 230.0}}, {"g": {"wavelength_nm": 480.0}},
                {"J": {"wavelength_nm": 1250.0}}, {"Ha": {"wavelength_nm": 656.3, "width_nm": 5.0}},
                {"n" * 33: {"wavelength_nm": 589.0}}, {"a/b": {"wavelength_nm": -1.0}}, {"x": {}}],
    "flux_unit": ["uJy", "FLUXCAL", "Jy", ""],
    "flux_kind": ["total", "both"],
    "survey": ["ztf", "ZTF", "z" * 33, "ztf\n"],
}  # fmt: skip
"""Values of fields that Arrow columns of a single type can express."""

ARROW_TYPES: Mapping[str, Any] = {
    "object_id": pa.string(),
    "mjd": pa.list_(pa.float64()),
    "flux": pa.list_(pa.float64()),
    "flux_err": pa.list_(pa.float64()),
    "mag": pa.list_(pa.float64()),
    "mag_err": pa.list_(pa.float64()),
    "mag_system": pa.string(),
    "upper_limit": pa.list_(pa.bool_()),
    "band": pa.list_(pa.string()),
    "detected": pa.list_(pa.bool_()),
    "metadata": pa.struct([("mwebv", pa.float64()), ("z_final", pa.float64())]),
    "filters": pa.map_(pa.string(), pa.struct([("wavelength_nm", pa.float64()), ("width_nm", pa.float64())])),
    "flux_unit": pa.string(),
    "flux_kind": pa.string(),
    "survey": pa.string(),
}


def vary(values: Mapping[str, Sequence[Any]], pairs: Sequence[tuple[str, str]]) -> list[Curve]:
    """Light curves with one field changed, with two fields changed, and without a field."""
    one = [curve(3, **{name: value}) for name in values for value in values[name]]
    two = [
        curve(3, **{first: one, second: other})
        for first, second in pairs
        for one, other in itertools.product(values[first], values[second])
    ]
    missing = [{name: value for name, value in curve(3).items() if name != left_out} for left_out in curve(3)]
    return [curve(3), *one, *two, *missing]


_MAGNITUDE_FIELDS: list[Curve] = [
    {"mag": [20.0, 21.0, 22.0], "mag_err": [0.125, 0.25, 0.5]},
    {"mag": [20.0, 21.0, 22.0], "mag_err": [0.125, 0.25, 0.5], "mag_system": "Vega"},
    {"mag": [20.0, 21.0, 22.0], "mag_err": [0.125, 0.25, 0.5], "mag_system": "ST"},
    {"mag": [20.0, 21.0, 22.0], "mag_err": [0.125, None, 0.5], "upper_limit": [False, True, False]},
    {"mag": [20.0, None, 22.0], "mag_err": [0.125, None, 0.5]},
    {"mag": [20.0, 21.0, 22.0], "mag_err": [0.125, 0.0, 0.5]},
    {"mag": [20.0, 21.0, 22.0], "mag_err": [0.125, 0.25]},
    {"mag": [20.0, 21.0, 22.0]},
    {"mag_err": [0.125, 0.25, 0.5]},
    {"mag": [], "mag_err": []},
    {"mag": [20.0, 21.0, math.nan], "mag_err": [0.125, 0.25, 0.5]},
    {"upper_limit": [True, True, True]},
    {"upper_limit": [True]},
    {"flux": [1.0, None, 2.0], "flux_err": [1.0, None, None], "upper_limit": [False, True, False]},
    {"flux": [1.0, None, 2.0], "flux_err": [1.0, None, 1.0], "upper_limit": [False, True, False]},
    {"mag": [20.0, None, 22.0], "mag_err": [0.125, -1.0, 0.5], "upper_limit": [False, True, False]},
]
MAGNITUDES: list[Curve] = [
    {name: column for name, column in curve(3).items() if name not in left_out} | changes
    for left_out in ((), ("flux", "flux_err"), ("flux",))
    for changes in _MAGNITUDE_FIELDS
]
GOOD = [
    curve(3, flux_unit=unit, flux_kind=kind, survey=survey, metadata=metadata, detected=detected)
    for unit, kind, survey, metadata, detected in itertools.product(
        ["nJy", "uJy", "FLUXCAL"], ["difference", "total"], ["", "ztf"], [{}, {"mwebv": 0.1}], [None, [True] * 3]
    )
]
TYPED = [*GOOD, *MAGNITUDES, *vary(
    TYPED_VALUES,
    [("mjd", "flux"), ("flux_err", "band"), ("object_id", "detected"), ("filters", "band"), ("flux", "flux_err"),
     ("metadata", "survey"), ("flux_unit", "flux_kind"), ("mjd", "detected")],
)]  # fmt: skip
BODIES = [*vary(VALUES, [("mjd", "metadata"), ("flux_err", "band"), ("detected", "survey")]), {}, *TYPED]
NOT_OBJECTS: list[Any] = [[], 1, "x", None, True, [curve(3)]]


def verdict(item: LightCurve | InvalidLightCurve, parent: str = "") -> Verdict:
    """Return pointer and reason of every error, or the light curve."""
    if isinstance(item, InvalidLightCurve):
        return [(error.pointer.removeprefix(parent), error.reason) for error in item.errors]
    columns = (item.mjd, item.flux, item.flux_err, item.band, item.detected)
    rest = [item.object_id, item.metadata, item.survey, item.described_filters]
    return repr([column.tolist() for column in columns] + rest)


def single(read: Callable[[Any], Any], value: Any) -> Verdict:
    """Return the verdict on a body with one light curve."""
    try:
        return verdict(read(value).items[0])
    except ProblemError as problem:
        return [(error.pointer, error.reason) for error in problem.errors]


def json_batch(value: Any) -> Verdict:
    return verdict(read_json({"light_curves": [curve(2), value]}, SETTINGS).items[1], "/light_curves/1")


def json_single(value: Any) -> Verdict:
    return single(lambda body: read_json(body, SETTINGS), value)


def msgpack_batch(value: Any) -> Verdict:
    body = msgspec.msgpack.encode({"light_curves": [curve(2), value]})
    return verdict(read_msgpack(body, SETTINGS).items[1], "/light_curves/1")


def msgpack_single(value: Any) -> Verdict:
    return single(lambda body: read_msgpack(msgspec.msgpack.encode(body), SETTINGS), value)


def ndjson(value: Any) -> Verdict:
    return verdict(read_lines([b" ", json.dumps(value).encode()], SETTINGS)[1])


def rows(value: Any) -> Verdict:
    return verdict(built(decode_rows([value], SETTINGS), SETTINGS).items[0], "/light_curves/0")


@pytest.fixture(scope="module")
def expected() -> list[Verdict]:
    """Return the verdicts on JSON, the reference."""
    return [json_batch(value) for value in BODIES]


def test_bodies_are_at_least_200_good_and_bad_in_every_format(expected: list[Verdict]) -> None:
    typed = [json_batch(value) for value in TYPED]
    for verdicts in (expected, typed):
        assert len(verdicts) >= 200
        assert sum(isinstance(each, str) for each in verdicts) >= 50
        assert sum(isinstance(each, list) for each in verdicts) >= 100


@pytest.mark.parametrize("read", [json_single, msgpack_batch, msgpack_single, ndjson, rows], ids=lambda f: f.__name__)
def test_format_same_light_curve_gives_the_verdict_of_json(
    expected: list[Verdict], read: Callable[[Any], Verdict]
) -> None:
    for value, verdict_of_json in zip(BODIES, expected, strict=True):
        assert read(value) == verdict_of_json, value


def test_arrow_same_light_curves_give_the_verdicts_of_json() -> None:
    """Return the verdicts on all light curves in one stream."""
    table = arrow_table(TYPED, **ARROW_TYPES)
    items = built(decode_rows(arrow.read_arrow(arrow_stream(table), 1000), SETTINGS), SETTINGS).items
    for index, (value, item) in enumerate(zip(TYPED, items, strict=True)):
        assert verdict(item, f"/light_curves/{index}") == json_batch(value), value


def test_msgpack_columns_of_bytes_give_the_verdict_of_lists() -> None:
    """Return the verdict on msgpack bytes, for light curves that their types can express."""
    seen = 0
    for value in TYPED:
        names = value.get("band", [])
        numbers = [each for name in ("flux", "flux_err", "mag", "mag_err") for each in value.get(name, [])]
        exact = all(each is not None and abs(each) < 1e30 and each == np.float32(each) for each in numbers)
        flags = value.get("detected") or []
        if None in names or not set(names) <= set("ugrizyY") or not exact or None in (value.get("mjd", []) + flags):
            continue
        columns = {name: column for name, column in value.items() if name != "metadata" and column is not None}
        sent = value | packed(columns)
        assert msgpack_batch(sent) == json_batch(value), value
        assert msgpack_single(sent) == json_single(value), value
        seen += 1
    assert seen >= 100


@pytest.mark.parametrize("read", [json_batch, json_single, msgpack_batch, msgpack_single, ndjson])
def test_format_of_a_non_object_reports_it(read: Callable[[Any], Verdict]) -> None:
    for value in NOT_OBJECTS:
        assert read(value) == [("", "not_an_object")], value


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400])
@pytest.mark.parametrize("name", ["mjd", "flux", "flux_err"])
def test_json_number_that_is_not_finite_is_named_in_every_text(name: str, number: str) -> None:
    value = curve(3)
    text = json.dumps(value | {name: [value[name][0], "HERE", value[name][2]]}).replace('"HERE"', number)
    many = f'{{"light_curves": [{json.dumps(curve(2))}, {text}]}}'
    expected = [(f"/{name}/1", "not_finite")]
    assert verdict(read_text(many.encode(), SETTINGS).items[1], "/light_curves/1") == expected
    assert single(lambda body: read_text(body, SETTINGS), text.encode()) == expected
    assert verdict(read_lines([text.encode()], SETTINGS)[0]) == expected
    infinite = np.array([*value[name]])
    infinite[1] = float("inf")
    assert msgpack_batch(value | {name: infinite.tolist()}) == expected
