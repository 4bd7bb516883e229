"""A plan for reading the packets of one schema: the survey's table resolved against it, once.

Everything that depends on the schema alone is decided here (which alias is in use, whether its type fits its role,
which fields are worth decoding), so that reading a packet is a few regular expressions and array operations.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from nightjar_alerts.models.alerts import avro
from nightjar_alerts.models.alerts.decoder import AvroDecoder
from nightjar_alerts.models.alerts.layouts import TEXT_ROLES, WHOLE_NUMBER_ROLES, Observations, PacketLayout, Survey
from nightjar_alerts.models.alerts.layouts import Path as FieldPath
from nightjar_alerts.models.alerts.packet import PacketError, RejectReason
from nightjar_alerts.models.alerts.photometry import Bands, Columns, Convert
from nightjar_alerts.models.alerts.surveys import SURVEYS
from nightjar_alerts.models.limits import MAX_NEW_SCHEMAS, MAX_SCHEMA_BYTES
from nightjar_alerts.models.metadata import METADATA_COLUMNS

_WHOLE: Final = frozenset({"int", "long"})
_REAL: Final = _WHOLE | {"float", "double"}
_LABEL: Final = _WHOLE | {"string"}


@dataclass(frozen=True, slots=True)
class ObservationColumns:
    """Observations of the packet's field ``path``; ``names`` maps roles to the field names of this schema."""

    path: str
    detections: bool
    names: Mapping[str, str]
    convert: Convert


@dataclass(frozen=True, slots=True, eq=False)
class DecodePlan:
    """Instructions to read the packets of one schema; ``version`` is None where the packet itself must say."""

    survey: str
    version: str | None
    decoder: AvroDecoder
    rows: tuple[ObservationColumns, ...]
    filters: Bands
    njy_per_unit: Callable[[Sequence[Columns]], float] | None
    alert_id: tuple[FieldPath, ...]
    source_id: tuple[FieldPath, ...]
    object_id: tuple[FieldPath, ...]
    moving_id: tuple[FieldPath, ...]
    version_at: tuple[FieldPath, ...]
    metadata_at: str | None
    metadata: tuple[str, ...]
    context: Mapping[str, tuple[FieldPath, ...]]


class NewSchemas:
    """Allowance of schemas that one request may still bring unseen: each takes milliseconds to judge."""

    def __init__(self, limit: int = MAX_NEW_SCHEMAS) -> None:
        self._limit = self._remaining = limit

    def take(self) -> None:
        """Count one. Raises PacketError (``too_many_schemas``)."""
        if not self._remaining:
            detail = f"more than {self._limit} schemas of one request were not seen before: send it again by itself"
            raise PacketError(RejectReason.TOO_MANY_SCHEMAS, detail)
        self._remaining -= 1


