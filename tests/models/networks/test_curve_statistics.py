"""Statistics of light curves against a loop in float64, and against everything that must not change them."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nightjar_alerts.models.networks.statistics.curve_statistics import (
    BAND_STATISTICS,
    CURVE_STATISTICS,
    EDGES,
    count,
    statistics,
)
from nightjar_alerts.models.networks.statistics.points import SOFT, Statistics
from nightjar_alerts.models.photometry import DETECTION_SNR
from support.ragged_columns import Columns, G, ragged, seen


def statistics_of(columns: Columns) -> Statistics:
    return statistics(seen(columns), torch.from_numpy(columns["redshift"]))


def squash(days: float) -> float:
    return float(np.sign(days) * np.log1p(abs(days)) / 3)


def pace(change: float, days: float) -> float:
    return float(np.arcsinh(20 * change / max(days, 0.01)) / 2) if days > 0 else np.nan


class Curve:
    """One row of a batch without its padding, and its statistics one by one; NaN where undefined."""

    def __init__(self, columns: Columns, row: int) -> None:
        kept = columns["mask"][row]
        self.flux, self.err, self.time, self.band = (
            columns[n][row][kept] for n in ("flux", "flux_err", "time", "band")
        )
        self.soft, self.redshift = np.arcsinh(self.flux / SOFT), columns["redshift"][row]
        self.detected = self.flux / self.err >= DETECTION_SNR
        among = self.detected if self.detected.any() else np.ones_like(self.detected)
        self.peak = self.time[among][self.soft[among].argmax()]
        self.first = self.time[self.detected].min() if self.detected.any() else 0.0

    def all(self) -> list[float]:
        bands = [list(self._band(self.band == g)) for g in range(G)]
        of_bands = [bands[g][k] for k in range(len(BAND_STATISTICS)) for g in range(G)]
        maxima = [3 * band[BAND_STATISTICS.index("maximum")] for band in bands]
        colours = [blue - red for blue, red in pairwise(maxima)]
        days = self.time - self.peak
        windows = [(days >= start) & (days < stop) for start, stop in pairwise(EDGES)]
        sampled = [self._mean(window & (self.band == g)) / 3 for window in windows for g in range(G)]
        return [*of_bands, *self._curve(), *colours, *sampled]

    def _mean(self, chosen: NDArray[np.bool_]) -> float:
        return float(self.soft[chosen].mean()) if chosen.any() else np.nan

    def _band(self, here: NDArray[np.bool_]) -> Iterator[float]:
        yield np.log1p(here.sum()) / 2
        yield np.log1p((here & self.detected).sum()) / 2
        if not here.any():
            yield from [np.nan] * (len(BAND_STATISTICS) - 2)
            return
        soft, time, flux, err = self.soft[here], self.time[here], self.flux[here], self.err[here]
        yield from (soft.max() / 3, soft.min() / 3, soft.mean() / 3, soft[time.argmax()] / 3)
        yield np.arcsinh((flux / err).max()) / 3
        yield from self._scatter(soft, flux, err) if len(soft) > 2 else [np.nan] * 3
        peak, start, end = time[soft.argmax()], time.min(), time.max()
        yield from (squash(peak - self.first), squash(end - start))
        yield pace(soft.max() - soft[time.argmin()], peak - start)
        yield pace(soft[time.argmax()] - soft.max(), end - peak)
        bright = time[flux >= flux.max() / 2]
        yield squash(np.ptp(bright)) if len(bright) else np.nan

    def _scatter(self, soft: Any, flux: Any, err: Any) -> list[float]:
        level, spread = np.average(flux, weights=err**-2), soft.std()
        chi = (((flux - level) / err) ** 2).sum() / (len(flux) - 1)
        skewness = ((soft - soft.mean()) ** 3).mean() / (spread**3 + 1e-6)
        return [spread, np.log10(1e-3 + chi) / 2, np.clip(skewness, -5, 5) / 2]

    def _curve(self) -> list[float]:
        start, end, times = self.time.min(), self.time.max(), self.time[self.detected]
        detected = [squash(times.min() - start), squash(np.ptp(times))] if len(times) else [np.nan] * 2
        overall = [np.log1p(len(self.time)) / 3, squash(end - start), len(times) / len(self.time)]
        return [*overall, *detected, squash(end - self.peak), np.log(self.redshift) / 2]


def test_statistics_agree_with_a_loop_over_bands() -> None:
    columns = ragged()
    values, known = statistics_of(columns)
    assert values.shape == known.shape == (5, count(G))
    assert count(G) == G * (len(BAND_STATISTICS) + len(EDGES) - 1) + len(CURVE_STATISTICS) + G - 1
    for row in range(len(values)):
        expected = np.array(Curve(columns, row).all())
        np.testing.assert_array_equal(known[row].numpy(), np.isfinite(expected))
        np.testing.assert_allclose(values[row].numpy(), np.nan_to_num(expected), rtol=1e-9, atol=1e-12)


def test_padding_order_batch_mates_and_time_shifts_change_nothing() -> None:
    columns = ragged()
    reference = statistics_of(columns)
    shuffled = np.random.default_rng(1).permutation(columns["mask"].shape[1])
    moved = {name: value if value.ndim == 1 else value[:, shuffled] for name, value in columns.items()}
    narrow = {name: value if value.ndim == 1 else value[:, :40] for name, value in columns.items()}
    alone = {name: value[3:4] for name, value in columns.items()}
    for other, rows in ((moved, slice(None)), (narrow, slice(None)), (alone, slice(3, 4))):
        values, known = statistics_of(other)
        np.testing.assert_array_equal(known, reference.mask_BK[rows])
        np.testing.assert_allclose(values, reference.value_BK[rows], atol=1e-12)


def test_statistics_do_not_see_when_the_clock_starts() -> None:
    columns = ragged()
    columns["time"] = np.round(columns["time"] * 64) / 64  # so that a shift is exact
    later = statistics_of({**columns, "time": columns["time"] + 1024.0})
    # without a detection, the time of the maximum counts from the clock's start: the first point, where it is served
    shifts = [G * BAND_STATISTICS.index("time_of_maximum") + g for g in range(G)]
    kept = np.setdiff1d(np.arange(count(G)), shifts)
    np.testing.assert_allclose(later.value_BK[:, kept], statistics_of(columns).value_BK[:, kept], atol=1e-12)


@pytest.mark.parametrize("flux", [0.0, -1e30, 1e30, 1e-30])
@pytest.mark.parametrize("flux_err", [1e-30, 1e30])
def test_extremes_are_finite(flux: float, flux_err: float) -> None:
    columns = ragged()
    shape = columns["mask"].shape
    extreme = {**columns, "flux": np.full(shape, flux), "flux_err": np.full(shape, flux_err)}
    extreme["flux"][:, 1] = -flux
    single = {name: value.astype(np.float32) if value.dtype == np.float64 else value for name, value in extreme.items()}
    assert torch.isfinite(statistics_of(single).value_BK).all()
    assert torch.isfinite(statistics_of({**single, "redshift": np.full(shape[0], np.float32(-9.0))}).value_BK).all()
