"""Conformal sets: thresholds against the definition, and coverage on objects drawn alike."""

import numpy as np
import pytest
from numpy.typing import NDArray

from nightjar_alerts.training.confidence.sets import class_coverage, fit_conformal, set_scores, sets_of

Drawn = tuple[NDArray[np.float64], NDArray[np.int64]]


def objects(seed: int, n: int = 4000, classes: int = 5) -> Drawn:
    """Unequal classes, of which the rarest is hard to tell, and a network that is too sure of itself."""
    rng = np.random.default_rng(seed)
    label_B = rng.choice(classes, n, p=np.array([0.5, 0.3, 0.1, 0.07, 0.03]))
    signal_C = np.array([1.5, 1.5, 1.5, 1.5, 0.2])
    logits_BC = 2.5 * (rng.normal(size=(n, classes)) + np.diag(signal_C)[label_B])
    weights_BC = np.exp(logits_BC - logits_BC.max(1, keepdims=True))
    return weights_BC / weights_BC.sum(1, keepdims=True), label_B


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
def test_the_stated_coverage_is_reached(alpha: float) -> None:
    threshold_C = fit_conformal(*objects(1), alpha=alpha)
    probabilities_BC, label_B = objects(2, 8000)
    scores = set_scores(sets_of(probabilities_BC, threshold_C), label_B)
    assert scores["coverage"] == pytest.approx(1 - alpha, abs=0.02)


def test_thresholds_by_class_cover_rare_classes_too() -> None:
    probabilities_BC, label_B = objects(3, 8000)
    together, apart = (fit_conformal(*objects(4), by_class=by_class) for by_class in (False, True))
    assert set_scores(sets_of(probabilities_BC, together), label_B)["worst_class_coverage"] < 0.87
    coverage_C = class_coverage(sets_of(probabilities_BC, apart), label_B)
    assert coverage_C.min() > 0.84
    assert set_scores(sets_of(probabilities_BC, apart), label_B)["worst_class_coverage"] == pytest.approx(
        coverage_C.min()
    )


def test_the_threshold_is_the_finite_sample_quantile() -> None:
    probabilities_BC, label_B = objects(5, 19)
    score = sorted(1 - probabilities_BC[np.arange(19), label_B])
    assert fit_conformal(probabilities_BC, label_B, alpha=0.1)[0] == pytest.approx(score[17])  # 18th of 19
    assert np.isinf(fit_conformal(probabilities_BC[:8], label_B[:8], alpha=0.1)).all()  # 9 x 0.9 > 8


def test_a_class_never_seen_is_in_every_set() -> None:
    probabilities_BC, label_B = objects(6, 500)
    is_seen = label_B != 4
    threshold_C = fit_conformal(probabilities_BC[is_seen], label_B[is_seen], by_class=True)
    assert sets_of(probabilities_BC, threshold_C)[:, 4].all()
    assert np.isnan(class_coverage(sets_of(probabilities_BC[is_seen], threshold_C), label_B[is_seen])[4])


def test_scores_of_sets_by_hand() -> None:
    inside = np.array([[True, False, False], [True, True, False], [False, False, False], [False, True, True]])
    scores = set_scores(inside, np.array([0, 0, 1, 1]))
    assert scores == {"coverage": 0.75, "worst_class_coverage": 0.5, "mean_size": 1.25, "empty": 0.25, "single": 0.25}
    assert all(np.isnan(value) for value in set_scores(inside[:0], np.zeros(0, dtype=np.int64)).values())


@pytest.mark.parametrize("alpha", [0.0, 1.0, -1.0, float("nan")])
def test_a_coverage_that_is_none_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        fit_conformal(*objects(0, 10), alpha=alpha)


def test_nothing_to_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        fit_conformal(np.zeros((0, 3)), np.zeros(0, dtype=np.int64))
    with pytest.raises(ValueError, match="finite"):
        fit_conformal(np.array([[np.nan, 1.0]]), np.array([1]))
