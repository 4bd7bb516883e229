"""Alert records to the few values that are needed, several times faster than decoding them.

A record is walked in steps made once for its schema, each of which takes the data and a position and returns the
position behind it: one regular expression for every stretch of plain fields, another for the rows of each list of
observations, a jump over each image. Where the bytes are in any way unusual fastavro reads the record again, and its
errors say what is wrong: the two ways give the same values and refuse the same bytes.

**Patterns** are Avro types as regular expressions over their encoded bytes. A nullable float is a zero byte, or a two
and four bytes; an integer is any number of bytes with the high bit and one without. A record of such fields is their
concatenation, so one call of the ``re`` module's C code walks a whole row of 140 fields and hands back the few that
were asked for. Every alternative begins with another byte and repeats are possessive: matching takes time in proportion
to the bytes, whatever they are.

What a pattern matches is a valid encoding. The reverse does not hold: an integer of ten bytes, a text of more than
``LONGEST_TEXT`` bytes or a padded branch number do not match, and the caller reads such a record with fastavro.
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

from nightjar_alerts.models.alerts import avro
from nightjar_alerts.models.alerts.avro import AvroType, Schema

LONGEST_TEXT: Final = 127
LONGEST_KEPT_TEXT: Final = 63  # the length is one byte
LARGEST_FIXED: Final = 1 << 16
MAX_BRANCHES: Final = 16
MAX_FIELDS: Final = 3000  # types of any kind; compiling takes 20 microseconds each; ZTF 4.02 charges 1,400
TEXT_FIELDS: Final = 50  # a text costs as much to compile as so many other fields

INTEGER: Final = rb"[\x80-\xff]{0,8}+[\x00-\x7f]"
_FIXED: Final[Mapping[str, int]] = {"float": 4, "double": 8}
Value = Callable[[bytes], Any]


class IrregularTypeError(Exception):
    """A type without a pattern: an array, a map, bytes, or a union with too many branches."""


class Unusual(Exception):
    """The bytes are not in the form that nearly all packets have."""


def integer(encoded: bytes) -> int:
    """Value of an Avro int or long."""
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
    """A value that a pattern captures: its path inside the record, its primitive type, and how to read its bytes.

    The type ``"record"`` marks where a nested record begins: its empty bytes are captured when it is there.
    """

    path: tuple[str, ...]
    kind: str
    read: Value


@dataclass(slots=True)
class PatternPart:
    """A piece of a pattern and what it captures, in order."""

    source: bytes
    leaves: list[Leaf]

    def compile(self) -> re.Pattern[bytes]:
        """Return the pattern, ready for use."""
        return re.compile(_merged(self.source), re.DOTALL)


class PatternWriter:
    """Writes patterns for the types of one schema.

    Parameters
    ----------
    keep : for each record by full name, the fields to capture (see :func:`models.alerts.avro.project`).
    """

    def __init__(self, schema: Schema, keep: Mapping[str, frozenset[str]]) -> None:
        self._schema, self._keep = schema, keep
        self._fields = 0

    def part(self, kind: AvroType, path: tuple[str, ...], capture: bool) -> PatternPart:
        """Pattern of a type; raises IrregularTypeError when it has none."""
        self._charge(1)  # whatever it is: a record without fields and a reference cost time to write as well
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
        raise IrregularTypeError(str(kind["type"]))

    def entry(self, values: AvroType) -> PatternPart:
        """Pattern of a map's key and value, which are never captured."""
        return PatternPart(_text(LONGEST_TEXT) + self.part(values, (), capture=False).source, [])

    def record(self, definition: AvroType, path: tuple[str, ...], capture: bool) -> PatternPart:
        """Pattern of a record, its fields one after another."""
        capture_names = self._keep.get(definition["name"], frozenset()) if capture else frozenset()
        parts = [self.part(f["type"], (*path, f["name"]), f["name"] in capture_names) for f in definition["fields"]]
        if path and capture:
            parts.insert(0, PatternPart(b"()", [Leaf(path, "record", lambda _: {})]))
        return PatternPart(b"".join(part.source for part in parts), [leaf for part in parts for leaf in part.leaves])

    def _charge(self, fields: int) -> None:
        self._fields += fields
        if self._fields > MAX_FIELDS:
            raise IrregularTypeError("too many fields")

    def _primitive(self, kind: str, path: tuple[str, ...], capture: bool) -> PatternPart:
        if kind == "string":
            self._charge(TEXT_FIELDS)
        if kind == "null":
            return PatternPart(b"()", [Leaf(path, kind, lambda _: None)]) if capture else PatternPart(b"", [])
        if kind == "bytes":
            raise IrregularTypeError(kind)
        source = _text(LONGEST_KEPT_TEXT if capture else LONGEST_TEXT) if kind == "string" else _primitive(kind)
        if not capture:
            return PatternPart(source, [])
        return PatternPart(b"(" + source + b")", [Leaf(path, kind, _READERS[kind])])

    def _union(self, branches: list[AvroType], path: tuple[str, ...], capture: bool) -> PatternPart:
        if len(branches) > MAX_BRANCHES or (capture and isinstance(avro.bare(branches), list)):
            raise IrregularTypeError("union")
        parts = [(_mark(i), self.part(branch, path, capture and branch != "null")) for i, branch in enumerate(branches)]
        parts.reverse()  # a value is more common than null, which comes first
        source = b"|".join(mark + part.source for mark, part in parts)
        return PatternPart(b"(?:" + source + b")", [leaf for _, part in parts for leaf in part.leaves])


