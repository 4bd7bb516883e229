"""The fast way through a record against fastavro: the same values from sound bytes, the same refusals of others."""

import io
import json
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar_alerts.alerts import avro, containers, plans
from nightjar_alerts.alerts.avro import Schema, non_null
from nightjar_alerts.alerts.decoder import AvroDecoder, ColumnTable
from nightjar_alerts.alerts.packet import PacketError, ReadLimits, RejectReason
from support import alerts
from support.shared import needs_shared, shared

Json = Any
BIGGEST = 2**62 - 1  # nine bytes; the tenth is fastavro's


def plain(value: Any) -> Any:
    """A decoded record without tables: lists of rows, as fastavro has them."""
    if isinstance(value, ColumnTable):
        columns = list(value.columns)
        rows = zip(*value.columns.values(), strict=True) if columns else [()] * len(value)
        return [dict(zip(columns, row, strict=True)) for row in rows]
    return {name: plain(item) for name, item in value.items()} if isinstance(value, dict) else value


def projected(schema: Schema, keep: dict[str, frozenset[str]], kind: Json, value: Any) -> Any:
    """Return what a projection keeps of a fully decoded value, stated independently of the decoder."""
    if isinstance(value, list):
        return [projected(schema, keep, kind, item) for item in value if item is not None]
    definition = schema.definition(kind)
    if not isinstance(value, dict) or definition is None:
        return value
    names = keep[definition["name"]]
    return {
        field["name"]: projected(schema, keep, field["type"], value[field["name"]])
        for field in definition["fields"]
        if field["name"] in names
    }


def keep_of(decoder: AvroDecoder) -> dict[str, frozenset[str]]:
    """The fields that a decoder's projection keeps, by record."""
    keep: dict[str, frozenset[str]] = {}

    def visit(kind: Json) -> None:
        if isinstance(kind, list):
            for branch in kind:
                visit(branch)
        elif isinstance(kind, dict) and kind["type"] == "array":
            visit(kind["items"])
        elif isinstance(kind, dict) and kind["type"] == "record":
            keep[kind["name"]] = frozenset(field["name"] for field in kind["fields"])
            for field in kind["fields"]:
                visit(field["type"])

    visit(decoder.projection)
    return keep


def check(decoder: AvroDecoder, data: bytes, start: int = 0, must_be_fast: bool = True) -> int:
    """Hold a record against the full fastavro decoder, field by field; returns where it ends."""
    stream = io.BytesIO(data)
    stream.seek(start)
    full = fastavro.schemaless_reader(stream, decoder.schema.parsed, None)
    expected = projected(decoder.schema, keep_of(decoder), decoder.schema.root, full)
    fast = decoder.read_fast(data, start)
    assert fast is not None or not must_be_fast
    for values, end in filter(None, (fast, decoder.read_slow(data, start))):
        assert same(plain(values), expected)
        assert end == stream.tell()
    return stream.tell()


