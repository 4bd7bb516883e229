"""How weights move: AdamW and its decay groups, the learning rate over a run, the average of the weights.

Notable: the average starts fast and slows down to its decay (:func:`update_average`), so a short run does not drag its
random start along.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from training.recipes.schema import OptimiserConfig, ScheduleConfig

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
