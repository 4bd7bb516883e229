"""Every sample of every survey, in each form in which brokers pass it on, gives the same points."""

import gzip
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightjar_alerts.models.alerts import avro
from nightjar_alerts.models.alerts.envelopes import MessageReader
from nightjar_alerts.models.alerts.files import read_path
from nightjar_alerts.models.alerts.packet import AbstainReason, Packet, ReadLimits
from nightjar_alerts.models.alerts.schema_registry import SchemaRegistry
from support import alerts
from support.shared import SHARED, needs_shared

Json = Any
READER = MessageReader(SchemaRegistry(), ReadLimits())
KEYS = {
    "none": None,
    "text": b"ZTF24abcdefg",
    "number": b"7",
    "JSON": b'{"diaObjectId": 170000000000000099}',
    "empty": b"",
}


def samples() -> dict[str, tuple[str, dict[str, Json]]]:
    """Return a packet of every shipped schema, by its name."""
    made: dict[str, tuple[str, dict[str, Json]]] = {}
    for name in avro.schema_names():
        survey = name.split("/")[0]
        if survey == "lsst":
            made[name] = (name, alerts.lsst_alert(name))
        elif survey == "elasticc":
            made[name] = (name, alerts.elasticc_alert(name))
        else:
            made[name] = (name, alerts.ztf_alert(name))
    return made


def plain(value: Json, null: Callable[[str], Json]) -> Json:
    """Return a record as JSON, without bytes; ``null`` says what becomes of a missing value."""
    if isinstance(value, dict):
        items = {name: plain(inner, null) for name, inner in value.items() if not isinstance(inner, bytes)}
        return {name: inner for name, inner in items.items() if inner is not DROPPED}
    if isinstance(value, list):
        return [plain(inner, null) for inner in value]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return null("")
    return value


DROPPED = object()
FORMS: dict[str, Callable[[str], Json]] = {
    "null kept": lambda _: None,
    "null dropped": lambda _: DROPPED,
    "NaN kept": lambda _: math.nan,
}


def read(value: bytes, key: bytes | None = None) -> Packet:
    (packet,) = READER.read(value, key)
    assert isinstance(packet, Packet), packet
    return packet


def assert_same(found: Packet, expected: Packet) -> None:
    assert (found.survey, found.object_id, found.reason) == (expected.survey, expected.object_id, expected.reason)
    if expected.curve is None:
        assert found.curve is None
        return
    assert found.curve is not None
    order, other = (
        np.lexsort((found.curve.band, found.curve.mjd)),
        np.lexsort((expected.curve.band, expected.curve.mjd)),
    )
    np.testing.assert_allclose(found.curve.mjd[order], expected.curve.mjd[other], rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.curve.flux[order], expected.curve.flux[other], rtol=1e-6)
    np.testing.assert_array_equal(found.curve.band[order], expected.curve.band[other])
    np.testing.assert_array_equal(found.curve.detected[order], expected.curve.detected[other])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", avro.schema_names())
def test_json_alert_in_every_form_gives_the_points_of_avro(name: str, form: str) -> None:
    schema, record = samples()[name]
    expected = read(alerts.container(schema, [record]))
    document = plain(record, FORMS[form])
    text = json.dumps(document).encode()
    found = read(text)
    assert_same(found, expected)
    assert_same(read(b"\xef\xbb\xbf" + text), expected)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", avro.schema_names())
def test_container_with_any_key_gives_the_same_points(name: str, key: str) -> None:
    schema, record = samples()[name]
    data = alerts.container(schema, [record])
    assert_same(read(data, KEYS[key]), read(data))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", [name for name in avro.schema_names() if name.startswith("lsst/")])
def test_confluent_frame_with_any_key_gives_the_same_points(name: str, key: str) -> None:
    schema, record = samples()[name]
    major, minor = name.removeprefix("lsst/").split(".")
    framed = b"\0" + (100 * int(major) + int(minor)).to_bytes(4, "big") + alerts.bare(schema, record)
    assert_same(read(framed, KEYS[key]), read(alerts.container(schema, [record])))


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("form", range(7))
def test_sign_in_any_form_is_read(form: int, positive: bool) -> None:
    sign = ("t", "T", "1", 1, True, "true", 1.0)[form] if positive else ("f", "F", "0", 0, False, "-1", "False")[form]
    document = plain(alerts.ztf_alert(), lambda _: None)
    document["candidate"]["isdiffpos"] = sign
    document["prv_candidates"] = document["fp_hists"] = None
    curve = read(json.dumps(document).encode()).curve
    assert curve is not None
    assert (float(curve.flux[0]) > 0) is positive


@pytest.mark.parametrize("sentinel", [0, -1, -99, -999, -999.0, 99, 99.99, "null", "", None, math.nan])
def test_magnitude_sentinel_is_no_point(sentinel: Json) -> None:
    document = plain(alerts.ztf_alert(), lambda _: None)
    document["candidate"]["magpsf"] = sentinel
    document["prv_candidates"] = document["fp_hists"] = None
    assert read(json.dumps(document).encode()).reason is AbstainReason.NO_USABLE_POINTS


