"""Commits: the offset before which all is done, with the journal beside it.

Commits are asked for and never waited for; the consumer tells later what became of them. One is under way at a time,
and the next says what is true then, so that a broker that was away is told everything at once when it is back.

The journal tells the next owner what was being worked on when a worker died; it is kept in the metadata of the
committed offset. Kafka does not count deliveries. So each commit says beside the offset how far messages had been
handed on (:attr:`Entry.reach`), and an owner that takes leave of a partition says nothing beside it. Who finds an entry
knows that its predecessor died over the messages between the offset and the reach, and how many died there before:

- after a first crash they are handed on as ever, but none before an entry that names it has been acknowledged;
- after :data:`ALONE_AFTER` crashes each is handed on alone, in order, with nothing else under way in the process, after
  an entry that names it and counts the try. Whoever has been tried alone too often is a dead letter.

Crashes are forgotten once all suspects are done, and a batch more of what nobody had time to name.
"""

import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from models.limits import whole_number
from service.stream.kafka.offsets import Offsets, Partition

ALONE_AFTER: Final = 2
"""Crashes after which suspects are tried alone; machines that lose power twice in a row are rare."""
UNNAMED: Final = 256
"""Messages beyond the reach that may have been handed on before the reach was told."""
_SIGN: Final = "nightjar/1"


@dataclass(frozen=True, slots=True)
class Entry:
    """Note of an owner beside the offset that it commits.

    Attributes
    ----------
    crashes : owners that died in a row before this one.
    reach : the offset before which messages have been handed on.
    alone : the offset of the message that is tried alone, None when none is.
    tries : how often that one has been tried alone, this time included.
    """

    crashes: int
    reach: int
    alone: int | None = None
    tries: int = 0

    def __str__(self) -> str:
        """Return the metadata of the commit."""
        alone = "-" if self.alone is None else self.alone
        return f"{_SIGN} {self.crashes} {self.reach} {alone} {self.tries}"

    @classmethod
    def parse(cls, metadata: str | None) -> "Entry | None":
        """Return the entry that metadata holds; None for what a farewell leaves, or anybody else has written."""
        sign, *words = (metadata or "").split(" ")
        if sign != _SIGN or len(words) != 4:
            return None
        crashes, reach, tries = (whole_number(words[place]) for place in (0, 1, 3))
        alone = whole_number(words[2])
        if crashes is None or reach is None or tries is None or (alone is None and words[2] != "-"):
            return None
        return cls(crashes, reach, alone, tries)


class Journal:
    """The journal of one partition, from its assignment to its loss.

    Parameters
    ----------
    found : the entry beside the committed offset, None after a farewell.
    max_deliveries : deliveries that a message may have had.

    Attributes
    ----------
    acknowledged : the last entry of ours that the broker has, None before the first.
    """

    def __init__(self, found: Entry | None, max_deliveries: int) -> None:
        self._found = found
        self._max_deliveries = max_deliveries
        # An entry that is still there had no farewell: its writer died, perhaps of what it had handed on.
        self._entry = Entry(0 if found is None else found.crashes + 1, 0 if found is None else found.reach)
        self._suspects_end = 0 if found is None else found.reach
        self.acknowledged: Entry | None = None

    @property
    def entry(self) -> Entry:
        """Return what the next commit is to say."""
        return self._entry

    @property
    def crashes(self) -> int:
        """Owners that died in a row before this one."""
        return self._entry.crashes

    def reach_to(self, end: int) -> None:
        """Note that messages before an offset are about to be handed on."""
        if end > self._entry.reach:
            self._entry = replace(self._entry, reach=end)

    def may_go(self, offset: int) -> bool:
        """Return whether a message may be handed on as far as the broker knows of it; among others, or alone."""
        told = self.acknowledged
        if told is None:
            return False
        if self.wants_alone(offset):
            return told.alone == offset
        return self.crashes == 0 or told.reach > offset

    def wants_alone(self, offset: int) -> bool:
        """Return whether a message may be handed on only while nothing else is under way."""
        return self.crashes >= ALONE_AFTER and offset < self._suspects_end

    def name_alone(self, offset: int) -> None:
        """Note which message is tried alone next."""
        if self._entry.alone != offset:
            self._entry = replace(self._entry, alone=offset, tries=self._tries(offset) + 1)

    def deliveries(self, offset: int) -> int:
        """Return how often a message was delivered, this time included, as far as it can be blamed for it.

        One that only was under way with others when workers died is not delivered too often by that.
        """
        if offset >= self._suspects_end or not self.crashes:
            return 1
        tries = self._tries(offset)
        if tries:
            return ALONE_AFTER + tries + 1
        return min(1 + min(self.crashes, ALONE_AFTER), self._max_deliveries)

    def _tries(self, offset: int) -> int:
        """Return how often a message was tried alone before."""
        return self._found.tries if self._found is not None and self._found.alone == offset else 0

    def done_before(self, offset: int, caught_up: bool) -> None:
        """Note that everything before an offset is done; forget crashes behind which all suspects lie.

        Parameters
        ----------
        caught_up : whether nothing more waits at the broker, nor here.
        """
        if self._entry.alone is not None and offset > self._entry.alone:
            self._entry = replace(self._entry, alone=None, tries=0)
        passed = offset >= self._suspects_end + UNNAMED or (caught_up and offset >= self._suspects_end)
        if self.crashes and passed:
            self._entry = replace(self._entry, crashes=0)


