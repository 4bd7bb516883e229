"""``POST /v1/alerts``: packets as they left the survey."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from models.lightcurve import LightCurve
from service.alerts.packet import Packet, PacketError, ReadLimits
from service.alerts.reader import read_packet
from service.alerts.shipped import exists, schema_names
from service.dataplane import AskOptions, Outcome, Refusal
from service.http import errors, multipart, openapi
from service.http.choosing import cache_status, role_header
from service.http.errors import ProblemError
from service.http.fields import FieldError
from service.http.lifecycle import Service, service_of
from service.http.receive import Body, media_type, unless_gone
from service.http.replies import AlertsReply
from service.http.requests import check_deadline
from service.http.terms import terms_of
from service.http.timing import Stopwatch
from service.http.writers import class_writer
from service.repository.references import MOST_CHARACTERS
from service.repository.served import Lease, ask_each, held
from service.settings import Settings

CHUNK_BYTES = 1024 * 1024  # decoded in one go; between chunks a client that has left is noticed

Read = Packet | PacketError

router = APIRouter()


class AlertQuery(BaseModel):
    """Parameters of a request for packets."""

    model_config = ConfigDict(extra="forbid")

    schema_name: str | None = Field(
        None,
        alias="schema",
        max_length=40,
        description=f"schema of every packet, when they are bare records: {', '.join(schema_names())}",
    )
    model: str = Field(
        "",
        max_length=MOST_CHARACTERS,
        description="model to ask: `name`, `name@1.2.3` or an alias; where none is named, the alias of a packet's "
        "survey (`lsst`, `elasticc`, `ztf`) if there is one, else `default`",
    )
    embedding: bool = Field(False, description="return the network's embedding of each light curve")
    deadline_ms: int | None = Field(None, ge=1, description="answer within this many milliseconds or not at all (504)")


@router.post(
    "/v1/alerts",
    summary="Classify alert packets",
    response_class=Response,
    responses={
        200: openapi.reply(AlertsReply, "One result per alert, in order; a container of several gives as many."),
        **openapi.problems(
            errors.MALFORMED, errors.NOT_FOUND, errors.TIMEOUT, errors.TOO_LARGE, errors.UNSUPPORTED, errors.INVALID,
            errors.OVERLOADED, errors.INTERNAL, errors.UNAVAILABLE, errors.DEADLINE,
        ),
    },
    openapi_extra={"requestBody": openapi.ALERTS_BODY},
)  # fmt: skip
async def alerts(request: Request, query: Annotated[AlertQuery, Query()]) -> Response:
    """Send LSST, ELAsTiCC or ZTF packets: Avro containers, Confluent-framed or bare records; nothing needs unwrapping.

    An alert that cannot be classified comes back `abstained` (sound, but a moving object, or without a usable point) or
    `rejected` (unreadable), each with a reason code; the request itself succeeds.
    """
    arrived, service = monotonic(), service_of(request)
    default, settings = service.lease_classifier(query.model), service.settings
    _check(query, settings)
    kind = media_type(request, (*openapi.PACKET_TYPES, *multipart.MEDIA_TYPES))
    stopwatch = Stopwatch(service.metrics)
    with Body(request, service.budget) as body:
        data = await body.read(settings.max_alert_bytes, settings.body_timeout)
        stopwatch.lap("receive")
        terms = terms_of(request, settings, arrived, query.deadline_ms)
        packets = [data]
        if kind in multipart.MEDIA_TYPES:
            header = request.headers["content-type"]
            packets = await service.off_loop(partial(multipart.split_parts, data, header, settings.max_packets))
        read = await unless_gone(request, _decode(packets, query.schema_name, service, terms))
        stopwatch.lap("decode")
        terms = replace(terms, surveys=[_survey(item) for item in read], fall_back=True)
        leases = _choose(service, query.model, read)
        with held(leases):
            outcomes = await unless_gone(request, ask_each(leases, [_item(item) for item in read], terms))
    stopwatch.restart()
    content = _write(leases or [default], read, outcomes, query.embedding)
    stopwatch.lap("encode")
    for lease in dict.fromkeys(leases):
        stopwatch.tell(lease.served.plane.statistics)
    headers = {
        "Server-Timing": stopwatch.header(outcomes),
        **cache_status(outcomes, service),
        **role_header(leases, service),
    }
    return Response(content, media_type=openapi.JSON_TYPE, headers=headers)


def _check(query: AlertQuery, settings: Settings) -> None:
    check_deadline(query.deadline_ms, "/query/deadline_ms", settings)
    if query.schema_name is not None and not exists(query.schema_name, settings.schemas):
        detail = f"must be one of: {', '.join(schema_names())}"
        fault = FieldError(pointer="/query/schema", reason="unknown_schema", detail=detail)
        raise ProblemError(errors.INVALID, errors=[fault])


async def _decode(packets: Sequence[bytes], schema: str | None, service: Service, terms: AskOptions) -> list[Read]:
    """Read packets in threads, chunk by chunk. Raises ProblemError: 504 past the deadline, 413 for too many records."""
    settings = service.settings
    limits = ReadLimits(max_decompressed_bytes=settings.max_decompressed_bytes, max_records=settings.max_packets)
    read: list[Read] = []
    for chunk in _chunks(packets):
        if terms.deadline is not None and monotonic() > terms.deadline:
            raise ProblemError(errors.DEADLINE)
        read += await service.off_loop(partial(_read_all, chunk, schema, settings, limits))
        if len(read) > settings.max_packets:
            limit = settings.max_packets
            raise ProblemError(errors.TOO_LARGE, f"more than {limit} alerts in one request", limit=limit)
    return read


def _read_all(packets: Sequence[bytes], schema: str | None, settings: Settings, limits: ReadLimits) -> list[Read]:
    return [item for data in packets for item in read_packet(data, schema, settings.schemas, limits)]


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


def _item(read: Read) -> LightCurve | Refusal:
    if isinstance(read, PacketError):
        return Refusal("rejected", read.reason, read.detail)
    if read.curve is None:
        return Refusal("abstained", read.reason or "", read.detail)
    return read.curve


def _survey(read: Read) -> str:
    return read.survey or "unknown"


def _choose(service: Service, model: str, read: Sequence[Read]) -> list[Lease[LightCurve]]:
    """The model for each packet, by its survey and, where a canary has a share, by its object."""
    leases: dict[tuple[str, str], Lease[LightCurve]] = {}
    chosen = []
    for item in read:
        key = item.object_id if isinstance(item, Packet) else ""
        lease = service.lease_classifier(model, survey=_survey(item), key=key)
        chosen.append(leases.setdefault((str(lease.served.reference), lease.role), lease))
    return chosen


def _write(
    leases: Sequence[Lease[LightCurve]], read: Sequence[Read], outcomes: Sequence[Outcome], embedding: bool
) -> bytes:
    """The reply, in the name of the model of the first packet; what another answered says so itself."""
    first = class_writer(leases[0])
    results = []
    for lease, item, outcome in zip(leases, read, outcomes, strict=False):
        replies = class_writer(lease)
        result = replies.result(outcome, _identity(item), embedding=embedding)
        results.append(result if replies is first else result | {"model": replies.provenance})
    return first.write(results)


def _identity(read: Read) -> dict[str, str]:
    if isinstance(read, PacketError):
        return {"survey": _survey(read), "schema_version": "unknown", "alert_id": "", "object_id": ""}
    return {
        "survey": read.survey,
        "schema_version": read.schema_version,
        "alert_id": read.alert_id,
        "object_id": read.object_id,
    }
