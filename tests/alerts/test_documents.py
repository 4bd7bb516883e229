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

from nightjar_alerts.alerts import avro
from nightjar_alerts.alerts.envelopes import ANYTHING, Envelope, MessageReader, TopicRule
from nightjar_alerts.alerts.files import read_path
from nightjar_alerts.alerts.packet import AbstainReason, Packet, PacketError, ReadLimits, RejectReason
from nightjar_alerts.alerts.schema_registry import SchemaRegistry
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


def tagged(value: Json, mongo: bool) -> Json:
    """Return a document with the name of its type around each value of a union."""
    if isinstance(value, dict):
        inner = {name: tagged(one, mongo) for name, one in value.items()}
        return inner if mongo or "diaSourceId" in value or "candid" in value else {"lsst.v10_0.any": inner}
    if isinstance(value, list):
        return [tagged(one, mongo) for one in value] if mongo else {"array": [tagged(one, mongo) for one in value]}
    if isinstance(value, float):
        return {"$numberDouble": str(value)} if mongo else {"double": value}
    if isinstance(value, int) and not isinstance(value, bool):
        return {"$numberLong": str(value)} if mongo else {"long": value}
    return value if mongo or value is None else {"string": value}


def as_columns(record: Json, pandas: bool) -> Json:
    """Return a document whose lists of observations are columns."""
    changed = {}
    for name, rows in record.items():
        if isinstance(rows, list) and rows:
            columns = {key: [row[key] for row in rows] for key in rows[0]}
            changed[name] = (
                {key: dict(zip("0123456789", one, strict=False)) for key, one in columns.items()} if pandas else columns
            )
    return record | changed


@pytest.mark.parametrize("form", ["Avro", "MongoDB", "columns", "pandas"])
@pytest.mark.parametrize("name", avro.schema_names())
def test_json_alert_of_a_database_or_an_encoder_gives_the_points_of_avro(name: str, form: str) -> None:
    schema, record = samples()[name]
    document = plain({**alerts.blank(alerts.schema(schema)), **record}, lambda _: None)
    if form in ("Avro", "MongoDB"):
        document = {name: tagged(value, form == "MongoDB") for name, value in document.items()}
    else:
        document = as_columns(document, form == "pandas")
    assert_same(read(json.dumps(document).encode()), read(alerts.container(schema, [record])))


def test_columns_of_unequal_length_or_beyond_the_limit_have_an_end() -> None:
    document = plain(alerts.ztf_alert(), lambda _: None)
    document["prv_candidates"] = {"jd": [2460447.8, 2460446.8], "fid": [2], "magpsf": [18.0], "sigmapsf": {"0": 0.1}}
    document["prv_candidates"]["isdiffpos"] = "t"
    document["fp_hists"] = {"jd": []}
    curve = read(json.dumps(document).encode()).curve
    assert curve is not None
    assert len(curve) == 1
    document["prv_candidates"] = {"jd": [1] * 200_000}
    (error,) = READER.read(json.dumps(document).encode())
    assert isinstance(error, PacketError)
    assert error.reason is RejectReason.TOO_MANY_OBSERVATIONS


def of_both(points: int) -> Packet:
    """An LSST alert that belongs to an object and to a Solar System object."""
    document = plain(alerts.lsst_alert(points=points), lambda _: None)
    document["diaSource"]["ssObjectId"] = 23_133_931_615_303_495
    return read(json.dumps(document).encode())


@pytest.mark.parametrize(("points", "has_history"), [(1, False), (3, False), (5, True), (9, True)])
def test_alert_of_an_object_and_of_a_solar_system_object_is_classified_by_its_history(
    points: int, has_history: bool
) -> None:
    packet = of_both(points)
    assert packet.object_id == "170028485706776685"
    if has_history:
        assert packet.curve is not None
        assert packet.curve.metadata["solar_system_distance"] == 0.0
    else:
        assert packet.reason is AbstainReason.SOLAR_SYSTEM_OBJECT
        assert "23133931615303495" in packet.detail


def test_record_of_a_solar_system_object_to_which_the_detection_does_not_belong_is_ignored() -> None:
    """As in the samples of Rubin's schemas 7, which fill every record."""
    document = plain(alerts.lsst_alert(points=1), lambda _: None)
    packet = read(json.dumps({**document, "ssObject": {"ssObjectId": 5364546}}).encode())
    assert packet.curve is not None
    alone = {**document, "diaObject": None, "diaSource": {**document["diaSource"], "diaObjectId": None}}
    for record in ("ssObject", "ssSource", "MPCORB"):
        packet = read(json.dumps({**alone, record: {"ssObjectId": 5364546}}).encode())
        assert (packet.reason, packet.object_id) == (AbstainReason.SOLAR_SYSTEM_OBJECT, "5364546")


