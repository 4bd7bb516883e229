"""Statistics of the folded light curve in flux: its period by fits of four harmonics, and its shape.

Periods of ``period_statistics`` are of squashed flux (asinh), which keeps faint points. Of difference fluxes, where a
star's mean is zero, it leaves little more than the sign: minima of unlike depth, and the steep rise of a pulsating
star, are lost, and aliases win. Here the same search runs on flux itself, and its best candidates compete again:

- each is fitted with up to four harmonics (several harmonics: Schwarzenberg-Czerny 1996), of which more are paid for
  as in Schwarz (1978);
- half and twice the two best frequencies, and their aliases of a sidereal day, compete with them;
- half a frequency must fit clearly better: noise finds unlike minima everywhere.

The shape is that of the fit: ratios and relative phases of harmonics (Simon & Lee 1981), which distinguish fundamental
and overtone pulsators; what eight harmonics of half the frequency explain beyond, and how much of that wave is odd:
an eclipsing binary, which a search finds at half its period, has two unlike minima. Sums over points, as
``period_statistics`` has, leak between harmonics; a fit does not.

Notable: trees in a graph use these numbers (`training.export.served`); a network's own branch of statistics does not.

Legend: B batch, S light curves searched, L length, G bands, K candidates or statistics, H harmonics, P cosines and
sines of harmonics and the values they are fitted to.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from nightjar_alerts.models.networks.statistics.period_statistics import (
    FASTEST,
    FEWEST_SCORED,
    LARGEST_RATIO,
    LEAST_RESIDUAL,
    LEAST_SUM,
    STEP,
    TILT,
    Scores,
    Searched,
    candidates,
    fits,
    ridges,
    squares,
)
from nightjar_alerts.models.networks.statistics.points import FEWEST_POINTS, Points, Statistics

HARMONICS: Final = 4
COUNT: Final = 3 + 2 * 3 + 2 + 3 + 3 + 2
"""Number of statistics, K."""
CLIPPED: Final = 5.0  # standard deviations of a band
SIDEREAL: Final = 1.0027379  # cycles a day
HALF_COSTS: Final = (0.95, 6.0)  # share of its likelihood that counts, and what is paid besides
SLOWEST: Final = 2.5 * STEP
_DOUBTFUL: Final = 0.3  # of a band's variance: how much of it counts as error in its mean
_LEAST_SPREAD: Final = 1e-8
_LEAST_SIGNAL: Final = 0.02  # of a band's variance
_STIFF: Final = 2.5e-4  # ridge of a harmonic, times the square of its number
_AROUND: Final = tuple(range(-4, 5))
_FINER: Final = 0.15  # of the inverse of the duration: steps around a frequency
_SHORTEST: Final = 10.0  # days
_SLOWEST_TRIED: Final = 1e-4
_APART: Final = 0.03  # cycles a day
_LOW: Final = 1.5  # standard deviations
_LARGEST_ODD: Final = 5.0

FoldValues = Callable[[Scores], Tensor]


def _stiff(harmonics: int) -> tuple[float, ...]:
    """Return the ridge of cosine and sine of every harmonic: high ones are only as large as the points demand."""
    return (*(_STIFF * (1 + wave // 2) ** 2 for wave in range(2 * harmonics)), 0.0)


def fold_statistics(points: Points, values: FoldValues | None = None) -> Statistics:
    """Statistics [B, K] of folded light curves; unknown with fewer than ``FEWEST_SCORED`` points in bands that vary.

    Parameters
    ----------
    values : :func:`fold_values`, or a module that calls it: so that a graph can leave it out where no light curve has
        enough points.
    """
    scored = flux_scores(points)
    enough_B1 = scored.points.sum(1, keepdim=True) >= FEWEST_SCORED
    rows = Searched.of(enough_B1[:, 0])
    value_BK = rows.back((values or fold_values)(scored.take(rows.row_S)))
    mask_BK = enough_B1.expand(-1, value_BK.shape[1])
    return Statistics(torch.where(mask_BK, value_BK, 0.0), mask_BK)


def flux_scores(points: Points) -> Scores:
    """Weigh the points of light curves: flux less its band's mean, in standard deviations of the band, clipped."""
    square_B1L = points.flux_err_B1L.square()
    per_B1G = points.number_B1G.clamp(min=1)
    away_B1L = points.flux_B1L - points.to_points(points.sums(points.flux_B1L) / per_B1G)
    variance_B1L = points.to_points(points.sums(away_B1L.square()) / per_B1G)
    weight_B1L = 1 / (square_B1L + _DOUBTFUL * variance_B1L)
    sums_B2G = points.sums(torch.cat([weight_B1L, weight_B1L * away_B1L], dim=1))
    shift_B1G = sums_B2G[:, 1:] / sums_B2G[:, :1].clamp(min=1e-30)
    away_B1L = away_B1L - points.to_points(shift_B1G)
    most_B1L = CLIPPED * variance_B1L.sqrt()
    away_B1L = torch.minimum(torch.maximum(away_B1L, -most_B1L), most_B1L)
    spread_B1G, expected_B1G = torch.split(
        points.sums(torch.cat([away_B1L.square(), square_B1L], dim=1)) / per_B1G, 1, dim=1
    )
    varies_B1G = (points.number_B1G >= FEWEST_POINTS) & (spread_B1G > _LEAST_SPREAD)
    varies_B1G = varies_B1G.to(spread_B1G.dtype)
    signal_B1G = torch.maximum(spread_B1G - expected_B1G, _LEAST_SIGNAL * spread_B1G)
    scale_B1G = varies_B1G / spread_B1G.clamp(min=_LEAST_SPREAD).sqrt()
    own_B2L = points.to_points(torch.cat([signal_B1G * varies_B1G, scale_B1G], dim=1))
    signal_B1L, scale_B1L = torch.split(own_B2L, 1, dim=1)
    trust_B1L = signal_B1L / (signal_B1L + square_B1L).clamp(min=1e-30)
    scaled_B1L = away_B1L * scale_B1L
    searched_BG = (points.number_B1G * varies_B1G)[:, 0]
    return Scores(trust_B1L * scaled_B1L, trust_B1L, scaled_B1L, points.time_B1L, points.share_BGL, searched_BG)


