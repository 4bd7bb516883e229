"""Traffic to simulate: when light curves arrive and how long they are.

Three kinds: Poisson arrivals, visits of a survey telescope (every 37 seconds all alerts of one exposure at once), and
recorded traces. A trace is a text file of one light curve a line, ``seconds length``, in order of arrival; what follows
a ``#`` is a remark. Lengths are lognormal around 50 observations, and one light curve in a hundred comes from a deep
field, with a history of several hundred; the network's limits then cut what is longer than ``longest``.

The policies that general model servers use, as functions of the same kind as the engine's own.

A server that batches takes what has waited longest and pads it: by number of requests (Triton, TorchServe, LitServe,
mosec), by a budget of padded tokens (text-embeddings-inference), or after a delay that gives others time to arrive.
None of them looks at what a run would cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.engine.policy import BatchLimits, CostModel, Policy, QueueItem, choose, release

MEDIAN_LENGTH = 50.0
LOG_SIGMA = 0.745  # mean 66, 95th percentile 170
DEEP_SHARE = 0.01
DEEP_MEDIAN_LENGTH = 700.0
DEEP_LOG_SIGMA = 0.4

VISIT_SECONDS = 37.0
"""From one exposure of the LSST survey to the next, as a mean over a night."""


class Trace(NamedTuple):
    """Light curves in order of arrival.

    Attributes
    ----------
    arrival : seconds since the start, shape (n,), not decreasing.
    length : observations, shape (n,), at least 1.
    """

    arrival: NDArray[np.float64]
    length: NDArray[np.int64]


class TraceError(ValueError):
    """A file is no trace; says where and why."""


def draw_lengths(count: int, longest: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Observations of ``count`` light curves, shape (count,), between 1 and ``longest``."""
    deep = rng.random(count) < DEEP_SHARE
    centre = np.where(deep, np.log(DEEP_MEDIAN_LENGTH), np.log(MEDIAN_LENGTH))
    drawn = rng.lognormal(centre, np.where(deep, DEEP_LOG_SIGMA, LOG_SIGMA))
    return np.clip(np.rint(drawn), 1, longest).astype(np.int64)


def poisson(rate: float, count: int, longest: int, rng: np.random.Generator) -> Trace:
    """``count`` light curves, ``rate`` a second on average, each independent of the others."""
    return Trace(np.cumsum(rng.exponential(1 / rate, count)), draw_lengths(count, longest, rng))


def visits(alerts: int, number: int, longest: int, rng: np.random.Generator) -> Trace:
    """Make ``number`` visits of ``alerts`` light curves, each visit's at one moment."""
    arrival = np.repeat(VISIT_SECONDS * np.arange(number), alerts)
    return Trace(arrival, draw_lengths(alerts * number, longest, rng))


def read_trace(path: Path, longest: int) -> Trace:
    """Return a recorded trace, its light curves cut to ``longest`` observations.

    Raises
    ------
    TraceError
        When the file cannot be read or a line is not ``seconds length`` in order of arrival.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error
    arrivals, lengths = [0.0], list[int]()
    for number, line in enumerate(lines, start=1):
        if not (fields := line.partition("#")[0].split()):
            continue
        try:
            arrival, length = float(fields[0]), int(fields[1])
        except (ValueError, IndexError):
            raise TraceError(f"{path}, line {number}: not `seconds length`") from None
        if len(fields) > 2 or length < 1 or not arrivals[-1] <= arrival < np.inf:
            raise TraceError(f"{path}, line {number}: two numbers, seconds in order and a length of 1 or more")
        arrivals.append(arrival)
        lengths.append(length)
    if not lengths:
        raise TraceError(f"{path}: holds no light curve")
    return Trace(np.array(arrivals[1:]), np.minimum(lengths, longest).astype(np.int64))


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
    """Return the oldest, alone."""
    return [0] if queue else []


def fifo(queue: Sequence[QueueItem], now: float, cost: CostModel, limits: BatchLimits) -> list[int]:
    """Return the oldest in order of arrival that fit into ``limits``; none while others may come within the delay.

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
    """Return the engine's own policy under its limits, and its rivals under those they are known for."""
    count = BatchLimits(max_tokens=UNBOUNDED, max_items=ITEMS, window=ITEMS, shares=False)
    budget = BatchLimits(max_tokens=TOKENS, max_items=BUDGET_ITEMS, window=BUDGET_ITEMS, shares=False)
    return {
        "nightjar": Contender(choose, ours),
        "one_by_one": Contender(one_by_one, replace(count, max_items=1, window=1)),
        "fifo_count_64": Contender(fifo, count),
        "fifo_token_budget": Contender(fifo, budget),
        "window_5ms": Contender(fifo, replace(count, max_delay=WINDOW_SECONDS)),
    }
