"""Avro records, read through a projection.

:func:`project` makes a reader schema with only the fields that are wanted, and :func:`read_record` decodes through it,
so that cutouts (98 % of an LSST packet) are skipped and never become objects; it is as fast as a full read. fastavro
decodes in C without bounds: only a schema that :mod:`models.alerts.schema_safety` has admitted may be used here.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import fastavro

from models.alerts.packet import PacketError, RejectReason

AvroType = Any  # a JSON value: "long", ["null", ...] or {"type": ...}


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """An admitted schema: names, field order and types of a record.

    Attributes
    ----------
    root, named : the record and every named type in it, by full name.
    parsed : the same as fastavro wants it.
    """

    root: AvroType
    named: Mapping[str, AvroType]
    parsed: AvroType

    @property
    def name(self) -> str:
        """Full name of the record."""
        return str(self.root["name"])

    def definition(self, kind: AvroType) -> AvroType | None:
        """Return the one record that ``kind`` holds: itself, nullable, or as the items of an array; else None."""
        kind = bare(kind)
        if isinstance(kind, dict) and kind["type"] == "array":
            kind = bare(kind["items"])
        if isinstance(kind, str):
            kind = self.named.get(kind)
        return kind if isinstance(kind, dict) and kind["type"] == "record" else None

    def is_enum(self, kind: AvroType) -> bool:
        """Tell whether ``kind`` is an enum, whose values are read as text."""
        kind = self.named.get(kind) if isinstance(kind, str) else kind
        return isinstance(kind, dict) and kind["type"] == "enum"

    def fields(self, kind: AvroType) -> dict[str, AvroType]:
        """Fields (name to type) of the record that ``kind`` holds, empty when it holds none."""
        definition = self.definition(kind)
        return {} if definition is None else {field["name"]: field["type"] for field in definition["fields"]}


def bare(kind: AvroType) -> AvroType:
    """Return the type without its null branch; any other union is returned as it is."""
    if isinstance(kind, list) and len(kind) <= 2:
        branches = [branch for branch in kind if branch != "null"]
        return branches[0] if len(branches) == 1 else kind
    return kind


def project(schema: Schema, keep: Mapping[str, frozenset[str]]) -> AvroType:
    """Reader schema with only the fields ``keep`` names for each record; a record it does not name is dropped."""
    emitted: set[str] = set()

    def pruned(kind: AvroType) -> AvroType:
        if isinstance(kind, list):
            return [pruned(branch) for branch in kind]
        if isinstance(kind, dict) and kind["type"] == "array":
            return {"type": "array", "items": pruned(kind["items"])}
        name = kind if isinstance(kind, str) else kind["name"] if kind["type"] == "enum" else ""
        if schema.is_enum(name):
            first = name not in emitted
            emitted.add(name)
            return schema.named[name] if first else name
        definition = schema.definition(kind)
        if definition is None or definition["name"] in emitted:
            return kind if definition is None else definition["name"]
        emitted.add(definition["name"])
        wanted = keep[definition["name"]]
        fields = [{"name": f["name"], "type": pruned(f["type"])} for f in definition["fields"] if f["name"] in wanted]
        return {"type": "record", "name": definition["name"], "fields": fields}

    return fastavro.parse_schema(pruned(schema.root))


def read_record(stream: io.BytesIO, schema: Schema, reader: AvroType) -> dict[str, Any]:
    """Read one record at the stream's position.

    Raises
    ------
    PacketError
        ``truncated_avro`` or ``malformed_avro``.
    """
    try:
        record: dict[str, Any] = fastavro.schemaless_reader(stream, schema.parsed, reader)  # type: ignore[assignment]
    except Exception as error:  # fastavro raises whatever its C code met: EOFError, IndexError, UnicodeDecodeError, ...
        if isinstance(error, EOFError) or not stream.read(1):
            raise PacketError(RejectReason.TRUNCATED_AVRO, f"the bytes end inside a {schema.name} record") from None
        raise PacketError(RejectReason.MALFORMED_AVRO, f"the bytes contradict the schema {schema.name}") from None
    return record
