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
statistics.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor

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


class _Extremes(NamedTuple):
    """Largest and smallest of the points of every group, [B, X]: squashed flux, signal to noise, time, flux."""

    soft: Tensor
    least_soft: Tensor
    snr: Tensor
    end: Tensor
    start: Tensor
    flux: Tensor


class _Places(NamedTuple):
    """Times when every band is brightest, first and last above half of that [B, G], and the light curve's [B, 1]."""

    peak: Tensor
    bright_end: Tensor
    bright_start: Tensor
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
    values_BQL = torch.cat([soft_B1L, -soft_B1L, snr_B1L, time_B1L, -time_B1L, points.flux_B1L], dim=1)
    found = largest(values_BQL, group_BXL).unbind(1)
    most = _Extremes(found[0], -found[1], found[2], found[3], -found[4], found[5])
    places = _places(points, most, group_BXL)
    sums_BQG = _sums(points, most, detected_B1L.to(soft_B1L.dtype))
    bands = _bands(points, most, places, sums_BQG)
    curves = _curves(
        most, sums_BQG[:, 0].sum(1, keepdim=True), points.number_BG.sum(1, keepdim=True), places, redshift_B
    )
    seen_BG, bluest_BG = points.number_BG > 0, most.soft[:, : points.number_BG.shape[1]]
    colours = (bluest_BG[:, :-1] - bluest_BG[:, 1:], seen_BG[:, :-1] & seen_BG[:, 1:])
    value_BK, known_BK = (
        torch.cat(parts, dim=1) for parts in zip(bands, curves, colours, _sampling(points, places), strict=True)
    )
    return Statistics(torch.where(known_BK, value_BK, 0.0), known_BK)


def _log_days(days: Tensor) -> Tensor:
    """Squash a duration or, with its sign, a delay."""
    return days.sign() * days.abs().clamp(max=FAR).log1p() / 3


def _places(points: Points, most: _Extremes, group_BXL: Tensor) -> _Places:
    n_bands = points.number_BG.shape[1]
    own_B2L = points.to_points(torch.stack([most.soft[:, :n_bands], most.flux[:, :n_bands] / 2], dim=1))
    of_all_BX = most.soft[:, n_bands:]
    detected_B1 = of_all_BX[:, 1:] > -FAR
    brightest_B1 = torch.where(detected_B1, of_all_BX[:, 1:], of_all_BX[:, :1])
    peak_B1L, bright_B1L = points.soft_B1L >= own_B2L[:, :1], points.flux_B1L >= own_B2L[:, 1:]
    wanted_B4L = torch.cat([peak_B1L, bright_B1L, bright_B1L, points.soft_B1L >= brightest_B1[:, None]], dim=1)
    time_B4L = torch.cat([-points.time_B1L, points.time_B1L, -points.time_B1L, -points.time_B1L], dim=1)
    when_B4X = largest(torch.where(wanted_B4L, time_B4L, -FAR), group_BXL)
    of_bands, of_all_B1X = when_B4X[:, :3, :n_bands].unbind(1), when_B4X[:, 3, n_bands:]
    maximum_B1 = torch.where(detected_B1, of_all_B1X[:, 1:], of_all_B1X[:, :1])
    return _Places(-of_bands[0], of_bands[1], -of_bands[2], -maximum_B1)


def _sums(points: Points, most: _Extremes, detected_B1L: Tensor) -> Tensor:
    """Return sums [B, Q, G]: detections, cubes of deviations, squared pulls, number and flux of a band's ends."""
    n_bands = points.number_BG.shape[1]
    weight_B1L = points.flux_err_B1L.pow(-2)
    level_B2G = points.sums(torch.cat([weight_B1L * points.flux_B1L, weight_B1L], dim=1))
    level_BG = level_B2G[:, 0] / level_B2G[:, 1].clamp(min=1e-30)
    own = torch.stack([level_BG, most.start[:, :n_bands], most.end[:, :n_bands]], dim=1)
    level_B1L, start_B1L, end_B1L = torch.split(points.to_points(own), 1, dim=1)
    pulls_B1L = ((points.flux_B1L - level_B1L) / points.flux_err_B1L).clamp(-FAR, FAR)
    outer_B2L = torch.cat([points.time_B1L <= start_B1L, points.time_B1L >= end_B1L], dim=1).to(weight_B1L.dtype)
    columns = [detected_B1L, points.away_B1L.pow(3), pulls_B1L.square(), outer_B2L, outer_B2L * points.soft_B1L]
    return points.sums(torch.cat(columns, dim=1))


