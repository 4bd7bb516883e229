"""The load client counts what really happened, whatever the server does."""

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.bench.http_load import (
    HOST,
    HttpReply,
    HttpRequest,
    PlanOutcome,
    drive,
    quantile,
    read_plan,
    request,
    summary,
    write_plan,
)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def drive_against(handler: Handler, plan: list[HttpRequest], clients: int) -> PlanOutcome:
    server = await asyncio.start_server(handler, HOST, 0)
    async with server:
        return await asyncio.wait_for(drive(server.sockets[0].getsockname()[1], plan, clients), timeout=10)


@given(st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=8))
def test_a_plan_survives_its_file(tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[bytes, bool]]) -> None:
    plan = [HttpRequest(data, vanish) for data, vanish in pairs]
    path = tmp_path_factory.mktemp("plan") / "plan"
    write_plan(path, plan)
    assert read_plan(path) == plan


@given(st.lists(st.floats(0, 10), min_size=1), st.floats(0, 1))
def test_a_quantile_is_the_smallest_value_that_enough_do_not_exceed(values: list[float], q: float) -> None:
    ordered = sorted(values)
    smallest = quantile(ordered, q)
    enough = [value for value in ordered if sum(other <= value for other in ordered) >= q * len(ordered)]
    assert smallest == enough[0]


def test_quantile_of_nothing() -> None:
    assert math.isnan(quantile([], 0.5))


async def test_every_request_is_sent_once_over_kept_connections() -> None:
    connections, bodies = 0, []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while not reader.at_eof():
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            bodies.append(await reader.readexactly(length))
            writer.write(OK)

    async def until_eof(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except asyncio.IncompleteReadError:
            writer.close()

    outcome = await drive_against(until_eof, [request("/", f"{n}".encode()) for n in range(20)], clients=4)
    assert outcome.statuses == {"200": 20}
    assert {reply.body for reply in outcome.replies} == {b"ok"}
    assert sorted(bodies, key=int) == [f"{n}".encode() for n in range(20)]
    assert connections == 4
    assert all(seconds > 0 for seconds in outcome.latency)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"])
async def test_a_reply_cut_short_is_dropped_not_counted_as_an_answer(sent: bytes) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        writer.close()

    outcome = await drive_against(hang_up, [request("/")] * 3, clients=1)
    assert outcome.statuses == {"dropped": 3}
    assert math.isnan(summary(outcome)["p50_ms"])


async def test_a_server_that_closes_is_connected_to_again() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    outcome = await drive_against(once, [request("/")] * 3, clients=1)
    assert outcome.statuses == {"503": 3}
    assert outcome.replies == [HttpReply(503)] * 3


async def test_a_vanishing_client_does_not_wait() -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    outcome = await drive_against(never, [HttpRequest(request("/").data, vanish=True)] * 3, clients=2)
    assert outcome.statuses == {"vanished": 3}
