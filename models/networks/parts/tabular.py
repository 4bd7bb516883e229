"""ATAT's tabular transformer: each metadata column is a token, W_f * x_f + b_f, under a quantile transform.

Missing metadata is ordinary input (real Rubin and ZTF alerts carry none of the columns): a missing column has no token,
so it is neither attended to nor computed, and an object without metadata is encoded from the [CLS] token alone. The
quantile transform to normal scores lives inside the network, so no fitted object travels beside the graph.

Legend: B batch, C columns, P columns present in the batch, N real tokens, Q knots, D width.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.networks.parts.packing import pack_values
from models.networks.parts.transformer import Encoder

_check: Callable[[bool], None] = torch._check

SCORE_LIMIT = 5.1993  # scikit-learn's QuantileTransformer clips normal scores there (probability 1e-7)


class QuantileTransform(nn.Module):
    """Monotone piecewise-linear map of each column to normal scores, fitted on the finite training values.

    Unlike scikit-learn's (linear in probability between quantiles), this is linear in the score between ``n_knots``
    quantiles, which needs no inverse error function in the exported graph; at the knots the two agree. A tied value
    maps to the middle of its range of scores, a constant column to 0.
    """

    x_CQ: Tensor
    score_CQ: Tensor

    def __init__(self, n_columns: int, n_knots: int) -> None:
        super().__init__()
        self.n_knots = n_knots
        self.register_buffer("x_CQ", torch.full((n_columns, n_knots), torch.inf))
        self.x_CQ[:, 0] = 0.0  # a column that was never fitted maps to 0, not to inf - inf
        self.register_buffer("score_CQ", torch.zeros(n_columns, n_knots))

    def fit(self, values_NC: NDArray[np.floating]) -> None:
        """Fit on training rows [N, C], NaN where missing; a column without a finite value maps to 0."""
        for column in range(values_NC.shape[1]):
            values = values_NC[:, column].astype(np.float64)
            values = values[np.isfinite(values)]
            if values.size:
                x, score = _knots(values, self.n_knots)
                self.x_CQ[column] = torch.inf
                self.x_CQ[column, : x.size] = torch.from_numpy(x)
                self.score_CQ[column] = float(score[-1])
                self.score_CQ[column, : x.size] = torch.from_numpy(score)

    def forward(self, x_BP: Tensor, column_P: Tensor) -> Tensor:
        """Return the normal scores [B, P] of the columns ``column_P``; NaN stays NaN."""
        x_PQ, score_PQ = self.x_CQ[column_P], self.score_CQ[column_P]
        below_BP = (x_BP[..., None] >= x_PQ).to(x_BP.dtype).sum(-1).long() - 1  # whole numbers add up six times slower
        left_BP = below_BP.clamp(0, self.n_knots - 2)
        place_P = torch.arange(x_BP.shape[1], device=x_BP.device) * self.n_knots
        left_BP = left_BP + place_P
        x0_BP, x1_BP = x_PQ.flatten()[left_BP], x_PQ.flatten()[left_BP + 1]
        y0_BP, y1_BP = score_PQ.flatten()[left_BP], score_PQ.flatten()[left_BP + 1]
        fraction_BP = ((x_BP - x0_BP) / (x1_BP - x0_BP)).clamp(0, 1)
        return y0_BP + fraction_BP * (y1_BP - y0_BP)


def _knots(values: NDArray[np.float64], n_knots: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Distinct quantiles and their normal scores, at most ``n_knots`` of each."""
    probability = np.linspace(0, 1, n_knots)
    x = np.quantile(values, probability).astype(np.float32)
    score = torch.special.ndtri(torch.from_numpy(probability)).clamp(-SCORE_LIMIT, SCORE_LIMIT).numpy()
    distinct, first, count = np.unique(x, return_index=True, return_counts=True)
    middle = (score[first] + score[first + count - 1]) / 2
    return distinct, middle.astype(np.float32)


class TabularTransformer(nn.Module):
    """Metadata rows [B, C], NaN where missing, to one vector per object."""

    def __init__(self, n_columns: int, width: int, n_knots: int, encoder: Encoder) -> None:
        super().__init__()
        self.quantiles = QuantileTransform(n_columns, n_knots)
        self.weight_CD = nn.Parameter(torch.randn(n_columns, width))
        self.bias_CD = nn.Parameter(torch.randn(n_columns, width))
        self.encoder = encoder

    def forward(self, metadata_BC: Tensor, only_answer: bool = False) -> Tensor:
        """Encode to [B, D]; with ``only_answer`` no more of the last block is computed than that needs."""
        present_BC = metadata_BC == metadata_BC  # not NaN
        is_first_C = torch.arange(present_BC.shape[1], device=present_BC.device) == 0
        column_P = (present_BC.any(0) | is_first_C).nonzero()[:, 0]  # never empty: an empty axis does not export
        _check(column_P.shape[0] >= 1)
        _check(column_P.shape[0] <= present_BC.shape[1])
        score_BP = self.quantiles(metadata_BC[:, column_P], column_P)
        mask_BP = present_BC[:, column_P]
        column_BP = column_P.expand(mask_BP.shape)
        column_N = pack_values(column_BP, mask_BP)
        x_ND = pack_values(score_BP, mask_BP)[:, None] * self.weight_CD[column_N] + self.bias_CD[column_N]
        embedding_BD = (self.encoder.answer if only_answer else self.encoder)(x_ND, mask_BP)[0]
        return embedding_BD
