"""What a light curve looks like at a glance, in numbers: brightness, colours, time scales, and a coarse sampling.

These are the statistics that classifiers on hand-made features live on (FATS, Nun et al. 2015; the features of ALeRCE,
Sanchez-Saez et al. 2021), worked out inside the network, so that whoever serves it need not know of them. A
transformer can learn each, given enough light curves; a few thousand labelled ones are not enough, and with the
statistics at hand they are.

Notable: all of it is comparisons, sums and elementwise functions over [B, G, L], so it exports; its many small nodes
take about 0.7 ms a run on a CPU core, a quarter of a lone short curve and 2 % of a wide batch. Values are squashed to
order one (asinh, log1p), with the network's flux in FLUXCAL; a statistic that is not defined (a band without points) is
told by the second tensor, its value means nothing. A detection here is a point at 5 sigma. The coarse sampling is
counted from the brightest detection.

Legend: B batch, L length, G bands, K statistics.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

import torch
from torch import Tensor

SOFT: Final = 3.0  # FLUXCAL, about the noise of one Rubin visit: fluxes below are linear, above logarithmic
DETECTION_SNR: Final = 5.0
EDGES: Final = (-100.0, -40.0, -20.0, -10.0, -4.0, 4.0, 10.0, 20.0, 40.0, 80.0, 160.0, 400.0)  # days from the maximum
BAND_STATISTICS: Final = (
    *("points", "detections", "maximum", "minimum", "mean", "last", "best_snr", "scatter", "excess", "skewness"),
    *("time_of_maximum", "span", "rise", "fall", "width"),
)
CURVE_STATISTICS: Final = (
    *("points", "duration", "detected_share", "time_to_detection", "detected_duration", "since_maximum"),
    "log_redshift",
)
_FAR: Final = 1e9  # beyond every flux and time
_SHORTEST: Final = 0.01  # days


class Statistics(NamedTuple):
    """Values of order one, and whether each is defined; both [B, K]."""

    value_BK: Tensor
    known_BK: Tensor


class _Bands(NamedTuple):
    """A batch taken apart by band: ``here`` [B, G, L] says which points are real and in it; the rest [B, 1, L]."""

    here: Tensor
    flux: Tensor
    flux_err: Tensor
    soft: Tensor
    time: Tensor


class _Detections(NamedTuple):
    """The first and last detection and the brightest point (a detection, if there is any), in days, [B]."""

    any: Tensor
    number: Tensor
    first: Tensor
    last: Tensor
    peak: Tensor


class _Column(NamedTuple):
    """One statistic of the light curves, [B], or of their bands, [B, G], and where it is defined."""

    value: Tensor
    known: Tensor


def count(n_bands: int) -> int:
    """How many statistics there are, K."""
    return n_bands * (len(BAND_STATISTICS) + len(EDGES) - 1) + len(CURVE_STATISTICS) + n_bands - 1


def statistics(
    flux_BL: Tensor,
    flux_err_BL: Tensor,
    time_BL: Tensor,
    band_BL: Tensor,
    mask_BL: Tensor,
    redshift_B: Tensor,
    n_bands: int,
) -> Statistics:
    """Statistics of padded light curves, each row in any order; padding may hold anything.

    Parameters
    ----------
    redshift_B : NaN where unknown.
    """
    flux_BL, flux_err_BL = flux_BL.clamp(-_FAR, _FAR), flux_err_BL.clamp(1e-6, _FAR)
    here_BGL = (band_BL[:, None] == torch.arange(n_bands, device=band_BL.device)[:, None]) & mask_BL[:, None]
    soft_BL = torch.asinh(flux_BL / SOFT)
    bands = _Bands(here_BGL, flux_BL[:, None], flux_err_BL[:, None], soft_BL[:, None], time_BL[:, None])
    detections = _detections(flux_BL / flux_err_BL, soft_BL, time_BL, mask_BL)
    seen_BG, maximum_BG = here_BGL.any(2), _largest(bands.soft, here_BGL)
    return _joined(
        (
            *_of_bands(bands, detections, maximum_BG),
            *_of_curves(detections, time_BL, mask_BL, redshift_B),
            _Column(maximum_BG[:, :-1] - maximum_BG[:, 1:], seen_BG[:, :-1] & seen_BG[:, 1:]),
            *_sampling(bands, detections),
        )
    )


def _joined(columns: Iterable[_Column]) -> Statistics:
    columns = [_Column(*(part if part.dim() == 2 else part[:, None] for part in column)) for column in columns]
    known_BK = torch.cat([column.known for column in columns], dim=1)
    value_BK = torch.cat([column.value for column in columns], dim=1)
    return Statistics(torch.where(known_BK, value_BK, 0.0), known_BK)


def _largest(values: Tensor, where: Tensor) -> Tensor:
    """Along the last axis; minus :data:`_FAR` where there is none."""
    return torch.where(where, values, -_FAR).amax(-1)


def _smallest(values: Tensor, where: Tensor) -> Tensor:
    return torch.where(where, values, _FAR).amin(-1)


def _mean(values: Tensor, where: Tensor) -> Tensor:
    return torch.where(where, values, 0.0).sum(-1) / where.sum(-1).clamp(min=1)


def _log_days(days: Tensor) -> Tensor:
    """A duration or, with its sign, a delay; squashed."""
    return days.sign() * days.abs().clamp(max=_FAR).log1p() / 3


def _detections(snr_BL: Tensor, soft_BL: Tensor, time_BL: Tensor, mask_BL: Tensor) -> _Detections:
    detected_BL = mask_BL & (snr_BL >= DETECTION_SNR)
    any_B = detected_BL.any(1)
    good_BL = detected_BL | (mask_BL & ~any_B[:, None])  # onnxruntime has no Where of booleans
    brightest_BL = good_BL & (soft_BL >= _largest(soft_BL, good_BL)[:, None])
    first_B, last_B = _smallest(time_BL, detected_BL), _largest(time_BL, detected_BL)
    peak_B = _smallest(time_BL, brightest_BL)
    return _Detections(any_B, detected_BL.sum(1), torch.where(any_B, first_B, 0.0), last_B, peak_B)


def _of_bands(bands: _Bands, detections: _Detections, maximum_BG: Tensor) -> Iterable[_Column]:
    """Columns [B, G] in the order of :data:`BAND_STATISTICS`."""
    here, soft, snr = bands.here, bands.soft, bands.flux / bands.flux_err
    points_BG, seen_BG = here.sum(2), here.any(2)
    always_BG, several_BG = torch.ones_like(seen_BG), points_BG > 2
    mean_BG, (scatter_BG, skewness_BG) = _mean(soft, here), _moments(soft, here)
    yield _Column(points_BG.to(soft.dtype).log1p() / 2, always_BG)
    yield _Column((here & (snr >= DETECTION_SNR)).sum(2).to(soft.dtype).log1p() / 2, always_BG)
    yield _Column(maximum_BG / 3, seen_BG)
    yield _Column(_smallest(soft, here) / 3, seen_BG)
    yield _Column(mean_BG / 3, seen_BG)
    yield _Column(_mean(soft, _newest(bands)) / 3, seen_BG)
    yield _Column(_largest(snr, here).asinh() / 3, seen_BG)
    yield _Column(scatter_BG, several_BG)
    yield _Column((1e-3 + _reduced_chi_square(bands)).log10() / 2, several_BG)
    yield _Column(skewness_BG.clamp(-5, 5) / 2, several_BG)
    yield from _times_of_bands(bands, detections, maximum_BG)


def _times_of_bands(bands: _Bands, detections: _Detections, maximum_BG: Tensor) -> Iterable[_Column]:
    here, soft, time, seen_BG = bands.here, bands.soft, bands.time, bands.here.any(2)
    peak_BG = _smallest(time, here & (soft >= maximum_BG[..., None]))
    start_BG, end_BG = _smallest(time, here), _largest(time, here)
    first_BG, last_BG = _mean(soft, here & (time <= start_BG[..., None])), _mean(soft, _newest(bands))
    bright = here & (bands.flux >= _largest(bands.flux, here)[..., None] / 2)
    yield _Column(_log_days(peak_BG - detections.first[:, None]), seen_BG)
    yield _Column(_log_days(end_BG - start_BG), seen_BG)
    yield _Column(_pace(maximum_BG - first_BG, peak_BG - start_BG), seen_BG & (peak_BG > start_BG))
    yield _Column(_pace(last_BG - maximum_BG, end_BG - peak_BG), seen_BG & (end_BG > peak_BG))
    yield _Column(_log_days(_largest(time, bright) - _smallest(time, bright)), bright.any(2))


def _newest(bands: _Bands) -> Tensor:
    return bands.here & (bands.time >= _largest(bands.time, bands.here)[..., None])


def _pace(change: Tensor, days: Tensor) -> Tensor:
    return (20 * change / days.clamp(min=_SHORTEST)).asinh() / 2


def _moments(soft: Tensor, here: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviation and skewness; the latter fades to 0 where there is no scatter."""
    away = torch.where(here, soft - _mean(soft, here)[..., None], 0.0)
    scatter_BG = _mean(away.square(), here).sqrt()
    return scatter_BG, _mean(away.pow(3), here) / (scatter_BG.pow(3) + 1e-6)


