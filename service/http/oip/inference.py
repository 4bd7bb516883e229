"""Inference with tensors, for HTTP and gRPC.

:func:`build_inputs` checks a request and builds its light curves; :func:`infer_tensors` classifies them and returns the
output tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np

from nightjar_alerts.core.errors import FieldError, InvalidLightCurve
from nightjar_alerts.core.items import Outcome
from nightjar_alerts.core.request import MAX_ID_LENGTH, LightCurveIn
from nightjar_alerts.core.serializer import RequestedPrior, ResultSerializer
from nightjar_alerts.core.validation import validate_light_curves
from nightjar_alerts.models.bundle import Manifest
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.photometry import FluxUnit
from nightjar_alerts.service.http.deadlines import check_deadline
from nightjar_alerts.service.http.edge.errors import INVALID, TOO_LARGE, ProblemError, invalid_field
from nightjar_alerts.service.http.oip.schemas import (
    Datatype,
    InferRequest,
    InputTensor,
    OutputParameters,
    RequestParameters,
)
from nightjar_alerts.service.http.oip.tensors import Array, decode_tensors
from nightjar_alerts.service.inference import InferOptions
from nightjar_alerts.service.registry.serving import ModelHandle
from nightjar_alerts.service.settings import Settings

ANY: Final = -1
_PER_OBSERVATION: Final = ("mjd", "flux", "flux_err", "band", "detected")
_PER_CURVE: Final = ("metadata", "object_id")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a model.

    Attributes
    ----------
    datatypes : accepted datatypes; the first one is in the model metadata. An output has one.
    shape : shape, with ``ANY`` for a dimension of any size.
    optional : True for an input that may be omitted, or an output that is returned only if requested by name.
    note : text added to the error of an input datatype that is not accepted.
    """

    name: str
    datatypes: tuple[Datatype, ...]
    shape: tuple[int, ...]
    optional: bool = False
    note: str = ""


def list_inputs(manifest: Manifest) -> list[TensorSpec]:
    """Return the inputs of a classifier."""
    integers: tuple[Datatype, ...] = ("INT64", "INT32", "INT16", "INT8", "UINT64", "UINT32", "UINT16", "UINT8")
    inputs = [
        TensorSpec("mjd", ("FP64",), (ANY,), note=": an MJD in FP32 has a resolution of 5.6 minutes"),
        TensorSpec("flux", ("FP32", "FP64"), (ANY,)),
        TensorSpec("flux_err", ("FP32", "FP64"), (ANY,)),
        TensorSpec("band", ("BYTES", *integers), (ANY,)),
        TensorSpec("offsets", ("INT64", "INT32"), (ANY,), optional=True),
        TensorSpec("detected", ("BOOL",), (ANY,), optional=True),
        TensorSpec("object_id", ("BYTES",), (ANY,), optional=True),
    ]
    if manifest.metadata_columns:
        columns = len(manifest.metadata_columns)
        inputs.append(TensorSpec("metadata", ("FP32", "FP64"), (ANY, columns), optional=True))
    return inputs


def list_outputs(manifest: Manifest) -> list[TensorSpec]:
    """Return the outputs of a classifier."""
    return [
        TensorSpec("probabilities", ("FP32",), (ANY, len(manifest.classes.names))),
        TensorSpec("status", ("BYTES",), (ANY,)),
        TensorSpec("reason", ("BYTES",), (ANY,)),
        TensorSpec("detail", ("BYTES",), (ANY,), optional=True),
        TensorSpec("object_id", ("BYTES",), (ANY,), optional=True),
        TensorSpec("embedding", ("FP32",), (ANY, manifest.embedding_dim), optional=True),
    ]


@dataclass(frozen=True, slots=True, eq=False)
class InferInputs:
    """A valid request: its light curves and the requested outputs.

    Attributes
    ----------
    object_ids : object id of each light curve, as sent.
    id, prior : id and prior of the request.
    deadline_ms : deadline in milliseconds; None without.
    outputs : parameters of the requested outputs by name, in order; ``binary_data`` is never None.
    """

    light_curves: Sequence[LightCurve | InvalidLightCurve]
    object_ids: Sequence[bytes]
    outputs: Mapping[str, OutputParameters]
    deadline_ms: float | None
    prior: RequestedPrior
    id: str


