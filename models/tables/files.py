"""Opening a table: which format it has, and sources that need pandas, pyarrow or astropy (the ``tables`` extra)."""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, Protocol

import numpy as np

from nightjar_alerts.models.tables.columns import Array, Batch, Column, Lists, object_column
from nightjar_alerts.models.tables.options import MissingExtra, TableError
from nightjar_alerts.models.tables.text import (
    BATCH_ROWS,
    JsonSource,
    Problems,
    Stream,
    TextSource,
    lists_of,
    loads,
    stream_of,
)

PARQUET_SUFFIXES: Final = (".parquet", ".pq", ".parq")
SUFFIXES: Final[Mapping[str, str]] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".dat": "csv",
    ".ascii": "csv",
    ".asc": "csv",
    ".tbl": "csv",
    ".lc": "csv",
    ".tab": "csv",
    ".phot": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".ecsv": "ecsv",
    ".fits": "fits",
    ".fit": "fits",
    ".fts": "fits",
    ".vot": "votable",
    ".votable": "votable",
    ".xml": "votable",
    **dict.fromkeys(PARQUET_SUFFIXES, "parquet"),
}
"""Formats by the end of a file's name, behind which .gz, .bz2 and .xz may stand."""
BATCH_OBJECTS: Final = 512
"""Rows of a table whose rows hold whole light curves."""

Data = Any
"""A path, bytes, a binary file, a mapping of columns, or a table of pandas, pyarrow or astropy."""


class Source(Protocol):
    """A table that can be read several times, a bounded number of rows at a time.

    ``name`` stands in messages, ``stem`` names the object of a table without ids, ``header`` the columns, ``units``
    those that the table states, ``has_header`` whether the names are the table's own, ``problems`` the malformed rows
    of the last pass and ``progress`` the fraction that it has read.
    """

    name: str
    stem: str
    header: tuple[str, ...]
    units: Mapping[str, str]
    has_header: bool
    problems: Problems

    @property
    def progress(self) -> float:
        """Fraction that the last pass has read."""

    def batches(self, names: Sequence[str] | None = None) -> Iterator[Batch]:
        """Yield the named columns, or all."""


def is_table(path: Path) -> bool:
    """Return True for a file whose name ends like a table's, and for the folder of a HATS catalogue."""
    if not path.is_file():
        return is_hats(path)
    other = _snana_pair(path)
    return bool(_format_of_name(path.name)) and not (other is not None and "HEAD" in other.name)


def _snana_pair(path: Path) -> Path | None:
    """Return the PHOT file of SNANA's HEAD file, or the other way round, where both are there."""
    for one, other in (("_HEAD.FITS", "_PHOT.FITS"), ("_PHOT.FITS", "_HEAD.FITS")):
        if one in path.name and (pair := path.with_name(path.name.replace(one, other))).is_file():
            return pair
    return None


def _format_of_name(name: str) -> str:
    name = name.lower()
    for ending in (".gz", ".bz2", ".xz"):
        name = name.removesuffix(ending)
    return SUFFIXES.get(Path(name).suffix, "")


def _stem(name: str) -> str:
    path = Path(name)
    while path.suffix.lower() in (".gz", ".bz2", ".xz", *SUFFIXES):
        path = path.with_suffix("")
    return path.name


def open_source(data: Data, form: str = "", name: str = "") -> Source:
    """Open a table.

    Parameters
    ----------
    data : path of a file or of a HATS catalogue, content as bytes or binary file, or a table in memory.
    form : format, if the name does not show it.
    name : of content without a path, for messages and to find the format.

    Raises
    ------
    TableError
        When it cannot be read; :class:`MissingExtra` when a library is missing.
    """
    if isinstance(data, str | Path):
        return _open_path(Path(data), form)
    if isinstance(data, bytes | bytearray | memoryview):
        return _open_stream(Stream(name or "the table", _stem(name), bytes(data)), form or _format_of_name(name))
    if hasattr(data, "read") and not _is_of_library(data):
        name = name or str(getattr(data, "name", "the table"))
        return _open_stream(stream_of(name, _stem(name), data), form or _format_of_name(name))
    return _in_memory(data, name or "the table")


