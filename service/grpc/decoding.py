"""Requests and responses of ``ModelInfer`` as bytes.

A message is at most ``grpc_max_message_bytes`` long, and was received as a whole. :func:`read_model` then counts its
fields before protobuf parses it, as an empty tensor or parameter of a few bytes becomes an object of hundreds. After
this check, parsing costs at most the message once for raw tensors, eight times for numbers in ``contents``, and thirty
times for texts of no length in ``bytes_contents``. Nothing is built for a tensor whose shape differs from its values.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from pydantic import ValidationError

from nightjar_alerts.core.result import ClassifierProvenance
from nightjar_alerts.models.bundle import Manifest
from nightjar_alerts.service.answers.replies import field_errors
from nightjar_alerts.service.grpc.messages import (
    InferParameter,
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
)
from nightjar_alerts.service.http.edge.errors import INVALID, MALFORMED, ProblemError, invalid_field
from nightjar_alerts.service.http.oip.inference import InferInputs, build_inputs
from nightjar_alerts.service.http.oip.schemas import MAX_RANK, Datatype, InferRequest, InputTensor
from nightjar_alerts.service.http.oip.tensors import DTYPES, Array, count_elements, datatype_of, decode_bytes, to_bytes
from nightjar_alerts.service.settings import Settings

MAX_FIELDS: Final = 512
"""Maximum number of fields in a message, its inputs and outputs; the values of an input are one field."""
_MAX_VARINT: Final = 10
_NUMBER_BYTES: Final = {1: 8, 5: 4}  # by wire type
# Field numbers of ModelInferRequest, and of its inputs.
_MODEL_NAME, _MODEL_VERSION, _INPUTS, _OUTPUTS = 1, 2, 5, 6
_SHAPE = 3

_FIELD_BY_DATATYPE: Final[Mapping[Datatype, str]] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


class WireField(NamedTuple):
    """Field of an encoded message; ``data`` is empty for numbers."""

    number: int
    data: memoryview


def read_model(message: bytes) -> str:
    """Check the number of fields of a request; return its model as ``name`` or ``name@version``.

    Raises
    ------
    ProblemError
        400 for a message that is not valid or has too many fields, 422 for a shape with too many dimensions.
    """
    name = version = b""
    count = inputs = 0
    for field in _fields(memoryview(message)):
        count += 1
        if field.number == _MODEL_NAME:
            name = bytes(field.data)
        elif field.number == _MODEL_VERSION:
            version = bytes(field.data)
        elif field.number in (_INPUTS, _OUTPUTS):
            for inner in _fields(field.data):
                count += 1
                if field.number == _INPUTS and inner.number == _SHAPE and len(inner.data) > MAX_RANK * _MAX_VARINT:
                    detail = f"a shape has at most {MAX_RANK} dimensions"
                    raise invalid_field(f"/inputs/{inputs}/shape", "too_long", detail)
                _check_count(count)
            inputs += field.number == _INPUTS
        _check_count(count)
    return b"@".join(part for part in (name, version) if part).decode("utf-8", "replace")


def _check_count(count: int) -> None:
    if count > MAX_FIELDS:
        raise ProblemError(MALFORMED, f"the message has more than {MAX_FIELDS} fields")


def _fields(data: memoryview) -> Iterator[WireField]:
    """Return the fields of an encoded message, one by one. Raises ProblemError (400)."""
    start = 0
    while start < len(data):
        key, start = _read_varint(data, start)
        number, wire_type = key >> 3, key & 7
        end = start
        if wire_type == 0:
            _, end = _read_varint(data, start)
            start = end
        elif wire_type == 2:
            size, start = _read_varint(data, start)
            end = start + size
        elif wire_type in _NUMBER_BYTES:
            start = end = start + _NUMBER_BYTES[wire_type]
        else:
            raise _not_valid()
        if end > len(data):
            raise _not_valid()
        yield WireField(number, data[start:end])
        start = end


def _read_varint(data: memoryview, start: int) -> tuple[int, int]:
    """Return a number, and where it ends."""
    value = 0
    for index, byte in enumerate(data[start : start + _MAX_VARINT]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, start + index + 1
    raise _not_valid()


def _not_valid() -> ProblemError:
    return ProblemError(MALFORMED, "the message is not a valid ModelInferRequest")


def decode_request(message: bytes, manifest: Manifest, settings: Settings) -> InferInputs:
    """Decode and check a request that passed :func:`read_model`. Raises ProblemError."""
    try:
        request = ModelInferRequest.FromString(message)
    except DecodeError:
        raise _not_valid() from None
    try:
        checked = InferRequest.model_validate(_as_document(request))
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise ProblemError(INVALID, errors=field_errors(details)) from None
    return build_inputs(checked, partial(_decode_tensors, request), manifest, settings)


def _as_document(request: ModelInferRequest) -> dict[str, Any]:
    """Return the members of a request except the values of its inputs, as in the JSON part of a request over HTTP."""
    return {
        "id": request.id,
        "parameters": _read_parameters(request.parameters),
        "inputs": [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": list(tensor.shape),
                "parameters": _read_parameters(tensor.parameters),
            }
            for tensor in request.inputs
        ],
        "outputs": [
            {"name": output.name, "parameters": _read_parameters(output.parameters)} for output in request.outputs
        ],
    }


def _read_parameters(parameters: Mapping[str, InferParameter]) -> dict[str, object]:
    values = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        values[name] = None if choice is None else getattr(parameter, choice)
    return values


def _decode_tensors(request: ModelInferRequest, inputs: Sequence[InputTensor]) -> dict[str, Array]:
    """Decode the values of inputs, in their shapes. Raises ProblemError (422)."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(inputs):
        detail = f"{len(raw)} tensors for {len(inputs)} inputs: all inputs have raw contents, or none has"
        raise invalid_field("/raw_input_contents", "size_mismatch", detail)
    arrays: dict[str, Array] = {}
    for index, (tensor, sent) in enumerate(zip(inputs, request.inputs, strict=True)):
        pointer = f"/inputs/{index}"
        if not raw:
            arrays[tensor.name] = _decode_contents(tensor, sent.contents, pointer)
            continue
        if sent.HasField("contents"):
            detail = "an input has either contents or raw_input_contents"
            raise invalid_field(f"{pointer}/contents", "unexpected", detail)
        arrays[tensor.name] = decode_bytes(tensor, memoryview(raw[index]), pointer, f"/raw_input_contents/{index}")
    return arrays


