"""Tables of points (one row a point) and of objects (points in lists), Parquet or CSV, by a map of columns.

Notable:

- a table of points is read in one pass and an object ends where the next id begins. Rows that are not grouped by id
  would silently cut objects in two, so an id that comes back stops the import; ``unsorted`` first sorts such a table
  through temporary files, a share of the ids at a time;
- labels, redshifts and metadata are in the table itself or in a table of objects (``objects``), which is held in
  memory;
- memory holds one batch, the open object and, with ``unsorted``, 1/64 of the table.
"""

import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nightjar_alerts.models.lightcurve import Float64
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import njy_with_error
from nightjar_alerts.training.importers.columns import (
    ColumnMap,
    ImportFormatError,
    RawObject,
    as_flags,
    as_numbers,
    as_text,
    column,
    metadata_of,
    read_batches,
)

SHARES = 64
PLAUSIBLE_MAGNITUDES: Final = (0.0, 35.0)
PLAUSIBLE_ERROR: Final = 5.0
"""Magnitudes and errors of magnitudes beyond these are sentinels such as 99, -99 and -999, and so is 0 itself."""
POINT_PARTS = ("mjd", "band", "flux", "flux_err", "mag", "mag_err", "detected", "upper_limit")
TEXT_PARTS = ("id", "band", "label", "parent", "detected", "upper_limit")

Rejections = Callable[[pa.RecordBatch], dict[str, NDArray[np.bool_]]]


class About(NamedTuple):
    """Metadata of an object."""

    label: str = ""
    redshift: float = float("nan")
    metadata: Mapping[str, float] = {}
    parent: str = ""


@dataclass(frozen=True)
class TableLayout:
    """Layout of one kind of table.

    ``unit`` nJy of one unit of flux; ``time_offset`` days added to the times; ``metadata`` our name to theirs;
    ``metadata_struct`` a struct column whose fields carry our names; ``extra`` further columns that ``rejections``
    looks at; ``signed_magnitudes`` where the sign of a magnitude is that of the flux, as in ATLAS's forced photometry;
    ``about`` gives what another table knows of an id, instead of the columns of this one.
    """

    columns: ColumnMap
    unit: float = 1.0
    time_offset: float = 0.0
    metadata: Mapping[str, str] = field(default_factory=dict)
    metadata_struct: str | None = None
    signed_magnitudes: bool = False
    extra: tuple[str, ...] = ()
    rejections: Rejections | None = None
    about: Mapping[str, About] | None = None
    unsorted: bool = False

    @property
    def names(self) -> list[str]:
        """Every column that is read."""
        struct = [self.metadata_struct] if self.metadata_struct else []
        return list(dict.fromkeys([*self.columns.used().values(), *self.metadata.values(), *struct, *self.extra]))

    @property
    def text(self) -> frozenset[str]:
        """The columns that are text in a CSV file."""
        used = self.columns.used()
        return frozenset(used[part] for part in TEXT_PARTS if part in used)


def read_tables(paths: list[Path], layout: TableLayout) -> Iterator[RawObject]:
    """Yield the objects of all files in turn; files may hold points or objects, and no object reaches over two of them.

    Raises
    ------
    ImportFormatError
        When a file is damaged or empty, lacks a column, or holds the points of one id in two places.
    """
    for path in paths:
        batches = read_batches(path, layout.names, layout.text)
        first = next(batches, None)
        if first is None:
            raise ImportFormatError(f"{path} is empty")
        every = _chain(first, batches)
        if _is_list(column(first, layout.columns.mjd).type):
            rows = _list_rows(every, layout)
            bands = layout.columns.band
            if layout.columns.only_band is None and not _is_list(column(first, bands).type):
                yield from _joined(rows, layout, str(path))  # a row has the points of an object in one band
            else:
                yield from (_object(name, parts, about, layout) for name, about, parts in rows)
        elif layout.unsorted:
            yield from _sorted_first(every, layout)
        else:
            yield from _joined(_runs(every, layout), layout, str(path))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def read_about(path: Path, key: str, columns: Mapping[str, str], metadata: Mapping[str, str]) -> dict[str, About]:
    """Return a table of objects by id.

    Parameters
    ----------
    key : its column of ids. columns : columns of ``label``, ``redshift`` and ``parent``, where it has them.
    """
    names = list(dict.fromkeys([key, *columns.values(), *metadata.values()]))
    text = frozenset({key, *(columns[part] for part in TEXT_PARTS if part in columns)})
    return {
        name: about
        for batch in read_batches(path, names, text)
        for name, about in zip(
            as_text(column(batch, key), key), _about(batch, columns, metadata_of(batch, metadata)), strict=True
        )
    }


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _about(batch: pa.RecordBatch, columns: Mapping[str, str], metadata: Mapping[str, Float64]) -> Iterator[About]:
    """Yield the metadata of the object of each row of a batch."""
    label, parent = (
        as_text(column(batch, columns[part]), columns[part]) if part in columns else np.full(len(batch), "", np.object_)
        for part in ("label", "parent")
    )
    redshift = np.full(len(batch), np.nan)
    if "redshift" in columns:
        redshift = as_numbers(column(batch, columns["redshift"]), columns["redshift"])
    for row in range(len(batch)):
        values_by_name = {name: float(values[row]) for name, values in metadata.items()}
        yield About(label[row], float(redshift[row]), values_by_name, parent[row])


