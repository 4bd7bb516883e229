"""Results of decoding a packet: types, reasons, and limits on untrusted input.

Decoding an alert gives a :class:`Packet` with a light curve (to be classified), a :class:`Packet` without one
(*abstained*: a valid alert that should not be classified), or a :class:`PacketError` (*rejected*: bytes that are not an
alert of a known layout). The reasons are machine-readable and stable: they appear in responses and as metric labels.
"""

from dataclasses import dataclass
from enum import StrEnum

from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.limits import PACKET_SECONDS


class AbstainReason(StrEnum):
    """Reasons why a valid alert has no light curve to classify."""

    SOLAR_SYSTEM_OBJECT = "solar_system_object"
    """The source is a Solar System object."""
    NO_USABLE_POINTS = "no_usable_points"
    """All observations are withdrawn, upper limits, or lack a known filter, a time, a flux or a positive error."""


class RejectReason(StrEnum):
    """Reasons why bytes could not be decoded as an alert."""

    EMPTY = "empty"
    """There are no bytes."""
    UNKNOWN_ENVELOPE = "unknown_envelope"
    """No known envelope: not an Avro container, Confluent framing, JSON or a bare record of a known layout."""
    UNKNOWN_SCHEMA = "unknown_schema"
    """Unknown schema id or name, or an embedded schema without a survey's light-curve fields."""
    UNSAFE_SCHEMA = "unsafe_schema"
    """Embedded schema that is invalid, recursive, too deep or too large, or whose data could grow without bound."""
    TOO_MANY_SCHEMAS = "too_many_schemas"
    """Too many schemas in one request that were not seen before."""
    TOO_COSTLY = "too_costly"
    """Decoding exceeded the CPU time allowed for one packet."""
    UNSUPPORTED_CODEC = "unsupported_codec"
    """Container with a codec other than null, deflate or snappy."""
    TRUNCATED_AVRO = "truncated_avro"
    """The bytes end before the record does."""
    MALFORMED_AVRO = "malformed_avro"
    """The bytes contradict the schema, the container's framing or its checksums, or there are trailing bytes."""
    MALFORMED_JSON = "malformed_json"
    """Invalid JSON, or JSON that is neither an object nor a list of objects."""
    RECORD_TOO_LARGE = "record_too_large"
    """Record, container block or JSON document larger than the limit."""
    DECOMPRESSED_TOO_LARGE = "decompressed_too_large"
    """Data that decompress beyond the limits."""
    TOO_MANY_RECORDS = "too_many_records"
    """More records than the limit; those up to the limit are classified."""
    TOO_MANY_OBSERVATIONS = "too_many_observations"
    """Record with more observations than the limit."""
    NO_RECORDS = "no_records"
    """Well-formed container or list without records."""
    INTERNAL_ERROR = "internal_error"
    """Internal error, which affected this packet only; the detail has the source line."""


class PacketError(ValueError):
    """Bytes that could not be decoded as an alert; ``str(error)`` contains no packet content except ids.

    ``survey`` is set if it was known when decoding failed.
    """

    def __init__(self, reason: RejectReason, detail: str, survey: str | None = None) -> None:
        super().__init__(reason, detail)  # both, so that the error can be unpickled
        self.reason = reason
        self.detail = detail
        self.survey = survey

    def __str__(self) -> str:
        """Return the detail."""
        return self.detail

    def as_outcome(self) -> "PacketError":
        """Return the error without its traceback, which would keep the frames and the packet in memory."""
        self.__context__ = None
        return self.with_traceback(None)


@dataclass(frozen=True, slots=True)
class Packet:
    """Decoded alert.

    Attributes
    ----------
    schema_version : dotted (``"10.0"``), or ``"unknown"``.
    alert_id, object_id : decimal digits or survey names, empty if the packet has none; never converted to float.
    curve : light curve, None if there is nothing to classify, as ``reason`` says.
    detail : explanation of ``reason`` for people.
    source_id : id of the detection that caused the alert; in most surveys equal to ``alert_id``.
    mjd : TAI, mid-exposure, of that detection; None if unknown.
    """

    survey: str
    schema_version: str
    alert_id: str
    object_id: str
    curve: LightCurve | None
    reason: AbstainReason | None = None
    detail: str = ""
    source_id: str = ""
    mjd: float | None = None


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of decoding one packet.

    The largest real packets have 0.3 MB, 2,200 observations and one record, and compression shrinks real containers by
    less than half. The worst known block within these limits, with its own schema and rows of four bytes, takes about a
    second and 0.2 GB.

    Attributes
    ----------
    max_record_bytes : size of a bare record or of a decompressed block of a container.
    max_document_bytes : size of an alert as JSON, which is about ten times that of Avro.
    max_decompressed_bytes : sum over the blocks of a container.
    max_expansion : ratio of the decompressed to the compressed size of a container; up to 1 MiB is always allowed.
    max_records : number of records in a container.
    max_observations : number of observations in a record.
    max_seconds : CPU time for one packet, which may be a container with several records.
    """

    max_record_bytes: int = 2 << 20
    max_document_bytes: int = 8 << 20
    max_decompressed_bytes: int = 32 << 20
    max_expansion: int = 16
    max_records: int = 1000
    max_observations: int = 100_000
    max_seconds: float = PACKET_SECONDS
