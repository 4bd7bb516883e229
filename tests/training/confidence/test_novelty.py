"""Out-of-distribution scores against scikit-learn and plain definitions."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from nightjar_alerts.training.confidence.calibration import ServedSample
from nightjar_alerts.training.confidence.novelty import (
    SHRINKAGE,
    fit_novelty,
    fit_reference,
    novelty_scores,
    ood_scores,
    quantiles_of,
)

Drawn = tuple[NDArray[np.float64], NDArray[np.int64]]


def cloud(seed: int, labels: tuple[int, ...], n: int = 60, width: int = 6) -> Drawn:
    """Points about one centre for every label, wider in some directions than in others."""
    rng = np.random.default_rng(seed)
    label_N = np.repeat(labels, n)
    centre = 4 * np.random.default_rng(99).normal(size=(10, width))
    return centre[label_N] + rng.normal(size=(len(label_N), width)) * np.linspace(0.3, 2, width), label_N


def test_mahalanobis_by_definition() -> None:
    (train, label), (test, _) = cloud(0, (0, 1, 2)), cloud(1, (0, 3), 10)
    means = np.stack([train[label == one].mean(0) for one in range(3)])
    residual = train - means[label]
    covariance = residual.T @ residual / len(train)
    shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * np.trace(covariance) / 6 * np.eye(6)
    inverse = np.linalg.inv(shrunk)
    expected = [min(np.sqrt((z - mean) @ inverse @ (z - mean)) for mean in means) for z in test]
    np.testing.assert_allclose(fit_reference(train, label).mahalanobis(test), expected, rtol=1e-9)


def test_ood_scores_of_left_out_classes_are_larger() -> None:
    (train, label), (test, true) = cloud(0, (0, 1, 2)), cloud(1, (0, 1, 2, 3, 4))
    uniform = np.full((len(test), 3), 1 / 3)
    strange = ood_scores(fit_reference(train, label), test, uniform)
    areas = novelty_scores(strange, true, np.array([3, 4]))
    assert areas["Mahalanobis"]["all"] > 0.95
    assert areas["1 - largest probability"]["all"] == 0.5
    assert areas["Mahalanobis"]["all"] == pytest.approx(roc_auc_score(true >= 3, strange["Mahalanobis"]))
    alone = true != 4
    expected = roc_auc_score(true[alone] == 3, strange["Mahalanobis"][alone])
    assert areas["Mahalanobis"]["by_class"][3] == pytest.approx(expected)


def test_views_that_hardly_differ_make_no_steps() -> None:
    (train, label), (test, _) = cloud(0, (0, 1)), cloud(1, (0, 1), 40)
    nearly = np.repeat(test, 5, axis=0) + np.random.default_rng(2).normal(
        scale=1e-7, size=(5 * len(test), test.shape[1])
    )
    distance_Q, share_Q = quantiles_of(fit_reference(train, label).mahalanobis(nearly))
    assert np.diff(distance_Q).min() > 1e-4 * np.median(distance_Q)
    assert (share_Q[0], share_Q[-1]) == (0.0, 1.0)


def test_identical_embeddings_have_a_finite_distance() -> None:
    reference = fit_reference(np.ones((5, 3)), np.zeros(5, dtype=np.int64))
    assert np.isfinite(reference.mahalanobis(np.array([[1.0, 1.0, 2.0]]))).all()


def test_too_little_or_broken_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two"):
        fit_reference(np.zeros((1, 3)), np.zeros(1, dtype=np.int64))
    with pytest.raises(ValueError, match="finite"):
        fit_reference(np.full((3, 3), np.nan), np.zeros(3, dtype=np.int64))


def test_nothing_left_out_has_no_area() -> None:
    areas = novelty_scores({"score": np.arange(3.0)}, np.zeros(3, dtype=np.int64), np.zeros(0, dtype=np.int64))
    assert np.isnan(areas["score"]["all"])
    assert areas["score"]["by_class"] == {}


def answered(embedding: NDArray[np.float64], label: NDArray[np.int64]) -> ServedSample:
    """Objects of one view each, whose numbers of detections go from 0 to 9 and start again."""
    n = len(label)
    logits, objects = np.zeros((n, 3), np.float32), np.arange(n)
    return ServedSample(logits, embedding.astype(np.float32), label, objects, objects + 1, objects % 10)


def test_novelty_is_the_share_of_validation_objects_that_are_nearer() -> None:
    training, validation = answered(*cloud(0, (0, 1, 2))), answered(*cloud(1, (0, 1, 2), 400))
    fit = fit_novelty(training, validation)
    reference = fit_reference(training.embedding_NE, training.label_N)
    usual = reference.mahalanobis(validation.embedding_NE)
    queried, _ = cloud(2, (0, 1, 5), 30)
    distance = reference.mahalanobis(queried)
    expected = [(usual < one).mean() for one in distance]
    np.testing.assert_allclose(fit.novelty(queried), expected, atol=0.006)
    np.testing.assert_allclose(fit.novelty(validation.embedding_NE), usual.argsort().argsort() / 1199, atol=0.006)
    assert fit.novelty(1e3 * np.ones((1, 6))).tolist() == [1.0]


def test_alarms_are_counted_on_known_objects() -> None:
    training, validation = answered(*cloud(0, (0, 1, 2))), answered(*cloud(1, (0, 1, 2), 400))
    fit = fit_novelty(training, validation)
    alarm = fit.novelty(validation.embedding_NE) > fit.described.threshold
    assert fit.described.false_alarm_rate == alarm.mean() == pytest.approx(0.01, abs=0.002)
    detections = validation.detections_N
    expected = {0: detections < 2, 2: detections == 2, 3: (detections > 2) & (detections < 5), 5: detections >= 5}
    assert fit.described.by_detections == pytest.approx({start: alarm[of].mean() for start, of in expected.items()})
    assert (fit.described.objects, fit.described.reference_objects) == (1200, 180)
    assert fit.novelty(cloud(3, (5,))[0]).mean() > 0.95


def test_without_differences_there_is_no_novelty() -> None:
    same = answered(np.ones((5, 3)), np.zeros(5, dtype=np.int64))
    with pytest.raises(ValueError, match="equally far"):
        fit_novelty(same, same)