def _struct_paths(batch: pa.RecordBatch, layout: TableLayout) -> dict[str, str]:
    """Our metadata among the fields of the layout's struct, and the mapped columns, which win."""
    if layout.metadata_struct is None:
        return dict(layout.metadata)
    kind = column(batch, layout.metadata_struct).type
    if not pa.types.is_struct(kind):
        raise ImportFormatError(f"column {layout.metadata_struct} is not a struct")
    present = {kind.field(index).name for index in range(kind.num_fields)}
    paths = {name: f"{layout.metadata_struct}.{name}" for name in METADATA_COLUMNS if name in present}
    return {**paths, **layout.metadata}


def _list_rows(
    batches: Iterator[pa.RecordBatch], layout: TableLayout
) -> Iterator[tuple[str, About, dict[str, NDArray[Any]]]]:
    """Yield the id, the metadata and the points of each row whose points are in lists."""
    used = layout.columns.used()
    for batch in batches:
        ids = as_text(column(batch, layout.columns.id), layout.columns.id)
        abouts = list(_about(batch, used, metadata_of(batch, _struct_paths(batch, layout))))
        lists = {part: column(batch, used[part]) for part in POINT_PARTS if part in used}
        bands = None
        if "band" in lists and not _is_list(lists["band"].type):  # one row for each object and band
            bands = as_text(lists.pop("band"), used["band"])
        if flat := [used[part] for part, values in lists.items() if not _is_list(values.type)]:
            raise ImportFormatError(f"points are in lists, but {', '.join(flat)} is not a column of lists")
        for row, name in enumerate(ids):
            parts = _parts({part: values[row].values for part, values in lists.items()}, used)
            if bands is not None:
                parts["band"] = np.full(len(parts["mjd"]), bands[row], np.object_)
            about = abouts[row] if layout.about is None else layout.about.get(name, About())
            yield name, about, parts


