"""The periodogram against its sums written out in float64; that true periods are found, and aliases are not."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nightjar_alerts.models.networks.statistics import period_statistics as module
from nightjar_alerts.models.networks.statistics.period_statistics import (
    FREQUENCIES,
    OCTAVES,
    STEP,
    Peaks,
    frequencies,
    peaks,
    periodogram,
    scores,
)
from nightjar_alerts.models.networks.statistics.points import SOFT
from support.ragged_columns import Columns, G, ragged, seen

CYCLES = frequencies(torch.arange(FREQUENCIES)).double().numpy()
SYSTEMATIC, LEAST_SIGNAL = 0.02, 0.02


def power_of(score: NDArray[np.float64], time: NDArray[np.float64]) -> NDArray[np.float64]:
    """|sum s exp(2 pi i f t)|^2 / sum s^2, one frequency after the other."""
    sums = [np.sum(score * np.exp(2j * np.pi * cycles * time)) for cycles in CYCLES]
    power: NDArray[np.float64] = np.abs(np.array(sums)) ** 2 / np.sum(score**2)
    return power


def weighed(columns: Columns, row: int) -> list[tuple[float, float, float]]:
    """Score, trust and deviation of every point that has one, as the definitions say."""
    kept, found = columns["mask"][row], np.zeros((3, columns["mask"].shape[1]))
    for band in range(G):
        here = kept & (columns["band"][row] == band)
        flux, flux_err = columns["flux"][row][here], columns["flux_err"][row][here]
        soft, noise = np.arcsinh(flux / SOFT), flux_err**2 / (flux**2 + SOFT**2)
        if len(soft) < 3:
            continue
        away = soft - np.average(soft, weights=1 / (noise + SYSTEMATIC**2))
        variance = np.mean(away**2)
        signal = max(variance - noise.mean(), LEAST_SIGNAL * variance)
        trust = signal / (signal + noise)
        found[:, here] = trust * away / np.sqrt(variance), trust, away
    return [(float(score), float(trust), float(away)) for score, trust, away in found.T]


def sampled(nights: int = 150, seed: int = 0) -> NDArray[np.float64]:
    """Times as a telescope takes them: on some nights of two years, a pair of visits half an hour apart."""
    rng = np.random.default_rng(seed)
    night = np.sort(rng.choice(730, nights, replace=False)) + rng.uniform(0.2, 0.5, nights)
    return np.sort(np.concatenate([night, night + 0.021]))


def found(flux: NDArray[np.float64], time: NDArray[np.float64]) -> Peaks:
    return peaks(periodogram(*(torch.from_numpy(values)[None, None] for values in (flux - flux.mean(), time))))


def test_power_agrees_with_the_sums() -> None:
    time, score = sampled(40), np.random.default_rng(1).normal(size=80)
    told = periodogram(torch.from_numpy(score)[None, None], torch.from_numpy(time)[None, None])
    assert told.shape == (1, FREQUENCIES)
    np.testing.assert_allclose(told[0], power_of(score, time), atol=1e-9)


def test_single_precision_is_enough_for_five_years() -> None:
    time, score = sampled(60) + 1000.0, np.random.default_rng(1).normal(size=120)
    time = (np.round(time * 2**13) / 2**13).astype(np.float32)  # as the network has it
    told = periodogram(*(torch.from_numpy(x)[None, None] for x in (score.astype(np.float32), time)))
    np.testing.assert_allclose(told[0], power_of(score, time.astype(np.float64)), atol=0.03, rtol=0.005)


def test_scores_agree_with_their_definitions() -> None:
    columns = ragged()
    told = scores(seen(columns))
    for row in range(5):
        expected = np.array(weighed(columns, row)).T
        for part, values in zip((told.score, told.trust, told.away), expected, strict=True):
            np.testing.assert_allclose(part[row, 0], values, atol=1e-12)
        searched = [int(np.sum(expected[1][columns["band"][row] == band] > 0)) for band in range(G)]
        assert told.points[row].tolist() == searched


def test_a_band_that_does_not_vary_is_not_searched() -> None:
    nine = np.ones((1, 9))
    columns = {"flux": 50 * nine, "flux_err": nine, "time": nine, "band": np.zeros((1, 9), dtype=int), "mask": nine > 0}
    told = scores(seen(columns))
    assert not told.score.any()
    assert not told.points.any()


@pytest.mark.parametrize("cycles", [0.011, 0.13, 0.73, 1.74, 3.3, 9.2])
def test_the_period_of_a_wave_is_found(cycles: float) -> None:
    time = sampled()
    noise = np.random.default_rng(2).normal(0, 0.3, len(time))
    best = found(np.sin(2 * np.pi * cycles * time) + noise, time)
    assert best.first.item() == pytest.approx(cycles, abs=STEP)
    assert best.power[0, 0].item() > 0.7 * len(time) / 2
    assert best.power[0, 1].item() < best.power[0, 0].item()
    octave = np.searchsorted(np.array(OCTAVES) * STEP, cycles) - 1
    assert best.octaves[0].argmax().item() == octave


def test_an_overtone_tells_a_sawtooth_from_its_aliases() -> None:
    alone, told = 0, 0
    for seed in range(60):
        time, rng = sampled(50, seed), np.random.default_rng(seed)
        cycles = rng.uniform(1.2, 2.4)
        wave = -((time * cycles) % 1.0) + rng.normal(0, 0.1, len(time))
        power = periodogram(*(torch.from_numpy(values)[None, None] for values in (wave - wave.mean(), time)))
        alone += abs(CYCLES[int(power.argmax())] - cycles) < 2 * STEP
        told += abs(peaks(power).first.item() - cycles) < 2 * STEP
    assert told > alone + 5
    assert told > 50


def test_of_aliases_that_fit_equally_well_the_lowest_counts() -> None:
    time = np.arange(60.0)
    best = found(np.sin(2 * np.pi * 0.13 * time), time)
    assert best.first.item() == pytest.approx(0.13, abs=STEP)


def test_frequencies_below_the_slowest_are_no_peak() -> None:
    time = sampled()
    assert found(time - time.mean(), time).first.item() >= frequencies(torch.tensor(module.SLOWEST)).item()


@pytest.mark.parametrize("length", [1, 30])
def test_nothing_to_search_has_no_power(length: int) -> None:
    power = periodogram(torch.zeros(2, 1, length), torch.zeros(2, 1, length))
    assert not power.any()
    assert all(torch.isfinite(part).all() for part in peaks(power))
