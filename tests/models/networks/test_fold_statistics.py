"""Statistics of the folded light curve against least squares in float64 and against stars whose shape is known."""

import numpy as np
import pytest
import torch

from nightjar_alerts.models.networks.statistics.fold_statistics import (
    CLIPPED,
    COUNT,
    HARMONICS,
    flux_scores,
    fold_statistics,
    fold_values,
)
from nightjar_alerts.models.networks.statistics.period_statistics import Scores
from nightjar_alerts.models.networks.statistics.points import Points, Statistics, points
from support.periods import Curve, Floats, G, Shape, drawn, eclipses, fitted, share_found
from support.ragged_columns import Columns, assert_invariant, ragged, seen

LOG_FREQUENCY, LEFT, RATIOS, HALF, MOMENTS = 0, slice(5, 8), slice(8, 14), slice(14, 16), slice(16, 19)


def contact_binary(turns: Floats) -> Floats:
    """Two minima, one deeper by a seventh; ``turns`` are those of the orbit."""
    wave: Floats = np.cos(4 * np.pi * turns) + 0.15 * np.cos(2 * np.pi * turns)
    return wave


def as_differences(curves: list[Curve]) -> Points:
    """Points of light curves as image subtraction delivers them: less the mean of the band."""
    flux, flux_err, time, band = (torch.from_numpy(np.stack(column)) for column in list(zip(*curves, strict=True))[:4])
    for number in range(G):
        here = band == number
        mean = (flux * here).sum(1, keepdim=True) / here.sum(1, keepdim=True).clamp(min=1)
        flux = torch.where(here, flux - mean, flux)
    return points(flux, flux_err, time, band, torch.ones_like(band, dtype=torch.bool), G)


def folded(curves: list[Curve]) -> Floats:
    values: Floats = fold_values(flux_scores(as_differences(curves))).numpy()
    return values


def statistics_of(columns: Columns) -> Statistics:
    return fold_statistics(seen(columns))


def least_squares(weights: Scores, row: int, cycles: float, harmonics: int) -> tuple[Floats, Floats]:
    """Coefficients [H, 2], and the shares of the variance left by the first harmonics [H]."""
    trust, value, time = (part[row, 0].numpy() for part in (weights.trust, weights.away, weights.time))
    share = weights.share[row].numpy()[:, trust > 0]
    trust, value, time = (part[trust > 0] for part in (trust, value, time))
    angles = 2 * np.pi * cycles * time[:, None] * np.arange(1, harmonics + 1)
    waves = np.stack([np.cos(angles), np.sin(angles)], axis=2).reshape(len(time), -1)
    both = np.concatenate([waves, value[:, None]], axis=1)
    means = (share * trust) @ both / np.maximum((share * trust).sum(1, keepdims=True), 1e-9)
    both = (both - share.T @ means) * np.sqrt(trust)[:, None]
    waves, value = both[:, :-1], both[:, -1]
    ridge = np.repeat(2.5e-4 * np.arange(1, harmonics + 1) ** 2 * trust.sum(), 2)
    left = []
    for number in range(2, 2 * harmonics + 1, 2):
        some = waves[:, :number]
        found = np.linalg.solve(some.T @ some + np.diag(ridge[:number]), some.T @ value)
        left.append((value @ value - value @ some @ found) / (value @ value))
    return found.reshape(-1, 2), np.array(left)


@pytest.mark.parametrize(("number", "bands"), [(30, 1), (60, 3)])
def test_shape_at_the_chosen_frequency_agrees_with_least_squares(number: int, bands: int) -> None:
    curves = drawn(4, number, bands, 500.0, eclipses, 0.03)
    weights, values = flux_scores(as_differences(curves)), folded(curves)
    for row in range(len(curves)):
        cycles = 10 ** values[row, LOG_FREQUENCY]
        wave_H2, left_H = least_squares(weights, row, cycles, HARMONICS)
        np.testing.assert_allclose(values[row, LEFT], left_H[[0, 1, -1]], rtol=1e-5)
        coefficient_H = wave_H2[:, 0] - 1j * wave_H2[:, 1]
        once = np.abs(coefficient_H[0])
        turned = [coefficient_H[k] / once * (coefficient_H[0] / once) ** -(k + 1) for k in (1, 2)]
        expected = [part for one in turned for part in (np.abs(one), one.real, -one.imag)]
        if max(np.abs(turned)) < 3:
            np.testing.assert_allclose(values[row, RATIOS], expected, rtol=1e-4, atol=1e-6)
        half_H2, half_left_H = least_squares(weights, row, cycles / 2, 2 * HARMONICS)
        square_H = (half_H2**2).sum(1)
        odd = min(np.sqrt(square_H[::2].sum() / (square_H[1::2].sum() + 1e-9)), 5.0)
        np.testing.assert_allclose(values[row, HALF], [left_H[-1] - half_left_H[-1], odd], rtol=1e-4, atol=1e-6)


