import contextlib
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.alerts import avro
from nightjar_alerts.alerts.packet import PacketError, RejectReason


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


def record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def parse(schema: Any) -> avro.Schema:
    return avro.parse(json.dumps(schema).encode())


def chain(length: int) -> dict[str, Any]:
    """Records that each hold the one before twice: 2**length values in no bytes at all."""
    names = [record("r0", field("a", "null"), field("b", "null"))]
    names += [record(f"r{i}", field("a", f"r{i - 1}"), field("b", f"r{i - 1}")) for i in range(1, length)]
    return record("top", *(field(f"f{i}", kind) for i, kind in enumerate(names)))


FIXED = {"type": "fixed", "name": "f"}
HOSTILE = {
    "recursive record": record("node", field("next", ["null", "node"])),
    "recursive through an array": record("node", field("children", array("node"))),
    "array of nulls": record("top", field("x", array("null"))),
    "array of empty records": record("top", field("x", array(record("empty")))),
    "array of records with many nulls": record(
        "top", field("x", array(record("r", field("n", "int"), *(field(f"z{i}", "null") for i in range(9)))))
    ),
    "map of records with many nulls": record(
        "top", field("x", {"type": "map", "values": record("r", *(field(f"z{i}", "null") for i in range(9)))})
    ),
    "doubling": chain(30),
    "doubling paid for by a fixed at the end": record(
        "top", field("x", array(record("r", field("a", chain(30)), field("b", {**FIXED, "size": 2**30}))))
    ),
    "nested arrays": record("top", field("x", json.loads('{"type": "array", "items": ' * 60 + '"int"' + "}" * 60))),
    "not a record": array("int"),
    "primitive": "long",
    "number": 7,
    "null": None,
    "unknown type": record("top", field("x", "integer")),
    "unknown complex type": record("top", field("x", {"type": "tensor"})),
    "type that is a number": record("top", field("x", {"type": 3})),
    "empty union": record("top", field("x", [])),
    "record without a name": {"type": "record", "fields": []},
    "record without fields": {"type": "record", "name": "top"},
    "field without a name": {"type": "record", "name": "top", "fields": [{"type": "int"}]},
    "field twice": record("top", field("x", "int"), field("x", "int")),
    "name twice": record("top", field("x", record("r")), field("y", record("r"))),
    "bad name": record("top\n<script>", field("x", "int")),
    "long name": record("t" * 1000, field("x", "int")),
    "namespace that is a list": {"type": "record", "name": "top", "namespace": [], "fields": []},
    "negative fixed": record("top", field("x", {**FIXED, "size": -1})),
    "fixed of text": record("top", field("x", {**FIXED, "size": "big"})),
    "enum without symbols": record("top", field("x", {"type": "enum", "name": "e", "symbols": []})),
}  # fmt: skip


@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_schemas_are_refused(schema: Any) -> None:
    with pytest.raises(PacketError) as caught:
        parse(schema)
    assert caught.value.reason is RejectReason.UNSAFE_SCHEMA
    assert "script" not in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 20_000, b" " * 300_000])
def test_text_that_is_no_schema_is_refused(text: bytes) -> None:
    with pytest.raises(PacketError) as caught:
        avro.parse(text)
    assert caught.value.reason is RejectReason.UNSAFE_SCHEMA


def test_defaults_aliases_and_logical_types_are_not_kept() -> None:
    moment = {"type": "long", "logicalType": "timestamp-micros"}
    schema = parse({**record("top", {**field("at", moment), "default": 1, "aliases": ["x"], "doc": "d"}), "doc": "d"})
    assert schema.root == record("top", field("at", "long"))
    assert avro.read_record(io.BytesIO(b"\x04"), schema, schema.parsed) == {"at": 2}


def test_names_resolve_in_their_namespace() -> None:
    inner = {**record("row", field("v", "int")), "namespace": "other"}
    top = {
        **record("top", field("a", inner), field("b", array("other.row")), field("c", record("near"))),
        "namespace": "ns",
    }
    schema = parse(top)
    assert set(schema.named) == {"ns.top", "other.row", "ns.near"}
    assert schema.name == "ns.top"
    assert schema.fields(schema.fields(schema.root)["b"]) == {"v": "int"}


def test_a_union_of_several_types_holds_no_record() -> None:
    schema = parse(record("top", field("x", ["null", "int", record("r", field("v", "int"))])))
    assert schema.fields(schema.fields(schema.root)["x"]) == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["record", "array", "int", "null", "r", "x", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries(
            {"type": inner},
            optional={"name": inner, "fields": st.lists(inner), "items": inner, "values": inner, "size": inner},
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_json_is_admitted_or_refused(value: Any) -> None:
    with contextlib.suppress(PacketError):
        assert parse(value).root["type"] == "record"
