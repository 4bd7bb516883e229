"""Decoding of alerts in any envelope, from requests, messages and files.

Five envelopes are in use: Avro object containers (ZTF, ALeRCE, Pitt-Google; any number of records, with the schema),
Confluent framing (Rubin: a zero byte, a big-endian 32-bit schema id, a bare record; Rubin's sample notes call it
little-endian), bare records (ELAsTiCC; without a schema), bare records with the schema in the message key (Fink), and
JSON. A :class:`TopicRule` takes precedence over detection, because a bare record may begin with any byte.

    packets = read_packet(Path("alert.avro").read_bytes())

JSON alerts (Lasair, Pitt-Google, hop), single or in a list, are read by :mod:`alerts.documents`. All messages
may be compressed with gzip.

The envelope is detected from the first bytes of the value. Otherwise a message key is used as the schema if it is the
schema of an Avro record. If decoding fails, the other possible envelopes are tried.
"""

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, model_validator

from nightjar_alerts.alerts import avro, containers, plans
from nightjar_alerts.alerts.documents import looks_like_json, parse_documents, read_document
from nightjar_alerts.alerts.packet import PacketError, ReadLimits, RejectReason
from nightjar_alerts.alerts.plans import NewSchemas
from nightjar_alerts.alerts.reader import (
    CONFLUENT_HEADER_BYTES,
    PacketOutcome,
    build_packet,
    read_bare,
    read_container,
    rejection,
    sniff_bare,
)
from nightjar_alerts.alerts.schema_registry import SchemaRegistry, SchemaUnavailableError

APICURIO_HEADER_BYTES: Final = 9

MessageHeaders = Sequence[tuple[str, bytes]]


class Envelope(StrEnum):
    """Envelopes of alerts in messages."""

    AUTO = "auto"
    CONFLUENT = "confluent"
    CONTAINER = "container"
    BARE = "bare"
    KEY = "key"
    JSON = "json"