def same(actual: Any, expected: Any) -> bool:
    """Equality with NaN equal to itself, types included."""
    if isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(same(actual[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(actual) == len(expected) and all(map(same, actual, expected))
    return type(actual) is type(expected) and (actual == expected or (actual != actual and expected != expected))


@pytest.mark.parametrize("name", avro.schema_names())
def test_every_shipped_schema_is_read_fast(name: str) -> None:
    assert plans.for_name(name).decoder.fast


def random_value(kind: Json, named: Mapping[str, Json], draw: random.Random) -> Any:
    """A value of a type: often null, sometimes extreme."""
    if isinstance(kind, list):
        return random_value(draw.choice(kind), named, draw)
    if isinstance(kind, str) and kind in named:
        kind = named[kind]
    if isinstance(kind, dict):
        match kind["type"]:
            case "record":
                return {field["name"]: random_value(field["type"], named, draw) for field in kind["fields"]}
            case "array":
                return [random_value(kind["items"], named, draw) for _ in range(draw.choice((0, 1, 2, 5, 40)))]
            case "map":
                return {str(n): random_value(kind["values"], named, draw) for n in range(draw.choice((0, 1, 3)))}
            case "enum":
                return draw.choice(kind["symbols"])
            case "fixed":
                return draw.randbytes(kind["size"])
        kind = kind["type"]
    return PRIMITIVES[kind](draw)


PRIMITIVES: dict[str, Callable[[random.Random], Any]] = {
    "null": lambda draw: None,
    "boolean": lambda draw: draw.random() < 0.5,
    "int": lambda draw: draw.randint(-(2**31), 2**31 - 1) >> draw.randint(0, 31),
    "long": lambda draw: draw.randint(-BIGGEST, BIGGEST) >> draw.randint(0, 62),
    "float": lambda draw: draw.choice((0.0, -1.5, float("nan"), float("inf"), 2.0**-149, 3e38)),
    "double": lambda draw: draw.choice((0.0, -1e-320, float("nan"), -float("inf"), 61000.123456789)),
    "string": lambda draw: "é☄x"[: draw.randint(0, 3)] * draw.choice((0, 1, 1, 7)),
    "bytes": lambda draw: draw.randbytes(draw.choice((0, 3, 500))),
}


def random_record(schema: Schema, draw: random.Random) -> bytes:
    """A random value of a schema's record, encoded."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema.parsed, random_value(schema.root, schema.named, draw))
    return stream.getvalue()


@pytest.mark.parametrize("name", avro.schema_names())
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_packets_of_every_survey(name: str, seed: int) -> None:
    decoder = plans.for_name(name).decoder
    data = random_record(decoder.schema, random.Random(seed))
    assert check(decoder, data) == len(data)


def field_types(depth: int = 0) -> st.SearchStrategy[Json]:
    """Any Avro type that a schema may hold; names are given later."""
    simple = st.sampled_from(sorted(PRIMITIVES))
    named = st.one_of(st.just({"type": "fixed", "size": 3}), st.just({"type": "enum", "symbols": ["A", "B"]}))
    leaf = st.one_of(simple, named, st.builds(lambda kind: ["null", kind], simple.filter("null".__ne__)))
    if depth == 2:
        return leaf
    inner = field_types(depth + 1)
    record = st.lists(inner, min_size=1, max_size=4).map(lambda kinds: {"type": "record", "kinds": kinds})
    return st.one_of(
        leaf,
        record,
        record.map(lambda kind: ["null", kind]),
        record.map(lambda kind: {"type": "array", "items": kind}),
        leaf.map(lambda kind: {"type": "array", "items": kind}),
        leaf.map(lambda kind: {"type": "map", "values": kind}),
        record.map(lambda kind: [{"type": "array", "items": kind}, "null"]),
        simple.filter(lambda kind: kind not in ("null", "string")).map(lambda kind: [kind, "string", "null"]),
    )


def spelled_out(kind: Json, counter: list[int]) -> Json:
    """The type with a name for every type that needs one."""
    if isinstance(kind, list):
        return [spelled_out(branch, counter) for branch in kind]
    if not isinstance(kind, dict):
        return kind
    for inner in ("items", "values"):
        if inner in kind:
            return {**kind, inner: spelled_out(kind[inner], counter)}
    counter[0] += 1
    named = {**kind, "name": f"n{counter[0]}"}
    if "kinds" in named:
        kinds = named.pop("kinds")
        named["fields"] = [{"name": f"f{i}", "type": spelled_out(inner, counter)} for i, inner in enumerate(kinds)]
    return named


def any_keep(schema: Schema, draw: random.Random) -> dict[str, frozenset[str]]:
    """A random choice of fields of every record."""
    return {
        name: frozenset(field["name"] for field in kind["fields"] if draw.random() < 0.6)
        for name, kind in schema.named.items()
        if kind["type"] == "record"
    }


def any_decoder(kinds: list[Json], draw: random.Random) -> AvroDecoder | None:
    kind = spelled_out({"type": "record", "kinds": kinds}, [0])
    try:
        schema = avro.parse(json.dumps(kind).encode())
    except PacketError:
        return None
    return AvroDecoder(schema, any_keep(schema, draw))


@settings(max_examples=150, deadline=None)
@given(kinds=st.lists(field_types(), min_size=1, max_size=6), seed=st.integers(0, 2**32))
def test_random_records_of_random_schemas(kinds: list[Json], seed: int) -> None:
    draw = random.Random(seed)
    decoder = any_decoder(kinds, draw)
    if decoder is None:
        return
    data = random_record(decoder.schema, draw)
    stream = io.BytesIO(data)
    slow, end = decoder.read_slow(data)
    assert end == len(data)
    fastavro.schemaless_reader(stream, decoder.schema.parsed, None)
    assert stream.tell() == end
    fast = decoder.read_fast(data)
    assert fast is None or (same(plain(fast[0]), plain(slow)) and fast[1] == end)


def outcome(read: Callable[[], tuple[Any, int]]) -> Any:
    try:
        values, end = read()
    except PacketError as error:
        return error.reason
    return plain(values), end


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), name=st.sampled_from(["lsst/11.1", "elasticc/0.9", "ztf/4.02"]))
def test_damaged_bytes_are_judged_by_fastavro(seed: int, name: str) -> None:
    draw = random.Random(seed)
    decoder = plans.for_name(name).decoder
    data = bytearray(random_record(decoder.schema, draw))
    for _ in range(draw.randint(0, 3)):
        data[draw.randrange(len(data))] = draw.choice((0, 1, 2, 127, 128, 255, draw.randrange(256)))
    damaged = bytes(data[: draw.randint(len(data) // 2, len(data))])
    fast = decoder.read_fast(damaged)
    if fast is not None:
        actual, expected = (plain(fast[0]), fast[1]), outcome(lambda: decoder.read_slow(damaged))
        assert same(actual[0], expected[0])
        assert actual[1] == expected[1]


SMALL = {"type": "record", "name": "top", "fields": [
    {"name": "rows", "type": {"type": "array", "items": {"type": "record", "name": "row", "fields": [
        {"name": "x", "type": "long"}, {"name": "skipped", "type": ["null", "string"]}]}}},
    {"name": "image", "type": ["null", "bytes"]},
    {"name": "name", "type": "string"},
]}  # fmt: skip
HOSTILE = {
    "nothing": b"",
    "an array of 2**61": alerts.long(2**61) + b"\2\0",
    "an array of -2**61": alerts.long(-(2**61)) + alerts.long(4) + b"\2\0",
    "a count without end": b"\xff" * 400,
    "an image of an exabyte": alerts.long(0) + b"\2" + alerts.long(10**18) + b"ab",
    "an image of negative size": alerts.long(0) + b"\2" + alerts.long(-3) + b"abc",
    "branch 40 of 2": alerts.long(0) + alerts.long(40),
    "text that is not UTF-8": alerts.long(0) + b"\0" + alerts.long(2) + b"\xff\xfe",
    "text of an exabyte": alerts.long(0) + b"\0" + alerts.long(10**18) + b"ab",
    "an integer of ten thousand bytes": alerts.long(1) + b"\x80" * 10_000 + b"\0",
}


def small_decoder() -> AvroDecoder:
    schema = avro.parse(json.dumps(SMALL).encode())
    return AvroDecoder(schema, {"top": frozenset({"rows", "name"}), "row": frozenset({"x"})})


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_are_refused(data: bytes) -> None:
    decoder = small_decoder()
    started = time.process_time()
    assert decoder.read_fast(data) is None
    with pytest.raises(PacketError):
        decoder.read(data)
    assert time.process_time() - started < 0.5


UNUSUAL = {
    "a block with its size": alerts.long(-1) + alerts.long(2) + b"\4\0" + alerts.long(0) + b"\0\2A",
    "an integer of ten bytes": alerts.long(1) + alerts.long(-(2**63)) + b"\0" + alerts.long(0) + b"\0\2A",
    "a long text": alerts.long(0) + b"\0" + alerts.long(200) + b"A" * 200,
    "a padded branch": alerts.long(0) + b"\x80\0" + b"\2A",
    "a skipped text of 300 bytes": alerts.long(1) + b"\4\2" + alerts.long(300) + b"B" * 300 + alerts.long(0) + b"\0\2A",
}


@pytest.mark.parametrize("data", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_unusual_but_sound_bytes_are_read(data: bytes) -> None:
    decoder = small_decoder()
    assert decoder.read_fast(data) is None
    assert check(decoder, data, must_be_fast=False) == len(data)
    assert decoder.read(data)[1] == len(data)


def test_two_blocks_of_an_array_are_joined() -> None:
    data = alerts.long(1) + b"\2\0" + alerts.long(2) + b"\4\0\6\2\2C" + alerts.long(0) + b"\0\2A"
    assert check(small_decoder(), data) == len(data)


def test_a_schema_of_huge_fixed_fields_is_read_slowly() -> None:
    fields = [{"name": f"f{i}", "type": {"type": "fixed", "name": f"t{i}", "size": 2**31 - 1}} for i in range(3)]
    huge = {"type": "record", "name": "huge", "fields": [*fields, {"name": "x", "type": "int"}]}
    decoder = AvroDecoder(avro.parse(json.dumps(huge).encode()), {"huge": frozenset({"x"})})
    assert not decoder.fast
    with pytest.raises(PacketError):
        decoder.read(b"\2" * 100)


def test_a_schema_too_large_is_read_slowly() -> None:
    wide = {"type": "record", "name": "wide", "fields": [{"name": f"f{i}", "type": "int"} for i in range(4000)]}
    decoder = AvroDecoder(avro.parse(json.dumps(wide).encode()), {"wide": frozenset({"f7"})})
    assert not decoder.fast
    assert decoder.read(b"\2" * 4000) == ({"f7": 1}, 4000)


def full_row(name: str, path: str, **values: Any) -> dict[str, Any]:
    """A row with nearly every field filled, as surveys send them."""
    filled = alerts.row(name, path)
    kinds = {f["name"]: f["type"] for f in rows_of(name, path)}
    default = {"float": 1.5, "double": 2.5, "boolean": False, "int": 3, "long": 170094456272322680, "string": "g"}
    return {key: default.get(str(non_null(kinds[key])), value) for key, value in filled.items()} | values


def rows_of(name: str, path: str) -> list[Json]:
    schema = avro.load(name)
    definition = schema.definition(schema.fields(schema.root)[path])
    assert definition is not None
    fields: list[Json] = definition["fields"]
    return fields


def long_packet(name: str = "lsst/11.1") -> bytes:
    """An LSST packet with 60 detections and 300 forced points."""
    alert = alerts.lsst_alert(name)
    times = [61000.0 + 0.5 * i for i in range(360)]
    alert["prvDiaSources"] = [
        full_row(name, "diaSource", midpointMjdTai=t, timeWithdrawnMjdTai=None) for t in times[:59]
    ]
    alert["prvDiaForcedSources"] = [
        full_row(name, "prvDiaForcedSources", midpointMjdTai=t, timeWithdrawnMjdTai=None) for t in times[60:]
    ]
    alert["diaObject"] = full_row(name, "diaObject")
    return alerts.bare(name, alert)


def fastest(work: Callable[[], object], repeats: int = 12) -> float:
    """CPU seconds of the fastest of several runs."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def test_a_long_packet_costs_a_third_of_fastavros_time() -> None:
    data, decoder = long_packet(), plans.for_name("lsst/11.1").decoder
    check(decoder, data)
    full = fastest(lambda: fastavro.schemaless_reader(io.BytesIO(data), decoder.schema.parsed, None))
    assert fastest(lambda: decoder.read(data)) < 0.34 * full


def records_of(path: Path) -> tuple[AvroDecoder, list[tuple[bytes, int]]]:
    """The decoder of a file and the places of its records; bare and framed files are named by their folder."""
    data = path.read_bytes()
    if data.startswith(containers.MAGIC):
        header = containers.read_header(data)
        decoder, places = plans.for_text(header.schema).decoder, []
        for block in containers.read_blocks(data, header, ReadLimits()):
            at = 0
            for _ in range(block.count):
                places.append((block.data, at))
                at = decoder.read_slow(block.data, at)[1]
        return decoder, places
    if data[:1] == b"\0":
        name = avro.confluent_name(int.from_bytes(data[1:5], "big"))
        return plans.for_name(name).decoder, [(data, 5)]
    raise PacketError(RejectReason.UNKNOWN_ENVELOPE, "another envelope")


@needs_shared
def test_every_real_packet() -> None:
    read: list[bool] = []
    for path in sorted(shared("data", "alerts").rglob("*.avro")):
        try:
            decoder, places = records_of(path)
        except PacketError:
            continue
        for data, at in places:
            check(decoder, data, at, must_be_fast=False)
            read.append(decoder.read_fast(data, at) is not None)
    assert len(read) > 100
    assert sum(read) > 0.97 * len(read)  # the others are asteroids, with an orbit in long text
