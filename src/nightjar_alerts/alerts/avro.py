"""Avro schemas and records: safe parsing of untrusted schemas, shipped schemas, and decoding through a projection.

**Records.** :func:`project` makes a reader schema with only the needed fields, and :func:`read_record` decodes through
it, so that cutouts (98 % of an LSST packet) are skipped without creating objects. fastavro decodes in C without limits,
so only schemas validated by :func:`parse` may be used.

**Safety.** A schema in a packet could make fastavro overflow the C stack (a recursive record, which crashes the
process), loop for hours (an array of zero-byte items with a huge count) or allocate gigabytes. :func:`parse` accepts a
schema only if decoding visits at most ``VISITS_PER_BYTE`` values for each encoded byte plus a constant. It rebuilds the
schema from names, field order and types, so that defaults, aliases and logical types of the sender are never evaluated.

A short schema can expand to a huge one through references: sixteen records that each contain the sixteen of the
previous level are 16**n types after n levels. Plans and regular expressions may expand references, so the expanded size
and depth are computed first, visiting every named type once.

**Shipped schemas** (:func:`load`) are for packets without a schema; an extra folder can add more. The name of a schema
is ``<survey>/<version>`` and its file ``<survey>/<version>.avsc``. The shipped files contain record names, field names,
order and types, which is all that decoding needs. Rubin frames its messages with the id ``major * 100 + minor``, so
LSST 12.1 becomes readable by placing its schema (one Avro JSON file with every record inline) as ``lsst/12.1.avsc`` in
the extra folder. Files are read once per process; an extra file never replaces a shipped one.
"""

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import fastavro

from nightjar_alerts.alerts.packet import PacketError, RejectReason
from nightjar_alerts.alerts.surveys import SURVEY_BY_NAME, SURVEYS
from nightjar_alerts.models.limits import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_NODES

AvroType = Any  # a JSON value: "long", ["null", ...] or {"type": ...}


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """Validated schema: names, field order and types of a record.

    Attributes
    ----------
    root, named : the record, and all named types in it by full name.
    parsed : the schema as parsed by fastavro.
    """

    root: AvroType
    named: Mapping[str, AvroType]
    parsed: AvroType

    @property
    def name(self) -> str:
        """Full name of the record."""
        return str(self.root["name"])

    def definition(self, kind: AvroType) -> AvroType | None:
        """Return the record type of ``kind``, which may be nullable or the items of an array; else None."""
        kind = non_null(kind)
        if isinstance(kind, dict) and kind["type"] == "array":
            kind = non_null(kind["items"])
        if isinstance(kind, str):
            kind = self.named.get(kind)
        return kind if isinstance(kind, dict) and kind["type"] == "record" else None

    def is_enum(self, kind: AvroType) -> bool:
        """Return whether ``kind`` is an enum, whose values are decoded as strings."""
        kind = self.named.get(kind) if isinstance(kind, str) else kind
        return isinstance(kind, dict) and kind["type"] == "enum"

    def fields(self, kind: AvroType) -> dict[str, AvroType]:
        """Return the fields (name to type) of the record type of ``kind``, empty if it has none."""
        definition = self.definition(kind)
        return {} if definition is None else {field["name"]: field["type"] for field in definition["fields"]}


def non_null(kind: AvroType) -> AvroType:
    """Return the type of a nullable type; other types and unions are returned unchanged."""
    if isinstance(kind, list) and len(kind) <= 2:
        branches = [branch for branch in kind if branch != "null"]
        return branches[0] if len(branches) == 1 else kind
    return kind


def project(schema: Schema, keep: Mapping[str, frozenset[str]]) -> AvroType:
    """Return a reader schema with only the fields that ``keep`` lists for each record, by full name."""
    return fastavro.parse_schema(_pruned(schema, keep, schema.root, set()))


def _pruned(schema: Schema, keep: Mapping[str, frozenset[str]], kind: AvroType, emitted_names: set[str]) -> AvroType:
    if isinstance(kind, list):
        return [_pruned(schema, keep, branch, emitted_names) for branch in kind]
    if isinstance(kind, dict) and kind["type"] == "array":
        return {"type": "array", "items": _pruned(schema, keep, kind["items"], emitted_names)}
    name = kind if isinstance(kind, str) else kind["name"] if kind["type"] == "enum" else ""
    if schema.is_enum(name):
        first = name not in emitted_names
        emitted_names.add(name)
        return schema.named[name] if first else name
    definition = schema.definition(kind)
    if definition is None or definition["name"] in emitted_names:
        return kind if definition is None else definition["name"]
    emitted_names.add(definition["name"])
    fields_to_keep = [field for field in definition["fields"] if field["name"] in keep[definition["name"]]]
    fields = [
        {"name": field["name"], "type": _pruned(schema, keep, field["type"], emitted_names)} for field in fields_to_keep
    ]
    return {"type": "record", "name": definition["name"], "fields": fields}


def read_record(stream: io.BytesIO, schema: Schema, reader: AvroType) -> dict[str, Any]:
    """Decode one record at the stream's position.

    Raises
    ------
    PacketError
        ``truncated_avro`` or ``malformed_avro``.
    """
    try:
        record: dict[str, Any] = fastavro.schemaless_reader(stream, schema.parsed, reader)  # type: ignore[assignment]  # the root is a record: a dict
    except Exception as error:  # fastavro's C code raises EOFError, IndexError, UnicodeDecodeError and others
        if isinstance(error, EOFError) or not stream.read(1):
            raise PacketError(RejectReason.TRUNCATED_AVRO, f"the bytes end inside a {schema.name} record") from None
        raise PacketError(RejectReason.MALFORMED_AVRO, f"the bytes contradict the schema {schema.name}") from None
    return record


