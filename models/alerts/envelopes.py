"""Bytes of an alert, in whatever envelope they arrived, to packets: for requests, messages and files alike.

Five envelopes are in use: Avro object containers (ZTF, ALeRCE, Pitt-Google; any number of records, schema inside),
Confluent framing (Rubin: a zero byte, a big-endian 32-bit schema id, a bare record; Rubin's own sample notes call it
little-endian), bare records (ELAsTiCC: nothing says which schema), bare records whose schema is the message's key
(Fink) and JSON. What is known beforehand of a topic (:class:`TopicRule`) wins over sniffing: a bare record may begin
with any byte.

    packets = read_packet(Path("alert.avro").read_bytes())

JSON (Lasair, hop) has the same fields as Avro, without a schema. A schema is made from the document itself, so that the
table of surveys (:mod:`models.alerts.plans`) decides, as for Avro, what each field means and whether its type fits. Ids
may be numbers or text; JSON numbers of 64 bits are read exactly.

A list of objects becomes a table, a column for every name in any of them. A few hundred names and a few thousand empty
objects are a short text and a huge table, so names and cells are counted before any column is made.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self

import orjson
from pydantic import BaseModel, ConfigDict, model_validator

from nightjar_alerts.models.alerts import avro, containers, plans
from nightjar_alerts.models.alerts.decoder import ColumnTable, Values
from nightjar_alerts.models.alerts.packet import PacketError, ReadLimits, RejectReason
from nightjar_alerts.models.alerts.plans import DecodePlan, NewSchemas
from nightjar_alerts.models.alerts.reader import (
    CONFLUENT_HEADER_BYTES,
    PacketOutcome,
    build_packet,
    read_bare,
    read_container,
    rejection,
    sniff_bare,
)
from nightjar_alerts.models.alerts.schema_registry import SchemaRegistry, SchemaUnavailableError
from nightjar_alerts.models.limits import LARGEST_INT64, MAX_JSON_CELLS, MAX_JSON_DEPTH, MAX_JSON_NAMES


class Envelope(StrEnum):
    """Ways in which the bytes of a message hold an alert."""

    AUTO = "auto"
    CONFLUENT = "confluent"
    CONTAINER = "container"
    BARE = "bare"
    KEY = "key"
    JSON = "json"


class TopicRule(BaseModel):
    """Facts about the messages of a topic that are known beforehand."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    envelope: Envelope = Envelope.AUTO
    schema_name: str | None = None

    @model_validator(mode="after")
    def _bare_needs_a_schema(self) -> Self:
        if (self.envelope is Envelope.BARE) != (self.schema_name is not None):
            raise ValueError("the envelope `bare`, and no other, needs a schema_name such as elasticc/0.9.1")
        return self


ANYTHING = TopicRule()


def rule_for(topic: str, rules: Mapping[str, TopicRule]) -> TopicRule:
    """Return the first rule whose pattern (``ztf_*``) fits the topic."""
    return next((rule for pattern, rule in rules.items() if fnmatchcase(topic, pattern)), ANYTHING)


