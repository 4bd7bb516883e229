"""Temperature scaling: a known temperature comes back, and nonsense is refused."""

import numpy as np
import pytest
from numpy.typing import NDArray

from models.bundle import load_bundle
from support.pipeline import Pipeline
from training.data.dataset import read_dataset
from training.fit.checkpoints import load_network
from training.score.calibrate import LARGEST, calibrate, fit_temperature, softmax

Logits = NDArray[np.float64]


def honest(seed: int, n: int = 20_000) -> tuple[Logits, NDArray[np.int64]]:
    """Logits, and labels drawn from their softmax."""
    rng = np.random.default_rng(seed)
    logits_BC = 2 * rng.normal(size=(n, 5))
    cumulative_BC = softmax(logits_BC).cumsum(1)
    return logits_BC, (rng.random((n, 1)) > cumulative_BC).sum(1).clip(0, 4)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5, 8.0])
def test_a_known_temperature_is_recovered(temperature: float) -> None:
    logits_BC, label_B = honest(seed=1)
    fit = fit_temperature(logits_BC * temperature, label_B)
    assert fit.temperature == pytest.approx(temperature, rel=0.03)
    assert fit.ece_after < 0.015
    assert fit.log_loss_after <= fit.log_loss_before + 1e-9
    if temperature != 1.0:
        assert fit.ece_after < fit.ece_before


def test_the_smallest_loss_is_found() -> None:
    logits_BC, label_B = honest(seed=2, n=500)
    fit = fit_temperature(3 * logits_BC, label_B)
    for factor in (0.97, 1.03):
        truth = softmax(3 * logits_BC, fit.temperature * factor)[np.arange(500), label_B]
        assert -np.log(truth).mean() > fit.log_loss_after


def test_hopeless_and_perfect_logits_stay_within_bounds() -> None:
    logits_BC, label_B = honest(seed=3, n=200)
    perfect = 5 * np.eye(5)[label_B]
    sure = fit_temperature(perfect, label_B)
    assert 1 / LARGEST <= sure.temperature < 1
    assert sure.log_loss_after < 1e-9
    assert fit_temperature(-perfect, label_B).temperature == pytest.approx(LARGEST, rel=1e-2)
    assert fit_temperature(logits_BC[:1], label_B[:1]).objects == 1


def test_nothing_to_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one object"):
        fit_temperature(np.zeros((0, 5)), np.zeros(0, dtype=np.int64))
    with pytest.raises(ValueError, match="finite"):
        fit_temperature(np.array([[np.nan, 0.0]]), np.array([0]))


def test_softmax_survives_large_logits() -> None:
    np.testing.assert_allclose(softmax(np.array([[1e4, 0.0]])), [[1.0, 0.0]])


def test_the_bundle_holds_the_fitted_temperature(pipeline: Pipeline) -> None:
    network, config = load_network(pipeline.run)
    fit = calibrate(network, read_dataset(pipeline.data), config.recipe)
    manifest = load_bundle(pipeline.bundle).manifest
    assert manifest.calibration.temperature == pytest.approx(fit.temperature, rel=1e-4)
    assert manifest.calibration == fit.as_calibration().model_copy(
        update={"temperature": manifest.calibration.temperature, "ece": manifest.calibration.ece}
    )
    assert manifest.metrics["calibration"]["objects"] == fit.objects