def fold_values(points: Scores) -> Tensor:
    """All statistics [S, K] of light curves that have enough points.

    The logarithm of the frequency and of its likelihood; shares of the variance that one, two and four harmonics leave;
    ratio, cosine and sine of the second and the third harmonic; what half the frequency explains more, and its odd
    harmonics over the even ones; skewness, kurtosis, and how many more points are low than high; logarithm of another
    frequency, its ratio to the first, and the ratio of likelihoods.
    """
    score_SL, trust_SL, value_SL, time_SL = (
        rows_S1L[:, 0] for rows_S1L in (points.score, points.trust, points.away, points.time)
    )
    alike_S1 = trust_SL.sum(1, keepdim=True).square() / trust_SL.square().sum(1, keepdim=True).clamp(min=LEAST_SUM)

    def likely(frequency_SK: Tensor) -> Tensor:
        residual_SKH = fits(value_SL, trust_SL, points.share, time_SL, frequency_SK, _stiff(HARMONICS))
        paid_H = 2.0 * torch.arange(1, HARMONICS + 1, device=residual_SKH.device)
        gain_SKH = -alike_S1[..., None] * residual_SKH.log() - paid_H * alike_S1[..., None].clamp(min=1).log()
        return gain_SKH.amax(2).clamp(min=0)

    def tilted(frequency_SK: Tensor) -> Tensor:
        return likely(frequency_SK) * (1 - TILT / FASTEST * frequency_SK)

    _, frequency_SK = candidates(score_SL, trust_SL, time_SL)
    likely_SK = tilted(frequency_SK)
    best_S2 = frequency_SK.gather(1, likely_SK.topk(2, dim=1).indices)
    tried_SK = _related(_refined(value_SL, trust_SL, points.share, time_SL, best_S2))
    half_K = torch.arange(tried_SK.shape[1], device=tried_SK.device) % 5 == 1
    gain_SK = tilted(tried_SK)
    gain_SK = torch.where(half_K, HALF_COSTS[0] * gain_SK - HALF_COSTS[1], gain_SK)
    place_S1 = gain_SK.argmax(1, keepdim=True)
    frequency_S1, gain_S1 = tried_SK.gather(1, place_S1), gain_SK.gather(1, place_S1)
    near_SK = torch.stack([(frequency_SK - times * frequency_S1).abs() <= _APART for times in (1.0, 0.5, 2.0)]).any(0)
    other_S1 = torch.where(near_SK, -1.0, likely_SK).argmax(1, keepdim=True)
    other_frequency_S1, other_S1 = frequency_SK.gather(1, other_S1), likely_SK.gather(1, other_S1)
    columns = [
        torch.cat([frequency_S1, other_frequency_S1], dim=1).log10(),
        likely(frequency_S1).log1p(),
        other_frequency_S1 / frequency_S1,
        other_S1 / gain_S1.clamp(min=1e-3),
        _shape(value_SL, trust_SL, points.share, time_SL, frequency_S1),
        _moments(value_SL, trust_SL),
    ]
    return torch.cat(columns, dim=1)


