"""Warm-up finds what a graph costs, and the live scale follows the machine."""

import time

import pytest

from models.lightcurve import Limits
from service.inference.batching import Arrays
from service.inference.costs import MIN_SAMPLES, WARM_UP_SHAPES, LiveCost, warm_up
from service.inference.programs import Classification
from service.inference.scheduling import CostModel
from support.graphs import EchoGraph, echo_manifest

PROGRAM = Classification(echo_manifest())


def test_warm_up_finds_the_fixed_and_the_growing_cost() -> None:
    graph = EchoGraph()

    def slow(inputs: Arrays) -> Arrays:
        time.sleep(2e-3 + 1e-5 * int(inputs["mask"].sum()))
        return graph(inputs)

    cost = warm_up(slow, PROGRAM, repeats=1)
    assert cost.seconds(1, 4) == pytest.approx(2.1e-3, rel=0.4)
    assert cost.seconds(16, 64, 1024) == pytest.approx(12.3e-3, rel=0.4)
    assert cost.seconds(16, 64, 124) < 0.6 * cost.seconds(16, 64, 1024)


def test_warm_up_stops_when_its_time_is_spent() -> None:
    graph = EchoGraph()
    warm_up(graph, PROGRAM, repeats=2, budget=0.0)
    assert len(graph.batches) == 3 * MIN_SAMPLES
    assert len(WARM_UP_SHAPES) > MIN_SAMPLES


def test_warm_up_respects_the_limits_of_the_network() -> None:
    longest = 0

    def watched(inputs: Arrays) -> Arrays:
        nonlocal longest
        longest = max(longest, inputs["mask"].shape[1])
        return inputs

    warm_up(watched, Classification(echo_manifest(Limits(max_points_per_band=10))), repeats=1)
    assert longest == 60


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_the_live_scale_converges_on_the_machine(factor: float) -> None:
    fitted = CostModel(1e-3, 1e-5, 1e-9)
    live = LiveCost(fitted)
    for _ in range(1000):
        live.update(factor * fitted.seconds(4, 50), live.model.seconds(4, 50))
    assert live.model.seconds(2, 80) == pytest.approx(factor * fitted.seconds(2, 80), rel=0.01)


def test_one_interrupted_run_hardly_counts() -> None:
    live = LiveCost(CostModel(1e-3, 0.0, 0.0))
    live.update(60.0, 1e-3)
    assert live.model.seconds(1, 1) < 1.3e-3
