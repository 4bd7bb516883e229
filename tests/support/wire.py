"""Equal light curves and equal answers in every format."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from nightjar_alerts.core.request import DTYPES
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import filter_index
from nightjar_alerts.service.http.formats import ARROW_TYPE, NDJSON_TYPE

JSON_TYPE = "application/json"
MSGPACK_TYPE = "application/msgpack"

Curve = dict[str, Any]

_LISTS: dict[str, Any] = {
    "mjd": pa.list_(pa.float64()),
    "flux": pa.list_(pa.float32()),
    "flux_err": pa.list_(pa.float32()),
    "band": pa.list_(pa.string()),
    "detected": pa.list_(pa.bool_()),
    "metadata": pa.list_(pa.float32()),
    "filters": pa.map_(pa.string(), pa.struct([("wavelength_nm", pa.float64()), ("width_nm", pa.float64())])),
}


def packed(curve: Curve) -> Curve:
    """A light curve with the bytes of its columns."""
    return {name: _bytes(name, value) if name in DTYPES else value for name, value in curve.items()}


def _bytes(name: str, value: Any) -> bytes:
    if name == "band":
        value = [filter_index(band) for band in value]
    return np.array(metadata_row(value) if name == "metadata" else value, DTYPES[name]).tobytes()


def metadata_row(metadata: Mapping[str, float | None]) -> list[float]:
    """Metadata as the formats without names have them."""
    found = [metadata.get(name) for name in METADATA_COLUMNS]
    return [np.nan if value is None else value for value in found]


def msgpack_body(curves: Sequence[Curve], options: Mapping[str, object] | None = None) -> bytes:
    """A body of many light curves."""
    return msgspec.msgpack.encode({"light_curves": list(curves), "options": options or {}})


def lines_body(curves: Sequence[object]) -> bytes:
    """A body of one light curve a line."""
    return b"".join(json.dumps(curve).encode() + b"\n" for curve in curves)


def arrow_table(curves: Sequence[Curve], **types: Any) -> Any:
    """A table with a row for each light curve; ``types`` replace those of columns, a None leaves a column out."""
    names = list(dict.fromkeys(name for curve in curves for name in curve))
    chosen = {name: types.get(name, _LISTS.get(name)) for name in names}
    rows = {name: [curve.get(name) for curve in curves] for name in names}
    if chosen.get("metadata") is not None and not pa.types.is_struct(chosen["metadata"]):
        rows["metadata"] = [None if row is None else metadata_row(row) for row in rows["metadata"]]
    return pa.table({name: pa.array(rows[name], chosen[name]) for name in names})


def arrow_stream(table: Any, **options: Any) -> bytes:
    """A table as an IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        stream.write_table(table, max_chunksize=2)
    return sink.getvalue()


class Encoding(NamedTuple):
    """A way to send light curves to ``/v1/classify``."""

    media_type: str
    encode: Callable[[Sequence[Curve]], bytes]


ENCODINGS: Mapping[str, Encoding] = {
    "json": Encoding(JSON_TYPE, lambda curves: json.dumps({"light_curves": curves}).encode()),
    "msgpack-lists": Encoding(MSGPACK_TYPE, msgpack_body),
    "msgpack-bytes": Encoding(MSGPACK_TYPE, lambda curves: msgpack_body([packed(each) for each in curves])),
    "arrow": Encoding(ARROW_TYPE, lambda curves: arrow_stream(arrow_table(curves))),
    "ndjson": Encoding(NDJSON_TYPE, lines_body),
}
BODIES = {each.media_type: each.encode for name, each in ENCODINGS.items() if name != "msgpack-bytes"}
"""Bodies by media type; those of msgpack have lists."""


def results_of(media_type: str, body: bytes) -> list[dict[str, Any]]:
    """Results in the form of the JSON reply, whatever format they came in; an embedding as an array or as it is."""
    if media_type == JSON_TYPE:
        found: list[dict[str, Any]] = json.loads(body)["results"]
        return found
    if media_type == NDJSON_TYPE:
        return [json.loads(line) for line in body.splitlines()]
    if media_type == ARROW_TYPE:
        rows = pa.ipc.open_stream(body).read_all().to_pylist()
        return [{name: value for name, value in row.items() if value is not None} for row in rows]
    return list(msgspec.msgpack.decode(body)["results"])
