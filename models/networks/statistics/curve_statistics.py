"""Statistics of a light curve at a glance: brightness, colours, time scales, and a coarse sampling.

These are the statistics that classifiers on hand-made features live on (FATS, Nun et al. 2015; the features of ALeRCE,
Sanchez-Saez et al. 2021), worked out inside the network, so that whoever serves it need not know of them. A
transformer can learn each, given enough light curves; a few thousand labelled ones are not enough, and with the
statistics at hand they are.

Notable: all of it is comparisons, sums and elementwise functions over all bands together (``statistics.points``), so it
exports to few operations. Values are squashed to order one (asinh, log1p), with the network's flux in FLUXCAL; a
statistic that is not defined (a band without points) is told by the second tensor, its value means nothing. A detection
here is a point at 5 sigma. The coarse sampling is counted from the brightest detection.

Legend: B batch, L length, G bands, X groups (the bands, all points, all detections), Q quantities, I intervals, K
statistics, D width.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from models.networks.statistics.points import FAR, Points, Statistics, largest
from models.units import DETECTION_SNR

EDGES: Final = (-100.0, -40.0, -20.0, -10.0, -4.0, 4.0, 10.0, 20.0, 40.0, 80.0, 160.0, 400.0)  # days from the maximum
BAND_STATISTICS: Final = (
    *("points", "detections", "maximum", "minimum", "mean", "last", "best_snr", "scatter", "excess", "skewness"),
    *("time_of_maximum", "span", "rise", "fall", "width"),
)
CURVE_STATISTICS: Final = (
    *("points", "duration", "detected_share", "time_to_detection", "detected_duration", "since_maximum"),
    "log_redshift",
)
_SHORTEST: Final = 0.01  # days


# Largest of the points of a group, in this order of quantities: squashed flux, flux, signal to noise, and minus the
# smallest squashed flux, minus the start, the end.
_SOFT, _FLUX, _SNR, _LEAST, _START, _END = range(6)
# Minus the starts of all points and of all detections, the ends of both, the maximum: how much of each is in the
# duration, the days to the first detection, between detections, and since the maximum.
_DAYS_OF_TIMES: Final = ((1, 1, 0, 0), (0, -1, 1, 0), (1, 0, 0, 1), (0, 0, 1, 0), (0, 0, 0, -1))


class _Extremes(NamedTuple):
    """The largest of the quantities above over the points of every group: bands [B, 6, G], and all points and all
    detections [B, 6, 2].
    """

    bands: Tensor
    whole: Tensor


class _Places(NamedTuple):
    """Times of the highest points of every band [B, 1, G], and of the light curve [B, 1, 1].

    ``before_peak`` is minus the time of the highest, ``before_bright`` minus that of the first above half of it,
    ``bright_end`` that of the last such one.
    """

    before_peak: Tensor
    before_bright: Tensor
    bright_end: Tensor
    maximum: Tensor


def count(n_bands: int) -> int:
    """Return the number of statistics, K."""
    return n_bands * (len(BAND_STATISTICS) + len(EDGES) - 1) + len(CURVE_STATISTICS) + n_bands - 1


def statistics(points: Points, redshift_B: Tensor) -> Statistics:
    """Statistics [B, K] of light curves.

    Parameters
    ----------
    redshift_B : NaN where unknown.
    """
    snr_B1L = points.flux_B1L / points.flux_err_B1L
    detected_B1L = snr_B1L >= DETECTION_SNR
    group_BXL = torch.cat([points.here_BGL, points.mask_B1L, detected_B1L], dim=1)
    time_B1L, soft_B1L = points.time_B1L, points.soft_B1L
    values_BQL = torch.cat([soft_B1L, points.flux_B1L, snr_B1L, -soft_B1L, -time_B1L, time_B1L], dim=1)
    most = _Extremes(*torch.split(largest(values_BQL, group_BXL), [points.number_B1G.shape[2], 2], dim=2))
    places = _places(values_BQL, points, most, group_BXL)
    sums_BQG = _sums(values_BQL, points, most, detected_B1L.to(soft_B1L.dtype))
    bands = _bands(points, most, places, sums_BQG)
    curves = _curves(most, sums_BQG[:, 0].sum(1, keepdim=True), points.number_B1G.sum(2), places, redshift_B)
    seen_BG, bluest_BG = points.number_B1G[:, 0] > 0, most.bands[:, _SOFT]
    colours = (bluest_BG[:, :-1] - bluest_BG[:, 1:], seen_BG[:, :-1] & seen_BG[:, 1:])
    value_BK, known_BK = (
        torch.cat(parts, dim=1) for parts in zip(bands, curves, colours, _sampling(points, places), strict=True)
    )
    return Statistics(torch.where(known_BK, value_BK, 0.0), known_BK)


def _log_days(days: Tensor) -> Tensor:
    """Squash a duration or, with its sign, a delay."""
    return days.sign() * days.abs().clamp(max=FAR).log1p() / 3


def _column(like: Tensor, *numbers: float) -> Tensor:
    """Numbers [K, 1], one for every row of something [B, K, X]."""
    return torch.tensor(numbers, device=like.device, dtype=like.dtype)[:, None]


def _places(values_BQL: Tensor, points: Points, most: _Extremes, group_BXL: Tensor) -> _Places:
    own_B2L = points.to_points(most.bands[:, : _FLUX + 1] * _column(most.bands, 1.0, 0.5))
    of_all_B11, of_detected_B11 = torch.split(most.whole[:, : _SOFT + 1], 1, dim=2)
    detected_B11 = of_detected_B11 > -FAR
    brightest_B11 = torch.where(detected_B11, of_detected_B11, of_all_B11)
    high_B2L = values_BQL[:, : _FLUX + 1] >= own_B2L
    wanted_B4L = torch.cat([high_B2L, high_B2L[:, _FLUX:], points.soft_B1L >= brightest_B11], dim=1)
    times_B4L = points.time_B1L * _column(most.bands, -1.0, -1.0, 1.0, -1.0)
    when_B4X = largest(torch.where(wanted_B4L, times_B4L, -FAR), group_BXL)
    of_bands_B4G, of_whole_B42 = torch.split(when_B4X, [points.number_B1G.shape[2], 2], dim=2)
    of_all_B11, of_detected_B11 = torch.split(of_whole_B42[:, 3:], 1, dim=2)
    maximum_B11 = -torch.where(detected_B11, of_detected_B11, of_all_B11)
    before_peak, before_bright, bright_end, _ = torch.split(of_bands_B4G, 1, dim=1)
    return _Places(before_peak, before_bright, bright_end, maximum_B11)


def _sums(values_BQL: Tensor, points: Points, most: _Extremes, detected_B1L: Tensor) -> Tensor:
    """Return sums [B, Q, G]: detections, cubes of deviations, squared pulls, number and flux of a band's ends."""
    weight_B1L = points.flux_err_B1L.pow(-2)
    level_B1G, weight_B1G = torch.split(
        points.sums(torch.cat([weight_B1L * points.flux_B1L, weight_B1L], dim=1)), 1, dim=1
    )
    level_B1G = level_B1G / weight_B1G.clamp(min=1e-30)
    level_B1L, ends_B2L = torch.split(
        points.to_points(torch.cat([level_B1G, most.bands[:, _START:]], dim=1)), [1, 2], dim=1
    )
    pulls_B1L = ((points.flux_B1L - level_B1L) / points.flux_err_B1L).clamp(-FAR, FAR)
    outer_B2L = (values_BQL[:, _START:] >= ends_B2L).to(weight_B1L.dtype)
    columns = [detected_B1L, points.away_B1L.pow(3), pulls_B1L.square(), outer_B2L, outer_B2L * points.soft_B1L]
    return points.sums(torch.cat(columns, dim=1))