def _decode_contents(tensor: InputTensor, contents: InferTensorContents, pointer: str) -> Array:
    where = f"{pointer}/contents"
    name, count = _FIELD_BY_DATATYPE.get(tensor.datatype), count_elements(tensor, pointer)
    if name is None:
        raise invalid_field(where, "wrong_type", f"{tensor.datatype} is sent in raw_input_contents")
    if others := [field.name for field, _ in contents.ListFields() if field.name != name]:
        raise invalid_field(f"{where}/{others[0]}", "wrong_type", f"{tensor.datatype} is sent in {name}")
    values = getattr(contents, name)
    if len(values) != count:
        detail = f"{len(values)} values, but the shape has {count}"
        raise invalid_field(f"{where}/{name}", "size_mismatch", detail)
    dtype = DTYPES[tensor.datatype]
    if dtype.kind in "iu" and dtype.itemsize < 4:
        wide = np.fromiter(values, f"{dtype.kind}4", count)
        array = wide.astype(dtype)
        if (wide != array).any():
            detail = f"contains a number outside the range of {tensor.datatype}"
            raise invalid_field(f"{where}/{name}", "out_of_range", detail)
        return array.reshape(tensor.shape)
    return np.fromiter(values, dtype, count).reshape(tensor.shape)


def encode_response(request_id: str, provenance: ClassifierProvenance, outputs: Mapping[str, Array]) -> bytes:
    """Encode a response with the model in its parameters; all outputs are raw."""
    facts = {name: value for name, value in dict(provenance).items() if value is not None}
    response = ModelInferResponse(model_name=facts.pop("name"), model_version=facts.pop("version"), id=request_id)
    for name, value in facts.items():
        response.parameters[name].string_param = str(value)
    for name, array in outputs.items():
        response.outputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        response.raw_output_contents.append(to_bytes(array))
    return response.SerializeToString()
