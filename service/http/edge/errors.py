"""Every problem the service answers with, in one shape: RFC 9457 ``application/problem+json``.

A problem has a kind (the table below; its ``type`` is an address at which this service describes the kind), a detail
for people, and ``errors`` that point at the fields at fault with a machine-readable reason. The text of an exception
raised by a library never reaches a client.
"""

from asyncio import CancelledError
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import NoReturn

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from nightjar_alerts.service.answers.replies import MAX_FIELD_ERRORS, FieldError, field_errors
from nightjar_alerts.service.engine.batch import DeadlineExceeded, EngineClosed, EngineDead, Overloaded, RunAborted

MEDIA_TYPE = "application/problem+json"
OPEN_INFERENCE = "/v2"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of problem: its slug, HTTP status, title and what it means."""

    slug: str
    status: int
    title: str
    meaning: str

    @property
    def type(self) -> str:
        """Address of the description, relative to the service."""
        return f"/problems/{self.slug}"


MALFORMED = Kind("malformed", 400, "Malformed request", "The body is empty, cut short or not what its type says.")
UNAUTHORIZED = Kind("unauthorized", 401, "API key required", "Send a known key as a bearer token or as X-API-Key.")
NOT_FOUND = Kind("not-found", 404, "Not found", "No such resource; /docs lists the routes.")
NOT_ALLOWED = Kind("method-not-allowed", 405, "Method not allowed", "The Allow header lists the allowed methods.")
NOT_ACCEPTABLE = Kind("not-acceptable", 406, "Not acceptable", "The Accept header names no format of this interface.")
TIMEOUT = Kind("request-timeout", 408, "Request timeout", "The request did not arrive in the time allowed.")
CONFLICT = Kind("conflict", 409, "Conflict", "The state of the models, or the bundle, does not allow this.")
TOO_LARGE = Kind("too-large", 413, "Request too large", "More bytes, curves or packets than this service accepts.")
UNSUPPORTED = Kind(
    "unsupported-media-type", 415, "Unsupported media type", "Unsupported Content-Type or Content-Encoding."
)
INVALID = Kind("invalid", 422, "Invalid request", "Readable, but a value breaks a rule; errors points at each field.")
RATE_LIMITED = Kind("rate-limited", 429, "Rate limit exceeded", "Rate limit exceeded for this API key.")
OVERLOADED = Kind("overloaded", 429, "Too much queued work", "Retry after the seconds in Retry-After.")
HEADERS_TOO_LARGE = Kind("headers-too-large", 431, "Headers too large", "The request line and headers are too long.")
INTERNAL = Kind("internal", 500, "Internal error", "The log has the details under the request id.")
NOT_IMPLEMENTED = Kind("not-implemented", 501, "Not implemented", "A transfer coding that the service does not read.")
UNAVAILABLE = Kind("unavailable", 503, "Not ready", "Starting, draining or failed; try again or another replica.")
DEADLINE = Kind("deadline", 504, "Deadline passed", "The answer could not be given before the request's deadline.")

KINDS: dict[str, Kind] = {
    kind.slug: kind
    for kind in (
        MALFORMED, UNAUTHORIZED, NOT_FOUND, NOT_ALLOWED, NOT_ACCEPTABLE, TIMEOUT, CONFLICT, TOO_LARGE, UNSUPPORTED,
        INVALID, RATE_LIMITED, OVERLOADED, HEADERS_TOO_LARGE, INTERNAL, NOT_IMPLEMENTED, UNAVAILABLE, DEADLINE,
    )
}  # fmt: skip
_BY_STATUS = {kind.status: kind for kind in KINDS.values()}

RETRY_AFTER_UNAVAILABLE = 5


class Problem(BaseModel):
    """An RFC 9457 problem document."""

    type: str
    title: str
    status: int
    detail: str
    instance: str = Field(description="path of the request")
    request_id: str = Field(description="also in the X-Request-ID header and in the service's log")
    errors: list[FieldError] = Field(description=f"values at fault, at most {MAX_FIELD_ERRORS}")
    limit: int | None = Field(None, description="the limit that was exceeded")
    retry_after: int | None = Field(None, description="seconds, as in the Retry-After header")
    error: str | None = Field(None, description="under /v2 only, where clients read this member: errors, or the detail")


class ProblemError(Exception):
    """Raised anywhere in request handling; answered as a problem document."""

    def __init__(
        self,
        kind: Kind,
        detail: str | None = None,
        *,
        errors: Iterable[FieldError] = (),
        limit: int | None = None,
        retry_after: float | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(detail or kind.meaning)
        self.kind = kind
        self.detail = detail or kind.meaning
        self.errors = tuple(errors)[:MAX_FIELD_ERRORS]
        self.limit = limit
        self.retry_after = None if retry_after is None else max(1, ceil(retry_after))
        self.allow = allow


def problem_of(error: BaseException) -> ProblemError:
    """Return the problem that stands for an exception; an unexpected one is an internal error and tells nothing."""
    match error:
        case ProblemError():
            return error
        case RequestValidationError():
            return ProblemError(INVALID, errors=field_errors(error.errors()))
        case HTTPException():
            return ProblemError(_kind_of(error.status_code), allow=_methods((error.headers or {}).get("Allow")))
        case Overloaded():
            return ProblemError(OVERLOADED, retry_after=error.retry_after)
        case DeadlineExceeded():
            return ProblemError(DEADLINE)
        case MemoryError():
            detail = "there was not enough memory for this request"
            return ProblemError(UNAVAILABLE, detail, retry_after=RETRY_AFTER_UNAVAILABLE)
        case RunAborted():
            return ProblemError(UNAVAILABLE, str(error), retry_after=RETRY_AFTER_UNAVAILABLE)
        case EngineClosed() | EngineDead():
            return ProblemError(UNAVAILABLE, retry_after=RETRY_AFTER_UNAVAILABLE)
        case CancelledError():  # nothing cancels a request but a shutdown whose patience has run out
            detail = "the service stopped before this request was answered"
            return ProblemError(UNAVAILABLE, detail, retry_after=RETRY_AFTER_UNAVAILABLE)
    return ProblemError(INTERNAL)


async def raise_problem(request: Request, error: Exception) -> NoReturn:
    """Leave the reply to the outermost middleware; an exception handler."""
    raise problem_of(error) from error


async def reraise(request: Request, error: Exception) -> NoReturn:
    """Leave the reply to the outermost middleware, and the exception to its log."""
    raise error


def _methods(allow: str | None) -> str | None:
    """Add the methods that the middleware answers to those of a route."""
    if allow is None:
        return None
    methods = {method.strip() for method in allow.split(",")} | {"OPTIONS"}
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


def _kind_of(status: int) -> Kind:
    """Return the kind for a status of the framework's; an unknown fault of the client is a malformed request."""
    return _BY_STATUS.get(status) or (MALFORMED if status < 500 else INTERNAL)


