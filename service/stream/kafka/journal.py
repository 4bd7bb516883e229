"""Journal: metadata of a committed offset, which shows the next owner of a partition whether its predecessor crashed.

Kafka does not count deliveries. So each commit records beside the offset how far messages have been in flight
(:attr:`JournalEntry.in_flight_end`), and the final commit of an owner that gives up a partition has no entry. An owner
that finds an entry knows that its predecessor crashed, and that the messages between the offset and ``in_flight_end``
are suspects: any of them may be a poison message, which kills its worker. The entry also counts crashes in a row:

- after a first crash the suspects are delivered as usual, none before an entry that covers it has been acknowledged;
- after :data:`ISOLATE_AFTER_CRASHES` crashes each is delivered alone, in order, with nothing else in flight in the
  process, after an entry that names it and counts the try. One that was tried alone too often is a dead letter.

Crashes are forgotten once all suspects are done, and a batch more that may have been delivered without a record.
"""

from dataclasses import dataclass, replace
from typing import Final

from nightjar_alerts.models.limits import whole_number

ISOLATE_AFTER_CRASHES: Final = 2
"""Crashes after which suspects are delivered alone; machines that lose power twice in a row are rare."""
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
        """Return the entry in the metadata of a commit; None after a final commit, or for foreign metadata."""
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
    acknowledged : the last entry of this owner that the broker has acknowledged, None before the first.
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
        """Entry of the next commit."""
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
        """Return whether the acknowledged entry allows that a message is delivered, among others or alone."""
        acknowledged = self.acknowledged
        if acknowledged is None:
            return False  # after a crash now, the next owner would not learn of it
        if self.must_isolate(offset):
            return acknowledged.alone == offset
        # Without a crash the entry may lag behind: waiting for it would cost every message a round trip to the broker.
        return self.crashes == 0 or acknowledged.in_flight_end > offset

    def must_isolate(self, offset: int) -> bool:
        """Return whether a message may be delivered only while nothing else is in flight."""
        return self.crashes >= ISOLATE_AFTER_CRASHES and offset < self._suspects_end

    def begin_try(self, offset: int) -> None:
        """Note which message is tried alone next."""
        if self._entry.alone != offset:
            self._entry = replace(self._entry, alone=offset, tries=self._tries(offset) + 1)

    def deliveries(self, offset: int) -> int:
        """Return how often a message was delivered, this time included.

        Deliveries together with others count at most ``max_deliveries`` times: the message need not be the cause.
        """
        if offset >= self._suspects_end or not self.crashes:
            return 1
        tries = self._tries(offset)
        if tries:
            return ISOLATE_AFTER_CRASHES + tries + 1
        return min(1 + min(self.crashes, ISOLATE_AFTER_CRASHES), self._max_deliveries)

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
