"""Arrow IPC streams as requests and responses.

A request has one row per light curve, list columns, and any number of record batches. The columns are those of the JSON
format: ``mjd`` (lists of float64), ``flux`` and ``flux_err`` (lists of float32 or float64), ``band`` (lists of
text, dictionary-encoded text or indices into u, g, r, i, z, Y), ``detected`` (lists of booleans), ``object_id`` (text
or integers, exact to 64 bits), ``flux_unit``, ``flux_kind`` and ``survey`` (text), ``metadata`` (a struct of named
floats, or lists with one float for each of the 64 columns in order; null and NaN are missing) and ``filters`` (a map of
names to structs of ``wavelength_nm``, ``width_nm`` and ``vega_zero_point_jy``). Instead of or with fluxes, ``mag`` and
``mag_err`` (lists of floats), with ``mag_system`` (text), ``upper_limit`` (lists of booleans) and ``reference_flux`` (a
map of text to floats) can be sent. If both are sent, null or NaN marks the value that a point does not have.

- Batches are validated in full, including offsets and UTF-8, before a value is used.
- pyarrow is fifty times larger than its alternatives, but rejected 180,000 corrupted streams without a crash; nanoarrow
  0.9 and arro3 0.9 each crashed within the first 4,000.
- Compressed buffers are rejected, because their decompressed size is not bounded. pyarrow decompresses them when it
  reads a batch, so the metadata of each message is checked first. They are flatbuffers: each table starts with the
  distance to a list of the offsets of its fields. The fields are Message.header, DictionaryBatch.data and
  RecordBatch.compression of Arrow's Message.fbs and Schema.fbs.
- Texts in dictionaries and texts shared by views are created once and must be short. Otherwise a thousand rows could
  expand a megabyte to a gigabyte.
- Work that pyarrow repeats for each batch is bounded: the number of batches, including empty ones, and the bytes of
  dictionaries, which are validated again with each batch that refers to them.

A response is one record batch with a row per light curve, in the order of the request. The columns are the fields of
the JSON response; null means that a result does not have the field. Probabilities and hierarchy are structs with a
float64 per class and group; an embedding is a fixed-size list of the requested type. ``filters`` is present if a light
curve described filters. The schema metadata contain the model, under ``model``.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from struct import unpack_from
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.inspect import Field
from numpy.typing import NDArray

from nightjar_alerts.core.errors import MAX_FIELD_ERRORS, FieldError, pointer, unknown_field
from nightjar_alerts.core.record import Record
from nightjar_alerts.core.request import MAX_FILTERS, missing_columns
from nightjar_alerts.core.result import ResultFields
from nightjar_alerts.core.schemas import arrow_type, fields_of, plain_type
from nightjar_alerts.core.serializer import encode_json
from nightjar_alerts.models.metadata import KNOWN_COLUMNS
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.service.answers.replies import field_error
from nightjar_alerts.service.http.edge.errors import INVALID, MALFORMED, TOO_LARGE, ProblemError
from nightjar_alerts.service.http.results import ClassifyResults, embedding_to_bytes

_HEADER_TYPE, _HEADER, _ID, _DATA, _IS_DELTA, _COMPRESSION = 1, 2, 0, 1, 2, 3
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


def is_compressed(metadata: bytes) -> bool:
    """Return whether the buffers of a message are compressed, from its metadata. Raises struct.error if invalid."""
    message = _follow(metadata, 0)
    kind, header = _table_field(metadata, message, _HEADER_TYPE), _table_field(metadata, message, _HEADER)
    if not kind or not header:
        return False
    batch = _follow(metadata, header)
    if metadata[kind] == _DICTIONARY_BATCH:
        data = _table_field(metadata, batch, _DATA)
        return bool(data) and bool(_table_field(metadata, _follow(metadata, data), _COMPRESSION))
    return metadata[kind] == _RECORD_BATCH and bool(_table_field(metadata, batch, _COMPRESSION))


def read_dictionary_id(metadata: bytes) -> tuple[int, bool]:
    """Return the id of the dictionary in a dictionary message, and whether the message extends it."""
    batch = _follow(metadata, _table_field(metadata, _follow(metadata, 0), _HEADER))
    number, delta = _table_field(metadata, batch, _ID), _table_field(metadata, batch, _IS_DELTA)
    return int(unpack_from("<q", metadata, number)[0]) if number else 0, bool(delta and metadata[delta])


def _follow(buffer: bytes, position: int) -> int:
    """Return the position of the table that the offset at ``position`` refers to."""
    (distance,) = unpack_from("<I", buffer, position)
    return position + int(distance)


def _table_field(buffer: bytes, table: int, number: int) -> int:
    """Return the position of a field of a table; 0 if it is absent."""
    (back,) = unpack_from("<i", buffer, table)
    fields = table - int(back)
    (size,) = unpack_from("<H", buffer, fields)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = unpack_from("<H", buffer, fields + 4 + 2 * number)
    return table + int(offset) if offset else 0


_UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError, MemoryError, struct.error)
_UNKNOWN = 255
MAX_SHARED_BYTES = 1024
"""Maximum length of a text that rows may share; identifiers and bands are much shorter."""
MAX_REREAD_BYTES = 256 * 1024 * 1024
"""Maximum bytes of dictionaries, counted once for each batch that follows them; validating these takes half a second. A
thousand batches of one row, each after a dictionary of all names, have a tenth of it."""


def read_arrow(body: bytes, max_curves: int) -> list[dict[str, Any]]:
    """Return a row per light curve: arrays, or plain objects if an array cannot contain a column.

    Raises
    ------
    ProblemError
        400 for an invalid stream, 413 beyond ``max_curves`` rows or batches and for large dictionaries used by many
        batches, 422 for columns with unknown names or types.
    """
    try:
        _check_messages(body, max_curves)
        with pa.ipc.open_stream(body) as stream:
            _check_schema(stream.schema)
            return [row for batch in _validated(stream, max_curves) for row in _rows(batch)]
    except _UNREADABLE:
        raise ProblemError(MALFORMED, "the body is not a valid Arrow IPC stream") from None


def _check_messages(body: bytes, max_batches: int) -> None:
    """Reject compressed buffers and too much repeated validation, before validating."""
    validation = _RepeatedValidation(max_batches)
    for message in pa.ipc.MessageReader.open_stream(body):
        if message.type != "schema":
            metadata = message.metadata.to_pybytes()
            if is_compressed(metadata):
                detail = "send record batches without buffer compression"
                raise ProblemError(INVALID, errors=[FieldError(pointer="", reason="compressed", detail=detail)])
            validation.count(message, metadata)


class _RepeatedValidation:
    """Counts the batches of a stream, and the bytes of dictionaries that are validated again for each batch."""

    def __init__(self, max_batches: int) -> None:
        self._max_batches = max_batches
        self._batches = self._bytes = 0
        self._dictionaries: dict[int, int] = {}  # bytes by id; a new dictionary replaces one with the same id

    def count(self, message: Any, metadata: bytes) -> None:
        """Count one message. Raises ProblemError (413) beyond a limit."""
        if message.type == "dictionary":
            number, delta = read_dictionary_id(metadata)
            before = self._dictionaries.get(number, 0) if delta else 0
            self._dictionaries[number] = before + (message.body.size if message.body else 0)
            return
        self._batches += 1
        if self._batches > self._max_batches:
            detail = f"more than {self._max_batches} record batches in one request"
            raise ProblemError(TOO_LARGE, detail, limit=self._max_batches)
        self._bytes += sum(self._dictionaries.values())
        if self._bytes > MAX_REREAD_BYTES and self._batches > 1:
            detail = "too many record batches for large dictionaries: send fewer batches, or no dictionaries"
            raise ProblemError(TOO_LARGE, detail, limit=MAX_REREAD_BYTES)


def _validated(stream: Any, max_curves: int) -> Iterator[Any]:
    """Yield the validated batches that have rows."""
    rows = 0
    for batch in stream:
        if not batch.num_rows:
            continue
        batch.validate()
        for column in batch.columns:
            _reject_long_views(column)
        batch.validate(full=True)
        rows += batch.num_rows
        if rows > max_curves:
            raise ProblemError(TOO_LARGE, f"more than {max_curves} light curves in one request", limit=max_curves)
        yield batch


def _rows(batch: Any) -> list[dict[str, Any]]:
    names = batch.schema.names
    columns = [_COLUMNS[name].read(column) for name, column in zip(names, batch.columns, strict=True)]
    rows = zip(*columns, strict=True)
    return [{name: value for name, value in zip(names, row, strict=True) if value is not None} for row in rows]


def _form(kind: Any) -> str:
    """Return what a type holds, however it is stored; other scalars as pyarrow names them."""
    types = pa.types
    if types.is_dictionary(kind):
        form = _form(kind.value_type)
        return form if form == "text" else str(kind)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if types.is_integer(kind):
        return "integer"
    if types.is_list(kind) or types.is_large_list(kind):
        return f"list of {_form(kind.value_type)}"
    if types.is_fixed_size_list(kind):
        return f"fixed list of {_form(kind.value_type)}"
    if types.is_struct(kind) and all(_form(member.type) in ("float", "double") for member in kind):
        return "struct of floats"
    if types.is_map(kind) and types.is_string(kind.key_type):
        return f"map to {_form(kind.item_type)}"
    return str(kind)


def _check_schema(schema: Any) -> None:
    errors = [error for member in schema for error in _find_column_errors(member)]
    missing = {"mjd", "band", *missing_columns(schema.names)} - set(schema.names)
    errors += [
        field_error(f"/{name}", "missing") for name in ("mjd", "flux", "flux_err", "mag", "band") if name in missing
    ]
    if len(set(schema.names)) < len(schema.names):
        errors.append(FieldError(pointer="", reason="ambiguous", detail="two columns have the same name"))
    if errors:
        raise ProblemError(INVALID, errors=errors[:MAX_FIELD_ERRORS])


def _find_column_errors(member: Any) -> list[FieldError]:
    where = pointer([member.name])
    column = _COLUMNS.get(member.name)
    if column is None:
        return [unknown_field("", member.name, _COLUMNS)]
    if not column.holds(member.type):
        detail = f"must hold {column.types}, not {str(member.type)[:100]}"
        return [FieldError(pointer=where, reason="wrong_type", detail=detail)]
    if not pa.types.is_struct(member.type):
        return []
    names = [inner.name for inner in member.type]
    return [unknown_field(where, name, KNOWN_COLUMNS) for name in names if name not in KNOWN_COLUMNS]


def _reject_long_views(column: Any) -> None:
    """Reject a long text shared by views, which a full validation would read again for each of them."""
    values = column.values if _form(column.type).startswith("list of") else column
    values = values.dictionary if pa.types.is_dictionary(values.type) else values
    if pa.types.is_string_view(values.type) and len(values):
        starts = np.frombuffer(values.buffers()[1], "<i4")[::4]  # a view has 16 bytes and starts with the length
        lengths = starts[values.offset : values.offset + len(values)]
        if lengths[values.is_valid().to_numpy(zero_copy_only=False)].max(initial=0) > MAX_SHARED_BYTES:
            raise _too_long()


def _too_long() -> ProblemError:
    detail = f"texts of dictionaries and views have at most {MAX_SHARED_BYTES} bytes"
    return ProblemError(INVALID, errors=[FieldError(pointer="", reason="too_long", detail=detail)])


def _rows_of(column: Any, flat: Any) -> list[Any]:
    """Return the part of ``flat``, which has an element per value of a list column, of each row; None for null."""
    rows = [flat[start:end] for start, end in pairwise(column.offsets.to_numpy().tolist())]
    if not column.null_count:
        return rows
    return [row if valid else None for valid, row in zip(column.is_valid().to_pylist(), rows, strict=True)]


def _numbers(column: Any) -> list[object]:
    """Return an array per row, or a list if a value is null."""
    if not column.values.null_count:
        return _rows_of(column, column.values.to_numpy(zero_copy_only=False))
    return [None if row is None else _array_or_list(row) for row in _rows_of(column, column.values)]


def _array_or_list(values: Any) -> object:
    return values.to_pylist() if values.null_count else values.to_numpy(zero_copy_only=False)


def _entries(values: Any) -> tuple[list[Any], NDArray[np.int32]]:
    """Return the distinct values of an array, then None, and the position of each value among them.

    Entries of a dictionary that no value refers to are not read: a batch of one row may have thousands. Raises
    ProblemError (422) for a long text in a dictionary.
    """
    if not pa.types.is_dictionary(values.type):
        coded = values.dictionary_encode()
        found: list[Any] = coded.dictionary.to_pylist()
    else:
        coded = values.indices.dictionary_encode()
        found = values.dictionary.take(coded.dictionary).to_pylist()
        if any(text is not None and len(text) > MAX_SHARED_BYTES for text in found):
            raise _too_long()
    return [*found, None], coded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)


def _texts(column: Any) -> list[object]:
    """Return the texts of a column, and integers as text; None for null."""
    entries, positions = _entries(column)
    texts = [None if entry is None else str(entry) for entry in entries]
    return [texts[position] for position in positions.tolist()]


def _bands(column: Any) -> list[object]:
    """Return the band indices of each row as an array, or the names as a list if one is null or another filter's."""
    if pa.types.is_integer(column.values.type):
        return [list(map(_band_name, row)) if isinstance(row, list) else row for row in _numbers(column)]
    names, positions = _entries(column.values)
    indices = np.array([_index_of(name) for name in names], np.uint8)[positions]
    rows = _rows_of(column, indices)
    if indices.max(initial=0) < _UNKNOWN:
        return rows
    return [
        [names[position] for position in found.tolist()] if found is not None and _UNKNOWN in row else row
        for row, found in zip(rows, _rows_of(column, positions), strict=True)
    ]


