"""Crash markers: metadata of committed offsets that show the next owner of a partition that the previous one crashed.

Kafka does not count deliveries. So the metadata of each commit records the offset up to which messages have been in
flight (:attr:`CrashMarker.in_flight_end`), and the final commit of an owner that gives up a partition has no marker. An
owner that finds a marker knows that the previous owner crashed, and that any message between the committed offset and
``in_flight_end`` may be a poison message, which kills its worker. The marker also counts consecutive crashes:

- after the first crash, each of these candidates is delivered as usual, but only once a marker that covers it is
  acknowledged;
- after :data:`ISOLATE_AFTER_CRASHES` crashes each candidate is isolated: delivered in order, with nothing else in
  flight in the process, after a marker that names it and counts the attempt. A candidate that was isolated too often
  becomes a dead letter.

The count of crashes is reset once all candidates are done, and the messages that may have been delivered without a
marker.
"""

from dataclasses import dataclass, replace
from typing import Final

from nightjar_alerts.models.limits import whole_number

ISOLATE_AFTER_CRASHES: Final = 2
"""Consecutive crashes after which candidates are isolated; a single one may be a power failure."""
UNRECORDED_MESSAGES: Final = 256
"""Number of messages after ``in_flight_end`` that may have been delivered before the marker was acknowledged."""
_FORMAT: Final = "nightjar/1"


@dataclass(frozen=True, slots=True)
class CrashMarker:
    """Marker in the metadata of a committed offset.

    Attributes
    ----------
    crashes : number of consecutive owners before this one that crashed.
    in_flight_end : offset before which messages have been delivered to the worker.
    isolated : offset of the isolated message; None if there is none.
    tries : number of times that this message was isolated, including the current one.
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
        """Return the marker in the metadata of a commit; None for a final commit or other metadata."""
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
    predecessor : marker in the metadata of the committed offset; None after a final commit.
    max_deliveries : maximum number of deliveries of a message.

    Attributes
    ----------
    acknowledged : last marker of this owner that the broker has acknowledged; None before the first.
    """

    def __init__(self, predecessor: CrashMarker | None, max_deliveries: int) -> None:
        self._predecessor = predecessor
        self._max_deliveries = max_deliveries
        # A marker means that no final commit followed: its owner crashed, perhaps on a poison message.
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
        """Number of consecutive owners before this one that crashed."""
        return self._marker.crashes

    def extend_in_flight(self, end: int) -> None:
        """Record that messages before an offset are about to be delivered."""
        if end > self._marker.in_flight_end:
            self._marker = replace(self._marker, in_flight_end=end)

    def may_deliver(self, offset: int) -> bool:
        """Return whether the acknowledged marker allows the delivery of a message, isolated or not."""
        acknowledged = self.acknowledged
        if acknowledged is None:
            return False  # without a marker, the next owner could not detect a crash
        if self.must_isolate(offset):
            return acknowledged.isolated == offset
        # Without a crash the marker may lag behind, since waiting for it adds a round trip to the broker.
        return self.crashes == 0 or acknowledged.in_flight_end > offset

    def must_isolate(self, offset: int) -> bool:
        """Return whether a message may be delivered only while nothing else is in flight."""
        return self.crashes >= ISOLATE_AFTER_CRASHES and offset < self._candidates_end

    def begin_isolation(self, offset: int) -> None:
        """Record which message is isolated next."""
        if self._marker.isolated != offset:
            self._marker = replace(self._marker, isolated=offset, tries=self._tries(offset) + 1)

    def deliveries(self, offset: int) -> int:
        """Return the number of deliveries of a message, including the current one.

        Without isolation it is at most ``max_deliveries``, since another message may have caused the crashes.
        """
        if offset >= self._candidates_end or not self.crashes:
            return 1
        tries = self._tries(offset)
        if tries:
            return ISOLATE_AFTER_CRASHES + tries + 1
        return min(1 + min(self.crashes, ISOLATE_AFTER_CRASHES), self._max_deliveries)

    def _tries(self, offset: int) -> int:
        """Return the number of times that a message was isolated before."""
        marker = self._predecessor
        return marker.tries if marker is not None and marker.isolated == offset else 0

    def record_done_before(self, offset: int, caught_up: bool) -> None:
        """Record that all messages before an offset are done; reset the crashes once all candidates are.

        Parameters
        ----------
        caught_up : True if no message is pending at the broker or in the buffer.
        """
        if self._marker.isolated is not None and offset > self._marker.isolated:
            self._marker = replace(self._marker, isolated=None, tries=0)
        candidates_done = offset >= self._candidates_end + UNRECORDED_MESSAGES or (
            caught_up and offset >= self._candidates_end
        )
        if self.crashes and candidates_done:
            self._marker = replace(self._marker, crashes=0)