class TopicRule(BaseModel):
    """Envelope and schema of the messages of a topic."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    envelope: Envelope = Envelope.AUTO
    schema_name: str | None = None

    @model_validator(mode="after")
    def _bare_needs_a_schema(self) -> Self:
        if (self.envelope is Envelope.BARE) != (self.schema_name is not None):
            raise ValueError("the envelope `bare`, and no other, needs a schema_name such as elasticc/0.9.1")
        return self


ANYTHING = TopicRule()


def rule_for(topic: str, rules: Mapping[str, TopicRule]) -> TopicRule:
    """Return the first rule whose pattern (``ztf_*``) matches the topic."""
    return next((rule for pattern, rule in rules.items() if fnmatchcase(topic, pattern)), ANYTHING)


@dataclass(frozen=True, slots=True)
class MessageReader:
    """Decodes messages. Thread-safe.

    Attributes
    ----------
    extra : folder with more schemas (see :mod:`alerts.avro`).
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
        headers: MessageHeaders = (),
    ) -> list[PacketOutcome]:
        """Decode all alerts of a message; return at least one outcome, which may be an error.

        No content makes it raise, or take more than ``limits.max_seconds`` of CPU time.

        Parameters
        ----------
        new : allowance of schemas that were not seen before.
        headers : headers of the message, which may contain the schema id.

        Raises
        ------
        SchemaUnavailableError
            If the message's schema must be fetched and the registry is unavailable.
        """
        outcomes: list[PacketOutcome] = []
        try:
            if not value:
                raise PacketError(RejectReason.EMPTY, "there are no bytes")
            if rule.envelope is Envelope.AUTO:
                packets = self._sniff(value, key, new, headers)
            else:
                packets = self._read(value, key, rule.envelope, new, rule.schema_name or "")
            outcomes.extend(packets)
        except SchemaUnavailableError:
            raise
        except Exception as error:  # keeps the alerts decoded before the error
            outcomes.append(rejection(error))
        return outcomes

    def _sniff(
        self, value: bytes, key: bytes | None, new: NewSchemas | None, headers: MessageHeaders
    ) -> Iterable[PacketOutcome]:
        """Try the possible envelopes, the most certain first; if all fail, raise the first error."""
        if value.startswith(GZIP_MAGIC):
            value = _gunzip(value, self.limits)
        if value.startswith(containers.MAGIC):
            return self._read(value, key, Envelope.CONTAINER, new)
        errors: list[PacketError | SchemaUnavailableError] = []
        try:
            if (schema_id := schema_id_in(headers)) is not None:
                return [read_bare(value, 0, self.registry.plan(schema_id), self.limits)]
        except (PacketError, SchemaUnavailableError) as error:
            errors.append(error)
        for envelope in _suggested(value, key):
            try:
                return self._read(value, key, envelope, new)
            except (PacketError, SchemaUnavailableError) as error:
                errors.append(error)
        if packet := sniff_bare(value, self.limits):
            return [packet]
        if errors:
            raise errors[0]
        detail = "neither an Avro container, nor an Avro record with a known schema, nor JSON"
        raise PacketError(RejectReason.UNKNOWN_ENVELOPE, detail)

    def _read(
        self, value: bytes, key: bytes | None, envelope: Envelope, new: NewSchemas | None, schema: str = ""
    ) -> Iterable[PacketOutcome]:
        match envelope:
            case Envelope.CONTAINER if value.startswith(containers.MAGIC):
                return read_container(value, self.limits, new)
            case Envelope.KEY if key:
                return [read_bare(value, 0, plans.for_text(key, new), self.limits)]
            case Envelope.JSON:
                return self._documents(value)
            case Envelope.BARE:
                return [read_bare(value, 0, plans.for_name(schema, self.extra), self.limits)]
            case Envelope.CONFLUENT if value[0] == 0 and len(value) >= CONFLUENT_HEADER_BYTES:
                schema_id, start = framed_id(value)
                return [read_bare(value, start, self.registry.plan(schema_id), self.limits)]
        raise PacketError(RejectReason.UNKNOWN_ENVELOPE, f"the message is not in the envelope {envelope}")

    def _documents(self, value: bytes) -> list[PacketOutcome]:
        """Read the alerts of a JSON document. Raises PacketError if there is only one and it cannot be read."""
        outcomes: list[PacketOutcome] = []
        for document in parse_documents(value, self.limits):
            try:
                if isinstance(document, PacketError):
                    raise document
                outcomes.append(build_packet(*read_document(document, self.limits), self.limits))
            except Exception as error:  # the other alerts of a list can still be read
                outcomes.append(rejection(error))
        if len(outcomes) == 1 and isinstance(outcomes[0], PacketError):
            raise outcomes[0]
        return outcomes


def framed_id(value: bytes) -> tuple[int, int]:
    """Return the schema id of a framed record, and the offset of the record.

    Confluent's ids have four bytes and begin at 1. If those are zero, the id has eight bytes, as written by Apicurio's
    serializers.
    """
    end = CONFLUENT_HEADER_BYTES
    if not any(value[1:end]) and len(value) >= APICURIO_HEADER_BYTES:
        end = APICURIO_HEADER_BYTES
    return int.from_bytes(value[1:end], "big"), end


GZIP_MAGIC: Final = b"\x1f\x8b\x08"
GZIP_CHUNK_BYTES: Final = 65_536
MAX_GZIP_MEMBERS: Final = 10_000


