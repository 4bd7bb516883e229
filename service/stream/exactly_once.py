"""Exactly once from Kafka to Kafka: batches end in transactions, one after another, in the order they were taken.

A transaction holds the results of a batch, its dead letters where they go to the same cluster, and the offsets after
it. One that fails is aborted and tried again from memory, as long as the partitions are ours. Of partitions that were
taken away nothing is published: their messages are given back, and whoever gets them begins at the committed offset.
Batches are decoded and classified several at a time all the same; only their ends wait for each other.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from service.stream.batches import Batch, Buried
from service.stream.messages import Message, Result, TransientError
from service.stream.publishing import Publishing
from service.stream.retries import Troubles, pauses

if TYPE_CHECKING:  # confluent_kafka is there only where a worker needs it
    from service.stream.kafka.source import Claim, KafkaSource
    from service.stream.kafka.transactions import KafkaTransactions

RESERVE_SECONDS: Final = 0.5
BATCHES_AHEAD: Final = 4
"""Batches under way beyond which no more are taken: the slower the transactions, the larger the batches then are."""

log = structlog.get_logger(__name__)


class Turn(NamedTuple):
    """Turn of a batch to end, by which the next one learns that it has. Behind a batch that failed, none passes."""

    before: asyncio.Event
    after: asyncio.Event


class Doubtful(NamedTuple):
    """Content of a transaction whose commit was asked for and not answered: it may have come to be."""

    answered: list[Result]
    deaths: list[Buried]
    buried: list[Message]


class ExactlyOnce:
    """End of batches in transactions."""

    def __init__(
        self, source: "KafkaSource", transactions: "KafkaTransactions", publishing: Publishing, troubles: Troubles
    ) -> None:
        self._source, self._transactions = source, transactions
        self._publishing, self._troubles = publishing, troubles
        self._last = asyncio.Event()
        self._last.set()
        self._doubtful: Doubtful | None = None

    def turn(self) -> Turn:
        """Return the next turn; to be asked for in the order in which batches are taken."""
        before, self._last = self._last, asyncio.Event()
        return Turn(before, self._last)

    async def conclude(self, batch: Batch, results: Sequence[Result], turn: Turn, model: str) -> list[Result]:
        """Publish, bury and commit, as often as it takes; returns what was answered."""
        await turn.before.wait()
        while not await asyncio.to_thread(self._source.reserve, RESERVE_SECONDS):
            pass
        try:
            answered = await self._until_committed(batch, results, model)
        finally:
            self._source.release()
        self._doubtful = None
        turn.after.set()
        return answered

    async def _until_committed(self, batch: Batch, results: Sequence[Result], model: str) -> list[Result]:
        for pause in pauses():
            try:
                answered = await self._attempt(batch, results, model)
            except TransientError as error:
                await asyncio.to_thread(self._transactions.abort)
                await self._troubles.wait("transaction", str(error), pause)
            else:
                break
        self._troubles.end("transaction")
        return answered

    async def _attempt(self, batch: Batch, results: Sequence[Result], model: str) -> list[Result]:
        """Try one transaction."""
        await asyncio.to_thread(self._transactions.begin)
        claim = await asyncio.to_thread(self._source.claim, batch.taken)
        if self._doubtful is not None and await asyncio.to_thread(self._source.committed, claim):
            await asyncio.to_thread(self._transactions.abort)
            batch.deaths = self._doubtful.deaths
            self._settle(batch, self._doubtful)
            return self._doubtful.answered
        for message in batch.taken:
            if message.token not in claim.owned:
                batch.let_go(message)
        deaths = list(batch.deaths)
        try:
            content = await self._publish(batch, [r for r in results if r.message.token in claim.owned], model)
            await _unbroken(self._commit(batch, content, claim))
        except TransientError:
            batch.deaths = deaths  # what was refused is refused again by the next try
            raise
        return content.answered

    async def _publish(self, batch: Batch, results: Sequence[Result], model: str) -> Doubtful:
        answered = await self._publishing.publish(batch, results)
        buried = await self._publishing.bury(batch, model) if batch.deaths else []
        batch.check(((r.message, r.number) for r in answered), buried)
        return Doubtful(answered, list(batch.deaths), buried)

    async def _commit(self, batch: Batch, content: Doubtful, claim: "Claim") -> None:
        self._doubtful = content
        await asyncio.to_thread(self._transactions.commit, claim.positions, claim.group)
        self._settle(batch, content)

    def _settle(self, batch: Batch, content: Doubtful) -> None:
        batch.answered((r.message, r.number, r.outcome.status, r.outcome.reason) for r in content.answered)
        batch.buried(content.buried)
        batch.check()
        self._source.done(batch.taken)


async def _unbroken(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end even when cancelled: what is being committed must not be told to be given back."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if (error := task.exception()) is not None:
            log.warning("a commit failed while the worker stopped", reason=str(error))
        raise