def _band_name(index: int | None) -> str | None:
    return None if index is None else BANDS[index] if 0 <= index < len(BANDS) else str(index)


def _index_of(name: str | None) -> int:
    """Return the index of a band, or _UNKNOWN for other filters, which are looked up by name later."""
    return BANDS.index("Y" if name == "y" else name) if name in (*BANDS, "y") else _UNKNOWN


def _metadata(column: Any) -> list[object]:
    """Return the metadata of each row by name, or as an array; null and NaN are missing."""
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    if not pa.types.is_struct(column.type):
        return _rows_of(column, column.values.to_numpy(zero_copy_only=False))
    names = [member.name for member in column.type]
    fields = [member.to_numpy(zero_copy_only=False).tolist() for member in column.flatten()]  # null becomes NaN
    rows = zip(*fields, strict=True) if fields else iter([()] * len(column))
    return [{name: value for name, value in zip(names, row, strict=True) if value == value} for row in rows]


def _maps(column: Any, name: str) -> list[object]:
    """Return a mapping per row, without null members of its structs. Raises ProblemError (422) for too many names."""
    if np.diff(column.offsets.to_numpy()).max(initial=0) > MAX_FILTERS:
        detail = f"at most {MAX_FILTERS} filters per light curve can be described"
        raise ProblemError(INVALID, errors=[FieldError(pointer=f"/{name}", reason="too_long", detail=detail)])
    rows = column.to_pylist()
    return [None if row is None else {key: _without_nulls(value) for key, value in row} for row in rows]


