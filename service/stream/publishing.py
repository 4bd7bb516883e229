"""Results to the sink, and alerts that were given up to the dead letters: repeated until acknowledged.

A record that the sink refuses for good becomes a dead letter. A dead letter that is refused, as it is too large, is
shortened. It has nowhere else to go: it is tried until it is taken, and its batch waits, so that a full disk stops the
worker instead of costing alerts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from time import monotonic
from typing import Final

import structlog

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.batches import Batch, identity
from nightjar_alerts.service.stream.messages import (
    PART_MESSAGES,
    DeadLetterCause,
    FatalError,
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


RecordEncoder = Callable[[Result], Record | None]
EncodedRecords = Mapping[Result, Record | DeadLetterCause | None]
"""Record of each result; a cause where it cannot be encoded, None where the format has no way to say it."""


class PublishStage:
    """Last stage: results to the sink, what was given up to the dead letters."""

    def __init__(
        self,
        sink: Sink,
        dead_letters: Sink,
        encode: RecordEncoder,
        executor: Executor,
        troubles: Troubles,
        metrics: Metrics,
    ) -> None:
        self._sink, self._dead_letters, self._encode_result = sink, dead_letters, encode
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
            return self._encode_result(result)
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
    except (TransientError, PermanentError, FatalError):
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