def _related(frequency_S2: Tensor) -> Tensor:
    """Every frequency, half and twice of it, and its aliases of a day below and above, [S, 2 * 5]."""
    below_S2, above_S2 = (frequency_S2 - SIDEREAL).abs(), frequency_S2 + SIDEREAL
    more = [frequency_S2, 0.5 * frequency_S2, 2 * frequency_S2, below_S2, above_S2]
    return torch.stack(more, dim=2).flatten(1).clamp(min=SLOWEST)


def _refined(value_SL: Tensor, trust_SL: Tensor, share_SGL: Tensor, time_SL: Tensor, frequency_SK: Tensor) -> Tensor:
    """Move frequencies to where three harmonics fit best, within less than the width of a peak."""
    frequency_SK = frequency_SK.clamp(min=SLOWEST)
    scored_SL = trust_SL > 0
    last_S, first_S = (torch.where(scored_SL, sign * time_SL, -torch.inf).amax(1) for sign in (1.0, -1.0))
    step_S11 = _FINER / (last_S + first_S).clamp(min=_SHORTEST)[:, None, None]
    near_SKJ = frequency_SK[..., None] + step_S11 * torch.tensor(_AROUND, device=time_SL.device)
    residual_SKH = fits(value_SL, trust_SL, share_SGL, time_SL, near_SKJ.flatten(1), _stiff(3))
    left_SKJ = torch.where(near_SKJ > _SLOWEST_TRIED, residual_SKH[..., -1].view_as(near_SKJ), torch.inf)
    return near_SKJ.gather(2, left_SKJ.argmin(2, keepdim=True))[..., 0]


def _fitted(
    value_SL: Tensor, trust_SL: Tensor, share_SGL: Tensor, time_SL: Tensor, frequency_S1: Tensor, harmonics: int
) -> tuple[Tensor, Tensor]:
    """Coefficients of cosine and sine of every harmonic [S, H, 2], and the shares of the variance left [S, H].

    By the elimination of Gauss and Jordan; the coefficients end up in the last column.
    """
    square_SPP = squares(value_SL, trust_SL, share_SGL, time_SL, frequency_S1, harmonics)[:, 0]
    total_S1 = square_SPP[:, -1:, -1].clamp(min=LEAST_SUM)
    square_SPP = square_SPP + ridges(_stiff(harmonics), trust_SL)
    once_PP = torch.eye(2 * harmonics + 1, device=time_SL.device, dtype=time_SL.dtype)
    residuals = []
    for wave in range(2 * harmonics):
        row_S1P = square_SPP[:, wave : wave + 1] / square_SPP[:, wave : wave + 1, wave : wave + 1].clamp(min=LEAST_SUM)
        square_SPP = square_SPP - (square_SPP[:, :, wave : wave + 1] - once_PP[:, wave : wave + 1]) * row_S1P
        if wave % 2:
            residuals.append(square_SPP[:, -1:, -1])
    left_SH = (torch.cat(residuals, dim=1) / total_S1).clamp(LEAST_RESIDUAL, 1.0)
    return square_SPP[:, :-1, -1].reshape(-1, harmonics, 2), left_SH


