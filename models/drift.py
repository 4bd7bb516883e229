"""Comparison of the light curves that a survey sends with those that a model was trained on.

    reference = InputReference(manifest, manifest.survey_statistics["ztf"])
    rows_NK = np.stack([summary(curve, manifest) for curve in curves])
    reference.distances(rows_NK, classes_N)["flux_scale"] > LIMITS["flux_scale"]  # probably another unit

A single light curve reveals a wrong unit only if no object of the survey could look like it (:mod:`models.checks`). The
median of :data:`WINDOW` light curves always reveals it, and also changes that no single light curve can: fewer points,
a missing band, another mix of classes.

Legend: N light curves of a window, B bands, M metadata columns, K = 3 + B + M numbers of a light curve, C classes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from nightjar_alerts.models.lightcurve import Float64, Int64, LightCurve
from nightjar_alerts.models.metadata import network_metadata

if TYPE_CHECKING:
    from nightjar_alerts.models.bundle import Manifest, SurveyStatistics

WINDOW: Final = 200
"""Number of light curves in one comparison."""
LIMITS: Final[Mapping[str, float]] = {
    "flux_scale": 0.75,
    "error_ratio": 0.75,
    "total_flux": 0.25,
    "points_per_band": 0.6,
    "missing_bands": 0.25,
    "missing_metadata": 0.25,
    "class_mix": 0.25,
}
"""Limits of :meth:`InputReference.distances`. 0.75 dex is half of a factor of 36, by which FLUXCAL and nJy differ."""
MIN_POINTS: Final = 20
"""Minimum number of points of a light curve for ``total_flux``; in shorter ones all points may be detections."""
MIN_MEDIAN_POINTS: Final = 5
"""Minimum median number of points of a band in the training data for ``points_per_band``."""
MIN_CURVES: Final = 100
"""Minimum number of light curves in a window for ``total_flux`` and ``class_mix``."""
_TINY: Final = 1e-30


def summary(curve: LightCurve, manifest: "Manifest") -> Float64:
    """Return the features of a light curve that are compared, shape (K,).

    They are the median flux error (nJy; the upper median), its ratio to the largest absolute flux, the ratio of the
    lowest flux to the largest absolute flux (NaN below :data:`MIN_POINTS` points), the number of points in each of the
    model's bands, and 1 for each metadata column without a value, otherwise 0.
    """
    bands, columns = manifest.band_map, manifest.metadata_columns
    size, middle = 3 + len(bands.bands), len(curve) // 2
    row_K = np.ones(size + len(columns))
    lowest, highest = float(curve.flux.min()), float(curve.flux.max())
    largest = max(-lowest, highest, _TINY)
    row_K[0] = error = float(np.partition(curve.flux_err, middle)[middle])
    row_K[1] = error / largest
    row_K[2] = lowest / largest if len(curve) >= MIN_POINTS else np.nan
    counts = np.bincount(bands.table(curve.survey)[curve.band] + 1, minlength=len(bands.labels) + 1)  # 0: no band
    row_K[3:size] = counts[1:][list(bands.indices)]
    if curve.metadata:
        row_K[size:] = np.isnan(network_metadata(curve.metadata, columns))
    return row_K


class InputReference:
    """Distribution of the light curves of one survey in a model's training data.

    Parameters
    ----------
    manifest : of the model; ``statistics`` is one of its ``survey_statistics``.
    """

    def __init__(self, manifest: "Manifest", statistics: "SurveyStatistics") -> None:
        bands = manifest.bands
        self._error, self._ratio = np.log10(statistics.flux_error[2]), np.log10(statistics.error_ratio[2])
        self._lowest = np.nan if statistics.lowest_flux is None else statistics.lowest_flux[2]
        self._points_B = np.array([statistics.points_per_band[name][2] for name in bands])
        self._missing_B = np.array([statistics.missing_bands[name] for name in bands])
        self._missing_M = np.array([statistics.missing_metadata.get(name, 1.0) for name in manifest.metadata_columns])
        self._share_C = np.array([statistics.classes.get(name, 0.0) for name in manifest.taxonomy.names])

    def distances(self, rows_NK: Float64, class_N: Int64) -> dict[str, float]:
        """Return the distances of a window from the training data, with the keys of :data:`LIMITS`.

        ``flux_scale``, ``error_ratio`` : differences of the medians of the flux error and of its ratio to flux, dex.
        ``total_flux`` : increase of the median ratio of the lowest to the largest flux.
        ``points_per_band`` : largest difference, over bands, of the medians of log2(1 + points).
        ``missing_bands``, ``missing_metadata`` : largest difference, over bands or columns, of the fractions of light
            curves without it.
        ``class_mix`` : total-variation distance between the fractions of the classes.

        A distance that cannot be computed is NaN.

        Parameters
        ----------
        rows_NK : of :func:`summary`. class_N : index of the most probable class; -1 if it was not classified.
        """
        bands = len(self._points_B)
        points_NB, missing_NM = rows_NK[:, 3 : 3 + bands], rows_NK[:, 3 + bands :]
        lowest_N = rows_NK[~np.isnan(rows_NK[:, 2]), 2]
        classified_N = class_N[class_N >= 0]
        share_C = np.bincount(classified_N, minlength=len(self._share_C)) / max(len(classified_N), 1)
        shift_B = np.log2(1 + np.median(points_NB, axis=0)) - np.log2(1 + self._points_B)
        return {
            "flux_scale": abs(float(np.log10(np.median(rows_NK[:, 0])) - self._error)),
            "error_ratio": abs(float(np.log10(np.median(rows_NK[:, 1])) - self._ratio)),
            "total_flux": float(np.median(lowest_N) - self._lowest) if len(lowest_N) >= MIN_CURVES else np.nan,
            "points_per_band": float(np.abs(shift_B[self._points_B >= MIN_MEDIAN_POINTS]).max(initial=0.0)),
            "missing_bands": float(np.abs((points_NB == 0).mean(0) - self._missing_B).max()),
            "missing_metadata": float(np.abs(missing_NM.mean(0) - self._missing_M).max(initial=0.0)),
            "class_mix": float(np.abs(share_C - self._share_C).sum() / 2)
            if len(classified_N) >= MIN_CURVES
            else np.nan,
        }
