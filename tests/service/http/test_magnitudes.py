"""Magnitudes, upper limits, reference fluxes and warnings of ``/v1/classify``, in every format."""

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from nightjar_alerts.core.errors import InvalidLightCurve
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.photometry import FILTERS, VEGA_AB_OFFSETS
from nightjar_alerts.service.http.formats import ARROW_TYPE
from support import wire
from support.bodies import Curve, read_json
from support.edge import Live, curve, settings
from support.wire import MSGPACK_TYPE, arrow_stream, arrow_table, results_of

SETTINGS = settings()
MAG = [20.0, 20.5, 21.0, 21.5]
MAG_ERR = [0.05, 0.06, 0.07, 0.1]
NJY = (10 ** (-0.4 * (np.array(MAG) - 31.4))).tolist()
NJY_ERR = (np.array(NJY) * np.array(MAG_ERR) * 0.4 * np.log(10)).tolist()
FLOATS = pa.list_(pa.float64())
TYPES = {
    "mag": FLOATS,
    "mag_err": FLOATS,
    "flux": FLOATS,
    "flux_err": FLOATS,
    "upper_limit": pa.list_(pa.bool_()),
    "reference_flux": pa.map_(pa.string(), pa.float64()),
}
BODIES = wire.BODIES | {ARROW_TYPE: lambda curves: arrow_stream(arrow_table(curves, **TYPES))}


def in_magnitudes(**changes: Any) -> dict[str, Any]:
    sent = curve(4, band=["g", "r", "g", "r"], mag=MAG, mag_err=MAG_ERR)
    del sent["flux"], sent["flux_err"]
    return {name: value for name, value in (sent | changes).items() if value is not None}


def read(**changes: Any) -> Curve:
    return read_json({"light_curves": [in_magnitudes(**changes)]}, SETTINGS).items[0]


def light_curve(**changes: Any) -> LightCurve:
    item = read(**changes)
    assert isinstance(item, LightCurve), item.errors
    return item


def errors(**changes: Any) -> list[tuple[str, str]]:
    item = read(**changes)
    assert isinstance(item, InvalidLightCurve)
    return [(error.pointer.removeprefix("/light_curves/0"), error.reason) for error in item.errors]


def test_magnitudes_become_fluxes() -> None:
    found = light_curve()
    np.testing.assert_allclose(found.flux, NJY, rtol=1e-6)
    np.testing.assert_allclose(found.flux_err, NJY_ERR, rtol=1e-6)
    np.testing.assert_allclose(light_curve(flux_unit="uJy").flux, NJY, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in FILTERS if name in VEGA_AB_OFFSETS])
def test_vega_magnitudes_have_the_zero_point_of_their_filter(name: str) -> None:
    found = light_curve(band=[name] * 4, mag_system="Vega")
    np.testing.assert_allclose(found.flux, np.array(NJY) * 10 ** (-0.4 * VEGA_AB_OFFSETS[name]), rtol=1e-5)


def test_vega_magnitudes_of_a_described_filter_need_its_zero_point() -> None:
    described = {"F606W": {"wavelength_nm": 589, "vega_zero_point_jy": 3363.1}}
    found = light_curve(band=["F606W"] * 4, mag_system="Vega", filters=described)
    np.testing.assert_allclose(found.flux, np.array(NJY) * 3363.1 / 3631, rtol=1e-5)
    del described["F606W"]["vega_zero_point_jy"]
    assert errors(band=["F606W"] * 4, mag_system="Vega", filters=described) == [
        ("/filters/F606W/vega_zero_point_jy", "missing")
    ]
    np.testing.assert_allclose(light_curve(band=["F606W"] * 4, filters=described).flux, NJY, rtol=1e-6)


def test_points_may_have_a_flux_or_a_magnitude() -> None:
    found = light_curve(
        flux=[NJY[0], None, -50.0, None], flux_err=[NJY_ERR[0], None, 80.0, None],
        mag=[None, 20.5, None, 21.5], mag_err=[None, 0.06, None, 0.1],
    )  # fmt: skip
    np.testing.assert_allclose(found.flux, [NJY[0], NJY[1], -50.0, NJY[3]], rtol=1e-6)
    np.testing.assert_allclose(found.flux_err, [NJY_ERR[0], NJY_ERR[1], 80.0, NJY_ERR[3]], rtol=1e-6)