def problem_response(error: ProblemError, path: str, request_id: str, root_path: str = "") -> Response:
    """Render a problem document with the headers its kind calls for."""
    document = orjson.dumps(problem_document(error, path, request_id, root_path))
    return Response(document, error.kind.status, _headers(error), MEDIA_TYPE)


def problem_document(error: ProblemError, path: str, request_id: str, root_path: str = "") -> dict[str, object]:
    """Return the fields of a :class:`Problem`; ``root_path`` is the prefix under which a proxy serves the service."""
    problem: dict[str, object] = {
        "type": root_path + error.kind.type,
        "title": error.kind.title,
        "status": error.kind.status,
        "detail": error.detail,
        "instance": path,
        "request_id": request_id,
        "errors": [field.model_dump() for field in error.errors],
    }
    problem |= {name: value for name in ("limit", "retry_after") if (value := getattr(error, name)) is not None}
    if path.removeprefix(root_path).startswith(OPEN_INFERENCE):
        problem["error"] = _in_one_line(error)
    return problem


def _in_one_line(error: ProblemError) -> str:
    """Return the text that clients of the Open Inference Protocol show: the values at fault, if any are."""
    return "; ".join(f"{field.pointer}: {field.detail}" for field in error.errors) or error.detail


def _headers(error: ProblemError) -> dict[str, str]:
    headers = {"Cache-Control": "no-store"}
    if error.kind is UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="nightjar"'
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if error.allow is not None:
        headers["Allow"] = error.allow
    return headers
