"""Crash markers: metadata of committed offsets that tell the next owner of a partition whether its predecessor crashed.

Kafka does not count deliveries. So the metadata of each commit records how far messages have been in flight
(:attr:`CrashMarker.in_flight_end`), and the final commit of an owner that gives up a partition has no marker. An owner
that finds a marker knows that its predecessor crashed, and that any of the messages between the offset and
``in_flight_end`` may be a poison message, which kills its worker. The marker also counts crashes in a row:

- after a first crash these candidates are delivered as usual, none before a marker that covers it has been
  acknowledged;
- after :data:`ISOLATE_AFTER_CRASHES` crashes each is isolated: delivered in order, with nothing else in flight in the
  process, after a marker that names it and counts the try. One that was isolated too often is a dead letter.

Crashes are forgotten once all candidates are done, and a batch more that may have been delivered without a record.
"""

from dataclasses import dataclass, replace
from typing import Final

from nightjar_alerts.models.limits import whole_number

ISOLATE_AFTER_CRASHES: Final = 2
"""Crashes after which candidates are isolated; machines that lose power twice in a row are rare."""
UNRECORDED_MESSAGES: Final = 256
"""Messages beyond ``in_flight_end`` that may have been delivered before it was acknowledged."""
_FORMAT: Final = "nightjar/1"


@dataclass(frozen=True, slots=True)
class CrashMarker:
    """Marker in the metadata of a committed offset.

    Attributes
    ----------
    crashes : owners that crashed in a row before this one.
    in_flight_end : the offset before which messages have been delivered to the worker.
    isolated : the offset of the isolated message, None when there is none.
    tries : how often that one has been isolated, this time included.
    """

    crashes: int
    in_flight_end: int
    isolated: int | None = None
    tries: int = 0

    def __str__(self) -> str:
        """Return the metadata of the commit."""
        isolated = "-" if self.isolated is None else self.isolated
        return f"{_FORMAT} {self.crashes} {self.in_flight_end} {isolated} {self.tries}"

    @classmethod
    def parse(cls, metadata: str | None) -> "CrashMarker | None":
        """Return the marker in the metadata of a commit; None after a final commit, or for foreign metadata."""
        sign, *words = (metadata or "").split(" ")
        if sign != _FORMAT or len(words) != 4:
            return None
        crashes, in_flight_end, tries = (whole_number(words[index]) for index in (0, 1, 3))
        isolated = whole_number(words[2])
        if crashes is None or in_flight_end is None or tries is None or (isolated is None and words[2] != "-"):
            return None
        return cls(crashes, in_flight_end, isolated, tries)


class CrashGuard:
    """Decides which messages of one partition may be delivered, by its crash markers.

    Parameters
    ----------
    predecessor : the marker in the metadata of the committed offset, None after a final commit.
    max_deliveries : deliveries that a message may have had.

    Attributes
    ----------
    acknowledged : the last marker of this owner that the broker has acknowledged, None before the first.
    """

    def __init__(self, predecessor: CrashMarker | None, max_deliveries: int) -> None:
        self._predecessor = predecessor
        self._max_deliveries = max_deliveries
        # A marker that is still there was followed by no final commit: its owner crashed, perhaps by a poison message.
        self._marker = CrashMarker(
            0 if predecessor is None else predecessor.crashes + 1,
            0 if predecessor is None else predecessor.in_flight_end,
        )
        self._candidates_end = 0 if predecessor is None else predecessor.in_flight_end
        self.acknowledged: CrashMarker | None = None

    @property
    def marker(self) -> CrashMarker:
        """Marker of the next commit."""
        return self._marker

    @property
    def crashes(self) -> int:
        """Owners that crashed in a row before this one."""
        return self._marker.crashes

    def extend_in_flight(self, end: int) -> None:
        """Note that messages before an offset are about to be delivered."""
        if end > self._marker.in_flight_end:
            self._marker = replace(self._marker, in_flight_end=end)

    def may_deliver(self, offset: int) -> bool:
        """Return whether the acknowledged marker allows that a message is delivered, among others or isolated."""
        acknowledged = self.acknowledged
        if acknowledged is None:
            return False  # after a crash now, the next owner would not learn of it
        if self.must_isolate(offset):
            return acknowledged.isolated == offset
        # Without a crash the marker may lag behind: waiting for it would cost every message a round trip to the broker.
        return self.crashes == 0 or acknowledged.in_flight_end > offset

    def must_isolate(self, offset: int) -> bool:
        """Return whether a message may be delivered only while nothing else is in flight."""
        return self.crashes >= ISOLATE_AFTER_CRASHES and offset < self._candidates_end

    def begin_try(self, offset: int) -> None:
        """Note which message is isolated next."""
        if self._marker.isolated != offset:
            self._marker = replace(self._marker, isolated=offset, tries=self._tries(offset) + 1)

    def deliveries(self, offset: int) -> int:
        """Return how often a message was delivered, this time included.

        Deliveries together with others count at most ``max_deliveries`` times: the message need not be the cause.
        """
        if offset >= self._candidates_end or not self.crashes:
            return 1
        tries = self._tries(offset)
        if tries:
            return ISOLATE_AFTER_CRASHES + tries + 1
        return min(1 + min(self.crashes, ISOLATE_AFTER_CRASHES), self._max_deliveries)

    def _tries(self, offset: int) -> int:
        """Return how often a message was isolated before."""
        before = self._predecessor
        return before.tries if before is not None and before.isolated == offset else 0

    def note_done_before(self, offset: int, caught_up: bool) -> None:
        """Note that everything before an offset is done; forget crashes behind which all candidates lie.

        Parameters
        ----------
        caught_up : whether no message waits at the broker or in the buffer.
        """
        if self._marker.isolated is not None and offset > self._marker.isolated:
            self._marker = replace(self._marker, isolated=None, tries=0)
        candidates_done = offset >= self._candidates_end + UNRECORDED_MESSAGES or (
            caught_up and offset >= self._candidates_end
        )
        if self.crashes and candidates_done:
            self._marker = replace(self._marker, crashes=0)
