"""ProbSparse attention (Informer, Zhou et al. 2021): softmax for the most selective queries only.

A query whose scores over a few sampled keys are uneven attends exactly; the others take the mean of the values or, when
causal, their running sum, as the released code does. Two readings, which differ everywhere:

- `released`: each query samples u = factor * ceil(ln n) keys of its own, with replacement; its measure is the largest
  score minus the sum of the scores over n (over n, not over the size of the sample), of scores without scale.
- `paper`: all queries share one sample of u = floor(factor * ln n) keys without replacement; the measure is logsumexp
  minus the mean, of scaled scores (eq 2, before the paper bounds it). One matrix product, so much the faster.

Notable: the released code knows no padding and samples anew at each call, so that its answers change from call to call.
Here n is the row's own number of tokens, samples are ranks among them, and outside training the uniform numbers behind
the samples are drawn once and kept with the weights: a row's answer depends on nothing but the row (up to rounding,
which can swap queries whose measures are all but equal). Training draws anew, as released. With u = n it is exact
attention. The released code constructs a dropout and never applies it; here it applies to the softmax.

Legend: B batch, S places, H heads, E head width, U sampled keys, K attending queries, Q query places of a sample (S, or
1 where all queries share one), T rows of the frozen table.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.attention_exact import MASKED, bias_where, inverse, ranks, take_places

Sparsity = Literal["released", "paper"]

_smaller: Callable[[int, int], int] = torch.sym_min

TABLE_ROWS = 512  # queries that far apart in a row share their uniform numbers


class Sample(NamedTuple):
    """Places of the sampled keys, [B, Q, U], and which of the U a row uses, [B, U]."""

    place_BQU: Tensor
    used_BU: Tensor


def sample_size(length: int, factor: float, sparsity: Sparsity) -> int:
    """Sampled keys, and attending queries, u of a row of ``length`` tokens.

    At least one; in the paper's reading two, because by its measure all queries are alike on a single key.
    """
    logarithm = math.log(max(length, 1))
    if sparsity == "released":
        return max(1, min(int(factor * math.ceil(logarithm)), length))
    return max(1, min(max(int(factor * logarithm), 2), length))


class ProbSparseAttention(nn.Module):
    """See the module docstring; rows longer than ``max_length`` sample as many keys as one of ``max_length``."""

    size_N: Tensor
    uniform_TU: Tensor

    def __init__(self, factor: float, sparsity: Sparsity, max_length: int, causal: bool = False) -> None:
        super().__init__()
        self.sparsity, self.causal = sparsity, causal
        self.sizes = [sample_size(length, factor, sparsity) for length in range(max_length + 1)]
        self.register_buffer("size_N", torch.tensor(self.sizes), persistent=False)
        rows = TABLE_ROWS if sparsity == "released" else 1
        self.register_buffer("uniform_TU", torch.rand(rows, self.sizes[-1]))

    def forward(
        self, query_BHSE: Tensor, key_BHSE: Tensor, value_BHSE: Tensor, mask_BS: Tensor, dropout: float = 0.0
    ) -> Tensor:
        """Mix the values of the keys in ``mask_BS``, [B, H, S, E]."""
        return self.attend(query_BHSE, key_BHSE, value_BHSE, mask_BS, self.sample(mask_BS), dropout)

    def sample(self, mask_BS: Tensor) -> Sample:
        """Keys to measure by: the frozen draw, or a new one in training."""
        rank_BS = ranks(mask_BS)
        count_B1 = mask_BS.sum(1, keepdim=True).clamp(min=1)
        size_B1 = self.size_N[count_B1.clamp(max=len(self.sizes) - 1)]
        slots = self._slots(mask_BS.shape[1])
        uniform_TU = torch.rand_like(self.uniform_TU) if self.training else self.uniform_TU
        slot_U = torch.arange(slots, device=mask_BS.device)
        if self.sparsity == "released":
            uniform_BQU = uniform_TU[:, :slots][rank_BS % TABLE_ROWS]
            start_BQU, width_BQU = torch.zeros_like(slot_U), count_B1[..., None]
        else:  # one key from each of u stretches of the row: no two are the same
            uniform_BQU = uniform_TU[:, None, :slots]
            start_BQU = (slot_U * count_B1 // size_B1)[:, None]
            width_BQU = ((slot_U + 1) * count_B1 // size_B1)[:, None] - start_BQU
        pick_BQU = start_BQU + (uniform_BQU * width_BQU).long().minimum(width_BQU - 1)
        pick_BQU = pick_BQU.minimum(count_B1[..., None] - 1)  # slots that the row does not use
        place_BX = inverse(rank_BS).gather(1, pick_BQU.flatten(1))
        return Sample(place_BX.view(pick_BQU.shape), slot_U < size_B1)

    def _slots(self, places: int) -> int:
        """Slots that any row of a grid this wide can use; an exported graph, whose width is open, has them all."""
        if torch.compiler.is_exporting():
            return self.sizes[-1]
        return self.sizes[min(places, len(self.sizes) - 1)]

    def measure(self, query_BHSE: Tensor, key_BHSE: Tensor, mask_BS: Tensor, sample: Sample, scale: float) -> Tensor:
        """How uneven each query's scores are, [B, H, S]; ``MASKED`` outside ``mask_BS``."""
        used_B11U = sample.used_BU[:, None, None]
        score_BHSU = _sampled_scores(query_BHSE, key_BHSE, sample.place_BQU)
        if self.sparsity == "released":
            count_B11 = mask_BS.sum(1).clamp(min=1)[:, None, None]
            mean_BHS = torch.where(used_B11U, score_BHSU, 0.0).sum(-1) / count_B11
            peak_BHS = torch.where(used_B11U, score_BHSU, MASKED).amax(-1)
        else:
            score_BHSU = score_BHSU * scale
            mean_BHS = torch.where(used_B11U, score_BHSU, 0.0).sum(-1) / used_B11U.sum(-1)
            peak_BHS = torch.where(used_B11U, score_BHSU, MASKED).logsumexp(-1)
        return torch.where(mask_BS[:, None], peak_BHS - mean_BHS, MASKED)

    def attend(
        self, query_BHSE: Tensor, key_BHSE: Tensor, value_BHSE: Tensor, mask_BS: Tensor, sample: Sample, dropout: float
    ) -> Tensor:
        """Attention of the queries that ``sample`` finds most selective; for the rest, the mean or running sum."""
        places, scale = mask_BS.shape[1], value_BHSE.shape[-1] ** -0.5
        measure_BHS = self.measure(query_BHSE.detach(), key_BHSE.detach(), mask_BS, sample, scale)
        top_BHK = measure_BHS.topk(_smaller(sample.used_BU.shape[1], places)).indices
        seen_BHKS = mask_BS[:, None, None, :]
        if self.causal:
            seen_BHKS = seen_BHKS & (torch.arange(places, device=mask_BS.device) <= top_BHK[..., None])
        bias_BHKS = bias_where(seen_BHKS, query_BHSE.dtype)
        chosen_BHKE = take_places(query_BHSE, top_BHK)
        mixed_BHKE = F.scaled_dot_product_attention(chosen_BHKE, key_BHSE, value_BHSE, bias_BHKS, dropout, scale=scale)
        lazy_BHSE = self._lazy(value_BHSE, mask_BS)
        attends_B1K1 = sample.used_BU[:, None, : top_BHK.shape[2], None]
        mixed_BHKE = torch.where(attends_B1K1, mixed_BHKE, take_places(lazy_BHSE, top_BHK))
        return lazy_BHSE.scatter(2, top_BHK[..., None].expand_as(mixed_BHKE), mixed_BHKE)

    def _lazy(self, value_BHSE: Tensor, mask_BS: Tensor) -> Tensor:
        real_B1S1 = mask_BS[:, None, :, None]
        real_BHSE = torch.where(real_B1S1, value_BHSE, 0.0)
        if self.causal:
            return real_BHSE.cumsum(2).to(value_BHSE.dtype)
        mean_BH1E = real_BHSE.sum(2, keepdim=True) / real_B1S1.sum(2, keepdim=True).clamp(min=1)
        return mean_BH1E.to(value_BHSE.dtype).expand_as(value_BHSE)


def _sampled_scores(query_BHSE: Tensor, key_BHSE: Tensor, place_BQU: Tensor) -> Tensor:
    """Scores [B, H, S, U] of each query with its sampled keys, without scale.

    Copying each query's keys together takes U * E numbers a query, all its scores S: up to U * E places, about 1,200 to
    2,000 at the usual sizes, it is faster and smaller to compute them all and pick.
    """
    (batch, heads, places, width), (_, queries, slots) = key_BHSE.shape, place_BQU.shape
    if queries != 1 and (torch.compiler.is_exporting() or places <= slots * width):
        return (query_BHSE @ key_BHSE.transpose(2, 3)).gather(3, place_BQU[:, None].expand(-1, heads, -1, -1))
    first_B11 = torch.arange(batch, device=key_BHSE.device)[:, None, None] * places
    row_BSX = key_BHSE.transpose(1, 2).reshape(batch * places, heads * width)
    sampled_BQUX = row_BSX.index_select(0, (first_B11 + place_BQU).flatten())
    sampled_BQUHE = sampled_BQUX.view(batch, queries, slots, heads, width)
    return torch.einsum("bhse,bsuhe->bhsu", query_BHSE, sampled_BQUHE)
