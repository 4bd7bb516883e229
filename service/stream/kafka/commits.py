"""Commits: the offset before which all is done, with the journal beside it.

Commits are asked for and never waited for; the consumer tells later what became of them. One is in flight at a time,
and the next says what is true then, so that a broker that was away is told everything at once when it is back.

The journal tells the next owner of a partition what was being worked on when a worker died; it is kept in the metadata
of the committed offset. Kafka does not count deliveries. So each commit says beside the offset how far messages have
been in flight (:attr:`JournalEntry.in_flight_end`), and the final commit of an owner that ends in order has no entry.
Who finds an entry knows that its predecessor crashed, and that the messages between the offset and ``in_flight_end``
are suspects: any of them may be a poison message, which kills its worker. The entry also counts crashes in a row:

- after a first crash the suspects are delivered as usual, none before an entry that covers it has been acknowledged;
- after :data:`ALONE_AFTER_CRASHES` crashes each is delivered alone, in order, with nothing else in flight in the
  process, after an entry that names it and counts the try. One that was tried alone too often is a dead letter.

Crashes are forgotten once all suspects are done, and a batch more of what nobody had time to record.
"""

import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from nightjar_alerts.models.limits import whole_number
from nightjar_alerts.service.stream.kafka.offsets import Offsets, Partition

ALONE_AFTER_CRASHES: Final = 2
"""Crashes after which suspects are tried alone; machines that lose power twice in a row are rare."""
UNRECORDED_MESSAGES: Final = 256
"""Messages beyond ``in_flight_end`` that may have been delivered before it was acknowledged."""
_FORMAT: Final = "nightjar/1"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """Entry of an owner beside the offset that it commits.

    Attributes
    ----------
    crashes : owners that died in a row before this one.
    in_flight_end : the offset before which messages have been delivered to the worker.
    alone : the offset of the message that is tried alone, None when none is.
    tries : how often that one has been tried alone, this time included.
    """

    crashes: int
    in_flight_end: int
    alone: int | None = None
    tries: int = 0

    def __str__(self) -> str:
        """Return the metadata of the commit."""
        alone = "-" if self.alone is None else self.alone
        return f"{_FORMAT} {self.crashes} {self.in_flight_end} {alone} {self.tries}"

    @classmethod
    def parse(cls, metadata: str | None) -> "JournalEntry | None":
        """Return the entry that metadata holds; None after a final commit, or for what anybody else has written."""
        sign, *words = (metadata or "").split(" ")
        if sign != _FORMAT or len(words) != 4:
            return None
        crashes, in_flight_end, tries = (whole_number(words[place]) for place in (0, 1, 3))
        alone = whole_number(words[2])
        if crashes is None or in_flight_end is None or tries is None or (alone is None and words[2] != "-"):
            return None
        return cls(crashes, in_flight_end, alone, tries)


