"""Classification of a batch: the data plane, asked again where that may help, halved where a batch breaks it.

Each alert is answered from the history in its own packet, also when a batch holds several alerts of one object.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import structlog

from models.lightcurve import LightCurve
from service.dataplane import AskOptions, Outcome, Refusal
from service.engine.batch import EngineClosed, EngineDead, Overloaded, RunAborted
from service.registry.live import Item, Lease, ModelChooser, ask_each, held
from service.registry.repository import ModelRepository
from service.stream.batches import Alert, Batch
from service.stream.letters import Death
from service.stream.messages import Result
from service.stream.retries import Troubles, pauses

PASSING: Final = ("out_of_memory", "run_hung", "deadline_exceeded")
"""Reasons of failed light curves that a later try may not meet again."""
TRIES: Final = 4

log = structlog.get_logger(__name__)


class Classifying:
    """The second stage."""

    def __init__(self, models: ModelRepository, troubles: Troubles, prior: str = "") -> None:
        self._models, self._troubles, self._prior = models, troubles, prior

    async def results(self, batch: Batch, alerts: Sequence[Alert]) -> list[Result]:
        """Return results of the alerts that have one; the others are among the batch's deaths.

        Raises
        ------
        EngineClosed, EngineDead
            When the process can classify no more.
        """
        results: list[Result] = []
        left = list(alerts)
        for attempt, pause in zip(range(TRIES), pauses(), strict=False):
            results += await self._ask(batch, left)
            left = self._failed(batch, results, last=attempt == TRIES - 1)
            results = [result for result in results if result.outcome.status in ("classified", "abstained")]
            if not left:
                break
            await self._troubles.wait("inference", f"{len(left)} light curves failed", pause)
        self._troubles.end("inference")
        return results

    def _failed(self, batch: Batch, results: Sequence[Result], last: bool) -> list[Alert]:
        """Return alerts to ask about again; those whose failure will not pass are given up."""
        again = []
        for result in results:
            outcome = result.outcome
            if outcome.status in ("classified", "abstained"):
                continue
            if outcome.reason in PASSING and not last:
                again.append(Alert(result.message, result.number, result.packet))
            else:
                batch.bury(result.message, result.number, Death("classify", outcome.reason, outcome.detail))
        return again

    async def _ask(self, batch: Batch, alerts: Sequence[Alert]) -> list[Result]:
        """Ask about all alerts together; a batch that breaks the data plane is halved until one alert is left."""
        if not alerts:
            return []
        try:
            leases, items = self._led(alerts)
            with held(dict.fromkeys(leases)):
                outcomes = await self._patient(alerts, leases, items)
        except (EngineClosed, EngineDead, asyncio.CancelledError):
            raise
        except Exception as error:
            if len(alerts) == 1:
                alert = alerts[0]
                log.exception("an alert broke the data plane", alert=alert.packet.alert_id)
                batch.bury(alert.message, alert.number, Death("classify", "internal_error", type(error).__name__))
                return []
            middle = len(alerts) // 2
            return await self._ask(batch, alerts[:middle]) + await self._ask(batch, alerts[middle:])
        return [
            Result(alert.message, alert.number, alert.packet, outcome, lease, batch.received_ms, self._prior)
            for alert, outcome, lease in zip(alerts, outcomes, leases, strict=True)
        ]

    async def _patient(
        self, alerts: Sequence[Alert], leases: Sequence[Lease[LightCurve]], items: Sequence[Item]
    ) -> list[Outcome]:
        """Ask until there is room; back-pressure, not failure."""
        options = AskOptions(surveys=[alert.packet.survey for alert in alerts])
        for pause in pauses():
            try:
                return await ask_each(leases, items, options)
            except Overloaded as error:
                await asyncio.sleep(min(error.retry_after, 1.0))
            except RunAborted as error:
                await self._troubles.wait("inference", str(error), pause)
        raise AssertionError("pauses() never ends")

    def _led(self, alerts: Sequence[Alert]) -> tuple[list[Lease[LightCurve]], list[Item]]:
        """Return the model for each alert, by survey and, where a canary has a share, by object; and what to ask."""
        chooser = ModelChooser(self._models.classifier)
        led = [chooser.choose(_item(alert), survey=alert.packet.survey, key=alert.packet.object_id) for alert in alerts]
        return [lease for lease, _ in led], [item for _, item in led]


def _item(alert: Alert) -> LightCurve | Refusal:
    packet = alert.packet
    return packet.curve if packet.curve is not None else Refusal("abstained", packet.reason or "", packet.detail)


def now_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000
