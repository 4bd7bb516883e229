"""Requests and responses of the Open Inference Protocol as pydantic models.

Unknown members are errors. Unknown parameters are ignored, as clients and gateways send their own, unless they look
like a known one misspelt. Members that are null count as absent, as MLServer's codecs, Jackson and KServe's client
send them. The values of JSON tensors are validated in bulk by :mod:`service.http.oip.tensors`, not here.
"""

from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from nightjar_alerts.core.request import MAX_ID_LENGTH, PRIOR_TEXT
from nightjar_alerts.models.common import without_surrogates
from nightjar_alerts.models.photometry import FluxUnit
from nightjar_alerts.service.answers.replies import Reply

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"
]  # fmt: skip

MAX_TENSORS = 16
MAX_RANK = 8
MAX_NAME_LENGTH = 100
MAX_PARAMETERS = 100
MISSPELT = 0.82  # similarity of names, from 0 to 1; closer than for fields, as Triton sends `priority` beside `prior`

Dimension = Annotated[int, Field(ge=0, le=2**31 - 1)]
TensorData = Annotated[
    Any,
    WithJsonSchema(
        {
            "type": "array",
            "items": {},
            "description": "values in row-major order, flat or nested as in the shape; null for a missing number",
        }
    ),
]


def _drop_default(schema: dict[str, Any]) -> None:
    """Remove the default null of a member that cannot be null."""
    schema.pop("default", None)


_NO_DATA = Field(None, json_schema_extra=_drop_default)


def _unknown(what: str) -> PydanticCustomError:
    return PydanticCustomError("unknown_field", "unknown {what}", {"what": without_surrogates(what)})


class _Parameters(BaseModel):
    """Parameters; unknown ones are ignored, unless they look like a known one misspelt."""

    model_config = ConfigDict(extra="ignore", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _select_known(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        if "shared_memory_region" in value:
            raise PydanticCustomError("unsupported", "shared memory is not supported")
        if len(value) > MAX_PARAMETERS:
            raise PydanticCustomError("too_long", "more than {most} parameters", {"most": MAX_PARAMETERS})
        for name in (
            str(name)[:60] for name, each in value.items() if each is not None and name not in cls.model_fields
        ):
            if near := get_close_matches(name.casefold(), cls.model_fields, 1, MISSPELT):
                raise _unknown(f"parameter {name}; send {near[0]}")
        return {name: value[name] for name in cls.model_fields if value.get(name) is not None}


class _Members(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_null(cls, value: object) -> object:
        """Remove members that are null; raises at the first unknown name, as there may be a million."""
        if not isinstance(value, dict):
            return value
        for name in value:
            if name not in cls.model_fields:
                raise _unknown(f"field {str(name)[:60]}")
        return {name: member for name, member in value.items() if member is not None}


class InputParameters(_Parameters):
    """Parameters of an input."""

    binary_data_size: int | None = Field(None, ge=0, description="size of the tensor after the JSON part, in bytes")


class InputTensor(_Members):
    """An input: its values in `data`, or as `binary_data_size` bytes after the JSON part."""

    name: str = Field(max_length=MAX_NAME_LENGTH)
    shape: list[Dimension] = Field(max_length=MAX_RANK, fail_fast=True)
    datatype: Datatype
    parameters: InputParameters = InputParameters()
    data: TensorData = _NO_DATA


class OutputParameters(_Parameters):
    """Parameters of a requested output."""

    binary_data: bool | None = Field(
        None, description="if true, send the output as bytes after the JSON part; default: binary_data_output"
    )
    classification: int = Field(
        0, ge=0, description="number of most probable classes to return as texts `value:index:label`; 0: all values"
    )


class OutputRequest(_Members):
    """A requested output."""

    name: str = Field(max_length=MAX_NAME_LENGTH)
    parameters: OutputParameters = OutputParameters()


class RequestParameters(_Parameters):
    """Parameters of a request."""

    timeout: int | None = Field(None, ge=0, description="deadline in microseconds; 0: none")
    deadline_ms: int | None = Field(None, ge=1, description="deadline in milliseconds, instead of timeout")
    flux_unit: FluxUnit = Field("nJy", description="unit of all fluxes in the request")
    prior: str | dict[str, Any] | None = Field(None, description=PRIOR_TEXT)
    binary_data_output: bool = Field(False, description="if true, send outputs as bytes by default")


class InferRequest(_Members):
    """The JSON part of an inference request. Tensors sent as bytes follow it in the order of `inputs`."""

    id: str = Field("", max_length=MAX_ID_LENGTH, description="repeated in the response")
    model_name: str | None = Field(None, description="if given, must match the path or the model")
    model_version: str | None = Field(None, description="if given, must match the path or the model")
    parameters: RequestParameters = RequestParameters()
    inputs: list[InputTensor] = Field(min_length=1, max_length=MAX_TENSORS, fail_fast=True)
    outputs: list[OutputRequest] = Field([], max_length=MAX_TENSORS, fail_fast=True)


class Live(Reply):
    """Liveness of the server."""

    live: Literal[True]


class Ready(Reply):
    """Readiness of the server."""

    ready: Literal[True]


class ModelReady(Reply):
    """Readiness of a model."""

    name: str
    ready: Literal[True]


class ServerMetadata(Reply):
    """Name, version and extensions of the server."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(Reply):
    """An input or output of a model; -1 is a dimension of any size."""

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
    """An output: its values in `data`, or `binary_data_size` in `parameters` and bytes after the JSON part."""

    name: str
    datatype: Datatype
    shape: list[int]
    parameters: dict[str, int] | None = None
    data: TensorData = _NO_DATA


class InferReply(Reply):
    """The JSON part of an inference response. Tensors sent as bytes follow it in the order of `outputs`."""

    model_name: str
    model_version: str
    id: str = ""
    parameters: dict[str, str] = Field(description="the model: sha256, taxonomy, calibration, prior")
    outputs: list[OutputTensor]
