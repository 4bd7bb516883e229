"""The simulated engine against arithmetic: queues whose answer is known, and nothing lost under any policy."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.bench.simulation.events import Contender, Machine, PolicyError, PolicyName, contenders, simulate
from deploy.bench.workload import Trace, poisson
from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.core.policy import BatchLimits, QueueItem

ALL = contenders(BatchLimits())
FLAT = CostModel(0.010, 0.0, 0.0)  # 10 ms a run, whatever is in it
PADDED = CostModel(1.2e-3, 1.8e-5, 5e-9, 4e-4)


def trace(arrivals: Sequence[float], lengths: Sequence[int] | None = None) -> Trace:
    return Trace(np.array(arrivals, dtype=np.float64), np.array(lengths or [50] * len(arrivals)))


def machine(cost: CostModel, workers: int = 1) -> Machine:
    return Machine(workers, cost, cost)


def test_one_by_one_answers_in_line() -> None:
    outcome = simulate(trace([0.0, 0.0, 0.005, 0.1]), ALL["one_by_one"], machine(FLAT))
    assert outcome.answered == pytest.approx([0.01, 0.02, 0.03, 0.11])
    assert outcome.peak_waiting == 2


def test_two_workers_halve_the_line() -> None:
    outcome = simulate(trace([0.0] * 4), ALL["one_by_one"], machine(FLAT, workers=2))
    assert outcome.answered == pytest.approx([0.01, 0.01, 0.02, 0.02])


def test_arrivals_during_a_run_go_together() -> None:
    outcome = simulate(trace([0.0, 0.001, 0.009]), ALL["nightjar"], machine(FLAT))
    assert outcome.answered == pytest.approx([0.01, 0.02, 0.02])
    assert [len(run.items) for run in outcome.runs] == [1, 2]


def test_a_window_delays_the_lone_and_fills_the_next() -> None:
    outcome = simulate(trace([0.0, 0.004, 1.0]), ALL["window_5ms"], machine(FLAT))
    assert outcome.answered == pytest.approx([0.015, 0.015, 1.015])


def test_a_window_ends_when_the_batch_is_full() -> None:
    outcome = simulate(trace([0.0] + [0.001] * 63), ALL["window_5ms"], machine(FLAT))
    assert outcome.answered == pytest.approx([0.011] * 64)


def test_a_run_lasts_as_long_as_the_machine_takes_not_as_predicted() -> None:
    outcome = simulate(trace([0.0]), ALL["nightjar"], Machine(1, PADDED, FLAT))
    assert outcome.answered == pytest.approx([0.01])


def test_the_late_are_dropped_and_the_others_answered() -> None:
    outcome = simulate(trace([0.0, 0.0, 0.0]), ALL["one_by_one"], machine(FLAT), deadline=0.025)
    assert outcome.answered[:2] == pytest.approx([0.01, 0.02])
    assert np.isnan(outcome.answered[2])


def test_a_queue_in_theory() -> None:
    """One server, Poisson arrivals, runs of constant length at half load: the mean wait is rho / 2 (1 - rho) runs."""
    arrivals = poisson(50, 40_000, 390, np.random.default_rng(0))
    outcome = simulate(arrivals, ALL["one_by_one"], machine(FLAT))
    waited = outcome.answered - arrivals.arrival - 0.010
    assert waited.mean() == pytest.approx(0.005, rel=0.05)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 0.02), st.integers(1, 390)), min_size=1, max_size=60),
    st.integers(1, 3),
    st.one_of(st.none(), st.floats(1e-3, 0.1)),
)
def test_each_light_curve_is_answered_once_or_expires(
    name: PolicyName, arrivals: list[tuple[float, int]], workers: int, deadline: float | None
) -> None:
    gaps, lengths = zip(*arrivals, strict=True)
    outcome = simulate(trace(np.cumsum(gaps).tolist(), lengths), ALL[name], machine(PADDED, workers), deadline)
    items = [item for run in outcome.runs for item in run.items]
    assert len(set(items)) == len(items)
    assert set(items) == set(np.flatnonzero(np.isfinite(outcome.answered)).tolist())
    assert deadline is not None or len(items) == len(arrivals)
    for run in outcome.runs:
        assert run.started >= max(outcome.trace.arrival[list(run.items)])
        assert sum(other.started <= run.started < other.ended for other in outcome.runs) <= workers
    again = simulate(outcome.trace, ALL[name], machine(PADDED, workers), deadline)
    assert again.runs == outcome.runs


def test_a_policy_that_waits_for_ever_is_found_out() -> None:
    def idle(queue: Sequence[QueueItem], now: float, cost: CostModel, limits: BatchLimits) -> list[int]:
        return []

    with pytest.raises(PolicyError):
        simulate(trace([0.0]), Contender(idle, BatchLimits()), machine(FLAT))
