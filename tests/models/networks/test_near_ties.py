"""Answers that rounding alone changes: a light curve whose answers differ has two choices that are all but equal.

A network is run in float32 and in float64. Where their probabilities differ by more than :data:`NEAR`, some choice of a
router came out otherwise, and the logits that it chose between are nearer than rounding tells apart. No other light
curve differs.
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.network import NetworkOutput
from nightjar_alerts.models.networks.parts.transformer import Router, Routing
from nightjar_alerts.training.export.weights import random_inputs
from support.bundles import tiny_network

NEAR = 1e-5  # probabilities that count as equal
TIE = 1e-5  # of the logits' size
CURVES = 40


class Run(NamedTuple):
    """Probabilities of one light curve, experts that its routers chose, least distance of a choice to the next best."""

    probabilities: torch.Tensor
    experts: torch.Tensor
    gap: float


def run(network: AstroMoE, seed: int, dtype: torch.dtype) -> Run:
    inputs = {name: torch.from_numpy(array) for name, array in random_inputs(1, 12, seed=seed).items()}
    seen: list[Routing] = []
    routers = [module for module in network.modules() if isinstance(module, Router)]
    hooks = [router.register_forward_hook(lambda _module, _inputs, routing: seen.append(routing)) for router in routers]
    arguments = [
        inputs[name].to(dtype) if inputs[name].is_floating_point() else inputs[name] for name in network.input_names
    ]
    with torch.no_grad():
        output: NetworkOutput = network.to(dtype)(*arguments)
    for hook in hooks:
        hook.remove()
    experts = torch.cat([routing.expert_NK.sort(1).values.flatten() for routing in seen])
    return Run(output.logits_BC.double().softmax(-1)[0], experts, min(_gap(routing) for routing in seen))


def _gap(routing: Routing) -> float:
    """Least distance between the last logit that is kept and the first that is not, over the size of the logits."""
    kept = routing.expert_NK.shape[1]
    sorted_NE = routing.logits_NE.double().sort(1, descending=True).values
    size_N = routing.logits_NE.abs().amax(1).clamp(min=1e-3)
    return float(((sorted_NE[:, kept - 1] - sorted_NE[:, kept]) / size_N).min())


def both(network: AstroMoE, seed: int) -> tuple[Run, Run]:
    return run(network, seed, torch.float32), run(network, seed, torch.float64)


def with_a_tie(network: AstroMoE) -> AstroMoE:
    """Make two experts of the first block rivals that only rounding tells apart."""
    gate = network.light_curve.blocks[0].feed_forward.router.gate  # type: ignore[union-attr]  # this network has them
    assert isinstance(gate, torch.nn.Linear)
    with torch.no_grad():
        gate.weight[1] = gate.weight[0] * (1 + 1e-7)
        gate.bias[1] = gate.bias[0]
    return network


def test_without_a_tie_rounding_changes_no_answer() -> None:
    network = tiny_network()
    for seed in range(CURVES):
        single, double = both(network, seed)
        if double.gap > TIE:
            assert torch.equal(single.experts, double.experts)
            assert float((single.probabilities - double.probabilities).abs().max()) <= NEAR


def test_answers_that_differ_had_a_tie_to_choose_from() -> None:
    network, differing = with_a_tie(tiny_network()), 0
    for seed in range(CURVES):
        single, double = both(network, seed)
        if float((single.probabilities - double.probabilities).abs().max()) > NEAR:
            differing += 1
            assert not torch.equal(single.experts, double.experts)
            assert double.gap <= TIE
    assert differing >= 3  # the rivals are met


def test_the_gap_is_that_between_the_kept_and_the_rest() -> None:
    logits = torch.tensor([[4.0, 1.0, 3.0, 2.5], [1.0, 5.0, 4.0, -5.0]])
    values, experts = logits.topk(2, dim=1)
    assert _gap(Routing(experts, values, logits)) == pytest.approx(np.min([0.5 / 4, 3.0 / 5]))
