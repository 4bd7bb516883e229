"""Recently processed messages, to skip duplicates in topics that are deleted and created again."""

from collections.abc import Iterable
from typing import Final

from nightjar_alerts.service.stream.kafka.assignment import Partition, Token
from nightjar_alerts.service.stream.messages import Message

MAX_PROCESSED: Final = 1 << 14


class ProcessedMessages:
    """Recently processed messages, by offset, timestamp and size; they are skipped if delivered again.

    A topic that was deleted and created again is read from its start once the monitor detects it. Some of its messages
    may have been processed by then.
    """

    def __init__(self) -> None:
        self._recent: dict[tuple[Partition, int], tuple[int | None, int]] = {}

    def add(self, messages: Iterable[Message]) -> None:
        """Record processed messages; the latest :data:`MAX_PROCESSED`, of a few seconds, are kept."""
        for message in messages:
            if isinstance(token := message.token, Token):
                self._recent[token.partition, token.offset] = message.timestamp_ms, len(message.value)
        while len(self._recent) > MAX_PROCESSED:
            del self._recent[next(iter(self._recent))]

    def __contains__(self, key: tuple[Partition, int]) -> bool:
        """Return whether a message with this partition and offset was processed recently."""
        return key in self._recent

    def has(self, partition: Partition, offset: int, message: Message) -> bool:
        """Return whether this message was processed recently, not a different one with the same offset."""
        return self._recent.get((partition, offset)) == (message.timestamp_ms, len(message.value))
