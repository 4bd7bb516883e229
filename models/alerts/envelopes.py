"""Bytes of an alert, in whatever envelope they arrived, to packets: for requests, messages and files alike.

Five envelopes are known (:mod:`models.alerts.topics`): Avro object containers (ZTF, brokers; any number of records,
schema inside), Confluent framing (Rubin: a zero byte, a big-endian 32-bit schema id, a bare record; Rubin's own sample
notes call it little-endian), bare records (ELAsTiCC: nothing says which schema), bare records whose schema is the
message's key (Fink) and JSON. What is known beforehand wins over sniffing: a bare record may begin with any byte.

    packets = read_packet(Path("alert.avro").read_bytes())
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from models.alerts import containers, plans
from models.alerts.adapters import build_packet
from models.alerts.documents import read_document
from models.alerts.packet import PacketError, ReadLimits, RejectReason
from models.alerts.plans import NewSchemas, Plan
from models.alerts.reader import (
    CONFLUENT_HEADER_BYTES,
    PacketOutcome,
    read_bare,
    read_container,
    rejection,
    sniff_bare,
)
from models.alerts.schema_registry import SchemaRegistry, SchemaUnavailableError
from models.alerts.topics import ANYTHING, Envelope, TopicRule


@dataclass(frozen=True, slots=True)
class MessageReader:
    """Reads messages; safe to use from several threads.

    Attributes
    ----------
    extra : folder with more schemas (see :mod:`models.alerts.shipped`).
    """

    registry: SchemaRegistry
    limits: ReadLimits
    extra: Path | None = None

    def read(
        self,
        value: bytes,
        key: bytes | None = None,
        rule: TopicRule = ANYTHING,
        new: NewSchemas | None = None,
    ) -> list[PacketOutcome]:
        """Read every alert of a message; at least one outcome, and whatever cannot be read is one.

        Nothing that the bytes hold makes it raise, and none of them cost more than ``limits.max_seconds`` of work.

        Parameters
        ----------
        new : how many schemas may still come that were not seen before.

        Raises
        ------
        SchemaUnavailableError
            When the message's schema must be fetched, and cannot be now.
        """
        outcomes: list[PacketOutcome] = []
        try:
            if not value:
                raise PacketError(RejectReason.EMPTY, "there are no bytes")
            if rule.envelope is Envelope.AUTO:
                found = self._sniff(value, key, new)
            else:
                found = self._read(value, key, rule.envelope, new, rule.schema_name or "")
            outcomes.extend(found)
        except SchemaUnavailableError:
            raise
        except Exception as error:  # the fence: what was read before is good, and what was not has its reason
            outcomes.append(rejection(error))
        return outcomes

    def _sniff(self, value: bytes, key: bytes | None, new: NewSchemas | None) -> Iterable[PacketOutcome]:
        """As the first bytes say; but a bare record may begin with any bytes."""
        envelope = _sniffed(value, key)
        if envelope is Envelope.CONTAINER:
            return self._read(value, key, envelope, new)
        try:
            return self._read(value, key, envelope, new)
        except (PacketError, SchemaUnavailableError):
            if packet := sniff_bare(value, self.limits):
                return [packet]
            raise

    def _read(
        self, value: bytes, key: bytes | None, envelope: Envelope, new: NewSchemas | None, schema: str = ""
    ) -> Iterable[PacketOutcome]:
        match envelope:
            case Envelope.CONTAINER if value.startswith(containers.MAGIC):
                return read_container(value, self.limits, new)
            case Envelope.KEY if key:
                return [read_bare(value, 0, plans.for_text(key, new), self.limits)]
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


def read_packet(
    data: bytes, schema: str | None = None, extra_schemas: Path | None = None, limits: ReadLimits | None = None
) -> list[PacketOutcome]:
    """Read every alert in ``data``, without a registry.

    Never raises for what the bytes hold: whatever cannot be read is a :class:`PacketError` in the list, at its place.

    Parameters
    ----------
    schema : name of a schema at hand (``elasticc/0.9.1``) when ``data`` is known to be one bare record of it, without
        any framing; nothing is sniffed then.
    extra_schemas : folder with more schemas (see :mod:`models.alerts.shipped`).

    Returns
    -------
    At least one outcome. A damaged record in a container costs itself and the rest of its block, not its neighbours in
    other blocks.
    """
    reader = MessageReader(SchemaRegistry(extra=extra_schemas), limits or ReadLimits(), extra_schemas)
    return reader.read(data, rule=rule_of(schema))


def rule_of(schema: str | None) -> TopicRule:
    """Return the rule of bytes that are bare records of a schema; without one they are sniffed."""
    return ANYTHING if schema is None else TopicRule(envelope=Envelope.BARE, schema_name=schema)
