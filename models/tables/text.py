"""Tables as text, read with the standard library: CSV and its relatives, photometry files, JSON and JSON Lines.

Notable:

- the delimiter (comma, tab, semicolon, bar or white space), comment lines and the line of names are found from the
  first lines; names may stand in the last comment, as in ``# MJD mag err``, or be missing;
- IPAC tables (columns between bars) and SNANA's text files (``VARLIST:``, ``OBS:``) are read as well;
- a row with another number of fields is left out, counted and named by its line;
- memory holds :data:`BATCH_ROWS` rows. A JSON document (not JSON Lines) is held as a whole.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import shutil
import tempfile
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import orjson

from nightjar_alerts.models.tables.columns import Array, Batch, Column, Lists, object_column
from nightjar_alerts.models.tables.options import TableError

BATCH_ROWS: Final = 16_384
BATCH_LINES_OF_JSON: Final = 256
SAMPLE_BYTES: Final = 1 << 18
SAMPLE_CHARACTERS: Final = 1 << 16
MAX_LINE: Final = 64 << 20
"""Characters of a line that holds a whole light curve."""
MOST_EXAMPLES: Final = 5
SPOOLED_BYTES: Final = 64 << 20
_SEPARATORS: Final = (",", "\t", ";", "|", "")
_DECIMAL_COMMA: Final = re.compile(r"(?<![^;\"\s])([<>]?\s*[-+]?\d*),(?=\d+(?:[eE][-+]?\d+)?\"?\s*(?:;|$))")
"""Decimal comma of a number between semicolons, as spreadsheets write it in many countries."""
_DECIMAL_POINT: Final = re.compile(r"(?:^|;)\s*[-+]?\d*\.\d+\s*(?=;|$)")


class Problems:
    """Counts of malformed rows by reason, with the first few places."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: list[str] = []

    def add(self, reason: str, where: str) -> None:
        """Count one row."""
        self.counts[reason] += 1
        if len(self.examples) < MOST_EXAMPLES:
            self.examples.append(f"{where}: {reason}")


