"""``GET /v1/models``: what is served, what it wants and what it gives."""

from fastapi import APIRouter, Request, Response

from service.answers.stats import StatsReply, stats
from service.http import openapi
from service.http.descriptions import ModelsReply, describe
from service.http.edge import errors
from service.http.lifecycle import service_of
from service.http.oip.models import find_model

router = APIRouter()

# Any text will do, so there is nothing for FastAPI to check, nor a problem of its own to document.
_NAME = {
    "name": "model",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "description": "name, name@1.2.3 or alias"},
}


@router.get(
    "/v1/models",
    summary="Describe the models",
    response_class=Response,
    responses={
        200: openapi.reply(ModelsReply, "Every model that is served."),
        **openapi.problems(errors.OVERLOADED, errors.INTERNAL, errors.UNAVAILABLE),
    },
)
async def models(request: Request) -> Response:
    """Task, name, version, hash, classes with their ids, bands, limits, metadata columns, quality, calibration."""
    service = service_of(request)
    routes = service.models.shelf.routes
    described = [describe(model.bundle, model.provider, routes.aliases_of(model.reference)) for model in service.served]
    content = ModelsReply(models=described)
    return Response(content.model_dump_json(by_alias=True), media_type=openapi.JSON_TYPE)


@router.get(
    "/v1/models/{model}/stats",
    summary="Statistics of a model",
    response_class=Response,
    responses={
        200: openapi.reply(StatsReply, "What it has done since it was loaded, and in the last minutes."),
        **openapi.problems(errors.NOT_FOUND, errors.OVERLOADED, errors.INTERNAL, errors.UNAVAILABLE),
    },
    openapi_extra={"parameters": [_NAME]},
)
async def model_stats(request: Request) -> Response:
    """Light curves, latency of every stage, batches, padding, error of the cost model, mix of classes, queue."""
    model = find_model(service_of(request), request.path_params["model"])
    return Response(stats(model.lease.served).model_dump_json(exclude_none=True), media_type=openapi.JSON_TYPE)
