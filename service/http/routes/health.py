"""Probes and metrics. None of them takes a lock or a thread that inference needs, so load cannot fail a probe."""

import asyncio
from typing import Literal

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from service.http import openapi
from service.http.edge import errors
from service.http.lifecycle import service_of

router = APIRouter()

UNAVAILABLE = openapi.problems(errors.UNAVAILABLE)


class Fine(BaseModel):
    """The answer of a probe that finds nothing wrong."""

    status: Literal["alive", "started"]


class ReadyReply(BaseModel):
    """What is served. A bundle of the repository that cannot be loaded is named; what it replaces goes on answering."""

    status: Literal["ready"]
    models: list[str] = Field(description="every model that answers, as `name@version`")
    not_loaded: list[str] = Field(description="bundles that cannot be served; the admin interface says why")


@router.get("/healthz", summary="Liveness", responses=UNAVAILABLE)
async def healthz(request: Request) -> Fine:
    """Whether this process works: the event loop answers and the inference engine lives."""
    service = service_of(request)
    if not service.alive:
        raise service.not_ready()
    return Fine(status="alive")


@router.get("/readyz", summary="Readiness", responses=UNAVAILABLE)
async def readyz(request: Request) -> ReadyReply:
    """Whether to send requests here: no while starting, draining or failed, and while an inference run hangs."""
    service = service_of(request)
    if service.unready:
        raise service.not_ready()
    models = service.models
    served = [str(model.reference) for model in models.served]
    failed = [str(failure.reference or failure.path.name) for failure in models.failures]
    return ReadyReply(status="ready", models=served, not_loaded=failed)


@router.get("/startupz", summary="Startup", responses=UNAVAILABLE)
async def startupz(request: Request) -> Fine:
    """Whether the model has been loaded, verified and warmed up."""
    service = service_of(request)
    if not service.started:
        raise service.not_ready()
    return Fine(status="started")


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request) -> Response:
    """Every metric in the text format."""
    text = await asyncio.to_thread(service_of(request).metrics.render)  # milliseconds: not on the event loop
    return Response(text, media_type=CONTENT_TYPE_LATEST)
