"""Buffer between the client and the worker; delivers messages as allowed by the acknowledged crash markers.

The client calls the callbacks of the group only while it is polled. So it is polled even while the worker has no
capacity, and the messages that it returns are buffered. A group of messages that must be isolated
(:mod:`service.stream.kafka.crash_marker`) holds back all others.

Isolation is slow, since each group takes two commits. After :data:`ISOLATION_SECONDS` a group has all messages of its
partition that lie in the buffer: another crash may then be needed to find the poison message, but everything else goes
on.
"""

from collections.abc import Collection
from time import monotonic
from typing import Final, cast

import structlog
from confluent_kafka import Message as KafkaMessage

from nightjar_alerts.models.limits import milliseconds
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.kafka.assignment import Assignment, Partition, Token
from nightjar_alerts.service.stream.messages import Headers, Message

MAX_MESSAGES, MAX_BYTES = 64, 8 << 20
"""Number of messages, and total bytes, at which the buffer is full."""
ISOLATION_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 10.0
"""Seconds without an isolated group after which the next one begins another isolation."""
log = structlog.get_logger(__name__)


class DeliveryBuffer:
    """Messages received from the client but not delivered to the worker. Used on the consumer's thread only."""

    def __init__(self, assignment: Assignment, metrics: Metrics) -> None:
        self._assignment, self._metrics = assignment, metrics
        self._messages: list[KafkaMessage] = []
        self._bytes = 0
        self._isolated: Token | None = None  # the last message of the isolated group in flight
        self._isolating_since = self._isolated_at = 0.0

    def __len__(self) -> int:
        """Return the number of messages in the buffer."""
        return len(self._messages)

    @property
    def full(self) -> bool:
        """True if no more messages should be consumed."""
        return len(self._messages) >= MAX_MESSAGES or self._bytes > MAX_BYTES or self._isolated is not None

    def add(self, message: KafkaMessage) -> None:
        """Add a message."""
        self._messages.append(message)
        self._bytes += _size(message)

    def discard(self, partitions: Collection[Partition]) -> None:
        """Drop messages of revoked partitions, which their next owner reads."""
        self._replace([message for message in self._messages if partition_of(message) not in partitions])

    def _replace(self, messages: list[KafkaMessage]) -> None:
        self._messages, self._bytes = messages, sum(map(_size, messages))

    def deliver(self, limit: int) -> list[Message]:
        """Remove and return up to ``limit`` messages that may be delivered now, in order."""
        # Nothing else is in flight while a group is isolated: if the process dies, one of its messages is the cause.
        if self._isolated is not None and self._assignment.owns(self._isolated) and self._assignment.unfinished():
            return []
        self._isolated = None
        if (candidate := self._first_candidate()) is not None:
            return self._deliver_isolated(candidate, limit)
        first = self._messages[:limit]
        # All markers are extended first, so that one commit releases all messages.
        for message in first:
            if (guard := self._assignment.guard(partition_of(message))) is not None:
                guard.extend_in_flight(offset_of(message) + 1)
        deliverable: list[KafkaMessage] = []
        remaining: list[KafkaMessage] = []
        blocked: set[Partition] = (
            set()
        )  # partitions with a message that is not delivered: later messages must wait as well
        for message in first:
            partition = partition_of(message)
            guard = self._assignment.guard(partition)
            if partition not in blocked and guard is not None and guard.may_deliver(offset_of(message)):
                deliverable.append(message)
            else:
                blocked.add(partition)
                remaining.append(message)
        self._replace(remaining + self._messages[limit:])
        return [self._deliver(message) for message in deliverable]

    @property
    def awaiting_commit(self) -> frozenset[Partition]:
        """Partitions whose next message waits until the broker has acknowledged its crash marker."""
        partitions = set()
        for partition, message in self._first_messages():
            guard = self._assignment.guard(partition)
            if guard is None or not guard.may_deliver(offset_of(message)):
                partitions.add(partition)
        return frozenset(partitions)

    def _first_candidate(self) -> KafkaMessage | None:
        """Return the next message to isolate; None if there is none."""
        for partition, message in self._first_messages():
            guard = self._assignment.guard(partition)
            if guard is not None and guard.must_isolate(offset_of(message)):
                return message
        return None

    def _first_messages(self) -> list[tuple[Partition, KafkaMessage]]:
        """Return the first message of each partition, with its partition."""
        first_by_partition: dict[Partition, KafkaMessage] = {}
        for message in self._messages:
            first_by_partition.setdefault(partition_of(message), message)
        return list(first_by_partition.items())

    def _deliver_isolated(self, candidate: KafkaMessage, limit: int) -> list[Message]:
        """Deliver a group once nothing else is in flight and the crash marker that names it is acknowledged."""
        partition, offset = partition_of(candidate), offset_of(candidate)
        guard = self._assignment.guard(partition)
        if guard is None or self._assignment.unfinished():
            return []
        waiting = [message for message in self._messages if partition_of(message) == partition][:limit]
        guard.begin_isolation(offset, offset_of(waiting[-1]) + 1 if self._isolation_takes_long() else 0)
        group = [message for message in waiting if guard.may_deliver_isolated(offset_of(message))]
        if not group:
            return []
        self._replace([message for message in self._messages if message not in group])
        delivered = [self._deliver(message) for message in group]
        self._isolated, self._isolated_at = cast(Token, delivered[-1].token), monotonic()
        self._metrics.stream_suspects.inc(len(group))
        log.warning(
            "processing suspected poison messages in isolation",
            topic=partition[0],
            message_id=delivered[0].message_id,
            messages=len(group),
            deliveries=delivered[0].deliveries,
        )
        return delivered

    def _isolation_takes_long(self) -> bool:
        """Return whether groups have been isolated for longer than :data:`ISOLATION_SECONDS`."""
        now = monotonic()
        if now - self._isolated_at > PAUSE_SECONDS:
            self._isolating_since = self._isolated_at = now
        return now - self._isolating_since > ISOLATION_SECONDS

    def _deliver(self, message: KafkaMessage) -> Message:
        partition, offset = partition_of(message), offset_of(message)
        guard = self._assignment.guard(partition)
        deliveries = 1 if guard is None else guard.deliveries(offset)
        return message_of(message, self._assignment.deliver(partition, offset), deliveries)


