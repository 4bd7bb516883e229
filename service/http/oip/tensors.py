"""Wire format of the Open Inference Protocol: decoding bodies to arrays, and encoding arrays.

A body is a JSON document. With the binary tensor extension, a header gives the length of that document, and the bytes
of the tensors follow in the same order: little-endian, row-major, without padding; a text is its length in four bytes,
followed by its UTF-8 bytes. All sizes are checked before memory is allocated.
"""

import json
import re
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from math import prod
from types import NoneType
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from nightjar_alerts.core.decoding import MAX_NAMES, MAX_NONFINITE_BYTES
from nightjar_alerts.service.http.edge.body import BOM
from nightjar_alerts.service.http.edge.errors import MALFORMED, ProblemError, invalid_field
from nightjar_alerts.service.http.oip.schemas import Datatype, InputTensor

Array = NDArray[Any]

DTYPES: Final[Mapping[Datatype, np.dtype[Any]]] = {
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
_DATATYPES: Final = {dtype: name for name, dtype in DTYPES.items()}
# Values that JSON may have for each kind of dtype. Nothing is coerced, but JSON does not distinguish 1 from 1.0.
_JSON_TYPES: Final[Mapping[str, frozenset[type]]] = {
    "b": frozenset({bool}),
    "u": frozenset({int}),
    "i": frozenset({int}),
    "f": frozenset({int, float, NoneType}),
    "O": frozenset({str}),
}
_LENGTH: Final = np.dtype("<u4")
MAX_ELEMENTS: Final = 2**40  # numpy cannot create even empty arrays with dimensions beyond the address space
_BEYOND_JSON = re.compile(rb"NaN|Infinity|(?<![0-9])[0-9]{309}")


def split_body(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    """Split a body into its JSON part and its binary part.

    Parameters
    ----------
    header_length : ``Inference-Header-Content-Length``; without it, the whole body is JSON.

    Raises
    ------
    ProblemError
        400 if it is not a number, longer than the body, or 0, which means a single raw tensor.
    """
    if header_length is None:
        return body, memoryview(b"")
    if not re.fullmatch("[0-9]{1,12}", header_length):
        raise ProblemError(MALFORMED, "Inference-Header-Content-Length must be a number of bytes")
    length = int(header_length)
    if length == 0:
        detail = "a header length of 0 (one raw tensor) is not supported: models have several inputs"
        raise ProblemError(MALFORMED, detail)
    if length > len(body):
        detail = f"Inference-Header-Content-Length is {length}, but the body has {len(body)} bytes"
        raise ProblemError(MALFORMED, detail)
    return body[:length], memoryview(body)[length:]


def load_json(text: bytes) -> object:
    """Parse a JSON document; NaN, which some encoders write instead of null, is accepted. Raises ProblemError (400)."""
    text = text.removeprefix(BOM)
    if len(text) > MAX_NAMES and sum(map(text.count, (b"[", b"{", b":"))) > MAX_NAMES:
        raise ProblemError(MALFORMED, f"the document has more than {MAX_NAMES} lists, objects and names")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        if len(text) <= MAX_NONFINITE_BYTES and _BEYOND_JSON.search(text):
            with suppress(ValueError, RecursionError):
                return json.loads(text.decode())
    raise ProblemError(MALFORMED, f"the body is not a valid UTF-8 JSON document: {where}")


def decode_tensors(inputs: Sequence[InputTensor], binary: memoryview) -> dict[str, Array]:
    """Decode the values of inputs, in their shapes; texts are ``bytes`` objects.

    Raises
    ------
    ProblemError
        422 for a tensor that does not match its description, 400 if the binary part has another length.
    """
    arrays: dict[str, Array] = {}
    start = 0
    for index, tensor in enumerate(inputs):
        pointer, size = f"/inputs/{index}", tensor.parameters.binary_data_size
        if size is None:
            arrays[tensor.name] = _decode_json(tensor, pointer)
            continue
        if tensor.data is not None:
            raise invalid_field(f"{pointer}/data", "unexpected", "an input has either data or binary_data_size")
        if size > len(binary) - start:
            detail = f"{tensor.name} has a binary_data_size of {size}, but {len(binary) - start} bytes are left"
            raise ProblemError(MALFORMED, detail)
        size_pointer = f"{pointer}/parameters/binary_data_size"
        arrays[tensor.name] = decode_bytes(tensor, binary[start : start + size], pointer, size_pointer)
        start += size
    if start < len(binary):
        raise ProblemError(MALFORMED, f"{len(binary) - start} bytes follow the last tensor")
    return arrays


def decode_bytes(tensor: InputTensor, data: memoryview, pointer: str, size_pointer: str) -> Array:
    """Decode the bytes of an input.

    Parameters
    ----------
    pointer, size_pointer : JSON pointers to the input, and to its bytes or their number.

    Raises
    ------
    ProblemError
        422 for bytes that do not match datatype and shape.
    """
    dtype, count = DTYPES[tensor.datatype], count_elements(tensor, pointer)
    if dtype.kind == "O":
        if count * _LENGTH.itemsize > len(data):
            raise invalid_field(size_pointer, "size_mismatch", f"too short for {count} texts")
        return _decode_texts(data, count, pointer).reshape(tensor.shape)
    if len(data) != count * dtype.itemsize:
        detail = f"{count} values of {tensor.datatype} have {count * dtype.itemsize} bytes, not {len(data)}"
        raise invalid_field(size_pointer, "size_mismatch", detail)
    if dtype.kind == "b" and len(data) and np.frombuffer(data, np.uint8).max() > 1:
        raise invalid_field(pointer, "not_a_boolean", "a BOOL is a byte of 0 or 1")
    # Numbers that start at an unaligned address are copied.
    return np.require(np.frombuffer(data, dtype), requirements=["ALIGNED"]).reshape(tensor.shape)


def _decode_texts(data: memoryview, count: int, pointer: str) -> Array:
    width, rest = divmod(len(data), count) if count else (0, 1)
    if not rest and width > _LENGTH.itemsize:  # texts of one length, such as band names, are decoded in one step
        records = np.frombuffer(data, [("length", _LENGTH), ("text", f"V{width - _LENGTH.itemsize}")])
        if (records["length"] == width - _LENGTH.itemsize).all():
            return records["text"].astype(object)
    texts: list[bytes] = []
    start = 0
    for _ in range(count):
        begin = start + _LENGTH.itemsize
        end = begin + int.from_bytes(data[start:begin], "little")
        if begin > len(data) or end > len(data):
            raise invalid_field(pointer, "size_mismatch", f"text {len(texts)} is longer than the rest of its tensor")
        texts.append(bytes(data[begin:end]))
        start = end
    if start < len(data):
        raise invalid_field(pointer, "size_mismatch", f"{len(data) - start} bytes follow the last of {count} texts")
    return np.array(texts, dtype=object)


def _decode_json(tensor: InputTensor, pointer: str) -> Array:
    dtype, count, data = DTYPES[tensor.datatype], count_elements(tensor, pointer), tensor.data
    where = f"{pointer}/data"
    if not isinstance(data, list):
        raise invalid_field(where, "not_a_list", "must be a list, unless binary_data_size is given")
    for size in tensor.shape[1:]:  # flat, or nested as deep as the shape
        if not data or not isinstance(data[0], list):
            break
        if not all(isinstance(row, list) and len(row) == size for row in data):
            raise invalid_field(where, "size_mismatch", f"an inner list does not have {size} values")
        data = list(chain.from_iterable(data))
    if len(data) != count:
        raise invalid_field(where, "size_mismatch", f"{len(data)} values, but the shape has {count}")
    if not set(map(type, data)) <= _JSON_TYPES[dtype.kind]:
        raise invalid_field(where, "wrong_type", f"contains a value that is not {tensor.datatype}")
    try:
        return _to_array(data, dtype).reshape(tensor.shape)
    except OverflowError:
        detail = f"contains a number outside the range of {tensor.datatype}"
        raise invalid_field(where, "out_of_range", detail) from None


def count_elements(tensor: InputTensor, pointer: str) -> int:
    """Return the number of elements. Raises ProblemError (422) for a shape that is too large."""
    if prod(max(size, 1) for size in tensor.shape) > MAX_ELEMENTS:
        raise invalid_field(f"{pointer}/shape", "too_large", "the shape has too many elements")
    return prod(tensor.shape)


def _to_array(values: list[Any], dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "O":
        return np.array([text.encode("utf-8", "replace") for text in values], dtype=object)
    if dtype.kind != "f":
        return np.array(values, dtype=dtype)
    with np.errstate(over="ignore"):  # a double beyond FP32 becomes infinite, which validation rejects
        return np.array(values, dtype=np.float64).astype(dtype)


def encode_response(
    head: Mapping[str, object], outputs: Mapping[str, Array], binary: Container[str]
) -> tuple[bytes, int | None]:
    """Encode a response; return it, and the length of its JSON part or None if no tensors follow it.

    Parameters
    ----------
    head : members of the JSON part other than ``outputs``.
    outputs : arrays by name, in order; texts as ``bytes`` objects.
    binary : names of the outputs to send as bytes.
    """
    described, parts = [], []
    for name, array in outputs.items():
        tensor: dict[str, object] = {"name": name, "datatype": datatype_of(array), "shape": array.shape}
        if name in binary:
            parts.append(to_bytes(array))
            tensor["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            tensor["data"] = _to_json(array)
        described.append(tensor)
    text = orjson.dumps({**head, "outputs": described}, option=orjson.OPT_SERIALIZE_NUMPY)
    return b"".join([text, *parts]), len(text) if parts else None


def datatype_of(array: Array) -> Datatype:
    """Return the datatype of a tensor."""
    return _DATATYPES[array.dtype.newbyteorder("<")]


def to_bytes(array: Array) -> bytes:
    """Return the bytes of a tensor."""
    if array.dtype.kind != "O":
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return b"".join(chain.from_iterable((len(text).to_bytes(4, "little"), text) for text in array.ravel()))


def _to_json(array: Array) -> Array | list[str]:
    flat = np.ascontiguousarray(array).ravel()
    return [text.decode("utf-8", "replace") for text in flat] if array.dtype.kind == "O" else flat