class Stream:
    """A file that is read several times from its beginning, and how far the reading has come.

    Parameters
    ----------
    name : for messages. stem : the name without folder and suffixes.
    content : path of the file, its bytes, or a binary file that can seek.
    """

    def __init__(self, name: str, stem: str, content: Path | bytes | IO[bytes]) -> None:
        self.name, self.stem, self.content = name, stem, content
        self.size = _size_of(content)
        self._bytes_read = 0
        self._raw: IO[bytes] = io.BytesIO()

    @property
    def progress(self) -> float:
        """Fraction of the bytes that the last pass has read."""
        return min(1.0, self._bytes_read / self.size) if self.size else 1.0

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the content, decompressed. Raises TableError."""
        with self._opened() as (content, _):
            yield content

    @contextmanager
    def _opened(self) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        """Open the content; returns the file with its decompressed bytes, and the one with those that are stored."""
        try:
            with ExitStack() as stack:
                if isinstance(self.content, Path):
                    raw: IO[bytes] = stack.enter_context(self.content.open("rb"))
                elif isinstance(self.content, bytes):
                    raw = io.BytesIO(self.content)
                else:
                    raw = self.content
                    raw.seek(0)
                start = raw.read(6)
                raw.seek(0)
                opener = next((opener for magic, opener in _COMPRESSIONS.items() if start.startswith(magic)), None)
                yield (raw if opener is None else stack.enter_context(opener(raw))), raw
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise TableError(f"{self.name} cannot be read: {error}") from error

    def head(self) -> bytes:
        """Return the first bytes."""
        with self.open() as content:
            return content.read(SAMPLE_BYTES)

    @contextmanager
    def lines(self) -> Iterator[Iterator[str]]:
        """Open the content as lines of text; bytes that are no UTF-8 are replaced."""
        self._bytes_read = 0
        encoding = "utf-16" if self.head()[:2] in _UTF16_MARKS else "utf-8-sig"
        with self._opened() as (content, raw):
            self._raw = raw
            text = io.TextIOWrapper(content, encoding, "replace", newline="")
            try:
                yield text
            finally:
                text.detach()

    def advance(self) -> None:
        """Note how far the reading of the lines has come."""
        self._bytes_read = self._raw.tell()

    def finish(self) -> None:
        """Note that all has been read."""
        self._bytes_read = self.size


BOM: Final = b"\xef\xbb\xbf"
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_COMPRESSIONS: Final[Mapping[bytes, Callable[[IO[bytes]], Any]]] = {
    b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
"""Compressed files by their first bytes."""


def _size_of(content: Path | bytes | IO[bytes]) -> int:
    if isinstance(content, Path):
        return content.stat().st_size
    return len(content) if isinstance(content, bytes) else content.seek(0, io.SEEK_END)


def stream_of(name: str, stem: str, file: IO[bytes]) -> Stream:
    """Copy a file that can be read once, such as standard input, to memory or, where it is large, to disk."""
    copy: IO[bytes] = tempfile.SpooledTemporaryFile(SPOOLED_BYTES)  # noqa: SIM115  # it lives as long as the stream
    shutil.copyfileobj(file, copy)
    stream = Stream(name, stem, copy)
    weakref.finalize(stream, copy.close)
    return stream


@dataclass(frozen=True)
class _Form:
    """How the lines of a text table are laid out.

    ``separator`` is empty for white space; ``edges`` are the columns of characters of an IPAC table, ``skip`` the lines
    before the first row, and ``prefix`` the word in front of every row of a SNANA file.
    """

    names: tuple[str, ...]
    separator: str = ","
    skip: int = 0
    edges: tuple[int, ...] = ()
    prefix: str = ""
    units: Mapping[str, str] | None = None
    constants: Mapping[str, str] | None = None
    has_header: bool = True
    decimal_comma: bool = False


class TextSource:
    """CSV, white-space and IPAC tables, SNANA's text files."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.name, self.stem = stream.name, stream.stem
        self.problems = Problems()
        head = stream.head()
        utf16 = head[:2] in _UTF16_MARKS
        lines = (
            head.removeprefix(BOM).decode("utf-16" if utf16 else "utf-8", "replace")[:SAMPLE_CHARACTERS].splitlines()
        )
        if len(lines) > 1 and len(head) > SAMPLE_CHARACTERS:
            lines.pop()  # which may be cut
        if b"\x00" in head[:64] and not utf16:
            raise TableError(f"{self.name} is not text: name its format with the option format")
        self._form = _form_of(lines, self.name)
        self.header = (*self._form.names, *(self._form.constants or {}))
        self.units: Mapping[str, str] = self._form.units or _units_in(self.header)
        self.has_header = self._form.has_header

    @property
    def progress(self) -> float:
        """Fraction that the last pass has read."""
        return self._stream.progress

    def batches(self, names: Sequence[str] | None = None) -> Iterator[Batch]:
        """Yield the named columns, or all, as arrays of text, :data:`BATCH_ROWS` rows at a time."""
        self.problems = Problems()
        form = self._form
        wanted = [name for name in form.names if names is None or name in names]
        places = [form.names.index(name) for name in wanted]
        constants = {name: text for name, text in (form.constants or {}).items() if names is None or name in names}
        with self._stream.lines() as lines:
            for portion in self._portions(islice(lines, form.skip, None)):
                self._stream.advance()
                if not portion:
                    continue
                columns = list(zip(*portion, strict=True))
                batch: Batch = {
                    name: _lists_in(object_column(columns[place])) for name, place in zip(wanted, places, strict=True)
                }
                batch |= {name: np.full(len(portion), text, np.object_) for name, text in constants.items()}
                yield batch
        self._stream.finish()

    def _portions(self, lines: Iterator[str]) -> Iterator[list[list[str]]]:
        """Yield rows of the right width, about :data:`BATCH_ROWS` at a time."""
        form = self._form
        if form.decimal_comma:
            lines = map(_with_decimal_points, lines)
        if form.separator and not form.edges:
            yield from self._portions_of_csv(csv.reader(lines, delimiter=form.separator, skipinitialspace=True))
            return
        spans = list(zip(form.edges, form.edges[1:], strict=False))
        number = form.skip
        while portion := list(islice(lines, BATCH_ROWS)):
            if spans:
                rows = [[line[start:end].strip() for start, end in spans] for line in portion]
            else:
                rows = [line.split() for line in portion]
            if form.prefix:
                rows = [row[1:] if row and row[0] == form.prefix else [] for row in rows]
            yield self._checked(rows, number)
            number += len(portion)

    def _portions_of_csv(self, reader: Any) -> Iterator[list[list[str]]]:
        is_done = False
        while not is_done:
            rows: list[list[str]] = []
            number = self._form.skip + reader.line_num
            try:
                rows.extend(islice(reader, BATCH_ROWS))
                is_done = not rows
            except csv.Error as error:  # the rows before it have been read
                self.problems.add(str(error), f"{self.name}, line {self._form.skip + reader.line_num}")
            yield self._checked(rows, number)

    def _checked(self, rows: list[list[str]], number: int) -> list[list[str]]:
        """Leave out comments, empty rows and, counted, rows of another width; ``number`` lines stand before them."""
        width = len(self._form.names)
        if all(len(row) == width and not row[0].startswith("#") for row in rows):
            return rows
        good = []
        for place, row in enumerate(rows, number + 1):
            if not any(text and not text.isspace() for text in row) or row[0].startswith("#"):
                continue
            if len(row) == width:
                good.append(row)
            elif len(row) > width and not any(row[width:]):
                good.append(row[:width])
            else:
                self.problems.add(f"{len(row)} fields instead of {width}", f"{self.name}, line {place}")
        return good


