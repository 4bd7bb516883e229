"""The waiting light curves, by rank, and the work they are predicted to need. Not thread-safe by itself.

Rank is time of arrival less the head start of priority. Within one priority light curves come in order of rank, so each
priority in use has its own queue, and the front of the whole is merged from theirs.

Work is counted as if every light curve ran alone. Merging only ever saves time, so this is an upper bound, and it
needs no re-planning of the queue when something arrives or leaves.
"""

from collections import OrderedDict
from collections.abc import Iterable
from heapq import merge
from itertools import chain, islice

from service.inference.batching import Waiting
from service.inference.scheduling import BatchLimits, CostModel, Policy, choose, plan


class Backlog:
    """An ordered set of waiting light curves; adding, withdrawing and taking a batch do not depend on its length."""

    def __init__(self, policy: Policy = choose) -> None:
        self._policy = policy
        # OrderedDict rather than dict: a dict whose first keys were deleted takes ever longer to find its first key.
        self._lanes: dict[float, OrderedDict[int, Waiting]] = {}
        self._size = 0
        self.seconds = 0.0

    def __len__(self) -> int:
        """Return the number of light curves waiting."""
        return self._size

    def add(self, entries: Iterable[Waiting]) -> None:
        """Append in order of arrival."""
        for entry in entries:
            self._lanes.setdefault(entry.priority, OrderedDict())[id(entry)] = entry
            self._size += 1
            self.seconds += entry.seconds

    def remove(self, entry: Waiting) -> bool:
        """Whether the entry was still waiting, and is no more."""
        lane = self._lanes.get(entry.priority, OrderedDict())
        if lane.pop(id(entry), None) is None:
            return False
        if not lane:
            del self._lanes[entry.priority]
        self._size -= 1
        # Rounding errors of many additions must not pile up to a backlog that never empties.
        self.seconds = self.seconds - entry.seconds if self._size else 0.0
        return True

    def clear(self) -> list[Waiting]:
        """Remove and return everything."""
        entries = self._front(self._size)
        self._lanes.clear()
        self._size = 0
        self.seconds = 0.0
        return entries

    def take(
        self, now: float, cost: CostModel, limits: BatchLimits, idle_workers: int
    ) -> tuple[list[Waiting], list[Waiting]]:
        """Remove and return the next batch, and the entries found expired on the way (one of the two may be empty)."""
        window = self._front(limits.window)
        chosen, late = plan(window, len(self), now, cost, limits, idle_workers, self._policy)
        batch, missed = [window[index] for index in chosen], [window[index] for index in late]
        for entry in (*missed, *batch):
            self.remove(entry)
        return batch, missed

    def _front(self, count: int) -> list[Waiting]:
        """The first ``count`` entries by rank."""
        lanes = [lane.values() for lane in self._lanes.values()]
        return list(islice(merge(*lanes, key=lambda entry: entry.rank) if len(lanes) > 1 else chain(*lanes), count))
