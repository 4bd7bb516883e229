"""The way of an inference request: receive, inflate, decode, ask the data plane, encode."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Request, Response
from pydantic import ValidationError

from service.answers.fields import field_errors
from service.answers.writers import ClassWriter
from service.dataplane import Outcome
from service.http import openapi
from service.http.body.formats import jsontext
from service.http.body.requests import check_deadline
from service.http.curves import checked_prior
from service.http.edge.compression import CODINGS
from service.http.edge.errors import INVALID, MALFORMED, TOO_LARGE, ProblemError
from service.http.edge.receive import media_type
from service.http.edge.timing import Stopwatch
from service.http.endpoint import Call, Endpoint, Inquiry, Reply
from service.http.lifecycle import service_of
from service.http.oip.forms import InferRequest, RequestParameters
from service.http.oip.models import ModelOfTensors
from service.http.oip.signature import Received, Wanted, check_inputs, choose_outputs, most_probable
from service.http.oip.tensors import Array, decode, encode, fault, split_body
from service.settings import Settings

HEADER_LENGTH = "Inference-Header-Content-Length"
BINARY_TYPE = "application/octet-stream"
INLINE_BYTES = 4096  # at worst a hundred light curves of one observation, a few milliseconds of work


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A checked request: its time, its light curves, and which outputs go back and how."""

    request: InferRequest
    milliseconds: float | None
    received: Received[Any]
    outputs: Mapping[str, Wanted]


ENDPOINT = Endpoint("/infer", "Infer", openapi.INFER_BODY, openapi.INFER_REPLY)


async def infer(request: Request, model: ModelOfTensors) -> Response:
    """Answer one request."""
    media_type(request, (openapi.JSON_TYPE, BINARY_TYPE), CODINGS)
    header_length, settings = _header_length(request), service_of(request).settings
    limit = settings.max_json_bytes if header_length is None else settings.max_tensor_bytes

    async def understand(call: Call, data: bytes) -> Inquiry[Any]:
        read = partial(_understand, data, header_length, model, settings, call.stopwatch)
        asked = await call.here_or_there(read, len(data) > INLINE_BYTES)
        terms = call.terms(asked.milliseconds, urgency=asked.request.parameters.urgency)
        writer = _writer(model, asked.request.parameters, settings)
        items = asked.received.items
        return Inquiry([model.lease] * len(items), items, terms, partial(_respond, asked, model, writer))

    with model.lease:
        return await ENDPOINT.answer(request, understand, CODINGS, limit)


def _header_length(request: Request) -> str | None:
    values = request.headers.getlist(HEADER_LENGTH)
    if len(values) > 1:
        raise ProblemError(MALFORMED, f"{HEADER_LENGTH} is given {len(values)} times")
    return values[0].strip() if values else None


def _understand(
    data: bytes, header_length: str | None, model: ModelOfTensors, settings: Settings, stopwatch: Stopwatch
) -> Asked:
    text, binary = split_body(data, header_length)
    if len(text) > settings.max_json_bytes:
        limit = settings.max_json_bytes
        raise ProblemError(TOO_LARGE, f"the JSON part is longer than {limit} bytes", limit=limit)
    request = _request(jsontext.read(text), model)
    milliseconds = _milliseconds(request.parameters, settings)
    outputs = choose_outputs(model.tensors.outputs, request.outputs, request.parameters.binary_data_output)
    check_inputs(model.tensors.inputs, request.inputs)
    tensors = decode(request.inputs, binary)
    stopwatch.lap("decode")
    received = model.tensors.read(tensors, request.parameters.flux_unit, settings)
    stopwatch.lap("validate")
    return Asked(request, milliseconds, received, outputs)


def _request(document: object, model: ModelOfTensors) -> InferRequest:
    try:
        request = InferRequest.model_validate(document)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise ProblemError(INVALID, errors=field_errors(found)) from None
    manifest = model.bundle.manifest
    for name, said, is_so in (
        ("model_name", request.model_name, manifest.name),
        ("model_version", request.model_version, manifest.version),
    ):
        if said not in (None, is_so):
            raise fault(f"/{name}", "not_one_of", f"the address leads to {is_so}")
    return request


def _writer(model: ModelOfTensors, parameters: RequestParameters, settings: Settings) -> ClassWriter | None:
    """What knows the class shares of the reply, None for a forecaster. Raises ProblemError (422) for unusable ones."""
    if model.bundle.manifest.task == "classification":
        return checked_prior(model.lease, parameters.prior, settings.prior, "/parameters/prior")
    if parameters.prior is not None:
        raise fault("/parameters/prior", "unsupported", "a forecaster has no class shares")
    return None


def _milliseconds(parameters: RequestParameters, settings: Settings) -> float | None:
    """Time that a request asks for, the shorter of two that it may name. Raises ProblemError (422) when too long."""
    timeout, deadline_ms = parameters.timeout or 0, parameters.deadline_ms or 0
    check_deadline(-(-timeout // 1000), "/parameters/timeout", settings)  # rounded up, and never a float too large
    check_deadline(deadline_ms, "/parameters/deadline_ms", settings)
    named = filter(None, (timeout / 1000, deadline_ms))
    return min(named, default=None)


def _respond(asked: Asked, model: ModelOfTensors, writer: ClassWriter | None, outcomes: Sequence[Outcome]) -> Reply:
    told = outcomes if writer is None else list(map(writer.concluded, outcomes))
    arrays = _outputs(asked, model, told)
    provenance = model.provenance
    head: dict[str, object] = {"model_name": provenance["name"], "model_version": provenance["version"]}
    if asked.request.id:
        head["id"] = asked.request.id
    head["parameters"] = {name: value for name, value in provenance.items() if name not in ("name", "version")}
    binary = {name for name, wanted in asked.outputs.items() if wanted.binary}
    content, header_length = encode(head, arrays, binary)
    if header_length is None:
        return Reply(content)
    return Reply(content, BINARY_TYPE, {HEADER_LENGTH: str(header_length)})


def _outputs(asked: Asked, model: ModelOfTensors, outcomes: Sequence[Outcome]) -> dict[str, Array]:
    """What was asked for, in that order."""
    arrays = model.tensors.write(asked.outputs, asked.received, outcomes)
    labels = {spec.name: spec.labels for spec in model.tensors.outputs}
    return {
        name: most_probable(arrays[name], labels[name], wanted.top) if wanted.top else arrays[name]
        for name, wanted in asked.outputs.items()
    }
