"""The frequency at which a light curve repeats, by fits of a wave and its overtone to the most promising of many.

The sums of ``statistics.periodogram`` tell where to look, but not which place is best: with few points, uneven phases
make them wrong by a third, and a period is lost to an alias. So the best :data:`CANDIDATES` of them are refined and
fitted by least squares, with a mean of its own for every band (the floating mean of Zechmeister & Kuerster 2009;
VanderPlas & Ivezic 2015 for several bands): a wave alone, and a wave with its overtone. The larger likelihood wins, two
parameters more being paid for as Schwarz (1978) has it; so a wave does not pass for the overtone of one twice as long,
and an eclipse is not lost to noise.

Notable:

- the step between frequencies is wide for the narrow peaks of many years: light curves beyond :data:`LONG` are searched
  a second time, half a step beside;
- rows with too few points are not searched: :class:`Searched` takes them out, and they come back as zeros;
- of frequencies that fit equally well, as the aliases of evenly spaced points do, the lowest counts, by ``TILT``.

Legend: B batch, S light curves searched, R searches (two of one of many years), L length, G bands, A coarse and J fine
frequencies, I intervals of J frequencies, K candidates, P waves and the values they are fitted to, O octaves.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor

from models.networks.statistics.periodogram import (
    COARSE,
    FINE,
    FREQUENCIES,
    INTERVALS,
    SLOWEST,
    STEP,
    TILT,
    Peaks,
    Scores,
    added,
    octaves,
    power_around,
    waves,
)

CANDIDATES: Final = 16
LONG: Final = 1500.0  # days: beyond, a step is more than two thirds of the width of a peak
_FINER: Final = tuple(number / 8 for number in range(-4, 5))  # steps around a candidate
_WAVES: Final = 4  # cosine and sine of a frequency, and of its overtone
_PER_DAY: Final = 16  # coarse frequencies within a cycle a day
_FASTEST: Final = FREQUENCIES * STEP
_LEAST_LEFT: Final = 1e-4  # share of the variance: no fit is thought better
_RIDGE: Final = 1e-5  # of the sum of weights
_TINY: Final = 1e-9


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
    searches = _Searches.of(trust_SL > 0, time_SL)
    sized_SL = score_SL / score_SL.square().sum(1, keepdim=True).clamp(min=_TINY).sqrt()
    score_RL, time_RL = (x.index_select(0, searches.row_R) for x in (sized_SL, time_SL))
    power_RIJ, most_RI = _sums(score_RL, time_RL, searches.shift_R1)
    frequency_SK = _finer(score_SL, time_SL, _candidates(power_RIJ, most_RI, searches))
    left_SKH = _fits(score_SL, trust_SL, points.share, time_SL, frequency_SK)
    place_J = FINE - 1 - torch.arange(FINE, device=time_SL.device)
    octaves_RO = octaves(power_RIJ[:, 0], place_J, most_RI, _interval(time_SL.device))
    octaves_SO = torch.maximum(*(octaves_RO.index_select(0, row_S) for row_S in searches.both))
    return Peaks(octaves_SO, *_best(left_SKH, trust_SL, frequency_SK))


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
    away_J = torch.tensor(_FINER, device=time_SL.device) * STEP
    cos_SKL, sin_SKL = (wave * score_SL[:, None] for wave in waves(frequency_SK[:, :, None] * time_SL[:, None]))
    cos_SLJ, sin_SLJ = waves(time_SL[:, :, None] * away_J)
    power_SKJ = (cos_SKL @ cos_SLJ - sin_SKL @ sin_SLJ).square() + (sin_SKL @ cos_SLJ + cos_SKL @ sin_SLJ).square()
    return frequency_SK + away_J[power_SKJ.argmax(2)]


def _fits(score_SL: Tensor, trust_SL: Tensor, share_SGL: Tensor, time_SL: Tensor, frequency_SK: Tensor) -> Tensor:
    """Share of the variance that is left by a wave, and by one with its overtone, [S, K, 2].

    Weighted least squares by elimination: what is left of the last diagonal element, that of the values, is the sum of
    squares of what is not explained.
    """
    once = waves(frequency_SK[:, :, None] * time_SL[:, None])
    value_SL = score_SL / trust_SL.clamp(min=_TINY)
    all_SPKL = torch.stack([*once, *added(once, once), value_SL[:, None].expand_as(once[0])], dim=1)
    weight_SGL = share_SGL * trust_SL[:, None]
    share_SLG = (weight_SGL / weight_SGL.sum(2, keepdim=True).clamp(min=_TINY)).transpose(1, 2)
    away_SPKL = all_SPKL - all_SPKL @ share_SLG[:, None] @ share_SGL[:, None]
    away_SKPL = away_SPKL.transpose(1, 2)
    square_SKPP = (away_SKPL * trust_SL[:, None, None]) @ away_SKPL.transpose(2, 3)
    total_SK1 = square_SKPP[..., -1:, -1].clamp(min=_TINY)
    ridge_S = _RIDGE * trust_SL.sum(1)
    square_SKPP = square_SKPP + torch.eye(_WAVES + 1, device=time_SL.device) * ridge_S[:, None, None, None]
    left = []
    for wave in range(_WAVES):
        pivot_SK1P, pivot_SKP1 = square_SKPP[..., :1, 1:], square_SKPP[..., 1:, :1]
        square_SKPP = square_SKPP[..., 1:, 1:] - pivot_SKP1 * (pivot_SK1P / square_SKPP[..., :1, :1].clamp(min=_TINY))
        if wave % 2:
            left.append(square_SKPP[..., -1:, -1])
    return (torch.cat(left, dim=2) / total_SK1).clamp(_LEAST_LEFT, 1.0)


def _best(left_SKH: Tensor, trust_SL: Tensor, frequency_SK: Tensor) -> tuple[Tensor, Tensor]:
    """Frequency and power [S, 2] of the likeliest candidate, and of the likeliest elsewhere."""
    alike_S11 = (trust_SL.sum(1).square() / trust_SL.square().sum(1).clamp(min=_TINY))[:, None, None]
    paid_H = torch.tensor([2.0, 4.0], device=left_SKH.device)
    gain_SKH = (-alike_S11 * left_SKH.log() - paid_H * alike_S11.clamp(min=1).log()).clamp(min=0)
    likely_SK = gain_SKH.amax(2) * (1 - TILT / _FASTEST * frequency_SK)
    power_SK = (1 - left_SKH[:, :, 1]) * alike_S11[..., 0] / 2
    first_S1 = likely_SK.argmax(1, keepdim=True)
    elsewhere_SK = (frequency_SK - frequency_SK.gather(1, first_S1)).abs() > FINE * STEP
    other_S1 = torch.where(elsewhere_SK, likely_SK, -1.0).argmax(1, keepdim=True)
    place_S2 = torch.cat([first_S1, other_S1], dim=1)
    return frequency_SK.gather(1, place_S2), power_SK.gather(1, place_S2)