csv.field_size_limit(MAX_LINE)


def _lists_in(column: Array) -> Column:
    """Return a column whose texts are lists (``[1.0, 2.0]``) as lists."""
    if not all(text.startswith(("[", "(")) and text.endswith(("]", ")")) for text in column[:3]):
        return column
    rows = [[item.strip("'\"") for item in re.split(r"[,\s]+", text.strip("[]() \n")) if item] for text in column]
    return lists_of(rows)


def lists_of(rows: Sequence[Sequence[Any] | None]) -> Lists:
    """Return rows of lists as one column; None is an empty list."""
    lengths = [0 if row is None else len(row) for row in rows]
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    present = [row for row in rows if row is not None and len(row)]
    if present and all(isinstance(row, np.ndarray) and row.dtype.kind in "fiub" for row in present):
        return Lists(offsets, np.concatenate(present))
    values = [value for row in present for value in row]
    if all(isinstance(value, float | int) and not isinstance(value, bool) for value in values):
        with_float = np.array(values, np.float64 if any(isinstance(value, float) for value in values) else None)
        return Lists(offsets, with_float if values else np.zeros(0))
    return Lists(offsets, object_column(values))


def _units_in(names: Sequence[str]) -> dict[str, str]:
    """Return the units that stand in brackets behind names."""
    found = {name: re.search(r"[\[(]([^\])]+)[\])]\s*$", name) for name in names}
    return {name: match[1] for name, match in found.items() if match}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_value(text: str) -> bool:
    """Return True for what a row of data has and a line of names has not."""
    bare = text.strip().lstrip("<>")
    return (
        bare[:1] in ("[", "(")
        or (_is_number(bare) and bare.lower() not in ("nan", "inf", "infinity"))
        or bool(re.match(r"\d{4}[-/]\d{1,2}[-/]\d", bare))
    )


def _split(line: str, separator: str) -> list[str]:
    if not separator:
        return line.split()
    try:
        return [text.strip() for text in next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])]
    except csv.Error:
        return line.split(separator)


