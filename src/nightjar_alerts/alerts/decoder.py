"""Decoder for the needed fields of Avro records, several times faster than decoding whole records.

A record is decoded in steps compiled once per schema; each step takes the data and an offset and returns the offset
after it. There is one regular expression for every run of scalar fields, another for the rows of each list of
observations, and a skip for each image. If the encoding is unusual in any way, fastavro decodes the record again and
reports errors: both ways return the same values and reject the same bytes.

**Patterns** are regular expressions for the encoded bytes of Avro types. A nullable float is a zero byte, or byte 2 and
four bytes; an integer is any number of bytes with the high bit set and one without. The pattern of a record is the
concatenation of those of its fields, so one call of the ``re`` module's C code decodes a row of 140 fields and returns
the few that are needed. All alternatives begin with different bytes and repeats are possessive, so matching takes
linear time for any bytes.

All matches are valid encodings, but some valid encodings do not match, such as integers of ten bytes, strings of more
than ``LONGEST_TEXT`` bytes and padded branch indices; the caller decodes such records with fastavro.
"""

import io
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.alerts import avro
from nightjar_alerts.alerts.avro import AvroType, Schema

LONGEST_TEXT: Final = 127
LONGEST_KEPT_TEXT: Final = 63  # so that the length is one byte
LARGEST_FIXED: Final = 1 << 16
MAX_BRANCHES: Final = 16
MAX_FIELDS: Final = 3000  # types of any kind; compiling takes 20 microseconds each; ZTF 4.02 has 1,400
TEXT_FIELDS: Final = 50  # number of other fields that take as long to compile as a string

INTEGER: Final = rb"[\x80-\xff]{0,8}+[\x00-\x7f]"
_FIXED: Final[Mapping[str, int]] = {"float": 4, "double": 8}
Value = Callable[[bytes], Any]


class UnsupportedTypeError(Exception):
    """Type without a pattern: an array, a map, bytes, or a union with too many branches."""


class UnusualEncoding(Exception):
    """The bytes do not match the pattern, so fastavro must decode the record."""


def integer(encoded: bytes) -> int:
    """Decode an Avro int or long."""
    value = 0
    for byte in reversed(encoded):
        value = value << 7 | byte & 0x7F
    return (value >> 1) ^ -(value & 1)


_READERS: Final[Mapping[str, Value]] = {
    "boolean": lambda encoded: encoded != b"\0",
    "int": integer,
    "long": integer,
    "float": lambda encoded: struct.unpack("<f", encoded)[0],
    "double": lambda encoded: struct.unpack("<d", encoded)[0],
    "string": lambda encoded: encoded[1:].decode(),
}


@dataclass(frozen=True, slots=True)
class Leaf:
    """Value captured by a pattern: its path in the record, its primitive type, and the function that decodes it.

    The type ``"record"`` marks the beginning of a nested record, whose group is empty if it is present.
    """

    path: tuple[str, ...]
    kind: str
    read: Value


@dataclass(slots=True)
class PatternPart:
    """Part of a pattern, and its captured values in order."""

    source: bytes
    leaves: list[Leaf]

    def compile(self) -> re.Pattern[bytes]:
        """Compile the pattern."""
        return re.compile(_merged(self.source), re.DOTALL)