def read_request(
    request: InferRequest, binary: memoryview, manifest: Manifest, names: Sequence[str], settings: Settings
) -> InferInputs:
    """Check a request over HTTP against a model and build its light curves, as :func:`build_inputs`.

    Parameters
    ----------
    binary : bytes of the tensors after the JSON part.
    names : other names of the model and its version in the path of the request.
    """
    for member, value in (("model_name", request.model_name), ("model_version", request.model_version)):
        if value and value not in (manifest.name, manifest.version, *names):
            raise invalid_field(f"/{member}", "not_one_of", f"the model is {manifest.name}, version {manifest.version}")
    return build_inputs(request, partial(decode_tensors, binary=binary), manifest, settings)


def build_inputs(
    request: InferRequest,
    decode: Callable[[Sequence[InputTensor]], Mapping[str, Array]],
    manifest: Manifest,
    settings: Settings,
) -> InferInputs:
    """Check a request against a model and build its light curves.

    Parameters
    ----------
    decode : returns the values of the inputs in their shapes; called once datatypes and shapes have been checked.

    Raises
    ------
    ProblemError
        422, 413 or 400 for tensors that do not match the model or each other.
    """
    deadline_ms = _read_deadline(request.parameters, settings)
    outputs = _select_outputs(request, manifest)
    rank_by_name = _check_inputs(request.inputs, list_inputs(manifest))
    _check_lengths(request.inputs, rank_by_name, settings.max_curves)
    tensors = {
        name: array.reshape(squeeze_shape(array.shape, rank_by_name[name]))
        for name, array in decode(request.inputs).items()
    }
    offsets = _read_offsets(request.inputs, tensors)
    object_ids = tensors["object_id"].tolist() if "object_id" in tensors else [b""] * (len(offsets) - 1)
    curves = _split_light_curves(tensors, offsets, object_ids, manifest, request.parameters.flux_unit)
    valid = validate_light_curves(curves, settings.max_points)
    return InferInputs(valid, object_ids, outputs, deadline_ms, request.parameters.prior, request.id)


async def infer_tensors(
    inputs: InferInputs, handle: ModelHandle, serializer: ResultSerializer, options: InferOptions
) -> tuple[dict[str, Array], list[Outcome]]:
    """Classify the light curves of a request; return the requested outputs, in order, and the outcomes."""
    outcomes = await handle.infer(inputs.light_curves, options)
    calibrated = [serializer.apply_prior(outcome) for outcome in outcomes]
    outputs: dict[str, Array] = {}
    for spec in list_outputs(handle.bundle.manifest):
        if spec.name not in inputs.outputs:
            continue
        match spec.name:
            case "probabilities" | "embedding":
                outputs[spec.name] = _stack_rows(calibrated, spec.name, spec.shape[1])
            case "object_id":
                outputs[spec.name] = np.array(inputs.object_ids, dtype=object)
            case "detail":
                outputs[spec.name] = np.array([_describe(outcome).encode() for outcome in outcomes], dtype=object)
            case _:
                texts = [getattr(outcome, spec.name).encode() for outcome in outcomes]
                outputs[spec.name] = np.array(texts, dtype=object)
    if count := inputs.outputs.get("probabilities", OutputParameters()).classification:
        outputs["probabilities"] = label_rows(outputs["probabilities"], serializer.classes, count)
    return {name: outputs[name] for name in inputs.outputs}, outcomes


