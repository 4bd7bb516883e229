"""What kind of file this is, by its first bytes and its name: the one place that decides it for every interface."""

import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Mapping
from pathlib import Path
from typing import Final

HEAD_BYTES: Final = 1 << 16
"""Number of bytes that show the format of a file."""
SUFFIXES: Final[Mapping[str, str]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt", ".dat", ".ascii", ".asc", ".tbl", ".lc", ".tab", ".phot"), "csv"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".json": "json",
    ".ecsv": "ecsv",
    **dict.fromkeys((".fits", ".fit", ".fts"), "fits"),
    **dict.fromkeys((".vot", ".votable", ".xml"), "votable"),
    **dict.fromkeys((".parquet", ".pq", ".parq"), "parquet"),
}
"""Format of a table by file suffix; a compression suffix may follow."""
COMPRESSIONS: Final = (".gz", ".bz2", ".xz", ".zst")
TABLE_FORMATS: Final = frozenset({"csv", "ecsv", "fits", "votable", "ipac", "parquet"})
"""Formats of tables only; JSON may also hold alerts or light curves."""
_OTHER_SUFFIXES: Final = {
    **{".xlsx": "xlsx", ".xls": "xls", ".ods": "ods", ".zip": "zip", ".tex": "latex", ".npy": "numpy", ".npz": "numpy"},
    **{".html": "html", ".htm": "html", ".h5": "hdf5", ".hdf5": "hdf5", ".hdf": "hdf5", ".pdf": "pdf"},
    **{".avro": "avro", ".pkl": "pickle", ".pickle": "pickle"},
}
_MAGIC: Final[Mapping[bytes, str]] = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a": "rar",
    b"ARROW1\x00": "arrow",
    b"Obj\x01": "avro",
    b"\x89HDF": "hdf5",
    b"CDF\x01": "netcdf",
    b"CDF\x02": "netcdf",
    b"\x93NUMPY": "numpy",
    b"SQLite format 3\x00": "sqlite",
    b"%PDF-": "pdf",
    b"\xd0\xcf\x11\xe0": "xls",
    b"PAR1": "parquet",
}
ADVICE: Final[Mapping[str, str]] = {
    "xlsx": "an Excel workbook, which is not read: save the sheet as CSV",
    "xls": "an Excel workbook, which is not read: save the sheet as CSV",
    "ods": "a spreadsheet, which is not read: save the sheet as CSV",
    "zip": "a zip archive, which is not read: unpack it",
    "7z": "a 7z archive, which is not read: unpack it",
    "rar": "a rar archive, which is not read: unpack it",
    "hdf5": "an HDF5 file, which is not read: read it with pandas or h5py, and pass the frame to Classifier.classify",
    "netcdf": "a NetCDF file, which is not read: read it with xarray, and pass to_dataframe() to Classifier.classify",
    "numpy": "a NumPy file, which is not read: load it with numpy, and pass a structured array to Classifier.classify",
    "pickle": "a Python pickle, which is not read: load it, and pass the data frame to Classifier.classify",
    "arrow": "an Arrow file, which is not read: write it as Parquet",
    "sqlite": "an SQLite database, which is not read: export the table as CSV",
    "html": "a web page (HTML), not a table: the server may have sent an error or a login page",
    "xml": "XML, but not a VOTable: write the table as CSV or VOTable",
    "latex": "LaTeX, which is not read: write the table as CSV, with astropy for example",
    "markdown": "a Markdown table, which is not read: write it as CSV",
    "pdf": "a PDF document, not a table",
    "text": "text without columns: neither a table nor JSON nor an alert",
}
"""What formats are that are not read, and what to do."""
_MARKUP: Final = re.compile(
    rb"(?P<html><!doctype html|<html|<head|<body)|<\?xml|<!--|<!doctype|<[a-z_][\w.:-]*(\s+[\w.:-]+\s*=|\s*/?>)",
    re.IGNORECASE,
)
_HTML: Final = re.compile(rb"<!doctype html|<html|<head\b|<body\b", re.IGNORECASE)
_LATEX: Final = re.compile(
    rb"^\\(documentclass|begin\{|startdata|tablehead|usepackage)|^[^\n]{0,500}&[^\n]{0,500}\\\\[ \t]*\r?$", re.MULTILINE
)
_MARKDOWN: Final = re.compile(rb"^\|?[ \t]*:?-{3,}:?[ \t]*(\|[ \t]*:?-{3,}:?[ \t]*)+\|?[ \t]*\r?$", re.MULTILINE)
_SALT: Final = re.compile(rb"^#[ \t]{0,9}Date[ \t]{0,9}:.{0,99}\n#", re.MULTILINE)
"""Names of columns in a light curve of SALT, whose files have any ending."""
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Characters that text has not; of UTF-16, which begins with a mark, every second byte may be one."""
CHECKED_TEXT: Final = 4096


def format_of(name: str, head: bytes) -> str:
    """Return the format of a file: by its first bytes, if they show one, else by its name.

    Parameters
    ----------
    name : of the file, empty if it has none. head : first bytes, up to :data:`HEAD_BYTES`, as they are stored.

    Returns
    -------
    A format of tables, a compression, ``json`` (documents and lines), ``avro``, a key of :data:`ADVICE`, or empty.
    Text that shows no format is that of the name, ``csv`` if it has columns, and else ``text``.
    """
    if found := _format_of_content(head):
        return found
    named = format_of_name(name)
    if named or is_binary(head):
        return named
    if _has_columns(head):
        return "csv"
    return "text" if _is_text(head) else ""


def format_of_name(name: str) -> str:
    """Return the format that a file's name shows, empty if none."""
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    while suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    last = suffixes[-1] if suffixes else ""
    return SUFFIXES.get(last) or _OTHER_SUFFIXES.get(last, "")


