"""The period of a light curve and its statistics: confidence, length, and the shape of the folded curve.

The best frequency of the :func:`periodogram`, refined by the power in it and two overtones, or the one that
:func:`search` finds, is described by the amplitudes and relative phases of its overtones (R_k1 and phi_k1 of
Simon & Lee 1981, which distinguish pulsating stars), by the waves of half and one and a half its frequency (an
eclipsing binary has two unlike minima), and by its amplitude in every band.

The search: the sums of the periodogram find candidates, but not the best one. With few points, uneven phases make them
wrong by a third, and an alias wins. So the best :data:`CANDIDATES` of them are refined and
fitted by least squares, with a mean of its own for every band (the floating mean of Zechmeister & Kuerster 2009;
VanderPlas & Ivezic 2015 for several bands): a wave alone, and a wave with its overtone. The larger likelihood wins; two
additional parameters are penalised as in Schwarz (1978); so a wave is not taken for the overtone of one twice as long,
and an eclipse is not lost to noise.

Notable:

- the logarithm of the frequency is also given as hat functions, of which one layer can fit any function of the period;
  phases are given as cosine and sine times the amplitude, which are 0 without a signal. Amplitudes
  are sums over the points, not a fit: irregular times let one part in the square root of their number leak over;
- the search's step between frequencies is wide for the narrow peaks of many years: light curves beyond :data:`LONG` are
  searched a second time, shifted by half a step;
- rows with too few points are not searched: :class:`Searched` takes them out, and they come back as zeros;
- of frequencies that fit equally well, as the aliases of evenly spaced points do, the lowest counts, by ``TILT``.

**The periodogram** measures how much of a light curve repeats at each of twenty thousand frequencies, over all bands
together. Period and shape distinguish pulsating stars from eclipsing binaries (Debosscher et al. 2007), and no
network of this size learns periods from points at irregular times, since it would have to try tens of thousands. The
periodogram does. Its power is that of Lomb (1976) and Scargle (1982) without the small correction for uneven phases.

Notable:

- the frequencies cost four small matrix products: with f = a + b and a - b, of 160 coarse a and 64 fine b, the sums of
  angles are split, and cosines are taken of a t and of b t alone;
- every point counts as its standard score within its band, in squashed flux (asinh), times the share of the band's
  scatter that is not noise, so that all bands contribute to one period and faint points count little;
- power is that of a frequency plus its overtone, since the steep rise of a sawtooth would otherwise be lost to aliases
  (several harmonics: Schwarzenberg-Czerny 1996);
- of frequencies that fit equally well, as the aliases of evenly spaced points do, the lowest counts, by :data:`TILT`:
  rounding decides nothing;
- frequencies above ten cycles a day, as of many Delta Scuti stars, appear at an alias, which still identifies them.

Legend: B batch, S light curves searched, R searches (two of one of many years), L length, G bands, F frequencies,
A coarse and J fine frequencies, I intervals of J frequencies, K candidates, frequencies or statistics, P waves and the
values they are fitted to, O octaves.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from nightjar_alerts.models.networks.statistics.points import FEWEST_POINTS, LEAST_SCATTER, Points, Statistics

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


def power_around(
    time_BL1: Tensor, cos_BAL: Tensor, sin_BAL: Tensor, score_BL1: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Squared sums [B, A, J] at the frequencies below and above every coarse one, nearest first.

    Cosine and sine are those of the coarse frequencies, times the scores unless these are given.
    """
    cos_BLJ, sin_BLJ = waves(time_BL1 * frequencies(torch.arange(FINE, device=time_BL1.device)))
    if score_BL1 is not None:
        cos_BLJ, sin_BLJ = cos_BLJ * score_BL1, sin_BLJ * score_BL1
    cc_BAJ, ss_BAJ, sc_BAJ, cs_BAJ = cos_BAL @ cos_BLJ, sin_BAL @ sin_BLJ, sin_BAL @ cos_BLJ, cos_BAL @ sin_BLJ
    above_BAJ = (cc_BAJ - ss_BAJ).square() + (sc_BAJ + cs_BAJ).square()
    below_BAJ = (cc_BAJ + ss_BAJ).square() + (sc_BAJ - cs_BAJ).square()
    return below_BAJ, above_BAJ


