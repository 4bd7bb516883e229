import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nightjar_alerts.training.experiments.interpolation import (
    GRIDS,
    Grid,
    GridName,
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
FLOORS = {"romae": {3: 0.315, 10: 0.0991, 20: 0.0267}, "hetvae": {3: 0.333, 10: 0.1097, 20: 0.0297}}


def covariance(grid: Grid) -> Float64:
    """Covariance of the noise-free points, from the definition, point by point."""
    weight = np.array([[np.exp(-120.0 * (t - r) ** 2) for r in grid.reference_Z] for t in grid.time_L])
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
@pytest.mark.parametrize(("name", "key"), [("romae", "romae_synth/W"), ("hetvae", "hetvae/W")])
def test_weights_are_the_published_ones(name: GridName, key: str) -> None:
    stored = np.load(shared("parity", "generators.npz"))
    np.testing.assert_allclose(GRIDS[name].weights(), stored[key], atol=1e-12)


@needs_shared
def test_published_samples_fit_the_generator() -> None:
    """The stored curves lie in the span of the weights, and their noise is 0.1."""
    stored = np.load(shared("parity", "generators.npz"))
    clean_NL, noisy_NL = stored["hetvae/ground_truth_first8_seed0"], stored["hetvae/observed_first8_seed0"]
    weight_LZ = GRIDS["hetvae"].weights()
    fitted = weight_LZ @ np.linalg.lstsq(weight_LZ, clean_NL.T, rcond=None)[0]
    np.testing.assert_allclose(fitted.T, clean_NL, atol=1e-9)
    assert (noisy_NL - clean_NL).std() == pytest.approx(0.1, abs=0.015)


@needs_shared
@pytest.mark.parametrize(("name", "label"), [("romae", "RoMAE"), ("hetvae", "HeTVA")])
@pytest.mark.parametrize("count", [3, 10, 20])
def test_floors_are_the_stored_ones(name: GridName, label: str, count: int) -> None:
    stored = float(np.load(shared("parity", "generators.npz"))[f"bayes/{label}/{count}"])
    assert stored == pytest.approx(FLOORS[name][count], rel=0.005)


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("count", [3, 10, 20])
def test_the_bayes_mse_of_many_curves_is_the_expected_one(name: GridName, count: int) -> None:
    """Twice: the posterior variance, which needs no curves, and the MSE of the posterior mean on drawn ones."""
    rng = np.random.default_rng(7)
    grid = GRIDS[name]
    curve_NL = draw_curves(2_000, grid, rng)
    observed_NL = draw_observed(np.full(2_000, count), len(grid.time_L), rng)
    predicted_NL = posterior_mean(curve_NL, observed_NL, grid)
    variance = posterior_variance(observed_NL, covariance(grid))
    assert variance == pytest.approx(FLOORS[name][count], rel=0.06)  # 2,000 masks: four standard errors at 20 points
    mse_N = np.where(observed_NL, 0.0, (predicted_NL - curve_NL) ** 2).sum(1) / (len(grid.time_L) - count)
    assert hidden_mse(predicted_NL, curve_NL, observed_NL) == pytest.approx(mse_N.mean())
    assert abs(mse_N.mean() - variance) < 4 * mse_N.std() / np.sqrt(len(mse_N))


@pytest.mark.parametrize("name", GRIDS)
def test_the_posterior_mean_is_that_of_gaussian_conditioning(name: GridName) -> None:
    """E[y_h | y_o] = C_ho (C_oo + 0.01 I)^-1 y_o, in the space of points, where the code works with the z."""
    rng = np.random.default_rng(1)
    grid = GRIDS[name]
    curve_NL = draw_curves(5, grid, rng)
    observed_NL = draw_observed(np.array([3, 4, 7, 10, 20]), len(grid.time_L), rng)
    predicted_NL = posterior_mean(curve_NL, observed_NL, grid)
    joint = covariance(grid)
    for curve, observed, predicted in zip(curve_NL, observed_NL, predicted_NL, strict=True):
        noisy = joint[np.ix_(observed, observed)] + 0.01 * np.eye(observed.sum())
        expected = joint[:, observed] @ np.linalg.solve(noisy, curve[observed])
        np.testing.assert_allclose(predicted, expected, atol=1e-9)


def test_masks_have_the_counts_asked_for() -> None:
    count_N = np.array([3, 10, 20, 7])
    observed_NL = draw_observed(count_N, 50, np.random.default_rng(0))
    assert observed_NL.sum(1).tolist() == count_N.tolist()


def test_no_test_curve_is_a_training_curve() -> None:
    grid = GRIDS["romae"]
    train_NL, test_NL = train_curves(grid), held_out_cases(grid)[0].curve_NL
    assert (train_NL.shape, test_NL.shape) == ((1600, 50), (400, 50))
    assert not np.isin(test_NL[:, 0], train_NL[:, 0]).any()


def test_the_optimum_has_ratio_one_and_zero_is_far_from_it() -> None:
    grid = GRIDS["romae"]
    cases = held_out_cases(grid, 200)

    def optimum(curve_NL1: Float64, shown_NL: NDArray[np.bool_]) -> Float64:
        return posterior_mean(curve_NL1[..., 0], shown_NL, grid)[..., None]

    best = over_bayes(optimum, grid, cases)
    assert [best[f"MSE / Bayes, {case.name}"] for case in cases] == [1.0] * 4
    zero = over_bayes(lambda curve_NL1, _: np.zeros_like(curve_NL1), grid, cases)
    assert zero["MSE, n=3..10"] == pytest.approx(0.49, abs=0.03)
    assert zero["MSE / Bayes, n=10"] > 4
    assert floors(grid, cases)["MSE, n=10"] == pytest.approx(zero["MSE, n=10"] / zero["MSE / Bayes, n=10"])


def test_the_plan_is_the_published_run() -> None:
    plan = Interpolation(seed=3).plan()
    assert (plan.variant, plan.published_steps, plan.fit.seed) == ("romae-x50", 10_000, 3)
    assert (plan.fit.schedule.warmup_steps, plan.fit.optimiser.clip_norm) == (200, 1.0)
    batch = next(plan.task.batches(0))
    assert batch.values_BLK.shape == (8, 50, 1)
    shown_B = (~batch.hidden_BL).sum(1)
    assert bool(((shown_B >= 3) & (shown_B <= 10)).all())


def test_variants_name_what_was_changed() -> None:
    assert Interpolation(grid="hetvae", position_scale=1.0, lr=1e-3).variant() == "hetvae-x1-lr0.001"
    assert Interpolation(most_observed=20, decoder="tiny").variant() == "romae-x50-n20-tiny"


def test_batches_are_a_function_of_the_step() -> None:
    task = Interpolation().plan().task
    batches = task.batches(198)
    for _ in range(4):  # over the end of an epoch of 200
        expected = next(batches)
    again = next(task.batches(201))
    assert torch.equal(again.values_BLK, expected.values_BLK)
    assert torch.equal(again.hidden_BL, expected.hidden_BL)
