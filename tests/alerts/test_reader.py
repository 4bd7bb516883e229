import collections
import io
import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar_alerts.alerts.envelopes import read_packet
from nightjar_alerts.alerts.packet import AbstainReason, Packet, PacketError, ReadLimits, RejectReason
from nightjar_alerts.alerts.reader import PacketOutcome
from support import alerts
from support.shared import needs_shared, shared

ROW: dict[str, Any] = {"type": "record", "name": "row", "fields": [
    {"name": "midpointMjdTai", "type": "double"}, {"name": "band", "type": "string"},
    {"name": "psfFlux", "type": "float"}, {"name": "psfFluxErr", "type": "float"},
]}  # fmt: skip
SMALL = {
    "type": "record",
    "name": "top",
    "fields": [{"name": "diaSource", "type": ROW}, {"name": "diaSourceId", "type": "long"}],
}


def small(number: int, **values: Any) -> dict[str, Any]:
    return {
        "diaSource": {"midpointMjdTai": 61000.0, "band": "g", "psfFlux": 5.0, "psfFluxErr": 1.0, **values},
        "diaSourceId": number,
    }


def one(outcomes: list[PacketOutcome]) -> Packet:
    (packet,) = outcomes
    assert isinstance(packet, Packet)
    return packet


def refusal(outcomes: list[PacketOutcome]) -> PacketError:
    (error,) = outcomes
    assert isinstance(error, PacketError)
    return error


def summary(outcome: PacketOutcome) -> str:
    """An outcome in one word: an alert id, or a reason."""
    return outcome.alert_id if isinstance(outcome, Packet) else outcome.reason


@pytest.mark.parametrize("schema_id", [700, 701, 702, 703, 704, 800, 900, 1000, 1100, 1101])
def test_confluent_framing_is_big_endian(schema_id: int) -> None:
    data = alerts.confluent(schema_id, alerts.lsst_alert(f"lsst/{schema_id // 100}.{schema_id % 100}"))
    packet = one(read_packet(data))
    assert packet.schema_version == f"{schema_id // 100}.{schema_id % 100}"
    assert packet.curve is not None
    little = b"\0" + data[1:5][::-1] + data[5:]
    assert refusal(read_packet(little)).reason is RejectReason.UNKNOWN_SCHEMA


def test_an_unknown_confluent_id_is_named() -> None:
    error = refusal(read_packet(b"\0" + (1207).to_bytes(4, "big") + b"\2\4\6\0" * 30))
    assert error.reason is RejectReason.UNKNOWN_SCHEMA
    assert "lsst/12.7" in str(error)


def test_an_extra_schema_makes_its_id_readable(tmp_path: Path) -> None:
    (tmp_path / "lsst").mkdir()
    text = json.dumps(alerts.schema("lsst/11.1")).replace("lsst.v11_1", "lsst.v12_7")
    (tmp_path / "lsst" / "12.7.avsc").write_text(text)
    data = b"\0" + (1207).to_bytes(4, "big") + alerts.bare("lsst/11.1", alerts.lsst_alert("lsst/11.1"))
    assert one(read_packet(data, extra_schemas=tmp_path)).schema_version == "12.7"
    assert refusal(read_packet(data)).reason is RejectReason.UNKNOWN_SCHEMA


@pytest.mark.parametrize("name", ["elasticc/0.9", "elasticc/0.9.1"])
def test_bare_elasticc_records_are_recognised(name: str) -> None:
    packet = one(read_packet(alerts.bare(name, alerts.elasticc_alert(name))))
    assert (packet.survey, packet.schema_version) == ("elasticc", name.removeprefix("elasticc/"))


def test_a_bare_record_may_begin_with_zero() -> None:
    alert = {**alerts.elasticc_alert(), "alertId": 0}
    data = alerts.bare("elasticc/0.9.1", alert)
    assert data[0] == 0
    assert one(read_packet(data)).alert_id == str(2**61 + 1)


