"""Publish results and dead letters, and retry until each record is acknowledged.

:mod:`~nightjar_alerts.service.stream.decisions` decides on each delivery report. A batch waits until its dead letters
are accepted, so that a full disk stops the worker but loses no alert.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from time import monotonic
from typing import Final

import structlog

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.batches import Batch, FailedAlert
from nightjar_alerts.service.stream.dead_letters import dead_letter, is_shortened, shorten
from nightjar_alerts.service.stream.decisions import Retry, after_dead_letter, after_encoding, after_publishing
from nightjar_alerts.service.stream.messages import (
    PART_MESSAGES,
    ActiveErrors,
    AlertResult,
    DeadLetterCause,
    DeliveryReport,
    FatalError,
    Message,
    PermanentError,
    Record,
    RecordTooLargeError,
    Sink,
    Source,
    TransientError,
    backoff,
)

log = structlog.get_logger(__name__)

RecordEncoder = Callable[[AlertResult], Record | None]
"""Encodes a result; returns None if the format cannot express it. Raises PermanentError."""
SINK: Final = "sink"
DEAD_LETTERS: Final = "dead letters"


class PublishStage:
    """Third stage: publishes results to the sink, and failed alerts as dead letters."""

    def __init__(
        self,
        sink: Sink,
        dead_letters: Sink,
        encode: RecordEncoder,
        executor: Executor,
        errors: ActiveErrors,
        metrics: Metrics,
    ) -> None:
        self._sink, self._dead_letters, self._encode_result = sink, dead_letters, encode
        self._executor, self._errors, self._metrics = executor, errors, metrics

    async def encode(self, batch: Batch) -> Batch:
        """Return the batch with encoded results; results that cannot be encoded become failed alerts."""
        loop = asyncio.get_running_loop()
        encoded = await loop.run_in_executor(self._executor, lambda: [self._encode(result) for result in batch.results])
        results, failed = [], []
        for result, record in zip(batch.results, encoded, strict=True):
            if isinstance(record, DeadLetterCause):
                failed.append(FailedAlert(result.message, result.number, record))
            else:
                results.append(replace(result, record=record))
        return replace(batch, results=tuple(results), failed=(*batch.failed, *failed))

    def _encode(self, result: AlertResult) -> Record | DeadLetterCause | None:
        try:
            return self._encode_result(result)
        except Exception as error:
            if not isinstance(error, PermanentError):  # a bug must affect this alert only
                log.exception("failed to encode a result", alert=result.packet.alert_id)
            return after_encoding(error)

    async def publish(self, batch: Batch) -> Batch:
        """Send the records of the results; return the batch with rejected results as failed alerts."""
        failed: list[FailedAlert] = []
        pending = [result for result in batch.results if result.record is not None]
        for pause in backoff():
            if not pending:
                break
            retries: list[AlertResult] = []
            reason = ""
            for result, report in zip(pending, await self._send(self._sink, _records(pending)), strict=True):
                decision = after_publishing(report)
                if isinstance(decision, DeadLetterCause):
                    failed.append(FailedAlert(result.message, result.number, decision))
                elif isinstance(decision, Retry):
                    retries.append(result)
                    reason = reason or decision.reason
            if pending := retries:
                await self._errors.wait(SINK, reason, pause)
            else:
                self._errors.clear(SINK)
        return batch.fail(failed)

    async def write_dead_letters(self, failed: Sequence[FailedAlert], model: str) -> list[Message]:
        """Write a dead letter for each failed alert; return the messages once all are acknowledged."""
        pending = [(alert.message, dead_letter(alert.message, alert.cause, model)) for alert in failed]
        for pause in backoff():
            if not pending:
                break
            remaining: list[tuple[Message, Record]] = []
            reason = ""
            reports = await self._send(self._dead_letters, [record for _, record in pending])
            for (message, record), report in zip(pending, reports, strict=True):
                decision = after_dead_letter(report, is_shortened(record))
                if isinstance(decision, Retry):
                    remaining.append((message, record))
                    reason = reason or decision.reason
                elif decision == "shorten":
                    log.warning(
                        "dead letter is too large, shortening it", message_id=message.message_id, reason=str(report)
                    )
                    remaining.append((message, shorten(record)))
                else:
                    self._metrics.stream_shortened.inc(is_shortened(record))
            pending = remaining
            if reason:
                await self._errors.wait(DEAD_LETTERS, reason, pause)
            else:
                self._errors.clear(DEAD_LETTERS)
        return [alert.message for alert in failed]

    async def _send(self, sink: Sink, records: Sequence[Record]) -> list[DeliveryReport]:
        reports = await asyncio.to_thread(_publish, sink, records)
        if len(records) > 1:  # a broker may apply its size limit to all records of a request together
            for index, report in enumerate(reports):
                if isinstance(report, RecordTooLargeError):
                    (reports[index],) = await asyncio.to_thread(_publish, sink, [records[index]])
        return reports


def _records(results: Sequence[AlertResult]) -> list[Record]:
    return [result.record for result in results if result.record is not None]


def _publish(sink: Sink, records: Sequence[Record]) -> list[DeliveryReport]:
    """Publish records; a record for which the client of the sink raises is rejected without affecting the others."""
    try:
        return sink.publish(records)
    except (TransientError, PermanentError, FatalError):
        raise
    except Exception as error:  # any error of the client on unusual bytes must affect this record only
        if len(records) == 1:
            log.exception("failed to hand a record to the sink")
            return [PermanentError(f"{type(error).__name__}: {error}"[:500])]
        half = len(records) // 2
        return _publish(sink, records[:half]) + _publish(sink, records[half:])


WINDOW_TIMEOUT_SECONDS: Final = 10.0
WINDOW_POLL_SECONDS: Final = 0.005


class PublishTurn:
    """Turn of a batch in the :class:`PublishingQueue`."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()


