"""Which Avro schemas from strangers may be used: what must hold before fastavro touches bytes written with them.

A schema that arrives inside a packet could make fastavro overflow the C stack (a recursive record: the process dies),
loop for hours (an array of zero-byte items with a huge count) or build gigabytes. :func:`parse` admits a schema only
when reading it visits at most ``VISITS_PER_BYTE`` values for each encoded byte plus a constant, and rebuilds it from
names, field order and types alone, so that no default, alias or logical type of the sender's is ever evaluated.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import fastavro

from service.alerts.avro import AvroType, Schema
from service.alerts.packet import PacketError, RejectReason

PRIMITIVE_BYTES: Final[Mapping[str, int]] = {
    "null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1,
}  # fmt: skip
MAX_SCHEMA_BYTES: Final = 192 << 10  # the largest real one, LSST 4.1 with its documentation, has 57 kB
MAX_DEPTH: Final = 32
MAX_NODES: Final = 20_000  # real schemas stay below 2,000
VISITS_PER_BYTE: Final = 3  # a record of nullable fields needs just under 3: itself, and union and value for each byte
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,127}")


def parse(text: bytes) -> Schema:
    """Admit a schema given as JSON.

    Raises
    ------
    PacketError
        ``unsafe_schema``.
    """
    if len(text) > MAX_SCHEMA_BYTES:
        raise _unsafe(f"the schema has {len(text)} bytes, more than {MAX_SCHEMA_BYTES}")
    try:
        source = json.loads(text)
    except (ValueError, RecursionError):
        raise _unsafe("the schema is not JSON") from None
    builder = _Builder()
    root = builder.build(source, "", 0)
    if not isinstance(root, dict) or root["type"] != "record":
        raise _unsafe("the schema is not a record")
    if _Costs().of(root).nodes > MAX_NODES:
        raise _unsafe(f"a record of this schema holds more than {MAX_NODES} values besides its arrays")
    return Schema(root, builder.named, _fastavro_parse(root))


def _fastavro_parse(root: AvroType) -> AvroType:
    try:
        return fastavro.parse_schema(root)
    except Exception:  # SchemaParseException, UnknownType, KeyError, RecursionError, ...: all mean the same here
        raise _unsafe("the schema breaks the Avro specification") from None


def _unsafe(detail: str) -> PacketError:
    return PacketError(RejectReason.UNSAFE_SCHEMA, detail)


class _Builder:
    """Rebuilds a schema from names, order and types; refuses recursion, unknown types and great depth."""

    def __init__(self) -> None:
        self.named: dict[str, AvroType] = {}
        self.open: set[str] = set()

    def build(self, source: AvroType, space: str, depth: int) -> AvroType:
        if depth > MAX_DEPTH:
            raise _unsafe(f"the schema is nested deeper than {MAX_DEPTH}")
        if isinstance(source, str):
            return source if source in PRIMITIVE_BYTES else self._reference(source, space)
        if isinstance(source, list) and source:
            return [self.build(branch, space, depth + 1) for branch in source]
        if not isinstance(source, dict):
            raise _unsafe("the schema holds something that is not a type")
        match source.get("type"):
            case "record":
                return self._record(source, space, depth)
            case "enum" | "fixed":
                return self._leaf(source, space)
            case "array":
                return {"type": "array", "items": self.build(source.get("items"), space, depth + 1)}
            case "map":
                return {"type": "map", "values": self.build(source.get("values"), space, depth + 1)}
            case kind:
                return self.build(kind, space, depth + 1)

    def _reference(self, name: str, space: str) -> str:
        full = name if "." in name or not space else f"{space}.{name}"
        if full in self.open or full not in self.named:
            raise _unsafe("the schema refers to itself or to a type it does not define")
        return full

    def _define(self, source: dict[str, Any], space: str) -> str:
        name, space = source.get("name"), source.get("namespace", space)
        if not isinstance(name, str) or not isinstance(space, str):
            raise _unsafe("the schema holds a type without a name")
        full = name if "." in name or not space else f"{space}.{name}"
        if not _NAME.fullmatch(full) or full in self.named or full in self.open:
            raise _unsafe("the schema holds a bad name, or defines one twice")
        return full

    def _record(self, source: dict[str, Any], space: str, depth: int) -> AvroType:
        full, fields = self._define(source, space), source.get("fields")
        if not isinstance(fields, list) or not all(
            isinstance(f, dict) and isinstance(f.get("name"), str) for f in fields
        ):
            raise _unsafe("the schema holds a record without proper fields")
        if len({field["name"] for field in fields}) != len(fields):
            raise _unsafe("the schema holds a record with a field twice")
        self.open.add(full)
        inner = full.rpartition(".")[0]
        built = [{"name": f["name"], "type": self.build(f.get("type"), inner, depth + 1)} for f in fields]
        self.open.remove(full)
        self.named[full] = {"type": "record", "name": full, "fields": built}
        return self.named[full]

    def _leaf(self, source: dict[str, Any], space: str) -> AvroType:
        full = self._define(source, space)
        match source:
            case {"type": "enum", "symbols": [_, *_] as symbols}:
                self.named[full] = {"type": "enum", "name": full, "symbols": symbols}
            case {"type": "fixed", "size": int(size)} if 0 < size < 1 << 31:
                self.named[full] = {"type": "fixed", "name": full, "size": size}
            case _:
                raise _unsafe("the schema holds an enum without symbols or a fixed without a size")
        return self.named[full]


class _Cost(NamedTuple):
    """Most values visited once through a type, and visits left after every encoded byte has paid for its share."""

    nodes: int
    unpaid: int


class _Costs:
    """Bounds the work of reading a type whatever the bytes.

    For every encoding, visits <= ``VISITS_PER_BYTE`` * bytes + ``unpaid``. An array repeats its items as often as the
    bytes say, so it is bounded exactly when an item leaves nothing unpaid; ``nodes`` bounds what is not repeated.
    """

    def __init__(self) -> None:
        self.known: dict[str, _Cost] = {}

    def of(self, kind: AvroType) -> _Cost:
        if isinstance(kind, str):
            return self.known[kind] if kind in self.known else _Cost(1, 1 - VISITS_PER_BYTE * PRIMITIVE_BYTES[kind])
        if isinstance(kind, list):
            branches = [self.of(branch) for branch in kind]
            worst = max(branch.unpaid for branch in branches)
            return _Cost(1 + max(branch.nodes for branch in branches), 1 - VISITS_PER_BYTE + worst)
        return self._complex(kind)

    def _complex(self, kind: dict[str, Any]) -> _Cost:
        match kind["type"]:
            case "array":
                return self._repeated(self.of(kind["items"]))
            case "map":
                key, value = self.of("string"), self.of(kind["values"])
                return self._repeated(_Cost(key.nodes + value.nodes, key.unpaid + value.unpaid))
            case "record":
                fields = [self.of(field["type"]) for field in kind["fields"]]
                cost = _Cost(1 + sum(f.nodes for f in fields), 1 + sum(f.unpaid for f in fields))
            case "fixed":
                cost = _Cost(1, 1 - VISITS_PER_BYTE * int(kind["size"]))
            case _:
                cost = _Cost(1, 1 - VISITS_PER_BYTE)
        self.known[kind["name"]] = cost
        return cost

    def _repeated(self, item: _Cost) -> _Cost:
        if item.unpaid > 0:
            raise _unsafe("the schema allows unbounded data in next to no bytes")
        return _Cost(1 + item.nodes, 1 - VISITS_PER_BYTE)
