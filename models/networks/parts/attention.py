"""Multi-head attention over packed tokens: one layer with six kinds of attention, selected by a config field.

| kind            | mixes by                                                  | source                            |
|-----------------|-----------------------------------------------------------|-----------------------------------|
| `exact`         | softmax over all keys, fused                              | Vaswani et al. 2017               |
| `grouped_query` | the same, several heads sharing a key and value head      | Ainslie et al. 2023               |
| `probsparse`    | softmax for the most selective queries, a mean for others | Informer, Zhou et al. 2021        |
| `linformer`     | softmax over learned combinations of the keys             | Wang et al. 2020                  |
| `performer`     | a random-feature estimate of the softmax kernel           | Choromanski et al. 2021           |
| `reformer`      | softmax over keys of the same hash; queries are the keys  | Kitaev et al. 2020                |

Notable: light curves are ragged, so every kind takes a key mask, and the output for a row does not depend on padding or
on other rows: sample sizes, hash buckets and projections depend on the row's number of tokens, not on the padded
length. Random numbers are drawn once and stored with the weights, so inference is deterministic up to rounding, which
can decide between almost equal candidates (ProbSparse's queries, Reformer's buckets); in training ProbSparse draws new
numbers. Linformer cannot be causal and has a maximum row length.

Legend: B batch, S places, M packed tokens, H heads, G groups, D width, E = D / H.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from nightjar_alerts.models.networks.parts.attention_kernels import (
    ExactAttention,
    LinformerAttention,
    PerformerAttention,
    ProbSparseAttention,
    ReformerAttention,
    Sparsity,
    bias_where,
    shared_key,
)
from nightjar_alerts.models.networks.parts.packing import Packing

AttentionKind = Literal["exact", "probsparse", "linformer", "performer", "reformer", "grouped_query"]

PositionEncoding = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Adds positions to query and key, each [B, H, S, E]: rotates them, or widens both by the same number of columns."""


