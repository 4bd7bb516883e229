"""Messages and results of a worker, and the protocols :class:`Source` and :class:`Sink`.

Methods of sources and sinks block, so they are called in threads. ``poll``, ``heartbeat`` and ``close`` of a source are
called from the one thread that owns it; its other methods, and all methods of a sink, from several threads at once.

Operations that fail temporarily are retried with exponential backoff and jitter, up to ten seconds (:func:`backoff`).
:class:`ActiveErrors` holds the current errors.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import structlog

from nightjar_alerts.alerts.packet import Packet
from nightjar_alerts.core.items import Outcome
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.evolution import History
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.registry.serving import ModelHandle

log = structlog.get_logger(__name__)

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a broker delivered it.

    Attributes
    ----------
    topic : topic, stream or folder.
    message_id : id in the topic (``partition:offset``, a stream id, a file name); unique there.
    timestamp_ms : timestamp of the broker, milliseconds since 1970; None if it has none.
    deliveries : number of deliveries, as far as the broker counts them.
    token : used by the source only, for :meth:`Source.acknowledge`.
    unread : True if the bytes were not fetched, because fetching them may kill the process.
    tombstone : True for a null value, which contains no alert.
    """

    topic: str
    message_id: str
    value: bytes
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    deliveries: int = 1
    token: object = None
    unread: bool = False
    tombstone: bool = False


def identity(message: Message) -> int:
    """Return a key that is unique among the messages in flight, unlike their ids.

    A replay may contain two dead letters of one message, which are restored to the same id, if a worker was killed
    after it had written the dead letter and before it acknowledged the message.
    """
    return id(message)


Stage = Literal["deliver", "decode", "classify", "encode", "publish", "worker"]
"""Stage at which a message failed, as named in headers of dead letters and in metrics."""


@dataclass(frozen=True, slots=True)
class DeadLetterCause:
    """Cause of a dead letter: the stage, a machine-readable reason, and a description."""

    stage: Stage
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """A record to publish. Records with the same key have the same content, so consumers may keep any of them."""

    key: bytes
    value: bytes
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """Status of a source.

    Attributes
    ----------
    error : reason why nothing can be consumed; empty if no error is known.
    assigned : number of partitions assigned to this worker; None if the broker has no partitions.
    lag : messages that wait at the broker or are not yet acknowledged, by topic and partition ("" without partitions).
    waiting : messages at the broker that could be consumed now, as far as known.
    member : False while this worker is not a member of its consumer group.
    """

    error: str = ""
    assigned: int | None = None
    lag: Mapping[tuple[str, str], int] = field(default_factory=dict)
    waiting: int = 0
    member: bool = True


class TransientError(Exception):
    """The broker cannot be used now; the same call may succeed later."""


class FatalError(Exception):
    """The client of a broker cannot recover: the process must end, and its supervisor restarts it."""


class PermanentError(Exception):
    """The broker will never accept this record, although it accepts other records."""


class RecordTooLargeError(PermanentError):
    """The record is larger than the broker or topic accepts."""


DeliveryReport = PermanentError | TransientError | None
"""Delivery report of one record: None if it was acknowledged, else the error."""
MAX_TOPIC_LENGTH: Final = 255
"""Maximum length of a topic name: Kafka allows 249 characters, file systems 255 bytes."""

PART_MESSAGES: Final = 24
"""Maximum number of messages that are published together if the source has a commit window."""


class Source(Protocol):
    """Source of messages: a worker polls, acknowledges and gives back messages (``close``)."""

    finite: bool
    """True if the source ends: an empty result of ``poll`` then means that there are no more messages."""

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Return up to ``limit`` messages; waits about ``timeout`` seconds for the first. Raises TransientError."""

    def heartbeat(self, seconds: float) -> None:
        """Stay a member of the group for about ``seconds``; called instead of ``poll`` while there is no capacity."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Acknowledge messages. Raises TransientError: they may be delivered again, and nothing is lost."""

    def commit_window(self) -> int | None:
        """Return how many more messages may be published before offsets are committed; None for any number."""

    def check_access(self) -> str:
        """Return why the broker rejects this client, or a command that it needs; empty if it accepts them.

        Called once, at the start. A broker that does not respond counts as accepting.
        """

    def owns(self, message: Message) -> bool:
        """Return whether a message still belongs to this worker; False once its partition has another owner."""

    def status(self) -> SourceStatus:
        """Return the status; called every few seconds."""

    def close(self, clean: bool = True) -> None:
        """Give back messages that were not acknowledged, and disconnect.

        Parameters
        ----------
        clean : True for a graceful stop: this delivery of the messages does not count. False if one of them may have
            caused the stop.
        """


