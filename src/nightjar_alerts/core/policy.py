"""The batching policy: pure functions of the queue, the time and the cost model.

Padding makes batches of light curves expensive on a CPU: lengths differ by a factor of a hundred, and in arrival order
most of a padded batch is padding. A free worker therefore takes the first item of the queue (the oldest, unless
fairness between clients decides otherwise, see :mod:`service.engine.queue`) and adds the items nearest to it in length.
It adds an item only while the merged run is predicted to take less time than two separate runs. From the batch that
grows this way it runs the prefix with the smallest ratio of merged time to separate time: the remaining items will
find better batch mates. An item runs alone if merging saves nothing.

Every batch contains the first item of the queue, so an item waits for at most as many batches as there were items
before it. There is no timer. :mod:`core.cost` predicts the times.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from nightjar_alerts.core.cost import CostModel

DEFAULT_MAX_ITEMS, LARGEST_MAX_ITEMS = 32, 128
WINDOW = 512
"""Number of queued light curves from which a batch is chosen; with 128, batches took 3 % longer."""


@dataclass(frozen=True, slots=True, eq=False)
class QueueItem:
    """A queued light curve as the policy sees it; base of :class:`service.engine.batch.QueueEntry`.

    Attributes
    ----------
    length : number of points.
    enqueued : time of arrival, ``time.monotonic()`` seconds.
    deadline : time after which the result is not needed; None for no deadline.
    """

    length: int
    enqueued: float
    deadline: float | None


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds on one batch. The first item always fits, whatever its length.

    Attributes
    ----------
    max_tokens : padded points (batch size times longest length); beyond about a thousand, activations leave the cache.
    max_items : light curves.
    window : number of items at the front of the queue from which a batch is chosen; bounds the time of one choice.
    shares : whether idle workers share a short queue; see :meth:`shared`.
    """

    max_tokens: int = 1024
    max_items: int = DEFAULT_MAX_ITEMS
    window: int = WINDOW
    shares: bool = True

    def shared(self, queued: int, workers: int) -> "BatchLimits":
        """Return the bounds for one of ``workers`` idle workers: at most its share of a short queue.

        Merging a short queue into one run saves work, but leaves the other workers idle and delays every result.
        """
        share = -(-queued // workers)
        return replace(self, max_items=share) if self.shares and share < self.max_items else self


def max_items_for(max_tokens: int) -> int:
    """Return the maximum number of light curves for a maximum number of padded points: one per 32 points."""
    return min(max(DEFAULT_MAX_ITEMS, max_tokens // 32), LARGEST_MAX_ITEMS)


Policy = Callable[[Sequence[QueueItem], float, CostModel, BatchLimits], list[int]]
"""A batching policy: maps (queue, now, cost model, limits) to the indices of the next batch, as :func:`choose`."""


def choose(queue: Sequence[QueueItem], now: float, cost: CostModel, limits: BatchLimits) -> list[int]:
    """Return the indices of the items to run next, the first item of the queue first.

    Parameters
    ----------
    queue : queued items in order of service, none of them expired (see :func:`expired`); only the first
        ``limits.window`` are considered.
    now : ``time.monotonic()``; an item is not added when the merged run is predicted to end after any member's
        deadline.
    """
    if not queue:
        return []
    window = queue[: limits.window]
    anchor = window[0]
    chosen, length, tokens, latest = [0], anchor.length, anchor.length, _latest_end(anchor)
    planned = separate = cost.seconds(1, length)
    best_size, best_ratio = 1, 1.0
    gaps = [abs(item.length - anchor.length) for item in window]
    # A longer light curve pads all others, a shorter one is padded itself: the more its length differs from the
    # anchor's, the less merging saves. Once a longer (shorter) item saves nothing, still longer (shorter) items are
    # skipped.
    longer_saves = shorter_saves = True
    for index in sorted(range(1, len(window)), key=gaps.__getitem__):
        item, batch = window[index], len(chosen) + 1
        if batch > limits.max_items or batch * length > limits.max_tokens or not (longer_saves or shorter_saves):
            break
        is_longer = item.length > anchor.length
        if not (longer_saves if is_longer else shorter_saves):
            continue
        padded, end, alone = max(length, item.length), min(latest, _latest_end(item)), cost.seconds(1, item.length)
        merged = cost.seconds(batch, padded, tokens + item.length)
        if merged >= planned + alone:
            longer_saves, shorter_saves = longer_saves and not is_longer, shorter_saves and is_longer
        elif batch * padded <= limits.max_tokens and now + merged <= end:
            chosen.append(index)
            length, tokens, latest, planned, separate = padded, tokens + item.length, end, merged, separate + alone
            if planned / separate < best_ratio:
                best_size, best_ratio = batch, planned / separate
    return chosen[:best_size]


def divide(lengths: Sequence[int], cost: CostModel, limits: BatchLimits) -> Iterator[list[int]]:
    """Yield the indices of batches of light curves that are all known, the longest light curves first."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    queue = [QueueItem(lengths[index], 0.0, None) for index in order]
    start = 0
    while start < len(order):
        # Sorted by length, the nearest items are the next ones, so a batch is the beginning of the queue.
        size = len(choose(queue[start : start + limits.max_items], 0.0, cost, limits))
        yield order[start : start + size]
        start += size


def expired(queue: Sequence[QueueItem], now: float, cost: CostModel) -> list[int]:
    """Return the indices of items that would miss their deadline even if they ran alone at once."""
    if not queue:
        return []
    latest = now + cost.seconds(1, max(item.length for item in queue))  # for most items one comparison is enough
    return [
        index
        for index, item in enumerate(queue)
        if item.deadline is not None and latest > item.deadline and now + cost.seconds(1, item.length) > item.deadline
    ]


class Plan(NamedTuple):
    """Indices of the items to run next, and of the expired items; either may be empty."""

    batch: list[int]
    late: list[int]


def plan(
    window: Sequence[QueueItem],
    queued: int,
    now: float,
    cost: CostModel,
    limits: BatchLimits,
    workers: int,
    policy: Policy = choose,
) -> Plan:
    """Choose the next batch of a worker that has become idle.

    Parameters
    ----------
    window : first ``limits.window`` items of the queue, or all.
    queued : number of items in the whole queue.
    workers : number of idle workers, this one included.
    """
    late = expired(window, now, cost)
    bounds = limits.shared(queued - len(late), workers)
    if not late:
        return Plan(policy(window, now, cost, bounds), late)
    expired_indices = set(late)
    remaining = [index for index in range(len(window)) if index not in expired_indices]
    chosen = policy([window[index] for index in remaining], now, cost, bounds)
    return Plan([remaining[index] for index in chosen], late)


def _latest_end(item: QueueItem) -> float:
    return inf if item.deadline is None else item.deadline
