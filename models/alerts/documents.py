"""Alerts as JSON: the same fields as in Avro, without a schema.

A schema is made from the document itself, so that the one table of surveys (:mod:`models.alerts.plans`) decides here
too which field is what and whether its type fits. Ids may be numbers or text; JSON numbers of 64 bits are read exactly.

A list of objects becomes a table, a column for every name in any of them. A few hundred names and a few thousand empty
objects are a short text and a huge table, so names and cells are counted before any column is made.
"""

from functools import lru_cache
from typing import Any, Final

import orjson

from models.alerts import plans, schema_safety
from models.alerts.packet import PacketError, RejectReason
from models.alerts.plans import Plan
from models.alerts.steps import Table, Values
from models.limits import LARGEST_INT64, MAX_JSON_CELLS, MAX_JSON_DEPTH, MAX_JSON_NAMES

Json = Any
_KINDS: Final = {bool: "boolean", int: "long", float: "double", str: "string"}
MAX_NAME: Final = 80


def read_document(data: bytes) -> tuple[Values, Plan]:
    """Values of one alert in the form that :func:`models.alerts.adapters.build_packet` takes, and its plan.

    Raises
    ------
    PacketError
        ``malformed_json``, ``unsafe_schema`` or ``unknown_schema``.
    """
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise PacketError(RejectReason.MALFORMED_JSON, "the bytes are not one JSON document") from None
    if not isinstance(document, dict):
        raise PacketError(RejectReason.MALFORMED_JSON, "the document is not an object")
    schema = _Describer().record([document], 1)
    return _values(document, schema), _plan(orjson.dumps(schema))


@lru_cache(maxsize=64)
def _plan(schema: bytes) -> Plan:
    """Plan for a schema that a document was given; nearly all documents of a topic are given the same."""
    return plans.resolve(schema_safety.parse(schema), known=False)


class _Describer:
    """Makes an Avro schema of a document; fields that no plan could use are left out."""

    def __init__(self) -> None:
        self._records = 0
        self._cells = 0

    def record(self, rows: list[dict[str, Json]], depth: int) -> dict[str, Json]:
        """Return schema of objects: every field that has one type wherever it is present."""
        if depth > MAX_JSON_DEPTH:
            raise _unsafe(f"the document is nested deeper than {MAX_JSON_DEPTH}")
        self._records += 1
        name = f"json{self._records}"
        kinds = {name: self._kind(values, depth) for name, values in self._columns(rows).items()}
        fields = [{"name": name, "type": ["null", kind]} for name, kind in kinds.items() if kind is not None]
        return {"type": "record", "name": name, "fields": fields}

    def _columns(self, rows: list[dict[str, Json]]) -> dict[str, list[Json]]:
        """Values of each name that are not null, in one pass over what is there."""
        columns: dict[str, list[Json]] = {}
        for row in rows:
            for name, value in row.items():
                if len(name) <= MAX_NAME:
                    column = columns.setdefault(name, [])
                    if value is not None:
                        column.append(value)
            if len(columns) > MAX_JSON_NAMES:
                raise _unsafe(f"an object or a list of objects has more than {MAX_JSON_NAMES} different names")
        self._cells += len(columns) * len(rows)
        if self._cells > MAX_JSON_CELLS:
            raise _unsafe(
                f"lists of objects in the document have more than {MAX_JSON_CELLS} values, absent ones counted"
            )
        return columns

    def _kind(self, values: list[Json], depth: int) -> Json:
        """Type of values, None when there is none or no single one."""
        types = {type(value) for value in values}
        if types == {int, float}:
            return "double"
        if len(types) != 1:
            return None
        found = types.pop()
        if found is dict:
            return self.record(values, depth + 1)
        if found is list:
            rows = [row for value in values for row in value if row is not None]
            if not any(rows) or not all(isinstance(row, dict) for row in rows):
                return None
            items = self.record(rows, depth + 1)
            return {"type": "array", "items": items} if items["fields"] else None  # an empty list says nothing
        if found is int and not all(-LARGEST_INT64 - 1 <= value <= LARGEST_INT64 for value in values):
            return None  # no integer of Avro
        return _KINDS[found]


def _unsafe(detail: str) -> PacketError:
    return PacketError(RejectReason.UNSAFE_SCHEMA, detail)


def _values(document: dict[str, Json], schema: dict[str, Json]) -> Values:
    """Return the document's values of the schema's fields, lists of objects by column."""
    return {field["name"]: _value(document.get(field["name"]), field["type"][1]) for field in schema["fields"]}


def _value(value: Json, kind: Json) -> Json:
    if value is None or isinstance(kind, str):
        return value
    if kind["type"] == "record":
        return _values(value, kind)
    rows = [row for row in value if row is not None]
    names = [field["name"] for field in kind["items"]["fields"]]
    return Table(len(rows), {name: [row.get(name) for row in rows] for name in names})
