"""Raw objects, the output of readers, and maps of table columns.

A path such as ``lightcurve.mjd`` reaches into a struct of lists (nested-pandas, HATS) and into a list of
structs (alert archives) alike; ids pass as text, and floating-point ids are refused, for they have lost digits.

A raw object is an object of the source in nJy and MJD TAI, not yet validated. Readers convert units and never drop a
point: they give a reason in ``rejected``, which the report of `training.importers.commands` counts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from nightjar_alerts.models.lightcurve import Float64


class ImportFormatError(ValueError):
    """The source is not what its format promises; the message names the file and, where there is one, the option."""


@dataclass(frozen=True, slots=True, eq=False)
class RawObject:
    """One object of a source, its points in any order.

    ``mjd`` f64[n] days; ``flux``, ``flux_err`` f64[n] nJy; ``band`` n names as the source spells them; ``detected``
    bool[n], or None for the 5 sigma rule; ``rejected``: reason to bool[n], points that the source itself marks as
    unusable; ``label`` as the source spells it, empty when unlabelled; ``metadata`` by the names of
    `models.metadata.METADATA_COLUMNS`, sentinels included; ``redshift`` the truth, NaN when unknown; ``parent`` what it
    shares with objects that must not be on another side of a split, empty when the source knows of none.
    """

    object_id: str
    mjd: Float64
    flux: Float64
    flux_err: Float64
    band: Sequence[str] | NDArray[np.object_]
    detected: NDArray[np.bool_] | None = None
    label: str = ""
    metadata: Mapping[str, float] = field(default_factory=dict)
    redshift: float = float("nan")
    rejected: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    parent: str = ""


TRUE = frozenset({"1", "1.0", "t", "true", "y", "yes"})
PARQUET = frozenset({".parquet", ".pq", ".parq"})
BATCH_ROWS = 65_536  # of a table of points
BATCH_OBJECTS = 512  # of a table of objects whose points are lists
BLOCK_BYTES = 1 << 20  # of a CSV file; Arrow reads 32 of them ahead

Numbers = NDArray[Any]


class ColumnMap(BaseModel):
    """Name or dotted path of the column of each part; None where the table has none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    mjd: str
    band: str = Field(description="or the one band of the whole table, as =r")
    flux: str | None = None
    flux_err: str | None = None
    mag: str | None = Field(
        default=None, description="AB magnitude of the difference; the flux is positive unless magnitudes are signed"
    )
    mag_err: str | None = None
    detected: str | None = None
    upper_limit: str | None = Field(default=None, description="true where the row is a limit, which is left out")
    label: str | None = None
    redshift: str | None = Field(default=None, description="true redshift; stored, never an input")
    parent: str | None = Field(default=None, description="what several objects share; they stay on one side of a split")

    @model_validator(mode="after")
    def _one_kind_of_brightness(self) -> "ColumnMap":
        pairs = ((self.flux, self.flux_err), (self.mag, self.mag_err))
        if [all(pair) for pair in pairs].count(True) != 1 or any(any(pair) != all(pair) for pair in pairs):
            raise ValueError("columns must name flux and flux_err, or mag and mag_err")
        return self

    def used(self) -> dict[str, str]:
        """Return the parts that have a column."""
        return {part: name for part, name in self.model_dump().items() if name and not name.startswith("=")}

    @property
    def only_band(self) -> str | None:
        """The one band of the whole table, where it has no column of bands."""
        return self.band[1:] if self.band.startswith("=") else None


def tables_in(source: Path) -> list[Path]:
    """Return the Parquet and CSV files of ``source``, itself or below it; ImportFormatError when there are none."""
    if not source.exists():
        raise ImportFormatError(f"{source} does not exist")
    paths = [source] if source.is_file() else sorted(p for p in source.rglob("*") if _is_table(p))
    if not paths:
        raise ImportFormatError(f"{source} holds no Parquet or CSV files")
    return paths


def _is_table(path: Path) -> bool:
    name = path.name.removesuffix(".gz")
    return path.is_file() and not name.startswith(("_", ".")) and (path.suffix in PARQUET or name.endswith(".csv"))


def read_batches(path: Path, names: Sequence[str], text: frozenset[str]) -> Iterator[pa.RecordBatch]:
    """Yield the columns behind the dotted paths ``names`` of one file, a bounded number of rows at a time.

    Parameters
    ----------
    text : the paths that are read as text where the file is CSV; the others are numbers.

    Raises
    ------
    ImportFormatError
        When a column is missing (the message lists those there are) or the file is damaged.
    """
    try:
        if path.suffix in PARQUET:
            yield from _parquet(path, names)
        elif path.stat().st_size == 0:
            raise ImportFormatError(f"{path} is empty")
        else:
            yield from _csv(path, names, text)
    except (pa.ArrowException, EOFError, OSError) as error:
        raise ImportFormatError(f"{path} cannot be read: {error}") from error


