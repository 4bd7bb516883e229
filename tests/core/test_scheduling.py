"""Properties of the batching policy (valid, bounded, saves time, starvation-free), and the fit of its cost model."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar_alerts.core.cost import CostModel, RunSample
from nightjar_alerts.core.policy import BatchLimits, QueueItem, choose, expired, plan

unhurried = settings(deadline=None)  # other processes may share the cores
coefficients = st.one_of(st.just(0.0), st.floats(1e-8, 1e-1))
costs = st.builds(CostModel, *[coefficients] * 5)
limits = st.builds(BatchLimits, st.integers(1, 4096), st.integers(1, 64), st.integers(1, 64))
deadlines = st.one_of(st.none(), st.floats(-1, 10))
queues = st.lists(st.builds(QueueItem, st.integers(1, 400), st.just(0.0), deadlines), max_size=80)

# Of the order of a small transformer on one core, with padded and with packed token layers.
PADDED = CostModel(1.2e-3, 1.8e-5, 5e-9, 4e-4)
PACKED = CostModel(1.2e-3, 0.0, 3e-8, 4e-4, 1.8e-5)


def waiting(*lengths: int, deadline: float | None = None) -> list[QueueItem]:
    return [QueueItem(length, 0.0, deadline) for length in lengths]


def duration(queue: Sequence[QueueItem], batch: Sequence[int], cost: CostModel) -> float:
    lengths = [queue[index].length for index in batch]
    return cost.seconds(len(batch), max(lengths), sum(lengths))


@unhurried
@given(queues, costs, limits)
def test_choose_is_valid_includes_the_oldest_and_is_deterministic(
    queue: list[QueueItem], cost: CostModel, bounds: BatchLimits
) -> None:
    batch = choose(queue, 0.0, cost, bounds)
    assert len(set(batch)) == len(batch)
    assert all(0 <= index < min(len(queue), bounds.window) for index in batch)
    assert batch[:1] == ([0] if queue else [])
    assert choose(list(queue), 0.0, cost, bounds) == batch


@unhurried
@given(queues, costs, limits)
def test_choose_respects_the_limits_unless_alone(queue: list[QueueItem], cost: CostModel, bounds: BatchLimits) -> None:
    batch = choose(queue, 0.0, cost, bounds)
    if len(batch) > 1:
        assert len(batch) <= bounds.max_items
        assert len(batch) * max(queue[index].length for index in batch) <= bounds.max_tokens


@unhurried
@given(queues, costs, limits)
def test_choose_merges_only_to_save_time(queue: list[QueueItem], cost: CostModel, bounds: BatchLimits) -> None:
    batch = choose(queue, 0.0, cost, bounds)
    share = 1.0
    for size in range(2, len(batch) + 1):  # at every step, not only in the end
        merged, alone = duration(queue, batch[:size], cost), duration(queue, batch[size - 1 : size], cost)
        assert merged < duration(queue, batch[: size - 1], cost) + alone
        share = min(share, merged / sum(cost.seconds(1, queue[index].length) for index in batch[:size]))
    if len(batch) > 1:  # and nobody is taken along who makes the run less worth its while
        assert share == pytest.approx(
            duration(queue, batch, cost) / sum(cost.seconds(1, queue[index].length) for index in batch)
        )


def chosen_by_trying_all(queue: Sequence[QueueItem], cost: CostModel, bounds: BatchLimits) -> set[int]:
    """Reference implementation: try every light curve in the window, the nearest in length first."""
    window = queue[: bounds.window]
    batch, best = [0], [0]
    share = 1.0
    for index in sorted(range(1, len(window)), key=lambda index: abs(window[index].length - window[0].length)):
        more = [*batch, index]
        latest = min(math.inf if window[each].deadline is None else window[each].deadline or 0.0 for each in more)
        merged, alone = duration(window, more, cost), duration(window, [index], cost)
        fits = len(more) <= bounds.max_items and len(more) * max(window[i].length for i in more) <= bounds.max_tokens
        if fits and merged < duration(window, batch, cost) + alone and merged <= latest:
            batch = more
            if (saved := merged / sum(duration(window, [each], cost) for each in batch)) < share:
                best, share = batch, saved
    return set(best)


COARSE = st.builds(
    CostModel, *[st.integers(1, 64).map(lambda n: n / 4096), *[st.integers(0, 64).map(lambda n: n / 2**20)] * 4]
)
"""Costs that add up without rounding errors, which would break ties."""


@unhurried
@given(queues.filter(bool), COARSE, limits)
def test_choose_equals_the_reference_implementation(
    queue: list[QueueItem], cost: CostModel, bounds: BatchLimits
) -> None:
    assert set(choose(queue, 0.0, cost, bounds)) == chosen_by_trying_all(queue, cost, bounds)


@unhurried
@given(queues, costs, limits)
def test_choose_merging_misses_no_deadline(queue: list[QueueItem], cost: CostModel, bounds: BatchLimits) -> None:
    late = set(expired(queue, 0.0, cost))
    alive = [item for index, item in enumerate(queue) if index not in late]
    batch = choose(alive, 0.0, cost, bounds)
    for index in batch:
        deadline = alive[index].deadline
        assert deadline is None or duration(alive, batch, cost) <= deadline


@unhurried
@given(queues, costs)
def test_expired_returns_items_that_would_be_late_alone(queue: list[QueueItem], cost: CostModel) -> None:
    late = expired(queue, 0.0, cost)
    for index, item in enumerate(queue):
        missed = item.deadline is not None and cost.seconds(1, item.length) > item.deadline
        assert (index in late) == missed


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(1, 400), max_size=12), min_size=1, max_size=25), costs, limits)
def test_choose_starves_and_loses_no_item(arrivals: list[list[int]], cost: CostModel, bounds: BatchLimits) -> None:
    """Even if better batch mates arrive, an item waits for at most as many batches as there were items before it."""
    queue: list[tuple[int, int]] = []  # (number of the item, batches it may still wait)
    length_of: dict[int, int] = {}
    answered: list[int] = []
    rounds = iter(arrivals)
    while (arriving := next(rounds, None)) is not None or queue:
        for length in arriving or []:
            queue.append((len(length_of), len(queue) + 1))
            length_of[len(length_of)] = length
        batch = choose(waiting(*(length_of[number] for number, _ in queue)), 0.0, cost, bounds)
        answered += [queue[index][0] for index in batch]
        queue = [(number, left - 1) for index, (number, left) in enumerate(queue) if index not in batch]
        assert all(left > 0 for _, left in queue)
    assert sorted(answered) == list(length_of)


def test_choose_merges_similar_lengths_only() -> None:
    queue = waiting(50, 390, 52, 5, 48, 120)
    assert sorted(choose(queue, 0.0, PADDED, BatchLimits())) == [0, 2, 4]
    assert sorted(choose(waiting(5, 390, 52, 6, 4, 120), 0.0, PADDED, BatchLimits())) == [0, 3, 4]


def test_choose_with_cheap_padding_merges_more() -> None:
    """Padding is cheap on a GPU, so light curves of different lengths are merged."""
    queue = waiting(50, 390, 52, 5, 48, 120)
    assert sorted(choose(queue, 0.0, CostModel(2e-3, 5e-7, 0.0), BatchLimits())) == [0, 2, 3, 4, 5]


def test_choose_without_a_fixed_cost_merges_nothing() -> None:
    assert choose(waiting(50, 50, 50), 0.0, CostModel(0.0, 1e-5, 1e-9), BatchLimits()) == [0]


def test_choose_single_item_beyond_the_limit_runs() -> None:
    assert choose(waiting(390, 390), 0.0, PADDED, BatchLimits(max_tokens=100)) == [0]


def test_choose_does_not_delay_an_urgent_item() -> None:
    alone = PADDED.seconds(1, 50)
    queue = [QueueItem(50, 0.0, 1.05 * alone), *waiting(50, 50)]
    assert choose(queue, 0.0, PADDED, BatchLimits()) == [0]
    assert len(choose(queue[1:], 0.0, PADDED, BatchLimits())) == 2


@pytest.mark.parametrize(("waiting_items", "workers", "most"), [(2, 2, 1), (5, 2, 3), (1, 8, 1), (100, 2, 32)])
def test_plan_idle_workers_share_a_short_queue(waiting_items: int, workers: int, most: int) -> None:
    assert BatchLimits().shared(waiting_items, workers).max_items == most


def test_batch_limits_without_shares_does_not_share_a_short_queue() -> None:
    assert BatchLimits(shares=False).shared(2, 2).max_items == 32


def test_choose_with_a_packing_graph_merges_more_than_with_padding() -> None:
    queue = waiting(200, 20, 30, 25)
    assert choose(queue, 0.0, PADDED, BatchLimits()) == [0]
    assert sorted(choose(queue, 0.0, PACKED, BatchLimits())) == [0, 1, 2, 3]


@pytest.mark.parametrize("padding_costs", [True, False])
def test_choose_with_fitted_costs_merges_if_it_saves_time(padding_costs: bool) -> None:
    """Fitted to runs with or without a fixed cost, the policy merges only if that saves time."""
    actual = CostModel(0.0, 2e-5, 0.0) if padding_costs else CostModel(5e-3, 0.0, 0.0, 0.0, 2e-5)
    fitted = CostModel.fit(measured(actual, [1.02, 0.99, 1.0, 0.98, 1.01, 1.0, 0.99, 1.02]))
    queue = waiting(50, 60, 55, 200, 48, 51)
    sizes = len(choose(queue, 0.0, fitted, BatchLimits()))
    assert sizes == 1 if padding_costs else sizes >= 5


@unhurried
@given(queues, costs, limits, st.integers(1, 4))
def test_plan_returns_disjoint_batch_and_expired_items(
    queue: list[QueueItem], cost: CostModel, bounds: BatchLimits, workers: int
) -> None:
    window = queue[: bounds.window]
    batch, late = plan(window, len(queue), 0.0, cost, bounds, workers)
    assert late == expired(window, 0.0, cost)
    assert len({*batch, *late}) == len(batch) + len(late)
    assert batch or len(late) == len(window)


SHAPES = [
    (1, 4, 4),
    (1, 128, 128),
    (1, 384, 384),
    (16, 32, 512),
    (16, 64, 124),
    (4, 48, 192),
    (32, 8, 256),
    (8, 192, 304),
]


def measured(cost: CostModel, noise: Sequence[float]) -> list[RunSample]:
    return [RunSample(*shape, cost.seconds(*shape) * factor) for shape, factor in zip(SHAPES, noise, strict=True)]


@unhurried
@given(costs.filter(lambda cost: cost.seconds(1, 1) > 0))
def test_cost_model_fit_recovers_the_coefficients(cost: CostModel) -> None:
    samples = measured(cost, [1.0] * len(SHAPES))
    fitted = CostModel.fit(samples)
    for batch, length, tokens, seconds in samples:
        assert math.isclose(fitted.seconds(batch, length, tokens), seconds, rel_tol=1e-3)


@pytest.mark.parametrize("cost", [PADDED, PACKED])
def test_cost_model_fit_distinguishes_padded_from_packed_layers(cost: CostModel) -> None:
    fitted = CostModel.fit(measured(cost, [1.0] * len(SHAPES)))
    assert np.allclose([fitted.c1, fitted.c4], [cost.c1, cost.c4], rtol=1e-3, atol=1e-9)


@unhurried
@given(
    st.lists(
        st.builds(RunSample, st.integers(1, 64), st.integers(1, 400), st.integers(1, 9999), st.floats(1e-5, 10)),
        min_size=1,
        max_size=12,
    )
)
def test_cost_model_fit_to_noise_is_usable(samples: list[RunSample]) -> None:
    fitted = CostModel.fit(samples)
    terms = (fitted.c0, fitted.c1, fitted.c2, fitted.c3, fitted.c4)
    assert all(term >= 0 and math.isfinite(term) for term in terms)
    assert fitted.seconds(1, 1) > 0


def test_cost_model_fit_with_noise_is_a_minimum() -> None:
    """The subset search is exact: no small feasible step lowers the error."""
    samples = measured(PACKED, np.random.default_rng(1).uniform(0.5, 2, len(SHAPES)).tolist())

    def error(cost: CostModel) -> float:
        return sum((cost.seconds(*sample[:3]) / sample.seconds - 1) ** 2 for sample in samples)

    fitted = CostModel.fit(samples)
    terms = [fitted.c0, fitted.c1, fitted.c2, fitted.c3, fitted.c4]
    for axis, scale in enumerate((1e-3, 1e-5, 1e-9, 1e-4, 1e-5)):
        for step in (-1e-1, -1e-3, 1e-3, 1e-1):
            stepped = [max(0.0, term + step * scale * (axis == index)) for index, term in enumerate(terms)]
            assert error(CostModel(*stepped)) >= error(fitted) - 1e-9


@pytest.mark.parametrize("samples", [[], [RunSample(1, 10, 10, 0.0)], [RunSample(1, 10, 10, -1.0)]])
def test_cost_model_fit_without_positive_durations_raises(samples: list[RunSample]) -> None:
    with pytest.raises(ValueError, match="positive"):
        CostModel.fit(samples)


def test_cost_model_scaled_is_slower_everywhere() -> None:
    assert math.isclose(PADDED.scaled(3).seconds(7, 50), 3 * PADDED.seconds(7, 50))
