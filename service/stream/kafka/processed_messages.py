"""Messages that were processed recently, for topics that are deleted and created again."""

from collections.abc import Iterable
from typing import Final

from nightjar_alerts.service.stream.kafka.assignment import Partition, Token
from nightjar_alerts.service.stream.messages import Message

MAX_PROCESSED: Final = 1 << 14


class ProcessedMessages:
    """Messages that were processed recently, by offset, timestamp and size; those delivered again are skipped.

    A topic that was deleted and created again is read from its start as soon as the monitor notices it. Some of its
    messages may have been processed by then.
    """

    def __init__(self) -> None:
        self._answered: dict[tuple[Partition, int], tuple[int | None, int]] = {}

    def add(self, messages: Iterable[Message]) -> None:
        """Record processed messages; the latest :data:`MAX_PROCESSED` are kept, those of a few seconds."""
        for message in messages:
            if isinstance(token := message.token, Token):
                self._answered[token.partition, token.offset] = message.timestamp_ms, len(message.value)
        while len(self._answered) > MAX_PROCESSED:
            del self._answered[next(iter(self._answered))]

    def __contains__(self, key: tuple[Partition, int]) -> bool:
        """Return whether a message of this partition and offset was processed recently, perhaps another one."""
        return key in self._answered

    def has(self, partition: Partition, offset: int, message: Message) -> bool:
        """Return whether this message was processed recently, and not another one that had the same offset before."""
        return self._answered.get((partition, offset)) == (message.timestamp_ms, len(message.value))
