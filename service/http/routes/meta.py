"""Routes that describe the service: OpenAPI document, problem types, models, probes and metrics.

Probes use no locks or threads of inference, so they do not fail under load.
"""

import asyncio
from functools import lru_cache
from typing import Literal

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from nightjar_alerts.service.answers.models import ClassifierDescription, ModelsReply, describe
from nightjar_alerts.service.http import openapi
from nightjar_alerts.service.http.edge import errors
from nightjar_alerts.service.http.edge.errors import KINDS, NOT_FOUND, ProblemError
from nightjar_alerts.service.http.formats import JSON_TYPE
from nightjar_alerts.service.http.lifecycle import Service, get_service
from nightjar_alerts.service.registry.serving import ServedModel

pages = APIRouter(include_in_schema=False)
problems = APIRouter(include_in_schema=False)


@pages.get("/openapi.json")
async def document(request: Request) -> Response:
    """Return the OpenAPI document."""
    return Response(_encoded(request.app), media_type=JSON_TYPE)


@lru_cache(maxsize=4)
def _encoded(app: FastAPI) -> bytes:
    return orjson.dumps(app.openapi())


@problems.get("/problems/{slug}")
async def problem(slug: str) -> Response:
    """Describe a problem type."""
    kind = KINDS.get(slug)
    if kind is None:
        raise ProblemError(NOT_FOUND, "unknown problem type")
    content = {"type": kind.type, "title": kind.title, "status": kind.status, "meaning": kind.meaning}
    return Response(orjson.dumps(content), media_type=JSON_TYPE)


models_router = APIRouter()


@models_router.get(
    "/v1/models",
    summary="List the models",
    response_class=Response,
    responses={
        200: openapi.reply(ModelsReply, "All served models."),
        **openapi.problems(errors.OVERLOADED, errors.INTERNAL, errors.UNAVAILABLE),
    },
)
async def list_models(request: Request) -> Response:
    """Return name, version, hash, classes, bands, limits, metadata columns, scores and calibration of each model."""
    service = get_service(request)
    content = ModelsReply(models=[_describe(service, model) for model in service.served])
    return Response(content.model_dump_json(by_alias=True), media_type=JSON_TYPE)


@models_router.get(
    "/v1/models/{model}",
    summary="Describe one model",
    response_class=Response,
    responses={
        200: openapi.reply(ClassifierDescription, "The model of this name."),
        **openapi.problems(errors.NOT_FOUND, errors.OVERLOADED, errors.INTERNAL, errors.UNAVAILABLE),
    },
    openapi_extra={
        "parameters": [
            {
                "name": "model",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "minLength": 1},
                "description": "`name`, `name@1.2.3` or an alias",
            }
        ]
    },
)
async def get_model(request: Request) -> Response:
    """Return the model of a name, an exact version or an alias."""
    service = get_service(request)
    content = _describe(service, service.select_model(request.path_params["model"]).model)
    return Response(content.model_dump_json(by_alias=True), media_type=JSON_TYPE)


def _describe(service: Service, served: ServedModel) -> ClassifierDescription:
    aliases = service.models.router.aliases_of(served.reference)
    return describe(served.bundle, served.provider, aliases)


probes = APIRouter()

UNAVAILABLE = openapi.problems(errors.UNAVAILABLE)


class HealthStatus(BaseModel):
    """Health of the service."""

    status: Literal["alive", "started"]


class ReadyReply(BaseModel):
    """Served models, and bundles that cannot be loaded, whose predecessors stay served."""

    status: Literal["ready"]
    models: list[str] = Field(description="served models as `name@version`")
    not_loaded: list[str] = Field(description="bundles that cannot be loaded; the admin API has the reasons")


@probes.get("/healthz", summary="Liveness", responses=UNAVAILABLE)
async def healthz(request: Request) -> HealthStatus:
    """Return whether the process is alive: the event loop responds and the inference engine is running."""
    service = get_service(request)
    if not service.alive:
        raise service.not_ready()
    return HealthStatus(status="alive")


@probes.get("/readyz", summary="Readiness", responses=UNAVAILABLE)
async def readyz(request: Request) -> ReadyReply:
    """Return whether the service accepts requests: it is not starting, draining or failed."""
    service = get_service(request)
    if service.unready:
        raise service.not_ready()
    models = service.models
    served = [str(model.reference) for model in models.served]
    failed = [str(failure.reference or failure.path.name) for failure in models.failures]
    return ReadyReply(status="ready", models=served, not_loaded=failed)


@probes.get("/startupz", summary="Startup", responses=UNAVAILABLE)
async def startupz(request: Request) -> HealthStatus:
    """Return whether the models are loaded, verified and warmed up."""
    service = get_service(request)
    if not service.started:
        raise service.not_ready()
    return HealthStatus(status="started")


@probes.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request) -> Response:
    """Return all metrics in the Prometheus text format."""
    text = await asyncio.to_thread(get_service(request).metrics.render)  # takes milliseconds
    return Response(text, media_type=CONTENT_TYPE_LATEST)
