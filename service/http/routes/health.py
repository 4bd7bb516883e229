"""Probes and metrics. None of them takes a lock or a thread that inference needs, so load cannot fail a probe."""

import asyncio
from typing import Literal

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from service.http import errors, openapi
from service.http.lifecycle import State, service_of

router = APIRouter()

UNAVAILABLE = openapi.problems(errors.UNAVAILABLE)


class Fine(BaseModel):
    """The answer of a probe that finds nothing wrong."""

    status: Literal["alive", "ready", "started"]


@router.get("/healthz", summary="Liveness", responses=UNAVAILABLE)
async def healthz(request: Request) -> Fine:
    """Whether this process works: the event loop answers, no inference thread has died, no run hangs."""
    service = service_of(request)
    if not service.alive:
        raise service.not_ready()
    return Fine(status="alive")


@router.get("/readyz", summary="Readiness", responses=UNAVAILABLE)
async def readyz(request: Request) -> Fine:
    """Whether to send requests here: no while starting, draining or failed."""
    service = service_of(request)
    if service.state is not State.READY:
        raise service.not_ready()
    return Fine(status="ready")


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