def periodogram(score_B1L: Tensor, time_B1L: Tensor) -> Tensor:
    """Power [B, F] at every frequency, about 1 where there is nothing but noise; half the points is the most.

    ``time`` in days, finite where the score is 0, too.
    """
    score_B1L = score_B1L / score_B1L.square().sum(2, keepdim=True).sqrt().clamp(min=1e-9)
    each_BL1 = (time_B1L.transpose(1, 2), score_B1L.transpose(1, 2))
    below_BAJ, above_BAJ = power_around(each_BL1[0], *coarse_waves(time_B1L), each_BL1[1])  # the fine ones are fewer
    return torch.cat([below_BAJ.flip(2), above_BAJ], dim=2).flatten(1)


def peaks(power_BF: Tensor) -> Peaks:
    """Highest places of a periodogram: the best, and the best of those in other parts of it."""
    half, device, dtype = FREQUENCIES // 2, power_BF.device, power_BF.dtype
    slow_B1F, fast_B1F = torch.split(power_BF[:, None], half, dim=2)
    overtone_B1F = torch.nn.functional.max_pool1d(power_BF[:, None], 4, stride=2, padding=1)  # around 2 f, at f
    most_F = torch.where(torch.arange(half, device=device) >= SLOWEST, 1 + OVERTONE, 0.0)
    slow_B1F = torch.minimum(slow_B1F + overtone_B1F, most_F.to(dtype) * slow_B1F)
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


CANDIDATES: Final = 16
LONG: Final = 1500.0  # days: beyond, a step is more than two thirds of the width of a peak
_AROUND: Final = tuple(number / 8 for number in range(-4, 5))  # steps around a candidate
_PER_DAY: Final = 16  # coarse frequencies within a cycle a day
FASTEST: Final = FREQUENCIES * STEP
LEAST_RESIDUAL: Final = 1e-4  # share of the variance: no fit is thought better
RIDGE: Final = (1e-5,) * 5  # of cosine and sine of two harmonics, and of the values; over the sum of weights
LEAST_SUM: Final = 1e-9


class Searched(NamedTuple):
    """Rows of a batch that are searched, ``row_S``, and the place of each row's answer, ``answer_B``: behind the last
    where there is none.
    """

    row_S: Tensor
    answer_B: Tensor

    @classmethod
    def of(cls, enough_B: Tensor) -> "Searched":
        """Search the rows that have enough points."""
        row_S = enough_B.nonzero()[:, 0]
        return cls(row_S, torch.where(enough_B, enough_B.long().cumsum(0) - 1, row_S.shape[0]))

    def take(self, values: Tensor) -> Tensor:
        """Return those of the rows that are searched."""
        return values.index_select(0, self.row_S)

    def back(self, values_SK: Tensor) -> Tensor:
        """Values [B, K] of all rows, 0 of those that were not searched."""
        return torch.cat([values_SK, values_SK.new_zeros(1, values_SK.shape[1])]).index_select(0, self.answer_B)


