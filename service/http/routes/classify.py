"""``POST /v1/classify``: light curves as JSON, one or many."""

from functools import partial
from time import monotonic

from fastapi import APIRouter, Request, Response

from service.dataplane import ClassifyOptions, Outcome
from service.http import errors, openapi
from service.http.errors import ProblemError
from service.http.fields import FieldError
from service.http.lifecycle import Service, service_of
from service.http.receive import Body, media_type, unless_gone
from service.http.replies import ClassifyReply, ReplyWriter
from service.http.requests import ClassifyRequest, InvalidCurve, parse_json, read_classify
from service.http.timing import Stopwatch
from service.settings import Settings

INLINE_BYTES = 64 * 1024  # parsing more than this would keep the event loop from everybody else for over a millisecond
SURVEY = "none"

router = APIRouter()


@router.post(
    "/v1/classify",
    summary="Classify light curves",
    response_class=Response,
    responses={
        200: openapi.reply(ClassifyReply, "One result per light curve, in order; each has a status of its own."),
        **openapi.problems(
            errors.MALFORMED, errors.TIMEOUT, errors.TOO_LARGE, errors.UNSUPPORTED, errors.INVALID,
            errors.OVERLOADED, errors.INTERNAL, errors.UNAVAILABLE, errors.DEADLINE,
        ),
    },
    openapi_extra={"requestBody": openapi.CLASSIFY_BODY},
)  # fmt: skip
async def classify(request: Request) -> Response:
    """Send one light curve, or many under `light_curves`.

    A single curve that breaks a rule is a problem (422) whose `errors` point at the values at fault. Among many, it is
    answered alone with status `rejected` while the others are classified. Times may come in any order.
    """
    arrived, service = monotonic(), service_of(request)
    model, settings = service.model, service.settings
    media_type(request, (openapi.JSON_TYPE,))
    with Body(request, service.budget) as body:
        data = await body.read(settings.max_json_bytes, settings.body_timeout)
        stopwatch = Stopwatch(service.metrics)
        asked = await _parse(data, service, stopwatch)
        deadline = arrived + (asked.options.deadline_ms or settings.default_deadline_ms) / 1000
        options = ClassifyOptions(deadline, SURVEY)
        outcomes = await unless_gone(request, model.plane.classify(asked.items, options))
    _refuse_lone_failure(asked, outcomes)
    stopwatch.restart()
    content = _write(model.replies, asked, outcomes)
    stopwatch.lap("encode")
    return Response(content, media_type=openapi.JSON_TYPE, headers={"Server-Timing": stopwatch.header(outcomes)})


async def _parse(data: bytes, service: Service, stopwatch: Stopwatch) -> ClassifyRequest:
    if len(data) <= INLINE_BYTES:
        return _read(data, service.settings, stopwatch)
    return await service.off_loop(partial(_read, data, service.settings, stopwatch))


def _read(data: bytes, settings: Settings, stopwatch: Stopwatch) -> ClassifyRequest:
    document = parse_json(data)
    stopwatch.lap("decode")
    asked = read_classify(document, settings)
    stopwatch.lap("validate")
    return asked


def _refuse_lone_failure(asked: ClassifyRequest, outcomes: list[Outcome]) -> None:
    """A request that is a single curve has no other answer to give, so its failure is the request's."""
    if asked.bare and outcomes[0].status == "failed":
        raise ProblemError(errors.INTERNAL, outcomes[0].detail)


def _write(replies: ReplyWriter, asked: ClassifyRequest, outcomes: list[Outcome]) -> bytes:
    return replies.write(
        [
            replies.result(outcome, {"object_id": item.object_id}, _faults(item), asked.options.embedding)
            for item, outcome in zip(asked.items, outcomes, strict=True)
        ]
    )


def _faults(item: object) -> tuple[FieldError, ...]:
    return item.errors if isinstance(item, InvalidCurve) else ()
