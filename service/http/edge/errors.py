"""Error responses as problem documents (RFC 9457, ``application/problem+json``).

A problem has a kind (see the constants below; its ``type`` is the path of the description), a detail, and ``errors``
that point at the invalid fields, each with a machine-readable reason. Texts of exceptions of libraries are never sent
to clients.
"""

from asyncio import CancelledError
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, NoReturn

import msgspec
import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from nightjar_alerts.core.errors import MAX_FIELD_ERRORS, FieldError
from nightjar_alerts.core.failures import RunAborted
from nightjar_alerts.service.answers import replies
from nightjar_alerts.service.engine.errors import DeadlineExceeded, EngineClosed, EngineDead, Overloaded

MEDIA_TYPE = "application/problem+json"
OPEN_INFERENCE = "/v2"


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """Kind of a problem: slug, HTTP status, title and meaning."""

    slug: str
    status: int
    title: str
    meaning: str

    @property
    def type(self) -> str:
        """Path of the description."""
        return f"/problems/{self.slug}"


MALFORMED = ProblemKind("malformed", 400, "Malformed request", "The body is empty, truncated or invalid.")
UNAUTHORIZED = ProblemKind(
    "unauthorized", 401, "API key required", "Send a known key as a bearer token or as X-API-Key."
)
FORBIDDEN = ProblemKind(
    "forbidden", 403, "Forbidden", "Without API keys, other host names and pages of other sites are refused."
)
NOT_FOUND = ProblemKind("not-found", 404, "Not found", "No such resource; /docs lists the routes.")
NOT_ALLOWED = ProblemKind(
    "method-not-allowed", 405, "Method not allowed", "The Allow header lists the allowed methods."
)
NOT_ACCEPTABLE = ProblemKind(
    "not-acceptable", 406, "Not acceptable", "None of the formats in the Accept header is supported."
)
TIMEOUT = ProblemKind("request-timeout", 408, "Request timeout", "The request did not arrive within the time limit.")
CONFLICT = ProblemKind(
    "conflict", 409, "Conflict", "The state of the models, or the bundle, does not allow this change."
)
TOO_LARGE = ProblemKind(
    "too-large", 413, "Request too large", "More bytes, light curves or packets than the service accepts."
)
UNSUPPORTED = ProblemKind(
    "unsupported-media-type",
    415,
    "Unsupported media type",
    "Unsupported Content-Type, Content-Encoding or format of a table.",
)
INVALID = ProblemKind(
    "invalid", 422, "Invalid request", "A value in the request is invalid; `errors` lists the fields."
)
RATE_LIMITED = ProblemKind("rate-limited", 429, "Rate limit exceeded", "Rate limit exceeded for this API key.")
OVERLOADED = ProblemKind("overloaded", 429, "Too much queued work", "Retry after the seconds in Retry-After.")
HEADERS_TOO_LARGE = ProblemKind(
    "headers-too-large", 431, "Headers too large", "The request line and headers are too long."
)
INTERNAL = ProblemKind("internal", 500, "Internal error", "See the server log for this request ID.")
NOT_IMPLEMENTED = ProblemKind("not-implemented", 501, "Not implemented", "The Transfer-Encoding is not supported.")
UNAVAILABLE = ProblemKind(
    "unavailable",
    503,
    "Not ready",
    "Starting, draining or failed; retry later or use another replica.",
)
DEADLINE = ProblemKind("deadline", 504, "Deadline passed", "The request was not finished before its deadline.")

