"""Conversion of decoded records, bare or in containers, to packets with ids, light curve and metadata.

Any error becomes the :class:`PacketError` of that record, and does not affect other records. Envelopes are detected by
:mod:`alerts.envelopes`.
"""

import logging
import math
import re
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from nightjar_alerts.alerts import containers, photometry, plans
from nightjar_alerts.alerts.decoder import ColumnTable
from nightjar_alerts.alerts.documents import looks_like_json, parse_documents, read_document
from nightjar_alerts.alerts.layouts import PacketLayout
from nightjar_alerts.alerts.layouts import Path as FieldPath
from nightjar_alerts.alerts.packet import AbstainReason, Packet, PacketError, ReadLimits, RejectReason
from nightjar_alerts.alerts.photometry import PhotometryColumns
from nightjar_alerts.alerts.plans import PacketPlan
from nightjar_alerts.alerts.surveys import SURVEYS
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.limits import Allowance, TooCostly
from nightjar_alerts.models.metadata import clean_metadata

AlertRecord = Mapping[str, Any]

_VERSION: Final = re.compile(r"(?:lsst\.v)?(\d{1,3}(?:[._]\d{1,3}){0,2})")
_FILTER: Final = re.compile(r"[!-~]+")
MAX_FILTER_NAME: Final = 20
MAX_FILTER_NAMES: Final = 8
MOVING_ARCSEC: Final = 5.0
NO_NAME: Final = frozenset({"", "null", "none", "nan", "-999", "-999.0", "-99", "-9999"})
_ID: Final = re.compile(r"[!-~]{1,64}")  # printable ASCII without spaces: ids go into logs and replies


class ObservationList(NamedTuple):
    """List of observations: its field, the converted rows, and the original columns by role."""

    path: str
    rows: photometry.Photometry
    columns: PhotometryColumns


def build_packet(record: AlertRecord, plan: PacketPlan, limits: ReadLimits) -> Packet:
    """Convert a record from the plan's decoder, or a JSON document, to a packet.

    Raises
    ------
    PacketError
        ``malformed_avro`` if an id is not a valid identifier, ``too_many_observations``.
    """
    layout = plan.layout
    moving_id = _first_id(record, layout.moving_id)
    # BOOM's top-level objectId may be that of a moving object, so with a moving id only nested object ids count.
    object_id = _first_id(record, [path for path in layout.object_id if not moving_id or len(path) > 1])
    packet = Packet(
        plan.survey.name, _schema_version(record, plan), _first_id(record, layout.alert_id), object_id or moving_id,
        None, source_id=_first_id(record, layout.source_id),
    )  # fmt: skip
    moving = "the source belongs to a moving object" if moving_id and not object_id else ""
    match = None if moving else _solar_system_match(record, layout)
    parts = [] if moving else observations(record, plan, limits)
    packet, rows = replace(packet, mjd=_alert_time(record, parts)), [part.rows for part in parts]
    if match and not _has_history(rows, packet.mjd):
        moving = match.detail
    if moving:
        return replace(packet, reason=AbstainReason.SOLAR_SYSTEM_OBJECT, detail=moving)
    every = photometry.concatenate(rows) if rows else None
    points = every and photometry.merge(every)
    if every is None or not points:
        return replace(packet, reason=AbstainReason.NO_USABLE_POINTS, detail=_why_empty(rows))
    metadata = _metadata_of(record, plan)
    if match:
        metadata["solar_system_distance"] = match.arcsec
    ra, dec = _position_of(record, plan)
    curve = LightCurve(
        points.mjd, points.flux.astype(np.float32), points.flux_err.astype(np.float32), points.band, points.detected,
        metadata, object_id, plan.survey.name, unknown_filters=_unknown_filters(parts),
        dropped=_dropped(every) if len(points) < len(every) else {}, ra=ra, dec=dec,
    )  # fmt: skip  # merge() ensures that the light curve is valid
    return replace(packet, curve=curve)


class SolarSystemMatch(NamedTuple):
    """Known Solar System object near the alert, according to the packet; 0 arcsec if the distance is not given."""

    arcsec: float
    detail: str


HISTORY_DAYS: Final = 0.5
"""Detections earlier than this before the alert cannot be caused by the moving object."""


def _solar_system_match(record: AlertRecord, layout: PacketLayout) -> SolarSystemMatch | None:
    if moving_id := _first_id(record, layout.moving_id[:1]):
        return SolarSystemMatch(0.0, f"the source belongs to the Solar System object {moving_id[:40]}")
    for path, values in layout.moving_flags:
        if _flag(_at(record, path)) in values:
            return SolarSystemMatch(0.0, f"{'.'.join(path)} marks a known Solar System object")
    name = next((text for path in layout.moving_name if (text := _text(_at(record, path)))), "")
    if not name:
        return None
    distances = photometry.numbers([_at(record, path) for path in layout.moving_distance])
    for distance in distances[np.isfinite(distances)].tolist():
        if 0 <= distance <= MOVING_ARCSEC:
            return SolarSystemMatch(
                distance, f"the known Solar System object {name[:40]!r} is {distance:.1f} arcsec away"
            )
    return None


