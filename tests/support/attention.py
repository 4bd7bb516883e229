"""Shared by the tests of the kinds of attention: a dense oracle in float64, random heads, a layer on a padded grid."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightjar_alerts.models.networks.parts.attention import AttentionConfig, SelfAttention
from nightjar_alerts.models.networks.parts.packing import Packing, pack_values

Array = NDArray[np.float64]

KINDS: dict[str, dict[str, Any]] = {
    "exact": {"kind": "exact"},
    "grouped_query": {"kind": "grouped_query", "n_groups": 2},
    "probsparse": {"kind": "probsparse", "factor": 2},
    "probsparse-paper": {"kind": "probsparse", "factor": 2, "sparsity": "paper"},
    "linformer": {"kind": "linformer", "n_projected": 6},
    "performer": {"kind": "performer", "n_features": 12},
    "reformer": {"kind": "reformer", "chunk": 4, "n_rounds": 2},
}
CAUSAL = [kind for kind in KINDS if kind != "linformer"]
FORMS = [(kind, False) for kind in KINDS] + [(kind, True) for kind in CAUSAL]
WIDTH, N_HEADS = 16, 4


def layer(kind: str, causal: bool = False, seed: int = 0) -> SelfAttention:
    """A layer in evaluation mode with scores of order one, so that attention is far from uniform."""
    torch.manual_seed(seed)
    config = AttentionConfig.model_validate({"max_length": 150} | KINDS[kind])
    attention = SelfAttention(WIDTH, N_HEADS, config=config, causal=causal).eval()
    torch.nn.init.normal_(attention.qkv.weight, std=0.5)
    return attention


def on_grid(attention: SelfAttention, x_BSD: Tensor, mask_BS: Tensor) -> Tensor:
    """Attend on a padded grid; empty places come back as zero."""
    packing = Packing.of(mask_BS, leading=False)
    return packing.unpack(attention(pack_values(x_BSD, mask_BS), packing)) * mask_BS[..., None]


def heads(*shape: int, seed: int = 0, scale: float = 1.5) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of a shape [B, H, S, E], in float64."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    return query * scale, key * scale, value


def ragged(*lengths: int, places: int | None = None) -> Tensor:
    """Mask [B, S] of rows of these lengths, padded at the end."""
    place_S = torch.arange(max(lengths) if places is None else places)
    return place_S < torch.tensor(lengths)[:, None]


def softmax(score: Array) -> Array:
    """Softmax along the last axis."""
    weight = np.exp(score - score.max(-1, keepdims=True))
    total: Array = weight / weight.sum(-1, keepdims=True)
    return total


def dense(query: Tensor, key: Tensor, value: Tensor, mask_BS: Tensor | None = None, causal: bool = False) -> Array:
    """softmax(q k / sqrt(E)) v over the keys that may be seen, as a formula: [B, H, S, E]."""
    q, k, v = (x.detach().double().numpy() for x in (query, key, value))
    score = np.einsum("bhqe,bhse->bhqs", q, k) / np.sqrt(v.shape[-1])
    if mask_BS is not None:
        score = np.where(mask_BS.numpy()[:, None, None], score, -np.inf)
    if causal:
        score = np.where(np.tril(np.ones(score.shape[-2:], dtype=bool)), score, -np.inf)
    mixed: Array = softmax(score) @ v
    return mixed
