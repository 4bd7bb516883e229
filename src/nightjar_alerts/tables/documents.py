"""Tables in JSON: JSON Lines, read a portion at a time, and documents, which are held as a whole.

Rows need not have the same keys: time and memory grow with the bytes, since columns are only built for the first rows
and for the names that are asked for. Objects are nested :data:`MAX_DEPTH` deep at most.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Final

import orjson

from nightjar_alerts.tables.bounds import MAX_DEPTH, Bounds, TableTooLarge
from nightjar_alerts.tables.columns import TableColumns, column_of
from nightjar_alerts.tables.options import TableError
from nightjar_alerts.tables.streams import Problems, Stream
from nightjar_alerts.tables.vocabulary import RANKS, last_part, plain

BATCH_ROWS: Final = 16_384
BATCH_CURVES: Final = 256
"""Rows that hold whole light curves."""
BATCH_CELLS: Final = 1 << 20
MAX_PREFIX: Final = 100
"""Characters of the name of an object, which the names of all its members repeat."""
PORTION_BYTES: Final = 4 << 20
SPARSENESS: Final = 16
"""Maximum number of cells of the columns of a list of objects for each value in it."""
JSON_COSTS: Final = {b"{": 232, b"[": 64, b",": 40}
"""Bytes of memory of a parsed document for each of these characters."""
JSON_BYTES: Final = 16
"""Maximum memory of a parsed document, as a multiple of the largest size of a document."""


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

    def batches(self, names: Sequence[str] | None = None) -> Iterator[TableColumns]:
        """Yield the named columns, or all."""
        self.problems = Problems()
        with self._stream.lines() as lines:
            rows, keys, start = list[dict[str, Any]](), dict[str, None](), 0
            for row in self._objects(lines):
                rows.append(row)
                if names is None:
                    keys.update(dict.fromkeys(row))
                if _is_full(rows, keys) or lines.taken - start > PORTION_BYTES:
                    yield self._columns(rows, names, keys)
                    rows, start = [], lines.taken
            if rows:
                yield self._columns(rows, names, keys)

    def _columns(
        self, rows: Sequence[Mapping[str, Any]], names: Sequence[str] | None, keys: Mapping[str, None]
    ) -> TableColumns:
        self._stream.bounds.check_names(list(keys), self.name)
        return columns_of(rows, list(keys) if names is None else names)

    def _objects(self, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                document = loads(line)
                if isinstance(document, dict):
                    yield from rows_of(document)
                else:
                    self.problems.add("no JSON object", f"{self.name}, line {number}")
            except TableError as error:
                self.problems.add(str(error), f"{self.name}, line {number}")
            except ValueError as error:
                self.problems.add("no valid JSON", f"{self.name}, line {number} ({error})")


class DocumentSource:
    """A JSON document.

    Raises
    ------
    ValueError
        For what is no JSON.
    TableError
        For JSON that is no table; TableTooLarge beyond the bounds.
    """

    def __init__(self, stream: Stream) -> None:
        self.name, self.stem = stream.name, stream.stem
        self.problems = Problems()
        self.units: Mapping[str, str] = {}
        self.progress = 0.0
        data = stream.read(stream.bounds.held_bytes)
        _check_cost(data, self.name, stream.bounds)
        stream.pause()
        document = loads(data)
        stream.pause()
        self._rows = rows_of(document)
        stream.pause()
        self.header = tuple(dict.fromkeys(key for row in self._rows for key in row))
        stream.bounds.check_names(self.header, self.name)

    def batches(self, names: Sequence[str] | None = None) -> Iterator[TableColumns]:
        """Yield the named columns, or all."""
        self.progress = 0.0
        wanted = self.header if names is None else names
        rows = list[Mapping[str, Any]]()
        for number, row in enumerate(self._rows, 1):
            rows.append(row)
            if _is_full(rows, wanted) or number == len(self._rows):
                self.progress = number / len(self._rows) if number < len(self._rows) else self.progress
                yield columns_of(rows, wanted)
                rows = []
        self.progress = 1.0


def _is_full(rows: Sequence[Mapping[str, Any]], keys: Sized) -> bool:
    """Return True if rows, the first of which tells whether they hold lists, make up a batch."""
    if len(rows) < BATCH_CURVES and len(rows) * len(keys) < BATCH_CELLS:
        return False
    if len(rows) >= BATCH_ROWS or len(rows) * len(keys) >= BATCH_CELLS:
        return True
    return any(isinstance(value, list) for value in rows[0].values())


def _check_cost(data: bytes, name: str, bounds: Bounds) -> None:
    """Raise TableTooLarge for a document that takes much more memory than its size, as empty lists do."""
    if sum(data.count(mark) * cost for mark, cost in JSON_COSTS.items()) > JSON_BYTES * bounds.held_bytes:
        raise TableTooLarge(f"{name} has too many objects and lists for its size", bounds)


_KEY: Final = re.compile(rb'"([^"\\]{1,64})"\s*:')


def names_light_curves(text: bytes) -> bool:
    """Return whether JSON has keys for the time and the brightness of observations, at any depth."""
    keys = {plain(last_part(key.decode("utf-8", "replace"))) for key in set(_KEY.findall(text))}
    return bool(keys & RANKS["time"].keys()) and bool(keys & (RANKS["mag"].keys() | RANKS["flux"].keys()))


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
    names, rows = document.get("columns"), document.get("data")
    if isinstance(names, list) and isinstance(rows, list) and all(isinstance(each, str | int) for each in names):
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


def _flat(row: dict[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Return a row whose objects have become dotted names, and lists of objects several lists. Raises TableError."""
    if not prefix and not any(isinstance(value, dict | list) for value in row.values()):
        return row
    if depth > MAX_DEPTH:
        raise TableError(f"its objects are nested more than {MAX_DEPTH} deep")
    flat: dict[str, Any] = {}
    for key, value in _with_limits(row).items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            if value.keys() & {"name", "id"} and len(value) <= 3:  # a coded value, such as a filter of the TNS
                flat[name] = value.get("name", value.get("id"))
            else:
                flat |= _flat(value, _prefix(name), depth + 1)
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            points = [_flat(item, "", depth + 1) for item in value]
            inner_names = dict.fromkeys(inner for point in points for inner in point)
            if len(inner_names) * len(points) > SPARSENESS * sum(map(len, points)) + BATCH_CURVES:
                raise TableError(f"the objects of a list ({name[:40]!r}) have different keys")
            for inner in inner_names:
                flat[f"{_prefix(name)}{inner}"] = [_single(point.get(inner)) for point in points]
        else:
            flat[name] = value
    return flat


def _single(value: Any) -> Any:
    """Return the value of a point, which is missing if it is a list."""
    return None if isinstance(value, list) else value


def _prefix(name: str) -> str:
    """Return the beginning of the names of the members of an object, which each of them repeats."""
    if len(name) > MAX_PREFIX:
        raise TableError(f"the name of an object has more than {MAX_PREFIX} characters: {name[:40]!r}...")
    return f"{name}."


def _with_limits(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose detections and non-detections, as ALeRCE sends them, are one list."""
    detections, limits = row.get("detections"), row.get("non_detections")
    if not isinstance(detections, list) or not isinstance(limits, list):
        return row
    rest = {key: value for key, value in row.items() if key not in ("detections", "non_detections")}
    return {**rest, "detections": [*detections, *limits]}


def columns_of(rows: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None) -> TableColumns:
    """Return rows as columns; a name that no row has is a column of missing values."""
    keys = dict.fromkeys(str(key) for row in rows for key in row) if names is None else names
    return {key: column_of([row.get(key) for row in rows]) for key in keys}
