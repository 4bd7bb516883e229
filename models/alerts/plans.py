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
from nightjar_alerts.models.alerts.layouts import TEXT_ROLES, Observations, PacketLayout, Survey
from nightjar_alerts.models.alerts.layouts import Path as FieldPath
from nightjar_alerts.models.alerts.packet import PacketError, RejectReason
from nightjar_alerts.models.alerts.photometry import Convert
from nightjar_alerts.models.alerts.surveys import SURVEYS
from nightjar_alerts.models.limits import MAX_NEW_SCHEMAS, MAX_SCHEMA_BYTES
from nightjar_alerts.models.metadata import METADATA_COLUMNS

_LABEL: Final = frozenset({"int", "long", "string"})
_NUMBER: Final = _LABEL | {"float", "double"}
"""Types of a number, which brokers may write as text."""
_SCALAR: Final = _NUMBER | {"boolean"}
"""Types of a value of any kind, such as a sign."""


@dataclass(frozen=True, slots=True)
class ObservationColumns:
    """Observations of the packet's field ``path``.

    Attributes
    ----------
    names : field name in this schema of each role that it has.
    required : roles that the conversion expects; those without a name are columns of missing values.
    """

    path: str
    detections: bool
    names: Mapping[str, str]
    required: tuple[str, ...]
    convert: Convert


@dataclass(frozen=True, slots=True, eq=False)
class PacketPlan:
    """Where the values of a packet are; ``version`` is None where the packet itself must say.

    Attributes
    ----------
    rows : the lists of observations, in the layout's order of preference.
    metadata_at, metadata : the record that holds metadata, and the columns that it has.
    context : paths of the values besides the light curve.
    """

    survey: Survey
    layout: PacketLayout
    version: str | None
    rows: tuple[ObservationColumns, ...]
    metadata_at: str | None
    metadata: tuple[str, ...]
    context: Mapping[str, tuple[FieldPath, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class DecodePlan(PacketPlan):
    """Instructions to decode and read the packets of one Avro schema."""

    decoder: AvroDecoder


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
    trusted : whether it is built in or from a registry, as opposed to one that came with a packet.

    Raises
    ------
    PacketError
        ``unknown_schema``: no survey's layout, or a field that is required is absent or of another type.
    """
    survey, layout, version = find_layout(lambda path: _reaches(schema, path), f"schema {schema.name}", schema.name)
    return _Resolver(schema, survey, layout, version, trusted).plan()


def find_layout(
    holds: Callable[[FieldPath], bool], what: str, record_name: str = ""
) -> tuple[Survey, PacketLayout, str | None]:
    """Find the survey and the layout of a packet that has the fields for which ``holds`` is true.

    Parameters
    ----------
    what : name of the packet's schema or document, for the error.
    record_name : full name of the Avro record, which for some surveys states the version.

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
        keep = {name: frozenset(names) for name, names in self.keep.items()}
        decoder = AvroDecoder(self.schema, keep, self.trusted)
        metadata_at = layout.metadata if metadata else None
        return DecodePlan(self.survey, layout, self.version, rows, metadata_at, metadata, context, decoder)

    def _rows(self, place: Observations) -> ObservationColumns:
        names = {}
        for role, aliases in {**place.required, **place.optional}.items():
            matches = [alias for alias in aliases if self._holds((place.path, alias), _kinds(role))]
            if matches:
                names[role] = matches[0]
                self._want((place.path, matches[0]))
        return ObservationColumns(place.path, place.detections, names, tuple(place.required), place.convert)

    def _check_required(self, rows: Sequence[ObservationColumns]) -> None:
        """Refuse a schema none of whose lists of observations has every required column."""
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
        """Return whether a field exists all of whose values, apart from null, have one of the types."""
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
