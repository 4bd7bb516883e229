"""Lists for follow-up: thresholds for a purity, and the purity that is measured."""

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.stats import beta

from nightjar_alerts.models.follow_up import FollowUp, Horizon, days_since_detection, first_step
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.training.score.follow_up import DRAWS, THRESHOLDS, passing, rated
from nightjar_alerts.training.score.report import ServedPredictions

LOW, HIGH = (0.4, 0.3, 0.5), (0.9, 0.8, 0.95)


def lists(*purity: tuple[float, float, float]) -> FollowUp:
    done = Horizon(days=None, objects=40, purity=purity, completeness=tuple(reversed(purity)))
    early = Horizon(days=3.0, objects=40, purity=(LOW,) * len(purity), completeness=(LOW,) * len(purity))
    thresholds = tuple(np.linspace(0.1, 0.9, len(purity)).tolist())
    return FollowUp(thresholds=thresholds, classes={"TDE": (early, done)}, measured_on="tests")


def test_cut_is_the_lowest_threshold_from_which_on_the_purity_holds() -> None:
    stated = lists(HIGH, LOW, HIGH, HIGH)
    cut = stated.cut(stated.horizon("TDE", 100.0), 0.8)
    assert cut == (None, stated.thresholds[2], HIGH, LOW)


def test_cut_without_a_threshold_of_that_purity_is_none() -> None:
    stated = lists(LOW, HIGH)
    assert stated.cut(stated.horizon("TDE", 2.9), 0.8) is None
    assert stated.purest("TDE") == HIGH[0]


def test_horizon_is_the_shortest_that_is_long_enough() -> None:
    assert [lists(LOW).horizon("TDE", days).days for days in (0.0, 3.0, 3.1)] == [3.0, 3.0, None]


def test_horizons_that_do_not_end_with_complete_light_curves_are_refused() -> None:
    with pytest.raises(ValidationError, match="TDE: horizons must rise and end with null"):
        FollowUp(thresholds=(0.5,), classes={"TDE": (Horizon(days=3.0, objects=1),)}, measured_on="")


def test_days_since_detection_ignores_points_before() -> None:
    mjd, flux = np.array([60000.0, 60005.0, 60012.5]), np.ones(3, np.float32)
    curve = LightCurve(mjd, flux, flux, np.zeros(3, np.int64), np.array([False, True, False]))
    assert days_since_detection(curve) == 7.5


def test_rated_equals_the_posterior_of_two_classes() -> None:
    """With one other class of equal share, purity is a / (a + b) of two Beta variables."""
    passed_TC, total_C = np.array([[30, 2]]), np.array([40, 100])
    purity, completeness = rated(passed_TC, total_C, np.array([0.5, 0.5]), 0, np.random.default_rng(1))
    rng = np.random.default_rng(2)
    true, false = beta(30.5, 10.5).rvs(100_000, random_state=rng), beta(2.5, 98.5).rvs(100_000, random_state=rng)
    assert purity[0] == pytest.approx(np.percentile(true / (true + false), (50, 2.5, 97.5)), abs=3 / DRAWS**0.5 * 0.05)
    assert completeness[0] == pytest.approx(beta(30.5, 10.5).ppf((0.5, 0.025, 0.975)), abs=0.02)


def test_rated_gives_the_mix_its_weight() -> None:
    rows = np.array([[30, 2]]), np.array([40, 100])
    rare, common = (
        rated(*rows, np.array([share, 1 - share]), 0, np.random.default_rng(0))[0][0][0] for share in (0.01, 0.5)
    )
    assert rare < 0.4 < 0.9 < common


def test_passing_counts_by_true_class_and_never_unusual_objects() -> None:
    p_NC = np.array([[0.95, 0.05], [0.95, 0.05], [0.6, 0.4]])
    unusual_N = np.array([False, True, False])
    predictions = ServedPredictions(np.arange(3), p_NC, p_NC > 0.5, np.zeros(3), unusual_N, unusual_N)
    total_C, passed_CTC = passing(predictions, np.array([0, 0, 1]))
    at = THRESHOLDS.index(0.5)
    assert total_C.tolist() == [2, 1]
    assert passed_CTC[0, at].tolist() == [1, 1]
    assert passed_CTC[0, THRESHOLDS.index(0.9)].tolist() == [1, 0]


def test_first_step_of_a_class_without_purity_is_none() -> None:
    assert first_step(Horizon(days=None, objects=3), 0.5) is None
