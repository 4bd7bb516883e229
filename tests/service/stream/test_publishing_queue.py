"""The line in which batches wait to be published: in order, and only as many as the source has room for."""

import asyncio
import itertools
import random
from functools import partial
from typing import Any, Final

import pytest

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream import publishing
from nightjar_alerts.service.stream.batches import Accounts, Batch, LostAlertError
from nightjar_alerts.service.stream.messages import FiniteSource, Message
from nightjar_alerts.service.stream.publishing import PublishingQueue

ROOM = 20


class Committing(FiniteSource):
    """A source that commits what has been done, all at once, when it is told to.

    Attributes
    ----------
    uncommitted : messages that are done and not committed.
    """

    uncommitted = 0

    def commit_window(self) -> Any:
        return ROOM - self.uncommitted

    def poll(self, limit: int, timeout: float) -> list[Message]:
        return []


_NUMBERS: Final = itertools.count()


def batch_of(count: int, accounts: Accounts | None = None) -> Batch:
    messages = [Message("alerts", str(place), b"") for place in itertools.islice(_NUMBERS, count)]
    return Batch(messages, accounts or Accounts(Metrics()), 0)


def test_batches_are_published_in_order_and_within_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many a batch is larger than all the room there ever is."""
    monkeypatch.setattr(publishing, "PART_MESSAGES", ROOM // 2)
    draw, source, begun = random.Random(3), Committing(), list[Message]()
    batches = [batch_of(draw.randint(1, 2 * ROOM)) for _ in range(40)]
    publishing_now = most = 0

    async def publish(part: Batch) -> None:
        nonlocal publishing_now, most
        begun.extend(part.messages)
        publishing_now += len(part.messages)
        most = max(most, publishing_now + source.uncommitted)
        await asyncio.sleep(draw.random() / 100)
        publishing_now -= len(part.messages)
        source.uncommitted += len(part.messages)

    async def classified(queue: PublishingQueue, batch: Batch) -> None:
        await asyncio.sleep(draw.random() / 50)  # in any order
        await queue.publish_in_turn(batch, publish)

    async def commit() -> None:
        while True:
            await asyncio.sleep(draw.random() / 100)
            source.uncommitted = 0

    async def work() -> None:
        queue = PublishingQueue(source)
        for batch in batches:
            queue.enqueue(batch)
        committing = asyncio.create_task(commit())
        await asyncio.gather(*(classified(queue, batch) for batch in batches))
        committing.cancel()

    asyncio.run(work())
    assert begun == [message for batch in batches for message in batch.messages]
    assert ROOM // 2 < most <= ROOM


def test_nobody_waits_for_a_batch_that_waits_for_something_outside() -> None:
    """Neither for one that steps aside before its turn, nor for one that fails."""
    begun = list[Batch]()
    first, second, third = (batch_of(1) for _ in range(3))

    async def publish(part: Batch) -> None:
        begun.append(part)

    async def work() -> None:
        queue = PublishingQueue(Committing())
        for batch in (first, second, third):
            queue.enqueue(batch)
        waiting = asyncio.create_task(queue.publish_in_turn(third, publish))
        await asyncio.sleep(0)
        assert begun == []
        queue.leave(second)
        queue.leave(first)
        await waiting
        await queue.publish_in_turn(first, publish)  # once what it waited for is there

    asyncio.run(work())
    assert [part.messages for part in begun] == [third.messages, first.messages]


def test_the_parts_of_a_batch_end_with_the_first_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of the others are given back with their batch, and the room of all is free again."""
    monkeypatch.setattr(publishing, "PART_MESSAGES", 2)
    accounts, source = Accounts(Metrics()), Committing()
    batch = batch_of(6, accounts)

    async def publish(part: Batch) -> None:
        if part.has(batch.messages[0]):
            part.settle_answers((message, 0, "classified", "") for message in part.messages)
        elif part.has(batch.messages[2]):
            raise LostAlertError("an alert")
        else:
            await asyncio.sleep(60)

    async def work() -> None:
        queue = PublishingQueue(source)
        queue.enqueue(batch)
        with pytest.raises(LostAlertError):
            await queue.publish_in_turn(batch, publish)
        batch.return_all()
        queue.leave(batch)
        await asyncio.wait_for(queue.publish_in_turn(batch_of(ROOM), _nothing), 5)

    asyncio.run(work())
    assert accounts.summary()["alerts"] == {"in": 6, "classified": 2, "returned": 4, "pending": 0}


async def _nothing(part: Batch) -> None: ...


def test_alerts_are_answered_while_nobody_takes_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that finds no room waits for a while, the others behind it no longer; until there is room again."""
    monkeypatch.setattr(publishing, "WINDOW_TIMEOUT_SECONDS", 0.05)
    source = Committing()
    waits = 0
    look = Committing.commit_window

    def counted(self: Committing) -> Any:
        nonlocal waits
        waits += 1
        return look(self)

    monkeypatch.setattr(Committing, "commit_window", counted)

    async def note(looks: list[int], before: int, part: Batch) -> None:
        looks.append(waits - before)

    async def work() -> list[int]:
        queue, looks = PublishingQueue(source), list[int]()
        for uncommitted in (ROOM, ROOM, 0, ROOM):
            source.uncommitted, before = uncommitted, waits
            batch = batch_of(1)
            queue.enqueue(batch)
            await queue.publish_in_turn(batch, partial(note, looks, before))
        return looks

    looks = asyncio.run(work())
    assert looks[0] > 1
    assert looks[1:3] == [1, 1]
    assert looks[3] > 1