def _flag(value: Any) -> Any:
    """Convert a flag that is a string, such as ``"3"`` or ``"true"``, to its value."""
    text = value.strip().lower() if isinstance(value, str) else None
    return value if text is None else {"true": True, "t": True}.get(text, _number(text))


def _text(value: Any) -> str:
    text = "" if value is None or isinstance(value, bool) else str(value).strip()
    return "" if text.lower() in NO_NAME else text


def _has_history(parts: Sequence[photometry.Photometry], mjd: float | None) -> bool:
    """Return whether at least two detections are too old to be caused by a moving object."""
    if mjd is None:
        return False
    earlier = [part.detected & photometry.usable(part) & (part.mjd < mjd - HISTORY_DAYS) for part in parts]
    return sum(int(np.count_nonzero(rows)) for rows in earlier) >= 2


class ArchiveAlert(NamedTuple):
    """Alert of an archive: survey, object, time (mid-exposure, MJD TAI), and all its rows."""

    survey: str
    object_id: str
    mjd: float | None
    parts: list[ObservationList]


def build_archive_alert(record: AlertRecord, plan: PacketPlan, limits: ReadLimits) -> ArchiveAlert:
    """Convert a record to rows as :func:`build_packet` does, with the same errors."""
    parts = observations(record, plan, limits)
    object_id = _first_id(record, plan.layout.object_id)
    return ArchiveAlert(plan.survey.name, object_id, _alert_time(record, parts), parts)


def _alert_time(record: AlertRecord, parts: Sequence[ObservationList]) -> float | None:
    """Return the mid-exposure time of the detection that caused the alert: the one outside lists, or the newest."""
    own = [part for part in parts if isinstance(record[part.path], dict)]
    for part in own or parts:
        times = part.rows.mjd[photometry.is_mjd(part.rows.mjd) & (part.rows.detected | bool(own))]
        if times.size:
            return float(times.max())
    return None


def observations(record: AlertRecord, plan: PacketPlan, limits: ReadLimits) -> list[ObservationList]:
    """Convert each non-empty list of observations, in the plan's order of preference.

    Raises
    ------
    PacketError
        ``too_many_observations``.
    """
    lists = [(place, _table(record.get(place.path))) for place in plan.rows]
    total = sum(len(rows) for _, rows in lists)
    if total > limits.max_observations:
        detail = f"{total} observations, more than {limits.max_observations}"
        raise PacketError(RejectReason.TOO_MANY_OBSERVATIONS, detail)
    parts = []
    for place, rows in lists:
        if len(rows):
            columns: dict[str, Sequence[Any]] = dict.fromkeys(place.required, [None] * len(rows))
            columns |= {role: rows.columns[name] for role, name in place.names.items()}
            converted = place.convert(columns, place.detections, plan.survey.filters)
            parts.append(ObservationList(place.path, converted, columns))
    if plan.layout.njy_per_unit is None:
        return parts
    unit = plan.layout.njy_per_unit([part.columns for part in parts])
    return [part._replace(rows=photometry.scaled(part.rows, unit)) for part in parts]


def _unknown_filters(parts: Sequence[ObservationList]) -> dict[str, int]:
    """Count the rows with an unknown filter, by the name of the filter."""
    counts: Counter[str] = Counter()
    for part in parts:
        if (part.rows.band < 0).any():
            for value, band in zip(part.columns["band"], part.rows.band.tolist(), strict=True):
                if band < 0:
                    name = "null" if value is None else str(value)[:MAX_FILTER_NAME]
                    nameable = _FILTER.fullmatch(name) and (name in counts or len(counts) < MAX_FILTER_NAMES)
                    counts[name if nameable else "other"] += 1
    return dict(counts)


def _dropped(rows: photometry.Photometry) -> dict[str, int]:
    """Count the rows of known filters that cannot be used, by reason."""
    unusable = ~photometry.usable(rows) & (rows.band >= 0)
    limit = unusable & (rows.flaw == photometry.Flaw.UPPER_LIMIT.value)  # ZTF packets have dozens
    counts = Counter(photometry.why_unusable(rows, index) for index in np.flatnonzero(unusable & ~limit).tolist())
    if limits := int(np.count_nonzero(limit)):
        counts["upper_limit"] = limits
    return dict(counts)


