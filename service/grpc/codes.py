"""Status codes of gRPC for the errors of HTTP, and the metadata of an error."""

from collections.abc import Mapping
from typing import Final

from nightjar_alerts.service.http.edge import errors
from nightjar_alerts.service.http.edge.errors import ProblemError, ProblemKind, one_line

MAX_DETAIL: Final = 1000
"""Maximum length of a status message, as many clients accept 8 kB of metadata."""

CODES: Final[Mapping[ProblemKind, str]] = {
    errors.MALFORMED: "INVALID_ARGUMENT",
    errors.UNAUTHORIZED: "UNAUTHENTICATED",
    errors.FORBIDDEN: "PERMISSION_DENIED",
    errors.NOT_FOUND: "NOT_FOUND",
    errors.NOT_ALLOWED: "UNIMPLEMENTED",
    errors.NOT_ACCEPTABLE: "INVALID_ARGUMENT",
    errors.TIMEOUT: "DEADLINE_EXCEEDED",
    errors.CONFLICT: "FAILED_PRECONDITION",
    errors.TOO_LARGE: "INVALID_ARGUMENT",
    errors.UNSUPPORTED: "INVALID_ARGUMENT",
    errors.INVALID: "INVALID_ARGUMENT",
    errors.RATE_LIMITED: "RESOURCE_EXHAUSTED",
    errors.OVERLOADED: "RESOURCE_EXHAUSTED",
    errors.HEADERS_TOO_LARGE: "RESOURCE_EXHAUSTED",
    errors.INTERNAL: "INTERNAL",
    errors.NOT_IMPLEMENTED: "UNIMPLEMENTED",
    errors.UNAVAILABLE: "UNAVAILABLE",
    errors.DEADLINE: "DEADLINE_EXCEEDED",
}
"""Name of the status code of each kind of problem; gRPC itself answers a message that is too large, the same way."""


def error_message(problem: ProblemError) -> str:
    """Return the status message of a problem: the invalid values with their JSON pointers, else the detail."""
    return one_line(problem)[:MAX_DETAIL]


def error_metadata(problem: ProblemError) -> list[tuple[str, str]]:
    """Return the trailing metadata of a problem: its type, and when to retry.

    ``retry-after`` is in seconds, as in HTTP; ``grpc-retry-pushback-ms`` is obeyed by the retry policy of gRPC clients.
    """
    metadata = [("problem", problem.kind.type)]
    if problem.retry_after is not None:
        milliseconds = 1000 * problem.retry_after
        metadata += [("retry-after", str(problem.retry_after)), ("grpc-retry-pushback-ms", str(milliseconds))]
    return metadata
