"""How weights move: AdamW and its decay groups, the learning rate over a run, the average of the weights.

Notable: the average starts fast and slows down to its decay (:func:`update_average`), so a short run does not drag its
random start along.
"""

import math
from typing import Any

import torch
from torch import nn

from training.recipes.schema import OptimiserConfig, ScheduleConfig


def make_optimiser(config: OptimiserConfig, network: nn.Module) -> torch.optim.Optimizer:
    """AdamW over what is trained; ``decay = "matrices"`` spares everything of one dimension."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in trained if config.decay == "all" or parameter.ndim > 1]
    kept = [parameter for parameter in trained if config.decay == "matrices" and parameter.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": decayed}]
    if kept:
        groups.append({"params": kept, "weight_decay": 0.0})
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True)


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