class _Searches(NamedTuple):
    """The searches of every light curve: ``row_R`` theirs, the second ones last; ``shift_R1`` cycles a day by which
    frequencies are moved; ``first_S`` and ``second_S`` both of each, the same one for most.
    """

    row_R: Tensor
    shift_R1: Tensor
    first_S: Tensor
    second_S: Tensor

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        """First and second search of every light curve."""
        return self.first_S, self.second_S

    @classmethod
    def of(cls, scored_SL: Tensor, time_SL: Tensor) -> "_Searches":
        last_S = torch.where(scored_SL, time_SL, -torch.inf).amax(1)
        long_S = last_S - torch.where(scored_SL, time_SL, torch.inf).amin(1) > LONG
        again_N = long_S.nonzero()[:, 0]
        first_S = torch.ones_like(last_S, dtype=torch.long).cumsum(0) - 1
        count = first_S.shape[0]
        second_S = torch.where(long_S, count + long_S.long().cumsum(0) - 1, first_S)
        row_R = torch.cat([first_S, again_N])
        moved_R1 = torch.cat([torch.zeros_like(first_S), torch.ones_like(again_N)])[:, None]
        return cls(row_R, moved_R1 * (STEP / 2), first_S, second_S)


def search(points: Scores) -> Peaks:
    """Search padded light curves of enough points for periods, any number of them, none too.

    The powers of both peaks are half the points times the share of the variance that the better fit explains; that of
    the octaves is of the sums.
    """
    score_SL, trust_SL, time_SL = (rows_S1L[:, 0] for rows_S1L in (points.score, points.trust, points.time))
    octaves_SO, frequency_SK = candidates(score_SL, trust_SL, time_SL)
    value_SL = score_SL / trust_SL.clamp(min=LEAST_SUM)
    residual_SKH = fits(value_SL, trust_SL, points.share, time_SL, frequency_SK)
    return Peaks(octaves_SO, *_best(residual_SKH, trust_SL, frequency_SK))


def candidates(score_SL: Tensor, trust_SL: Tensor, time_SL: Tensor) -> tuple[Tensor, Tensor]:
    """Return the highest sum of every octave [S, O], and the frequencies [S, K] with the highest sums."""
    searches = _Searches.of(trust_SL > 0, time_SL)
    sized_SL = score_SL / score_SL.square().sum(1, keepdim=True).clamp(min=LEAST_SUM).sqrt()
    score_RL, time_RL = (x.index_select(0, searches.row_R) for x in (sized_SL, time_SL))
    power_RIJ, most_RI = _sums(score_RL, time_RL, searches.shift_R1)
    frequency_SK = _finer(score_SL, time_SL, _candidates(power_RIJ, most_RI, searches))
    place_J = FINE - 1 - torch.arange(FINE, device=time_SL.device)
    octaves_RO = octaves(power_RIJ[:, 0], place_J, most_RI, _interval(time_SL.device))
    return torch.maximum(*(octaves_RO.index_select(0, row_S) for row_S in searches.both)), frequency_SK


def _sums(score_RL: Tensor, time_RL: Tensor, shift_R1: Tensor) -> tuple[Tensor, Tensor]:
    """Power [R, I, J] of all frequencies, and the most of every interval [R, I].

    The first half of the intervals are those below the coarse frequencies, whose frequencies fall, the others those
    above. What is slower than ``SLOWEST`` is not compared.
    """
    below_RAJ, above_RAJ = power_around(time_RL[:, :, None], *_coarse(score_RL, time_RL, shift_R1))
    power_RIJ = torch.cat([below_RAJ, above_RAJ], dim=1)
    slowest_R1 = below_RAJ[:, 0, : FINE - SLOWEST].amax(1, keepdim=True)
    return power_RIJ, torch.cat([slowest_R1, power_RIJ[:, 1:].amax(2)], dim=1)


