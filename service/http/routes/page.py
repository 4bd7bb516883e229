"""Routes of the web page at ``/`` and of the API reference at ``/docs``.

Both are static files of this package, without a build step and without requests to other hosts. They are sent under a
content security policy that allows neither inline scripts nor connections elsewhere, and every address in them is
relative, so that they work under a path prefix.
"""

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from fastapi import APIRouter, Request, Response

from nightjar_alerts.service.http.edge.errors import NOT_FOUND, ProblemError

_SERVICE = Path(__file__).resolve().parents[2]
_FOLDER = _SERVICE / "http" / "page"
_TYPES: Final = {
    ".avro": "application/octet-stream",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FILES: Final = {path.relative_to(_FOLDER).as_posix(): path for path in _FOLDER.rglob("*") if path.suffix in _TYPES} | {
    f"samples/{path.name}": path for path in (_SERVICE / "samples").glob("*.avro")
}
"""Every file that is served, by its address below ``/page``."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

router = APIRouter(include_in_schema=False)


class _File(NamedTuple):
    content: bytes
    compressed: bytes
    media_type: str
    etag: str


@cache
def _read(name: str) -> _File:
    path = FILES[name]
    content = path.read_bytes()
    compressed = gzip.compress(content, mtime=0)
    return _File(content, compressed, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:24]}"')


def _reply(request: Request, name: str) -> Response:
    """Return a file, compressed where the client takes that, or 304 where the client has it."""
    file = _read(name)
    headers = {
        "Cache-Control": "no-cache",  # ask whether it has changed
        "Content-Security-Policy": POLICY,
        "ETag": file.etag,
        "Referrer-Policy": "no-referrer",
        "Vary": "Accept-Encoding",
    }
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", "") and len(file.compressed) < len(file.content):
        return Response(file.compressed, headers=headers | {"Content-Encoding": "gzip"}, media_type=file.media_type)
    return Response(file.content, headers=headers, media_type=file.media_type)


@router.get("/")
def home(request: Request) -> Response:
    """Return the page that classifies one object."""
    return _reply(request, "index.html")


@router.get("/docs")
def docs(request: Request) -> Response:
    """Return the API reference."""
    return _reply(request, "docs.html")


@router.get("/live")
def live(request: Request) -> Response:
    """Return the live view, which reads ``/live/events``."""
    return _reply(request, "live.html")


@router.get("/page/{name:path}")
def file(request: Request) -> Response:
    """Return a file of the pages."""
    name = request.path_params["name"]
    if name not in FILES or name.endswith(".html"):  # links in pages are relative to / and /docs
        raise ProblemError(NOT_FOUND)
    return _reply(request, name)
