"""How alike the points of a light curve are that lie so many days apart: its autocorrelation, over all bands together.

Attention compares points by what they are and when they are, but what a network learns of time scales from sparse
light curves is coarse: a star that varies within hours, one that varies within days and noise look the same to it. The
correlation by lag tells them apart without a search for periods (the discrete correlation function of Edelson & Krolik
1988, and the structure functions that brokers use, are of this kind).

Notable:

- every point counts as its standard score within its band, in squashed flux (asinh), so that bands can be paired: two
  bands share a night where two visits in one band are days apart;
- points are not weighted by their errors: tried, and worth less, since how much of the scatter is noise is told by
  the shortest lags;
- one product of [L, L] for each lag: the costliest of all statistics for light curves of hundreds of points.

Legend: B batch, L length, G bands, K lags.
"""

from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from models.curve_statistics import SOFT, Statistics

LAGS: Final = (0.0, 0.1, 0.6, 1.5, 2.5, 4.0, 7.0, 12.0, 20.0, 35.0, 60.0, 120.0, 250.0, 5000.0)  # days, edges
FEWEST_POINTS: Final = 3  # of a band, for a standard score to mean anything
FEWEST_PAIRS: Final = 2
LEAST_SCATTER: Final = 1e-3  # of a band that varies
_FAR: Final = 1e9  # beyond every flux

COUNT: Final = 2 * (len(LAGS) - 1)  # statistics: the correlations, then how many pairs each is of


def lag_statistics(flux_BL: Tensor, time_BL: Tensor, band_BL: Tensor, mask_BL: Tensor, n_bands: int) -> Statistics:
    """Mean product of standard scores of pairs of points [B, K], and half the log of how many pairs [B, K].

    Flux in FLUXCAL, time in days; rows in any order, padding may hold anything. A lag of no more than one pair is not
    known.
    """
    score_BL, scored_BL = _scores(flux_BL, band_BL, mask_BL, n_bands)
    time_BL = torch.where(scored_BL, time_BL, 0.0)
    lag_BLL = (time_BL[:, :, None] - time_BL[:, None]).abs()
    both_BL2 = torch.stack([score_BL, scored_BL.to(score_BL.dtype)], dim=2)
    sums_KB2 = [
        (both_BL2 * (((lag_BLL >= start) & (lag_BLL < stop)).to(score_BL.dtype) @ both_BL2)).sum(1)
        for start, stop in pairwise(LAGS)
    ]
    sums_KB2[0] = sums_KB2[0] - both_BL2.square().sum(1)  # a point and itself are no pair
    product_BK, pairs_BK = torch.stack(sums_KB2, dim=2).unbind(1)  # every pair twice
    known_BK = pairs_BK > 2 * FEWEST_PAIRS - 1
    correlation_BK = torch.where(known_BK, product_BK / pairs_BK.clamp(min=1), 0.0)
    return Statistics(
        torch.cat([correlation_BK, (pairs_BK / 2).log1p() / 2], dim=1),
        torch.cat([known_BK, torch.ones_like(known_BK)], dim=1),
    )


def _scores(flux_BL: Tensor, band_BL: Tensor, mask_BL: Tensor, n_bands: int) -> tuple[Tensor, Tensor]:
    """Standard score of every point among those of its band, 0 where there is none, and where there is one."""
    soft_BL = torch.asinh(torch.where(mask_BL, flux_BL, 0.0).clamp(-_FAR, _FAR) / SOFT)
    here_BGL = (band_BL[:, None] == torch.arange(n_bands, device=band_BL.device)[:, None]) & mask_BL[:, None]
    points_BG1 = here_BGL.sum(2, keepdim=True)
    mean_BG1 = torch.where(here_BGL, soft_BL[:, None], 0.0).sum(2, keepdim=True) / points_BG1.clamp(min=1)
    away_BGL = torch.where(here_BGL, soft_BL[:, None] - mean_BG1, 0.0)
    scatter_BG1 = (away_BGL.square().sum(2, keepdim=True) / points_BG1.clamp(min=1)).sqrt()
    scored_BGL = here_BGL & (points_BG1 >= FEWEST_POINTS) & (scatter_BG1 > LEAST_SCATTER)
    score_BGL = torch.where(scored_BGL, away_BGL / scatter_BG1.clamp(min=LEAST_SCATTER), 0.0)
    return score_BGL.sum(1), scored_BGL.any(1)
