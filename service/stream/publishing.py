"""Results to the sink, and what was given up to the dead letters: repeated until acknowledged, or in transactions.

A record that the sink refuses for good becomes a dead letter. A dead letter that is refused, as it is too large, is
shortened. It has nowhere else to go: it is tried until it is taken, and its batch waits, so that a full disk stops the
worker instead of costing alerts.

Exactly once, from Kafka to Kafka (:class:`ExactlyOnce`): batches end in transactions, one after another, in the order
they were taken. A transaction holds the results of a batch, its dead letters where they go to the same cluster, and the
offsets after it. One that fails is aborted and tried again from memory, as long as the partitions are ours. Of
partitions that were taken away nothing is published: their messages are given back, and whoever gets them begins at the
committed offset. Batches are decoded and classified several at a time all the same; only their ends wait for each
other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from service.observe.metrics import Metrics
from service.settings import SinkFormat
from service.stream.batches import Batch, DeadAlert, identity
from service.stream.formats import record_of
from service.stream.messages import (
    PIECE,
    GivenUp,
    Message,
    PermanentError,
    Record,
    Result,
    Sink,
    Source,
    TransientError,
    Troubles,
    dead_letter,
    is_shortened,
    pauses,
    shortened,
)

log = structlog.get_logger(__name__)


Encoded = Mapping[Result, Record | GivenUp | None]
"""Records of results; the reason where one cannot be told in the format, None where the format has no words for it."""


class Publishing:
    """The last stage."""

    def __init__(
        self, sink: Sink, dead_letters: Sink, form: SinkFormat, executor: Executor, troubles: Troubles, metrics: Metrics
    ) -> None:
        self._sink, self._dead_letters, self._form = sink, dead_letters, form
        self._executor, self._troubles, self._metrics = executor, troubles, metrics

    async def encode(self, results: Sequence[Result]) -> Encoded:
        """Return what is to be published of each result."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: {result: self._encode(result) for result in results})

    async def publish(self, batch: Batch, results: Sequence[Result], encoded: Encoded | None = None) -> list[Result]:
        """Publish; returns results acknowledged, or without words in the format. Others are among the batch's dead.

        Parameters
        ----------
        encoded : of these results and perhaps more, where that was done before.
        """
        encoded = await self.encode(results) if encoded is None else encoded
        records, owners, silent = [], [], []
        for result in results:
            record = encoded[result]
            if isinstance(record, Record):
                records.append(record)
                owners.append(result)
            elif isinstance(record, GivenUp):
                batch.give_up(result.message, result.number, record)
            else:
                silent.append(result)
        refusals = await self._send(self._sink, records, "sink")
        for place, error in refusals.items():
            batch.give_up(owners[place].message, owners[place].number, GivenUp("publish", "refused", str(error)))
        return silent + [owner for place, owner in enumerate(owners) if place not in refusals]

    def _encode(self, result: Result) -> Record | GivenUp | None:
        try:
            return record_of(result, self._form)
        except PermanentError as error:
            return GivenUp("encode", "not_expressible", str(error))
        except Exception as error:  # a bug of ours must cost this alert alone
            log.exception("a result broke its format", alert=result.packet.alert_id)
            return GivenUp("encode", "internal_error", type(error).__name__)

    async def write_dead_letters(self, batch: Batch, model: str) -> list[Message]:
        """Write a batch's dead letters, one for each message; returns the messages of those acknowledged."""
        # One for each message, with its first reason: of equal keys a dictionary keeps the last that it is given.
        dead = {identity(one.message): one for one in reversed(batch.dead)}
        left = [(one.message, dead_letter(one.message, one.given_up, model)) for one in dead.values()]
        kept: list[Message] = []
        for pause in pauses():
            refusals = await self._send(self._dead_letters, [record for _, record in left], "dead letters")
            taken = [one for place, one in enumerate(left) if place not in refusals]
            kept += [message for message, _ in taken]
            self._metrics.stream_shortened.inc(sum(is_shortened(record) for _, record in taken))
            refused = [left[place] for place in refusals]
            left = [(message, shortened(record)) for message, record in refused]  # too large, most likely
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