def test_a_named_schema_wins_over_sniffing() -> None:
    container = alerts.container("ztf/4.02", [alerts.ztf_alert()])
    assert refusal(read_packet(container, schema="elasticc/0.9.1")).survey == "elasticc"
    framed = alerts.confluent(704, alerts.lsst_alert("lsst/7.4"))
    assert refusal(read_packet(framed, schema="lsst/7.4")).survey == "lsst"
    assert one(read_packet(framed[5:], schema="lsst/7.4")).schema_version == "7.4"


def test_a_named_schema_reports_what_sniffing_would_not_believe() -> None:
    alert = alerts.elasticc_alert()
    alert["diaSource"]["filterName"] = "?"
    data = alerts.bare("elasticc/0.9.1", {**alert, "prvDiaForcedSources": None})
    assert refusal(read_packet(data)).reason is RejectReason.UNKNOWN_ENVELOPE
    assert one(read_packet(data, schema="elasticc/0.9.1")).reason is AbstainReason.NO_USABLE_POINTS


@pytest.mark.parametrize("schema", ["", "elasticc/9.9", "../secrets", "Obj"])
def test_an_unknown_name_is_refused(schema: str) -> None:
    assert refusal(read_packet(b"abc", schema=schema)).reason is RejectReason.UNKNOWN_SCHEMA


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
@pytest.mark.parametrize("name", ["ztf/3.3", "ztf/4.02"])
def test_ztf_containers(name: str, codec: str) -> None:
    packet = one(read_packet(alerts.container(name, [alerts.ztf_alert(name)], codec)))
    assert (packet.survey, packet.schema_version) == ("ztf", name.removeprefix("ztf/"))


@pytest.mark.parametrize("name", ["lsst/7.4", "lsst/11.1", "elasticc/0.9"])
def test_other_containers(name: str) -> None:
    alert = alerts.elasticc_alert(name) if name.startswith("elasticc") else alerts.lsst_alert(name)
    outcomes = read_packet(alerts.container(name, [alert] * 3))
    assert [isinstance(outcome, Packet) and outcome.schema_version for outcome in outcomes] == [name.split("/")[1]] * 3


RECURSIVE = {"type": "record", "name": "n", "fields": [{"name": "n", "type": ["null", "n"]}]}
JUNK: dict[str, tuple[bytes, RejectReason]] = {
    "nothing": (b"", RejectReason.EMPTY),
    "one zero": (b"\0", RejectReason.UNKNOWN_ENVELOPE),
    "text": (b"hello, world", RejectReason.UNKNOWN_ENVELOPE),
    "JSON": (b'{"mjd": []}', RejectReason.UNKNOWN_SCHEMA),
    "zeros": (bytes(2000), RejectReason.UNKNOWN_SCHEMA),
    "the magic alone": (b"Obj\x01", RejectReason.TRUNCATED_AVRO),
    "a foreign container": (alerts.header({"type": "record", "name": "u", "fields": []}), RejectReason.UNKNOWN_SCHEMA),
    "no records": (alerts.header(SMALL), RejectReason.NO_RECORDS),
    "an empty block": (alerts.header(SMALL) + alerts.block(0, b""), RejectReason.NO_RECORDS),
    "a recursive schema": (alerts.header(RECURSIVE) + alerts.block(1, b"\2" * 50_000), RejectReason.UNSAFE_SCHEMA),
    "bytes after the record": (alerts.confluent(1000, alerts.lsst_alert()) + b"\0", RejectReason.MALFORMED_AVRO),
    "too long": (b"\0" + (1000).to_bytes(4, "big") + bytes(3 << 20), RejectReason.RECORD_TOO_LARGE),
}  # fmt: skip


@pytest.mark.parametrize(("data", "reason"), JUNK.values(), ids=JUNK.keys())
def test_junk_is_refused_with_a_reason(data: bytes, reason: RejectReason) -> None:
    assert refusal(read_packet(data)).reason is reason


def test_one_bad_record_harms_no_other_block() -> None:
    first, second, third = (alerts.bare(SMALL, small(i)) for i in (1, 2, 3))
    blocks = alerts.block(1, first) + alerts.block(3, second + b"\xff" * 20 + third) + alerts.block(1, third)
    assert [summary(outcome) for outcome in read_packet(alerts.header(SMALL) + blocks)] == [
        "1",
        "2",
        "truncated_avro",
        "3",
    ]


