"""``POST /v1/alerts``: packets as they left the survey, alone or as the parts of a multipart body.

A form as a browser or ``curl -F`` sends it and a plain ``multipart/mixed`` read alike: every part is one packet,
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

from nightjar_alerts.models.alerts.avro import exists, schema_names
from nightjar_alerts.models.alerts.envelopes import MessageReader, TopicRule, rule_of
from nightjar_alerts.models.alerts.packet import Packet, PacketError, ReadLimits
from nightjar_alerts.models.alerts.plans import NewSchemas
from nightjar_alerts.models.alerts.schema_registry import SchemaRegistry
from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError
from nightjar_alerts.service.answers.replies import AlertsReply, FieldError
from nightjar_alerts.service.answers.serializer import packet_identity, serialize_all
from nightjar_alerts.service.dataplane import InferOptions, Outcome, Skipped
from nightjar_alerts.service.http import openapi
from nightjar_alerts.service.http.curves import check_deadline, read_query, result_serializers
from nightjar_alerts.service.http.edge import errors
from nightjar_alerts.service.http.edge.errors import MALFORMED, TOO_LARGE, ProblemError
from nightjar_alerts.service.http.edge.receive import cancel_on_disconnect, media_type
from nightjar_alerts.service.http.endpoint import (
    INLINE_ITEMS,
    Timings,
    charge,
    client_of,
    described,
    infer_options,
    read_body,
    reply,
)
from nightjar_alerts.service.http.formats import JSON_TYPE
from nightjar_alerts.service.http.forms import AlertQuery
from nightjar_alerts.service.http.lifecycle import Service, service_of
from nightjar_alerts.service.registry.serving import ModelHandle, acquired, infer_many
from nightjar_alerts.service.settings import Settings

MAX_BOUNDARY = 70  # RFC 2046


class _Parts:
    """Collects parts from the parser's callbacks."""

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
    """Bytes of every part, in order.

    Raises
    ------
    ProblemError
        400 without a usable boundary, for a body that does not parse, is cut short or has no part; 413 beyond ``limit``
        parts.
    """
    collected = _Parts(limit)
    parser = MultipartParser(
        _boundary(content_type),
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
        raise ProblemError(MALFORMED, "the multipart body does not parse") from None
    if not collected.complete:
        raise ProblemError(MALFORMED, "the multipart body is cut short: its closing boundary is missing")
    if not collected.parts:
        raise ProblemError(MALFORMED, "the multipart body has no part")
    return collected.parts


def _boundary(content_type: str) -> bytes:
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 0 < len(boundary) <= MAX_BOUNDARY:
        raise ProblemError(MALFORMED, f"multipart needs a boundary of 1 to {MAX_BOUNDARY} characters in Content-Type")
    return boundary


CHUNK_BYTES = 1024 * 1024  # decoded in one go; between chunks a client that has left is noticed

PRIOR = "/query/prior"

Read = Packet | PacketError

router = APIRouter()


@router.post(
    "/v1/alerts",
    **described(
        "Classify alert packets",
        openapi.ALERTS_BODY,
        openapi.reply(AlertsReply, "One result per alert, in order; a container of several gives as many."),
        AlertQuery,
    ),
)
async def alerts(request: Request) -> Response:
    """Send LSST, ELAsTiCC or ZTF packets: Avro containers, Confluent-framed or bare records, JSON; as they came.

    An alert that cannot be classified comes back `abstained` (sound, but a moving object, or without a usable point) or
    `rejected` (unreadable), each with a reason code; the request itself succeeds.
    """
    service, settings = service_of(request), service_of(request).settings
    timings = Timings(service.metrics)
    query = read_query(request, AlertQuery)
    default = service.select_model(query.model)
    _check(query, settings)
    kind = media_type(request, (*openapi.PACKET_TYPES, *openapi.MULTIPART_TYPES))
    options = infer_options(request, settings, timings.started, query.deadline_ms)
    with service.budget.reserve(client_of(request)) as reservation:
        data = await read_body(request, reservation, settings.max_alert_bytes)
        timings.stage("receive")
        packets = [data]
        if kind in openapi.MULTIPART_TYPES:
            header = request.headers["content-type"]
            packets = await service.run_in_thread(partial(split_parts, data, header, settings.max_packets))
        del data
        alerts = await cancel_on_disconnect(request, _decode(packets, query.schema, service, options))
        timings.stage("decode")
        options = replace(options, surveys=[_survey(alert) for alert in alerts])
        handles, items = _choose(service, query, alerts)
        await charge(request, service, len(items))
        with acquired(dict.fromkeys(handles)):
            outcomes = await cancel_on_disconnect(request, infer_many(handles, items, options)) if items else []
    timings.start()
    encode = partial(_encode, handles or [default], alerts, query, settings.prior, outcomes)
    content = await service.run_maybe_in_thread(encode, len(outcomes) > INLINE_ITEMS)
    timings.stage("encode")
    return reply(request, content, JSON_TYPE, handles, outcomes, timings)


def _check(query: AlertQuery, settings: Settings) -> None:
    check_deadline(query.deadline_ms, "/query/deadline_ms", settings)
    if query.schema is not None and not exists(query.schema, settings.schemas):
        detail = f"must be one of: {', '.join(schema_names())}"
        raise ProblemError(
            errors.INVALID, errors=[FieldError(pointer="/query/schema", reason="unknown_schema", detail=detail)]
        )


async def _decode(packets: Sequence[bytes], schema: str | None, service: Service, options: InferOptions) -> list[Read]:
    """Read packets in threads, chunk by chunk. Raises ProblemError: 504 past the deadline, 413 for too many records."""
    settings = service.settings
    limits = ReadLimits(max_decompressed_bytes=settings.max_decompressed_bytes, max_records=settings.max_packets)
    reader = MessageReader(SchemaRegistry(extra=settings.schemas), limits, settings.schemas)
    new, rule = NewSchemas(), rule_of(schema)
    read: list[Read] = []
    for chunk in _chunks(packets):
        records = await service.run_in_thread(partial(_read_all, chunk, reader, rule, new, options))
        read += records
        if len(read) > settings.max_packets:
            limit = settings.max_packets
            raise ProblemError(errors.TOO_LARGE, f"more than {limit} alerts in one request", limit=limit)
    return read


def _read_all(
    packets: Sequence[bytes], reader: MessageReader, rule: TopicRule, new: NewSchemas, options: InferOptions
) -> list[Read]:
    read: list[Read] = []
    for data in packets:
        if options.deadline is not None and monotonic() > options.deadline:  # each packet may be costly
            raise ProblemError(errors.DEADLINE)
        read += reader.read(data, rule=rule, new=new)
    return read


def _chunks(packets: Sequence[bytes]) -> list[list[bytes]]:
    """Neighbouring packets of about CHUNK_BYTES together."""
    chunks: list[list[bytes]] = [[]]
    room = CHUNK_BYTES
    for data in packets:
        if chunks[-1] and len(data) > room:
            chunks.append([])
            room = CHUNK_BYTES
        chunks[-1].append(data)
        room -= len(data)
    return chunks


def _item(read: Read) -> LightCurve | Skipped:
    if isinstance(read, PacketError):
        return Skipped("rejected", read.reason, read.detail)
    if read.curve is None:
        return Skipped("abstained", read.reason or "", read.detail)
    return read.curve


def _survey(read: Read) -> str:
    return read.survey or "unknown"


def _choose(
    service: Service, query: AlertQuery, read: Sequence[Read]
) -> tuple[list[ModelHandle], list[LightCurve | LightCurveError | Skipped]]:
    """Choose the model for each packet, by its survey and, where a canary has a share, its object; and the item."""
    choices = [service.route(_item(item), query.model, survey=_survey(item), routing_key=_key(item)) for item in read]
    handles = [handle for handle, _ in choices]
    result_serializers(handles, query.prior, service.settings.prior, PRIOR)  # raises before anything is classified
    return handles, [item for _, item in choices]


def _key(read: Read) -> str:
    return read.object_id if isinstance(read, Packet) else ""


def _encode(
    handles: Sequence[ModelHandle],
    alerts: Sequence[Read],
    query: AlertQuery,
    prior: str,
    outcomes: Sequence[Outcome],
) -> bytes:
    """Encode the reply in the name of the model of the first packet; results of others name theirs."""
    serializers = result_serializers(handles, query.prior, prior, PRIOR)
    identities, no_errors = [_identity(alert) for alert in alerts], [None] * len(alerts)
    results = serialize_all(serializers[: len(alerts)], outcomes, identities, no_errors, query.embedding)
    return serializers[0].write(results)


def _identity(read: Read) -> dict[str, str]:
    if isinstance(read, PacketError):
        return {"survey": _survey(read), "schema_version": "unknown", "alert_id": "", "object_id": ""}
    return packet_identity(read)
