"""The decoder of Informer (Zhou et al. 2021): all answers in one pass, from start tokens and places to fill.

Self-attention, cross attention to the encoded history (exact), feed-forward; residuals in either norm order, and a
final norm.

Notable:

- the published self-attention is causal, over the start tokens and then the places to fill. Those are regular steps and
  always the same ones; where a caller picks them, asking one thing would change the answer to the next. With
  ``context = "independent"`` (the default) every token looks at the start tokens alone, itself coming in through the
  residual: an answer depends on its own question only;
- ``causal`` is the published one, by default with ProbSparse, whose lazy queries take the running sum of the values;
- the released decoder hands its mixed heads on as [H, S, E] read as [S, H E]: places and heads end up shuffled into
  each other before the output projection. ``mix`` repeats that, for the sake of comparison; it makes an answer depend
  on the number of places, so it means something only where every row has the same and none is padding.

Legend: B batch, S places (start tokens first), K places of the memory, D width, H heads, E = D / H.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from models.attention import AttentionConfig, CrossAttention, SelfAttention
from models.packing import Packing
from models.transformer import NormOrder

QueryContext = Literal["independent", "causal"]


class StartAttention(nn.Module):
    """Every token looks at the first ``n_start`` places only."""

    def __init__(self, width: int, n_heads: int, dropout: float, n_start: int) -> None:
        super().__init__()
        self.n_start = n_start
        self.attention = CrossAttention(width, n_heads, dropout)

    def forward(self, x_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """Map a grid [B, S, D]; keys outside ``mask_BS`` are masked."""
        mixed_BSD: Tensor = self.attention(x_BSD, x_BSD[:, : self.n_start], mask_BS[:, : self.n_start])
        return mixed_BSD


class CausalAttention(nn.Module):
    """Every token looks at itself and the places before it, in the configured kind of attention."""

    def __init__(self, width: int, n_heads: int, dropout: float, config: AttentionConfig, *, mix: bool = False) -> None:
        super().__init__()
        self.attention = SelfAttention(width, n_heads, dropout, config=config, causal=True)
        if mix:
            self.attention.kernel = _Mixed(self.attention.kernel)

    def forward(self, x_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """Map a grid [B, S, D]; keys outside ``mask_BS`` are masked."""
        packing = Packing.of(mask_BS, leading=False)
        mixed_BSD: Tensor = packing.unpack(self.attention(packing.pack(x_BSD), packing))
        return mixed_BSD


class _Mixed(nn.Module):
    """A kernel whose result [B, H, S, E] is read on as [B, S, H, E]; see ``mix`` above."""

    def __init__(self, kernel: nn.Module) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, *arguments: Any) -> Tensor:
        mixed_BHSE: Tensor = self.kernel(*arguments)
        batch, heads, places, width = mixed_BHSE.shape
        return mixed_BHSE.reshape(batch, places, heads, width).transpose(1, 2)


class DecoderBlock(nn.Module):
    """Self-attention, cross attention and feed-forward, with residuals."""

    def __init__(
        self,
        self_attention: nn.Module,
        width: int,
        n_heads: int,
        feed_forward: nn.Module,
        order: NormOrder,
        dropout: float,
    ) -> None:
        super().__init__()
        self.order, self.dropout = order, nn.Dropout(dropout)
        self.self_attention = self_attention
        self.cross_attention = CrossAttention(width, n_heads, dropout)
        self.feed_forward = feed_forward
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))

    def forward(self, x_BSD: Tensor, mask_BS: Tensor, memory_BKD: Tensor, memory_mask_BK: Tensor) -> Tensor:
        """Decode a grid [B, S, D] against the memory [B, K, D]."""
        x_BSD = self._residual(x_BSD, self.norm1, lambda y: self.self_attention(y, mask_BS))
        x_BSD = self._residual(x_BSD, self.norm2, lambda y: self.cross_attention(y, memory_BKD, memory_mask_BK))
        return self._residual(x_BSD, self.norm3, lambda y: self.feed_forward(y)[0])

    def _residual(self, x_BSD: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        if self.order == "pre":
            added_BSD: Tensor = x_BSD + self.dropout(part(norm(x_BSD)))
            return added_BSD
        normed_BSD: Tensor = norm(x_BSD + self.dropout(part(x_BSD)))
        return normed_BSD


class Decoder(nn.Module):
    """Decoder blocks and a final norm."""

    def __init__(self, width: int, blocks: Sequence[DecoderBlock]) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(width)

    def forward(self, x_BSD: Tensor, mask_BS: Tensor, memory_BKD: Tensor, memory_mask_BK: Tensor) -> Tensor:
        """Decode a grid [B, S, D] against the memory [B, K, D]; what padded places hold means nothing."""
        for block in self.blocks:
            x_BSD = block(x_BSD, mask_BS, memory_BKD, memory_mask_BK)
        normed: Tensor = self.norm(x_BSD)
        return normed
