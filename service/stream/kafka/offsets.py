"""Offsets of a partition that may be committed: the one before which every message is done.

Messages of a partition are finished in any order. A partition that was taken away and came back begins anew: what was
taken in its former life no longer counts. So does one whose topic was deleted and made again, whose offsets go back.
"""

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from service.stream.messages import Message

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Token:
    """A message's place and the life of its partition in which it was taken."""

    partition: Partition
    offset: int
    life: int


@dataclass(slots=True)
class _Progress:
    """One life of a partition.

    Attributes
    ----------
    taken : offsets of messages that are not behind the front, in the order taken, to whether they are done.
    front : the offset before which everything is done.
    last : the greatest offset taken.
    early : the number of messages that are done and not behind the front.
    passed : offsets of messages that the front has passed and whose commit nobody has acknowledged, in order.
    """

    life: int
    front: int
    last: int
    taken: dict[int, bool] = field(default_factory=dict)
    early: int = 0
    passed: deque[int] = field(default_factory=deque)

    def finish(self, offset: int) -> None:
        """Note that a message is done, and move the front over what is."""
        if self.taken.get(offset, True):  # behind the front, or told before
            return
        self.taken[offset] = True
        self.early += 1
        self.advance()

    def advance(self) -> None:
        """Move the front over what is done."""
        # A dictionary keeps the order in which messages were taken, which is that of their offsets.
        while self.taken and self.taken[first := next(iter(self.taken))]:
            del self.taken[first]
            self.front = first + 1
            self.early -= 1
            self.passed.append(first)


class Offsets:
    """Progress through the partitions of a consumer. Safe to use from several threads; never waits for anybody.

    Parameters
    ----------
    committed_with : whether what is done has been committed with its answers, in a transaction, and not after them.
    """

    def __init__(self, committed_with: bool = False) -> None:
        self._committed_with = committed_with
        self._lock = threading.Lock()
        self._partitions: dict[Partition, _Progress] = {}
        self._lives = 0

    def take(self, partition: Partition, offset: int) -> Token:
        """Note that a message was taken."""
        with self._lock:
            progress = self._partitions.get(partition)
            # An offset that goes back: the partition was away meanwhile, or its topic was made again.
            if progress is None or offset <= progress.last:
                self._lives += 1
                progress = self._partitions[partition] = _Progress(self._lives, offset, offset)
            progress.taken[offset] = False
            progress.last = offset
            return Token(partition, offset, progress.life)

    def finish(self, tokens: Iterable[Token]) -> None:
        """Note that messages are done."""
        with self._lock:
            for token in tokens:
                if self._holds(token):
                    progress = self._partitions[token.partition]
                    progress.finish(token.offset)
                    if self._committed_with:
                        progress.passed.clear()

    def committed(self, partition: Partition, offset: int) -> None:
        """Note that the broker has acknowledged a commit of a partition of ours."""
        with self._lock:
            passed = progress.passed if (progress := self._partitions.get(partition)) is not None else ()
            while passed and passed[0] < offset:
                passed.popleft()

    def uncommitted(self) -> int:
        """Return the number of messages that are done and would be delivered again if we were killed now."""
        with self._lock:
            return sum(progress.early + len(progress.passed) for progress in self._partitions.values())

    def front(self, partition: Partition) -> int | None:
        """Return the offset before which everything is done; None where nothing has been taken."""
        with self._lock:
            progress = self._partitions.get(partition)
            return None if progress is None else progress.front

    def unfinished(self, partitions: Iterable[Partition] | None = None) -> int:
        """Return the number of messages taken and not done, of these partitions or of all."""
        with self._lock:
            chosen = self._partitions if partitions is None else set(partitions) & self._partitions.keys()
            return sum(not done for p in chosen for done in self._partitions[p].taken.values())

    def ahead(self, tokens: Iterable[Token]) -> tuple[frozenset[Token], dict[Partition, int]]:
        """Return the messages whose partitions are still ours, and where those are read on from once they are done."""
        with self._lock:
            owned = frozenset(token for token in tokens if self._holds(token))
            moved: dict[Partition, int] = {}
            for partition in {token.partition for token in owned}:
                progress = self._partitions[partition]
                done = {token.offset: True for token in owned if token.partition == partition}
                then = _Progress(progress.life, progress.front, progress.last, progress.taken | done)
                then.advance()  # of a copy: nothing is done yet
                if then.front > progress.front:
                    moved[partition] = then.front
        return owned, moved

    def holds(self, token: Token) -> bool:
        """Return whether the partition of a message is still in the life in which the message was taken."""
        with self._lock:
            return self._holds(token)

    def _holds(self, token: Token) -> bool:
        progress = self._partitions.get(token.partition)
        return progress is not None and progress.life == token.life

    def clear(self) -> None:
        """Forget every partition."""
        with self._lock:
            self._partitions.clear()

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions that were taken away."""
        with self._lock:
            for partition in partitions:
                self._partitions.pop(partition, None)


LATEST: Final = 1 << 14


class Latest:
    """Messages that were answered last, by place, time and size: those that come again must not be answered again.

    A topic that was made again is read from its start once that is noticed, also what was answered of it until then.
    """

    def __init__(self) -> None:
        self._answered: dict[tuple[Partition, int], tuple[int | None, int]] = {}

    def add(self, messages: Iterable[Message]) -> None:
        """Note what was answered; as many messages are kept as come within a few seconds."""
        for message in messages:
            if isinstance(token := message.token, Token):
                self._answered[token.partition, token.offset] = message.timestamp_ms, len(message.value)
        while len(self._answered) > LATEST:
            del self._answered[next(iter(self._answered))]

    def holds(self, partition: Partition, offset: int, message: Message) -> bool:
        """Return whether a message of this place was answered lately, and not another one that had its place before."""
        return self._answered.get((partition, offset)) == (message.timestamp_ms, len(message.value))
