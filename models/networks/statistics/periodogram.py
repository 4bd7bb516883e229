"""Periodogram: how much of a light curve repeats at each of twenty thousand frequencies, over all bands together.

Period and shape tell pulsating stars and eclipsing binaries from each other (Debosscher et al. 2007), and no network
of this size learns periods from points at irregular times: it would have to try tens of thousands. This does so. Its
power is that of Lomb (1976) and Scargle (1982) without the small correction for uneven phases; ``period_statistics``
makes of it what a network is shown.

Notable:

- the frequencies cost four small matrix products: with f = a + b and a - b, of 160 coarse a and 64 fine b, the sums of
  angles are split, and cosines are taken of a t and of b t alone;
- every point counts as its standard score within its band, in squashed flux (asinh), times the share of the band's
  scatter that is not noise, so that all bands speak of one period and faint points say little;
- a peak is of a frequency and its overtone, or the steep rise of a sawtooth is lost to aliases (several harmonics:
  Schwarzenberg-Czerny 1996);
- of frequencies that fit equally well, as the aliases of evenly spaced points do, the lowest counts, by :data:`TILT`:
  rounding decides nothing;
- what is faster than ten cycles a day, as many Delta Scuti stars are, shows at an alias, by which they are still told.

Legend: B batch, L length, G bands, A coarse and J fine frequencies, F frequencies, I intervals of J frequencies.
"""

from itertools import pairwise
from typing import Final, NamedTuple

import torch
from torch import Tensor

from models.networks.statistics.lag_statistics import FEWEST_POINTS, LEAST_SCATTER
from models.networks.statistics.points import Points

STEP: Final = 2.0**-11  # cycles a day: two within the width of a peak of three years
FINE: Final = 64
COARSE: Final = 160
INTERVALS: Final = 2 * COARSE
FREQUENCIES: Final = INTERVALS * FINE  # up to ten cycles a day
SLOWEST: Final = 2  # below that place, it is a trend or a season
OCTAVES: Final = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, FREQUENCIES)  # edges, as places
OVERTONE: Final = 0.5  # of the power of a frequency: the most that its overtone adds
TILT: Final = 0.02  # of the power: how much less the fastest counts than the slowest
_LEAST_SIGNAL: Final = 0.02  # of a band's variance


class Scores(NamedTuple):
    """Standard scores that are searched for periods; 0 where a band has too few points, or does not vary.

    ``score`` [B, L]: standard scores times ``trust`` [B, L], the share of signal in their variance. ``away`` [B, L]:
    difference to the band's mean, asinh. ``points`` [B, G]: how many of a band are searched, ``share`` [B, G, L]: 1
    where one of them is. ``time`` [B, L]: days, 0 in padding.
    """

    score: Tensor
    trust: Tensor
    away: Tensor
    time: Tensor
    points: Tensor
    share: Tensor


class Peaks(NamedTuple):
    """The highest power in each octave [B, O]; frequency (cycles a day) and power of the two highest peaks [B, 1]."""

    octaves: Tensor
    first: Tensor
    first_power: Tensor
    other: Tensor
    other_power: Tensor


def frequencies(place: Tensor) -> Tensor:
    """Cycles a day of places in the periodogram."""
    return (place + 0.5) * STEP


def scores(points: Points) -> Scores:
    """Weigh the points of light curves."""
    signal_BG = torch.maximum(points.spread_BG - points.expected_BG, _LEAST_SIGNAL * points.spread_BG)
    varies_BG = (points.number_BG >= FEWEST_POINTS) & (points.spread_BG > LEAST_SCATTER**2)
    varies_BG = varies_BG.to(signal_BG.dtype)
    scale_BG = varies_BG / points.spread_BG.clamp(min=LEAST_SCATTER**2).sqrt()
    own_B3L = points.to_points(torch.stack([signal_BG * varies_BG, scale_BG, varies_BG], dim=1))
    signal_B1L, scale_B1L, varies_B1L = torch.split(own_B3L, 1, dim=1)
    trust_B1L = signal_B1L / (signal_B1L + points.noise_B1L).clamp(min=1e-30)
    score_B1L = trust_B1L * points.pull_B1L * scale_B1L
    away_B1L, time_B1L = points.pull_B1L * varies_B1L, points.time_B1L
    share_BGL = points.share_BGL * varies_BG[..., None]
    rows = (score_B1L[:, 0], trust_B1L[:, 0], away_B1L[:, 0], time_B1L[:, 0])
    return Scores(*rows, points.number_BG * varies_BG, share_BGL)


