"""Runs of batches in threads of this process. tests/service/engine has the tests of bisection."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from nightjar_alerts.core.adapter import Adapter, ModelInput
from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.core.failures import InferenceFailed
from nightjar_alerts.core.items import Prediction, RunResult
from nightjar_alerts.core.policy import BatchLimits, divide
from nightjar_alerts.core.runner import ThreadRunner
from support.graphs import EchoGraph, echo_manifest, model_input, poison

ADAPTER = Adapter(echo_manifest())
COST = CostModel(1e-3, 1e-6, 0.0)  # merging always pays


@pytest.fixture
def runner() -> Iterator[ThreadRunner]:
    made = ThreadRunner(2, BatchLimits())
    yield made
    made.close()


def inputs(count: int) -> list[ModelInput]:
    rng = np.random.default_rng(1)
    return [model_input(float(marker), int(rng.integers(4, 60))) for marker in range(1, count + 1)]


def marker_of(result: RunResult) -> float | None:
    return float(result.outputs["embedding"][0]) if isinstance(result, Prediction) else None


def test_divide_gives_every_light_curve_once_in_batches_of_similar_length() -> None:
    lengths = [5, 300, 7, 6, 290, 8]
    padding_is_dear = CostModel(2e-3, 1e-4, 0.0)
    batches = list(divide(lengths, padding_is_dear, BatchLimits(max_items=3)))
    assert sorted(index for batch in batches for index in batch) == list(range(6))
    assert sorted(batches[0]) == [1, 4]
    assert all(len(batch) <= 3 for batch in batches)


def test_thread_runner_returns_results_in_the_order_of_the_light_curves(runner: ThreadRunner) -> None:
    pending = runner.start(EchoGraph(), ADAPTER, COST, inputs(100))
    assert len(pending.batches) > 2
    assert list(map(marker_of, pending.results())) == [float(marker) for marker in range(1, 101)]


def test_thread_runner_light_curve_that_fails_fails_alone(runner: ThreadRunner) -> None:
    graph = EchoGraph()
    graph.on_marker[7.0] = poison
    results = runner.start(graph, ADAPTER, COST, inputs(20)).results()
    assert [index for index, result in enumerate(results) if isinstance(result, InferenceFailed)] == [6]


def test_pending_runs_that_are_cancelled_do_not_begin(runner: ThreadRunner) -> None:
    graph = EchoGraph()
    graph.hold()
    pending = runner.start(graph, ADAPTER, COST, inputs(200))
    for _ in range(2):
        assert graph.started.acquire(timeout=20)
    pending.cancel()
    graph.release()
    assert sum(future.cancelled() for _, future in pending.batches) == len(pending.batches) - 2


def test_thread_runner_closed_has_no_threads() -> None:
    before = set(threading.enumerate())  # other tests of this process may still have some
    runner = ThreadRunner(2, BatchLimits())
    runner.start(EchoGraph(), ADAPTER, COST, inputs(20)).results()
    runner.close()
    assert not set(threading.enumerate()) - before
