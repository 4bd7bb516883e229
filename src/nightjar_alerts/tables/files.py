"""Opening a table: its format, and the source that reads it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from nightjar_alerts.tables.bounds import COMPRESSIONS, FILE_BOUNDS, FORMATS, Bounds, UnsupportedFormat
from nightjar_alerts.tables.columns import TableColumns
from nightjar_alerts.tables.documents import DocumentSource, JsonLinesSource, loads
from nightjar_alerts.tables.libraries import (
    MemorySource,
    ParquetSource,
    batch_of,
    library_of,
    read_with_astropy,
    snana_pair,
)
from nightjar_alerts.tables.options import TableError
from nightjar_alerts.tables.sniff import ADVICE, HEAD_BYTES, TABLE_FORMATS, format_of, format_of_name, stem_of
from nightjar_alerts.tables.streams import Problems, Stream
from nightjar_alerts.tables.text import TextSource

MAX_PROPERTIES: Final = 1 << 16
Data = Any
"""A path, bytes, a binary file, a mapping of columns, or a table of pandas, pyarrow or astropy."""


def is_file(data: Data) -> bool:
    """Return True for a path and for the content of a file, and False for tables in memory."""
    return isinstance(data, str | Path | bytes | bytearray | memoryview) or (
        hasattr(data, "read") and not library_of(data)
    )


class TableSource(Protocol):
    """A table that can be read several times, a bounded number of rows at a time.

    ``name``: used in messages. ``stem``: object id if the table has no id column. ``header``: names of the columns.
    ``units``: those that the table states, by column. ``problems``: malformed rows of the last pass. ``progress``: the
    fraction that it has read.
    """

    name: str
    stem: str
    header: tuple[str, ...]
    units: Mapping[str, str]
    problems: Problems

    @property
    def progress(self) -> float:
        """Fraction that the last pass has read."""

    def batches(self, names: Sequence[str] | None = None) -> Iterator[TableColumns]:
        """Yield the named columns, or all."""


def is_table(path: Path) -> bool:
    """Return whether the path has a table suffix or is a HATS catalogue."""
    if not path.is_file():
        return is_hats(path)
    other = snana_pair(path)
    return format_of_name(path.name) in (*TABLE_FORMATS, "json", "jsonl") and not (
        other is not None and "HEAD" in other.name
    )


def open_source(
    data: Data,
    form: str = "",
    name: str = "",
    bounds: Bounds = FILE_BOUNDS,
    checkpoint: Callable[[], None] = lambda: None,
) -> TableSource:
    """Open a table.

    Parameters
    ----------
    data : path of a file or of a HATS catalogue, content as bytes or binary file, or a table in memory.
    form : format, if the name does not show it.
    name : of content without a path, for messages and to find the format.
    bounds : formats and sizes that are read. Tables in memory have no bounds.
    checkpoint : called after each portion of a text; may raise.

    Raises
    ------
    TableError
        When it cannot be read: :class:`MissingExtra` when a library is missing, :class:`UnsupportedFormat` and
        :class:`TableTooLarge` beyond the bounds.
    """
    content = data
    if hasattr(data, "batches"):  # a source of this module
        source: TableSource = data
        return source
    if isinstance(data, str | Path):
        content, name = Path(data), str(data)
        if not content.exists():
            raise TableError(f"{name} does not exist")
        if content.is_dir() or form == "hats":
            _check_format("hats", name, bounds)
            files = hats_partitions(content) if content.is_dir() else [content]
            return ParquetSource(files, name, content.stem, bounds)
    elif isinstance(data, bytearray | memoryview):
        content = bytes(data)
    elif not is_file(data):
        batch, units = batch_of(data)
        return MemorySource(batch, name or "the table", units=units)
    name = name or str(getattr(data, "name", "the table"))
    return _open_stream(Stream(name, stem_of(name), content, bounds, checkpoint), form, name, bounds)


def _check_format(form: str, name: str, bounds: Bounds) -> None:
    """Raise UnsupportedFormat if a format is not read."""
    if form not in bounds.formats:
        detail = f"{name} is {ADVICE[form]}" if form in ADVICE else f"{name} is not read here: its format is {form}"
        raise UnsupportedFormat(detail, form)


def _open_stream(stream: Stream, form: str, name: str, bounds: Bounds) -> TableSource:
    if (compression := format_of("", stream.start())) in COMPRESSIONS:
        _check_format(compression, stream.name, bounds)
    head = stream.head()
    if not head:
        raise TableError(f"{stream.name} is empty")
    form = _format(head, form or format_of_name(name))
    _check_format(form, stream.name, bounds)
    if form == "parquet":
        return ParquetSource([stream.content], stream.name, stream.stem, bounds)
    if form in ("fits", "votable", "ecsv", "ipac"):
        batch, units, stated = read_with_astropy(stream, form)
        return MemorySource(batch, stream.name, stated or stream.stem, units)
    if form == "jsonl":
        return JsonLinesSource(stream)
    if form == "json":
        try:
            return DocumentSource(stream)
        except TableError:
            raise
        except ValueError as error:
            if b"\n" in head.strip():  # JSON Lines, the first of which is damaged
                return JsonLinesSource(stream)
            raise TableError(f"{stream.name} is not a JSON document: {error}") from None
    return TextSource(stream)


def _format(head: bytes, form: str) -> str:
    """Return the format of the first bytes, which counts more than ``form``, that of the options or the name."""
    found = "csv" if (sniffed := format_of("", head)) == "text" else sniffed
    if found == "json" or (form in ("json", "jsonl") and found in ("", "csv")):
        line = head.removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")[0]
        try:
            return "jsonl" if isinstance(loads(line), dict) else "json"
        except ValueError:
            return "json"
    if found in ("", "csv") and form in ("parquet", "fits", "votable", "hats"):
        raise TableError(f"the content is not {form}, unlike its name or the option format")
    if found not in ("", "csv"):
        return found
    return form if form in FORMATS else "csv"


def head_of(path: Path, size: int = HEAD_BYTES) -> bytes:
    """Return the first bytes of a file, decompressed; as they are stored if they are damaged."""
    stream = Stream(str(path), path.stem, path)
    try:
        with stream.open() as content:
            return content.read(size)
    except TableError:
        return stream.start()


def is_hats(folder: Path) -> bool:
    """Return True for the folder of a HATS catalogue or collection."""
    marks = ("hats.properties", "properties", "collection.properties")
    if not folder.is_dir():
        return False
    has_pixels = any(any(root.glob("Norder=*")) for root in (folder, folder / "dataset"))
    return any((folder / mark).is_file() for mark in marks) or (has_pixels and bool(_partitions(folder, 1)))


def hats_partitions(source: Path) -> list[Path]:
    """Return the Parquet files of a HATS catalogue, pixel by pixel; of a collection, those of its primary catalogue.

    The margin and index tables of a collection repeat objects and are not read, nor are the ``_metadata`` files.

    Raises
    ------
    TableError
        When there is no ``Norder=*/Dir=*/Npix=*`` below ``source``, or the primary catalogue or a file is outside it.
    """
    catalogue = source
    properties = source / "collection.properties"
    if properties.is_file():
        with properties.open("rb") as file:
            lines = [line.partition("=") for line in file.read(MAX_PROPERTIES).decode("utf-8", "replace").splitlines()]
        named = {key.strip(): value.strip() for key, _, value in lines}
        catalogue = source / named.get("hats_primary_table_url", ".")
    root = source.resolve()
    if not catalogue.resolve().is_relative_to(root):
        raise TableError(f"{source} names a catalogue outside its folder, which is not read: {catalogue}")
    if not (paths := sorted(_partitions(catalogue))):
        raise TableError(f"{source} is not a HATS catalogue: it holds no Norder=*/Dir=*/Npix=* Parquet files")
    if outside := next((path for path in paths if not path.resolve().is_relative_to(root)), None):
        raise TableError(f"{outside} is a link out of {source}, which is not followed")
    return paths


def _partitions(folder: Path, most: int = 0) -> list[Path]:
    found = []
    for path in folder.rglob("*.parquet"):
        if all(any(part.startswith(f"{key}=") for part in path.parts) for key in ("Norder", "Dir", "Npix")):
            found.append(path)
            if most and len(found) == most:
                break
    return found