def _read_deadline(parameters: RequestParameters, settings: Settings) -> float | None:
    """Return the deadline in milliseconds. Raises ProblemError (422) if it is too long, or given twice."""
    timeout, deadline_ms = parameters.timeout or 0, parameters.deadline_ms or 0
    if timeout and deadline_ms:
        raise invalid_field("/parameters/deadline_ms", "duplicate", "the parameter timeout has a deadline already")
    check_deadline(-(-timeout // 1000), "/parameters/timeout", settings)  # rounded up; an integer may have any size
    check_deadline(deadline_ms, "/parameters/deadline_ms", settings)
    return timeout / 1000 or deadline_ms or None


def _select_outputs(request: InferRequest, manifest: Manifest) -> dict[str, OutputParameters]:
    """Return the parameters of the requested outputs; by default of all outputs that are not optional.

    Raises
    ------
    ProblemError
        422 for an output that is unknown, requested twice, or has no classes for ``classification``.
    """
    binary = request.parameters.binary_data_output
    specs = list_outputs(manifest)
    if not request.outputs:
        return {spec.name: OutputParameters(binary_data=binary) for spec in specs if not spec.optional}
    selected: dict[str, OutputParameters] = {}
    for index, output in enumerate(request.outputs):
        pointer, parameters = f"/outputs/{index}", output.parameters
        if output.name not in {spec.name for spec in specs}:
            names = ", ".join(spec.name for spec in specs)
            raise invalid_field(f"{pointer}/name", "unknown_output", f"must be one of: {names}")
        if output.name in selected:
            raise invalid_field(f"{pointer}/name", "duplicate", "this output is requested twice")
        if parameters.classification and output.name != "probabilities":
            raise invalid_field(f"{pointer}/parameters/classification", "unexpected", "this output has no classes")
        if parameters.binary_data is None:
            parameters = parameters.model_copy(update={"binary_data": binary})
        selected[output.name] = parameters
    return selected


def _check_inputs(inputs: Sequence[InputTensor], specs: Sequence[TensorSpec]) -> dict[str, int]:
    """Check datatypes and shapes; return the rank of each input by name. Raises ProblemError (422) with all errors."""
    spec_by_name = {spec.name: spec for spec in specs}
    seen: set[str] = set()
    errors: list[FieldError] = []
    for index, tensor in enumerate(inputs):
        if tensor.name in seen:
            detail = "this input is given twice"
            errors.append(FieldError(pointer=f"/inputs/{index}/name", reason="duplicate", detail=detail))
        elif error := _find_input_error(tensor, spec_by_name.get(tensor.name), f"/inputs/{index}"):
            errors.append(error)
        seen.add(tensor.name)
    errors += [
        FieldError(pointer="/inputs", reason="missing", detail=f"the input {spec.name} is required")
        for spec in specs
        if not spec.optional and spec.name not in seen
    ]
    if errors:
        raise ProblemError(INVALID, errors=errors)
    return {spec.name: len(spec.shape) for spec in specs}


def _find_input_error(tensor: InputTensor, spec: TensorSpec | None, pointer: str) -> FieldError | None:
    if spec is None:
        detail = "the model has no input of this name"
        return FieldError(pointer=f"{pointer}/name", reason="unknown_input", detail=detail)
    if tensor.datatype not in spec.datatypes:
        detail = f"{spec.name} must be {' or '.join(spec.datatypes)}{spec.note}"
        return FieldError(pointer=f"{pointer}/datatype", reason="wrong_datatype", detail=detail)
    shape = squeeze_shape(tensor.shape, len(spec.shape))
    fits = len(shape) == len(spec.shape) and all(
        expected in (ANY, size) for expected, size in zip(spec.shape, shape, strict=True)
    )
    if not fits:
        detail = f"the shape of {spec.name} must be {list(spec.shape)}, where -1 is any size"
        return FieldError(pointer=f"{pointer}/shape", reason="wrong_shape", detail=detail)
    return None


def squeeze_shape(shape: Sequence[int], rank: int) -> list[int]:
    """Remove dimensions of size 1 beyond ``rank``, as codecs send a list of n values as [n, 1] or [1, n]."""
    sizes = list(shape)
    while len(sizes) > rank and 1 in sizes:
        del sizes[len(sizes) - 1 - sizes[::-1].index(1)]
    return sizes


def _check_lengths(inputs: Sequence[InputTensor], rank_by_name: Mapping[str, int], max_curves: int) -> None:
    """Check that the shapes of the tensors match each other, before decoding.

    Raises
    ------
    ProblemError
        422 for different lengths, 413 for too many light curves.
    """
    length = {tensor.name: squeeze_shape(tensor.shape, rank_by_name[tensor.name])[0] for tensor in inputs}
    pointer = {tensor.name: f"/inputs/{index}/shape/0" for index, tensor in enumerate(inputs)}
    curves = length.get("offsets", 2) - 1
    if curves < 1:
        raise invalid_field(pointer["offsets"], "empty", "offsets must have one value more than there are light curves")
    for names, expected, counted in (
        (_PER_OBSERVATION, length["mjd"], "observation"),
        (_PER_CURVE, curves, "light curve"),
    ):
        for name in names:
            if name in length and length[name] != expected:
                detail = f"{name} has {length[name]} rows, but must have {expected}, one for each {counted}"
                raise invalid_field(pointer[name], "length_mismatch", detail)
    if curves > max_curves:
        raise ProblemError(TOO_LARGE, f"{curves} light curves, at most {max_curves} in one request", limit=max_curves)


def _read_offsets(inputs: Sequence[InputTensor], tensors: Mapping[str, Array]) -> list[int]:
    """Return the start of each light curve and the end of the last. Raises ProblemError (422)."""
    total = len(tensors["mjd"])
    if "offsets" not in tensors:
        return [0, total]
    values = tensors["offsets"]
    pointer = f"/inputs/{[tensor.name for tensor in inputs].index('offsets')}"
    if values[0] != 0 or values[-1] != total:
        detail = f"offsets go from {values[0]} to {values[-1]}, but must go from 0 to {total}"
        raise invalid_field(pointer, "out_of_range", detail)
    decreasing = values[1:] < values[:-1]  # a difference could overflow
    if decreasing.any():
        raise invalid_field(pointer, "not_monotone", f"offsets decrease at position {int(np.argmax(decreasing)) + 1}")
    offsets: list[int] = values.tolist()
    return offsets


def _split_light_curves(
    tensors: Mapping[str, Array],
    offsets: Sequence[int],
    object_ids: Sequence[bytes],
    manifest: Manifest,
    flux_unit: FluxUnit,
) -> list[LightCurveIn | InvalidLightCurve]:
    columns: dict[str, Array | list[str]] = {name: tensors[name] for name in _PER_OBSERVATION if name in tensors}
    if tensors["band"].dtype.kind == "O":
        columns["band"] = [text.decode("utf-8", "replace") for text in tensors["band"].tolist()]
    curves: list[LightCurveIn | InvalidLightCurve] = []
    for index, (start, end) in enumerate(pairwise(offsets)):
        if len(object_ids[index]) > MAX_ID_LENGTH:
            detail = f"must have at most {MAX_ID_LENGTH} bytes"
            curves.append(InvalidLightCurve([FieldError(pointer="/object_id", reason="too_long", detail=detail)]))
            continue
        fields: dict[str, object] = {name: column[start:end] for name, column in columns.items()}
        if "metadata" in tensors:
            fields["metadata"] = dict(zip(manifest.metadata_columns, tensors["metadata"][index].tolist(), strict=True))
        object_id = object_ids[index].decode("utf-8", "replace")
        curves.append(LightCurveIn(object_id=object_id, flux_unit=flux_unit, **fields))  # type: ignore[arg-type]  # by name
    return curves


def _stack_rows(outcomes: Sequence[Outcome], name: str, width: int) -> Array:
    """Return an output of the network, shape (light curves, width); rows without a result are NaN."""
    rows = np.full((len(outcomes), width), np.nan, dtype=np.float32)
    for row, outcome in zip(rows, outcomes, strict=True):
        if outcome.prediction is not None:
            row[:] = outcome.prediction.outputs[name]
    return rows


def _describe(outcome: Outcome) -> str:
    """Return the detail of an outcome, after the pointer to the invalid value if there is one."""
    return f"{outcome.pointer}: {outcome.detail}" if outcome.pointer else outcome.detail


def label_rows(rows: Array, labels: Sequence[str], count: int) -> Array:
    """Return texts ``value:index:label`` of the largest values of each row, the largest first; empty where NaN.

    Parameters
    ----------
    rows : shape (n, labels).
    """
    order = np.argsort(-rows, axis=1, kind="stable")[:, :count]
    texts = np.full(order.shape, b"", dtype=object)
    for row, indices, text in zip(rows, order, texts, strict=True):
        if not np.isnan(row).any():
            text[:] = [f"{row[index]:f}:{index}:{labels[index]}".encode() for index in indices]
    return texts
