"""Warm-up finds what a graph costs, and how wide a batch is worth it."""

from collections.abc import Callable

import pytest

from nightjar_alerts.models.lightcurve import Limits
from nightjar_alerts.models.runtime import MemoryBound
from nightjar_alerts.service.engine.batch import Arrays, Classification
from nightjar_alerts.service.engine.machine import MIN_SAMPLES, WARM_UP_SHAPES, WIDTHS, measure, widest
from nightjar_alerts.service.engine.policy import CostModel
from support.graphs import EchoGraph, echo_manifest

PROGRAM = Classification(echo_manifest())


class FakeClock:
    """Time that only a graph lets pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_warm_up_finds_the_fixed_and_the_growing_cost() -> None:
    clock = FakeClock()

    def run(inputs: Arrays) -> Arrays:
        clock.now += 2e-3 + 1e-5 * int(inputs["mask"].sum())
        return inputs

    cost = CostModel.fit(measure(run, PROGRAM, repeats=1, budget=60.0, clock=clock))
    for shape in ((1, 4, 4), (16, 64, 1024), (16, 64, 124)):
        assert cost.seconds(*shape) == pytest.approx(2e-3 + 1e-5 * shape[2], rel=1e-3)


def test_warm_up_stops_when_its_time_is_spent() -> None:
    graph = EchoGraph()
    measure(graph, PROGRAM, repeats=2, budget=0.0)
    assert len(graph.batches) == 3 * MIN_SAMPLES
    assert len(WARM_UP_SHAPES) > MIN_SAMPLES


def test_warm_up_respects_the_limits_of_the_network() -> None:
    longest = 0

    def watched(inputs: Arrays) -> Arrays:
        nonlocal longest
        longest = max(longest, inputs["mask"].shape[1])
        return inputs

    measure(watched, Classification(echo_manifest(Limits(max_points_per_band=10))), repeats=1)
    assert longest == 60


def dearer_beyond(clock: FakeClock, width: int, factor: float, fixed: float = 0.0) -> Callable[[Arrays], Arrays]:
    """A graph whose observations cost ``factor`` times as much in batches of more than ``width``."""

    def run(inputs: Arrays) -> Arrays:
        padded = inputs["mask"].size
        clock.now += fixed + 1e-6 * padded * (factor if padded > width else 1.0)
        return inputs

    return run


@pytest.mark.parametrize(("limit", "expected"), [(256, 256), (512, 512), (1024, 1024), (10**6, 1024)])
def test_a_batch_is_as_wide_as_its_observations_stay_cheap(limit: int, expected: int) -> None:
    clock = FakeClock()
    assert widest(dearer_beyond(clock, limit, 1.2), PROGRAM, 1, clock) == expected


def test_a_batch_is_wider_than_usual_where_that_pays() -> None:
    clock = FakeClock()
    assert widest(dearer_beyond(clock, 10**6, 1.0, fixed=5e-3), PROGRAM, 1, clock) == WIDTHS[-1]
    assert widest(dearer_beyond(clock, 4096, 5.0, fixed=5e-3), PROGRAM, 1, clock) == 4096


class Memory:
    """A device on which a batch keeps so many bytes for each padded observation, as the runtime does."""

    def __init__(self, total: int, for_each: int) -> None:
        self.total, self.for_each, self.most = total, for_each, 0

    def free_bytes(self) -> int:
        return self.total - self.for_each * self.most

    def run(self, clock: FakeClock) -> Callable[[Arrays], Arrays]:
        def run(inputs: Arrays) -> Arrays:
            if self.for_each * inputs["mask"].size > self.total:
                raise RuntimeError("Failed to allocate memory for requested buffer of size 4294967296")
            self.most = max(self.most, inputs["mask"].size)
            clock.now += 5e-3 + 1e-6 * inputs["mask"].size
            return inputs

        return run


@pytest.mark.parametrize(("total", "runs", "expected"), [(10**9, 1, 131_072), (10**8, 1, 65_536), (10**8, 2, 32_768)])
def test_on_a_device_a_batch_is_as_wide_as_its_memory_allows(total: int, runs: int, expected: int) -> None:
    clock, memory = FakeClock(), Memory(total, for_each=1000)
    room = MemoryBound(memory.free_bytes, runs)
    assert widest(memory.run(clock), PROGRAM, 1, clock, room) == expected
    assert memory.most * memory.for_each * runs <= 0.8 * total


def test_a_width_that_runs_out_of_memory_is_not_taken() -> None:
    """The runtime's own error ends the search where the device does not tell what it keeps."""
    clock, memory = FakeClock(), Memory(10**7, for_each=1000)
    assert widest(memory.run(clock), PROGRAM, 1, clock, MemoryBound(lambda: 10**9)) == 8192


def test_another_error_of_the_widest_batch_is_no_lack_of_memory() -> None:
    def run(inputs: Arrays) -> Arrays:
        raise RuntimeError("no such kernel")

    with pytest.raises(RuntimeError, match="no such kernel"):
        widest(run, PROGRAM, 1, FakeClock(), MemoryBound(lambda: 10**9))
