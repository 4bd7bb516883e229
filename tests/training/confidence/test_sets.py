"""Thresholds of served sets: the quantile by definition, coverage on fresh objects, groups only where needed."""

import numpy as np
import pytest
from numpy.typing import NDArray

from nightjar_alerts.training.confidence.sets import COVERAGES, SMALLEST_GROUP, fit_sets_by_detections, lac_scores

Drawn = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]


def drawn(seed: int, n: int, sure: bool) -> Drawn:
    """Probabilities, labels and detections; unless ``sure``, few detections are less right than told."""
    rng = np.random.default_rng(seed)
    detections_N = np.array([1, 2, 3, 7, 12, 40])[rng.integers(0, 6, n)]
    weights_NC = np.exp(2 * rng.normal(size=(n, 6)))
    p_NC = weights_NC / weights_NC.sum(1, keepdims=True)
    flat_NC = p_NC if sure else np.where(detections_N[:, None] < 3, 1 / 6, p_NC)
    label_N = (rng.random((n, 1)) > flat_NC.cumsum(1)).sum(1).clip(0, 5)
    return p_NC, label_N, detections_N


def covered(fitted: Drawn, curves: Drawn) -> tuple[NDArray[np.bool_], int]:
    sets = fit_sets_by_detections(*fitted, np.arange(len(fitted[0]))).sets
    rows = zip(*curves, strict=True)
    return np.array([label in sets.named(p, int(n)).classes for p, label, n in rows]), len(sets.groups)


def test_scores_by_definition() -> None:
    p_NC = np.array([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
    np.testing.assert_allclose(lac_scores(p_NC, np.array([0, 2, 1])), [0.0, 0.9, 0.7])


def test_the_threshold_is_the_conformal_quantile() -> None:
    p_NC, label_N, _ = drawn(1, 150, sure=True)
    fit = fit_sets_by_detections(p_NC, label_N, np.full(150, 4), np.arange(150))
    score = sorted(0.0 if p.argmax() == label else 1 - p[label] for p, label in zip(p_NC, label_N, strict=True))
    (group,) = fit.sets.groups
    assert group.detections == 0
    for coverage, largest in zip(COVERAGES, group.largest, strict=True):
        assert largest == score[int(np.ceil(151 * coverage - 1e-9)) - 1]


@pytest.mark.parametrize("sure", [True, False])
def test_coverage_holds_at_every_number_of_detections(sure: bool) -> None:
    curves = drawn(3, 6000, sure)
    inside_N, groups = covered(drawn(2, 6000, sure), curves)
    assert groups == (1 if sure else 6)
    for number in (1, 2, 3, 7, 12, 40):
        assert inside_N[curves[2] == number].mean() == pytest.approx(0.9, abs=0.035)


def test_one_threshold_would_not_have_held() -> None:
    p_NC, label_N, detections_N = drawn(4, 6000, sure=False)
    coverage = fit_sets_by_detections(p_NC, label_N, detections_N, np.arange(6000)).coverage_of_one
    assert coverage["0"] < 0.85
    assert coverage["20"] > 0.92


def test_small_groups_share_and_nothing_is_an_error() -> None:
    detections_N = np.repeat([0, 3, 7, 12, 40], [SMALLEST_GROUP, *[SMALLEST_GROUP // 2] * 4])
    p_NC, label_N, _ = drawn(5, len(detections_N), sure=True)
    label_N[:SMALLEST_GROUP] = p_NC[:SMALLEST_GROUP].argmin(1)
    groups = fit_sets_by_detections(p_NC, label_N, detections_N, np.arange(len(p_NC))).sets.groups
    assert [(group.detections, group.views) for group in groups] == [(0, 200), (2, 200), (10, 200)]
    (only,) = fit_sets_by_detections(p_NC[:3], label_N[:3], detections_N[:3], np.arange(3)).sets.groups
    assert only.largest == (1.0,) * len(COVERAGES)  # too few to promise anything: every class
    with pytest.raises(ValueError, match="at least one"):
        fit_sets_by_detections(p_NC[:0], label_N[:0], detections_N[:0], np.arange(0))