def _coarse(score_RL: Tensor, time_RL: Tensor, shift_R1: Tensor) -> tuple[Tensor, Tensor]:
    """Scores times cosine and sine [R, A, L] of the coarse frequencies, all moved by ``shift`` (cycles a day).

    They are whole cycles a day and fractions of one: a tenth of the cosines, and whole cycles need no more of the time
    than that of the day, which single precision holds well after many years.
    """
    part_1K = (torch.arange(_PER_DAY, device=time_RL.device)[None] * 2 + 1) / (2 * _PER_DAY)
    whole_1K = torch.arange(COARSE // _PER_DAY, device=time_RL.device)[None].to(part_1K.dtype)
    cos_RKL, sin_RKL = waves((part_1K + shift_R1)[:, :, None] * time_RL[:, None])
    parts = ((cos_RKL * score_RL[:, None])[:, None], (sin_RKL * score_RL[:, None])[:, None])
    cos_RKL, sin_RKL = waves(whole_1K[:, :, None] * (time_RL - time_RL.floor())[:, None])
    cos_RAL, sin_RAL = added((cos_RKL[:, :, None], sin_RKL[:, :, None]), parts)
    return cos_RAL.flatten(1, 2), sin_RAL.flatten(1, 2)


def _frequency(interval: Tensor, fine: Tensor) -> Tensor:
    """Cycles a day of places in :func:`_sums`."""
    above = interval >= COARSE
    coarse = torch.where(above, interval - COARSE, interval) * 2 + 1
    return (coarse * FINE + torch.where(above, 1.0, -1.0) * (fine + 0.5)) * STEP


def _candidates(power_RIJ: Tensor, most_RI: Tensor, searches: _Searches) -> Tensor:
    """Return the frequencies [S, K] with the highest power, one of an interval, strongest first."""
    interval_I = _interval(most_RI.device)
    most_RI = most_RI * (1 - TILT / INTERVALS * interval_I)
    first_SI, second_SI = (most_RI.index_select(0, row_S) for row_S in searches.both)
    place_SK = torch.maximum(first_SI, second_SI).topk(CANDIDATES, dim=1).indices
    again_SK = second_SI.gather(1, place_SK) > first_SI.gather(1, place_SK)
    search_SK = torch.where(again_SK, searches.second_S[:, None], searches.first_S[:, None])
    near_NJ = power_RIJ.flatten(0, 1).index_select(0, (search_SK * INTERVALS + place_SK).flatten())
    fine_SK = near_NJ.argmax(1).view(-1, CANDIDATES).clamp(max=FINE - 1 - SLOWEST * (place_SK == 0).long())
    return _frequency(place_SK, fine_SK) + searches.shift_R1[:, 0][search_SK]


def _interval(device: torch.device) -> Tensor:
    """Return the number of every interval [I], from the slowest, in the order of :func:`_sums`."""
    coarse_A = torch.arange(COARSE, device=device) * 2
    return torch.cat([coarse_A, coarse_A + 1])


def _finer(score_SL: Tensor, time_SL: Tensor, frequency_SK: Tensor) -> Tensor:
    """Move every candidate to where the sums around it are largest."""
    away_J = torch.tensor(_AROUND, device=time_SL.device) * STEP
    cos_SKL, sin_SKL = (wave * score_SL[:, None] for wave in waves(frequency_SK[:, :, None] * time_SL[:, None]))
    cos_SLJ, sin_SLJ = waves(time_SL[:, :, None] * away_J)
    power_SKJ = (cos_SKL @ cos_SLJ - sin_SKL @ sin_SLJ).square() + (sin_SKL @ cos_SLJ + cos_SKL @ sin_SLJ).square()
    return frequency_SK + away_J[power_SKJ.argmax(2)]


def fits(
    value_SL: Tensor,
    trust_SL: Tensor,
    share_SGL: Tensor,
    time_SL: Tensor,
    frequency_SK: Tensor,
    ridge: tuple[float, ...] = RIDGE,
) -> Tensor:
    """Share of the variance that is left by the first harmonics of a frequency, by one to all of them, [S, K, H].

    Weighted least squares by elimination: what is left of the last diagonal element, that of the values, is the sum of
    squares of what is not explained.

    Parameters
    ----------
    ridge : of cosine and sine of every harmonic, and of the values, over the sum of weights.
    """
    square_SKPP = squares(value_SL, trust_SL, share_SGL, time_SL, frequency_SK, len(ridge) // 2)
    total_SK1 = square_SKPP[..., -1:, -1].clamp(min=LEAST_SUM)
    square_SKPP = square_SKPP + ridges(ridge, trust_SL)[:, None]
    residuals = []
    for wave in range(len(ridge) - 1):
        pivot_SK1P, pivot_SKP1 = square_SKPP[..., :1, 1:], square_SKPP[..., 1:, :1]
        square_SKPP = square_SKPP[..., 1:, 1:] - pivot_SKP1 * (
            pivot_SK1P / square_SKPP[..., :1, :1].clamp(min=LEAST_SUM)
        )
        if wave % 2:
            residuals.append(square_SKPP[..., -1:, -1])
    return (torch.cat(residuals, dim=2) / total_SK1).clamp(LEAST_RESIDUAL, 1.0)


def ridges(ridge: tuple[float, ...], trust_SL: Tensor) -> Tensor:
    """Return what is added to the diagonals of sums of products, [S, P, P]."""
    ridge_P = torch.tensor(ridge, device=trust_SL.device, dtype=trust_SL.dtype)
    return torch.diag(ridge_P) * trust_SL.sum(1)[:, None, None]


def squares(
    value_SL: Tensor, trust_SL: Tensor, share_SGL: Tensor, time_SL: Tensor, frequency_SK: Tensor, harmonics: int
) -> Tensor:
    """Weighted sums of products [S, K, P, P] of cosine and sine of every harmonic, and of the values, less the means of
    the bands.
    """
    once = waves(frequency_SK[:, :, None] * time_SL[:, None])
    each = [once]
    for _ in range(1, harmonics):
        each.append(added(each[-1], once))
    columns = [wave_SKL for pair in each for wave_SKL in pair]
    all_SPKL = torch.stack([*columns, value_SL[:, None].expand_as(once[0])], dim=1)
    weight_SGL = share_SGL * trust_SL[:, None]
    share_SLG = (weight_SGL / weight_SGL.sum(2, keepdim=True).clamp(min=LEAST_SUM)).transpose(1, 2)
    away_SPKL = all_SPKL - all_SPKL @ share_SLG[:, None] @ share_SGL[:, None]
    away_SKPL = away_SPKL.transpose(1, 2)
    return (away_SKPL * trust_SL[:, None, None]) @ away_SKPL.transpose(2, 3)


def _best(residual_SKH: Tensor, trust_SL: Tensor, frequency_SK: Tensor) -> tuple[Tensor, Tensor]:
    """Frequency and power [S, 2] of the likeliest candidate, and of the likeliest elsewhere."""
    alike_S11 = (trust_SL.sum(1).square() / trust_SL.square().sum(1).clamp(min=LEAST_SUM))[:, None, None]
    paid_H = torch.tensor([2.0, 4.0], device=residual_SKH.device)
    gain_SKH = (-alike_S11 * residual_SKH.log() - paid_H * alike_S11.clamp(min=1).log()).clamp(min=0)
    likely_SK = gain_SKH.amax(2) * (1 - TILT / FASTEST * frequency_SK)
    power_SK = (1 - residual_SKH[:, :, 1]) * alike_S11[..., 0] / 2
    first_S1 = likely_SK.argmax(1, keepdim=True)
    elsewhere_SK = (frequency_SK - frequency_SK.gather(1, first_S1)).abs() > FINE * STEP
    other_S1 = torch.where(elsewhere_SK, likely_SK, -1.0).argmax(1, keepdim=True)
    place_S2 = torch.cat([first_S1, other_S1], dim=1)
    return frequency_SK.gather(1, place_S2), power_SK.gather(1, place_S2)


FEWEST_SCORED: Final = 8  # points of a light curve: to fewer, many periods fit perfectly
HATS: Final = tuple(-3.0 + 0.15 * number for number in range(28))  # log10 of cycles a day
MULTIPLES: Final = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # of the frequency; overtones last
OVERTONES: Final = (2, 3, 4)
LARGEST_RATIO: Final = 3.0  # of amplitudes
_WIDTH: Final = HATS[1] - HATS[0]
_FINER: Final = 8  # steps of refinement within one of the periodogram's
_TILT: Final = 1e-4
_TINY: Final = 1e-6

PeriodSearch = Literal["summed", "fitted"]
PeriodValues = Callable[[Scores, PeriodSearch], Tensor]


class _Turn(NamedTuple):
    """One period: sums of scores times cosine and sine [B, K, 2] at multiples of its frequency, and the length of each
    [B, K]; half the peak-to-peak of the wave in every band [B, G], in asinh of flux.
    """

    wave: Tensor
    length: Tensor
    amplitude: Tensor


def count(n_bands: int) -> int:
    """Return the number of statistics, K."""
    return len(OCTAVES) - 1 + 3 * len(HATS) + 4 + 2 * len(MULTIPLES) + 3 * len(OVERTONES) + n_bands


def period_statistics(points: Points, how: PeriodSearch = "summed", values: PeriodValues | None = None) -> Statistics:
    """Statistics [B, K] of the periods of light curves; unknown with fewer than :data:`FEWEST_SCORED` points in bands
    that vary.

    Parameters
    ----------
    how : ``summed``, the best of all sums and of their overtones; ``fitted``, the best fit (:func:`search`).
    values : :func:`period_values`, or a module that calls it: so that a graph can leave it out where no light curve has
        enough points.
    """
    scored = scores(points)
    enough_B1 = scored.points.sum(1, keepdim=True) >= FEWEST_SCORED
    rows = Searched.of(enough_B1[:, 0])
    value_BK = rows.back((values or period_values)(scored.take(rows.row_S), how))
    n_bands = scored.points.shape[1]
    mask_BK = torch.cat([enough_B1.expand(-1, value_BK.shape[1] - n_bands), enough_B1 & (scored.points > 0)], dim=1)
    return Statistics(torch.where(mask_BK, value_BK, 0.0), mask_BK)


def period_values(points: Scores, how: PeriodSearch) -> Tensor:
    """All statistics [B, K] of the best frequencies, of light curves that have enough points."""
    if how == "fitted":
        best = search(points)
        frequency_B1 = best.first
    else:
        best = peaks(periodogram(points.score, points.time))
        frequency_B1 = _refined(points, best.first)
    turn = _turn(points, frequency_B1)
    power_BK, share_BK = _multiples(points, turn)
    logs_BK = torch.cat([best.octaves, best.power, power_BK], dim=1).log1p()
    octaves_BO, power_B2, over_noise_BK = torch.split(logs_BK, [best.octaves.shape[1], 2, power_BK.shape[1]], dim=1)
    place_B2 = best.frequency.log10()
    columns = [octaves_BO, _hats(place_B2, power_B2), place_B2, power_B2, over_noise_BK, share_BK]
    return torch.cat([*columns, _shape(turn), turn.amplitude], 1)


def _hats(place_B2: Tensor, power_B2: Tensor) -> Tensor:
    """Hats [B, 3 K] over both frequencies; those of the first also times its power, which come second."""
    hats_K = torch.tensor(HATS, device=place_B2.device, dtype=place_B2.dtype)
    which_3 = torch.tensor([0, 0, 1], device=place_B2.device)
    hats_B3K = (1 - (place_B2.index_select(1, which_3)[..., None] - hats_K).abs() / _WIDTH).clamp(min=0)
    sure_23 = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]).to(power_B2)
    once_3 = torch.tensor([1.0, 0.0, 1.0]).to(power_B2)
    return (hats_B3K * torch.addmm(once_3, power_B2, sure_23)[..., None]).flatten(1)


