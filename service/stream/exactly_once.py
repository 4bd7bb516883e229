"""Exactly once, from Kafka to Kafka: batches end in transactions, one after another, in the order they were taken.

A transaction holds the results of a batch, its dead letters where they go to the same cluster, and the offsets after
it. One that is aborted is tried again from memory, as long as the partitions are assigned. Of partitions that were
revoked nothing is published: their messages are given back, and the next owner begins at the committed offset. Batches
are decoded and classified several at a time; only their transactions wait for each other.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.batches import Batch, identity
from nightjar_alerts.service.stream.messages import (
    DeadLetterCause,
    Message,
    PermanentError,
    Record,
    Result,
    TransientError,
    Troubles,
    backoff,
    dead_letter,
    is_shortened,
    shorten,
)
from nightjar_alerts.service.stream.publishing import PublishStage

if TYPE_CHECKING:  # confluent_kafka is installed only where a worker needs it
    from nightjar_alerts.service.stream.kafka.source import KafkaSource
    from nightjar_alerts.service.stream.kafka.transactions import KafkaTransactions, Transaction

log = structlog.get_logger(__name__)

MAX_TRANSACTIONAL_BATCHES: Final = 4
"""Batches in flight beyond which no more are taken: the slower the transactions, the larger the batches then are."""
CANCEL_SECONDS: Final = 5.0
"""Seconds that a cancelled worker waits for the outcome of the transaction that runs."""


class TransactionTurn(NamedTuple):
    """Turn of a batch to commit: after the batch before it. Behind a batch that failed no turn comes.

    Offsets must be committed in the order in which messages were taken.
    """

    previous_ended: asyncio.Event
    ended: asyncio.Event


class _Content(NamedTuple):
    """Record of a transaction, with the message it belongs to, and its result; None for a dead letter."""

    message: Message
    result: Result | None
    record: Record


class _Attempt:
    """One attempt to commit a batch; prepared on the transactions' thread.

    Attributes
    ----------
    contents : records whose partitions were still assigned when the transaction began.
    messages : messages of those partitions.
    """

    def __init__(
        self, source: "KafkaSource", transactions: "KafkaTransactions", batch: Batch, contents: Sequence[_Content]
    ) -> None:
        self._source, self._transactions = source, transactions
        self._batch, self._offered = batch, contents
        self.contents: list[_Content] = []
        self.messages: list[Message] = []

    def prepare(self) -> "Transaction | None":
        """Return the transaction; None where no partition of the batch is assigned any more."""
        from nightjar_alerts.service.stream.kafka.transactions import Transaction

        owned, positions, membership = self._source.prepare(self._batch.messages)
        self.contents = [content for content in self._offered if content.message.token in owned]
        self.messages = [message for message in self._batch.messages if message.token in owned]
        if not self.messages:
            return None
        topics = self._transactions.dead_letters, self._transactions.topic
        records = [(topics[content.result is not None], content.record) for content in self.contents]
        return Transaction(
            records, positions, membership, lambda: self._source.note_committed(self.messages, positions)
        )


class ExactlyOnce:
    """Last stage of batches whose results, dead letters and offsets are committed together."""

    def __init__(
        self,
        source: "KafkaSource",
        transactions: "KafkaTransactions",
        publishing: PublishStage,
        troubles: Troubles,
        metrics: Metrics,
    ) -> None:
        self._source, self._transactions = source, transactions
        self._publishing, self._troubles, self._metrics = publishing, troubles, metrics
        self._last = asyncio.Event()
        self._last.set()

    def next_turn(self) -> TransactionTurn:
        """Return the next turn; to be called in the order in which batches are taken."""
        previous, self._last = self._last, asyncio.Event()
        return TransactionTurn(previous, self._last)

    async def conclude(
        self, batch: Batch, results: Sequence[Result], turn: TransactionTurn, model: str
    ) -> list[Result]:
        """Publish, write dead letters and commit, as often as it takes; return the results that were published.

        Raises
        ------
        FatalError
            When the client of Kafka can do nothing more. What was not committed is read again by the next process.
        """
        records: dict[Result, Record | None] = {}  # None where the format cannot express a result
        for result, record in (await self._publishing.encode(results)).items():
            if isinstance(record, DeadLetterCause):
                batch.give_up(result.message, result.number, record)
            else:
                records[result] = record
        await turn.previous_ended.wait()
        short: set[int] = set()  # identities of messages whose dead letters are too large for their topic
        published: list[Result] | None = None
        for pause in backoff():
            try:
                published = await self._try(batch, records, short, model)
            except TransientError as error:
                await self._troubles.wait("transaction", str(error), pause)
            if published is not None:
                break
        self._troubles.end("transaction")
        # Not in a `finally`: behind a batch that failed, a later one must not commit offsets beyond it.
        turn.ended.set()
        return published or []

    async def _try(
        self, batch: Batch, records: dict[Result, Record | None], short: set[int], model: str
    ) -> list[Result] | None:
        """Try one transaction; None where records were refused: they are replaced in the next one."""
        contents = [_Content(one.message, one, record) for one, record in records.items() if record is not None]
        written: list[Message] = []  # dead letters that go elsewhere, hence at least once
        if self._transactions.dead_letters:
            contents += self._dead_letters(batch, short, model)
        elif batch.dead:
            written = await self._publishing.write_dead_letters(batch, model)
        # Before the commit: offsets must not be moved past an alert that a stage has lost.
        written += [content.message for content in contents if content.result is None]
        batch.check(((one.message, one.number) for one in records), written)
        attempt = _Attempt(self._source, self._transactions, batch, contents)
        running = self._transactions.run(attempt.prepare)
        done = asyncio.wrap_future(running)
        try:
            verdicts = await asyncio.shield(done)
        except asyncio.CancelledError:
            # What is being committed must not be counted as given back.
            running.cancel()
            await asyncio.wait([done], timeout=CANCEL_SECONDS)
            if done.done() and not done.cancelled() and done.exception() is None and not any(done.result()):
                self._settle(batch, records, attempt)
            raise
        refused = False
        for content, verdict in zip(attempt.contents, verdicts, strict=False):
            if isinstance(verdict, PermanentError):
                self._replace(batch, records, short, content, verdict)
                refused = True
        return None if refused else self._settle(batch, records, attempt)

    def _dead_letters(self, batch: Batch, short: set[int], model: str) -> list[_Content]:
        """Return the dead letters of a batch, one for each message."""
        # Reversed, so that each message keeps its first cause: of equal keys a dictionary keeps the last.
        first_by_message = {identity(one.message): one for one in reversed(batch.dead)}
        letters = []
        for number, one in first_by_message.items():
            letter = dead_letter(one.message, one.cause, model)
            letters.append(_Content(one.message, None, shorten(letter) if number in short else letter))
        return letters

    def _replace(
        self,
        batch: Batch,
        records: dict[Result, Record | None],
        short: set[int],
        content: _Content,
        error: PermanentError,
    ) -> None:
        """Replace a record that its topic does not take. Raises TransientError where there is no smaller one."""
        message, result, record = content
        if result is not None:
            del records[result]
            batch.give_up(message, result.number, DeadLetterCause("publish", "refused", str(error)))
        elif is_shortened(record):
            raise TransientError(f"dead letters: {error}")
        else:
            log.warning("dead letter refused", place=message.place, reason=str(error))
            short.add(identity(message))

    def _settle(self, batch: Batch, records: dict[Result, Record | None], attempt: _Attempt) -> list[Result]:
        """Account for a committed transaction; messages whose partitions were revoked are given back."""
        committed = set(map(identity, attempt.messages))
        for message in batch.messages:
            if identity(message) not in committed:
                batch.return_message(message)
        published = [result for result in records if identity(result.message) in committed]
        batch.settle_answers((r.message, r.number, r.outcome.status, r.outcome.reason) for r in published)
        batch.settle_dead_letters(attempt.messages)
        batch.check()
        shortened = [one for one in attempt.contents if one.result is None and is_shortened(one.record)]
        self._metrics.stream_shortened.inc(len(shortened))
        return published
