"""ASTROMER's two classifiers on top of the encoder, and its reconstruction head.

- recurrent: LN, LSTM, LN, LSTM, LN, linear, read at the last *real* observation of each row, so that padding does not
  count;
- pooled: the mean over real observations through a ReLU perceptron, LN, linear.

Legend: B batch, W window, D width, E embedding, C classes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.astromer_block import LAYER_NORM_EPS
from models.recurrent import Lstm


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
