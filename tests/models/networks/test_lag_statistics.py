"""Correlations by lag against a loop over pairs in float64, and against everything that must not change them."""

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nightjar_alerts.models.networks.statistics.curve_statistics import LAGS, N_LAG_STATISTICS, lag_statistics
from nightjar_alerts.models.networks.statistics.points import SOFT, Statistics
from support.ragged_columns import Columns, G, assert_invariant, ragged, seen


def statistics_of(columns: Columns) -> Statistics:
    return lag_statistics(seen({"flux_err": np.ones_like(columns["flux"]), **columns}))


def scores(columns: Columns, row: int) -> list[tuple[float, float]]:
    """Time and standard score within its band of every point that has one."""
    kept, found = columns["mask"][row], []
    for band in range(G):
        here = kept & (columns["band"][row] == band)
        soft = np.arcsinh(columns["flux"][row][here] / SOFT)
        if len(soft) >= 3 and soft.std() > 1e-3:
            found += list(zip(columns["time"][row][here], (soft - soft.mean()) / soft.std(), strict=True))
    return found


def by_pairs(columns: Columns, row: int) -> NDArray[np.float64]:
    products: list[list[float]] = [[] for _ in pairwise(LAGS)]
    for (time, score), (later, other) in combinations(scores(columns, row), 2):
        place = int(np.searchsorted(LAGS, abs(later - time), side="right")) - 1
        products[place].append(score * other)
    means = [np.mean(found) if len(found) > 1 else np.nan for found in products]
    return np.array([*means, *(np.log1p(len(found)) / 2 for found in products)])


def test_correlations_agree_with_a_loop_over_pairs() -> None:
    columns = ragged()
    columns["time"][0, 1] = columns["time"][0, 0]  # two visits at one time are a pair
    values, known = statistics_of(columns)
    assert values.shape == known.shape == (5, N_LAG_STATISTICS)
    for row in range(5):
        expected = by_pairs(columns, row)
        np.testing.assert_array_equal(known[row].numpy(), np.isfinite(expected))
        np.testing.assert_allclose(values[row].numpy(), np.nan_to_num(expected), rtol=1e-9, atol=1e-12)


def test_padding_order_batch_mates_and_time_shifts_change_nothing() -> None:
    assert_invariant(statistics_of, atol=1e-12)


def test_a_wave_is_alike_after_a_period_and_opposite_after_half_of_one() -> None:
    time = np.sort(np.random.default_rng(0).uniform(0, 200, (1, 300)), axis=1)
    shape = np.ones_like(time)
    columns = {"flux": np.sin(2 * np.pi * time / 10), "time": time, "band": 0 * shape.astype(int), "mask": shape > 0}
    correlation = statistics_of(columns).value_BK[0]
    of = {stop: float(value) for stop, value in zip(LAGS[1:], correlation, strict=False)}
    assert of[0.6] > 0.9 > of[1.5] > 0.5 > of[2.5] > 0 > of[4.0] > of[7.0]


@pytest.mark.parametrize("flux", [0.0, -1e30, 1e30, 1e-30])
def test_extremes_are_finite(flux: float) -> None:
    columns = ragged()
    extreme = np.full(columns["mask"].shape, flux, dtype=np.float32)
    extreme[:, 1] = -flux
    single = {name: columns[name].astype(np.float32) for name in ("flux_err", "time")}
    found = statistics_of({**columns, **single, "flux": extreme})
    assert torch.isfinite(found.value_BK).all()


@pytest.mark.parametrize("points", [3, 40, 1000])
def test_whole_numbers_tell_what_pairs_tell(points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of an exported graph; one point far above all others has the largest score there can be."""
    rng = np.random.default_rng(points)
    flux = rng.normal(0, 1, (2, points)).astype(np.float32)
    flux[1] = 0.0
    flux[1, points // 2] = 1e4
    shape = np.ones_like(flux)
    columns: Columns = {"flux": flux, "time": np.sort(rng.uniform(0, 300, flux.shape), 1).astype(np.float32)}
    columns |= {"flux_err": shape, "band": (0 * shape).astype(int), "mask": shape > 0}
    single = statistics_of(columns)
    exact = statistics_of({**columns, "flux": flux.astype(float), "time": columns["time"].astype(float)})
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    whole = statistics_of(columns)
    assert torch.equal(whole.mask_BK, single.mask_BK)
    torch.testing.assert_close(whole.value_BK, exact.value_BK.float(), rtol=1e-5, atol=1e-5)
