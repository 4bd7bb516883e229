"""What files for astropy would cost and reach, found before astropy reads them.

astropy is made for trusted files: it opens addresses that a VOTable names, and allocates what a header states. Each
function here checks a whole file, raises TableError for what is not read and TableTooLarge for what is beyond the
bounds, and takes a small part of the time that astropy takes.
"""

import io
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from textwrap import dedent
from typing import IO, Any, Final, NoReturn
from xml.parsers import expat

import numpy as np

from nightjar_alerts.tables.bounds import MAX_DEPTH, Bounds, TableTooLarge
from nightjar_alerts.tables.options import TableError

OBJECT_BYTES: Final = 64
"""Memory of a text or number as an object of Python."""
VALUE_BYTES: Final = 8
"""Memory of a number in an array."""
_LONG_NUMBER: Final = re.compile(r"\d{5}")
_TIME_ZERO: Final = re.compile(r"JD - \d{7}\b")
"""In the unit of times of TESS and Kepler, ``BJD - 2457000, days``."""
MAX_UNIT: Final = 200


def _check_decoded(size: int, stored: int, name: str, bounds: Bounds) -> None:
    """Raise TableTooLarge if the arrays of a table of ``stored`` bytes take ``size`` bytes, which is too many."""
    if size > (bound := min(bounds.decoded_bytes, bounds.expanded(stored))):
        raise TableTooLarge(f"{name} states rows and columns that take more than {bound} bytes", bounds)


def _check_unit(unit: str, name: str) -> None:
    """Raise TableError for a unit such as ``10**99999999 m``, a power that astropy would compute."""
    if len(unit) > MAX_UNIT or _LONG_NUMBER.search(_TIME_ZERO.sub("", unit)):
        raise TableError(f"{name} is damaged: {unit[:40]!r} is no unit of a column")


# FITS

_BLOCK: Final = 2880
_CARD: Final = 80
_TABLES: Final = ("BINTABLE", "A3DTABLE", "TABLE")
_BINARY_FORM: Final = re.compile(r"(\d{0,18})([LXBIJKAEDCMPQ])([LXBIJKAEDCM]?)")
_ASCII_FORM: Final = re.compile(r"[AIFED](\d{1,18})")
_WIDTHS: Final[Mapping[str, int]] = {
    **{"L": 1, "B": 1, "I": 2, "J": 4, "K": 8, "A": 1, "E": 4, "D": 8, "C": 8, "M": 16, "P": 8, "Q": 16},
}
"""Bytes of a value of each type of a binary column, except for bits (X)."""
_YAML_BEGIN: Final = "--BEGIN-ASTROPY-SERIALIZED-COLUMNS--"
_YAML_END: Final = "--END-ASTROPY-SERIALIZED-COLUMNS--"
_COMMENT_CHARACTERS: Final = 70


def first_fits_table(content: IO[bytes], name: str, bounds: Bounds) -> tuple[bool, bytes]:
    """Return whether the first table of a FITS file is binary, and its header and data; nothing behind it is read.

    The headers up to it are bounded. Its rows, and the arrays in its heap, must lie inside the file; cells count even
    where they are empty.
    """
    fits = import_module("astropy.io.fits")
    left = 4 * bounds.header_bytes
    while block := content.read(_BLOCK):
        cards = bytearray(block)
        while not any(block[card : card + 8].rstrip() == b"END" for card in range(0, len(block), _CARD)):
            if len(cards) > left:
                raise TableTooLarge(f"{name} has headers of more than {4 * bounds.header_bytes} bytes", bounds)
            if len(block := content.read(_BLOCK)) < _BLOCK:
                raise TableError(f"{name} is cut short: a header has no end")
            cards += block
        left -= len(cards)
        header = fits.Header.fromstring(bytes(cards))
        if str(header.get("XTENSION", "")).rstrip() in _TABLES and not header.get("ZIMAGE"):
            data = _fits_data(header, content, name, bounds)
            return header["XTENSION"].rstrip() != "TABLE", bytes(cards) + data
        content.seek(header.data_size_padded, io.SEEK_CUR)
    raise TableError(f"{name} holds no table")