PATIENCE_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.005


class Line:
    """Order in which batches are published where a source has room for so many answers until it can commit.

    What is answered cannot be committed before everything taken before it is done. So batches are let through in the
    order in which they were taken, in parts, each once there is room for it; a killed worker has answered no more than
    that room without a commit. A batch that waits for something outside steps aside (:meth:`step_aside`), and where
    there is no room for :data:`PATIENCE_SECONDS`, as nobody takes commits, alerts are answered all the same.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._bounded = source.room() is not None
        self._waiting: dict[Batch, asyncio.Event] = {}  # in the order taken; the first one's is set
        self._let_through = 0
        self._patience = PATIENCE_SECONDS

    def join(self, batch: Batch) -> None:
        """Take the last place; to be called in the order in which batches are taken."""
        if self._bounded:
            self._waiting[batch] = asyncio.Event()
            self._call_first()

    def step_aside(self, batch: Batch) -> None:
        """Give up a batch's place, if it has one still: those behind it need not wait for it."""
        if (place := self._waiting.pop(batch, None)) is not None:
            place.set()
            self._call_first()

    def _call_first(self) -> None:
        for place in self._waiting.values():
            place.set()
            break

    async def let_through(self, batch: Batch, publish: Callable[[Batch], Awaitable[None]]) -> None:
        """Have a batch published in its turn: in parts, side by side, where there is a bound, and whole elsewhere.

        Parameters
        ----------
        publish : brings a part to an end, which fills the room until it returns. The others end with the first to fail.
        """
        if (place := self._waiting.get(batch)) is not None:
            await place.wait()
        parts = batch.parts(PIECE) if self._bounded else [batch]
        try:
            async with asyncio.TaskGroup() as under_way:
                for part in parts:
                    await self._room_for(len(part.taken))
                    self._let_through += len(part.taken)
                    under_way.create_task(self._publish(part, publish))
                self.step_aside(batch)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _publish(self, part: Batch, publish: Callable[[Batch], Awaitable[None]]) -> None:
        try:
            await publish(part)
        finally:
            self._let_through -= len(part.taken)

    async def _room_for(self, count: int) -> None:
        end = monotonic() + self._patience
        while (lacks := not self._has_room_for(count)) and monotonic() < end:
            await asyncio.sleep(LOOK_SECONDS)
        self._patience = 0.0 if lacks else PATIENCE_SECONDS

    def _has_room_for(self, count: int) -> bool:
        room = self._source.room()
        return room is None or self._let_through + count <= room


if TYPE_CHECKING:  # confluent_kafka is there only where a worker needs it
    from service.stream.kafka.sink import KafkaTransactions
    from service.stream.kafka.source import Claim, KafkaSource

RESERVE_SECONDS: Final = 0.5
BATCHES_AHEAD: Final = 4
"""Batches under way beyond which no more are taken: the slower the transactions, the larger the batches then are."""


class Turn(NamedTuple):
    """Turn of a batch to end, by which the next one learns that it has. Behind a batch that failed, none passes."""

    before: asyncio.Event
    after: asyncio.Event


class Doubtful(NamedTuple):
    """Content of a transaction whose commit was asked for and not answered: it may have come to be.

    Attributes
    ----------
    messages : those of its batch that were still ours. The others come again, and must not be told to be done.
    """

    messages: list[Message]
    answered: list[Result]
    dead: list[DeadAlert]
    dead_lettered: list[Message]


