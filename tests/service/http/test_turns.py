"""Turns: connections are made and requests begun one client after the other."""

import asyncio
import errno
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest

from nightjar_alerts.service.http.edge import turns
from nightjar_alerts.service.http.edge.turns import MOST_TURNS, FairListener, Turns

HOST, ANOTHER = "127.0.0.1", "127.0.0.2"


class Guest(asyncio.Protocol):
    """Notes who was let in."""

    let_in: list[str]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.let_in.append(transport.get_extra_info("peername")[0])


def with_listener(use: Callable[[FairListener, list[str]], Awaitable[None]]) -> list[str]:
    """Return the addresses that were let in, in order, while a listener was used."""
    seen: list[str] = []
    kind = type("Noted", (Guest,), {"let_in": seen})

    async def main() -> None:
        bound = await asyncio.get_running_loop().create_server(kind, HOST, 0, start_serving=False)
        listener = FairListener(bound, kind, 2048)
        try:
            await use(listener, seen)
        finally:
            listener.close()
            await listener.wait_closed()

    asyncio.run(main())
    return seen


def knock(listener: FairListener, address: str = HOST) -> socket.socket:
    return socket.create_connection(listener.sockets[0].getsockname(), 5, (address, 0))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


def test_a_client_that_knocks_once_does_not_stand_behind_a_crowd() -> None:
    async def use(listener: FairListener, seen: list[str]) -> None:
        # Nobody is let in while these connect.
        guests = [knock(listener) for _ in range(20 * MOST_TURNS)] + [knock(listener, ANOTHER)]
        await until(lambda: len(seen) == len(guests))
        for guest in guests:
            guest.close()

    seen = with_listener(use)
    # All of the first 128 are there before it; it comes as soon as the listener has seen it.
    assert seen.index(ANOTHER) <= 6 * MOST_TURNS


def test_nothing_is_made_of_who_has_left() -> None:
    async def use(listener: FairListener, seen: list[str]) -> None:
        for _ in range(50):
            with knock(listener) as guest:
                guest.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with knock(listener, ANOTHER):
            await until(lambda: ANOTHER in seen)

    assert with_listener(use) == [ANOTHER]


def test_of_one_client_not_more_than_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MOST_WAITING", MOST_TURNS)
    monkeypatch.setattr(turns, "ACCEPTED", 128)  # all of them come in one round

    async def use(listener: FairListener, seen: list[str]) -> None:
        guests = [knock(listener) for _ in range(100)] + [knock(listener, ANOTHER)]
        await until(lambda: ANOTHER in seen)
        await asyncio.sleep(0.1)
        for guest in guests:
            guest.close()

    assert MOST_TURNS < len(with_listener(use)) <= 2 * MOST_TURNS + 1


class Exhausted(socket.socket):
    """A listening socket of a process that has run out of descriptors, once."""

    refused = 0

    def accept(self) -> tuple[socket.socket, object]:
        if not self.refused:
            self.refused += 1
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


def test_a_process_without_descriptors_lets_them_in_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_alerts.service.http.edge.turns.socket.socket", Exhausted)

    async def use(listener: FairListener, seen: list[str]) -> None:
        with knock(listener):
            await until(lambda: len(seen) == 1)
        assert [each.refused for each in listener.sockets if isinstance(each, Exhausted)] == [1]

    assert with_listener(use) == [HOST]


def test_a_closed_door_lets_nobody_in() -> None:
    async def use(listener: FairListener, seen: list[str]) -> None:
        guests = [knock(listener) for _ in range(4 * MOST_TURNS)]
        await until(lambda: len(seen) > 0)
        address, let_in = listener.sockets[0].getsockname(), len(seen)
        listener.close()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(address, 5)
        await asyncio.sleep(0.1)
        assert len(seen) <= let_in + 2 * MOST_TURNS  # those whose turn it was, in this round and the one before
        for guest in guests:
            guest.close()

    with_listener(use)


async def test_as_many_begin_in_a_round_as_its_time_has_room_for() -> None:
    """Eight requests that each computed for milliseconds began in one round: a newcomer waited for all of them."""
    passed = 0.0  # processor seconds; what is begun takes three milliseconds, in a task of its own

    async def compute() -> None:
        nonlocal passed
        passed += 0.003

    def begin() -> bool:
        tasks.append(asyncio.ensure_future(compute()))
        return True

    turns, tasks, longest = Turns(lambda: passed), list[asyncio.Task[None]](), 0
    for _ in range(200):
        turns.add(HOST, begin)
    while turns.waiting:
        before = len(tasks)
        await asyncio.sleep(0)
        if before > 60:  # by then it is known what one costs
            longest = max(longest, len(tasks) - before)
    await asyncio.gather(*tasks)
    assert longest == 1
