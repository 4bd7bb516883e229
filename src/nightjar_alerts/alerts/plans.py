"""Plans for decoding the packets of a schema: a survey's layout resolved against the schema.

A plan contains everything that depends on the schema alone (the aliases in use, whether their types fit their roles,
the fields to decode), so that decoding a packet is a few regular expressions and array operations.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from nightjar_alerts.alerts import avro
from nightjar_alerts.alerts.decoder import AvroDecoder
from nightjar_alerts.alerts.layouts import TEXT_ROLES, Observations, PacketLayout, Survey
from nightjar_alerts.alerts.layouts import Path as FieldPath
from nightjar_alerts.alerts.packet import PacketError, RejectReason
from nightjar_alerts.alerts.photometry import Convert
from nightjar_alerts.alerts.surveys import SURVEYS
from nightjar_alerts.models.limits import MAX_NEW_SCHEMAS, MAX_SCHEMA_BYTES
from nightjar_alerts.models.metadata import METADATA_COLUMNS

_LABEL: Final = frozenset({"int", "long", "string"})
_NUMBER: Final = _LABEL | {"float", "double"}
"""Types of a number, which brokers may write as a string."""
_SCALAR: Final = _NUMBER | {"boolean"}
"""Types of any scalar, such as a sign."""


@dataclass(frozen=True, slots=True)
class ObservationColumns:
    """Columns of the observations in the packet's field ``path``.

    Attributes
    ----------
    names : field name in this schema of each available role.
    required : roles that the conversion requires; without a name they are columns of missing values.
    """

    path: str
    detections: bool
    names: Mapping[str, str]
    required: tuple[str, ...]
    convert: Convert


@dataclass(frozen=True, slots=True, eq=False)
class PacketPlan:
    """Fields of the values of a packet.

    Attributes
    ----------
    version : schema version; None if it is in the packet.
    rows : lists of observations, in the layout's order of preference.
    metadata_at, metadata : record with metadata, and its columns.
    context : paths of the context values.
    position : paths of right ascension and declination.
    """

    survey: Survey
    layout: PacketLayout
    version: str | None
    rows: tuple[ObservationColumns, ...]
    metadata_at: str | None
    metadata: tuple[str, ...]
    context: Mapping[str, tuple[FieldPath, ...]]
    position: tuple[tuple[FieldPath, FieldPath], ...]


@dataclass(frozen=True, slots=True, eq=False)
class DecodePlan(PacketPlan):
    """Plan for the packets of one Avro schema, with the decoder."""

    decoder: AvroDecoder


class NewSchemas:
    """Allowance of a request for schemas that were not seen before, each of which takes milliseconds to validate."""

    def __init__(self, limit: int = MAX_NEW_SCHEMAS) -> None:
        self._limit = self._remaining = limit

    def take(self) -> None:
        """Count a new schema. Raises PacketError (``too_many_schemas``)."""
        if not self._remaining:
            detail = f"more than {self._limit} schemas of one request were not seen before: send it again by itself"
            raise PacketError(RejectReason.TOO_MANY_SCHEMAS, detail)
        self._remaining -= 1


class _PlanCache:
    """LRU cache of the plans or errors of schemas. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_schema: OrderedDict[bytes, DecodePlan | PacketError] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, schema: bytes) -> DecodePlan | PacketError | None:
        with self._lock:
            result = self._by_schema.get(schema)
            if result is not None:
                self._by_schema.move_to_end(schema)
            return result

    def keep(self, schema: bytes, result: DecodePlan | PacketError) -> None:
        with self._lock:
            self._by_schema[schema] = result
            if len(self._by_schema) > self._limit:
                self._by_schema.popitem(last=False)


_plan_cache: Final = _PlanCache(16)


def for_text(schema: bytes, new: NewSchemas | None = None) -> DecodePlan:
    """Return the plan for the schema in a container's header or a message's key.

    Raises
    ------
    PacketError
        ``unsafe_schema``, ``unknown_schema``, or ``too_many_schemas`` if ``new`` is used up.
    """
    result = _plan_cache.find(schema)
    if result is None:
        if new is not None:
            new.take()
        result = _resolve_text(schema)
        if len(schema) <= MAX_SCHEMA_BYTES:
            _plan_cache.keep(schema, result)
    if isinstance(result, PacketError):
        raise PacketError(result.reason, result.detail)
    return result


def _resolve_text(schema: bytes) -> DecodePlan | PacketError:
    try:
        return resolve(avro.parse(schema), trusted=False)
    except PacketError as error:
        return error.as_outcome()


@lru_cache(maxsize=64)
def for_name(name: str, extra: Path | None = None) -> DecodePlan:
    """Return the plan for a shipped schema by name (see :mod:`alerts.avro`). Raises PacketError as above."""
    return resolve(avro.load(name, extra))


def resolve(schema: avro.Schema, trusted: bool = True) -> DecodePlan:
    """Resolve the surveys' layouts against a schema.

    Parameters
    ----------
    trusted : whether the schema is shipped or from a registry, rather than from a packet.

    Raises
    ------
    PacketError
        ``unknown_schema`` if no layout matches, or a required field is missing or has another type.
    """
    survey, layout, version = find_layout(lambda path: _reaches(schema, path), f"schema {schema.name}", schema.name)
    return _Resolver(schema, survey, layout, version, trusted).plan()