class PatternWriter:
    """Writes patterns for the types of one schema.

    Parameters
    ----------
    keep : for each record by full name, the fields to capture (see :func:`alerts.avro.project`).
    """

    def __init__(self, schema: Schema, keep: Mapping[str, frozenset[str]]) -> None:
        self._schema, self._keep = schema, keep
        self._fields = 0

    def part(self, kind: AvroType, path: tuple[str, ...], capture: bool) -> PatternPart:
        """Return the pattern of a type. Raises UnsupportedTypeError if it has none."""
        self._charge(1)  # also for records without fields and references, which cost time, too
        if isinstance(kind, str):
            if kind not in self._schema.named:
                return self._primitive(kind, path, capture)
            kind = self._schema.named[kind]
        if isinstance(kind, list):
            return self._union(kind, path, capture)
        match kind["type"]:
            case "record":
                return self.record(kind, path, capture)
            case "fixed" if not capture and kind["size"] <= LARGEST_FIXED:
                return PatternPart(b".{%d}" % kind["size"], [])
            case "enum":
                leaves = [Leaf(path, "enum", _symbol(kind["symbols"]))] if capture else []
                return PatternPart(b"(" + INTEGER + b")" if capture else INTEGER, leaves)
        raise UnsupportedTypeError(str(kind["type"]))

    def entry(self, values: AvroType) -> PatternPart:
        """Return the pattern of a map's key and value, which are never captured."""
        return PatternPart(_text(LONGEST_TEXT) + self.part(values, (), capture=False).source, [])

    def record(self, definition: AvroType, path: tuple[str, ...], capture: bool) -> PatternPart:
        """Return the pattern of a record."""
        capture_names = self._keep.get(definition["name"], frozenset()) if capture else frozenset()
        parts = [self.part(f["type"], (*path, f["name"]), f["name"] in capture_names) for f in definition["fields"]]
        if path and capture:
            parts.insert(0, PatternPart(b"()", [Leaf(path, "record", lambda _: {})]))
        return PatternPart(b"".join(part.source for part in parts), [leaf for part in parts for leaf in part.leaves])

    def _charge(self, fields: int) -> None:
        self._fields += fields
        if self._fields > MAX_FIELDS:
            raise UnsupportedTypeError("too many fields")

    def _primitive(self, kind: str, path: tuple[str, ...], capture: bool) -> PatternPart:
        if kind == "string":
            self._charge(TEXT_FIELDS)
        if kind == "null":
            return PatternPart(b"()", [Leaf(path, kind, lambda _: None)]) if capture else PatternPart(b"", [])
        if kind == "bytes":
            raise UnsupportedTypeError(kind)
        source = _text(LONGEST_KEPT_TEXT if capture else LONGEST_TEXT) if kind == "string" else _primitive(kind)
        if not capture:
            return PatternPart(source, [])
        return PatternPart(b"(" + source + b")", [Leaf(path, kind, _READERS[kind])])

    def _union(self, branches: list[AvroType], path: tuple[str, ...], capture: bool) -> PatternPart:
        if len(branches) > MAX_BRANCHES or (capture and isinstance(avro.non_null(branches), list)):
            raise UnsupportedTypeError("union")
        parts = [(_mark(i), self.part(branch, path, capture and branch != "null")) for i, branch in enumerate(branches)]
        parts.reverse()  # try the value before null, which is less common
        source = b"|".join(mark + part.source for mark, part in parts)
        return PatternPart(b"(?:" + source + b")", [leaf for _, part in parts for leaf in part.leaves])


def _symbol(symbols: Sequence[str]) -> Value:
    def read(encoded: bytes) -> str:
        place = integer(encoded)
        if not 0 <= place < len(symbols):
            raise UnusualEncoding
        return symbols[place]

    return read


def _mark(index: int) -> bytes:
    return re.escape(bytes([2 * index]))


def _primitive(kind: str) -> bytes:
    if kind == "boolean":
        return rb"[\x00\x01]"
    return INTEGER if kind in ("int", "long") else b".{%d}" % _FIXED[kind]


def _text(longest: int) -> bytes:
    """Return the pattern of strings of up to ``longest`` bytes: an alternative per length, by the length prefix."""
    lengths = [(_length(size), size) for size in range(longest + 1)]
    return b"(?:" + b"|".join(re.escape(prefix) + b".{%d}" % size for prefix, size in lengths) + b")"


def _length(size: int) -> bytes:
    return bytes([2 * size]) if size < 64 else bytes([2 * size & 0x7F | 0x80, size >> 6])


