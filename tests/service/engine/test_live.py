"""Live cost model: the scale follows the machine, the terms follow the runs."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from nightjar_alerts.core.cost import MIN_SHAPES, REFIT_RUNS, CostModel, LiveCost, RunSample

FITTED = CostModel(1e-3, 1e-5, 1e-9, 1e-4, 5e-6)
SHAPES = [(batch, length, batch * length) for batch, length in product((1, 4, 16), (8, 64, 300))]


def sampled(cost: CostModel) -> list[RunSample]:
    return [RunSample(*shape, cost.seconds(*shape)) for shape in SHAPES]


def serve(live: LiveCost, actual: Callable[[RunSample], float], runs: int = 2 * REFIT_RUNS, seed: int = 0) -> None:
    """Runs of random shapes whose durations follow ``actual`` with noise."""
    rng = np.random.default_rng(seed)
    for _ in range(runs):
        batch, length = int(rng.integers(1, 33)), int(rng.integers(1, 391))
        shape = RunSample(batch, length, int(rng.integers(length, batch * length + 1)), 0.0)
        seconds = actual(shape) * rng.uniform(0.95, 1.05)
        if live.update(shape._replace(seconds=seconds), seconds):
            live.refit()


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_live_cost_scale_converges(factor: float) -> None:
    live = LiveCost(FITTED)
    for _ in range(1000):
        seconds = factor * FITTED.seconds(4, 50)
        live.update(RunSample(4, 50, 200, seconds), seconds)
    assert live.model.seconds(2, 80) == pytest.approx(factor * FITTED.seconds(2, 80), rel=0.01)


def test_live_cost_single_interrupted_run_has_little_weight() -> None:
    live = LiveCost(CostModel(1e-3, 0.0, 0.0))
    live.update(RunSample(1, 1, 1, 1e-3), 60.0)
    assert live.model.seconds(1, 1) < 1.3e-3


def test_live_cost_refit_follows_the_runs() -> None:
    """The warm-up fit assumed packing, but the graph pads: a few hundred runs correct the model."""
    actual = CostModel(2e-3, 3e-5, 0.0, 1e-4)
    live = LiveCost(CostModel(2e-3, 0.0, 0.0, 1e-4, 3e-5), sampled(FITTED))
    serve(live, lambda run: actual.seconds(*run[:3]))
    for shape in ((16, 300, 400), (16, 300, 4800), (1, 100, 100)):
        assert live.model.seconds(*shape) == pytest.approx(actual.seconds(*shape), rel=0.15)


def test_live_cost_frequent_shapes_do_not_displace_rare_ones() -> None:
    live = LiveCost(FITTED, sampled(FITTED))
    for _ in range(3 * REFIT_RUNS):
        seconds = FITTED.seconds(1, 50)
        if live.update(RunSample(1, 50, 50, seconds), seconds):
            live.refit()
    for shape in SHAPES:
        assert live.model.seconds(*shape) == pytest.approx(FITTED.seconds(*shape), rel=0.05)


def test_live_cost_unseen_shapes_are_scaled_by_the_drift() -> None:
    live = LiveCost(FITTED, sampled(FITTED))
    for _ in range(2 * REFIT_RUNS):
        seconds = 3 * FITTED.seconds(1, 50)
        if live.update(RunSample(1, 50, 50, seconds), seconds):
            live.refit()
    assert live.model.seconds(16, 300) == pytest.approx(3 * FITTED.seconds(16, 300), rel=0.05)


def test_live_cost_refit_keeps_predicted_wall_times() -> None:
    """Runs take twice their processor time: a refit does not change the predicted wall times."""
    live = LiveCost(FITTED, sampled(FITTED))
    for _ in range(20):
        for shape in SHAPES:
            seconds = FITTED.seconds(*shape)
            live.update(RunSample(*shape, seconds), 2 * seconds)
    before = live.model.seconds(4, 64)
    live.refit()
    assert live.model.seconds(4, 64) == pytest.approx(before, rel=0.02)


def test_live_cost_refit_with_few_shapes_keeps_the_warm_up_fit() -> None:
    live = LiveCost(FITTED)
    for length in range(MIN_SHAPES - 4):
        live.update(RunSample(1, 4**length, 4**length, 1.0), 1.0)
    before = live.model
    live.refit()
    assert live.model == before


def test_live_cost_update_without_elapsed_time_is_ignored() -> None:
    live = LiveCost(FITTED, sampled(FITTED))
    assert not live.update(RunSample(1, 50, 50, 0.0), 1e-3)
    assert len(live.samples()) == len({sample[:3] for sample in live.samples()}) == len(SHAPES)


def test_live_cost_outlier_of_a_shape_is_ignored() -> None:
    live = LiveCost(FITTED, sampled(FITTED))
    for seconds in (1.0, *[FITTED.seconds(4, 64)] * 4):
        live.update(RunSample(4, 64, 256, seconds), seconds)
    assert max(sample.seconds for sample in live.samples()) < 0.5
