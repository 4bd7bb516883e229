"""Results to the sink and deaths to the dead letters: repeated until acknowledged.

A record that the sink refuses for good becomes a dead letter. A letter that is refused, as it is too large, is
shortened. It has nowhere else to go: it is tried until it is taken, and its batch waits, so that a full disk stops the
worker instead of costing alerts.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

import structlog

from service.observe.metrics import Metrics
from service.settings import SinkFormat
from service.stream.batches import Batch
from service.stream.formats import record_of
from service.stream.letters import Death, is_shortened, letter, shortened
from service.stream.messages import Message, PermanentError, Record, Result, Sink, TransientError
from service.stream.retries import Troubles, pauses

log = structlog.get_logger(__name__)


class Publishing:
    """The last stage."""

    def __init__(
        self, sink: Sink, letters: Sink, form: SinkFormat, executor: Executor, troubles: Troubles, metrics: Metrics
    ) -> None:
        self._sink, self._letters, self._form = sink, letters, form
        self._executor, self._troubles, self._metrics = executor, troubles, metrics

    async def publish(self, batch: Batch, results: Sequence[Result]) -> list[Result]:
        """Publish; returns results acknowledged, or without words in the format. Others are the batch's deaths."""
        loop = asyncio.get_running_loop()
        encoded = await loop.run_in_executor(self._executor, lambda: [self._encode(result) for result in results])
        records, owners, silent = [], [], []
        for result, record in zip(results, encoded, strict=True):
            if isinstance(record, Record):
                records.append(record)
                owners.append(result)
            elif isinstance(record, Death):
                batch.bury(result.message, result.number, record)
            else:
                silent.append(result)
        refusals = await self._send(self._sink, records, "sink")
        for place, error in refusals.items():
            batch.bury(owners[place].message, owners[place].number, Death("publish", "refused", str(error)))
        return silent + [owner for place, owner in enumerate(owners) if place not in refusals]

    def _encode(self, result: Result) -> Record | Death | None:
        try:
            return record_of(result, self._form)
        except PermanentError as error:
            return Death("encode", "not_expressible", str(error))
        except Exception as error:  # a bug of ours must cost this alert alone
            log.exception("a result broke its format", alert=result.packet.alert_id)
            return Death("encode", "internal_error", type(error).__name__)

    async def bury(self, batch: Batch, model: str) -> list[Message]:
        """Write the letters of a batch's deaths, one for each message; returns the messages whose letters are kept."""
        deaths = {(one.message.topic, one.message.place): one for one in reversed(batch.deaths)}
        left = [(one.message, letter(one.message, one.death, model)) for one in deaths.values()]
        kept: list[Message] = []
        for pause in pauses():
            refusals = await self._send(self._letters, [record for _, record in left], "dead letters")
            taken = [one for place, one in enumerate(left) if place not in refusals]
            kept += [message for message, _ in taken]
            self._metrics.stream_shortened.inc(sum(is_shortened(record) for _, record in taken))
            refused = [left[place] for place in refusals]
            left = [(message, shortened(record)) for message, record in refused]
            if not left:
                break
            log.warning("a dead letter was refused", place=left[0][0].place, reason=str(next(iter(refusals.values()))))
            if left == refused:  # shortened before
                await self._troubles.wait("dead letters", str(next(iter(refusals.values()))), pause)
        return kept

    async def _send(self, sink: Sink, records: Sequence[Record], step: str) -> dict[int, PermanentError]:
        """Publish until every record is acknowledged or refused for good; returns the refusals, by place."""
        refusals: dict[int, PermanentError] = {}
        left = list(range(len(records)))
        for pause in pauses():
            if not left:
                break
            verdicts = await asyncio.to_thread(_publish, sink, [records[place] for place in left])
            told = dict(zip(left, verdicts, strict=True))
            refusals |= {place: verdict for place, verdict in told.items() if isinstance(verdict, PermanentError)}
            left = [place for place, verdict in told.items() if verdict is not None and place not in refusals]
            if left:
                await self._troubles.wait(step, str(told[left[0]]), pause)
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
        middle = len(records) // 2
        return _publish(sink, records[:middle]) + _publish(sink, records[middle:])
