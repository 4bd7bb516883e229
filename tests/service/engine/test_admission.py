"""Predicted waits and retry times, compared with a simulated fluid queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.service.engine.queue import ThroughputEstimate, time_until, wait

amounts = st.floats(0, 100)
rates = st.floats(0.5, 8)


def drained(work: list[float], rate: float, seconds: float, step: float = 1e-3) -> list[float]:
    """Return the work left of each client if all are served at the same speed."""
    left, time = list(work), 0.0
    while time < seconds and any(left):
        active = [number for number, amount in enumerate(left) if amount > 0]
        for number in active:
            left[number] = max(0.0, left[number] - rate * step / len(active))
        time += step
    return left


@pytest.mark.parametrize(
    ("mine", "others", "expected"),
    [(0.0, [], 0.0), (6.0, [], 3.0), (2.0, [100.0], 2.0), (2.0, [1.0, 100.0], 2.5), (0.0, [100.0], 0.0)],
)
def test_wait_is_for_the_share_of_the_client(mine: float, others: list[float], expected: float) -> None:
    assert wait(mine, others, 2.0) == pytest.approx(expected)


@pytest.mark.parametrize(("mine", "others"), [(3.0, []), (3.0, [1.0, 8.0]), (1.0, [5.0, 5.0, 0.2])])
def test_wait_equals_that_of_a_fluid_queue(mine: float, others: list[float]) -> None:
    expected = wait(mine, others, 2.0)
    assert drained([mine, *others], 2.0, expected - 0.05)[0] > 0
    assert drained([mine, *others], 2.0, expected + 0.05)[0] == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize(
    ("own", "mine", "others"), [(1.0, 9.0, []), (4.0, 5.0, [8.0]), (9.0, 4.0, [2.0, 30.0]), (2.0, 0.0, [40.0] * 7)]
)
def test_time_until_is_when_the_request_fits_and_not_later(own: float, mine: float, others: list[float]) -> None:
    limit, rate = 4.0, 2.0
    later = time_until(limit, own, mine, others, rate)
    if own / rate > limit:
        assert later == pytest.approx((mine + sum(others)) / rate)
        return

    def predicted(seconds: float) -> float:
        left = drained([mine, *others], rate, seconds)
        return wait(left[0] + own, left[1:], rate)

    assert predicted(later + 0.05) <= limit + 1e-6
    assert later < 0.05 or predicted(later - 0.05) > limit


@given(amounts, amounts, st.lists(amounts, max_size=5), st.floats(0.1, 20), rates)
def test_time_until_is_always_finite(own: float, mine: float, others: list[float], limit: float, rate: float) -> None:
    later = time_until(limit, own, mine, others, rate)
    assert 0 <= later <= (mine + sum(others)) / rate + 1e-6


def test_throughput_estimate_measures_busy_time() -> None:
    """Merged runs: two workers each clear two seconds of work per second; pauses do not count."""
    rate, now = ThroughputEstimate(workers=2), 0.0
    assert rate.value == 2.0
    for _ in range(60):
        rate.busy(now)
        for _ in range(10):
            now += 0.05
            rate.cleared(now, 0.2)
        rate.idle()
        now += 10.0
    assert rate.value == pytest.approx(4.0, rel=0.05)


def test_throughput_estimate_ignores_work_while_workers_are_idle() -> None:
    rate = ThroughputEstimate(workers=2)
    for second in range(100):
        rate.cleared(float(second), 1.0)
    assert rate.value == 2.0


def test_throughput_estimate_follows_the_machine() -> None:
    rate, now = ThroughputEstimate(workers=1), 0.0
    rate.busy(now)
    for cost in (0.1, 0.4):
        for _ in range(300):
            now += cost
            rate.cleared(now, 0.1)
    assert rate.value == pytest.approx(0.25, rel=0.05)
