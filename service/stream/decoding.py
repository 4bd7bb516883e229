"""Decoding of a batch, in a thread; a message that cannot be read is given up, and its neighbours are not."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Literal

import structlog

from models.alerts.envelopes import MessageReader, TopicRule, rule_for
from models.alerts.packet import PacketError
from models.alerts.reader import PacketOutcome
from models.alerts.schema_registry import SchemaUnavailableError
from service.stream.batches import Alert, Batch
from service.stream.letters import Death
from service.stream.messages import Message
from service.stream.retries import Troubles

Policy = Literal["wait", "dead"]
Read = list[PacketOutcome] | SchemaUnavailableError | Death

log = structlog.get_logger(__name__)


class Decoding:
    """The first stage.

    Parameters
    ----------
    policy : what becomes of a message whose schema cannot be fetched: it waits, and what came after it, or dies.
    max_deliveries : a message handed out more often than this has killed workers, and dies.
    """

    def __init__(
        self,
        reader: MessageReader,
        rules: Mapping[str, TopicRule],
        policy: Policy,
        max_deliveries: int,
        executor: Executor,
        troubles: Troubles,
    ) -> None:
        self._reader, self._rules, self._policy = reader, rules, policy
        self._max_deliveries, self._executor, self._troubles = max_deliveries, executor, troubles

    async def alerts(self, batch: Batch, messages: Sequence[Message]) -> list[Alert]:
        """Return alerts of the messages, in order; those that cannot be read are among the batch's deaths."""
        read = await self._patient(messages)
        alerts: list[Alert] = []
        for message, outcomes in zip(messages, read, strict=True):
            if isinstance(outcomes, Death):
                batch.bury(message, None, outcomes)
                continue
            batch.hold(message, [getattr(outcome, "alert_id", None) or "" for outcome in outcomes])
            for number, outcome in enumerate(outcomes):
                if isinstance(outcome, PacketError):
                    batch.bury(message, number, Death("decode", outcome.reason, outcome.detail))
                else:
                    alerts.append(Alert(message, number, outcome))
        return alerts

    async def _patient(self, messages: Sequence[Message]) -> list[list[PacketOutcome] | Death]:
        """Read all messages, as often as it takes to get their schemas."""
        done: dict[int, list[PacketOutcome] | Death] = {}
        while left := [place for place in range(len(messages)) if place not in done]:
            found = await self._read([messages[place] for place in left])
            missing = [read for read in found if isinstance(read, SchemaUnavailableError)]
            for place, read in zip(left, found, strict=True):
                if not isinstance(read, SchemaUnavailableError):
                    done[place] = read
                elif self._policy == "dead":
                    done[place] = Death("decode", "schema_unavailable", str(read))
            if missing and self._policy == "wait":
                await self._troubles.wait("schema registry", str(missing[0]), min(m.retry_after for m in missing))
        self._troubles.end("schema registry")
        return [done[place] for place in range(len(messages))]

    async def _read(self, messages: Sequence[Message]) -> list[Read]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: [self._read_one(message) for message in messages])

    def _read_one(self, message: Message) -> Read:
        if message.deliveries > self._max_deliveries:
            detail = f"delivered {message.deliveries} times and never done"
            return Death("deliver", "too_many_deliveries", detail)
        try:
            read = self._reader.read(message.value, message.key, rule_for(message.topic, self._rules))
            return read or Death("decode", "empty", "no alert in it")
        except SchemaUnavailableError as error:
            return error
        except Exception as error:  # a bug of ours must cost this message alone, and its letter keeps the bytes
            log.exception("a message broke the reader", topic=message.topic, place=message.place)
            return Death("decode", "internal_error", type(error).__name__)