@dataclass(frozen=True, slots=True)
class MessageReader:
    """Reads messages; safe to use from several threads.

    Attributes
    ----------
    extra : folder with more schemas (see :mod:`models.alerts.avro`).
    """

    registry: SchemaRegistry
    limits: ReadLimits
    extra: Path | None = None

    def read(
        self,
        value: bytes,
        key: bytes | None = None,
        rule: TopicRule = ANYTHING,
        new: NewSchemas | None = None,
    ) -> list[PacketOutcome]:
        """Read every alert of a message; returns at least one outcome, an error for whatever cannot be read.

        Nothing that the bytes hold makes it raise, or costs more than ``limits.max_seconds`` of work.

        Parameters
        ----------
        new : how many schemas may still come that were not seen before.

        Raises
        ------
        SchemaUnavailableError
            When the message's schema must be fetched, and cannot be now.
        """
        outcomes: list[PacketOutcome] = []
        try:
            if not value:
                raise PacketError(RejectReason.EMPTY, "there are no bytes")
            if rule.envelope is Envelope.AUTO:
                packets = self._sniff(value, key, new)
            else:
                packets = self._read(value, key, rule.envelope, new, rule.schema_name or "")
            outcomes.extend(packets)
        except SchemaUnavailableError:
            raise
        except Exception as error:  # the fence: what was read before is good, and what was not has its reason
            outcomes.append(rejection(error))
        return outcomes

    def _sniff(self, value: bytes, key: bytes | None, new: NewSchemas | None) -> Iterable[PacketOutcome]:
        """Read in the envelope that the first bytes suggest; a bare record, which may begin with any, is tried too."""
        envelope = _sniffed(value, key)
        if envelope is Envelope.CONTAINER:
            return self._read(value, key, envelope, new)
        try:
            return self._read(value, key, envelope, new)
        except (PacketError, SchemaUnavailableError):
            if packet := sniff_bare(value, self.limits):
                return [packet]
            raise

    def _read(
        self, value: bytes, key: bytes | None, envelope: Envelope, new: NewSchemas | None, schema: str = ""
    ) -> Iterable[PacketOutcome]:
        match envelope:
            case Envelope.CONTAINER if value.startswith(containers.MAGIC):
                return read_container(value, self.limits, new)
            case Envelope.KEY if key:
                return [read_bare(value, 0, plans.for_text(key, new), self.limits)]
            case Envelope.JSON:
                return [self._document(value)]
            case Envelope.BARE:
                return [read_bare(value, 0, plans.for_name(schema, self.extra), self.limits)]
            case Envelope.CONFLUENT if value[0] == 0 and len(value) >= CONFLUENT_HEADER_BYTES:
                return [read_bare(value, CONFLUENT_HEADER_BYTES, self._framed(value), self.limits)]
            case Envelope.AUTO:
                detail = "not an Avro container, framed, with a schema as its key, JSON or a bare known record"
                raise PacketError(RejectReason.UNKNOWN_ENVELOPE, detail)
        raise PacketError(RejectReason.UNKNOWN_ENVELOPE, f"the message is not in the envelope {envelope}")

    def _document(self, value: bytes) -> PacketOutcome:
        if len(value) > self.limits.max_record_bytes:
            raise PacketError(RejectReason.RECORD_TOO_LARGE, f"more than {self.limits.max_record_bytes} bytes")
        values, plan = read_document(value)
        return build_packet(values, plan, self.limits)

    def _framed(self, value: bytes) -> DecodePlan:
        return self.registry.plan(int.from_bytes(value[1:CONFLUENT_HEADER_BYTES], "big"))


def _sniffed(value: bytes, key: bytes | None) -> Envelope:
    if value.startswith(containers.MAGIC):
        return Envelope.CONTAINER
    if key is not None and key[:64].lstrip().startswith(b"{"):
        return Envelope.KEY
    if value[:64].lstrip()[:1] == b"{":
        return Envelope.JSON
    return Envelope.CONFLUENT if value[0] == 0 and len(value) >= CONFLUENT_HEADER_BYTES else Envelope.AUTO


def read_packet(
    data: bytes, schema: str | None = None, extra_schemas: Path | None = None, limits: ReadLimits | None = None
) -> list[PacketOutcome]:
    """Read every alert in ``data``, without a registry.

    Never raises for what the bytes hold: whatever cannot be read is a :class:`PacketError` in the list, at its place.

    Parameters
    ----------
    schema : name of a schema at hand (``elasticc/0.9.1``) when ``data`` is known to be one bare record of it, without
        any framing; nothing is sniffed then.
    extra_schemas : folder with more schemas (see :mod:`models.alerts.avro`).

    Returns
    -------
    At least one outcome. A damaged record in a container costs itself and the rest of its block, not its neighbours in
    other blocks.
    """
    reader = MessageReader(SchemaRegistry(extra=extra_schemas), limits or ReadLimits(), extra_schemas)
    return reader.read(data, rule=rule_of(schema))


def rule_of(schema: str | None) -> TopicRule:
    """Return the rule of bytes that are bare records of a schema; without one they are sniffed."""
    return ANYTHING if schema is None else TopicRule(envelope=Envelope.BARE, schema_name=schema)


Json = Any
_KINDS: Final = {bool: "boolean", int: "long", float: "double", str: "string"}
MAX_NAME: Final = 80


def read_document(data: bytes) -> tuple[Values, DecodePlan]:
    """Values of one alert in the form that :func:`models.alerts.reader.build_packet` takes, and its plan.

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
def _plan(schema: bytes) -> DecodePlan:
    """Plan for a schema that a document was given; nearly all documents of a topic are given the same."""
    return plans.resolve(avro.parse(schema), trusted=False)


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
        python_type = types.pop()
        if python_type is dict:
            return self.record(values, depth + 1)
        if python_type is list:
            rows = [row for value in values for row in value if row is not None]
            if not any(rows) or not all(isinstance(row, dict) for row in rows):
                return None
            items = self.record(rows, depth + 1)
            return {"type": "array", "items": items} if items["fields"] else None  # an empty list says nothing
        if python_type is int and not all(-LARGEST_INT64 - 1 <= value <= LARGEST_INT64 for value in values):
            return None  # no integer of Avro
        return _KINDS[python_type]


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
    return ColumnTable(len(rows), {name: [row.get(name) for row in rows] for name in names})
