"""Bodies of the Open Inference Protocol, as models: what a request may hold and what a reply does.

The envelope of a request is strict: a parameter that would be ignored, such as a region of shared memory, is refused.
The numbers of a JSON tensor pass through as they are; :mod:`service.http.oip.tensors` looks at them in bulk.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from nightjar_alerts.models.photometry import FluxUnit
from nightjar_alerts.service.answers.replies import Reply
from nightjar_alerts.service.http.forms import MAX_ID_LENGTH, PRIOR_TEXT, AskedPrior

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


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _only_known_names(cls, value: object) -> object:
        """Stop at the first unknown name: a million of them would otherwise be told one by one."""
        if isinstance(value, dict):
            for name in value:
                if name not in cls.model_fields:
                    raise PydanticCustomError(
                        "unknown_field", "there is no field called {name}", {"name": str(name)[:60]}
                    )
        return value


class InputParameters(_Strict):
    """Parameters of an input: how it is sent."""

    binary_data_size: int | None = Field(None, ge=0, description="bytes of the tensor after the JSON part")


class InputTensor(_Strict):
    """An input: its values in ``data``, or as ``binary_data_size`` bytes after the JSON part."""

    name: str = Field(max_length=MAX_NAME_LENGTH)
    shape: list[Dimension] = Field(max_length=MAX_RANK, fail_fast=True)
    datatype: Datatype
    parameters: InputParameters = InputParameters()
    data: TensorData = None


class OutputParameters(_Strict):
    """Parameters of an output: how it is wanted."""

    binary_data: bool | None = Field(None, description="as bytes after the JSON part; default: binary_data_output")
    classification: int = Field(0, ge=0, description="as so many texts `value:index:label`, the most probable first")


class OutputRequest(_Strict):
    """An output that is wanted."""

    name: str = Field(max_length=MAX_NAME_LENGTH)
    parameters: OutputParameters = OutputParameters()


class RequestParameters(_Strict):
    """Parameters of a whole request."""

    timeout: int | None = Field(None, ge=0, description="answer within this many microseconds or not at all; 0: none")
    deadline_ms: int | None = Field(None, ge=1, description="the same in milliseconds")
    flux_unit: FluxUnit = Field("nJy", description="of every flux in the request and in its reply")
    prior: AskedPrior = Field(None, description=PRIOR_TEXT)
    binary_data_output: bool = Field(False, description="send outputs as bytes unless they say otherwise")


class InferRequest(_Strict):
    """The JSON part of an inference request; tensors sent as bytes follow it in the order of ``inputs``."""

    id: str = Field("", max_length=MAX_ID_LENGTH, description="echoed")
    model_name: str | None = Field(None, description="if given, the one in the address")
    model_version: str | None = Field(None, description="if given, the one that answers")
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
    data: TensorData = None


class InferReply(Reply):
    """The JSON part of an inference reply; tensors sent as bytes follow it in the order of ``outputs``."""

    model_name: str
    model_version: str
    id: str = ""
    parameters: dict[str, str] = Field(description="which network answered: sha256 and, of a classifier, its classes")
    outputs: list[OutputTensor]
