"""Safety of Avro schemas from strangers: what must hold before fastavro touches bytes written with them.

A schema that arrives inside a packet could make fastavro overflow the C stack (a recursive record: the process dies),
loop for hours (an array of zero-byte items with a huge count) or build gigabytes. :func:`parse` admits a schema only
when reading it visits at most ``VISITS_PER_BYTE`` values for each encoded byte plus a constant, and rebuilds it from
names, field order and types alone, so that no default, alias or logical type of the sender's is ever evaluated.

Named types make a schema short and what it stands for long: sixteen records that each hold all of the sixteen before
are 16**n types after n steps. What is built from a schema later (a plan, regular expressions) may write references
out, so the size and depth of the whole are computed first, every named type once.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import fastavro

from models.alerts.avro import AvroType, Schema
from models.alerts.packet import PacketError, RejectReason
from models.limits import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_NODES

PRIMITIVE_BYTES: Final[Mapping[str, int]] = {
    "null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1,
}  # fmt: skip
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
    _Costs().of(root)
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
        if depth > MAX_SCHEMA_DEPTH:
            raise _unsafe(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH}")
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
    """Bounds of what a type may cost.

    Attributes
    ----------
    unpaid : visits left after every encoded byte has paid for its share.
    size : types that it stands for, references written out and all branches of unions counted; reading a record visits
        no more values besides the items of its arrays.
    depth : of the same.
    """

    unpaid: int
    size: int = 1
    depth: int = 1


class _Costs:
    """Bounds the work of reading a type whatever the bytes, and of building something from it.

    For every encoding, visits <= ``VISITS_PER_BYTE`` * bytes + ``unpaid``. An array repeats its items as often as the
    bytes say, so it is bounded exactly when an item leaves nothing unpaid; ``size`` bounds what is not repeated.
    """

    def __init__(self) -> None:
        self.known: dict[str, _Cost] = {}

    def of(self, kind: AvroType) -> _Cost:
        if isinstance(kind, str):
            return self.known[kind] if kind in self.known else _Cost(1 - VISITS_PER_BYTE * PRIMITIVE_BYTES[kind])
        if isinstance(kind, list):
            branches = [self.of(branch) for branch in kind]
            return _around(branches, 1 - VISITS_PER_BYTE + max(branch.unpaid for branch in branches))
        return self._complex(kind)

    def _complex(self, kind: dict[str, Any]) -> _Cost:
        match kind["type"]:
            case "array":
                return self._repeated([self.of(kind["items"])])
            case "map":
                return self._repeated([self.of("string"), self.of(kind["values"])])
            case "record":
                fields = [self.of(field["type"]) for field in kind["fields"]]
                cost = _around(fields, 1 + sum(field.unpaid for field in fields))
            case "fixed":
                cost = _Cost(1 - VISITS_PER_BYTE * int(kind["size"]))
            case _:
                cost = _Cost(1 - VISITS_PER_BYTE)
        self.known[kind["name"]] = cost
        return cost

    def _repeated(self, item: Sequence[_Cost]) -> _Cost:
        if sum(part.unpaid for part in item) > 0:
            raise _unsafe("the schema allows unbounded data in next to no bytes")
        return _around(item, 1 - VISITS_PER_BYTE)


def _around(parts: Sequence[_Cost], unpaid: int) -> _Cost:
    """Cost of a type made of others, refused as soon as it is too much: what holds the type costs more."""
    size = 1 + sum(part.size for part in parts)
    depth = 1 + max((part.depth for part in parts), default=0)
    if size > MAX_SCHEMA_NODES:
        raise _unsafe(f"the schema stands for more than {MAX_SCHEMA_NODES} types, its references written out")
    if depth > MAX_SCHEMA_DEPTH:
        raise _unsafe(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH}, its references written out")
    return _Cost(unpaid, size, depth)
