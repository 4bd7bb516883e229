"""Padded light curves of unequal lengths as float64 columns, and the invariances that all their statistics have."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nightjar_alerts.models.networks.statistics.points import Points, Statistics, points

G = 4  # bands
Columns = dict[str, NDArray[Any]]


def ragged(seed: int = 0, lengths: tuple[int, ...] = (40, 1, 7, 23, 3), width: int = 44) -> Columns:
    """Noise around a bump; the last band is never seen, padding holds nonsense."""
    rng = np.random.default_rng(seed)
    mask = np.arange(width) < np.array(lengths)[:, None]
    time = np.sort(rng.uniform(0, 300, mask.shape), axis=1)
    flux = rng.normal(0, 20, mask.shape) + 200 * np.exp(-(((time - 120) / 40) ** 2))
    columns = {"flux": flux, "flux_err": rng.uniform(1, 15, mask.shape), "time": time}
    columns = {name: np.where(mask, value, 1e7) for name, value in columns.items()}
    redshift = np.where(np.arange(len(lengths)) % 2, np.nan, 0.3)
    return {**columns, "band": rng.integers(0, G - 1, mask.shape), "mask": mask, "redshift": redshift}


def seen(columns: Columns) -> Points:
    """Return the light curves in the form that statistics take."""
    names = ("flux", "flux_err", "time", "band", "mask")
    flux, flux_err, time, band, mask = (torch.from_numpy(columns[name]) for name in names)
    return points(flux, flux_err, time, band, mask, G)


def assert_invariant(statistics_of: Callable[[Columns], Statistics], atol: float, rtol: float = 1e-7) -> None:
    """Require equal statistics of the light curves shuffled, at another time, with other padding and alone."""
    columns = ragged()
    columns["time"] = np.round(columns["time"] * 64) / 64  # so that a shift is exact
    shuffled = np.random.default_rng(1).permutation(columns["mask"].shape[1])
    reference, every = statistics_of(columns), slice(None)
    for other, rows in (
        ({name: value if value.ndim == 1 else value[:, shuffled] for name, value in columns.items()}, every),
        ({**columns, "time": columns["time"] + 1024.0}, every),
        ({**columns, "time": np.where(columns["mask"], columns["time"], np.nan)}, every),
        ({name: value[3:4, :30] if value.ndim == 2 else value[3:4] for name, value in columns.items()}, slice(3, 4)),
    ):
        values, known = statistics_of(other)
        np.testing.assert_array_equal(known, reference.mask_BK[rows])
        np.testing.assert_allclose(values, reference.value_BK[rows], atol=atol, rtol=rtol)
