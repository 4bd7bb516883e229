"""Routes of the Open Inference Protocol under ``/v2``; :mod:`service.http.oip` describes the tensors.

The path of a model may have a version; without one, the current version is used.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError

from nightjar_alerts.models.bundle import version_key
from nightjar_alerts.service.answers.replies import field_errors
from nightjar_alerts.service.http import openapi
from nightjar_alerts.service.http.edge import errors
from nightjar_alerts.service.http.edge.body import cancel_on_disconnect, get_media_type
from nightjar_alerts.service.http.edge.errors import INVALID, MALFORMED, TOO_LARGE, ProblemError
from nightjar_alerts.service.http.endpoint import (
    INLINE_ITEMS,
    Timings,
    charge_quota,
    decode_in_thread,
    get_client_id,
    get_routing_key,
    infer_options,
    make_response,
    read_body,
    route_docs,
)
from nightjar_alerts.service.http.formats import JSON_TYPE
from nightjar_alerts.service.http.lifecycle import Service, get_service
from nightjar_alerts.service.http.oip.inference import (
    InferInputs,
    TensorSpec,
    infer_tensors,
    list_inputs,
    list_outputs,
    read_request,
)
from nightjar_alerts.service.http.oip.schemas import (
    InferRequest,
    Live,
    ModelMetadata,
    ModelReady,
    Ready,
    ServerMetadata,
    TensorMetadata,
)
from nightjar_alerts.service.http.oip.tensors import encode_response, load_json, split_body
from nightjar_alerts.service.http.results import get_serializer
from nightjar_alerts.service.registry.serving import ModelHandle, acquired
from nightjar_alerts.service.settings import Settings

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
BINARY_TYPE: Final = "application/octet-stream"
INLINE_BYTES: Final = 4096
"""Maximum size of a body that is decoded on the event loop; a hundred light curves of one observation fit."""
EXTENSIONS: Final = ["binary_tensor_data", "classification", "parameters"]
MODEL: Final = "/v2/models/{model}"
VERSION: Final = "/v2/models/{model}/versions/{version}"

_UNAVAILABLE = openapi.problems(errors.UNAVAILABLE)
_MODEL_PROBLEMS = openapi.problems(errors.NOT_FOUND, errors.OVERLOADED, errors.INTERNAL, errors.UNAVAILABLE)

router = APIRouter()


def _with_path(docs: dict[str, Any], *names: str) -> dict[str, Any]:
    """Add path parameters to the description of a route."""
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    summary = docs["summary"] + (" (by version)" if "version" in names else "")
    return docs | {"summary": summary, "openapi_extra": docs.get("openapi_extra", {}) | {"parameters": parameters}}


@router.get(
    "/v2",
    summary="Server metadata",
    response_class=Response,
    responses={200: openapi.reply(ServerMetadata, "Name, version and extensions.")},
)
async def server_metadata(request: Request) -> Response:
    """Return the name and version of the server and the protocol extensions that it supports."""
    return _to_json(ServerMetadata(name="nightjar", version=request.app.version, extensions=EXTENSIONS))


@router.get("/v2/health/live", summary="Liveness of the server", responses=_UNAVAILABLE)
async def server_live(request: Request) -> Live:
    """Return whether the server is alive, as `/healthz`."""
    service = get_service(request)
    if not service.alive:
        raise service.not_ready()
    return Live(live=True)


@router.get("/v2/health/ready", summary="Readiness of the server", responses=_UNAVAILABLE)
async def server_ready(request: Request) -> Ready:
    """Return whether the server is ready, as `/readyz`."""
    service = get_service(request)
    if service.unready:
        raise service.not_ready()
    return Ready(ready=True)


_READY_DOCS = {
    "summary": "Readiness of a model",
    "response_class": Response,
    "responses": {
        200: openapi.reply(ModelReady, "The model is ready."),
        **openapi.problems(errors.NOT_FOUND, errors.UNAVAILABLE),
    },
}


@router.get(f"{MODEL}/ready", **_with_path(_READY_DOCS, "model"))
@router.get(f"{VERSION}/ready", name="model_ready_of_version", **_with_path(_READY_DOCS, "model", "version"))
async def model_ready(request: Request) -> Response:
    """Return whether a model is ready. A model is if it is served and the server is ready."""
    handle = _select_model(request)
    if get_service(request).unready:
        raise get_service(request).not_ready()
    return _to_json(ModelReady(name=handle.bundle.manifest.name, ready=True))


_METADATA_DOCS = {
    "summary": "Model metadata",
    "response_class": Response,
    "responses": {200: openapi.reply(ModelMetadata, "Names, datatypes and shapes of the tensors."), **_MODEL_PROBLEMS},
}


@router.get(MODEL, **_with_path(_METADATA_DOCS, "model"))
@router.get(VERSION, name="model_metadata_of_version", **_with_path(_METADATA_DOCS, "model", "version"))
async def model_metadata(request: Request) -> Response:
    """Return the inputs and outputs of a model, and its versions."""
    return _to_json(describe_model(get_service(request), _select_model(request)))


def describe_model(service: Service, handle: ModelHandle) -> ModelMetadata:
    """Return the inputs and outputs of a model, and its versions."""
    manifest = handle.bundle.manifest
    references = [model.reference for model in service.served]
    return ModelMetadata(
        name=manifest.name,
        versions=sorted(
            (reference.version for reference in references if reference.name == manifest.name), key=version_key
        ),
        platform="onnxruntime_onnx",
        inputs=[_describe(spec) for spec in list_inputs(manifest)],
        outputs=[_describe(spec) for spec in list_outputs(manifest)],
    )


def _describe(spec: TensorSpec) -> TensorMetadata:
    return TensorMetadata(name=spec.name, datatype=spec.datatypes[0], shape=list(spec.shape))


def _select_model(request: Request) -> ModelHandle:
    """Return the model of a path. Raises ProblemError: 404 if it is not served, 503 while starting."""
    name = "@".join(request.path_params.values())
    return get_service(request).select_model(name, routing_key=get_routing_key(request))


def _to_json(content: BaseModel) -> Response:
    return Response(content.model_dump_json(exclude_none=True), media_type=JSON_TYPE)


_INFER_DOCS = route_docs("Classify light curves as tensors", openapi.INFER_BODY, openapi.INFER_REPLY)


@router.post(f"{MODEL}/infer", **_with_path(_INFER_DOCS, "model"))
@router.post(f"{VERSION}/infer", name="infer_of_version", **_with_path(_INFER_DOCS, "model", "version"))
async def infer(request: Request) -> Response:
    """Send light curves as tensors: concatenated observations, and `offsets` that divide them.

    The inputs are `mjd`, `flux`, `flux_err`, `band` and, for several light curves, `offsets`; `detected`,
    `metadata` and `object_id` are optional. An invalid light curve has NaN as its result and a `status` and
    `reason`; the others are classified. The outputs `embedding`, `detail` and `object_id` are returned if requested
    by name. With the binary tensor extension, `Inference-Header-Content-Length` is the length of the JSON part.
    Unknown parameters are ignored, misspelt ones refused.
    """
    service, settings = get_service(request), get_service(request).settings
    timings = Timings(service.metrics)
    handle = _select_model(request)
    get_media_type(request, (JSON_TYPE, BINARY_TYPE))
    header_length = _read_header_length(request)
    limit = settings.max_json_bytes if header_length is None else settings.max_tensor_bytes
    with acquired([handle]), service.budget.reserve(get_client_id(request)) as reservation:
        data = await read_body(request, reservation, limit)
        timings.stage("receive")
        decode = partial(_decode, data, header_length, handle, list(request.path_params.values()), settings)
        if len(data) > INLINE_BYTES:
            inputs = await decode_in_thread(request, decode, len(data))
        else:
            inputs = decode()
        del data, decode
        timings.stage("decode")
        serializer = get_serializer(handle, inputs.prior, settings.prior, "/parameters/prior")
        options = infer_options(request, settings, timings.started, inputs.deadline_ms)
        timings.stage("validate")
        await charge_quota(request, service, len(inputs.light_curves))
        outputs, outcomes = await cancel_on_disconnect(request, infer_tensors(inputs, handle, serializer, options))
    timings.start()
    provenance = dict(serializer.provenance)
    head: dict[str, object] = {"model_name": provenance.pop("name"), "model_version": provenance.pop("version")}
    if inputs.id:
        head["id"] = inputs.id
    head["parameters"] = provenance
    binary = {name for name, parameters in inputs.outputs.items() if parameters.binary_data}
    encode = partial(encode_response, head, outputs, binary)
    content, length = await service.run_maybe_in_thread(encode, len(outcomes) > INLINE_ITEMS)
    timings.stage("encode")
    handles = [handle] * len(outcomes)
    if length is None:
        return make_response(request, content, JSON_TYPE, handles, outcomes, timings)
    return make_response(request, content, BINARY_TYPE, handles, outcomes, timings, {HEADER_LENGTH: str(length)})


def _read_header_length(request: Request) -> str | None:
    values = request.headers.getlist(HEADER_LENGTH)
    if len(values) > 1:
        raise ProblemError(MALFORMED, f"{HEADER_LENGTH} is given {len(values)} times")
    return values[0].strip() if values else None


def _decode(
    data: bytes, header_length: str | None, handle: ModelHandle, names: Sequence[str], settings: Settings
) -> InferInputs:
    """Decode and check a body. Raises ProblemError."""
    text, binary = split_body(data, header_length)
    if len(text) > settings.max_json_bytes:
        limit = settings.max_json_bytes
        raise ProblemError(TOO_LARGE, f"the JSON part is longer than {limit} bytes", limit=limit)
    try:
        request = InferRequest.model_validate(load_json(text))
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise ProblemError(INVALID, errors=field_errors(details)) from None
    return read_request(request, binary, handle.bundle.manifest, names, settings)
