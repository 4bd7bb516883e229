"""Shapes of light curves against loops over points in float64, and against everything that must not change them."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nightjar_alerts.models.networks.statistics.points import Statistics
from nightjar_alerts.models.networks.statistics.shape_statistics import DAYS, count, shape_statistics
from support.ragged_columns import Columns, G, assert_invariant, ragged, seen

LONGEST_GAP = 25.0


def statistics_of(columns: Columns) -> Statistics:
    return shape_statistics(seen(columns), torch.from_numpy(columns["redshift"]))


def by_points(columns: Columns, row: int) -> NDArray[np.float64]:
    """Fluxes, colours, heights, days and widths of one light curve, NaN where there are none."""
    kept = columns["mask"][row]
    flux, error, time, band = (columns[name][row][kept] for name in ("flux", "flux_err", "time", "band"))
    top = int(np.argmax(flux - error))
    days = (time - time[top]) / (1 + np.nan_to_num(columns["redshift"][row]))
    scale = max(flux[top], 1e-6)
    flux, error = flux / scale, error / scale
    sampled, widths = np.full((G, len(DAYS)), np.nan), np.full((G, 6), np.nan)
    for number in range(G):
        here = band == number
        if here.any():
            sampled[number] = interpolated(days[here], flux[here])
            widths[number] = near_the_maximum(days[here], flux[here], error[here])
    logs = np.log(np.maximum(sampled, 0.02))
    colours = [logs[blue] - logs[red] for blue, red in (*pairwise(range(G)), (1, 3))]
    return np.concatenate([*sampled, *colours, *widths.T])


def interpolated(days: NDArray[np.float64], flux: NDArray[np.float64]) -> NDArray[np.float64]:
    found = np.full(len(DAYS), np.nan)
    for place, wanted in enumerate(DAYS):
        earlier, later = np.flatnonzero(days < wanted), np.flatnonzero(days >= wanted)
        if len(earlier) and len(later):
            if days[later[0]] - days[earlier[-1]] <= LONGEST_GAP + 0.5 * abs(wanted):
                found[place] = np.interp(wanted, days, flux)
        elif len(later) and days[0] - wanted <= 2.0:
            found[place] = flux[0]
        elif len(earlier) and wanted - days[-1] <= 2.0:
            found[place] = flux[-1]
    return found


def near_the_maximum(
    days: NDArray[np.float64], flux: NDArray[np.float64], error: NDArray[np.float64]
) -> NDArray[np.float64]:
    top = int(np.argmax(flux - error))
    height = max(float(flux[top]), 1e-3)
    found = [height, float(days[top])]
    for level in (0.5, 0.2):
        below = flux < level * height
        before, after = np.flatnonzero(below[:top]), np.flatnonzero(below[top + 1 :])
        found.append(float(days[top] - days[before[-1]]) if len(before) else np.nan)
        found.append(float(days[top + 1 + after[0]] - days[top]) if len(after) else np.nan)
    return np.array(found)


@pytest.mark.parametrize("seed", range(4))
def test_shapes_agree_with_loops_over_points(seed: int) -> None:
    columns = ragged(seed)
    values, known = statistics_of(columns)
    assert values.shape == known.shape == (5, count(G))
    for row in range(5):
        expected = by_points(columns, row)
        np.testing.assert_array_equal(known[row].numpy(), np.isfinite(expected))
        np.testing.assert_allclose(values[row].numpy(), np.nan_to_num(expected), rtol=1e-9, atol=1e-9)


def test_padding_order_batch_mates_and_time_shifts_change_nothing() -> None:
    assert_invariant(statistics_of, atol=1e-12)


def test_a_fainter_light_curve_has_the_same_shape() -> None:
    columns = ragged()
    columns["flux"] = np.abs(columns["flux"]) + 1.0
    fainter = {**columns, "flux": columns["flux"] / 50, "flux_err": columns["flux_err"] / 50}
    np.testing.assert_allclose(statistics_of(fainter).value_BK, statistics_of(columns).value_BK, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("flux", [0.0, -1e30, 1e30, 1e-30])
def test_extremes_are_finite(flux: float) -> None:
    columns = ragged()
    extreme = np.full(columns["mask"].shape, flux, dtype=np.float32)
    extreme[:, 1] = -flux
    single = {name: columns[name].astype(np.float32) for name in ("flux_err", "time", "redshift")}
    found = statistics_of({**columns, **single, "flux": extreme})
    assert torch.isfinite(found.value_BK).all()
