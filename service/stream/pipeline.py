"""The way of a batch: decode, classify, publish, write dead letters, and acknowledge it to the source.

Decoding runs in a thread; a message that cannot be read is given up, and its neighbours are not. The data plane is
asked again where that may help, and a batch that breaks it is halved. Each alert is answered from the history in its
own packet, also when a batch holds several alerts of one object.

A message that breaks a stage costs nothing but itself: its batch is read again message by message, and the message that
breaks the stage alone becomes a dead letter. A batch is acknowledged when every alert of it is settled, and not before:
an alert without an end is an error (:class:`~service.stream.batches.LostAlertError`), after which the worker stops.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from time import monotonic
from typing import Final, Literal

import numpy as np
import structlog

from nightjar_alerts.models.alerts.envelopes import MessageReader, TopicRule, rule_for
from nightjar_alerts.models.alerts.packet import PacketError
from nightjar_alerts.models.alerts.reader import PacketOutcome
from nightjar_alerts.models.alerts.schema_registry import SchemaUnavailableError
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.limits import milliseconds
from nightjar_alerts.models.photometry import SECONDS_PER_DAY, tai_minus_utc
from nightjar_alerts.service.dataplane import InferOptions, Item, Outcome, Skipped
from nightjar_alerts.service.engine.batch import EngineClosed, EngineDead, EngineError, Overloaded, RunAborted
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.registry.manager import ModelManager
from nightjar_alerts.service.registry.serving import ModelHandle, acquired, infer_many
from nightjar_alerts.service.stream.batches import Accounts, Alert, Batch, UnbalancedError
from nightjar_alerts.service.stream.exactly_once import ExactlyOnce
from nightjar_alerts.service.stream.messages import (
    DeadLetterCause,
    Message,
    Result,
    Source,
    TransientError,
    Troubles,
    backoff,
)
from nightjar_alerts.service.stream.publishing import EncodedRecords, PublishingQueue, PublishStage

log = structlog.get_logger(__name__)

PASSING_REASONS: Final = ("out_of_memory", "deadline_exceeded")
"""Reasons of failure that may have passed at a later try."""
MAX_TRIES: Final = 4


class ClassifyStage:
    """Second stage: alerts to results."""

    def __init__(self, models: ModelManager, troubles: Troubles, prior: str = "") -> None:
        self._models, self._troubles, self._prior = models, troubles, prior

    async def results(self, batch: Batch, alerts: Sequence[Alert]) -> list[Result]:
        """Return results of the alerts that have one; the others are among the batch's dead.

        Raises
        ------
        EngineClosed, EngineDead
            When the process can classify no more.
        """
        results: list[Result] = []
        remaining = list(alerts)
        for attempt, pause in zip(range(MAX_TRIES), backoff(), strict=False):
            results += await self._ask(batch, remaining)
            remaining = self._retry_or_give_up(batch, results, last=attempt == MAX_TRIES - 1)
            results = [result for result in results if result.outcome.status in ("classified", "abstained")]
            if not remaining:
                break
            batch.on_wait()
            await self._troubles.wait("inference", f"{len(remaining)} light curves failed", pause)
        self._troubles.end("inference")
        return results

    def _retry_or_give_up(self, batch: Batch, results: Sequence[Result], last: bool) -> list[Alert]:
        """Return alerts to ask about again; those whose failure will not pass are given up."""
        retries = []
        for result in results:
            outcome = result.outcome
            if outcome.status in ("classified", "abstained"):
                continue
            if outcome.reason in PASSING_REASONS and not last:
                retries.append(Alert(result.message, result.number, result.packet))
            else:
                batch.give_up(
                    result.message, result.number, DeadLetterCause("classify", outcome.reason, outcome.detail)
                )
        return retries

    async def _ask(self, batch: Batch, alerts: Sequence[Alert]) -> list[Result]:
        """Ask about all alerts together; a batch that breaks the data plane is halved until one alert is left."""
        if not alerts:
            return []
        try:
            handles, items = self._choose_models(alerts)
            with acquired(dict.fromkeys(handles)):
                outcomes = await self._ask_when_there_is_room(batch, alerts, handles, items)
        except (EngineClosed, EngineDead, asyncio.CancelledError):
            raise  # nobody answers any more: in halves neither, and no alert is to blame
        except Exception as error:
            if len(alerts) == 1:
                alert = alerts[0]
                log.exception("an alert broke the data plane", alert=alert.packet.alert_id)
                batch.give_up(
                    alert.message, alert.number, DeadLetterCause("classify", "internal_error", type(error).__name__)
                )
                return []
            middle = len(alerts) // 2
            return await self._ask(batch, alerts[:middle]) + await self._ask(batch, alerts[middle:])
        return [
            Result(alert.message, alert.number, alert.packet, outcome, handle, batch.received_ms, self._prior)
            for alert, outcome, handle in zip(alerts, outcomes, handles, strict=True)
        ]

    async def _ask_when_there_is_room(
        self, batch: Batch, alerts: Sequence[Alert], handles: Sequence[ModelHandle], items: Sequence[Item]
    ) -> list[Outcome]:
        """Ask until there is room; back-pressure, not failure."""
        options = InferOptions(surveys=[alert.packet.survey for alert in alerts])
        for pause in backoff():
            try:
                return await infer_many(handles, items, options)
            except Overloaded as error:
                await asyncio.sleep(min(error.retry_after, 1.0))
            except RunAborted as error:
                batch.on_wait()
                await self._troubles.wait("inference", str(error), pause)
        raise AssertionError("backoff() never ends")

    def _choose_models(self, alerts: Sequence[Alert]) -> tuple[list[ModelHandle], list[Item]]:
        """Return the model for each alert, by survey and, where a canary has a share, by object; and what to ask."""
        route = self._models.router.route
        choices = [
            route(_item(alert), survey=alert.packet.survey, routing_key=alert.packet.object_id) for alert in alerts
        ]
        return [handle for handle, _ in choices], [item for _, item in choices]


def _item(alert: Alert) -> LightCurve | Skipped:
    packet = alert.packet
    return packet.curve if packet.curve is not None else Skipped("abstained", packet.reason or "", packet.detail)


def now_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


UnknownSchemaPolicy = Literal["wait", "dead_letter"]
ReadResult = list[PacketOutcome] | SchemaUnavailableError | DeadLetterCause


class DecodeStage:
    """First stage: messages to alerts.

    Parameters
    ----------
    policy : for messages whose schema cannot be fetched: ``wait``, with all that came after them, or ``dead`` letters.
    max_deliveries : a message delivered more often than this is taken to kill workers, and becomes a dead letter.
    """

    def __init__(
        self,
        reader: MessageReader,
        rules: Mapping[str, TopicRule],
        policy: UnknownSchemaPolicy,
        max_deliveries: int,
        executor: Executor,
        troubles: Troubles,
    ) -> None:
        self._reader, self._rules, self._policy = reader, rules, policy
        self._max_deliveries, self._executor, self._troubles = max_deliveries, executor, troubles

    async def alerts(self, batch: Batch, messages: Sequence[Message]) -> list[Alert]:
        """Return alerts of the messages, in order; those that cannot be read are among the batch's dead."""
        read = await self._read_all(batch, messages)
        alerts: list[Alert] = []
        for message, outcomes in zip(messages, read, strict=True):
            if message.tombstone:
                batch.settle_tombstone(message)
                continue
            if isinstance(outcomes, DeadLetterCause):
                batch.give_up(message, None, outcomes)
                continue
            batch.set_alerts(message, [getattr(outcome, "alert_id", None) or "" for outcome in outcomes])
            for number, outcome in enumerate(outcomes):
                if isinstance(outcome, PacketError):
                    batch.give_up(message, number, DeadLetterCause("decode", outcome.reason, outcome.detail))
                else:
                    alerts.append(Alert(message, number, outcome))
        return alerts

    async def _read_all(self, batch: Batch, messages: Sequence[Message]) -> list[list[PacketOutcome] | DeadLetterCause]:
        """Read all messages, as often as it takes to get their schemas."""
        # By place in the batch: however often some are read again, the order stays.
        read_by_place: dict[int, list[PacketOutcome] | DeadLetterCause] = {}
        while remaining := [place for place in range(len(messages)) if place not in read_by_place]:
            results = await self._read([messages[place] for place in remaining])
            unavailable = [read for read in results if isinstance(read, SchemaUnavailableError)]
            for place, read in zip(remaining, results, strict=True):
                if not isinstance(read, SchemaUnavailableError):
                    read_by_place[place] = read
                elif self._policy == "dead_letter":
                    read_by_place[place] = DeadLetterCause("decode", "schema_unavailable", str(read))
            if unavailable and self._policy == "wait":
                batch.on_wait()
                await self._troubles.wait(
                    "schema registry", str(unavailable[0]), min(m.retry_after for m in unavailable)
                )
        self._troubles.end("schema registry")
        return [read_by_place[place] for place in range(len(messages))]

    async def _read(self, messages: Sequence[Message]) -> list[ReadResult]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: [self._read_one(message) for message in messages])

    def _read_one(self, message: Message) -> ReadResult:
        if message.deliveries > self._max_deliveries:  # before it is read, which may be what kills
            ending = "read: its body is where it was" if message.unread else "done"
            detail = f"delivered {message.deliveries} times and never {ending}"
            return DeadLetterCause("deliver", "too_many_deliveries", detail)
        try:
            rule = rule_for(message.topic, self._rules)
            read = self._reader.read(message.value, message.key, rule, headers=message.headers)
            return read or DeadLetterCause("decode", "empty", "no alert in it")
        except SchemaUnavailableError as error:
            return error
        except Exception as error:  # a bug of ours must cost this message alone, and its dead letter keeps the bytes
            log.exception("a message broke the reader", topic=message.topic, place=message.place)
            return DeadLetterCause("decode", "internal_error", type(error).__name__)