def _shape(value_SL: Tensor, trust_SL: Tensor, share_SGL: Tensor, time_SL: Tensor, frequency_S1: Tensor) -> Tensor:
    """Return what harmonics leave, ratios and phases of overtones, and what half the frequency explains, [S, 11]."""
    wave_SH2, left_SH = _fitted(value_SL, trust_SL, share_SGL, time_SL, frequency_S1, HARMONICS)
    once_S1 = wave_SH2[:, 0].square().sum(1, keepdim=True).sqrt().clamp(min=1e-6)
    cos_S1, sin_S1 = torch.split(wave_SH2[:, 0] / once_S1, 1, dim=1)
    back_cos_S1, back_sin_S1 = cos_S1, sin_S1
    columns = [left_SH[:, :2], left_SH[:, -1:]]
    for harmonic in (1, 2):  # turned back by the angle of the first as often as its number says
        back_cos_S1, back_sin_S1 = (
            back_cos_S1 * cos_S1 - back_sin_S1 * sin_S1,
            back_sin_S1 * cos_S1 + back_cos_S1 * sin_S1,
        )
        length_S1 = wave_SH2[:, harmonic].square().sum(1, keepdim=True).sqrt()
        ratio_S1 = (length_S1 / once_S1).clamp(max=LARGEST_RATIO)
        x_S1, y_S1 = torch.split(wave_SH2[:, harmonic] / length_S1.clamp(min=1e-9) * ratio_S1, 1, dim=1)
        columns += [ratio_S1, x_S1 * back_cos_S1 + y_S1 * back_sin_S1, y_S1 * back_cos_S1 - x_S1 * back_sin_S1]
    half_SH2, half_left_SH = _fitted(value_SL, trust_SL, share_SGL, time_SL, 0.5 * frequency_S1, 2 * HARMONICS)
    square_SH = half_SH2.square().sum(2)
    odd_S1, even_S1 = square_SH[:, ::2].sum(1, keepdim=True), square_SH[:, 1::2].sum(1, keepdim=True)
    columns += [left_SH[:, -1:] - half_left_SH[:, -1:], (odd_S1 / (even_S1 + 1e-9)).sqrt().clamp(max=_LARGEST_ODD)]
    return torch.cat(columns, dim=1)


def _moments(value_SL: Tensor, trust_SL: Tensor) -> Tensor:
    """Skewness and kurtosis of all points, and how many more are low than high, as a share, [S, 3]."""
    total_S1 = trust_SL.sum(1, keepdim=True).clamp(min=LEAST_SUM)

    def mean(of_SL: Tensor) -> Tensor:
        return (trust_SL * of_SL).sum(1, keepdim=True) / total_S1

    square_SL = value_SL.square()
    second_S1 = mean(square_SL).clamp(min=LEAST_SUM)
    low_SL = (value_SL < -_LOW).to(value_SL.dtype) - (value_SL > _LOW).to(value_SL.dtype)
    skewness_S1 = mean(square_SL * value_SL) / (second_S1 * second_S1.sqrt())
    return torch.cat([skewness_S1, mean(square_SL.square()) / second_S1.square(), mean(low_SL)], dim=1)
