"""Autocorrelation of a light curve: how alike points are that lie so many days apart, over all bands together.

Attention compares points by what they are and when they are, but what a network learns of time scales from sparse
light curves is coarse: a star that varies within hours, one that varies within days and noise look the same to it. The
correlation by lag tells them apart without a search for periods (the discrete correlation function of Edelson & Krolik
1988, and the structure functions that brokers use, are of this kind).

Notable:

- every point counts as its standard score within its band, in squashed flux (asinh), so that bands can be paired: two
  bands share a night where two visits in one band are days apart;
- points are not weighted by their errors: tried, and worth less, since how much of the scatter is noise is told by
  the shortest lags;
- all pairs are compared with every lag, which is the costliest of all statistics for light curves of hundreds of points
  and the cheapest way for those of tens. Sums of pairs nearer than the end of a lag are taken of each point, and the
  nearer ones off them point by point: where no pair lies between two ends, nothing is left but an exact zero.

Legend: B batch, L length, G bands, K lags.
"""

from typing import Final

import torch
from torch import Tensor

from models.networks.statistics.points import Points, Statistics

LAGS: Final = (0.0, 0.1, 0.6, 1.5, 2.5, 4.0, 7.0, 12.0, 20.0, 35.0, 60.0, 120.0, 250.0, 5000.0)  # days, edges
FEWEST_POINTS: Final = 3  # of a band, for a standard score to mean anything
FEWEST_PAIRS: Final = 2
LEAST_SCATTER: Final = 1e-3  # of a band that varies
_AT_ONCE: Final = 5  # lags: their pairs are what takes memory

COUNT: Final = 2 * (len(LAGS) - 1)  # statistics: the correlations, then how many pairs each is of


def lag_statistics(points: Points) -> Statistics:
    """Mean product of standard scores of pairs of points [B, K], and half the log of how many pairs [B, K].

    A lag of no more than one pair is not known.
    """
    scores_B12L, time_B1L = _scores(points)[:, None], points.time_B1L
    lag_B1LL = (time_B1L.transpose(1, 2) - time_B1L).abs()[:, None]
    ends_K11 = torch.tensor(LAGS[1:], device=time_B1L.device, dtype=time_B1L.dtype)[:, None, None]
    sums_BK2L = torch.cat(
        [scores_B12L @ (lag_B1LL < some).to(time_B1L.dtype) for some in torch.split(ends_K11, _AT_ONCE)], dim=1
    )
    nearer_BK2L = torch.cat([scores_B12L, sums_BK2L[:, :-1]], dim=1)  # nearest is the point itself
    pairs_BK2 = (scores_B12L * (sums_BK2L - nearer_BK2L)).sum(3)  # every pair twice
    product_BK, number_BK = pairs_BK2[..., 0], pairs_BK2[..., 1]
    known_BK = number_BK > 2 * FEWEST_PAIRS - 1
    correlation_BK = torch.where(known_BK, product_BK / number_BK.clamp(min=1), 0.0)
    return Statistics(
        torch.cat([correlation_BK, (number_BK / 2).log1p() / 2], dim=1),
        torch.cat([known_BK, number_BK > -1], dim=1),
    )


def _scores(points: Points) -> Tensor:
    """Return the standard score of every point within its band, 0 where there is none, and 1 where there is one."""
    scatter_B1G = points.variance_B1G.sqrt()
    scored_B1G = ((points.number_B1G >= FEWEST_POINTS) & (scatter_B1G > LEAST_SCATTER)).to(scatter_B1G.dtype)
    scale_B2G = torch.cat([scored_B1G / scatter_B1G.clamp(min=LEAST_SCATTER), scored_B1G], dim=1)
    each_B2L = torch.cat([points.away_B1L, points.mask_B1L.to(scatter_B1G.dtype)], dim=1)
    return points.to_points(scale_B2G) * each_B2L
