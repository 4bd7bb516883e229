"""Work in threads: given one client after the other, and of what it returned or raised nothing stays behind."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from nightjar_alerts.service.threads import REST, REST_SECONDS, FairThreads, Rests, in_thread


class Held(bytearray):
    """Bytes of which it can be told whether somebody still holds them."""


@pytest.fixture
def no_search_for_cycles() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def test_a_client_has_one_thread_at_a_time() -> None:
    threads, order, go_on = FairThreads(2, "decode"), list[str](), threading.Event()

    def work(client: str) -> str:
        order.append(client)
        go_on.wait(20)
        return client

    many = [asyncio.ensure_future(threads.run("many", partial(work, "many"))) for _ in range(5)]
    async with asyncio.timeout(20):
        while not order:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)  # in which no other may begin
    one = asyncio.ensure_future(threads.run("one", partial(work, "one")))
    async with asyncio.timeout(20):
        while len(order) < 2:
            await asyncio.sleep(0.01)
        assert order == ["many", "one"]
        many[1].cancel()  # which waits for its turn
        many[0].cancel()  # whose thread goes on nevertheless
        await asyncio.sleep(0.05)
        assert order == ["many", "one"]
        go_on.set()
        assert await asyncio.gather(one, *many[2:]) == ["one", "many", "many", "many"]
    threads.close()
    assert order == ["many", "one", "many", "many", "many"]


async def test_work_in_a_thread_raises_to_its_caller_and_makes_room() -> None:
    threads = FairThreads(1, "decode")

    def fail() -> None:
        raise ValueError("no curve")

    for _ in range(3):
        with pytest.raises(ValueError, match="no curve"):
            await threads.run("one", fail)
    threads.close()


def compute() -> None:
    """Use ten milliseconds of processor time."""
    end = time.thread_time() + 0.01
    while time.thread_time() < end:
        pass


def refuse() -> None:
    """Use ten milliseconds of processor time, for nothing."""
    compute()
    raise ValueError("no curve")


async def test_a_refused_client_rests_and_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_alerts.service.threads.REST", 1e4)
    monkeypatch.setattr("nightjar_alerts.service.threads.REST_SECONDS", (1e-3, 60.0))
    threads = FairThreads(1, "decode")
    with pytest.raises(ValueError, match="no curve"):
        await threads.run("refused", refuse)
    again = asyncio.ensure_future(threads.run("refused", compute))
    async with asyncio.timeout(20):
        for _ in range(2):
            await threads.run("answered", compute)
    assert not again.done()
    again.cancel()
    threads.close()


async def test_a_client_rests_whose_result_tells_of_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_alerts.service.threads.REST", 1e4)
    monkeypatch.setattr("nightjar_alerts.service.threads.REST_SECONDS", (1e-3, 60.0))
    threads = FairThreads(1, "decode")
    await threads.run("answered", compute)
    await threads.run("refused", compute, lambda _: 0.5)
    again = asyncio.ensure_future(threads.run("refused", compute))
    async with asyncio.timeout(20):
        await threads.run("answered", compute)
    assert not again.done()
    again.cancel()
    threads.close()


async def test_a_client_that_rests_has_no_turn_in_other_threads_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_alerts.service.threads.REST", 1e4)
    monkeypatch.setattr("nightjar_alerts.service.threads.REST_SECONDS", (1e-3, 60.0))
    rests = Rests()
    small, large = FairThreads(1, "small", rests), FairThreads(1, "large", rests)
    with pytest.raises(ValueError, match="no curve"):
        await small.run("refused", refuse)
    again = asyncio.ensure_future(large.run("refused", compute))
    async with asyncio.timeout(20):
        await large.run("answered", compute)
    assert not again.done()
    again.cancel()
    small.close()
    large.close()


async def test_a_rest_is_as_long_as_the_refusal_was_dear_and_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, loop = FairThreads(1, "decode"), asyncio.get_running_loop()
    for rest, seconds in ((REST, REST * 0.01), (1e6, REST_SECONDS[1])):
        monkeypatch.setattr("nightjar_alerts.service.threads.REST", rest)
        with pytest.raises(ValueError, match="no curve"):
            await threads.run("refused", refuse)
        refused = loop.time()
        async with asyncio.timeout(20):
            assert await threads.run("refused", loop.time) - refused >= 0.9 * seconds
    threads.close()


@pytest.mark.usefixtures("no_search_for_cycles")
async def test_a_result_is_gone_with_its_user() -> None:
    threads = FairThreads(1, "decode")
    held = weakref.ref(await threads.run("one", lambda: Held(b"result")))
    await asyncio.sleep(0)
    assert held() is None
    threads.close()


@pytest.mark.usefixtures("no_search_for_cycles")
async def test_a_refused_body_is_gone_with_its_refusal() -> None:
    threads, held = FairThreads(1, "decode"), list[weakref.ref[Held]]()

    def refuse(body: Held) -> None:
        held.append(weakref.ref(body))
        raise ValueError(f"{len(body)} bytes are no document")

    with pytest.raises(ValueError, match="4 bytes"):  # the body must have no other holder
        await threads.run("one", partial(refuse, Held(b"body")))
    await asyncio.sleep(0)
    assert held[0]() is None
    threads.close()


async def test_work_that_never_begins_is_cancelled() -> None:
    threads, begun, go_on = ThreadPoolExecutor(1), threading.Event(), threading.Event()

    def wait() -> bool:
        begun.set()
        return go_on.wait(20)

    first = asyncio.ensure_future(in_thread(threads, wait))
    second = asyncio.ensure_future(in_thread(threads, lambda: None))
    assert await asyncio.to_thread(begun.wait, 20)
    threads.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(asyncio.CancelledError):
        await second
    go_on.set()
    assert await first
