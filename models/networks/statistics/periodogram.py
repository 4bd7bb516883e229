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

from models.networks.statistics.points import FEWEST_POINTS, LEAST_SCATTER, Points

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

    ``score`` [B, 1, L]: standard scores times ``trust`` [B, 1, L], the share of signal in their variance. ``away``
    [B, 1, L]: difference to the band's mean, asinh. ``time`` [B, 1, L]: days, 0 in padding. ``share`` [B, G, L]: 1
    where a point is in a band. ``points`` [B, G]: how many of a band are searched.
    """

    score: Tensor
    trust: Tensor
    away: Tensor
    time: Tensor
    share: Tensor
    points: Tensor

    def take(self, row_S: Tensor) -> "Scores":
        """Return those of some rows."""
        all_BXL = torch.cat([self.score, self.trust, self.away, self.time, self.share], dim=1)
        sizes = [1, 1, 1, 1, self.share.shape[1]]
        score, trust, away, time, share = torch.split(all_BXL.index_select(0, row_S), sizes, dim=1)
        return Scores(score, trust, away, time, share, self.points.index_select(0, row_S))


class Peaks(NamedTuple):
    """The highest power in each octave [B, O]; frequency (cycles a day) and power of the two highest peaks [B, 2]."""

    octaves: Tensor
    frequency: Tensor
    power: Tensor

    @property
    def first(self) -> Tensor:
        """Frequency of the highest peak, [B, 1]."""
        return self.frequency[:, :1]


def frequencies(place: Tensor) -> Tensor:
    """Cycles a day of places in the periodogram."""
    return (place + 0.5) * STEP


def scores(points: Points) -> Scores:
    """Weigh the points of light curves."""
    spread_B1G = points.spread_B1G
    signal_B1G = torch.maximum(spread_B1G - points.expected_B1G, _LEAST_SIGNAL * spread_B1G)
    varies_B1G = (points.number_B1G >= FEWEST_POINTS) & (spread_B1G > LEAST_SCATTER**2)
    varies_B1G = varies_B1G.to(signal_B1G.dtype)
    scale_B1G = varies_B1G / spread_B1G.clamp(min=LEAST_SCATTER**2).sqrt()
    own_B3L = points.to_points(torch.cat([signal_B1G * varies_B1G, scale_B1G, varies_B1G], dim=1))
    signal_B1L, of_band_B2L = torch.split(own_B3L, [1, 2], dim=1)
    scaled_B1L, away_B1L = torch.split(points.pull_B1L * of_band_B2L, 1, dim=1)
    trust_B1L = signal_B1L / (signal_B1L + points.noise_B1L).clamp(min=1e-30)
    searched_BG = (points.number_B1G * varies_B1G)[:, 0]
    return Scores(trust_B1L * scaled_B1L, trust_B1L, away_B1L, points.time_B1L, points.share_BGL, searched_BG)


def waves(cycles: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of angles, in turns."""
    angle = angles(cycles)
    return angle.cos(), angle.sin()


def angles(cycles: Tensor) -> Tensor:
    """Return angles in turns as radians within one."""
    return (cycles - cycles.floor()) * (2 * torch.pi)


