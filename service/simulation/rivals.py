"""The policies that general model servers use, as functions of the same kind as the engine's own.

A server that batches takes what has waited longest and pads it: by number of requests (Triton, TorchServe, LitServe,
mosec), by a budget of padded tokens (text-embeddings-inference), or after a delay that gives others time to arrive.
None of them looks at what a run would cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from service.inference.scheduling import BatchLimits, CostModel, Policy, QueueItem, choose, release

PolicyName = Literal["nightjar", "one_by_one", "fifo_count_64", "fifo_token_budget", "window_5ms"]

ITEMS = 64
TOKENS = 4096
"""Padded observations in a batch by token budget: about 64 light curves of the median length."""
BUDGET_ITEMS = 512
WINDOW_SECONDS = 0.005
UNBOUNDED = 2**62


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy and the bounds it works under."""

    policy: Policy
    limits: BatchLimits


def one_by_one(queue: Sequence[QueueItem], now: float, cost: CostModel, limits: BatchLimits) -> list[int]:
    """The oldest, alone."""
    return [0] if queue else []


def fifo(queue: Sequence[QueueItem], now: float, cost: CostModel, limits: BatchLimits) -> list[int]:
    """The oldest in order of arrival, as many as fit into ``limits``; none while others may come within the delay.

    The delay counts from the arrival of the oldest. A batch that is full does not wait for its end.
    """
    count, length = 0, 0
    for item in queue[: limits.max_items]:
        padded = max(length, item.length)
        if count and (count + 1) * padded > limits.max_tokens:
            break
        count, length = count + 1, padded
    full = count == limits.max_items or count < len(queue)
    held = bool(queue) and not full and now < release(queue, limits)
    return [] if held else list(range(count))


def contenders(ours: BatchLimits) -> dict[PolicyName, Contender]:
    """The engine's own policy under its limits, and its rivals under those they are known for."""
    count = BatchLimits(max_tokens=UNBOUNDED, max_items=ITEMS, window=ITEMS, shares=False)
    budget = BatchLimits(max_tokens=TOKENS, max_items=BUDGET_ITEMS, window=BUDGET_ITEMS, shares=False)
    return {
        "nightjar": Contender(choose, ours),
        "one_by_one": Contender(one_by_one, replace(count, max_items=1, window=1)),
        "fifo_count_64": Contender(fifo, count),
        "fifo_token_budget": Contender(fifo, budget),
        "window_5ms": Contender(fifo, replace(count, max_delay=WINDOW_SECONDS)),
    }
