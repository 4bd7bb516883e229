"""Distribution of training light curves for the manifest of a bundle (:class:`models.bundle.InputStatistics`)."""

from collections.abc import Sequence

import numpy as np

from nightjar_alerts.models.bundle import QUANTILES, InputStatistics
from nightjar_alerts.models.lightcurve import Float64, Int64, RaggedBatch
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import BandMap, FluxUnit, flux_to_njy

DIGITS = 5


def input_statistics(
    curves: RaggedBatch,
    label_N: Int64,
    classes: Sequence[str],
    *,
    bands: Sequence[str],
    flux_unit: FluxUnit,
    columns: Sequence[str] = METADATA_COLUMNS,
) -> InputStatistics:
    """Return the distribution of N light curves.

    Parameters
    ----------
    label_N : i64[N], index into ``classes``; light curves with -1 are left out of the class mix.
    flux_unit : unit of the fluxes in ``curves``.
    columns : metadata columns of the network, the columns of ``curves.metadata`` or none.
    """
    count_N, starts = np.diff(curves.offsets), curves.offsets[:-1]
    largest_N = flux_to_njy(np.maximum.reduceat(np.abs(curves.flux), starts), flux_unit)
    curve_P = np.repeat(np.arange(len(curves)), count_N)
    ordered = curves.flux_err[np.lexsort((curves.flux_err, curve_P))]
    median_N = flux_to_njy((ordered[starts + (count_N - 1) // 2] + ordered[starts + count_N // 2]) / 2, flux_unit)
    points_NB = np.zeros((len(curves), max(BandMap(bands).indices) + 1))
    np.add.at(points_NB, (curve_P, curves.band), 1)
    points_by_band = {name: points_NB[:, index] for name, index in zip(bands, BandMap(bands).indices, strict=True)}
    class_C = np.bincount(label_N[label_N >= 0], minlength=len(classes))
    return InputStatistics(
        light_curves=len(curves),
        largest_flux=quantiles(largest_N),
        error_ratio=quantiles(median_N / np.maximum(largest_N, np.finfo(np.float32).tiny)),
        points_per_band={name: quantiles(points_N) for name, points_N in points_by_band.items()},
        missing_bands={name: round(float((points_N == 0).mean()), DIGITS) for name, points_N in points_by_band.items()},
        missing_metadata={
            name: round(float(np.isnan(curves.metadata[:, index]).mean()), DIGITS) for index, name in enumerate(columns)
        },
        classes=dict(zip(classes, (class_C / max(class_C.sum(), 1)).round(DIGITS).tolist(), strict=True)),
    )


def quantiles(value_N: Float64) -> tuple[float, ...]:
    """Return quantiles of finite values to five significant digits."""
    return tuple(float(f"{value:.5g}") for value in np.quantile(value_N, QUANTILES))
