"""Schemas and documents that are short and stand for much: refused, or read, in time and memory that the bytes pay."""

import gc
import json
import re
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar_alerts.alerts import avro, decoder, plans
from nightjar_alerts.alerts.decoder import READS_BEFORE_COMPILING
from nightjar_alerts.alerts.documents import parse_documents, read_document
from nightjar_alerts.alerts.packet import PacketError, ReadLimits, RejectReason
from nightjar_alerts.alerts.plans import PacketPlan
from nightjar_alerts.alerts.reader import build_packet
from support import alerts

Json = Any
MB = 1 << 20


@contextmanager
def cheap(seconds: float, megabytes: float) -> Iterator[None]:
    """The block stays within so much work of this thread and so much memory at its peak."""
    tracemalloc.start()
    started = time.thread_time()
    try:
        yield
        assert time.thread_time() - started < seconds
        assert tracemalloc.get_traced_memory()[1] < megabytes * MB
    finally:
        tracemalloc.stop()


def record(name: str, *kinds: Json) -> Json:
    fields = [{"name": f"{name}_{place}", "type": kind} for place, kind in enumerate(kinds)]
    return {"type": "record", "name": name, "fields": fields}


def leaf(letter: str) -> Json:
    return {"type": "enum", "name": f"E{letter}", "symbols": ["x"]}


def unions(levels: int, width: int, empty: bool = False) -> Json:
    """Records of one field each, which may hold any record of the level below: width ** levels types."""
    top: list[Json] = [record(f"A{i}", *([] if empty else [leaf(f"A{i}")])) for i in range(width)]
    for letter in "BCDEFGH"[: levels - 1]:
        below = [f"{chr(ord(letter) - 1)}{i}" for i in range(width)]
        top += [record(f"{letter}{i}", below) for i in range(width)]
    return record("top", *top)


def doubling(levels: int) -> Json:
    """Records of two fields, both of the record before."""
    return record(
        "top", record("r0", leaf("0")), *(record(f"r{i}", f"r{i - 1}", f"r{i - 1}") for i in range(1, levels))
    )


def chain(length: int) -> Json:
    """Records of one field, each of the record before: as deep as it is long, though nothing stands inside it."""
    return record("top", record("r0", "int"), *(record(f"r{i}", f"r{i - 1}") for i in range(1, length)))


BOMBS: dict[str, Callable[[], Json]] = {
    "unions": lambda: unions(5, 16),
    "unions of empty records": lambda: unions(5, 16, empty=True),
    "doubling": lambda: doubling(40),
    "chain of references": lambda: chain(400),
    "a long chain of references": lambda: chain(3000),
    "wide unions": lambda: unions(3, 60),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_schemas_types_are_counted_before_anything_is_built(name: str) -> None:
    text = json.dumps(BOMBS[name]()).encode()[: 190 << 10]
    with cheap(2.0, 64), pytest.raises(PacketError) as caught:
        plans.for_text(text)
    assert caught.value.reason is RejectReason.UNSAFE_SCHEMA


def ztf_with(kind: Json) -> Json:
    """A survey's schema with one more field, so that it is a plan's business."""
    schema = json.loads(json.dumps(alerts.schema("ztf/4.02")))
    schema["fields"].insert(0, {"name": "more", "type": kind})
    return schema


@pytest.mark.parametrize("levels", [2, 3])
def test_patterns_are_written_for_a_bounded_number_of_types(levels: int) -> None:
    """Enums, empty records and references cost nothing once: 22 s and 540 MB for a schema of 5 kB."""
    schema = ztf_with(unions(levels, 16)) if levels == 2 else ztf_with(unions(levels, 11))
    decoder = plans.for_text(json.dumps(schema).encode()).decoder
    with cheap(2.0, 64):
        assert decoder.fast in (True, False)


def test_the_schema_of_a_stranger_is_compiled_when_it_comes_again() -> None:
    schema = json.dumps(ztf_with("int") | {"doc": "compiled when it comes again"}).encode()
    decoder = plans.for_text(schema).decoder
    data = b"\2" + alerts.bare("ztf/4.02", alerts.ztf_alert())
    for _ in range(READS_BEFORE_COMPILING):
        assert decoder.read(data)[1] == len(data)
        assert "_steps" not in vars(decoder)
    slow = decoder.read_slow(data)
    assert repr(decoder.read(data)) == repr(slow)
    assert "_steps" in vars(decoder)


def test_patterns_end_with_their_plan() -> None:
    """Python keeps the patterns that were compiled last, and each of these takes half a megabyte."""
    compiled: list[weakref.ref[re.Pattern[bytes]]] = []
    whole = decoder.PatternPart.compile

    def compile_watched(part: decoder.PatternPart) -> re.Pattern[bytes]:
        compiled.append(weakref.ref(pattern := whole(part)))
        return pattern

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder.PatternPart, "compile", compile_watched)
        plan = plans.resolve(avro.load("elasticc/0.9.1"))
        assert plan.decoder.fast
    assert compiled
    del plan
    gc.collect()
    assert not any(reference() for reference in compiled)


