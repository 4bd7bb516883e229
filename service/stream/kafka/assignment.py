"""Partitions that the group has assigned to this member: start positions, journals, and what is to be committed."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import TopicPartition

from nightjar_alerts.service.stream.kafka.journal import Journal, JournalEntry
from nightjar_alerts.service.stream.kafka.offsets import Offsets, Partition


@dataclass(slots=True, eq=False)
class PartitionState:
    """State of one assigned partition.

    Attributes
    ----------
    journal : None until the committed offset was read.
    committed_start : the committed offset at which consumption started; None where the group had none.
    first_offset : the offset of the first message, None before it came.
    acknowledged : offset and metadata that the broker has acknowledged, None before the first commit.
    error : why nothing of it is delivered any more; empty while it is.
    """

    journal: Journal | None = None
    committed_start: int | None = None
    first_offset: int | None = None
    acknowledged: tuple[int, str] | None = None
    error: str = ""


class Position(NamedTuple):
    """Offset and journal entry to commit for a partition; entry None marks the end of an owner that did not crash."""

    partition: Partition
    state: PartitionState
    offset: int
    entry: JournalEntry | None

    @property
    def metadata(self) -> str:
        """Metadata of the commit."""
        return "" if self.entry is None else str(self.entry)

    def to_kafka(self) -> TopicPartition:
        """Return the position in the form that the client takes."""
        return TopicPartition(*self.partition, self.offset, self.metadata)


class Assignment:
    """Assigned partitions. The consumer's thread changes them; :meth:`position` may be called from any thread.

    Parameters
    ----------
    offsets : progress through the partitions.
    max_deliveries : deliveries that a message may have had.
    """

    def __init__(self, offsets: Offsets, max_deliveries: int) -> None:
        self._offsets = offsets
        self._max_deliveries = max_deliveries
        self._states: dict[Partition, PartitionState] = {}

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Assigned partitions."""
        return tuple(self._states)

    @property
    def not_started(self) -> tuple[Partition, ...]:
        """Assigned partitions whose committed offsets have not been read."""
        return tuple(partition for partition, state in self._states.items() if state.journal is None)

    @property
    def errors(self) -> tuple[str, ...]:
        """Errors of the partitions that were stopped."""
        return tuple(state.error for state in list(self._states.values()) if state.error)

    def add(self, partitions: Iterable[Partition]) -> None:
        """Record that partitions were assigned."""
        for partition in partitions:
            self._states[partition] = PartitionState()

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Record that partitions are no longer assigned."""
        for partition in partitions:
            self._states.pop(partition, None)

    def start(self, partition: Partition, committed: int | None, metadata: str | None) -> None:
        """Record the committed offset of a partition, and the journal beside it."""
        state = self._states[partition]
        state.committed_start = committed
        state.journal = Journal(JournalEntry.parse(metadata), self._max_deliveries)

    def state(self, partition: Partition) -> PartitionState | None:
        """Return the state of a partition, None where it is not assigned."""
        return self._states.get(partition)

    def journal(self, partition: Partition) -> Journal | None:
        """Return the journal of a partition, None where it is not assigned or not started."""
        return state.journal if (state := self._states.get(partition)) is not None else None

    def position(self, partition: Partition, offset: int | None = None) -> Position | None:
        """Return what to commit for a partition; None before its first message.

        Parameters
        ----------
        offset : the offset to commit; None for the one before which everything is done.
        """
        state = self._states.get(partition)
        if state is None or state.journal is None or state.first_offset is None:
            return None
        committable = self._offsets.committable(partition) if offset is None else offset
        # A partition with a committed offset never goes behind it, also where its first message has a later one.
        first = state.first_offset if state.committed_start is None else state.committed_start
        return Position(partition, state, first if committable is None else committable, state.journal.entry)

    def moved(self, partitions: Iterable[Partition]) -> list[Position]:
        """Return the positions that differ from what the broker has acknowledged."""
        positions = [position for position in map(self.position, partitions) if position is not None]
        return [one for one in positions if one.state.acknowledged != (one.offset, one.metadata)]

    def note_acknowledged(self, positions: Iterable[Position]) -> None:
        """Record that the broker has acknowledged a commit."""
        # A position holds the state as it was: the partition may have gone and come back since, with another journal.
        for position in positions:
            position.state.acknowledged = position.offset, position.metadata
            if position.state.journal is not None and position.entry is not None:
                position.state.journal.acknowledged = position.entry
            if self._states.get(position.partition) is position.state:
                self._offsets.committed(position.partition, position.offset)

    def forget_crashes(self, caught_up: bool) -> None:
        """Let the journals forget crashes of which all suspects are done.

        Parameters
        ----------
        caught_up : whether nothing more waits at the broker, nor in the buffer.
        """
        for partition, state in self._states.items():
            committable = self._offsets.committable(partition)
            if state.journal is not None and state.journal.crashes and committable is not None:
                quiet = caught_up and not self._offsets.unfinished([partition])
                state.journal.note_done_before(committable, quiet)
