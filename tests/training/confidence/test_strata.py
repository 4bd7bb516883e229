"""Thresholds by stratum: they cover in every stratum, are never below the floor, and follow other class shares."""

import numpy as np
import pytest

from nightjar_alerts.models.lightcurve import Float64, Int64
from nightjar_alerts.models.posterior import PredictionSets
from nightjar_alerts.training.confidence.sets import BY_STRATUM, Strata, coverage_and_size, fit_sets, reweighted

CLASSES = 6


def drawn(number: int, seed: int) -> tuple[Float64, Int64, Strata]:
    """Calibrated probabilities, less sure with few detections, and labels drawn from them."""
    rng = np.random.default_rng(seed)
    detections = rng.integers(0, 40, number)
    spread = np.where(detections < 8, 1.0, 4.0)[:, None]
    logits = spread * rng.standard_normal((number, CLASSES))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    label = (p.cumsum(1) < rng.random((number, 1))).sum(1)
    source = rng.choice(["large", "large", "large", "small"], number)
    return p, label, Strata(detections, rng.integers(1, 5, number), rng.random(number), source)


@pytest.fixture(scope="module")
def sets() -> PredictionSets:
    return fit_sets(*drawn(20_000, 0), BY_STRATUM, measured_on="drawn numbers")


def test_other_light_curves_are_covered_in_every_stratum(sets: PredictionSets) -> None:
    p, label, strata = drawn(6_000, 1)
    for rows in (strata.detections < 3, strata.detections >= 20, strata.bands == 1, strata.novelty > 0.8):
        assert coverage_and_size(sets, p[rows], label[rows], strata.take(rows))["coverage"] > 0.88


def test_fit_sets_thresholds_have_a_floor_and_rise_with_novelty(sets: PredictionSets) -> None:
    assert min(min(group.largest) for group in sets.groups) >= BY_STRATUM.floor
    usual = {group.edges[:2]: group.largest for group in sets.groups if group.novelty == 0}
    for group in sets.groups:
        assert all(np.greater_equal(group.largest, usual[group.edges[:2]]))


def test_few_light_curves_of_a_stratum_take_the_thresholds_around_it() -> None:
    p, label, strata = drawn(400, 2)
    few = fit_sets(p, label, strata, BY_STRATUM)
    assert {group.detections for group in few.groups} == {0, 3, 8, 20}
    assert len({group.largest for group in few.groups}) < len(few.groups)


def test_under_other_shares_sets_cover_what_those_shares_hold() -> None:
    p, label, strata = drawn(20_000, 3)
    ratio = np.array([5.0, 1.0, 1.0, 0.2, 0.2, 0.0])
    new_p, weight = reweighted(p, ratio), ratio[label]
    weighs = weight > 0
    own = new_p[weighs], label[weighs], strata.take(weighs)
    fitted = fit_sets(*own, BY_STRATUM, ratio_N=weight[weighs])
    assert coverage_and_size(fitted, *own, weight[weighs])["coverage"] > 0.9
    np.testing.assert_allclose(new_p.sum(1), 1.0)
    assert (new_p[:, 5] == 0).all()
