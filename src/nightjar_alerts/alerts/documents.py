"""JSON alerts with the fields of a survey's Avro packets.

There is no schema: fields are found by name, and a null or absent column means that there are no such values. ``NaN``
and ``Infinity``, which Python's ``json.dumps`` writes, are missing values. A list, or JSON Lines, contains several
alerts.

Two more formats are supported: values wrapped in an object with the type name, as in Avro's JSON encoding and MongoDB
(``{"double": 1.5}``, ``{"$numberLong": "7"}``), and observations as columns instead of rows (``{"jd": [...], ...}``).
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson

from nightjar_alerts.alerts import photometry, plans
from nightjar_alerts.alerts.decoder import ColumnTable
from nightjar_alerts.alerts.layouts import Observations, PacketLayout, Survey
from nightjar_alerts.alerts.layouts import Path as FieldPath
from nightjar_alerts.alerts.packet import PacketError, ReadLimits, RejectReason
from nightjar_alerts.alerts.plans import ObservationColumns, PacketPlan
from nightjar_alerts.models.limits import Allowance, TooCostly
from nightjar_alerts.models.metadata import METADATA_COLUMNS

Json = Any
Document = dict[str, Json]
_SCALARS: Final = (int, float, str)


MAX_CONTAINERS: Final = 400_000
MAX_VALUES: Final = 1_000_000
"""Maximum number of objects and lists, and of commas, in the text of a document. As Python objects they take up to 240
and 32 bytes each. The largest real alerts, of Rubin, have 3.7 MB as JSON, 2,200 objects and 250,000 commas."""
LIST_DOCUMENTS: Final = 2
"""Maximum size of a list of alerts, as a multiple of the maximum size of a single alert."""
HEAD_BYTES: Final = 512
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_DECODER: Final = json.JSONDecoder(parse_constant=lambda _: None)


def looks_like_json(data: bytes) -> bool:
    """Return whether bytes begin like a JSON object or list."""
    return data[:HEAD_BYTES].removeprefix(BOM_UTF8).lstrip()[:1] in (b"{", b"[")


def parse_documents(data: bytes, limits: ReadLimits) -> Iterator[Document | PacketError]:
    """Yield the JSON objects in ``data``: a single one, those of a list, or one per line; or an error for each.

    They are parsed one at a time to save memory.

    Raises
    ------
    PacketError
        During iteration, before the first element: ``malformed_json``, ``record_too_large``.
    """
    is_list, may_be_lines = data[:HEAD_BYTES].removeprefix(BOM_UTF8).lstrip()[:1] == b"[", b"\n{" in data
    factor = LIST_DOCUMENTS if is_list or may_be_lines else 1
    if len(data) > factor * limits.max_document_bytes:
        raise PacketError(
            RejectReason.RECORD_TOO_LARGE, f"JSON of more than {factor * limits.max_document_bytes} bytes"
        )
    if data.count(b"{") + data.count(b"[") > MAX_CONTAINERS or data.count(b",") > factor * MAX_VALUES:
        detail = f"JSON with more than {MAX_CONTAINERS} objects and lists, or {factor * MAX_VALUES} commas"
        raise PacketError(RejectReason.RECORD_TOO_LARGE, detail)
    if is_list:
        yield from _elements(data, limits)
        return
    try:
        document = _parse(data)
    except PacketError:
        if not may_be_lines:
            raise
        yield from _lines(data, limits)
        return
    if not isinstance(document, dict):
        raise _malformed("the document is neither an object nor a list of objects")
    yield document


def _lines(data: bytes, limits: ReadLimits) -> Iterator[Document | PacketError]:
    """Yield the document in each non-blank line."""
    allowance, count = Allowance(limits.max_seconds), 0
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        if count == limits.max_records:
            yield PacketError(RejectReason.TOO_MANY_RECORDS, f"more than {limits.max_records} alerts")
            return
        count += 1
        try:
            allowance.check()
            yield _checked(_parse(line), f"line {number}", len(line), limits)
        except TooCostly as error:
            yield PacketError(RejectReason.TOO_COSTLY, str(error))
            return
        except PacketError as error:
            yield _malformed(f"line {number}: {error}")


def _elements(data: bytes, limits: ReadLimits) -> Iterator[Document | PacketError]:
    """Yield the elements of a list; stop at the first one that is not valid JSON."""
    try:
        text = data.decode("utf-8-sig")
    except ValueError:
        raise _malformed("the bytes are not one JSON document: they are not UTF-8") from None
    at, count, allowance = _skip(text, text.index("[") + 1), 0, Allowance(limits.max_seconds)
    closed = text[at : at + 1] == "]"
    if closed:
        raise PacketError(RejectReason.NO_RECORDS, "the list holds no alert")
    while not closed:
        if count == limits.max_records:
            yield PacketError(RejectReason.TOO_MANY_RECORDS, f"more than {limits.max_records} alerts")
            return
        try:
            allowance.check()
            document, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError, TooCostly) as error:
            failure = _element_error(count, at, error)
            if not count:
                raise failure from None
            yield failure
            return
        yield _checked(document, f"element {count} of the list", end - at, limits)
        at, count = _skip(text, end), count + 1
        closed = text[at : at + 1] == "]"
        if not closed and text[at : at + 1] != ",":
            yield _malformed(f"no comma or bracket follows element {count - 1} of the list, at character {at}")
            return
        at = _skip(text, at + 1)
    if at < len(text):
        yield _malformed(f"text is left after the list, at character {at}")


def _checked(document: Json, name: str, length: int, limits: ReadLimits) -> Document | PacketError:
    if length > limits.max_document_bytes:
        detail = f"{name} has more than {limits.max_document_bytes} characters"
        return PacketError(RejectReason.RECORD_TOO_LARGE, detail)
    return document if isinstance(document, dict) else _malformed(f"{name} is not an object")


def _element_error(number: int, at: int, error: Exception) -> PacketError:
    if isinstance(error, RecursionError):
        return _malformed(f"element {number} of the list is nested too deeply")
    if isinstance(error, TooCostly):
        return PacketError(RejectReason.TOO_COSTLY, str(error))
    return _malformed(f"element {number} of the list, at character {at}, is not JSON: {error}")


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _malformed(detail: str) -> PacketError:
    return PacketError(RejectReason.MALFORMED_JSON, detail)


def read_document(document: Document, limits: ReadLimits) -> tuple[Document, PacketPlan]:
    """Return the values of one alert for :func:`alerts.reader.build_packet`, and their plan.

    Raises
    ------
    PacketError
        ``unknown_schema`` or ``too_many_observations``.
    """
    if any(map(_is_tagged, _inner_values(document))):
        document = _untagged(document)
    if isinstance(document.get("alert"), dict):  # Lasair's filter streams have the alert next to the chosen columns
        document = {**document, **document["alert"]}
    survey, layout, version = _find_layout(document)
    rows, total = [], 0
    for place in layout.observations:
        if isinstance(value := document.get(place.path), dict) and (columns := _columns(value, place)):
            document = {**document, place.path: _rows_of_columns(columns, limits.max_observations - total)}
        observations = _rows(document, place)
        total += len(observations)
        if total > limits.max_observations:
            detail = f"more than {limits.max_observations} observations"
            raise PacketError(RejectReason.TOO_MANY_OBSERVATIONS, detail, survey.name)
        names = _names(observations, place)
        if place.path == layout.newest_of and observations:
            document = {**document, "newest": _newest(observations, place.required["time"])}
        if names:
            document[place.path] = _table(document[place.path], observations, names)
            rows.append(ObservationColumns(place.path, place.detections, names, tuple(place.required), place.convert))
    if total and not rows:
        aliases = sorted({alias for place in layout.observations for alias in place.required["flux"]})
        detail = f"it has observations of {survey.title} without any {' or '.join(aliases)}"
        raise PacketError(
            RejectReason.UNKNOWN_SCHEMA, f"the JSON document is of no known survey: {detail}", survey.name
        )
    return document, _plan(survey, layout, version, tuple(rows))


def is_alert(document: Json) -> bool:
    """Return whether a JSON document has the fields by which an alert of a known survey is recognised."""
    if not isinstance(document, dict):
        return False
    document = _untagged(document) if any(map(_is_tagged, _inner_values(document))) else document
    try:
        _find_layout({**document, **document["alert"]} if isinstance(document.get("alert"), dict) else document)
    except PacketError:
        return False
    return True


def _find_layout(document: Document) -> tuple[Survey, PacketLayout, str | None]:
    """Find the layout whose marks have values, or else one whose marks are present and that has observations."""
    what = "the JSON document"
    try:
        return plans.find_layout(lambda path: _holds(document, path), what)
    except PacketError:
        found = plans.find_layout(lambda path: _holds(document, path, null=True), what)
        if not any(document.get(place.path) for place in found[1].observations):
            raise
        return found


def _plan(
    survey: Survey, layout: PacketLayout, version: str | None, rows: tuple[ObservationColumns, ...]
) -> PacketPlan:
    metadata = METADATA_COLUMNS if layout.metadata else ()
    return PacketPlan(survey, layout, version, rows, layout.metadata, metadata, layout.context, layout.position)


def _parse(data: bytes) -> Json:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        try:
            return json.loads(data.decode("utf-8-sig"), parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            raise _malformed(f"the bytes are not one JSON document: {error.msg} at character {error.pos}") from None


def _holds(document: Json, path: FieldPath, null: bool = False) -> bool:
    value: Json = document
    for name in path:
        if isinstance(value, list):  # a list of observations has the fields of any of its rows
            value = next((row for row in value if isinstance(row, dict) and name in row), None)
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    return null or value is not None


def _rows(document: Document, place: Observations) -> list[Document]:
    """Return the observations in a field as a list without nulls; the field may have a single one, a list, or null."""
    value = document.get(place.path)
    if value is None:
        return []
    rows = [row for row in value if row is not None] if isinstance(value, list) else [value]
    if not all(isinstance(row, dict) for row in rows):
        raise PacketError(RejectReason.UNKNOWN_SCHEMA, f"{place.path} is neither an object nor a list of objects")
    return rows


_TYPES: Final = frozenset({"boolean", "int", "long", "float", "double", "string", "bytes", "array", "map"})


def _inner_values(document: Document) -> Iterator[Json]:
    for value in document.values():
        yield value
        if isinstance(value, dict):
            yield from value.values()


def _is_tagged(value: Json) -> bool:
    """Return whether a value is wrapped in an object with the type name as the only key; record names have dots."""
    if not isinstance(value, dict) or len(value) != 1:
        return False
    (name,) = value
    return name in _TYPES or "." in name or name.startswith("$number")


def _untagged(value: Json) -> Json:
    while _is_tagged(value):
        (value,) = value.values()
    if isinstance(value, dict):
        return {name: _untagged(inner) for name, inner in value.items()}
    return [_untagged(inner) for inner in value] if isinstance(value, list) else value


def _columns(value: Document, place: Observations) -> dict[str, list[Json]]:
    """Return the columns of observations in columnar form: lists, or objects keyed by row number, as in pandas."""
    times = [value[alias] for alias in place.required["time"] if alias in value]
    if not times or not isinstance(times[0], list | dict):
        return {}
    aliases = {alias for names in (*place.required.values(), *place.optional.values()) for alias in names}
    columns = {name: value[name] for name in aliases if name in value}
    return {
        name: list(column.values()) if isinstance(column, dict) else column
        for name, column in columns.items()
        if isinstance(column, list | dict)
    }


def _rows_of_columns(columns: Mapping[str, list[Json]], limit: int) -> list[Document]:
    count = min(limit + 1, max(map(len, columns.values())))
    return [{name: column[row] for name, column in columns.items() if row < len(column)} for row in range(count)]


def _newest(rows: Sequence[Document], time: Sequence[str]) -> Document:
    times = photometry.numbers([next((row[name] for name in time if row.get(name) is not None), None) for row in rows])
    return rows[int(np.argmax(np.nan_to_num(times, nan=-np.inf)))]


def _names(rows: Sequence[Document], place: Observations) -> dict[str, str]:
    """Map each role to its first alias with a value, or else to the first one that is present."""
    names = {}
    for role, aliases in {**place.required, **place.optional}.items():
        present = [alias for alias in aliases if any(alias in row for row in rows)]
        with_value = [alias for alias in present if any(row.get(alias) is not None for row in rows)]
        if present:
            names[role] = (with_value or present)[0]
    return names


def _table(value: Json, rows: Sequence[Document], names: Mapping[str, str]) -> Document | ColumnTable:
    columns = {name: [_scalar(row.get(name)) for row in rows] for name in dict.fromkeys(names.values())}
    if isinstance(value, list):
        return ColumnTable(len(rows), columns)
    return {**value, **{name: column[0] for name, column in columns.items()}}


def _scalar(value: Json) -> Json:
    return value if isinstance(value, _SCALARS) else None
