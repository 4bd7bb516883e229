"""A decoded record to a :class:`~service.alerts.packet.Packet`: ids, light curve, metadata, or the reason for none."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from models.lightcurve import MAX_ABS_MJD, LightCurve
from models.metadata import clean_metadata
from service.alerts import photometry
from service.alerts.packet import AbstainReason, Packet, PacketError, ReadLimits, RejectReason
from service.alerts.plans import Plan
from service.alerts.steps import Table
from service.alerts.surveys import Path

Record = Mapping[str, Any]

_VERSION: Final = re.compile(r"(?:lsst\.v)?(\d{1,3}(?:[._]\d{1,3}){0,2})")
_ID: Final = re.compile(r"[!-~]{1,64}")  # printable ASCII without spaces: ids go into logs and replies


def build_packet(record: Record, plan: Plan, limits: ReadLimits) -> Packet:
    """Turn a record, as the plan's decoder returns it, into a packet.

    Raises
    ------
    PacketError
        ``malformed_avro`` when an id is text that no survey would send, ``too_many_observations``.
    """
    object_id = _first_id(record, plan.object_id)
    moving_id = "" if object_id else _first_id(record, plan.moving_id)
    packet = Packet(
        plan.survey, _version(record, plan), _first_id(record, plan.alert_id), object_id or moving_id, None,
        source_id=_first_id(record, plan.source_id),
    )  # fmt: skip
    if moving_id:
        reason, detail = AbstainReason.SOLAR_SYSTEM_OBJECT, "the source belongs to a moving object"
        return replace(packet, reason=reason, detail=detail)
    found = _photometry(record, plan, limits)
    packet, parts = replace(packet, mjd=_alert_time(record, found)), list(found.values())
    points = photometry.merge(parts) if parts else None
    if points is None or len(points) == 0:
        return replace(packet, reason=AbstainReason.NO_USABLE_POINTS, detail=_why_empty(parts))
    columns = (points.mjd, points.flux, points.flux_err, points.band, points.detected)
    return replace(packet, curve=LightCurve.from_columns(*columns, _metadata(record, plan), object_id))


def _alert_time(record: Record, found: Mapping[str, photometry.Photometry]) -> float | None:
    """Mid-exposure of the detection that caused the alert: the one place that is no list."""
    for path, part in found.items():
        if isinstance(record[path], dict) and abs(part.mjd[0]) < MAX_ABS_MJD:
            return float(part.mjd[0])
    return None


def _photometry(record: Record, plan: Plan, limits: ReadLimits) -> dict[str, photometry.Photometry]:
    """Each list of observations that holds any, by its path, converted, in the plan's order of preference."""
    lists = [(place, _table(record[place.path])) for place in plan.rows]
    total = sum(len(rows) for _, rows in lists)
    if total > limits.max_observations:
        detail = f"{total} observations, more than {limits.max_observations}"
        raise PacketError(RejectReason.TOO_MANY_OBSERVATIONS, detail)
    return {
        place.path: place.convert({role: rows.columns[name] for role, name in place.names.items()}, place.detections)
        for place, rows in lists
        if len(rows)
    }


def _table(value: Record | Table | None) -> Table:
    """Observations in a field: a single one, a list of them, or nothing."""
    if isinstance(value, Table):
        return value
    return Table(0, {}) if value is None else Table(1, {name: [one] for name, one in value.items()})


def _metadata(record: Record, plan: Plan) -> dict[str, float]:
    source = record[plan.metadata_at] if plan.metadata_at else None
    return clean_metadata({name: source[name] for name in plan.metadata}) if isinstance(source, dict) else {}


def _at(record: Record, path: Path) -> Any:
    value: Any = record
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value[name]
    return value


def _first_id(record: Record, paths: Sequence[Path]) -> str:
    """First id that is set, in decimal digits or as the survey writes it; surveys write 0 as well as null for none."""
    for path in paths:
        value = _at(record, path)
        if value:
            text = str(value)
            if not _ID.fullmatch(text):
                raise PacketError(RejectReason.MALFORMED_AVRO, f"{'.'.join(path)} is not an identifier")
            return text
    return ""


def _version(record: Record, plan: Plan) -> str:
    if plan.version is not None:
        return plan.version
    stated = next((value for path in plan.version_at if (value := _at(record, path))), "")
    match = _VERSION.fullmatch(stated)  # it becomes a label, so nothing but a version may pass
    return match[1].replace("_", ".") if match else "unknown"


def _why_empty(parts: Sequence[photometry.Photometry]) -> str:
    total = sum(len(part) for part in parts)
    placed = sum(int(np.count_nonzero(photometry.placed(part))) for part in parts)
    return (
        f"of {total} observations {total - placed} have no known band or no valid MJD, "
        f"and {placed} are withdrawn, upper limits, or lack a finite flux with a positive error"
    )
