"""Crash markers: metadata of committed offsets that show the next owner of a partition that the previous one crashed.

Kafka does not count deliveries. So the metadata of each commit records which process owns the partition, and the offset
up to which messages have been in flight (:attr:`CrashMarker.in_flight_end`). The final commit of an owner that gives up
a partition names no process. An owner that finds the marker of a process that is no longer alive
(:mod:`service.stream.kafka.committed`) knows that it crashed, and that any message between the committed offset and
``in_flight_end`` may be a poison message, which kills its worker. The marker also counts consecutive crashes:

- after the first crash, each of these candidates is delivered as usual, but only once a marker that covers it is
  acknowledged;
- after :data:`ISOLATE_AFTER_CRASHES` crashes the candidates are isolated in groups: a group is delivered in order, with
  nothing else in flight in the process, after a marker that names it. A group that is followed by a crash is divided
  further. A message that was followed by a crash alone becomes a dead letter.

The groups are as large as the remaining deliveries allow: of 200 candidates and three deliveries, 35 offsets, then 6,
then 1. So a poison message kills at most ``max_deliveries`` workers (three if that is less), and passing all other
candidates takes some twenty groups.

The count of crashes is reset once all candidates are done, and the messages that may have been delivered without a
marker.
"""

from dataclasses import dataclass, replace
from math import ceil, pow
from typing import Final, NamedTuple

from nightjar_alerts.models.limits import whole_number

ISOLATE_AFTER_CRASHES: Final = 2
"""Consecutive crashes after which candidates are isolated; a single one may be a power failure."""
UNRECORDED_MESSAGES: Final = 256
"""Number of messages after ``in_flight_end`` that may have been delivered before the marker was acknowledged."""
GIVEN_BACK: Final = "-"
"""In place of a process: the last owner has given the partition back."""
UNKNOWN_PROCESS: Final = "?"
"""Process of a marker of the first format, which does not name it."""
_FORMAT, _FIRST_FORMAT = "nightjar/2", "nightjar/1"


