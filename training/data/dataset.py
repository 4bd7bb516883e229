"""Labelled light curves in a ragged Parquet file, read without copying the photometry.

Notable: photometry is stored as Parquet list columns, so there is no padding, and reading returns the Arrow value
buffers with their offsets as numpy views. The split into train, validation and test is a stable hash of the object id:
it does not change when a file is rewritten or extended. Objects that are not independent (simulations of one original,
transients of one host) share a ``parent``, whose hash is used, so that they are in one part. True values that must not
reach a network (``redshift``) are in the file but not in the `Sample` that is read.

Simulated files are labelled in the `ELASTICC` taxonomy. A file of another survey has its own list of class names (key
``classes`` of the Parquet metadata) and may have unlabelled objects (an empty class name, label -1), which
`require_labels` rejects for classifiers. Files without the column ``parent`` are accepted.

    write_dataset(Path("sim.parquet"), simulate_objects(100, seed=1))
    data = read_dataset(Path("sim.parquet"))
    rows = split_indices(data)["train"]
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nightjar_alerts.models.common import replacing
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.sample import BY_HASH, SIMULATED, UNLABELLED, Sample, sample_of

FORMAT = b"nightjar-light-curves-1"
SPLITS = ("train", "validation", "test")
PARENT = "parent"
ROWS_PER_GROUP = 2048

SCHEMA = pa.schema(
    [
        pa.field("object_id", pa.string(), nullable=False),
        pa.field("class_name", pa.string(), nullable=False),
        pa.field("mjd", pa.list_(pa.float64()), nullable=False),
        pa.field("flux", pa.list_(pa.float32()), nullable=False),
        pa.field("flux_err", pa.list_(pa.float32()), nullable=False),
        pa.field("band", pa.list_(pa.int8()), nullable=False),
        pa.field("detected", pa.list_(pa.bool_()), nullable=False),
        pa.field("trigger_mjd", pa.float64(), nullable=False),
        pa.field("metadata", pa.list_(pa.float32(), len(METADATA_COLUMNS)), nullable=False),
        pa.field("redshift", pa.float64(), nullable=False),
        pa.field(PARENT, pa.string()),
    ],
    metadata={b"format": FORMAT, b"metadata_columns": ",".join(METADATA_COLUMNS).encode()},
)


class DatasetError(ValueError):
    """The file is not a light-curve dataset that this version can read."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelledObject:
    """One object of a simulator or survey with its label; points are sorted by time.

    ``mjd`` f64[n] TAI days; ``flux``, ``flux_err`` f32[n] difference flux in nJy; ``band`` i8[n] index into
    `models.lightcurve.BANDS`; ``detected`` bool[n]; ``trigger_mjd`` the first detection, inf without one; ``metadata``
    f32[64] in the order of `METADATA_COLUMNS`, NaN = missing; ``redshift`` the true redshift (0 inside the Galaxy, NaN
    unknown), never an input; ``class_name`` empty if unknown; ``parent`` the same for all objects that must be in one
    part of a split, empty for independent objects.
    """

    object_id: str
    class_name: str
    mjd: NDArray[np.float64]
    flux: NDArray[np.float32]
    flux_err: NDArray[np.float32]
    band: NDArray[np.int8]
    detected: NDArray[np.bool_]
    trigger_mjd: float
    metadata: NDArray[np.float32]
    redshift: float
    parent: str = ""


def write_dataset(
    path: Path,
    objects: Iterable[LabelledObject],
    *,
    classes: Sequence[str] | None = ELASTICC.names,
    notes: Callable[[], Mapping[str, str]] | None = None,
) -> int:
    """Stream ``objects`` to ``path`` (zstd) and return their number. The file is replaced atomically.

    Parameters
    ----------
    classes : class names in the order of the labels; None: those of the objects, sorted.
    notes : called after the last object; returns texts for the metadata of the file.

    Raises
    ------
    DatasetError
        If the class of an object is not in ``classes``, its columns differ in length, or it has no points.
    """
    allowed = None if classes is None else frozenset(classes)
    stream, count, class_names = iter(objects), 0, set[str]()
    with replacing(path) as partial, pq.ParquetWriter(partial, SCHEMA, compression="zstd") as writer:
        while rows := list(islice(stream, ROWS_PER_GROUP)):
            writer.write_table(_table(rows, allowed))
            class_names |= {row.class_name for row in rows}
            count += len(rows)
        names = tuple(sorted(class_names - {""})) if classes is None else tuple(classes)
        footer = {} if names == ELASTICC.names else {"classes": json.dumps(names)}
        if footer := footer | dict(notes() if notes else {}):
            writer.add_key_value_metadata(footer)
    return count


