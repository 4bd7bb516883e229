"""Finite source for a replay: messages of topics between two offsets or two times.

It joins no group and commits nothing, so that a replay does not affect other consumers. It stops at the end offsets of
the time at which it was opened, or where the client reports the end of the stable records: the last offsets may have no
record (markers of transactions, aborted records, compaction), and those of an open transaction are not readable.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from nightjar_alerts.service.stream.addresses import Address, AddressError
from nightjar_alerts.service.stream.kafka.buffer import message_of
from nightjar_alerts.service.stream.kafka.client import make_client, properties
from nightjar_alerts.service.stream.messages import FiniteSource, Message, TransientError

TIMEOUT_SECONDS: Final = 30.0
RANGE_OPTIONS: Final = ("since", "until", "from", "to", "partition")


class KafkaRange(FiniteSource):
    """Messages of topics in a range of time or, for a single partition, of offsets.

    The range starts at the first record at or after ``since`` (ISO 8601 time) or at the offset ``from``, and ends
    before the first record at or after ``until`` or before the offset ``to``.
    """

    def __init__(self, address: Address, extra: Mapping[str, Any]) -> None:
        self._address = address.check_options("group", *RANGE_OPTIONS)
        own = {"group.id": "nightjar-replay", "queued.max.messages.kbytes": 32768}
        fixed = {"enable.auto.commit": False, "enable.partition.eof": True}
        self._consumer = make_client(Consumer, properties(address, extra, own) | fixed)
        self._end_offsets: dict[tuple[str, int], int] = {}
        self.ranges: dict[str, str] = {}
        self.unmatched: list[str] = []
        try:
            self._start()
        except KafkaException as error:
            raise AddressError(error.args[0].str()) from None

    def _start(self) -> None:
        assigned = []
        for topic, partition in self._partitions():
            low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_SECONDS)
            start = max(low, self._bound("from", "since", topic, partition, low, high))
            end = min(high, self._bound("to", "until", topic, partition, high, high))
            self.ranges[f"{topic}/{partition}"] = f"offsets {start} to {end - 1}" if start < end else "no records"
            if start < end:
                self._end_offsets[topic, partition] = end
                assigned.append(TopicPartition(topic, partition, start))
        bounded = {"since", "until", "from", "to"} & self._address.options.keys()
        if self.ranges and not assigned and bounded:
            self.unmatched.append(f"no record of {', '.join(self.ranges)} is in the range")
        self._consumer.assign(assigned)

    def _partitions(self) -> list[tuple[str, int]]:
        number = self._address.integer("partition", -1)
        if number < 0 and {"from", "to"} & self._address.options.keys():
            raise AddressError("offsets (`from`, `to`) belong to a `partition`")
        partitions = []
        topics = self._consumer.list_topics(timeout=TIMEOUT_SECONDS).topics
        for name in self._address.names:
            matching = [topic for topic in topics if re.match(name, topic)] if name.startswith("^") else [name]
            found = [topic for topic in matching if topic in topics and topics[topic].partitions]
            if not found:
                self.unmatched.append(f"no topic matches {name}" if name.startswith("^") else f"no topic {name}")
            for topic in found:
                chosen = [partition for partition in topics[topic].partitions if number in (-1, partition)]
                partitions += [(topic, partition) for partition in sorted(chosen)]
                if not chosen:
                    self.unmatched.append(f"no partition {number} of topic {topic}")
        return partitions

    def _bound(self, offset: str, time: str, topic: str, partition: int, default: int, high: int) -> int:
        """Return the offset of one end of the range; ``high`` if no record is at or after the time."""
        if offset in self._address.options:
            return self._address.integer(offset, default)
        if time not in self._address.options:
            return default
        query = TopicPartition(topic, partition, self._address.timestamp_ms(time))
        answer = self._consumer.offsets_for_times([query], TIMEOUT_SECONDS)[0].offset
        return high if answer == OFFSET_END else answer

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Return the next messages; none once every partition was read to its end."""
        while self._end_offsets:
            try:
                batch = self._consumer.consume(limit, timeout)
            except KafkaException as error:
                raise TransientError(str(error)) from error
            messages = [message for received in batch if (message := self._message(received)) is not None]
            if messages:
                return messages
        return []

    def _message(self, received: Any) -> Message | None:
        """Return a received message; None for an error or the end of a partition, or if it is not in the range."""
        partition = (received.topic(), received.partition())
        end = self._end_offsets.get(partition)
        at_end = received.error() is not None and received.error().code() == KafkaError._PARTITION_EOF
        if end is None or (received.error() is not None and not at_end):
            return None
        if at_end or received.offset() + 1 >= end:
            del self._end_offsets[partition]
        return None if at_end or received.offset() >= end else message_of(received)

    def close(self, clean: bool = True) -> None:
        """Close the connection."""
        self._consumer.close()
