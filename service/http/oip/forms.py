"""Bodies of the Open Inference Protocol, as models.

Clients of the protocol fill in more than a model needs: custom parameters are ignored, and a member that is null counts
as absent (MLServer's codecs, Jackson and KServe's client write such). Members that are not declared are errors.
The numbers of a JSON tensor pass through as they are; :mod:`service.http.oip.tensors` checks them in bulk.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from nightjar_alerts.models.photometry import FluxUnit
from nightjar_alerts.service.answers.replies import Reply
from nightjar_alerts.service.http.forms import MAX_ID_LENGTH, PRIOR_TEXT

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"
]  # fmt: skip

MAX_TENSORS = 16
MAX_RANK = 8
MAX_DIMENSION = 2**31 - 1
MAX_NAME_LENGTH = 100

Dimension = Annotated[int, Field(ge=0, le=MAX_DIMENSION)]
_DATA_SCHEMA = {
    "type": "array",
    "items": {},
    "description": "values in row-major order, flat or nested as the shape says; null for a missing number",
}
TensorData = Annotated[Any, WithJsonSchema(_DATA_SCHEMA)]


def _drop_default(schema: dict[str, Any]) -> None:
    """Leave out the default of a member that cannot be null."""
    schema.pop("default", None)


_NO_DATA = Field(None, json_schema_extra=_drop_default)


class _Parameters(BaseModel):
    """Parameters: those that are not declared are ignored, null is absent."""

    model_config = ConfigDict(extra="ignore", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _only_declared(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        if "shared_memory_region" in value:  # ignored, the client would wait for data that never come
            raise PydanticCustomError("unsupported", "shared memory is not supported")
        return {name: value[name] for name in cls.model_fields if value.get(name) is not None}


class _Members(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _only_declared(cls, value: object) -> object:
        """Leave null members out; stop at the first unknown name, of which there may be a million."""
        if not isinstance(value, dict):
            return value
        for name in value:
            if name not in cls.model_fields:
                raise PydanticCustomError("unknown_field", "there is no field called {name}", {"name": str(name)[:60]})
        return {name: member for name, member in value.items() if member is not None}


class InputParameters(_Parameters):
    """Parameters of an input: how it is sent."""

    binary_data_size: int | None = Field(None, ge=0, description="bytes of the tensor after the JSON part")


class InputTensor(_Members):
    """An input: its values in ``data``, or as ``binary_data_size`` bytes after the JSON part."""

    name: str = Field(max_length=MAX_NAME_LENGTH)
    shape: list[Dimension] = Field(max_length=MAX_RANK, fail_fast=True)
    datatype: Datatype
    parameters: InputParameters = InputParameters()
    data: TensorData = _NO_DATA


class OutputParameters(_Parameters):
    """Parameters of an output: how it is wanted."""

    binary_data: bool | None = Field(None, description="as bytes after the JSON part; default: binary_data_output")
    classification: int = Field(0, ge=0, description="as so many texts `value:index:label`, the most probable first")


class OutputRequest(_Members):
    """An output that is wanted."""

    name: str = Field(max_length=MAX_NAME_LENGTH)
    parameters: OutputParameters = OutputParameters()


class RequestParameters(_Parameters):
    """Parameters of a whole request."""

    timeout: int | None = Field(None, ge=0, description="answer within this many microseconds or not at all; 0: none")
    deadline_ms: int | None = Field(None, ge=1, description="the same in milliseconds; not both")
    flux_unit: FluxUnit = Field("nJy", description="of every flux in the request")
    prior: str | dict[str, Any] | None = Field(None, description=PRIOR_TEXT)
    binary_data_output: bool = Field(False, description="send outputs as bytes unless they say otherwise")


class InferRequest(_Members):
    """The JSON part of an inference request; tensors sent as bytes follow it in the order of ``inputs``."""

    id: str = Field("", max_length=MAX_ID_LENGTH, description="echoed")
    model_name: str | None = Field(None, description="if given, a name of the model in the address")
    model_version: str | None = Field(None, description="if given, the version that answers")
    parameters: RequestParameters = RequestParameters()
    inputs: list[InputTensor] = Field(min_length=1, max_length=MAX_TENSORS, fail_fast=True)
    outputs: list[OutputRequest] = Field([], max_length=MAX_TENSORS, fail_fast=True)


class Live(Reply):
    """Liveness: true while this process works."""

    live: Literal[True]


class Ready(Reply):
    """Readiness: true while requests should be sent here."""

    ready: Literal[True]


class ModelReady(Reply):
    """Readiness of a model: true while it answers."""

    name: str
    ready: Literal[True]


class ServerMetadata(Reply):
    """Name, version and extensions of this server."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(Reply):
    """An input or output of a model; -1 stands for a dimension of any size."""

    name: str
    datatype: Datatype
    shape: list[int]


class ModelMetadata(Reply):
    """Inputs and outputs of a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class OutputTensor(Reply):
    """An output: its values in ``data``, or ``binary_data_size`` in its parameters and bytes after the JSON part."""

    name: str
    datatype: Datatype
    shape: list[int]
    parameters: dict[str, int] | None = None
    data: TensorData = _NO_DATA


class InferReply(Reply):
    """The JSON part of an inference reply; tensors sent as bytes follow it in the order of ``outputs``."""

    model_name: str
    model_version: str
    id: str = ""
    parameters: dict[str, str] = Field(description="which network answered: sha256 and, of a classifier, its classes")
    outputs: list[OutputTensor]