def _form_of(lines: Sequence[str], name: str) -> _Form:
    """Find the layout of a text table from its first lines. Raises TableError."""
    if not any(line.strip() for line in lines):
        raise TableError(f"{name} is empty")
    if (snana := _snana(lines)) is not None:
        return snana
    if (ipac := _ipac(lines)) is not None:
        return ipac
    content = [
        (place, line) for place, line in enumerate(lines) if line.strip() and not line.lstrip().startswith(("#", "\\"))
    ]
    if not content:
        raise TableError(f"{name} is empty: it has no rows")
    sample = [line for _, line in content[-60:]]
    if decimal_comma := _has_decimal_commas(sample):
        content = [(place, _with_decimal_points(line)) for place, line in content]
        sample = list(map(_with_decimal_points, sample))
    separator, width = _separator(sample, name, (";",) if decimal_comma else _SEPARATORS)
    return replace(_with_names(lines, content, separator, width), decimal_comma=decimal_comma)


def _has_decimal_commas(lines: Sequence[str]) -> bool:
    """Return True if semicolons separate the fields, and numbers have a comma instead of a point."""
    rows = [line for line in lines if _DECIMAL_COMMA.search(line)]
    return (
        2 * len(rows) >= len(lines)
        and all(";" in line for line in lines)
        and not any(_DECIMAL_POINT.search(line) for line in lines)
    )


def _with_decimal_points(line: str) -> str:
    return _DECIMAL_COMMA.sub(r"\1.", line)


def _separator(lines: Sequence[str], name: str, separators: Sequence[str]) -> tuple[str, int]:
    """Return the separator of the rows and the number of their fields."""
    best: tuple[float, str, int] = (0.0, "", 0)
    for separator in separators:
        widths = Counter(len(_split(line, separator)) for line in lines)
        width, count = max(widths.items(), key=lambda item: (item[1], item[0]))
        share = count / len(lines)
        if width > 1 and share > best[0] + 0.2:
            best = (share, separator, width)
    if not best[2]:
        raise TableError(f"{name} is not a table: its lines have no columns that a comma, tab or space would separate")
    return best[1], best[2]


def _with_names(lines: Sequence[str], content: Sequence[tuple[int, str]], separator: str, width: int) -> _Form:
    """Return the layout with the names in the line, or the comment, before the first row, if there are any."""
    rows = ((place, _split(line, separator)) for place, line in content)
    wide = [place for place, line in content[:2] if len(_split(line, separator)) == width]
    start = next((place for place, row in rows if len(row) == width and any(map(_is_value, row))), -1)
    if start < 0:  # rows of words, behind a line of names
        start = wide[0] + 1 if wide else content[-1][0]
    for place in range(start - 1, -1, -1):
        line = lines[place].strip()
        bare = line.lstrip("#\\%! ").strip()
        if not bare:
            continue
        for candidate in dict.fromkeys((separator, ",", "\t", "")):
            names = [text.strip("'\"") for text in _split(bare.rstrip(","), candidate)]
            if len(names) == width - 1 and bare.endswith(",") and candidate:
                names.append("")
            if len(names) == width and not any(map(_is_number, names)):
                return _Form(_unique(names), separator, start)
        if not line.startswith(("#", "\\", "%", "!")):
            break  # a line of text that is no comment: names are not further up
    return _Form(tuple(f"column {number}" for number in range(1, width + 1)), separator, start, has_header=False)


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    seen: Counter[str] = Counter()
    result = []
    for number, name in enumerate(names, 1):
        name = name or f"column {number}"
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(result)