def _without_nulls(value: Any) -> Any:
    return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else value


class _Column(NamedTuple):
    """A column of a request: the forms that it may have, their description, and the reader of its rows."""

    forms: tuple[str, ...]
    types: str
    read: Callable[[Any], list[object]]

    def holds(self, kind: Any) -> bool:
        """Return whether a column may have a type."""
        return _form(kind) in self.forms


_MEASUREMENTS = _Column(("list of float", "list of double"), "lists of float32 or float64", _numbers)
_BOOLEANS = _Column(("list of bool",), "lists of booleans", _numbers)
_TEXT = _Column(("text",), "text", _texts)
_DEGREES = _Column(("float", "double"), "float32 or float64", lambda column: column.to_pylist())
_COLUMNS: dict[str, _Column] = {
    "object_id": _Column(("text", "integer"), "text or integers", _texts),
    "mjd": _Column(("list of double",), "lists of float64", _numbers),
    "flux": _MEASUREMENTS,
    "flux_err": _MEASUREMENTS,
    "mag": _MEASUREMENTS,
    "mag_err": _MEASUREMENTS,
    "band": _Column(("list of text", "list of integer"), "lists of text or of integers", _bands),
    "detected": _BOOLEANS,
    "upper_limit": _BOOLEANS,
    "metadata": _Column(
        ("struct of floats", "list of float", "list of double", "fixed list of float", "fixed list of double"),
        "structs of float32 or float64, or lists of them",
        _metadata,
    ),
    "filters": _Column(
        ("map to struct of floats",),
        "maps of text to structs of float32 or float64",
        partial(_maps, name="filters"),
    ),
    "flux_unit": _TEXT,
    "flux_kind": _TEXT,
    "mag_system": _TEXT,
    "reference_flux": _Column(
        ("map to float", "map to double"), "maps of text to float32 or float64", partial(_maps, name="reference_flux")
    ),
    "survey": _TEXT,
    "ra": _DEGREES,
    "dec": _DEGREES,
}


