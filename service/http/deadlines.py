"""Deadlines of requests: the header ``Nightjar-Deadline-Ms``, and the maximum of a deadline."""

import re
from typing import Final

from starlette.requests import Request

from nightjar_alerts.service.http.edge.errors import invalid_field
from nightjar_alerts.service.settings import Settings

DEADLINE_HEADER: Final = "Nightjar-Deadline-Ms"
_MILLISECONDS = re.compile(r"[1-9][0-9]{0,9}")


def check_deadline(deadline_ms: int | None, pointer: str, settings: Settings) -> None:
    """Raise ProblemError (422) for a deadline beyond the maximum."""
    if deadline_ms is not None and deadline_ms > settings.max_deadline_ms:
        raise invalid_field(pointer, "deadline_too_long", f"must be at most {settings.max_deadline_ms} milliseconds")


def read_deadline_header(request: Request, settings: Settings) -> int | None:
    """Return the deadline in the header of a request in milliseconds; None without. Raises ProblemError (422)."""
    values = request.headers.getlist(DEADLINE_HEADER)
    if not values:
        return None
    where = f"/headers/{DEADLINE_HEADER.lower()}"
    if len(values) > 1:
        raise invalid_field(where, "duplicate", "this header is given twice")
    if not _MILLISECONDS.fullmatch(values[0].strip()):
        raise invalid_field(where, "not_milliseconds", "must be a whole number of milliseconds")
    check_deadline(int(values[0]), where, settings)
    return int(values[0])