def _fits_data(header: Any, content: IO[bytes], name: str, bounds: Bounds) -> bytes:
    """Read the data of a table, if their size and columns are within the bounds."""
    keys = ("NAXIS1", "NAXIS2", "PCOUNT", "GCOUNT", "TFIELDS")
    width, rows, heap, groups, fields = (header.get(key, 1 if key == "GCOUNT" else 0) for key in keys)
    if not all(type(value) is int and value >= 0 for value in (width, rows, heap, fields)) or groups != 1:
        raise TableError(f"{name} is damaged: its table has no valid size")
    size = width * rows + heap
    if rows and not width:
        raise TableError(f"{name} is damaged: its table has {rows} rows without a byte")
    if fields > bounds.max_columns:
        raise TableTooLarge(f"{name} has more than {bounds.max_columns} columns", bounds)
    if size > bounds.decoded_bytes:
        raise TableTooLarge(f"{name} has a table of more than {bounds.decoded_bytes} bytes", bounds)
    data = content.read(size)
    if len(data) < size:
        raise TableError(f"{name} is cut short: its table has {rows} rows of {width} bytes")
    forms = [str(header.get(f"TFORM{number}", "")).strip().upper() for number in range(1, fields + 1)]
    if header["XTENSION"].rstrip() == "TABLE":
        widths = [int(match[1]) for form in forms if (match := _ASCII_FORM.match(form))]
        _check_decoded(rows * sum(OBJECT_BYTES + 5 * each for each in widths), len(data), name, bounds)
    else:
        _check_binary_columns(header, forms, data, name, bounds)
    for number in range(1, fields + 1):
        _check_unit(str(header.get(f"TUNIT{number}", "")), name)
    if _YAML_BEGIN in (comments := [str(line) for line in header.get("COMMENT", ())]) and _YAML_END in comments:
        check_yaml(_yaml_of(comments), rows, len(data), name, bounds)
    return data


def _yaml_of(comments: Sequence[str]) -> list[str]:
    """Return the YAML that astropy finds in comments of FITS; a backslash continues a line."""
    lines = list[str]()
    is_continued = False
    for line in comments[comments.index(_YAML_BEGIN) + 1 : comments.index(_YAML_END)]:
        if is_continued:
            lines[-1] += line[:_COMMENT_CHARACTERS]
        else:
            lines.append(line[:_COMMENT_CHARACTERS])
        is_continued = len(line) == _COMMENT_CHARACTERS + 1
    return lines


def _check_binary_columns(header: Any, forms: Sequence[str], content: bytes, name: str, bounds: Bounds) -> None:
    """Check that columns fit into a row, and what they hold: one value or several, or lists in the heap."""
    width, rows = header["NAXIS1"], header["NAXIS2"]
    place, decoded = 0, 0
    for form in forms:
        if not (match := _BINARY_FORM.match(form)):
            raise TableError(f"{name} is damaged: {form[:20]!r} is no type of a column")
        count, kind = int(match[1] or 1), match[2]
        stored = (count + 7) // 8 if kind == "X" else count * _WIDTHS[kind]
        if place + stored > width:
            raise TableError(f"{name} is damaged: its columns are wider than its rows of {width} bytes")
        if kind in "PQ" and count:
            decoded += _size_of_lists(header, content, place, kind, match[3], name)
        elif kind == "A":
            decoded += rows * (OBJECT_BYTES + 5 * count)  # once as UTF-32, once as text
        else:
            decoded += rows * VALUE_BYTES * max(1, count) * (2 if kind in "CM" else 1)
        place += stored
    _check_decoded(decoded, len(content), name, bounds)