def lasair(**newest: Json) -> Json:
    rows = [{**alerts.row("lsst/10.0", "diaSource"), "diaSourceId": 100 + day, "diaObjectId": 7, "band": "r",
             "midpointMjdTai": 61_000.0 + day, "psfFlux": 500.0, "psfFluxErr": 10.0} for day in range(4)]  # fmt: skip
    rows[2] |= {"midpointMjdTai": 61_009.0, **newest}
    return {"diaObject": {"diaObjectId": 7}, "diaSourcesList": rows, "diaForcedSourcesList": []}


def test_lasair_s_lists_for_lsst_name_the_newest_detection() -> None:
    packet = read(json.dumps(lasair()).encode())
    assert (packet.alert_id, packet.source_id, packet.object_id) == ("102", "102", "7")
    assert packet.curve is not None
    assert len(packet.curve) == 4
    assert "solar_system_distance" not in packet.curve.metadata


def test_lasair_s_lists_for_lsst_state_a_solar_system_object() -> None:
    packet = read(json.dumps(lasair(ssObjectId=99)).encode())
    assert packet.curve is not None
    assert packet.curve.metadata["solar_system_distance"] == 0.0
    alone = lasair(ssObjectId=99)
    alone["diaSourcesList"] = alone["diaSourcesList"][2:3]
    assert read(json.dumps(alone).encode()).reason is AbstainReason.SOLAR_SYSTEM_OBJECT
    unknown = {**alone, "diaObject": None, "diaSourcesList": [{**alone["diaSourcesList"][0], "diaObjectId": 0}]}
    packet = read(json.dumps(unknown).encode())
    assert (packet.reason, packet.object_id) == (AbstainReason.SOLAR_SYSTEM_OBJECT, "99")


NUMBERS = (
    r"psfFlux|psfFluxErr|midpointMjdTai|visit|magpsf|sigmapsf|jd|exptime|forcediffimflux|magzpsci|psFlux|psFluxErr"
)


def as_text(value: Json) -> Json:
    """Return a record with the values of :data:`NUMBERS` as text."""
    if isinstance(value, list):
        return [as_text(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {
        name: str(inner) if re.fullmatch(NUMBERS, name) and inner is not None else as_text(inner)
        for name, inner in value.items()
    }


@pytest.mark.parametrize("name", ["lsst/11.1", "ztf/4.02", "elasticc/0.9.1"])
def test_numbers_in_avro_text_give_the_same_points(name: str) -> None:
    schema, record = samples()[name]
    whole = {**alerts.blank(alerts.schema(schema)), **record}
    text = re.sub(
        rf'("name": "({NUMBERS})", "type": )(\[[^]]*\]|"\w+")',
        r'\1["null", "string"]',
        json.dumps(alerts.schema(schema)),
    )
    assert_same(read(alerts.container(json.loads(text), [as_text(whole)])), read(alerts.container(schema, [record])))


def test_text_that_is_no_number_is_no_point_in_avro() -> None:
    text = re.sub(r'("name": "psfFlux", "type": )\[[^]]*\]', r'\1"string"', json.dumps(alerts.schema("lsst/10.0")))
    record = alerts.lsst_alert("lsst/10.0")
    for row in [record["diaSource"], *record["prvDiaSources"], *record["prvDiaForcedSources"]]:
        row["psfFlux"] = "bright"
    assert read(alerts.container(json.loads(text), [record])).reason is AbstainReason.NO_USABLE_POINTS


LSST, ZTF = (json.dumps(plain(made, lambda _: None)) for made in (alerts.lsst_alert(), alerts.ztf_alert()))


@pytest.mark.parametrize("rule", [ANYTHING, TopicRule(envelope=Envelope.JSON)])
def test_list_of_alerts_gives_each_of_them(rule: TopicRule) -> None:
    outcomes = READER.read(f"\ufeff [{LSST},\n{ZTF} , {LSST}] ".encode(), rule=rule)
    assert [outcome.survey for outcome in outcomes] == ["lsst", "ztf", "lsst"]
    assert_same(outcomes[1], read(ZTF.encode()))  # type: ignore[arg-type]  # assert_same fails for an error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{LSST}\n{ZTF}\n", ["lsst", "ztf"]),
        (f"\ufeff{LSST}\r\n\r\n{ZTF}", ["lsst", "ztf"]),
        (f"{LSST[:-9]}\n{ZTF}\n{{]\n{LSST}", ["malformed_json", "ztf", "malformed_json", "lsst"]),
        (f"{LSST}\nnull\n[1]\n{{}}", ["lsst", "malformed_json", "malformed_json", "unknown_schema"]),
    ],
)
def test_alerts_one_a_line_give_each_of_them(text: str, expected: list[str]) -> None:
    outcomes = READER.read(text.encode())
    assert [one.survey if isinstance(one, Packet) else one.reason for one in outcomes] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"[{LSST}, null, {{}}, {ZTF}]", ["lsst", "malformed_json", "unknown_schema", "ztf"]),
        (f"[{LSST}, [{ZTF}], {ZTF}]", ["lsst", "malformed_json", "ztf"]),
        (f"[{LSST}, {{]", ["lsst", "malformed_json"]),
        (f"[{LSST}, {LSST[:-9]}", ["lsst", "malformed_json"]),
        (f"[{LSST} {ZTF}]", ["lsst", "malformed_json"]),
        (f"[{LSST}] x", ["lsst", "malformed_json"]),
        (f"[{LSST},", ["lsst", "malformed_json"]),
        (f"[{LSST}", ["lsst", "malformed_json"]),
        ("[]", ["no_records"]),
        ("[", ["malformed_json"]),
        ("[1, 2]", ["malformed_json", "malformed_json"]),
    ],
)
def test_list_of_alerts_that_is_damaged_gives_the_good_ones_and_each_error(text: str, expected: list[str]) -> None:
    outcomes = READER.read(text.encode())
    assert [one.survey if isinstance(one, Packet) else one.reason for one in outcomes] == expected


