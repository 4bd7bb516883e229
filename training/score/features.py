"""Summary features of a light curve, as boosted trees use them: what the network is compared with.

They are computed from the same tokens that the network receives (same truncation, unit and window), so the comparison
is about the classifier. Per band: counts, brightness, scatter beyond the errors, asymmetry, and when and how fast it
rises and falls. Over all bands: durations, detection share, colours at maximum. NaN where a band has too few points.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from models.lightcurve import BANDS, Float32, Tokens
from models.metadata import METADATA_COLUMNS

BAND_FEATURES = (
    "points",
    "detections",
    "maximum",
    "minimum",
    "mean",
    "last",
    "best_snr",
    "scatter",
    "excess",
    "skewness",
    "time_of_maximum",
    "span",
    "rise",
    "fall",
    "roughness",
)
CURVE_FEATURES = ("points", "duration", "detected_share", "time_to_detection", "detected_duration", "since_maximum")
COLOURS = tuple(f"{blue}-{red}" for blue, red in pairwise(BANDS))
FEATURES = (
    *(f"{band}_{name}" for band in BANDS for name in BAND_FEATURES),
    *CURVE_FEATURES,
    *COLOURS,
    *METADATA_COLUMNS,
)

Features = NDArray[np.float64]


def features(tokens: Tokens) -> Features:
    """Features of one light curve, shape ``(len(FEATURES),)``, NaN where undefined; fluxes as asinh of the unit."""
    flux = np.arcsinh(tokens.flux.astype(np.float64))
    by_band = [_band(tokens, flux, tokens.band == index) for index in range(len(BANDS))]
    maxima = np.array([row[BAND_FEATURES.index("maximum")] for row in by_band])
    parts = [*by_band, _curve(tokens), maxima[:-1] - maxima[1:], tokens.metadata]
    return np.concatenate(parts, dtype=np.float64)


def _band(tokens: Tokens, flux: Features, inside: NDArray[np.bool_]) -> Features:
    row = np.full(len(BAND_FEATURES), np.nan)
    points = int(np.count_nonzero(inside))
    row[:2] = points, np.count_nonzero(inside & tokens.detected)
    if not points:
        return row
    time, value = tokens.time[inside].astype(np.float64), flux[inside]
    snr = tokens.flux[inside] / tokens.flux_err[inside]
    peak = int(np.argmax(value))
    row[2:7] = value[peak], value.min(), value.mean(), value[-1], snr.max()
    row[10:14] = time[peak], time[-1] - time[0], _slope(time, value, 0, peak), _slope(time, value, peak, points - 1)
    if points > 2:
        row[7:10] = value.std(), _excess(tokens.flux[inside], tokens.flux_err[inside]), _skewness(value)
        row[14] = np.abs(np.diff(value)).mean()
    return row


def _curve(tokens: Tokens) -> Features:
    detected = np.flatnonzero(tokens.detected)
    first, last = (tokens.time[detected[0]], tokens.time[detected[-1]]) if len(detected) else (np.nan, np.nan)
    peak_time = tokens.time[int(np.argmax(tokens.flux))]
    values = (len(tokens), tokens.time[-1], tokens.detected.mean(), first, last - first, tokens.time[-1] - peak_time)
    return np.array(values, dtype=np.float64)


def _slope(time: Features, value: Features, start: int, stop: int) -> float:
    """Change of asinh flux per day between two points; NaN when they are the same."""
    days = time[stop] - time[start]
    return float((value[stop] - value[start]) / days) if days > 0 else np.nan


def _excess(flux: Float32, flux_err: Float32) -> float:
    """Logarithm of the reduced chi-square against a constant: 0 when the errors explain the scatter."""
    weight = 1.0 / flux_err.astype(np.float64) ** 2
    mean = np.average(flux, weights=weight)
    return float(np.log10(1e-3 + (weight * (flux - mean) ** 2).sum() / (len(flux) - 1)))


def _skewness(value: Features) -> float:
    centred = value - value.mean()
    deviation = centred.std()
    return float((centred**3).mean() / deviation**3) if deviation > 0 else 0.0
