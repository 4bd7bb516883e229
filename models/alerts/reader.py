"""Records to packets: bare ones and those of containers, each behind a fence of its own.

What cannot be read becomes a :class:`PacketError` at its place, whatever went wrong: a record that breaks the reader
costs itself, not its neighbours. Which envelope some bytes are in is the business of :mod:`models.alerts.envelopes`.
"""

import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from models.alerts import containers, plans
from models.alerts.adapters import Alert, Record, build_alert, build_packet
from models.alerts.packet import Packet, PacketError, ReadLimits, RejectReason
from models.alerts.surveys import SURVEYS
from models.limits import Allowance, TooCostly

CONFLUENT_HEADER_BYTES: Final = 5
SNIFFED_BARE_SCHEMAS: Final = tuple(name for survey in SURVEYS for name in survey.bare)

TRACEBACK_FRAMES: Final = 20
"""Of a fault, which a stranger may cause a thousand times; a recursion has as many frames."""

PacketOutcome = Packet | PacketError

log = logging.getLogger(__name__)


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


def rejection(error: Exception) -> PacketError:
    """Turn any exception of a reader into a refusal. A fault of ours is logged with its place."""
    if isinstance(error, PacketError):
        return error
    if isinstance(error, RecursionError):
        return PacketError(RejectReason.UNSAFE_SCHEMA, "the packet is nested too deeply")
    if isinstance(error, TooCostly):
        return PacketError(RejectReason.TOO_COSTLY, str(error))
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}"
    told = "".join(traceback.format_exception(error, limit=-TRACEBACK_FRAMES))
    log.error("a packet broke the reader: %s\n%s", where, told)
    return PacketError(RejectReason.INTERNAL_ERROR, where)


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


def read_container(
    data: bytes, limits: ReadLimits, new: plans.NewSchemas | None = None, allowance: Allowance | None = None
) -> Iterator[PacketOutcome]:
    """Read every record of a container; PacketError is raised only before the first, and yielded from there on.

    Parameters
    ----------
    new : how many schemas may still come that were not seen before.
    allowance : time for all of the container; TooCostly is raised when it is over.
    """
    allowance = allowance or Allowance(limits.max_seconds)
    header = containers.read_header(data)
    plan = plans.for_text(header.schema, new)
    room, empty = limits.max_records, True
    try:
        for block in containers.read_blocks(data, header, limits):
            empty = empty and block.count == 0
            yield from _block(block, plan, room, limits, allowance)
            room -= block.count
            if room < 0:
                raise PacketError(RejectReason.TOO_MANY_RECORDS, f"more than {limits.max_records} records")
        if empty:
            raise PacketError(RejectReason.NO_RECORDS, "the container holds no record")
    except PacketError as error:
        yield _of_survey(error, plan)


def read_alerts(data: bytes, limits: ReadLimits) -> Iterator[Alert]:
    """Read every alert of a container as converted rows, for archives; what is damaged ends the reading.

    Raises
    ------
    PacketError
        At the first record that cannot be read, and for a container that holds none.
    """
    header = containers.read_header(data)
    plan = plans.for_text(header.schema)
    found = 0
    for block in containers.read_blocks(data, header, limits):
        end = 0
        for _ in range(block.count):
            record, end = plan.decoder.read(block.data, end)
            yield build_alert(record, plan, limits)
            found += 1
        if end != len(block.data):
            raise _trailing(plan)
    if not found:
        raise PacketError(RejectReason.NO_RECORDS, "the container holds no record")


def _block(
    block: containers.Block, plan: plans.Plan, room: int, limits: ReadLimits, allowance: Allowance
) -> Iterator[PacketOutcome]:
    """PacketOutcomes of at most ``room`` records of a block; nothing after a damaged record can be found again."""
    end = 0
    try:
        for _ in range(min(block.count, room)):
            allowance.check()
            record, end = plan.decoder.read(block.data, end)
            yield _build(record, plan, limits)
        if block.count <= room and end != len(block.data):
            raise _trailing(plan)
    except PacketError as error:
        yield _of_survey(error, plan)


def _build(record: Record, plan: plans.Plan, limits: ReadLimits) -> PacketOutcome:
    try:
        return build_packet(record, plan, limits)
    except Exception as error:  # whatever it is, the records behind this one can be read
        return _of_survey(rejection(error), plan)


def _of_survey(error: PacketError, plan: plans.Plan) -> PacketError:
    error.survey = plan.survey
    return error


def _trailing(plan: plans.Plan) -> PacketError:
    return PacketError(RejectReason.MALFORMED_AVRO, f"bytes are left after the {plan.decoder.schema.name} record")
