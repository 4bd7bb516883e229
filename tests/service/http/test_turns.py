"""Turns of clients at the thread for large bodies and tables."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nightjar_alerts.core.validation import table_light_curve
from nightjar_alerts.service.engine.errors import DeadlineExceeded
from nightjar_alerts.service.http.routes import tables
from nightjar_alerts.service.http.turns import SlicedWork, Turns, WorkEnded
from support.edge import Live, Network, live, loader, raw_post, wait_until

HEADER = b"name,mjd,filter,mag,mag_err\n"


async def order_of(clients: list[str]) -> list[str]:
    """Return the clients in the order of their turns; all ask while another client has the turn."""
    turns, order = Turns(), list[str]()

    async def take(client: str) -> None:
        async with turns.turn(client):
            order.append(client)

    async with turns.turn("first"):
        tasks = [asyncio.create_task(take(client)) for client in clients]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    return order


def test_turns_of_a_client_with_much_work_come_between_those_of_others() -> None:
    assert asyncio.run(order_of(["a", "a", "a", "b", "c"])) == ["a", "b", "c", "a", "a"]


def test_turn_is_held_by_one_task() -> None:
    async def both() -> int:
        turns, held, most = Turns(), 0, 0

        async def take(client: str) -> None:
            nonlocal held, most
            async with turns.turn(client):
                held += 1
                most = max(most, held)
                await asyncio.sleep(0)
                held -= 1

        await asyncio.gather(*(take(str(number % 3)) for number in range(30)))
        return most

    assert asyncio.run(both()) == 1


def test_turn_whose_waiting_task_is_cancelled_passes_to_the_next() -> None:
    async def cancel_one() -> None:
        turns = Turns()
        async with turns.turn("a"):
            waiting = [asyncio.create_task(turns.turn(name).__aenter__()) for name in ("b", "c")]
            await asyncio.sleep(0)
            waiting[0].cancel()
        await asyncio.wait_for(waiting[1], 10)

    asyncio.run(cancel_one())


def test_turn_that_is_not_given_before_the_deadline_raises() -> None:
    async def wait() -> None:
        turns = Turns()
        async with turns.turn("a"):
            with pytest.raises(DeadlineExceeded):
                async with turns.turn("b", time.monotonic() + 0.01):
                    pass
        async with turns.turn("b"):
            assert not turns.awaited

    asyncio.run(wait())


def endless(work: SlicedWork, seen: list[int]) -> Callable[[], None]:
    def run() -> None:
        while True:
            seen.append(1)
            work.checkpoint()

    return run


def test_sliced_work_of_two_clients_alternates() -> None:
    async def both() -> None:
        turns, deadline = Turns(), time.monotonic() + 1.0
        counts: list[list[int]] = [[], []]
        works = [SlicedWork(turns, name, deadline) for name in ("a", "b")]
        runs = [work.run(endless(work, seen)) for work, seen in zip(works, counts, strict=True)]
        assert all(isinstance(error, DeadlineExceeded) for error in await asyncio.gather(*runs, return_exceptions=True))
        assert all(counts)

    asyncio.run(both())


def test_sliced_work_whose_task_is_cancelled_ends_before_the_cancellation_is_raised() -> None:
    async def cancel() -> None:
        turns, seen = Turns(), list[int]()
        work = SlicedWork(turns, "a")
        task = asyncio.create_task(work.run(endless(work, seen)))
        while not seen:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(WorkEnded):
            work.checkpoint()
        async with asyncio.timeout(10), turns.turn("b"):
            pass

    asyncio.run(cancel())


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    with live(loader(Network())) as edge:
        yield edge


@pytest.fixture
def endless_table(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make reading a table endless; return a list that grows while one is read."""
    seen: list[int] = []

    def read(*_: Any, checkpoint: Callable[[], None], **__: Any) -> None:
        while True:
            seen.append(1)
            checkpoint()

    monkeypatch.setattr(tables, "read_table", read)
    return seen


def test_tables_end_at_the_deadline(edge: Live, endless_table: list[int]) -> None:
    status, _, reply = edge.ask("POST", "/v1/tables?deadline_ms=200", HEADER, {"Content-Type": "text/csv"})
    assert (status, b"/problems/deadline" in reply) == (504, True)
    wait_until(lambda: edge.service.budget.held == 0)


def test_tables_end_when_the_client_has_left(edge: Live, endless_table: list[int]) -> None:
    connection = socket.create_connection(("127.0.0.1", edge.port))
    connection.sendall(raw_post("/v1/tables", HEADER, "text/csv"))
    wait_until(lambda: bool(endless_table))
    connection.close()
    wait_until(lambda: edge.service.budget.held == 0)
    edge.still_well()


def test_tables_while_another_client_reads_an_endless_one_are_read(edge: Live, endless_table: list[int]) -> None:
    """Also large bodies have their turns."""
    with socket.create_connection(("127.0.0.1", edge.port), source_address=("127.0.0.2", 0)) as connection:
        connection.sendall(raw_post("/v1/tables", HEADER, "text/csv"))
        wait_until(lambda: bool(endless_table))
        status, reply = edge.classify(b"{" + b" " * (2 << 20) + b"}")
        assert (status, reply["errors"][0]["reason"]) == (422, "missing")
    wait_until(lambda: edge.service.budget.held == 0)


def test_tables_beyond_the_deadline_in_the_middle_end_with_a_problem(
    edge: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(item: Any, most: int) -> Any:
        if item.object_id == "o70":
            time.sleep(0.6)
        return table_light_curve(item, most)

    monkeypatch.setattr(tables, "table_light_curve", slow)
    rows = [b"o%d,%d,g,20,0.1" % (number, 60_000 + day) for number in range(80) for day in range(3)]
    body = HEADER + b"\n".join(rows)
    status, _, reply = edge.ask("POST", "/v1/tables?deadline_ms=500", body, {"Content-Type": "text/csv"})
    lines = reply.splitlines()
    assert (status, len(lines), b"/problems/deadline" in lines[-1]) == (200, 66, True)
