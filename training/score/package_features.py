"""Features of the `light-curve` package (Malanchev et al. 2021), as most broker classifiers of the field use them.

From the same tokens as the network receives. In every band: moments, quantiles, variability indices, slopes, and a fit
of the Bazin et al. (2009) function to the flux. Over all bands: the two highest peaks of one multiband Lomb-Scargle
periodogram up to ten cycles a day. NaN where a band has too few points or a fit has no solution.

Notable:

- the periodogram needs a bright, long light curve to mean anything; its signal-to-noise tells the trees when it does;
- the package raises on equal times, which float32 makes of points seconds apart: of those the first counts;
- its wheels are under the GPL. This baseline, which nobody needs to serve or train a network, is all that imports it.
"""

from functools import cache

import light_curve as lc
import numpy as np
from numpy.typing import NDArray

from models.lightcurve import BANDS, Tokens

_BAND = lc.Extractor(
    *(lc.ObservationCount(), lc.Amplitude(), lc.Mean(), lc.WeightedMean(), lc.Median(), lc.StandardDeviation()),
    *(lc.Skew(), lc.Kurtosis(), lc.AndersonDarlingNormal(), lc.OtsuSplit(), lc.PercentAmplitude()),
    *(lc.BeyondNStd(1), lc.BeyondNStd(2), lc.MedianAbsoluteDeviation(), lc.MedianBufferRangePercentage(0.1)),
    *(lc.InterPercentileRange(0.02), lc.InterPercentileRange(0.1), lc.InterPercentileRange(0.25)),
    *(lc.MagnitudePercentageRatio(0.4, 0.05), lc.MagnitudePercentageRatio(0.2, 0.1)),
    *(lc.ReducedChi2(), lc.ExcessVariance(), lc.MeanVariance(), lc.StetsonK(), lc.Cusum(), lc.Eta(), lc.EtaE()),
    *(lc.Duration(), lc.TimeMean(), lc.TimeStandardDeviation(), lc.MaximumTimeInterval()),
    *(lc.LinearTrend(), lc.LinearFit(), lc.MaximumSlope(), lc.BazinFit("lmsder")),
)
_PEAKS, _CYCLES_PER_DAY = 2, 10.0
_FREQUENCIES = np.linspace(0.0, 2 * np.pi * _CYCLES_PER_DAY, 2**14 + 1)  # radians a day; 2**k + 1 is what its FFT takes
_PERIOD = tuple(f"{name}_{peak}" for peak in range(_PEAKS) for name in ("period", "period_signal_to_noise"))
PACKAGE_FEATURES = (*(f"{band}_{name}" for band in BANDS for name in _BAND.names), *_PERIOD)


def package_features(tokens: Tokens) -> NDArray[np.float64]:
    """Features of one light curve, shape ``(len(PACKAGE_FEATURES),)``, NaN where undefined."""
    flux, flux_err, time = (column.astype(np.float64) for column in (tokens.flux, tokens.flux_err, tokens.time))
    inside = [_first_of_equal_times(time, np.flatnonzero(tokens.band == index)) for index in range(len(BANDS))]
    nothing = np.full(len(_BAND.names), np.nan)
    by_band = [
        _BAND(time[kept], flux[kept], flux_err[kept], fill_value=np.nan) if len(kept) else nothing for kept in inside
    ]
    row = np.concatenate([*by_band, _periods(tokens, flux, flux_err, time, inside)])
    return np.where(np.isfinite(row), row, np.nan)


def _first_of_equal_times(time: NDArray[np.float64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    return places[np.unique(time[places], return_index=True)[1]]


def _periods(
    tokens: Tokens,
    flux: NDArray[np.float64],
    flux_err: NDArray[np.float64],
    time: NDArray[np.float64],
    inside: list[NDArray[np.int64]],
) -> NDArray[np.float64]:
    """Peaks of the periodogram over the bands that vary: a constant one has no normalisation."""
    varied = [kept for kept in inside if len(kept) > 1 and np.ptp(flux[kept]) > 0]
    if not varied:
        return np.full(len(_PERIOD), np.nan)
    kept = np.sort(np.concatenate(varied))
    names = np.array(BANDS)[tokens.band[kept]]
    found = _periodogram(tuple(dict.fromkeys(sorted(names))))(
        time[kept], flux[kept], flux_err[kept], names, fill_value=np.nan
    )
    return np.asarray(found, dtype=np.float64)


@cache
def _periodogram(bands: tuple[str, ...]) -> lc.Periodogram:
    """The periodogram of a set of bands; all of them must occur in what it is called with."""
    return lc.Periodogram(peaks=_PEAKS, freqs=_FREQUENCIES, fast=True, bands=list(bands))