def test_a_request_brings_few_schemas_of_its_own() -> None:
    new = plans.NewSchemas(2)
    texts = [json.dumps(ztf_with("int") | {"doc": f"one of many: {i}"}).encode() for i in range(3)]
    plans.for_text(texts[0], new)
    plans.for_text(texts[1], new)
    plans.for_text(texts[0], new)  # seen before
    with pytest.raises(PacketError) as caught:
        plans.for_text(texts[2], new)
    assert caught.value.reason is RejectReason.TOO_MANY_SCHEMAS
    plans.for_text(texts[2], plans.NewSchemas(1))


def test_a_bad_schema_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(doubling(41)).encode()
    parsed: list[bytes] = []
    parse = avro.parse

    def parse_watched(schema: bytes) -> avro.Schema:
        parsed.append(schema)
        return parse(schema)

    monkeypatch.setattr(avro, "parse", parse_watched)
    for _ in range(3):
        with pytest.raises(PacketError):
            plans.for_text(text)
    assert len(parsed) == 1


kinds = st.recursive(
    st.sampled_from(["int", "null", "string", "float", "r0", "r1", "r2", "r3"]),
    lambda inner: st.lists(inner, min_size=1, max_size=4) | inner.map(lambda items: {"type": "array", "items": items}),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.lists(st.lists(kinds, min_size=1, max_size=4), min_size=1, max_size=12))
def test_any_schema_is_refused_or_built_in_bounded_time(types: list[list[Json]]) -> None:
    schema = ztf_with(record("top", *(record(f"r{i}", *fields) for i, fields in enumerate(types))))
    started = time.thread_time()
    try:
        decoder = plans.for_text(json.dumps(schema).encode()).decoder
    except PacketError:
        pass
    else:
        assert decoder.fast in (True, False)
    assert time.thread_time() - started < 2.0


def table(names: int, rows: int) -> bytes:
    """One row with many names and many rows with none: a short text, a table of names times rows."""
    first = "{" + ",".join(f'"n{i}":1' for i in range(names)) + "}"
    return f'{{"diaSource":[{first}{",{}" * rows}]}}'.encode()


def read(data: bytes) -> tuple[dict[str, Any], PacketPlan]:
    (document,) = parse_documents(data, ReadLimits())
    assert isinstance(document, dict)
    return read_document(document, ReadLimits())


@pytest.mark.parametrize(("names", "rows"), [(16_000, 40_000), (500, 200_000), (2, 300_000)])
def test_a_json_document_costs_what_its_bytes_pay(names: int, rows: int) -> None:
    """0.4 s for 61 kB, 7.4 s and 370 MB for 246 kB, eight minutes and 25 GB at the limit of 2 MiB, it was once."""
    document = table(names, rows)
    with cheap(3.0, 24 + 120 * len(document) / MB), pytest.raises(PacketError) as caught:
        read(document)
    assert caught.value.reason in (RejectReason.UNKNOWN_SCHEMA, RejectReason.TOO_MANY_OBSERVATIONS)


def test_many_lists_of_a_document_share_one_bound() -> None:
    lists = ",".join(f'"l{i}":{table(500, 700).decode()[13:-1]}' for i in range(100))
    with cheap(3.0, 100), pytest.raises(PacketError) as caught:
        read(f"{{{lists}}}".encode())
    assert caught.value.reason is RejectReason.UNKNOWN_SCHEMA


@pytest.mark.parametrize("depth", [33, 100, 400, 1000])
@pytest.mark.parametrize("unit", ['{"x":', '{"x":[', "["])
def test_a_deep_json_document_is_rejected(depth: int, unit: str) -> None:
    closing = "".join({"{": "}", "[": "]"}.get(letter, "") for letter in reversed(unit))
    document = f'{{"diaSource":{unit * depth}1{closing * depth}}}'.encode()
    with pytest.raises(PacketError):
        read(document)


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, -(2**63) - 1])
def test_an_integer_beyond_64_bits_is_no_value_of_a_field(number: int) -> None:
    rows = [{"midpointMjdTai": 60_000.0, "band": "r", "psfFlux": 1.0, "psfFluxErr": 1.0, "visit": number}]
    document, plan = read(json.dumps({"diaSource": rows[0], "prvDiaSources": rows}).encode())
    packet = build_packet(document, plan, ReadLimits())
    assert packet.curve is not None
    assert len(packet.curve) == 1


def test_an_empty_list_of_a_json_document_counts_as_absent() -> None:
    """A new object has no history; the schema of such a list, which bounds nothing, was taken for an attack."""
    row = {"midpointMjdTai": 60_000.0, "band": "r", "psfFlux": 1.0, "psfFluxErr": 1.0}
    empties: list[list[object]] = [[], [{}], [None]]
    for empty in empties:
        _, plan = read(json.dumps({"diaSource": row, "prvDiaSources": empty}).encode())
        assert [rows.path for rows in plan.rows] == ["diaSource"]
