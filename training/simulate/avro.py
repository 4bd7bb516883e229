"""Avro records made by walking a survey's own schema, so that no field list is repeated in this package.

A field without a given value becomes null where the schema allows and zero or empty elsewhere.
"""

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import fastavro

Schema: TypeAlias = Any  # Avro schemas are JSON: names, unions (lists) and records (dicts), nested
Record: TypeAlias = dict[str, Any]

EMPTY: Record = {"boolean": False, "int": 0, "long": 0, "float": 0.0, "double": 0.0, "bytes": b"", "string": ""}
SYNC_MARKER = b"nightjar-samples"  # 16 bytes, fixed: containers are reproducible byte for byte


def read_schema(path: Path) -> Schema:
    """The Avro schema in one JSON file, record types nested where they are first used."""
    return json.loads(path.read_text(encoding="utf-8"))


def fill(schema: Schema, values: Mapping[str, Any]) -> Record:
    """A complete record of ``schema`` with ``values`` where given, else null, else zero or empty.

    Raises ValueError for a value that the schema has no field for.
    """
    return _fill_record(schema, values, dict(_named(schema)))


def _fill_record(schema: Schema, values: Mapping[str, Any], named: Mapping[str, Schema]) -> Record:
    fields = {field["name"]: field["type"] for field in schema["fields"]}
    if unknown := sorted(values.keys() - fields.keys()):
        raise ValueError(f"{schema['name']} has no fields {', '.join(unknown)}")
    return {name: _fill_value(kind, values.get(name), named) for name, kind in fields.items()}


def _fill_value(kind: Schema, value: Any, named: Mapping[str, Schema]) -> Any:
    if isinstance(kind, list):
        if value is None and "null" in kind:
            return None
        kind = next(branch for branch in kind if branch != "null")
    if isinstance(kind, str) and kind in named:
        kind = named[kind]
    if isinstance(kind, dict) and kind["type"] == "record":
        return _fill_record(kind, value or {}, named)
    if isinstance(kind, dict) and kind["type"] == "array":
        return [_fill_value(kind["items"], item, named) for item in value or []]
    return EMPTY[kind["type"] if isinstance(kind, dict) else kind] if value is None else value


def _named(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Every record type in ``schema`` by name."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _named(branch)
    elif isinstance(schema, dict):
        if schema["type"] == "record":
            yield schema["name"], schema
        for part in [field["type"] for field in schema.get("fields", ())] + [schema.get("items")]:
            yield from _named(part)


def bare(record: Record, schema: Schema) -> bytes:
    """The record alone, without schema or framing."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, record)
    return stream.getvalue()


def container(record: Record, schema: Schema, codec: str) -> bytes:
    """An object container of one record; ``codec`` null, deflate or snappy."""
    stream = io.BytesIO()
    fastavro.writer(stream, schema, [record], codec=codec, sync_marker=SYNC_MARKER)
    return stream.getvalue()