def _merged(source: bytes) -> bytes:
    """Merge adjacent runs of arbitrary bytes in a pattern: ``.{4}.{8}`` becomes ``.{12}``."""
    runs = re.compile(rb"(?:\.\{\d+\}){2,}")
    return runs.sub(lambda run: b".{%d}" % sum(map(int, re.findall(rb"\d+", run[0]))), source)


Values = dict[str, Any]
Captured = Sequence[bytes | None]
Match = Callable[[bytes, int], re.Match[bytes] | None]
Step = Callable[[bytes, int, Values], int]

_MATCH_INTEGER: Final[Match] = re.compile(INTEGER).match
_INTEGER_BYTES: Final = 9  # maximum that a pattern matches
_SHIFTS: Final = np.arange(0, 7 * _INTEGER_BYTES, 7, dtype=np.uint64)
_FLOATS: Final[Mapping[str, str]] = {"float": "<f4", "double": "<f8"}


@dataclass(frozen=True, slots=True)
class ColumnTable:
    """Columns of a list of records; null rows are left out."""

    length: int
    columns: Mapping[str, Sequence[Any]]

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.length

    @classmethod
    def of_rows(cls, rows: Iterable[Mapping[str, Any] | None], names: Iterable[str]) -> "ColumnTable":
        """Convert decoded rows to columns."""
        present = [row for row in rows if row is not None]
        return cls(len(present), {name: [row[name] for row in present] for name in names})


def steps_of(schema: Schema, keep: Mapping[str, frozenset[str]]) -> list[Step] | None:
    """Return the steps that decode a record of the schema, None if it has an unsupported type."""
    try:
        return _Builder(schema, keep).of_fields(schema.root, capture=True)
    except UnsupportedTypeError:
        return None


class _Builder:
    """Compiles types to steps; every method raises UnsupportedTypeError for types without steps."""

    def __init__(self, schema: Schema, keep: Mapping[str, frozenset[str]]) -> None:
        self._schema, self._keep = schema, keep
        self._patterns = PatternWriter(schema, keep)

    def of_fields(self, record: AvroType, capture: bool) -> list[Step]:
        """Return the steps that decode the fields of a record; adjacent fields with patterns share a step."""
        steps: list[Step] = []
        run: list[PatternPart] = []
        capture_names = self._keep.get(record["name"], frozenset()) if capture else frozenset()
        for field in record["fields"]:
            name = field["name"]
            try:
                run.append(self._patterns.part(field["type"], (name,), name in capture_names))
            except UnsupportedTypeError:
                steps += [*_fields(run), *self._irregular(field["type"], name, name in capture_names)]
                run = []
        return [*steps, *_fields(run)]

    def _irregular(self, kind: AvroType, name: str, capture: bool) -> list[Step]:
        """Return the steps that decode a field without a pattern, such as a list or an image."""
        if isinstance(kind, list):
            value = avro.non_null(kind)
            if isinstance(value, list) or "null" not in kind:
                raise UnsupportedTypeError("union")
            return [_nullable(2 * kind.index(value), self._irregular(value, name, capture), name if capture else None)]
        if kind == "bytes" and not capture:
            return [_skip_bytes]
        definition = self._schema.named.get(kind) if isinstance(kind, str) else kind
        match definition:
            case {"type": "array", "items": items}:
                return [self._rows(items, name, capture)]
            case {"type": "map", "values": values} if not capture:
                return [_skip_rows(self._patterns.entry(values).compile().match)]
            case {"type": "record"} if not capture:
                return self.of_fields(definition, capture=False)
        raise UnsupportedTypeError(str(kind))

    def _rows(self, items: AvroType, name: str, capture: bool) -> Step:
        part = self._patterns.part(items, (name,), capture)
        match = part.compile().match
        if not capture:
            return _skip_rows(match)
        present, *leaves = part.leaves
        if present.kind != "record" or any(len(leaf.path) != 2 or leaf.kind == "record" for leaf in leaves):
            raise UnsupportedTypeError("list of anything but flat records")
        return _rows(match, leaves, name)