def test_a_bad_id_harms_only_its_record() -> None:
    data = alerts.container(
        "ztf/4.02", [{**alerts.ztf_alert(), "objectId": name} for name in ("ZTF1", "ZTF 2", "ZTF3")]
    )
    outcomes = read_packet(data)
    assert [isinstance(outcome, Packet) and outcome.object_id for outcome in outcomes] == ["ZTF1", False, "ZTF3"]
    assert isinstance(outcomes[1], PacketError)
    assert outcomes[1].survey == "ztf"


def test_a_cut_container_answers_what_came_before() -> None:
    data = alerts.container(SMALL, [small(i) for i in range(1, 4)], sync_interval=1)
    assert [summary(outcome) for outcome in read_packet(data[:-5])] == ["1", "2", "truncated_avro"]


def test_surplus_records_are_refused_together() -> None:
    data = alerts.container(SMALL, [small(i) for i in range(1, 9)])
    assert [summary(outcome) for outcome in read_packet(data, limits=ReadLimits(max_records=3))] == [
        "1",
        "2",
        "3",
        "too_many_records",
    ]
    assert len(read_packet(data, limits=ReadLimits(max_records=8))) == 8


def test_bytes_left_in_a_block_are_reported() -> None:
    data = alerts.header(SMALL) + alerts.block(1, alerts.bare(SMALL, small(1)) * 2)
    assert [summary(outcome) for outcome in read_packet(data)] == ["1", "malformed_avro"]


SAMPLES: dict[str, bytes] = {
    "lsst": alerts.confluent(1000, alerts.lsst_alert()),
    "elasticc": alerts.bare("elasticc/0.9.1", alerts.elasticc_alert()),
    "ztf": alerts.container("ztf/4.02", [alerts.ztf_alert()], "snappy"),
    "several": alerts.container(SMALL, [small(i) for i in range(1, 9)], "deflate", sync_interval=60),
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_truncation_is_answered(sample: str) -> None:
    data = SAMPLES[sample]
    step = max(1, len(data) // 500)
    for end in range(0, len(data), step):
        last = read_packet(data[:end])[-1]
        assert isinstance(last, PacketError) or sample == "several"


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_damaged_packets_are_answered(sample: str, draw: st.DataObject) -> None:
    data = bytearray(SAMPLES[sample])
    for _ in range(draw.draw(st.integers(1, 6))):
        at = draw.draw(st.integers(0, len(data) - 1))
        data[at : at + draw.draw(st.integers(0, 4))] = draw.draw(st.binary(max_size=6))
        data = data or bytearray(1)
    started = time.thread_time()
    assert read_packet(bytes(data))
    assert time.thread_time() - started < 2.0


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"\0\0\0\3\xe8", b"Obj\x01"]),
    st.sampled_from([None, "elasticc/0.9", "lsst/10.0"]),
)
def test_any_bytes_are_answered(tail: bytes, start: bytes, schema: str | None) -> None:
    for outcome in read_packet(start + tail, schema=schema):
        assert outcome.reason is not None or (isinstance(outcome, Packet) and outcome.curve is not None)


def test_the_worst_admitted_schema_stays_bounded() -> None:
    row = {**ROW, "fields": [{"name": field["name"], "type": "int"} for field in ROW["fields"]]}
    top = {"type": "record", "name": "top", "fields": [
        {"name": "diaSource", "type": row}, {"name": "prvDiaSources", "type": {"type": "array", "items": "row"}},
    ]}  # fmt: skip
    count = (2 << 20) // 4 - 9
    data = alerts.header(top) + alerts.block(1, b"\2\2\2\2" + alerts.long(count) + b"\2\2\2\2" * count + b"\0")
    started = time.thread_time()
    assert refusal(read_packet(data)).reason is RejectReason.TOO_MANY_OBSERVATIONS
    assert time.thread_time() - started < 20.0


def real_packets() -> Iterator[tuple[str, bytes]]:
    root = shared("data", "alerts")
    for path in sorted(root.rglob("*.avro")):
        yield str(path.relative_to(root)), path.read_bytes()
    for path in sorted(root.rglob("*.tar.gz")):
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                yield f"{path.relative_to(root)}/{member.name}", file.read()


