"""The search for periods against least squares in float64, against astropy, and against the sums it starts from."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from astropy.timeseries import LombScargle, LombScargleMultiband
from numpy.typing import NDArray

from models.networks.statistics.period_statistics import (
    STEP,
    Peaks,
    Scores,
    Searched,
    peaks,
    periodogram,
    scores,
    search,
)
from models.networks.statistics.points import SOFT, points

Floats = NDArray[np.float64]
Shape = Callable[[Floats], Floats]
G = 6


class Curve(NamedTuple):
    """One light curve that repeats ``cycles`` times a day."""

    flux: Floats
    flux_err: Floats
    time: Floats
    band: NDArray[np.int64]
    cycles: float


def eclipses(turns: Floats) -> Floats:
    """A detached binary: two unlike minima, each a sixth of a turn wide."""
    first, second = np.abs((turns + 0.5) % 1.0 - 0.5), np.abs(turns % 1.0 - 0.5)
    return -np.exp(-np.minimum((first / 0.1) ** 4, 100)) - 0.6 * np.exp(-np.minimum((second / 0.1) ** 4, 100))


def sampled(rng: np.random.Generator, number: int, days: float) -> Floats:
    """Times of night, in seasons of eight months."""
    day = rng.permutation(np.flatnonzero(np.arange(int(days)) % 365 < 240))[:number]
    return np.sort(day + rng.uniform(0.1, 0.45, number))


def drawn(count: int, number: int, bands: int, days: float, shape: Shape, noise: float, seed: int = 0) -> list[Curve]:
    """Light curves of half a magnitude; ``noise`` is the error over the flux."""
    rng, curves = np.random.default_rng(seed), []
    for _ in range(count):
        time, cycles = sampled(rng, number, days), float(np.exp(rng.uniform(np.log(0.1), np.log(6.0))))
        band = rng.integers(0, bands, number)
        level = 1000 * np.exp(rng.normal(0, 0.5, bands))[band]
        flux = level * 10 ** (0.1 * shape(cycles * time + rng.uniform())) + level * noise * rng.normal(size=number)
        curves.append(Curve(flux, level * noise, time - time[0], band, cycles))
    return curves


def weighed(curves: list[Curve]) -> Scores:
    flux, flux_err, time, band = (torch.from_numpy(np.stack(column)) for column in list(zip(*curves, strict=True))[:4])
    return scores(points(flux, flux_err, time, band, torch.ones_like(band, dtype=torch.bool), G))


def fitted(curves: list[Curve]) -> Peaks:
    return search(weighed(curves))


def share_found(curves: list[Curve], cycles: Floats, multiples: tuple[float, ...] = (1.0,)) -> float:
    """Share of the frequencies that are right, or a multiple of the right one, within the width of a peak."""
    true = np.array([curve.cycles for curve in curves])
    wide = np.array([1.0 / curve.time[-1] for curve in curves])
    return float(np.mean(np.any([np.abs(cycles - times * true) < times * wide for times in multiples], axis=0)))


def astropys(curve: Curve) -> float:
    """Frequency at which astropy's periodogram is highest; of several bands where the curve has them."""
    soft, error = np.arcsinh(curve.flux / SOFT), curve.flux_err / np.hypot(curve.flux, SOFT)
    grid = np.arange(2e-3, 10, 0.2 / curve.time[-1])
    if not curve.band.any():
        power = LombScargle(curve.time, soft, error).power(grid, method="fast")
    else:
        bands = LombScargleMultiband(curve.time, soft, curve.band, error, nterms_band=0)
        power = bands.power(grid, method="flexible", sb_method="fast")
    return float(grid[np.argmax(power)])


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
