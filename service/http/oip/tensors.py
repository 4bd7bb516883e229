"""The wire format of the Open Inference Protocol: bodies to arrays and arrays to bodies, whatever they mean.

A body is a JSON document, or with the binary tensor extension that document (its length in a header) followed by the
bytes of the tensors in the order they are described: little-endian, row-major, no padding; a text is its length in four
bytes, then its UTF-8. Every size is checked against the bytes that are there before anything is allocated.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from types import NoneType
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from nightjar_alerts.service.answers.replies import FieldError
from nightjar_alerts.service.http.edge.errors import INVALID, MALFORMED, ProblemError
from nightjar_alerts.service.http.oip.forms import Datatype, InputTensor

Array = NDArray[Any]

DTYPES: dict[Datatype, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype("O"),
}
_DATATYPES: dict[np.dtype[Any], Datatype] = {dtype: name for name, dtype in DTYPES.items()}

# What JSON may hold for each kind of dtype: nothing is coerced, but JSON does not tell 1 from 1.0 and knows no NaN.
_JSON_TYPES: dict[str, frozenset[type]] = {
    "b": frozenset({bool}),
    "u": frozenset({int}),
    "i": frozenset({int}),
    "f": frozenset({int, float, NoneType}),
    "O": frozenset({str}),
}

LENGTH = np.dtype("<u4")  # what precedes a text
MOST_ELEMENTS = 2**40  # numpy refuses to shape even an empty array beyond what an address can count
_MOST_DIGITS = 12


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """An array that was received, texts as ``bytes`` objects, and the JSON pointer of its description."""

    values: Array
    pointer: str

    def __len__(self) -> int:
        """Return the size of the first dimension."""
        return len(self.values)


def fault(pointer: str, reason: str, detail: str) -> ProblemError:
    """Return the problem (422) with one value at fault."""
    return ProblemError(INVALID, errors=[FieldError(pointer=pointer, reason=reason, detail=detail)])


def split_body(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    """JSON part and binary part of a body.

    Parameters
    ----------
    header_length : value of ``Inference-Header-Content-Length``; without one all of the body is JSON.

    Raises
    ------
    ProblemError
        400 when it is not a number of bytes of this body, or 0, which announces a single raw tensor.
    """
    if header_length is None:
        return body, memoryview(b"")
    if not (header_length.isascii() and header_length.isdigit() and len(header_length) <= _MOST_DIGITS):
        raise ProblemError(MALFORMED, "Inference-Header-Content-Length must be a number of bytes")
    length = int(header_length)
    if length == 0:
        detail = "a header length of 0 announces one raw tensor; models here take several: describe them in JSON"
        raise ProblemError(MALFORMED, detail)
    if length > len(body):
        detail = f"Inference-Header-Content-Length is {length}, but the body has {len(body)} bytes"
        raise ProblemError(MALFORMED, detail)
    return body[:length], memoryview(body)[length:]


def decode(inputs: Sequence[InputTensor], binary: memoryview) -> dict[str, Tensor]:
    """Tensors by name.

    Raises
    ------
    ProblemError
        422 when a tensor is not what its description says, 400 when the binary part is longer or shorter.
    """
    tensors: dict[str, Tensor] = {}
    start = 0
    for place, described in enumerate(inputs):
        pointer = f"/inputs/{place}"
        if described.name in tensors:
            raise fault(f"{pointer}/name", "duplicate", "there are two inputs of this name")
        size = described.parameters.binary_data_size
        if size is not None and described.data is not None:
            raise fault(f"{pointer}/data", "unexpected", "an input has either data or binary_data_size")
        if size is None:
            values = _from_json(described, pointer)
        else:
            values = _from_bytes(described, _piece(binary, start, size, described.name), pointer)
            start += size
        tensors[described.name] = Tensor(values, pointer)
    if start < len(binary):
        raise ProblemError(MALFORMED, f"{len(binary) - start} bytes follow the last tensor")
    return tensors


def _piece(binary: memoryview, start: int, size: int, name: str) -> memoryview:
    if size > len(binary) - start:
        detail = f"{name} has a binary_data_size of {size}, but {len(binary) - start} bytes are left"
        raise ProblemError(MALFORMED, detail)
    return binary[start : start + size]


def _from_bytes(described: InputTensor, data: memoryview, pointer: str) -> Array:
    dtype, count = DTYPES[described.datatype], _count(described, pointer)
    if dtype.kind == "O":
        flat = _texts(data, count, pointer)
    else:
        if len(data) != count * dtype.itemsize:
            detail = f"{count} values of {described.datatype} are {count * dtype.itemsize} bytes, not {len(data)}"
            raise fault(f"{pointer}/parameters/binary_data_size", "size_mismatch", detail)
        if dtype.kind == "b" and len(data) and np.frombuffer(data, np.uint8).max() > 1:
            raise fault(pointer, "not_a_boolean", "a BOOL is a byte of 0 or 1")
        # After a header of any length the numbers may begin at any address: those that do are copied.
        flat = np.require(np.frombuffer(data, dtype), requirements=["ALIGNED"])
    return flat.reshape(described.shape)


def _texts(data: memoryview, count: int, pointer: str) -> Array:
    """Texts of a binary tensor, shape (count,), of ``bytes`` objects."""
    if count * LENGTH.itemsize > len(data):
        raise fault(f"{pointer}/parameters/binary_data_size", "size_mismatch", f"too short for {count} texts")
    texts = _equally_long(data, count)
    return np.array(_one_by_one(data, count, pointer), dtype=object) if texts is None else texts


def _equally_long(data: memoryview, count: int) -> Array | None:
    """Read texts of one length, as band names are, at a tenth of the cost; None when they are not."""
    width, rest = divmod(len(data), count) if count else (0, 1)
    if rest or width == LENGTH.itemsize:
        return None
    records = np.frombuffer(data, [("length", LENGTH), ("text", f"V{width - LENGTH.itemsize}")])
    if (records["length"] != width - LENGTH.itemsize).any():
        return None
    return records["text"].astype(object)


def _one_by_one(data: memoryview, count: int, pointer: str) -> list[bytes]:
    texts: list[bytes] = []
    start = 0
    for _ in range(count):
        begin = start + LENGTH.itemsize
        end = begin + int.from_bytes(data[start:begin], "little")
        if begin > len(data) or end > len(data):
            raise fault(pointer, "size_mismatch", f"text {len(texts)} goes beyond the bytes of its tensor")
        texts.append(bytes(data[begin:end]))
        start = end
    if start < len(data):
        raise fault(pointer, "size_mismatch", f"{len(data) - start} bytes follow the last of {count} texts")
    return texts


def _from_json(described: InputTensor, pointer: str) -> Array:
    count, dtype, data = _count(described, pointer), DTYPES[described.datatype], described.data
    if not isinstance(data, list):
        raise fault(f"{pointer}/data", "not_a_list", "must be a list, or the parameter binary_data_size is missing")
    flat = _flat(data, described.shape, pointer)
    if len(flat) != count:
        detail = f"{len(flat)} values where the shape has {count}"
        raise fault(f"{pointer}/data", "size_mismatch", detail)
    if not set(map(type, flat)) <= _JSON_TYPES[dtype.kind]:
        raise fault(f"{pointer}/data", "wrong_type", f"holds a value that is no {described.datatype}")
    try:
        return _to_array(flat, dtype).reshape(described.shape)
    except OverflowError:
        detail = f"holds a number beyond the range of {described.datatype}"
        raise fault(f"{pointer}/data", "out_of_range", detail) from None


def _flat(data: list[Any], shape: Sequence[int], pointer: str) -> list[Any]:
    """Values of a list that is flat, or nested as deep as the shape."""
    for size in shape[1:]:
        if not data or not isinstance(data[0], list):
            break
        if not all(isinstance(row, list) and len(row) == size for row in data):
            raise fault(f"{pointer}/data", "size_mismatch", f"its inner lists do not all have {size} values")
        data = list(chain.from_iterable(data))
    return data


def _to_array(flat: list[Any], dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "O":
        return np.array([text.encode("utf-8", "replace") for text in flat], dtype=object)
    if dtype.kind != "f":
        return np.array(flat, dtype=dtype)
    with np.errstate(over="ignore"):  # a double beyond the range of FP32 becomes infinite, for the next check to name
        return np.array(flat, dtype=np.float64).astype(dtype)


def _count(described: InputTensor, pointer: str) -> int:
    """Count the elements; Python's integers do not overflow."""
    if prod(max(size, 1) for size in described.shape) > MOST_ELEMENTS:
        raise fault(f"{pointer}/shape", "too_large", "more elements than memory has addresses")
    return prod(described.shape)