def _symbol(symbols: Sequence[str]) -> Value:
    def read(encoded: bytes) -> str:
        place = integer(encoded)
        if not 0 <= place < len(symbols):
            raise Unusual
        return symbols[place]

    return read


def _mark(index: int) -> bytes:
    return re.escape(bytes([2 * index]))


def _primitive(kind: str) -> bytes:
    if kind == "boolean":
        return rb"[\x00\x01]"
    return INTEGER if kind in ("int", "long") else b".{%d}" % _FIXED[kind]


def _text(longest: int) -> bytes:
    """Return a text of any length up to ``longest``: one alternative for each, by its first byte or two."""
    lengths = [(_length(size), size) for size in range(longest + 1)]
    return b"(?:" + b"|".join(re.escape(prefix) + b".{%d}" % size for prefix, size in lengths) + b")"


def _length(size: int) -> bytes:
    return bytes([2 * size]) if size < 64 else bytes([2 * size & 0x7F | 0x80, size >> 6])


def _merged(source: bytes) -> bytes:
    """Join neighbouring runs of any bytes in a pattern: ``.{4}.{8}`` becomes ``.{12}``."""
    runs = re.compile(rb"(?:\.\{\d+\}){2,}")
    return runs.sub(lambda run: b".{%d}" % sum(map(int, re.findall(rb"\d+", run[0]))), source)


Values = dict[str, Any]
Captured = Sequence[bytes | None]
Match = Callable[[bytes, int], re.Match[bytes] | None]
Step = Callable[[bytes, int, Values], int]

_MATCH_INTEGER: Final[Match] = re.compile(INTEGER).match
_INTEGER_BYTES: Final = 9  # the most that a pattern matches
_SHIFTS: Final = np.arange(0, 7 * _INTEGER_BYTES, 7, dtype=np.uint64)
_FLOATS: Final[Mapping[str, str]] = {"float": "<f4", "double": "<f8"}


@dataclass(frozen=True, slots=True)
class ColumnTable:
    """Rows of a list of records, by column; null rows are left out."""

    length: int
    columns: Mapping[str, Sequence[Any]]

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.length

    @classmethod
    def of_rows(cls, rows: Iterable[Mapping[str, Any] | None], names: Iterable[str]) -> "ColumnTable":
        """Turn decoded rows into columns."""
        present = [row for row in rows if row is not None]
        return cls(len(present), {name: [row[name] for row in present] for name in names})


def steps_of(schema: Schema, keep: Mapping[str, frozenset[str]]) -> list[Step] | None:
    """Return steps through a record of the schema, None when a type in it allows none."""
    try:
        return _Builder(schema, keep).of_fields(schema.root, capture=True)
    except IrregularTypeError:
        return None


class _Builder:
    """Turns types into steps; every method raises IrregularTypeError for a type that allows none."""

    def __init__(self, schema: Schema, keep: Mapping[str, frozenset[str]]) -> None:
        self._schema, self._keep = schema, keep
        self._patterns = PatternWriter(schema, keep)

    def of_fields(self, record: AvroType, capture: bool) -> list[Step]:
        """Return steps through the fields of a record: those that have a pattern are read together."""
        steps: list[Step] = []
        run: list[PatternPart] = []
        capture_names = self._keep.get(record["name"], frozenset()) if capture else frozenset()
        for field in record["fields"]:
            name = field["name"]
            try:
                run.append(self._patterns.part(field["type"], (name,), name in capture_names))
            except IrregularTypeError:
                steps += [*_fields(run), *self._irregular(field["type"], name, name in capture_names)]
                run = []
        return [*steps, *_fields(run)]

    def _irregular(self, kind: AvroType, name: str, capture: bool) -> list[Step]:
        """Return steps through what has no pattern: lists, and what holds images."""
        if isinstance(kind, list):
            value = avro.bare(kind)
            if isinstance(value, list) or "null" not in kind:
                raise IrregularTypeError("union")
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
        raise IrregularTypeError(str(kind))

    def _rows(self, items: AvroType, name: str, capture: bool) -> Step:
        part = self._patterns.part(items, (name,), capture)
        match = part.compile().match
        if not capture:
            return _skip_rows(match)
        present, *leaves = part.leaves
        if present.kind != "record" or any(len(leaf.path) != 2 or leaf.kind == "record" for leaf in leaves):
            raise IrregularTypeError("list of anything but flat records")
        return _rows(match, leaves, name)


