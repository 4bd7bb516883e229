"""ASTROMER's transformer block in the three forms that exist, its soft attention mask and its mix of layers.

All are post-norm with a tanh feed-forward part and layer norms of eps 1e-6:

    x = LN(skip(x) + Dropout(Attention(x)));  x = LN(skip(x) + Dropout(FeedForward(x)))

They differ in ``skip``: the identity (the residual connection of Vaswani et al. 2017), a learned linear map (the
released code with ``use_leak``), or nothing at all (the released code without).

Legend: B batch, S places, M packed tokens, H heads, E head width, D width, Y layers.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from models.attention import AttentionConfig, Position, SelfAttention
from models.packing import Packing
from models.transformer import DenseFeedForward

LAYER_NORM_EPS = 1e-6

Skip = Literal["identity", "linear", "none"]
MaskFormat = Literal["K", "Q", "QK"]


class AstromerBlock(nn.Module):
    """One block; see the module docstring. ``skip = "none"`` forgets its input but for what attention returns."""

    def __init__(
        self, width: int, n_heads: int, hidden: int, dropout: float, skip: Skip, attention: AttentionConfig
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(width, n_heads, config=attention)
        self.feed_forward = DenseFeedForward(width, hidden, nn.Tanh())
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=LAYER_NORM_EPS) for _ in range(2))
        self.skip1, self.skip2 = _skip(width, skip), _skip(width, skip)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_MD: Tensor, packing: Packing, position: Position | None = None) -> Tensor:
        """Packed tokens in and out, [M, D]."""
        mixed_MD = self.dropout(self.attention(x_MD, packing, position))
        x_MD = self.norm1(mixed_MD if self.skip1 is None else self.skip1(x_MD) + mixed_MD)
        mapped_MD = self.dropout(self.feed_forward(x_MD)[0])
        out_MD: Tensor = self.norm2(mapped_MD if self.skip2 is None else self.skip2(x_MD) + mapped_MD)
        return out_MD


def _skip(width: int, kind: Skip) -> nn.Module | None:
    if kind == "none":
        return None
    return nn.Identity() if kind == "identity" else nn.Linear(width, width)


@dataclass(frozen=True, slots=True, eq=False)
class SoftMask:
    """The released mask: ``alpha`` is *added* to the attention logits of blocked places, none is excluded.

    ``format`` names what has to be blocked for that: the key (K), the query (Q) or either (QK). A term that is the same
    for all keys of a query drops out of the softmax, so Q masks nothing, and QK adds alpha to the blocked keys of the
    queries that are not blocked themselves. That is a product of one number per query and one per key, hence one more
    column in each.
    """

    blocked_BS: Tensor
    alpha: float
    format: MaskFormat
    head_width: int
    position: Position | None

    def __call__(self, query_BHSE: Tensor, key_BHSE: Tensor) -> tuple[Tensor, Tensor]:
        """Put ``position`` in, then widen by the column whose product, scaled by 1 / sqrt(head width), is the mask."""
        if self.position is not None:
            query_BHSE, key_BHSE = self.position(query_BHSE, key_BHSE)
        if self.format == "Q":
            return query_BHSE, key_BHSE
        blocked_B1S1 = self.blocked_BS.to(query_BHSE.dtype)[:, None, :, None]
        asks_B1S1 = torch.ones_like(blocked_B1S1) if self.format == "K" else 1.0 - blocked_B1S1
        return _widen(query_BHSE, asks_B1S1 * self.head_width**0.5), _widen(key_BHSE, blocked_B1S1 * self.alpha)


def _widen(x_BHSE: Tensor, column_B1S1: Tensor) -> Tensor:
    return torch.cat([x_BHSE, column_B1S1.expand(-1, x_BHSE.shape[1], -1, -1)], dim=-1)


class LayerMix(nn.Module):
    """Mean over layers of softmax(gamma)-weighted layer outputs (released v2).

    The mean divides once more by the number of layers, which weights that add up to 1 do not ask for; kept as released,
    for the heads learn their own scale.
    """

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.gamma_Y = nn.Parameter(torch.zeros(n_layers))

    def forward(self, x_YMD: Tensor) -> Tensor:
        """Mixed tokens [M, D]."""
        return (x_YMD * self.gamma_Y.softmax(0)[:, None, None]).mean(0)
