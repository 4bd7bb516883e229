"""Routes of the Open Inference Protocol below ``/v2``; :mod:`service.http.oip` says how light curves become tensors.

Every address of a model exists twice, with a version and without one, which then means the one that is served. An
inference request is received, inflated, decoded, asked of the data plane, and encoded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError

from nightjar_alerts.service.answers.replies import field_errors
from nightjar_alerts.service.answers.writers import ClassWriter
from nightjar_alerts.service.dataplane import Outcome
from nightjar_alerts.service.http import formats, openapi
from nightjar_alerts.service.http.curves import checked_prior
from nightjar_alerts.service.http.edge import errors
from nightjar_alerts.service.http.edge.errors import INVALID, MALFORMED, TOO_LARGE, ProblemError
from nightjar_alerts.service.http.edge.receive import CODINGS, media_type
from nightjar_alerts.service.http.endpoint import (
    LARGE_BYTES,
    Call,
    EncodedReply,
    Endpoint,
    Inquiry,
    Stopwatch,
    check_deadline,
    routing_key,
)
from nightjar_alerts.service.http.formats import JSON_TYPE
from nightjar_alerts.service.http.lifecycle import service_of
from nightjar_alerts.service.http.oip.forms import (
    InferRequest,
    Live,
    ModelMetadata,
    ModelReady,
    Ready,
    RequestParameters,
    ServerMetadata,
)
from nightjar_alerts.service.http.oip.models import (
    EXTENSIONS,
    ModelOfTensors,
    find_model,
    metadata,
)
from nightjar_alerts.service.http.oip.signature import (
    OutputForm,
    Received,
    check_inputs,
    check_texts,
    choose_outputs,
    most_probable,
)
from nightjar_alerts.service.http.oip.tensors import Array, decode, encode, fault, split_body
from nightjar_alerts.service.settings import Settings

HEADER_LENGTH = "Inference-Header-Content-Length"
BINARY_TYPE = "application/octet-stream"
INLINE_BYTES = 4096  # at worst a hundred light curves of one observation, a few milliseconds of work


@dataclass(frozen=True, slots=True, eq=False)
class TensorRequest:
    """A checked request: its time, its light curves, and which outputs go back and how."""

    request: InferRequest
    milliseconds: float | None
    received: Received[Any]
    outputs: Mapping[str, OutputForm]


INFER = Endpoint("/infer", "Infer", openapi.INFER_BODY, openapi.INFER_REPLY)


async def _answer(request: Request, model: ModelOfTensors) -> Response:
    """Answer one request."""
    media_type(request, (JSON_TYPE, BINARY_TYPE), CODINGS)
    header_length, settings = _header_length(request), service_of(request).settings
    limit = settings.max_json_bytes if header_length is None else settings.max_tensor_bytes

    async def understand(call: Call, data: bytes) -> Inquiry:
        read = partial(_understand, data, header_length, model, settings, call.stopwatch)
        there, large = len(data) > INLINE_BYTES, len(data) > LARGE_BYTES
        tensor_request = await call.run_maybe_in_thread(read, there, large)
        terms = call.terms(tensor_request.milliseconds)
        prior = tensor_request.request.parameters.prior
        writer = checked_prior(model.handle, prior, settings.prior, "/parameters/prior")
        items = tensor_request.received.items
        return Inquiry([model.handle] * len(items), items, terms, partial(_respond, tensor_request, model, writer))

    with model.handle:
        return await INFER.answer(Call(request), understand, CODINGS, limit)


def _header_length(request: Request) -> str | None:
    values = request.headers.getlist(HEADER_LENGTH)
    if len(values) > 1:
        raise ProblemError(MALFORMED, f"{HEADER_LENGTH} is given {len(values)} times")
    return values[0].strip() if values else None


def _understand(
    data: bytes, header_length: str | None, model: ModelOfTensors, settings: Settings, stopwatch: Stopwatch
) -> TensorRequest:
    text, binary = split_body(data, header_length)
    if len(text) > settings.max_json_bytes:
        limit = settings.max_json_bytes
        raise ProblemError(TOO_LARGE, f"the JSON part is longer than {limit} bytes", limit=limit)
    request = _request(formats.read_json(text), model)
    milliseconds = _milliseconds(request.parameters, settings)
    outputs = choose_outputs(model.tensors.outputs, request.outputs, request.parameters.binary_data_output)
    check_inputs(model.tensors.inputs, request.inputs)
    check_texts(request.inputs, settings.max_curves)
    tensors = decode(request.inputs, binary)
    stopwatch.lap("decode")
    received = model.tensors.read(tensors, request.parameters.flux_unit, settings)
    stopwatch.lap("validate")
    return TensorRequest(request, milliseconds, received, outputs)


def _request(document: object, model: ModelOfTensors) -> InferRequest:
    try:
        request = InferRequest.model_validate(document)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise ProblemError(INVALID, errors=field_errors(details)) from None
    manifest = model.bundle.manifest
    for name, value, own in (
        ("model_name", request.model_name, manifest.name),
        ("model_version", request.model_version, manifest.version),
    ):
        if value not in (None, own):
            raise fault(f"/{name}", "not_one_of", f"the address leads to {own}")
    return request


def _milliseconds(parameters: RequestParameters, settings: Settings) -> float | None:
    """Time that a request asks for, the shorter of two that it may name. Raises ProblemError (422) when too long."""
    timeout, deadline_ms = parameters.timeout or 0, parameters.deadline_ms or 0
    check_deadline(-(-timeout // 1000), "/parameters/timeout", settings)  # rounded up, and never a float too large
    check_deadline(deadline_ms, "/parameters/deadline_ms", settings)
    named = filter(None, (timeout / 1000, deadline_ms))
    return min(named, default=None)


def _respond(
    tensor_request: TensorRequest, model: ModelOfTensors, writer: ClassWriter, outcomes: Sequence[Outcome]
) -> EncodedReply:
    arrays = _outputs(tensor_request, model, list(map(writer.concluded, outcomes)))
    provenance = model.provenance
    head: dict[str, object] = {"model_name": provenance["name"], "model_version": provenance["version"]}
    if tensor_request.request.id:
        head["id"] = tensor_request.request.id
    head["parameters"] = {name: value for name, value in provenance.items() if name not in ("name", "version")}
    binary = {name for name, form in tensor_request.outputs.items() if form.binary}
    content, header_length = encode(head, arrays, binary)
    if header_length is None:
        return EncodedReply(content)
    return EncodedReply(content, BINARY_TYPE, {HEADER_LENGTH: str(header_length)})


def _outputs(tensor_request: TensorRequest, model: ModelOfTensors, outcomes: Sequence[Outcome]) -> dict[str, Array]:
    """Return the outputs that were asked for, in that order."""
    arrays = model.tensors.write(tensor_request.outputs, tensor_request.received, outcomes)
    labels = {spec.name: spec.labels for spec in model.tensors.outputs}
    return {
        name: most_probable(arrays[name], labels[name], form.top) if form.top else arrays[name]
        for name, form in tensor_request.outputs.items()
    }


router = APIRouter()

Handler = Callable[[Request], Any]

_UNAVAILABLE = openapi.problems(errors.UNAVAILABLE)
_LOOK_UP = openapi.problems(errors.NOT_FOUND, errors.OVERLOADED, errors.INTERNAL, errors.UNAVAILABLE)


def _of_model(method: str, suffix: str, **described: Any) -> Callable[[Handler], Handler]:
    """Register a handler at an address below a model, without and with a version."""

    def add(handler: Handler) -> Handler:
        extra = described.pop("openapi_extra", {})
        for parts in (("model",), ("model", "version")):
            path = "/v2/models/{model}" + ("/versions/{version}" if "version" in parts else "") + suffix
            name = handler.__name__ + ("_of_version" if "version" in parts else "")
            parameters = [
                {"name": part, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
                for part in parts
            ]
            router.add_api_route(
                path,
                handler,
                methods=[method],
                name=name,
                response_class=Response,
                openapi_extra=extra | {"parameters": parameters},
                **described,
            )
        return handler

    return add


def _facts_of_model(suffix: str, summary: str, reply: type[BaseModel], what: str) -> Callable[[Handler], Handler]:
    """Register a handler that tells something of a model; it fails where there is no such model, or no service."""
    return _of_model("GET", suffix, summary=summary, responses={200: openapi.reply(reply, what), **_LOOK_UP})


def _model(request: Request) -> ModelOfTensors:
    named = request.path_params
    return find_model(service_of(request), named["model"], named.get("version", ""), routing_key(request))


def _json(content: BaseModel) -> Response:
    return Response(content.model_dump_json(exclude_none=True), media_type=JSON_TYPE)


@router.get(
    "/v2",
    summary="Server metadata",
    response_class=Response,
    responses={200: openapi.reply(ServerMetadata, "Name, version and extensions.")},
)
async def server_metadata(request: Request) -> Response:
    """Return the server's name and version, and the extensions of the Open Inference Protocol that it knows."""
    return _json(ServerMetadata(name="nightjar", version=request.app.version, extensions=EXTENSIONS))


