"""Formats of files that are not read over HTTP, by their content.

Only text is read: CSV and its relatives, JSON and JSON Lines. The libraries for other formats follow addresses that a
file names, allocate what its header says, or can be crashed by a damaged file.
"""

import re
from collections.abc import Mapping
from typing import Final

from nightjar_alerts.service.http.edge.errors import UNSUPPORTED, ProblemError

HEAD_BYTES: Final = 4096
COMMAND: Final = "`nightjar classify FILE --url URL`"
ADVICE: Final = f"{COMMAND}, which reads the file on your machine and sends its light curves"
MULTIPART: Final = (
    "a form (multipart/form-data) is not read: send the file itself, with curl --data-binary @FILE instead of -F"
)

_COMPRESSED: Final = {
    rb"\x1f\x8b": "gzip",
    rb"BZh[1-9]1AY": "bzip2",
    rb"\xfd7zXZ\x00": "xz",
    rb"\x28\xb5\x2f\xfd": "zstd",
    rb"\x04\x22\x4d\x18": "lz4",
    rb"7z\xbc\xaf\x27\x1c": "7z",
    rb"Rar!\x1a": "rar",
}
_OTHERS: Final = {
    rb"PAR1": "Parquet",
    rb"ARROW1\x00": "Arrow",
    rb"Obj\x01": "Avro",
    rb"\x89HDF": "HDF5",
    rb"CDF[\x01\x02\x05]": "NetCDF",
    rb"\x93NUMPY": "NumPy",
    rb"SQLite format 3\x00": "SQLite",
    rb"%PDF-": "PDF",
    rb"\xd0\xcf\x11\xe0": "an old Excel workbook",
    rb"SIMPLE\s{0,2}=": "FITS",
    rb"#\s?%ECSV": "ECSV",
    rb"(?is)<(\?xml\b.{0,2000}?<)?(\w+:)?VOTABLE\b": "VOTable",
    rb"(?i)<!doctype html|<html": "a web page (HTML)",
    rb"(?i)<\?xml|<!--|<!doctype|<[a-z_][\w.:-]*(\s+[\w.:-]+\s*=|\s*/?>)": "XML",
}
"""Regular expression of the first bytes, and name of the format."""
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def check_format(data: bytes) -> None:
    """Raise ProblemError (415) unless a body looks like text that the reader of tables takes.

    The reader itself refuses what looks like text and is none, and formats that a name or an option states.
    """
    head = data[:HEAD_BYTES]
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"--") and b"content-disposition: form-data" in head.lower():
        raise ProblemError(UNSUPPORTED, MULTIPART)
    if compression := _find(_COMPRESSED, head):
        sent = f", or send it with Content-Encoding: {compression}" if compression in ("gzip", "zstd") else ""
        detail = f"compressed data ({compression}) are not read: unpack them{sent}, or use {ADVICE}"
        raise ProblemError(UNSUPPORTED, detail)
    if head.startswith(b"PK\x03\x04"):
        if b"xl/" in data or b"[Content_Types].xml" in head:
            detail = f"an Excel workbook is not read: save the sheet as CSV, for here or {COMMAND}"
            raise ProblemError(UNSUPPORTED, detail)
        raise ProblemError(UNSUPPORTED, f"a zip archive is not read: unpack it, for here or {COMMAND}")
    found = _find(_OTHERS, start)
    if not found and _CONTROL.search(head) and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        found = "a binary file"
    if found:
        raise unsupported(found)


def _find(formats: Mapping[bytes, str], start: bytes) -> str:
    return next((name for pattern, name in formats.items() if re.match(pattern, start)), "")


def unsupported(name: str) -> ProblemError:
    """Return the problem (415) of a table in a format that is not read over HTTP."""
    return ProblemError(UNSUPPORTED, f"{name} is not read over HTTP: send CSV or JSON, or use {ADVICE}")