class _SchemaVerdicts:
    """Verdicts on the latest schemas, plans and refusals, so that none is judged again. For any thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_schema: OrderedDict[bytes, DecodePlan | PacketError] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, schema: bytes) -> DecodePlan | PacketError | None:
        with self._lock:
            verdict = self._by_schema.get(schema)
            if verdict is not None:
                self._by_schema.move_to_end(schema)
            return verdict

    def keep(self, schema: bytes, verdict: DecodePlan | PacketError) -> None:
        with self._lock:
            self._by_schema[schema] = verdict
            if len(self._by_schema) > self._limit:
                self._by_schema.popitem(last=False)


_verdicts: Final = _SchemaVerdicts(16)


def for_text(schema: bytes, new: NewSchemas | None = None) -> DecodePlan:
    """Plan for the schema in a container's header or a message's key.

    Raises
    ------
    PacketError
        ``unsafe_schema``, ``unknown_schema``, or ``too_many_schemas`` when ``new`` allows no more.
    """
    verdict = _verdicts.find(schema)
    if verdict is None:
        if new is not None:
            new.take()
        verdict = _judge(schema)
        if len(schema) <= MAX_SCHEMA_BYTES:
            _verdicts.keep(schema, verdict)
    if isinstance(verdict, PacketError):
        raise PacketError(verdict.reason, verdict.detail)
    return verdict


def _judge(schema: bytes) -> DecodePlan | PacketError:
    try:
        return resolve(avro.parse(schema), trusted=False)
    except PacketError as error:
        return error.as_outcome()


@lru_cache(maxsize=64)
def for_name(name: str, extra: Path | None = None) -> DecodePlan:
    """Plan for a schema at hand, by name (see :mod:`models.alerts.avro`); raises PacketError as above."""
    return resolve(avro.load(name, extra))


def resolve(schema: avro.Schema, trusted: bool = True) -> DecodePlan:
    """Resolve the table of surveys against a schema.

    Parameters
    ----------
    trusted : whether it is one of ours or of a registry, as opposed to one that came with a packet.

    Raises
    ------
    PacketError
        ``unknown_schema``: no survey's layout, or a field that is required is absent or of another type.
    """
    versions = [(survey, _version(survey, schema.name)) for survey in SURVEYS]
    by_name = [(survey, version) for survey, version in versions if version is not None]
    for survey, version in by_name or versions:
        for layout in survey.layouts:
            if all(_reaches(schema, mark) for mark in layout.marks):
                return _Resolver(schema, survey, layout, version, trusted).plan()
    layouts = (layout for survey in SURVEYS for layout in survey.layouts)
    marks = dict.fromkeys(" and ".join(".".join(mark) for mark in layout.marks) for layout in layouts)
    raise _unknown(schema, f"it holds none of: {'; '.join(marks)}")


def _version(survey: Survey, record_name: str) -> str | None:
    """Version that the name of a survey's record states, None where it is no record of the survey's."""
    match = survey.record_name.fullmatch(record_name) if survey.record_name else None
    return match[1].replace("_", ".") if match else None


def _reaches(schema: avro.Schema, path: FieldPath) -> bool:
    fields = schema.fields(schema.root)
    for name in path[:-1]:
        fields = schema.fields(fields.get(name))
    return path[-1] in fields


class _Resolver:
    """Collects, while it resolves, the fields of each record that the plan needs."""

    def __init__(
        self, schema: avro.Schema, survey: Survey, layout: PacketLayout, version: str | None, trusted: bool
    ) -> None:
        self.schema = schema
        self.survey, self.layout, self.version = survey, layout, version
        self.trusted = trusted
        self.keep: dict[str, set[str]] = {}

    def plan(self) -> DecodePlan:
        layout = self.layout
        packet = self.schema.fields(self.schema.root)
        rows = tuple(self._rows(place) for place in layout.observations if place.path in packet)
        alert_id = self._present(layout.alert_id, _LABEL)
        source_id = self._present(layout.source_id, _LABEL)
        object_id = self._present(layout.object_id, _LABEL)
        moving_id = self._present(layout.moving_id, _REAL)
        version_at = self._present(layout.version, frozenset({"string"}))
        metadata, context = self._metadata(), self._context()
        keep = {name: frozenset(names) for name, names in self.keep.items()}
        return DecodePlan(
            self.survey.name, self.version, AvroDecoder(self.schema, keep, self.trusted), rows,
            self.survey.filters, layout.njy_per_unit,
            alert_id, source_id, object_id, moving_id, version_at, layout.metadata if metadata else None, metadata,
            context,
        )  # fmt: skip

    def _rows(self, place: Observations) -> ObservationColumns:
        names = {}
        for role, aliases in {**place.required, **place.optional}.items():
            matches = [alias for alias in aliases if self._holds((place.path, alias), _kinds(role))]
            if matches:
                names[role] = matches[0]
                self._want((place.path, matches[0]))
            elif role in place.required:
                raise _unknown(self.schema, f"{place.path} has no {' or '.join(aliases)} of a fitting type")
        return ObservationColumns(place.path, place.detections, names, place.convert)

    def _present(self, paths: tuple[FieldPath, ...], kinds: frozenset[str]) -> tuple[FieldPath, ...]:
        present_paths = tuple(path for path in paths if self._holds(path, kinds))
        for path in present_paths:
            self._want(path)
        return present_paths

    def _metadata(self) -> tuple[str, ...]:
        place = self.layout.metadata
        if place is None:
            return ()
        paths = self._present(tuple((place, name) for name in METADATA_COLUMNS), _REAL)
        return tuple(path[-1] for path in paths)

    def _context(self) -> dict[str, tuple[FieldPath, ...]]:
        paths_by_name = {name: self._present(paths, _REAL) for name, paths in self.layout.context.items()}
        return {name: paths for name, paths in paths_by_name.items() if paths}

    def _holds(self, path: FieldPath, kinds: frozenset[str]) -> bool:
        """Return whether a field exists with one of the types, nullable or not."""
        fields = self.schema.fields(self.schema.root)
        for name in path[:-1]:
            fields = self.schema.fields(fields.get(name))
        kind = avro.bare(fields.get(path[-1]))
        return "string" in kinds if self.schema.is_enum(kind) else isinstance(kind, str) and kind in kinds

    def _want(self, path: FieldPath) -> None:
        kind: avro.AvroType = self.schema.root
        for name in path:
            definition: Any = self.schema.definition(kind)
            self.keep.setdefault(definition["name"], set()).add(name)
            kind = self.schema.fields(kind)[name]


def _kinds(role: str) -> frozenset[str]:
    if role in TEXT_ROLES:
        return frozenset({"string"})
    if role == "band":
        return _LABEL
    return _WHOLE if role in WHOLE_NUMBER_ROLES else _REAL


def _unknown(schema: avro.Schema, detail: str) -> PacketError:
    return PacketError(RejectReason.UNKNOWN_SCHEMA, f"schema {schema.name} is not one of a known survey: {detail}")
