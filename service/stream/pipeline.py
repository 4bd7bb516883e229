"""Pipeline of a worker: decode, infer, publish, acknowledge.

Each stage takes a :class:`~nightjar_alerts.service.stream.batches.Batch` and returns a new one;
:mod:`~nightjar_alerts.service.stream.decisions` decides between result, dead letter and retry, and the
:class:`~nightjar_alerts.service.stream.ledger.DeliveryLedger` records the decision. Each alert is classified from the
history in its own packet, even if a batch contains several alerts of one object.

If a stage fails unexpectedly, its batch is decoded and classified again message by message, so that only the message
that causes the failure is affected. A batch is acknowledged only when all its alerts are resolved. An unresolved alert
is an error (:class:`~nightjar_alerts.service.stream.ledger.LostAlertError`) that stops the worker.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from time import monotonic
from typing import Final

import numpy as np
import structlog

from nightjar_alerts.alerts.envelopes import MessageReader, TopicRule, rule_for
from nightjar_alerts.alerts.packet import Packet, PacketError
from nightjar_alerts.alerts.reader import PacketOutcome
from nightjar_alerts.alerts.schema_registry import SchemaUnavailableError
from nightjar_alerts.core.failures import RunAborted
from nightjar_alerts.core.items import Item, Outcome, item_of
from nightjar_alerts.models.evolution import history
from nightjar_alerts.models.lightcurve import Float64
from nightjar_alerts.models.limits import milliseconds
from nightjar_alerts.models.photometry import SECONDS_PER_DAY, tai_minus_utc
from nightjar_alerts.service.engine.errors import EngineClosed, EngineDead, Overloaded
from nightjar_alerts.service.inference import InferOptions
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.registry.manager import ModelManager
from nightjar_alerts.service.registry.serving import ModelHandle, acquired, infer_many
from nightjar_alerts.service.stream.batches import Alert, Batch, FailedAlert, merge
from nightjar_alerts.service.stream.decisions import (
    MAX_TRIES,
    PROCESS_ERRORS,
    Retry,
    UnknownSchemaPolicy,
    after_inference,
    after_reading,
    after_unexpected,
    before_reading,
)
from nightjar_alerts.service.stream.exactly_once import ExactlyOnce
from nightjar_alerts.service.stream.ledger import DeliveryLedger
from nightjar_alerts.service.stream.messages import (
    ActiveErrors,
    AlertResult,
    DeadLetterCause,
    Message,
    Source,
    TransientError,
    backoff,
)
from nightjar_alerts.service.stream.publishing import PublishingQueue, PublishStage

log = structlog.get_logger(__name__)

YieldTurn = Callable[[], None]
"""Called by a stage before it waits for an external service, so that later batches may be published first."""


class DecodeStage:
    """First stage: decodes messages to alerts.

    Parameters
    ----------
    policy : what to do with messages whose schema cannot be fetched.
    max_deliveries : maximum number of deliveries; a message delivered more often is assumed to kill workers.
    """

    def __init__(
        self,
        reader: MessageReader,
        rules: Mapping[str, TopicRule],
        policy: UnknownSchemaPolicy,
        max_deliveries: int,
        executor: Executor,
        errors: ActiveErrors,
    ) -> None:
        self._reader, self._rules, self._policy = reader, rules, policy
        self._max_deliveries, self._executor, self._errors = max_deliveries, executor, errors

    async def decode(self, batch: Batch, yield_turn: YieldTurn) -> Batch:
        """Return the batch with its alerts, failed alerts and tombstones, each in the order of the messages."""
        alerts: list[Alert] = []
        failed: list[FailedAlert] = []
        alert_ids: dict[int, list[str]] = {}
        tombstones = tuple(message for message in batch.messages if message.tombstone)
        for index, (message, read) in enumerate(
            zip(batch.messages, await self._read_all(batch.messages, yield_turn), strict=True)
        ):
            if message.tombstone:
                continue
            if isinstance(read, DeadLetterCause):
                failed.append(FailedAlert(message, None, read))
                continue
            alert_ids[index] = [outcome.alert_id if isinstance(outcome, Packet) else "" for outcome in read]
            for number, outcome in enumerate(read):
                if isinstance(outcome, PacketError):
                    cause = DeadLetterCause("decode", outcome.reason, outcome.detail)
                    failed.append(FailedAlert(message, number, cause))
                else:
                    alerts.append(Alert(message, number, outcome))
        return replace(batch, alert_ids=alert_ids, alerts=tuple(alerts), failed=tuple(failed), tombstones=tombstones)

    async def _read_all(
        self, messages: Sequence[Message], yield_turn: YieldTurn
    ) -> list[list[PacketOutcome] | DeadLetterCause]:
        """Read all messages; retry those whose schemas are not available."""
        read: dict[int, list[PacketOutcome] | DeadLetterCause] = {}  # by index, to keep the order
        while remaining := [index for index in range(len(messages)) if index not in read]:
            retries = []
            for index, decision in zip(remaining, await self._read([messages[i] for i in remaining]), strict=True):
                if isinstance(decision, Retry):
                    retries.append(decision)
                else:
                    read[index] = decision
            if retries:
                yield_turn()
                await self._errors.wait("schema registry", retries[0].reason, min(retry.seconds for retry in retries))
        self._errors.clear("schema registry")
        return [read[index] for index in range(len(messages))]

    async def _read(self, messages: Sequence[Message]) -> list[list[PacketOutcome] | DeadLetterCause | Retry]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: [self._read_one(message) for message in messages])

    def _read_one(self, message: Message) -> list[PacketOutcome] | DeadLetterCause | Retry:
        if (cause := before_reading(message, self._max_deliveries)) is not None:
            return cause
        try:
            rule = rule_for(message.topic, self._rules)
            read: list[PacketOutcome] | Exception = self._reader.read(
                message.value, message.key, rule, headers=message.headers
            )
        except SchemaUnavailableError as error:
            read = error
        except Exception as error:  # a bug must affect this message only; its dead letter keeps the bytes
            log.exception("failed to read a message", topic=message.topic, message_id=message.message_id)
            read = error
        return after_reading(read, self._policy)


EVOLUTION_STEPS: Final = 20
"""Maximum number of steps in the evolution of one alert."""


class InferStage:
    """Second stage: classifies alerts.

    Parameters
    ----------
    evolution : whether to add the classification after each detection to the results.
    """

    def __init__(self, models: ModelManager, errors: ActiveErrors, prior: str = "", evolution: bool = False) -> None:
        self._models, self._errors, self._prior, self._evolution = models, errors, prior, evolution

    async def infer(self, batch: Batch, yield_turn: YieldTurn) -> Batch:
        """Return the batch with its alerts replaced by results or failed alerts.

        Raises
        ------
        EngineClosed, EngineDead
            If the process cannot classify any more.
        """
        results: list[AlertResult] = []
        failed: list[FailedAlert] = []
        remaining = list(batch.alerts)
        for attempt, pause in zip(range(MAX_TRIES), backoff(), strict=False):
            retries: list[Alert] = []
            for alert, outcome in await self._infer(remaining, yield_turn):
                if isinstance(outcome, DeadLetterCause):
                    failed.append(FailedAlert(alert.message, alert.number, outcome))
                    continue
                handle, inferred = outcome
                decision = after_inference(inferred, last_try=attempt == MAX_TRIES - 1)
                if isinstance(decision, DeadLetterCause):
                    failed.append(FailedAlert(alert.message, alert.number, decision))
                elif decision == "retry":
                    retries.append(alert)
                else:
                    results.append(AlertResult(*alert, inferred, handle, batch.received_ms, self._prior))
            if not (remaining := retries):
                break
            yield_turn()
            await self._errors.wait("inference", f"{len(remaining)} light curves failed", pause)
        if self._evolution:
            results = await self._add_evolution(results, yield_turn)
        self._errors.clear("inference")
        return replace(batch, alerts=(), results=tuple(results), failed=(*batch.failed, *failed))

    async def _add_evolution(self, results: Sequence[AlertResult], yield_turn: YieldTurn) -> list[AlertResult]:
        """Return the results, with the evolution of those that were classified.

        Unexpected errors are logged, and the results are then returned without evolution.
        """
        histories = [
            history(result.packet.curve, EVOLUTION_STEPS)
            if result.outcome.status == "classified" and result.packet.curve is not None
            else None
            for result in results
        ]
        steps = [
            (result.packet.survey, replace(result.handle, subtypes=None), curve)
            for result, past in zip(results, histories, strict=True)
            if past is not None
            for curve in past.curves
        ]
        if not steps:
            return list(results)
        surveys, handles, curves = (list(column) for column in zip(*steps, strict=True))
        options = InferOptions(surveys=surveys, is_history=True)
        try:
            with acquired(handles):
                outcomes = iter(await self._infer_with_retry(handles, curves, options, yield_turn))
        except (EngineClosed, EngineDead, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("failed to classify alerts over time", alerts=len(results))
            return list(results)
        return [
            result if past is None else replace(result, evolution=(past, list(islice(outcomes, len(past.curves)))))
            for result, past in zip(results, histories, strict=True)
        ]

    async def _infer(
        self, alerts: Sequence[Alert], yield_turn: YieldTurn
    ) -> list[tuple[Alert, tuple[ModelHandle, Outcome] | DeadLetterCause]]:
        """Classify alerts together; if that raises, bisect until the alert that causes the error fails alone."""
        if not alerts:
            return []
        try:
            handles, items = self._choose_models(alerts)
            with acquired(handles):
                options = InferOptions(surveys=[alert.packet.survey for alert in alerts])
                outcomes = await self._infer_with_retry(handles, items, options, yield_turn)
        except (EngineClosed, EngineDead, asyncio.CancelledError):
            raise  # bisecting does not help: no alert caused this
        except Exception as error:
            if len(alerts) == 1:
                log.exception("failed to classify an alert", alert=alerts[0].packet.alert_id)
                return [(alerts[0], DeadLetterCause("classify", "internal_error", type(error).__name__))]
            middle = len(alerts) // 2
            first = await self._infer(alerts[:middle], yield_turn)
            return first + await self._infer(alerts[middle:], yield_turn)
        return list(zip(alerts, zip(handles, outcomes, strict=True), strict=True))

    async def _infer_with_retry(
        self, handles: Sequence[ModelHandle], items: Sequence[Item], options: InferOptions, yield_turn: YieldTurn
    ) -> list[Outcome]:
        """Classify; retry while the queue of the engine is full or runs are aborted."""
        for pause in backoff():
            try:
                return await infer_many(handles, items, options)
            except Overloaded as error:
                await asyncio.sleep(min(error.retry_after, 1.0))
            except RunAborted as error:
                yield_turn()
                await self._errors.wait("inference", str(error), pause)
        raise AssertionError("backoff() never ends")

    def _choose_models(self, alerts: Sequence[Alert]) -> tuple[list[ModelHandle], list[Item]]:
        """Route each alert by survey and, for a canary, by object; return the models and the items to classify."""
        route = self._models.router.route
        choices = [
            route(item_of(alert.packet)[0], survey=alert.packet.survey, routing_key=alert.packet.object_id)
            for alert in alerts
        ]
        return [handle for handle, _ in choices], [item for _, item in choices]


def now_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


MJD_OF_1970: Final = 40587.0


class Pipeline:
    """Stages of one source; several batches may run at the same time.

    Attributes
    ----------
    model : name and version of the default model, for dead letters.

    Parameters
    ----------
    exactly_once : publishes and commits in transactions; None for at-least-once delivery.
    """

    def __init__(
        self,
        source: Source,
        stages: tuple[DecodeStage, InferStage, PublishStage],
        ledger: DeliveryLedger,
        errors: ActiveErrors,
        metrics: Metrics,
        model: str,
        exactly_once: ExactlyOnce | None = None,
    ) -> None:
        self._exactly_once = exactly_once
        self._queue = PublishingQueue(source, errors)
        self._source, self._ledger, self._errors = source, ledger, errors
        self._decoder, self._inference, self._publisher = stages
        self._metrics, self.model = metrics, model

    async def run(self, messages: Sequence[Message]) -> None:
        """Process a batch; if this fails or is cancelled, unresolved alerts are given back."""
        # Before the first await, so that turns follow the order of consumption.
        turn = self._queue.enqueue()
        transaction_turn = self._exactly_once.next_turn() if self._exactly_once else None
        self._ledger.open(messages)
        try:
            batch = Batch(messages, now_ms())
            self._observe_broker_ages(batch)
            batch = await self._decode_and_infer(batch, lambda: self._queue.leave(turn))
            batch = await self._publisher.encode(batch)
            if self._exactly_once and transaction_turn:
                with self._timed("publish"):
                    published = await self._exactly_once.commit(batch, transaction_turn, self._ledger, self.model)
                self._observe_alert_ages(published)
            else:
                await self._queue.publish_in_turn(turn, batch, self._publish_and_acknowledge)
        finally:
            self._queue.leave(turn)  # else batches behind a failed one would wait forever
            self._ledger.close(messages)

    async def _decode_and_infer(self, batch: Batch, yield_turn: YieldTurn) -> Batch:
        """Decode and classify; after an unexpected error, message by message."""
        try:
            return await self._decode_and_infer_once(batch, yield_turn)
        except PROCESS_ERRORS:
            raise
        except Exception as error:
            log.exception("a stage failed on a batch", messages=len(batch.messages), error=type(error).__name__)
        parts = []
        for message in batch.messages:
            part = batch.part([message])
            try:
                parts.append(await self._decode_and_infer_once(part, yield_turn))
            except Exception as error:
                parts.append(part.fail([FailedAlert(message, None, after_unexpected("worker", error))]))
        return merge(batch, parts)

    async def _decode_and_infer_once(self, batch: Batch, yield_turn: YieldTurn) -> Batch:
        with self._timed("decode"):
            decoded = await self._decoder.decode(batch, yield_turn)
        for index, ids in decoded.alert_ids.items():
            self._ledger.expand(batch.messages[index], ids)
        with self._timed("classify"):
            return await self._inference.infer(decoded, yield_turn)

    async def _publish_and_acknowledge(self, batch: Batch) -> None:
        """Publish results, write dead letters and acknowledge, for at-least-once delivery."""
        batch = self._without_reassigned(batch)  # fewer duplicates, since the new owners publish them too
        with self._timed("publish"):
            batch = await self._publisher.publish(batch)
        self._ledger.resolve_results(batch.results)
        self._ledger.resolve_tombstones(batch.tombstones)
        self._observe_alert_ages(batch.results)
        if batch.failed:
            with self._timed("dead_letters"):
                written = await self._publisher.write_dead_letters(batch.first_failures(), self.model)
            self._ledger.resolve_failed(batch.failed, written)
        self._without_reassigned(batch)  # partitions may have been reassigned meanwhile
        self._ledger.check_resolved(batch.messages)
        await self._acknowledge(batch.messages)

    def _without_reassigned(self, batch: Batch) -> Batch:
        """Give back messages whose partitions were reassigned; return the batch without them."""
        owned = [message for message in batch.messages if self._source.owns(message)]
        if len(owned) == len(batch.messages):
            return batch
        self._ledger.give_back(message for message in batch.messages if not self._source.owns(message))
        return batch.part(owned)

    async def _acknowledge(self, messages: Sequence[Message]) -> None:
        for pause in backoff():
            try:
                await asyncio.to_thread(self._source.acknowledge, messages)
                break
            except TransientError as error:
                await self._errors.wait("acknowledge", str(error), pause)
        self._errors.clear("acknowledge")

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = monotonic()
        try:
            yield
        finally:  # slow failures count as well
            self._metrics.stream_seconds.labels(stage).observe(monotonic() - started)

    def _observe_broker_ages(self, batch: Batch) -> None:
        for message in batch.messages:
            if (timestamp_ms := milliseconds(message.timestamp_ms)) is not None:
                self._metrics.stream_broker_age.observe(max(0.0, (batch.received_ms - timestamp_ms) / 1000))

    def _observe_alert_ages(self, results: Sequence[AlertResult]) -> None:
        """Record the age of each published alert, except in a replay."""
        if self._source.finite:
            return
        dated = [(result.packet.survey, result.packet.mjd) for result in results if result.packet.mjd is not None]
        if not dated:
            return
        ages = now_ms() / 1000 - unix_seconds(np.array([mjd for _, mjd in dated]))
        for (survey, _), age in zip(dated, ages.tolist(), strict=True):
            self._metrics.stream_alert_age.labels(survey).observe(max(0.0, age))


def unix_seconds(mjd_tai: Float64) -> Float64:
    """Convert MJDs in TAI, shape (n,), to Unix time in seconds."""
    seconds: Float64 = (mjd_tai - MJD_OF_1970) * SECONDS_PER_DAY - tai_minus_utc(mjd_tai)
    return seconds