def partition_of(message: KafkaMessage) -> Partition:
    """Return the topic and number of the partition of a message."""
    return str(message.topic()), int(message.partition() or 0)


def offset_of(message: KafkaMessage) -> int:
    """Return the offset of a message."""
    return int(message.offset() or 0)


def _size(message: KafkaMessage) -> int:
    return len(message.value() or b"")


def message_of(message: KafkaMessage, token: object = None, deliveries: int = 1) -> Message:
    """Convert a message of the client; headers that cannot be read are left out."""
    topic, partition = partition_of(message)
    kind, timestamp = message.timestamp()
    return Message(
        topic=topic,
        message_id=f"{partition}:{offset_of(message)}",
        value=_bytes(message.value()) or b"",
        key=_bytes(message.key()),
        headers=headers_of(message),
        timestamp_ms=milliseconds(timestamp) if kind else None,
        deliveries=deliveries,
        token=token,
        tombstone=message.value() is None,
    )


def headers_of(message: KafkaMessage) -> Headers:
    """Return the headers as bytes, or none if a name is not UTF-8, for which the client raises."""
    try:
        headers = cast("list[tuple[str, str | bytes | None]]", message.headers() or [])
    except (SystemError, UnicodeDecodeError):
        log.warning("headers that cannot be read", topic=message.topic(), offset=message.offset())
        return ()
    return tuple((name, _bytes(value) or b"") for name, value in headers)


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
