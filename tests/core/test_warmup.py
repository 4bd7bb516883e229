"""Warm-up measures the cost of runs."""

import pytest

from nightjar_alerts.core.adapter import Adapter, Arrays
from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.core.warmup import MIN_SAMPLES, WARM_UP_SHAPES, measure
from nightjar_alerts.models.lightcurve import Limits
from support.graphs import EchoGraph, echo_manifest

ADAPTER = Adapter(echo_manifest())


class FakeClock:
    """Clock that only runs of the graph advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_measure_fits_fixed_and_variable_costs() -> None:
    clock = FakeClock()

    def run(inputs: Arrays) -> Arrays:
        clock.now += 2e-3 + 1e-5 * int(inputs["mask"].sum())
        return inputs

    cost = CostModel.fit(measure(run, ADAPTER, repeats=1, budget=60.0, clock=clock))
    for shape in ((1, 4, 4), (16, 64, 1024), (16, 64, 124)):
        assert cost.seconds(*shape) == pytest.approx(2e-3 + 1e-5 * shape[2], rel=1e-3)


def test_measure_stops_after_its_budget() -> None:
    graph = EchoGraph()
    measure(graph, ADAPTER, repeats=2, budget=0.0)
    assert len(graph.batches) == 3 * MIN_SAMPLES
    assert len(WARM_UP_SHAPES) > MIN_SAMPLES


def test_dummy_batch_respects_the_limits_of_the_network() -> None:
    longest = 0

    def watched(inputs: Arrays) -> Arrays:
        nonlocal longest
        longest = max(longest, inputs["mask"].shape[1])
        return inputs

    measure(watched, Adapter(echo_manifest(Limits(max_points_per_band=10))), repeats=1)
    assert longest == 60
