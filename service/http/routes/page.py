"""Routes of the web page at ``/``, of the API reference at ``/docs`` and of the live view at ``/live``."""

from fastapi import APIRouter, Request, Response

from nightjar_alerts.service.http.edge.errors import NOT_FOUND, ProblemError
from nightjar_alerts.service.pages import FILES, POLICY, read_page_file

router = APIRouter(include_in_schema=False)


def _reply(request: Request, name: str) -> Response:
    """Return a file, compressed if the client accepts it, or 304 if the client has it cached."""
    file = read_page_file(name)
    headers = {
        "Cache-Control": "no-cache",  # revalidate
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
