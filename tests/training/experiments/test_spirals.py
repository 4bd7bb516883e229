import numpy as np
import pytest

from nightjar_alerts.training.experiments.spirals import (
    N_TEST,
    THETA_L,
    SpiralsExperiment,
    curves,
    draw_shown,
    draw_spirals,
    errors,
)
from support.shared import needs_shared, shared


def test_curves_are_the_definition_point_by_point() -> None:
    a, b = 0.013, 0.31
    outward, inward = curves(np.array([a, a]), np.array([b, b]), np.array([False, True]))
    for index, theta in enumerate(np.linspace(0.0, 6 * np.pi, 150)):
        radius = a + b * theta
        np.testing.assert_allclose(outward[index], (radius * np.cos(theta) + 5, radius * np.sin(theta)))
        zeta = 6 * np.pi + 1 - theta
        radius = a + 50 * b / zeta
        np.testing.assert_allclose(inward[149 - index], (radius * np.cos(zeta) - 5, radius * np.sin(zeta)))


@needs_shared
@pytest.mark.parametrize("key", ["spiral_romae/train_orig_first4", "spiral_romae/test_orig_first4"])
def test_published_samples_are_curves_of_this_family(key: str) -> None:
    """Points are linear in a and b, so a least-squares fit of both leaves nothing over."""
    stored = np.load(shared("parity", "generators.npz"))
    np.testing.assert_allclose(THETA_L, stored["spiral_romae/ts"])
    for sample_L2 in stored[key]:
        clockwise_3 = np.full(3, sample_L2[0, 1] != 0.0)
        origin, along_a, along_b = curves(np.array([0.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0]), clockwise_3)
        basis = np.stack([(along_a - origin).ravel(), (along_b - origin).ravel()], axis=1)
        (a, b), residual, *_ = np.linalg.lstsq(basis, (sample_L2 - origin).ravel(), rcond=None)
        assert residual[0] < 1e-18
        assert (a, b) == pytest.approx((0.0, 0.3), abs=0.08)  # four standard deviations


@needs_shared
def test_published_noise() -> None:
    stored = np.load(shared("parity", "generators.npz"))
    noise = stored["spiral_romae/test_noisy_first4"] - stored["spiral_romae/test_orig_first4"]
    assert noise.std() == pytest.approx(0.1, rel=0.05)


def test_distribution_of_the_drawn_spirals() -> None:
    train, test = draw_spirals()
    assert (train.clean_NL2.shape, test.clean_NL2.shape) == ((200, 75, 2), (100, 75, 2))
    assert (train.noisy_NL2 - train.clean_NL2).std() == pytest.approx(0.1, rel=0.02)
    counter_clockwise = np.isclose(train.clean_NL2[:, 0, 1], 0.0).mean()
    assert counter_clockwise == pytest.approx(0.5, abs=0.1)
    assert not np.isin(test.noisy_NL2[:, 0, 0], train.noisy_NL2[:, 0, 0]).any()


def test_points_shown() -> None:
    shown_NL = draw_shown(20, np.random.default_rng(0))
    assert shown_NL.shape == (20, 75)
    assert set(shown_NL.sum(1)) == {30}


def test_the_truth_scores_the_noise_and_zero() -> None:
    _, test = draw_spirals()
    shown_NL = draw_shown(N_TEST, np.random.default_rng(0))
    truth = errors(test.clean_NL2, test, shown_NL)
    assert truth["noisy RMSE"] == pytest.approx(0.1, rel=0.03)
    assert truth["clean RMSE"] == 0.0


def test_the_plan_is_the_published_table() -> None:
    plan = SpiralsExperiment(steps=70).plan()
    assert (plan.variant, plan.published_steps, plan.fit.schedule.steps) == ("romae-tiny", 3_500, 70)
    assert plan.fit.schedule.warmup_steps == 4
    assert plan.floor["noisy RMSE"] == 0.1
    assert next(plan.task.batches(0)).values_BLK.shape == (32, 75, 2)
    assert next(plan.task.batches(6)).values_BLK.shape == (8, 75, 2)