def _reduced_chi_square(bands: _Bands) -> Tensor:
    """Against a constant flux: 1 where the errors explain the scatter."""
    weight = torch.where(bands.here, bands.flux_err.pow(-2), 0.0)
    level_BG = (weight * bands.flux).sum(2) / weight.sum(2).clamp(min=1e-30)
    pulls = torch.where(bands.here, (bands.flux - level_BG[..., None]) / bands.flux_err, 0.0)
    return pulls.clamp(-_FAR, _FAR).square().sum(2) / (bands.here.sum(2) - 1).clamp(min=1)


def _of_curves(detections: _Detections, time_BL: Tensor, mask_BL: Tensor, redshift_B: Tensor) -> Iterable[_Column]:
    """Columns [B] in the order of :data:`CURVE_STATISTICS`."""
    points_B, detected_B, always_B = mask_BL.sum(1).to(time_BL.dtype), detections.any, mask_BL.any(1)
    start_B, end_B = _smallest(time_BL, mask_BL), _largest(time_BL, mask_BL)
    yield _Column(points_B.log1p() / 3, always_B)
    yield _Column(_log_days(end_B - start_B), always_B)
    yield _Column(detections.number / points_B, always_B)
    yield _Column(_log_days(detections.first - start_B), detected_B)
    yield _Column(_log_days(detections.last - detections.first), detected_B)
    yield _Column(_log_days(end_B - detections.peak), always_B)
    has_redshift_B = redshift_B > 0  # false for NaN
    yield _Column(torch.where(has_redshift_B, redshift_B, 1.0).clamp(min=1e-3).log() / 2, has_redshift_B)


def _sampling(bands: _Bands, detections: _Detections) -> Iterable[_Column]:
    """Mean flux of every band between days before and after the maximum."""
    days = bands.time - detections.peak[:, None, None]
    for start, stop in pairwise(EDGES):
        inside = bands.here & (days >= start) & (days < stop)
        yield _Column(_mean(bands.soft, inside) / 3, inside.any(2))
