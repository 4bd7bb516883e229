"""Writers of result files: CSV, JSON Lines, Parquet and VOTable.

Names of objects are exact in JSON Lines and Parquet. In CSV, text that a spreadsheet would run as a formula gets an
apostrophe in front; in VOTable, control characters are escaped. Half of a surrogate pair is escaped everywhere.

CSV and JSON Lines need the base install only. Parquet needs pyarrow and VOTable astropy, which are imported on use. A
VOTable is written when the file is closed, the others incrementally.
"""

import csv
import gzip
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from msgspec.inspect import BoolType, FloatType

from nightjar_alerts.core.schemas import TABLE_COLUMNS, arrow_type, columns
from nightjar_alerts.core.serializer import encode_json
from nightjar_alerts.models.common import how_to_install, without_surrogates
from nightjar_alerts.names import printable, spreadsheet_text

if TYPE_CHECKING:
    from nightjar_alerts.results import Result

COLUMNS: Final = TABLE_COLUMNS
SUFFIXES: Final = (".csv", ".jsonl", ".parquet", ".vot")
COMPRESSED: Final = (".csv.gz", ".jsonl.gz")
SEPARATOR: Final = ";"
"""Separator of classes in a prediction set and of warnings, in formats without lists."""


class OutputError(ValueError):
    """Output file that cannot be written."""


class Output(AbstractContextManager["Output"], Protocol):
    """Result file open for writing; leaving its context completes it."""

    def write(self, results: Sequence["Result"]) -> None:
        """Add results."""


def check_path(path: Path) -> None:
    """Raise OutputError for an unknown suffix, a missing folder, or a missing library."""
    if not path.name.endswith((*SUFFIXES, *COMPRESSED)):
        raise OutputError(f"{path}: the name must end in one of {', '.join((*SUFFIXES, *COMPRESSED))}")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: the directory {path.parent} does not exist")
    library = {".parquet": "pyarrow", ".vot": "astropy"}.get(path.suffix)
    if library is not None:
        _import(library)


def open_output(path: Path, classes: Sequence[str] = ()) -> "Output":
    """Open a result file in the format of its suffix. Raises OutputError as :func:`check_path` does.

    Parameters
    ----------
    classes : classes that get a column of probabilities; JSON Lines always has all of them.
    """
    check_path(path)
    match Path(path.name.removesuffix(".gz")).suffix:
        case ".csv":
            return _Csv(path, classes)
        case ".jsonl":
            return _JsonLines(path)
        case ".parquet":
            return _Parquet(path, classes)
        case _:
            return _VOTable(path, classes)


class _Csv:
    def __init__(self, path: Path, classes: Sequence[str]) -> None:
        opened = gzip.open if path.suffix == ".gz" else open
        self._file: Any = opened(path, "wt", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, [*COLUMNS, *classes], restval="", extrasaction="ignore")
        self._classes = bool(classes)
        self._writer.writeheader()

    def __enter__(self) -> "_Csv":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, results: Sequence["Result"]) -> None:
        """Add results."""
        for result in results:
            row = _flat(result.row(self._classes))
            self._writer.writerow({name: _cell(value) for name, value in row.items()})


class _JsonLines:
    def __init__(self, path: Path) -> None:
        self._file: Any = (gzip.open if path.suffix == ".gz" else open)(path, "wb")

    def __enter__(self) -> "_JsonLines":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, results: Sequence["Result"]) -> None:
        """Add results."""
        for result in results:
            self._file.write(encode_line(result))


class _Parquet:
    def __init__(self, path: Path, classes: Sequence[str]) -> None:
        self._classes, self._path = classes, path
        self._writer: Any = None

    def __enter__(self) -> "_Parquet":
        self._writer = _import("pyarrow.parquet").ParquetWriter(self._path, _schema(self._classes))
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write(self, results: Sequence["Result"]) -> None:
        """Add results as a row group."""
        if results:
            self._writer.write_table(arrow_table(results, self._classes))


class _VOTable:
    def __init__(self, path: Path, classes: Sequence[str]) -> None:
        self._path, self._classes = path, classes
        self._results: list[Result] = []

    def __enter__(self) -> "_VOTable":
        return self

    def __exit__(self, *_: object) -> None:
        with warnings.catch_warnings():  # class names with spaces and slashes also get a valid ID
            warnings.simplefilter("ignore", _import("astropy.io.votable").exceptions.VOWarning)
            table = astropy_table(self._results, self._classes)
            for name in ("object_id", "detail", "pointer", "input") if len(table) else ():
                table[name] = list(map(printable, table[name]))  # XML has no control characters
            table.write(self._path, format="votable", overwrite=True)

    def write(self, results: Sequence["Result"]) -> None:
        """Add results."""
        self._results += results


def encode_line(result: "Result") -> bytes:
    """Return a result, its model and the file that it was read from as a line of JSON."""
    source = {"input": result.input} if result.input else {}
    return encode_json({"model": result.model} | source | result.to_dict()) + b"\n"


def _cell(value: object) -> object:
    if isinstance(value, str):
        return spreadsheet_text(without_surrogates(value))
    return "" if value is None else value


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Join the lists of a row to strings."""
    members = row["prediction_set"]
    joined = None if members is None else SEPARATOR.join(members)
    return row | {"prediction_set": joined, "warnings": SEPARATOR.join(row["warnings"])}


def _schema(classes: Sequence[str]) -> Any:
    arrow = _import("pyarrow")
    fields = [(name, arrow_type(kind, arrow)) for name, kind in columns().items()]
    return arrow.schema([*fields, *((name, arrow.float64()) for name in classes)])


def arrow_table(results: Sequence["Result"], classes: Sequence[str] = ()) -> Any:
    """Return results as a ``pyarrow.Table``."""
    rows = [_encodable(result.row(bool(classes))) for result in results]
    return _import("pyarrow").Table.from_pylist(rows, schema=_schema(classes))


def _encodable(row: dict[str, Any]) -> dict[str, Any]:
    return {name: without_surrogates(value) if isinstance(value, str) else value for name, value in row.items()}


def astropy_table(results: Sequence["Result"], classes: Sequence[str] = ()) -> Any:
    """Return results as an ``astropy.table.Table``; missing values are masked."""
    table = _import("astropy.table")
    rows = [_flat(result.row(bool(classes))) for result in results]
    found = {}
    for name, kind in (columns() | dict.fromkeys(classes, FloatType())).items():
        values = [row.get(name) for row in rows]
        dtype: Any = np.float64 if isinstance(kind, FloatType) else np.bool_ if isinstance(kind, BoolType) else np.str_
        filled = [dtype() if value is None else value for value in values]
        mask = [value is None for value in values]
        found[name] = table.MaskedColumn(np.array(filled, dtype=dtype), mask=mask)
    return table.Table(found)


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        library = name.partition(".")[0]
        raise OutputError(f"{library} is not installed: {how_to_install('tables')}") from error
