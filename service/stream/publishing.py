"""Results to the sink, and what was given up to the dead letters: repeated until acknowledged, or in transactions.

A record that the sink refuses for good becomes a dead letter. A dead letter that is refused, as it is too large, is
shortened. It has nowhere else to go: it is tried until it is taken, and its batch waits, so that a full disk stops the
worker instead of costing alerts.

Exactly once, from Kafka to Kafka (:class:`ExactlyOnce`): batches end in transactions, one after another, in the order
they were taken. A transaction holds the results of a batch, its dead letters where they go to the same cluster, and the
offsets after it. One that fails is aborted and tried again from memory, as long as the partitions are ours. Of
partitions that were taken away nothing is published: their messages are given back, and whoever gets them begins at the
committed offset. Batches are decoded and classified several at a time all the same; only their transactions wait for
each other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.settings import SinkFormat
from nightjar_alerts.service.stream.batches import Batch, DeadAlert, identity
from nightjar_alerts.service.stream.formats import record_of
from nightjar_alerts.service.stream.messages import (
    PART_MESSAGES,
    DeadLetterCause,
    Message,
    PermanentError,
    Record,
    Result,
    Sink,
    Source,
    TransientError,
    Troubles,
    backoff,
    dead_letter,
    is_shortened,
    shorten,
)

log = structlog.get_logger(__name__)


EncodedRecords = Mapping[Result, Record | DeadLetterCause | None]
"""Record of each result; a cause where it cannot be encoded, None where the format has no way to say it."""


class PublishStage:
    """Last stage: results to the sink, what was given up to the dead letters."""

    def __init__(
        self, sink: Sink, dead_letters: Sink, form: SinkFormat, executor: Executor, troubles: Troubles, metrics: Metrics
    ) -> None:
        self._sink, self._dead_letters, self._form = sink, dead_letters, form
        self._executor, self._troubles, self._metrics = executor, troubles, metrics

    async def encode(self, results: Sequence[Result]) -> EncodedRecords:
        """Return what is to be published of each result."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: {result: self._encode(result) for result in results})

    async def publish(
        self, batch: Batch, results: Sequence[Result], encoded: EncodedRecords | None = None
    ) -> list[Result]:
        """Publish; returns results that were acknowledged or that the format cannot say. The others are given up.

        Parameters
        ----------
        encoded : records of these results, and perhaps of more, where they were encoded before.
        """
        encoded = await self.encode(results) if encoded is None else encoded
        records, record_results, inexpressible = [], [], []
        for result in results:
            record = encoded[result]
            if isinstance(record, Record):
                records.append(record)
                record_results.append(result)
            elif isinstance(record, DeadLetterCause):
                batch.give_up(result.message, result.number, record)
            else:
                inexpressible.append(result)
        refusals = await self._send(self._sink, records, "sink")
        for place, error in refusals.items():
            batch.give_up(
                record_results[place].message,
                record_results[place].number,
                DeadLetterCause("publish", "refused", str(error)),
            )
        return inexpressible + [result for place, result in enumerate(record_results) if place not in refusals]

    def _encode(self, result: Result) -> Record | DeadLetterCause | None:
        try:
            return record_of(result, self._form)
        except PermanentError as error:
            return DeadLetterCause("encode", "not_expressible", str(error))
        except Exception as error:  # a bug of ours must cost this alert alone
            log.exception("a result broke its format", alert=result.packet.alert_id)
            return DeadLetterCause("encode", "internal_error", type(error).__name__)

    async def write_dead_letters(self, batch: Batch, model: str) -> list[Message]:
        """Write a batch's dead letters, one for each message; returns the messages of those acknowledged."""
        # Reversed, so that each message keeps its first cause: of equal keys a dictionary keeps the last.
        first_by_message = {identity(one.message): one for one in reversed(batch.dead)}
        pending = [(one.message, dead_letter(one.message, one.cause, model)) for one in first_by_message.values()]
        written_messages: list[Message] = []
        for pause in backoff():
            refusals = await self._send(self._dead_letters, [record for _, record in pending], "dead letters")
            acknowledged_letters = [one for place, one in enumerate(pending) if place not in refusals]
            written_messages += [message for message, _ in acknowledged_letters]
            self._metrics.stream_shortened.inc(sum(is_shortened(record) for _, record in acknowledged_letters))
            refused_letters = [pending[place] for place in refusals]
            pending = [(message, shorten(record)) for message, record in refused_letters]  # too large, most likely
            if not pending:
                break
            log.warning(
                "a dead letter was refused", place=pending[0][0].place, reason=str(next(iter(refusals.values())))
            )
            if pending == refused_letters:  # all were shortened before: only waiting is left
                await self._troubles.wait("dead letters", str(next(iter(refusals.values()))), pause)
        return written_messages

    async def _send(self, sink: Sink, records: Sequence[Record], step: str) -> dict[int, PermanentError]:
        """Publish until every record is acknowledged or refused for good; returns the refusals, by place."""
        refusals: dict[int, PermanentError] = {}
        pending = list(range(len(records)))
        for pause in backoff():
            if not pending:
                break
            verdicts = await asyncio.to_thread(_publish, sink, [records[place] for place in pending])
            verdict_by_place = dict(zip(pending, verdicts, strict=True))
            refusals |= {
                place: verdict for place, verdict in verdict_by_place.items() if isinstance(verdict, PermanentError)
            }
            pending = [
                place for place, verdict in verdict_by_place.items() if verdict is not None and place not in refusals
            ]
            if pending:
                await self._troubles.wait(step, str(verdict_by_place[pending[0]]), pause)
        if records:
            self._troubles.end(step)
        return refusals