def _fields(run: Sequence[PatternPart]) -> list[Step]:
    if not run:
        return []
    part = PatternPart(b"".join(part.source for part in run), [leaf for part in run for leaf in part.leaves])
    match_at, leaves = part.compile().match, part.leaves

    def step(data: bytes, at: int, values: Values) -> int:
        match = match_at(data, at)
        if match is None:
            raise UnusualEncoding
        for leaf, encoded in zip(leaves, match.groups(), strict=True):
            _set_value(values, leaf, encoded)
        return match.end()

    return [step]


def _set_value(values: Values, leaf: Leaf, encoded: bytes | None) -> None:
    parent = values
    for name in leaf.path[:-1]:
        parent = parent[name]
        if parent is None:
            return
    parent[leaf.path[-1]] = None if encoded is None else leaf.read(encoded)


def _nullable(mark: int, steps: Sequence[Step], name: str | None) -> Step:
    def step(data: bytes, at: int, values: Values) -> int:
        index = data[at : at + 1]
        if index == b"\0" if mark else index == b"\2":
            if name is not None:
                values[name] = None
            return at + 1
        if index != bytes([mark]):
            raise UnusualEncoding
        at += 1
        for inner in steps:
            at = inner(data, at, values)
        return at

    return step


def _skip_bytes(data: bytes, at: int, values: Values) -> int:
    size, at = _integer(data, at)
    if not 0 <= size <= len(data) - at:
        raise UnusualEncoding
    return at + size


def _rows(match: Match, leaves: Sequence[Leaf], name: str) -> Step:
    """Return the step that decodes a list of records; the first captured group is None for null rows."""
    readers = [(leaf.path[-1], _column_reader(leaf)) for leaf in leaves]

    def step(data: bytes, at: int, values: Values) -> int:
        rows: list[Captured] = []
        at = _items(match, data, at, rows)
        columns: list[Captured] = list(zip(*rows, strict=True)) if rows else [()] * (1 + len(readers))
        there = [captured is not None for captured in columns[0]]
        if not all(there):
            columns = [list(compress(column, there)) for column in columns]
        read = {column: reader(captured) for (column, reader), captured in zip(readers, columns[1:], strict=True)}
        values[name] = ColumnTable(sum(there), read)
        return at

    return step


def _skip_rows(match: Match) -> Step:
    return lambda data, at, values: _items(match, data, at, None)


def _items(match_at: Match, data: bytes, at: int, rows: list[Captured] | None) -> int:
    """Decode the blocks of an array; return the end offset."""
    while True:
        count, at = _integer(data, at)
        if count == 0:
            return at
        for _ in range(count):
            match = match_at(data, at)
            if match is None:
                raise UnusualEncoding
            at = match.end()
            if rows is not None:
                rows.append(match.groups())


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """Decode a count or size and return it with the end offset; negative ones are unusual encodings."""
    match = _MATCH_INTEGER(data, at)
    if match is None or (value := integer(match[0])) < 0:
        raise UnusualEncoding
    return value, match.end()


def _column_reader(leaf: Leaf) -> Callable[[Captured], Sequence[Any]]:
    if leaf.kind in _FLOATS:
        return lambda column: _present(column, lambda values: np.frombuffer(b"".join(values), _FLOATS[leaf.kind]))
    if leaf.kind in ("int", "long"):
        return lambda column: _present(column, _integers)
    return lambda column: _repeated(column, leaf)


def _present(column: Captured, read: Callable[[Sequence[bytes]], NDArray[Any]]) -> list[Any]:
    """Decode the non-null values of a column at once."""
    if None not in column:
        return list(read(cast("Sequence[bytes]", column)).tolist())
    values = iter(read([encoded for encoded in column if encoded is not None]).tolist())
    return [None if encoded is None else next(values) for encoded in column]


