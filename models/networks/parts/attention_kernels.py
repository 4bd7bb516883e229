"""Attention kernels, which mix values given queries, keys and a mask: exact attention and four approximations.

Exact attention (Vaswani et al. 2017) uses the fused kernel. The approximations, of sub-quadratic cost, are Reformer,
Linformer, Performer and ProbSparse (Informer). Queries and keys may be wider than values.

**Reformer** (Kitaev et al. 2020): a token attends to the tokens with the same hash.

Tokens are sorted by (bucket, position) and cut into chunks; each chunk attends to keys of the same bucket in itself and
the previous chunk. Several rounds with different rotations are weighted by their softmax totals (appendix A).

Interpretations: keys are the queries scaled to length sqrt(E) (shared-QK; with the softmax scale 1 / sqrt(E) the key
has unit length, as in the authors' code and as the text suggests, which omits the scale); a token attends to itself
only if there is no other key; a pair that occurs in several rounds counts in each (without appendix A's correction
N_ij); the first chunk has no previous one (in the authors' code this is the last chunk).

Notable: the number of buckets is the row's number of tokens divided by the chunk size, made even (hashes come in
opposite pairs). Rows of up to one chunk have one bucket, which is exact attention with shared keys. Padding is sorted
last, so it does not shift chunks. The rotations are drawn once and stored with the weights.

Legend: B batch, S positions, H heads, E head width, R rounds, G pairs of buckets, P chunks, C positions in a chunk,
X = 2C.

**Linformer and Performer**: attention in time linear in the length.

- ``LinformerAttention`` (Wang et al. 2020, eq 7): keys and values are replaced by K learned combinations of themselves.
  The projections are shared by the heads and separate for keys and values. Their fixed number of rows limits the length
  of a row of tokens. Padded keys count as zero, and a combination without any real key is masked; with the identity as
  projection it is therefore exact attention, with or without padding. It cannot be causal, because a combination
  contains all keys.
- ``PerformerAttention`` (Choromanski et al. 2021, FAVOR+): positive random features exp(w.x - |x|^2 / 2) (lemma 1)
  estimate exp(q.k) without bias; the directions w are orthogonal in blocks of E (section 2.4). The released code adds
  1e-6 to each feature to avoid division by zero; here the features are scaled so that the largest is 1 and only a zero
  denominator is replaced, which keeps the estimate unbiased. There are no attention weights, so there is no dropout.

Legend: B batch, S positions, H heads, E head width, N longest row, K projected keys, M features, C positions in a
chunk, P chunks, V = E + 1.

**ProbSparse** (Informer, Zhou et al. 2021): softmax for the most selective queries only.

Queries with uneven scores over a few sampled keys attend exactly; the others get the mean of the values or, if causal,
their running sum, as in the released code. There are two variants:

- `released`: each query samples its own u = factor * ceil(ln n) keys, with replacement; its measure is the largest
  score minus the sum of the scores divided by n (not by the size of the sample), with unscaled scores.
- `paper`: all queries share one sample of u = floor(factor * ln n) keys without replacement; the measure is logsumexp
  minus mean, with scaled scores (eq 2, before the paper bounds it). It is faster, because it is one matrix product.

Notable: the released code ignores padding and draws new samples at each call, so its output changes from call to call.
Here n is the row's number of tokens, samples are ranks among them, and outside training the uniform random numbers of
the samples are drawn once and stored with the weights: a row's output depends on the row alone (up to rounding, which
can swap queries with almost equal measures). Training draws new numbers, as released. With u = n it is exact attention.
The released code constructs a dropout and never applies it; here it applies to the softmax.

Legend: B batch, S positions, H heads, E head width, U sampled keys, K attending queries, Q queries of a sample (S, or 1
if all queries share one), T rows of the table of random numbers.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MASKED = -1e9  # finite, so that a row without keys stays finite, in the backward pass too


class ExactAttention(nn.Module):
    """softmax(query key / sqrt(E)) value (Vaswani et al. 2017, eq 1)."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(
        self, query_BHQE: Tensor, key_BHSE: Tensor, value_BHSE: Tensor, mask_BS: Tensor, dropout: float = 0.0
    ) -> Tensor:
        """Mix the values of the keys in ``mask_BS``, [B, H, Q, E]; a causal query attends up to its own position."""
        exporting, scale = torch.compiler.is_exporting(), value_BHSE.shape[-1] ** -0.5
        if exporting and not self.causal:
            query_BHQX, key_BHSX = _with_mask(query_BHQE, key_BHSE, mask_BS)
            score_BHQS = (query_BHQX * scale) @ key_BHSX.transpose(2, 3)
            mixed_BHQE: Tensor = score_BHQS.softmax(-1) @ value_BHSE
            return mixed_BHQE
        visible_BQS = mask_BS[:, None, :]
        if self.causal:
            place_S = torch.arange(mask_BS.shape[1], device=mask_BS.device)
            visible_BQS = visible_BQS & (place_S[None, :] <= place_S[:, None])
        bias_B1QS = bias_where(visible_BQS, query_BHQE.dtype)[:, None]
        if exporting:  # the tracer decomposes the fused kernel into three times as many operations
            score_BHQS = (query_BHQE * scale) @ key_BHSE.transpose(2, 3) + bias_B1QS
            mixed_BHQE = score_BHQS.softmax(-1) @ value_BHSE
            return mixed_BHQE
        return F.scaled_dot_product_attention(query_BHQE, key_BHSE, value_BHSE, bias_B1QS, dropout, scale=scale)


