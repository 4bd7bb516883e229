"""Problem documents: consistent format, without internal details of exceptions."""

import asyncio
import json

import pytest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from nightjar_alerts.core.errors import MAX_FIELD_ERRORS, FieldError
from nightjar_alerts.core.failures import InferenceFailed, OutOfMemory
from nightjar_alerts.service.answers.replies import field_errors
from nightjar_alerts.service.engine.errors import DeadlineExceeded, EngineClosed, EngineDead, Overloaded
from nightjar_alerts.service.http.edge.errors import (
    DEADLINE,
    INTERNAL,
    INVALID,
    KINDS,
    UNAUTHORIZED,
    Problem,
    ProblemError,
    to_problem,
)
from nightjar_alerts.service.http.edge.errors import problem_response as respond


def test_problem_kinds_have_distinct_slugs() -> None:
    """Problem types are unique; a status may have two types, such as 429 for rate limits and a full queue."""
    assert len({kind.slug for kind in KINDS.values()}) == len({kind.title for kind in KINDS.values()}) == len(KINDS)
    assert KINDS.keys() == {kind.slug for kind in KINDS.values()}
    assert all(400 <= kind.status < 600 and kind.title and kind.meaning for kind in KINDS.values())


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_problem_response_every_kind_has_the_same_members(kind: object) -> None:
    assert isinstance(kind, type(INTERNAL))
    response = respond(ProblemError(kind, limit=3, retry_after=1.2), "/v1/classify", "abc")
    problem = Problem.model_validate_json(bytes(response.body), strict=True)
    assert (problem.status, problem.type) == (response.status_code, f"/problems/{kind.slug}")
    assert (problem.instance, problem.request_id, problem.limit, problem.retry_after) == ("/v1/classify", "abc", 3, 2)
    assert response.media_type == "application/problem+json"


def test_problem_response_without_limit_omits_it() -> None:
    document = json.loads(bytes(respond(ProblemError(INVALID), "/", "").body))
    assert set(document) == {"type", "title", "status", "detail", "instance", "request_id", "errors"}


def test_problem_response_has_the_headers_of_its_kind() -> None:
    assert "Bearer" in respond(ProblemError(UNAUTHORIZED), "/", "").headers["www-authenticate"]
    assert respond(ProblemError(INVALID, retry_after=0.01), "/", "").headers["retry-after"] == "1"
    assert respond(ProblemError(INVALID, allow="POST"), "/", "").headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ProblemError(DEADLINE), 504),
        (HTTPException(404), 404),
        (HTTPException(405, headers={"Allow": "GET"}), 405),
        (HTTPException(418), 400),
        (HTTPException(507), 500),
        (RequestValidationError([{"loc": ("query", "x"), "type": "missing", "msg": ""}]), 422),
        (Overloaded(2.0), 429),
        (DeadlineExceeded(), 504),
        (EngineClosed(), 503),
        (EngineDead(), 503),
        (InferenceFailed(), 500),
        (OutOfMemory(), 503),
        (MemoryError("secret"), 503),
        (asyncio.CancelledError(), 503),
        (ZeroDivisionError("secret path /etc/passwd"), 500),
    ],
)
def test_to_problem_every_exception_has_a_kind(error: BaseException, status: int) -> None:
    problem = to_problem(error)
    assert problem.kind.status == status
    assert "secret" not in problem.detail


def test_to_problem_overload_has_retry_after() -> None:
    assert to_problem(Overloaded(7.4)).retry_after == 8  # rounded up, so that a client does not retry too early
    assert to_problem(EngineClosed()).retry_after


def test_field_errors_many_and_long_names_are_cut() -> None:
    fault = FieldError(pointer="/x", reason="missing", detail="")
    assert len(ProblemError(INVALID, errors=[fault] * 1000).errors) == MAX_FIELD_ERRORS
    (long,) = field_errors([{"loc": ("a/b~c" * 1000,), "type": "odd", "msg": "told by pydantic"}])
    assert len(long.pointer) < 200
    assert long.pointer.startswith("/a~1b~0c")
    assert (long.reason, long.detail) == ("odd", "told by pydantic")
