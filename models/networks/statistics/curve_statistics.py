"""Summary statistics of a light curve: brightness, colours, time scales, a coarse sampling, and autocorrelation.

These are the statistics that feature-based classifiers use (FATS, Nun et al. 2015; ALeRCE, Sanchez-Saez et al. 2021).
They are computed inside the network, so the service needs no code for them. A transformer can learn them from many
light curves; from a few thousand labelled ones it cannot, so they are given as input.

Notable: all of it is comparisons, sums and elementwise functions over all bands together (``statistics.points``), so it
exports to few operations. Values are compressed to order one (asinh, log1p), with the network's flux in FLUXCAL. An
undefined statistic (a band without points) is marked in the second tensor; its value means nothing. A detection
here is a point at 5 sigma. The coarse sampling is counted from the brightest detection.

:func:`lag_statistics` is the autocorrelation as a function of the lag in days, over all bands together. A network
learns only coarse time scales from sparse light curves: a star that varies within hours, one that varies within days
and noise look the same to it. The correlation by lag distinguishes them without a search for periods (compare the
discrete correlation function of Edelson & Krolik 1988 and the structure functions that brokers use). There,

- every point counts as its standard score within its band, in squashed flux (asinh), so that bands can be paired: two
  bands share a night where two visits in one band are days apart;
- points are not weighted by their errors: this was worse, since the shortest lags already give the fraction of noise
  in the scatter;
- all pairs are compared with every lag. This is the costliest statistic for light curves of hundreds of points, and the
  cheapest way for those of tens. The table of pairs is the left operand of the product: as the right one it would be
  copied before it is multiplied by two rows. An exported graph multiplies integers (:func:`_whole_pairs`). Sums over
  pairs closer than the end of a lag are taken per point, and those of the previous lag are subtracted per point: a lag
  without pairs gives an exact zero.

Legend: B batch, L length, G bands, X groups (the bands, all points, all detections), Q quantities, I intervals, K
statistics or lags, D width.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn

from nightjar_alerts.models.networks.statistics.points import FAR, FEWEST_POINTS, LEAST_SCATTER, Points, Statistics
from nightjar_alerts.models.photometry import DETECTION_SNR

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
_QUANTITIES: Final = 6
_SIGNS: Final = (1.0, 1.0, 1.0, -1.0, -1.0, 1.0)
# A point is high that reaches this share of the largest. Then the largest of times among the highest (minus the first)
# and among those above half of the flux (minus the first, the last) are rows like those before.
_HIGH: Final = (1.0, 0.5)
_PEAK, _BRIGHT, _BRIGHT_END = range(_QUANTITIES, _QUANTITIES + 3)
_HIGH_OF: Final = (0, 1, 1)
_TIME_OF: Final = (_START, _START, _END)
_FIRST, _LAST = range(_BRIGHT_END + 1, _BRIGHT_END + 3)  # squashed flux at both ends


def count(n_bands: int) -> int:
    """Return the number of statistics, K."""
    return n_bands * (len(BAND_STATISTICS) + len(EDGES) - 1) + len(CURVE_STATISTICS) + n_bands - 1


def statistics(points: Points, redshift_B: Tensor) -> Statistics:
    """Statistics [B, K] of light curves.

    Parameters
    ----------
    redshift_B : NaN where unknown.
    """
    n_bands = points.number_B1G.shape[2]
    snr_B1L = points.flux_B1L / points.flux_err_B1L
    detected_B1L = snr_B1L >= DETECTION_SNR
    group_BXL = torch.cat([points.here_BGL, points.mask_B1L, detected_B1L], dim=1)
    soft_B1L, time_B1L = points.soft_B1L, points.time_B1L
    values_BQL = torch.cat([soft_B1L, points.flux_B1L, snr_B1L, soft_B1L, time_B1L, time_B1L], dim=1)
    values_BQL = values_BQL * _column(soft_B1L, *_SIGNS)
    most_BQG, most_BQ2 = torch.split(_extremes(values_BQL, group_BXL), [n_bands, 2], dim=2)
    sums_BQG = _sums(values_BQL, points, most_BQG, detected_B1L.to(soft_B1L.dtype))
    counts_B2G = torch.cat([points.number_B1G, sums_BQG[:, :1]], dim=1)
    number_B1, detections_B1 = torch.split(counts_B2G.sum(2), 1, dim=1)
    whole_BQ = most_BQ2.flatten(1)  # of all points and of the detections, in turn
    before_B1 = torch.where(
        detections_B1 > 0, whole_BQ[:, 2 * _PEAK + 1 : 2 * _PEAK + 2], whole_BQ[:, 2 * _PEAK : 2 * _PEAK + 1]
    )
    rows_BRG, delays_B3G = _bands(points, most_BQG, whole_BQ, sums_BQG, detections_B1)
    days_B4 = torch.cat([whole_BQ, before_B1], dim=1) @ _days(whole_BQ)
    logs_BK = _log(torch.cat([delays_B3G.flatten(1), counts_B2G.flatten(1), days_B4, number_B1], dim=1))
    redshift_B1 = redshift_B[:, None]
    log_B1 = torch.where(redshift_B1 > 0, redshift_B1, 1.0).clamp(min=1e-3).log()  # false for NaN
    curve = [detections_B1 / number_B1, log_B1, detections_B1, number_B1, redshift_B1]
    pairs = *_colours(points, most_BQG), *_sampling(points, before_B1)
    return _in_order(torch.cat([rows_BRG.flatten(1), logs_BK, *curve, *pairs], dim=1), n_bands)


def _log(days: Tensor) -> Tensor:
    """Log of a duration, or of a number, plus one; with its sign for a delay."""
    return days.sign() * days.abs().clamp(max=FAR).log1p()


def _column(like: Tensor, *numbers: float) -> Tensor:
    """Numbers [K, 1], one for every row of something [B, K, X]."""
    return torch.tensor(numbers, device=like.device, dtype=like.dtype)[:, None]


def _extremes(values_BQL: Tensor, group_BXL: Tensor) -> Tensor:
    """Largest of all quantities over the points of every group, and of the times of the high ones, [B, Q, X].

    Minus :data:`FAR` where there are none.
    """
    values_BQ1L, group_B1XL = values_BQL[:, :, None], group_BXL[:, None]
    inside_BQXL = torch.where(group_B1XL, values_BQ1L, -FAR)
    most_BQX = inside_BQXL.amax(3)
    high_B2XL = inside_BQXL[:, : len(_HIGH)] >= (most_BQX[:, : len(_HIGH)] * _column(most_BQX, *_HIGH))[..., None]
    high_of, time_of = (torch.tensor(places, device=values_BQL.device) for places in (_HIGH_OF, _TIME_OF))
    times_B3XL = torch.where(high_B2XL.index_select(1, high_of), values_BQ1L.index_select(1, time_of), -FAR)
    return torch.cat([most_BQX, times_B3XL.amax(3)], dim=1)


def _sums(values_BQL: Tensor, points: Points, most_BQG: Tensor, detected_B1L: Tensor) -> Tensor:
    """Return sums [B, Q, G]: detections, cubes of deviations, number and squashed flux of a band's ends."""
    ends_B2L = points.to_points(most_BQG[:, _START : _END + 1])
    outer_B2L = (values_BQL[:, _START:] >= ends_B2L).to(detected_B1L.dtype)
    columns = [detected_B1L, points.away_B1L.pow(3), outer_B2L, outer_B2L * points.soft_B1L]
    return points.sums(torch.cat(columns, dim=1))


