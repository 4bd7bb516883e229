"""Bodies for ``POST /v1/tables`` that are expensive for their size, or that make a reader fetch or allocate.

Each is within the size limit of the service. Those in formats of libraries were effective while the service read these
formats.
"""

import json
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

MIB: Final = 1 << 20
LIMIT: Final = 8 * MIB - 1024
HEAD: Final = b"name,mjd,filter,mag,mag_err\n"
SPAN: Final = 20_000
"""Number of rows of an object in tables that are read in many steps."""


class Bomb(NamedTuple):
    """Body of an attack and the number of its concurrent senders."""

    make: Callable[[], bytes]
    senders: int = 2


def repeated(piece: bytes, start: bytes = b"", end: bytes = b"", size: int = LIMIT) -> bytes:
    """Repeat a piece up to a size."""
    return start + piece * ((size - len(start) - len(end)) // len(piece)) + end


def unlike_keys() -> bytes:
    """Make rows of which each has a key of its own (840 kB)."""
    return json.dumps([{f"k{row}": 1} for row in range(70_000)]).encode()


def unlike_keys_in_lines() -> bytes:
    """Make JSON Lines of which each has a key of its own."""
    return "\n".join(f'{{"k{row}":1}}' for row in range(70_000)).encode()


def unlike_keys_in_a_row() -> bytes:
    """Make a row with a list of objects, each with a key of its own."""
    return json.dumps([{"name": "a", "points": [{f"k{row}": 1} for row in range(70_000)]}]).encode()


def wide_and_empty() -> bytes:
    """Make a row of many keys, and many rows without keys."""
    keys = ",".join(f'"n{number}":1' for number in range(12_000))
    return repeated(b",{}", f"[{{{keys}}}".encode(), b"]")


def many_columns() -> bytes:
    """Make a CSV of as many columns as fit, in two rows."""
    names = b",".join(b"c%d" % number for number in range(500_000))
    return HEAD[:-1] + b"," + names + b"\n" + b"a,60000,g,20,0.1" + b",1" * 500_000 + b"\n"


def of_one_object(fields: bytes = b"a,6e4,g,20,.1\n") -> bytes:
    """Make as many rows of one object as fit."""
    return repeated(fields, HEAD)


def of_mixed_objects() -> bytes:
    """Make rows in such an order that no object is complete before the end."""
    rows = [b"%x,%d,g,20,.1\n" % (row % 400, 59_000 + row // 400) for row in range(345_000)]
    return HEAD + b"".join(rows)[: LIMIT - 100].rpartition(b"\n")[0]


def of_many_objects() -> bytes:
    """Make a table of two rows for each object."""
    rows = [b"%x,59000,g,20,.1\n%x,59001,g,20,.1\n" % (row, row) for row in range(170_000)]
    return HEAD + b"".join(rows)[: LIMIT - 100].rpartition(b"\n")[0]


def of_many_filters() -> bytes:
    """Make a table in which most rows have a filter of their own."""
    rows = [b"a,%d,%s,20,.1\n" % (59_000 + row, b"x%x" % row if row % 2 else b"g") for row in range(345_000)]
    return HEAD + b"".join(rows)[: LIMIT - 100].rpartition(b"\n")[0]


def wide_rows() -> bytes:
    """Make a table of as many columns as are read, and short cells."""
    names = b",".join(b"c%d" % number for number in range(990))
    return repeated(b"a,60000,g,20,.1" + b",11" * 990 + b"\n", HEAD[:-1] + b"," + names + b"\n")


def lists_in_rows(points: int = 80_000) -> bytes:
    """Make a table whose rows hold long light curves."""
    lists = b",".join(b'"[' + b",".join([text] * points) + b']"' for text in (b"6e4", b"g", b"20", b".1"))
    return repeated(b"a," + lists + b"\n", HEAD, size=4 * MIB)


def columns_in_json(points: int = 600_000) -> bytes:
    """Make a document of one light curve of many points."""
    lists = (("mjd", b"6e4"), ("mag", b"20"), ("mag_err", b".1"), ("filter", b'"g"'))
    columns = b",".join(b'"%s":[%s]' % (name.encode(), b",".join([text] * points)) for name, text in lists)
    return b'{"name":"a",' + columns.replace(b".1", b"1") + b"}"


def lawful_json() -> bytes:
    """Make a table in JSON near the limit."""
    row = '{"name":"%x","mjd":%.4f,"filter":"g","mag":20.1,"mag_err":0.11}'
    return ("[" + ",".join(row % (at // 40, 59_000 + at % 40 + 0.5) for at in range(115_000)) + "]").encode()


def deep() -> bytes:
    """Make a document of deeply nested lists in rows."""
    nested = b"[" * 500 + b"]" * 500
    return repeated(b'{"mjd":%s},' % nested, b"[", b'{"mjd":1}]')


def votable_file() -> bytes:
    """Make a VOTable whose rows are in a file of the service's machine."""
    return (
        b'<?xml version="1.0"?><VOTABLE version="1.3"><RESOURCE><TABLE><FIELD name="name" datatype="char" '
        b'arraysize="64"/><DATA><BINARY><STREAM href="file:///etc/passwd"/></BINARY></DATA></TABLE></RESOURCE></VOTABLE>'
    )


def votable_cells() -> bytes:
    """Make a VOTable with cells of 200,000 values that are empty (315 kB)."""
    return repeated(
        b"<TR><TD/></TR>",
        b'<?xml version="1.0"?><VOTABLE version="1.3"><RESOURCE><TABLE><FIELD name="mjd" datatype="double" '
        b'arraysize="200000"/><DATA><TABLEDATA>',
        b"</TABLEDATA></DATA></TABLE></RESOURCE></VOTABLE>",
        70_000,
    )


def fits_rows() -> bytes:
    """Make a FITS table of ten million rows without a byte (5,760 bytes)."""

    def header(*cards: str) -> bytes:
        return "".join(card.ljust(80) for card in (*cards, "END")).ljust(2880).encode()

    return header("SIMPLE  =                    T", "BITPIX  =                    8", "NAXIS   =                    0",
                  "EXTEND  =                    T") + header(
        "XTENSION= 'BINTABLE'", "BITPIX  =                    8", "NAXIS   =                    2",
        "NAXIS1  =                    0", "NAXIS2  =             10000000", "PCOUNT  =                    0",
        "GCOUNT  =                    1", "TFIELDS =                    1", "TTYPE1  = 'mjd     '",
        "TFORM1  = '0D      '")  # fmt: skip


def ecsv_aliases() -> bytes:
    """Make an ECSV table whose header has merge keys that expand exponentially (856 bytes)."""
    lines = ["# %ECSV 1.0", "# ---", "# a0: &a0 {x: 1}"]
    lines += [f"# a{level}: &a{level}\n#   <<: [{','.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 8)]
    return "\n".join([*lines, "# datatype:", "# - {name: mjd, datatype: float64}", "mjd", "1"]).encode()


BOMBS: Final[Mapping[str, Bomb]] = {
    "table unlike keys": Bomb(unlike_keys),
    "table unlike keys in lines": Bomb(unlike_keys_in_lines),
    "table unlike keys in a row": Bomb(unlike_keys_in_a_row),
    "table wide and empty": Bomb(wide_and_empty),
    "table empty rows": Bomb(lambda: repeated(b"{},", b"[", b"{}]")),
    "table empty lists": Bomb(lambda: repeated(b"[],", b'{"name":"a","mjd":[', b"[]]}")),
    "table short texts": Bomb(lambda: repeated(b'"ab",', b'{"name":"a","mjd":[', b'""]}')),
    "table numbers": Bomb(lambda: repeated(b"1.5,", b'{"name":"a","mjd":[', b"1]}")),
    "table columns in JSON": Bomb(columns_in_json),
    "table lists in rows": Bomb(lists_in_rows),
    "table wide rows": Bomb(wide_rows),
    "table deep": Bomb(deep),
    "table many columns": Bomb(many_columns),
    "table long line": Bomb(lambda: repeated(b"1 ", HEAD + b"a,")),
    "table long list": Bomb(lambda: repeated(b"1 ", HEAD + b"a,[", b"],g,20,.1\n")),
    "table long quote": Bomb(lambda: repeated(b"1\n", HEAD + b'"')),
    "table blanks": Bomb(lambda: repeated(b" ", b"a;b\n1;2", b"1;2\n", 60_000)),
    "table brackets": Bomb(lambda: repeated(b"[", b"a,", b",c\n1,2,3\n1,2,3\n", 60_000)),
    "table of one object": Bomb(of_one_object),
    "table of empty rows": Bomb(lambda: repeated(b"a,,,,\n", HEAD)),
    "table of mixed objects": Bomb(of_mixed_objects),
    "table of many objects": Bomb(of_many_objects),
    "table of many filters": Bomb(of_many_filters),
    "table crowd": Bomb(of_mixed_objects, 16),
    "table crowd in JSON": Bomb(lawful_json, 16),
    "table VOTable file": Bomb(votable_file),
    "table VOTable cells": Bomb(votable_cells),
    "table FITS rows": Bomb(fits_rows),
    "table ECSV aliases": Bomb(ecsv_aliases),
}
"""Attacks by name."""
