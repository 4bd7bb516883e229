"""Which offset of a partition may be stored: the one before which every message is done.

Messages of a partition are finished in any order. A partition that was taken away and came back begins anew: what was
taken in its former life no longer counts.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Token:
    """A message's place and the life of its partition in which it was taken."""

    partition: Partition
    offset: int
    life: int


@dataclass(slots=True)
class _Progress:
    life: int
    taken: dict[int, bool] = field(default_factory=dict)  # offset, in the order taken, to whether it is done


class Offsets:
    """Progress through the partitions of a consumer. Safe to use from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._partitions: dict[Partition, _Progress] = {}
        self._lives = 0

    def take(self, partition: Partition, offset: int) -> Token:
        """Note that a message was taken."""
        with self._changed:
            if partition not in self._partitions:
                self._lives += 1
                self._partitions[partition] = _Progress(self._lives)
            progress = self._partitions[partition]
            progress.taken[offset] = False
            return Token(partition, offset, progress.life)

    def finish(self, tokens: Iterable[Token]) -> dict[Partition, int]:
        """Note that messages are done; returns where each partition may be read on from, if that has moved."""
        moved: dict[Partition, int] = {}
        with self._changed:
            for token in tokens:
                if not self._holds(token):
                    continue
                progress = self._partitions[token.partition]
                progress.taken[token.offset] = True
                if (after := _advance(progress.taken)) is not None:
                    moved[token.partition] = after
            self._changed.notify_all()
        return moved

    def ahead(self, tokens: Iterable[Token]) -> tuple[frozenset[Token], dict[Partition, int]]:
        """Those messages whose partitions are still ours, and where those may be read on from once they are done."""
        with self._changed:
            owned = frozenset(token for token in tokens if self._holds(token))
            moved: dict[Partition, int] = {}
            for partition in {token.partition for token in owned}:
                done = {token.offset: True for token in owned if token.partition == partition}
                if (after := _advance(self._partitions[partition].taken | done)) is not None:
                    moved[partition] = after
        return owned, moved

    def _holds(self, token: Token) -> bool:
        progress = self._partitions.get(token.partition)
        return progress is not None and progress.life == token.life

    def wait_idle(self, partitions: Iterable[Partition], timeout: float) -> bool:
        """Wait until nothing taken of these partitions is unfinished; False when the timeout came first."""
        wanted, end = list(partitions), monotonic() + timeout
        with self._changed:
            while any(self._partitions[p].taken for p in wanted if p in self._partitions):
                if not self._changed.wait(max(0.0, end - monotonic())) and monotonic() >= end:
                    return False
        return True

    def clear(self) -> None:
        """Forget every partition."""
        with self._changed:
            self._partitions.clear()
            self._changed.notify_all()

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions that were taken away."""
        with self._changed:
            for partition in partitions:
                self._partitions.pop(partition, None)
            self._changed.notify_all()


def _advance(taken: dict[int, bool]) -> int | None:
    """Remove the finished messages at the front; the offset after them, None when there are none."""
    front: list[int] = []
    for offset, done in taken.items():
        if not done:
            break
        front.append(offset)
    for offset in front:
        del taken[offset]
    return front[-1] + 1 if front else None
