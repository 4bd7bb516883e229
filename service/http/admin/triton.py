"""Triton's model repository extension, where its clients look for it: ``/v2/repository``."""

import orjson
from fastapi import APIRouter, Request, Response

from service.http import openapi
from service.http.admin.asking import change, models_of, read
from service.http.admin.forms import IndexRequest, LoadRequest, UnloadRequest
from service.http.admin.listing import index
from service.http.admin.routes import model_name
from service.http.lifecycle import service_of
from service.registry.routing import Reference

router = APIRouter(prefix="/v2/repository", include_in_schema=False)


@router.post("/index")
async def repository_index(request: Request) -> Response:
    """Every version of every model, or with ``ready`` those that are served."""
    asked = await read(request, IndexRequest)
    entries = [entry.model_dump() for entry in index(service_of(request).models, asked.ready)]
    return Response(orjson.dumps(entries), media_type=openapi.JSON_TYPE)


@router.post("/models/{name}/load")
async def load(request: Request, name: str) -> Response:
    """Load the newest version. A configuration or files in the request are refused: models come from the repository."""
    await read(request, LoadRequest)
    wanted = Reference(model_name(name))
    await change(request, "load", models_of(request).changes.load(wanted), model=str(wanted))
    return Response()


@router.post("/models/{name}/unload")
async def unload(request: Request, name: str) -> Response:
    """Unload a model, in all its versions."""
    await read(request, UnloadRequest)
    wanted = Reference(model_name(name))
    await change(request, "unload", models_of(request).changes.unload(wanted), model=str(wanted))
    return Response()
