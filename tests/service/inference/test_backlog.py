"""The queue: order, removal, expiry, and the seconds it promises."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from service.inference.backlog import Backlog
from service.inference.batching import Waiting
from service.inference.scheduling import BatchLimits, CostModel
from support.graphs import question

COST = CostModel(1e-3, 1e-6, 0.0)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def entry(loop: asyncio.AbstractEventLoop, length: int = 10, deadline: float | None = None) -> Waiting:
    return Waiting(length, 0.0, deadline, question(0, length), loop.create_future(), COST.seconds(1, length))


def test_a_batch_is_removed_and_the_rest_keeps_its_order(loop: asyncio.AbstractEventLoop) -> None:
    backlog, entries = Backlog(), [entry(loop) for _ in range(5)]
    backlog.add(entries)
    batch, late = backlog.take(0.0, COST, BatchLimits(max_items=2), 1)
    assert (batch, late) == (entries[:2], [])
    assert backlog.clear() == entries[2:]


def test_expired_entries_are_handed_back_and_make_room_in_the_batch(loop: asyncio.AbstractEventLoop) -> None:
    backlog, entries = Backlog(), [entry(loop, deadline=1.0 if number % 2 else None) for number in range(6)]
    backlog.add(entries)
    batch, late = backlog.take(2.0, COST, BatchLimits(), 1)
    assert (batch, late) == (entries[::2], entries[1::2])
    assert len(backlog) == 0


def test_a_window_of_expired_entries_leaves_the_rest_waiting(loop: asyncio.AbstractEventLoop) -> None:
    backlog, entries = Backlog(), [entry(loop, deadline=1.0) for _ in range(4)] + [entry(loop)]
    backlog.add(entries)
    assert backlog.take(2.0, COST, BatchLimits(window=4), 1) == ([], entries[:4])
    assert backlog.take(2.0, COST, BatchLimits(window=4), 1) == ([entries[4]], [])


def test_an_entry_is_removed_once(loop: asyncio.AbstractEventLoop) -> None:
    backlog, waiting = Backlog(), entry(loop)
    backlog.add([waiting])
    assert [backlog.remove(waiting), backlog.remove(waiting)] == [True, False]


def test_seconds_follow_the_entries_and_end_at_zero(loop: asyncio.AbstractEventLoop) -> None:
    rng, backlog, inside = random.Random(0), Backlog(), list[Waiting]()
    for _ in range(2000):
        if inside and rng.random() < 0.5:
            backlog.remove(inside.pop(rng.randrange(len(inside))))
        else:
            inside.append(entry(loop, rng.randint(1, 400)))
            backlog.add(inside[-1:])
        assert backlog.seconds == pytest.approx(sum(waiting.seconds for waiting in inside), abs=1e-9)
    for waiting in inside:
        backlog.remove(waiting)
    assert backlog.seconds == 0.0


def test_taking_from_a_long_backlog_costs_no_more_than_from_a_short_one(loop: asyncio.AbstractEventLoop) -> None:
    """Ten thousand withdrawn entries leave nothing behind that a batch would have to step over."""
    backlog, entries = Backlog(), [entry(loop) for _ in range(10_001)]
    backlog.add(entries)
    for waiting in entries[:-1]:
        backlog.remove(waiting)
    assert backlog.take(0.0, COST, BatchLimits(), 1) == ([entries[-1]], [])
