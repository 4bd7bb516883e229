"""Avro types as regular expressions over their encoded bytes.

A nullable float is a zero byte, or a two and four bytes; an integer is any number of bytes with the high bit and one
without. A record of such fields is their concatenation, so one call of the ``re`` module's C code walks a whole row of
140 fields and hands back the few that were asked for. Every alternative begins with another byte and repeats are
possessive: matching takes time in proportion to the bytes, whatever they are.

What a pattern matches is a valid encoding. The reverse does not hold: an integer of ten bytes, a text of more than
``LONGEST_TEXT`` bytes or a padded branch number do not match, and the caller reads such a record with fastavro.
"""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from models.alerts import avro
from models.alerts.avro import AvroType, Schema

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
class Part:
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

    def part(self, kind: AvroType, path: tuple[str, ...], kept: bool) -> Part:
        """Pattern of a type; raises IrregularTypeError when it has none."""
        self._charge(1)  # whatever it is: a record without fields and a reference cost time to write as well
        if isinstance(kind, str):
            if kind not in self._schema.named:
                return self._primitive(kind, path, kept)
            kind = self._schema.named[kind]
        if isinstance(kind, list):
            return self._union(kind, path, kept)
        match kind["type"]:
            case "record":
                return self.record(kind, path, kept)
            case "fixed" if not kept and kind["size"] <= LARGEST_FIXED:
                return Part(b".{%d}" % kind["size"], [])
            case "enum":
                leaves = [Leaf(path, "enum", _symbol(kind["symbols"]))] if kept else []
                return Part(b"(" + INTEGER + b")" if kept else INTEGER, leaves)
        raise IrregularTypeError(str(kind["type"]))

    def entry(self, values: AvroType) -> Part:
        """Pattern of a map's key and value, which are never captured."""
        return Part(_text(LONGEST_TEXT) + self.part(values, (), kept=False).source, [])

    def record(self, definition: AvroType, path: tuple[str, ...], kept: bool) -> Part:
        """Pattern of a record, its fields one after another."""
        wanted = self._keep.get(definition["name"], frozenset()) if kept else frozenset()
        parts = [self.part(f["type"], (*path, f["name"]), f["name"] in wanted) for f in definition["fields"]]
        if path and kept:
            parts.insert(0, Part(b"()", [Leaf(path, "record", lambda _: {})]))
        return Part(b"".join(part.source for part in parts), [leaf for part in parts for leaf in part.leaves])

    def _charge(self, fields: int) -> None:
        self._fields += fields
        if self._fields > MAX_FIELDS:
            raise IrregularTypeError("too many fields")

    def _primitive(self, kind: str, path: tuple[str, ...], kept: bool) -> Part:
        if kind == "string":
            self._charge(TEXT_FIELDS)
        if kind == "null":
            return Part(b"()", [Leaf(path, kind, lambda _: None)]) if kept else Part(b"", [])
        if kind == "bytes":
            raise IrregularTypeError(kind)
        source = _text(LONGEST_KEPT_TEXT if kept else LONGEST_TEXT) if kind == "string" else _primitive(kind)
        if not kept:
            return Part(source, [])
        return Part(b"(" + source + b")", [Leaf(path, kind, _READERS[kind])])

    def _union(self, branches: list[AvroType], path: tuple[str, ...], kept: bool) -> Part:
        if len(branches) > MAX_BRANCHES or (kept and isinstance(avro.bare(branches), list)):
            raise IrregularTypeError("union")
        parts = [(_mark(i), self.part(branch, path, kept and branch != "null")) for i, branch in enumerate(branches)]
        parts.reverse()  # a value is more common than null, which comes first
        source = b"|".join(mark + part.source for mark, part in parts)
        return Part(b"(?:" + source + b")", [leaf for _, part in parts for leaf in part.leaves])


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
    """Return a text of any length up to ``longest``: one alternative for each, told apart by its first byte or two."""
    lengths = [(_length(size), size) for size in range(longest + 1)]
    return b"(?:" + b"|".join(re.escape(prefix) + b".{%d}" % size for prefix, size in lengths) + b")"


def _length(size: int) -> bytes:
    return bytes([2 * size]) if size < 64 else bytes([2 * size & 0x7F | 0x80, size >> 6])


def _merged(source: bytes) -> bytes:
    """Join neighbouring runs of any bytes in a pattern: ``.{4}.{8}`` becomes ``.{12}``."""
    runs = re.compile(rb"(?:\.\{\d+\}){2,}")
    return runs.sub(lambda run: b".{%d}" % sum(map(int, re.findall(rb"\d+", run[0]))), source)
