"""Temperature scaling: known temperatures are recovered, the simplest degree is chosen, invalid input is rejected."""

import numpy as np
import pytest
from numpy.typing import NDArray

from nightjar_alerts.models.bundle import LARGEST_TEMPERATURE, load_bundle
from nightjar_alerts.training.confidence.calibration import (
    ServedSample,
    calibrate,
    calibrated,
    ece_by_chance,
    fit_by_length,
    fit_calibration,
    fit_temperature,
    scores_by_detections,
)
from nightjar_alerts.training.data.dataset import read_dataset
from nightjar_alerts.training.fit.checkpoints import load_network
from nightjar_alerts.training.metrics import ece, softmax
from support.pipeline import Pipeline

Logits = NDArray[np.float64]


def honest(seed: int, n: int = 20_000) -> tuple[Logits, NDArray[np.int64]]:
    """Logits, and labels drawn from their softmax."""
    rng = np.random.default_rng(seed)
    logits_NC = 2 * rng.normal(size=(n, 5))
    cumulative_NC = softmax(logits_NC).cumsum(1)
    return logits_NC, (rng.random((n, 1)) > cumulative_NC).sum(1).clip(0, 4)


def sample(seed: int, n: int, coefficients: tuple[float, ...]) -> ServedSample:
    """Logits that are off by a temperature that follows the length; three views of every object."""
    logits_NC, label_N = honest(seed, n)
    length_N = np.exp(np.random.default_rng(seed + 1).uniform(0, 5, n)).astype(np.int64)
    temperature_N = np.exp(sum(value * np.log(length_N) ** power for power, value in enumerate(coefficients)))
    wrong_NC = (logits_NC * temperature_N[:, None]).astype(np.float32)
    return ServedSample(wrong_NC, np.zeros((n, 2), np.float32), label_N, np.arange(n) // 3, length_N, length_N // 4)


def first(drawn: ServedSample, rows: int) -> ServedSample:
    return ServedSample._make(column[:rows] for column in drawn)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5, 8.0])
def test_a_known_temperature_is_recovered(temperature: float) -> None:
    logits_NC, label_N = honest(seed=1)
    fitted = fit_temperature(logits_NC * temperature, label_N)
    assert fitted == pytest.approx(temperature, rel=0.03)
    after = ece(softmax(logits_NC * temperature, fitted), label_N)
    assert after < 0.015
    if temperature != 1.0:
        assert after < ece(softmax(logits_NC * temperature), label_N)


def test_the_smallest_loss_is_found() -> None:
    logits_NC, label_N = honest(seed=2, n=500)
    fitted = fit_temperature(3 * logits_NC, label_N)

    def loss(temperature: float) -> float:
        return float(-np.log(softmax(3 * logits_NC, temperature)[np.arange(500), label_N]).mean())

    assert loss(fitted) < min(loss(0.97 * fitted), loss(1.03 * fitted))


def test_hopeless_and_perfect_logits_stay_within_bounds() -> None:
    _, label_N = honest(seed=3, n=200)
    perfect = 5 * np.eye(5)[label_N]
    assert 1 / LARGEST_TEMPERATURE <= fit_temperature(perfect, label_N) < 0.5
    assert fit_temperature(-perfect, label_N) == pytest.approx(LARGEST_TEMPERATURE, rel=1e-2)
    for degree in (1, 2):
        fit = fit_by_length(perfect, label_N, np.arange(200) + 1, degree)
        assert np.isfinite(calibrated(perfect, np.arange(200) + 1, fit)).all()


def test_nothing_to_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one object"):
        fit_temperature(np.zeros((0, 5)), np.zeros(0, dtype=np.int64))
    with pytest.raises(ValueError, match="finite"):
        fit_temperature(np.array([[np.nan, 0.0]]), np.array([0]))


def test_softmax_survives_large_logits() -> None:
    np.testing.assert_allclose(softmax(np.array([[1e4, 0.0]])), [[1.0, 0.0]])


def test_a_temperature_that_follows_the_length_is_found() -> None:
    drawn = sample(4, 6000, (0.8, -0.3))
    fit = fit_calibration(drawn)
    assert fit.calibration.method == "temperature_by_length"
    assert fit.calibration.lengths == (1, drawn.length_N.max())
    length_N = np.array([1, 5, 20, 100])
    np.testing.assert_allclose(fit.calibration.temperatures(length_N), np.exp(0.8) * length_N**-0.3, rtol=0.12)
    assert fit.after["all"]["ece"] < 0.02 < fit.before["all"]["ece"]
    assert fit.after["all"]["log_loss"] < fit.before["all"]["log_loss"]
    assert fit.candidates["degree 1"]["gain"] > 2 * fit.candidates["degree 1"]["gain_error"] > 0
    assert (fit.rows, fit.objects) == (6000, 2000)


def test_one_temperature_suffices_where_one_made_them() -> None:
    drawn = sample(5, 3000, (0.5,))
    fit = fit_calibration(drawn)
    assert (fit.calibration.method, fit.calibration.lengths) == ("temperature", None)
    assert fit.calibration.temperature == pytest.approx(np.exp(0.5), rel=0.1)
    assert list(fit.candidates) == ["degree 0", "degree 1", "degree 2"]
    few = fit_calibration(first(drawn, 30))
    assert list(few.candidates) == ["degree 0"]
    assert fit_calibration(first(drawn, 1)).objects == 1


def test_the_coefficients_are_those_of_the_smallest_loss() -> None:
    drawn = sample(6, 2000, (0.4, -0.2))
    fit = fit_by_length(drawn.logits_NC, drawn.label_N, drawn.length_N, 1)

    def loss(shift: NDArray[np.float64]) -> float:
        temperature_N = np.exp(np.vander(np.log(drawn.length_N), 2, increasing=True) @ (fit.coefficients + shift))
        p_NC = softmax(drawn.logits_NC, temperature_N)
        return float(-np.log(p_NC[np.arange(2000), drawn.label_N]).mean())

    best = loss(np.zeros(2))
    for shift in ([0.02, 0.0], [-0.02, 0.0], [0.0, 0.01], [0.0, -0.01]):
        assert loss(np.array(shift)) > best


def test_scores_by_detections_are_of_the_rows_they_name() -> None:
    logits_NC, label_N = honest(7, 300)
    detections_N = np.repeat([1, 3, 4], 100)
    by_group = scores_by_detections(softmax(logits_NC), label_N, detections_N)
    assert {name: scores["rows"] for name, scores in by_group.items()} == {"all": 300, "0": 100, "3": 200}
    assert by_group["3"]["ece"] == ece(softmax(logits_NC[100:]), label_N[100:])


def test_chance_alone_has_an_error_that_shrinks_with_the_objects() -> None:
    floors = []
    for n in (400, 40_000):
        logits_NC, label_N = honest(8, n)
        floors.append(ece_by_chance(softmax(logits_NC)))
        assert ece(softmax(logits_NC), label_N) == pytest.approx(floors[-1], rel=0.6)
    assert floors[1] < floors[0] / 5


def test_the_bundle_holds_what_was_fitted(pipeline: Pipeline) -> None:
    network, config = load_network(pipeline.run)
    fit = calibrate(network, read_dataset(pipeline.data), config.recipe)
    manifest = load_bundle(pipeline.bundle).manifest
    assert manifest.calibration.temperature == pytest.approx(fit.calibration.temperature, rel=1e-4)
    assert manifest.calibration.method == fit.calibration.method
    assert manifest.metrics["calibration"]["objects"] == fit.objects
    assert manifest.metrics["calibration"]["rows"] == fit.rows == 9 * fit.objects
