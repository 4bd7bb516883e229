"""Reading bodies without a socket: memory budget and media types."""

import asyncio
import tracemalloc
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.requests import Request

from nightjar_alerts.service.http.edge.body import Body, ClientDisconnected, cancel_on_disconnect, get_media_type
from nightjar_alerts.service.http.edge.budget import MemoryBudget
from nightjar_alerts.service.http.edge.errors import ProblemError

Messages = list[dict[str, Any]]


def request(messages: Messages, **headers: str) -> Request:
    """A request whose body arrives as ``messages``; nothing arrives after them."""

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        return await asyncio.Future()

    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": pairs}, receive)


def chunk(data: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


async def read(messages: Messages, budget: MemoryBudget, limit: int = 100, timeout: float = 5.0) -> bytes:
    with budget.reserve("one") as share:
        return await Body(request(messages).receive, share).read(limit, timeout)


async def test_body_read_joins_chunks_and_releases_the_budget() -> None:
    budget = MemoryBudget(10)
    with budget.reserve("one") as share:
        body = Body(request([chunk(b"ab"), chunk(b""), chunk(b"cd", more=False)]).receive, share)
        assert await body.read(10, 5.0) == b"abcd"
        assert budget.held == 4
    assert budget.held == 0


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([chunk(b"x" * 60), chunk(b"x" * 60)], 413),
        ([chunk(b"x" * 30), chunk(b"x" * 30)], 429),
        ([chunk(b"x")], 408),
    ],
)
async def test_body_read_invalid_bodies_raise(messages: Messages, status: int) -> None:
    budget = MemoryBudget(50 if status == 429 else 1000)
    with pytest.raises(ProblemError) as caught:
        await read(messages, budget, timeout=0.05)
    assert caught.value.kind.status == status
    assert budget.held == 0


async def test_body_read_disconnect_raises() -> None:
    budget = MemoryBudget(50)
    with pytest.raises(ClientDisconnected):
        await read([chunk(b"x"), {"type": "http.disconnect"}], budget)
    assert budget.held == 0


@pytest.mark.parametrize("declared", ["101", "99999999999999999999"])
async def test_body_read_content_length_beyond_the_limit_raises_unread(declared: str) -> None:
    with pytest.raises(ProblemError) as caught, MemoryBudget(1).reserve("one") as share:
        await Body(request([]).receive, share, declared).read(100, 5.0)
    assert (caught.value.kind.status, caught.value.limit) == (413, 100)


@pytest.mark.parametrize("declared", ["", "x", "-1", "1e9", "²"])
async def test_body_read_invalid_content_length_is_ignored(declared: str) -> None:
    sent = request([chunk(b"ok", more=False)])
    with MemoryBudget(10).reserve("one") as share:
        assert await Body(sent.receive, share, declared).read(100, 5.0) == b"ok"


def test_memory_budget_client_with_many_bodies_has_half() -> None:
    budget = MemoryBudget(100)
    with ExitStack() as stack:
        first, second = (stack.enter_context(budget.reserve("many")) for _ in range(2))
        first.resize(30)
        second.resize(20)
        for share in (first, second):
            with pytest.raises(ProblemError) as caught:
                share.resize(31)
            assert caught.value.kind.status == 429
        other = stack.enter_context(budget.reserve("other"))
        other.resize(50)
        with pytest.raises(ProblemError):
            other.resize(51)
    assert budget.held == 0


def test_memory_budget_single_body_may_fill_it() -> None:
    budget = MemoryBudget(100)
    with budget.reserve("one") as share:
        share.resize(100)
    with budget.reserve("one") as share:
        share.resize(100)
        share.resize(40)
        assert budget.held == 40


async def test_body_read_holds_the_body_once() -> None:
    pieces = [b"x" * 1000 for _ in range(1000)]
    with MemoryBudget(1_000_000).reserve("one") as share:
        body = Body(request([*map(chunk, pieces[:-1]), chunk(pieces[-1], more=False)]).receive, share)
        tracemalloc.start()
        try:
            data = await body.read(1_000_000, 5.0)
            assert tracemalloc.get_traced_memory()[0] < 1.1 * len(data)
        finally:
            tracemalloc.stop()


def test_get_media_type_ignores_parameters() -> None:
    assert get_media_type(request([], content_type='Text/X; charset="a"'), ["text/x"]) == "text/x"
    assert get_media_type(request([]), ["text/x"]) == ""
    for headers in (
        {"content_type": "text/y"},
        {"content_encoding": "br"},
    ):
        with pytest.raises(ProblemError) as caught:
            get_media_type(request([], **headers), ["text/x"])
        assert caught.value.kind.status == 415


async def test_cancel_on_disconnect_cancels_the_work() -> None:
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(20)
        finally:
            cancelled.set()

    with pytest.raises(ClientDisconnected):
        await cancel_on_disconnect(request([{"type": "http.disconnect"}]), work())
    assert cancelled.is_set()


async def test_cancel_on_disconnect_finished_work_leaves_no_task() -> None:
    async def work() -> int:
        return 7

    assert await cancel_on_disconnect(request([chunk(b"late", more=False)]), work()) == 7
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancel_on_disconnect_failed_work_raises_its_error() -> None:
    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await cancel_on_disconnect(request([]), work())


async def test_cancel_on_disconnect_cancelled_handler_cancels_its_work() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(20)
        finally:
            cancelled.set()

    async def unwatched() -> None:
        await cancel_on_disconnect(request([]), work())

    handler = asyncio.ensure_future(unwatched())
    await started.wait()
    handler.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handler
    assert cancelled.is_set()