class Journal:
    """The journal of one partition, from its assignment to its loss.

    Parameters
    ----------
    predecessor : the entry beside the committed offset, None after a final commit.
    max_deliveries : deliveries that a message may have had.

    Attributes
    ----------
    acknowledged : the last entry of ours that the broker has, None before the first.
    """

    def __init__(self, predecessor: JournalEntry | None, max_deliveries: int) -> None:
        self._predecessor = predecessor
        self._max_deliveries = max_deliveries
        # An entry that is still there was followed by no final commit: its writer died, perhaps of what was in flight.
        self._entry = JournalEntry(
            0 if predecessor is None else predecessor.crashes + 1,
            0 if predecessor is None else predecessor.in_flight_end,
        )
        self._suspects_end = 0 if predecessor is None else predecessor.in_flight_end
        self.acknowledged: JournalEntry | None = None

    @property
    def entry(self) -> JournalEntry:
        """Return what the next commit is to say."""
        return self._entry

    @property
    def crashes(self) -> int:
        """Owners that died in a row before this one."""
        return self._entry.crashes

    def extend_in_flight(self, end: int) -> None:
        """Note that messages before an offset are about to be delivered."""
        if end > self._entry.in_flight_end:
            self._entry = replace(self._entry, in_flight_end=end)

    def may_deliver(self, offset: int) -> bool:
        """Return whether a message may be delivered, as far as the broker knows of it; among others, or alone."""
        acknowledged = self.acknowledged
        if acknowledged is None:
            return False  # if we died now, the next owner would not know that the partition had had one
        if self.must_deliver_alone(offset):
            return acknowledged.alone == offset
        # Without a crash the entry may lag behind: waiting for it would cost every message a round trip to the broker.
        return self.crashes == 0 or acknowledged.in_flight_end > offset

    def must_deliver_alone(self, offset: int) -> bool:
        """Return whether a message may be delivered only while nothing else is in flight."""
        return self.crashes >= ALONE_AFTER_CRASHES and offset < self._suspects_end

    def begin_alone_try(self, offset: int) -> None:
        """Note which message is tried alone next."""
        if self._entry.alone != offset:
            self._entry = replace(self._entry, alone=offset, tries=self._tries(offset) + 1)

    def deliveries(self, offset: int) -> int:
        """Return how often a message was delivered, this time included, as far as it can be blamed for it.

        One that only was in flight with others when workers died is not delivered too often by that.
        """
        if offset >= self._suspects_end or not self.crashes:
            return 1
        tries = self._tries(offset)
        if tries:
            return ALONE_AFTER_CRASHES + tries + 1
        return min(1 + min(self.crashes, ALONE_AFTER_CRASHES), self._max_deliveries)

    def _tries(self, offset: int) -> int:
        """Return how often a message was tried alone before."""
        return self._predecessor.tries if self._predecessor is not None and self._predecessor.alone == offset else 0

    def note_done_before(self, offset: int, caught_up: bool) -> None:
        """Note that everything before an offset is done; forget crashes behind which all suspects lie.

        Parameters
        ----------
        caught_up : whether nothing more waits at the broker, nor here.
        """
        if self._entry.alone is not None and offset > self._entry.alone:
            self._entry = replace(self._entry, alone=None, tries=0)
        suspects_done = offset >= self._suspects_end + UNRECORDED_MESSAGES or (
            caught_up and offset >= self._suspects_end
        )
        if self.crashes and suspects_done:
            self._entry = replace(self._entry, crashes=0)


COMMIT_SECONDS: Final = 0.05
"""Seconds between two commits, unless one is waited for: what was answered since the last is repeated after a kill."""
MAX_UNCOMMITTED: Final = 256
"""Most messages that may be answered and not committed: as many may be answered twice after a kill.

At half of it a commit is sent at once, so that the other half may be answered while the broker takes it.
"""
COMMIT_TIMEOUT_SECONDS: Final = 20.0
"""Seconds after which another commit is sent although the client has not told what became of the last one."""


class CommitGate:
    """Gate that lets in transactions and commits of the journal one after another; a journal that waits goes first.

    The broker keeps the commit that came last, also when a transaction whose offsets came before it ends after it: were
    both in flight at once, a journal could set the group back.
    """

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._no_journal_waits = threading.Event()
        self._no_journal_waits.set()

    def acquire_for_transaction(self, timeout: float) -> bool:
        """Enter for a transaction, if that is possible within some seconds."""
        return self._no_journal_waits.wait(timeout) and self._busy.acquire(timeout=timeout)

    def acquire_for_journal(self, timeout: float = 0.0) -> bool:
        """Enter for a commit of the journal; where that is not possible, no transaction enters before it."""
        # Transactions follow one another without a pause: a lock alone would let each of them in before the journal.
        entered = self._busy.acquire(timeout=timeout)
        self.cancel_journal_wait() if entered else self._no_journal_waits.clear()
        return entered

    def cancel_journal_wait(self) -> None:
        """Let transactions go on: nobody has a journal to write."""
        self._no_journal_waits.set()

    def release(self) -> None:
        """Leave; from any thread, as it is not always the one that entered."""
        self._busy.release()