def _open_path(path: Path, form: str) -> Source:
    if not path.exists():
        raise TableError(f"{path} does not exist")
    if path.is_dir():
        return ParquetSource(hats_partitions(path), str(path))
    if form == "hats":
        return ParquetSource([path], str(path))
    return _open_stream(Stream(str(path), _stem(path.name), path), form or _format_of_name(path.name))


def _open_stream(stream: Stream, form: str) -> Source:
    head = stream.head()
    if not head:
        raise TableError(f"{stream.name} is empty")
    form = _format_of_content(head, form)
    if form == "parquet":
        return ParquetSource([stream.content], stream.name, stream.stem)
    if form in ("fits", "votable", "ecsv"):
        with stream.open() as content:
            return _astropy_file(content, form, stream)
    if form in ("json", "jsonl"):
        try:
            return JsonSource(stream, lines=form == "jsonl")
        except TableError:
            if form == "json" and b"\n" in head.strip():  # JSON Lines by another name
                return JsonSource(stream, lines=True)
            raise
    return TextSource(stream)


def _format_of_content(head: bytes, form: str) -> str:
    """Return the format of the first bytes, which counts more than the name's; otherwise ``form``, or text."""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:512]
    if head[:4] == b"PAR1":
        return "parquet"
    if start.startswith(b"SIMPLE  ="):
        return "fits"
    if start.startswith(b"# %ECSV"):
        return "ecsv"
    if start.startswith(b"<") and b"VOTABLE" in head[:4096].upper():
        return "votable"
    if start.startswith((b"{", b"[")) and form not in ("json", "jsonl"):
        first = head.lstrip().partition(b"\n")[0]
        try:
            loads(first)
        except ValueError:
            return "json"
        return "jsonl" if start.startswith(b"{") else "json"
    if form in ("parquet", "fits", "votable", "hats"):
        raise TableError(f"the content is not {form}, unlike its name")
    return form