def test_list_of_alerts_beyond_the_limits_gives_those_before() -> None:
    limits = ReadLimits(max_records=2, max_document_bytes=2 * len(LSST))
    reader = MessageReader(SchemaRegistry(), limits)
    reasons = [str(getattr(one, "reason", "")) for one in reader.read(f"[{LSST}, {LSST}, {LSST}]".encode())]
    assert reasons == ["None", "None", "too_many_records"]
    large = json.dumps({**json.loads(LSST), "note": "x" * (3 * len(LSST) // 2)})
    reasons = [str(getattr(one, "reason", "")) for one in reader.read(f"[{LSST}, {large}]".encode())]
    assert reasons == ["None", "record_too_large"]
    (error,) = reader.read(f"[{', '.join([LSST] * 9)}]".encode())
    assert isinstance(error, PacketError)
    assert error.reason is RejectReason.RECORD_TOO_LARGE


@pytest.mark.parametrize("name", avro.schema_names())
def test_gzipped_message_gives_the_same_points(name: str) -> None:
    schema, record = samples()[name]
    data = alerts.container(schema, [record])
    assert_same(read(gzip.compress(data)), read(data))
    assert_same(read(gzip.compress(json.dumps(plain(record, lambda _: None)).encode())), read(data))


@pytest.mark.parametrize("text", ['{"a": [%s]}', "[{%s}]"])
@pytest.mark.parametrize(("part", "count"), [("[],", 450_000), ('{"":0},', 450_000), ("1,", 2_100_000)])
def test_json_with_too_many_values_is_not_parsed(text: str, part: str, count: int) -> None:
    (error,) = READER.read((text % (part * count)).encode())
    assert isinstance(error, PacketError)
    assert error.reason is RejectReason.RECORD_TOO_LARGE


def test_json_alert_as_long_as_the_longest_real_ones_is_read() -> None:
    document = plain({**alerts.blank(alerts.schema("lsst/10.0")), **alerts.lsst_alert()}, lambda _: math.nan)
    document["prvDiaSources"] = [
        {**document["prvDiaSources"][0], "midpointMjdTai": 61_000.0 + day / 10} for day in range(1000)
    ]
    text = json.dumps(document)
    assert len(text) > 2 << 20
    curve = read(text.encode()).curve
    assert curve is not None
    assert len(curve) > 1000


def test_gzipped_message_that_is_damaged_or_a_bomb_has_a_reason() -> None:
    packed = gzip.compress(LSST.encode())
    bombs = (gzip.compress(bytes(100 << 20)), gzip.compress(gzip.compress(b"")), gzip.compress(b""))
    reasons = [error.reason for data in (packed[:-9], packed[:4] + b"junk", *bombs) for error in READER.read(data)]
    assert reasons == ["unknown_envelope", "unknown_envelope", "decompressed_too_large", "unknown_envelope", "empty"]


def test_gzipped_message_of_several_members_gives_every_alert() -> None:
    members = [gzip.compress(LSST.encode() + b"\n") for _ in range(3)]
    outcomes = READER.read(b"".join(members) + bytes(100))
    assert [type(outcome) for outcome in outcomes] == [Packet] * 3


def test_gzipped_message_with_damage_behind_its_first_member_is_an_error() -> None:
    packed = gzip.compress(LSST.encode())
    empty = gzip.compress(b"")
    for data in (packed + b"junk", packed + packed[:-9], empty * 20_000):
        (error,) = READER.read(data)
        assert isinstance(error, PacketError)
        assert error.reason is RejectReason.UNKNOWN_ENVELOPE


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