class PublishingQueue:
    """Queue of batches for publishing, for sources that bound the number of published but uncommitted messages.

    An offset is committed only when every message before it is resolved. So batches are published in the order of
    consumption, in parts, each once it fits into the commit window of the source. A killed worker has published at most
    that window without a commit. A batch that waits for an external service leaves the queue (:meth:`leave`) and is
    published when it is ready. If a part has not fitted for :data:`WINDOW_TIMEOUT_SECONDS`, because no broker
    acknowledges commits, it is published nevertheless, except while dead letters cannot be written.

    Parameters
    ----------
    errors : holds :data:`DEAD_LETTERS` while dead letters cannot be written.
    """

    def __init__(self, source: Source, errors: ActiveErrors) -> None:
        self._source, self._errors = source, errors
        self._bounded = source.commit_window() is not None
        self._waiting: dict[PublishTurn, None] = {}  # in the order of consumption; the first may publish
        self._in_flight = 0
        # Zero after a timeout until a part fits: an outage costs one timeout, not one per part.
        self._window_timeout = WINDOW_TIMEOUT_SECONDS

    def enqueue(self) -> PublishTurn:
        """Add a batch, in the order in which batches are polled, and return its turn."""
        turn = PublishTurn()
        if self._bounded:
            self._waiting[turn] = None
            self._wake_first()
        return turn

    def leave(self, turn: PublishTurn) -> None:
        """Remove a batch from the queue, if it is still there, so that later batches do not wait for it."""
        if turn in self._waiting:
            del self._waiting[turn]
            turn.reached.set()
            self._wake_first()

    def _wake_first(self) -> None:
        for turn in self._waiting:
            turn.reached.set()
            break

    async def publish_in_turn(
        self, turn: PublishTurn, batch: Batch, publish: Callable[[Batch], Awaitable[None]]
    ) -> None:
        """Publish a batch in its turn: in concurrent parts if the source has a commit window, else as a whole.

        Parameters
        ----------
        publish : publishes and acknowledges a part; the part counts in the window until it returns. If it fails for one
            part, the other parts are cancelled.
        """
        if turn in self._waiting:  # a batch that left the queue waits only for the window
            await turn.reached.wait()
        parts = batch.split(PART_MESSAGES) if self._bounded else [batch]
        try:
            async with asyncio.TaskGroup() as parts_in_flight:
                for part in parts:
                    await self._wait_for_window(len(part.messages))
                    self._in_flight += len(part.messages)
                    parts_in_flight.create_task(self._publish(part, publish))
                self.leave(turn)  # the next batch starts while the last parts of this one are published
        except BaseExceptionGroup as errors:  # callers distinguish failures by type
            raise errors.exceptions[0] from None

    async def _publish(self, part: Batch, publish: Callable[[Batch], Awaitable[None]]) -> None:
        try:
            await publish(part)
        finally:
            self._in_flight -= len(part.messages)

    async def _wait_for_window(self, count: int) -> None:
        end = monotonic() + self._window_timeout
        while (is_full := not self._fits_window(count)) and (monotonic() < end or DEAD_LETTERS in self._errors):
            await asyncio.sleep(WINDOW_POLL_SECONDS)
        self._window_timeout = 0.0 if is_full else WINDOW_TIMEOUT_SECONDS

    def _fits_window(self, count: int) -> bool:
        window = self._source.commit_window()
        return window is None or self._in_flight + count <= window
