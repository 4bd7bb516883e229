"""The way of a request for light curves, whatever is asked and in whatever format: receive, parse, ask, write."""

from collections.abc import Callable, Sequence, Sized
from functools import partial
from time import monotonic
from typing import TypeVar

from fastapi import Request, Response

from models.lightcurve import LightCurve
from service.dataplane import Outcome
from service.http import errors
from service.http.choosing import cache_status, role_header
from service.http.errors import ProblemError
from service.http.fields import FieldError
from service.http.formats.answers import Answers
from service.http.formats.table import JSON, Format
from service.http.forms import ForecastOptions, Options
from service.http.lifecycle import Service, service_of
from service.http.receive import Body, unless_gone
from service.http.requests import Asked, InvalidCurve
from service.http.terms import terms_of
from service.http.timing import Stopwatch
from service.http.writers import ClassWriter
from service.repository.served import Lease
from service.settings import Settings

T = TypeVar("T")
ItemT = TypeVar("ItemT", bound=Sized)
OptionsT = TypeVar("OptionsT", bound=ForecastOptions)

INLINE_BYTES = 64 * 1024  # parsing more than this would keep the event loop from everybody else for over a millisecond


async def answer(
    request: Request,
    choose: Callable[[Asked[ItemT, OptionsT]], Lease[ItemT]],
    read: Callable[[object], Asked[ItemT, OptionsT]],
    write: Callable[[Lease[ItemT], Asked[ItemT, OptionsT], Sequence[Outcome]], bytes],
    sent: Format = JSON,
    wanted: Format = JSON,
) -> Response:
    """Answer one request.

    Parameters
    ----------
    choose : the model to ask.
    read : makes items of a parsed body, or raises ProblemError.
    write : makes a reply of the items and what became of them, in the name of the model.
    sent, wanted : formats of the body and of the reply.
    """
    arrived, service = monotonic(), service_of(request)
    settings = service.settings
    stopwatch = Stopwatch(service.metrics)
    with Body(request, service.budget) as body:
        data = await body.read(settings.max_json_bytes, settings.body_timeout)
        stopwatch.lap("receive")
        parse = partial(_read, data, sent, read, settings, stopwatch)
        asked = await _here_or_there(parse, service, sent.slow_start or len(data) > INLINE_BYTES)
        terms = terms_of(request, settings, arrived, asked.options.deadline_ms, fall_back=True)
        with choose(asked) as lease:
            outcomes = await unless_gone(request, lease.ask(asked.items, terms))
    if asked.bare and outcomes[0].status == "failed":  # a request that is a single curve has no other answer to give
        raise ProblemError(errors.INTERNAL, outcomes[0].detail)
    stopwatch.restart()
    content = await _here_or_there(partial(write, lease, asked, outcomes), service, wanted.slow_start)
    stopwatch.lap("encode")
    stopwatch.tell(lease.served.plane.statistics)
    headers = {
        "Server-Timing": stopwatch.header(outcomes),
        **cache_status(outcomes, service),
        **role_header([lease], service),
    }
    return Response(content, media_type=wanted.media_type, headers=headers)


async def _here_or_there(work: Callable[[], T], service: Service, there: bool) -> T:
    """Result of ``work``, done on the event loop or in a thread."""
    return await service.off_loop(work) if there else work()


def _read(
    data: bytes,
    sent: Format,
    read: Callable[[object], Asked[ItemT, OptionsT]],
    settings: Settings,
    stopwatch: Stopwatch,
) -> Asked[ItemT, OptionsT]:
    assert sent.read is not None
    document = sent.read(data, settings)
    stopwatch.lap("decode")
    asked = read(document)
    stopwatch.lap("validate")
    return asked


def classified(
    replies: ClassWriter,
    items: Sequence[LightCurve | InvalidCurve],
    outcomes: Sequence[Outcome],
    options: Options,
) -> Answers:
    """What is said of light curves, ready to be written in any format."""
    results = [
        replies.result(outcome, {"object_id": item.object_id}, faults(item), options.embedding, options.coverage)
        for item, outcome in zip(items, outcomes, strict=True)
    ]
    return Answers(replies.provenance, replies.classes, replies.groups, replies.embedding_dim, results, options)


def faults(item: object) -> tuple[FieldError, ...]:
    """Values at fault in an item."""
    return item.errors if isinstance(item, InvalidCurve) else ()
