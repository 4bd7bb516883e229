"""The policies of other servers do what those servers do, under the contract of our own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.bench.simulation.events import PolicyName, contenders
from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.core.policy import BatchLimits, QueueItem

unhurried = settings(deadline=None)  # other processes may share the cores
COST = CostModel(1.2e-3, 1.8e-5, 5e-9, 4e-4)
ALL = contenders(BatchLimits())
queues = st.lists(st.builds(QueueItem, st.integers(1, 400), st.just(0.0), st.none()), max_size=100)


def choice(name: PolicyName, *lengths: int, now: float = 0.0) -> list[int]:
    queue = [QueueItem(length, 0.0, None) for length in lengths]
    return ALL[name].policy(queue, now, COST, ALL[name].limits)


@pytest.mark.parametrize("name", ALL)
@unhurried
@given(queues, st.floats(0, 1))
def test_every_policy_keeps_the_contract(name: PolicyName, queue: list[QueueItem], now: float) -> None:
    policy, limits = ALL[name].policy, ALL[name].limits
    batch = policy(queue, now, COST, limits)
    assert batch == policy(list(queue), now, COST, limits)
    assert len(set(batch)) == len(batch) <= limits.max_items
    assert all(0 <= index < len(queue) for index in batch)
    assert batch[:1] == ([0] if queue else [])
    if len(batch) > 1:
        assert len(batch) * max(queue[index].length for index in batch) <= limits.max_tokens


def test_one_by_one_never_batches() -> None:
    assert choice("one_by_one", 50, 50) == [0]
    assert choice("one_by_one") == []


def test_fifo_takes_what_came_first_however_long() -> None:
    assert choice("fifo_count_64", *[1, 390] * 40) == list(range(64))
    assert choice("fifo_count_64", 7) == [0]


def test_a_token_budget_counts_padding() -> None:
    assert choice("fifo_token_budget", *[64] * 80) == list(range(64))
    assert choice("fifo_token_budget", 10, 390, *[10] * 20) == list(range(10))
    assert choice("fifo_token_budget", 5000, 10) == [0]


def test_window_counts_from_the_oldest_unless_the_batch_is_full() -> None:
    def held_until(*lengths: int, now: float) -> float:
        return ALL["window_5ms"].held_until([QueueItem(length, 0.0, None) for length in lengths], now, COST)

    assert held_until(50, 60, now=0.004) == 0.005
    assert held_until(50, 60, now=0.006) == 0.006
    assert held_until(*[50] * 70, now=0.0) == 0.0
    assert choice("window_5ms", 50, 60) == [0, 1]
