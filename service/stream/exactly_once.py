"""Exactly-once delivery from Kafka to Kafka: batches are committed in transactions, in the order of consumption.

A transaction contains the results of a batch, its dead letters if they go to the same cluster, and the offsets after
it. An aborted transaction is retried from memory as long as the partitions are assigned. Messages of revoked partitions
are not published but given back, and the next owner starts at the committed offset. Several batches are decoded and
classified concurrently; only their transactions are serialized.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.batches import Batch, FailedAlert
from nightjar_alerts.service.stream.dead_letters import dead_letter, is_shortened, shorten
from nightjar_alerts.service.stream.decisions import Retry, after_dead_letter, after_publishing
from nightjar_alerts.service.stream.ledger import DeliveryLedger
from nightjar_alerts.service.stream.messages import (
    ActiveErrors,
    AlertResult,
    DeadLetterCause,
    Message,
    PermanentError,
    Record,
    TransientError,
    backoff,
    identity,
)
from nightjar_alerts.service.stream.publishing import PublishStage

if TYPE_CHECKING:  # confluent_kafka is installed only where a worker needs it
    from nightjar_alerts.service.stream.kafka.source import KafkaSource
    from nightjar_alerts.service.stream.kafka.transactions import KafkaTransactions, Transaction

log = structlog.get_logger(__name__)

MAX_TRANSACTIONAL_BATCHES: Final = 4
"""Maximum number of batches in flight. At the limit nothing is polled, so slow transactions get larger batches."""
CANCEL_SECONDS: Final = 5.0
"""Seconds that a cancelled worker waits for the outcome of the running transaction."""


class TransactionTurn(NamedTuple):
    """Turn of a batch to commit, after the previous batch. No later batch gets its turn after a failed batch.

    Offsets must be committed in the order of consumption.
    """

    previous_ended: asyncio.Event
    ended: asyncio.Event


class _Content(NamedTuple):
    """Record of a transaction with its message, and with its result, or None for a dead letter."""

    message: Message
    result: AlertResult | None
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
        """Return the transaction; None if no partition of the batch is assigned any more."""
        from nightjar_alerts.service.stream.kafka.transactions import Transaction

        owned, positions, membership = self._source.prepare(self._batch.messages)
        self.contents = [content for content in self._offered if content.message.token in owned]
        self.messages = [message for message in self._batch.messages if message.token in owned]
        if not self.messages:
            return None
        topics = self._transactions.dead_letters, self._transactions.topic
        records = [(topics[content.result is not None], content.record) for content in self.contents]
        return Transaction(
            records, positions, membership, lambda: self._source.record_committed(self.messages, positions)
        )


class ExactlyOnce:
    """Last stage of batches whose results, dead letters and offsets are committed together."""

    def __init__(
        self,
        source: "KafkaSource",
        transactions: "KafkaTransactions",
        publishing: PublishStage,
        errors: ActiveErrors,
        metrics: Metrics,
    ) -> None:
        self._source, self._transactions = source, transactions
        self._publishing, self._errors, self._metrics = publishing, errors, metrics
        self._last = asyncio.Event()
        self._last.set()

    def next_turn(self) -> TransactionTurn:
        """Return the turn of the next batch, in the order in which batches are polled."""
        previous, self._last = self._last, asyncio.Event()
        return TransactionTurn(previous, self._last)

    async def commit(
        self, batch: Batch, turn: TransactionTurn, ledger: DeliveryLedger, model: str
    ) -> Sequence[AlertResult]:
        """Publish, write dead letters and commit; retry until this succeeds, and return the published results.

        Parameters
        ----------
        batch : batch with encoded results.

        Raises
        ------
        FatalError
            If the Kafka client cannot recover. The next process reads uncommitted messages again.
        """
        await turn.previous_ended.wait()
        shortened: set[int] = set()  # identities of messages whose dead letters are too large for their topic
        committed = False
        for pause in backoff():
            try:
                batch, committed = await self._try(batch, shortened, ledger, model)
            except TransientError as error:
                await self._errors.wait("transaction", str(error), pause)
            if committed:
                break
        self._errors.clear("transaction")
        # Not in a `finally`: a later batch must not commit offsets beyond those of a failed batch.
        turn.ended.set()
        return batch.results

    async def _try(self, batch: Batch, shortened: set[int], ledger: DeliveryLedger, model: str) -> tuple[Batch, bool]:
        """Try one transaction; return the committed batch and True, or the batch to retry and False."""
        contents = [_Content(result.message, result, result.record) for result in batch.results if result.record]
        written: list[Message] = []  # messages whose dead letters are written, at least once if to another cluster
        if self._transactions.dead_letters:
            contents += self._dead_letters(batch, shortened, model)
        elif batch.failed:
            written = await self._publishing.write_dead_letters(batch.first_failures(), model)
        # Before the commit: offsets must not advance past a lost alert.
        written += [content.message for content in contents if content.result is None]
        written_ids = set(map(identity, written))
        failed = [alert for alert in batch.failed if identity(alert.message) in written_ids]
        ledger.check_resolved(batch.messages, batch.results, failed, batch.tombstones)
        attempt = _Attempt(self._source, self._transactions, batch, contents)
        running = self._transactions.run(attempt.prepare)
        done = asyncio.wrap_future(running)
        try:
            reports = await asyncio.shield(done)
        except asyncio.CancelledError:
            # Messages that are being committed must not count as given back.
            running.cancel()
            await asyncio.wait([done], timeout=0 if self._transactions.failed else CANCEL_SECONDS)
            if done.done() and not done.cancelled() and done.exception() is None and not any(done.result()):
                self._resolve(batch, attempt, ledger)
            raise
        refused = []
        for content, report in zip(attempt.contents, reports, strict=False):
            if isinstance(report, PermanentError):
                refused += self._replace(content, report, shortened)
        if any(isinstance(report, PermanentError) for report in reports):
            return batch.fail(refused), False
        return self._resolve(batch, attempt, ledger), True

    def _dead_letters(self, batch: Batch, shortened: set[int], model: str) -> list[_Content]:
        """Return the dead letters of a batch, one for each message."""
        contents = []
        for alert in batch.first_failures():
            record = dead_letter(alert.message, alert.cause, model)
            if identity(alert.message) in shortened:
                record = shorten(record)
            contents.append(_Content(alert.message, None, record))
        return contents

    def _replace(self, content: _Content, error: PermanentError, shortened: set[int]) -> list[FailedAlert]:
        """Return the failed alert of a rejected result, or mark a rejected dead letter to be shortened.

        Raises TransientError if the dead letter was rejected for another reason, or was shortened before.
        """
        message, result, record = content
        if result is not None:
            decision = after_publishing(error)
            assert isinstance(decision, DeadLetterCause)
            return [FailedAlert(message, result.number, decision)]
        if isinstance(after_dead_letter(error, is_shortened(record)), Retry):
            raise TransientError(f"dead letters: {error}")
        log.warning("dead letter is too large, shortening it", message_id=message.message_id, reason=str(error))
        shortened.add(identity(message))
        return []

    def _resolve(self, batch: Batch, attempt: _Attempt, ledger: DeliveryLedger) -> Batch:
        """Resolve a committed batch; messages whose partitions were revoked are given back."""
        committed = batch.part(attempt.messages)
        owned = set(map(identity, committed.messages))
        ledger.give_back(message for message in batch.messages if identity(message) not in owned)
        ledger.resolve_results(committed.results)
        ledger.resolve_tombstones(committed.tombstones)
        ledger.resolve_failed(committed.failed, committed.messages)
        ledger.check_resolved(batch.messages)
        shortened = [content for content in attempt.contents if not content.result and is_shortened(content.record)]
        self._metrics.stream_shortened.inc(len(shortened))
        return committed
