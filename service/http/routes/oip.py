"""``/v2``: the Open Inference Protocol; :mod:`service.http.oip` says how light curves become tensors.

Every address of a model exists twice, with a version and without one, which then means the one that is served.
"""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from service.http import openapi
from service.http.choosing import sticky_key
from service.http.edge import errors
from service.http.lifecycle import service_of
from service.http.oip.descriptions import EXTENSIONS, configuration, metadata, statistics
from service.http.oip.forms import (
    Live,
    ModelConfiguration,
    ModelMetadata,
    ModelReady,
    Ready,
    ServerMetadata,
    StatisticsReply,
)
from service.http.oip.infer import ENDPOINT as INFER
from service.http.oip.infer import infer as answer
from service.http.oip.models import ModelOfTensors, all_models, find_model

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


def _model(request: Request) -> ModelOfTensors:
    named = request.path_params
    return find_model(service_of(request), named["model"], named.get("version", ""), sticky_key(request))


def _json(content: BaseModel) -> Response:
    return Response(content.model_dump_json(exclude_none=True), media_type=openapi.JSON_TYPE)


@router.get(
    "/v2",
    summary="Server metadata",
    response_class=Response,
    responses={200: openapi.reply(ServerMetadata, "Name, version and extensions.")},
)
async def server_metadata(request: Request) -> Response:
    """What this server is and which extensions of the Open Inference Protocol it knows."""
    return _json(ServerMetadata(name="nightjar", version=request.app.version, extensions=EXTENSIONS))


@router.get("/v2/health/live", summary="Server liveness", responses=_UNAVAILABLE)
async def server_live(request: Request) -> Live:
    """The same as `/healthz`."""
    service = service_of(request)
    if not service.alive:
        raise service.not_ready()
    return Live(live=True)


@router.get("/v2/health/ready", summary="Server readiness", responses=_UNAVAILABLE)
async def server_ready(request: Request) -> Ready:
    """The same as `/readyz`."""
    service = service_of(request)
    if service.unready:
        raise service.not_ready()
    return Ready(ready=True)


@router.get(
    "/v2/models/stats",
    summary="Statistics of all models",
    response_class=Response,
    responses={
        200: openapi.reply(StatisticsReply, "One entry per model."),
        **openapi.problems(errors.OVERLOADED, errors.INTERNAL, errors.UNAVAILABLE),
    },
)
async def all_statistics(request: Request) -> Response:
    """Counts and total times of every model since the service started, whichever route asked."""
    models = all_models(service_of(request))
    return _json(StatisticsReply(model_stats=[statistics(model) for model in models]))


@_of_model(
    "GET",
    "/stats",
    summary="Model statistics",
    responses={200: openapi.reply(StatisticsReply, "One entry: the model's."), **_LOOK_UP},
)
async def model_statistics(request: Request) -> Response:
    """Counts and total times of a model since the service started, whichever route asked; a unit is a light curve."""
    return _json(StatisticsReply(model_stats=[statistics(_model(request))]))


@_of_model(
    "GET",
    "/config",
    summary="Model configuration",
    responses={200: openapi.reply(ModelConfiguration, "The configuration in Triton's words."), **_LOOK_UP},
)
async def model_configuration(request: Request) -> Response:
    """Tensors, and as `parameters` the names of classes, bands and metadata columns, each as JSON."""
    return _json(configuration(_model(request)))


@_of_model(
    "GET",
    "/ready",
    summary="Model readiness",
    responses={200: openapi.reply(ModelReady, "It answers."), **openapi.problems(errors.NOT_FOUND, errors.UNAVAILABLE)},
)
async def model_ready(request: Request) -> Response:
    """Whether a model answers; a model that is served is ready whenever the service is."""
    service, model = service_of(request), _model(request)
    if service.unready:
        raise service.not_ready()
    return _json(ModelReady(name=model.bundle.manifest.name, ready=True))


@_of_model(
    "GET",
    "",
    summary="Model metadata",
    responses={200: openapi.reply(ModelMetadata, "Names, datatypes and shapes of tensors."), **_LOOK_UP},
)
async def model_metadata(request: Request) -> Response:
    """Which tensors a model takes and gives."""
    return _json(metadata(_model(request)))


@_of_model(
    "POST",
    "/infer",
    **INFER.described,
)
async def infer(request: Request) -> Response:
    """Send light curves as tensors: observations one after the other, and `offsets` that divide them.

    Inputs are `mjd`, `flux`, `flux_err`, `band` and, if there is more than one light curve, `offsets`; `detected`,
    `metadata` and `object_id` are optional; a forecaster also takes `query_mjd`, `query_band` and `query_offsets`. A
    light curve that breaks a rule is answered alone, with NaN and its `status` and `reason`, while the others go on.
    `embedding`, `detail` and `object_id` are given when asked for by name. With the binary tensor extension
    `Inference-Header-Content-Length` is the length of the JSON part; `gzip` and `deflate` are read.
    """
    return await answer(request, _model(request))