def datatype_of(array: Array) -> Datatype:
    """Name of an array's dtype in this protocol."""
    return _DATATYPES[array.dtype.newbyteorder("<")]


def encode(
    head: Mapping[str, object], outputs: Mapping[str, Array], binary: Container[str]
) -> tuple[bytes, int | None]:
    """Write a reply; returns it, and the length of its JSON part when tensors follow it.

    Parameters
    ----------
    head : members of the JSON part beside ``outputs``.
    outputs : arrays by name, in the order to be told; texts as ``bytes`` objects.
    binary : names of those to be sent as bytes.
    """
    described, pieces = [], []
    for name, array in outputs.items():
        tensor: dict[str, object] = {"name": name, "datatype": datatype_of(array), "shape": array.shape}
        if name in binary:
            piece = _to_bytes(array)
            pieces.append(piece)
            tensor["parameters"] = {"binary_data_size": len(piece)}
        else:
            tensor["data"] = _to_json(array)
        described.append(tensor)
    text = orjson.dumps({**head, "outputs": described}, option=orjson.OPT_SERIALIZE_NUMPY)
    return b"".join([text, *pieces]), len(text) if pieces else None


def _to_bytes(array: Array) -> bytes:
    if array.dtype.kind != "O":
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return b"".join(chain.from_iterable((len(text).to_bytes(4, "little"), text) for text in array.ravel()))


def _to_json(array: Array) -> Array | list[str]:
    flat = np.ascontiguousarray(array).ravel()
    return [text.decode("utf-8", "replace") for text in flat] if array.dtype.kind == "O" else flat
