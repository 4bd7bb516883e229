"""Messages of topics between two offsets or two times, for a replay.

No group is joined and nothing is committed, so a replay does not disturb other consumers. It ends where the topic ended
when it began.
"""

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from nightjar_alerts.service.stream.addresses import Address, AddressError
from nightjar_alerts.service.stream.kafka.buffer import message_of
from nightjar_alerts.service.stream.kafka.client import make_client, properties
from nightjar_alerts.service.stream.messages import FiniteSource, Message, TransientError

TIMEOUT_SECONDS: Final = 30.0
RANGE_OPTIONS: Final = ("since", "until", "from", "to", "partition")


class KafkaRange(FiniteSource):
    """Messages of topics from ``since`` to ``until`` (ISO times), or of one partition from offset to offset."""

    def __init__(self, address: Address, extra: Mapping[str, Any]) -> None:
        address.only("group", *RANGE_OPTIONS)
        own = {"group.id": "nightjar-replay", "enable.auto.commit": False, "queued.max.messages.kbytes": 32768}
        self._consumer = make_client(Consumer, properties(address, extra, own))
        self._end_offsets: dict[tuple[str, int], int] = {}
        try:
            self._start(address)
        except KafkaException as error:
            raise AddressError(f"kafka://{address.hosts}: {error.args[0].str()}") from None

    def _start(self, address: Address) -> None:
        assigned = []
        for topic, partition in self._partitions(address):
            low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_SECONDS)
            start = self._bound(address, "from", "since", topic, partition, low)
            end = self._bound(address, "to", "until", topic, partition, high)
            start, end = max(start, low), min(end, high)
            if start < end:
                self._end_offsets[topic, partition] = end
                assigned.append(TopicPartition(topic, partition, start))
        self._consumer.assign(assigned)

    def _partitions(self, address: Address) -> list[tuple[str, int]]:
        only_number = int(address.number("partition", -1))
        if only_number < 0 and {"from", "to"} & set(address.options):
            raise AddressError("offsets (`from`, `to`) belong to a `partition`")
        partitions = []
        for topic in address.names:
            metadata = self._consumer.list_topics(topic, TIMEOUT_SECONDS).topics[topic]
            partitions += [(topic, number) for number in metadata.partitions if only_number in (-1, number)]
        return partitions

    def _bound(self, address: Address, offset: str, moment: str, topic: str, partition: int, default: int) -> int:
        if offset in address.options:
            return int(address.number(offset, default))
        if moment not in address.options:
            return default
        query = TopicPartition(topic, partition, address.moment(moment))
        answer = self._consumer.offsets_for_times([query], TIMEOUT_SECONDS)[0].offset
        return default if answer == OFFSET_END else answer

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Return the next messages; none when every partition has been read to its end."""
        while self._end_offsets:
            try:
                batch = self._consumer.consume(limit, timeout)
            except KafkaException as error:
                raise TransientError(str(error)) from error
            messages = [message for one in batch if (message := self._message(one)) is not None]
            if messages:
                return messages
            self._forget_read()
        return []

    def _message(self, one: Any) -> Message | None:
        place = (one.topic(), one.partition())
        if one.error() is not None or one.offset() >= self._end_offsets.get(place, 0):
            return None
        message = message_of(one)
        if one.offset() + 1 >= self._end_offsets[place]:
            del self._end_offsets[place]
        return message

    def _forget_read(self) -> None:
        """Find the end by the position: the last offset may be no message (transactions, compaction)."""
        for position in self._consumer.position(self._consumer.assignment()):
            place = (str(position.topic), position.partition)
            if place in self._end_offsets and position.offset >= self._end_offsets[place]:
                del self._end_offsets[place]

    def close(self, clean: bool = True) -> None:
        """Close the connection."""
        self._consumer.close()
