"""Tables in JSON: JSON Lines, read a portion at a time, and documents, which are held as a whole."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import orjson

from nightjar_alerts.tables.columns import Batch, column_of
from nightjar_alerts.tables.options import TableError
from nightjar_alerts.tables.streams import Problems, Stream

BATCH_ROWS: Final = 16_384
BATCH_LINES: Final = 256
"""Lines that hold whole light curves."""


class JsonLinesSource:
    """JSON Lines: a point, a light curve or a document on each line."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.name, self.stem = stream.name, stream.stem
        self.problems = Problems()
        self.units: Mapping[str, str] = {}
        first = next(self.batches(), None)
        if first is None:
            example = f" ({self.problems.examples[0]})" if self.problems.examples else ""
            raise TableError(f"{self.name} holds no JSON objects{example}")
        self.header = tuple(first)

    @property
    def progress(self) -> float:
        """Fraction that the last pass has read."""
        return self._stream.progress

    def batches(self, names: Sequence[str] | None = None) -> Iterator[Batch]:
        """Yield the named columns, or all."""
        self.problems = Problems()
        with self._stream.lines() as lines:
            rows = self._objects(lines)
            first = list(islice(rows, 1))
            size = (
                BATCH_LINES if any(isinstance(value, list) for row in first for value in row.values()) else BATCH_ROWS
            )
            while portion := first + list(islice(rows, size - len(first))):
                yield columns_of(portion, names)
                first = []

    def _objects(self, lines: Iterator[str]) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                document = loads(line)
            except ValueError as error:
                self.problems.add("no valid JSON", f"{self.name}, line {number} ({error})")
                continue
            if isinstance(document, dict):
                yield from rows_of(document)
            else:
                self.problems.add("no JSON object", f"{self.name}, line {number}")


def loads(text: str | bytes) -> Any:
    """Parse JSON, also with NaN and Infinity. Raises ValueError."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise error from None


def rows_of(document: Any) -> list[dict[str, Any]]:
    """Return the objects of a document as flat rows. Raises TableError."""
    if isinstance(document, list):
        return [_flat(row) for row in document if isinstance(row, dict)]
    if not isinstance(document, dict):
        raise TableError("the JSON document is neither an object nor a list of objects")
    for key in ("light_curves", "lightcurves", "objects", "results", "rows", "data"):
        if isinstance(rows := document.get(key), list) and rows and isinstance(rows[0], dict):
            return [_flat(row) for row in rows if isinstance(row, dict)]
    if isinstance(names := document.get("columns"), list) and isinstance(rows := document.get("data"), list):
        return [dict(zip(map(str, names), row, strict=False)) for row in rows if isinstance(row, list)]
    values = list(document.values())
    if values and all(isinstance(value, dict) for value in values):
        if all(any(isinstance(inner, list) for inner in value.values()) for value in values):
            return [_flat({"name": name, **value}) for name, value in document.items()]
        keys = list(values[0])
        if all(list(value) == keys for value in values):  # columns of a pandas data frame
            return [{name: column[key] for name, column in document.items()} for key in keys]
    ids = [name for name in document if re.fullmatch(r"(?i)object_?id|oid|snid|id|name", name)]
    if ids and isinstance(document[ids[0]], list):
        columns = {name: value for name, value in document.items() if isinstance(value, list)}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=False)]
    return [_flat(document)]


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a row whose objects have become dotted names, and lists of objects several lists."""
    row = _with_limits(row)
    flat: dict[str, Any] = {}
    for key, value in row.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            if value.keys() & {"name", "id"} and len(value) <= 3:  # a coded value, such as a filter of the TNS
                flat[name] = value.get("name", value.get("id"))
            else:
                flat |= _flat(value, f"{name}.")
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            points = [_flat(item) for item in value]
            for inner in dict.fromkeys(inner for point in points for inner in point):
                flat[f"{name}.{inner}"] = [point.get(inner) for point in points]
        else:
            flat[name] = value
    return flat


def _with_limits(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row whose detections and non-detections, as ALeRCE sends them, are one list."""
    detections, limits = row.get("detections"), row.get("non_detections")
    if not isinstance(detections, list) or not isinstance(limits, list):
        return row
    rest = {key: value for key, value in row.items() if key not in ("detections", "non_detections")}
    return {**rest, "detections": [*detections, *limits]}


def columns_of(rows: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None) -> Batch:
    """Return rows as columns; a name that no row has is a column of missing values."""
    keys = dict.fromkeys(str(key) for row in rows for key in row) if names is None else names
    return {key: column_of([row.get(key) for row in rows]) for key in keys}
