"""Alerts from Kafka, by a consumer group.

Offsets are stored only for messages that are done and have no unfinished one before them; librdkafka commits what is
stored every second, at a rebalance and at the end. When partitions are taken away the worker first finishes what it
has of them, for ``revoke_wait`` seconds at most. Whatever is unfinished then is the next owner's.

In transactions it commits nothing itself: the producer commits what :meth:`KafkaSource.claim` says.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from service.stream.addresses import Address
from service.stream.kafka_config import GROUP, made, properties
from service.stream.messages import Headers, Message, TransientError
from service.stream.offsets import Offsets, Token

log = structlog.get_logger(__name__)

REVOKE_WAIT_SECONDS: Final = 20.0
COMMITTED_SECONDS: Final = 30.0
OWN: Final[Mapping[str, Any]] = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": True,
    "auto.commit.interval.ms": 1000,
    "enable.auto.offset.store": False,
    "partition.assignment.strategy": "cooperative-sticky",
    "queued.max.messages.kbytes": 32768,  # all partitions together: what waits in memory, whatever the lag
    "fetch.message.max.bytes": 4 << 20,
    "max.poll.interval.ms": 300_000,
    "enable.partition.eof": False,
    "topic.metadata.refresh.interval.ms": 30_000,  # a nightly topic begins to exist while we wait for it
    "allow.auto.create.topics": False,
}
FIXED: Final = ("enable.auto.commit", "enable.auto.offset.store")  # what the promise to lose nothing rests on


class Claim(NamedTuple):
    """What a transaction may hold and commit.

    Attributes
    ----------
    owned : messages whose partitions are still this member's.
    positions : where those partitions are to be read on from.
    group : the member and its generation; the broker refuses a commit in the name of a former one.
    """

    owned: frozenset[Token]
    positions: list[TopicPartition]
    group: object


class KafkaSource:
    """A member of a consumer group.

    Parameters
    ----------
    extra : properties from the settings' file.
    transactional : whether a producer commits the offsets.
    """

    finite = False

    def __init__(
        self,
        address: Address,
        extra: Mapping[str, Any],
        revoke_wait: float = REVOKE_WAIT_SECONDS,
        transactional: bool = False,
    ) -> None:
        group = address.only("group").options.get("group", GROUP)
        config = properties(address, extra, {**OWN, "group.id": group})
        config |= {name: OWN[name] for name in FIXED}
        if transactional:  # committed offsets are read only after the transaction that is about to move them
            config |= {"enable.auto.commit": False, "isolation.level": "read_committed"}
        self._offsets = Offsets()
        self._revoke_wait, self._transactional = revoke_wait, transactional
        self._resting, self._stray = False, list[Message]()
        self._consumer = made(Consumer, {**config, "error_cb": _log_error})
        self._consumer.subscribe(
            list(address.names), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Up to ``limit`` messages, waiting only for the first."""
        self._wake()
        found, self._stray = self._stray, []
        try:
            if not found:
                found = self._consume(1, timeout)
            if found and limit > len(found):
                found += self._consume(limit - len(found), 0)
        except KafkaException as error:
            if not found:  # what has been taken must be answered: offsets after it will be stored
                raise TransientError(str(error)) from error
        return found

    def _consume(self, limit: int, timeout: float) -> list[Message]:
        return [self._message(one) for one in self._consumer.consume(limit, timeout) if _is_data(one)]

    def rest(self) -> None:
        """Take nothing, but stay a member of the group: a consumer that does not poll for minutes is expelled."""
        with contextlib.suppress(KafkaException):  # partitions taken away meanwhile
            if not self._resting:
                self._resting = True
                self._consumer.pause(self._consumer.assignment())
            stray = self._consume(1, 0)  # of a partition that has come since
            self._stray += stray
            if stray:
                self._consumer.pause(self._consumer.assignment())

    def _wake(self) -> None:
        if self._resting:
            self._resting = False
            with contextlib.suppress(KafkaException):
                self._consumer.resume(self._consumer.assignment())

    def _message(self, message: KafkaMessage) -> Message:
        topic, partition, offset = str(message.topic()), int(message.partition() or 0), int(message.offset() or 0)
        kind, timestamp = message.timestamp()
        return Message(
            topic=topic,
            place=f"{partition}:{offset}",
            value=_bytes(message.value()) or b"",
            key=_bytes(message.key()),
            headers=headers_of(message),
            timestamp_ms=timestamp if kind else None,
            token=self._offsets.take((topic, partition), offset),
        )

    def done(self, messages: Sequence[Message]) -> None:
        """Store the offsets before which everything is done."""
        tokens = [message.token for message in messages if isinstance(message.token, Token)]
        moved = self._offsets.finish(tokens)
        if self._transactional:
            return
        for (topic, partition), offset in moved.items():
            with contextlib.suppress(KafkaException):  # _STATE: the partition has been taken away since
                self._consumer.store_offsets(offsets=[TopicPartition(topic, partition, offset)])

    def claim(self, messages: Sequence[Message]) -> Claim:
        """What of these messages may be committed now.

        The generation is asked for first: partitions that are lost after the question are lost to a later one.
        """
        group = self._consumer.consumer_group_metadata()
        owned, ahead = self._offsets.ahead(m.token for m in messages if isinstance(m.token, Token))
        return Claim(owned, [TopicPartition(*partition, offset) for partition, offset in ahead.items()], group)

    def committed(self, claim: Claim) -> bool:
        """Whether the group already reads on from where the claim ends. Raises TransientError."""
        try:
            found = self._consumer.committed(
                [TopicPartition(p.topic, p.partition) for p in claim.positions], COMMITTED_SECONDS
            )
        except KafkaException as error:
            raise TransientError(str(error)) from error
        return bool(found) and [p.offset for p in found] == [p.offset for p in claim.positions]

    def lag(self) -> dict[str, int]:
        """Messages behind the end of each topic, as far as the consumer has heard of it without asking."""
        lags: dict[str, int] = {}
        with contextlib.suppress(KafkaException, RuntimeError):
            for position in self._consumer.position(self._consumer.assignment()):
                low, high = self._consumer.get_watermark_offsets(position, cached=True) or (-1, -1)
                read = position.offset if position.offset >= 0 else low
                if high >= 0 and position.topic is not None:
                    lags[position.topic] = lags.get(position.topic, 0) + max(0, high - max(read, 0))
        return lags

    def close(self) -> None:
        """Commit what is stored and leave the group; a static member keeps its partitions until its time is over."""
        self._offsets.clear()  # whoever is unfinished now has been given up: nobody need wait for it
        self._consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        log.info("partitions assigned", partitions=_names(partitions))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        mine = [(str(p.topic), p.partition) for p in partitions]
        idle = self._offsets.wait_idle(mine, self._revoke_wait)
        log.info("partitions taken away", partitions=_names(partitions), finished=idle)
        if not self._transactional:
            with contextlib.suppress(KafkaException):  # _NO_OFFSET: nothing was done since the last commit
                consumer.commit(asynchronous=False)
        self._offsets.drop(mine)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Others may have read them already: nothing of theirs counts any more."""
        log.warning("partitions lost", partitions=_names(partitions))
        self._offsets.drop((str(p.topic), p.partition) for p in partitions)


def _is_data(message: KafkaMessage) -> bool:
    error = message.error()
    if error is not None:
        _log_error(error)
    return error is None


def _log_error(error: KafkaError) -> None:
    log.warning("Kafka", reason=error.str(), code=error.name())


def headers_of(message: KafkaMessage) -> Headers:
    """Headers as bytes; one without a value is empty."""
    headers = cast("list[tuple[str, str | bytes | None]]", message.headers() or [])
    return tuple((name, _bytes(value) or b"") for name, value in headers)


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _names(partitions: Sequence[TopicPartition]) -> list[str]:
    return [f"{p.topic}/{p.partition}" for p in partitions]
