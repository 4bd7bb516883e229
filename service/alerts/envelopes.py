"""Messages of a broker to packets, whatever their envelope (:mod:`service.alerts.topics`).

What a topic's rule says wins; without a rule the bytes are sniffed.
"""

from dataclasses import dataclass
from pathlib import Path

from service.alerts import containers, plans
from service.alerts.adapters import build_packet
from service.alerts.documents import read_document
from service.alerts.packet import PacketError, ReadLimits, RejectReason
from service.alerts.plans import Plan
from service.alerts.reader import CONFLUENT_HEADER_BYTES, PacketOutcome, read_bare, read_container, sniff_bare
from service.alerts.registry import SchemaRegistry, SchemaUnavailableError
from service.alerts.topics import ANYTHING, Envelope, TopicRule


@dataclass(frozen=True, slots=True)
class MessageReader:
    """Reads messages; safe to use from several threads.

    Attributes
    ----------
    extra : folder with more schemas (see :mod:`service.alerts.shipped`).
    """

    registry: SchemaRegistry
    limits: ReadLimits
    extra: Path | None = None

    def read(self, value: bytes, key: bytes | None = None, rule: TopicRule = ANYTHING) -> list[PacketOutcome]:
        """Read every alert of a message; at least one outcome, and whatever cannot be read is one.

        Raises
        ------
        SchemaUnavailableError
            When the message's schema must be fetched, and cannot be now.
        """
        try:
            if not value:
                raise PacketError(RejectReason.EMPTY, "the message has no value")
            if rule.envelope is Envelope.AUTO:
                return self._sniff(value, key)
            return self._read(value, key, rule.envelope, rule.schema_name or "")
        except PacketError as error:
            return [error]

    def _sniff(self, value: bytes, key: bytes | None) -> list[PacketOutcome]:
        """As the first bytes say; but a bare record may begin with any bytes."""
        try:
            return self._read(value, key, _sniffed(value, key))
        except (PacketError, SchemaUnavailableError):
            if packet := sniff_bare(value, self.limits):
                return [packet]
            raise

    def _read(self, value: bytes, key: bytes | None, envelope: Envelope, schema: str = "") -> list[PacketOutcome]:
        match envelope:
            case Envelope.CONTAINER if value.startswith(containers.MAGIC):
                return list(read_container(value, self.limits))
            case Envelope.KEY if key:
                return [read_bare(value, 0, plans.for_text(key), self.limits)]
            case Envelope.JSON:
                return [self._document(value)]
            case Envelope.BARE:
                return [read_bare(value, 0, plans.for_name(schema, self.extra), self.limits)]
            case Envelope.CONFLUENT if value[0] == 0 and len(value) >= CONFLUENT_HEADER_BYTES:
                return [read_bare(value, CONFLUENT_HEADER_BYTES, self._framed(value), self.limits)]
            case Envelope.AUTO:
                detail = "not an Avro container, framed, with a schema as its key, JSON or a bare known record"
                raise PacketError(RejectReason.UNKNOWN_ENVELOPE, detail)
        raise PacketError(RejectReason.UNKNOWN_ENVELOPE, f"the message is not in the envelope {envelope}")

    def _document(self, value: bytes) -> PacketOutcome:
        if len(value) > self.limits.max_record_bytes:
            raise PacketError(RejectReason.RECORD_TOO_LARGE, f"more than {self.limits.max_record_bytes} bytes")
        values, plan = read_document(value)
        return build_packet(values, plan, self.limits)

    def _framed(self, value: bytes) -> Plan:
        return self.registry.plan(int.from_bytes(value[1:CONFLUENT_HEADER_BYTES], "big"))


def _sniffed(value: bytes, key: bytes | None) -> Envelope:
    if value.startswith(containers.MAGIC):
        return Envelope.CONTAINER
    if key is not None and key[:64].lstrip().startswith(b"{"):
        return Envelope.KEY
    if value[:64].lstrip()[:1] == b"{":
        return Envelope.JSON
    return Envelope.CONFLUENT if value[0] == 0 and len(value) >= CONFLUENT_HEADER_BYTES else Envelope.AUTO
