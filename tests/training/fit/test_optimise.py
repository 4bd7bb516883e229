"""Parameter groups with different learning rates, and frozen parameters."""

import pytest
import torch
from torch import nn

from nightjar_alerts.training.fit.loop import make_optimizer, set_lr
from nightjar_alerts.training.recipes.schema import OptimizerConfig


class WithStatistics(nn.ModuleDict):
    """A network whose statistics are new where weights were transferred."""

    new_parameters = ("head", "statistics")


def network() -> nn.ModuleDict:
    torch.manual_seed(0)
    return WithStatistics({"body": nn.Linear(3, 4), "statistics": nn.Linear(3, 4), "head_mix": nn.Linear(8, 2)})


def moved(config: OptimizerConfig, steps: int = 1) -> dict[str, float]:
    """Distance that the weights of every part went."""
    parts = network()
    before = {name: value.clone() for name, value in parts.state_dict().items()}
    optimizer = make_optimizer(config, parts)
    for _ in range(steps):
        set_lr(optimizer, config.lr)
        x = torch.cat([parts[name](torch.ones(5, 3)) for name in ("body", "statistics")], dim=1)
        parts["head_mix"](x).square().sum().backward()
        optimizer.step()
    return {name: float((parts.state_dict()[name] - value).abs().max()) for name, value in before.items()}


@pytest.mark.parametrize("decay", ["all", "matrices"])
def test_body_lr_scales_the_learning_rate_of_the_body(decay: str) -> None:
    config = OptimizerConfig.model_validate({"lr": 1e-2, "body_lr": 0.25, "decay": decay})
    went = moved(config)  # Adam's first step is as long as the rate
    for name, distance in went.items():
        assert distance == pytest.approx(2.5e-3 if name.startswith("body") else 1e-2, rel=1e-3)


def test_a_frozen_body_needs_no_gradient_and_stays_as_it_is() -> None:
    parts = network()
    make_optimizer(OptimizerConfig(body_lr=0.0), parts)
    assert [name for name, one in parts.named_parameters() if not one.requires_grad] == ["body.weight", "body.bias"]
    went = moved(OptimizerConfig(lr=1e-2, body_lr=0.0, weight_decay=0.5), steps=3)
    assert went["body.weight"] == went["body.bias"] == 0.0
    assert min(went["statistics.weight"], went["head_mix.weight"]) > 0.0


def test_make_optimizer_without_new_parameters_treats_heads_as_new() -> None:
    parts = nn.ModuleDict({"statistics": nn.Linear(3, 4), "head": nn.Linear(4, 2)})
    make_optimizer(OptimizerConfig(body_lr=0.0), parts)
    assert [name for name, one in parts.named_parameters() if one.requires_grad] == ["head.weight", "head.bias"]


def test_without_shares_there_is_one_group() -> None:
    assert len(make_optimizer(OptimizerConfig(), network()).param_groups) == 1
