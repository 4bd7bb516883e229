"""Features of the light-curve package: against numpy, and edge cases."""

import numpy as np
import pytest
from numpy.typing import NDArray

from nightjar_alerts.models.lightcurve import LightCurve, Limits, Tokens, featurise
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.training.fit.trees.features import PACKAGE_FEATURES, package_features

NJY = 10 ** (0.4 * 3.9)  # of one unit of FLUXCAL


def tokens_of(time: NDArray[np.float64], flux: NDArray[np.float64], band: NDArray[np.int64]) -> Tokens:
    errors = np.full(len(time), 0.5 * NJY)
    curve = LightCurve.from_columns(60_000 + time, flux * NJY, errors, [BANDS[index] for index in band])
    return featurise(curve, Limits(max_points_per_band=1000, pre_trigger_days=None), "FLUXCAL", METADATA_COLUMNS)


def named(tokens: Tokens) -> dict[str, float]:
    return dict(zip(PACKAGE_FEATURES, package_features(tokens).tolist(), strict=True))


def test_statistics_of_one_band_by_hand() -> None:
    rng = np.random.default_rng(0)
    time, flux = np.sort(rng.uniform(0, 50, 30)), rng.normal(20, 4, 30)
    row = named(tokens_of(time, flux, np.full(30, 1)))
    assert row["g_observation_count"] == 30
    assert row["g_mean"] == pytest.approx(flux.mean(), rel=1e-4)
    assert row["g_amplitude"] == pytest.approx(np.ptp(flux) / 2, rel=1e-4)
    assert row["g_standard_deviation"] == pytest.approx(flux.std(ddof=1), rel=1e-4)
    assert row["g_chi2"] == pytest.approx(((flux - flux.mean()) ** 2 / 0.25).sum() / 29, rel=1e-3)
    assert row["g_duration"] == pytest.approx(np.ptp(time), rel=1e-4)
    assert np.isnan([value for name, value in row.items() if name.startswith("r_")]).all()


def test_a_period_is_found_over_the_bands_together() -> None:
    rng = np.random.default_rng(1)
    time, band = np.sort(rng.uniform(0, 300, 60)), np.arange(60) % 3
    flux = 20 + 8 * np.sin(2 * np.pi * time / 0.6137) + 3 * band + rng.normal(0, 0.5, 60)
    row = named(tokens_of(time, flux, band))
    assert row["period_0"] == pytest.approx(0.6137, rel=1e-3)
    assert row["period_signal_to_noise_0"] > row["period_signal_to_noise_1"]


@pytest.mark.parametrize("points", [1, 2, 3])
def test_few_points_have_few_features_but_no_failure(points: int) -> None:
    time = np.arange(points, dtype=np.float64)
    row = named(tokens_of(time, 5 + time, np.zeros(points, dtype=np.int64)))
    assert row["u_observation_count"] == points
    assert np.isfinite(row["period_0"]) == (points > 1)
    assert np.isnan(row["u_bazin_fit_amplitude"])
    assert not any(np.isinf(value) for value in row.values())


def test_a_constant_band_and_times_that_float32_makes_equal_do_no_harm() -> None:
    constant = named(tokens_of(np.arange(8.0), np.full(8, 3.0), np.full(8, 2)))
    assert np.isnan(constant["period_0"])
    assert constant["r_amplitude"] == 0
    twice = named(tokens_of(np.array([0.0, 1, 1 + 1e-8, 2, 3]), np.array([1.0, 2, 9, 3, 1]), np.full(5, 2)))
    assert twice["r_observation_count"] == 4