# Minus the starts of all points and of all detections, the ends of both, minus the time of the maximum: how much of
# each is in the duration, the days to the first detection, between detections, and since the maximum.
_DAYS_OF_TIMES: Final = (
    *((2 * _START, (1, 1, 0, 0)), (2 * _START + 1, (0, -1, 1, 0)), (2 * _END, (1, 0, 0, 1))),
    *((2 * _END + 1, (0, 0, 1, 0)), (2 * (_BRIGHT_END + 1), (0, 0, 0, 1))),
)
# The same of a band's rows: the days of the rise, of the fall, what flux rose and fell by, minus the time of the
# maximum, the span, the width.
_BAND_SUMS: Final = (
    *({_START: 1, _PEAK: -1}, {_END: 1, _PEAK: 1}, {_SOFT: 1, _FIRST: -1}, {_LAST: 1, _SOFT: -1}),
    *({_PEAK: -1}, {_END: 1, _START: 1}, {_BRIGHT_END: 1, _BRIGHT: 1}),
)


def _days(like: Tensor) -> Tensor:
    days_Q4 = torch.zeros(2 * _BRIGHT_END + 3, 4, device=like.device, dtype=like.dtype)
    for row, share in _DAYS_OF_TIMES:
        days_Q4[row] = torch.tensor(share, device=like.device, dtype=like.dtype)
    return days_Q4