def _publish(sink: Sink, records: Sequence[Record]) -> list[PermanentError | TransientError | None]:
    """Publish; a record that breaks the sink's client is refused, and its neighbours are not."""
    try:
        return sink.publish(records)
    except (TransientError, PermanentError):
        raise
    except Exception as error:  # whatever the client makes of strange bytes must cost this record alone
        if len(records) == 1:
            log.exception("a record broke the sink")
            return [PermanentError(f"{type(error).__name__}: {error}"[:500])]
        half = len(records) // 2
        return _publish(sink, records[:half]) + _publish(sink, records[half:])


WINDOW_TIMEOUT_SECONDS: Final = 10.0
WINDOW_POLL_SECONDS: Final = 0.005


class PublishingQueue:
    """Queue of batches for publishing, where a source bounds the answers that are not committed.

    What is answered cannot be committed before everything taken before it is done. So batches are published in the
    order in which they were taken, in parts, each once it fits into the source's commit window; a killed worker has
    answered no more than that window without a commit. A batch that waits for something outside leaves the queue
    (:meth:`leave`) and is published when it is ready. Where a part has not fitted for :data:`WINDOW_TIMEOUT_SECONDS`,
    as no broker acknowledges commits, alerts are answered all the same.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._bounded = source.commit_window() is not None
        self._waiting: dict[Batch, asyncio.Event] = {}  # in the order taken; the turn of the first one is set
        self._in_flight = 0
        # Zero once a part has not fitted for so long, until one fits: an outage costs one timeout, not one a part.
        self._window_timeout = WINDOW_TIMEOUT_SECONDS

    def enqueue(self, batch: Batch) -> None:
        """Put a batch at the end; to be called in the order in which batches are taken."""
        if self._bounded:
            self._waiting[batch] = asyncio.Event()
            self._wake_first()

    def leave(self, batch: Batch) -> None:
        """Take a batch out of the queue, if it is in it still: those behind it need not wait for it."""
        if (turn := self._waiting.pop(batch, None)) is not None:
            turn.set()
            self._wake_first()

    def _wake_first(self) -> None:
        for turn in self._waiting.values():
            turn.set()
            break

    async def publish_in_turn(self, batch: Batch, publish: Callable[[Batch], Awaitable[None]]) -> None:
        """Have a batch published in its turn: in parts, side by side, where there is a bound, and whole elsewhere.

        Parameters
        ----------
        publish : publishes and acknowledges a part, which counts in the window until then. If it fails for one part,
            the other parts are cancelled.
        """
        if (turn := self._waiting.get(batch)) is not None:  # one that left the queue waits for the window alone
            await turn.wait()
        parts = batch.split(PART_MESSAGES) if self._bounded else [batch]
        try:
            async with asyncio.TaskGroup() as parts_in_flight:
                for part in parts:
                    await self._wait_for_window(len(part.messages))
                    self._in_flight += len(part.messages)
                    parts_in_flight.create_task(self._publish(part, publish))
                self.leave(batch)  # the next batch begins beside the last parts of this one
        except BaseExceptionGroup as errors:  # callers tell failures apart by their type
            raise errors.exceptions[0] from None

    async def _publish(self, part: Batch, publish: Callable[[Batch], Awaitable[None]]) -> None:
        try:
            await publish(part)
        finally:
            self._in_flight -= len(part.messages)

    async def _wait_for_window(self, count: int) -> None:
        end = monotonic() + self._window_timeout
        while (is_full := not self._fits_window(count)) and monotonic() < end:
            await asyncio.sleep(WINDOW_POLL_SECONDS)
        self._window_timeout = 0.0 if is_full else WINDOW_TIMEOUT_SECONDS

    def _fits_window(self, count: int) -> bool:
        window = self._source.commit_window()
        return window is None or self._in_flight + count <= window


if TYPE_CHECKING:  # confluent_kafka is there only where a worker needs it
    from nightjar_alerts.service.stream.kafka.sink import KafkaTransactions
    from nightjar_alerts.service.stream.kafka.source import KafkaSource, TransactionOffsets

GATE_SECONDS: Final = 0.5
MAX_TRANSACTIONAL_BATCHES: Final = 4
"""Batches in flight beyond which no more are taken: the slower the transactions, the larger the batches then are."""


class TransactionTurn(NamedTuple):
    """Turn of a batch to commit: after the batch before it. Behind a batch that failed no turn comes.

    The producer has one transaction at a time, and offsets must be committed in the order in which messages were taken.
    """

    previous_ended: asyncio.Event
    ended: asyncio.Event


class TransactionContent(NamedTuple):
    """Content of a transaction, which may have been committed even where the commit was never answered.

    Attributes
    ----------
    messages : those of its batch that were still ours. The others come again, and must not be acknowledged.
    """

    messages: list[Message]
    results: list[Result]
    dead: list[DeadAlert]
    dead_lettered: list[Message]


class ExactlyOnce:
    """Ends batches in transactions: results, dead letters and offsets of a batch together, or nothing of it."""

    def __init__(
        self, source: "KafkaSource", transactions: "KafkaTransactions", publishing: PublishStage, troubles: Troubles
    ) -> None:
        self._source, self._transactions = source, transactions
        self._publishing, self._troubles = publishing, troubles
        self._last = asyncio.Event()
        self._last.set()
        self._unconfirmed: TransactionContent | None = None

    def next_turn(self) -> TransactionTurn:
        """Return the next turn; to be called in the order in which batches are taken."""
        previous, self._last = self._last, asyncio.Event()
        return TransactionTurn(previous, self._last)

    async def conclude(
        self, batch: Batch, results: Sequence[Result], turn: TransactionTurn, model: str
    ) -> list[Result]:
        """Publish, write dead letters and commit, as often as it takes; returns what was answered.

        Where this is cancelled while a commit is unconfirmed, the commit gate stays closed: a journal written now would
        set the group back to before a transaction that may have been committed.
        """
        await turn.previous_ended.wait()
        while not await self._acquire_gate():  # in short tries: a thread that waits for it cannot be cancelled
            pass
        try:
            published_results = await self._commit_with_retries(batch, results, model)
        finally:
            if self._unconfirmed is None:
                self._source.release_commit_gate()
        # Not in the `finally`: behind a batch that failed, a later one must not commit offsets beyond it.
        turn.ended.set()
        return published_results

    async def _acquire_gate(self) -> bool:
        """Try to enter the commit gate; left again where this is cancelled meanwhile."""
        # The thread cannot be cancelled with us: if it entered the gate after we are gone, nobody would leave it.
        acquisition = asyncio.ensure_future(asyncio.to_thread(self._source.acquire_commit_gate, GATE_SECONDS))
        try:
            return await asyncio.shield(acquisition)
        except asyncio.CancelledError:
            await asyncio.wait([acquisition])
            if acquisition.result():
                self._source.release_commit_gate()
            raise

    async def _commit_with_retries(self, batch: Batch, results: Sequence[Result], model: str) -> list[Result]:
        for pause in backoff():
            try:
                published_results = await self._try_transaction(batch, results, model)
            except TransientError as error:
                await asyncio.to_thread(self._transactions.abort)
                await self._troubles.wait("transaction", str(error), pause)
            else:
                break
        self._troubles.end("transaction")
        return published_results

    async def _try_transaction(self, batch: Batch, results: Sequence[Result], model: str) -> list[Result]:
        """Try one transaction."""
        # First: it settles what became of an unanswered commit, so that the question below has one answer.
        await asyncio.to_thread(self._transactions.begin)
        offsets = await asyncio.to_thread(self._source.transaction_offsets, batch.messages)
        # The last commit was asked for and not answered. Publishing again might answer twice.
        # The group's committed offsets decide: if they have moved, the transaction came to be.
        if (unconfirmed := self._unconfirmed) is not None:
            if await asyncio.to_thread(self._source.is_committed, offsets):
                batch.dead = unconfirmed.dead
                self._settle(batch, unconfirmed)
                await asyncio.to_thread(self._transactions.abort)
                return unconfirmed.results
            self._unconfirmed = None
        for message in batch.messages:
            if message.token not in offsets.owned:
                batch.return_message(message)
        dead = list(batch.dead)
        try:
            content = await self._publish(batch, results, offsets, model)
            await _uninterrupted(self._commit(batch, content, offsets))
        except TransientError:
            batch.dead = dead  # what was refused is refused again by the next try
            raise
        return content.results

    async def _publish(
        self, batch: Batch, results: Sequence[Result], offsets: "TransactionOffsets", model: str
    ) -> TransactionContent:
        messages = [message for message in batch.messages if message.token in offsets.owned]
        published_results = await self._publishing.publish(
            batch, [r for r in results if r.message.token in offsets.owned]
        )
        dead_lettered = await self._publishing.write_dead_letters(batch, model) if batch.dead else []
        # Before the commit: offsets must not be moved past an alert that a stage has lost.
        batch.check(((r.message, r.number) for r in published_results), dead_lettered)
        return TransactionContent(messages, published_results, list(batch.dead), dead_lettered)

    async def _commit(self, batch: Batch, content: TransactionContent, offsets: "TransactionOffsets") -> None:
        self._unconfirmed = content  # from before it is asked for until it is answered: any failure between is a doubt
        await asyncio.to_thread(self._transactions.commit, offsets.positions, offsets.membership)
        self._settle(batch, content)

    def _settle(self, batch: Batch, content: TransactionContent) -> None:
        batch.settle_answers((r.message, r.number, r.outcome.status, r.outcome.reason) for r in content.results)
        batch.settle_dead_letters(content.dead_lettered)
        batch.check()
        self._source.acknowledge(content.messages)
        self._unconfirmed = None


async def _uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end even when cancelled: what is being committed must not be counted as given back."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if (error := task.exception()) is not None:
            log.warning("a commit failed while the worker stopped", reason=str(error))
        raise