@router.get("/v2/health/live", summary="Server liveness", responses=_UNAVAILABLE)
async def server_live(request: Request) -> Live:
    """Answer as `/healthz` does."""
    service = service_of(request)
    if not service.alive:
        raise service.not_ready()
    return Live(live=True)


@router.get("/v2/health/ready", summary="Server readiness", responses=_UNAVAILABLE)
async def server_ready(request: Request) -> Ready:
    """Answer as `/readyz` does."""
    service = service_of(request)
    if service.unready:
        raise service.not_ready()
    return Ready(ready=True)


@_of_model(
    "GET",
    "/ready",
    summary="Model readiness",
    responses={200: openapi.reply(ModelReady, "It answers."), **openapi.problems(errors.NOT_FOUND, errors.UNAVAILABLE)},
)
async def model_ready(request: Request) -> Response:
    """Say that a model is ready, which one that is served is whenever the service is."""
    service, model = service_of(request), _model(request)
    if service.unready:
        raise service.not_ready()
    return _json(ModelReady(name=model.bundle.manifest.name, ready=True))


@_facts_of_model("", "Model metadata", ModelMetadata, "Names, datatypes and shapes of tensors.")
async def model_metadata(request: Request) -> Response:
    """Describe the tensors that a model takes and gives."""
    return _json(metadata(_model(request)))


@_of_model("POST", "/infer", **INFER.described)
async def infer(request: Request) -> Response:
    """Send light curves as tensors: observations one after the other, and `offsets` that divide them.

    Inputs are `mjd`, `flux`, `flux_err`, `band` and, if there is more than one light curve, `offsets`; `detected`,
    `metadata` and `object_id` are optional. A
    light curve that breaks a rule is answered alone, with NaN and its `status` and `reason`, while the others go on.
    `embedding`, `detail` and `object_id` are given when asked for by name. With the binary tensor extension
    `Inference-Header-Content-Length` is the length of the JSON part; `gzip` and `deflate` are read.
    """
    return await _answer(request, _model(request))
