"""What the steps since the last line of the log amount to."""

import time

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from training.fit.distributed import Ranks


class Interval:
    """Sums over the steps since the last line of the log, on the device of what is summed."""

    def __init__(self) -> None:
        self.started, self.steps = time.perf_counter(), 0
        self.sums: dict[str, Tensor] = {}
        self.counts: set[str] = set()

    def add(self, values: dict[str, Tensor]) -> None:
        """Take in one step; nothing leaves the device until the line is written."""
        self.steps += 1
        for name, value in values.items():
            if not value.is_floating_point():
                self.counts.add(name)
            kept = value.detach().double()
            self.sums[name] = self.sums[name] + kept if name in self.sums else kept

    def means(self, ranks: Ranks) -> dict[str, NDArray[np.float64]]:
        """Mean of each value over the steps, and over processes, where integers (counts) add up instead."""
        own = {name: (total / self.steps).cpu().numpy() for name, total in self.sums.items()}
        return ranks.means(own, self.counts)

    def seconds_per_step(self) -> float:
        """Wall time of a step, everything between two lines included."""
        return (time.perf_counter() - self.started) / self.steps
