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

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from models.networks.statistics.period_search import Searched, search
from models.networks.statistics.periodogram import (
    OCTAVES,
    STEP,
    Scores,
    angles,
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
Told = Callable[[Scores, PeriodSearch], Tensor]


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


def period_statistics(points: Points, how: PeriodSearch = "summed", told: Told | None = None) -> Statistics:
    """Statistics [B, K] of the periods of light curves; unknown with fewer than :data:`FEWEST_SCORED` points in bands
    that vary.

    Parameters
    ----------
    how : ``summed``, the best of all sums and of their overtones; ``fitted``, the best fit (``period_search``).
    told : :func:`told_of_period`, or a module that calls it: so that a graph can leave it out where no light curve has
        enough points.
    """
    scored = scores(points)
    enough_B1 = scored.points.sum(1, keepdim=True) >= FEWEST_SCORED
    rows = Searched.of(enough_B1[:, 0])
    value_BK = rows.back((told or told_of_period)(scored.take(rows.row_S), how))
    n_bands = scored.points.shape[1]
    known_BK = torch.cat([enough_B1.expand(-1, value_BK.shape[1] - n_bands), enough_B1 & (scored.points > 0)], dim=1)
    return Statistics(torch.where(known_BK, value_BK, 0.0), known_BK)


def told_of_period(points: Scores, how: PeriodSearch) -> Tensor:
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
    found = [octaves_BO, _hats(place_B2, power_B2), place_B2, power_B2, over_noise_BK, share_BK]
    return torch.cat([*found, _shape(turn), turn.amplitude], 1)


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
    """Of every overtone: its phase against the frequency, by cosine and sine, and its ratio of amplitudes, [B, 3 K].

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
