"""``POST /v1/forecast``: light curves as JSON, each with the times and bands at which its flux is wanted."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.dataplane import Outcome
from service.http import errors, openapi
from service.http.choosing import ModelQuery, sticky_key
from service.http.curves import answer, faults
from service.http.forms import ForecastOptions
from service.http.lifecycle import service_of
from service.http.receive import media_type
from service.http.replies import ForecastReply
from service.http.requests import Asked, InvalidCurve, read_forecast
from service.http.writers import forecast_writer
from service.inference.programs import ForecastItem
from service.repository.served import Lease

router = APIRouter()


@router.post(
    "/v1/forecast",
    summary="Forecast light curves",
    response_class=Response,
    responses={
        200: openapi.reply(ForecastReply, "One result per light curve, in order; each has a status of its own."),
        **openapi.problems(
            errors.MALFORMED, errors.NOT_FOUND, errors.TIMEOUT, errors.TOO_LARGE, errors.UNSUPPORTED, errors.INVALID,
            errors.OVERLOADED, errors.INTERNAL, errors.UNAVAILABLE, errors.DEADLINE,
        ),
    },
    openapi_extra={"requestBody": openapi.FORECAST_BODY},
)  # fmt: skip
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
        read = partial(read_forecast, settings=service.settings, bands=lease.bundle.manifest.bands)
        return await answer(request, lambda asked: lease, read, _write)


def _write(
    lease: Lease[ForecastItem], asked: Asked[ForecastItem, ForecastOptions], outcomes: Sequence[Outcome]
) -> bytes:
    replies = forecast_writer(lease)
    return replies.write(
        [
            replies.result(outcome, _sound(item), {"object_id": item.object_id}, faults(item))
            for item, outcome in zip(asked.items, outcomes, strict=True)
        ]
    )


def _sound(item: ForecastItem | InvalidCurve) -> ForecastItem | None:
    return None if isinstance(item, InvalidCurve) else item