def _size_of_lists(header: Any, content: bytes, place: int, kind: str, of: str, name: str) -> int:
    """Return the memory of a column of lists, all of which must lie in the heap."""
    width, rows = header["NAXIS1"], header["NAXIS2"]
    start = header.get("THEAP", width * rows)
    if type(start) is not int or not width * rows <= start <= len(content):
        raise TableError(f"{name} is damaged: its heap is outside its data")
    table = np.frombuffer(content, np.uint8, width * rows).reshape(rows, width)
    pairs = np.ascontiguousarray(table[:, place : place + _WIDTHS[kind]]).view(">i4" if kind == "P" else ">i8")
    counts, offsets = pairs.reshape(rows, 2).astype(np.float64).T  # exact enough, and sums do not overflow
    item = _WIDTHS.get(of, 1)
    ends = offsets + counts * (item / 8 if of == "X" else item)
    outside = (offsets < 0) | (ends > len(content) - start)
    if (counts < 0).any() or outside[counts > 0].any():
        raise TableError(f"{name} is damaged: lists of a column are outside its heap")
    return int(rows * OBJECT_BYTES * 2 + int(counts.sum()) * max(VALUE_BYTES, item))


# VOTable

_ELEMENTS: Final = 10
"""Maximum number of elements, other than rows and cells, for each column that may be."""
_VALUE_SIZES: Final = {"char": 4, "unicodechar": 4, "floatcomplex": 16, "doublecomplex": 16}


def check_votable(data: bytes, name: str, bounds: Bounds) -> None:
    """Check a VOTable: no entities and no data from elsewhere, and bounded fields, depth and sizes of arrays."""
    checker = _VotableChecker(len(data), name, bounds)
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = checker.doctype
    parser.EntityDeclHandler = checker.refuse_entity
    parser.StartElementHandler = checker.start
    parser.EndElementHandler = checker.end
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise TableError(f"{name} is damaged, or no VOTABLE file: {error}") from None


class _VotableChecker:
    def __init__(self, size: int, name: str, bounds: Bounds) -> None:
        self._size, self._name, self._bounds = size, name, bounds
        self._depth = self._elements = self._fields = self._rows = 0
        self._row = self._params = self._stored = self._stated_rows = 0

    def doctype(self, name: str, system: str | None, public: str | None, has_subset: int) -> None:
        # Old files name the VOTable's DTD, which is never opened; declarations of their own may define entities.
        if has_subset:
            self.refuse_entity()

    def refuse_entity(self, *_: Any) -> NoReturn:
        raise TableError(f"{self._name} declares entities or a document type, which are not read: remove the DOCTYPE")

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        tag = tag.rpartition(":")[2].upper()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TableTooLarge(f"{self._name} has elements nested more than {MAX_DEPTH} deep", self._bounds)
        if tag == "TR":
            self._rows += 1
            if self._rows % 1024 == 1:
                self._check_size()
            return
        if tag == "TD":
            return
        self._elements += 1
        if self._elements > _ELEMENTS * self._bounds.max_columns:
            raise TableTooLarge(f"{self._name} has too many elements beside rows", self._bounds)
        if re.fullmatch(r"\d{1,18}", rows := attributes.get("nrows", "").strip()):
            self._stated_rows = max(self._stated_rows, int(rows))  # memory is allocated for as many
        if tag in ("FIELD", "PARAM"):
            _check_unit(attributes.get("unit", ""), self._name)
            self._add_field(tag, attributes)
        elif tag == "STREAM" and any(key.rpartition(":")[2].lower() == "href" for key in attributes):
            raise TableError(f"{self._name} refers to data elsewhere (href of a STREAM), which are not read")
        elif tag == "DATA" and not self._stored:
            raise TableError(f"{self._name} is damaged: its rows have no bytes")
        elif tag == "DATA":
            self._check_size()
        elif tag in ("FITS", "PARQUET"):
            raise TableError(f"{self._name} has its data as {tag}, which is not read")

    def end(self, _: str) -> None:
        self._depth -= 1
        if not self._depth:
            self._check_size()

    def _add_field(self, tag: str, attributes: Mapping[str, str]) -> None:
        size, count = attributes.get("arraysize", "1").strip(), 1
        kind = attributes.get("datatype", "").strip().lower()
        is_variable = size.endswith("*")
        sizes = size.removesuffix("*").split("x")
        if is_variable and "char" not in kind:
            sizes.pop()
        for each in sizes:
            if each and not re.fullmatch(r"\d{1,18}", each):
                raise TableError(f"{self._name} is damaged: an arraysize is {size[:40]!r}")
            count *= int(each or 1)
        memory = OBJECT_BYTES + count * (_VALUE_SIZES.get(kind, VALUE_BYTES) + 1)
        if tag == "PARAM":
            self._params += memory
        else:
            self._fields += 1
            self._row += memory
            self._stored += count or is_variable
        if self._fields > self._bounds.max_columns:
            raise TableTooLarge(f"{self._name} has more than {self._bounds.max_columns} columns", self._bounds)

    def _check_size(self) -> None:
        rows = max(self._rows, self._stated_rows)
        _check_decoded(self._params + rows * self._row, self._size, self._name, self._bounds)


