"""Every envelope in use, with a rule for the topic and without."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from nightjar_alerts.alerts import avro
from nightjar_alerts.alerts.envelopes import ANYTHING, Envelope, MessageReader, TopicRule, read_packet, rule_for
from nightjar_alerts.alerts.packet import Packet, PacketError, ReadLimits, RejectReason
from nightjar_alerts.alerts.schema_registry import SchemaRegistry
from support import alerts
from support.shared import needs_shared, shared

READER = MessageReader(SchemaRegistry(), ReadLimits())


def one(value: bytes, key: bytes | None = None, rule: TopicRule = ANYTHING) -> Packet:
    (packet,) = READER.read(value, key, rule)
    assert isinstance(packet, Packet), packet
    return packet


def refused(value: bytes, key: bytes | None = None, rule: TopicRule = ANYTHING) -> RejectReason:
    (error,) = READER.read(value, key, rule)
    assert isinstance(error, PacketError), error
    return error.reason


def text(name: str) -> bytes:
    return json.dumps(alerts.schema(name)).encode()


FRAMED = alerts.confluent(1101, alerts.lsst_alert("lsst/11.1"))
BARE = alerts.bare("elasticc/0.9.1", alerts.elasticc_alert())
CONTAINER = alerts.container("ztf/4.02", [alerts.ztf_alert()], "snappy")
FINK = alerts.bare("ztf/4.02", alerts.ztf_alert())
DOCUMENT = json.dumps(alerts.lsst_alert("lsst/10.0")).encode()
MESSAGES: Mapping[str, tuple[bytes, bytes | None, TopicRule, str, str]] = {
    "confluent": (FRAMED, None, TopicRule(envelope=Envelope.CONFLUENT), "lsst", "11.1"),
    "container": (CONTAINER, b"ZTF24", TopicRule(envelope=Envelope.CONTAINER), "ztf", "4.02"),
    "bare": (BARE, b"1", TopicRule(envelope=Envelope.BARE, schema_name="elasticc/0.9.1"), "elasticc", "0.9.1"),
    "key": (FINK, text("ztf/4.02"), TopicRule(envelope=Envelope.KEY), "ztf", "4.02"),
    "json": (DOCUMENT, None, TopicRule(envelope=Envelope.JSON), "lsst", "unknown"),
}


@pytest.mark.parametrize("sniffed", [False, True])
@pytest.mark.parametrize("envelope", MESSAGES)
def test_every_envelope(envelope: str, sniffed: bool) -> None:
    value, key, rule, survey, version = MESSAGES[envelope]
    packet = one(value, key, ANYTHING if sniffed else rule)
    assert (packet.survey, packet.schema_version) == (survey, version)
    assert packet.curve is not None


@pytest.mark.parametrize("envelope", MESSAGES)
def test_a_rule_wins_over_what_the_bytes_look_like(envelope: str) -> None:
    value, key, *_ = MESSAGES[envelope]
    for name, (_, _, rule, *_) in MESSAGES.items():
        if name != envelope:
            assert refused(value, key, rule) in set(RejectReason) - {RejectReason.EMPTY}


def test_a_bare_record_that_looks_framed_is_read_by_rule_and_by_sniffing() -> None:
    record = alerts.elasticc_alert() | {"alertId": 0}
    data = alerts.bare("elasticc/0.9.1", record)
    assert data[0] == 0
    rule = TopicRule(envelope=Envelope.BARE, schema_name="elasticc/0.9.1")
    assert one(data).alert_id == one(data, None, rule).alert_id == str(2**61 + 1)


def test_a_bare_record_that_begins_like_json() -> None:
    data = alerts.bare("elasticc/0.9.1", alerts.elasticc_alert() | {"alertId": -62})
    assert data.startswith(b"{")
    assert one(data).survey == "elasticc"


@pytest.mark.parametrize(
    ("value", "key", "envelope", "reason"),
    [
        (b"", None, Envelope.AUTO, RejectReason.EMPTY),
        (b"hello", None, Envelope.AUTO, RejectReason.UNKNOWN_ENVELOPE),
        (b"{", None, Envelope.AUTO, RejectReason.MALFORMED_JSON),
        (b"[1]", None, Envelope.JSON, RejectReason.MALFORMED_JSON),
        (b'{"a": NaN}', None, Envelope.JSON, RejectReason.UNKNOWN_SCHEMA),
        (b"[" * 100_000, None, Envelope.JSON, RejectReason.MALFORMED_JSON),
        (b'{"a": 1}', None, Envelope.JSON, RejectReason.UNKNOWN_SCHEMA),
        (b'{"diaSource": 1}', None, Envelope.JSON, RejectReason.UNKNOWN_SCHEMA),
        (b'{"diaSource": null}', None, Envelope.JSON, RejectReason.UNKNOWN_SCHEMA),
        (b'{"diaSource": ' + b'{"x":' * 40 + b"1" + b"}" * 41, None, Envelope.JSON, RejectReason.UNKNOWN_SCHEMA),
        (b" " * (9 << 20) + b"{}", None, Envelope.JSON, RejectReason.RECORD_TOO_LARGE),
        (FINK, None, Envelope.KEY, RejectReason.UNKNOWN_ENVELOPE),
        (FINK, b"3.1_4.2", Envelope.KEY, RejectReason.UNSAFE_SCHEMA),
        (FINK, b"{" * 5000, Envelope.AUTO, RejectReason.UNKNOWN_ENVELOPE),
        (b"\0\0", None, Envelope.CONFLUENT, RejectReason.UNKNOWN_ENVELOPE),
        (b"\0" + (77).to_bytes(4, "big") + b"\2" * 40, None, Envelope.CONFLUENT, RejectReason.UNKNOWN_SCHEMA),
    ],
)
def test_unreadable_messages_have_a_reason(
    value: bytes, key: bytes | None, envelope: Envelope, reason: RejectReason
) -> None:
    assert refused(value, key, TopicRule(envelope=envelope)) is reason


BARE_LSST = FRAMED[5:]
HEADERS: dict[str, tuple[str, bytes]] = {
    "Confluent": ("__value_schema_id", FRAMED[:5]),
    "Confluent, four bytes": ("__value_schema_id", FRAMED[1:5]),
    "text": ("__value_schema_id", b"1101"),
    "Apicurio, global id": ("apicurio.value.globalId", bytes(4) + FRAMED[1:5]),
    "Apicurio, content id": ("apicurio.value.contentId", bytes(4) + FRAMED[1:5]),
}


@pytest.mark.parametrize("key", [None, b"7", b'{"diaObjectId": 7}'])
@pytest.mark.parametrize("name", HEADERS)
def test_schema_id_in_a_header_is_read(name: str, key: bytes | None) -> None:
    headers = [("other", b"x"), HEADERS[name]]
    (packet,) = READER.read(BARE_LSST, key, headers=headers)
    assert isinstance(packet, Packet), packet
    assert (packet.survey, packet.schema_version) == ("lsst", "11.1")


@pytest.mark.parametrize("value", [b"\1" + bytes(range(16)), b"", b"9999", b"\2" + bytes(4)])
def test_schema_id_in_a_header_that_cannot_be_used_is_named_and_does_not_hide_the_frame(value: bytes) -> None:
    headers = [("__value_schema_id", value)]
    (error,) = READER.read(BARE_LSST, headers=headers)
    assert isinstance(error, PacketError)
    assert error.reason is RejectReason.UNKNOWN_SCHEMA
    assert "__value_schema_id" in str(error) or "schema id" in str(error)
    (packet,) = READER.read(FRAMED, headers=headers)
    assert isinstance(packet, Packet), packet


def test_frame_with_an_id_of_eight_bytes_is_read() -> None:
    assert one(b"\0" + bytes(4) + FRAMED[1:]).schema_version == "11.1"
    assert refused(b"\0" * 20) is RejectReason.UNKNOWN_SCHEMA


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.none() | st.binary(max_size=40), st.sampled_from(list(Envelope)))
def test_any_message_is_answered(value: bytes, key: bytes | None, envelope: Envelope) -> None:
    schema = "lsst/10.0" if envelope is Envelope.BARE else None
    assert READER.read(value, key, TopicRule(envelope=envelope, schema_name=schema))


def test_rules_are_found_by_pattern() -> None:
    rules = {
        "ztf_*_programid1": TopicRule(envelope=Envelope.CONTAINER),
        "alerts-ddf-*": TopicRule(envelope=Envelope.BARE, schema_name="elasticc/0.9.1"),
        "*": TopicRule(envelope=Envelope.CONFLUENT),
    }
    assert rule_for("ztf_20261121_programid1", rules).envelope is Envelope.CONTAINER
    assert rule_for("alerts-ddf-full", rules).schema_name == "elasticc/0.9.1"
    assert rule_for("lsst-alerts-v11", rules).envelope is Envelope.CONFLUENT
    assert rule_for("anything", {}) is ANYTHING


@pytest.mark.parametrize("rule", [{"envelope": "bare"}, {"schema_name": "lsst/10.0"}, {"envelop": "json"}])
def test_a_rule_without_sense_is_refused(rule: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        TopicRule.model_validate(rule)


MAKERS = {"lsst": alerts.lsst_alert, "elasticc": alerts.elasticc_alert, "ztf": alerts.ztf_alert}


@pytest.mark.parametrize("name", [name for name in avro.schema_names() if name.split("/")[0] in MAKERS])
def test_json_says_the_same_as_avro(name: str) -> None:
    alert = MAKERS[name.split("/")[0]](name)
    spoken, written = one(json.dumps(alert).encode()), one(alerts.container(name, [alert]))
    assert (spoken.survey, spoken.alert_id, spoken.object_id) == (written.survey, written.alert_id, written.object_id)
    assert spoken.source_id == written.source_id
    assert spoken.mjd == written.mjd
    assert spoken.curve is not None
    assert written.curve is not None
    assert spoken.curve.metadata == pytest.approx(written.curve.metadata)
    for column in ("mjd", "band", "detected"):
        assert getattr(spoken.curve, column).tolist() == getattr(written.curve, column).tolist()
    np.testing.assert_allclose(spoken.curve.flux, written.curve.flux, rtol=1e-5)  # Avro holds some as float32


def test_json_ids_of_64_bits_and_as_text() -> None:
    alert = alerts.lsst_alert("lsst/10.0")
    alert["diaSourceId"] = 2**63 - 1
    assert one(json.dumps(alert).encode()).alert_id == "9223372036854775807"
    alert["diaSourceId"] = "170094456272322681"
    assert one(json.dumps(alert).encode()).alert_id == "170094456272322681"


def test_json_rows_may_lack_fields_or_be_null() -> None:
    alert = json.loads(DOCUMENT)
    del alert["prvDiaForcedSources"][1]["visit"]
    alert["prvDiaForcedSources"].append(None)
    alert["prvDiaForcedSources"].append({"midpointMjdTai": 60000.0})
    assert len(one(json.dumps(alert).encode()).curve or ()) == len(one(DOCUMENT).curve or ())


def test_json_value_of_another_type_costs_only_its_row() -> None:
    alert: dict[str, Any] = json.loads(DOCUMENT)
    whole = one(json.dumps(alert).encode()).curve
    alert["prvDiaForcedSources"][0]["psfFlux"] = "bright"
    curve = one(json.dumps(alert).encode()).curve
    assert whole is not None
    assert curve is not None
    assert len(curve) == len(whole) - 1
    assert curve.dropped == {"no_flux": 1}


def test_the_alerts_own_time_is_the_exposure_of_its_detection() -> None:
    lsst = one(FRAMED)
    assert lsst.mjd == 61004.0
    ztf = one(CONTAINER)
    assert ztf.mjd is not None
    assert math.isclose(ztf.mjd, 2460449.8 - 2400000.5 + (37 + 15) / 86400, abs_tol=1e-9)


@needs_shared
def test_fink_messages_with_their_schema_as_key() -> None:
    path = sorted(shared("data", "alerts", "lsst", "fink_client").glob("*.avro"))[0]
    data, read = path.read_bytes(), 0
    plain = [packet for packet in read_packet(data) if isinstance(packet, Packet)]
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        key = json.dumps(reader.writer_schema, default=str).encode()
        for packet, record in zip(plain, reader, strict=True):
            by_key = one(alerts.bare(json.loads(key), record), key)  # type: ignore[arg-type]  # fastavro gives records
            assert (by_key.alert_id, by_key.reason) == (packet.alert_id, packet.reason)
            read += 1
    assert read > 5


@needs_shared
def test_the_folder_of_extra_schemas_serves_rules(tmp_path: Path) -> None:
    (tmp_path / "lsst").mkdir()
    (tmp_path / "lsst" / "12.0.avsc").write_bytes(text("lsst/11.1"))
    reader = MessageReader(SchemaRegistry(extra=tmp_path), ReadLimits(), tmp_path)
    rule = TopicRule(envelope=Envelope.BARE, schema_name="lsst/12.0")
    assert isinstance(reader.read(FRAMED[5:], None, rule)[0], Packet)
    assert isinstance(reader.read(b"\0" + (1200).to_bytes(4, "big") + FRAMED[5:])[0], Packet)


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("__value_schema_id", b"\0" + (1000).to_bytes(4, "big")),
        ("__value_schema_id", (1000).to_bytes(4, "big")),
        ("apicurio.value.globalId", (1000).to_bytes(8, "big")),
        ("apicurio.value.contentId", (1000).to_bytes(8, "big")),
    ],
)
def test_read_schema_id_in_a_header_reads_the_bare_record(name: str, encoded: bytes) -> None:
    value = alerts.bare("lsst/10.0", alerts.lsst_alert("lsst/10.0"))
    (packet,) = READER.read(value, headers=[("other", b"x"), (name, encoded)])
    assert isinstance(packet, Packet)
    assert packet.schema_version == "10.0"


def test_read_schema_guid_in_a_header_is_named() -> None:
    value = alerts.bare("lsst/10.0", alerts.lsst_alert("lsst/10.0"))
    (error,) = READER.read(value, headers=[("__value_schema_id", b"\1" + bytes(16))])
    assert isinstance(error, PacketError)
    assert error.reason is RejectReason.UNKNOWN_SCHEMA
    assert "__value_schema_id" in error.detail
