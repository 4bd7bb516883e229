"""Results of reading a packet: their types, the closed sets of reasons, and the limits on hostile input.

A packet ends in exactly one of three ways: a :class:`Packet` with a curve (to be classified), a :class:`Packet` without
one (*abstained*: a sound alert that a light-curve classifier should not answer), or a :class:`PacketError` (*rejected*:
bytes that are not an alert of a known layout). The reasons are machine-readable and stable: they appear in replies and
as metric labels.
"""

from dataclasses import dataclass
from enum import StrEnum

from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.limits import PACKET_SECONDS


class AbstainReason(StrEnum):
    """Reasons for which a sound alert carries no light curve to classify."""

    SOLAR_SYSTEM_OBJECT = "solar_system_object"
    """The source belongs to a moving object and to no fixed one."""
    NO_USABLE_POINTS = "no_usable_points"
    """Every observation is withdrawn, an upper limit, without a known filter, a time, a flux or a positive error."""


class RejectReason(StrEnum):
    """Reasons for which bytes could not be read as an alert."""

    EMPTY = "empty"
    """No bytes at all."""
    UNKNOWN_ENVELOPE = "unknown_envelope"
    """Neither an Avro container, nor Confluent framing, nor a bare record of a layout that is tried unasked."""
    UNKNOWN_SCHEMA = "unknown_schema"
    """A schema id or name that is not at hand, or an embedded schema without a survey's light-curve fields."""
    UNSAFE_SCHEMA = "unsafe_schema"
    """An embedded schema that is broken, recursive, too deep or too large, or whose data could grow without bound."""
    TOO_MANY_SCHEMAS = "too_many_schemas"
    """One more schema of its own than a request may bring that was not seen before."""
    TOO_COSTLY = "too_costly"
    """Reading it took longer than one packet may keep others waiting."""
    UNSUPPORTED_CODEC = "unsupported_codec"
    """A container compressed with something other than null, deflate or snappy."""
    TRUNCATED_AVRO = "truncated_avro"
    """The bytes end before the record does."""
    MALFORMED_AVRO = "malformed_avro"
    """The bytes contradict the schema, the container's framing or its checksums, or go on after the record."""
    MALFORMED_JSON = "malformed_json"
    """Text that is not one JSON object."""
    RECORD_TOO_LARGE = "record_too_large"
    """A bare record or a container block longer than the limit."""
    DECOMPRESSED_TOO_LARGE = "decompressed_too_large"
    """Container blocks that decompress beyond the limits."""
    TOO_MANY_RECORDS = "too_many_records"
    """A container with more records than the limit; those before it are answered."""
    TOO_MANY_OBSERVATIONS = "too_many_observations"
    """A record with more observations than the limit."""
    NO_RECORDS = "no_records"
    """A well-formed container without a single record."""
    INTERNAL_ERROR = "internal_error"
    """An internal error, which affected this packet only; the detail names the place."""


class PacketError(ValueError):
    """Bytes that could not be read as an alert; ``str(error)`` is for people and holds no packet content but ids.

    ``survey`` is set when it was known before reading failed.
    """

    def __init__(self, reason: RejectReason, detail: str, survey: str | None = None) -> None:
        super().__init__(reason, detail)  # both, so that the error survives pickling between processes
        self.reason = reason
        self.detail = detail
        self.survey = survey

    def __str__(self) -> str:
        """Return the text for people."""
        return self.detail

    def as_outcome(self) -> "PacketError":
        """Return the error without its traceback: as a value it would keep the frames, the bytes and itself alive."""
        self.__context__ = None
        return self.with_traceback(None)


@dataclass(frozen=True, slots=True)
class Packet:
    """One alert.

    Attributes
    ----------
    schema_version : dotted (``"10.0"``), ``"unknown"`` when the packet does not say.
    alert_id, object_id : decimal digits or survey names, empty when the packet has none; never passed through a float.
    curve : the light curve, None when ``reason`` says why there is nothing to classify.
    detail : for people, in addition to ``reason``.
    source_id : of the detection that caused the alert; in most surveys the same as ``alert_id``.
    mjd : TAI, mid-exposure, of that detection; None when the packet does not say.
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
    """Bounds on what one call may unpack.

    The largest real packets have 0.3 MB, 2,200 observations and one record, and real containers shrink by less than
    half. The worst block known to stay within these bounds, with a schema of its own and rows of four bytes, costs
    about a second and 0.2 GB.

    Attributes
    ----------
    max_record_bytes : length of a bare record or of one block of a container, decompressed.
    max_document_bytes : length of an alert as JSON, which takes some ten times the bytes of Avro.
    max_decompressed_bytes : sum over the blocks of a container.
    max_expansion : decompressed over compressed size of a container; blocks of up to 1 MiB in all are always read.
    max_records : records in a container.
    max_observations : observations in a record.
    max_seconds : of work on one packet, a container with all its records.
    """

    max_record_bytes: int = 2 << 20
    max_document_bytes: int = 8 << 20
    max_decompressed_bytes: int = 32 << 20
    max_expansion: int = 16
    max_records: int = 1000
    max_observations: int = 100_000
    max_seconds: float = PACKET_SECONDS
