"""The way of a JSON request for light curves, whatever is asked about them: receive, parse, ask, write."""

from collections.abc import Callable, Sequence, Sized
from functools import partial
from time import monotonic
from typing import TypeVar

from fastapi import Request, Response

from service.dataplane import AskOptions, DataPlane, Outcome
from service.http import errors, openapi
from service.http.errors import ProblemError
from service.http.fields import FieldError
from service.http.forms import ForecastOptions
from service.http.lifecycle import Service, service_of
from service.http.receive import Body, media_type, unless_gone
from service.http.requests import Asked, InvalidCurve, parse_json
from service.http.timing import Stopwatch

ItemT = TypeVar("ItemT", bound=Sized)
OptionsT = TypeVar("OptionsT", bound=ForecastOptions)

INLINE_BYTES = 64 * 1024  # parsing more than this would keep the event loop from everybody else for over a millisecond
SURVEY = "none"


async def answer(
    request: Request,
    plane: DataPlane[ItemT],
    read: Callable[[object], Asked[ItemT, OptionsT]],
    write: Callable[[Asked[ItemT, OptionsT], Sequence[Outcome]], bytes],
) -> Response:
    """Answer one request.

    Parameters
    ----------
    read : makes items of a parsed body, or raises ProblemError.
    write : makes a reply of the items and what became of them.
    """
    arrived, service = monotonic(), service_of(request)
    settings = service.settings
    media_type(request, (openapi.JSON_TYPE,))
    with Body(request, service.budget) as body:
        data = await body.read(settings.max_json_bytes, settings.body_timeout)
        stopwatch = Stopwatch(service.metrics)
        asked = await _parse(data, read, service, stopwatch)
        deadline = arrived + (asked.options.deadline_ms or settings.default_deadline_ms) / 1000
        outcomes = await unless_gone(request, plane.ask(asked.items, AskOptions(deadline, SURVEY)))
    if asked.bare and outcomes[0].status == "failed":  # a request that is a single curve has no other answer to give
        raise ProblemError(errors.INTERNAL, outcomes[0].detail)
    stopwatch.restart()
    content = write(asked, outcomes)
    stopwatch.lap("encode")
    return Response(content, media_type=openapi.JSON_TYPE, headers={"Server-Timing": stopwatch.header(outcomes)})


async def _parse(
    data: bytes, read: Callable[[object], Asked[ItemT, OptionsT]], service: Service, stopwatch: Stopwatch
) -> Asked[ItemT, OptionsT]:
    if len(data) <= INLINE_BYTES:
        return _read(data, read, stopwatch)
    return await service.off_loop(partial(_read, data, read, stopwatch))


def _read(
    data: bytes, read: Callable[[object], Asked[ItemT, OptionsT]], stopwatch: Stopwatch
) -> Asked[ItemT, OptionsT]:
    document = parse_json(data)
    stopwatch.lap("decode")
    asked = read(document)
    stopwatch.lap("validate")
    return asked


def faults(item: object) -> tuple[FieldError, ...]:
    """Values at fault in an item."""
    return item.errors if isinstance(item, InvalidCurve) else ()
