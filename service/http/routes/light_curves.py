"""Routes for light curves: ``POST /v1/classify`` in any of the formats, and ``POST /v1/forecast``."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from models.lightcurve import LightCurve
from service.answers.replies import ForecastReply
from service.answers.writers import forecast_writer
from service.dataplane import Outcome
from service.engine.programs import ForecastItem
from service.http import openapi
from service.http.body.formats import FORMATS, Format, body_format, reply_format
from service.http.body.forms import ClassifyQuery, ForecastOptions, Options
from service.http.curves import (
    Asked,
    InvalidCurve,
    check_bare,
    class_writers,
    classified,
    faults,
    parsed,
    read_classify,
    read_forecast,
)
from service.http.edge import errors
from service.http.edge.middleware import Shortcut
from service.http.edge.receive import media_type
from service.http.endpoint import Call, Endpoint, Inquiry, ModelQuery, Reply, check_deadline, sticky_key
from service.http.lifecycle import service_of
from service.http.line_stream import CurveStream
from service.registry.live import Lease

classify_router = APIRouter()


CLASSIFY = Endpoint(
    "/v1/classify",
    "Classify light curves",
    openapi.CLASSIFY_BODY,
    openapi.CLASSIFY_REPLY,
    more=(errors.NOT_ACCEPTABLE,),
)


@CLASSIFY.on(classify_router)
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

    async def understand(call: Call, data: bytes) -> Inquiry[LightCurve]:
        asked = await parsed(call, data, read, sent)
        key = sticky_key(request, (item.object_id for item in asked.items))
        chooser = service.chooser(query.model, others=not wanted.one_model)
        led = [chooser.choose(item, key=key) for item in asked.items]
        leases = [lease for lease, _ in led]
        if asked.options.prior is not None:
            class_writers(leases, asked.options.prior, settings.prior)  # unknown shares are told before asking
        write = partial(_write_classes, wanted, leases, settings.prior, asked)
        terms = call.terms(asked.options.deadline_ms, fall_back=True)
        return Inquiry(leases, [item for _, item in led], terms, write, wanted.slow_start)

    return await CLASSIFY.answer(request, understand)


SHORTCUT = Shortcut("/v1/classify", partial(classify, query=ClassifyQuery()))


def _write_classes(
    wanted: Format,
    leases: Sequence[Lease[LightCurve]],
    usual: str,
    asked: Asked[LightCurve, Options],
    outcomes: Sequence[Outcome],
) -> Reply:
    """Write the reply in the name of whoever answered: a lease may have gone over to the fallback meanwhile."""
    check_bare(asked, outcomes)
    writers = class_writers(leases, asked.options.prior, usual)
    return Reply(wanted.write(classified(writers, asked.items, outcomes, asked.options)), wanted.media_type)


forecast_router = APIRouter()


FORECAST = Endpoint(
    "/v1/forecast",
    "Forecast light curves",
    openapi.FORECAST_BODY,
    openapi.reply(ForecastReply, "One result per light curve, in order; each has a status of its own."),
)


@FORECAST.on(forecast_router)
async def forecast(request: Request, query: Annotated[ModelQuery, Query()]) -> Response:
    """Send one light curve with its `forecast`, or many under `light_curves`.

    Each result holds the expected flux and the standard deviation of an observation around it at every time and band in
    `forecast`, in the order asked and in the `flux_unit` of the light curve. Any time may be asked for, after the light
    curve, between its observations or before them. Faults are told as `/v1/classify` tells them. Without a forecasting
    model, which the operator of a service chooses, every request is answered 404.
    """
    service = service_of(request)
    with service.lease_forecaster(query.model, key=sticky_key(request)) as lease:
        media_type(request, (openapi.JSON_TYPE,))
        read = partial(read_forecast, settings=service.settings, bands=lease.bundle.manifest.band_map)

        async def understand(call: Call, data: bytes) -> Inquiry[ForecastItem]:
            asked = await parsed(call, data, read)
            leases, terms = [lease] * len(asked.items), call.terms(asked.options.deadline_ms, fall_back=True)
            return Inquiry(leases, asked.items, terms, partial(_write_forecasts, lease, asked))

        return await FORECAST.answer(request, understand)


def _write_forecasts(
    lease: Lease[ForecastItem], asked: Asked[ForecastItem, ForecastOptions], outcomes: Sequence[Outcome]
) -> Reply:
    check_bare(asked, outcomes)
    replies = forecast_writer(lease)
    return Reply(
        replies.write(
            [
                replies.result(outcome, _sound(item), {"object_id": item.object_id}, faults(item))
                for item, outcome in zip(asked.items, outcomes, strict=True)
            ]
        )
    )


def _sound(item: ForecastItem | InvalidCurve) -> ForecastItem | None:
    return None if isinstance(item, InvalidCurve) else item