@needs_shared
def test_every_real_packet_is_answered() -> None:
    outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, data in real_packets():
        for outcome in read_packet(data):
            assert isinstance(outcome, Packet), (name, outcome)
            outcomes[name.split("/")[0]][outcome.reason or "curve"] += 1
            if outcome.curve is None:  # the sample packets of LSST 7 state time in seconds, two of Fink's are asteroids
                assert outcome.reason == "solar_system_object" or "7_" in name, (name, outcome)
    assert set(outcomes) == {"lsst", "elasticc", "ztf"}
    assert all(counts["curve"] for counts in outcomes.values())


@needs_shared
def test_real_lsst_alerts_of_a_deep_field() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = sorted(shared("data", "alerts", "lsst", "fink_parquet").glob("ftransfer*/*.parquet"))[0]
    for row in parquet.read_table(path).to_pylist():
        if not row["diaObject"]["diaObjectId"]:
            row["diaObject"] = None
        packet = one(read_packet(alerts.confluent(1000, {**row, "ssSource": None, "mpc_orbits": None})))
        if row["diaObject"] is None:
            assert packet.reason is AbstainReason.SOLAR_SYSTEM_OBJECT
            continue
        detections = [row["diaSource"], *(row["prvDiaSources"] or [])]
        visits = {(point["visit"], point["band"]) for point in [*detections, *(row["prvDiaForcedSources"] or [])]}
        assert packet.curve is not None
        assert len(packet.curve) == len(visits)
        assert packet.curve.detected.sum() == len({(point["visit"], point["band"]) for point in detections})
        assert packet.alert_id == str(row["diaSourceId"])


@needs_shared
def test_ztf_alerts_as_fink_rewrites_them() -> None:
    text = shared("data", "schemas", "fink", "distribution_schema_fink_ztf_2.7_3.10.1.avsc").read_text()
    path = sorted(shared("data", "alerts", "ztf", "kowalski", "20200202").glob("*.avro"))[0]
    with path.open("rb") as file:
        alert: Any = next(iter(fastavro.reader(file)))
    schema = json.loads(text)
    blank = {field["name"]: None for field in schema["fields"]}
    stream = io.BytesIO()
    fastavro.writer(stream, fastavro.parse_schema(schema), [{**blank, **alert}])
    packet, plain = one(read_packet(stream.getvalue())), one(read_packet(path.read_bytes()))
    assert packet.curve is not None
    assert plain.curve is not None
    assert packet.curve.flux.tolist() == plain.curve.flux.tolist()
    assert (packet.survey, packet.schema_version, packet.object_id) == ("ztf", "3.3", plain.object_id)


@pytest.mark.parametrize(
    ("name", "position"),
    [
        ("ztf_ZTF26dqoimhj", (314.1153373941779, -36.06151980930917)),
        ("elasticc_9876522430000005", (100.96327311359346, -0.583548120504549)),
        ("lsst_9876522420000003", (1.685516070574522, -0.8546539851105376)),
    ],
)
def test_packet_states_the_position_of_its_object(name: str, position: tuple[float, float]) -> None:
    data = (Path(__file__).parents[2] / "service" / "samples" / f"{name}.avro").read_bytes()
    (packet,) = read_packet(data)
    assert isinstance(packet, Packet)
    assert packet.curve is not None
    assert (packet.curve.ra, packet.curve.dec) == pytest.approx(position, abs=1e-12)


@pytest.mark.parametrize("position", [{"ra": -1.0}, {"dec": 91.0}, {"ra": None}, {"dec": "north"}])
def test_packet_without_a_valid_position_has_none(position: dict[str, Any]) -> None:
    alert = alerts.ztf_alert()
    alert["candidate"] |= {"ra": 10.0, "dec": 5.0} | position
    (packet,) = read_packet(alerts.plain_json(alert).encode())
    assert isinstance(packet, Packet)
    assert packet.curve is not None
    assert (packet.curve.ra, packet.curve.dec) == (None, None)
