"""``POST /v1/alerts``: classify unchanged alert packets, a single one or the parts of a multipart body.

Each part of a ``multipart/form-data`` body (a web form, ``curl -F``) or a ``multipart/mixed`` body is one packet,
whatever its name.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import monotonic

from fastapi import APIRouter, Request, Response
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from nightjar_alerts.alerts.avro import exists, schema_names
from nightjar_alerts.alerts.envelopes import MessageReader, TopicRule, rule_of
from nightjar_alerts.alerts.packet import Packet, PacketError, ReadLimits
from nightjar_alerts.alerts.plans import NewSchemas
from nightjar_alerts.alerts.schema_registry import SchemaRegistry
from nightjar_alerts.core.items import Item, Outcome, identity_of, item_of
from nightjar_alerts.core.request import Options
from nightjar_alerts.core.result import AlertsReply
from nightjar_alerts.core.serializer import ResultSerializer, add_light_curve
from nightjar_alerts.service.http import openapi
from nightjar_alerts.service.http.deadlines import check_deadline
from nightjar_alerts.service.http.edge import errors
from nightjar_alerts.service.http.edge.body import cancel_on_disconnect, get_media_type
from nightjar_alerts.service.http.edge.errors import MALFORMED, TOO_LARGE, ProblemError, invalid_field
from nightjar_alerts.service.http.endpoint import (
    INLINE_ITEMS,
    Timings,
    classify_items,
    get_client_id,
    infer_options,
    make_response,
    read_body,
    route_docs,
)
from nightjar_alerts.service.http.formats import JSON
from nightjar_alerts.service.http.lifecycle import Service, get_service
from nightjar_alerts.service.http.query import AlertQuery, read_query
from nightjar_alerts.service.http.results import build_results, get_serializers
from nightjar_alerts.service.inference import InferOptions
from nightjar_alerts.service.observe.live import LiveFeed
from nightjar_alerts.service.registry.serving import ModelHandle
from nightjar_alerts.service.settings import Settings

MAX_BOUNDARY = 70  # RFC 2046
CHUNK_BYTES = 1024 * 1024
"""Total size of packets that are decoded in one step; disconnects are noticed between steps."""

ReadResult = Packet | PacketError

router = APIRouter()


@router.post(
    "/v1/alerts",
    **route_docs(
        "Classify alert packets",
        openapi.ALERTS_BODY,
        openapi.reply(AlertsReply, "One result per alert, in order; a container with several alerts has several."),
        AlertQuery,
    ),
)
async def classify_alerts(request: Request) -> Response:
    """Send LSST, ELAsTiCC or ZTF packets unchanged: Avro containers, Confluent-framed or bare records, JSON.

    An alert that cannot be classified has the status `abstained` (it is valid, but a Solar System object or without
    usable observations) or `rejected` (it cannot be read), with a reason code. The request itself succeeds.
    """
    service, settings = get_service(request), get_service(request).settings
    timings = Timings(service.metrics)
    query = read_query(request, AlertQuery)
    service.select_model(query.model)  # raises before the body is read
    _check_query(query, settings)
    media_type = get_media_type(request, (*openapi.PACKET_TYPES, *openapi.MULTIPART_TYPES))
    options = infer_options(request, settings, timings.started, query.deadline_ms)
    with service.budget.reserve(get_client_id(request)) as reservation:
        data = await read_body(request, reservation, settings.max_alert_bytes)
        timings.stage("receive")
        packets = [data]
        if media_type in openapi.MULTIPART_TYPES:
            header = request.headers["content-type"]
            packets = await service.run_in_thread(partial(split_parts, data, header, settings.max_packets))
        del data
        alerts = await cancel_on_disconnect(request, read_packets(packets, query.schema, service, options))
        timings.stage("decode")
        options = replace(options, surveys=[item_of(alert)[1] for alert in alerts])
        handles, items = _route(service, query, alerts)
        serializers = get_serializers(handles, query.prior, settings.prior)
        outcomes = await classify_items(request, handles, items, options)
    timings.start()
    encode = partial(_encode, serializers, outcomes, alerts, query, service.live)
    content = await service.run_maybe_in_thread(encode, len(outcomes) > INLINE_ITEMS)
    timings.stage("encode")
    return make_response(request, content, JSON.media_type, handles, outcomes, timings)


def _check_query(query: AlertQuery, settings: Settings) -> None:
    check_deadline(query.deadline_ms, "/query/deadline_ms", settings)
    if query.schema is not None and not exists(query.schema, settings.schemas):
        raise invalid_field("/query/schema", "unknown_schema", f"must be one of: {', '.join(schema_names())}")


class _Parts:
    """Collects the parts of a body from the callbacks of the parser."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.parts: list[bytes] = []
        self.complete = False
        self._chunks: list[bytes] = []

    def begin(self) -> None:
        if len(self.parts) == self.limit:
            raise ProblemError(TOO_LARGE, f"at most {self.limit} packets in one request", limit=self.limit)
        self._chunks = []

    def data(self, data: bytes, start: int, end: int) -> None:
        self._chunks.append(data[start:end])

    def end(self) -> None:
        self.parts.append(b"".join(self._chunks))

    def finish(self) -> None:
        self.complete = True


