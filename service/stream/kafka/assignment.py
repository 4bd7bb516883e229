"""Partitions that are assigned to this member of the group.

An :class:`AssignedPartition` holds the state of a partition from its assignment until it is revoked: the messages that
were delivered and are done (:class:`Progress`), the crash marker (:mod:`service.stream.kafka.crash_marker`), and the
last acknowledged commit. :meth:`AssignedPartition.position` derives what to commit next.

A partition that is assigned again gets a new object, and messages that were delivered before no longer count. The same
holds for a topic that was deleted and created again, whose offsets start again.
"""

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from confluent_kafka import TopicPartition

from nightjar_alerts.service.stream.kafka.crash_marker import CrashGuard, CrashMarker

Partition = tuple[str, int]
"""Topic and partition number."""


@dataclass(slots=True, eq=False)
class Progress:
    """Delivered messages of one partition, and the offset before which all of them are done.

    Messages may finish in any order.

    Attributes
    ----------
    committable : offset before which all messages are done.
    last_delivered : greatest delivered offset.
    done_by_offset : whether each message from ``committable`` on is done, in the order of delivery.
    done_ahead : number of messages that are done although an earlier one is not.
    uncommitted : offsets of messages before ``committable`` whose commit is not acknowledged, in order.
    """

    committable: int
    last_delivered: int
    done_by_offset: dict[int, bool] = field(default_factory=dict)
    done_ahead: int = 0
    uncommitted: deque[int] = field(default_factory=deque)

    def deliver(self, offset: int) -> None:
        """Record that a message was delivered."""
        self.done_by_offset[offset] = False
        self.last_delivered = offset

    def finish(self, offset: int) -> None:
        """Record that a message is done, and advance ``committable``."""
        if self.done_by_offset.get(offset, True):  # before `committable`, or recorded already
            return
        self.done_by_offset[offset] = True
        self.done_ahead += 1
        self._advance()

    def _advance(self) -> None:
        # The dict is ordered by delivery and thus by offset. Offsets are not consecutive, because of compaction and
        # transaction markers.
        while self.done_by_offset and self.done_by_offset[first := next(iter(self.done_by_offset))]:
            del self.done_by_offset[first]
            self.committable = first + 1
            self.done_ahead -= 1
            self.uncommitted.append(first)

    def committable_after(self, offsets: Iterable[int]) -> int:
        """Return the committable offset once these messages are done."""
        # On a copy, since the transaction may fail.
        copy = Progress(self.committable, self.last_delivered, self.done_by_offset | dict.fromkeys(offsets, True))
        copy._advance()
        return copy.committable

    def record_committed(self, offset: int) -> None:
        """Record that the broker has acknowledged a commit."""
        while self.uncommitted and self.uncommitted[0] < offset:
            self.uncommitted.popleft()

    @property
    def unfinished(self) -> int:
        """Number of messages that were delivered but are not done."""
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
    added_at : time of the assignment.
    guard : decides which messages may be delivered; None until the committed offset was read.
    committed_start : committed offset at which consumption started; None if the group had none.
    first_offset : offset of the first message; None before it was received.
    last_received : offset of the last message that the client has returned; None before the first.
    end : end of the stable records that the client has reached after this message; None while it has not.
    progress : None before the first delivery.
    acknowledged : offset and metadata of the last acknowledged commit; None before the first.
    error : reason why the partition was stopped; empty while it is consumed.
    """

    partition: Partition
    added_at: float = field(default_factory=monotonic)
    guard: CrashGuard | None = None
    committed_start: int | None = None
    first_offset: int | None = None
    last_received: int | None = None
    end: int | None = None
    progress: Progress | None = None
    acknowledged: tuple[int, str] | None = None
    error: str = ""

    def receive(self, offset: int) -> None:
        """Record that the client has returned a message."""
        if self.first_offset is None:
            self.first_offset = offset
        if self.progress is not None:
            self.progress.committable = self._past_end(self.progress.committable)
        elif self.last_received is None and self.end is not None:
            self.committed_start = self.end
        self.last_received, self.end = offset, None

    def _past_end(self, offset: int) -> int:
        """Return the committable offset, given the offset before which all messages are done.

        Markers of transactions, aborted records and compacted records have offsets, but are never returned as messages.
        So the offset after the last message may stay below the end.
        """
        all_done = self.last_received is None or offset > self.last_received
        return max(offset, self.end) if self.end is not None and all_done else offset

    @property
    def done_before(self) -> int | None:
        """Offset before which everything is done, as far as known; None if nothing is."""
        start = self.first_offset if self.committed_start is None else self.committed_start
        offset = start if self.progress is None else self.progress.committable
        return self.end if offset is None else self._past_end(offset)

    @property
    def read_before(self) -> int | None:
        """Offset before which the client has returned everything, as far as known; None if nothing is."""
        if self.end is not None:
            return self.end
        return self.committed_start if self.last_received is None else self.last_received + 1

    def deliver(self, offset: int) -> Token:
        """Record that a message was delivered."""
        # An offset that is not greater than the last one means that the topic was created again.
        if self.progress is None or offset <= self.progress.last_delivered:
            self.progress = Progress(offset, offset)
        self.progress.deliver(offset)
        return Token(self.partition, offset, self.progress)

    def position(self, offset: int | None = None) -> "Position | None":
        """Return the position to commit; None before the first message, unless the end is beyond the committed offset.

        Parameters
        ----------
        offset : offset before which all messages are done; by default that of the finished messages.
        """
        offset = self.done_before if offset is None else self._past_end(offset)
        if self.guard is None or offset is None or (self.first_offset is None and offset == self.committed_start):
            return None
        return Position(self, offset, self.guard.marker)

    def record_acknowledged(self, position: "Position") -> None:
        """Record that the broker has acknowledged a commit."""
        self.acknowledged = position.offset, position.metadata
        if self.guard is not None and position.marker is not None:
            self.guard.acknowledged = position.marker
        if self.progress is not None:
            self.progress.record_committed(position.offset)


class Position(NamedTuple):
    """Offset and crash marker to commit for a partition; the marker is None once it was given back without suspects."""

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

    @property
    def given_back(self) -> "Position":
        """Position to commit when this member gives up the partition."""
        return self._replace(marker=None if self.marker is None else self.marker.given_back)

    def to_kafka(self) -> TopicPartition:
        """Return the position in the form that the client expects."""
        return TopicPartition(*self.partition, self.offset, self.metadata)


class Assignment:
    """Assigned partitions. Only the consumer's thread may add, remove and deliver; any thread may call the rest.

    Parameters
    ----------
    max_deliveries : maximum number of deliveries of a message.
    transactional : whether offsets are committed in a transaction together with the results.
    process : id of this process, for the crash markers.
    """

    def __init__(self, max_deliveries: int, transactional: bool = False, process: str = "this") -> None:
        self._max_deliveries, self._transactional, self.process = max_deliveries, transactional, process
        self._lock = threading.Lock()
        self._assigned: dict[Partition, AssignedPartition] = {}

    # Partitions.

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Assigned partitions."""
        return tuple(self._assigned)

    @property
    def not_started(self) -> tuple[Partition, ...]:
        """Assigned partitions whose committed offsets have not been read."""
        return tuple(assigned.partition for assigned in self._assigned.values() if assigned.guard is None)

    @property
    def errors(self) -> tuple[str, ...]:
        """Errors of the partitions that were stopped."""
        return tuple(assigned.error for assigned in list(self._assigned.values()) if assigned.error)

    def get(self, partition: Partition) -> AssignedPartition | None:
        """Return the state of a partition; None if it is not assigned."""
        return self._assigned.get(partition)

    def guard(self, partition: Partition) -> CrashGuard | None:
        """Return the crash guard of a partition; None if it is not assigned or not started."""
        return assigned.guard if (assigned := self._assigned.get(partition)) is not None else None

    def add(self, partitions: Iterable[Partition]) -> None:
        """Record that partitions were assigned."""
        with self._lock:
            self._assigned |= {partition: AssignedPartition(partition) for partition in partitions}

    def start(self, partition: Partition, committed: int | None, metadata: str | None, crashed: bool = True) -> None:
        """Record the committed offset of a partition, and the crash marker in its metadata.

        Parameters
        ----------
        crashed : whether the process that wrote the marker has crashed.
        """
        assigned = self._assigned[partition]
        assigned.committed_start = committed
        assigned.guard = CrashGuard(CrashMarker.parse(metadata), self._max_deliveries, self.process, crashed)

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Record that partitions are no longer assigned."""
        with self._lock:
            for partition in partitions:
                self._assigned.pop(partition, None)

    # Messages.

    def receive(self, partition: Partition, offset: int) -> None:
        """Record that the client has returned a message of an assigned partition."""
        with self._lock:
            self._assigned[partition].receive(offset)

    def reach_end(self, partition: Partition, end: int) -> bool:
        """Record that the client has reached the end of the stable records of a partition.

        Returns whether there are offsets without a message before it.
        """
        with self._lock:
            assigned = self._assigned.get(partition)
            if assigned is None or assigned.guard is None:  # revoked meanwhile
                return False
            read, assigned.end = assigned.read_before, end
            return read != end

    def offsets(self) -> dict[Partition, tuple[int | None, int | None]]:
        """Return the offsets before which each partition is done, and read."""
        with self._lock:
            return {
                partition: (assigned.done_before, assigned.read_before)
                for partition, assigned in self._assigned.items()
            }

    def deliver(self, partition: Partition, offset: int) -> Token:
        """Record that a message of an assigned partition was delivered."""
        with self._lock:
            return self._assigned[partition].deliver(offset)

    def finish(self, tokens: Iterable[Token]) -> None:
        """Record that messages are done; those of partitions that are no longer assigned are ignored."""
        with self._lock:
            for token in tokens:
                if self._owns(token):
                    token.progress.finish(token.offset)
                    if self._transactional:
                        token.progress.uncommitted.clear()  # committed together with their results

    def owns(self, token: Token) -> bool:
        """Return whether the partition of a message has stayed assigned since its delivery."""
        with self._lock:
            return self._owns(token)

    def _owns(self, token: Token) -> bool:
        assigned = self._assigned.get(token.partition)
        return assigned is not None and assigned.progress is token.progress

    def unfinished(self, partitions: Iterable[Partition] | None = None) -> int:
        """Return the number of messages delivered but not done, in these partitions or in all."""
        chosen = None if partitions is None else set(partitions)
        with self._lock:
            return sum(
                assigned.progress.unfinished
                for partition, assigned in self._assigned.items()
                if assigned.progress is not None and (chosen is None or partition in chosen)
            )

    def uncommitted(self) -> int:
        """Return the number of messages that are done but would be delivered again after a crash."""
        with self._lock:
            return sum(progress.done_ahead + len(progress.uncommitted) for progress in self._progress())

    def unacknowledged(self) -> int:
        """Return the number of committable messages whose commit the broker has not acknowledged."""
        with self._lock:
            return sum(len(progress.uncommitted) for progress in self._progress())

    def _progress(self) -> list[Progress]:
        return [assigned.progress for assigned in self._assigned.values() if assigned.progress is not None]

    # Commits.

    def positions_after(self, tokens: Iterable[Token]) -> tuple[frozenset[Token], list[Position]]:
        """Return the messages whose partitions are still assigned, and the positions to commit once they are done."""
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
                if position is not None and position.offset > assigned.progress.committable:
                    positions.append(position)
        return owned, positions

    def positions(self, partitions: Iterable[Partition]) -> list[Position]:
        """Return the positions to commit, of those of these partitions that have had a message."""
        with self._lock:
            states = [state for partition in partitions if (state := self._assigned.get(partition)) is not None]
            return [position for state in states if (position := state.position()) is not None]

    def changed_positions(self, partitions: Iterable[Partition]) -> list[Position]:
        """Return the positions that differ from the last acknowledged commit."""
        return [
            position
            for position in self.positions(partitions)
            if position.assigned.acknowledged != (position.offset, position.metadata)
        ]

    def record_acknowledged(self, positions: Iterable[Position]) -> None:
        """Record that the broker has acknowledged a commit."""
        # A position refers to the partition's assignment at that time; it may have been revoked and assigned again.
        with self._lock:
            for position in positions:
                position.assigned.record_acknowledged(position)

    def forget_crashes(self, caught_up: bool) -> None:
        """Reset the crash counts of partitions whose candidates are all done.

        Parameters
        ----------
        caught_up : True if no message is pending at the broker or in the buffer.
        """
        with self._lock:
            for assigned in self._assigned.values():
                guard, progress = assigned.guard, assigned.progress
                if guard is not None and guard.crashes and progress is not None:
                    guard.record_done_before(progress.committable, caught_up and not progress.unfinished)