MJD_OF_1970: Final = 40587.0


class Pipeline:
    """Stages that batches from one source pass, several batches at a time.

    Attributes
    ----------
    model : name and version of the default model, for dead letters.

    Parameters
    ----------
    exactly_once : ends batches in transactions; None where alerts are answered at least once.
    """

    def __init__(
        self,
        source: Source,
        stages: tuple[DecodeStage, ClassifyStage, PublishStage],
        accounts: Accounts,
        troubles: Troubles,
        metrics: Metrics,
        model: str,
        exactly_once: ExactlyOnce | None = None,
    ) -> None:
        self._exactly_once = exactly_once
        self._queue = PublishingQueue(source)
        self._source, self._accounts, self._troubles = source, accounts, troubles
        self._decoding, self._classifying, self._publishing = stages
        self._metrics, self.model = metrics, model

    async def handle(self, messages: Sequence[Message]) -> None:
        """Bring messages to an end; what is open when this is cancelled, or fails, is given back to the broker."""
        batch = Batch(messages, self._accounts, now_ms())
        self._queue.enqueue(batch)
        batch.on_wait = lambda: self._queue.leave(batch)
        try:
            await self._handle(batch)
        finally:
            self._queue.leave(batch)  # else those behind a batch that failed would wait for ever
            batch.return_all()

    async def _handle(self, batch: Batch) -> None:
        # Before anything is waited for: batches end in the order in which they were taken.
        turn = self._exactly_once.next_turn() if self._exactly_once else None
        self._watch_arrival(batch)
        results = await self._results(batch)
        if self._exactly_once and turn:
            with self._timed("publish"):
                self._watch_ages(await self._exactly_once.conclude(batch, results, turn, self.model))
        else:
            await self._publish_at_least_once(batch, results)

    async def _results(self, batch: Batch) -> list[Result]:
        """Read and classify; a message that breaks a stage in a way that nobody foresaw is given up."""
        try:
            return await self._read_and_classify(batch, batch.messages)
        except (EngineError, UnbalancedError):
            raise  # faults of this process: no message is to blame, and none may be given up for them
        except Exception as error:
            log.exception("a batch broke a stage", messages=len(batch.messages), error=type(error).__name__)
        batch.dead.clear()  # all are read again, one by one, and die again where they have to
        results: list[Result] = []
        for message in batch.messages:
            try:
                results += await self._read_and_classify(batch, [message])
            except (EngineError, UnbalancedError):
                raise
            except Exception as error:
                batch.give_up(
                    message, None, DeadLetterCause("worker", "internal_error", f"{type(error).__name__}: {error}")
                )
        return results

    async def _read_and_classify(self, batch: Batch, messages: Sequence[Message]) -> list[Result]:
        with self._timed("decode"):
            alerts = await self._decoding.alerts(batch, messages)
        with self._timed("classify"):
            return await self._classifying.results(batch, alerts)

    async def _publish_at_least_once(self, batch: Batch, results: Sequence[Result]) -> None:
        """Publish, write dead letters, acknowledge: at least once, in parts where the source has a commit window."""
        # Before its turn comes, so that those behind it do not wait for that.
        encoded = await self._publishing.encode(results)

        async def publish_part(part: Batch) -> None:
            await self._publish_part(part, [one for one in results if part.has(one.message)], encoded)

        await self._queue.publish_in_turn(batch, publish_part)

    async def _publish_part(self, batch: Batch, results: Sequence[Result], encoded: EncodedRecords) -> None:
        self._return_reassigned(batch)  # their new owners answer them: fewer are answered twice
        owned_results = [result for result in results if self._source.owns(result.message)]
        with self._timed("publish"):
            published_results = await self._publishing.publish(batch, owned_results, encoded)
        batch.settle_answers((r.message, r.number, r.outcome.status, r.outcome.reason) for r in published_results)
        self._watch_ages(published_results)
        if batch.dead:
            with self._timed("dead_letters"):
                batch.settle_dead_letters(await self._publishing.write_dead_letters(batch, self.model))
        self._return_reassigned(batch)  # partitions may have gone while the sink was waited for
        batch.check()
        await self._acknowledge(batch)

    def _return_reassigned(self, batch: Batch) -> None:
        """Give back messages whose partitions others have by now: they answer them."""
        for message in batch.messages:
            if not self._source.owns(message):
                batch.return_message(message)

    async def _acknowledge(self, batch: Batch) -> None:
        for pause in backoff():
            try:
                await asyncio.to_thread(self._source.acknowledge, batch.messages)
                break
            except TransientError as error:
                await self._troubles.wait("source", str(error), pause)
        self._troubles.end("source")

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = monotonic()
        yield
        self._metrics.stream_seconds.labels(stage).observe(monotonic() - started)

    def _watch_arrival(self, batch: Batch) -> None:
        for message in batch.messages:
            if (timestamp_ms := milliseconds(message.timestamp_ms)) is not None:
                self._metrics.stream_broker_age.observe(max(0.0, (batch.received_ms - timestamp_ms) / 1000))

    def _watch_ages(self, results: Sequence[Result]) -> None:
        """Tell the metrics the age of each answered alert; a replay says nothing about the speed of the service."""
        if self._source.finite:
            return
        now = now_ms() / 1000
        for result in results:
            if result.packet.mjd is not None:
                age = max(0.0, now - unix_seconds(result.packet.mjd))
                self._metrics.stream_alert_age.labels(result.packet.survey).observe(age)


def unix_seconds(mjd_tai: float) -> float:
    """Return seconds since 1970, UTC, of an MJD in TAI."""
    offset = float(tai_minus_utc(np.array([mjd_tai]))[0])
    return (mjd_tai - MJD_OF_1970) * SECONDS_PER_DAY - offset