def test_upper_limits_are_left_out_and_counted() -> None:
    limits = [False, True, False, True]
    found = light_curve(upper_limit=limits, mag_err=[0.05, None, 0.07, None], detected=[True, False, True, False])
    np.testing.assert_allclose(found.flux, [NJY[0], NJY[2]], rtol=1e-6)
    assert (found.mjd.tolist(), found.band.tolist()) == ([60_000.0, 60_002.0], [1, 1])
    assert found.detected.tolist() == [True, True]
    assert found.dropped == {"upper_limit": 2}
    assert light_curve(upper_limit=[False] * 4).dropped == {}
    with_flux = read_json({**curve(4), "upper_limit": limits}, SETTINGS).items[0]
    assert isinstance(with_flux, LightCurve)
    assert with_flux.flux.tolist() == [1000.0, 1002.0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"mag": None}, [("/mag", "missing")]),
        ({"mag_err": None}, [("/mag_err", "missing")]),
        ({"mag": None, "mag_err": None}, [("/flux", "missing"), ("/flux_err", "missing")]),
        ({"flux": NJY}, [("/flux_err", "missing")]),
        ({"flux": NJY, "flux_err": NJY_ERR}, [("/mag/0", "ambiguous")]),
        ({"flux": [None, 1.0, None, None], "flux_err": [1.0] * 4}, [("/mag/1", "ambiguous")]),
        ({"mag": [20.0, None, 20.0, 20.0]}, [("/mag/1", "missing")]),
        (
            {"mag": [20.0, None, 20.0, 20.0], "flux": [None] * 4, "flux_err": [None] * 4},
            [("/flux/1", "missing")],
        ),
        (
            {"mag": [20.0, None, 20.0, 20.0], "flux": [None, 1.0, None, None], "flux_err": [None] * 4},
            [("/flux_err/1", "missing")],
        ),
        ({"mag": [20.0, 99.0, 20.0, 20.0]}, [("/mag/1", "out_of_range")]),
        ({"mag": [20.0, -99.0, 20.0, 20.0]}, [("/mag/1", "out_of_range")]),
        ({"mag": [20.0, "20", 20.0, 20.0]}, [("/mag/1", "not_a_number")]),
        ({"mag": [20.0] * 3}, [("/mag", "length_mismatch")]),
        ({"mag_err": [0.1] * 5}, [("/mag_err", "length_mismatch")]),
        ({"mag_err": [0.1, 0.0, 0.1, 0.1]}, [("/mag_err/1", "not_positive")]),
        ({"mag_err": [0.1, -0.1, 0.1, 0.1]}, [("/mag_err/1", "not_positive")]),
        ({"mag_err": [0.1, None, 0.1, 0.1]}, [("/mag_err/1", "missing")]),
        (
            {"mag_err": [0.1, -1, 0.1, 0.1], "upper_limit": [False, True, False, False]},
            [("/mag_err/1", "not_positive")],
        ),
        ({"mag": []}, [("/mag", "empty")]),
        ({"mag": 20.0}, [("/mag", "not_a_list")]),
        ({"mag_system": "vega"}, [("/mag_system", "not_one_of")]),
        ({"mag_system": "Vega", "band": ["c", "o", "c", "o"]}, [("/mag_system", "no_zero_point")]),
        ({"upper_limit": [True] * 4}, [("/upper_limit", "empty")]),
        ({"upper_limit": [True] * 3}, [("/upper_limit", "length_mismatch")]),
        ({"upper_limit": [0, 1, 0, 1]}, [("/upper_limit/0", "not_a_boolean")]),
        ({"band": ["g"] * 3}, [("/band", "length_mismatch")]),
        ({"band": ["g", "K", "g", "g"]}, [("/band/1", "unknown_band")]),
        ({"reference_flux": {"g": 1.0}}, [("/reference_flux", "not_applicable")]),
        ({"reference_flux": {"K": 1.0}, "flux_kind": "total"}, [("/reference_flux/K", "unknown_band")]),
    ],
)
def test_magnitudes_that_break_a_rule_are_named(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert errors(**changes) == expected


def test_fluxes_alone_may_not_be_null() -> None:
    sent = curve(4, flux=[1.0, None, 1.0, 1.0])
    item = read_json({"light_curves": [sent]}, SETTINGS).items[0]
    assert isinstance(item, InvalidLightCurve)
    assert [(error.pointer, error.reason) for error in item.errors] == [("/light_curves/0/flux/1", "not_a_number")]


def test_fluxes_of_upper_limits_may_be_null() -> None:
    sent = curve(4, flux=[1.0, None, 2.0, 3.0], flux_err=[1.0, None, 1.0, None], upper_limit=[False, True, False, True])
    (found,) = read_json(sent, SETTINGS).items
    assert isinstance(found, LightCurve)
    assert (found.flux.tolist(), found.dropped) == ([1.0, 2.0], {"upper_limit": 2})
    other = {"light_curves": [{**sent, "upper_limit": [False, True, False, False]}]}
    (invalid,) = read_json(other, SETTINGS).items
    assert isinstance(invalid, InvalidLightCurve)
    assert [(error.pointer, error.detail) for error in invalid.errors] == [
        ("/light_curves/0/flux_err/3", "must be a number; only a point whose upper_limit is true may have null")
    ]


def test_total_flux_has_its_reference_subtracted() -> None:
    sent = curve(4, flux=[10.0, 30.0, 20.0, 50.0], band=["g", "r", "g", "r"], flux_kind="total")
    for reference, expected in (
        ({"g": 8.0, "r": 25.0}, [2.0, 5.0, 12.0, 25.0]),
        ({"g": 8.0}, [2.0, -10.0, 12.0, 10.0]),
        ({}, [-5.0, -10.0, 5.0, 10.0]),
    ):
        (found,) = read_json({**sent, "reference_flux": reference}, SETTINGS).items
        assert isinstance(found, LightCurve)
        assert found.flux.tolist() == expected


def test_total_magnitudes_become_differences_without_limits_in_the_median() -> None:
    limits = [False, False, False, True]
    found = light_curve(flux_kind="total", band=["g"] * 4, upper_limit=limits)
    np.testing.assert_allclose(found.flux, np.array(NJY[:3]) - NJY[1], rtol=1e-5, atol=1e-2)
    found = light_curve(flux_kind="total", flux_unit="uJy", reference_flux={"g": 1.0, "r": 2.0})
    np.testing.assert_allclose(found.flux, np.array(NJY) - [1e3, 2e3, 1e3, 2e3], rtol=1e-5)


@pytest.mark.parametrize("media_type", BODIES)
def test_classify_of_magnitudes_equals_that_of_fluxes(edge: Live, media_type: str) -> None:
    as_flux = curve(4, flux=NJY, flux_err=NJY_ERR, band=["g", "r", "g", "r"])
    mixed = in_magnitudes(
        flux=[NJY[0], None, None, None], flux_err=[NJY_ERR[0], None, None, None],
        mag=[None, *MAG[1:]], mag_err=[None, *MAG_ERR[1:]],
    )  # fmt: skip
    limited = in_magnitudes(
        mjd=[*in_magnitudes()["mjd"], 60_009.0], mag=[*MAG, 22.0], mag_err=[*MAG_ERR, None],
        band=["g", "r", "g", "r", "g"], upper_limit=[False] * 4 + [True],
    )  # fmt: skip
    found = []
    for sent in (as_flux, in_magnitudes(), mixed, limited):
        status, _, reply = edge.ask("POST", "/v1/classify", BODIES[media_type]([sent]), {"Content-Type": media_type})
        assert status == 200
        found += results_of(media_type, reply)
    first, *others = found
    assert dict(others[2].pop("dropped_points")) == {"upper_limit": 1}
    for result in others:
        assert result["points_per_band"] == first["points_per_band"]
        np.testing.assert_allclose(
            list(result["probabilities"].values()), list(first["probabilities"].values()), atol=1e-6
        )


def test_classify_takes_columns_of_bytes(edge: Live) -> None:
    sent = in_magnitudes()
    packed = sent | {
        "mag": np.array([20.0, np.nan, 21.0, 21.5], "<f4").tobytes(),
        "mag_err": np.array([0.05, np.nan, 0.07, np.nan], "<f4").tobytes(),
        "flux": np.array([np.nan, NJY[1], np.nan, np.nan], "<f4").tobytes(),
        "flux_err": np.array([np.nan, NJY_ERR[1], np.nan, np.nan], "<f4").tobytes(),
        "upper_limit": np.array([0, 0, 0, 1], "u1").tobytes(),
    }
    body = msgspec.msgpack.encode({"light_curves": [packed]})
    status, _, reply = edge.ask("POST", "/v1/classify", body, {"Content-Type": MSGPACK_TYPE})
    (result,) = msgspec.msgpack.decode(reply)["results"]
    assert (status, result["status"], result["dropped_points"]) == (200, "classified", {"upper_limit": 1})


# Warnings


def variable_star(points: int = 60) -> dict[str, Any]:
    days = 60_000.0 + 7.0 * np.arange(points)
    mag = 16.0 + 0.3 * np.sin(days)
    flux = 10 ** (-0.4 * (mag - 31.4))
    return curve(points, mjd=days.tolist(), flux=flux.tolist(), flux_err=(0.02 * flux).tolist(), band=["g"] * points)


@pytest.mark.parametrize("media_type", BODIES)
def test_results_carry_the_warnings_that_apply(edge: Live, media_type: str) -> None:
    faint = curve(8, flux=[1.0 + k for k in range(8)], flux_err=[0.2] * 8)
    good = curve(8, object_id="good")
    body = BODIES[media_type]([variable_star(), faint, good])
    status, _, reply = edge.ask("POST", "/v1/classify", body, {"Content-Type": media_type})
    star, unit, plain = results_of(media_type, reply)
    assert status == 200
    assert [warning["reason"] for warning in star["warnings"]] == ["total_flux"]
    assert [warning["reason"] for warning in unit["warnings"]] == ["implausible_depth"]
    assert plain.get("warnings") is None


def test_stated_kind_of_flux_has_no_warning(edge: Live) -> None:
    for kind in ("total", "difference"):
        _, reply = edge.classify(variable_star() | {"flux_kind": kind})
        assert "warnings" not in reply["results"][0]
