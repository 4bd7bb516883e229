"""Tables in memory, and files that need pyarrow or astropy (the ``tables`` extra)."""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from nightjar_alerts.models.photometry import JD_MINUS_MJD, SECONDS_PER_DAY
from nightjar_alerts.tables import costs
from nightjar_alerts.tables.bounds import FILE_BOUNDS, Bounds, TableTooLarge
from nightjar_alerts.tables.columns import Array, Lists, TableColumns, column_of, mjd_of_times, object_column
from nightjar_alerts.tables.documents import columns_of
from nightjar_alerts.tables.options import MissingExtra, TableError
from nightjar_alerts.tables.streams import Problems, Stream

BATCH_ROWS: Final = 16_384
BATCH_OBJECTS: Final = 512
"""Rows of a table whose rows hold whole light curves."""
BATCH_BYTES: Final = 64 << 20
"""Decoded bytes of a batch of a Parquet file, as far as rows are alike."""
VALUE_BYTES: Final = 8
REPEATED: Final = 16
"""How often the texts of a large batch may repeat on average."""
LIBRARIES: Final = ("astropy", "nested_pandas", "pandas", "pyarrow")


def _library(name: str, what: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        library = name.partition(".")[0]
        message = f"{what} needs {library}: install nightjar-alerts with the extra tables (nightjar-alerts[tables])"
        raise MissingExtra(message) from error


class MemorySource:
    """A table in memory."""

    def __init__(self, batch: TableColumns, name: str, stem: str = "", units: Mapping[str, str] | None = None) -> None:
        self.name, self.stem = name, stem
        self.header = tuple(batch)
        self.units: Mapping[str, str] = units or {}
        self.problems = Problems()
        self.progress = 0.0
        self._batch = batch
        lengths = {column: len(values) for column, values in batch.items()}
        if len(set(lengths.values())) > 1:
            raise TableError(f"{name}: columns differ in length: {lengths}")
        self._rows = next(iter(lengths.values()), 0)

    def batches(self, names: Sequence[str] | None = None) -> Iterator[TableColumns]:
        """Yield the named columns, or all."""
        for start in range(0, self._rows, BATCH_ROWS):
            self.progress = start / self._rows
            rows = slice(start, start + BATCH_ROWS)
            yield {name: column[rows] for name, column in self._batch.items() if names is None or name in names}
        self.progress = 1.0


class ParquetSource:
    """Parquet files with the same columns: one file, or the partitions of a HATS catalogue.

    The metadata of a file, which pyarrow reads first, tell what its columns take once decoded: a value costs 8 bytes
    however well it is compressed, and a text that repeats is held once. This is bounded by the size of the file, and
    decides how many rows are read at once. Whether the metadata are true is not checked.
    """

    def __init__(
        self, files: Sequence[Path | bytes | IO[bytes]], name: str, stem: str = "", bounds: Bounds = FILE_BOUNDS
    ) -> None:
        self._parquet = _library("pyarrow.parquet", f"{name} (Parquet)")
        self._files = list(files)
        self._bounds = bounds
        self.name, self.stem = name, stem
        self.problems = Problems()
        self.progress = 0.0
        with self._open(0) as (file, _):
            columns = _arrow_batch(file.schema_arrow.empty_table())
            self.units: Mapping[str, str] = {
                field.name: unit.decode("utf-8", "replace")
                for field in file.schema_arrow
                if field.metadata and (unit := field.metadata.get(b"unit") or field.metadata.get(b"units"))
            }
        self.header = tuple(columns)
        self._is_nested = any(isinstance(column, Lists) for column in columns.values())

    @contextmanager
    def _open(self, index: int) -> Iterator[tuple[Any, Mapping[str, float]]]:
        """Open a file, if it is within the bounds; yield it and the decoded bytes in a row of each root column."""
        file = self._files[index]
        where = str(file) if isinstance(file, Path) else self.name
        content = io.BytesIO(file) if isinstance(file, bytes) else file
        try:
            size = content.stat().st_size if isinstance(content, Path) else content.seek(0, io.SEEK_END)
            with self._parquet.ParquetFile(content) as opened:
                metadata, schema = opened.metadata, opened.schema
                self._bounds.check_names([column.path for column in map(schema.column, range(len(schema)))], where)
                sizes, texts = _decoded_sizes(metadata, schema)
            if sum(sizes.values()) > (bound := self._bounds.expanded(size)):
                raise TableTooLarge(f"{where} has columns that take more than {bound} bytes decoded", self._bounds)
            rows = max(1, metadata.num_rows)
            with self._parquet.ParquetFile(content, metadata=metadata, read_dictionary=texts) as opened:
                yield opened, {root: decoded / rows for root, decoded in sizes.items()}
        except (import_module("pyarrow").ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            raise TableError(f"{where} cannot be read: {error}") from error
        except RecursionError:
            raise TableError(f"{where} cannot be read: its columns are nested too deeply") from None

    def batches(self, names: Sequence[str] | None = None) -> Iterator[TableColumns]:
        """Yield the named columns, or all."""
        self.progress = 0.0
        arrow = import_module("pyarrow")
        for index in range(len(self._files)):
            with self._open(index) as (file, row_bytes):
                roots = [
                    root
                    for root in file.schema_arrow.names
                    if names is None or any(name == root or name.startswith(f"{root}.") for name in names)
                ]
                rows, read = max(1, file.metadata.num_rows), 0
                most = BATCH_OBJECTS if self._is_nested else BATCH_ROWS
                all_bytes = sum(row_bytes.values())  # for a root whose name has a dot, unlike its path
                affordable = BATCH_BYTES / max(1.0, sum(row_bytes.get(root, all_bytes) for root in roots))
                size = max(1, min(most, int(affordable)))
                # Each row group has dictionaries of its own, and pyarrow reads no lists of texts across them.
                for group in range(file.num_row_groups):
                    for batch in file.iter_batches(size, row_groups=[group], columns=roots):
                        read += len(batch)
                        self.progress = (index + read / rows) / len(self._files)
                        columns = _arrow_batch(arrow.Table.from_batches([batch]))
                        yield columns if names is None else {name: columns[name] for name in names if name in columns}
        self.progress = 1.0


def _decoded_sizes(metadata: Any, schema: Any) -> tuple[dict[str, int], list[str]]:
    """Return the bytes of each root column of a Parquet file once decoded, and the paths of columns of text."""
    sizes: dict[str, int] = {}
    leaves = [schema.column(number) for number in range(len(schema))]
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for number, leaf in enumerate(leaves):
            chunk = group.column(number)
            root = leaf.path.partition(".")[0]
            width = max(VALUE_BYTES, leaf.length)
            sizes[root] = sizes.get(root, 0) + chunk.num_values * width + chunk.total_uncompressed_size
    return sizes, texts


def _arrow_batch(table: Any) -> TableColumns:
    """Return the columns of an Arrow table, structs and lists of structs as dotted names."""
    columns: TableColumns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        columns |= _arrow_columns(name, column.combine_chunks())
    return columns


def _arrow_columns(name: str, array: Any) -> TableColumns:
    pa = import_module("pyarrow")
    types, kind = pa.types, array.type
    if isinstance(array, pa.ExtensionArray):
        return _arrow_columns(name, array.storage)
    if types.is_struct(kind):
        fields = zip(kind, array.flatten(), strict=True)
        return {
            key: column
            for field, values in fields
            for key, column in _arrow_columns(f"{name}.{field.name}", values).items()
        }
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        lengths = import_module("pyarrow.compute").list_value_length(array).fill_null(0)
        offsets = np.cumsum([0, *lengths.to_numpy(zero_copy_only=False)], dtype=np.int64)
        inner = _arrow_columns(name, array.flatten())
        return {key: Lists(offsets, values) for key, values in inner.items() if isinstance(values, np.ndarray)}
    return {name: _arrow_values(array)}


def _arrow_values(array: Any) -> Array:
    pa = import_module("pyarrow")
    types, kind = pa.types, array.type
    if types.is_dictionary(kind):
        if types.is_floating(kind.value_type) or types.is_integer(kind.value_type):
            return _arrow_values(array.dictionary_decode())
        values = [value.strip() if isinstance(value, str) else value for value in array.dictionary.to_pylist()]
        index = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        lengths = np.array([*(len(value) if isinstance(value, str | bytes) else 0 for value in values), 0])
        if lengths[index].sum() > max(BATCH_BYTES, REPEATED * lengths.sum()):
            raise TableError(f"a column repeats texts of up to {lengths.max()} characters in many rows")
        column: Array = object_column([*values, None])[index]
        return column
    if types.is_decimal(kind) and not kind.scale:  # such as names from a database; a float would lose digits
        return object_column([None if value is None else int(value) for value in array.to_pylist()])
    if types.is_decimal(kind):
        array = array.cast(pa.float64())
    elif types.is_timestamp(kind) or types.is_date(kind):
        array = array.cast(pa.timestamp("ns"))
    elif not types.is_floating(kind) and (array.null_count or not (types.is_integer(kind) or types.is_boolean(kind))):
        return object_column(array.to_pylist())  # text, and integers (a float would lose digits) or booleans with nulls
    return np.asarray(array.to_numpy(zero_copy_only=False))


def library_of(data: Any) -> str:
    """Return the library of a table in memory, also of one derived from it or that Arrow reads; empty for others."""
    if not hasattr(data, "columns"):
        return ""
    modules = [kind.__module__.partition(".")[0] for kind in type(data).__mro__]
    usual = "pyarrow" if hasattr(data, "__arrow_c_stream__") else ""  # such as polars
    return next((module for module in modules if module in LIBRARIES), usual)


def batch_of(data: Any) -> tuple[TableColumns, dict[str, str]]:
    """Return a table of pandas, pyarrow or astropy, a mapping of columns, or a list of rows, and its units.

    Raises
    ------
    TableError
        For data of another type.
    """
    library = library_of(data)
    if library == "pyarrow":
        table = data if hasattr(data, "to_batches") else _library("pyarrow", "this table").table(data)
        return _arrow_batch(table), {}
    if library == "astropy":
        return _astropy_batch(data)
    if library:
        return _pandas_batch(data), {}
    if isinstance(data, np.ndarray) and data.dtype.names:
        return {name: column_of(data[name]) for name in data.dtype.names}, {}
    if isinstance(data, Mapping):
        return {str(name): column_of(values) for name, values in data.items()}, {}
    if isinstance(data, Sequence) and data and all(isinstance(row, Mapping) for row in data):
        return columns_of(data), {}
    raise TableError(f"a {type(data).__name__} is not a table")


def _pandas_batch(frame: Any) -> TableColumns:
    """Return the columns of a data frame.

    An index counts if it has a name, or if its values repeat, as the keys of a concatenation do.
    """
    keys = frame.index.get_level_values(0)
    is_range = frame.index.nlevels == 1 and keys.dtype.kind in "iu" and len(keys) > 0 and keys.min() == 0
    if keys.name is None and "index" not in frame.columns and not keys.is_unique and not is_range:
        frame = frame.assign(index=[str(key) for key in keys])
    if kept := [name for name in frame.index.names if name is not None and name not in frame.columns]:
        frame = frame.reset_index(level=kept)
    batch: TableColumns = {}
    for name, series in frame.items():
        kind = str(series.dtype)
        if kind.startswith("nested<") or "pyarrow" in kind:
            array = _library("pyarrow", "a nested or Arrow column").array(series.array)
            batch |= _arrow_columns(str(name), getattr(array, "combine_chunks", lambda array=array: array)())
        elif series.dtype.kind in "fiubM" and series.dtype.kind == series.to_numpy().dtype.kind:
            batch[str(name)] = column_of(series.to_numpy())
        else:
            values = object_column(list(series))
            values[series.isna().to_numpy()] = None
            batch[str(name)] = column_of(values)
    return batch


def read_with_astropy(stream: Stream, form: str) -> tuple[TableColumns, dict[str, str], str]:
    """Return the columns and units of a file of astropy's, and the object that keywords of FITS name.

    Raises TableError, before astropy reads what it refuses.
    """
    tables = _library("astropy.table", f"{stream.name} ({form.upper()})")
    bounds, origins = stream.bounds, dict[str, float]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of units and metadata that no light curve needs
        try:
            if form == "fits":
                table = _first_fits_table(stream)
                if isinstance(stream.content, Path):
                    table = _snana_table(table, stream)
            elif form == "votable":
                data = stream.read(bounds.held_bytes)
                costs.check_votable(data, stream.name, bounds)
                document = import_module("astropy.io.votable").parse(io.BytesIO(data), table_number=0)
                table = document.get_first_table().to_table(use_names_over_ids=True)
                origins = _time_origins(document)
            else:
                # As lines, since astropy takes a text without line ends for the name or address of a file.
                lines = stream.read(bounds.held_bytes).decode("utf-8", "replace").splitlines()
                check = costs.check_ecsv if form == "ecsv" else costs.check_ipac
                check(lines, stream.name, bounds)
                table = tables.Table.read(lines, format=f"ascii.{form}")
        except TableError:
            raise
        except Exception as error:  # libraries raise many kinds for damaged files
            detail = str(error).partition(". ")[0] or type(error).__name__  # advice after that is for programs
            raise TableError(f"{stream.name} is damaged, or no {form.upper()} file: {detail}") from error
        batch, units = _astropy_batch(table)
    bounds.check_names(list(batch), stream.name)
    stated = _FitsKeywords(table.meta) if form == "fits" else _FitsKeywords({})
    for name in batch:
        if name.upper() == "TIME" and stated.zero and "jd" not in units.get(name, "").lower():
            times = batch[name]
            if (units.get(name) or stated.time_unit) == "s":
                if not isinstance(times, np.ndarray) or times.dtype.kind not in "fiu":
                    continue
                batch[name] = times / SECONDS_PER_DAY
            units[name] = f"JD - {stated.zero!r}"
    for name, origin in origins.items():
        if name in batch and units.get(name, "d") == "d":
            units[name] = {0.0: "jd", JD_MINUS_MJD: "mjd"}.get(origin, f"JD - {origin!r}")
    return batch, units, stated.name


def _time_origins(document: Any) -> dict[str, float]:
    """Return the JD from which the times of the fields of a VOTable count that refer to a TIMESYS with an origin."""
    named = {"MJD-origin": JD_MINUS_MJD, "JD-origin": 0.0}
    systems = [system for system in document.iter_timesys() if system.timeorigin is not None]
    origins = {system.ID: float(named.get(system.timeorigin, system.timeorigin)) for system in systems}
    return {field.name: origins[field.ref] for field in document.get_first_table().fields if field.ref in origins}


class _FitsKeywords:
    """What the keywords of a FITS table state: its one object, the unit of times, and the JD from which they count."""

    def __init__(self, meta: Mapping[str, Any]) -> None:
        self.name = str(meta.get("OBJECT", "")).strip()[:MAX_OBJECT]
        numbers = {key: value for key, value in meta.items() if isinstance(value, int | float)}
        self.time_unit = meta.get("TIMEUNIT")
        self.zero = 0.0
        for prefix, zero in (("BJDREF", 0.0), ("JDREF", 0.0), ("MJDREF", JD_MINUS_MJD)):
            if prefix in numbers:
                self.zero = numbers[prefix] + zero
            elif f"{prefix}I" in numbers:
                self.zero = numbers[f"{prefix}I"] + numbers.get(f"{prefix}F", 0.0) + zero


MAX_OBJECT: Final = 68
"""Characters of the text in a card of FITS."""


def snana_pair(path: Path) -> Path | None:
    """Return the PHOT file of SNANA's HEAD file, or the other way round, where both are there."""
    for one, other in (("_HEAD.FITS", "_PHOT.FITS"), ("_PHOT.FITS", "_HEAD.FITS")):
        if one in path.name and (pair := path.with_name(path.name.replace(one, other))).is_file():
            return pair
    return None


def _snana_table(table: Any, stream: Stream) -> Any:
    """Return the points of a pair of SNANA's files, with the columns of their object."""
    path, bounds = stream.content, stream.bounds
    assert isinstance(path, Path)
    pair = snana_pair(path)
    if pair is None:
        return table
    other = _first_fits_table(Stream(str(pair), pair.name, pair, bounds))
    head, points = (table, other) if "_HEAD.FITS" in path.name else (other, table)
    if not {"SNID", "PTROBS_MIN", "PTROBS_MAX"} <= set(head.colnames):
        raise TableError(f"{path} has no columns SNID, PTROBS_MIN and PTROBS_MAX")
    first, last = (np.asarray(head[name], np.int64) for name in ("PTROBS_MIN", "PTROBS_MAX"))
    if len(first) and (first.min() < 1 or last.max() > len(points) or (last < first - 1).any()):
        raise TableError(f"{path}: PTROBS_MIN and PTROBS_MAX do not fit the {len(points)} rows of its PHOT file")
    count = last - first + 1
    if count.sum() > len(points):
        raise TableError(f"{path}: objects share rows of the PHOT file")
    names = [name for name in head.colnames if not name.startswith("PTROBS")]
    size = len(points) * (sum(head[name].dtype.itemsize for name in names) + points.as_array().dtype.itemsize)
    if size > bounds.max_bytes:
        raise TableTooLarge(f"{path} has more than {bounds.max_bytes} bytes, joined with its PHOT file", bounds)
    rows = np.repeat(first - 1 - (np.cumsum(count) - count), count) + np.arange(count.sum())
    joined = points[rows]
    of_object = np.repeat(np.arange(len(head)), count)
    for name in names:
        if name not in joined.colnames:
            joined[name] = head[name][of_object]
    return joined


def _first_fits_table(stream: Stream) -> Any:
    fits, tables = import_module("astropy.io.fits"), import_module("astropy.table")
    with stream.open() as content:
        is_binary, table = costs.first_fits_table(content, stream.name, stream.bounds)
    unit = (fits.BinTableHDU if is_binary else fits.TableHDU).fromstring(table)
    return tables.Table.read(unit, format="fits")


def _astropy_batch(table: Any) -> tuple[TableColumns, dict[str, str]]:
    """Return the columns of an astropy table, times as MJD, and their units."""
    batch: TableColumns = {}
    units: dict[str, str] = {}
    for name in table.colnames:
        column = table[name]
        if hasattr(column, "mjd") and (mjd := mjd_of_times(column)) is not None:
            batch[name], units[name] = mjd, "mjd"
            continue
        if unit := getattr(column, "unit", None):
            units[name] = str(unit)
        batch[name] = column_of(np.ma.asarray(getattr(column, "value", column)))
    return batch, units
