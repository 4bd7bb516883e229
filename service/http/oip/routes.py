"""Routes of the Open Inference Protocol below ``/v2``; :mod:`service.http.oip` says how light curves become tensors.

Every address of a model exists twice, with a version and without one, which then means the one that is served.
:func:`parse` and :func:`infer_parsed` know nothing of HTTP.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError

from nightjar_alerts.service.answers.replies import field_errors
from nightjar_alerts.service.answers.serializer import ResultSerializer
from nightjar_alerts.service.dataplane import InferOptions, Outcome
from nightjar_alerts.service.http import openapi
from nightjar_alerts.service.http.curves import FORGIVEN_BYTES, MOST_PARTS, check_deadline, serializer_for
from nightjar_alerts.service.http.edge import errors
from nightjar_alerts.service.http.edge.errors import INVALID, MALFORMED, TOO_LARGE, ProblemError
from nightjar_alerts.service.http.edge.receive import BOM, cancel_on_disconnect, media_type
from nightjar_alerts.service.http.endpoint import (
    INLINE_ITEMS,
    LARGE_BYTES,
    Timings,
    charge,
    client_of,
    described,
    infer_options,
    read_body,
    reply,
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
from nightjar_alerts.service.http.oip.models import EXTENSIONS, ModelOfTensors, find_model, metadata
from nightjar_alerts.service.http.oip.signature import (
    OutputForm,
    Received,
    check_inputs,
    check_texts,
    choose_outputs,
    fitted,
    most_probable,
)
from nightjar_alerts.service.http.oip.tensors import Array, decode, encode, fault, split_body
from nightjar_alerts.service.settings import Settings

HEADER_LENGTH = "Inference-Header-Content-Length"
BINARY_TYPE = "application/octet-stream"
INLINE_BYTES = 4096  # at worst a hundred light curves of one observation, a few milliseconds of work


@dataclass(frozen=True, slots=True, eq=False)
class Parsed:
    """A parsed request: its light curves, and which outputs go back and how."""

    request: InferRequest
    milliseconds: float | None
    received: Received
    outputs: Mapping[str, OutputForm]


def parse(
    request: InferRequest, binary: memoryview, model: ModelOfTensors, names: Sequence[str], settings: Settings
) -> Parsed:
    """Check a request against a model and build its light curves; of no transport.

    Parameters
    ----------
    binary : bytes of the tensors that follow the JSON part; empty where there are none.
    names : under which the request addresses the model, besides its own name and version.

    Raises
    ------
    ProblemError
        422, 413 or 400 for tensors that do not fit the model or each other.
    """
    manifest = model.bundle.manifest
    for member, value in (("model_name", request.model_name), ("model_version", request.model_version)):
        if value and value not in (manifest.name, manifest.version, *names):
            raise fault(f"/{member}", "not_one_of", f"the model is {manifest.name}, version {manifest.version}")
    milliseconds = _milliseconds(request.parameters, settings)
    outputs = choose_outputs(model.tensors.outputs, request.outputs, request.parameters.binary_data_output)
    check_inputs(model.tensors.inputs, request.inputs)
    check_texts(request.inputs, settings.max_curves)
    tensors = fitted(model.tensors.inputs, decode(request.inputs, binary))
    received = model.tensors.read(tensors, request.parameters.flux_unit, settings)
    return Parsed(request, milliseconds, received, outputs)


async def infer_parsed(
    parsed: Parsed, model: ModelOfTensors, serializer: ResultSerializer, options: InferOptions
) -> tuple[dict[str, Array], list[Outcome]]:
    """Classify the light curves of a request; returns the outputs, in their order, and outcomes; of no transport."""
    outcomes = await model.handle.infer(parsed.received.items, options)
    arrays = model.tensors.write(parsed.outputs, parsed.received, list(map(serializer.apply_prior, outcomes)))
    labels = {spec.name: spec.labels for spec in model.tensors.outputs}
    outputs = {
        name: most_probable(arrays[name], labels[name], form.top) if form.top else arrays[name]
        for name, form in parsed.outputs.items()
    }
    return outputs, outcomes


_BEYOND_JSON = re.compile(rb"NaN|Infinity|(?<![0-9])[0-9]{309}")


def read_json(text: bytes) -> object:
    """Parse a JSON document, with NaN, which some encoders write for null. Raises ProblemError (400)."""
    text = text.removeprefix(BOM)
    if len(text) > MOST_PARTS and sum(map(text.count, (b"[", b"{", b":"))) > MOST_PARTS:
        raise ProblemError(MALFORMED, f"the document has more than {MOST_PARTS} lists, objects and names")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        if len(text) <= FORGIVEN_BYTES and _BEYOND_JSON.search(text):
            with suppress(ValueError, RecursionError):
                return json.loads(text.decode())
    raise ProblemError(MALFORMED, f"the body is not one valid UTF-8 JSON document: {where}")


def _read(
    data: bytes, header_length: str | None, model: ModelOfTensors, names: Sequence[str], settings: Settings
) -> Parsed:
    """Decode a body and parse its request. Raises ProblemError."""
    text, binary = split_body(data, header_length)
    if len(text) > settings.max_json_bytes:
        limit = settings.max_json_bytes
        raise ProblemError(TOO_LARGE, f"the JSON part is longer than {limit} bytes", limit=limit)
    try:
        request = InferRequest.model_validate(read_json(text))
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise ProblemError(INVALID, errors=field_errors(details)) from None
    return parse(request, binary, model, names, settings)


def _header_length(request: Request) -> str | None:
    values = request.headers.getlist(HEADER_LENGTH)
    if len(values) > 1:
        raise ProblemError(MALFORMED, f"{HEADER_LENGTH} is given {len(values)} times")
    return values[0].strip() if values else None


def _milliseconds(parameters: RequestParameters, settings: Settings) -> float | None:
    """Deadline of a request. Raises ProblemError (422) when it is too long, or given twice."""
    timeout, deadline_ms = parameters.timeout or 0, parameters.deadline_ms or 0
    if timeout and deadline_ms:
        raise fault("/parameters/deadline_ms", "duplicate", "timeout gives the deadline already, in microseconds")
    check_deadline(-(-timeout // 1000), "/parameters/timeout", settings)  # rounded up, and never a float too large
    check_deadline(deadline_ms, "/parameters/deadline_ms", settings)
    return timeout / 1000 or deadline_ms or None


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
                openapi_extra=extra | {"parameters": parameters},
                **({"response_class": Response} | described),
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


@_of_model("POST", "/infer", **described("Infer", openapi.INFER_BODY, openapi.INFER_REPLY))
async def infer(request: Request) -> Response:
    """Send light curves as tensors: observations one after the other, and `offsets` that divide them.

    Inputs are `mjd`, `flux`, `flux_err`, `band` and, if there is more than one light curve, `offsets`; `detected`,
    `metadata` and `object_id` are optional. A light curve that breaks a rule is answered alone, with NaN and its
    `status` and `reason`, while the others are classified. `embedding`, `detail` and `object_id` are given when they
    are requested by name. With the binary tensor extension `Inference-Header-Content-Length` is the length of the JSON
    part. Custom parameters are ignored.
    """
    service, settings = service_of(request), service_of(request).settings
    timings = Timings(service.metrics)
    model = _model(request)
    media_type(request, (JSON_TYPE, BINARY_TYPE))
    header_length = _header_length(request)
    limit = settings.max_json_bytes if header_length is None else settings.max_tensor_bytes
    with model.handle, service.budget.reserve(client_of(request)) as reservation:
        data = await read_body(request, reservation, limit)
        timings.stage("receive")
        read = partial(_read, data, header_length, model, list(request.path_params.values()), settings)
        if len(data) > INLINE_BYTES:
            parsed = await service.run_in_thread(read, len(data) > LARGE_BYTES)
        else:
            parsed = read()
        del data, read
        timings.stage("decode")
        serializer = serializer_for(model.handle, parsed.request.parameters.prior, settings.prior, "/parameters/prior")
        options = infer_options(request, settings, timings.started, parsed.milliseconds)
        timings.stage("validate")
        await charge(request, service, len(parsed.received.items))
        outputs, outcomes = await cancel_on_disconnect(request, infer_parsed(parsed, model, serializer, options))
    timings.start()
    provenance = model.provenance
    head: dict[str, object] = {"model_name": provenance["name"], "model_version": provenance["version"]}
    if parsed.request.id:
        head["id"] = parsed.request.id
    head["parameters"] = {name: value for name, value in provenance.items() if name not in ("name", "version")}
    binary = {name for name, form in parsed.outputs.items() if form.binary}
    encode_reply = partial(encode, head, outputs, binary)
    content, length = await service.run_maybe_in_thread(encode_reply, len(outcomes) > INLINE_ITEMS)
    timings.stage("encode")
    handles = [model.handle] * len(outcomes)
    if length is None:
        return reply(request, content, JSON_TYPE, handles, outcomes, timings)
    return reply(request, content, BINARY_TYPE, handles, outcomes, timings, {HEADER_LENGTH: str(length)})
