"""The encoder of Informer (Zhou et al. 2021): attention blocks, and between each two a distilling that halves the row.

    distilling (eq 5): x' = MaxPool(ELU(Conv1d(x))), kernel 3 in both, stride 2 in the pool

Notable: the paper and its released code close the convolution in a circle and put a BatchNorm before the ELU. Neither
knows padding, so there the end of a padded row leaks into its first token and batch mates share their statistics. Here
a row's answer never depends on its padding:

- ``plain`` (the default) pads with zeros, which is also what stands beyond the last real token, and has no BatchNorm:
  a light curve's last night is no neighbour of its first, and nothing depends on batch mates;
- ``released`` closes the circle at the row's own last token and takes the statistics of real tokens only; without
  padding it is the released layer exactly. In training its statistics still come from the whole batch, as BatchNorm's
  must.

Rows must hold their tokens first, in order of time, and their padding last: the convolution sees neighbours in the row.

Legend: B batch, S places, M packed tokens, D width.

The decoder of Informer (Zhou et al. 2021): all answers in one pass, from start tokens and places to fill.

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

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.networks.parts.attention import AttentionConfig, CrossAttention, Position, SelfAttention
from models.networks.parts.packing import Packing
from models.networks.parts.transformer import Block, NormOrder

DistillingKind = Literal["plain", "released"]


class Distilling(nn.Module):
    """Rows of l tokens in, rows of ceil(l / 2) tokens out."""

    def __init__(self, width: int, kind: DistillingKind = "plain") -> None:
        super().__init__()
        self.kind = kind
        self.convolution = nn.Conv1d(width, width, 3)
        self.norm = nn.BatchNorm1d(width) if kind == "released" else None

    def forward(self, x_MD: Tensor, packing: Packing) -> tuple[Tensor, Packing]:
        """Distil packed tokens without [CLS]; the result is packed anew."""
        mask_BS1 = packing.mask_BS[..., None]
        x_BSD = torch.where(mask_BS1, packing.unpack(x_MD), 0.0)
        x_BSD = self.convolution(self._edges(x_BSD, mask_BS1).transpose(1, 2)).transpose(1, 2)
        x_BSD = self._normalise(x_BSD, packing)
        # ELU stays above -1, so a place at -1 loses every maximum, as one at minus infinity would.
        x_BSD = F.pad(torch.where(mask_BS1, F.elu(x_BSD), -1.0), (0, 0, 1, 1), value=-1.0)
        # Not max_pool1d: tracing it without gradients fixes the length.
        pooled_BSD = torch.maximum(torch.maximum(x_BSD[:, :-2:2], x_BSD[:, 1:-1:2]), x_BSD[:, 2::2])
        half = Packing.of(halve(packing.mask_BS), leading=False)
        return half.pack(pooled_BSD), half

    def _normalise(self, x_BSD: Tensor, packing: Packing) -> Tensor:
        """BatchNorm, its statistics those of the real places."""
        if self.norm is None:
            return x_BSD
        if self.training:
            return packing.unpack(self.norm(packing.pack(x_BSD)))
        # Not F.batch_norm: tracing it fixes the length.
        mean_D, variance_D = self.norm.running_mean, self.norm.running_var
        assert mean_D is not None
        assert variance_D is not None
        return (x_BSD - mean_D) * (self.norm.weight * (variance_D + self.norm.eps).rsqrt()) + self.norm.bias

    def _edges(self, x_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        """Add a place before the first and after the last: zeros, or the row's other end."""
        if self.kind == "plain":
            return F.pad(x_BSD, (0, 0, 1, 1))
        length_B11 = mask_BS1.sum(1, keepdim=True)
        last_B1D = x_BSD.gather(1, (length_B11 - 1).clamp(min=0).expand(-1, 1, x_BSD.shape[2]))
        closed_BSD = F.pad(torch.cat([last_B1D, x_BSD], dim=1), (0, 0, 0, 1))
        place_S1 = torch.arange(closed_BSD.shape[1], device=x_BSD.device)[:, None]
        return torch.where(place_S1 == length_B11 + 1, x_BSD[:, :1], closed_BSD)


def halve(x_BS: Tensor) -> Tensor:
    """Every second place, the first included: those that distilled tokens stand at."""
    return x_BS.index_select(1, torch.arange(0, x_BS.shape[1], 2, device=x_BS.device))


class DistilledEncoder(nn.Module):
    """Blocks with a distilling between each two (none where ``kind`` is None), and a final norm, as released."""

    def __init__(self, width: int, blocks: Sequence[Block], kind: DistillingKind | None) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(width)
        self.distillings = nn.ModuleList(Distilling(width, kind) for _ in blocks[1:] if kind is not None)

    def forward(
        self, x_MD: Tensor, packing: Packing, positions: Iterable[Position | None] = repeat(None)
    ) -> tuple[Tensor, Packing]:
        """Encode packed tokens without [CLS]; the result is shorter, with a packing of its own.

        ``positions`` gives each block's position; with distillings each is for half as many places as the one before.
        """
        for number, (block, position) in enumerate(zip(self.blocks, positions, strict=False)):
            if 0 < number <= len(self.distillings):
                x_MD, packing = self.distillings[number - 1](x_MD, packing)
            x_MD, _ = block(x_MD, packing, position)
        return self.norm(x_MD), packing


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
