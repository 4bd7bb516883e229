"""Messages and results of a worker, and the protocols of its ends: :class:`Source` and :class:`Sink`.

Both ends block and are used from threads: a source's ``poll``, ``heartbeat`` and ``close`` from one, which owns it;
all else of a source, and everything of a sink, from several at once.

What fails for now is tried again after a pause that doubles, up to ten seconds, with jitter (:func:`backoff`);
:class:`ActiveErrors` holds what fails.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import structlog

from nightjar_alerts.models.alerts.packet import Packet
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.evolution import History
from nightjar_alerts.service.inference import Outcome
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.registry.serving import ModelHandle

log = structlog.get_logger(__name__)

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes as a broker delivered them.

    Attributes
    ----------
    topic : topic, stream or folder.
    message_id : id in the topic (``partition:offset``, a stream id, a file name); unique there.
    timestamp_ms : timestamp of the broker, milliseconds since 1970; None when it has none.
    deliveries : number of deliveries, as far as the broker counts them.
    token : private to the source, for :meth:`Source.acknowledge`.
    unread : True if the bytes were not fetched, since fetching may be what kills the process; its dead letter has none.
    tombstone : True for a null value: there is nothing to classify, and nothing to keep.
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
    """Return a key that tells apart all messages in flight, which their ids do not.

    Two dead letters of one message have two ids and are restored to the same one: a worker was killed after it had
    written the dead letter, and before it could acknowledge the message.
    """
    return id(message)


Stage = Literal["deliver", "decode", "classify", "encode", "publish", "worker"]
"""Stage at which a message failed; headers of dead letters and metrics have these names."""


@dataclass(frozen=True, slots=True)
class DeadLetterCause:
    """Cause of a dead letter: the stage, a machine-readable reason, and a text for people."""

    stage: Stage
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """Bytes to publish. Records with the same key have the same content: a reader may keep any one of them."""

    key: bytes
    value: bytes
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """Status of a source with its broker.

    Attributes
    ----------
    error : reason why nothing can be consumed; empty when nothing is known to be wrong.
    assigned : number of partitions assigned to this worker; None where the broker has none.
    lag : messages that wait at the broker or are not yet done, by topic and partition ("" where there are none).
    waiting : messages at the broker that could be consumed now, as far as it is known.
    member : False while the group that shares the topics does not count this worker in.
    """

    error: str = ""
    assigned: int | None = None
    lag: Mapping[tuple[str, str], int] = field(default_factory=dict)
    waiting: int = 0
    member: bool = True


class TransientError(Exception):
    """The broker cannot be used now; the same call may succeed later."""


class FatalError(Exception):
    """The client of a broker can do nothing more: the process must end, and its supervisor start another one."""


class PermanentError(Exception):
    """The broker will never accept this record, and accepts others."""


class RecordTooLargeError(PermanentError):
    """The record is larger than the broker or topic accepts."""


DeliveryReport = PermanentError | TransientError | None
"""Report of one record: None once it is acknowledged, or the error."""
LONGEST_TOPIC: Final = 255
"""Longest name of a topic that is accepted: Kafka allows 249 characters, file systems 255 bytes."""

PART_MESSAGES: Final = 24
"""Most messages that are published together where a source has a commit window."""


class Source(Protocol):
    """End of a worker that messages come from: poll, acknowledge, give back (``close``)."""

    finite: bool
    """True where it ends: then ``poll`` returning nothing means that there is nothing more."""

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Return up to ``limit`` messages; waits about ``timeout`` seconds for the first. Raises TransientError."""

    def heartbeat(self, seconds: float) -> None:
        """Stay a member of the group for about ``seconds``; called instead of ``poll`` while there is no capacity."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Acknowledge messages. Raises TransientError: they may be delivered again, and nothing is lost."""

    def commit_window(self) -> int | None:
        """Return how many more messages may be published before offsets are committed; None for any number."""

    def check_access(self) -> str:
        """Return why the broker rejects this client, or a command that it needs; empty if it does not.

        Called once, at the start. A broker that does not respond rejects nobody.
        """

    def owns(self, message: Message) -> bool:
        """Return whether a message is still this worker's: not after its partition was given to another one."""

    def status(self) -> SourceStatus:
        """Return the status with the broker; called every few seconds."""

    def close(self, clean: bool = True) -> None:
        """Give back whatever was not acknowledged, and leave.

        Parameters
        ----------
        clean : True for an orderly stop, which does not count as a delivery of what is given back. False when a message
            that was not acknowledged may be what made the worker end.
        """