def _library(name: str, what: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        library = name.partition(".")[0]
        message = f"{what} needs {library}: install nightjar-alerts with the extra tables (nightjar-alerts[tables])"
        raise MissingExtra(message) from error


class ParquetSource:
    """Parquet files with the same columns: one file, or the partitions of a HATS catalogue."""

    def __init__(self, files: Sequence[Path | bytes | IO[bytes]], name: str, stem: str = "") -> None:
        self._parquet = _library("pyarrow.parquet", f"{name} (Parquet)")
        self._arrow = import_module("pyarrow")
        self._files = list(files)
        self.name, self.stem = name, stem or _stem(Path(name).name)
        self.problems = Problems()
        self.has_header = True
        self._done = 0.0
        with self._open(0) as file:
            schema = file.schema_arrow
            self._rows = file.metadata.num_rows
        self.header = tuple(_flat_names(schema))
        self.units: Mapping[str, str] = {}

    @contextmanager
    def _open(self, index: int) -> Iterator[Any]:
        file = self._files[index]
        try:
            with self._parquet.ParquetFile(io.BytesIO(file) if isinstance(file, bytes) else file) as opened:
                yield opened
        except (self._arrow.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            where = file if isinstance(file, Path) else self.name
            raise TableError(f"{where} cannot be read: {error}") from error

    @property
    def progress(self) -> float:
        """Fraction that the last pass has read."""
        return self._done

    def batches(self, names: Sequence[str] | None = None) -> Iterator[Batch]:
        """Yield the named columns, or all."""
        self._done = 0.0
        for index in range(len(self._files)):
            with self._open(index) as file:
                schema = file.schema_arrow
                roots = _roots(schema, names)
                nested = any(_is_nested(schema.field(root).type) for root in roots)
                size, rows, read = BATCH_OBJECTS if nested else BATCH_ROWS, max(1, file.metadata.num_rows), 0
                for batch in file.iter_batches(size, columns=roots):
                    read += len(batch)
                    self._done = (index + read / rows) / len(self._files)
                    yield arrow_batch(batch, names)
        self._done = 1.0


def _flat_names(schema: Any) -> Iterator[str]:
    for field in schema:
        yield from _flat_names_of(field.name, field.type)


def _flat_names_of(name: str, kind: Any) -> Iterator[str]:
    pa = import_module("pyarrow")
    inner = kind.value_type if _is_list(kind) else kind
    if pa.types.is_struct(inner):
        for field in inner:
            yield from _flat_names_of(f"{name}.{field.name}", field.type)
    else:
        yield name


def _roots(schema: Any, names: Sequence[str] | None) -> list[str]:
    if names is None:
        return list(schema.names)
    return [root for root in schema.names if any(name == root or name.startswith(f"{root}.") for name in names)]


def _is_list(kind: Any) -> bool:
    types = import_module("pyarrow").types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_nested(kind: Any) -> bool:
    return _is_list(kind) or bool(import_module("pyarrow").types.is_struct(kind))


def arrow_batch(batch: Any, names: Sequence[str] | None = None) -> Batch:
    """Return an Arrow record batch, structs and lists of structs as dotted names."""
    columns: Batch = {}
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        columns |= _arrow_columns(name, array)
    return columns if names is None else {name: columns[name] for name in names if name in columns}


def _arrow_columns(name: str, array: Any) -> Batch:
    pa = import_module("pyarrow")
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _arrow_columns(name, array.storage)
    if pa.types.is_struct(kind):
        fields = zip(kind, array.flatten(), strict=True)
        return {
            key: column
            for field, values in fields
            for key, column in _arrow_columns(f"{name}.{field.name}", values).items()
        }
    if not _is_list(kind):
        return {name: _arrow_values(array)}
    if pa.types.is_fixed_size_list(kind):
        array = array.cast(pa.list_(kind.value_type))
    lengths = np.asarray(pa.compute.list_value_length(array).fill_null(0)) if array.null_count else None
    lengths = np.diff(array.offsets.to_numpy()) if lengths is None else lengths
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    inner = _arrow_columns(name, array.flatten())
    return {key: Lists(offsets, values) for key, values in inner.items() if isinstance(values, np.ndarray)}


def _arrow_values(array: Any) -> Array:
    pa = import_module("pyarrow")
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    if pa.types.is_decimal(kind):
        array, kind = array.cast(pa.float64()), pa.float64()
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return np.asarray(array.cast(pa.timestamp("ns")).to_numpy(zero_copy_only=False))
    if pa.types.is_boolean(kind):
        return np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)
    if (pa.types.is_integer(kind) and not array.null_count) or pa.types.is_floating(kind):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    return object_column(array.to_pylist())  # text, and integers with nulls, whose digits a float would lose


class MemorySource:
    """A table in memory: a batch of all columns."""

    def __init__(self, batch: Batch, name: str, stem: str = "", units: Mapping[str, str] | None = None) -> None:
        self.name, self.stem = name, stem
        self.header = tuple(batch)
        self.units: Mapping[str, str] = units or {}
        self.has_header = True
        self.problems = Problems()
        self._batch = batch
        self._done = 0.0
        lengths = {column: len(values) for column, values in batch.items()}
        if len(set(lengths.values())) > 1:
            raise TableError(f"{name}: columns differ in length: {lengths}")
        self._rows = next(iter(lengths.values()), 0)

    @property
    def progress(self) -> float:
        """Fraction that the last pass has read."""
        return self._done

    def batches(self, names: Sequence[str] | None = None) -> Iterator[Batch]:
        """Yield the named columns, or all."""
        for start in range(0, self._rows, BATCH_ROWS):
            self._done = start / self._rows
            rows = slice(start, start + BATCH_ROWS)
            yield {name: _part(column, rows) for name, column in self._batch.items() if names is None or name in names}
        self._done = 1.0


def _part(column: Column, rows: slice) -> Column:
    if not isinstance(column, Lists):
        return column[rows]
    offsets = column.offsets[rows.start : rows.stop + 1]
    return Lists(offsets - offsets[0], column.values[offsets[0] : offsets[-1]])


def _is_of_library(data: Data) -> bool:
    return type(data).__module__.partition(".")[0] in ("astropy", "nested_pandas", "pandas", "pyarrow")


def _in_memory(data: Data, name: str) -> Source:
    """Open a table of pandas, pyarrow or astropy, a mapping of columns, or a list of rows. Raises TableError."""
    module = type(data).__module__.partition(".")[0]
    if module == "pyarrow":
        table = data if hasattr(data, "combine_chunks") else import_module("pyarrow").table(data)
        batches = table.combine_chunks().to_batches()
        batch: Batch = {field: object_column([]) for field in table.schema.names}
        batch = arrow_batch(batches[0]) if batches else batch
        return MemorySource(batch, name)
    if module in ("pandas", "nested_pandas"):
        return MemorySource(_pandas_batch(data), name)
    if module == "astropy":
        return _astropy_source(data, name)
    if isinstance(data, np.ndarray) and data.dtype.names:
        return MemorySource({field: _array_column(data[field]) for field in data.dtype.names}, name)
    if isinstance(data, Mapping):
        return MemorySource({str(key): _any_column(values) for key, values in data.items()}, name)
    if isinstance(data, Sequence) and data and all(isinstance(row, Mapping) for row in data):
        keys = dict.fromkeys(str(key) for row in data for key in row)
        return MemorySource({key: _any_column([row.get(key) for row in data]) for key in keys}, name)
    raise TableError(f"a {type(data).__name__} is not a table")


def _any_column(values: Any) -> Column:
    if isinstance(values, np.ndarray) and values.dtype != np.object_:
        return _array_column(values)
    values = list(values)
    if any(isinstance(value, list | tuple | np.ndarray) for value in values):
        rows: list[Any] = [value if isinstance(value, list | tuple | np.ndarray) else None for value in values]
        return lists_of(rows)
    if values and all(isinstance(value, float | int) and not isinstance(value, bool) for value in values):
        return np.array(values)
    if values and all(isinstance(value, bool | np.bool_) for value in values):
        return np.array(values, np.bool_)
    return object_column(values)


def _array_column(values: Array) -> Column:
    """Return an array with native byte order; a row of a second axis becomes a list."""
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace").astype(np.object_)
    elif values.dtype.kind == "U":
        values = values.astype(np.object_)
    elif not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if values.ndim > 1:
        values = values.reshape(len(values), -1)
        return Lists(np.arange(len(values) + 1, dtype=np.int64) * values.shape[1], values.reshape(-1))
    return values


def _pandas_batch(frame: Any) -> Batch:
    """Return the columns of a data frame; its index counts where it has a name."""
    if any(name is not None for name in frame.index.names):
        kept = [name for name in frame.index.names if name is not None and name not in frame.columns]
        frame = frame.reset_index(level=kept) if kept else frame
    batch: Batch = {}
    for name in frame.columns:
        series = frame[name]
        kind = str(series.dtype)
        if kind.startswith("nested<") or "pyarrow" in kind:
            pa = _library("pyarrow", "a nested or Arrow column")
            array = pa.array(series.array)
            array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
            batch |= _arrow_columns(str(name), array)
        elif series.dtype.kind in "fiubM" and isinstance(series.to_numpy(), np.ndarray):
            values = series.to_numpy()
            batch[str(name)] = values.astype(np.float64) if values.dtype == np.object_ else values
        else:
            missing = series.isna() if not _holds_lists(series) else None
            values = object_column(list(series))
            if missing is not None:
                values[missing.to_numpy()] = None
            batch[str(name)] = _any_column(values)
    return batch


def _holds_lists(series: Any) -> bool:
    return any(isinstance(value, list | tuple | np.ndarray) for value in series.head(64))


def _astropy_file(content: IO[bytes], form: str, stream: Stream) -> Source:
    tables = _library("astropy.table", f"{stream.name} ({form.upper()})")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of units and metadata that no light curve needs
        try:
            if form == "fits":
                table = _first_fits_table(content, stream.name)
                if isinstance(stream.content, Path):
                    table = _snana_table(table, stream.content)
            elif form == "votable":
                parse = import_module("astropy.io.votable").parse_single_table
                table = parse(io.BytesIO(content.read())).to_table(use_names_over_ids=True)
            else:
                table = tables.Table.read(content.read().decode("utf-8", "replace"), format="ascii.ecsv")
        except TableError:
            raise
        except Exception as error:  # libraries raise many kinds for damaged files
            raise TableError(f"{stream.name} cannot be read: {error}") from error
        return _astropy_source(table, stream.name, stream.stem)


def _snana_table(table: Any, path: Path) -> Any:
    """Return the points of a pair of SNANA's files, with the columns of their object."""
    pair = _snana_pair(path)
    if pair is None:
        return table
    stream = Stream(str(pair), pair.name, pair)
    with stream.open() as content:
        other = _first_fits_table(content, stream.name)
    head, points = (table, other) if "_HEAD.FITS" in path.name else (other, table)
    if not {"SNID", "PTROBS_MIN", "PTROBS_MAX"} <= set(head.colnames):
        raise TableError(f"{path} has no columns SNID, PTROBS_MIN and PTROBS_MAX")
    first, last = (np.asarray(head[name], np.int64) for name in ("PTROBS_MIN", "PTROBS_MAX"))
    if len(first) and (first.min() < 1 or last.max() > len(points) or (last < first - 1).any()):
        raise TableError(f"{path}: PTROBS_MIN and PTROBS_MAX do not fit the {len(points)} rows of its PHOT file")
    count = last - first + 1
    rows = np.repeat(first - 1 - (np.cumsum(count) - count), count) + np.arange(count.sum())
    joined = points[rows]
    of_object = np.repeat(np.arange(len(head)), count)
    for name in head.colnames:
        if name not in joined.colnames and not name.startswith("PTROBS"):
            joined[name.lower() if name in ("MWEBV", "MWEBV_ERR") else name] = head[name][of_object]
    return joined


def _first_fits_table(content: IO[bytes], name: str) -> Any:
    fits, tables = import_module("astropy.io.fits"), import_module("astropy.table")
    with fits.open(io.BytesIO(content.read()), memmap=False) as units:
        for unit in units:
            if isinstance(unit, fits.BinTableHDU | fits.TableHDU):
                return tables.Table.read(unit, format="fits")
    raise TableError(f"{name} holds no table")


def _astropy_source(table: Any, name: str, stem: str = "") -> MemorySource:
    """Return the columns of an astropy table: times as MJD, quantities as numbers with their unit."""
    batch: Batch = {}
    units: dict[str, str] = {}
    for key in table.colnames:
        column = table[key]
        if hasattr(column, "mjd"):  # astropy.time.Time
            batch[key] = np.asarray(column.mjd, np.float64)
            units[key] = "mjd"
            continue
        if unit := getattr(column, "unit", None):
            units[key] = str(unit)
        values = np.ma.asarray(getattr(column, "value", column))
        batch[key] = _masked_column(values)
    return MemorySource(batch, name, stem, units)


def _masked_column(values: Any) -> Column:
    mask = np.ma.getmaskarray(values)
    data: Array = np.ma.getdata(values)
    if data.dtype.kind == "O":
        empty = mask if mask.shape == data.shape else np.zeros(len(data), np.bool_)
        return _any_column([None if gone else value for value, gone in zip(data, empty, strict=True)])
    if not mask.any():
        return _array_column(data)
    if data.dtype.kind in "fiu":
        filled = data.astype(np.float64)
        filled[mask] = np.nan
        return _array_column(filled)
    column = _array_column(data)
    if isinstance(column, Lists):
        return column
    column = column.astype(np.object_)
    column[mask] = None
    return column


def is_hats(folder: Path) -> bool:
    """Return True for the folder of a HATS catalogue or collection."""
    marks = ("hats.properties", "properties", "collection.properties")
    return folder.is_dir() and (any((folder / mark).is_file() for mark in marks) or bool(_partitions(folder, 1)))


def hats_partitions(source: Path) -> list[Path]:
    """Return the Parquet files of a HATS catalogue, pixel by pixel; of a collection, those of its primary catalogue.

    The margin and index tables of a collection repeat objects and are not read, nor are the ``_metadata`` files.

    Raises
    ------
    TableError
        When there is no ``Norder=*/Dir=*/Npix=*`` below ``source``.
    """
    catalogue = source
    properties = source / "collection.properties"
    if properties.is_file():
        lines = [line.partition("=") for line in properties.read_text(encoding="utf-8").splitlines()]
        named = {key.strip(): value.strip() for key, _, value in lines}
        catalogue = source / named.get("hats_primary_table_url", ".")
    if not (paths := sorted(_partitions(catalogue))):
        raise TableError(f"{source} is not a HATS catalogue: it holds no Norder=*/Dir=*/Npix=* Parquet files")
    return paths


def _partitions(folder: Path, most: int = 0) -> list[Path]:
    found = []
    for path in folder.rglob("*.parquet"):
        if all(any(part.startswith(f"{key}=") for part in path.parts) for key in ("Norder", "Dir", "Npix")):
            found.append(path)
            if most and len(found) == most:
                break
    return found
