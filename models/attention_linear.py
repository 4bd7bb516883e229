"""Attention in time linear in the length: Linformer and Performer.

- ``LinformerAttention`` (Wang et al. 2020, eq 7): keys and values are replaced by K learned combinations of themselves.
  The projections are shared by the heads and separate for keys and values. They have a fixed number of rows, so a row
  of tokens has a longest length. Padded keys count as zero, and a combination that holds no real key at all is masked;
  with the identity as projection it is therefore exact attention, padding or not. It cannot be causal: a combination
  holds all keys.
- ``PerformerAttention`` (Choromanski et al. 2021, FAVOR+): exp(q.k) is estimated without bias by positive random
  features exp(w.x - |x|^2 / 2) (lemma 1) whose directions w are orthogonal in blocks of E (section 2.4). The released
  code adds 1e-6 to each feature against division by zero; here the features are scaled so that the largest is 1 and
  only a denominator of zero is guarded, which keeps the estimate unbiased. There are no weights to drop: no dropout.

Legend: B batch, S places, H heads, E head width, N longest row, K projected keys, M features, C places in a chunk,
P chunks, V = E + 1.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.attention_exact import MASKED, ExactAttention, chunked, ranks

CHUNK = 64


class LinformerAttention(nn.Module):
    """See the module docstring; weights begin as N(0, 1/K), the scale of the paper's random projections."""

    def __init__(self, n_projected: int, max_length: int) -> None:
        super().__init__()
        self.key_NK = nn.Parameter(torch.randn(max_length, n_projected) * n_projected**-0.5)
        self.value_NK = nn.Parameter(torch.randn(max_length, n_projected) * n_projected**-0.5)
        self.exact = ExactAttention()

    def forward(
        self, query_BHSE: Tensor, key_BHSE: Tensor, value_BHSE: Tensor, mask_BS: Tensor, dropout: float = 0.0
    ) -> Tensor:
        """Mix combinations of the values of the keys in ``mask_BS``, [B, H, S, E].

        A grid of more than ``max_length`` places raises ValueError; an exported graph refuses rows of more tokens.
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
        """The projection's row of each place's rank, [B, S, K]; zero for padding."""
        rank_BS = torch.where(mask_BS, ranks(mask_BS), 0)
        weight_BSK = weight_NK.index_select(0, rank_BS.flatten()).view(*mask_BS.shape, -1)
        return torch.where(mask_BS[..., None], weight_BSK, 0.0)


class PerformerAttention(nn.Module):
    """See the module docstring; the features are drawn once and kept with the weights."""

    feature_ME: Tensor

    def __init__(self, head_width: int, n_features: int, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.register_buffer("feature_ME", orthogonal_features(n_features, head_width))

    def forward(
        self, query_BHSE: Tensor, key_BHSE: Tensor, value_BHSE: Tensor, mask_BS: Tensor, dropout: float = 0.0
    ) -> Tensor:
        """Mix the values of the keys in ``mask_BS``, [B, H, S, E]; ``dropout`` has nothing to act on."""
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
    """Gaussian directions [M, E], orthogonal in blocks of E, with the lengths of Gaussian vectors."""
    blocks = [_random_rotation(width) for _ in range(-(-n_features // width))]
    length_M1: Tensor = torch.randn(n_features, width).norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:n_features] * length_M1


def _random_rotation(width: int) -> Tensor:
    orthogonal_EE, triangle_EE = torch.linalg.qr(torch.randn(width, width))
    # LAPACK fixes the signs of the columns, which would leave out half of all directions and bias the estimate.
    rotation_EE: Tensor = (orthogonal_EE * triangle_EE.diagonal().sign()).T
    return rotation_EE


def _mix(query_BHSM: Tensor, key_BHSM: Tensor, value_BHSV: Tensor) -> Tensor:
    mixed_BHSV: Tensor = query_BHSM @ (key_BHSM.transpose(2, 3) @ value_BHSV)
    return mixed_BHSV


def _mix_before(query_BHSM: Tensor, key_BHSM: Tensor, value_BHSV: Tensor) -> Tensor:
    """The same over the keys up to each query's place: running sums between chunks, a triangle within each."""
    query_BHPCM, key_BHPCM, value_BHPCV = (chunked(x, 2, CHUNK) for x in (query_BHSM, key_BHSM, value_BHSV))
    sums_BHPMV = (key_BHPCM.transpose(3, 4) @ value_BHPCV).cumsum(2)
    before_BHPMV = F.pad(sums_BHPMV, (0, 0, 0, 0, 1, 0))[:, :, :-1]
    within_BHPCC = (query_BHPCM @ key_BHPCM.transpose(3, 4)).tril()
    mixed_BHPCV: Tensor = within_BHPCC @ value_BHPCV + query_BHPCM @ before_BHPMV
    return mixed_BHPCV.flatten(2, 3)[:, :, : query_BHSM.shape[2]]
