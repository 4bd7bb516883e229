"""Time encodings that enter through the attention scores alone; ``models.positional`` tells them all.

Legend: B batch, L length, S places (L plus a leading [CLS] place where there is one), H heads, E channels of a head,
D width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.attention import Position
from models.positional_content import Sinusoids, TimeEncoding, When
from models.rotary import AxialRotary


@dataclass(frozen=True, slots=True)
class PositionScores:
    """Queries and keys of the places themselves; calling it appends them to those of the content.

    The scores become scale * (content query . content key + position query . position key), both terms under the one
    ``scale`` that attention multiplies by anyway.
    """

    query_BHSE: Tensor
    key_BHSE: Tensor
    scale: float

    def __call__(self, query_BHSE: Tensor, key_BHSE: Tensor) -> tuple[Tensor, Tensor]:
        """Widen both from E to 2 E channels."""
        wide_query = self.scale * torch.cat([query_BHSE, self.query_BHSE.type_as(query_BHSE)], dim=-1)
        return wide_query, torch.cat([key_BHSE, self.key_BHSE.type_as(key_BHSE)], dim=-1)


class UntiedPositions(TimeEncoding):
    """``tupe``: attention scores (q . k + U_q PE(t) . U_k PE(t)) / sqrt(E), one U_q and U_k for all blocks.

    [CLS] has no position: its positional query and key are zero.
    """

    def __init__(self, encoding: Sinusoids, width: int, n_heads: int, halved: bool) -> None:
        super().__init__(width)
        self.encoding, self.n_heads, self.scale = encoding, n_heads, 0.5**0.5 if halved else 1.0
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def position(self, when: When) -> PositionScores:
        """Positional queries and keys of every place."""
        encoding_BLD = self.encoding(when.time_BL)
        query_BHSE, key_BHSE = (self._heads(layer(encoding_BLD), when.leading) for layer in (self.query, self.key))
        return PositionScores(query_BHSE, key_BHSE, self.scale)

    def _heads(self, x_BLD: Tensor, leading: bool) -> Tensor:
        x_BHLE = x_BLD.view(*x_BLD.shape[:2], self.n_heads, -1).transpose(1, 2)
        return F.pad(x_BHLE, (0, 0, 1, 0)) if leading else x_BHLE


class Rotary(TimeEncoding):
    """``rotary``: query and key turn by angles proportional to time in days; [CLS] is at day 0."""

    def __init__(self, rotary: AxialRotary, width: int) -> None:
        super().__init__(width)
        self.rotary = rotary

    def position(self, when: When) -> Position:
        """Rotation of every place."""
        time_BS = F.pad(when.time_BL, (1, 0)) if when.leading else when.time_BL
        return self.rotary.position(time_BS[..., None])
