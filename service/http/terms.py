"""Under which terms a request is answered: until when, how urgently, and whose share of the engine it takes.

- A deadline comes as an option of the body or address, as ``Nightjar-Deadline-Ms``, or from a proxy that says when it
  will give up (``X-Envoy-Expected-Rq-Timeout-Ms``); the soonest counts, and the setting's where none is named.
- ``Priority: u=0`` to ``u=7`` is the urgency of RFC 9218, 3 where nothing is said. A step is a head start of a second
  in the queue, so the least urgent request is served too.
- Requests with the same API key share one place among those who wait; where no keys are asked for, those of one
  address do.
"""

import re
from collections.abc import Sequence

from fastapi import Request

from service.answers.fields import FieldError
from service.dataplane import AskOptions
from service.http.body.requests import check_deadline
from service.http.edge.errors import INVALID, ProblemError
from service.http.edge.keys import ANYBODY
from service.settings import Settings

DEADLINE_HEADER = "Nightjar-Deadline-Ms"
PROXY_HEADER = "X-Envoy-Expected-Rq-Timeout-Ms"
PRIORITY_HEADER = "Priority"

USUAL_URGENCY = 3
SECONDS_OF_A_STEP = 1.0

_MILLISECONDS = re.compile(r"[1-9][0-9]{0,9}")
_URGENCY = re.compile(r"(?:^|,)\s*u\s*=\s*([0-7])\s*(?=,|;|$)")


def terms_of(
    request: Request,
    settings: Settings,
    arrived: float,
    milliseconds: float | None = None,
    surveys: str | Sequence[str] = "none",
    urgency: int | None = None,
    fall_back: bool = False,
) -> AskOptions:
    """Terms of a request.

    Parameters
    ----------
    arrived : ``time.monotonic()`` seconds, from which deadlines count.
    milliseconds : deadline that its body or address names.
    urgency : that its body names; it counts more than the header.
    fall_back : whether another model may answer.

    Raises
    ------
    ProblemError
        422 for a deadline in a header that is none, or too long.
    """
    named = [given for given in (milliseconds, _header_deadline(request, settings)) if given is not None]
    allowed = min(named, default=settings.default_deadline_ms)
    proxy = request.headers.get(PROXY_HEADER, "")
    if _MILLISECONDS.fullmatch(proxy):
        allowed = min(allowed, int(proxy))
    steps = USUAL_URGENCY - (_header_urgency(request) if urgency is None else urgency)
    deadline = arrived + allowed / 1000
    return AskOptions(deadline, surveys, steps * SECONDS_OF_A_STEP, client_of(request), fall_back)


def client_of(request: Request) -> str:
    """Who asks, as the engine tells clients apart: by key, and by address where no keys are asked for."""
    client: str = getattr(request.state, "share", "")
    return client


def key_of(request: Request) -> str:
    """Name of the key that a request shows."""
    key: str = getattr(request.state, "key", ANYBODY)
    return key


def _header_deadline(request: Request, settings: Settings) -> int | None:
    value = request.headers.get(DEADLINE_HEADER)
    if value is None:
        return None
    pointer = f"/headers/{DEADLINE_HEADER.lower()}"
    if not _MILLISECONDS.fullmatch(value.strip()):
        fault = FieldError(pointer=pointer, reason="not_milliseconds", detail="must be a whole number of milliseconds")
        raise ProblemError(INVALID, errors=[fault])
    check_deadline(int(value), pointer, settings)
    return int(value)


def _header_urgency(request: Request) -> int:
    """What cannot be read is ignored, as RFC 9218 asks."""
    found = _URGENCY.search(request.headers.get(PRIORITY_HEADER, ""))
    return int(found.group(1)) if found else USUAL_URGENCY