class FiniteSource:
    """Base of finite sources: files, and ranges of a topic or stream. They have no group and commit nothing.

    Attributes
    ----------
    ranges : range to read of each partition or stream, for the final account.
    unmatched : topics, partitions and ranges of the address that match nothing.
    """

    finite = True
    ranges: Mapping[str, str] = {}
    unmatched: Sequence[str] = ()

    def heartbeat(self, seconds: float) -> None:
        """Sleep: there is no group to stay in."""
        time.sleep(seconds)

    def commit_window(self) -> None:
        """Return None: there is nothing to commit."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Do nothing: positions are not kept."""

    def check_access(self) -> str:
        """Return an empty string: a source that cannot be read raises when it is opened."""
        return ""

    def owns(self, message: Message) -> bool:
        """Return True: no other worker gets these messages."""
        return True

    def status(self) -> SourceStatus:
        """Return an empty status: the backlog of a replay is not reported."""
        return SourceStatus()

    def close(self, clean: bool = True) -> None:
        """Do nothing: there is no connection, and deliveries are not counted."""


class Sink(Protocol):
    """Destination of records."""

    def publish(self, records: Sequence[Record]) -> list[DeliveryReport]:
        """Send records and wait for the delivery report of each."""

    def check_access(self) -> str:
        """Return why the broker rejects this client; see :meth:`Source.check_access`."""

    @property
    def error(self) -> str:
        """Reason why nothing can be published, as far as known before a record is sent; empty without an error."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True, eq=False)
class AlertResult:
    """An alert with its outcome, classified or abstained.

    Attributes
    ----------
    number : index of the alert in its message; a container may hold several.
    received_ms : time of the poll, milliseconds since 1970.
    prior : name of the prior, used if the model has it; empty for the default prior of the model.
    evolution : light curve after each detection, and the outcome of each; None unless requested.
    record : encoded result; None before encoding, or if the format cannot express it.
    """

    message: Message
    number: int
    packet: Packet
    outcome: Outcome
    handle: ModelHandle
    received_ms: int
    prior: str = ""
    evolution: tuple[History, Sequence[Outcome]] | None = None
    record: Record | None = None

    @property
    def bundle(self) -> Bundle:
        """Bundle of the model."""
        return self.handle.bundle

    @property
    def key(self) -> str:
        """Key from topic, alert and model: the same for every delivery, different for every model version.

        It includes the topic because ELAsTiCC sends the same alert id with two lengths of history on two topics.
        """
        manifest = self.bundle.manifest
        alert = self.packet.alert_id or f"{self.message.message_id}+{self.number}"
        return f"{self.message.topic}/{alert}/{manifest.name}-{manifest.version}"


FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # seconds; short, so that work resumes soon after a broker recovers
JITTER: Final = 0.5  # workers that lose a broker at the same time must not retry at the same time


def backoff() -> Iterator[float]:
    """Yield the seconds to wait after each failed attempt: doubled each time up to ten seconds, with jitter."""
    pause = FIRST_PAUSE
    while True:
        yield pause * random.uniform(1 - JITTER, 1 + JITTER)
        pause = min(LONGEST_PAUSE, 2 * pause)


class ActiveErrors:
    """Current errors of the worker by step, for probes and logs."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._now: dict[str, str] = {}

    def set(self, step: str, reason: str) -> None:
        """Record a failed attempt."""
        self._metrics.stream_retries.labels(step).inc()
        if step not in self._now:
            log.warning("operation failed, retrying", step=step, reason=reason)
        self._now[step] = reason

    def clear(self, step: str) -> None:
        """Record that a step succeeded."""
        if self._now.pop(step, None) is not None:
            log.info("operation recovered", step=step)

    def __contains__(self, step: object) -> bool:
        """Return whether a step is failing."""
        return step in self._now

    def __str__(self) -> str:
        """Return the failing steps with their reasons; empty if there are none."""
        return "; ".join(f"{step}: {reason}" for step, reason in self._now.items())

    async def wait(self, step: str, reason: str, pause: float) -> None:
        """Record a failed attempt and pause."""
        self.set(step, reason)
        await asyncio.sleep(pause)
