"""Alerts as JSON: the same fields as in Avro, without a schema.

A schema is made from the document itself, so that the one table of surveys (:mod:`service.alerts.plans`) decides here
too which field is what and whether its type fits. Ids may be numbers or text; JSON numbers of 64 bits are read exactly.
"""

from typing import Any, Final

import orjson

from service.alerts import plans
from service.alerts.packet import PacketError, RejectReason
from service.alerts.plans import Plan
from service.alerts.steps import Table, Values

Json = Any
_KINDS: Final = {bool: "boolean", int: "long", float: "double", str: "string"}
MAX_NAME: Final = 80


def read_document(data: bytes) -> tuple[Values, Plan]:
    """Values of one alert in the form that :func:`service.alerts.adapters.build_packet` takes, and its plan.

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
    schema = _Describer().record(document)
    return _values(document, schema), plans.for_text(orjson.dumps(schema))


class _Describer:
    """Makes an Avro schema of a document; fields that no plan could use are left out."""

    def __init__(self) -> None:
        self._records = 0

    def record(self, *rows: dict[str, Json]) -> dict[str, Json]:
        """Schema of objects: every field that has one type wherever it is present."""
        self._records += 1
        name = f"json{self._records}"
        names = dict.fromkeys(name for row in rows for name in row if len(name) <= MAX_NAME)
        kinds = {name: self._kind([row[name] for row in rows if row.get(name) is not None]) for name in names}
        fields = [{"name": name, "type": ["null", kind]} for name, kind in kinds.items() if kind is not None]
        return {"type": "record", "name": name, "fields": fields}

    def _kind(self, values: list[Json]) -> Json:
        """Type of values, None when there is none or no single one."""
        types = {type(value) for value in values}
        if types == {int, float}:
            return "double"
        if len(types) != 1:
            return None
        found = types.pop()
        if found is dict:
            return self.record(*values)
        if found is list:
            rows = [row for value in values for row in value if row is not None]
            return {"type": "array", "items": self.record(*rows)} if all(isinstance(r, dict) for r in rows) else None
        return _KINDS[found]


def _values(document: dict[str, Json], schema: dict[str, Json]) -> Values:
    """The document's values of the schema's fields, lists of objects by column."""
    return {field["name"]: _value(document.get(field["name"]), field["type"][1]) for field in schema["fields"]}


def _value(value: Json, kind: Json) -> Json:
    if value is None or isinstance(kind, str):
        return value
    if kind["type"] == "record":
        return _values(value, kind)
    rows = [row for row in value if row is not None]
    names = [field["name"] for field in kind["items"]["fields"]]
    return Table(len(rows), {name: [row.get(name) for row in rows] for name in names})