def require_labels(sample: Sample, path: Path) -> None:
    """Raise DatasetError unless every object is labelled and there are at least two classes."""
    if unlabelled := int((sample.label == UNLABELLED).sum()):
        raise DatasetError(f"{path} holds {unlabelled} unlabelled objects; it can serve pretraining only")
    if len(sample.classes) < 2:
        raise DatasetError(f"{path} has fewer than two classes: {', '.join(sample.classes) or 'none'}")


def read_notes(path: Path) -> dict[str, str]:
    """Return the texts in the metadata of a data file; ``import`` is the provenance of an imported file, as JSON."""
    metadata = pq.read_metadata(path).metadata or {}
    return {key.decode(): value.decode() for key, value in metadata.items() if key != b"ARROW:schema"}


def read_dataset(path: Path) -> Sample:
    """Read every object of ``path``. Raises DatasetError for another format or classes missing in its list."""
    try:
        file = pq.ParquetFile(path, memory_map=True)
    except pa.ArrowInvalid as error:
        raise DatasetError(
            f"{path} is not a data file (not a Parquet file); import it first: "
            f"nightjar-train import table {path} --out {path.with_suffix('.parquet').name}"
        ) from error
    with file:
        _check_schema(path, file.schema_arrow)
        stored = (file.metadata.metadata or {}).get(b"classes")
        try:
            table = file.read().combine_chunks()
        except (OSError, pa.ArrowInvalid) as error:
            raise DatasetError(f"{path} is damaged: {error}") from error
    classes = ELASTICC.names if stored is None else tuple(json.loads(stored))
    offsets, mjd = _ragged(table, "mjd")
    object_id = np.array(table.column("object_id").to_pylist(), dtype=np.str_)
    return sample_of(
        offsets=offsets,
        mjd=mjd,
        flux=_ragged(table, "flux")[1],
        flux_err=_ragged(table, "flux_err")[1],
        band=_ragged(table, "band")[1],
        detected=_ragged(table, "detected")[1],
        metadata=_values(table, "metadata").reshape(len(table), len(METADATA_COLUMNS)),
        label=_labels(path, table, classes),
        source=np.full(len(table), SIMULATED),
        object_id=object_id,
        group=_groups(table, object_id),
        classes=classes,
    )


def split_indices(
    sample: Sample, fractions: tuple[float, float, float] = (0.8, 0.1, 0.1), turn: float = 0.0
) -> dict[str, NDArray[np.int64]]:
    """Return the row numbers of the ``train``, ``validation`` and ``test`` objects.

    The first 8 bytes of SHA-256 of the group (the parent, or the id of an object without parent) give each object a
    number from 0 to 1. ``fractions`` divide this range after ``turn`` is added (modulo 1): with a fifth for testing,
    turns of 0, 0.2, 0.4, 0.6 and 0.8 test every object once. If all objects have parts already, these are kept. Raises
    ValueError unless the fractions are >= 0 and sum to 1.
    """
    if min(fractions) < 0 or abs(sum(fractions) - 1.0) > 1e-9:
        raise ValueError(f"split fractions must be three numbers >= 0 that sum to 1, not {fractions}")
    if not (sample.part == BY_HASH).any():
        return {name: np.flatnonzero(sample.part == index) for index, name in enumerate(SPLITS)}
    number = np.array([_unit_hash(name) for name in sample.group.tolist()], dtype=np.float64)
    part = np.searchsorted(np.cumsum(fractions)[:2], (number + turn) % 1.0, side="right")
    return {name: np.flatnonzero(part == index) for index, name in enumerate(SPLITS)}


def training_shares(sample: Sample, fractions: tuple[float, float, float], turn: float) -> dict[str, float] | None:
    """Return the class shares of training draws by weight; None without weights."""
    if sample.weight is None:
        return None
    rows = split_indices(sample, fractions, turn)["train"]
    share_C = np.bincount(sample.label[rows], sample.weight[rows], minlength=len(sample.classes))
    return dict(zip(sample.classes, (share_C / share_C.sum()).tolist(), strict=True))