@dataclass(slots=True)
class _PartitionState:
    """State of a partition of ours.

    Attributes
    ----------
    first_offset : the offset of the first message that came of it, None before.
    journal : None until it was read.
    acknowledged : offset and metadata that the broker has acknowledged.
    """

    first_offset: int | None = None
    journal: Journal | None = None
    acknowledged: tuple[int, str] | None = None


class Commits:
    """Partitions of a consumer, their journals and what was committed of them. For the consumer's thread alone.

    Parameters
    ----------
    offsets : progress through the partitions.
    max_deliveries : deliveries that a message may have had.
    gate : lets in our commits and transactions one after another; None where there are no transactions.
    """

    def __init__(self, offsets: Offsets, max_deliveries: int, gate: CommitGate | None = None) -> None:
        self._offsets = offsets
        self._max_deliveries = max_deliveries
        self._gate = gate
        self._states: dict[Partition, _PartitionState] = {}
        self._sent: dict[Partition, tuple[_PartitionState, int, JournalEntry | None]] | None = None
        self._unconfirmed: set[Partition] = set()  # of which the broker may still take a commit that failed here
        self._sent_at = self._next_at = 0.0

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Return those that are ours."""
        return tuple(self._states)

    def owns(self, partition: Partition) -> bool:
        """Return whether a partition is ours."""
        return partition in self._states

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Note that partitions were assigned."""
        for partition in partitions:
            self._states[partition] = _PartitionState()

    def unassign(self, partitions: Iterable[Partition]) -> None:
        """Note that partitions are no longer ours: the broker refuses commits for them that arrive late."""
        for partition in partitions:
            self._states.pop(partition, None)
        # Nothing is left to repeat: what may still come of the commit is refused, and transactions may go on.
        if self._sent is None and self._unconfirmed and not self._unconfirmed & self._states.keys():
            self._end_commit()

    def note_message(self, partition: Partition, offset: int) -> bool:
        """Note a message of a partition; returns whether it is the first, so that the journal is to be read now."""
        state = self._states[partition]
        if state.first_offset is not None:
            return False
        state.first_offset = offset
        return True

    def open_journal(self, partition: Partition, metadata: str | None) -> None:
        """Take in what the journal of a partition says."""
        state = self._states.get(partition)
        if state is not None and state.journal is None:
            state.journal = Journal(JournalEntry.parse(metadata), self._max_deliveries)

    def journal(self, partition: Partition) -> Journal | None:
        """Return the journal of a partition of ours, None until it was read."""
        return state.journal if (state := self._states.get(partition)) is not None else None

    def position(self, partition: Partition) -> TopicPartition | None:
        """Return where a partition is to be read on from, and its journal; None before its first message."""
        state = self._states.get(partition)
        if state is None or state.first_offset is None or state.journal is None:
            return None
        committable = self._offsets.committable(partition)
        offset = state.first_offset if committable is None else committable
        return TopicPartition(*partition, offset, str(state.journal.entry))

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

    def send(self, consumer: Consumer, awaited: Collection[Partition] = ()) -> None:
        """Commit what has moved.

        Parameters
        ----------
        awaited : partitions whose messages wait for this commit. All others have time; where there are transactions,
            these commit the others' offsets.
        """
        now = monotonic()
        many_uncommitted = self._offsets.uncommitted() >= MAX_UNCOMMITTED // 2
        pressing = awaited or self._unconfirmed or (self._gate is None and (many_uncommitted or now >= self._next_at))
        due = (self._states if self._gate is None else {*awaited, *self._unconfirmed}) if pressing else ()
        if not self._moved_positions(due):
            if self._gate is not None:
                self._gate.cancel_journal_wait()
            return
        if self._sent is not None and (self._gate is not None or now - self._sent_at < COMMIT_TIMEOUT_SECONDS):
            return
        if self._acquire_gate(timeout=0.0):  # the consumer's thread waits for nobody
            self._next_at, self._sent_at = now + COMMIT_SECONDS, now
            # Asked again behind the gate: a transaction that has just ended has moved the positions, and the earlier
            # ones would set the group back.
            self._send(consumer, self._moved_positions(due), without_journal=False)

    def _acquire_gate(self, timeout: float) -> bool:
        """Enter the gate, where there is one; returns whether that was possible."""
        # While a commit is unconfirmed the gate is still ours: its repetition goes through without entering again.
        return self._gate is None or bool(self._unconfirmed) or self._gate.acquire_for_journal(timeout)

    def _moved_positions(self, places: Iterable[Partition]) -> list[TopicPartition]:
        """Return the positions that differ from what the broker has acknowledged of them."""
        return [one for one in map(self.position, places) if one is not None and self._has_moved(one)]

    def is_behind(self, partition: Partition) -> bool:
        """Return whether the broker has yet to acknowledge where a partition of ours is read on from."""
        return bool(self._moved_positions([partition]))

    def _has_moved(self, position: TopicPartition) -> bool:
        return self._states[str(position.topic), position.partition].acknowledged != (
            position.offset,
            position.metadata,
        )

    def _send(self, consumer: Consumer, positions: Sequence[TopicPartition], without_journal: bool) -> None:
        self._sent = {}
        for one in positions:
            state = self._states[str(one.topic), one.partition]
            entry = None if without_journal or state.journal is None else state.journal.entry
            self._sent[str(one.topic), one.partition] = state, one.offset, entry
        try:
            consumer.commit(offsets=list(positions), asynchronous=True)
        except KafkaException:
            self._end_commit()

    def on_commit(self, error: KafkaError | None, positions: Sequence[TopicPartition]) -> None:
        """Take in what became of a commit; called by the consumer.

        One that failed without an answer may still be taken later: after the next transaction it would set the group
        back. So it is repeated until the broker has acknowledged it, and no transaction begins before.
        """
        if self._sent is None:
            return
        if error is not None and _may_still_succeed(error) and self._gate is not None:
            self._mark_unconfirmed()
            return
        for one in positions:
            sent = self._sent.get((str(one.topic), one.partition))
            if sent is None or error is not None or one.error is not None:
                continue
            # The partition as it was when this was sent: it may have gone and come back since, with another journal.
            state, offset, entry = sent
            state.acknowledged = (offset, "" if entry is None else str(entry))
            self._offsets.committed((str(one.topic), one.partition), offset)
            if state.journal is not None and entry is not None:
                state.journal.acknowledged = entry
        self._end_commit()

    def _mark_unconfirmed(self) -> None:
        self._unconfirmed = {*(self._sent or {}), *self._unconfirmed} & self._states.keys()
        if not self._unconfirmed:
            self._end_commit()
            return
        self._sent = None
        for partition in self._unconfirmed:
            self._states[partition].acknowledged = None  # so that the next call sends it again, moved or not

    def abandon_commit(self) -> None:
        """Forget the commit in flight: nobody tells any more what becomes of it, and no partition of it is ours."""
        self._end_commit()

    def _end_commit(self) -> None:
        if self._gate is not None and (self._sent is not None or self._unconfirmed):
            self._gate.release()
        self._sent, self._unconfirmed = None, set()

    @property
    def commit_in_flight(self) -> bool:
        """Return whether a commit has been sent and not been answered."""
        return self._sent is not None

    def commit_final(self, consumer: Consumer, partitions: Iterable[Partition], clean: bool, timeout: float) -> None:
        """Commit partitions that leave us for the last time; without a journal entry where nothing went wrong.

        Parameters
        ----------
        clean : whether what is not done cannot be what made the worker end.
        timeout : seconds that a transaction in flight may take to end; where it takes longer, it commits by itself.
        """
        places = [partition for partition in partitions if self.position(partition) is not None]
        if not places or not self._acquire_gate(timeout):
            return
        # Positions after the transaction that was waited for: earlier ones would undo what it committed.
        positions = [one for one in map(self.position, places) if one is not None]
        if clean:
            positions = [TopicPartition(str(one.topic), one.partition, one.offset, "") for one in positions]
        self._send(consumer, positions, without_journal=clean)


def _may_still_succeed(error: KafkaError) -> bool:
    """Return whether a broker may take a commit although it failed here: nothing came back, or not in time."""
    return bool(error.code() < 0 or error.code() == KafkaError.REQUEST_TIMED_OUT)