_FIELDS = fields_of("CurveFailure", "CurveResult")
_OPTIONAL = ("filters", "warnings", "subtype", "embedding", "experts")
"""Columns that are present if a result has the field, or an embedding was requested."""
_WITHOUT = ("model",)
"""Fields without a column: all results are of one model, which the schema names."""


def write_arrow(response: ClassifyResults) -> bytes:
    """Encode the results as one stream."""
    results = response.results
    names = {"probabilities": response.classes, "hierarchy": response.groups, "points_per_band": response.bands}
    columns = {"status": pa.array([result.status for result in results], pa.string())}
    for name, field in _FIELDS.items():
        if name not in (*names, *_OPTIONAL, *_WITHOUT):
            columns[name] = _column(results, field)
    for name, keys in names.items():
        value = plain_type(_FIELDS[name].type).value_type  # type: ignore[attr-defined]  # a dictionary
        columns[name] = _struct([getattr(result, name, None) for result in results], keys, arrow_type(value, pa))
    for name in _OPTIONAL:
        if name == "embedding":
            columns |= {name: _embeddings(response)} if response.options.embedding else {}
        elif any(getattr(result, name, None) is not None for result in results):
            columns[name] = _column(results, _FIELDS[name])
    batch = pa.record_batch(columns).replace_schema_metadata({"model": encode_json(response.model)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _column(results: Sequence[ResultFields], field: Field) -> Any:
    values = [_plain(getattr(result, field.name, None)) for result in results]
    return pa.array(values, arrow_type(field.type, pa))


def _plain(value: object) -> object:
    """Return a value as pyarrow converts it: dictionaries for records, pairs for maps."""
    if isinstance(value, Record):
        return {name: _plain(member) for name, member in value.members().items()}
    if isinstance(value, list):
        return [_plain(element) for element in value]
    return list(value.items()) if isinstance(value, dict) else value


def _struct(rows: Sequence[Mapping[str, Any] | None], names: Sequence[str], kind: Any) -> Any:
    nothing = [0] * len(names)
    values = np.array([nothing if row is None else list(row.values()) for row in rows], kind.to_pandas_dtype())
    columns = [pa.array(column) for column in np.ascontiguousarray(values.reshape(-1, len(names)).T)]
    return pa.StructArray.from_arrays(columns, list(names), mask=_absent(rows))


def _embeddings(response: ClassifyResults) -> Any:
    embeddings = [getattr(result, "embedding", None) for result in response.results]
    nothing = np.zeros(response.embedding_dim, np.float32)
    data = b"".join(embedding_to_bytes(nothing if row is None else row, response.options) for row in embeddings)
    values = pa.array(np.frombuffer(data, response.options.embedding_dtype))
    return pa.FixedSizeListArray.from_arrays(values, response.embedding_dim, mask=_absent(embeddings))


def _absent(rows: Sequence[object]) -> Any:
    missing: NDArray[np.bool_] = np.array([row is None for row in rows], np.bool_)
    return pa.array(missing)