class ExactlyOnce:
    """End of batches in transactions."""

    def __init__(
        self, source: "KafkaSource", transactions: "KafkaTransactions", publishing: Publishing, troubles: Troubles
    ) -> None:
        self._source, self._transactions = source, transactions
        self._publishing, self._troubles = publishing, troubles
        self._last = asyncio.Event()
        self._last.set()
        self._doubtful: Doubtful | None = None

    def turn(self) -> Turn:
        """Return the next turn; to be asked for in the order in which batches are taken."""
        before, self._last = self._last, asyncio.Event()
        return Turn(before, self._last)

    async def conclude(self, batch: Batch, results: Sequence[Result], turn: Turn, model: str) -> list[Result]:
        """Publish, write dead letters and commit, as often as it takes; returns what was answered.

        Who is cancelled while a commit is in doubt keeps the time reserved: no journal may be written then, as it would
        say that the group reads on from before a transaction that may have come to be.
        """
        await turn.before.wait()
        while not await self._reserve():
            pass
        try:
            answered = await self._until_committed(batch, results, model)
        finally:
            if self._doubtful is None:
                self._source.release()
        turn.after.set()
        return answered

    async def _reserve(self) -> bool:
        """Try to begin a transaction's time; what a thread gets for somebody who is cancelled is given back."""
        asked = asyncio.ensure_future(asyncio.to_thread(self._source.reserve, RESERVE_SECONDS))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            await asyncio.wait([asked])
            if asked.result():
                self._source.release()
            raise

    async def _until_committed(self, batch: Batch, results: Sequence[Result], model: str) -> list[Result]:
        for pause in pauses():
            try:
                answered = await self._attempt(batch, results, model)
            except TransientError as error:
                await asyncio.to_thread(self._transactions.abort)
                await self._troubles.wait("transaction", str(error), pause)
            else:
                break
        self._troubles.end("transaction")
        return answered

    async def _attempt(self, batch: Batch, results: Sequence[Result], model: str) -> list[Result]:
        """Try one transaction."""
        await asyncio.to_thread(self._transactions.begin)
        claim = await asyncio.to_thread(self._source.claim, batch.taken)
        # The last commit was asked for and not answered. The group's offsets tell: if they have moved, it came to be.
        if (doubtful := self._doubtful) is not None:
            if await asyncio.to_thread(self._source.committed, claim):
                batch.dead = doubtful.dead
                self._settle(batch, doubtful)
                await asyncio.to_thread(self._transactions.abort)
                return doubtful.answered
            self._doubtful = None
        for message in batch.taken:
            if message.token not in claim.owned:
                batch.let_go(message)
        dead = list(batch.dead)
        try:
            content = await self._publish(batch, results, claim, model)
            await _unbroken(self._commit(batch, content, claim))
        except TransientError:
            batch.dead = dead  # what was refused is refused again by the next try
            raise
        return content.answered

    async def _publish(self, batch: Batch, results: Sequence[Result], claim: "Claim", model: str) -> Doubtful:
        messages = [message for message in batch.taken if message.token in claim.owned]
        answered = await self._publishing.publish(batch, [r for r in results if r.message.token in claim.owned])
        dead_lettered = await self._publishing.write_dead_letters(batch, model) if batch.dead else []
        batch.check(((r.message, r.number) for r in answered), dead_lettered)
        return Doubtful(messages, answered, list(batch.dead), dead_lettered)

    async def _commit(self, batch: Batch, content: Doubtful, claim: "Claim") -> None:
        self._doubtful = content  # from the moment it is asked for, until it is answered
        await asyncio.to_thread(self._transactions.commit, claim.positions, claim.group)
        self._settle(batch, content)

    def _settle(self, batch: Batch, content: Doubtful) -> None:
        batch.answered((r.message, r.number, r.outcome.status, r.outcome.reason) for r in content.answered)
        batch.dead_lettered(content.dead_lettered)
        batch.check()
        self._source.done(content.messages)
        self._doubtful = None


async def _unbroken(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end even when cancelled: what is being committed must not be told to be given back."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if (error := task.exception()) is not None:
            log.warning("a commit failed while the worker stopped", reason=str(error))
        raise
