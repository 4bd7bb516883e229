"""Figures by hand."""

import json

import numpy as np
import pytest

from deploy.bench.simulation.events import SimulatedRun, TraceOutcome
from deploy.bench.simulation.figures import figures, table
from deploy.bench.workload import Trace


def outcome(arrival: list[float], answered: list[float], runs: list[SimulatedRun]) -> TraceOutcome:
    return TraceOutcome(Trace(np.array(arrival), np.full(len(arrival), 10)), np.array(answered), runs, 3)


def test_figures_of_a_small_run() -> None:
    runs = [SimulatedRun((0, 1), 30, 40, 1.0, 1.5), SimulatedRun((2,), 20, 20, 1.5, 3.0)]
    one = figures(outcome([1.0, 1.0, 2.0, 3.0], [1.5, 1.5, 3.0, np.nan], runs), within=0.6)
    assert (one.offered, one.throughput, one.goodput) == pytest.approx((2.0, 1.5, 1.0))
    assert (one.p50_ms, one.max_ms) == pytest.approx((500, 1000))
    assert one.mean_batch == 1.5
    assert one.padding == pytest.approx(1 - 60 / 80)
    assert (one.expired, one.peak_waiting) == (1, 3)


def test_a_run_that_answered_nothing_has_no_latency() -> None:
    one = figures(outcome([0.0, 0.0], [np.nan, np.nan], []), within=1.0)
    assert np.isnan(one.p50_ms)
    assert one.expired == 2
    assert json.loads(json.dumps(one.row(), allow_nan=False))["p99_ms"] is None
    assert len(table([("nothing", one)]).splitlines()) == 2
