"""Formats of files that are not read over HTTP, and what their senders can do.

Only text is read: CSV and its relatives, JSON and JSON Lines. The libraries for other formats follow addresses that a
file names, allocate what its header says, or can be crashed by a damaged file.
"""

from codecs import BOM_UTF8
from typing import Final

from nightjar_alerts.service.http.edge.errors import UNSUPPORTED, ProblemError
from nightjar_alerts.tables import sniff

COMMAND: Final = "`nightjar classify FILE --url URL`"
ADVICE: Final = f"{COMMAND}, which reads the file on your machine and sends its light curves"
MULTIPART: Final = (
    "a form (multipart/form-data) is not read: send the file itself, with curl --data-binary @FILE instead of -F"
)
_COMPRESSIONS: Final = ("gzip", "bzip2", "xz", "zstd", "7z", "rar")
_NAMES: Final = {
    "fits": "FITS",
    "votable": "VOTable",
    "ecsv": "ECSV",
    "ipac": "an IPAC table",
    "parquet": "Parquet",
    "hats": "HATS",
    "arrow": "Arrow",
    "avro": "Avro",
    "hdf5": "HDF5",
    "netcdf": "NetCDF",
    "numpy": "NumPy",
    "sqlite": "SQLite",
    "pdf": "PDF",
    "binary": "a binary file",
}


def check_text(data: bytes) -> None:
    """Raise ProblemError (415) for a form, markup or a binary file, which the reader of tables takes for bad text."""
    head = data[: sniff.HEAD_BYTES]
    start = head.removeprefix(BOM_UTF8).lstrip()
    if start.startswith(b"--") and b"content-disposition: form-data" in head.lower():
        raise ProblemError(UNSUPPORTED, MULTIPART)
    form = sniff.format_of("", head)
    if form in ("html", "xml"):
        raise _unsupported("a web page (HTML)" if form == "html" else "XML")


def unsupported(form: str, data: bytes) -> ProblemError:
    """Return the problem (415) of a table.

    Parameters
    ----------
    form : as in :class:`nightjar_alerts.tables.UnsupportedFormat`.
    """
    if form in _COMPRESSIONS:
        sent = f", or send it with Content-Encoding: {form}" if form in ("gzip", "zstd") else ""
        detail = f"compressed data ({form}) are not read: unpack them{sent}, or use {ADVICE}"
        return ProblemError(UNSUPPORTED, detail)
    if form in ("xlsx", "xls"):
        return ProblemError(UNSUPPORTED, f"an Excel workbook is not read: save the sheet as CSV, for here or {COMMAND}")
    if form == "zip":
        return ProblemError(UNSUPPORTED, f"a zip archive is not read: unpack it, for here or {COMMAND}")
    if form in ("latex", "markdown", "ods", "pickle"):  # the command does not read them either
        return ProblemError(UNSUPPORTED, f"the body is {sniff.ADVICE[form]}")
    return _unsupported(_NAMES.get(form, form))


def _unsupported(name: str) -> ProblemError:
    return ProblemError(UNSUPPORTED, f"{name} is not read over HTTP: send CSV or JSON, or use {ADVICE}")
