"""The line in which batches wait to be published: in order, and only as many as the source has room for."""

import asyncio
import random
from typing import Any

import pytest

from service.observe.metrics import Metrics
from service.stream import publishing
from service.stream.batches import Accounts, Batch
from service.stream.messages import FiniteSource, Message
from service.stream.publishing import Line

ROOM = 20


class Committing(FiniteSource):
    """A source that commits what has been done, all at once, when it is told to.

    Attributes
    ----------
    uncommitted : messages that are done and not committed.
    """

    uncommitted = 0

    def room(self) -> Any:
        return ROOM - self.uncommitted

    def poll(self, limit: int, timeout: float) -> list[Message]:
        return []


def batch_of(count: int) -> Batch:
    return Batch([Message("alerts", str(place), b"") for place in range(count)], Accounts(Metrics()), 0)


def test_batches_are_published_in_order_and_within_the_room() -> None:
    draw, source, begun = random.Random(3), Committing(), list[Batch]()
    batches = [batch_of(draw.randint(1, ROOM // 2)) for _ in range(40)]
    publishing_now = most = 0

    async def publish(line: Line, batch: Batch) -> None:
        nonlocal publishing_now, most
        await asyncio.sleep(draw.random() / 50)  # they are classified in any order
        async with line.room(batch):
            begun.append(batch)
            publishing_now += len(batch.taken)
            most = max(most, publishing_now + source.uncommitted)
            await asyncio.sleep(draw.random() / 100)
            publishing_now -= len(batch.taken)
            source.uncommitted += len(batch.taken)

    async def commit() -> None:
        while True:
            await asyncio.sleep(draw.random() / 100)
            source.uncommitted = 0

    async def work() -> None:
        line = Line(source)
        for batch in batches:
            line.join(batch)
        committing = asyncio.create_task(commit())
        await asyncio.gather(*(publish(line, batch) for batch in batches))
        committing.cancel()

    asyncio.run(work())
    assert begun == batches
    assert ROOM // 2 < most <= ROOM


def test_nobody_waits_for_a_batch_that_waits_for_something_outside() -> None:
    """Neither for one that steps aside before its turn, nor for one that fails."""
    begun = list[Batch]()
    first, second, third = (batch_of(1) for _ in range(3))

    async def publish(line: Line, batch: Batch) -> None:
        async with line.room(batch):
            begun.append(batch)

    async def work() -> None:
        line = Line(Committing())
        for batch in (first, second, third):
            line.join(batch)
        waiting = asyncio.create_task(publish(line, third))
        await asyncio.sleep(0)
        assert begun == []
        line.step_aside(second)
        line.step_aside(first)
        await waiting
        await publish(line, first)  # once what it waited for is there

    asyncio.run(work())
    assert begun == [third, first]


def test_alerts_are_answered_while_nobody_takes_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that finds no room waits for a while, the others behind it no longer; until there is room again."""
    monkeypatch.setattr(publishing, "PATIENCE_SECONDS", 0.05)
    source = Committing()
    waits = 0
    look = Committing.room

    def counted(self: Committing) -> Any:
        nonlocal waits
        waits += 1
        return look(self)

    monkeypatch.setattr(Committing, "room", counted)

    async def work() -> list[int]:
        line, looks = Line(source), []
        for uncommitted in (ROOM, ROOM, 0, ROOM):
            source.uncommitted, before = uncommitted, waits
            batch = batch_of(1)
            line.join(batch)
            async with line.room(batch):
                looks.append(waits - before)
        return looks

    looks = asyncio.run(work())
    assert looks[0] > 2
    assert looks[1:3] == [2, 2]  # as it joins and as it is let through
    assert looks[3] > 2
