"""``POST /v1/evolution``: classify one object after each of its detections."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from fastapi import APIRouter, Request, Response

from nightjar_alerts.alerts.avro import exists, schema_names
from nightjar_alerts.alerts.packet import AbstainReason, PacketError
from nightjar_alerts.core.items import Item
from nightjar_alerts.core.result import EvolutionReply
from nightjar_alerts.core.serializer import encode_json
from nightjar_alerts.models.evolution import history
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.service.http import openapi
from nightjar_alerts.service.http.bodies import validate_body
from nightjar_alerts.service.http.deadlines import check_deadline
from nightjar_alerts.service.http.edge.body import cancel_on_disconnect, get_media_type
from nightjar_alerts.service.http.edge.errors import invalid_field
from nightjar_alerts.service.http.endpoint import (
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
from nightjar_alerts.service.http.formats import JSON_TYPE, MSGPACK_TYPES, get_request_format
from nightjar_alerts.service.http.lifecycle import Service, get_service
from nightjar_alerts.service.http.query import EvolutionQuery, read_query
from nightjar_alerts.service.http.results import get_serializer
from nightjar_alerts.service.http.routes.alerts import read_packets
from nightjar_alerts.service.inference import InferOptions

LIGHT_CURVE_TYPES = (JSON_TYPE, *MSGPACK_TYPES)
PACKET_TYPES = tuple(name for name in openapi.PACKET_TYPES if name != JSON_TYPE)

router = APIRouter()


@router.post(
    "/v1/evolution",
    **route_docs(
        "Classify an object after each of its detections",
        openapi.EVOLUTION_BODY,
        openapi.reply(EvolutionReply, "The classification after each detection, and how steady it was."),
        EvolutionQuery,
    ),
)
async def classify_evolution(request: Request) -> Response:
    """Send one light curve, as JSON or msgpack like that of `/v1/classify`, or one alert packet like that of
    `/v1/alerts`.

    Each step is the classification of the observations up to one detection; detections of the same time are one step.
    All steps have the metadata of the object. At most 100 steps are returned: of a longer history the first detection,
    the last five and evenly spaced ones between them, with `sampled` true. Each step counts as a light curve towards
    the limits of an API key. A packet in JSON is sent as `application/octet-stream`.
    """
    service, settings = get_service(request), get_service(request).settings
    timings = Timings(service.metrics)
    query = read_query(request, EvolutionQuery)
    if query.model or not service.models.started:
        service.select_model(query.model)  # raises before the body is read
    media_type = get_media_type(request, (*LIGHT_CURVE_TYPES, *PACKET_TYPES))
    check_deadline(query.deadline_ms, "/query/deadline_ms", settings)
    options = infer_options(request, settings, timings.started, query.deadline_ms)
    is_packet = media_type in PACKET_TYPES
    if query.schema is not None and not is_packet:
        raise invalid_field("/query/schema", "not_a_packet", "only a packet has a schema")
    with service.budget.reserve(get_client_id(request)) as reservation:
        data = await read_body(request, reservation, settings.max_alert_bytes if is_packet else settings.max_json_bytes)
        timings.stage("receive")
        read = _read_alert(data, query, service, options) if is_packet else _read_light_curve(request, data, media_type)
        curve, survey = await cancel_on_disconnect(request, read)
        del data
        steps = history(curve)
        timings.stage("decode")
        key = get_routing_key(request, [curve.object_id])
        handle, item = service.route(curve, query.model, survey=survey, routing_key=key, substitute=False)
        serializer = get_serializer(handle, query.prior, settings.prior)
        items: Sequence[Item] = steps.curves if item is curve else [item] * len(steps.curves)
        handles = [handle] * len(items)
        outcomes = await classify_items(request, handles, items, replace(options, is_history=True))
    timings.start()
    encode = partial(serializer.evolution, steps, outcomes, query.coverage)
    evolution = await service.run_in_thread(encode)
    content = encode_json({"model": serializer.provenance, **evolution.members()})
    timings.stage("encode")
    return make_response(request, content, JSON_TYPE, [handle], outcomes, timings)


async def _read_light_curve(request: Request, data: bytes, media_type: str) -> tuple[LightCurve, str]:
    """Return the light curve of a JSON or msgpack body, and "", since the light curve has its survey.

    Raises
    ------
    ProblemError
        400 for a body that is not a valid document of its format, 422 for an invalid light curve, several light curves
        or options.
    """
    body = await decode_body(request, data, get_request_format(media_type))
    if not body.single:
        raise invalid_field("/light_curves", "several_light_curves", "send one light curve, without `light_curves`")
    if body.given_options:
        raise invalid_field("/options", "unknown_field", "the options of this route are query parameters")
    service = get_service(request)
    (curve,) = await service.run_in_thread(partial(validate_body, body, service.settings))
    assert isinstance(curve, LightCurve)  # an invalid one raises
    return curve, ""


async def _read_alert(
    data: bytes, query: EvolutionQuery, service: Service, options: InferOptions
) -> tuple[LightCurve, str]:
    """Return the light curve and the survey of the single alert of a body.

    Raises
    ------
    ProblemError
        422 if there is not exactly one alert, or it cannot be read or has no light curve to classify.
    """
    if query.schema is not None and not exists(query.schema, service.settings.schemas):
        raise invalid_field("/query/schema", "unknown_schema", f"must be one of: {', '.join(schema_names())}")
    alerts = await read_packets([data], query.schema, service, options)
    if len(alerts) != 1:
        raise invalid_field("", "several_alerts", f"the body has {len(alerts)} alerts; send one")
    alert = alerts[0]
    if isinstance(alert, PacketError) or alert.curve is None:
        raise invalid_field("", alert.reason or AbstainReason.NO_USABLE_POINTS, alert.detail)
    return alert.curve, alert.survey