def _bands(points: Points, most: _Extremes, places: _Places, sums_BQG: Tensor) -> tuple[Tensor, Tensor]:
    """Values and where they are defined, each [B, K], in the order of :data:`BAND_STATISTICS`."""
    number_B1G = points.number_B1G
    soft, _, snr, before_least, before_start, end = torch.split(most.bands, 1, dim=1)
    detections_B1G, cubes_B1G, squares_B1G, outer_B2G, fluxes_B2G = torch.split(sums_BQG, [1, 1, 1, 2, 2], dim=1)
    first, last = torch.split((fluxes_B2G / outer_B2G.clamp(min=1)), 1, dim=1)
    scatter = points.variance_B1G.sqrt()
    skewness = (cubes_B1G / number_B1G.clamp(min=1) / (scatter.pow(3) + 1e-6)).clamp(-5, 5)
    excess = (1e-3 + squares_B1G / (number_B1G - 1).clamp(min=1)).log10()
    slopes_B2G = torch.cat([before_start - places.before_peak, end + places.before_peak], dim=1)
    change_B2G = torch.cat([soft - first, last - soft], dim=1) / slopes_B2G.clamp(min=_SHORTEST)
    before_first_B11 = most.whole[:, _START : _START + 1, 1:]
    before_first_B11 = torch.where(before_first_B11 > -FAR, before_first_B11, 0.0)
    delays = [before_first_B11 - places.before_peak, end + before_start, places.bright_end + places.before_bright]
    days_B2G, width = torch.split(_log_days(torch.cat(delays, dim=1)), [2, 1], dim=1)
    counts_B2G = torch.cat([number_B1G, detections_B1G], dim=1).log1p()
    levels = (soft, -before_least, points.mean_B1G, last, snr.asinh())
    rows = [counts_B2G, *levels, scatter, excess, skewness, days_B2G, (20 * change_B2G).asinh(), width]
    scale_K1 = _column(number_B1G, 2, 2, 3, 3, 3, 3, 3, 1, 2, 2, 1, 1, 2, 2, 1)
    value_BKG = torch.cat(rows, dim=1) / scale_K1
    enough_BKG = number_B1G > _column(number_B1G, *[-1] * 2, *[0] * 5, *[2] * 3, *[0] * 2)
    outer = ((slopes_B2G > 0) & (number_B1G > 0), places.bright_end > -FAR)
    return value_BKG.flatten(1), torch.cat([enough_BKG, *outer], dim=1).flatten(1)