def test_flux_scores_are_deviations_from_the_band_mean_clipped() -> None:
    curves = drawn(3, 60, 2, 300.0, np.sin, 0.02)
    curves[0].flux[7] *= 50
    weights = flux_scores(as_differences(curves))
    for row, curve in enumerate(curves):
        for band in range(2):
            here = curve.band == band
            flux, error = curve.flux[here] - curve.flux[here].mean(), curve.flux_err[here]
            weight = 1 / (error**2 + 0.3 * flux.var())
            away = flux - (weight * flux).sum() / weight.sum()
            away = np.clip(away, -CLIPPED * flux.std(), CLIPPED * flux.std())
            spread = np.mean(away**2)
            signal = max(spread - np.mean(error**2), 0.02 * spread)
            np.testing.assert_allclose(weights.away[row, 0, here], away / np.sqrt(spread), rtol=1e-9)
            np.testing.assert_allclose(weights.trust[row, 0, here], signal / (signal + error**2), rtol=1e-9)


def test_moments_of_flux_agree_with_sums_over_points() -> None:
    curves = drawn(3, 60, 2, 300.0, eclipses, 0.02)
    weights, values = flux_scores(as_differences(curves)), folded(curves)
    for row in range(len(curves)):
        value, trust = weights.away[row, 0].numpy(), weights.trust[row, 0].numpy()
        second, third, fourth = (np.average(value**power, weights=trust) for power in (2, 3, 4))
        low = np.average((value < -1.5) * 1.0 - (value > 1.5), weights=trust)
        np.testing.assert_allclose(values[row, MOMENTS], [third / second**1.5, fourth / second**2, low], rtol=1e-9)


def test_unlike_minima_appear_at_half_the_frequency_or_as_a_second_harmonic() -> None:
    curves = drawn(40, 120, 1, 900.0, contact_binary, 0.01)
    binary = folded(curves)
    pulsating = folded(drawn(40, 120, 1, 900.0, lambda turns: np.sin(2 * np.pi * turns), 0.01))
    assert share_found(curves, 10 ** binary[:, LOG_FREQUENCY], (1.0, 2.0)) >= 0.9
    at_orbit = binary[:, RATIOS.start] > 1.5
    odd = binary[:, HALF.stop - 1] > np.quantile(pulsating[:, HALF.stop - 1], 0.9)
    assert np.mean(at_orbit | odd) >= 0.9
    assert np.mean(pulsating[:, RATIOS.start] > 1.5) <= 0.1


def test_a_sawtooth_has_the_ratios_and_phases_of_its_series() -> None:
    values = folded(drawn(20, 150, 1, 900.0, lambda turns: (2 * (turns % 1.0) - 1) / 5, 0.005))
    found = np.median(values[:, RATIOS], axis=0)
    np.testing.assert_allclose(found[[0, 3]], [1 / 2, 1 / 3], atol=0.06)


@pytest.mark.parametrize(
    ("shape", "multiples"),
    [(lambda turns: np.sin(2 * np.pi * turns), (1.0,)), (contact_binary, (1.0, 2.0)), (eclipses, (1.0, 2.0, 3.0))],
    ids=["sine", "contact", "detached"],
)
def test_difference_fluxes_are_found_no_less_often_than_when_squashed(
    shape: Shape, multiples: tuple[float, ...]
) -> None:
    curves = drawn(60, 40, 2, 1000.0, shape, 0.05)
    flux_BL = as_differences(curves).flux_B1L[:, 0].numpy()
    differences = [curve._replace(flux=flux_L) for curve, flux_L in zip(curves, flux_BL, strict=True)]
    squashed = share_found(curves, fitted(differences).first[:, 0].numpy(), multiples)
    assert share_found(curves, 10 ** folded(curves)[:, LOG_FREQUENCY], multiples) >= squashed


def test_few_points_have_no_statistics() -> None:
    values, known = statistics_of(ragged())
    assert values.shape == known.shape == (5, COUNT)
    assert known.all(1).tolist() == known.any(1).tolist() == [True, False, False, True, False]
    assert (values[~known] == 0).all()
    assert torch.isfinite(values).all()


def test_no_light_curve_is_no_error() -> None:
    weights = flux_scores(as_differences(drawn(2, 30, 1, 300.0, np.sin, 0.05)))
    assert fold_values(Scores(*(part[:0] for part in weights))).shape == (0, COUNT)


def test_padding_order_batch_mates_and_time_shifts_change_nothing() -> None:
    assert_invariant(statistics_of, atol=1e-6, rtol=1e-6)


def test_constant_flux_is_no_trouble() -> None:
    columns = ragged()
    columns["flux"] = np.where(columns["mask"], 100.0, 0.0)
    values, known = statistics_of(columns)
    assert not known.any()
    assert (values == 0).all()
