"""Turns for everybody: connections are made, pieces of requests read, and requests begun, one client after the other.

uvloop accepts whatever waits at the socket in one go, in the order in which it came: a thousand connections are made,
which takes a tenth of a second, before anybody else is looked at. Here a connection costs a few microseconds until its
client's turn has come, and a client that has opened one does not stand behind one that has opened a thousand. One that
was reset meanwhile is dropped before anything is made for it.

Places of connections (:class:`ConnectionPlaces`) can be given to newcomers, and whoever has taken most gives way
first. A connection at work keeps its place. One that lingers, which has its answer and is only read to its end, gives
way before one that waits for its next request. Among either kind it is the neighbourhood with most of them that gives
one up, the one it has had longest: an address that opens thousands pushes out its own connections and nobody else's.
"""

import asyncio
import errno
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address, ip_network
from time import monotonic, thread_time
from typing import Any, Generic, TypeVar

T = TypeVar("T")

ROUND_SECONDS = 5e-4
"""Processor time of what begins in one round of the event loop. A request of somebody else goes through some eight
rounds, and waits in each for no more than this."""
MOST_TURNS = 16
"""Turns in one round, however cheap they are."""
ACCEPTED = 64
"""Connections that are taken from the socket in one round, some 6 microseconds each."""
MOST_WAITING = 1024
"""Connections of one client that may wait for their turn, and a quarter of those of all clients."""
LEARNING = 0.2
"""Weight of a round in what a turn is expected to cost."""
FULL_SECONDS = 0.1
"""Pause after the process has run out of file descriptors."""


class Turns:
    """Turns of connections, requests and pieces of them to begin: a few in each round of the event loop, one client
    after the other.

    What is begun keeps the loop from everybody else, at once and in the tasks that it wakes. Of five hundred requests
    that come at once each would begin in the same round, and a newcomer could not even connect for a second. With turns
    the loop looks at its sockets after every few, and a client who has asked once does not stand behind one who has
    asked five hundred times. How many is measured: as many as a round's processor time has room for, one at least, by
    what a turn and all that came of it have lately cost.

    Parameters
    ----------
    clock : processor seconds of the event loop's thread.
    """

    def __init__(self, clock: Callable[[], float] = thread_time) -> None:
        self._clock = clock
        self._cost = ROUND_SECONDS / MOST_TURNS  # of a turn
        self._left = MOST_TURNS
        self._waiting: dict[str, deque[Callable[[], bool]]] = {}
        self._count = 0
        self._ticking = self._busy = False
        self._began, self._begun = 0.0, 0

    def add(self, client: str, begin: Callable[[], bool]) -> None:
        """Call ``begin`` when it is the client's turn, most often at once; it returns False where nothing began."""
        self._tick()
        if self._left > 0 and not self._waiting:
            self._begin(begin)
            return
        self._waiting.setdefault(client, deque()).append(begin)
        self._count += 1

    @property
    def waiting(self) -> int:
        """Turns that are waited for."""
        return self._count

    def _tick(self) -> None:
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._round)  # after the loop has looked at its sockets once more

    def _round(self) -> None:
        self._ticking = False
        if self._waiting:
            self._learn()
        self._left = max(1, min(MOST_TURNS, int(ROUND_SECONDS / max(self._cost, 1e-9))))
        self._begun, end = 0, monotonic() + ROUND_SECONDS
        while self._left > 0 and self._waiting and (not self._begun or monotonic() < end):
            client = next(iter(self._waiting))
            turns = self._waiting.pop(client)
            begin = turns.popleft()
            self._count -= 1
            if turns:
                self._waiting[client] = turns  # behind all others
            self._begin(begin)
        self._busy = bool(self._waiting)
        if self._busy:
            self._tick()

    def _learn(self) -> None:
        """Note what the turns of the last round have cost, if nothing else was done since."""
        now = self._clock()
        if self._busy and self._begun:
            spent = min((now - self._began) / self._begun, 2 * ROUND_SECONDS)
            self._cost += LEARNING * (spent - self._cost)
        self._began = now

    def _begin(self, begin: Callable[[], bool]) -> None:
        if begin():
            self._left -= 1
            self._begun += 1


