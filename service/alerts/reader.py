"""Bytes of an alert, in whatever envelope they arrived, to packets.

Three envelopes are known: Avro object containers (ZTF, brokers; any number of records, schema inside), Confluent
framing (Rubin: a zero byte, a big-endian 32-bit schema id, a bare record; Rubin's own sample notes call it
little-endian) and bare records (ELAsTiCC: nothing says which schema). What is known beforehand wins over sniffing: a
bare ELAsTiCC record may begin with any byte, also zero.

    packets = read_packet(Path("alert.avro").read_bytes())
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from service.alerts import containers, plans, shipped
from service.alerts.adapters import Record, build_packet
from service.alerts.packet import Packet, PacketError, ReadLimits, RejectReason

CONFLUENT_HEADER_BYTES: Final = 5
SNIFFED_BARE_SCHEMAS: Final = ("elasticc/0.9.1", "elasticc/0.9")

PacketOutcome = Packet | PacketError


def read_packet(
    data: bytes, schema: str | None = None, extra_schemas: Path | None = None, limits: ReadLimits | None = None
) -> list[PacketOutcome]:
    """Read every alert in ``data``.

    Never raises for what the bytes hold: whatever cannot be read is a :class:`PacketError` in the list, at its place.

    Parameters
    ----------
    schema : name of a schema at hand (``elasticc/0.9.1``) when ``data`` is known to be one bare record of it, without
        any framing; nothing is sniffed then.
    extra_schemas : folder with more schemas (see :mod:`service.alerts.shipped`).

    Returns
    -------
    At least one outcome. A damaged record in a container costs itself and the rest of its block, not its neighbours in
    other blocks.
    """
    limits = limits or ReadLimits()
    try:
        if schema is not None:
            return [read_bare(data, 0, plans.for_name(schema, extra_schemas), limits)]
        if data.startswith(containers.MAGIC):
            return list(read_container(data, limits))
        return [_sniff(data, extra_schemas, limits)]
    except PacketError as error:
        return [error]


def _sniff(data: bytes, extra: Path | None, limits: ReadLimits) -> Packet:
    if not data:
        raise PacketError(RejectReason.EMPTY, "there are no bytes")
    framed = _confluent_schema(data)
    failure: PacketError | None = None
    if framed is not None and shipped.exists(framed, extra):
        try:
            return read_bare(data, CONFLUENT_HEADER_BYTES, plans.for_name(framed, extra), limits)
        except PacketError as error:
            failure = error
    if packet := sniff_bare(data, limits):
        return packet
    raise failure or _unrecognised(framed)


def _confluent_schema(data: bytes) -> str | None:
    if data[0] != 0 or len(data) < CONFLUENT_HEADER_BYTES:
        return None
    return shipped.confluent_name(int.from_bytes(data[1:CONFLUENT_HEADER_BYTES], "big"))


def sniff_bare(data: bytes, limits: ReadLimits) -> Packet | None:
    """Try the schemas that arrive bare; only one that uses up the bytes and yields a light curve is believed."""
    for name in SNIFFED_BARE_SCHEMAS:
        try:
            packet = read_bare(data, 0, plans.for_name(name), limits)
        except PacketError:
            continue
        if packet.curve is not None:
            return packet
    return None


def _unrecognised(framed: str | None) -> PacketError:
    if framed is not None:
        return PacketError(RejectReason.UNKNOWN_SCHEMA, f"framed with the id of schema {framed}, which is not at hand")
    return PacketError(RejectReason.UNKNOWN_ENVELOPE, "not an Avro container, Confluent framing or a bare known record")


def read_bare(data: bytes, start: int, plan: plans.Plan, limits: ReadLimits) -> Packet:
    """Read the record that fills ``data`` from ``start`` on; raises PacketError."""
    if len(data) - start > limits.max_record_bytes:
        raise PacketError(RejectReason.RECORD_TOO_LARGE, f"more than {limits.max_record_bytes} bytes", plan.survey)
    try:
        record, end = plan.decoder.read(data, start)
        if end != len(data):
            raise _trailing(plan)
        return build_packet(record, plan, limits)
    except PacketError as error:
        raise _of_survey(error, plan) from None


def read_container(data: bytes, limits: ReadLimits) -> Iterator[PacketOutcome]:
    """Read every record of a container; PacketError is raised only before the first, and yielded from there on."""
    header = containers.read_header(data)
    plan = plans.for_text(header.schema)
    room, empty = limits.max_records, True
    try:
        for block in containers.read_blocks(data, header, limits):
            empty = empty and block.count == 0
            yield from _block(block, plan, room, limits)
            room -= block.count
            if room < 0:
                raise PacketError(RejectReason.TOO_MANY_RECORDS, f"more than {limits.max_records} records")
        if empty:
            raise PacketError(RejectReason.NO_RECORDS, "the container holds no record")
    except PacketError as error:
        yield _of_survey(error, plan)


def _block(block: containers.Block, plan: plans.Plan, room: int, limits: ReadLimits) -> Iterator[PacketOutcome]:
    """PacketOutcomes of at most ``room`` records of a block; nothing after a damaged record can be found again."""
    end = 0
    try:
        for _ in range(min(block.count, room)):
            record, end = plan.decoder.read(block.data, end)
            yield _build(record, plan, limits)
        if block.count <= room and end != len(block.data):
            raise _trailing(plan)
    except PacketError as error:
        yield _of_survey(error, plan)


def _build(record: Record, plan: plans.Plan, limits: ReadLimits) -> PacketOutcome:
    try:
        return build_packet(record, plan, limits)
    except PacketError as error:
        return _of_survey(error, plan)


def _of_survey(error: PacketError, plan: plans.Plan) -> PacketError:
    error.survey = plan.survey
    return error


def _trailing(plan: plans.Plan) -> PacketError:
    return PacketError(RejectReason.MALFORMED_AVRO, f"bytes are left after the {plan.decoder.schema.name} record")