def split_parts(body: bytes, content_type: str, limit: int) -> list[bytes]:
    """Return the content of each part, in order.

    Raises
    ------
    ProblemError
        400 for a missing or invalid boundary and for an invalid body or one without parts, 413 beyond ``limit`` parts.
    """
    collected = _Parts(limit)
    parser = MultipartParser(
        _get_boundary(content_type),
        {
            "on_part_begin": collected.begin,
            "on_part_data": collected.data,
            "on_part_end": collected.end,
            "on_end": collected.finish,
        },
    )
    try:
        parser.write(body)
    except FormParserError:
        raise ProblemError(MALFORMED, "the multipart body is invalid") from None
    if not collected.complete:
        raise ProblemError(MALFORMED, "the multipart body is truncated: its closing boundary is missing")
    if not collected.parts:
        raise ProblemError(MALFORMED, "the multipart body has no part")
    return collected.parts


def _get_boundary(content_type: str) -> bytes:
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 0 < len(boundary) <= MAX_BOUNDARY:
        raise ProblemError(MALFORMED, f"multipart needs a boundary of 1 to {MAX_BOUNDARY} characters in Content-Type")
    return boundary


async def read_packets(
    packets: Sequence[bytes], schema: str | None, service: Service, options: InferOptions
) -> list[ReadResult]:
    """Decode packets in threads, in chunks.

    Raises
    ------
    ProblemError
        504 past the deadline, 413 for too many records.
    """
    settings = service.settings
    limits = ReadLimits(max_decompressed_bytes=settings.max_decompressed_bytes, max_records=settings.max_packets)
    reader = MessageReader(SchemaRegistry(extra=settings.schemas), limits, settings.schemas)
    new, rule = NewSchemas(), rule_of(schema)
    read: list[ReadResult] = []
    for chunk in _chunks(packets):
        records = await service.run_in_thread(partial(_read_all, chunk, reader, rule, new, options))
        read += records
        if len(read) > settings.max_packets:
            limit = settings.max_packets
            raise ProblemError(errors.TOO_LARGE, f"more than {limit} alerts in one request", limit=limit)
    return read


def _read_all(
    packets: Sequence[bytes], reader: MessageReader, rule: TopicRule, new: NewSchemas, options: InferOptions
) -> list[ReadResult]:
    read: list[ReadResult] = []
    for data in packets:
        if options.deadline is not None and monotonic() > options.deadline:  # reading a packet may take long
            raise ProblemError(errors.DEADLINE)
        read += reader.read(data, rule=rule, new=new)
    return read


def _chunks(packets: Sequence[bytes]) -> list[list[bytes]]:
    """Divide packets into chunks of about :data:`CHUNK_BYTES`, in order."""
    chunks: list[list[bytes]] = [[]]
    room = CHUNK_BYTES
    for data in packets:
        if chunks[-1] and len(data) > room:
            chunks.append([])
            room = CHUNK_BYTES
        chunks[-1].append(data)
        room -= len(data)
    return chunks


def _route(service: Service, query: AlertQuery, alerts: Sequence[ReadResult]) -> tuple[list[ModelHandle], list[Item]]:
    """Route each alert by survey and, for canaries, by object; return the models and the items to classify."""
    routed = [
        service.route(
            item, query.model, survey=survey, routing_key=alert.object_id if isinstance(alert, Packet) else ""
        )
        for alert, (item, survey) in zip(alerts, map(item_of, alerts), strict=True)
    ]
    return [handle for handle, _ in routed], [item for _, item in routed]


def _encode(
    serializers: Sequence[ResultSerializer],
    outcomes: Sequence[Outcome],
    alerts: Sequence[ReadResult],
    query: AlertQuery,
    live: LiveFeed | None,
) -> bytes:
    identities = list(map(identity_of, alerts))
    options = Options(embedding=query.embedding, experts=query.experts, coverage=query.coverage)
    built = build_results(serializers, outcomes, identities, [None] * len(alerts), options)
    if live is not None:
        live.publish(built.results)
    if query.light_curve:
        for result, alert in zip(built.results, alerts, strict=True):
            add_light_curve(result, alert)
    return JSON.encode(built)