def neighbourhood(client: Sequence[Any] | None) -> str:
    """Return the address of a client (host, port), of IPv6 the network: one house has billions of those addresses."""
    host: str = client[0] if client else ""
    if ":" not in host:
        return host
    try:
        mapped = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    embedded = getattr(mapped, "ipv4_mapped", None)
    return str(embedded or ip_network((int(mapped) >> 64 << 64, 64)).network_address)


class FairListener:
    """A listening socket whose connections are made in turns; stands for a server of the event loop.

    Parameters
    ----------
    bound : a server that is bound to its addresses and does not serve yet.
    make : makes the protocol of a connection.
    turns : in which they are made.
    """

    def __init__(
        self, bound: asyncio.Server, make: Callable[[], asyncio.Protocol], backlog: int, turns: Turns | None = None
    ) -> None:
        self._bound, self._make = bound, make
        self._turns = turns or Turns()
        self._making: set[asyncio.Task[None]] = set()
        self._waiting: dict[socket.socket, str] = {}
        self._waiting_of: Counter[str] = Counter()
        self.sockets = tuple(socket.socket(fileno=os.dup(each.fileno())) for each in bound.sockets)
        for listening in self.sockets:
            listening.setblocking(False)
            listening.listen(backlog)
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Let nobody in any more."""
        for listening in self.sockets:
            if listening.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(listening)
                listening.close()
        for connection in self._waiting:
            connection.close()
        self._waiting.clear()
        self._bound.close()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop that it belongs to."""
        return self._bound.get_loop()

    async def wait_closed(self) -> None:
        """Return when the addresses are free."""
        await self._bound.wait_closed()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._pause(listening)
                return
            connection.setblocking(False)
            client = neighbourhood(address)
            if self._waiting_of[client] >= MOST_WAITING or len(self._waiting) >= 4 * MOST_WAITING:
                connection.close()
                continue
            self._waiting[connection] = client
            self._waiting_of[client] += 1
            self._turns.add(client, partial(self._begin, connection))

    def _pause(self, listening: socket.socket) -> None:
        """Leave the others at the socket until there may be room again."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)

        def resume() -> None:
            if listening.fileno() >= 0:
                loop.add_reader(listening, self._accept, listening)

        loop.call_later(FULL_SECONDS, resume)

    def _begin(self, connection: socket.socket) -> bool:
        if connection not in self._waiting:  # it has been closed
            return False
        client = self._waiting.pop(connection)
        self._waiting_of[client] -= 1
        if not self._waiting_of[client]:
            del self._waiting_of[client]
        if _was_reset(connection):
            connection.close()
            return False
        task = asyncio.get_running_loop().create_task(self._connect(connection))
        self._making.add(task)
        task.add_done_callback(self._making.discard)
        return True

    async def _connect(self, connection: socket.socket) -> None:
        with suppress(OSError):  # it has ended meanwhile
            await asyncio.get_running_loop().connect_accepted_socket(self._make, connection)


_CLOSED = 7  # TCP_CLOSE of Linux, in the first byte of TCP_INFO


def _was_reset(connection: socket.socket) -> bool:
    """Return True for a connection that has ended already; False where the system does not tell."""
    try:
        return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED)
    except (AttributeError, OSError):  # another system, or no TCP
        return False


class Crowd(Generic[T]):
    """Members by neighbourhood; every operation takes constant time, however many members there are."""

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
        """Remove and return the oldest member of the largest neighbourhood. Raises KeyError when there is none."""
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


class ConnectionPlaces(Generic[T]):
    """Connections that are not at work, and which of them give way first."""

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
        """Return ``count`` connections that are to end now; none where fewer than that can."""
        if count > len(self._lingering) + len(self._idle):
            return []
        lingering = min(count, len(self._lingering))
        connections = [self._lingering.pop() for _ in range(lingering)]
        connections += [self._idle.pop() for _ in range(count - lingering)]
        self._ending.update(connections)
        return connections
