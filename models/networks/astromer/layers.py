"""Parts of ASTROMER: the window that it sees, its transformer block in three forms, its heads.

The window a single-band network sees of each row: the newest observations, in order, without gaps, centred.

Notable: rows come with whatever else is in the light curve, other bands and older points among it; the window is cut
inside the network, hence inside an exported graph too. Row order is kept, so rows sorted by time give a series sorted
by time, which a recurrent layer needs.

Legend: B batch, L length of the rows, W = min(L, size) length of the windows.

ASTROMER's transformer block in the three forms that exist, its soft attention mask and its mix of layers.

All are post-norm with a tanh feed-forward part and layer norms of eps 1e-6:

    x = LN(skip(x) + Dropout(Attention(x)));  x = LN(skip(x) + Dropout(FeedForward(x)))

They differ in ``skip``: the identity (the residual connection of Vaswani et al. 2017), a learned linear map (the
released code with ``use_leak``), or nothing at all (the released code without).

Legend: B batch, S places, M packed tokens, H heads, E head width, D width, Y layers.

ASTROMER's two classifiers on top of the encoder, and its reconstruction head.

- recurrent: LN, LSTM, LN, LSTM, LN, linear, read at the last *real* observation of each row, so that padding does not
  count;
- pooled: the mean over real observations through a ReLU perceptron, LN, linear.

Legend: B batch, W window, D width, E embedding, C classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from models.networks.attention.attention import AttentionConfig, Position, SelfAttention
from models.networks.parts.packing import Packing
from models.networks.parts.recurrent import Lstm
from models.networks.parts.transformer import DenseFeedForward

Value = Literal["magnitude", "asinh", "linear"]


def value_of(flux_BL: Tensor, kind: Value, scale: float) -> Tensor:
    """Return what stands for the brightness, from the flux f in the network's unit; ``scale`` is b or s, in that unit.

    - ``magnitude``: -2.5 / ln 10 * asinh(f / 2b), the magnitude of Lupton, Gunn & Szalay (1999) up to its zero point,
      which centring removes: a magnitude where f is far above b, linear around zero, so that difference flux may be
      negative;
    - ``asinh``: asinh(f / s);
    - ``linear``: f / s, for input that is a magnitude already.
    """
    if kind == "magnitude":
        return torch.asinh(flux_BL / (2.0 * scale)) * (-2.5 / math.log(10.0))
    return torch.asinh(flux_BL / scale) if kind == "asinh" else flux_BL / scale


class Window(NamedTuple):
    """Places of the window's observations in their rows.

    Attributes
    ----------
    place_BW : int64, different places of the row; the observations come first.
    mask_BW : True for an observation. A row without any shows one of its other places, which centring makes zero: it
        reads as a single observation does, whatever is there.
    """

    place_BW: Tensor
    mask_BW: Tensor

    @classmethod
    def newest(cls, visible_BL: Tensor, size: int) -> "Window":
        """Window of the last ``size`` places of each row that are True in ``visible_BL``."""
        number_BL = visible_BL.cumsum(1)
        visible_BL = visible_BL & (number_BL > number_BL[:, -1:] - size)
        number_BL = visible_BL.cumsum(1)
        count_B1 = number_BL[:, -1:]
        target_BL = torch.where(visible_BL, number_BL - 1, count_B1 + (~visible_BL).cumsum(1) - 1)
        place_BL = torch.arange(visible_BL.shape[1], device=visible_BL.device).expand_as(target_BL)
        place_BW = torch.zeros_like(target_BL).scatter(1, target_BL, place_BL)[:, :size]
        return cls(place_BW, place_BL[:, :size] < count_B1.clamp(min=1))

    def take(self, x_BL: Tensor) -> Tensor:
        """Values [B, W] of the window out of the rows'."""
        return x_BL.gather(1, self.place_BW)

    def put(self, x_BW: Tensor, length: int) -> Tensor:
        """Values [B, L] of the rows out of the window's, 0 at places the window does not show."""
        kept_BW = x_BW * self.mask_BW.to(x_BW.dtype)
        return kept_BW.new_zeros(kept_BW.shape[0], length).scatter(1, self.place_BW, kept_BW)

    def mean(self, x_BW: Tensor) -> Tensor:
        """Mean [B, 1] over the observations."""
        return torch.where(self.mask_BW, x_BW, 0.0).sum(1, keepdim=True) / self.mask_BW.sum(1, keepdim=True)

    def centre(self, x_BW: Tensor, mean_B1: Tensor) -> Tensor:
        """Subtract a mean from the observations; 0 elsewhere."""
        return torch.where(self.mask_BW, x_BW - mean_B1, 0.0)


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


class LstmHead(nn.Module):
    """Two LSTM layers between layer norms."""

    def __init__(self, width: int, hidden: int, n_classes: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(size, eps=LAYER_NORM_EPS) for size in (width, hidden, hidden))
        self.layers = nn.ModuleList(Lstm(size, hidden) for size in (width, hidden))
        self.out = nn.Linear(hidden, n_classes)

    def forward(self, x_BWD: Tensor, mask_BW: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, C] and embedding [B, E] of windows whose observations, one or more, come first."""
        for norm, layer in zip(self.norms, self.layers, strict=False):
            x_BWD = layer(norm(x_BWD))
        last_B11 = (mask_BW.sum(1) - 1)[:, None, None]
        embedding_BE = self.norms[-1](x_BWD.gather(1, last_B11.expand(-1, -1, x_BWD.shape[2]))[:, 0])
        return self.out(embedding_BE), embedding_BE


class PoolHead(nn.Module):
    """Masked mean and a perceptron."""

    def __init__(self, width: int, hidden: Sequence[int], n_classes: int) -> None:
        super().__init__()
        sizes = zip((width, *hidden), hidden, strict=False)
        self.layers = nn.Sequential(*(part for size in sizes for part in (nn.Linear(*size), nn.ReLU())))
        self.norm = nn.LayerNorm(hidden[-1], eps=LAYER_NORM_EPS)
        self.out = nn.Linear(hidden[-1], n_classes)

    def forward(self, x_BWD: Tensor, mask_BW: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, C] and embedding [B, E] of windows with an observation or more."""
        total_BD = torch.where(mask_BW[..., None], x_BWD, 0.0).sum(1)
        embedding_BE = self.norm(self.layers(total_BD / mask_BW.sum(1, keepdim=True)))
        return self.out(embedding_BE), embedding_BE


def reconstruction_head(width: int) -> nn.Sequential:
    """LN and a linear map to the one value of an observation."""
    return nn.Sequential(nn.LayerNorm(width, eps=LAYER_NORM_EPS), nn.Linear(width, 1))
