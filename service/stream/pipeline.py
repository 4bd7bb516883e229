"""The way of a batch: decode, classify, publish, bury the dead, and tell the source that it is done.

Whatever a message makes of a stage costs that message alone: a batch that breaks one is read again message by message,
and who breaks it alone becomes a dead letter. A batch is told to the source when every alert of it is settled, and not
before: an alert without an end is an error (:class:`~service.stream.batches.LostAlertError`), after which the worker
stops.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Final

import numpy as np
import structlog

from models.limits import milliseconds
from models.units import SECONDS_PER_DAY, tai_minus_utc
from service.engine.batch import EngineFailure
from service.observe.metrics import Metrics
from service.stream.batches import Accounts, Batch, UnbalancedError
from service.stream.classifying import Classifying, now_ms
from service.stream.decoding import Decoding
from service.stream.exactly_once import ExactlyOnce
from service.stream.letters import Death
from service.stream.messages import Message, Result, Source, TransientError
from service.stream.publishing import Publishing
from service.stream.retries import Troubles, pauses

MJD_OF_1970: Final = 40587.0

log = structlog.get_logger(__name__)


class Pipeline:
    """Way of batches from one source to the end, several at a time.

    Attributes
    ----------
    model : name and version of the default model, for dead letters.

    Parameters
    ----------
    exactly_once : how batches end where they end in transactions.
    """

    def __init__(
        self,
        source: Source,
        stages: tuple[Decoding, Classifying, Publishing],
        accounts: Accounts,
        troubles: Troubles,
        metrics: Metrics,
        model: str,
        exactly_once: ExactlyOnce | None = None,
    ) -> None:
        self._exactly_once = exactly_once
        self._source, self._accounts, self._troubles = source, accounts, troubles
        self._decoding, self._classifying, self._publishing = stages
        self._metrics, self.model = metrics, model

    async def handle(self, messages: Sequence[Message]) -> None:
        """Bring messages to an end; what is open when this is cancelled, or fails, is given back to the broker."""
        batch = Batch(messages, self._accounts, now_ms())
        try:
            await self._handle(batch)
        finally:
            batch.give_back()

    async def _handle(self, batch: Batch) -> None:
        turn = self._exactly_once.turn() if self._exactly_once else None
        self._watch_arrival(batch)
        results = await self._results(batch)
        if self._exactly_once and turn:
            with self._timed("publish"):
                self._watch_ages(await self._exactly_once.conclude(batch, results, turn, self.model))
        else:
            await self._conclude(batch, results)

    async def _results(self, batch: Batch) -> list[Result]:
        """Read and classify; a message that breaks a stage in a way that nobody foresaw is given up."""
        try:
            return await self._read_and_classify(batch, batch.taken)
        except (EngineFailure, UnbalancedError):
            raise
        except Exception as error:
            log.exception("a batch broke a stage", messages=len(batch.taken), error=type(error).__name__)
        batch.deaths.clear()
        results: list[Result] = []
        for message in batch.taken:
            try:
                results += await self._read_and_classify(batch, [message])
            except (EngineFailure, UnbalancedError):
                raise
            except Exception as error:
                batch.bury(message, None, Death("worker", "internal_error", f"{type(error).__name__}: {error}"))
        return results

    async def _read_and_classify(self, batch: Batch, messages: Sequence[Message]) -> list[Result]:
        with self._timed("decode"):
            alerts = await self._decoding.alerts(batch, messages)
        with self._timed("classify"):
            return await self._classifying.results(batch, alerts)

    async def _conclude(self, batch: Batch, results: Sequence[Result]) -> None:
        """Publish, bury, and tell the source: at least once."""
        self._let_go_of_others(batch)
        with self._timed("publish"):
            answered = await self._publishing.publish(batch, [r for r in results if self._source.holds(r.message)])
        batch.answered((r.message, r.number, r.outcome.status, r.outcome.reason) for r in answered)
        self._watch_ages(answered)
        if batch.deaths:
            with self._timed("bury"):
                batch.buried(await self._publishing.bury(batch, self.model))
        self._let_go_of_others(batch)
        batch.check()
        await self._done(batch)

    def _let_go_of_others(self, batch: Batch) -> None:
        """Give back messages whose partitions others have by now: they answer them."""
        for message in batch.taken:
            if not self._source.holds(message):
                batch.let_go(message)

    async def _done(self, batch: Batch) -> None:
        for pause in pauses():
            try:
                await asyncio.to_thread(self._source.done, batch.taken)
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
        for message in batch.taken:
            if (stated := milliseconds(message.timestamp_ms)) is not None:
                self._metrics.stream_broker_age.observe(max(0.0, (batch.received_ms - stated) / 1000))

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
