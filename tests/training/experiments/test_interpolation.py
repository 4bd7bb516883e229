import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nightjar_alerts.training.experiments.interpolation import (
    REFERENCE_Z,
    TIME_L,
    WEIGHT_LZ,
    Interpolation,
    draw_curves,
    draw_observed,
    floors,
    held_out_cases,
    hidden_mse,
    over_bayes,
    posterior_mean,
    train_curves,
)
from support.shared import needs_shared, shared

Float64 = NDArray[np.float64]

# Expected Bayes MSE on noisy held-out points, in an independent calculation with many more curves.
FLOORS = {3: 0.315, 10: 0.0991, 20: 0.0267}


def covariance() -> Float64:
    """Covariance of the noise-free points, from the definition, point by point."""
    weight = np.array([[np.exp(-120.0 * (t - r) ** 2) for r in REFERENCE_Z] for t in TIME_L])
    weight /= weight.sum(1, keepdims=True)
    return np.asarray(weight @ weight.T)


def posterior_variance(observed_NL: NDArray[np.bool_], joint_LL: Float64) -> float:
    """Mean of diag(C - C (C + R)^-1 C) + 0.01 over hidden points.

    R has 0.01 at observed points; 1e9 at the hidden ones is as good as not observing them.
    """
    noise_NL = np.where(observed_NL, 0.01, 1e9)
    gain_NLL = joint_LL @ np.linalg.inv(joint_LL + noise_NL[:, :, None] * np.eye(len(joint_LL)))
    variance_NL = np.diag(joint_LL) - (gain_NLL * joint_LL).sum(2) + 0.01
    return float(variance_NL[~observed_NL].mean())


@needs_shared
def test_weights_are_the_published_ones() -> None:
    stored = np.load(shared("parity", "generators.npz"))
    np.testing.assert_allclose(WEIGHT_LZ, stored["romae_synth/W"], atol=1e-12)


@needs_shared
@pytest.mark.parametrize("count", [3, 10, 20])
def test_floors_are_the_stored_ones(count: int) -> None:
    stored = float(np.load(shared("parity", "generators.npz"))[f"bayes/RoMAE/{count}"])
    assert stored == pytest.approx(FLOORS[count], rel=0.005)


@pytest.mark.parametrize("count", [3, 10, 20])
def test_the_bayes_mse_of_many_curves_is_the_expected_one(count: int) -> None:
    """Twice: the posterior variance, which needs no curves, and the MSE of the posterior mean on drawn ones."""
    rng = np.random.default_rng(7)
    curve_NL = draw_curves(2_000, rng)
    observed_NL = draw_observed(np.full(2_000, count), rng)
    predicted_NL = posterior_mean(curve_NL, observed_NL)
    variance = posterior_variance(observed_NL, covariance())
    assert variance == pytest.approx(FLOORS[count], rel=0.06)  # 2,000 masks: four standard errors at 20 points
    mse_N = np.where(observed_NL, 0.0, (predicted_NL - curve_NL) ** 2).sum(1) / (len(TIME_L) - count)
    assert hidden_mse(predicted_NL, curve_NL, observed_NL) == pytest.approx(mse_N.mean())
    assert abs(mse_N.mean() - variance) < 4 * mse_N.std() / np.sqrt(len(mse_N))


def test_the_posterior_mean_is_that_of_gaussian_conditioning() -> None:
    """E[y_h | y_o] = C_ho (C_oo + 0.01 I)^-1 y_o, in the space of points, where the code works with the z."""
    rng = np.random.default_rng(1)
    curve_NL = draw_curves(5, rng)
    observed_NL = draw_observed(np.array([3, 4, 7, 10, 20]), rng)
    predicted_NL = posterior_mean(curve_NL, observed_NL)
    joint = covariance()
    for curve, observed, predicted in zip(curve_NL, observed_NL, predicted_NL, strict=True):
        noisy = joint[np.ix_(observed, observed)] + 0.01 * np.eye(observed.sum())
        expected = joint[:, observed] @ np.linalg.solve(noisy, curve[observed])
        np.testing.assert_allclose(predicted, expected, atol=1e-9)


def test_masks_have_the_requested_counts() -> None:
    count_N = np.array([3, 10, 20, 7])
    observed_NL = draw_observed(count_N, np.random.default_rng(0))
    assert observed_NL.sum(1).tolist() == count_N.tolist()


def test_no_test_curve_is_a_training_curve() -> None:
    train_NL, test_NL = train_curves(), held_out_cases()[0].curve_NL
    assert (train_NL.shape, test_NL.shape) == ((1600, 50), (400, 50))
    assert not np.isin(test_NL[:, 0], train_NL[:, 0]).any()


def test_the_optimum_has_ratio_one_and_zero_is_far_from_it() -> None:
    cases = held_out_cases(200)

    def optimum(curve_NL1: Float64, shown_NL: NDArray[np.bool_]) -> Float64:
        return posterior_mean(curve_NL1[..., 0], shown_NL)[..., None]

    best = over_bayes(optimum, cases)
    assert [best[f"MSE / Bayes, {case.name}"] for case in cases] == [1.0] * 4
    zero = over_bayes(lambda curve_NL1, _: np.zeros_like(curve_NL1), cases)
    assert zero["MSE, n=3..10"] == pytest.approx(0.49, abs=0.03)
    assert zero["MSE / Bayes, n=10"] > 4
    assert floors(cases)["MSE, n=10"] == pytest.approx(zero["MSE, n=10"] / zero["MSE / Bayes, n=10"])


def test_the_plan_is_the_published_run() -> None:
    assert Interpolation(most_observed=20).plan().variant == "romae-x50-n20"
    plan = Interpolation(seed=3).plan()
    assert (plan.variant, plan.published_steps, plan.fit.seed) == ("romae-x50", 10_000, 3)
    assert (plan.fit.schedule.warmup_steps, plan.fit.optimizer.clip_norm) == (200, 1.0)
    batch = next(plan.task.batches(0))
    assert batch.values_BLK.shape == (8, 50, 1)
    shown_B = (~batch.hidden_BL).sum(1)
    assert bool(((shown_B >= 3) & (shown_B <= 10)).all())


def test_batches_are_a_function_of_the_step() -> None:
    task = Interpolation().plan().task
    batches = task.batches(198)
    for _ in range(4):  # over the end of an epoch of 200
        expected = next(batches)
    again = next(task.batches(201))
    assert torch.equal(again.values_BLK, expected.values_BLK)
    assert torch.equal(again.hidden_BL, expected.hidden_BL)
