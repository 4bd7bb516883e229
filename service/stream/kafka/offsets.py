"""Offsets of a partition that may be committed: the one before which every message is done.

Messages of a partition are finished in any order. A partition that was revoked and assigned again begins a new epoch:
messages of a former epoch no longer count. So does a partition whose topic was deleted and created again, as its
offsets go back.
"""

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from nightjar_alerts.service.stream.messages import Message

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Token:
    """Place of a message, and the epoch of its partition in which it was taken."""

    partition: Partition
    offset: int
    epoch: int


@dataclass(slots=True)
class _Progress:
    """One epoch of a partition: from its assignment, or from its topic's creation, until it goes.

    Attributes
    ----------
    committable : the offset before which everything is done.
    last_taken : the greatest offset taken.
    done_by_offset : whether each message from ``committable`` on is done, in the order taken.
    done_ahead : the number of messages that are done although one before them is not.
    uncommitted : offsets of messages before ``committable`` whose commit nobody has acknowledged, in order.
    """

    epoch: int
    committable: int
    last_taken: int
    done_by_offset: dict[int, bool] = field(default_factory=dict)
    done_ahead: int = 0
    uncommitted: deque[int] = field(default_factory=deque)

    def finish(self, offset: int) -> None:
        """Note that a message is done, and move ``committable`` over what is."""
        if self.done_by_offset.get(offset, True):  # before `committable`, or noted already
            return
        self.done_by_offset[offset] = True
        self.done_ahead += 1
        self.advance()

    def advance(self) -> None:
        """Move ``committable`` over what is done."""
        # A dictionary keeps the order in which messages were taken, which is that of their offsets. Compaction and the
        # markers of transactions leave gaps between offsets: counting up from one to the next would stop at them.
        while self.done_by_offset and self.done_by_offset[first := next(iter(self.done_by_offset))]:
            del self.done_by_offset[first]
            self.committable = first + 1
            self.done_ahead -= 1
            self.uncommitted.append(first)


class Offsets:
    """Progress through the partitions of a consumer. Safe to use from several threads.

    Parameters
    ----------
    transactional : whether offsets are committed with the results, in a transaction, and not after them.
    """

    def __init__(self, transactional: bool = False) -> None:
        self._transactional = transactional
        self._lock = threading.Lock()
        self._partitions: dict[Partition, _Progress] = {}
        self._epochs = 0

    def take(self, partition: Partition, offset: int) -> Token:
        """Note that a message was taken."""
        with self._lock:
            progress = self._partitions.get(partition)
            # An offset that goes back: the partition was away meanwhile, or its topic was made again.
            if progress is None or offset <= progress.last_taken:
                self._epochs += 1
                progress = self._partitions[partition] = _Progress(self._epochs, offset, offset)
            progress.done_by_offset[offset] = False
            progress.last_taken = offset
            return Token(partition, offset, progress.epoch)

    def finish(self, tokens: Iterable[Token]) -> None:
        """Note that messages are done."""
        with self._lock:
            for token in tokens:
                if self._owns(token):
                    progress = self._partitions[token.partition]
                    progress.finish(token.offset)
                    if self._transactional:
                        progress.uncommitted.clear()  # committed together with their answers

    def committed(self, partition: Partition, offset: int) -> None:
        """Note that the broker has acknowledged a commit of an assigned partition."""
        with self._lock:
            uncommitted = progress.uncommitted if (progress := self._partitions.get(partition)) is not None else ()
            while uncommitted and uncommitted[0] < offset:
                uncommitted.popleft()

    def uncommitted(self) -> int:
        """Return the number of messages that are done and would be delivered again after a crash now."""
        with self._lock:
            return sum(progress.done_ahead + len(progress.uncommitted) for progress in self._partitions.values())

    def unacknowledged(self) -> int:
        """Return the number of messages that may be committed and whose commit nobody has acknowledged."""
        with self._lock:
            return sum(len(progress.uncommitted) for progress in self._partitions.values())

    def committable(self, partition: Partition) -> int | None:
        """Return the offset before which everything is done; None where nothing has been taken."""
        with self._lock:
            progress = self._partitions.get(partition)
            return None if progress is None else progress.committable

    def unfinished(self, partitions: Iterable[Partition] | None = None) -> int:
        """Return the number of messages taken and not done, of these partitions or of all."""
        with self._lock:
            chosen = self._partitions if partitions is None else set(partitions) & self._partitions.keys()
            return sum(not is_done for p in chosen for is_done in self._partitions[p].done_by_offset.values())

    def committable_after(self, tokens: Iterable[Token]) -> tuple[frozenset[Token], dict[Partition, int]]:
        """Return the messages whose partitions are still assigned, and the offsets to commit once they are done."""
        with self._lock:
            owned = frozenset(token for token in tokens if self._owns(token))
            moved: dict[Partition, int] = {}
            for partition in {token.partition for token in owned}:
                now = self._partitions[partition]
                finished = {token.offset: True for token in owned if token.partition == partition}
                # A copy is moved on: nothing is done yet, and nothing is if the transaction fails.
                then = _Progress(now.epoch, now.committable, now.last_taken, now.done_by_offset | finished)
                then.advance()
                if then.committable > now.committable:
                    moved[partition] = then.committable
        return owned, moved

    def owns(self, token: Token) -> bool:
        """Return whether the partition of a message is still in the epoch in which the message was taken."""
        with self._lock:
            return self._owns(token)

    def _owns(self, token: Token) -> bool:
        progress = self._partitions.get(token.partition)
        return progress is not None and progress.epoch == token.epoch

    def next_offset(self, partition: Partition) -> int | None:
        """Return the offset after the last message taken; None where nothing has been taken."""
        with self._lock:
            progress = self._partitions.get(partition)
            return None if progress is None else progress.last_taken + 1

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions that were revoked."""
        with self._lock:
            for partition in partitions:
                self._partitions.pop(partition, None)


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

    def __contains__(self, place: tuple[Partition, int]) -> bool:
        """Return whether a message of this partition and offset was answered lately, perhaps another one."""
        return place in self._answered

    def has(self, partition: Partition, offset: int, message: Message) -> bool:
        """Return whether this message was answered lately, and not another one that had the same offset before."""
        return self._answered.get((partition, offset)) == (message.timestamp_ms, len(message.value))