KINDS: dict[str, ProblemKind] = {
    kind.slug: kind
    for kind in (
        MALFORMED, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, NOT_ALLOWED, NOT_ACCEPTABLE, TIMEOUT, CONFLICT, TOO_LARGE,
        UNSUPPORTED, INVALID, RATE_LIMITED, OVERLOADED, HEADERS_TOO_LARGE, INTERNAL, NOT_IMPLEMENTED, UNAVAILABLE,
        DEADLINE,
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
    request_id: str = Field(description="also in the X-Request-ID header and in the server log")
    errors: list[replies.FieldError] = Field(description=f"invalid values, at most {MAX_FIELD_ERRORS}")
    limit: int | None = Field(None, description="the limit that was exceeded")
    retry_after: int | None = Field(None, description="seconds, as in the Retry-After header")
    question: dict[str, Any] | None = Field(
        None,
        description="for a table that can be read in two ways: the question, the option that answers it, its values",
    )
    error: str | None = Field(None, description="under /v2 only: message for clients of the protocol")


class ProblemError(Exception):
    """Error that is returned to the client as a problem document."""

    def __init__(
        self,
        kind: ProblemKind,
        detail: str | None = None,
        *,
        errors: Iterable[FieldError] = (),
        limit: int | None = None,
        retry_after: float | None = None,
        allow: str | None = None,
        question: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail or kind.meaning)
        self.kind = kind
        self.detail = detail or kind.meaning
        self.errors = tuple(errors)[:MAX_FIELD_ERRORS]
        self.limit = limit
        self.retry_after = None if retry_after is None else max(1, ceil(retry_after))
        self.allow = allow
        self.question = question


def invalid_field(pointer: str, reason: str, detail: str) -> ProblemError:
    """Return the problem (422) of one invalid field."""
    return ProblemError(INVALID, errors=[FieldError(pointer=pointer, reason=reason, detail=detail)])


def body_too_large(limit: int) -> ProblemError:
    """Return the problem (413) of a body of more than ``limit`` bytes."""
    return ProblemError(TOO_LARGE, f"the body is longer than {limit} bytes", limit=limit)


def to_problem(error: BaseException) -> ProblemError:
    """Convert an exception to a problem; an unexpected one becomes an internal error without details."""
    match error:
        case ProblemError():
            return error
        case RequestValidationError():
            return ProblemError(INVALID, errors=replies.field_errors(error.errors()))
        case HTTPException():
            kind = _BY_STATUS.get(error.status_code, MALFORMED if error.status_code < 500 else INTERNAL)
            return ProblemError(kind, allow=_allowed_methods((error.headers or {}).get("Allow")))
        case Overloaded():
            return ProblemError(OVERLOADED, retry_after=error.retry_after)
        case DeadlineExceeded():
            return ProblemError(DEADLINE)
        case MemoryError():
            detail = "not enough memory for this request"
            return ProblemError(UNAVAILABLE, detail, retry_after=RETRY_AFTER_UNAVAILABLE)
        case RunAborted():
            return ProblemError(UNAVAILABLE, str(error), retry_after=RETRY_AFTER_UNAVAILABLE)
        case EngineClosed() | EngineDead():
            return ProblemError(UNAVAILABLE, retry_after=RETRY_AFTER_UNAVAILABLE)
        case CancelledError():  # only a shutdown that reached its time limit cancels a request
            detail = "the service stopped before this request was finished"
            return ProblemError(UNAVAILABLE, detail, retry_after=RETRY_AFTER_UNAVAILABLE)
    return ProblemError(INTERNAL)


async def raise_problem(request: Request, error: Exception) -> NoReturn:
    """Handle an exception by raising its problem, which the outermost middleware returns."""
    raise to_problem(error) from error


async def reraise(request: Request, error: Exception) -> NoReturn:
    """Handle an exception by raising it again, for the outermost middleware to log and return."""
    raise error


def _allowed_methods(allow: str | None) -> str | None:
    """Add the methods that the middleware handles to those of the route."""
    if allow is None:
        return None
    methods = {method.strip() for method in allow.split(",")} | {"OPTIONS"}
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


def problem_response(error: ProblemError, path: str, request_id: str, root_path: str = "") -> Response:
    """Return a problem document with the headers of its kind."""
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
        "errors": [msgspec.structs.asdict(field) for field in error.errors],
    }
    problem |= {
        name: value for name in ("limit", "retry_after", "question") if (value := getattr(error, name)) is not None
    }
    if path.removeprefix(root_path).startswith(OPEN_INFERENCE):
        problem["error"] = one_line(error)
    return problem


def one_line(error: ProblemError) -> str:
    """Return the message for clients of the Open Inference Protocol: the invalid values, else the detail."""
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