def _repeated(column: Captured, leaf: Leaf) -> list[Any]:
    """Decode a column with few distinct values, each once."""
    values = {encoded: None if encoded is None else leaf.read(encoded) for encoded in set(column)}
    return [values[encoded] for encoded in column]


def _integers(column: Sequence[bytes]) -> NDArray[np.int64]:
    padded = b"".join([encoded.ljust(_INTEGER_BYTES, b"\0") for encoded in column])
    groups = np.frombuffer(padded, dtype=np.uint8).reshape(-1, _INTEGER_BYTES) & 0x7F
    zigzag = (groups.astype(np.uint64) << _SHIFTS).sum(axis=1, dtype=np.uint64)
    half, sign = (zigzag >> np.uint64(1)).astype(np.int64), (zigzag & np.uint64(1)).astype(np.int64)
    values: NDArray[np.int64] = half ^ -sign
    return values


READS_BEFORE_COMPILING: Final = 3
"""Number of records of an untrusted schema that fastavro decodes before the schema is compiled, which takes tens of
milliseconds. This avoids compiling for senders that use a new schema in every packet."""


class AvroDecoder:
    """Decodes records of one schema through a projection.

    Parameters
    ----------
    keep : needed fields of each record, by full name; others are skipped.
    trusted : whether the schema is shipped or from a registry; if so, it is compiled for the first record.

    Attributes
    ----------
    projection : reader schema for fastavro.
    """

    def __init__(self, schema: Schema, keep: Mapping[str, frozenset[str]], trusted: bool = True) -> None:
        self.schema = schema
        self.projection = avro.project(schema, keep)
        self._keep = keep
        self._tables = _tables(schema, keep)
        self._slow_reads = 0 if trusted else READS_BEFORE_COMPILING  # a race between threads costs one more slow read

    @cached_property
    def _steps(self) -> list[Step] | None:
        steps = steps_of(self.schema, self._keep)  # takes milliseconds, and not every plan decodes bytes
        re.purge()  # otherwise patterns of untrusted schemas stay in Python's cache
        return steps

    @property
    def fast(self) -> bool:
        """True if the schema can be compiled to steps."""
        return self._steps is not None

    def read(self, data: bytes, start: int = 0) -> tuple[Values, int]:
        """Decode the record at ``start``; return its values and the end offset.

        Returns
        -------
        The needed fields, nested as in the record, with lists of records as :class:`ColumnTable`, and the end offset.

        Raises
        ------
        PacketError
            ``truncated_avro`` or ``malformed_avro``.
        """
        if self._slow_reads:
            self._slow_reads -= 1
            return self.read_slow(data, start)
        return self.read_fast(data, start) or self.read_slow(data, start)

    def read_fast(self, data: bytes, start: int = 0) -> tuple[Values, int] | None:
        """Decode with the compiled steps; None if fastavro must decode the record."""
        if self._steps is None:
            return None
        values: Values = {}
        at = start
        try:
            for step in self._steps:
                at = step(data, at, values)
        except (UnusualEncoding, UnicodeDecodeError):
            return None
        return values, at

    def read_slow(self, data: bytes, start: int = 0) -> tuple[Values, int]:
        """Decode with fastavro, the slow path."""
        stream = io.BytesIO(data)
        stream.seek(start)
        record: dict[str, Any] = avro.read_record(stream, self.schema, self.projection)
        for name, columns in self._tables.items():
            if record[name] is not None:
                record[name] = ColumnTable.of_rows(record[name], columns)
        return record, stream.tell()


def _tables(schema: Schema, keep: Mapping[str, frozenset[str]]) -> dict[str, list[str]]:
    """Return the names of the needed lists of records, each with the names of its needed columns."""
    tables = {}
    for name, kind in schema.fields(schema.root).items():
        is_list = isinstance(item_type := avro.non_null(kind), dict) and item_type["type"] == "array"
        if name in keep[schema.name] and is_list and (item := schema.definition(kind)) is not None:
            tables[name] = [field["name"] for field in item["fields"] if field["name"] in keep[item["name"]]]
    return tables
