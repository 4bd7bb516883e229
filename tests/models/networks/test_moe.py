"""Routing, experts and balance loss against float64 restatements of Astro-MoE eqs 1-5."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nightjar_alerts.models.networks.parts.packing import apply_grouped, mix_grouped
from nightjar_alerts.models.networks.parts.transformer import FeedForwardExperts, InputExperts, Router

Float = NDArray[np.float64]


def _softmax(x: Float) -> Float:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _gelu(x: Float) -> Float:
    return np.asarray(0.5 * x * (1 + torch.erf(torch.from_numpy(x) / np.sqrt(2)).numpy()))


def _array(tensor: torch.Tensor) -> Float:
    return tensor.detach().double().numpy()


def _feed_forward_oracle(layer: FeedForwardExperts, x_ND: Float) -> Float:
    """Eqs 1-3, one token and one expert at a time."""
    gate, k = layer.router.gate, layer.router.top_k
    y_ND = np.zeros_like(x_ND)
    for n, x_D in enumerate(x_ND):
        logits_E = _array(gate.weight) @ x_D + _array(gate.bias)
        kept = np.argsort(-logits_E, kind="stable")[:k]
        weights = _softmax(logits_E[kept])
        for weight, e in zip(weights, kept, strict=True):
            hidden_F = _gelu(x_D @ _array(layer.w1_EDF[e]) + _array(layer.b1_EF[e]))
            y_ND[n] += weight * (hidden_F @ _array(layer.w2_EFD[e]) + _array(layer.b2_ED[e]))
    return y_ND


def _randomise(module: torch.nn.Module, seed: int = 0) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()


@pytest.mark.parametrize(("n_experts", "top_k"), [(8, 2), (4, 1), (5, 3), (4, 4)])
def test_feed_forward_experts_agree_with_the_equations(n_experts: int, top_k: int) -> None:
    layer = FeedForwardExperts(6, 10, n_experts, top_k).double()
    _randomise(layer)
    x_ND = np.random.default_rng(1).normal(size=(33, 6))
    y_ND, routing = layer(torch.from_numpy(x_ND))
    np.testing.assert_allclose(_array(y_ND), _feed_forward_oracle(layer, x_ND), atol=1e-5)
    assert int(routing.load_E().sum()) == 33 * top_k


def test_input_experts_agree_with_equation_4() -> None:
    layer = InputExperts(2, 7, 6, 2).double()
    _randomise(layer)
    x_NI = np.random.default_rng(1).normal(size=(40, 2))
    y_ND, routing = layer(torch.from_numpy(x_NI))
    gate = layer.router.gate
    for n, x_I in enumerate(x_NI):
        logits_E = _array(gate.weight) @ x_I + _array(gate.bias)
        kept = np.argsort(-logits_E)[:2]
        expected = sum(
            w * (x_I @ _array(layer.weight_EID[e])) for w, e in zip(_softmax(logits_E[kept]), kept, strict=True)
        )
        np.testing.assert_allclose(_array(y_ND[n]), expected, atol=1e-5)
        assert set(routing.expert_NK[n].tolist()) == set(kept.tolist())


def test_fanned_out_gates_leave_no_input_expert_idle() -> None:
    layer = InputExperts(2, 4, 6, 2)
    layer.fan_out_gate()
    rng = np.random.default_rng(0)
    observations = np.stack([rng.normal(0, 4, 2000), np.abs(rng.normal(2, 1, 2000))], 1).astype(np.float32)
    load_E = layer(torch.from_numpy(observations))[1].load_E()
    assert int(load_E.min()) > 0


def test_softmax_over_all_logits_is_the_other_reading() -> None:
    router = Router(3, 5, 2, "full").double()
    _randomise(router)
    x_ND = torch.randn(9, 3, dtype=torch.float64)
    with torch.no_grad():
        routing = router(x_ND)
    full_NE = _softmax(_array(routing.logits_NE))
    np.testing.assert_allclose(_array(routing.weight_NK), -np.sort(-full_NE, axis=1)[:, :2], atol=1e-6)
    assert float(routing.weight_NK.sum(1).max()) < 1.0


def test_balance_loss_is_reading_b_of_equation_5() -> None:
    router = Router(4, 6, 2, "topk").double()
    _randomise(router)
    with torch.no_grad():
        routing = router(torch.randn(50, 4, dtype=torch.float64))
    probability_NE = _softmax(_array(routing.logits_NE))
    share_E = np.bincount(routing.expert_NK.flatten().numpy(), minlength=6) / 50
    expected = 6 * float((probability_NE.mean(0) * share_E).sum())
    assert float(routing.balance_loss()) == pytest.approx(expected, abs=1e-6)


def test_balance_loss_is_k_when_the_load_is_even() -> None:
    router = Router(4, 4, 2, "topk")
    with torch.no_grad():
        router.gate.weight.copy_(torch.eye(4) * 1e-4)
        router.gate.bias.zero_()
    x_ND = torch.eye(4) + torch.roll(torch.eye(4), 1, 1)  # tokens that prefer (0, 1), (1, 2), (2, 3), (3, 0)
    with torch.no_grad():
        assert float(router(x_ND).balance_loss()) == pytest.approx(2.0, abs=1e-4)


def test_grouping_sends_each_row_to_its_own_groups_only() -> None:
    x_ND = torch.arange(12, dtype=torch.float32).reshape(6, 2)
    group_NK = torch.tensor([[0, 2], [2, 0], [1, 2], [0, 1], [2, 1], [1, 0]])
    seen: dict[int, int] = {}

    def function(group: int, rows: torch.Tensor) -> torch.Tensor:
        seen[group] = rows.shape[0]
        return rows * 10 + group

    y_NKD = apply_grouped(x_ND, group_NK, 4, function)
    torch.testing.assert_close(y_NKD, x_ND[:, None] * 10 + group_NK[..., None])
    assert seen == {0: 4, 1: 4, 2: 4, 3: 0}
    torch.testing.assert_close(apply_grouped(x_ND, group_NK[:, 1], 4, function), x_ND * 10 + group_NK[:, 1:])
    assert seen == {0: 2, 1: 2, 2: 2, 3: 0}


def test_choices_are_weighed_and_added_up() -> None:
    torch.manual_seed(0)
    x_ND, weight_NK = torch.randn(7, 3), torch.rand(7, 2)
    group_NK = torch.stack([torch.randperm(4)[:2] for _ in range(7)])

    def function(group: int, rows: torch.Tensor) -> torch.Tensor:
        return rows * 10 + group

    each_NKD = apply_grouped(x_ND, group_NK, 4, function)
    mixed_ND = mix_grouped(x_ND, group_NK, weight_NK, 4, function)
    torch.testing.assert_close(mixed_ND, (each_NKD * weight_NK[..., None]).sum(1))
