"""Exact attention by the fused kernel, which every other kind is measured against, and what the kinds share.

Legend: B batch, Q query places, S key places, K chosen places, H heads, E head width (of the values; query and key may
be wider).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MASKED = -1e9  # finite: a row with nothing to look at stays finite, in the backward pass too


class ExactAttention(nn.Module):
    """softmax(query key / sqrt(E)) value (Vaswani et al. 2017, eq 1)."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(
        self, query_BHQE: Tensor, key_BHSE: Tensor, value_BHSE: Tensor, mask_BS: Tensor, dropout: float = 0.0
    ) -> Tensor:
        """Mix the values of the keys in ``mask_BS``, [B, H, Q, E]; a causal query sees places up to its own."""
        seen_BQS = mask_BS[:, None, :]
        if self.causal:
            place_S = torch.arange(mask_BS.shape[1], device=mask_BS.device)
            seen_BQS = seen_BQS & (place_S[None, :] <= place_S[:, None])
        bias_B1QS = bias_where(seen_BQS, query_BHQE.dtype)[:, None]
        scale = value_BHSE.shape[-1] ** -0.5
        if torch.compiler.is_exporting():  # the tracer takes the fused kernel apart into three times as many operations
            score_BHQS = (query_BHQE * scale) @ key_BHSE.transpose(2, 3) + bias_B1QS
            mixed_BHQE: Tensor = score_BHQS.softmax(-1) @ value_BHSE
            return mixed_BHQE
        return F.scaled_dot_product_attention(query_BHQE, key_BHSE, value_BHSE, bias_B1QS, dropout, scale=scale)


def bias_where(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what to add to the scores so that only what is ``seen`` counts."""
    return torch.where(seen, 0.0, MASKED).to(dtype)


def ranks(mask_BS: Tensor) -> Tensor:
    """Rank of each real token among its row's, [B, S]: what a place is called when padding must not matter.

    Empty places take the ranks after the real ones, so that each row is a permutation.
    """
    real_BS = mask_BS.long()
    empty_BS = real_BS.sum(1, keepdim=True) + (1 - real_BS).cumsum(1)
    return torch.where(mask_BS, real_BS.cumsum(1), empty_BS) - 1


def inverse(permutation: Tensor) -> Tensor:
    """Inverse of each permutation along the last axis."""
    place = torch.arange(permutation.shape[-1], device=permutation.device)
    return torch.zeros_like(permutation).scatter(-1, permutation, place.expand_as(permutation))


def chunked(x: Tensor, axis: int, chunk: int, fill: float = 0.0) -> Tensor:
    """Cut an axis into chunks (two axes: which chunk, where in it), the end of the last chunk filled.

    An exported graph gets one chunk more than it needs: the tracer takes a single one for a constant of the graph.
    """
    places = x.shape[axis]
    chunks = (places + chunk - 1) // chunk + int(torch.compiler.is_exporting())
    padded = F.pad(x, (*(0, 0) * (x.ndim - 1 - axis), 0, chunks * chunk - places), value=fill)
    return padded.view(*x.shape[:axis], chunks, chunk, *x.shape[axis + 1 :])


def take_places(x_BHSE: Tensor, place_BHK: Tensor) -> Tensor:
    """Vectors [B, H, K, E] at the given places of each head (whole rows by number: no index as wide as the data)."""
    batch, heads, places, width = x_BHSE.shape
    first_BH1 = torch.arange(batch * heads, device=x_BHSE.device).view(batch, heads, 1) * places
    taken = x_BHSE.reshape(batch * heads * places, width).index_select(0, (first_BH1 + place_BHK).flatten())
    return taken.view(batch, heads, place_BHK.shape[2], width)