def _turn(points: Scores, frequency_B1: Tensor) -> _Turn:
    """Take the light curve apart at multiples of a frequency: one product of scores and bands with all waves."""
    multiples_K = torch.tensor(MULTIPLES, device=points.time.device, dtype=points.time.dtype)
    cycles_BKL = (frequency_B1 * multiples_K)[..., None] * points.time
    wave_B2KL = torch.cat(waves(cycles_BKL), dim=1)
    rows_BXL = torch.cat([points.score, points.share * points.away], dim=1)
    sums_BX2K = (rows_BXL @ wave_B2KL.transpose(1, 2)).view(-1, rows_BXL.shape[1], 2, len(MULTIPLES))
    length_BXK = sums_BX2K.square().sum(2).sqrt()
    amplitude_BG = 2 * length_BXK[:, 1:, MULTIPLES.index(1.0)] / points.points.clamp(min=1)
    return _Turn(sums_BX2K[:, 0].transpose(1, 2), length_BXK[:, 0], amplitude_BG)


def _refined(points: Scores, frequency_B1: Tensor) -> Tensor:
    """Return the frequency near one of the periodogram's with the most power in itself and two overtones."""
    score_B1L, time_BL1 = points.score, points.time.transpose(1, 2)
    steps_K = torch.arange(-_FINER, _FINER + 1, device=time_BL1.device)
    near_BK = frequency_B1 + steps_K * (STEP / _FINER)
    multiple_KX = torch.cat([times * torch.eye(len(steps_K)) for times in (1, 2, 3)], dim=1).to(time_BL1)
    angle_BLX = angles(time_BL1 * near_BK[:, None]) @ multiple_KX
    sums_B1X = score_B1L @ torch.cat([angle_BLX.cos(), angle_BLX.sin()], dim=2)
    power_BK = sums_B1X.square().view(-1, 6, len(steps_K)).sum(1)
    place_B1 = (power_BK * (1 - _TILT * torch.arange(2 * _FINER + 1, device=time_BL1.device))).argmax(1, keepdim=True)
    return near_BK.gather(1, place_B1)


