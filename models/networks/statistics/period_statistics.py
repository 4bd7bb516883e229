"""Statistics of the period of a light curve: how sure it is, how long, and the shape of one turn.

The best frequency of ``statistics.periodogram``, refined by the power in it and two overtones, or that of
``statistics.period_search``, is described by the amplitudes and relative phases of its overtones (R_k1 and phi_k1 of
Simon & Lee 1981, by which pulsating stars are told apart), by the waves of half and one and a half its frequency (an
eclipsing binary has two unlike minima), and by its amplitude in every band.

Notable: the logarithm of the frequency is told by hat functions as well, of which one layer makes any function of the
period; phases are told by cosine and sine times the amplitude, which says nothing where there is nothing to say.
Amplitudes are sums over the points, no fit: irregular times let one part in the root of their number leak over.

Legend: B batch, L length, G bands, K frequencies or statistics.
"""

from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from models.networks.statistics.period_search import Searched, search
from models.networks.statistics.periodogram import (
    OCTAVES,
    STEP,
    Peaks,
    Scores,
    added,
    peaks,
    periodogram,
    scores,
    waves,
)
from models.networks.statistics.points import Points, Statistics

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


class _Turn(NamedTuple):
    """One period: the sums of scores times cosine and sine [B, K] at multiples of its frequency, and half the
    peak-to-peak of the wave in every band [B, G], in asinh of flux.
    """

    cos: Tensor
    sin: Tensor
    amplitude: Tensor


def count(n_bands: int) -> int:
    """Return the number of statistics, K."""
    return len(OCTAVES) - 1 + 3 * len(HATS) + 4 + 2 * len(MULTIPLES) + 3 * len(OVERTONES) + n_bands


def period_statistics(points: Points, how: PeriodSearch = "summed") -> Statistics:
    """Statistics [B, K] of the periods of light curves; unknown with fewer than :data:`FEWEST_SCORED` points in bands
    that vary.

    Parameters
    ----------
    how : ``summed``, the best of all sums and of their overtones; ``fitted``, the best fit (``period_search``).
    """
    scored = scores(points)
    enough_B1 = scored.points.sum(1, keepdim=True) >= FEWEST_SCORED
    rows = Searched.of(enough_B1[:, 0])
    value_BK = rows.back(_told(Scores(*map(rows.take, scored)), how))
    n_bands = scored.points.shape[1]
    known_BK = torch.cat([enough_B1.expand(-1, value_BK.shape[1] - n_bands), enough_B1 & (scored.points > 0)], dim=1)
    return Statistics(torch.where(known_BK, value_BK, 0.0), known_BK)


def _told(points: Scores, how: PeriodSearch) -> Tensor:
    """All statistics [B, K] of the best frequencies."""
    if how == "fitted":
        best = search(points)
        frequency_B1 = best.first
    else:
        best = peaks(periodogram(points.score, points.time))
        frequency_B1 = _refined(points.score, points.time, best.first)
    turn = _turn(points, frequency_B1)
    return torch.cat([_strength(best), *_multiples(points, turn), _shape(turn), turn.amplitude], 1)


def _strength(best: Peaks) -> Tensor:
    """Power by octave, and frequency and power of the two highest peaks."""
    place_B2 = best.frequency.log10()
    octaves_BO, power_B2 = torch.split(
        torch.cat([best.octaves, best.power], dim=1).log1p(), [best.octaves.shape[1], 2], dim=1
    )
    hats_B2K = _hats(place_B2)
    sure_B1K = hats_B2K[:, :1] * power_B2[:, :1, None]
    hats_BK = torch.cat([hats_B2K[:, :1], sure_B1K, hats_B2K[:, 1:]], dim=1).flatten(1)
    return torch.cat([octaves_BO, hats_BK, place_B2, power_B2], dim=1)


def _hats(place_B2: Tensor) -> Tensor:
    places_K = torch.tensor(HATS, device=place_B2.device, dtype=place_B2.dtype)
    return (1 - (place_B2[..., None] - places_K).abs() / _WIDTH).clamp(min=0)


