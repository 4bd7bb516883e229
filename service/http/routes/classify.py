"""``POST /v1/classify``: classify light curves in any format."""

from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Request, Response

from nightjar_alerts.core.errors import InvalidLightCurve
from nightjar_alerts.core.items import Item, Outcome
from nightjar_alerts.core.request import Options
from nightjar_alerts.core.serializer import ResultSerializer
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.service.http import openapi
from nightjar_alerts.service.http.bodies import merge_options, validate_body
from nightjar_alerts.service.http.deadlines import check_deadline
from nightjar_alerts.service.http.edge import errors
from nightjar_alerts.service.http.edge.body import get_media_type
from nightjar_alerts.service.http.edge.errors import INTERNAL, ProblemError
from nightjar_alerts.service.http.endpoint import (
    INLINE_ITEMS,
    Timings,
    classify_items,
    decode_body,
    get_client_id,
    get_routing_key,
    infer_options,
    make_response,
    read_body,
    route_docs,
)
from nightjar_alerts.service.http.formats import (
    CLASSIFY_TYPES,
    NDJSON_TYPES,
    ResponseFormat,
    get_request_format,
    negotiate_response,
)
from nightjar_alerts.service.http.lifecycle import Service, get_service
from nightjar_alerts.service.http.query import ClassifyQuery, read_query
from nightjar_alerts.service.http.results import build_curve_results, get_serializers, get_surveys
from nightjar_alerts.service.http.routes.ndjson import NdjsonResponse
from nightjar_alerts.service.observe.live import LiveFeed
from nightjar_alerts.service.registry.serving import ModelHandle

router = APIRouter()


@router.post(
    "/v1/classify",
    **route_docs(
        "Classify light curves",
        openapi.CLASSIFY_BODY,
        openapi.CLASSIFY_REPLY,
        ClassifyQuery,
        more=(errors.NOT_ACCEPTABLE, errors.UNAVAILABLE),
    ),
)
async def classify(request: Request) -> Response:
    """Send one light curve, or several in `light_curves`.

    A single invalid light curve is an error (422) whose `errors` point at the invalid fields. In a batch, an invalid
    light curve has the status `rejected`, and the others are classified. A light curve without observations in the
    model's bands has the status `abstained`. Observations may be in any order.

    Light curves can also be sent as msgpack (`application/msgpack`), where a column may be the bytes of its
    little-endian values: `mjd` float64, `flux`, `flux_err` and `metadata` float32, `band` and `detected` one byte each;
    as an Arrow IPC stream with one row per light curve; or as NDJSON (`application/x-ndjson`) with one light curve per
    line, whose results are returned while more lines are sent. `Accept` selects the format of the response; the default
    is that of the request. Options are sent in the body or as query parameters. If a JSON object repeats a name, its
    last value counts.
    """
    service, settings = get_service(request), get_service(request).settings
    timings = Timings(service.metrics)
    query = read_query(request, ClassifyQuery)
    if query.model or not service.models.started:
        service.select_model(query.model)  # raises before the body is read
    media_type = get_media_type(request, CLASSIFY_TYPES, other={"text/csv": "/v1/tables"})
    response_format = negotiate_response(request.headers.get("accept", ""), media_type)
    check_deadline(query.deadline_ms, "/query/deadline_ms", settings)
    if media_type in NDJSON_TYPES:
        return NdjsonResponse(request, query)
    request_format = get_request_format(media_type)
    with service.budget.reserve(get_client_id(request)) as reservation:
        data = await read_body(request, reservation, settings.max_json_bytes)
        timings.stage("receive")
        body = await decode_body(request, data, request_format)
        del data  # the decoded body is smaller, so the reservation still covers it
        timings.stage("decode")
        validate = partial(validate_body, body, settings)
        curves = await service.run_maybe_in_thread(validate, len(body.light_curves) > INLINE_ITEMS)
        timings.stage("validate")
        options = merge_options(body, query)
        handles, items = _route(request, service, query.model, curves, substitute=not response_format.single_model)
        pointer = "/options/prior" if query.prior is None or options.prior != query.prior else "/query/prior"
        serializers = get_serializers(handles, options.prior, settings.prior, pointer)
        inference_options = infer_options(request, settings, timings.started, options.deadline_ms)
        outcomes = await classify_items(request, handles, items, inference_options)
    timings.start()
    if body.single and outcomes[0].status == "failed":
        raise ProblemError(INTERNAL, outcomes[0].detail)
    encode = partial(_encode, response_format, serializers, outcomes, curves, options, service.live)
    content = await service.run_maybe_in_thread(encode, len(outcomes) > INLINE_ITEMS or response_format.in_thread)
    timings.stage("encode")
    return make_response(request, content, response_format.media_type, handles, outcomes, timings)


def _route(
    request: Request,
    service: Service,
    model: str,
    curves: Sequence[LightCurve | InvalidLightCurve],
    *,
    substitute: bool,
) -> tuple[list[ModelHandle], list[Item]]:
    """Return the model for each light curve, and the items to classify."""
    key = ""
    if service.models.router.canaries:  # only a canary needs it
        key = get_routing_key(request, (curve.object_id for curve in curves))
    routed = [service.route(curve, model, routing_key=key, substitute=substitute) for curve in curves]
    return [handle for handle, _ in routed], [item for _, item in routed]


def _encode(
    response_format: ResponseFormat,
    serializers: Sequence[ResultSerializer],
    outcomes: Sequence[Outcome],
    curves: Sequence[LightCurve | InvalidLightCurve],
    options: Options,
    live: LiveFeed | None,
) -> bytes:
    built = build_curve_results(serializers, outcomes, curves, options)
    if live is not None:
        live.publish(built.results, get_surveys(curves))
    return response_format.encode(built)
