"""Degraded light curves: valid, with a detection, and reproducible."""

import numpy as np
import pytest

from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.training.data.augment import DegradeConfig, degrade, perturb

NOTHING = {name: 0.0 for name in DegradeConfig.model_fields if name != "magnitudes"}


@pytest.fixture
def curve() -> LightCurve:
    rng = np.random.default_rng(0)
    time = np.sort(rng.uniform(0, 100, 80))
    flux = 4_000 * np.exp(-0.5 * ((time - 40) / 12) ** 2) + 50 * rng.standard_normal(80)
    return LightCurve.from_columns(
        mjd=60_000 + time,
        flux=flux,
        flux_err=np.full(80, 50.0),
        band=rng.integers(0, 6, 80),
        metadata={"z_final": 0.2, "z_final_err": 0.01, "mwebv": 0.03, "hostgal_mag_r": 20.0},
    )


def drawn(curve: LightCurve, seed: int, **shares: float) -> LightCurve:
    return degrade(curve, DegradeConfig.model_validate(NOTHING | shares), np.random.default_rng(seed))


def test_every_draw_is_a_light_curve_with_a_detection(curve: LightCurve) -> None:
    for seed in range(300):
        degraded = degrade(curve, DegradeConfig(), np.random.default_rng(seed))
        LightCurve.from_columns(
            degraded.mjd,
            degraded.flux,
            degraded.flux_err,
            degraded.band,
            degraded.detected,
            degraded.metadata,
        )
        assert degraded.detected.any()
        assert set(degraded.mjd) <= set(curve.mjd)


def test_no_share_changes_nothing(curve: LightCurve) -> None:
    degraded = drawn(curve, 0)
    assert np.array_equal(degraded.flux, curve.flux)
    assert np.array_equal(degraded.flux_err, curve.flux_err)
    assert degraded.metadata == curve.metadata


def test_the_same_draw_gives_the_same_light_curve(curve: LightCurve) -> None:
    one, other = (degrade(curve, DegradeConfig(), np.random.default_rng(7)) for _ in range(2))
    assert np.array_equal(one.flux, other.flux)
    assert one.metadata == other.metadata


def test_degrade_brightness_keeps_the_snr_and_removes_the_redshift(curve: LightCurve) -> None:
    scales = []
    for seed in range(50):
        degraded = drawn(curve, seed, brightness=1.0)
        np.testing.assert_allclose(degraded.flux / degraded.flux_err, curve.flux / curve.flux_err, rtol=1e-4)
        assert set(degraded.metadata) == {"mwebv"}
        scales.append(float(degraded.flux_err[0] / curve.flux_err[0]))
    assert min(scales) < 0.3
    assert max(scales) > 30


def test_degrade_can_remove_metadata_and_add_a_redshift(curve: LightCurve) -> None:
    assert drawn(curve, 1, no_metadata=1.0).metadata == {}
    assert "z_final" not in drawn(curve, 1, no_redshift=1.0).metadata
    star = LightCurve.from_columns(curve.mjd, curve.flux, curve.flux_err, curve.band)
    assert drawn(star, 1, strange_redshift=1.0).metadata["z_final"] > 0
    assert drawn(curve, 1, noisy_redshift=1.0).metadata["z_final"] != 0.2


def test_degrade_misjudged_errors_are_smaller_than_the_scatter(curve: LightCurve) -> None:
    flat = LightCurve.from_columns(curve.mjd, np.full(80, 1e4), np.full(80, 50.0), curve.band)
    ratios = []
    for seed in range(60):
        degraded = drawn(flat, seed, misjudged=1.0)
        ratios.append(float(np.std(degraded.flux) / np.median(degraded.flux_err)))
    assert np.median(ratios) > 1.1
    assert max(ratios) < 6


def test_perturb_changes_light_curves_slightly() -> None:
    """Points are some of the object's, a detection stays, brightness moves by tenths, errors never shrink below it."""
    rng, many = np.random.default_rng(3), curve_of_points(60)
    ratios = []
    for _ in range(200):
        degraded = perturb(many, rng)
        assert len(many) * 0.3 < len(degraded) <= len(many)
        assert degraded.detected.any()
        assert np.isin(degraded.mjd, many.mjd).all()
        assert degraded.metadata == many.metadata
        place = np.searchsorted(many.mjd, degraded.mjd)
        ratios.append(np.median(degraded.flux_err / many.flux_err[place]))
    assert 0.5 < min(ratios) < 1.0 < max(ratios) < 2.5
    one, other = (perturb(many, np.random.default_rng(7)) for _ in range(2))
    np.testing.assert_array_equal(one.flux, other.flux)


def test_perturb_keeps_the_only_detection() -> None:
    """However many points are left out, something was detected."""
    lone = curve_of_points(30, detected=[17])
    assert all(perturb(lone, np.random.default_rng(seed)).detected.any() for seed in range(50))


def curve_of_points(number: int, detected: list[int] | None = None) -> LightCurve:
    """Flux far above its errors, one point a day, bands in turn."""
    at = np.arange(number)
    return LightCurve.from_columns(
        mjd=60_000.0 + at,
        flux=1_000.0 + 10.0 * at,
        flux_err=np.full(number, 20.0),
        band=at % 6,
        detected=np.ones(number, bool) if detected is None else np.isin(at, detected),
        metadata={"z_final": 0.1},
    )