class AttentionConfig(BaseModel):
    """Kind of attention and its parameters; each kind ignores the parameters of the others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: AttentionKind = "exact"
    max_length: int = Field(default=1024, ge=1, description="longest expected row; the maximum for Linformer")
    factor: float = Field(default=5.0, gt=0, description="probsparse: sampled keys and attending queries per ln n")
    sparsity: Sparsity = Field(default="released", description="probsparse: reading of sample and measure")
    n_projected: int = Field(default=64, ge=1, description="linformer: combinations that replace the keys")
    n_features: int = Field(default=256, ge=1, description="performer: random features per head")
    chunk: int = Field(default=64, ge=1, description="reformer: tokens in a chunk, and maximum mean bucket size")
    n_rounds: int = Field(default=4, ge=1, description="reformer: rounds of hashing")
    n_groups: int = Field(default=2, ge=1, description="grouped_query: key and value heads")


class SelfAttention(nn.Module):
    """Attention within each row; keys outside ``packing.mask_BS`` are masked.

    Raises
    ------
    ValueError
        For causal Linformer, or if the width is not divisible by the heads, or the heads by the groups.
    """

    def __init__(
        self,
        width: int,
        n_heads: int,
        dropout: float = 0.0,
        *,
        bias: bool = True,
        config: AttentionConfig = AttentionConfig(),  # noqa: B008 (frozen)
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.head_width, self.dropout, self.n_heads = _head_width(width, n_heads), dropout, n_heads
        self.n_key_heads = config.n_groups if config.kind == "grouped_query" else n_heads
        if n_heads % self.n_key_heads:
            raise ValueError(f"{n_heads} heads do not divide into {self.n_key_heads} groups")
        self.kind = config.kind
        self.head_counts = (n_heads, 0 if config.kind == "reformer" else self.n_key_heads, self.n_key_heads)
        self.qkv = nn.Linear(width, sum(self.head_counts) * self.head_width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        self.kernel = _kernel(config, self.head_width, causal)

    def forward(self, x_MD: Tensor, packing: Packing, position: PositionEncoding | None = None) -> Tensor:
        """Attend within each row of the grid; packed tokens in and out, [M, D].

        ``position`` adds positions to query and key; the softmax scale stays 1 / sqrt(E) if it widens them. Performer
        and Reformer, whose random vectors have width E, raise ValueError in that case.
        """
        exported = torch.compiler.is_exporting() and len(set(self.head_counts)) == 1
        query, key, value = (self._gathered_heads if exported else self._heads)(self.qkv(x_MD), packing)
        if position is not None:
            query, key = position(query, key)
            if query.shape[3] != self.head_width and self.kind in ("performer", "reformer"):
                raise ValueError(f"{self.kind} attention takes no position that widens its queries")
        mixed_BHSE = self.kernel(query, key, value, packing.mask_BS, self.dropout if self.training else 0.0)
        mixed_MD = packing.pack_heads(mixed_BHSE) if exported else packing.pack(mixed_BHSE.transpose(1, 2).flatten(2))
        out: Tensor = self.out(mixed_MD)
        return out

    @property
    def supports_forward_leading(self) -> bool:
        """True if :meth:`forward_leading` is equivalent to :meth:`forward`, which it is for exact attention only."""
        return self.kind == "exact"

    def forward_leading(self, x_MD: Tensor, packing: Packing) -> Tensor:
        """Return the output of :meth:`forward` without positions for the leading token of each row, [B, D].

        The last block of a classifier needs only this one query per row. Keys and values of the other tokens are not
        computed: the query is multiplied by the key weights, and the value weights are applied after the weighted mean.
        The key bias adds the same constant to all scores of a query, so it is left out.
        """
        batch, width, heads = packing.mask_BS.shape[0], self.n_heads * self.head_width, self.n_heads
        weight_QD, bias_Q = self.qkv.weight, self.qkv.bias
        weight_3HED = weight_QD.view(3, heads, self.head_width, -1)
        query_BD = F.linear(x_MD[:batch], weight_QD[:width], None if bias_Q is None else bias_Q[:width])
        query_BH1D = query_BD.view(batch, heads, 1, -1) @ weight_3HED[1]
        x_B1SD = F.embedding(packing.token_BS[:, None], x_MD)
        score_BH1S = (query_BH1D * self.head_width**-0.5) @ x_B1SD.transpose(2, 3)
        score_BH1S = score_BH1S + bias_where(packing.mask_BS[:, None, None], x_MD.dtype)
        value_BD = (score_BH1S.softmax(-1) @ x_B1SD @ weight_3HED[2].transpose(1, 2)).flatten(1)
        out_BD: Tensor = self.out(value_BD if bias_Q is None else value_BD + bias_Q[2 * width :])
        return out_BD

    def _gathered_heads(self, qkv_MQ: Tensor, packing: Packing) -> tuple[Tensor, Tensor, Tensor]:
        """Return the heads of :meth:`_heads` by one gather each, which saves copies in an exported graph."""
        query_BHSE, key_BHSE, value_BHSE = packing.unpack_heads(qkv_MQ, 3, self.n_heads)
        return query_BHSE, key_BHSE, value_BHSE

    def _heads(self, qkv_MQ: Tensor, packing: Packing) -> tuple[Tensor, Tensor, Tensor]:
        """Split the concatenated projections into query, key and value, each [B, H, S, E]."""
        qkv_BSQ = packing.unpack(qkv_MQ)
        widths = [heads * self.head_width for heads in self.head_counts]
        query, key, value = (_split_heads(x, self.head_width) for x in torch.split(qkv_BSQ, widths, dim=2))
        if self.kind == "reformer":
            return query, shared_key(query), value
        return query, self._repeat_groups(key), self._repeat_groups(value)

    def _repeat_groups(self, x_BGSE: Tensor) -> Tensor:
        """Repeat the key or value of each group for all heads of the group."""
        if self.n_key_heads == self.n_heads:
            return x_BGSE
        copies = self.n_heads // self.n_key_heads
        return x_BGSE[:, :, None].expand(-1, -1, copies, -1, -1).flatten(1, 2)


class CrossAttention(nn.Module):
    """Exact attention of one sequence to another, both on padded grids; used in decoders."""

    def __init__(self, width: int, n_heads: int, dropout: float = 0.0, *, bias: bool = True) -> None:
        super().__init__()
        self.head_width, self.dropout = _head_width(width, n_heads), dropout
        self.query, self.out = nn.Linear(width, width, bias=bias), nn.Linear(width, width, bias=bias)
        self.key_value = nn.Linear(width, 2 * width, bias=bias)
        self.kernel = ExactAttention()

    def forward(self, x_BQD: Tensor, memory_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """Attend from queries [B, Q, D] to the memory [B, S, D] where ``mask_BS`` is True; return [B, Q, D]."""
        query = _split_heads(self.query(x_BQD), self.head_width)
        key, value = (_split_heads(x, self.head_width) for x in self.key_value(memory_BSD).chunk(2, dim=2))
        mixed_BHQE = self.kernel(query, key, value, mask_BS, self.dropout if self.training else 0.0)
        out: Tensor = self.out(mixed_BHQE.transpose(1, 2).flatten(2))
        return out


def _head_width(width: int, n_heads: int) -> int:
    if width % n_heads:
        raise ValueError(f"width {width} does not divide into {n_heads} heads")
    return width // n_heads


def _split_heads(x_BSD: Tensor, head_width: int) -> Tensor:
    """Reshape [B, S, H * E] to [B, H, S, E]."""
    return x_BSD.view(*x_BSD.shape[:2], -1, head_width).transpose(1, 2)


def _kernel(config: AttentionConfig, head_width: int, causal: bool) -> nn.Module:
    """Return the module that mixes values [B, H, S, E] given queries, keys and their mask."""
    match config.kind:
        case "exact" | "grouped_query":
            return ExactAttention(causal)
        case "probsparse":
            return ProbSparseAttention(config.factor, config.sparsity, config.max_length, causal)
        case "linformer" if causal:
            raise ValueError("Linformer mixes all keys before it attends, so it cannot be causal")
        case "linformer":
            return LinformerAttention(config.n_projected, config.max_length)
        case "performer":
            return PerformerAttention(head_width, config.n_features, causal)
        case "reformer":
            return ReformerAttention(head_width, config.chunk, config.n_rounds, config.max_length, causal)
