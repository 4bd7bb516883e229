"""Multi-head self-attention over packed tokens (exact, fused).

Legend: B batch, S places, M packed tokens, H heads, D width, E = D / H.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.packing import Packing

MASKED = -1e9  # finite: a row with nothing to look at stays finite, in the backward pass too


class SelfAttention(nn.Module):
    """Scaled dot-product attention with biases everywhere; keys outside ``packing.mask_BS`` are masked."""

    def __init__(self, width: int, n_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if width % n_heads:
            raise ValueError(f"width {width} does not divide into {n_heads} heads")
        self.n_heads, self.dropout = n_heads, dropout
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x_MD: Tensor, packing: Packing) -> Tensor:
        """Attend within each row of the grid; packed tokens in and out, [M, D]."""
        query, key, value = self._heads(packing.unpack(self.qkv(x_MD)))
        bias_B11S = torch.where(packing.mask_BS, 0.0, MASKED).to(query.dtype)[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        mixed_BHSE = F.scaled_dot_product_attention(query, key, value, attn_mask=bias_B11S, dropout_p=dropout)
        out: Tensor = self.out(packing.pack(mixed_BHSE.transpose(1, 2).flatten(2)))
        return out

    def _heads(self, qkv_BSQ: Tensor) -> tuple[Tensor, ...]:
        """Query, key and value, each [B, H, S, E], of their concatenation [B, S, 3 D]."""
        batch, places, width = qkv_BSQ.shape
        return (
            qkv_BSQ.view(batch, places, 3, self.n_heads, width // (3 * self.n_heads)).permute(2, 0, 3, 1, 4).unbind(0)
        )
