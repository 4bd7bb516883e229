"""Watching the experts: an alarm, layer by layer, when a mixture stops using some of them.

Expert load is given relative to an even share: 1 is fair, 0 is an expert that no token reached. A mixture that
collapses keeps training and its loss looks ordinary, which is why this is watched. Every log line carries the smallest
and largest load of each mixture (``expert_load``) and, once an expert has stayed under a tenth of its even share for
three lines in a row, its number (``starved_experts``); the moment it gets there is a warning.
"""

import logging

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from models.network import Output, Reconstruction

log = logging.getLogger(__name__)

STARVED = 0.1  # of an even share
INTERVALS = 3  # between log lines, in a row
_PREFIX = "load/"

Shares = dict[str, NDArray[np.float64]]


def expert_loads(output: Output | Reconstruction) -> dict[str, Tensor]:
    """Assignments per expert of every mixture, for the log of a step; empty for a network without mixtures."""
    loads = {}
    if output.input_expert_load_1X is not None:
        loads[f"{_PREFIX}input"] = output.input_expert_load_1X[0]
    if output.expert_load_SX is not None:
        loads |= {f"{_PREFIX}block_{number}": row for number, row in enumerate(output.expert_load_SX)}
    return loads


def expert_shares(means: dict[str, NDArray[np.float64]]) -> Shares:
    """Load of every expert relative to an even share, by mixture, from the means of :func:`expert_loads`."""
    loads = {name.removeprefix(_PREFIX): load for name, load in means.items() if name.startswith(_PREFIX)}
    return {name: load * len(load) / load.sum() for name, load in loads.items() if load.sum() > 0}


def load_range(shares: Shares) -> dict[str, list[float]]:
    """Smallest and largest share in every mixture."""
    return {name: [round(float(share.min()), 3), round(float(share.max()), 3)] for name, share in shares.items()}


class StarvationWatch:
    """Finds the experts that stay under ``STARVED`` of an even share for ``INTERVALS`` intervals; warns once per fall.

    It is blind before ``first_step``: routers are still finding their balance during warm-up. A resumed run counts
    anew.
    """

    def __init__(self, first_step: int) -> None:
        self.first_step = first_step
        self.intervals: dict[str, NDArray[np.int64]] = {}

    def update(self, step: int, shares: Shares) -> dict[str, list[int]]:
        """Take in the shares of one interval; return the numbers of the starved experts, by mixture."""
        if step < self.first_step:
            return {}
        starved = {}
        for name, share in shares.items():
            before = self.intervals.get(name, np.zeros(len(share), dtype=np.int64))
            self.intervals[name] = now = np.where(share < STARVED, before + 1, 0)
            for expert in np.flatnonzero(now == INTERVALS):
                self._warn(step, name, int(expert), float(share[expert]))
            if (now >= INTERVALS).any():
                starved[name] = np.flatnonzero(now >= INTERVALS).tolist()
        return starved

    def _warn(self, step: int, mixture: str, expert: int, share: float) -> None:
        log.warning(
            "step %d: expert %d of mixture %s has had under %g of an even share of the tokens for %d log lines "
            "(now %.3f); a larger weight of the balance loss or a lower learning rate may bring it back",
            *(step, expert, mixture, STARVED, INTERVALS, share),
        )
