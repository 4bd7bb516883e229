"""Forms of request bodies, as pydantic models. Nothing is coerced; a name that is not here is refused.

They validate one light curve at a time and describe whole bodies in the OpenAPI document;
:mod:`service.http.curves` reads bodies. A column is a list of numbers or, in a format that has such a thing, all
of its little-endian values in one piece: msgpack carries them as ``bin``, Arrow gives an array. Both become arrays, and
whatever is wrong with them gets the words that a list would get. :class:`Answers` is the form of a reply, before it is
written in a format.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

from nightjar_alerts.models.metadata import KNOWN_COLUMNS, LARGEST, METADATA_COLUMNS
from nightjar_alerts.models.photometry import NAMES, FluxUnit
from nightjar_alerts.service.registry.names import MOST_CHARACTERS

DTYPES: Final[Mapping[str, str]] = {
    "mjd": "<f8",
    "flux": "<f4",
    "flux_err": "<f4",
    "band": "u1",
    "detected": "u1",
    "metadata": "<f4",
}
"""Types of the values in a column's bytes: ``band`` an index into u, g, r, i, z, Y; ``detected`` 0 or 1; ``metadata``
one value for each of METADATA_COLUMNS in their order, NaN where it is missing."""


def count(name: str, column: object) -> int:
    """Count the values of a column of any form; 0 for anything else."""
    if isinstance(column, bytes):
        return len(column) // np.dtype(DTYPES.get(name, "u1")).itemsize
    return len(column) if isinstance(column, list | np.ndarray) else 0


def column(name: str) -> WrapValidator:
    """Let a field that validates a list take ``bytes`` or an array as well; it becomes an array."""
    dtype = np.dtype(DTYPES[name])

    def read(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        array = _unpack(value, dtype)
        return handler(value) if array is None else _not_empty(array)

    return WrapValidator(read)


def _flags(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    array = _unpack(value, np.dtype(DTYPES["detected"]))
    if array is None:
        return handler(value)
    if _not_empty(array).dtype != np.bool_ and (array > 1).any():
        at = int(np.argmax(array > 1))
        return handler([*([True] * at), int(array[at])])  # which says what it says of a list
    return array.astype(np.bool_)


def _packed_metadata(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    array = _unpack(value, np.dtype(DTYPES["metadata"]))
    if array is None:
        return handler(value)
    if len(array) != len(METADATA_COLUMNS):
        message = "must hold {wanted} float32 values, NaN where one is missing, not {found}"
        raise PydanticCustomError("wrong_length", message, {"wanted": len(METADATA_COLUMNS), "found": len(array)})
    present = ~np.isnan(array)
    named = zip(METADATA_COLUMNS, array.tolist(), present.tolist(), strict=True)
    return handler({name: number for name, number, there in named if there})


FLAGS = WrapValidator(_flags)
METADATA = WrapValidator(_packed_metadata)


def _unpack(value: object, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return the array that ``value`` is or holds, None for anything else."""
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, bytes):
        return None
    if len(value) % dtype.itemsize:
        message = "{size} bytes are no whole number of {dtype} values"
        raise PydanticCustomError("partial_value", message, {"size": len(value), "dtype": dtype.name})
    return np.frombuffer(value, dtype)


def _not_empty(array: NDArray[Any]) -> NDArray[Any]:
    if not array.size:
        raise PydanticKnownError("too_short", {"field_type": "List", "min_length": 1, "actual_length": 0})
    return array


MAX_SAFE_INTEGER = 2**53 - 1
MAX_ID_LENGTH = 200


def _id_text(value: object) -> object:
    """Make text of an identifier; a JSON number is exact only below 2**53."""
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > MAX_SAFE_INTEGER:
            raise PydanticCustomError("inexact_integer", "integers beyond 2**53 - 1 lose digits in JSON: send a string")
        return str(value)
    return value


def _single_precision(value: float) -> float:
    if abs(value) > LARGEST:
        raise PydanticCustomError("not_finite", "must be finite in single precision")
    return value


_ID_SCHEMA = {
    "anyOf": [
        {"type": "string", "maxLength": MAX_ID_LENGTH},
        {"type": "integer", "minimum": -MAX_SAFE_INTEGER, "maximum": MAX_SAFE_INTEGER},
    ],
    "description": "your name for the object, echoed in the reply; 64-bit identifiers as strings",
    "default": "",
}
_BAND_NAMES = {"type": "string", "enum": sorted(NAMES, key=str.lower)}
_METADATA_SCHEMA = {
    "type": "object",
    "properties": {column: {"type": ["number", "null"]} for column in KNOWN_COLUMNS},
    "additionalProperties": False,
    "description": "ELAsTiCC diaObject columns, and redshift, parallax or a catalogue's star at this place; leave out, "
    "or send null, what is unknown",
    "default": {},
}

