"""A plan for reading the packets of one schema: the survey's table resolved against it, once.

Everything that depends on the schema alone is decided here (which alias is in use, whether its type fits its role,
which fields are worth decoding), so that reading a packet is a few regular expressions and array operations.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from models.metadata import METADATA_COLUMNS
from service.alerts import admission, avro, shipped, surveys
from service.alerts.decoder import Decoder
from service.alerts.packet import PacketError, RejectReason, Survey
from service.alerts.photometry import Convert

_RECORD_NAME: Final = re.compile(r"(lsst|elasticc)\.v(\d{1,3}(?:_\d{1,3}){1,2})\.alert")
_WHOLE: Final = frozenset({"int", "long"})
_REAL: Final = _WHOLE | {"float", "double"}
_LABEL: Final = _WHOLE | {"string"}


@dataclass(frozen=True, slots=True)
class Rows:
    """Observations of the packet's field ``path``; ``names`` maps roles to the field names of this schema."""

    path: str
    detections: bool
    names: Mapping[str, str]
    convert: Convert


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How to read the packets of one schema; ``version`` is None where the packet itself must say."""

    survey: Survey
    version: str | None
    decoder: Decoder
    rows: tuple[Rows, ...]
    alert_id: tuple[surveys.Path, ...]
    source_id: tuple[surveys.Path, ...]
    object_id: tuple[surveys.Path, ...]
    moving_id: tuple[surveys.Path, ...]
    version_at: tuple[surveys.Path, ...]
    metadata_at: str | None
    metadata: tuple[str, ...]


@lru_cache(maxsize=16)
def for_text(schema: bytes) -> Plan:
    """Plan for the schema in a container's header.

    Raises
    ------
    PacketError
        ``unsafe_schema`` or ``unknown_schema``.
    """
    return resolve(admission.parse(schema))


@lru_cache(maxsize=64)
def for_name(name: str, extra: Path | None = None) -> Plan:
    """Plan for a schema at hand, by name (see :mod:`service.alerts.shipped`); raises PacketError as above."""
    return resolve(shipped.load(name, extra))


def resolve(schema: avro.Schema) -> Plan:
    """Resolve the table of surveys against a schema.

    Raises
    ------
    PacketError
        ``unknown_schema``: no survey's layout, or a field that is required is absent or of another type.
    """
    packet = schema.fields(schema.root)
    layout = next((layout for layout in surveys.LAYOUTS if all(mark in packet for mark in layout.marks)), None)
    if layout is None:
        raise _unknown(schema, "it holds neither diaSource nor candidate and objectId")
    return _Resolver(schema, layout).plan()


class _Resolver:
    """Collects, while it resolves, the fields of each record that the plan needs."""

    def __init__(self, schema: avro.Schema, layout: surveys.Layout) -> None:
        self.schema = schema
        self.layout = layout
        self.keep: dict[str, set[str]] = {}

    def plan(self) -> Plan:
        layout = self.layout
        packet = self.schema.fields(self.schema.root)
        rows = tuple(self._rows(place) for place in layout.observations if place.path in packet)
        alert_id = self._present(layout.alert_id, _LABEL)
        source_id = self._present(layout.source_id, _LABEL)
        object_id = self._present(layout.object_id, _LABEL)
        moving_id = self._present(layout.moving_id, _REAL)
        version_at = self._present(layout.version, frozenset({"string"}))
        metadata = self._metadata()
        survey, version = self._identity(rows)
        keep = {name: frozenset(names) for name, names in self.keep.items()}
        return Plan(
            survey, version, Decoder(self.schema, keep), rows,
            alert_id, source_id, object_id, moving_id, version_at, layout.metadata if metadata else None, metadata,
        )  # fmt: skip

    def _rows(self, place: surveys.Observations) -> Rows:
        names = {}
        for role, aliases in {**place.required, **place.optional}.items():
            found = [alias for alias in aliases if self._holds((place.path, alias), _kinds(role))]
            if found:
                names[role] = found[0]
                self._want((place.path, found[0]))
            elif role in place.required:
                raise _unknown(self.schema, f"{place.path} has no {' or '.join(aliases)} of a fitting type")
        return Rows(place.path, place.detections, names, place.convert)

    def _present(self, paths: tuple[surveys.Path, ...], kinds: frozenset[str]) -> tuple[surveys.Path, ...]:
        found = tuple(path for path in paths if self._holds(path, kinds))
        for path in found:
            self._want(path)
        return found

    def _metadata(self) -> tuple[str, ...]:
        place = self.layout.metadata
        if place is None:
            return ()
        found = self._present(tuple((place, name) for name in METADATA_COLUMNS), _REAL)
        return tuple(path[-1] for path in found)

    def _identity(self, rows: tuple[Rows, ...]) -> tuple[Survey, str | None]:
        if self.layout is surveys.ZTF:
            return "ztf", None
        if match := _RECORD_NAME.fullmatch(self.schema.name):
            return ("lsst" if match[1] == "lsst" else "elasticc"), match[2].replace("_", ".")
        return ("elasticc" if rows[-1].names["flux"] == "psFlux" else "lsst"), None

    def _holds(self, path: surveys.Path, kinds: frozenset[str]) -> bool:
        """Whether a field exists with one of the types, nullable or not."""
        fields = self.schema.fields(self.schema.root)
        for name in path[:-1]:
            fields = self.schema.fields(fields.get(name))
        kind = avro.bare(fields.get(path[-1]))
        return isinstance(kind, str) and kind in kinds

    def _want(self, path: surveys.Path) -> None:
        kind: avro.AvroType = self.schema.root
        for name in path:
            definition: Any = self.schema.definition(kind)
            self.keep.setdefault(definition["name"], set()).add(name)
            kind = self.schema.fields(kind)[name]


def _kinds(role: str) -> frozenset[str]:
    if role in surveys.TEXT_ROLES:
        return frozenset({"string"})
    if role == "band":
        return _LABEL
    return _WHOLE if role in surveys.WHOLE_NUMBER_ROLES else _REAL


def _unknown(schema: avro.Schema, detail: str) -> PacketError:
    return PacketError(RejectReason.UNKNOWN_SCHEMA, f"schema {schema.name} is not one of a known survey: {detail}")