COMMIT_SECONDS: Final = 0.05
"""Seconds between two commits, unless one is waited for: what was answered since the last is repeated after a kill."""
UNCOMMITTED: Final = 256
"""Most messages that may be answered and not committed: as many may be answered twice after a kill.

At half of it a commit is sent at once, so that the other half may be answered while the broker takes it.
"""
UNANSWERED_SECONDS: Final = 20.0
"""Seconds after which a commit is given up if the client has not said what became of it."""


class Apart:
    """Gate for transactions and commits of the journal, one after another; of those who wait, the journal goes first.

    The broker keeps the commit that came last, also when a transaction whose offsets came before it ends after it: were
    both under way at once, a journal could set the group back.
    """

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._nobody_waits = threading.Event()
        self._nobody_waits.set()

    def begin_transaction(self, timeout: float) -> bool:
        """Begin a transaction's time if that is possible within some seconds."""
        return self._nobody_waits.wait(timeout) and self._busy.acquire(timeout=timeout)

    def begin_journal(self, timeout: float = 0.0) -> bool:
        """Begin the time of a commit of the journal; if that is not possible now, it goes first when it is."""
        begun = self._busy.acquire(timeout=timeout)
        self.wait_no_more() if begun else self._nobody_waits.clear()
        return begun

    def wait_no_more(self) -> None:
        """Let transactions go on: nobody has a journal to write."""
        self._nobody_waits.set()

    def end(self) -> None:
        """End one's time."""
        self._busy.release()


@dataclass(slots=True)
class _Held:
    """A partition of ours.

    Attributes
    ----------
    start : the offset of the first message that came of it, None before.
    journal : None until it was read.
    told : offset and metadata that the broker has acknowledged.
    """

    start: int | None = None
    journal: Journal | None = None
    told: tuple[int, str] | None = None


