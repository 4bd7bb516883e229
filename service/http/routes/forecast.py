"""``POST /v1/forecast``: light curves as JSON, each with the times and bands at which its flux is wanted."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.answers.replies import ForecastReply
from service.answers.writers import forecast_writer
from service.dataplane import Outcome
from service.engine.programs import ForecastItem
from service.http import openapi
from service.http.body.forms import ForecastOptions
from service.http.body.requests import Asked, InvalidCurve, read_forecast
from service.http.choosing import ModelQuery, sticky_key
from service.http.curves import check_bare, faults, parsed
from service.http.edge.receive import media_type
from service.http.endpoint import Call, Endpoint, Inquiry, Reply
from service.http.lifecycle import service_of
from service.registry.live import Lease

router = APIRouter()


ENDPOINT = Endpoint(
    "/v1/forecast",
    "Forecast light curves",
    openapi.FORECAST_BODY,
    openapi.reply(ForecastReply, "One result per light curve, in order; each has a status of its own."),
)


@ENDPOINT.on(router)
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
            return Inquiry(leases, asked.items, terms, partial(_write, lease, asked))

        return await ENDPOINT.answer(request, understand)


def _write(
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
