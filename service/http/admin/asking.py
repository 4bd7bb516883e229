"""What every request to the admin interface goes through: who it is, what it asks, and a line in the log about it."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import orjson
import structlog
from fastapi import Request, Response
from pydantic import BaseModel, ValidationError
from starlette.types import Receive, Scope, Send

from service.answers.fields import field_errors
from service.http import openapi
from service.http.edge.errors import (
    CONFLICT,
    INVALID,
    MALFORMED,
    NOT_FOUND,
    TIMEOUT,
    TOO_LARGE,
    UNAUTHORIZED,
    ProblemError,
)
from service.http.edge.middleware import Gate
from service.http.lifecycle import service_of
from service.registry.load import Refused
from service.registry.repository import ModelRepository
from service.registry.routing import UnknownModel
from service.settings import is_loopback

FormT = TypeVar("FormT", bound=BaseModel)
T = TypeVar("T")

MOST_BYTES = 16 * 1024

audit = structlog.get_logger("audit")


class AdminGate(Gate):
    """Lets in who shows a known key. Without keys, which only this machine's own users reach, no web page gets in.

    A browser would send a page's request to a port of its own machine; it says so in the header ``Origin``, or, where
    the page's own name was made to lead to this machine (DNS rebinding), in ``Host``.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            scope.setdefault("state", {})["client"] = self.keys.holder(scope)
            headers, by_socket = dict(scope["headers"]), scope["server"] is None or scope["server"][1] is None
            strange = b"origin" in headers or not (by_socket or _is_this_machine(headers.get(b"host", b"")))
            if not self.keys and strange:
                raise ProblemError(UNAUTHORIZED, "requests of web pages are refused")
        await self.app(scope, receive, send)


def _is_this_machine(host: bytes) -> bool:
    """Whether a Host header names loopback, with any port."""
    name = host.decode("latin-1").lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    return is_loopback(name)


async def read(request: Request, form: type[FormT]) -> FormT:
    """What the body asks; an empty one asks nothing in particular. Raises ProblemError."""
    data = await _body(request)
    try:
        return form.model_validate(orjson.loads(data) if data else {})
    except orjson.JSONDecodeError:
        raise ProblemError(MALFORMED, "the body is not JSON") from None
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise ProblemError(INVALID, errors=field_errors(found)) from None


async def _body(request: Request) -> bytes:
    data, seconds = b"", service_of(request).settings.body_timeout
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                data += chunk
                if len(data) > MOST_BYTES:
                    raise ProblemError(TOO_LARGE, f"the body is longer than {MOST_BYTES} bytes", limit=MOST_BYTES)
    except TimeoutError:
        raise ProblemError(TIMEOUT, f"the body did not arrive within {seconds:g} s") from None
    return data


def models_of(request: Request) -> ModelRepository:
    """The models, to be changed. Raises ProblemError (503) until the service has started."""
    service = service_of(request)
    if not service.started:
        raise service.not_ready()
    return service.models


async def change(request: Request, action: str, work: Awaitable[T], **what: object) -> T:
    """Make a change and say so in the log, whatever becomes of it.

    Raises
    ------
    ProblemError
        404 for a model that is not there, 409 for a change that is refused.
    """
    by = {"key": getattr(request.state, "client", ""), "peer": request.client.host if request.client else "socket"}
    try:
        result = await work
    except UnknownModel as error:
        audit.warning("admin change refused", action=action, **what, **by, reason=str(error))
        raise ProblemError(NOT_FOUND, str(error)) from None
    except Refused as error:
        audit.warning("admin change refused", action=action, **what, **by, reason=str(error))
        raise ProblemError(CONFLICT, str(error)) from None
    except BaseException as error:
        audit.error("admin change failed", action=action, **what, **by, reason=type(error).__name__)
        raise
    audit.info("admin change", action=action, **what, **by)
    return result


def json_reply(content: BaseModel) -> Response:
    """A model as a reply."""
    return Response(content.model_dump_json(), media_type=openapi.JSON_TYPE)