def stem_of(name: str) -> str:
    """Return a file's name without folder and the suffixes of tables and compressions."""
    path = Path(name)
    while path.suffix.lower() in (*COMPRESSIONS, *SUFFIXES):
        path = path.with_suffix("")
    return path.name


def _format_of_content(head: bytes) -> str:
    start = head.removeprefix(BOM_UTF8).lstrip()
    for magic, form in _MAGIC.items():
        if head.startswith(magic):
            return _kind_of_zip(head) if form == "zip" else form
    if start.startswith(b"SIMPLE  ="):
        return "fits"
    if start.startswith(b"# %ECSV"):
        return "ecsv"
    if start.startswith(b"<"):
        if b"VOTABLE" in head[:CHECKED_TEXT].upper():
            return "votable"
        if markup := _MARKUP.match(start):
            return "html" if markup["html"] or _HTML.search(start[:CHECKED_TEXT]) else "xml"
    if start.startswith((b"{", b"[")):
        return "json"
    if start.startswith((b"@", b"#")) and _SALT.search(start[:CHECKED_TEXT]):
        return "csv"
    if _LATEX.search(start[:CHECKED_TEXT]):
        return "latex"
    lines = [line for line in start[:CHECKED_TEXT].splitlines()[:9] if not line.startswith(b"\\")]
    if lines and lines[0].startswith(b"|") and not all(line.startswith(b"|") for line in lines):
        return "ipac"
    return "markdown" if _MARKDOWN.search(start[:CHECKED_TEXT]) else ""


def _kind_of_zip(head: bytes) -> str:
    if b"xl/" in head or b"[Content_Types].xml" in head:
        return "xlsx"
    if b"opendocument" in head[:CHECKED_TEXT]:
        return "ods"
    return "numpy" if b".npy" in head[:CHECKED_TEXT] else "zip"


def is_binary(data: bytes) -> bool:
    """Return True for data that are no text."""
    return bool(_CONTROL.search(data[:CHECKED_TEXT])) and not data.startswith((BOM_UTF16_LE, BOM_UTF16_BE))


def _is_text(head: bytes) -> bool:
    """Return True for printable text, which no packet is."""
    try:
        text = head[:CHECKED_TEXT].decode("utf-8", "strict" if len(head) < CHECKED_TEXT else "ignore")
    except UnicodeDecodeError:
        return False
    return bool(text.strip()) and "".join(text.split()).isprintable()


def _has_columns(head: bytes) -> bool:
    """Return True if text looks like a table: its first three lines have a separator."""
    try:
        text = head[:CHECKED_TEXT].decode("utf-8", errors="strict" if len(head) < CHECKED_TEXT else "ignore")
    except UnicodeDecodeError:
        return False
    lines = [line for line in text.splitlines() if line.strip()]
    return len(lines) > 2 and all(any(mark in line for mark in ",;|\t") for line in lines[:3])
