"""Optimisers, learning rates and averages of weights, and the watch over steps and experts that the log reports.

**Watching the experts**: an alarm, layer by layer, when a mixture stops using some of them. Expert load is given
relative to an even share: 1 is fair, 0 is an expert that no token reached. A mixture that collapses keeps training and
its loss looks ordinary, which is why this is watched. Every log line carries the smallest and largest load of each
mixture (``expert_load``) and, once an expert has stayed under a tenth of its even share for three lines in a row, its
number (``starved_experts``); the moment it gets there is a warning.

**Moving the weights**: AdamW and its decay groups, the learning rate over a run, the average of the weights. The
average starts fast and slows down to its decay (:func:`update_average`), so a short run does not drag its random start
along.
"""

import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.networks.network import Output, Reconstruction
from training.fit.distributed import Ranks
from training.recipes.schema import OptimiserConfig, ScheduleConfig


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


log = logging.getLogger(__name__)

STARVED = 0.1  # of an even share
INTERVALS = 3  # between log lines, in a row
_PREFIX = "load/"

Shares = dict[str, NDArray[np.float64]]


def expert_loads(output: Output | Reconstruction) -> dict[str, Tensor]:
    """Return assignments per expert of every mixture, for the log of a step; empty for a network without mixtures."""
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


NEW = ("head", "statistics")  # what begins with these is new to a network whose weights were transferred

Group = dict[str, Any]


def make_optimiser(config: OptimiserConfig, network: nn.Module) -> torch.optim.Optimizer:
    """AdamW over what is trained; ``decay = "matrices"`` spares everything of one dimension.

    With ``body_lr`` other than 1 all but the heads and the statistics learn at that share of the rate (discriminative
    fine-tuning, Howard & Ruder 2018); with 0 they need no gradients and get none.
    """
    body = {name for name, _ in network.named_parameters() if not name.startswith(NEW)}
    if config.body_lr == 1:
        groups = _groups(config, list(network.parameters()), 1.0)
    else:
        for name in body:
            network.get_parameter(name).requires_grad_(config.body_lr > 0)
        groups = _groups(config, [part for name, part in network.named_parameters() if name not in body], 1.0)
        groups += _groups(config, [part for name, part in network.named_parameters() if name in body], config.body_lr)
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True)


def set_lr(optimiser: torch.optim.Optimizer, lr: float) -> None:
    """Set the rate of the heads; groups that learn at a share of it get their share."""
    for group in optimiser.param_groups:
        group["lr"] = lr * group.get("share", 1.0)


def _groups(config: OptimiserConfig, parameters: Sequence[nn.Parameter], share: float) -> list[Group]:
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    decayed = [parameter for parameter in trained if config.decay == "all" or parameter.ndim > 1]
    kept = [parameter for parameter in trained if config.decay == "matrices" and parameter.ndim <= 1]
    found: list[Group] = [{"params": decayed}, {"params": kept, "weight_decay": 0.0}]
    return [group | ({} if share == 1 else {"share": share}) for group in found if group["params"]]


def lr_factor(step: int, schedule: ScheduleConfig) -> float:
    """Learning rate at a step (from 0) as a share of the peak: linear warm-up, then constant or cosines.

    Several cosines are warm restarts (Loshchilov & Hutter 2017, SGDR); the warm-up is part of the first.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    if schedule.shape == "constant":
        return 1.0
    length = math.ceil(schedule.steps / schedule.cycles)
    cycle = min(step // length, schedule.cycles - 1)
    warmup = schedule.warmup_steps if cycle == 0 else 0
    phase = (step - cycle * length - warmup) / max(1, length - warmup)
    return schedule.final_fraction + (1 - schedule.final_fraction) * 0.5 * (1 + math.cos(math.pi * min(1.0, phase)))


def clip_gradients(config: OptimiserConfig, network: nn.Module) -> torch.Tensor:
    """Scale all gradients together down to the norm allowed; return the norm they had."""
    limit = math.inf if config.clip_norm is None else config.clip_norm
    return torch.nn.utils.clip_grad_norm_(network.parameters(), limit)


def update_average(average: nn.Module, network: nn.Module, decay: float, step: int) -> None:
    """Move averaged weights towards the current ones; young averages move faster, so they forget the random start."""
    weight = max(1 - decay, 9 / (10 + step))
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), weight)
        for kept, current in zip(average.buffers(), network.buffers(), strict=True):
            kept.copy_(current)
