"""``POST /v1/classify``: light curves, one or many, in any of the formats."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from models.lightcurve import LightCurve
from service.dataplane import Outcome
from service.http import errors, openapi
from service.http.choosing import sticky_key
from service.http.curves import answer, classified
from service.http.direct import Shortcut
from service.http.formats.table import FORMATS, Format, body_format, reply_format
from service.http.forms import ClassifyQuery, Options
from service.http.lifecycle import service_of
from service.http.receive import media_type
from service.http.requests import Asked, check_deadline, read_classify
from service.http.stream import CurveStream
from service.http.writers import class_writer
from service.repository.served import Lease

router = APIRouter()


@router.post(
    "/v1/classify",
    summary="Classify light curves",
    response_class=Response,
    responses={
        200: openapi.CLASSIFY_REPLY,
        **openapi.problems(
            errors.MALFORMED, errors.NOT_FOUND, errors.NOT_ACCEPTABLE, errors.TIMEOUT, errors.TOO_LARGE,
            errors.UNSUPPORTED,
            errors.INVALID, errors.OVERLOADED, errors.INTERNAL, errors.UNAVAILABLE, errors.DEADLINE,
        ),
    },
    openapi_extra={"requestBody": openapi.CLASSIFY_BODY},
)  # fmt: skip
async def classify(request: Request, query: Annotated[ClassifyQuery, Query()]) -> Response:
    """Send one light curve, or many under `light_curves`.

    A single curve that breaks a rule is a problem (422) whose `errors` point at the values at fault. Among many, it is
    answered alone with status `rejected` while the others are classified. A curve without an observation in a band that
    the model knows is `abstained`. Times may come in any order.

    The same in msgpack (`application/msgpack`), where a column may be the bytes of its little-endian values: `mjd`
    float64, `flux`, `flux_err` and `metadata` float32, `band` and `detected` one byte each; as an Arrow IPC stream with
    a row for each light curve; or as lines of JSON (`application/x-ndjson`), a light curve in each, answered line by
    line while more are sent. `Accept` chooses the format of the reply, which else is that of the request. Options go
    into the body or, where it has no place for them, into the address.
    """
    service, settings = service_of(request), service_of(request).settings
    if query.model or not service.started:
        service.lease_classifier(query.model)  # an unknown model is told before anything is read
    sent = body_format(media_type(request, FORMATS))
    wanted = reply_format(request.headers.get("accept", ""), sent)
    check_deadline(query.deadline_ms, "/query/deadline_ms", settings)
    if sent.read is None:
        return CurveStream(request, query)
    read = partial(read_classify, settings=settings, defaults=query.model_dump(exclude_unset=True, exclude={"model"}))

    def choose(asked: Asked[LightCurve, Options]) -> Lease[LightCurve]:
        key = sticky_key(request, (item.object_id for item in asked.items))
        return service.lease_classifier(query.model, key=key)

    return await answer(request, choose, read, partial(_write, wanted), sent, wanted)


SHORTCUT = Shortcut("/v1/classify", partial(classify, query=ClassifyQuery()))


def _write(
    wanted: Format, lease: Lease[LightCurve], asked: Asked[LightCurve, Options], outcomes: Sequence[Outcome]
) -> bytes:
    return wanted.write(classified(class_writer(lease), asked.items, outcomes, asked.options))