def find_layout(
    holds: Callable[[FieldPath], bool], what: str, record_name: str = ""
) -> tuple[Survey, PacketLayout, str | None]:
    """Find the survey and the layout of a packet that has the fields for which ``holds`` returns True.

    Parameters
    ----------
    what : name of the packet's schema or document, for the error message.
    record_name : full name of the Avro record, which contains the version for some surveys.

    Raises
    ------
    PacketError
        ``unknown_schema``.
    """
    versions = [(survey, _version(survey, record_name)) for survey in SURVEYS]
    by_name = [(survey, version) for survey, version in versions if version is not None]
    for survey, version in by_name or versions:
        for layout in survey.layouts:
            if all(holds(mark) for mark in layout.marks):
                return survey, layout, version
    layouts = (layout for survey in SURVEYS for layout in survey.layouts)
    marks = dict.fromkeys(" and ".join(".".join(mark) for mark in layout.marks) for layout in layouts)
    raise _unknown(what, f"it holds none of: {'; '.join(marks)}")


def _version(survey: Survey, record_name: str) -> str | None:
    """Return the version in the name of a survey's record, None if it is not a record of the survey."""
    match = survey.record_name.fullmatch(record_name) if survey.record_name else None
    return match[1].replace("_", ".") if match else None


def _reaches(schema: avro.Schema, path: FieldPath) -> bool:
    fields = schema.fields(schema.root)
    for name in path[:-1]:
        fields = schema.fields(fields.get(name))
    return path[-1] in fields


class _Resolver:
    """Resolves a layout against a schema and collects the needed fields of each record."""

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
        places = [self._rows(place) for place in layout.observations if place.path in packet]
        rows = tuple(place for place in places if place.names)
        self._check_required(rows)
        for paths in (layout.alert_id, layout.source_id, layout.object_id):
            self._present(paths, _LABEL)
        self._present(layout.moving_id, _LABEL)
        for paths in (layout.moving_name, layout.moving_distance, tuple(path for path, _ in layout.moving_flags)):
            self._present(paths, _SCALAR)
        self._present(layout.version, frozenset({"string"}))
        metadata, context = self._metadata(), self._context()
        position = tuple(pair for pair in layout.position if all(self._holds(path, _NUMBER) for path in pair))
        for path in position[0] if position else ():
            self._want(path)
        keep = {name: frozenset(names) for name, names in self.keep.items()}
        decoder = AvroDecoder(self.schema, keep, self.trusted)
        metadata_at = layout.metadata if metadata else None
        return DecodePlan(
            self.survey, layout, self.version, rows, metadata_at, metadata, context, position[:1], decoder
        )

    def _rows(self, place: Observations) -> ObservationColumns:
        names = {}
        for role, aliases in {**place.required, **place.optional}.items():
            matches = [alias for alias in aliases if self._holds((place.path, alias), _kinds(role))]
            if matches:
                names[role] = matches[0]
                self._want((place.path, matches[0]))
        return ObservationColumns(place.path, place.detections, names, tuple(place.required), place.convert)

    def _check_required(self, rows: Sequence[ObservationColumns]) -> None:
        """Raise PacketError if no list of observations has all required columns."""
        required = {place.path: place.required for place in self.layout.observations}
        missing = [
            f"{row.path} has no {' or '.join(aliases)} of a fitting type"
            for row in rows
            for role, aliases in required[row.path].items()
            if role not in row.names
        ]
        if not any(required[row.path].keys() <= row.names.keys() for row in rows):
            raise _unknown(f"schema {self.schema.name}", "; ".join(missing) or "it holds no observations")

    def _present(self, paths: tuple[FieldPath, ...], kinds: frozenset[str]) -> tuple[FieldPath, ...]:
        present_paths = tuple(path for path in paths if self._holds(path, kinds))
        for path in present_paths:
            self._want(path)
        return present_paths

    def _metadata(self) -> tuple[str, ...]:
        place = self.layout.metadata
        if place is None:
            return ()
        paths = self._present(tuple((place, name) for name in METADATA_COLUMNS), _SCALAR)
        return tuple(path[-1] for path in paths)

    def _context(self) -> dict[str, tuple[FieldPath, ...]]:
        paths_by_name = {name: self._present(paths, _SCALAR) for name, paths in self.layout.context.items()}
        return {name: paths for name, paths in paths_by_name.items() if paths}

    def _holds(self, path: FieldPath, kinds: frozenset[str]) -> bool:
        """Return whether a field exists and all its types, apart from null, are among ``kinds``."""
        fields = self.schema.fields(self.schema.root)
        for name in path[:-1]:
            fields = self.schema.fields(fields.get(name))
        if path[-1] not in fields:
            return False
        kind = fields[path[-1]]
        branches = kind if isinstance(kind, list) else [kind]
        return all(
            branch == "null" or ("string" if self.schema.is_enum(branch) else _type_name(branch)) in kinds
            for branch in branches
        )

    def _want(self, path: FieldPath) -> None:
        kind: avro.AvroType = self.schema.root
        for name in path:
            definition: Any = self.schema.definition(kind)
            self.keep.setdefault(definition["name"], set()).add(name)
            kind = self.schema.fields(kind)[name]


def _type_name(kind: avro.AvroType) -> str:
    return kind if isinstance(kind, str) else ""


def _kinds(role: str) -> frozenset[str]:
    return _SCALAR if role in TEXT_ROLES else _NUMBER


def _unknown(what: str, detail: str) -> PacketError:
    return PacketError(RejectReason.UNKNOWN_SCHEMA, f"{what} is not one of a known survey: {detail}")