@pytest.mark.parametrize("withdrawn", [0, 0.0, None, -999.0, math.nan])
def test_time_of_withdrawal_that_is_no_mjd_means_not_withdrawn(withdrawn: Json) -> None:
    document = plain(alerts.lsst_alert(), lambda _: None)
    document["diaSource"]["timeWithdrawnMjdTai"] = withdrawn
    assert read(json.dumps(document).encode()).curve is not None
    document["diaSource"]["timeWithdrawnMjdTai"] = 61_000.5
    assert read(json.dumps({**document, "prvDiaSources": None, "prvDiaForcedSources": None}).encode()).curve is None


def test_detection_that_is_null_leaves_the_history() -> None:
    document = plain(alerts.lsst_alert(), lambda _: None)
    expected = read(json.dumps({**document, "diaSource": document["prvDiaSources"][0]}).encode())
    packet = read(json.dumps({**document, "diaSource": None}).encode())
    assert packet.curve is not None
    assert expected.curve is not None
    assert packet.curve.mjd.tolist() == expected.curve.mjd.tolist()


def test_object_id_that_is_null_leaves_the_points() -> None:
    document = plain(alerts.ztf_alert(), lambda _: None)
    packet = read(json.dumps({**document, "objectId": None}).encode())
    assert (packet.survey, packet.object_id) == ("ztf", "")
    assert packet.curve is not None


def crossing(distance: Json, name: Json, history: int) -> Packet:
    document = plain(alerts.ztf_alert(), lambda _: None)
    candidate = document["candidate"] | {"ssdistnr": distance, "ssnamenr": name}
    earlier = [{**candidate, "jd": candidate["jd"] - 2.0 - day} for day in range(history)]
    return read(json.dumps(document | {"candidate": candidate, "prv_candidates": earlier, "fp_hists": None}).encode())


@pytest.mark.parametrize(("distance", "name"), [(0.0, "4371"), (4.9, "2010 AB1"), (0, "433 Eros"), ("1.5", 4371)])
def test_known_solar_system_object_abstains(distance: Json, name: Json) -> None:
    assert crossing(distance, name, 0).reason is AbstainReason.SOLAR_SYSTEM_OBJECT


@pytest.mark.parametrize(("distance", "name"), [(-999.0, "null"), (5.1, "4371"), (0.0, None), (None, "4371"), (1, "")])
def test_no_solar_system_object_is_classified(distance: Json, name: Json) -> None:
    assert crossing(distance, name, 0).curve is not None


@pytest.mark.parametrize(
    ("flag", "moving"), [(3, True), (3.0, True), ("3", True), ("2", False), ("null", False), (None, False)]
)
def test_flag_of_a_known_solar_system_object_is_read_by_value(flag: Json, moving: bool) -> None:
    document = plain(alerts.ztf_alert(), lambda _: None)
    packet = read(json.dumps({**document, "roid": flag, "prv_candidates": None, "fp_hists": None}).encode())
    assert (packet.reason is AbstainReason.SOLAR_SYSTEM_OBJECT) is moving


@pytest.mark.parametrize("kind", [["null", "string"], ["string", "null", "double"]], ids=["text", "text first"])
def test_distance_of_a_solar_system_object_in_avro_text_is_read(kind: Json) -> None:
    text = json.dumps(alerts.schema("ztf/4.02"))
    schema = json.loads(re.sub(r'("name": "ssdistnr", "type": )\[[^]]*\]', rf"\1{json.dumps(kind)}", text))
    alert = alerts.ztf_alert()
    candidate = alert["candidate"] | {"ssdistnr": "1.5", "ssnamenr": "4371"}
    near = {**alert, "candidate": candidate, "prv_candidates": None, "fp_hists": None}
    assert read(alerts.container(schema, [near])).reason is AbstainReason.SOLAR_SYSTEM_OBJECT


def test_object_with_a_history_keeps_its_light_curve_near_a_solar_system_object() -> None:
    assert crossing(0.5, "4371", 1).reason is AbstainReason.SOLAR_SYSTEM_OBJECT
    curve = crossing(0.5, "4371", 2).curve
    assert curve is not None
    assert curve.metadata["solar_system_distance"] == 0.5


@needs_shared
@pytest.mark.parametrize("path", sorted((SHARED / "data" / "alerts").rglob("*.avro"))[::7] if SHARED else [Path()])
def test_real_alert_gzipped_gives_the_same_points(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    expected = [packet for packet in READER.read(data) if isinstance(packet, Packet)]
    (tmp_path / "packed").write_bytes(gzip.compress(data, 1))
    items = [item for item in read_path(tmp_path) if item.kind == "packet"]
    found = [packet for item in items for packet in READER.read(item.data) if isinstance(packet, Packet)]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)