def _ipac(lines: Sequence[str]) -> _Form | None:
    """Return the layout of an IPAC table: names, types, units and null values between bars."""
    bars = [place for place, line in enumerate(lines) if line.startswith("|") and line.rstrip().endswith("|")]
    if not bars or bars[-1] - bars[0] > 3 or len(bars) > 4 or bars[-1] + 1 >= len(lines):
        return None
    if lines[bars[-1] + 1].startswith("|"):
        return None
    head = lines[bars[0]].rstrip()
    edges = tuple(place for place, letter in enumerate(head) if letter == "|")
    names = _unique([text.strip() for text in head.strip("|").split("|")])
    units: dict[str, str] = {}
    if len(bars) > 2:
        texts = [text.strip() for text in lines[bars[2]].rstrip().strip("|").split("|")]
        units = {name: unit for name, unit in zip(names, texts, strict=False) if unit}
    return _Form(names, "", bars[-1] + 1, edges=(*edges[:-1], 1 << 20), units=units)


def _snana(lines: Sequence[str]) -> _Form | None:
    """Return the layout of a SNANA text file: keys of the object, then ``VARLIST:`` and rows that begin ``OBS:``."""
    keys: dict[str, str] = {}
    for place, line in enumerate(lines):
        key, colon, text = line.partition(":")
        if not colon or " " in key.strip():
            continue
        if key.strip() in ("VARLIST", "VARNAMES") and any(row.startswith("OBS:") for row in lines[place:]):
            known = {"SNID": "SNID", "FAKE": "", "SURVEY": ""}
            constants = {name: keys[name].split()[0] for name in known if name and keys.get(name)}
            return _Form(_unique(text.split()), "", place + 1, prefix="OBS:", units={}, constants=constants)
        keys.setdefault(key.strip(), text.strip())
    return None


class JsonSource:
    """JSON Lines, or one JSON document: objects with lists, points as objects, or columns."""

    def __init__(self, stream: Stream, *, lines: bool) -> None:
        self._stream, self._is_lines = stream, lines
        self.name, self.stem = stream.name, stream.stem
        self.problems = Problems()
        self.units: Mapping[str, str] = {}
        self.has_header = True
        self._rows: list[dict[str, Any]] | None = None if lines else _rows_of(self._document())
        first = next(self.batches(), None)
        if first is None:
            example = f" ({self.problems.examples[0]})" if self.problems.examples else ""
            raise TableError(f"{self.name} holds no JSON objects{example}")
        self.header = tuple(first)

    @property
    def progress(self) -> float:
        """Fraction that the last pass has read."""
        return self._stream.progress if self._is_lines else 1.0

    def _document(self) -> Any:
        with self._stream.open() as content:
            text = content.read()
        try:
            return loads(text)
        except ValueError as error:
            raise TableError(f"{self.name} is not a JSON document: {error}") from None

    def batches(self, names: Sequence[str] | None = None) -> Iterator[Batch]:
        """Yield the named columns, or all."""
        self.problems = Problems()
        if self._rows is not None:
            for start in range(0, len(self._rows), BATCH_ROWS):
                yield _columns_of(self._rows[start : start + BATCH_ROWS], names)
            return
        with self._stream.lines() as lines:
            rows = self._objects(lines)
            first = next(rows, None)
            if first is None:
                return
            size = BATCH_LINES_OF_JSON if any(isinstance(value, list) for value in first.values()) else BATCH_ROWS
            portion = [first, *islice(rows, size - 1)]
            while portion:
                self._stream.advance()
                yield _columns_of(portion, names)
                portion = list(islice(rows, size))
        self._stream.finish()

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
                yield from _rows_of(document)
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


def _rows_of(document: Any) -> list[dict[str, Any]]:
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


def _columns_of(rows: Sequence[Mapping[str, Any]], names: Sequence[str] | None) -> Batch:
    keys = dict.fromkeys(key for row in rows for key in row)
    batch: Batch = {}
    for key in keys:
        if names is not None and key not in names:
            continue
        values = [row.get(key) for row in rows]
        if any(isinstance(value, list) for value in values):
            batch[key] = lists_of([value if isinstance(value, list) else None for value in values])
        else:
            batch[key] = object_column(values)
    for name in names or ():
        batch.setdefault(name, object_column([None] * len(rows)))
    return batch