def _curves(
    most: _Extremes, detections_B1: Tensor, number_B1: Tensor, places: _Places, redshift_B: Tensor
) -> tuple[Tensor, Tensor]:
    """Values and where they are defined, each [B, K], in the order of :data:`CURVE_STATISTICS`."""
    times_B5 = torch.cat([most.whole[:, _START:].flatten(1), places.maximum[:, 0]], dim=1)
    days_54 = torch.tensor(_DAYS_OF_TIMES, device=times_B5.device, dtype=times_B5.dtype)
    days_B4 = _log_days(times_B5 @ days_54)
    redshift_B1 = redshift_B[:, None]
    far_B1 = redshift_B1 > 0  # false for NaN
    log_B1 = torch.where(far_B1, redshift_B1, 1.0).clamp(min=1e-3).log() / 2
    value = [number_B1.log1p() / 3, days_B4[:, :1], detections_B1 / number_B1, days_B4[:, 1:], log_B1]
    always_B1, detected_B1 = number_B1 > 0, detections_B1 > 0
    known = [always_B1] * 3 + [detected_B1] * 2 + [always_B1, far_B1]
    return torch.cat(value, dim=1), torch.cat(known, dim=1)


def _sampling(points: Points, places: _Places) -> tuple[Tensor, Tensor]:
    """Mean flux of every band between days before and after the maximum, and where there is one; [B, K]."""
    days_B1L = points.time_B1L - places.maximum
    inside_BIL = (days_B1L >= _column(days_B1L, *EDGES[:-1])) & (days_B1L < _column(days_B1L, *EDGES[1:]))
    inside_BIL = inside_BIL.to(days_B1L.dtype)
    number_BIG, sum_BIG = points.sums(inside_BIL), points.sums(inside_BIL * points.soft_B1L)
    return (sum_BIG / number_BIG.clamp(min=1) / 3).flatten(1), (number_BIG > 0).flatten(1)


LEAST_SPREAD = 0.05  # of a statistic: below, differences are rounding
LIMIT = 6.0  # standard deviations


class Function(nn.Module):
    """A function with a name of its own among a network's modules, so that a profile tells what it costs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        """Call it."""
        return self.function(*arguments)


class StatisticsBranch(nn.Module):
    """Branch of a network that looks at statistics of the light curve, not at its points: one vector [B, D].

    The statistics' standard scores, and which of them are known, pass through one layer.
    """

    mean_K: Tensor
    spread_K: Tensor

    def __init__(self, statistics: int, width: int, dropout: float) -> None:
        super().__init__()
        self.register_buffer("mean_K", torch.zeros(statistics))
        self.register_buffer("spread_K", torch.ones(statistics))
        self.layer = nn.Sequential(nn.Dropout(dropout), nn.Linear(2 * statistics, width), nn.GELU())

    def fit(self, told: Statistics) -> None:
        """Learn the scale of every statistic from those of training objects; one that is never known stays as it is."""
        known_BK = told.known_BK.double()
        objects_K = known_BK.sum(0)
        mean_K = (told.value_BK * known_BK).sum(0) / objects_K.clamp(min=1)
        variance_K = ((told.value_BK - mean_K).square() * known_BK).sum(0) / objects_K.clamp(min=1)
        self.mean_K.copy_(mean_K)
        self.spread_K.copy_(torch.where(objects_K > 1, variance_K.sqrt().clamp(min=LEAST_SPREAD), 1.0))

    def forward(self, told: Statistics) -> Tensor:
        """Encode to [B, D]."""
        score_BK = ((told.value_BK - self.mean_K) / self.spread_K).clamp(-LIMIT, LIMIT)
        scores_BK = torch.where(told.known_BK, score_BK, 0.0)
        vector_BD: Tensor = self.layer(torch.cat([scores_BK, told.known_BK.to(scores_BK.dtype)], dim=1))
        return vector_BD
