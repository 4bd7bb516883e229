"""ASTROMER's equations in float64 numpy, written from their published form, against the networks."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from nightjar_alerts.models.networks.astromer import (
    LAYER_NORM_EPS,
    AstromerConfig,
    AstromerEncoder,
    LstmHead,
    PoolHead,
    reconstruction_head,
)
from support.astromer import tiny

Array = NDArray[np.float64]
Weights = dict[str, Array]


def float64(module: nn.Module) -> Weights:
    return {name: value.detach().double().numpy() for name, value in module.state_dict().items()}


def linear(x: Array, w: Weights, name: str) -> Array:
    return np.asarray(x @ w[f"{name}.weight"].T + w[f"{name}.bias"])


def layer_norm(x: Array, w: Weights, name: str) -> Array:
    spread = np.sqrt(x.var(-1, keepdims=True) + LAYER_NORM_EPS)
    return np.asarray((x - x.mean(-1, keepdims=True)) / spread * w[f"{name}.weight"] + w[f"{name}.bias"])


def softmax(x: Array) -> Array:
    weight = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(weight / weight.sum(-1, keepdims=True))


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def time_encoding(time: Array, width: int, base: float, c: float) -> Array:
    encoding = np.zeros((len(time), width))
    for i in range(width):
        angle = time * base ** (-c * i / width)
        encoding[:, i] = np.sin(angle) if i % 2 == 0 else np.cos(angle)
    return encoding


def logit_mask(blocked: NDArray[np.bool_], config: AstromerConfig) -> Array:
    """Numbers added to the logits [query, key] to mask them."""
    formats = {
        "K": np.broadcast_to(blocked[None, :], (len(blocked),) * 2),
        "Q": np.broadcast_to(blocked[:, None], (len(blocked),) * 2),
        "QK": blocked[None, :] | blocked[:, None],
    }
    return np.where(formats[config.mask_format], config.m_alpha, 0.0)


def attention(x: Array, w: Weights, name: str, mask: Array, n_heads: int) -> Array:
    heads = []
    for query, key, value in zip(
        *(np.split(part, n_heads, axis=1) for part in np.split(linear(x, w, f"{name}.qkv"), 3, axis=1)), strict=True
    ):
        heads.append(softmax(query @ key.T / np.sqrt(query.shape[1]) + mask) @ value)
    return linear(np.concatenate(heads, axis=1), w, f"{name}.out")


def block(x: Array, w: Weights, name: str, mask: Array, config: AstromerConfig) -> Array:
    def around(x: Array, number: int) -> Array:
        if config.version == "note":
            return x
        return linear(x, w, f"{name}.skip{number}") if config.leak else np.zeros_like(x)

    x = layer_norm(around(x, 1) + attention(x, w, f"{name}.attention", mask, config.n_heads), w, f"{name}.norm1")
    hidden = np.tanh(linear(x, w, f"{name}.feed_forward.layers.0"))
    return layer_norm(around(x, 2) + linear(hidden, w, f"{name}.feed_forward.layers.2"), w, f"{name}.norm2")


def encode(value: Array, time: Array, blocked: NDArray[np.bool_], w: Weights, config: AstromerConfig) -> Array:
    x = linear(value[:, None], w, "embed") + time_encoding(time, config.d_model, config.pe_base, config.pe_exponent)
    mask, layers = logit_mask(blocked, config), []
    for number in range(config.n_blocks):
        x = block(x, w, f"blocks.{number}", mask, config)
        layers.append(x)
    if not config.layer_mix:
        return x
    return np.asarray(np.mean(softmax(w["mix.gamma_Y"])[:, None, None] * np.stack(layers), axis=0))


def lstm(x: Array, w: Weights, name: str) -> Array:
    hidden = w[f"{name}.weight_hh_l0"].shape[1]
    h = c = np.zeros(hidden)
    states = []
    for step in x:
        gates = w[f"{name}.weight_ih_l0"] @ step + w[f"{name}.bias_ih_l0"]
        gates = gates + w[f"{name}.weight_hh_l0"] @ h + w[f"{name}.bias_hh_l0"]
        enter, forget, cell, leave = np.split(gates, 4)
        c = sigmoid(forget) * c + sigmoid(enter) * np.tanh(cell)
        h = sigmoid(leave) * np.tanh(c)
        states.append(h)
    return np.stack(states)


def shaken(module: nn.Module) -> nn.Module:
    """Norms and biases away from their neutral start, so that leaving one out shows."""
    for parameter in module.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return module.eval()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pe_base": 10_000.0, "pe_exponent": 2.0, "n_heads": 4, "n_blocks": 3},
        {"version": "v0"},
        {"version": "v0", "leak": True},
        {"version": "v0", "mask_format": "QK", "m_alpha": 1.0},
        {"version": "note", "mask_format": "K", "m_alpha": -0.5},
        {"version": "v2", "mask_format": "Q", "m_alpha": -0.5},
        {"version": "v2", "layer_mix": True, "n_blocks": 3},
    ],
)
def test_encoder(changes: dict[str, object]) -> None:
    torch.manual_seed(3)
    config = tiny(**changes)
    network = shaken(AstromerEncoder(config))
    value, time = torch.randn(3, 14), torch.randn(3, 14) * 150
    mask = torch.arange(14) < torch.tensor([[14], [9], [5]])
    hidden = (torch.rand(3, 14) < 0.4) & mask & (torch.arange(14) > 0)
    value, time = value * mask, time * mask
    with torch.no_grad():
        encoded = network(value, time, mask, hidden).double().numpy()
    for row in range(3):
        # Padding is part of the sequence for the released masks, and excluded by the correct one.
        kept = mask[row].numpy() if config.excludes else np.ones(14, dtype=np.bool_)
        blocked = ~mask[row].numpy() | hidden[row].numpy()
        columns = (value[row].double().numpy()[kept], time[row].double().numpy()[kept], blocked[kept])
        np.testing.assert_allclose(encoded[row][kept], encode(*columns, float64(network), config), atol=2e-5)


def test_lstm_head() -> None:
    torch.manual_seed(4)
    head = shaken(LstmHead(8, 6, 3))
    w, x, counts = float64(head), torch.randn(3, 7, 8), [7, 1, 4]
    with torch.no_grad():
        logits, embedding = head(x, torch.arange(7) < torch.tensor(counts)[:, None])
    for row, count in enumerate(counts):
        state = x[row, :count].double().numpy()
        for number in range(2):
            state = lstm(layer_norm(state, w, f"norms.{number}"), w, f"layers.{number}")
        last = layer_norm(state[-1], w, "norms.2")
        np.testing.assert_allclose(embedding[row], last, atol=1e-5)
        np.testing.assert_allclose(logits[row], linear(last, w, "out"), atol=1e-5)


def test_pool_head() -> None:
    torch.manual_seed(5)
    head = shaken(PoolHead(8, (10, 9, 6), 3))
    w, x, counts = float64(head), torch.randn(3, 7, 8), [7, 1, 4]
    with torch.no_grad():
        logits, embedding = head(x, torch.arange(7) < torch.tensor(counts)[:, None])
    for row, count in enumerate(counts):
        state = x[row, :count].double().numpy().mean(0)
        for number in (0, 2, 4):
            state = np.maximum(linear(state, w, f"layers.{number}"), 0)
        state = layer_norm(state, w, "norm")
        np.testing.assert_allclose(embedding[row], state, atol=1e-5)
        np.testing.assert_allclose(logits[row], linear(state, w, "out"), atol=1e-5)


def test_reconstruction_head() -> None:
    torch.manual_seed(6)
    head, x = shaken(reconstruction_head(8)), torch.randn(5, 8)
    expected = linear(layer_norm(x.double().numpy(), float64(head), "0"), float64(head), "1")
    with torch.no_grad():
        np.testing.assert_allclose(head(x), expected, atol=1e-5)
