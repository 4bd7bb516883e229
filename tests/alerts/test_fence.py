"""One fence around a packet: whatever goes wrong inside costs that packet alone, and says where it was."""

import gc
import json
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar_alerts.alerts import plans, reader
from nightjar_alerts.alerts.envelopes import Envelope, MessageReader, TopicRule, read_packet
from nightjar_alerts.alerts.packet import Packet, PacketError, ReadLimits, RejectReason
from nightjar_alerts.alerts.schema_registry import SchemaRegistry
from nightjar_alerts.models.limits import Allowance, TooCostly
from support import alerts

READER = MessageReader(SchemaRegistry(), ReadLimits())


def failing(error: Exception, times: int) -> Any:
    """``build_packet``, which raises so many times first."""
    failures, working = [times], reader.build_packet

    def build(*arguments: Any) -> Packet:
        if failures[0]:
            failures[0] -= 1
            raise error
        return working(*arguments)

    return build


def test_a_fault_of_ours_costs_one_record(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    data = alerts.container("ztf/4.02", [alerts.ztf_alert()] * 3)
    monkeypatch.setattr(reader, "build_packet", failing(ZeroDivisionError("secret"), 1))
    with caplog.at_level(logging.ERROR):
        first, *others = read_packet(data)
    assert isinstance(first, PacketError)
    assert (first.reason, first.survey) == (RejectReason.INTERNAL_ERROR, "ztf")
    assert first.detail.startswith("ZeroDivisionError in test_fence.py:")
    assert "secret" not in first.detail
    assert all(isinstance(other, Packet) for other in others)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RecursionError(), RejectReason.UNSAFE_SCHEMA),
        (OverflowError(), RejectReason.INTERNAL_ERROR),
        (MemoryError(), RejectReason.INTERNAL_ERROR),
        (KeyError("x"), RejectReason.INTERNAL_ERROR),
    ],
)
def test_whatever_breaks_the_reader_is_a_reason(
    error: Exception, reason: RejectReason, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "build_packet", failing(error, 1))
    (outcome,) = read_packet(alerts.confluent(1000, alerts.lsst_alert("lsst/10.0")))
    assert isinstance(outcome, PacketError)
    assert outcome.reason is reason


def test_a_traceback_is_short(caplog: pytest.LogCaptureFixture) -> None:
    def deeper(depth: int) -> None:
        if depth:
            deeper(depth - 1)
        raise ValueError("at the bottom")

    try:
        deeper(500)
    except ValueError as error:
        with caplog.at_level(logging.ERROR):
            reader.rejection(error)
    assert len(caplog.text) < 10_000


def test_a_packet_may_take_so_much_work_and_no_more() -> None:
    data = alerts.container("ztf/4.02", [alerts.ztf_alert()] * 50)
    outcomes = read_packet(data, limits=ReadLimits(max_seconds=1e-9))
    assert isinstance(outcomes[-1], PacketError)
    assert outcomes[-1].reason is RejectReason.TOO_COSTLY
    assert len(outcomes) < 50


def deep(records: int) -> dict[str, Any]:
    """A survey's schema with records that each hold the one before: 29 kB ended a whole request."""
    schema: dict[str, Any] = json.loads(json.dumps(alerts.schema("ztf/4.02")))
    kinds: list[Any] = [{"type": "record", "name": "n0", "fields": [{"name": "v", "type": "int"}]}]
    kinds += [
        {"type": "record", "name": f"n{i}", "fields": [{"name": "v", "type": f"n{i - 1}"}]} for i in range(1, records)
    ]
    schema["fields"] += [{"name": f"x{i}", "type": kind} for i, kind in enumerate(kinds)]
    return schema


@pytest.mark.parametrize("records", [33, 100, 400, 1500])
def test_depth_through_references_is_refused(records: int) -> None:
    (outcome,) = read_packet(alerts.header(deep(records)))
    assert isinstance(outcome, PacketError)
    assert outcome.reason is RejectReason.UNSAFE_SCHEMA


def test_a_request_may_bring_few_schemas() -> None:
    new = plans.NewSchemas(3)
    outcomes = []
    for number in range(6):
        schema = json.loads(json.dumps(alerts.schema("ztf/4.02"))) | {"doc": f"bring {number}"}
        outcomes += READER.read(alerts.header(schema), new=new)
    assert [error.reason for error in outcomes if isinstance(error, PacketError)] == [
        *[RejectReason.NO_RECORDS] * 3,
        *[RejectReason.TOO_MANY_SCHEMAS] * 3,
    ]


ENVELOPES = [None, *Envelope]
STARTS = [b"Obj\x01", b"\0\0\0\x03\xe8", b"{", b'{"a":']


@settings(deadline=None, max_examples=300)
@given(
    st.binary(max_size=300)
    | st.builds(
        lambda head, tail: head + tail, st.sampled_from([b"Obj\x01", b"\0\0\0\x03\xe8", b"{", b'{"a":']), st.binary()
    )
    | st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner)).map(
        lambda document: json.dumps(document).encode()
    ),
    st.none() | st.binary(max_size=50),
    st.sampled_from(ENVELOPES),
)
def test_any_bytes_are_answered_and_never_with_a_fault_of_ours(
    value: bytes, key: bytes | None, envelope: Envelope | None
) -> None:
    schema = "lsst/10.0" if envelope is Envelope.BARE else None
    rule = TopicRule(envelope=envelope or Envelope.AUTO, schema_name=schema)
    outcomes = READER.read(value, key, rule)
    assert outcomes
    for outcome in outcomes:
        assert not (isinstance(outcome, PacketError) and outcome.reason is RejectReason.INTERNAL_ERROR)


def test_refused_packets_leave_nothing_for_the_search_for_cycles() -> None:
    """Each kept itself and its bytes by the frames it was raised in; looking for them took a tenth of a second."""
    whole = alerts.container("ztf/4.02", [alerts.ztf_alert()])
    bad = [b"", b"garbage", b"{", b'{"a": [1]}', whole[:-200], whole + b"x", b"\0\0\0\x27\x0f\2"]
    unreachable = []
    for _ in range(3):  # threads that earlier tests started may leave cycles of their own meanwhile
        gc.collect()
        gc.disable()
        try:
            for _ in range(100):
                assert all(isinstance(outcome, PacketError) for data in bad for outcome in READER.read(data)[-1:])
            unreachable.append(gc.collect())
        finally:
            gc.enable()
    assert min(unreachable) < 100


def test_blocks_without_records_use_up_the_allowance_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only records were weighed: a container of empty blocks had all the time there is."""
    checks = 20

    def check(self: Allowance) -> None:
        nonlocal checks
        checks -= 1
        if checks < 0:
            raise TooCostly("the time is over")

    monkeypatch.setattr(Allowance, "check", check)
    outcomes = list(read_packet(alerts.header(alerts.schema("ztf/4.02")) + alerts.block(0, b"") * 50))
    assert [error.reason for error in outcomes if isinstance(error, PacketError)] == [RejectReason.TOO_COSTLY]


def test_bytes_without_records_count_as_records() -> None:
    """Each such block was an outcome of its own, and their number had no bound."""
    data = alerts.header(alerts.schema("ztf/4.02")) + alerts.block(0, b"x") * 50
    reasons = [
        error.reason for error in read_packet(data, limits=ReadLimits(max_records=5)) if isinstance(error, PacketError)
    ]
    assert reasons == [RejectReason.MALFORMED_AVRO] * 6 + [RejectReason.TOO_MANY_RECORDS]
