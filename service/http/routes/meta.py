"""Routes for documentation, problem types, models, probes and metrics.

``/`` redirects to ``/docs``, the API reference. It is generated from the OpenAPI document and needs no script, while
Swagger's page loads one from a content network, which an isolated observatory cannot reach.

Probes take no lock and no thread that inference needs, so they do not fail under load.
"""

import asyncio
from functools import lru_cache
from html import escape
from typing import Any, Literal

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse, RedirectResponse

from nightjar_alerts.service.answers.models import ClassifierDescription, ModelsReply, describe
from nightjar_alerts.service.http import openapi
from nightjar_alerts.service.http.edge import errors
from nightjar_alerts.service.http.edge.errors import KINDS, NOT_FOUND, ProblemError
from nightjar_alerts.service.http.formats import JSON_TYPE
from nightjar_alerts.service.http.lifecycle import Service, get_service
from nightjar_alerts.service.registry.serving import ServedModel

pages = APIRouter(include_in_schema=False)
problems = APIRouter(include_in_schema=False)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}
h2{border-top:1px solid #8884;padding-top:1rem;margin-top:2rem}
code,pre{font:.875rem ui-monospace,monospace}
pre{background:#8881;padding:.75rem;overflow:auto;border-radius:.3rem}
td,th{text-align:left;vertical-align:top;padding:.15rem 1rem .15rem 0}
th{white-space:nowrap}
summary{cursor:pointer}
.method{font-weight:600}
"""


@pages.get("/")
async def home(request: Request) -> Response:
    """Redirect to the API docs."""
    return RedirectResponse(request.scope.get("root_path", "") + "/docs")


@pages.get("/docs")
async def docs(request: Request) -> Response:
    """Return the API reference."""
    return HTMLResponse(_render(request.app)[0], headers={"Content-Security-Policy": _POLICY})


@pages.get("/openapi.json")
async def document(request: Request) -> Response:
    """Return the OpenAPI document."""
    return Response(_render(request.app)[1], media_type=JSON_TYPE)


@lru_cache(maxsize=4)
def _render(app: FastAPI) -> tuple[bytes, bytes]:
    """Encode the page and the document once."""
    return _page(app.openapi()).encode(), orjson.dumps(app.openapi())


@problems.get("/problems/{slug}")
async def problem(slug: str) -> Response:
    """Describe a problem type."""
    kind = KINDS.get(slug)
    if kind is None:
        raise ProblemError(NOT_FOUND, "unknown problem type")
    content = {"type": kind.type, "title": kind.title, "status": kind.status, "meaning": kind.meaning}
    return Response(orjson.dumps(content), media_type=JSON_TYPE)


def _page(document: dict[str, Any]) -> str:
    info = document["info"]
    parts = [
        f"<h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>",
        f"<p>{_text(info['description'])}</p>",
        '<p>For programs: <a href="openapi.json">openapi.json</a>. This service: <a href="v1/models">model</a>, '
        '<a href="metrics">metrics</a>, <a href="readyz">readiness</a>.</p>',
        *(_operation(*operation) for operation in openapi.operations(document)),
        "<h2>Problems</h2>",
        _table((f"{kind.status} {kind.title}", kind.meaning) for kind in errors.KINDS.values()),
        "<h2>Schemas</h2>",
        *(_details(name, schema) for name, schema in document["components"]["schemas"].items()),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(info["title"])}'
    body = "\n".join(parts)
    return (
        f'<!doctype html><html lang="en"><head>{head}</title><style>{_STYLE}</style></head><body>{body}</body></html>'
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [
        f'<h2><span class="method">{method}</span> <code>{escape(path)}</code></h2>',
        f"<p><b>{escape(operation['summary'])}.</b> {_text(operation['description'])}</p>",
    ]
    if parameters := operation.get("parameters"):
        parts.append(_table((item["name"], item.get("description", "")) for item in parameters))
    for media_type, body in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Body: <code>{escape(media_type)}</code></p>")
        if example := body.get("example"):
            parts.append(f"<pre>{_json(example)}</pre>")
    parts.append(_table((status, response["description"]) for status, response in operation["responses"].items()))
    return "\n".join(parts)


def _table(rows: Any) -> str:
    cells = "".join(f"<tr><th>{escape(str(left))}</th><td>{_text(right)}</td></tr>" for left, right in rows)
    return f"<table>{cells}</table>"


def _details(name: str, schema: dict[str, Any]) -> str:
    return f"<details><summary><code>{escape(name)}</code></summary><pre>{_json(schema)}</pre></details>"


def _json(value: object) -> str:
    return escape(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _text(value: str) -> str:
    """Escape text, with its `code` in code elements."""
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(escape(value).split("`")))


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
async def models(request: Request) -> Response:
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
async def model(request: Request) -> Response:
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
