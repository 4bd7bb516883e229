"""RoMAE restated in float64 numpy from its equations, one object at a time and without padding.

Weights are a plain dict of arrays under our networks' state-dict names; ``released_state`` renames the reference
tensors' weights to them. Legend: S tokens, D width, H heads, E = D / H, A axes.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Array = NDArray[np.float64]
Weights = dict[str, Array]


def weights_of(network: nn.Module) -> Weights:
    return {name: value.numpy().astype(np.float64) for name, value in network.state_dict().items()}


def under(weights: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def rotate(
    x_SE: Array, position_SA: Array, p: float = 0.75, base: float = 10_000.0, *, keep_lowest: bool = False
) -> Array:
    """Turn channel i of an axis and channel i + a/2 of it by position * base^(-2i/a), pair by pair."""
    n_tokens, n_axes = position_SA.shape
    axis_dim = x_SE.shape[1] // n_axes
    n_pairs = axis_dim // 2
    n_kept = int(np.floor(p * n_pairs))
    kept = range(n_pairs - n_kept, n_pairs) if keep_lowest else range(n_kept)
    out = x_SE.copy()
    for token in range(n_tokens):
        for axis in range(n_axes):
            for i in kept:
                one, other = axis * axis_dim + i, axis * axis_dim + n_pairs + i
                angle = position_SA[token, axis] * base ** (-2 * i / axis_dim)
                turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
                out[token, [one, other]] = turn @ x_SE[token, [one, other]]
    return out


def rms_norm(x: Array, gain: Array) -> Array:
    normed: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12) * gain
    return normed


def block(w: Weights, x_SD: Array, position_SA: Array, n_heads: int) -> Array:
    """x += Attention(RMSNorm x); x += W2 SiLU(W1 RMSNorm x)."""
    width = x_SD.shape[1]
    query, key, value = np.split(rms_norm(x_SD, w["norm1.weight"]) @ w["attention.qkv.weight"].T, 3, axis=1)
    mixed = np.empty_like(x_SD)
    for head in np.split(np.arange(width), n_heads):
        scores = rotate(query[:, head], position_SA) @ rotate(key[:, head], position_SA).T / np.sqrt(width / n_heads)
        share = np.exp(scores - scores.max(1, keepdims=True))
        mixed[:, head] = share / share.sum(1, keepdims=True) @ value[:, head]
    x_SD = x_SD + mixed @ w["attention.out.weight"].T
    hidden = rms_norm(x_SD, w["norm2.weight"]) @ w["feed_forward.0.weight"].T
    x_SD = x_SD + (hidden / (1 + np.exp(-hidden))) @ w["feed_forward.2.weight"].T
    return x_SD


def encode(w: Weights, x_SD: Array, position_SA: Array, n_heads: int) -> Array:
    if not len(x_SD):
        return x_SD  # an object without a visible token
    depth = 1 + max(int(name.split(".")[1]) for name in w)
    for index in range(depth):
        x_SD = block(under(w, f"blocks.{index}."), x_SD, position_SA, n_heads)
    return x_SD


def embed(w: Weights, values_SK: Array, position_SA: Array) -> tuple[Array, Array]:
    """Tokens and positions, with the [CLS] token first at position 0 where there is one."""
    x_SD = values_SK @ w["projection.weight"].T + w["projection.bias"]
    if "cls_1D" not in w:
        return x_SD, position_SA
    return np.concatenate([w["cls_1D"], x_SD]), np.pad(position_SA, ((1, 0), (0, 0)))


def head(w: Weights, x: Array) -> Array:
    out: Array = rms_norm(x, w["1.weight"]) @ w["2.weight"].T + w["2.bias"]
    return out


def sequence(w: Weights, values_SK: Array, position_SA: Array, n_heads: int, readout: str) -> Array:
    """Outputs [O] of one object, or [S, O] of its tokens."""
    x_SD, position_SA = embed(under(w, "embedding."), values_SK, position_SA)
    x_SD = encode(under(w, "encoder."), x_SD, position_SA, n_heads)
    tokens = x_SD[-len(values_SK) :]
    pooled = {"cls": x_SD[0], "mean": tokens.mean(0), "token": tokens}[readout]
    return head(under(w, "head."), pooled)


def autoencode(w: Weights, values_SK: Array, position_SA: Array, hidden_S: NDArray[np.bool_], n_heads: int) -> Array:
    """Values of the hidden tokens of one object, in order."""
    decoder = under(w, "decoder.")
    x_SD, visible_SA = embed(under(w, "embedding."), values_SK[~hidden_S], position_SA[~hidden_S])
    x_SD = encode(under(w, "encoder."), x_SD, visible_SA, n_heads)
    x_SD = x_SD @ decoder["projection.weight"].T + decoder["projection.bias"]
    x_SD = np.concatenate([x_SD, np.tile(decoder["mask_token_D"], (hidden_S.sum(), 1))])
    x_SD = encode(under(decoder, "blocks."), x_SD, np.concatenate([visible_SA, position_SA[hidden_S]]), n_heads)
    return head(under(decoder, "head."), x_SD[len(visible_SA) :])


def released_state(weights: dict[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
    """State dict of ours from the released code's."""
    state: dict[str, torch.Tensor] = {}
    plain = {
        "cls": "embedding.cls_1D",
        "mask_token": "decoder.mask_token_D",
        "encoder_decoder_proj.weight": "decoder.projection.weight",
        "encoder_decoder_proj.bias": "decoder.projection.bias",
        "projection.weight": "embedding.projection.weight",
        "projection.bias": "embedding.projection.bias",
    }
    parts = {
        "attention.wo.weight": "attention.out.weight",
        "feed_forward.w1.weight": "feed_forward.0.weight",
        "feed_forward.w2.weight": "feed_forward.2.weight",
        "attention_norm.weight": "norm1.weight",
        "ffn_norm.weight": "norm2.weight",
    }
    for name, value in weights.items():
        tensor = torch.from_numpy(value)
        if name in plain:
            row = tensor.reshape(1, -1) if name == "cls" else tensor
            state[plain[name]] = tensor.flatten() if name == "mask_token" else row
        elif name.startswith("head.head."):
            side = "decoder.head." if "mask_token" in weights else "head."
            state[side + name.removeprefix("head.head.")] = tensor
        elif ".layers." in name:
            side, _, index, part = name.split(".", 3)
            ours = f"{'decoder.blocks' if side == 'decoder' else side}.blocks.{index}."
            if part == "attention.wq.weight":
                stack = [torch.from_numpy(weights[name.replace("wq", letter)]) for letter in ("wq", "wk", "wv")]
                state[ours + "attention.qkv.weight"] = torch.cat(stack)
            elif part in parts:
                state[ours + parts[part]] = tensor
    return state