def _parquet(path: Path, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        roots = list(dict.fromkeys(name if name in schema.names else name.split(".")[0] for name in names))
        _require(path, roots, schema.names)
        nested = any(pa.types.is_nested(schema.field(root).type) for root in roots)
        yield from file.iter_batches(BATCH_OBJECTS if nested else BATCH_ROWS, columns=roots)


def _csv(path: Path, names: Sequence[str], text: frozenset[str]) -> Iterator[pa.RecordBatch]:
    types = {name: pa.string() if name in text else pa.float64() for name in names}
    _require(path, names, header(path))
    options = pa_csv.ConvertOptions(include_columns=list(types), column_types=types, strings_can_be_null=True)
    reading = pa_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    with pa_csv.open_csv(path, read_options=reading, convert_options=options) as file:
        yield from file


def _require(path: Path, names: Sequence[str], present: Sequence[str]) -> None:
    if missing := [name for name in names if name not in present]:
        raise ImportFormatError(f"{path} has no column {', '.join(missing)}; it has {', '.join(present)}")


def header(path: Path) -> tuple[str, ...]:
    """Names of the columns of one file, which is read no further; ImportFormatError when it has none."""
    try:
        if path.suffix in PARQUET:
            return tuple(pq.read_schema(path).names)
        with pa_csv.open_csv(path, read_options=pa_csv.ReadOptions(use_threads=False, block_size=4096)) as head:
            return tuple(head.schema.names)
    except (pa.ArrowException, EOFError, OSError) as error:
        raise ImportFormatError(f"{path} cannot be read: {error}") from error


def column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return the column behind a dotted path; ImportFormatError when a field on the way is missing."""
    if name in batch.schema.names:
        return _any_length(batch.column(name))
    root, *fields = name.split(".")
    values = _any_length(batch.column(root))
    for inner in fields:
        values = _any_length(_field(values, inner, name))
    return values


def _any_length(array: pa.Array) -> pa.Array:
    """Return lists of a fixed size as lists of any length."""
    if not pa.types.is_fixed_size_list(array.type):
        return array
    return array.cast(pa.list_(array.type.value_type))


def _field(array: pa.Array, field: str, name: str) -> pa.Array:
    lists = isinstance(array, pa.ListArray | pa.LargeListArray)
    if array.offset:  # lists cannot be rebuilt with nulls over a slice
        array = pa.concat_arrays([array])
    kind = array.type.value_type if lists else array.type
    if not pa.types.is_struct(kind) or kind.get_field_index(field) < 0:
        raise ImportFormatError(f"there is no column {name}: {field!r} is not a field of {kind}")
    if not lists:
        return array.flatten()[kind.get_field_index(field)]
    inner = array.values.flatten()[kind.get_field_index(field)]
    return type(array).from_arrays(array.offsets, inner, mask=array.is_null() if array.null_count else None)


def as_numbers(array: pa.Array, name: str) -> Float64:
    """Numbers as float64, nulls as NaN; ImportFormatError for text that is none."""
    try:
        numbers: Float64 = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise ImportFormatError(f"column {name} does not hold numbers: {error}") from error
    return numbers


def as_text(array: pa.Array, name: str) -> NDArray[np.object_]:
    """Text of an id, a band or a label, nulls as empty; ImportFormatError for floating-point numbers."""
    if pa.types.is_floating(array.type):
        raise ImportFormatError(f"column {name} holds floating-point numbers instead of a name or an integer")
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        array = array.cast(pa.string())
    return np.array(["" if value is None else str(value) for value in array.to_pylist()], dtype=np.object_)


def as_flags(array: pa.Array, name: str) -> NDArray[np.bool_]:
    """Return flags from booleans, numbers (not zero) or text (1, t, true, y, yes); nulls are False."""
    if pa.types.is_boolean(array.type):
        return np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return np.array([value.lower() in TRUE for value in as_text(array, name)], dtype=np.bool_)
    return np.asarray(np.nan_to_num(as_numbers(array, name)) != 0, dtype=np.bool_)


def metadata_of(batch: pa.RecordBatch, paths: Mapping[str, str]) -> dict[str, Float64]:
    """Return the metadata columns of a batch by our names."""
    return {name: as_numbers(column(batch, path), path) for name, path in paths.items()}
