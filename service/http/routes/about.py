"""Pages for people: ``/`` leads to ``/docs``, a description of the interface that needs nothing from elsewhere.

The usual Swagger page loads its program from a content network; an observatory's service should not have to. This one
is written from the OpenAPI document, without a script.
"""

from functools import lru_cache
from html import escape
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.responses import HTMLResponse, RedirectResponse

from service.http import openapi
from service.http.edge import errors
from service.http.edge.errors import KINDS, NOT_FOUND, ProblemError

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
async def home() -> Response:
    """Lead to the description of the interface."""
    return RedirectResponse("/docs")


@pages.get("/docs")
async def docs(request: Request) -> Response:
    """Describe the interface as a page."""
    return HTMLResponse(_described(request.app)[0], headers={"Content-Security-Policy": _POLICY})


@pages.get("/openapi.json")
async def document(request: Request) -> Response:
    """Describe the interface for programs."""
    return Response(_described(request.app)[1], media_type=openapi.JSON_TYPE)


@lru_cache(maxsize=4)
def _described(app: FastAPI) -> tuple[bytes, bytes]:
    """The page and the document as bytes, made once: anybody may ask for them, as often as they like."""
    return _page(app.openapi()).encode(), orjson.dumps(app.openapi())


@problems.get("/problems/{slug}")
async def problem(slug: str) -> Response:
    """Describe the kind of problem that a ``type`` points at."""
    kind = KINDS.get(slug)
    if kind is None:
        raise ProblemError(NOT_FOUND, "there is no kind of problem of this name")
    content = {"type": kind.type, "title": kind.title, "status": kind.status, "meaning": kind.meaning}
    return Response(orjson.dumps(content), media_type=openapi.JSON_TYPE)


def _page(document: dict[str, Any]) -> str:
    info = document["info"]
    parts = [
        f"<h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>",
        f"<p>{_text(info['description'])}</p>",
        '<p>For programs: <a href="/openapi.json">openapi.json</a>. This service: <a href="/v1/models">model</a>, '
        '<a href="/metrics">metrics</a>, <a href="/readyz">readiness</a>.</p>',
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
        parts.append(_table((f"?{item['name']}", item["schema"].get("description", "")) for item in parameters))
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