# ECSV

_TAGS: Final = ("tag:yaml.org,2002:", "!astropy.table.SerializedColumn", "!astropy.units.", "!astropy.time.")
"""Beginnings of the tags that astropy writes for columns of light curves."""
_SHAPE: Final = re.compile(r"\w+\[([\d, ]*(?:null)?)\]")


def check_ecsv(lines: Sequence[str], name: str, bounds: Bounds) -> None:
    """Check the lines of an ECSV file: its header in YAML, and the size of its cells."""
    header = list[str]()
    size = end = 0
    for line in map(str.strip, lines):
        if line and not line.startswith("#"):
            break
        if len(line) > 1:
            header.append(line[1:])
        end, size = end + 1, size + len(line)
        if size > bounds.header_bytes:
            raise TableTooLarge(f"{name} has a header of more than {bounds.header_bytes} characters", bounds)
    if len(lines) > end and len(lines[end]) > bounds.header_bytes:
        raise TableTooLarge(f"{name} has names of columns of more than {bounds.header_bytes} characters", bounds)
    stored = sum(map(len, lines)) + len(lines)
    check_yaml(header, len(lines) - end, stored, name, bounds)


def check_yaml(lines: Sequence[str], rows: int, stored: int, name: str, bounds: Bounds) -> None:
    """Check YAML that describes columns: no aliases and merges, which multiply it, no objects, and shapes of cells."""
    yaml = import_module("yaml")
    text = dedent("\n".join(lines))
    if len(text) > bounds.header_bytes:
        raise TableTooLarge(f"{name} has a header of more than {bounds.header_bytes} characters", bounds)
    cell = depth = 0
    before = None
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if getattr(event, "anchor", None) or isinstance(event, yaml.AliasEvent):
                raise TableError(f"{name} has anchors or aliases (&, *) in its header, which are not read")
            if (tag := getattr(event, "tag", None)) and not tag.startswith(_TAGS):
                raise TableError(f"{name} has objects ({tag[:40]}) in its header, which are not read")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > 2 * MAX_DEPTH:
                raise TableTooLarge(f"{name} has a header that is nested more than {2 * MAX_DEPTH} deep", bounds)
            value = getattr(event, "value", None)
            if before == "unit" and isinstance(value, str):
                _check_unit(value, name)
            before = value
            if value == "<<":
                raise TableError(f"{name} has merge keys (<<) in its header, which are not read")
            if isinstance(value, str) and (shape := _SHAPE.fullmatch(value.strip())):
                count = VALUE_BYTES
                for each in re.findall(r"\d+", shape[1]):
                    count *= int(each[:18])
                cell += count
    except yaml.YAMLError as error:
        raise TableError(f"{name} is damaged: its header is no YAML: {str(error).splitlines()[0]}") from None
    _check_decoded(rows * cell, stored, name, bounds)


# IPAC


def check_ipac(lines: Sequence[str], name: str, bounds: Bounds) -> None:
    """Check the lines of an IPAC table: each has a cell in each column, however short it is."""
    keywords = sum(len(line) for line in lines if line.startswith("\\"))
    columns = next((line.count("|") for line in lines if line.startswith("|")), 0)
    if keywords > bounds.header_bytes:
        raise TableTooLarge(f"{name} has keywords of more than {bounds.header_bytes} characters", bounds)
    if columns > bounds.max_columns:
        raise TableTooLarge(f"{name} has more than {bounds.max_columns} columns", bounds)
    _check_decoded(len(lines) * columns * OBJECT_BYTES, sum(map(len, lines)), name, bounds)
