"""``POST /v1/classify``: light curves as JSON, one or many."""

from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Request, Response

from models.lightcurve import LightCurve
from service.dataplane import Outcome
from service.http import errors, openapi
from service.http.curves import answer, faults
from service.http.forms import Options
from service.http.lifecycle import service_of
from service.http.replies import ClassifyReply
from service.http.requests import Asked, read_classify
from service.http.writers import ClassWriter

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
    answered alone with status `rejected` while the others are classified. A curve without an observation in a band that
    the model knows is `abstained`. Times may come in any order.
    """
    service = service_of(request)
    model = service.classifier
    read = partial(read_classify, settings=service.settings)
    return await answer(request, model.plane, read, partial(_write, model.replies))


def _write(replies: ClassWriter, asked: Asked[LightCurve, Options], outcomes: Sequence[Outcome]) -> bytes:
    return replies.write(
        [
            replies.result(outcome, {"object_id": item.object_id}, faults(item), asked.options.embedding)
            for item, outcome in zip(asked.items, outcomes, strict=True)
        ]
    )