def _table(value: AlertRecord | ColumnTable | None) -> ColumnTable:
    """Return the observations in a field, which has a single one, a list of them, or null."""
    if isinstance(value, ColumnTable):
        return value
    return ColumnTable(0, {}) if value is None else ColumnTable(1, {name: [one] for name, one in value.items()})


def _metadata_of(record: AlertRecord, plan: PacketPlan) -> dict[str, float]:
    """Return the metadata and context values of the object."""
    source = record.get(plan.metadata_at) if plan.metadata_at else None
    metadata = {}
    if isinstance(source, dict):
        metadata = clean_metadata({name: _number(source.get(name)) for name in plan.metadata})
    if plan.context:
        values = {name: [_number(_at(record, path)) for path in paths] for name, paths in plan.context.items()}
        first = {name: next((value for value in each if value is not None), None) for name, each in values.items()}
        metadata = clean_metadata(first) | metadata
    return metadata


def _position_of(record: AlertRecord, plan: PacketPlan) -> tuple[float | None, float | None]:
    """Return right ascension and declination, degrees; None for both if the packet has no valid ones."""
    for path_ra, path_dec in plan.position:
        ra, dec = _number(_at(record, path_ra)), _number(_at(record, path_dec))
        if ra is not None and dec is not None and 0 <= ra <= 360 and abs(dec) <= 90:
            return float(ra), float(dec)
    return None, None


def _at(record: AlertRecord, path: FieldPath) -> Any:
    value: Any = record
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _number(value: Any) -> float | None:
    """Return a value as a number, None if it is not a number."""
    if value is None or isinstance(value, float | int):
        return value
    number = float(photometry.numbers([value if isinstance(value, str) else None])[0])
    return None if math.isnan(number) else number


def _first_id(record: AlertRecord, paths: Sequence[FieldPath]) -> str:
    """Return the first id that is set, as a string.

    Surveys and databases write 0, negative numbers, empty strings and ``null`` for missing ids. Floats are ignored,
    because they cannot represent 64-bit ids.
    """
    for path in paths:
        value = _at(record, path)
        if type(value) is int and 0 < value < 2**63:  # nearly every id
            return str(value)
        if isinstance(value, str | int) and not isinstance(value, bool) and (text := _text(value)):
            if text.lstrip("-0") == "" or (text[0] == "-" and text[1:].isdecimal()):
                continue
            if not _ID.fullmatch(text):
                raise PacketError(RejectReason.MALFORMED_AVRO, f"{'.'.join(path)} is not an identifier")
            return text
    return ""


def _schema_version(record: AlertRecord, plan: PacketPlan) -> str:
    if plan.version is not None:
        return plan.version
    stated = (_at(record, path) for path in plan.layout.version)
    text = next((value for value in stated if isinstance(value, str) and value), "")
    match = _VERSION.fullmatch(text)  # validated, because it becomes a metric label
    return match[1].replace("_", ".") if match else "unknown"


def _why_empty(parts: Sequence[photometry.Photometry]) -> str:
    total = sum(len(part) for part in parts)
    placed = sum(int(np.count_nonzero(photometry.has_band_and_time(part))) for part in parts)
    return (
        f"of {total} observations {total - placed} have no known band or no valid MJD, "
        f"and {placed} are withdrawn, upper limits, or lack a finite flux with a positive error"
    )


CONFLUENT_HEADER_BYTES: Final = 5
SNIFFED_BARE_SCHEMAS: Final = tuple(name for survey in SURVEYS for name in survey.bare)

TRACEBACK_FRAMES: Final = 20
"""Maximum number of frames of a traceback in the log."""

PacketOutcome = Packet | PacketError

log = logging.getLogger(__name__)


def sniff_bare(data: bytes, limits: ReadLimits) -> Packet | None:
    """Try the schemas of bare records; one matches if it consumes all bytes and gives a light curve."""
    for name in SNIFFED_BARE_SCHEMAS:
        try:
            packet = read_bare(data, 0, plans.for_name(name), limits)
        except PacketError:
            continue
        if packet.curve is not None:
            return packet
    return None


def rejection(error: Exception) -> PacketError:
    """Convert any exception of a reader to a PacketError. Internal errors are logged with a traceback."""
    if isinstance(error, PacketError):
        return error.as_outcome()
    if isinstance(error, RecursionError):
        return PacketError(RejectReason.UNSAFE_SCHEMA, "the packet is nested too deeply")
    if isinstance(error, TooCostly):
        return PacketError(RejectReason.TOO_COSTLY, str(error))
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}"
    trace = "".join(traceback.format_exception(error, limit=-TRACEBACK_FRAMES))
    log.error("a packet broke the reader: %s\n%s", where, trace)
    return PacketError(RejectReason.INTERNAL_ERROR, where)