def _unit_hash(name: str) -> float:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2.0**64


def _table(rows: Sequence[LabelledObject], allowed: frozenset[str] | None) -> pa.Table:
    for row in rows:
        _check(row, allowed)
    columns: list[Any] = [pa.array([r.object_id for r in rows]), pa.array([r.class_name for r in rows])]
    offsets = pa.array(np.cumsum([0, *(len(r.mjd) for r in rows)]), type=pa.int32())
    for name in ("mjd", "flux", "flux_err", "band", "detected"):
        values = np.concatenate([getattr(r, name) for r in rows])
        columns.append(pa.ListArray.from_arrays(offsets, pa.array(values, type=SCHEMA.field(name).type.value_type)))
    columns.append(pa.array([r.trigger_mjd for r in rows], type=pa.float64()))
    metadata = np.concatenate([r.metadata for r in rows]).astype(np.float32)
    columns.append(pa.FixedSizeListArray.from_arrays(pa.array(metadata), len(METADATA_COLUMNS)))
    columns.append(pa.array([r.redshift for r in rows], type=pa.float64()))
    columns.append(pa.array([r.parent or None for r in rows], type=pa.string()))
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _check(row: LabelledObject, allowed: frozenset[str] | None) -> None:
    lengths = {len(column) for column in (row.mjd, row.flux, row.flux_err, row.band, row.detected)}
    if len(lengths) != 1 or 0 in lengths:
        raise DatasetError(f"object {row.object_id}: columns must be equally long and not empty, got {sorted(lengths)}")
    if row.class_name and allowed is not None and row.class_name not in allowed:
        raise DatasetError(f"object {row.object_id}: class {row.class_name!r} is not in the taxonomy of the file")
    if len(row.metadata) != len(METADATA_COLUMNS):
        raise DatasetError(f"object {row.object_id}: {len(row.metadata)} metadata, expected {len(METADATA_COLUMNS)}")


def _check_schema(path: Path, schema: pa.Schema) -> None:
    metadata = schema.metadata or {}
    if metadata.get(b"format") != FORMAT:
        found = f"format {metadata.get(b'format')!r}, expected {FORMAT!r}"
        raise DatasetError(
            f"{path} is not a data file ({found}); import it first: "
            f"nightjar-train import table {path} --out {path.stem}-imported.parquet"
        )
    if metadata.get(b"metadata_columns") != SCHEMA.metadata[b"metadata_columns"]:
        raise DatasetError(f"{path} was written with other metadata columns")
    without_parents = SCHEMA.remove(SCHEMA.get_field_index(PARENT))
    if not schema.equals(SCHEMA) and not schema.equals(without_parents):
        raise DatasetError(f"{path} has other columns than this version writes")


def _ragged(table: pa.Table, name: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return offsets and flat values of a list column, without a copy except for booleans."""
    column = _single_chunk(table, name)
    offsets = column.offsets.to_numpy().astype(np.int64)
    values = column.values[int(offsets[0]) : int(offsets[-1])]
    return offsets - offsets[0], values.to_numpy(zero_copy_only=not pa.types.is_boolean(values.type))


def _values(table: pa.Table, name: str) -> NDArray[Any]:
    values: NDArray[Any] = _single_chunk(table, name).flatten().to_numpy(zero_copy_only=True)
    return values


def _single_chunk(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks else pa.array([], type=column.type)


def _groups(table: pa.Table, object_id: NDArray[np.str_]) -> NDArray[np.str_]:
    if PARENT not in table.column_names or table.column(PARENT).null_count == len(table):
        return object_id
    parents = table.column(PARENT).to_pylist()
    return np.array([parent or name for parent, name in zip(parents, object_id.tolist(), strict=True)], dtype=np.str_)


def _labels(path: Path, table: pa.Table, classes: tuple[str, ...]) -> NDArray[np.int64]:
    index = {"": UNLABELLED} | {name: position for position, name in enumerate(classes)}
    names = table.column("class_name").to_pylist()
    if unknown := sorted(set(names) - index.keys()):
        raise DatasetError(f"{path} has classes outside its taxonomy: {', '.join(unknown)}")
    return np.array([index[name] for name in names], dtype=np.int64)
