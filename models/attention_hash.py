"""Reformer attention (Kitaev et al. 2020): a token attends to the tokens whose hash agrees with its own.

Tokens are sorted by (bucket, place) and cut into chunks; each chunk looks at itself and the one before, and there only
at keys of the same bucket. Several rounds with rotations of their own are weighed by their softmax totals (appendix A).

Readings taken: keys are the queries scaled to length sqrt(E) (shared-QK; the softmax scale 1 / sqrt(E) then leaves a
unit key, as the authors' code has it and the paper's text, which omits the scale, suggests); a token attends to itself
only when it finds no other; a pair met in several rounds counts in each (appendix A's correction N_ij is left out); the
first chunk has none before it, where the authors' code lets it see the last.

Notable: the number of buckets is the row's own number of tokens over the chunk size, made even (hashes come in
opposite pairs), and 1 up to one chunk, where it is exact attention with shared keys. Padding sorts behind everything,
so it moves no chunk. The rotations are drawn once and kept with the weights.

Legend: B batch, S places, H heads, E head width, R rounds, G pairs of buckets, P chunks, C places in a chunk, X = 2C.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.attention_exact import MASKED, chunked, inverse, take_places

SELF = -1e5  # more than MASKED, less than any other key


class ReformerAttention(nn.Module):
    """See the module docstring; rows longer than ``max_length`` fill their buckets further."""

    rotation_REG: Tensor

    def __init__(self, head_width: int, chunk: int, n_rounds: int, max_length: int, causal: bool = False) -> None:
        super().__init__()
        self.chunk, self.causal = chunk, causal
        self.register_buffer("rotation_REG", torch.randn(n_rounds, head_width, -(-max_length // (2 * chunk))))

    def forward(
        self, query_BHSE: Tensor, key_BHSE: Tensor, value_BHSE: Tensor, mask_BS: Tensor, dropout: float = 0.0
    ) -> Tensor:
        """Mix the values of the keys in ``mask_BS``, [B, H, S, E]; ``key_BHSE`` as :func:`shared_key` makes it."""
        bucket_BHRS = self._buckets(query_BHSE.detach(), mask_BS)
        places = mask_BS.shape[1]
        order_BHRS = (bucket_BHRS * places + torch.arange(places, device=mask_BS.device)).argsort(3)
        bias_BHRPCX = self._bias(bucket_BHRS.gather(3, order_BHRS), order_BHRS).to(query_BHSE.dtype)
        query_BHRPCE, key_BHRPCE, value_BHRPCE = (
            chunked(_sorted(x_BHSE, order_BHRS), 3, self.chunk) for x_BHSE in (query_BHSE, key_BHSE, value_BHSE)
        )
        score_BHRPCX = query_BHRPCE @ _with_previous(key_BHRPCE, 0.0).transpose(4, 5) * value_BHSE.shape[-1] ** -0.5
        score_BHRPCX = score_BHRPCX + bias_BHRPCX
        total_BHRPC1 = score_BHRPCX.logsumexp(5, keepdim=True)
        weight_BHRPCX = (score_BHRPCX - total_BHRPC1).exp()
        if dropout:
            weight_BHRPCX = F.dropout(weight_BHRPCX, dropout)
        mixed_BHRPCE = weight_BHRPCX.to(value_BHSE.dtype) @ _with_previous(value_BHRPCE, 0.0)
        mixed_BHRSE, total_BHRS1 = (_unsorted(x, order_BHRS) for x in (mixed_BHRPCE, total_BHRPC1))
        return (mixed_BHRSE * total_BHRS1.softmax(2).to(value_BHSE.dtype)).sum(2)

    def _buckets(self, query_BHSE: Tensor, mask_BS: Tensor) -> Tensor:
        """Bucket of each token in each round, [B, H, R, S]: the nearest of +-G directions; padding has the last."""
        count_B = mask_BS.sum(1)
        pairs = self.rotation_REG.shape[2]
        wanted_B = torch.where(count_B > self.chunk, (count_B + 2 * self.chunk - 1) // (2 * self.chunk), 0)
        used_BG = torch.arange(pairs, device=mask_BS.device) < wanted_B[:, None]
        near_BHRSG = torch.einsum("bhse,reg->bhrsg", query_BHSE, self.rotation_REG)
        near_BHRSG = torch.cat([near_BHRSG, -near_BHRSG], dim=4)
        used_BG = torch.cat([used_BG, used_BG], dim=1)
        near_BHRSG = torch.where(used_BG[:, None, None, None], near_BHRSG, MASKED)  # none used: all in the first bucket
        return torch.where(mask_BS[:, None, None], near_BHRSG.argmax(4), 2 * pairs)

    def _bias(self, bucket_BHRS: Tensor, place_BHRS: Tensor) -> Tensor:
        """What each sorted token may see of its chunk and the one before, [B, H, R, P, C, X], as bias."""
        bucket_BHRPC, place_BHRPC = (chunked(x_BHRS, 3, self.chunk, -1) for x_BHRS in (bucket_BHRS, place_BHRS))
        seen_BHRPCX = bucket_BHRPC[..., None] == _with_previous(bucket_BHRPC, -1)[..., None, :]
        other_BHRPC1, own_BHRP1X = place_BHRPC[..., None], _with_previous(place_BHRPC, -1)[..., None, :]
        if self.causal:
            seen_BHRPCX = seen_BHRPCX & (own_BHRP1X <= other_BHRPC1)
        bias_BHRPCX = torch.where(own_BHRP1X == other_BHRPC1, SELF, 0.0)
        return torch.where(seen_BHRPCX, bias_BHRPCX, MASKED)


def shared_key(query_BHSE: Tensor) -> Tensor:
    """Queries scaled to length sqrt(E), which serve as keys."""
    scale: float = query_BHSE.shape[3] ** 0.5
    return F.normalize(query_BHSE, dim=3) * scale


def _with_previous(x: Tensor, fill: float) -> Tensor:
    """Put the chunk before (axis 3) in front of each chunk's places (axis 4)."""
    rest = (0, 0) * (x.ndim - 4)
    return torch.cat([F.pad(x, (*rest, 1, 0), value=fill)[:, :, :, :-1], x], dim=4)


def _sorted(x_BHSE: Tensor, order_BHRS: Tensor) -> Tensor:
    return take_places(x_BHSE, order_BHRS.flatten(2)).view(*order_BHRS.shape, x_BHSE.shape[3])


def _unsorted(x_BHRPCE: Tensor, order_BHRS: Tensor) -> Tensor:
    """Back from chunks to places, [B, H, R, S, E]."""
    x_BHRSE = x_BHRPCE.flatten(3, 4)
    taken = take_places(x_BHRSE.flatten(0, 1), inverse(order_BHRS).flatten(0, 1))
    return taken.view(*order_BHRS.shape, taken.shape[3])
