"""What a run says about itself: a log line per interval, and a warning when a mixture stops using an expert.

Expert load is given relative to an even share: 1 is fair, 0 is an expert that no token reached. A mixture that
collapses keeps training and its loss looks ordinary, which is why this is watched.
"""

import logging
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from models.astro_moe import Output
from models.lightcurve import Int64
from training.score.metrics import confusion, macro_f1

log = logging.getLogger(__name__)

STARVED = 0.1  # of an even share


@dataclass(slots=True, eq=False)
class Interval:
    """Sums over the steps since the last line of the log."""

    started: float = field(default_factory=time.perf_counter)
    losses: list[float] = field(default_factory=list)
    aux_losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    curves: int = 0
    points: int = 0
    slots: int = 0
    confusions: list[Int64] = field(default_factory=list)
    loads: list[dict[str, NDArray[np.int64]]] = field(default_factory=list)

    def add(self, output: Output, mask_BL: Tensor, label_B: Tensor, loss: Tensor, norm: Tensor) -> None:
        """Take in one step."""
        predicted_B = output.logits_mix_BC.detach().argmax(1).numpy()
        self.confusions.append(confusion(label_B.numpy(), predicted_B, output.logits_mix_BC.shape[1]))
        self.losses.append(loss.item())
        self.aux_losses.append(output.aux_loss.item())
        self.norms.append(norm.item())
        self.curves += len(label_B)
        self.points += int(mask_BL.sum())
        self.slots += mask_BL.numel()
        self.loads.append(_loads(output))

    def line(self) -> dict[str, Any]:
        """The interval's means, ready for the log."""
        return {
            "loss": float(np.mean(self.losses)),
            "aux_loss": float(np.mean(self.aux_losses)),
            "gradient_norm": float(np.mean(self.norms)),
            "macro_f1": macro_f1(np.sum(self.confusions, axis=0)),
            "curves_per_second": self.curves / (time.perf_counter() - self.started),
            "padding": 1 - self.points / self.slots,
            "expert_load": self.expert_load(),
        }

    def expert_load(self) -> dict[str, list[float]]:
        """Smallest and largest load of an expert in every mixture, relative to an even share."""
        totals = {name: np.sum([load[name] for load in self.loads], axis=0) for name in self.loads[0]}
        shares = {name: load * len(load) / load.sum() for name, load in totals.items() if load.sum() > 0}
        return {name: [round(float(share.min()), 3), round(float(share.max()), 3)] for name, share in shares.items()}


def _loads(output: Output) -> dict[str, NDArray[np.int64]]:
    """Assignments per expert of every mixture; empty arrays of a dense network are left out."""
    rows = {"input": output.input_expert_load_1X.reshape(-1)}
    rows |= {f"block_{number}": row for number, row in enumerate(output.expert_load_SX)}
    return {name: row.numpy() for name, row in rows.items() if row.numel()}


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