class Group(NamedTuple):
    """Offsets that are isolated together, from ``first`` to before ``end``."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class CrashMarker:
    """Marker in the metadata of a committed offset.

    Attributes
    ----------
    process : id of the process that owns the partition; :data:`GIVEN_BACK` or :data:`UNKNOWN_PROCESS`.
    crashes : number of consecutive owners before this one that crashed.
    in_flight_end : offset before which messages have been delivered to the worker.
    group : offsets that are isolated now; None if there are none.
    tries : number of groups, each a part of the one before, that were isolated, including the current one.
    """

    process: str
    crashes: int
    in_flight_end: int
    group: Group | None = None
    tries: int = 0

    def __str__(self) -> str:
        """Return the metadata of the commit."""
        first, end = ("-", "-") if self.group is None else self.group
        return f"{_FORMAT} {self.process} {self.crashes} {self.in_flight_end} {first} {end} {self.tries}"

    @classmethod
    def parse(cls, metadata: str | None) -> "CrashMarker | None":
        """Return the marker in the metadata of a commit; None for other metadata, or none."""
        sign, *words = (metadata or "").split(" ")
        if sign == _FIRST_FORMAT and len(words) == 4:  # of one isolated message, without the process
            crashes, in_flight_end, isolated, tries = words
            end = isolated if (offset := whole_number(isolated)) is None else str(offset + 1)
            words = [UNKNOWN_PROCESS, crashes, in_flight_end, isolated, end, tries]
        elif sign != _FORMAT or len(words) != 6 or not words[0]:
            return None
        process, *words = words
        crashed, in_flight, first, last, tried = map(whole_number, words)
        group = None if first is None or last is None else Group(first, last)
        if crashed is None or in_flight is None or tried is None or (group is None and words[2:4] != ["-", "-"]):
            return None
        return cls(process, crashed, in_flight, group, tried)

    @property
    def given_back(self) -> "CrashMarker | None":
        """Marker of the final commit; None if there are no suspects.

        The current group does not count as tried. Candidates stay suspects: otherwise a poison message that is in
        flight at a rebalance would never be found.
        """
        if not self.crashes:
            return None
        tries = self.tries - (self.group is not None)
        return CrashMarker(GIVEN_BACK, self.crashes, self.in_flight_end, None, tries)


class CrashGuard:
    """Decides which messages of one partition may be delivered, by its crash markers.

    Parameters
    ----------
    predecessor : marker in the metadata of the committed offset; None after a final commit without suspects.
    max_deliveries : maximum number of deliveries of a message.
    process : id of this process.
    crashed : whether the process that wrote the marker has crashed.

    Attributes
    ----------
    acknowledged : last marker of this owner that the broker has acknowledged; None before the first.
    """

    def __init__(
        self, predecessor: CrashMarker | None, max_deliveries: int, process: str = "", crashed: bool = True
    ) -> None:
        self._max_deliveries = max_deliveries
        former = predecessor or CrashMarker(GIVEN_BACK, 0, 0)
        crashed = crashed and predecessor is not None
        guilty = former.group if crashed else None
        # Without a crash the last group has proved nothing, and what it was a part of is not known any more.
        tries = former.tries - (former.group is not None and not crashed)
        self._marker = CrashMarker(process, former.crashes + crashed, former.in_flight_end, None, tries)
        self._candidates_end = former.in_flight_end
        # Offset before which the cause of the latest crash lies.
        self._suspects_end = self._candidates_end if guilty is None else guilty.end
        self._culprit = guilty.first if guilty is not None and guilty.end == guilty.first + 1 else None
        self._group_size: int | None = None
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
            return self.may_deliver_isolated(offset)
        # Without a crash the marker may lag behind, since waiting for it adds a round trip to the broker.
        return self.crashes == 0 or acknowledged.in_flight_end > offset

    def may_deliver_isolated(self, offset: int) -> bool:
        """Return whether a message belongs to the group that the acknowledged marker names."""
        group = None if self.acknowledged is None else self.acknowledged.group
        return group is not None and group.first <= offset < group.end

    def must_isolate(self, offset: int) -> bool:
        """Return whether a message may be delivered only with its group, while nothing else is in flight."""
        return self.crashes >= ISOLATE_AFTER_CRASHES and offset < self._candidates_end

    def begin_isolation(self, offset: int, least_end: int = 0) -> None:
        """Name the group that is isolated next, unless the message belongs to the current one.

        Parameters
        ----------
        offset : offset of the next candidate.
        least_end : offset up to which the group must reach at least.
        """
        group = self._marker.group
        if group is not None and offset < group.end:
            return
        tried = self._marker.tries - (group is not None)
        if offset >= self._suspects_end:  # the cause of the latest crash is done: the others were not tried
            self._suspects_end, self._group_size, tried = self._candidates_end, None, 0
        if self._group_size is None:
            remaining = max(1, self._max_deliveries - ISOLATE_AFTER_CRASHES - tried)
            self._group_size = _group_size(self._suspects_end - offset, remaining)
        end = min(max(offset + self._group_size, least_end), self._candidates_end)
        self._marker = replace(self._marker, group=Group(offset, end), tries=tried + 1)

    def deliveries(self, offset: int) -> int:
        """Return the number of deliveries of a message, including the current one.

        Unless it was followed by a crash alone it is at most ``max_deliveries``, since another message may have caused
        the crashes.
        """
        if offset >= self._candidates_end or not self.crashes:
            return 1
        group = self._marker.group
        tried = self._marker.tries - (group is not None) if offset < self._suspects_end else 0
        deliveries = 1 + min(self.crashes, ISOLATE_AFTER_CRASHES) + tried
        return deliveries if offset == self._culprit else min(deliveries, self._max_deliveries)

    def record_done_before(self, offset: int, caught_up: bool) -> None:
        """Record that all messages before an offset are done; reset the crashes once all candidates are.

        Parameters
        ----------
        caught_up : True if no message is pending at the broker or in the buffer.
        """
        group = self._marker.group
        if group is not None and offset >= group.end:
            self._marker = replace(self._marker, group=None, tries=self._marker.tries - 1)
        candidates_done = offset >= self._candidates_end + UNRECORDED_MESSAGES or (
            caught_up and offset >= self._candidates_end
        )
        if self.crashes and candidates_done:
            self._marker = replace(self._marker, crashes=0, group=None, tries=0)


def _group_size(candidates: int, deliveries: int) -> int:
    """Return the size of a group, such that one message is left after a crash of each remaining delivery.

    Parameters
    ----------
    deliveries : remaining deliveries; the last one is of a single message.
    """
    size = ceil(pow(candidates, (deliveries - 1) / deliveries))
    return max(1, min(size, ceil(candidates / 2)))
