"""Watching the experts: a warning when a mixture stops using one of them.

Expert load is given relative to an even share: 1 is fair, 0 is an expert that no token reached. A mixture that
collapses keeps training and its loss looks ordinary, which is why this is watched.
"""

import logging

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from models.network import Output

log = logging.getLogger(__name__)

STARVED = 0.1  # of an even share
_PREFIX = "load/"


def expert_loads(output: Output) -> dict[str, Tensor]:
    """Assignments per expert of every mixture, for the log of a step; empty for a network without mixtures."""
    loads = {}
    if output.input_expert_load_1X is not None:
        loads[f"{_PREFIX}input"] = output.input_expert_load_1X[0]
    if output.expert_load_SX is not None:
        loads |= {f"{_PREFIX}block_{number}": row for number, row in enumerate(output.expert_load_SX)}
    return loads


def load_range(means: dict[str, NDArray[np.float64]]) -> dict[str, list[float]]:
    """Smallest and largest load of an expert in every mixture, relative to an even share, from :func:`expert_loads`."""
    loads = {name.removeprefix(_PREFIX): load for name, load in means.items() if name.startswith(_PREFIX)}
    shares = {name: load * len(load) / load.sum() for name, load in loads.items() if load.sum() > 0}
    return {name: [round(float(share.min()), 3), round(float(share.max()), 3)] for name, share in shares.items()}


class StarvationWatch:
    """Warns when an expert of a mixture falls under a tenth of its even share, once per fall.

    It is silent before ``first_step``: routers are still finding their balance during warm-up.
    """

    def __init__(self, first_step: int) -> None:
        self.first_step = first_step
        self.starved: set[str] = set()

    def update(self, step: int, expert_load: dict[str, list[float]]) -> None:
        """Compare one interval's load with the last one's."""
        if step < self.first_step:
            return
        now = {name for name, (smallest, _) in expert_load.items() if smallest < STARVED}
        for name in sorted(now - self.starved):
            log.warning("step %d: an expert of mixture %r gets %.3f of an even share", step, name, expert_load[name][0])
        self.starved = now