class Commits:
    """Partitions of a consumer, their journals and what was committed of them. For the consumer's thread alone.

    Parameters
    ----------
    offsets : progress through the partitions.
    max_deliveries : deliveries that a message may have had.
    apart : keeps our commits and those of transactions apart, where there are any.
    """

    def __init__(self, offsets: Offsets, max_deliveries: int, apart: Apart | None = None) -> None:
        self._offsets = offsets
        self._max_deliveries = max_deliveries
        self._apart = apart
        self._held: dict[Partition, _Held] = {}
        self._sent: dict[Partition, tuple[_Held, int, Entry | None]] | None = None
        self._doubtful: set[Partition] = set()  # of which nobody knows whether the broker will still take a commit
        self._sent_at = self._next_at = 0.0

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Return those that are ours."""
        return tuple(self._held)

    def owns(self, partition: Partition) -> bool:
        """Return whether a partition is ours."""
        return partition in self._held

    def begin(self, partitions: Iterable[Partition]) -> None:
        """Note that partitions were assigned."""
        for partition in partitions:
            self._held[partition] = _Held()

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Note that partitions are no longer ours: the broker refuses what we have said of them and comes late."""
        for partition in partitions:
            self._held.pop(partition, None)
        if self._sent is None and self._doubtful and not self._doubtful & self._held.keys():
            self._end_sent()

    def start(self, partition: Partition, offset: int) -> bool:
        """Note a message of a partition; returns whether it was the first, so that its journal is to be read."""
        held = self._held[partition]
        first, held.start = held.start is None, offset if held.start is None else held.start
        return first

    def open(self, partition: Partition, metadata: str | None) -> None:
        """Take in what the journal of a partition says."""
        held = self._held.get(partition)
        if held is not None and held.journal is None:
            held.journal = Journal(Entry.parse(metadata), self._max_deliveries)

    def journal(self, partition: Partition) -> Journal | None:
        """Return the journal of a partition of ours, None until it was read."""
        return held.journal if (held := self._held.get(partition)) is not None else None

    def position(self, partition: Partition) -> TopicPartition | None:
        """Return where a partition is to be read on from, and its journal; None before its first message."""
        held = self._held.get(partition)
        if held is None or held.start is None or held.journal is None:
            return None
        front = self._offsets.front(partition)
        return TopicPartition(*partition, held.start if front is None else front, str(held.journal.entry))

    def review(self, caught_up: bool) -> None:
        """Let the journals forget crashes of which all suspects are done."""
        for partition, held in self._held.items():
            front = self._offsets.front(partition)
            if held.journal is not None and held.journal.crashes and front is not None:
                quiet = caught_up and not self._offsets.unfinished([partition])
                held.journal.done_before(front, quiet)

    def send(self, consumer: Consumer, wanted: Collection[Partition] = ()) -> None:
        """Commit what has moved.

        Parameters
        ----------
        wanted : partitions of which messages wait for it. Otherwise it has time, and where there are transactions they
            see to the rest.
        """
        now = monotonic()
        many = self._offsets.uncommitted() >= UNCOMMITTED // 2
        pressing = wanted or self._doubtful or (self._apart is None and (many or now >= self._next_at))
        places = (self._held if self._apart is None else {*wanted, *self._doubtful}) if pressing else ()
        if not self._moved_positions(places):
            if self._apart is not None:
                self._apart.wait_no_more()
            return
        if self._sent is not None and (self._apart is not None or now - self._sent_at < UNANSWERED_SECONDS):
            return
        if self._begin(0.0):
            self._next_at, self._sent_at = now + COMMIT_SECONDS, now
            # Looked at anew: a transaction that ended just now has moved them, and this must not set the group back.
            self._send(consumer, self._moved_positions(places), farewell=False)

    def _begin(self, patience: float) -> bool:
        """Begin the time of a commit where transactions have theirs; returns whether that was possible."""
        return self._apart is None or bool(self._doubtful) or self._apart.begin_journal(patience)

    def _moved_positions(self, places: Iterable[Partition]) -> list[TopicPartition]:
        """Return the positions that differ from what the broker has acknowledged of them."""
        return [one for one in map(self.position, places) if one is not None and self._moved(one)]

    def is_behind(self, partition: Partition) -> bool:
        """Return whether the broker has yet to acknowledge where a partition of ours is read on from."""
        return bool(self._moved_positions([partition]))

    def _moved(self, position: TopicPartition) -> bool:
        return self._held[str(position.topic), position.partition].told != (position.offset, position.metadata)

    def _send(self, consumer: Consumer, positions: Sequence[TopicPartition], farewell: bool) -> None:
        self._sent = {}
        for one in positions:
            held = self._held[str(one.topic), one.partition]
            entry = None if farewell or held.journal is None else held.journal.entry
            self._sent[str(one.topic), one.partition] = held, one.offset, entry
        try:
            consumer.commit(offsets=list(positions), asynchronous=True)
        except KafkaException:
            self._end_sent()

    def answered(self, error: KafkaError | None, positions: Sequence[TopicPartition]) -> None:
        """Take in what became of a commit.

        One of which that is not known may come to be later, and between transactions it would set the group back. So
        it is said again until the broker has acknowledged it, and no transaction begins before.
        """
        if self._sent is None:
            return
        if error is not None and _is_doubtful(error) and self._apart is not None:
            self._doubt()
            return
        for one in positions:
            sent = self._sent.get((str(one.topic), one.partition))
            if sent is None or error is not None or one.error is not None:
                continue
            held, offset, entry = sent
            held.told = (offset, "" if entry is None else str(entry))
            self._offsets.committed((str(one.topic), one.partition), offset)
            if held.journal is not None and entry is not None:
                held.journal.acknowledged = entry
        self._end_sent()

    def _doubt(self) -> None:
        self._doubtful = {*(self._sent or {}), *self._doubtful} & self._held.keys()
        if not self._doubtful:
            self._end_sent()
            return
        self._sent = None
        for partition in self._doubtful:
            self._held[partition].told = None

    def client_gone(self) -> None:
        """Forget the commit under way: nobody tells any more what becomes of it, and no partition of it is ours."""
        self._end_sent()

    def _end_sent(self) -> None:
        if self._apart is not None and (self._sent is not None or self._doubtful):
            self._apart.end()
        self._sent, self._doubtful = None, set()

    @property
    def under_way(self) -> bool:
        """Return whether a commit has been sent and not been answered."""
        return self._sent is not None

    def farewell(self, consumer: Consumer, partitions: Iterable[Partition], clean: bool, patience: float) -> None:
        """Commit partitions that leave us; without an entry where they leave in peace.

        Parameters
        ----------
        clean : whether nobody died over them.
        patience : seconds that a transaction under way may take to end; it commits by itself otherwise.
        """
        places = [partition for partition in partitions if self.position(partition) is not None]
        if not places or not self._begin(patience):
            return
        # Positions are those after the transaction that was waited for: earlier ones would undo what it committed.
        positions = [one for one in map(self.position, places) if one is not None]
        if clean:
            positions = [TopicPartition(str(one.topic), one.partition, one.offset, "") for one in positions]
        self._send(consumer, positions, farewell=clean)


def _is_doubtful(error: KafkaError) -> bool:
    """Return whether a broker may take a commit although it failed here: nothing came back, or not in time."""
    return bool(error.code() < 0 or error.code() == KafkaError.REQUEST_TIMED_OUT)