def _fields(run: Sequence[PatternPart]) -> list[Step]:
    if not run:
        return []
    part = PatternPart(b"".join(part.source for part in run), [leaf for part in run for leaf in part.leaves])
    match_at, leaves = part.compile().match, part.leaves

    def step(data: bytes, at: int, values: Values) -> int:
        match = match_at(data, at)
        if match is None:
            raise Unusual
        for leaf, encoded in zip(leaves, match.groups(), strict=True):
            _place(values, leaf, encoded)
        return match.end()

    return [step]


def _place(values: Values, leaf: Leaf, encoded: bytes | None) -> None:
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
            raise Unusual
        at += 1
        for inner in steps:
            at = inner(data, at, values)
        return at

    return step


def _skip_bytes(data: bytes, at: int, values: Values) -> int:
    size, at = _integer(data, at)
    if not 0 <= size <= len(data) - at:
        raise Unusual
    return at + size


def _rows(match: Match, leaves: Sequence[Leaf], name: str) -> Step:
    """Rows whose first capture says that there is one: a list may hold nulls."""
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
    """Walk the blocks of an array; return where it ends."""
    while True:
        count, at = _integer(data, at)
        if count == 0:
            return at
        for _ in range(count):
            match = match_at(data, at)
            if match is None:
                raise Unusual
            at = match.end()
            if rows is not None:
                rows.append(match.groups())


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """Return a count or a size, which no packet has negative, and where it ends."""
    match = _MATCH_INTEGER(data, at)
    if match is None or (value := integer(match[0])) < 0:
        raise Unusual
    return value, match.end()


def _column_reader(leaf: Leaf) -> Callable[[Captured], Sequence[Any]]:
    if leaf.kind in _FLOATS:
        return lambda column: _present(column, lambda values: np.frombuffer(b"".join(values), _FLOATS[leaf.kind]))
    if leaf.kind in ("int", "long"):
        return lambda column: _present(column, _integers)
    return lambda column: _repeated(column, leaf)


def _present(column: Captured, read: Callable[[Sequence[bytes]], NDArray[Any]]) -> list[Any]:
    """Return a column whose values are read all at once, None where it is null."""
    if None not in column:
        return list(read(cast("Sequence[bytes]", column)).tolist())
    values = iter(read([encoded for encoded in column if encoded is not None]).tolist())
    return [None if encoded is None else next(values) for encoded in column]


def _repeated(column: Captured, leaf: Leaf) -> list[Any]:
    """Return a column of few different values, each read once."""
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
"""Records of an untrusted schema that fastavro reads before the schema is compiled, which takes tens of milliseconds. A
survey sends thousands with one schema; whoever sends a new one with every packet would have each compiled in vain."""


class AvroDecoder:
    """Reads records of one schema through a projection.

    Parameters
    ----------
    keep : for each record by full name, the fields wanted; others are skipped.
    trusted : whether the schema is built in or from a registry, which is compiled for its first record.

    Attributes
    ----------
    projection : the reader schema of the slow way.
    """

    def __init__(self, schema: Schema, keep: Mapping[str, frozenset[str]], trusted: bool = True) -> None:
        self.schema = schema
        self.projection = avro.project(schema, keep)
        self._keep = keep
        self._tables = _tables(schema, keep)
        self._slow_reads = 0 if trusted else READS_BEFORE_COMPILING  # two threads that miscount cost one slow read more

    @cached_property
    def _steps(self) -> list[Step] | None:
        steps = steps_of(self.schema, self._keep)  # takes milliseconds, and not every plan is for bytes
        re.purge()  # else Python's own cache keeps these patterns, and untrusted schemas fill it
        return steps

    @property
    def fast(self) -> bool:
        """True where the schema allows the fast way."""
        return self._steps is not None

    def read(self, data: bytes, start: int = 0) -> tuple[Values, int]:
        """Values of the record at ``start``, and where it ends.

        Returns
        -------
        The wanted fields, nested as the record is, its lists of records as :class:`ColumnTable`.

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
        """Decode by the compiled plan; None where only fastavro can tell."""
        if self._steps is None:
            return None
        values: Values = {}
        at = start
        try:
            for step in self._steps:
                at = step(data, at, values)
        except (Unusual, UnicodeDecodeError):
            return None
        return values, at

    def read_slow(self, data: bytes, start: int = 0) -> tuple[Values, int]:
        """Decode with fastavro, the slow path for schemas that the plan cannot handle."""
        stream = io.BytesIO(data)
        stream.seek(start)
        record: dict[str, Any] = avro.read_record(stream, self.schema, self.projection)
        for name, columns in self._tables.items():
            if record[name] is not None:
                record[name] = ColumnTable.of_rows(record[name], columns)
        return record, stream.tell()


def _tables(schema: Schema, keep: Mapping[str, frozenset[str]]) -> dict[str, list[str]]:
    """Names of the wanted lists of records, each with the names of the columns wanted of it."""
    tables = {}
    for name, kind in schema.fields(schema.root).items():
        is_list = isinstance(bare := avro.bare(kind), dict) and bare["type"] == "array"
        if name in keep[schema.name] and is_list and (item := schema.definition(kind)) is not None:
            tables[name] = [field["name"] for field in item["fields"] if field["name"] in keep[item["name"]]]
    return tables