PRIMITIVE_BYTES: Final[Mapping[str, int]] = {
    "null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1,
}  # fmt: skip
VISITS_PER_BYTE: Final = 3  # a record of nullable fields needs just under 3: the record, and a union and value per byte
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,127}")


def parse(text: bytes) -> Schema:
    """Validate a schema given as JSON.

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
    except Exception:  # SchemaParseException, UnknownType, KeyError, RecursionError and others
        raise _unsafe("the schema breaks the Avro specification") from None


def _unsafe(detail: str) -> PacketError:
    return PacketError(RejectReason.UNSAFE_SCHEMA, detail)


class _Builder:
    """Rebuilds a schema from names, order and types; rejects recursion, unknown types and deep nesting."""

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
    """Upper bounds of the cost of a type.

    Attributes
    ----------
    excess : visits in excess of ``VISITS_PER_BYTE`` per encoded byte.
    size : number of types with all references expanded and all union branches counted; decoding a record visits at most
        this many values, apart from the items of its arrays.
    depth : nesting with all references expanded.
    """

    excess: int
    size: int = 1
    depth: int = 1


class _Costs:
    """Computes upper bounds of the work of decoding a type from any bytes, and of building something from it.

    For every encoding, visits <= ``VISITS_PER_BYTE`` * bytes + ``excess``. The bytes determine how often an array
    repeats its items, so its work is bounded if and only if an item has no excess; ``size`` bounds everything else.
    """

    def __init__(self) -> None:
        self.cost_by_name: dict[str, _Cost] = {}

    def of(self, kind: AvroType) -> _Cost:
        if isinstance(kind, str):
            return (
                self.cost_by_name[kind]
                if kind in self.cost_by_name
                else _Cost(1 - VISITS_PER_BYTE * PRIMITIVE_BYTES[kind])
            )
        if isinstance(kind, list):
            branches = [self.of(branch) for branch in kind]
            return _combined(branches, 1 - VISITS_PER_BYTE + max(branch.excess for branch in branches))
        return self._complex(kind)

    def _complex(self, kind: dict[str, Any]) -> _Cost:
        match kind["type"]:
            case "array":
                return self._repeated([self.of(kind["items"])])
            case "map":
                return self._repeated([self.of("string"), self.of(kind["values"])])
            case "record":
                fields = [self.of(field["type"]) for field in kind["fields"]]
                cost = _combined(fields, 1 + sum(field.excess for field in fields))
            case "fixed":
                cost = _Cost(1 - VISITS_PER_BYTE * int(kind["size"]))
            case _:
                cost = _Cost(1 - VISITS_PER_BYTE)
        self.cost_by_name[kind["name"]] = cost
        return cost

    def _repeated(self, item: Sequence[_Cost]) -> _Cost:
        if sum(part.excess for part in item) > 0:
            raise _unsafe("the schema allows unbounded data in next to no bytes")
        return _combined(item, 1 - VISITS_PER_BYTE)


def _combined(parts: Sequence[_Cost], excess: int) -> _Cost:
    """Return the cost of a type composed of others. Raises PacketError if it exceeds the limits."""
    size = 1 + sum(part.size for part in parts)
    depth = 1 + max((part.depth for part in parts), default=0)
    if size > MAX_SCHEMA_NODES:
        raise _unsafe(f"the schema stands for more than {MAX_SCHEMA_NODES} types, its references written out")
    if depth > MAX_SCHEMA_DEPTH:
        raise _unsafe(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH}, its references written out")
    return _Cost(excess, size, depth)


FOLDER: Final = Path(__file__).parent / "schemas"
_SHIPPED: Final = re.compile(rf"({'|'.join(map(re.escape, SURVEY_BY_NAME))})/\d{{1,3}}(\.\d{{1,3}}){{1,2}}")
_FRAMED: Final = next(survey.name for survey in SURVEYS if survey.framed)


@cache
def schema_names() -> tuple[str, ...]:
    """Return the names of the shipped schemas."""
    return tuple(sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/*.avsc")))


def confluent_name(schema_id: int) -> str:
    """Return the name of the LSST schema with a Confluent id: 704 is ``lsst/7.4``."""
    return f"{_FRAMED}/{schema_id // 100}.{schema_id % 100}"


def exists(name: str, extra: Path | None = None) -> bool:
    """Return whether :func:`load` can find the schema."""
    return name in schema_names() or _path(name, extra) is not None


@lru_cache(maxsize=64)
def load(name: str, extra: Path | None = None) -> Schema:
    """Return a schema by name.

    Raises
    ------
    PacketError
        ``unknown_schema`` if there is none, ``unsafe_schema`` if an extra file is not valid.
    """
    path = _path(name, extra)
    if path is None:
        raise PacketError(RejectReason.UNKNOWN_SCHEMA, f"no schema {name[:40]!r}; at hand: {', '.join(schema_names())}")
    return parse(path.read_bytes())


def _path(name: str, extra: Path | None) -> Path | None:
    if not _SHIPPED.fullmatch(name):  # names come from clients and must not contain other path components
        return None
    folders = (FOLDER,) if extra is None else (FOLDER, extra)
    return next((path for folder in folders if (path := folder / f"{name}.avsc").is_file()), None)
