"""Statistics of a period, against sums written out in float64 and against waves whose shape is known."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nightjar_alerts.models.networks.statistics.period_statistics import (
    FEWEST_SCORED,
    HATS,
    MULTIPLES,
    OCTAVES,
    OVERTONES,
    STEP,
    PeriodSearch,
    Scores,
    count,
    peaks,
    period_statistics,
    periodogram,
    scores,
)
from nightjar_alerts.models.networks.statistics.points import SOFT, Statistics
from support.ragged_columns import Columns, G, assert_invariant, ragged, seen

PARTS = {"octaves": len(OCTAVES) - 1, "first": len(HATS), "sure": len(HATS), "other": len(HATS), "logs": 4}
PARTS |= {"over_noise": len(MULTIPLES), "share": len(MULTIPLES), "shape": 3 * len(OVERTONES), "amplitude": G}
FINER = 8


def statistics_of(columns: Columns, how: PeriodSearch = "summed") -> Statistics:
    return period_statistics(seen(columns), how)


def searched(columns: Columns) -> Scores:
    return scores(seen(columns))


def parts(value_K: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    return dict(zip(PARTS, np.split(value_K, np.cumsum(list(PARTS.values()))[:-1]), strict=True))


def curves(shape: object = None, seed: int = 3, points: int = 240, cycles: float = 0.7431) -> Columns:
    """One light curve of three bands that repeats: ``shape`` of its phase in asinh(flux), times 1, 2 and 3."""
    rng = np.random.default_rng(seed)
    time = np.round(np.sort(rng.uniform(0, 700, (1, points))) * 64) / 64
    band = rng.integers(0, G - 1, (1, points))
    wave = shape(2 * np.pi * cycles * time) if callable(shape) else np.cos(2 * np.pi * cycles * time)
    flux = SOFT * np.sinh(5.0 + 0.1 * (band + 1) * wave)
    return {"flux": flux, "flux_err": flux * 1e-3, "time": time, "band": band, "mask": band >= 0}


def waves_of(columns: Columns, row: int, cycles: float) -> NDArray[np.complex128]:
    """The weighted sums of a light curve at all multiples of a frequency."""
    score, time = searched(columns).score[row, 0].numpy(), np.where(columns["mask"][row], columns["time"][row], 0.0)
    return np.array([np.sum(score * np.exp(2j * np.pi * times * cycles * time)) for times in MULTIPLES])


def refined(columns: Columns, row: int, cycles: float) -> float:
    """The frequency near ``cycles`` with the most power in itself and two overtones."""
    near = cycles + np.arange(-FINER, FINER + 1) * STEP / FINER
    power = [np.sum(np.abs(waves_of(columns, row, one)[[1, 3, 4]]) ** 2) for one in near]
    return float(near[int(np.argmax(np.array(power) * (1 - 1e-4 * np.arange(len(near)))))])


@pytest.mark.parametrize("row", [0, 3])
def test_statistics_agree_with_sums_written_out(row: int) -> None:
    columns = ragged()
    weighed = searched(columns)
    time = np.where(columns["mask"], columns["time"], 0.0)
    best = peaks(periodogram(weighed.score, torch.from_numpy(time)[:, None]))
    first, other = float(best.first[row]), float(best.frequency[row, 1])
    cycles = refined(columns, row, first)
    sums, square = waves_of(columns, row, cycles), float(weighed.score[row].square().sum())
    trust = weighed.trust[row, 0].numpy()
    power = np.abs(sums) ** 2 / square
    shape = [ratio for overtone in OVERTONES for ratio in ratios(sums, overtone)]
    near = [[max(0.0, 1 - abs(np.log10(one) - hat) / 0.15) for hat in HATS] for one in (first, other)]
    sure = np.log1p(float(best.power[row, 0]))
    logs = [np.log10(first), np.log10(other), sure, np.log1p(float(best.power[row, 1]))]
    bands = np.exp(2j * np.pi * cycles * time[row]) * weighed.away[row].numpy() * weighed.share[row].numpy()
    expected = np.concatenate(
        [
            *(np.log1p(best.octaves[row].numpy()), near[0], np.array(near[0]) * sure, near[1], logs, np.log1p(power)),
            *(2 * power / (trust.sum() ** 2 / np.sum(trust**2)), shape),
            2 * np.abs(bands.sum(1)) / np.maximum(weighed.points[row].numpy(), 1),
        ]
    )
    values, known = statistics_of(columns)
    np.testing.assert_allclose(values[row], expected, atol=2e-6)  # frequencies are float32
    assert known[row].tolist() == [True] * (count(G) - G) + (weighed.points[row] > 0).tolist()


def ratios(sums: NDArray[np.complex128], overtone: int) -> list[float]:
    """R_k1 cos phi_k1, R_k1 sin phi_k1 and R_k1 with phi_k1 = phi_k - k phi_1, no more than 3 in size."""
    once, over = sums[1], sums[MULTIPLES.index(overtone)]
    ratio = abs(over) / abs(once)
    phase = np.angle(over) - overtone * np.angle(once)
    return [float(np.clip(part, -3, 3)) for part in (ratio * np.cos(phase), ratio * np.sin(phase), ratio)]


def test_the_shape_of_a_pulsating_star_is_told() -> None:
    def wave(phase: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.cos(phase) + 0.4 * np.cos(2 * phase - 1.0) + 0.2 * np.cos(3 * phase - 2.0)

    of = parts(statistics_of(curves(wave, points=3000)).value_BK[0].numpy())
    assert 10 ** of["logs"][0] == pytest.approx(0.7431, abs=STEP)
    expected = [0.4 * np.cos(1.0), 0.4 * np.sin(1.0), 0.4, 0.2 * np.cos(2.0), 0.2 * np.sin(2.0), 0.2]
    np.testing.assert_allclose(of["shape"][:6], expected, atol=0.05)
    np.testing.assert_allclose(of["amplitude"], [0.1, 0.2, 0.3, 0.0], atol=0.02)
    np.testing.assert_allclose(of["share"][1], 1 / (1 + 0.4**2 + 0.2**2), atol=0.05)


def test_few_points_tell_the_frequency_by_fits() -> None:
    """Thirty points of one band, of which sums lose a fifth to aliases."""
    right = []
    for seed in range(20):
        columns = curves(seed=seed, points=30, cycles=1.31)
        columns["band"][:] = 0
        right.append(abs(10 ** parts(statistics_of(columns, "fitted").value_BK[0].numpy())["logs"][0] - 1.31) < STEP)
    assert np.mean(right) >= 0.95


def test_unlike_minima_show_at_half_of_the_frequency() -> None:
    def eclipses(phase: NDArray[np.float64]) -> NDArray[np.float64]:
        turn = phase / 4 / np.pi % 1.0
        return np.where(np.abs(turn - 0.5) < 0.1, -1.0, np.where(np.abs(turn - 0.5) > 0.4, -0.5, 0.0))

    alike = parts(statistics_of(curves(lambda phase: eclipses(2 * phase))).value_BK[0].numpy())
    unlike = parts(statistics_of(curves(eclipses)).value_BK[0].numpy())
    strength = unlike["over_noise"]
    assert max(strength[0], strength[2]) > 1.5  # 2.5 times the noise
    assert alike["logs"][2] > 2


def test_the_hats_sum_to_one_and_point_at_the_frequency() -> None:
    of = parts(statistics_of(curves()).value_BK[0].numpy())
    assert of["first"].sum() == pytest.approx(1.0)
    assert of["first"] @ np.array(HATS) == pytest.approx(of["logs"][0], abs=STEP)
    np.testing.assert_allclose(of["sure"], of["first"] * of["logs"][2])


@pytest.mark.parametrize("how", ["summed", "fitted"])
def test_padding_order_batch_mates_and_time_shifts_change_nothing(how: PeriodSearch) -> None:
    assert_invariant(lambda columns: statistics_of(columns, how), atol=1e-8)


@pytest.mark.parametrize("how", ["summed", "fitted"])
def test_too_few_points_say_nothing(how: PeriodSearch) -> None:
    columns = curves(points=FEWEST_SCORED)
    columns["band"][:] = 0
    assert statistics_of(columns, how).mask_BK[0, : count(G) - G].all()
    columns["mask"][0, 0] = False
    value, known = statistics_of(columns, how)
    assert not known.any()
    assert not value.any()


@pytest.mark.parametrize("flux", [0.0, -1e30, 1e30, 1e-30])
@pytest.mark.parametrize("span", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("how", ["summed", "fitted"])
def test_extremes_are_finite(how: PeriodSearch, flux: float, span: float) -> None:
    columns = ragged()
    extreme = np.full(columns["mask"].shape, flux, dtype=np.float32)
    extreme[:, 1] = -flux
    changed = {"flux": extreme, "time": (columns["time"] * span).astype(np.float32)}
    found = statistics_of({**columns, **changed, "flux_err": columns["flux_err"].astype(np.float32)}, how)
    assert torch.isfinite(found.value_BK).all()
