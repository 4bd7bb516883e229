"""The search for periods against least squares in float64, against astropy, and against the sums it starts from."""

import numpy as np
import pytest
import torch

from nightjar_alerts.models.networks.statistics.period_statistics import (
    STEP,
    Scores,
    Searched,
    peaks,
    periodogram,
    search,
)
from support.periods import Curve, Floats, G, astropys, drawn, eclipses, fitted, share_found, table, weighed


def left_by(curve: Curve, weights: Scores, row: int, cycles: float, harmonics: int) -> float:
    """Share of the weighted variance that least squares leaves, with a mean for every band."""
    trust, score = weights.trust[row, 0].numpy(), weights.score[row, 0].numpy()
    value = np.divide(score, trust, out=np.zeros_like(score), where=trust > 0)
    means = np.eye(G)[curve.band] * np.sqrt(trust)[:, None]
    angles = 2 * np.pi * cycles * curve.time[:, None] * np.arange(1, harmonics + 1)
    waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * np.sqrt(trust)[:, None]

    def rest(columns: Floats) -> float:
        best = np.linalg.lstsq(columns, value * np.sqrt(trust), rcond=None)[0]
        return float(np.sum((value * np.sqrt(trust) - columns @ best) ** 2))

    return rest(np.concatenate([means, waves], axis=1)) / rest(means)


@pytest.mark.parametrize(("number", "bands"), [(30, 1), (40, 3), (90, 6)])
def test_the_power_is_that_of_least_squares(number: int, bands: int) -> None:
    curves = drawn(6, number, bands, 900.0, np.sin, 0.05)
    weights = weighed(curves)
    best = fitted(curves)
    for row, curve in enumerate(curves):
        trust = weights.trust[row, 0].numpy()
        alike = trust.sum() ** 2 / np.sum(trust**2)
        for cycles, power in zip(torch.split(best.frequency, 1, dim=1), torch.split(best.power, 1, dim=1), strict=True):
            left = left_by(curve, weights, row, float(cycles[row]), 2)
            assert float(power[row]) == pytest.approx(alike / 2 * (1 - left), rel=1e-3)


def test_no_frequency_fits_better() -> None:
    curves = drawn(4, 30, 1, 400.0, lambda turns: np.sin(2 * np.pi * turns), 0.02)
    weights = weighed(curves)
    best = fitted(curves)
    for row, curve in enumerate(curves):
        found = left_by(curve, weights, row, float(best.first[row]), 1)
        others = [left_by(curve, weights, row, float(cycles), 1) for cycles in np.arange(0.05, 10, 0.005)]
        assert found <= min(others) + 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "bands", "days", "noise"),
    [(30, 1, 1000.0, 0.015), (30, 1, 1000.0, 0.06), (40, 6, 300.0, 0.02), (120, 1, 3650.0, 0.06)],
    ids=["few", "few-and-faint", "bands", "ten-years"],
)
def test_finds_what_astropy_finds(number: int, bands: int, days: float, noise: float) -> None:
    curves = drawn(50, number, bands, days, lambda turns: np.sin(2 * np.pi * turns), noise)
    some = curves[:8]
    ours = share_found(curves, fitted(curves).first[:, 0].numpy())
    assert ours >= 0.96
    theirs = share_found(some, np.array([astropys(curve) for curve in some]))
    assert share_found(some, fitted(some).first[:, 0].numpy()) >= theirs


@pytest.mark.parametrize(("bands", "noise", "gain"), [(1, 0.05, 0.1), (6, 0.03, 0.2), (1, 0.08, 0.0), (6, 0.05, 0.0)])
def test_eclipses_of_few_points_are_found_no_less_often_than_by_sums(bands: int, noise: float, gain: float) -> None:
    curves = drawn(200, 30, bands, 1000.0, eclipses, noise)
    weights = weighed(curves)
    found = (peaks(periodogram(weights.score, weights.time)), search(weights))
    cycles = [best.first[:, 0].numpy() for best in found]
    by_sums, by_fits = (share_found(curves, one, (1.0, 2.0, 3.0)) for one in cycles)
    assert by_fits >= by_sums + gain


def test_an_overtone_is_paid_for_only_where_it_is_there() -> None:
    for shape in (lambda turns: np.sin(2 * np.pi * turns), lambda turns: 2 * (turns % 1.0) - 1):
        curves = drawn(40, 60, 3, 700.0, shape, 0.03)
        assert share_found(curves, fitted(curves).first[:, 0].numpy()) >= 0.97


def test_of_aliases_that_fit_equally_well_the_lowest_counts() -> None:
    time = np.arange(60.0)
    flux = 1000 + 100 * np.sin(2 * np.pi * 0.13 * time)
    best = fitted([Curve(flux, flux * 1e-3, time, np.zeros(60, dtype=np.int64), 0.13)])
    assert best.first.item() == pytest.approx(0.13, abs=STEP)


def test_light_curves_of_many_years_and_of_few_come_out_as_if_alone() -> None:
    curves = [drawn(1, 60, 3, days, np.sin, 0.05, seed)[0] for seed, days in enumerate((700.0, 3650.0, 900.0, 2900.0))]
    together = fitted(curves)
    for row, curve in enumerate(curves):
        for part, alone in zip(together, fitted([curve]), strict=True):
            np.testing.assert_allclose(part[row], alone[0], rtol=1e-9)


def test_nothing_to_search_is_no_error() -> None:
    curves = drawn(2, 30, 1, 700.0, np.sin, 0.05)
    best = search(Scores(*(part[:0] for part in weighed(curves))))
    assert [part.shape[0] for part in best] == [0] * 3


def test_rows_that_are_not_searched_come_back_as_zeros() -> None:
    rows = Searched.of(torch.tensor([False, True, False, True]))
    values = torch.arange(8.0).view(4, 2)
    assert rows.take(values).tolist() == [[2, 3], [6, 7]]
    assert rows.back(rows.take(values)).tolist() == [[0, 0], [2, 3], [0, 0], [6, 7]]
    none = Searched.of(torch.tensor([False, False]))
    assert none.back(none.take(values)).tolist() == [[0, 0], [0, 0]]


def test_the_table_has_a_row_for_every_kind_of_light_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.periods.SWEPT", ((30, 1, 300.0), (40, 3, 300.0)))
    rows = [row.strip("| ").split(" | ") for row in table(3).splitlines()[2:]]
    assert [row[:3] for row in rows] == [["30", "1", "300"], ["40", "3", "300"]]
    assert all(0 <= float(share) <= 1 for row in rows for share in row[3:])