def _with_mask(query_BHQE: Tensor, key_BHSE: Tensor, mask_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Return query and key with one more channel, X = E + 1, whose product masks the key.

    An exported graph then need not add a bias for all pairs to the scores, which takes as long as a matrix product.
    """
    zero_H11 = key_BHSE.new_zeros(key_BHSE.shape[1], 1, 1)
    bias_BHS1 = torch.where(mask_BS[:, None, :, None], zero_H11, MASKED)
    return F.pad(query_BHQE, (0, 1), value=1.0), torch.cat([key_BHSE, bias_BHS1], dim=3)


def bias_where(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bias that masks scores where ``visible`` is False."""
    return torch.where(visible, 0.0, MASKED).to(dtype)


def ranks(mask_BS: Tensor) -> Tensor:
    """Return the rank of each real token in its row, [B, S], which does not depend on padding.

    Empty positions get the ranks after the real ones, so that each row is a permutation.
    """
    real_BS = mask_BS.long()
    empty_BS = real_BS.sum(1, keepdim=True) + (1 - real_BS).cumsum(1)
    return torch.where(mask_BS, real_BS.cumsum(1), empty_BS) - 1


def inverse(permutation: Tensor) -> Tensor:
    """Return the inverse of each permutation along the last axis."""
    place = torch.arange(permutation.shape[-1], device=permutation.device)
    return torch.zeros_like(permutation).scatter(-1, permutation, place.expand_as(permutation))


def chunked(x: Tensor, axis: int, chunk: int, fill: float = 0.0) -> Tensor:
    """Split an axis into two, chunk and position in the chunk; the last chunk is filled up with ``fill``.

    During export there is one extra chunk, because the tracer would treat a single chunk as a constant.
    """
    places = x.shape[axis]
    chunks = (places + chunk - 1) // chunk + int(torch.compiler.is_exporting())
    padded = F.pad(x, (*(0, 0) * (x.ndim - 1 - axis), 0, chunks * chunk - places), value=fill)
    return padded.view(*x.shape[:axis], chunks, chunk, *x.shape[axis + 1 :])


def take_places(x_BHSE: Tensor, place_BHK: Tensor) -> Tensor:
    """Return the vectors [B, H, K, E] at the given positions of each head, without an index as wide as the data."""
    batch, heads, places, width = x_BHSE.shape
    first_BH1 = torch.arange(batch * heads, device=x_BHSE.device).view(batch, heads, 1) * places
    taken = x_BHSE.reshape(batch * heads * places, width).index_select(0, (first_BH1 + place_BHK).flatten())
    return taken.view(batch, heads, place_BHK.shape[2], width)


SELF = -1e5  # more than MASKED, less than any other key


class ReformerAttention(nn.Module):
    """See the module docstring; rows longer than ``max_length`` have larger buckets."""

    rotation_REG: Tensor

    def __init__(self, head_width: int, chunk: int, n_rounds: int, max_length: int, causal: bool = False) -> None:
        super().__init__()
        self.chunk, self.causal = chunk, causal
        self.register_buffer("rotation_REG", torch.randn(n_rounds, head_width, -(-max_length // (2 * chunk))))

    def forward(
        self, query_BHSE: Tensor, key_BHSE: Tensor, value_BHSE: Tensor, mask_BS: Tensor, dropout: float = 0.0
    ) -> Tensor:
        """Mix the values of the keys in ``mask_BS``, [B, H, S, E]; ``key_BHSE`` comes from :func:`shared_key`."""
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
        """Return each token's bucket in each round, [B, H, R, S]: nearest of +-G directions; padding gets the last."""
        count_B = mask_BS.sum(1)
        pairs = self.rotation_REG.shape[2]
        pairs_B = torch.where(count_B > self.chunk, (count_B + 2 * self.chunk - 1) // (2 * self.chunk), 0)
        used_BG = torch.arange(pairs, device=mask_BS.device) < pairs_B[:, None]
        near_BHRSG = torch.einsum("bhse,reg->bhrsg", query_BHSE, self.rotation_REG)
        near_BHRSG = torch.cat([near_BHRSG, -near_BHRSG], dim=4)
        used_BG = torch.cat([used_BG, used_BG], dim=1)
        near_BHRSG = torch.where(used_BG[:, None, None, None], near_BHRSG, MASKED)  # if none is used, bucket 0 for all
        return torch.where(mask_BS[:, None, None], near_BHRSG.argmax(4), 2 * pairs)

    def _bias(self, bucket_BHRS: Tensor, place_BHRS: Tensor) -> Tensor:
        """Return the bias [B, H, R, P, C, X] that masks keys of other buckets in this chunk and the previous one."""
        bucket_BHRPC, place_BHRPC = (chunked(x_BHRS, 3, self.chunk, -1) for x_BHRS in (bucket_BHRS, place_BHRS))
        visible_BHRPCX = bucket_BHRPC[..., None] == _with_previous(bucket_BHRPC, -1)[..., None, :]
        other_BHRPC1, own_BHRP1X = place_BHRPC[..., None], _with_previous(place_BHRPC, -1)[..., None, :]
        if self.causal:
            visible_BHRPCX = visible_BHRPCX & (own_BHRP1X <= other_BHRPC1)
        bias_BHRPCX = torch.where(own_BHRP1X == other_BHRPC1, SELF, 0.0)
        return torch.where(visible_BHRPCX, bias_BHRPCX, MASKED)


def shared_key(query_BHSE: Tensor) -> Tensor:
    """Scale queries to length sqrt(E), to serve as keys."""
    scale: float = query_BHSE.shape[3] ** 0.5
    return F.normalize(query_BHSE, dim=3) * scale


def _with_previous(x: Tensor, fill: float) -> Tensor:
    """Prepend the previous chunk (axis 3) to the positions of each chunk (axis 4)."""
    rest = (0, 0) * (x.ndim - 4)
    return torch.cat([F.pad(x, (*rest, 1, 0), value=fill)[:, :, :, :-1], x], dim=4)


def _sorted(x_BHSE: Tensor, order_BHRS: Tensor) -> Tensor:
    return take_places(x_BHSE, order_BHRS.flatten(2)).view(*order_BHRS.shape, x_BHSE.shape[3])


def _unsorted(x_BHRPCE: Tensor, order_BHRS: Tensor) -> Tensor:
    """Return chunks to the original order, [B, H, R, S, E]."""
    x_BHRSE = x_BHRPCE.flatten(3, 4)
    taken = take_places(x_BHRSE.flatten(0, 1), inverse(order_BHRS).flatten(0, 1))
    return taken.view(*order_BHRS.shape, taken.shape[3])


CHUNK = 64


class LinformerAttention(nn.Module):
    """See the module docstring; weights are initialised from N(0, 1/K), as the paper's random projections."""

    def __init__(self, n_projected: int, max_length: int) -> None:
        super().__init__()
        self.key_NK = nn.Parameter(torch.randn(max_length, n_projected) * n_projected**-0.5)
        self.value_NK = nn.Parameter(torch.randn(max_length, n_projected) * n_projected**-0.5)
        self.exact = ExactAttention()

    def forward(
        self, query_BHSE: Tensor, key_BHSE: Tensor, value_BHSE: Tensor, mask_BS: Tensor, dropout: float = 0.0
    ) -> Tensor:
        """Mix combinations of the values of the keys in ``mask_BS``, [B, H, S, E].

        A grid of more than ``max_length`` positions raises ValueError; an exported graph fails on longer rows.
        """
        longest = self.key_NK.shape[0]
        if not torch.compiler.is_exporting() and mask_BS.shape[1] > longest:
            raise ValueError(f"rows of {mask_BS.shape[1]} places; this Linformer projects at most {longest}")
        key_BSK, value_BSK = (self._rows(weight_NK, mask_BS) for weight_NK in (self.key_NK, self.value_NK))
        key_BHKE = torch.einsum("bsk,bhse->bhke", key_BSK, key_BHSE)
        value_BHKE = torch.einsum("bsk,bhse->bhke", value_BSK, value_BHSE)
        mixed: Tensor = self.exact(query_BHSE, key_BHKE, value_BHKE, (key_BSK != 0).any(1), dropout)
        return mixed

    def _rows(self, weight_NK: Tensor, mask_BS: Tensor) -> Tensor:
        """Return the row of the projection for each token's rank, [B, S, K]; zero for padding."""
        rank_BS = torch.where(mask_BS, ranks(mask_BS), 0)
        weight_BSK = weight_NK.index_select(0, rank_BS.flatten()).view(*mask_BS.shape, -1)
        return torch.where(mask_BS[..., None], weight_BSK, 0.0)


class PerformerAttention(nn.Module):
    """See the module docstring; the features are drawn once and stored with the weights."""

    feature_ME: Tensor

    def __init__(self, head_width: int, n_features: int, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.register_buffer("feature_ME", orthogonal_features(n_features, head_width))

    def forward(
        self, query_BHSE: Tensor, key_BHSE: Tensor, value_BHSE: Tensor, mask_BS: Tensor, dropout: float = 0.0
    ) -> Tensor:
        """Mix the values of the keys in ``mask_BS``, [B, H, S, E]; ``dropout`` is ignored."""
        real_B1S1 = mask_BS[:, None, :, None]
        query_BHSM = self._log_features(query_BHSE)
        query_BHSM = (query_BHSM - query_BHSM.amax(3, keepdim=True)).exp()
        key_BHSM = torch.where(real_B1S1, self._log_features(key_BHSE), MASKED)
        key_BHSM = (key_BHSM - key_BHSM.amax((2, 3), keepdim=True)).exp()
        key_BHSM = torch.where(real_B1S1, key_BHSM, 0.0)
        value_BHSV = F.pad(value_BHSE, (0, 1), value=1.0)  # the column of ones adds up the denominator
        mix = _mix_before if self.causal else _mix
        mixed_BHSV = mix(query_BHSM, key_BHSM, value_BHSV)
        total_BHS1 = mixed_BHSV[..., -1:]
        mixed_BHSE: Tensor = mixed_BHSV[..., :-1] / torch.where(total_BHS1 > 0, total_BHS1, 1.0)
        return mixed_BHSE

    def _log_features(self, x_BHSE: Tensor) -> Tensor:
        x_BHSE = x_BHSE * x_BHSE.shape[-1] ** -0.25
        return x_BHSE @ self.feature_ME.T - x_BHSE.square().sum(3, keepdim=True) / 2


def orthogonal_features(n_features: int, width: int) -> Tensor:
    """Draw Gaussian directions [M, E], orthogonal in blocks of E, with the lengths of Gaussian vectors."""
    blocks = [_random_rotation(width) for _ in range(-(-n_features // width))]
    length_M1: Tensor = torch.randn(n_features, width).norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:n_features] * length_M1


def _random_rotation(width: int) -> Tensor:
    orthogonal_EE, triangle_EE = torch.linalg.qr(torch.randn(width, width))
    # LAPACK fixes the signs of the columns, which would exclude half of all directions and bias the estimate.
    rotation_EE: Tensor = (orthogonal_EE * triangle_EE.diagonal().sign()).T
    return rotation_EE


def _mix(query_BHSM: Tensor, key_BHSM: Tensor, value_BHSV: Tensor) -> Tensor:
    mixed_BHSV: Tensor = query_BHSM @ (key_BHSM.transpose(2, 3) @ value_BHSV)
    return mixed_BHSV


def _mix_before(query_BHSM: Tensor, key_BHSM: Tensor, value_BHSV: Tensor) -> Tensor:
    """Mix values over the keys up to each query: running sums over previous chunks, lower triangle in its own."""
    query_BHPCM, key_BHPCM, value_BHPCV = (chunked(x, 2, CHUNK) for x in (query_BHSM, key_BHSM, value_BHSV))
    sums_BHPMV = (key_BHPCM.transpose(3, 4) @ value_BHPCV).cumsum(2)
    before_BHPMV = F.pad(sums_BHPMV, (0, 0, 0, 0, 1, 0))[:, :, :-1]
    within_BHPCC = (query_BHPCM @ key_BHPCM.transpose(3, 4)).tril()
    mixed_BHPCV: Tensor = within_BHPCC @ value_BHPCV + query_BHPCM @ before_BHPMV
    return mixed_BHPCV.flatten(2, 3)[:, :, : query_BHSM.shape[2]]


Sparsity = Literal["released", "paper"]

_smaller: Callable[[int, int], int] = torch.sym_min

TABLE_ROWS = 512  # queries this far apart in a row share their random numbers


class KeySample(NamedTuple):
    """Positions of the sampled keys, [B, Q, U], and mask of the U that each row uses, [B, U]."""

    place_BQU: Tensor
    used_BU: Tensor


def sample_size(length: int, factor: float, sparsity: Sparsity) -> int:
    """Return u, the number of sampled keys and of attending queries for a row of ``length`` tokens.

    At least one; at least two with ``paper``, whose measure is the same for all queries with a single key.
    """
    logarithm = math.log(max(length, 1))
    if sparsity == "released":
        return max(1, min(int(factor * math.ceil(logarithm)), length))
    return max(1, min(max(int(factor * logarithm), 2), length))


class ProbSparseAttention(nn.Module):
    """See the module docstring; rows longer than ``max_length`` sample as many keys as rows of ``max_length``."""

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

    def sample(self, mask_BS: Tensor) -> KeySample:
        """Sample keys with the stored random numbers, or with new ones in training."""
        rank_BS = ranks(mask_BS)
        count_B1 = mask_BS.sum(1, keepdim=True).clamp(min=1)
        size_B1 = self.size_N[count_B1.clamp(max=len(self.sizes) - 1)]
        slots = self._slots(mask_BS.shape[1])
        uniform_TU = torch.rand_like(self.uniform_TU) if self.training else self.uniform_TU
        slot_U = torch.arange(slots, device=mask_BS.device)
        if self.sparsity == "released":
            uniform_BQU = uniform_TU[:, :slots][rank_BS % TABLE_ROWS]
            start_BQU, width_BQU = torch.zeros_like(slot_U), count_B1[..., None]
        else:  # one key from each of u segments of the row, so that all are different
            uniform_BQU = uniform_TU[:, None, :slots]
            start_BQU = (slot_U * count_B1 // size_B1)[:, None]
            width_BQU = ((slot_U + 1) * count_B1 // size_B1)[:, None] - start_BQU
        pick_BQU = start_BQU + (uniform_BQU * width_BQU).long().minimum(width_BQU - 1)
        pick_BQU = pick_BQU.minimum(count_B1[..., None] - 1)  # slots that the row does not use
        place_BX = inverse(rank_BS).gather(1, pick_BQU.flatten(1))
        return KeySample(place_BX.view(pick_BQU.shape), slot_U < size_B1)

    def _slots(self, places: int) -> int:
        """Return the maximum u of rows in a grid of this width; all slots in an exported graph of dynamic width."""
        if torch.compiler.is_exporting():
            return self.sizes[-1]
        return self.sizes[min(places, len(self.sizes) - 1)]

    def measure(self, query_BHSE: Tensor, key_BHSE: Tensor, mask_BS: Tensor, sample: KeySample, scale: float) -> Tensor:
        """Return the unevenness of each query's scores, [B, H, S]; ``MASKED`` outside ``mask_BS``."""
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
        self,
        query_BHSE: Tensor,
        key_BHSE: Tensor,
        value_BHSE: Tensor,
        mask_BS: Tensor,
        sample: KeySample,
        dropout: float,
    ) -> Tensor:
        """Compute attention for the most selective queries; the others get the mean or running sum."""
        places, scale = mask_BS.shape[1], value_BHSE.shape[-1] ** -0.5
        measure_BHS = self.measure(query_BHSE.detach(), key_BHSE.detach(), mask_BS, sample, scale)
        top_BHK = measure_BHS.topk(_smaller(sample.used_BU.shape[1], places)).indices
        visible_BHKS = mask_BS[:, None, None, :]
        if self.causal:
            visible_BHKS = visible_BHKS & (torch.arange(places, device=mask_BS.device) <= top_BHK[..., None])
        bias_BHKS = bias_where(visible_BHKS, query_BHSE.dtype)
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
    """Return the unscaled scores [B, H, S, U] of each query with its sampled keys.

    Gathering the sampled keys takes U * E numbers per query, computing all scores takes S. For up to U * E positions
    (about 1,200 to 2,000 at the usual sizes) it is faster and smaller to compute all scores and select from them.
    """
    (batch, heads, places, width), (_, queries, slots) = key_BHSE.shape, place_BQU.shape
    if queries != 1 and (torch.compiler.is_exporting() or places <= slots * width):
        return (query_BHSE @ key_BHSE.transpose(2, 3)).gather(3, place_BQU[:, None].expand(-1, heads, -1, -1))
    first_B11 = torch.arange(batch, device=key_BHSE.device)[:, None, None] * places
    row_BSX = key_BHSE.transpose(1, 2).reshape(batch * places, heads * width)
    sampled_BQUX = row_BSX.index_select(0, (first_B11 + place_BQU).flatten())
    sampled_BQUHE = sampled_BQUX.view(batch, queries, slots, heads, width)
    return torch.einsum("bhse,bsuhe->bhsu", query_BHSE, sampled_BQUHE)