Identifier = Annotated[str, Field(max_length=MAX_ID_LENGTH), BeforeValidator(_id_text), WithJsonSchema(_ID_SCHEMA)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
MetadataNumber = Annotated[Number, AfterValidator(_single_precision)]
BandName = Annotated[str, WithJsonSchema(_BAND_NAMES)]  # LightCurve looks the name up; checking twice would cost
# A batch takes anything for a curve, since each is judged alone; the first alternative describes a valid one.
AnyCurve = Annotated[Any, WithJsonSchema({"anyOf": [{"$ref": "#/components/schemas/LightCurveIn"}, {}]})]


_LISTED = Field(min_length=1, fail_fast=True)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class LightCurveIn(_Strict):
    """One object's observations, as columns of equal length, in any order."""

    object_id: Identifier = ""
    mjd: Annotated[list[Number], _LISTED, column("mjd")] = Field(description="mid-exposure times, MJD (TAI), days")
    flux: Annotated[list[Number], _LISTED, column("flux")] = Field(
        description="difference fluxes, in flux_unit; may be negative"
    )
    flux_err: Annotated[list[Number], _LISTED, column("flux_err")] = Field(
        description="standard errors of flux, in flux_unit; greater than zero"
    )
    band: Annotated[list[BandName], _LISTED, column("band")] = Field(
        description="filters by name; y and Y are the same"
    )
    detected: Annotated[list[bool] | None, Field(fail_fast=True), FLAGS] = Field(
        None, description="detection flags; without them, |flux| >= 5 flux_err counts as detected"
    )
    metadata: Annotated[dict[str, MetadataNumber | None], METADATA, WithJsonSchema(_METADATA_SCHEMA)] = Field(
        default_factory=dict
    )
    flux_unit: FluxUnit = Field("nJy", description="nJy has AB zero point 31.4, FLUXCAL 27.5")
    flux_kind: Literal["difference", "total"] = Field(
        "difference",
        description="what flux is: a difference from a template image, or all of the source's light, from which the "
        "median of each band is then taken away",
    )
    survey: Annotated[str, Field(max_length=32, pattern=r"^[a-z0-9-]*$")] = Field(
        "",
        description="whose photometry it is, as `lsst`, `ztf`, `atlas`: decides which filters stand for the model's "
        "bands, and which model answers where none is named",
    )


_PRIOR_SCHEMA = {
    "anyOf": [
        {"type": "string", "maxLength": 64},
        {"type": "object", "additionalProperties": {"type": "number", "minimum": 0}},
        {"type": "null"},
    ]
}
MAX_PRIOR_CLASSES, MAX_PRIOR_NAME = 1000, 64


def _prior(value: object) -> object:
    """Read a name, or weights by class, in an address the text of a JSON object. Their use is checked later."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise PydanticCustomError("malformed", "must be a name or a JSON object of weights") from None
    if isinstance(value, str) and len(value) > MAX_PRIOR_NAME:
        raise PydanticCustomError("too_long", "a name has at most 64 characters")
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, dict) or len(value) > MAX_PRIOR_CLASSES:
        raise PydanticCustomError("prior_type", "must be a name or an object of weights by class")
    return value


AskedPrior = Annotated[Any, BeforeValidator(_prior), WithJsonSchema(_PRIOR_SCHEMA)]
PRIOR_TEXT = (
    "class shares that the answer shall assume: `uniform`, `lsst-alerts`, `ztf-bright`, another name that the model "
    "has, or weights by class, where a class that is left out has none; default: those of the model's calibration"
)


class Options(_Strict):
    """Options of a classification."""

    deadline_ms: int | None = Field(None, ge=1, description="answer within this many milliseconds or not at all (504)")
    prior: AskedPrior = Field(None, description=PRIOR_TEXT)

    coverage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="how often the prediction set shall hold the true class: the model's next larger stated coverage "
        "is taken, every class beyond the largest; default: the model's own (0.9 as exported)",
    )
    embedding: bool = Field(False, description="return the network's embedding of each light curve")
    embedding_dtype: Literal["float32", "float16"] = Field(
        "float32", description="precision of the embedding; float16 keeps three digits in half the bytes"
    )
    embedding_encoding: Literal["list", "base64"] = Field(
        "list",
        description="how JSON and NDJSON hold the embedding: numbers, or base64 of its little-endian bytes; "
        "in msgpack it is those bytes, in Arrow a list of that type",
    )


class ClassifyQuery(Options):
    """Options as parameters of the address; they hold where a body has no ``options``, or leaves one out."""

    model_config = ConfigDict(strict=False)  # parameters are text

    model: str = Field(
        "",
        max_length=MOST_CHARACTERS,
        description="model to ask: `name`, `name@1.2.3` or an alias; `default` where none is named",
    )


class OneCurve(LightCurveIn):
    """The bare form: a light curve, with options beside its columns."""

    options: Options = Options()


class ManyCurves(_Strict):
    """The batch form. Each curve is checked alone: one that breaks a rule is answered ``rejected``, the rest go on."""

    light_curves: list[AnyCurve] = Field(min_length=1, description="light curves, each of the form LightCurveIn")
    options: Options = Options()


class Answers(NamedTuple):
    """The answers to a request.

    Attributes
    ----------
    model : which network answered, as :class:`service.answers.replies.ClassifierProvenance`.
    classes, groups, bands : keys of the probabilities, of the hierarchy and of the points in every result.
    embedding_dim : length of the embeddings.
    results : one for each light curve, as :class:`replies.CurveResult` or ``CurveFailure``; an embedding
        is an array.
    options : what the caller wants of them.
    """

    model: Mapping[str, str]
    classes: Sequence[str]
    groups: Sequence[str]
    bands: Sequence[str]
    embedding_dim: int
    results: Sequence[Mapping[str, Any]]
    options: Options


def embedding_bytes(embedding: NDArray[np.float32], options: Options) -> bytes:
    """Little-endian values of the type asked for."""
    return _embedding(embedding, options).tobytes()


def embedding_text(embedding: NDArray[np.float32], options: Options) -> NDArray[Any] | str:
    """Return an embedding as a text format has it: numbers or base64, as asked for."""
    if options.embedding_encoding == "base64":
        return b64encode(embedding_bytes(embedding, options)).decode()
    return _embedding(embedding, options)


def _embedding(embedding: NDArray[np.float32], options: Options) -> NDArray[Any]:
    if options.embedding_dtype == "float32":
        return np.ascontiguousarray(embedding, "<f4")
    most = np.finfo(np.float16).max  # what is beyond would become infinite
    return np.clip(embedding, -most, most).astype("<f2")