def _bands(points: Points, most: _Extremes, places: _Places, sums_BQG: Tensor) -> tuple[Tensor, Tensor]:
    """Values and where they are defined, each [B, K], in the order of :data:`BAND_STATISTICS`."""
    number_BG, n_bands = points.number_BG, points.number_BG.shape[1]
    soft, least, snr, end, start, _ = (part[:, :n_bands] for part in most)
    detections_BG, cubes_BG, squares_BG, *_ = sums_BQG.unbind(1)
    first_BG, last_BG = (sums_BQG[:, 5:] / sums_BQG[:, 3:5].clamp(min=1)).unbind(1)
    per_BG, scatter_BG = number_BG.clamp(min=1), points.variance_BG.sqrt()
    skewness_BG = cubes_BG / per_BG / (scatter_BG.pow(3) + 1e-6)
    excess_BG = (1e-3 + squares_BG / (number_BG - 1).clamp(min=1)).log10()
    rise, fall = places.peak - start, end - places.peak
    change_BQ = torch.cat([soft - first_BG, last_BG - soft], dim=1) / torch.cat([rise, fall], dim=1).clamp(
        min=_SHORTEST
    )
    detected_BG = most.start[:, n_bands + 1 :]
    first_detection_B1 = torch.where(detected_BG < FAR, detected_BG, 0.0)
    days_BQ = _log_days(
        torch.cat([places.peak - first_detection_B1, end - start, places.bright_end - places.bright_start], dim=1)
    )
    value_BK = torch.cat(
        [
            torch.cat([number_BG, detections_BG], dim=1).log1p() / 2,
            torch.cat([soft, least, points.mean_BG, last_BG, snr.asinh()], dim=1) / 3,
            *(scatter_BG, excess_BG / 2, skewness_BG.clamp(-5, 5) / 2),
            *(days_BQ[:, : 2 * n_bands], (20 * change_BQ).asinh() / 2, days_BQ[:, 2 * n_bands :]),
        ],
        dim=1,
    )
    seen_BG, several_BG, always_BG = number_BG > 0, number_BG > 2, number_BG > -1
    outer = (seen_BG & (rise > 0), seen_BG & (fall > 0), places.bright_end > -FAR)
    known = [always_BG] * 2 + [seen_BG] * 5 + [several_BG] * 3 + [seen_BG] * 2
    return value_BK, torch.cat([*known, *outer], dim=1)


def _curves(
    most: _Extremes, detections_B1: Tensor, number_B1: Tensor, places: _Places, redshift_B: Tensor
) -> tuple[Tensor, Tensor]:
    """Values and where they are defined, each [B, K], in the order of :data:`CURVE_STATISTICS`."""
    (start_B1, first_B1), (end_B1, last_B1) = (torch.split(part[:, -2:], 1, dim=1) for part in (most.start, most.end))
    days = [end_B1 - start_B1, first_B1 - start_B1, last_B1 - first_B1, end_B1 - places.maximum]
    days_BQ = _log_days(torch.cat(days, dim=1))
    redshift_B1 = redshift_B[:, None]
    far_B1 = redshift_B1 > 0  # false for NaN
    log_B1 = torch.where(far_B1, redshift_B1, 1.0).clamp(min=1e-3).log() / 2
    value = [number_B1.log1p() / 3, days_BQ[:, :1], detections_B1 / number_B1, days_BQ[:, 1:], log_B1]
    always_B1, detected_B1 = number_B1 > 0, detections_B1 > 0
    known = [always_B1] * 3 + [detected_B1] * 2 + [always_B1, far_B1]
    return torch.cat(value, dim=1), torch.cat(known, dim=1)


def _sampling(points: Points, places: _Places) -> tuple[Tensor, Tensor]:
    """Mean flux of every band between days before and after the maximum, and where there is one; [B, K]."""
    days_B1L = points.time_B1L - places.maximum[:, None]
    edges_K1 = torch.tensor(EDGES, device=days_B1L.device, dtype=days_B1L.dtype)[:, None]
    after_BKL = (days_B1L >= edges_K1).to(days_B1L.dtype)
    inside_BIL = after_BKL[:, :-1] - after_BKL[:, 1:]
    number_BIG, sum_BIG = points.sums(inside_BIL), points.sums(inside_BIL * points.soft_B1L)
    return (sum_BIG / number_BIG.clamp(min=1) / 3).flatten(1), (number_BIG > 0).flatten(1)
