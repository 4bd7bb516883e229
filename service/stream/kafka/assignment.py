"""Partitions that the group has assigned to this member.

An :class:`AssignedPartition` holds the state of a partition from its assignment until it is revoked: which messages
were delivered and which of them are done (:class:`Progress`), the crash marker
(:mod:`service.stream.kafka.crash_marker`), and what the broker has acknowledged. :meth:`AssignedPartition.position`
derives what to commit next.

A partition that was revoked and assigned again gets a new object, and messages that were delivered before no longer
count. The same holds for a topic that was deleted and created again, whose offsets start again.
"""

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import TopicPartition

from nightjar_alerts.service.stream.kafka.crash_marker import CrashGuard, CrashMarker

Partition = tuple[str, int]
"""Topic and number of a partition."""


@dataclass(slots=True, eq=False)
class Progress:
    """Messages of one partition that were delivered, and the offset before which all are done.

    Messages are finished in any order.

    Attributes
    ----------
    committable : the offset before which everything is done.
    last_delivered : the greatest offset delivered.
    done_by_offset : whether each message from ``committable`` on is done, in the order of delivery.
    done_ahead : the number of messages that are done although one before them is not.
    uncommitted : offsets of messages before ``committable`` whose commit the broker has not acknowledged, in order.
    """

    committable: int
    last_delivered: int
    done_by_offset: dict[int, bool] = field(default_factory=dict)
    done_ahead: int = 0
    uncommitted: deque[int] = field(default_factory=deque)

    def deliver(self, offset: int) -> None:
        """Note that a message is delivered."""
        self.done_by_offset[offset] = False
        self.last_delivered = offset

    def finish(self, offset: int) -> None:
        """Note that a message is done, and advance ``committable``."""
        if self.done_by_offset.get(offset, True):  # before `committable`, or noted already
            return
        self.done_by_offset[offset] = True
        self.done_ahead += 1
        self._advance()

    def _advance(self) -> None:
        # A dictionary keeps the order in which messages were delivered, which is that of their offsets. Compaction and
        # the markers of transactions leave gaps between offsets: counting up from one to the next would stop at them.
        while self.done_by_offset and self.done_by_offset[first := next(iter(self.done_by_offset))]:
            del self.done_by_offset[first]
            self.committable = first + 1
            self.done_ahead -= 1
            self.uncommitted.append(first)

    def committable_after(self, offsets: Iterable[int]) -> int:
        """Return what would be committable once these messages are done."""
        # On a copy, since the transaction may fail.
        then = Progress(self.committable, self.last_delivered, self.done_by_offset | dict.fromkeys(offsets, True))
        then._advance()
        return then.committable

    def note_committed(self, offset: int) -> None:
        """Note that the broker has acknowledged a commit."""
        while self.uncommitted and self.uncommitted[0] < offset:
            self.uncommitted.popleft()

    @property
    def unfinished(self) -> int:
        """Number of messages that were delivered and are not done."""
        return sum(not is_done for is_done in self.done_by_offset.values())


@dataclass(frozen=True, slots=True)
class Token:
    """Partition and offset of a message, and the :class:`Progress` that it belongs to."""

    partition: Partition
    offset: int
    progress: Progress


@dataclass(slots=True, eq=False)
class AssignedPartition:
    """One assigned partition.

    Attributes
    ----------
    guard : decides what may be delivered; None until the committed offset was read.
    committed_start : the committed offset at which consumption started; None where the group had none.
    first_offset : the offset of the first message, None before it came.
    progress : None before the first delivery.
    acknowledged : offset and metadata that the broker has acknowledged, None before the first commit.
    error : reason why the partition was stopped; empty while it is consumed.
    """

    partition: Partition
    guard: CrashGuard | None = None
    committed_start: int | None = None
    first_offset: int | None = None
    progress: Progress | None = None
    acknowledged: tuple[int, str] | None = None
    error: str = ""

    def deliver(self, offset: int) -> Token:
        """Note that a message is delivered."""
        # An offset that is not larger than the last one: the topic was created again.
        if self.progress is None or offset <= self.progress.last_delivered:
            self.progress = Progress(offset, offset)
        self.progress.deliver(offset)
        return Token(self.partition, offset, self.progress)

    def position(self, offset: int | None = None) -> "Position | None":
        """Return what to commit; None before the first message.

        Parameters
        ----------
        offset : the offset to commit; None for the one before which everything is done.
        """
        if self.guard is None or self.first_offset is None:
            return None
        if offset is None:
            # Never an offset below the committed one, although the first message may have a later offset.
            start = self.first_offset if self.committed_start is None else self.committed_start
            offset = start if self.progress is None else self.progress.committable
        return Position(self, offset, self.guard.marker)

    def note_acknowledged(self, position: "Position") -> None:
        """Note that the broker has acknowledged a commit."""
        self.acknowledged = position.offset, position.metadata
        if self.guard is not None and position.marker is not None:
            self.guard.acknowledged = position.marker
        if self.progress is not None:
            self.progress.note_committed(position.offset)


class Position(NamedTuple):
    """Offset and crash marker to commit for a partition; None as the marker means that its owner stopped in order."""

    assigned: AssignedPartition
    offset: int
    marker: CrashMarker | None

    @property
    def partition(self) -> Partition:
        """Topic and number of the partition."""
        return self.assigned.partition

    @property
    def metadata(self) -> str:
        """Metadata of the commit."""
        return "" if self.marker is None else str(self.marker)

    def to_kafka(self) -> TopicPartition:
        """Return the position as the client expects it."""
        return TopicPartition(*self.partition, self.offset, self.metadata)


