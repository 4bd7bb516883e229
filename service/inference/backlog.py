"""The waiting light curves, oldest first, and the work they are predicted to need. Not thread-safe by itself.

Work is counted as if every light curve ran alone. Merging only ever saves time, so this is an upper bound, and it
needs no re-planning of the queue when something arrives or leaves.
"""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from service.inference.batching import Waiting
from service.inference.scheduling import BatchLimits, CostModel, choose, expired


class Backlog:
    """An ordered set of waiting light curves; adding, withdrawing and taking a batch do not depend on its length."""

    def __init__(self) -> None:
        # OrderedDict rather than dict: a dict whose first keys were deleted takes ever longer to find its first key.
        self._entries: OrderedDict[int, Waiting] = OrderedDict()
        self.seconds = 0.0

    def __len__(self) -> int:
        """Return the number of light curves waiting."""
        return len(self._entries)

    def add(self, entries: Iterable[Waiting]) -> None:
        """Append in order of arrival."""
        for entry in entries:
            self._entries[id(entry)] = entry
            self.seconds += entry.seconds

    def remove(self, entry: Waiting) -> bool:
        """Whether the entry was still waiting, and is no more."""
        if self._entries.pop(id(entry), None) is None:
            return False
        # Rounding errors of many additions must not pile up to a backlog that never empties.
        self.seconds = self.seconds - entry.seconds if self._entries else 0.0
        return True

    def clear(self) -> list[Waiting]:
        """Remove and return everything."""
        entries = list(self._entries.values())
        self._entries.clear()
        self.seconds = 0.0
        return entries

    def take(
        self, now: float, cost: CostModel, limits: BatchLimits, idle_workers: int
    ) -> tuple[list[Waiting], list[Waiting]]:
        """Remove and return the next batch, and the entries found expired on the way (one of the two may be empty)."""
        window = list(islice(self._entries.values(), limits.window))
        late = set(expired(window, now, cost))
        alive = [entry for index, entry in enumerate(window) if index not in late]
        shared = limits.shared(len(self) - len(late), idle_workers)
        batch = [alive[index] for index in choose(alive, now, cost, shared)]
        missed = [window[index] for index in sorted(late)]
        for entry in (*missed, *batch):
            self.remove(entry)
        return batch, missed
