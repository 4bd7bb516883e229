"""FITS binary tables, read forwards in blocks of rows, plain or gzipped: all that SNANA files need.

Notable: a table is never held whole, also when it is compressed, which is how the training sets of ELAsTiCC come
(FITS Standard 4.0, section 7.3). Of its types the fixed ones are read (logical, byte, 16- to 64-bit integer, single,
double, text); scaled columns and those of variable length are refused.
"""

import gzip
import math
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.importers.columns import ImportFormatError

BLOCK = 2880
CARD = 80
MAX_HEADER_BLOCKS = 1000
ROWS = 65_536
TYPES = {"L": "S1", "B": "u1", "I": ">i2", "J": ">i4", "K": ">i8", "E": ">f4", "D": ">f8"}

Header = dict[str, str | int | float | bool]
Rows = NDArray[Any]


class Table(NamedTuple):
    """An open binary table: its header, the type of a row, the number of rows and the file at the first of them."""

    header: Header
    row: np.dtype[Any]
    length: int
    file: IO[bytes]
    path: Path

    def blocks(self, rows: int = ROWS) -> Iterator[Rows]:
        """Yield the rows from the first on, ``rows`` at a time; ImportFormatError where the file ends too early."""
        left = self.length
        while left:
            take = min(rows, left)
            data = _read(self.file, take * self.row.itemsize, self.path)
            yield np.frombuffer(data, dtype=self.row)
            left -= take


@contextmanager
def open_table(path: Path) -> Iterator[Table]:
    """Open the first binary table of a file; ImportFormatError when it holds none or is damaged."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        header = _header(file, path)
        if header.get("SIMPLE") is not True:
            raise ImportFormatError(f"{path} is not a FITS file")
        while header.get("XTENSION") != "BINTABLE":
            _skip(file, -(-_data_bytes(header, path) // BLOCK) * BLOCK, path)
            header = _header(file, path)
        row = _row_type(header, path)
        yield Table(header, row, _count(header, "NAXIS2", path), file, path)


def text(values: Rows) -> list[str]:
    """Values of a text column without their padding."""
    return [value.decode("ascii", "replace").strip(" \0") for value in values.tolist()]


def _read(file: IO[bytes], size: int, path: Path) -> bytes:
    try:
        data = file.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ImportFormatError(f"{path} is truncated or damaged: {error}") from error
    if len(data) < size:
        raise ImportFormatError(f"{path} is truncated: {size - len(data)} bytes are missing")
    return data


def _skip(file: IO[bytes], size: int, path: Path) -> None:
    """Read on in pieces: what a header states may be more than memory holds, or than there is."""
    while size:
        size -= len(_read(file, min(size, 1 << 20), path))


def _header(file: IO[bytes], path: Path) -> Header:
    header: Header = {}
    for _ in range(MAX_HEADER_BLOCKS):
        block = _read(file, BLOCK, path).decode("ascii", "replace")
        for at in range(0, BLOCK, CARD):
            card = block[at : at + CARD]
            key = card[:8].strip()
            if key == "END":
                return header
            if card[8:10] == "= ":
                header[key] = _value(card[10:])
    raise ImportFormatError(f"{path} is not a FITS file: its header has no end")


def _value(field: str) -> str | int | float | bool:
    if match := re.match(r"\s*'((?:[^']|'')*)'", field):
        return match[1].replace("''", "'").rstrip()
    word = field.partition("/")[0].strip()
    if word in ("T", "F"):
        return word == "T"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def _data_bytes(header: Header, path: Path) -> int:
    axes = [_count(header, f"NAXIS{axis}", path) for axis in range(1, min(_count(header, "NAXIS", path, 0), 999) + 1)]
    if not axes:
        return 0
    groups, extra = _count(header, "GCOUNT", path, 1), _count(header, "PCOUNT", path, 0)
    bits = header.get("BITPIX")
    if bits not in (8, 16, 32, 64, -32, -64):
        raise ImportFormatError(f"{path}: BITPIX is not one of the standard's")
    return abs(int(bits)) // 8 * groups * (extra + math.prod(axes))


def _count(header: Header, key: str, path: Path, default: int | None = None) -> int:
    value = header.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 40:
        raise ImportFormatError(f"{path}: {key} is no count")
    return value


def _row_type(header: Header, path: Path) -> np.dtype[Any]:
    fields = [_column(header, number, path) for number in range(1, int(header["TFIELDS"]) + 1)]
    row = np.dtype(fields)
    if row.itemsize != header["NAXIS1"]:
        raise ImportFormatError(f"{path}: the columns take {row.itemsize} bytes, a row has {header['NAXIS1']}")
    return row


def _column(header: Header, number: int, path: Path) -> Any:
    name, form = str(header.get(f"TTYPE{number}", f"column{number}")), str(header[f"TFORM{number}"]).strip()
    match = re.fullmatch(r"(\d*)([A-Z])(.*)", form)
    kind = match[2] if match else ""
    scaled = header.get(f"TSCAL{number}", 1) != 1 or header.get(f"TZERO{number}", 0) != 0
    if match is None or scaled or (kind != "A" and kind not in TYPES):
        raise ImportFormatError(f"{path}: column {name} of form {form!r} is scaled or of a type that is not read")
    repeat = int(match[1] or 1)
    if kind == "A":
        return (name, f"S{repeat}")
    return (name, TYPES[kind]) if repeat == 1 else (name, TYPES[kind], (repeat,))
