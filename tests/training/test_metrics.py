"""Every score against scikit-learn's or a hand calculation."""

import numpy as np
import pytest
import sklearn.metrics as sk
from numpy.typing import NDArray

from nightjar_alerts.training.metrics import (
    SCORES,
    area_under_roc,
    auroc,
    balanced_accuracy,
    brier,
    confusion,
    ece,
    f1_per_class,
    log_loss,
    macro_f1,
    reliability,
    scores,
    top_k,
)

CLASSES = 6


@pytest.fixture(params=range(3))
def predictions(request: pytest.FixtureRequest) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(request.param)
    label_B = rng.integers(0, CLASSES, 300)
    logits_BC = rng.normal(size=(300, CLASSES)) + 2 * np.eye(CLASSES)[label_B]
    weights_BC = np.exp(logits_BC)
    return weights_BC / weights_BC.sum(1, keepdims=True), label_B


def test_scores_agree_with_scikit_learn(predictions: tuple[NDArray[np.float64], NDArray[np.int64]]) -> None:
    probabilities_BC, label_B = predictions
    predicted_B = probabilities_BC.argmax(1)
    counts = confusion(label_B, predicted_B, CLASSES)
    np.testing.assert_array_equal(counts, sk.confusion_matrix(label_B, predicted_B))
    np.testing.assert_allclose(f1_per_class(counts), sk.f1_score(label_B, predicted_B, average=None))
    assert macro_f1(counts) == pytest.approx(sk.f1_score(label_B, predicted_B, average="macro"))
    assert balanced_accuracy(counts) == pytest.approx(sk.balanced_accuracy_score(label_B, predicted_B))
    assert log_loss(probabilities_BC, label_B) == pytest.approx(sk.log_loss(label_B, probabilities_BC))
    assert top_k(probabilities_BC, label_B, 2) == pytest.approx(sk.top_k_accuracy_score(label_B, probabilities_BC, k=2))
    squared = ((probabilities_BC - np.eye(CLASSES)[label_B]) ** 2).sum(1).mean()
    assert brier(probabilities_BC, label_B) == pytest.approx(squared)


def test_auroc_agrees_with_scikit_learn(predictions: tuple[NDArray[np.float64], NDArray[np.int64]]) -> None:
    probabilities_BC, label_B = predictions
    expected = sk.roc_auc_score(label_B, probabilities_BC, multi_class="ovr", average="macro")
    assert auroc(probabilities_BC, label_B) == pytest.approx(expected)
    coarse_B = probabilities_BC[:, 0].round(1)  # many ties
    assert area_under_roc(coarse_B, label_B == 0) == pytest.approx(sk.roc_auc_score(label_B == 0, coarse_B))


def test_auroc_leaves_out_classes_without_two_sides() -> None:
    rng = np.random.default_rng(0)
    probabilities_BC, label_B = rng.dirichlet(np.ones(3), 40), rng.integers(0, 2, 40)
    sides = [sk.roc_auc_score(label_B == label, probabilities_BC[:, label]) for label in (0, 1)]
    assert auroc(probabilities_BC, label_B) == pytest.approx(np.mean(sides))
    assert np.isnan(auroc(probabilities_BC, np.zeros(40, dtype=np.int64)))


def test_scores_without_objects_are_empty() -> None:
    empty = scores(np.zeros((0, CLASSES)), np.zeros(0, dtype=np.int64))
    assert tuple(empty) == SCORES
    assert np.isnan(list(empty.values())).all()


def test_probabilities_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        scores(np.array([[np.nan, 0.5]]), np.array([0]))


def test_classes_that_never_occur_do_not_count() -> None:
    counts = confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 5)
    assert np.isnan(f1_per_class(counts)[2:]).all()
    assert macro_f1(counts) == pytest.approx(2 / 3)
    assert balanced_accuracy(counts) == pytest.approx(0.75)
    assert macro_f1(np.zeros((3, 3), dtype=np.int64)) == 0.0


def test_a_sure_and_wrong_prediction_costs_much_but_not_infinity() -> None:
    certain = np.array([[1.0, 0.0]], dtype=np.float32)
    assert log_loss(certain, np.array([1])) == pytest.approx(-np.log(1e-7))
    assert brier(certain, np.array([1])) == 2.0


def test_calibration_error_by_hand() -> None:
    # Two bins: five objects at 0.9, four right; five at 0.6, three right.
    top = np.array([0.9] * 5 + [0.6] * 5)
    probabilities_BC = np.stack([top, 1 - top], axis=1)
    label_B = np.array([0, 0, 0, 0, 1, 0, 0, 0, 1, 1])
    assert ece(probabilities_BC, label_B) == pytest.approx(0.5 * 0.1 + 0.5 * 0.0)
    table = reliability(probabilities_BC, label_B)
    assert table[:, 0].sum() == 10
    assert np.isnan(table[0, 1:]).all()


def test_certainty_falls_into_the_last_bin() -> None:
    table = reliability(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([0, 0]), bins=2)
    assert table[:, 0].tolist() == [1, 1]


def test_all_scores_are_numbers(predictions: tuple[NDArray[np.float64], NDArray[np.int64]]) -> None:
    assert all(np.isfinite(value) for value in scores(*predictions).values())
