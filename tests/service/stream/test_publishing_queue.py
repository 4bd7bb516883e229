"""Publishing queue: batches are published in order and within the commit window of the source."""

import asyncio
import itertools
import random
from functools import partial
from typing import Any, Final

import pytest

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream import publishing
from nightjar_alerts.service.stream.batches import Batch
from nightjar_alerts.service.stream.ledger import DeliveryLedger, LostAlertError
from nightjar_alerts.service.stream.messages import ActiveErrors, FiniteSource, Message
from nightjar_alerts.service.stream.publishing import PublishingQueue, PublishTurn

ROOM = 20


class Committing(FiniteSource):
    """Source that commits all finished messages on request.

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


def batch_of(count: int) -> Batch:
    return Batch([Message("alerts", str(place), b"") for place in itertools.islice(_NUMBERS, count)], 0)


def test_publishing_queue_publishes_in_order_and_within_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches may be larger than the whole window."""
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

    async def classified(queue: PublishingQueue, turn: PublishTurn, batch: Batch) -> None:
        await asyncio.sleep(draw.random() / 50)  # in any order
        await queue.publish_in_turn(turn, batch, publish)

    async def commit() -> None:
        while True:
            await asyncio.sleep(draw.random() / 100)
            source.uncommitted = 0

    async def work() -> None:
        queue = PublishingQueue(source, ActiveErrors(Metrics()))
        turns = [queue.enqueue() for _ in batches]
        committing = asyncio.create_task(commit())
        await asyncio.gather(*(classified(queue, turn, batch) for turn, batch in zip(turns, batches, strict=True)))
        committing.cancel()

    asyncio.run(work())
    assert begun == [message for batch in batches for message in batch.messages]
    assert ROOM // 2 < most <= ROOM


def test_publishing_queue_does_not_wait_for_a_batch_that_left() -> None:
    """Neither a batch that leaves the queue nor one that fails may block it."""
    begun = list[Batch]()
    first, third = batch_of(1), batch_of(1)

    async def publish(part: Batch) -> None:
        begun.append(part)

    async def work() -> None:
        queue = PublishingQueue(Committing(), ActiveErrors(Metrics()))
        first_turn, second_turn, third_turn = (queue.enqueue() for _ in range(3))
        waiting = asyncio.create_task(queue.publish_in_turn(third_turn, third, publish))
        await asyncio.sleep(0)
        assert begun == []
        queue.leave(second_turn)
        queue.leave(first_turn)
        await waiting
        await queue.publish_in_turn(first_turn, first, publish)  # once what it waited for is there

    asyncio.run(work())
    assert [part.messages for part in begun] == [third.messages, first.messages]


def test_publishing_queue_failed_part_cancels_the_other_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other parts are cancelled, and the window is free again."""
    monkeypatch.setattr(publishing, "PART_MESSAGES", 2)
    ledger, source = DeliveryLedger(Metrics()), Committing()
    batch = batch_of(6)
    ledger.open(batch.messages)

    async def publish(part: Batch) -> None:
        if batch.messages[0] in part.messages:
            for message in part.messages:
                ledger.resolve(message, 0, "classified")
        elif batch.messages[2] in part.messages:
            raise LostAlertError("an alert")
        else:
            await asyncio.sleep(60)

    async def work() -> None:
        queue = PublishingQueue(source, ActiveErrors(Metrics()))
        turn = queue.enqueue()
        with pytest.raises(LostAlertError):
            await queue.publish_in_turn(turn, batch, publish)
        ledger.close(batch.messages)
        queue.leave(turn)
        await asyncio.wait_for(queue.publish_in_turn(queue.enqueue(), batch_of(ROOM), _nothing), 5)

    asyncio.run(work())
    assert ledger.summary()["alerts"] == {"in": 6, "classified": 2, "returned": 4, "pending": 0}


async def _nothing(part: Batch) -> None: ...


def test_publishing_queue_publishes_after_the_window_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part waits for the timeout, later ones do not, until a part fits again."""
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
        queue, looks = PublishingQueue(source, ActiveErrors(Metrics())), list[int]()
        for uncommitted in (ROOM, ROOM, 0, ROOM):
            source.uncommitted, before = uncommitted, waits
            await queue.publish_in_turn(queue.enqueue(), batch_of(1), partial(note, looks, before))
        return looks

    looks = asyncio.run(work())
    assert looks[0] > 1
    assert looks[1:3] == [1, 1]
    assert looks[3] > 1
