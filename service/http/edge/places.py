"""Places of connections that can be given to newcomers: whoever has taken most gives way first.

A connection at work keeps its place. One that lingers, which has its answer and is only read to its end, gives way
before one that waits for its next request. Among either kind it is the neighbourhood with most of them that gives one
up, the one it has had longest: an address that opens thousands pushes out its own connections and nobody else's.
"""

from typing import Generic, TypeVar

T = TypeVar("T")


class Crowd(Generic[T]):
    """Members of neighbourhoods; whatever is asked of it takes the same short time however many they are."""

    def __init__(self) -> None:
        self._of: dict[T, str] = {}
        self._members: dict[str, dict[T, None]] = {}  # the longest there first
        self._sized: dict[int, dict[str, None]] = {}  # neighbourhoods by their number of members
        self._most = 0

    def __len__(self) -> int:
        return len(self._of)

    def add(self, member: T, neighbourhood: str) -> None:
        """Add a member, which keeps its place in the order when it is there already."""
        if member in self._of:
            return
        self._of[member] = neighbourhood
        members = self._members.setdefault(neighbourhood, {})
        members[member] = None
        self._resized(neighbourhood, len(members) - 1, len(members))

    def discard(self, member: T) -> None:
        """Remove a member, if it is one."""
        if (neighbourhood := self._of.pop(member, None)) is None:
            return
        members = self._members[neighbourhood]
        del members[member]
        if not members:
            del self._members[neighbourhood]
        self._resized(neighbourhood, len(members) + 1, len(members))

    def pop(self) -> T:
        """Remove the longest there of the neighbourhood with most. Raises KeyError when nobody is there."""
        member = next(iter(self._members[next(iter(self._sized[self._most]))]))
        self.discard(member)
        return member

    def _resized(self, neighbourhood: str, before: int, now: int) -> None:
        if before:
            del self._sized[before][neighbourhood]
            if not self._sized[before]:
                del self._sized[before]
        if now:
            self._sized.setdefault(now, {})[neighbourhood] = None
        if now > self._most or self._most not in self._sized:
            self._most = now


class Places(Generic[T]):
    """What is known of the connections that are not at work."""

    def __init__(self) -> None:
        self._lingering, self._idle = Crowd[T](), Crowd[T]()
        self._ending = set[T]()

    @property
    def ending(self) -> int:
        """Connections that have given way and are about to be lost."""
        return len(self._ending)

    def waits(self, connection: T, neighbourhood: str) -> None:
        """Note that a connection has no request."""
        self._idle.add(connection, neighbourhood)

    def works(self, connection: T) -> None:
        """Note that a connection has a request."""
        self._idle.discard(connection)

    def lingers(self, connection: T, neighbourhood: str) -> None:
        """Note that a connection has its last answer, and may go on sending."""
        self._idle.discard(connection)
        self._lingering.add(connection, neighbourhood)

    def lost(self, connection: T) -> None:
        """Forget a connection."""
        self._idle.discard(connection)
        self._lingering.discard(connection)
        self._ending.discard(connection)

    def give_way(self, count: int) -> list[T]:
        """Return so many connections that are to end now; none where there are not so many that can."""
        if count > len(self._lingering) + len(self._idle):
            return []
        lingering = min(count, len(self._lingering))
        found = [self._lingering.pop() for _ in range(lingering)] + [self._idle.pop() for _ in range(count - lingering)]
        self._ending.update(found)
        return found