def added(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the sum of two angles."""
    return one[0] * other[0] - one[1] * other[1], one[1] * other[0] + one[0] * other[1]


def coarse_waves(time_B1L: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine [B, A, L] at the coarse frequencies."""
    coarse_A1 = (torch.arange(COARSE, device=time_B1L.device)[:, None] * 2 + 1) * (FINE * STEP)
    return waves(coarse_A1 * time_B1L)


def power_around(time_BL1: Tensor, cos_BAL: Tensor, sin_BAL: Tensor) -> tuple[Tensor, Tensor]:
    """Squared sums [B, A, J] at the frequencies below and above every coarse one, nearest first.

    Cosine and sine are those of the coarse frequencies, times the scores.
    """
    cos_BLJ, sin_BLJ = waves(time_BL1 * frequencies(torch.arange(FINE, device=time_BL1.device)))
    cc_BAJ, ss_BAJ, sc_BAJ, cs_BAJ = cos_BAL @ cos_BLJ, sin_BAL @ sin_BLJ, sin_BAL @ cos_BLJ, cos_BAL @ sin_BLJ
    above_BAJ = (cc_BAJ - ss_BAJ).square() + (sc_BAJ + cs_BAJ).square()
    below_BAJ = (cc_BAJ + ss_BAJ).square() + (sc_BAJ - cs_BAJ).square()
    return below_BAJ, above_BAJ


def periodogram(score_B1L: Tensor, time_B1L: Tensor) -> Tensor:
    """Power [B, F] at every frequency, about 1 where there is nothing but noise; half the points is the most.

    ``time`` in days, finite where the score is 0, too.
    """
    score_B1L = score_B1L / score_B1L.square().sum(2, keepdim=True).sqrt().clamp(min=1e-9)
    cos_BAL, sin_BAL = (wave * score_B1L for wave in coarse_waves(time_B1L))
    below_BAJ, above_BAJ = power_around(time_B1L.transpose(1, 2), cos_BAL, sin_BAL)
    return torch.cat([below_BAJ.flip(2), above_BAJ], dim=2).flatten(1)


def peaks(power_BF: Tensor) -> Peaks:
    """Highest places of a periodogram: the best, and the best of those in other parts of it."""
    half, device, dtype = FREQUENCIES // 2, power_BF.device, power_BF.dtype
    slow_B1F, fast_B1F = torch.split(power_BF[:, None], half, dim=2)
    overtone_B1F = torch.nn.functional.max_pool1d(power_BF[:, None], 4, stride=2, padding=1)  # around 2 f, at f
    slow_B1F = slow_B1F + torch.minimum(overtone_B1F, OVERTONE * slow_B1F)
    slow_B1F = slow_B1F * (torch.arange(half, device=device) >= SLOWEST)
    each_BIJ = torch.cat([slow_B1F, fast_B1F], dim=2).view(-1, INTERVALS, FINE)
    interval_I = torch.arange(INTERVALS, device=device)
    best_BI = each_BIJ.amax(2) * (1 - TILT / INTERVALS * interval_I)
    first_B1 = best_BI.argmax(1, keepdim=True)
    elsewhere_II = (interval_I[:, None] - interval_I).abs() > 1
    other_B1 = torch.where(elsewhere_II[first_B1[:, 0]], best_BI, 0.0).argmax(1, keepdim=True)
    interval_B2 = torch.cat([first_B1, other_B1], dim=1)
    tilt_IJ = (1 - TILT / FREQUENCIES * torch.arange(FREQUENCIES, device=device).to(dtype)).view(INTERVALS, FINE)
    tilted_B2J = each_BIJ.gather(1, interval_B2[..., None].expand(-1, -1, FINE)) * tilt_IJ[interval_B2]
    place_B2 = interval_B2 * FINE + tilted_B2J.argmax(2)
    return Peaks(
        octaves(power_BF[:, :FINE], torch.arange(FINE, device=device), power_BF.view_as(each_BIJ).amax(2), interval_I),
        *(frequencies(place_B2), power_BF.gather(1, place_B2)),
    )


def octaves(slowest_BJ: Tensor, place_J: Tensor, most_BI: Tensor, interval_I: Tensor) -> Tensor:
    """Highest power [B, O] between the edges of :data:`OCTAVES`.

    Parameters
    ----------
    slowest_BJ, place_J : power in the first interval, and which place each is; for octaves that lie within it.
    most_BI, interval_I : the most of every interval, and which one each is; for octaves of whole intervals.
    """
    start_P = torch.cat([place_J, interval_I * FINE])
    edges = torch.tensor([*pairwise(OCTAVES)], device=place_J.device)
    narrow_P = torch.arange(len(start_P), device=place_J.device) < len(place_J)
    low_O1, high_O1 = edges[:, :1], edges[:, 1:]
    inside_OP = (start_P >= low_O1) & (start_P < high_O1) & (narrow_P == (high_O1 <= FINE))
    return torch.where(inside_OP, torch.cat([slowest_BJ, most_BI], dim=1)[:, None], 0.0).amax(2)