class Assignment:
    """The assigned partitions. The consumer's thread adds, removes and delivers; any thread may call the rest.

    Parameters
    ----------
    max_deliveries : deliveries that a message may have had.
    transactional : whether offsets are committed with the results, in a transaction, and not after them.
    """

    def __init__(self, max_deliveries: int, transactional: bool = False) -> None:
        self._max_deliveries, self._transactional = max_deliveries, transactional
        self._lock = threading.Lock()
        self._assigned: dict[Partition, AssignedPartition] = {}

    # Which partitions.

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Assigned partitions."""
        return tuple(self._assigned)

    @property
    def not_started(self) -> tuple[Partition, ...]:
        """Assigned partitions whose committed offsets have not been read."""
        return tuple(one.partition for one in self._assigned.values() if one.guard is None)

    @property
    def errors(self) -> tuple[str, ...]:
        """Errors of the partitions that were stopped."""
        return tuple(one.error for one in list(self._assigned.values()) if one.error)

    def get(self, partition: Partition) -> AssignedPartition | None:
        """Return an assigned partition, None where it is not assigned."""
        return self._assigned.get(partition)

    def guard(self, partition: Partition) -> CrashGuard | None:
        """Return the crash guard of a partition, None where it is not assigned or not started."""
        return assigned.guard if (assigned := self._assigned.get(partition)) is not None else None

    def add(self, partitions: Iterable[Partition]) -> None:
        """Record that partitions were assigned."""
        with self._lock:
            self._assigned |= {partition: AssignedPartition(partition) for partition in partitions}

    def start(self, partition: Partition, committed: int | None, metadata: str | None) -> None:
        """Record the committed offset of a partition, and the crash marker in its metadata."""
        assigned = self._assigned[partition]
        assigned.committed_start = committed
        assigned.guard = CrashGuard(CrashMarker.parse(metadata), self._max_deliveries)

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Record that partitions are no longer assigned."""
        with self._lock:
            for partition in partitions:
                self._assigned.pop(partition, None)

    # Which messages.

    def deliver(self, partition: Partition, offset: int) -> Token:
        """Note that a message of an assigned partition is delivered."""
        with self._lock:
            return self._assigned[partition].deliver(offset)

    def finish(self, tokens: Iterable[Token]) -> None:
        """Note that messages are done; those of partitions that are no longer assigned do not count."""
        with self._lock:
            for token in tokens:
                if self._owns(token):
                    token.progress.finish(token.offset)
                    if self._transactional:
                        token.progress.uncommitted.clear()  # committed together with their results

    def owns(self, token: Token) -> bool:
        """Return whether the partition of a message has been assigned ever since the message was delivered."""
        with self._lock:
            return self._owns(token)

    def _owns(self, token: Token) -> bool:
        assigned = self._assigned.get(token.partition)
        return assigned is not None and assigned.progress is token.progress

    def unfinished(self, partitions: Iterable[Partition] | None = None) -> int:
        """Return the number of messages delivered and not done, of these partitions or of all."""
        chosen = None if partitions is None else set(partitions)
        with self._lock:
            return sum(
                assigned.progress.unfinished
                for partition, assigned in self._assigned.items()
                if assigned.progress is not None and (chosen is None or partition in chosen)
            )

    def uncommitted(self) -> int:
        """Return the number of messages that are done and would be delivered again after a crash now."""
        with self._lock:
            return sum(one.done_ahead + len(one.uncommitted) for one in self._progress())

    def unacknowledged(self) -> int:
        """Return the number of messages that may be committed and whose commit the broker has not acknowledged."""
        with self._lock:
            return sum(len(one.uncommitted) for one in self._progress())

    def _progress(self) -> list[Progress]:
        return [one.progress for one in self._assigned.values() if one.progress is not None]

    # What to commit.

    def positions_after(self, tokens: Iterable[Token]) -> tuple[frozenset[Token], list[Position]]:
        """Return the messages whose partitions are still assigned, and what to commit once they are done."""
        with self._lock:
            owned = frozenset(token for token in tokens if self._owns(token))
            positions = []
            for partition in {token.partition for token in owned}:
                assigned = self._assigned[partition]
                assert assigned.progress is not None  # it has delivered these messages
                offset = assigned.progress.committable_after(
                    token.offset for token in owned if token.partition == partition
                )
                position = assigned.position(offset)
                if position is not None and offset > assigned.progress.committable:
                    positions.append(position)
        return owned, positions

    def positions(self, partitions: Iterable[Partition]) -> list[Position]:
        """Return what to commit for those of these partitions that have had a message."""
        with self._lock:
            assigned = [one for partition in partitions if (one := self._assigned.get(partition)) is not None]
            return [position for one in assigned if (position := one.position()) is not None]

    def moved(self, partitions: Iterable[Partition]) -> list[Position]:
        """Return the positions that differ from what the broker has acknowledged."""
        return [one for one in self.positions(partitions) if one.assigned.acknowledged != (one.offset, one.metadata)]

    def note_acknowledged(self, positions: Iterable[Position]) -> None:
        """Note that the broker has acknowledged a commit."""
        # A position holds its partition as it was: it may have gone and come back since, with another crash marker.
        with self._lock:
            for position in positions:
                position.assigned.note_acknowledged(position)

    def forget_crashes(self, caught_up: bool) -> None:
        """Forget crashes whose candidates are all done.

        Parameters
        ----------
        caught_up : whether no message waits at the broker or in the buffer.
        """
        with self._lock:
            for one in self._assigned.values():
                if one.guard is not None and one.guard.crashes and one.progress is not None:
                    quiet = caught_up and not one.progress.unfinished
                    one.guard.note_done_before(one.progress.committable, quiet)
