"""Answers as an Arrow IPC stream: one record batch, one row for each light curve, in the order they were sent.

The columns are the fields of the JSON reply, null where a result has none. Probabilities and hierarchy are structs with
a float64 for each class and group, so that a data frame can unnest them; an embedding is a fixed-size list of the type
asked for. Which network answered is in the metadata of the schema, under ``model``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from service.http.body.formats.answers import Answers, embedding_bytes

_ERRORS = pa.list_(pa.struct([(name, pa.string()) for name in ("pointer", "reason", "detail")]))
_SIMPLE: dict[str, Any] = {
    "status": pa.string(),
    "object_id": pa.string(),
    "reason": pa.string(),
    "detail": pa.string(),
    "errors": _ERRORS,
    "class": pa.string(),
    "class_id": pa.int64(),
    "confidence": pa.float64(),
    "novelty": pa.float64(),
    "unusual": pa.bool_(),
    "prediction_set": pa.list_(pa.string()),
    "coverage": pa.float64(),
    "evidence": pa.list_(pa.string()),
    "truncated": pa.bool_(),
    "metadata_missing": pa.int64(),
    "duplicates": pa.int64(),
    "other_filters": pa.map_(pa.string(), pa.int64()),
}
_STRUCTS: dict[str, Any] = {"probabilities": pa.float64(), "hierarchy": pa.float64(), "points_per_band": pa.int64()}


def write(answers: Answers) -> bytes:
    """One stream."""
    results = answers.results
    columns = {name: pa.array([_plain(result.get(name)) for result in results], kind) for name, kind in _SIMPLE.items()}
    members = {"probabilities": answers.classes, "hierarchy": answers.groups, "points_per_band": answers.bands}
    for name, kind in _STRUCTS.items():
        columns[name] = _struct([result.get(name) for result in results], members[name], kind)
    if answers.options.embedding:
        columns["embedding"] = _embeddings(answers)
    batch = pa.record_batch(columns).replace_schema_metadata({"model": orjson.dumps(answers.model)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _plain(value: object) -> object:
    return list(value.items()) if isinstance(value, dict) else value


def _struct(rows: Sequence[Mapping[str, Any] | None], names: Sequence[str], kind: Any) -> Any:
    nothing = [0] * len(names)
    values = np.array([nothing if row is None else list(row.values()) for row in rows], kind.to_pandas_dtype())
    columns = [pa.array(column) for column in np.ascontiguousarray(values.reshape(-1, len(names)).T)]
    return pa.StructArray.from_arrays(columns, list(names), mask=_absent(rows))


def _embeddings(answers: Answers) -> Any:
    found = [result.get("embedding") for result in answers.results]
    nothing = np.zeros(answers.embedding_dim, np.float32)
    data = b"".join(embedding_bytes(nothing if row is None else row, answers.options) for row in found)
    values = pa.array(np.frombuffer(data, answers.options.embedding_dtype))
    return pa.FixedSizeListArray.from_arrays(values, answers.embedding_dim, mask=_absent(found))


def _absent(rows: Sequence[object]) -> Any:
    missing: NDArray[np.bool_] = np.array([row is None for row in rows], np.bool_)
    return pa.array(missing)
