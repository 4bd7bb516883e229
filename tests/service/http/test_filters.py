"""Filters that a request describes by wavelength, in every format."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nightjar_alerts.core.errors import InvalidLightCurve
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.photometry import BANDS, EFFECTIVE_WAVELENGTHS_NM, nearest_band
from nightjar_alerts.service.http.formats import ARROW_TYPE
from support.bodies import Curve, read_json
from support.edge import Live, curve, settings
from support.wire import (
    BODIES,
    arrow_stream,
    arrow_table,
    results_of,
)

HST = {
    "F606W": {"wavelength_nm": 589, "width_nm": 230},
    "F814W": {"wavelength_nm": 803.5},
    "F435W": {"wavelength_nm": 433, "width_nm": 90},
}
CURVE = curve(4, band=["F606W", "F814W", "F435W", "g"], filters=HST)
SETTINGS = settings()


def read(**changes: Any) -> Curve:
    return read_json({"light_curves": [CURVE | changes]}, SETTINGS).items[0]


def errors(**changes: Any) -> list[tuple[str, str]]:
    item = read(**changes)
    assert isinstance(item, InvalidLightCurve)
    return [(error.pointer.removeprefix("/light_curves/0"), error.reason) for error in item.errors]


@pytest.mark.parametrize(
    ("wavelength", "band"),
    [(296, "u"), (365, "u"), (433, "g"), (536, "g"), (589, "r"), (645, "r"), (803.5, "i"), (900, "z"), (1049, "Y")],
)
def test_nearest_band_within_tolerance_returns_it(wavelength: float, band: str) -> None:
    assert nearest_band(wavelength) == band


@pytest.mark.parametrize("wavelength", [260.0, 295.0, 1050.0, 1250.0, float("nan"), float("inf")])
def test_nearest_band_beyond_tolerance_raises_with_the_bands(wavelength: float) -> None:
    with pytest.raises(ValueError, match=r"no band within 75 nm of .*; bands are u 371, g 477, .*, Y 974"):
        nearest_band(wavelength)


def test_nearest_band_between_u_and_y_always_exists() -> None:
    first, last = EFFECTIVE_WAVELENGTHS_NM[0], EFFECTIVE_WAVELENGTHS_NM[-1]
    assert {nearest_band(wavelength) for wavelength in np.linspace(first, last, 500)} == set(BANDS)


def test_light_curve_with_described_filters_has_points_in_nearest_bands() -> None:
    item = read()
    assert isinstance(item, LightCurve)
    assert [BANDS[index] for index in item.band] == ["r", "i", "g", "g"]
    assert item.described_filters == {"F606W": "r", "F814W": "i", "F435W": "g"}


def test_filter_without_an_observation_adds_a_warning() -> None:
    item = read(band=["V", "F814W", "F435W", "g"])
    assert isinstance(item, LightCurve)
    (warning,) = item.warnings
    assert warning.reason == "unused_filter"
    assert warning.detail.startswith("no observation is in F606W, ")


def test_total_flux_takes_medians_of_filters_before_they_become_bands() -> None:
    band = ["F435W", "g", "F435W", "g"]
    item = read(band=band, flux=[100.0, 10.0, 102.0, 14.0], flux_kind="total")
    assert isinstance(item, LightCurve)
    assert item.flux.tolist() == [-1.0, -2.0, 1.0, 2.0]


@pytest.mark.parametrize("media_type", BODIES)
def test_classify_with_described_filters_reports_the_bands(edge: Live, media_type: str) -> None:
    body = BODIES[media_type]([CURVE, curve(4)])
    status, _, reply = edge.ask("POST", "/v1/classify", body, {"Content-Type": media_type})
    described, plain = results_of(media_type, reply)
    assert status == 200
    assert dict(described["filters"]) == {"F606W": "r", "F814W": "i", "F435W": "g"}
    assert described["points_per_band"] == {"u": 0, "g": 2, "r": 1, "i": 1, "z": 0, "Y": 0}
    assert plain.get("filters") is None


def test_classify_with_described_filters_equals_that_with_their_bands(edge: Live) -> None:
    _, described = edge.classify(CURVE)
    _, named = edge.classify(curve(4, band=["r", "i", "g", "g"]))
    result = described["results"][0]
    del result["filters"]
    assert result == named["results"][0]


@pytest.mark.parametrize(
    ("filters", "pointer", "reason"),
    [
        ({"g": {"wavelength_nm": 480}}, "/filters/g", "known_band"),
        ({"y": {"wavelength_nm": 960}}, "/filters/y", "known_band"),
        ({"J": {"wavelength_nm": 1250}}, "/filters/J/wavelength_nm", "no_band"),
        ({"F": {"wavelength_nm": 0}}, "/filters/F/wavelength_nm", "greater_than"),
        ({"a/b": {"wavelength_nm": "589"}}, "/filters/a~1b/wavelength_nm", "not_a_number"),
        ({"F": {}}, "/filters/F/wavelength_nm", "missing"),
        ({"F": {"wavelength_nm": 589, "width_nm": 5}}, "/filters/F/width_nm", "greater_than"),
        ({"F": {"wavelength_nm": 589, "width_nm": 900}}, "/filters/F/width_nm", "less_than"),
        ({"F": {"wavelength_nm": 589, "shape": "box"}}, "/filters/F/shape", "unknown_field"),
        ({"F": 589}, "/filters/F", "not_an_object"),
        ({"": {"wavelength_nm": 589}}, "/filters/", "wrong_length"),
        ({"n" * 33: {"wavelength_nm": 589}}, "/filters/" + "n" * 33, "wrong_length"),
        ({f"f{k}": {"wavelength_nm": 589} for k in range(33)}, "/filters", "too_long"),
        ([589], "/filters", "not_an_object"),
        (None, "/filters", "not_an_object"),
    ],
)
def test_filters_that_break_a_rule_are_named(filters: object, pointer: str, reason: str) -> None:
    assert errors(band=["g"] * 4, filters=filters) == [(pointer, reason)]


def test_unknown_band_without_description_lists_the_known_ones() -> None:
    item = read(filters={name: HST[name] for name in ("F606W", "F814W")})
    assert isinstance(item, InvalidLightCurve)
    assert (item.pointer, item.reason) == ("/light_curves/0/band/2", "unknown_band")
    assert "known bands are u, g, r, i, z, Y, c, o," in str(item)
    assert "filters" in str(item)


def test_arrow_row_with_too_many_filters_is_rejected(edge: Live) -> None:
    many = curve(4, filters={f"f{k}": {"wavelength_nm": 589} for k in range(33)})
    body = arrow_stream(arrow_table([many]))
    status, _, reply = edge.ask("POST", "/v1/classify", body, {"Content-Type": ARROW_TYPE})
    assert (status, json.loads(reply)["errors"][0]["pointer"]) == (422, "/filters")


def test_arrow_filters_of_another_type_are_rejected(edge: Live) -> None:
    table = arrow_table([curve(4)]).append_column("filters", pa.array(["F606W"]))
    status, _, reply = edge.ask("POST", "/v1/classify", arrow_stream(table), {"Content-Type": ARROW_TYPE})
    assert (status, json.loads(reply)["errors"][0]["reason"]) == (422, "wrong_type")
