"""Turns for everybody: connections are accepted, and requests begin, one client after the other.

uvloop accepts whatever waits at the socket in one go, in the order in which it came: a thousand connections are made,
which takes a tenth of a second, before anybody else is looked at. Here a connection costs a few microseconds until its
client's turn has come, and a client that has opened one does not stand behind one that has opened a thousand. One that
was reset meanwhile is dropped before anything is made for it.
"""

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any

TURNS = 8
"""Requests that begin in one round of the event loop; a costly one computes for one to three milliseconds."""
NEWCOMERS = 16
"""Connections that are made in one round of the event loop, some 0.1 ms each with their first request."""
ACCEPTED = 128
"""Connections that are taken from the socket in one round, some 6 microseconds each."""
MOST_WAITING = 1024
"""Connections of one client that may wait for their turn, and a quarter of those of all clients."""
FULL_SECONDS = 0.1
"""Pause after the process has run out of file descriptors."""


class Turns:
    """Turns of requests or connections to begin: a few in each round of the event loop, one client after the other.

    What a request computes before it first waits for anything keeps the loop from everybody else. Of five hundred that
    come at once each would begin in the same round, and a newcomer could not even connect for a second. With turns the
    loop looks at its sockets after every few, and a client who has asked once does not stand behind one who has asked
    five hundred times. Of a long queue more begin at a time, so that it stays bounded by what comes.
    """

    def __init__(self, most: int = TURNS) -> None:
        self._most = self._left = most
        self._waiting: dict[str, deque[Callable[[], bool]]] = {}
        self._count = 0
        self._ticking = False

    def add(self, client: str, begin: Callable[[], bool]) -> None:
        """Call ``begin`` when it is the client's turn, most often at once; it returns False where nothing began."""
        self._tick()
        if self._left and not self._waiting:
            self._left -= begin()
            return
        self._waiting.setdefault(client, deque()).append(begin)
        self._count += 1

    def waiting(self, client: str | None = None) -> int:
        """Return how many of a client's wait, or how many of everybody's."""
        return self._count if client is None else len(self._waiting.get(client, ()))

    def _tick(self) -> None:
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._round)  # after the loop has looked at its sockets once more

    def _round(self) -> None:
        self._ticking, self._left = False, max(self._most, self._count // 64)
        while self._left and self._waiting:
            client = next(iter(self._waiting))
            turns = self._waiting.pop(client)
            begin = turns.popleft()
            self._count -= 1
            if turns:
                self._waiting[client] = turns  # behind all others
            self._left -= begin()
        if self._waiting:
            self._tick()


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
    """

    def __init__(self, bound: asyncio.Server, make: Callable[[], asyncio.Protocol], backlog: int) -> None:
        self._bound, self._make = bound, make
        self._turns = Turns(NEWCOMERS)
        self._making: set[asyncio.Task[None]] = set()
        self._waiting: set[socket.socket] = set()
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
            if self._turns.waiting(client) >= MOST_WAITING or self._turns.waiting() >= 4 * MOST_WAITING:
                connection.close()
                continue
            self._waiting.add(connection)
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
        self._waiting.remove(connection)
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
