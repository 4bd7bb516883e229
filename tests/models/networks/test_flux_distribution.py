"""Moments and likelihood of a predicted flux against numerical integration, float64."""

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from nightjar_alerts.models.networks.network import START_STD, STD_RANGE, FluxDistribution, bounded_std

MEANS, STDS, SCALE = (-3.0, 0.0, 0.2, 4.0), (0.5, 0.01, 1.5, 0.05), 30.0


def row(values: tuple[float, ...]) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def likely() -> FluxDistribution:
    return FluxDistribution(row(MEANS), row(STDS), row((SCALE,)))


def test_moments_are_those_of_the_flux() -> None:
    forecast = likely().forecast()
    for place, (mean, std) in enumerate(zip(MEANS, STDS, strict=True)):
        y = np.linspace(mean - 14 * std, mean + 14 * std, 40_001)
        density, flux = norm.pdf(y, mean, std), SCALE * np.sinh(y)
        expected = np.trapezoid(flux * density, y)
        variance = np.trapezoid((flux - expected) ** 2 * density, y)
        assert float(forecast.flux_BQ[0, place]) == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert float(forecast.flux_err_BQ[0, place]) == pytest.approx(np.sqrt(variance), rel=1e-9)


def test_moments_of_a_narrow_distribution_keep_their_digits_in_single_precision() -> None:
    narrow = FluxDistribution(torch.tensor([[2.0]]), torch.tensor([[1e-3]]), torch.tensor([[1.0]]))
    assert float(narrow.forecast().flux_err_BQ) == pytest.approx(1e-3 * np.cosh(2.0), rel=1e-5)


def test_the_likelihood_is_a_density_of_the_flux() -> None:
    """The density integrates to one."""
    flux = np.linspace(-40_000, 40_000, 400_001)
    for mean, std in zip(MEANS, STDS, strict=True):
        if std < 1:
            one = FluxDistribution(row((mean,)), row((std,)), row((SCALE,)))
            density = np.exp(-one.negative_log_likelihood(torch.from_numpy(flux)[None]).numpy()[0])
            assert np.trapezoid(density, flux) == pytest.approx(1.0, abs=1e-3)


def test_deviations_are_standard_deviations_of_asinh() -> None:
    observed = row((-300.0, 0.2, 10.0, 800.0))
    expected = (np.arcsinh(observed.numpy() / SCALE) - np.array(MEANS)) / np.array(STDS)
    np.testing.assert_allclose(likely().deviation(observed).numpy(), expected)


def test_standard_deviations_are_bounded() -> None:
    std = bounded_std(torch.tensor([-1e9, 0.0, 1e9]))
    np.testing.assert_allclose(std.numpy(), [STD_RANGE[0], START_STD, STD_RANGE[1]], rtol=1e-5)
