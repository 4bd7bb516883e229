"""Packed tokens: token-local layers run on the real tokens only, attention alone sees a padded grid.

Legend: B batch, L length, S = places in the grid (L plus a leading [CLS] place where there is one), M packed tokens,
D width. With padding ratios of 1.1 to 6 on light curves, this is what keeps padding from costing anything outside
attention; it also means that padding is never routed to an expert.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Packing(NamedTuple):
    """Where each packed token sits in the padded grid, and back.

    Attributes
    ----------
    place_M : flat place (b * S + s) of each packed token; with a [CLS] token the first B packed tokens are the [CLS]s.
    token_BS : packed token of each place, 0 where the place is empty.
    mask_BS : True where the place holds a token that attention may look at.
    leading : whether each row begins with a [CLS] token, hence whether there is any token at all.
    """

    place_M: Tensor
    token_BS: Tensor
    mask_BS: Tensor
    leading: bool

    @classmethod
    def of(cls, mask_BL: Tensor, leading: bool, kept_BL: Tensor | None = None) -> "Packing":
        """Pack the tokens of ``mask_BL``; ``leading`` adds a [CLS] place in front of each row.

        ``kept_BL`` packs more tokens than attention may look at: it exists for the reading of the balance loss in
        which padding counts.
        """
        kept_BL = mask_BL if kept_BL is None else kept_BL
        batch, length = mask_BL.shape
        width, first = length + int(leading), batch * int(leading)
        row_N, column_N = kept_BL.nonzero(as_tuple=True)
        place_M = row_N * width + column_N + int(leading)
        token_BS = ((kept_BL.flatten().cumsum(0) - 1).view(batch, length) + first) * kept_BL
        mask_BS = mask_BL
        if leading:
            row_B = torch.arange(batch, device=mask_BL.device)
            place_M = torch.cat([row_B * width, place_M])
            token_BS = torch.cat([row_B[:, None], token_BS], dim=1)
            mask_BS = torch.cat([torch.ones_like(mask_BL[:, :1]), mask_BL], dim=1)
        return cls(place_M, token_BS, mask_BS, leading)

    def unpack(self, x_MD: Tensor) -> Tensor:
        """Padded grid [B, S, D] of packed tokens; empty places hold some token's values and must be masked."""
        batch, width = self.token_BS.shape
        if not self.leading:  # a batch without metadata and without [CLS] has no token for empty places to point at
            x_MD = F.pad(x_MD, (0, 0, 0, 1))
        return x_MD.index_select(0, self.token_BS.flatten()).view(batch, width, x_MD.shape[1])

    def pack(self, x_BSD: Tensor) -> Tensor:
        """Packed tokens [M, D] of a padded grid."""
        return x_BSD.flatten(0, 1).index_select(0, self.place_M)


def pack_values(values_BL: Tensor, mask_BL: Tensor) -> Tensor:
    """Values of the real tokens, [N], in row-major order."""
    return values_BL[mask_BL.nonzero(as_tuple=True)]