def _multiples(points: Scores, turn: _Turn) -> tuple[Tensor, Tensor]:
    """Power at multiples of the frequency, over the noise and as a share of the variance, [B, K]."""
    square_B1 = points.score.square().sum(2).clamp(min=_TINY)
    alike_B1 = points.trust.sum(2).square() / points.trust.square().sum(2).clamp(min=_TINY)
    power_BK = turn.length.square() / square_B1
    return power_BK, 2 * power_BK / alike_B1.clamp(min=1)


def _shape(turn: _Turn) -> Tensor:
    """Shape of every overtone: its phase against the frequency, by cosine and sine, its ratio of amplitudes, [B, 3 K].

    Turning back by the angle of the frequency, as often as the overtone says, is a product of matrices.
    """
    first, over = MULTIPLES.index(1.0), slice(-len(OVERTONES), None)
    once_B1 = turn.length[:, first : first + 1].clamp(min=_TINY)
    wave_BK2 = turn.wave / once_B1[..., None]
    back_4 = torch.tensor([0, 1, 1, 0], device=once_B1.device)
    sign_4 = torch.tensor([1.0, -1.0, 1.0, 1.0], device=once_B1.device, dtype=once_B1.dtype)
    once_B22 = (wave_BK2[:, first].index_select(1, back_4) * sign_4).view(-1, 2, 2)
    twice_B22 = once_B22 @ once_B22
    more_B42 = torch.cat([once_B22, twice_B22], dim=1) @ twice_B22
    back_BK22 = torch.cat([twice_B22, more_B42], dim=1).view(-1, len(OVERTONES), 2, 2)
    phase_BK2 = (wave_BK2[:, over, None] @ back_BK22)[:, :, 0]
    shape_BK3 = torch.cat([phase_BK2, (turn.length[:, over] / once_B1)[..., None]], dim=2)
    return shape_BK3.flatten(1).clamp(-LARGEST_RATIO, LARGEST_RATIO)