def read_bare(data: bytes, start: int, plan: plans.DecodePlan, limits: ReadLimits) -> Packet:
    """Decode the record that extends from ``start`` to the end of ``data``. Raises PacketError."""
    if len(data) - start > limits.max_record_bytes:
        raise PacketError(RejectReason.RECORD_TOO_LARGE, f"more than {limits.max_record_bytes} bytes", plan.survey.name)
    try:
        record, end = plan.decoder.read(data, start)
        if end != len(data):
            raise _trailing(plan)
        return build_packet(record, plan, limits)
    except PacketError as error:
        raise _of_survey(error, plan) from None


def read_container(data: bytes, limits: ReadLimits, new: plans.NewSchemas | None = None) -> Iterator[PacketOutcome]:
    """Decode every record of a container. Errors before the first record are raised, later ones are yielded.

    Parameters
    ----------
    new : allowance of schemas that were not seen before.
    """
    allowance = Allowance(limits.max_seconds)
    header = containers.read_header(data)
    plan = plans.for_text(header.schema, new)
    room, empty = limits.max_records, True
    try:
        for block in containers.read_blocks(data, header, limits):
            allowance.check()  # blocks without records also cost time
            empty = empty and block.count == 0
            yield from _block(block, plan, room, limits, allowance)
            room -= block.count or bool(block.data)  # data without records gives one error
            if room < 0:
                raise PacketError(RejectReason.TOO_MANY_RECORDS, f"more than {limits.max_records} records")
        if empty:
            raise PacketError(RejectReason.NO_RECORDS, "the container holds no record")
    except PacketError as error:
        yield _of_survey(error.as_outcome(), plan)


def read_archive_alerts(data: bytes, limits: ReadLimits) -> Iterator[ArchiveAlert | PacketError]:
    """Yield the alerts of a container or JSON document as converted rows, or the error of each that is unreadable."""
    try:
        if not data:
            raise PacketError(RejectReason.EMPTY, "there are no bytes")
        if looks_like_json(data):
            for document in parse_documents(data, limits):
                yield document if isinstance(document, PacketError) else _archive_document(document, limits)
            return
        if not data.startswith(containers.MAGIC):
            raise PacketError(RejectReason.UNKNOWN_ENVELOPE, "neither an Avro container nor JSON")
        header = containers.read_header(data)
        plan, empty = plans.for_text(header.schema), True
        for block in containers.read_blocks(data, header, limits):
            empty = empty and not block.count
            yield from _archive_block(block, plan, limits)
        if empty:
            raise PacketError(RejectReason.NO_RECORDS, "the container holds no record")
    except Exception as error:  # other files can still be read
        yield rejection(error)


def _archive_document(document: dict[str, Any], limits: ReadLimits) -> ArchiveAlert | PacketError:
    try:
        return build_archive_alert(*read_document(document, limits), limits)
    except Exception as error:  # the other alerts of a list can still be read
        return rejection(error)


def _archive_block(
    block: containers.ContainerBlock, plan: plans.DecodePlan, limits: ReadLimits
) -> Iterator[ArchiveAlert | PacketError]:
    end = 0
    try:
        for _ in range(block.count):
            record, end = plan.decoder.read(block.data, end)
            yield build_archive_alert(record, plan, limits)
        if end != len(block.data):
            raise _trailing(plan)
    except PacketError as error:
        yield error.as_outcome()


def _block(
    block: containers.ContainerBlock, plan: plans.DecodePlan, room: int, limits: ReadLimits, allowance: Allowance
) -> Iterator[PacketOutcome]:
    """Yield the outcomes of at most ``room`` records of a block; stop at the first damaged one."""
    end = 0
    try:
        for _ in range(min(block.count, room)):
            allowance.check()
            record, end = plan.decoder.read(block.data, end)
            yield _build(record, plan, limits)
        if block.count <= room and end != len(block.data):
            raise _trailing(plan)
    except PacketError as error:
        yield _of_survey(error.as_outcome(), plan)


def _build(record: AlertRecord, plan: plans.DecodePlan, limits: ReadLimits) -> PacketOutcome:
    try:
        return build_packet(record, plan, limits)
    except Exception as error:  # the following records can still be read
        return _of_survey(rejection(error), plan)


def _of_survey(error: PacketError, plan: plans.DecodePlan) -> PacketError:
    error.survey = plan.survey.name
    return error


def _trailing(plan: plans.DecodePlan) -> PacketError:
    return PacketError(RejectReason.MALFORMED_AVRO, f"bytes are left after the {plan.decoder.schema.name} record")