def waves(time_BL: Tensor, frequency_BK: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine [B, L, K] of points in time (days) at frequencies [B, K] or [1, K] (cycles a day)."""
    cycles_BLK = time_BL[:, :, None] * frequency_BK[:, None]
    angle_BLK = (cycles_BLK - cycles_BLK.floor()) * (2 * torch.pi)
    return angle_BLK.cos(), angle_BLK.sin()


def turning(time_BL: Tensor, frequency_BK: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`waves`, but [B, K, L]."""
    cycles_BKL = frequency_BK[:, :, None] * time_BL[:, None]
    angle_BKL = (cycles_BKL - cycles_BKL.floor()) * (2 * torch.pi)
    return angle_BKL.cos(), angle_BKL.sin()


def added(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the sum of two angles."""
    return one[0] * other[0] - one[1] * other[1], one[1] * other[0] + one[0] * other[1]


def coarse_waves(time_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine [B, A, L] at the coarse frequencies."""
    coarse_1A = (torch.arange(COARSE, device=time_BL.device)[None] * 2 + 1) * (FINE * STEP)
    return turning(time_BL, coarse_1A)


def power_around(time_BL: Tensor, cos_BAL: Tensor, sin_BAL: Tensor) -> tuple[Tensor, Tensor]:
    """Squared sums [B, A, J] at the frequencies below and above every coarse one, nearest first.

    Cosine and sine are those of the coarse frequencies, times the scores.
    """
    cos_BLJ, sin_BLJ = waves(time_BL, frequencies(torch.arange(FINE, device=time_BL.device)[None]))
    cc_BAJ, ss_BAJ, sc_BAJ, cs_BAJ = cos_BAL @ cos_BLJ, sin_BAL @ sin_BLJ, sin_BAL @ cos_BLJ, cos_BAL @ sin_BLJ
    above_BAJ = (cc_BAJ - ss_BAJ).square() + (sc_BAJ + cs_BAJ).square()
    below_BAJ = (cc_BAJ + ss_BAJ).square() + (sc_BAJ - cs_BAJ).square()
    return below_BAJ, above_BAJ


def periodogram(score_BL: Tensor, time_BL: Tensor) -> Tensor:
    """Power [B, F] at every frequency, about 1 where there is nothing but noise; half the points is the most.

    ``time`` in days, finite where the score is 0, too.
    """
    score_BL = score_BL / score_BL.square().sum(1, keepdim=True).sqrt().clamp(min=1e-9)
    cos_BAL, sin_BAL = (wave * score_BL[:, None] for wave in coarse_waves(time_BL))
    below_BAJ, above_BAJ = power_around(time_BL, cos_BAL, sin_BAL)
    return torch.cat([below_BAJ.flip(2), above_BAJ], dim=2).flatten(1)


def peaks(power_BF: Tensor) -> Peaks:
    """Highest places of a periodogram: the best, and the best of those in other parts of it."""
    half = FREQUENCIES // 2
    overtone_BF = torch.nn.functional.max_pool1d(power_BF[:, None], 4, stride=2, padding=1)[:, 0]  # around 2 f, at f
    slow_BF = power_BF[:, :half] + torch.minimum(overtone_BF, OVERTONE * power_BF[:, :half])
    most_BI = torch.cat([power_BF[:, SLOWEST:FINE].amax(1, keepdim=True), _most(power_BF[:, FINE:])], dim=1)
    best_BI = torch.cat(
        [slow_BF[:, SLOWEST:FINE].amax(1, keepdim=True), _most(slow_BF[:, FINE:]), most_BI[:, COARSE:]], 1
    )
    interval_I = torch.arange(INTERVALS, device=power_BF.device)
    best_BI = best_BI * (1 - TILT / INTERVALS * interval_I)
    first_B1 = best_BI.argmax(1, keepdim=True)
    other_B1 = torch.where((interval_I - first_B1).abs() > 1, best_BI, 0.0).argmax(1, keepdim=True)
    places = [_place(interval_B1, slow_BF, power_BF) for interval_B1 in (first_B1, other_B1)]
    found = [part for place_B1 in places for part in (frequencies(place_B1), power_BF.gather(1, place_B1))]
    return Peaks(_octaves(power_BF, most_BI), *found)


def _most(power_BF: Tensor) -> Tensor:
    return power_BF.reshape(-1, power_BF.shape[1] // FINE, FINE).amax(2)


def _place(interval_B1: Tensor, slow_BF: Tensor, power_BF: Tensor) -> Tensor:
    """Return the place of the most in an interval, by what :func:`peaks` compares."""
    place_BJ = interval_B1 * FINE + torch.arange(FINE, device=power_BF.device)
    half = slow_BF.shape[1]
    low_BJ = slow_BF.gather(1, place_BJ.clamp(max=half - 1))
    both_BJ = torch.where(place_BJ < half, low_BJ, power_BF.gather(1, place_BJ))
    tilted_BJ = both_BJ * (1 - TILT / FREQUENCIES * place_BJ)
    return place_BJ.gather(1, torch.where(place_BJ >= SLOWEST, tilted_BJ, 0.0).argmax(1, keepdim=True))


def _octaves(power_BF: Tensor, most_BI: Tensor) -> Tensor:
    """Highest power between the edges of :data:`OCTAVES`; those beyond the first interval are whole intervals."""
    narrow = [power_BF[:, start:stop] for start, stop in pairwise(OCTAVES) if stop <= FINE]
    wide = [most_BI[:, start // FINE : stop // FINE] for start, stop in pairwise(OCTAVES) if stop > FINE]
    return torch.stack([octave.amax(1) for octave in (*narrow, *wide)], dim=1)
