"""Messages that were answered lately, for topics that are deleted and created again."""

from collections.abc import Iterable
from typing import Final

from nightjar_alerts.service.stream.kafka.assignment import Partition, Token
from nightjar_alerts.service.stream.messages import Message

RECENT_ANSWERS: Final = 1 << 14


class RecentAnswers:
    """Latest messages that were answered, by offset, timestamp and size; those that come again are skipped.

    A topic that was deleted and created again is read from its start once that is noticed. Some of its messages may
    have been answered until then.
    """

    def __init__(self) -> None:
        self._answered: dict[tuple[Partition, int], tuple[int | None, int]] = {}

    def add(self, messages: Iterable[Message]) -> None:
        """Note answered messages; as many are kept as come within a few seconds."""
        for message in messages:
            if isinstance(token := message.token, Token):
                self._answered[token.partition, token.offset] = message.timestamp_ms, len(message.value)
        while len(self._answered) > RECENT_ANSWERS:
            del self._answered[next(iter(self._answered))]

    def __contains__(self, key: tuple[Partition, int]) -> bool:
        """Return whether a message of this partition and offset was answered lately, perhaps another one."""
        return key in self._answered

    def has(self, partition: Partition, offset: int, message: Message) -> bool:
        """Return whether this message was answered lately, and not another one that had the same offset before."""
        return self._answered.get((partition, offset)) == (message.timestamp_ms, len(message.value))