def _gunzip(value: bytes, limits: ReadLimits) -> bytes:
    """Decompress a message, of one or more gzip members, within the limits of a container. Raises PacketError."""
    limit = min(limits.max_decompressed_bytes, max(containers.ALWAYS_READ_BYTES, limits.max_expansion * len(value)))
    data, at, members = bytearray(), 0, 0
    while at < len(value):
        if members and not value[at] and not value[at:].strip(b"\0"):
            break  # gzip allows padding with zeros
        if (members := members + 1) > MAX_GZIP_MEMBERS:
            raise PacketError(RejectReason.UNKNOWN_ENVELOPE, f"more than {MAX_GZIP_MEMBERS} gzip members")
        inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        while at < len(value) and not inflater.eof:
            # in chunks, because zlib copies the data after the member
            chunk = value[at : at + GZIP_CHUNK_BYTES]
            try:
                data += inflater.decompress(chunk, limit + 1 - len(data))
            except zlib.error:
                raise PacketError(RejectReason.UNKNOWN_ENVELOPE, "the gzip data are corrupt") from None
            if len(data) > limit:
                detail = f"the gzip data decompress to more than {limit} bytes"
                raise PacketError(RejectReason.DECOMPRESSED_TOO_LARGE, detail)
            at += len(chunk) - len(inflater.unused_data)
        if not inflater.eof:
            raise PacketError(RejectReason.UNKNOWN_ENVELOPE, "the gzip data end early")
    if not data:
        raise PacketError(RejectReason.EMPTY, "there are no bytes in the gzip data")
    return bytes(data)


LONGEST_ID_TEXT: Final = 10
SCHEMA_ID_HEADERS: Final = ("__value_schema_id", "apicurio.value.globalId", "apicurio.value.contentId")


def schema_id_in(headers: MessageHeaders) -> int | None:
    """Return the schema id in a message's headers, as written by Confluent's and Apicurio's serializers.

    Raises
    ------
    PacketError
        ``unknown_schema`` for an unsupported id: a GUID, or bytes of another length.
    """
    for name, value in headers:
        if name in SCHEMA_ID_HEADERS:
            if value.isdigit() and len(value) <= LONGEST_ID_TEXT:  # text, as written by hand into a field in Redis
                return int(value)
            if len(value) in (4, 8):
                return int.from_bytes(value, "big")
            if len(value) == CONFLUENT_HEADER_BYTES and value[0] == 0:
                return int.from_bytes(value[1:], "big")
            detail = f"the header {name} states the schema by {value[:20].hex()}, which is no integer id"
            raise PacketError(RejectReason.UNKNOWN_SCHEMA, detail)
    return None


def _suggested(value: bytes, key: bytes | None) -> list[Envelope]:
    """Return the possible envelopes of a value and its key, the most certain first."""
    framed = value[0] == 0 and len(value) >= CONFLUENT_HEADER_BYTES
    suggested = []
    if framed and avro.exists(avro.confluent_name(framed_id(value)[0])):
        suggested.append(Envelope.CONFLUENT)
    if key is not None and _RECORD_SCHEMA.match(key) and b'"record"' in key:
        suggested.append(Envelope.KEY)
    if looks_like_json(value):
        suggested.append(Envelope.JSON)
    if framed and Envelope.CONFLUENT not in suggested:
        suggested.append(Envelope.CONFLUENT)
    return suggested


_RECORD_SCHEMA: Final = re.compile(rb"\s*\{")


def read_packet(
    data: bytes, schema: str | None = None, extra_schemas: Path | None = None, limits: ReadLimits | None = None
) -> list[PacketOutcome]:
    """Read every alert in ``data``, without a schema registry.

    Does not raise for invalid bytes: each alert that cannot be read is a :class:`PacketError` in the list.

    Parameters
    ----------
    schema : name of a shipped schema (``elasticc/0.9.1``) if ``data`` is a bare record of it, without any framing; the
        envelope is then not detected.
    extra_schemas : folder with more schemas (see :mod:`alerts.avro`).

    Returns
    -------
    At least one outcome. A damaged record in a container makes the rest of its block unreadable, but no other block.
    """
    reader = MessageReader(SchemaRegistry(extra=extra_schemas), limits or ReadLimits(), extra_schemas)
    return reader.read(data, rule=rule_of(schema))


def rule_of(schema: str | None) -> TopicRule:
    """Return the rule for bare records of a schema; without a schema the envelope is detected."""
    return ANYTHING if schema is None else TopicRule(envelope=Envelope.BARE, schema_name=schema)