def _parts(points: Mapping[str, pa.Array | None], used: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """Numpy columns of the parts, ``used`` being their names in the source; a null list has no points."""
    readers: dict[str, Any] = {"band": as_text, "detected": as_flags, "upper_limit": as_flags}
    none: pa.Array = pa.array([], type=pa.string())  # every reader takes an empty column of text
    return {
        part: readers.get(part, as_numbers)(none if values is None else values, used[part])
        for part, values in points.items()
    }


@dataclass
class _Open:
    """The object whose rows are being read."""

    name: str
    about: About
    pieces: list[dict[str, NDArray[Any]]]

    def parts(self) -> dict[str, NDArray[Any]]:
        return {part: np.concatenate([piece[part] for piece in self.pieces]) for part in self.pieces[0]}


def _joined(
    pieces: Iterator[tuple[str, About, dict[str, NDArray[Any]]]], layout: TableLayout, source: str
) -> Iterator[RawObject]:
    """Join the adjacent pieces of each object. Raises ImportFormatError for an id that comes back."""
    ended: set[str] = set()
    current: _Open | None = None
    for name, about, piece in pieces:
        if current is not None and current.name == name:
            current.pieces.append(piece)
            continue
        if name in ended:
            raise ImportFormatError(
                f"{source}: the rows of {name} are not together; sort by id or pass --unsorted true"
            )
        if current is not None:
            ended.add(current.name)
            yield _object(current.name, current.parts(), current.about, layout)
        current = _Open(name, about, [piece])
    if current is not None:
        yield _object(current.name, current.parts(), current.about, layout)


def _runs(
    batches: Iterator[pa.RecordBatch], layout: TableLayout
) -> Iterator[tuple[str, About, dict[str, NDArray[Any]]]]:
    """Stretches of rows of one id, never reaching over a batch."""
    used = layout.columns.used()
    for batch in batches:
        if not len(batch):
            continue
        ids = as_text(column(batch, layout.columns.id), layout.columns.id)
        parts = _parts({part: column(batch, used[part]) for part in POINT_PARTS if part in used}, used)
        parts |= {f"!{reason}": bad for reason, bad in (layout.rejections or _none)(batch).items()}
        starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
        heads = batch.take(pa.array(starts))
        abouts = list(_about(heads, used, metadata_of(heads, _struct_paths(heads, layout))))
        for start, end, about in zip(starts, [*starts[1:], len(ids)], abouts, strict=True):
            row_about = about if layout.about is None else layout.about.get(ids[start], About())
            yield str(ids[start]), row_about, {part: values[start:end] for part, values in parts.items()}


def _none(_: pa.RecordBatch) -> dict[str, NDArray[np.bool_]]:
    return {}


def _object(name: str, parts: Mapping[str, NDArray[Any]], about: About | None, layout: TableLayout) -> RawObject:
    facts, only = about or About(), layout.columns.only_band
    rejected = {part[1:]: values for part, values in parts.items() if part.startswith("!")}
    if "upper_limit" in parts:
        rejected["upper limit"] = parts["upper_limit"]
    if "mag" in parts:
        flux, flux_err, implausible = _fluxes_of(parts["mag"], parts["mag_err"], layout.signed_magnitudes)
        rejected |= implausible
    else:
        flux, flux_err = parts["flux"] * layout.unit, parts["flux_err"] * layout.unit
    return RawObject(
        object_id=name,
        mjd=parts["mjd"] + layout.time_offset,
        flux=flux,
        flux_err=flux_err,
        band=parts["band"] if only is None else [only] * len(flux),
        detected=parts.get("detected"),
        label=facts.label,
        metadata=facts.metadata,
        redshift=facts.redshift,
        rejected=rejected,
        parent=facts.parent,
    )


def _fluxes_of(
    magnitude: Float64, error: Float64, signed: bool
) -> tuple[Float64, Float64, dict[str, NDArray[np.bool_]]]:
    """Return fluxes and errors in nJy, and which rows are no measurements, by reason.

    The error of a signed magnitude says how uncertain the flux is, however large it is: ``dm = 1.0857 dF / |F|``.
    """
    size = np.abs(magnitude) if signed else magnitude
    flux, flux_err = njy_with_error(size, error)
    negative = np.zeros(len(size), np.bool_) if signed else magnitude < PLAUSIBLE_MAGNITUDES[0]
    beyond = (size <= PLAUSIBLE_MAGNITUDES[0]) | (size > PLAUSIBLE_MAGNITUDES[1])
    rejected = {
        "negative magnitude": negative,
        "magnitude is not plausible": ~negative & beyond,
        "magnitude error is not plausible": np.zeros(len(size), np.bool_) if signed else error > PLAUSIBLE_ERROR,
    }
    return np.copysign(flux, magnitude) if signed else flux, flux_err, rejected


def _sorted_first(batches: Iterator[pa.RecordBatch], layout: TableLayout) -> Iterator[RawObject]:
    """Share the rows out by id over temporary files, then read each file sorted."""
    with tempfile.TemporaryDirectory(prefix="import-") as folder, ExitStack() as stack:
        writers: dict[int, Any] = {}
        paths = [Path(folder) / f"{share}.parquet" for share in range(SHARES)]
        for batch in batches:
            for share, rows in _shares(batch, layout.columns.id):
                if share not in writers:
                    writers[share] = stack.enter_context(pq.ParquetWriter(paths[share], batch.schema))
                writers[share].write_batch(rows)
        stack.close()
        for share in sorted(writers):
            table = pq.read_table(paths[share])
            order = pc.sort_indices(column_of(table, layout.columns.id))
            yield from _joined(_runs(iter(table.take(order).to_batches()), layout), layout, str(paths[share]))


def column_of(table: pa.Table, name: str) -> pa.Array:
    """Return a column of a table in one piece."""
    return column(table.combine_chunks().to_batches()[0], name)


def _shares(batch: pa.RecordBatch, key: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    ids = as_text(column(batch, key), key)
    share = np.array([zlib.crc32(name.encode()) % SHARES for name in ids], dtype=np.int64)
    for number in np.unique(share):
        yield int(number), batch.take(pa.array(np.flatnonzero(share == number)))