class FiniteSource:
    """Common part of the sources that end: files, and ranges of a topic or stream. No group, nothing to commit.

    Attributes
    ----------
    ranges : what is read of each partition or stream, for the final account.
    unmatched : topics, partitions and ranges of the address that match nothing.
    """

    finite = True
    ranges: Mapping[str, str] = {}
    unmatched: Sequence[str] = ()

    def heartbeat(self, seconds: float) -> None:
        """Sleep: there is no group to leave."""
        time.sleep(seconds)

    def commit_window(self) -> None:
        """Return no bound: there is nothing to commit."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Do nothing: positions are not kept."""

    def check_access(self) -> str:
        """Return nothing: a source that cannot be read raises when it is opened."""
        return ""

    def owns(self, message: Message) -> bool:
        """Return True: nobody else is given these messages."""
        return True

    def status(self) -> SourceStatus:
        """Return no backlog: a replay is behind on purpose."""
        return SourceStatus()

    def close(self, clean: bool = True) -> None:
        """Do nothing: nothing is open, and deliveries are not counted."""


class Sink(Protocol):
    """End of a worker that records go to."""

    def publish(self, records: Sequence[Record]) -> list[DeliveryReport]:
        """Send records and wait for the delivery report of each."""

    def check_access(self) -> str:
        """Return why the broker rejects this client, as a source does."""

    @property
    def error(self) -> str:
        """Return why nothing can be published, as far as it is known before a record is sent; empty otherwise."""

    def close(self) -> None:
        """Close the connection; whatever was published has been acknowledged before."""


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """An alert with its outcome, classified or abstained.

    Attributes
    ----------
    number : index of the alert in its message; a container may hold several.
    received_ms : time of the poll, milliseconds since 1970.
    prior : name of the prior of the result, if the model has it; empty for the model's own.
    evolution : light curve after each of its detections and the outcome of each; None if it was not asked for.
    record : encoded result; None before it is encoded, and if the format cannot express it.
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
        """Topic, alert and model: the same for every delivery, another for every model version.

        The topic is part of it because ELAsTiCC sends one alert id with two lengths of history, on two topics.
        """
        manifest = self.bundle.manifest
        alert = self.packet.alert_id or f"{self.message.message_id}+{self.number}"
        return f"{self.message.topic}/{alert}/{manifest.name}-{manifest.version}"


FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # seconds; short, so that work goes on soon after a broker is back
JITTER: Final = 0.5  # many workers lose a broker at the same time, and must not come back at the same time


def backoff() -> Iterator[float]:
    """Yield seconds to wait after each failed try: twice as long each time, up to ten, with jitter."""
    pause = FIRST_PAUSE
    while True:
        yield pause * random.uniform(1 - JITTER, 1 + JITTER)
        pause = min(LONGEST_PAUSE, 2 * pause)


class ActiveErrors:
    """Errors that hold now, by step of the worker, for probes and logs."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._now: dict[str, str] = {}

    def set(self, step: str, reason: str) -> None:
        """Record a failed try."""
        self._metrics.stream_retries.labels(step).inc()
        if step not in self._now:
            log.warning("operation failed, retrying", step=step, reason=reason)
        self._now[step] = reason

    def clear(self, step: str) -> None:
        """Record that a step works."""
        if self._now.pop(step, None) is not None:
            log.info("operation recovered", step=step)

    def __contains__(self, step: object) -> bool:
        """Return whether a step fails."""
        return step in self._now

    def __str__(self) -> str:
        """Return every step that fails, with its reason; empty when none does."""
        return "; ".join(f"{step}: {reason}" for step, reason in self._now.items())

    async def wait(self, step: str, reason: str, pause: float) -> None:
        """Record a failed try and pause."""
        self.set(step, reason)
        await asyncio.sleep(pause)