def _turn(points: Scores, frequency_B1: Tensor) -> _Turn:
    """Take the light curve apart at multiples of a frequency: one product of scores and bands with all waves."""
    multiples_K = torch.tensor(MULTIPLES, device=points.time.device, dtype=points.time.dtype)
    wave_BL2K = torch.cat(waves(points.time, frequency_B1 * multiples_K), dim=2)
    rows_BXL = torch.cat([points.score[:, None], points.share * points.away[:, None]], dim=1)
    sums_BX2K = (rows_BXL @ wave_BL2K).view(-1, rows_BXL.shape[1], 2, len(MULTIPLES))
    cos_BK, sin_BK = sums_BX2K[:, 0].unbind(1)
    of_bands_BG2 = sums_BX2K[:, 1:, :, MULTIPLES.index(1.0)]
    return _Turn(cos_BK, sin_BK, 2 * of_bands_BG2.square().sum(2).sqrt() / points.points.clamp(min=1))


def _refined(score_BL: Tensor, time_BL: Tensor, frequency_B1: Tensor) -> Tensor:
    """Return the frequency near one of the periodogram's with the most power in itself and two overtones."""
    steps_K = torch.arange(-_FINER, _FINER + 1, device=time_BL.device)
    near_BK = frequency_B1 + steps_K * (STEP / _FINER)
    once = waves(time_BL, near_BK)
    twice = added(once, once)
    thrice = added(twice, once)
    cos_BLX, sin_BLX = (torch.cat(parts, dim=2) for parts in zip(once, twice, thrice, strict=True))
    power_B1X = (score_BL[:, None] @ cos_BLX).square() + (score_BL[:, None] @ sin_BLX).square()
    power_BK = power_B1X.view(-1, 3, len(steps_K)).sum(1)
    place_B1 = (power_BK * (1 - _TILT * torch.arange(2 * _FINER + 1, device=time_BL.device))).argmax(1, keepdim=True)
    return near_BK.gather(1, place_B1)


def _multiples(points: Scores, turn: _Turn) -> tuple[Tensor, Tensor]:
    """Power at multiples of the frequency, over the noise and as a share of the variance."""
    square_B1 = points.score.square().sum(1, keepdim=True).clamp(min=_TINY)
    alike_B1 = points.trust.sum(1, keepdim=True).square() / points.trust.square().sum(1, keepdim=True).clamp(min=_TINY)
    power_BK = (turn.cos.square() + turn.sin.square()) / square_B1
    return power_BK.log1p(), 2 * power_BK / alike_B1.clamp(min=1)


def _shape(turn: _Turn) -> Tensor:
    """Of every overtone: its phase against the frequency, by cosine and sine, and its ratio of amplitudes, [B, 3 K]."""
    first = MULTIPLES.index(1.0)
    amplitude_BK = (turn.cos.square() + turn.sin.square()).sqrt()
    once_B1 = amplitude_BK[:, first : first + 1].clamp(min=_TINY)
    cos_BK, sin_BK = turn.cos / once_B1, turn.sin / once_B1
    once = cos_BK[:, first : first + 1], sin_BK[:, first : first + 1]
    twice = added(once, once)
    more = added((twice[0], twice[1]), (torch.cat([once[0], twice[0]], 1), torch.cat([once[1], twice[1]], 1)))
    start_BK, start_sin_BK = (torch.cat(parts, dim=1) for parts in zip(twice, more, strict=True))
    cos_BK, sin_BK = cos_BK[:, -len(OVERTONES) :], sin_BK[:, -len(OVERTONES) :]
    ratio_BK = amplitude_BK[:, -len(OVERTONES) :] / once_B1
    parts = (cos_BK * start_BK + sin_BK * start_sin_BK, sin_BK * start_BK - cos_BK * start_sin_BK, ratio_BK)
    return torch.stack(parts, dim=2).flatten(1).clamp(-LARGEST_RATIO, LARGEST_RATIO)