def _bands(
    points: Points, most_BQG: Tensor, whole_BQ: Tensor, sums_BQG: Tensor, detections_B1: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows [B, R, G] that :data:`_ROWS` names, and the delays of every band [B, 3, G], days."""
    number_B1G = points.number_B1G
    _, cubes_B1G, outer_B2G, fluxes_B2G = torch.split(sums_BQG, [1, 1, 2, 2], dim=1)
    rows_BRG = torch.cat([most_BQG, fluxes_B2G / outer_B2G.clamp(min=1)], dim=1)
    share_7R = torch.zeros(len(_BAND_SUMS), _LAST + 1, device=rows_BRG.device, dtype=rows_BRG.dtype)
    for row, shares in enumerate(_BAND_SUMS):
        for quantity, share in shares.items():
            share_7R[row, quantity] = share
    slopes_B2G, changes_B2G, delays_B3G = torch.split(share_7R @ rows_BRG, [2, 2, 3], dim=1)
    before_first_B1 = torch.where(detections_B1 > 0, whole_BQ[:, 2 * _START + 1 : 2 * _START + 2], 0.0)
    delays_B3G = delays_B3G + before_first_B1[..., None] * _column(delays_B3G, 1, 0, 0)
    changes_B2G = (20 * changes_B2G / slopes_B2G.clamp(min=_SHORTEST)).asinh()
    scatter = points.variance_B1G.sqrt()
    skewness = (cubes_B1G / number_B1G.clamp(min=1) / (scatter.pow(3) + 1e-6)).clamp(-5, 5)
    excess = (1e-3 + points.chi_square_B1G / (number_B1G - 1).clamp(min=1)).log()
    own = [points.mean_B1G, most_BQG[:, _SNR : _SNR + 1].asinh(), scatter, excess, skewness, changes_B2G]
    return torch.cat([rows_BRG, *own, number_B1G, torch.minimum(slopes_B2G, number_B1G)], dim=1), delays_B3G


def _colours(points: Points, most_BQG: Tensor) -> tuple[Tensor, Tensor]:
    """Differences of the maxima of neighbouring bands [B, G - 1], and a number that is not 0 where both were seen."""
    number_BG, bluest_BG = points.number_B1G[:, 0], most_BQG[:, _SOFT]
    return bluest_BG[:, :-1] - bluest_BG[:, 1:], number_BG[:, :-1] * number_BG[:, 1:]


def _sampling(points: Points, before_B1: Tensor) -> tuple[Tensor, Tensor]:
    """Mean flux of every band between days before and after the maximum, and of how many points; [B, K]."""
    days_B1L = points.time_B1L + before_B1[..., None]
    inside_BIL = (days_B1L >= _column(days_B1L, *EDGES[:-1])) & (days_B1L < _column(days_B1L, *EDGES[1:]))
    inside_BIL = inside_BIL.to(days_B1L.dtype)
    number_BIG, sum_BIG = points.sums(inside_BIL), points.sums(inside_BIL * points.soft_B1L)
    return (sum_BIG / number_BIG.clamp(min=1)).flatten(1), number_BIG.flatten(1)


# Computed values, in this order: rows of G bands each, as many logarithms, values of the whole curve. Then, for every
# statistic in the output: its value, the divisor of the value, the value that must exceed a minimum for it to
# be defined, and this minimum.
_ROWS: Final = (
    *("soft", "flux", "snr", "before_least", "before_start", "end", "before_peak", "before_bright", "bright_end"),
    *("first", "last", "mean", "best_snr", "scatter", "excess", "skewness", "rise", "fall"),
    *("number", "rising", "falling", "delay", "days", "width", "points", "detections"),
)
_CURVE: Final = (
    "duration",
    "to_detection",
    "detected",
    "since",
    "points",
    "share",
    "redshift",
    "detections",
    "number",
    "far",
)
_BAND_STATISTICS: Final = (
    *(("points", 2.0, "number", -1), ("detections", 2.0, "number", -1), ("soft", 3.0, "number", 0)),
    *(("before_least", -3.0, "number", 0), ("mean", 3.0, "number", 0), ("last", 3.0, "number", 0)),
    *(("best_snr", 3.0, "number", 0), ("scatter", 1.0, "number", 2), ("excess", 2.0 * math.log(10), "number", 2)),
    *(("skewness", 2.0, "number", 2), ("delay", 3.0, "number", 0), ("days", 3.0, "number", 0)),
    *(("rise", 2.0, "rising", 0), ("fall", 2.0, "falling", 0), ("width", 3.0, "bright_end", -FAR)),
)
_CURVE_STATISTICS: Final = (
    *(("points", 3.0, "number", 0), ("duration", 3.0, "number", 0), ("share", 1.0, "number", 0)),
    *(("to_detection", 3.0, "detections", 0), ("detected", 3.0, "detections", 0), ("since", 3.0, "number", 0)),
    ("redshift", 2.0, "far", 0),
)


@cache
def _places(n_bands: int) -> tuple[list[int], list[float], list[int], list[float]]:
    """Index of every statistic's value among the computed ones, its divisor, the index of its evidence, its minimum."""
    first = len(_ROWS) * n_bands
    behind = first + len(_CURVE)
    rows: list[tuple[int, float, int, float]] = [
        (_ROWS.index(value) * n_bands + band, scale, _ROWS.index(evidence) * n_bands + band, least)
        for value, scale, evidence, least in _BAND_STATISTICS
        for band in range(n_bands)
    ]
    rows += [
        (first + _CURVE.index(value), scale, first + _CURVE.index(evidence), least)
        for value, scale, evidence, least in _CURVE_STATISTICS
    ]
    for number, scale in ((n_bands - 1, 1.0), ((len(EDGES) - 1) * n_bands, 3.0)):
        rows += [(behind + place, scale, behind + number + place, 0) for place in range(number)]
        behind += 2 * number
    return [one[0] for one in rows], [one[1] for one in rows], [one[2] for one in rows], [one[3] for one in rows]


def _in_order(columns_BK: Tensor, n_bands: int) -> Statistics:
    """Take every statistic to its place."""
    value, scale, evidence, least = _places(n_bands)
    value_K, evidence_K = (torch.tensor(places, device=columns_BK.device) for places in (value, evidence))
    scale_K, least_K = (
        torch.tensor(numbers, device=columns_BK.device, dtype=columns_BK.dtype) for numbers in (scale, least)
    )
    mask_BK = columns_BK.index_select(1, evidence_K) > least_K
    return Statistics(torch.where(mask_BK, columns_BK.index_select(1, value_K) / scale_K, 0.0), mask_BK)


LEAST_SPREAD = 0.05  # of a statistic: below, differences are rounding
LIMIT = 6.0  # standard deviations


class Function(nn.Module):
    """Function as a named module, so that a profile shows its cost."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        """Call it."""
        return self.function(*arguments)


class StatisticsBranch(nn.Module):
    """Branch of a network that looks at statistics of the light curve, not at its points: one vector [B, D].

    The statistics' standard scores, and which of them are known, pass through one layer. Statistics beyond those that
    it was built for are not looked at.
    """

    mean_K: Tensor
    spread_K: Tensor

    def __init__(self, statistics: int, width: int, dropout: float) -> None:
        super().__init__()
        self.register_buffer("mean_K", torch.zeros(statistics))
        self.register_buffer("spread_K", torch.ones(statistics))
        self.layer = nn.Sequential(nn.Dropout(dropout), nn.Linear(2 * statistics, width), nn.GELU())

    def fit(self, statistics: Statistics) -> None:
        """Learn the scale of every statistic from those of training objects; one that is never known stays as it is."""
        statistics = self._own(statistics)
        mask_BK = statistics.mask_BK.double()
        objects_K = mask_BK.sum(0)
        mean_K = (statistics.value_BK * mask_BK).sum(0) / objects_K.clamp(min=1)
        variance_K = ((statistics.value_BK - mean_K).square() * mask_BK).sum(0) / objects_K.clamp(min=1)
        self.mean_K.copy_(mean_K)
        self.spread_K.copy_(torch.where(objects_K > 1, variance_K.sqrt().clamp(min=LEAST_SPREAD), 1.0))

    def forward(self, statistics: Statistics) -> Tensor:
        """Encode to [B, D]."""
        statistics = self._own(statistics)
        score_BK = ((statistics.value_BK - self.mean_K) / self.spread_K).clamp(-LIMIT, LIMIT)
        scores_BK = torch.where(statistics.mask_BK, score_BK, 0.0)
        vector_BD: Tensor = self.layer(torch.cat([scores_BK, statistics.mask_BK.to(scores_BK.dtype)], dim=1))
        return vector_BD

    def _own(self, statistics: Statistics) -> Statistics:
        own = len(self.spread_K)
        return (
            statistics
            if statistics.value_BK.shape[1] == own
            else Statistics(statistics.value_BK[:, :own], statistics.mask_BK[:, :own])
        )


LAGS: Final = (0.0, 0.1, 0.6, 1.5, 2.5, 4.0, 7.0, 12.0, 20.0, 35.0, 60.0, 120.0, 250.0, 5000.0)  # days, edges
FEWEST_PAIRS: Final = 2
_AT_ONCE: Final = 5  # lags: their pairs are what takes memory

N_LAG_STATISTICS: Final = 2 * (len(LAGS) - 1)  # the correlations, then how many pairs each is of


def lag_statistics(points: Points) -> Statistics:
    """Mean product of standard scores of pairs of points [B, K], and half the log of how many pairs [B, K].

    A lag of no more than one pair is not known.
    """
    scores_B2L, time_B1L = _scores(points), points.time_B1L
    lag_BLL = (time_B1L.transpose(1, 2) - time_B1L).abs()
    ends_K111 = torch.tensor(LAGS[1:], device=time_B1L.device, dtype=time_B1L.dtype)[:, None, None, None]
    nearer_KBLL = [lag_BLL < some for some in torch.split(ends_K111, _AT_ONCE)]
    pairs_BX = (_whole_pairs if torch.compiler.is_exporting() else _pairs)(scores_B2L, nearer_KBLL)
    product_BK, number_BK = torch.split(pairs_BX, len(LAGS) - 1, dim=1)
    mask_BK = number_BK > 2 * FEWEST_PAIRS - 1
    correlation_BK = torch.where(mask_BK, product_BK / number_BK, 0.0)
    return Statistics(
        torch.cat([correlation_BK, (number_BK / 2).log1p() / 2], dim=1),
        torch.cat([mask_BK, number_BK > -1], dim=1),
    )


def _pairs(scores_B2L: Tensor, nearer_KBLL: Sequence[Tensor]) -> Tensor:
    """Add up the products of scores of all pairs between two ends, and how many there are, [B, 2 K]; each twice."""
    scores_BL2 = scores_B2L.transpose(1, 2)
    sums_KBL2 = torch.cat([near_KBLL.to(scores_BL2.dtype) @ scores_BL2 for near_KBLL in nearer_KBLL])
    ring_KBL2 = sums_KBL2 - torch.cat([scores_BL2[None], sums_KBL2[:-1]])  # nearest is the point itself
    return (scores_BL2 * ring_KBL2).sum(2).permute(1, 2, 0).flatten(1)


def _whole_pairs(scores_B2L: Tensor, nearer_KBLL: Sequence[Tensor]) -> Tensor:
    """Return :func:`_pairs` by products of whole numbers, a third of the price in an exported graph: the tables of
    pairs are a quarter as large, and what is added up of them is exact.

    A score is the sum of its digits to the base of :data:`_BASE`, of which the smallest is worth 2^-21; it is below 64
    for thousands of points in a band.
    """
    row_2X, digit_XX, worth_YX = (torch.tensor(table).to(scores_B2L) for table in _digit_tables())
    digits_BLX = (scores_B2L.transpose(1, 2) @ row_2X).round() @ digit_XX
    whole_BLX = digits_BLX.to(torch.int8)
    sums_KBLX = torch.cat([whole_sums(near_KBLL, whole_BLX) for near_KBLL in nearer_KBLL]).to(digits_BLX.dtype)
    ring_KBLX = sums_KBLX - torch.cat([digits_BLX[None], sums_KBLX[:-1]])
    return (scores_B2L @ ring_KBLX).transpose(0, 1).flatten(1) @ worth_YX


_BASE: Final = 128.0
_DIGITS: Final = 4


def _digit_tables() -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
    """Tables that make digits of scores and ones; and of the sums of both times all digits, lag by lag, the products
    of all lags and the numbers of all lags.
    """
    columns, lags = range(_DIGITS + 1), range(len(LAGS) - 1)
    row = [[_BASE**place for place in range(_DIGITS)] + [0.0], [0.0] * _DIGITS + [1.0]]
    digit = [[float(a == b) - _BASE * float(a == b - 1 < _DIGITS - 1) for b in columns] for a in columns]
    worth = [(_BASE**-place, 0.0) for place in range(_DIGITS)] + [(0.0, 0.0)] * (_DIGITS + 1) + [(0.0, 1.0)]
    worths = [[each[side] * (own == lag) for side in (0, 1) for own in lags] for lag in lags for each in worth]
    return row, digit, worths


@torch.library.custom_op("nightjar::whole_sums", mutates_args=())
def whole_sums(chosen_KBLL: Tensor, whole_BLX: Tensor) -> Tensor:
    """Add up whole numbers from -128 to 127 where a table of true and false chooses them, int32 [K, B, L, X].

    One product of whole numbers in an exported graph; ``training.export.graph`` translates it.
    """
    return (chosen_KBLL.float() @ whole_BLX.float()).int()


@whole_sums.register_fake
def _sums_like(chosen_KBLL: Tensor, whole_BLX: Tensor) -> Tensor:
    return chosen_KBLL.new_empty(*chosen_KBLL.shape[:-1], whole_BLX.shape[-1], dtype=torch.int32)


def _scores(points: Points) -> Tensor:
    """Return the standard score of every point within its band, 0 where there is none, and 1 where there is one."""
    scatter_B1G = points.variance_B1G.sqrt()
    scored_B1G = ((points.number_B1G >= FEWEST_POINTS) & (scatter_B1G > LEAST_SCATTER)).to(scatter_B1G.dtype)
    scale_B2G = torch.cat([scored_B1G / scatter_B1G.clamp(min=LEAST_SCATTER), scored_B1G], dim=1)
    each_B2L = torch.cat([points.away_B1L, points.mask_B1L.to(scatter_B1G.dtype)], dim=1)
    return points.to_points(scale_B2G) * each_B2L
