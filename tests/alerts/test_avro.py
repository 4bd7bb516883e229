import io
import json
from typing import Any

import fastavro
import pytest

from nightjar_alerts.alerts import avro
from nightjar_alerts.alerts.packet import PacketError, RejectReason
from support import alerts


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


def record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def parse(schema: Any) -> avro.Schema:
    return avro.parse(json.dumps(schema).encode())


@pytest.mark.parametrize("kind", ["int", ["null", "int"], ["int", "null"], ["int"]])
def test_a_nullable_type_is_bared(kind: Any) -> None:
    assert avro.non_null(kind) == "int"


@pytest.mark.parametrize("kind", [["null", "int", "string"], ["null", "null", "int"], ["null"], ["int", "string"]])
def test_other_unions_stay(kind: Any) -> None:
    assert avro.non_null(kind) == kind


def test_a_projection_skips_what_is_not_wanted() -> None:
    schema = parse(alerts.schema("lsst/10.0"))
    keep = {
        "lsst.v10_0.alert": frozenset({"diaSource", "prvDiaSources"}),
        "lsst.v10_0.diaSource": frozenset({"band"}),
    }
    reader = avro.project(schema, keep)
    data = alerts.bare("lsst/10.0", {**alerts.lsst_alert(), "cutoutScience": b"x" * 1000})
    stream = io.BytesIO(data)
    record = avro.read_record(stream, schema, reader)
    assert record == {"diaSource": {"band": "z"}, "prvDiaSources": [{"band": "u"}, {"band": "r"}]}
    assert stream.tell() == len(data)


def test_a_projection_defines_a_type_whose_first_use_was_dropped() -> None:
    row = record("row", field("v", "int"), field("w", "int"))
    schema = parse(record("top", field("dropped", row), field("kept", array("row")), field("also", ["null", "row"])))
    reader = avro.project(schema, {"top": frozenset({"kept", "also"}), "row": frozenset({"w"})})
    data = b"\x02\x04" + alerts.long(1) + b"\x06\x08" + alerts.long(0) + b"\x02\x0a\x0c"
    assert avro.read_record(io.BytesIO(data), schema, reader) == {"kept": [{"w": 4}], "also": {"w": 6}}


EVERYTHING = record(
    "top",
    field("text", "string"),
    field("raw", "bytes"),
    field("list", array(["null", "double"])),
    field("map", {"type": "map", "values": "long"}),
    field("choice", ["null", "string", record("inner", field("v", "float"))]),
    field("kind", {"type": "enum", "name": "kind", "symbols": ["A", "B"]}),
    field("tag", {"type": "fixed", "name": "tag", "size": 4}),
    field("flag", "boolean"),
)
SAMPLE = {
    "text": "hé", "raw": b"\0\1", "list": [None, 1.5], "map": {"a": -7}, "choice": {"v": 0.5}, "kind": "B",
    "tag": b"abcd", "flag": True,
}  # fmt: skip


def sample_bytes() -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(EVERYTHING), SAMPLE)
    return stream.getvalue()


def test_every_type_survives_the_rebuilding() -> None:
    schema = parse(EVERYTHING)
    assert avro.read_record(io.BytesIO(sample_bytes()), schema, schema.parsed) == SAMPLE


def test_every_truncation_is_named() -> None:
    schema, data = parse(EVERYTHING), sample_bytes()
    for end in range(len(data)):
        with pytest.raises(PacketError) as caught:
            avro.read_record(io.BytesIO(data[:end]), schema, schema.parsed)
        assert caught.value.reason is RejectReason.TRUNCATED_AVRO


HOSTILE_BYTES = {
    "string of an exabyte": (field("x", "string"), alerts.long(10**18) + b"ab"),
    "bytes of negative length": (field("x", "bytes"), alerts.long(-5) + b"abcdef"),
    "text that is not UTF-8": (field("x", "string"), alerts.long(2) + b"\xff\xfe" + b"tail"),
    "array of 2**62": (field("x", array("int")), alerts.long(2**62) + b"\2\2"),
    "array of -2**62": (field("x", array("int")), alerts.long(-(2**62)) + alerts.long(5) + b"\2\2"),
    "map of 2**62": (field("x", {"type": "map", "values": "int"}), alerts.long(2**62) + alerts.long(1) + b"a\2"),
    "union branch 7 of 2": (field("x", ["null", "int"]), alerts.long(7) + b"tail"),
    "union branch -9 of 2": (field("x", ["null", "int"]), alerts.long(-9) + b"tail"),
    "enum symbol 70 of 1": (field("x", {"type": "enum", "name": "e", "symbols": ["A"]}), alerts.long(70) + b"tail"),
    "fixed of two gigabytes": (field("x", {"type": "fixed", "name": "f", "size": 2**31 - 1}), b"ab"),
}


@pytest.mark.parametrize(("kind", "data"), HOSTILE_BYTES.values(), ids=HOSTILE_BYTES.keys())
def test_hostile_bytes_are_refused(kind: dict[str, Any], data: bytes) -> None:
    schema = parse(record("top", kind))
    with pytest.raises(PacketError) as caught:
        avro.read_record(io.BytesIO(data), schema, schema.parsed)
    assert caught.value.reason in (RejectReason.TRUNCATED_AVRO, RejectReason.MALFORMED_AVRO)
