"""The queue: order, removal, expiry, and the seconds it promises."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar_alerts.service.engine.batch import QueueEntry
from nightjar_alerts.service.engine.policy import BatchLimits, CostModel
from nightjar_alerts.service.engine.queue import RequestQueue
from support.graphs import question

COST = CostModel(1e-3, 1e-6, 0.0)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def entry(
    loop: asyncio.AbstractEventLoop,
    length: int = 10,
    deadline: float | None = None,
    enqueued: float = 0.0,
    priority: float = 0.0,
    client: str = "",
) -> QueueEntry:
    asked, seconds = question(0, length), COST.seconds(1, length)
    return QueueEntry(
        length, enqueued, deadline, asked, loop.create_future(), seconds, priority=priority, client=client
    )


def one_by_one(backlog: RequestQueue, count: int) -> list[QueueEntry]:
    """The next ones in the order they are due."""
    return [backlog.take(9e9, COST, BatchLimits(max_items=1), 1)[0][0] for _ in range(count)]


def test_a_batch_is_removed_and_the_rest_keeps_its_order(loop: asyncio.AbstractEventLoop) -> None:
    backlog, entries = RequestQueue(), [entry(loop) for _ in range(5)]
    backlog.add(entries)
    batch, late = backlog.take(0.0, COST, BatchLimits(max_items=2), 1)
    assert (batch, late) == (entries[:2], [])
    assert backlog.clear() == entries[2:]


def test_expired_entries_are_handed_back_and_make_room_in_the_batch(loop: asyncio.AbstractEventLoop) -> None:
    backlog, entries = RequestQueue(), [entry(loop, deadline=1.0 if number % 2 else None) for number in range(6)]
    backlog.add(entries)
    batch, late = backlog.take(2.0, COST, BatchLimits(), 1)
    assert (batch, late) == (entries[::2], entries[1::2])
    assert len(backlog) == 0


def test_a_window_of_expired_entries_leaves_the_rest_waiting(loop: asyncio.AbstractEventLoop) -> None:
    backlog, entries = RequestQueue(), [entry(loop, deadline=1.0) for _ in range(4)] + [entry(loop)]
    backlog.add(entries)
    assert backlog.take(2.0, COST, BatchLimits(window=4), 1) == ([], entries[:4])
    assert backlog.take(2.0, COST, BatchLimits(window=4), 1) == ([entries[4]], [])


def test_an_entry_is_removed_once(loop: asyncio.AbstractEventLoop) -> None:
    backlog, waiting = RequestQueue(), entry(loop)
    backlog.add([waiting])
    assert [backlog.remove(waiting), backlog.remove(waiting)] == [True, False]


def test_seconds_follow_the_entries_and_end_at_zero(loop: asyncio.AbstractEventLoop) -> None:
    rng, backlog, inside = random.Random(0), RequestQueue(), list[QueueEntry]()
    for _ in range(2000):
        if inside and rng.random() < 0.5:
            backlog.remove(inside.pop(rng.randrange(len(inside))))
        else:
            inside.append(entry(loop, rng.randint(1, 400)))
            backlog.add(inside[-1:])
        assert backlog.seconds == pytest.approx(sum(waiting.seconds for waiting in inside), abs=1e-9)
    for waiting in inside:
        backlog.remove(waiting)
    assert backlog.seconds == 0.0


def test_taking_from_a_long_backlog_costs_no_more_than_from_a_short_one(loop: asyncio.AbstractEventLoop) -> None:
    """Ten thousand withdrawn entries leave nothing behind that a batch would have to step over."""
    backlog, entries = RequestQueue(), [entry(loop) for _ in range(10_001)]
    backlog.add(entries)
    for waiting in entries[:-1]:
        backlog.remove(waiting)
    assert backlog.take(0.0, COST, BatchLimits(), 1) == ([entries[-1]], [])


def test_priority_is_a_head_start_and_no_more(loop: asyncio.AbstractEventLoop) -> None:
    backlog = RequestQueue()
    plain = [entry(loop, enqueued=float(second)) for second in range(6)]
    urgent = [entry(loop, enqueued=float(second), priority=3.5) for second in (4, 5)]
    backlog.add([*plain[:5], urgent[0], plain[5], urgent[1]])
    order = [backlog.take(9.0, COST, BatchLimits(max_items=1), 1)[0][0] for _ in range(8)]
    assert order == [plain[0], urgent[0], plain[1], urgent[1], *plain[2:]]
    assert (len(backlog), backlog.seconds) == (0, 0.0)


def test_priority_is_found_behind_a_deep_queue(loop: asyncio.AbstractEventLoop) -> None:
    backlog, urgent = RequestQueue(), entry(loop, enqueued=1.0, priority=60.0)
    backlog.add([*(entry(loop) for _ in range(1000)), urgent])
    assert backlog.take(1.0, COST, BatchLimits(), 1)[0][0] is urgent


def test_a_burst_of_one_client_keeps_no_other_waiting(loop: asyncio.AbstractEventLoop) -> None:
    backlog = RequestQueue()
    backlog.add([entry(loop, client="burst") for _ in range(10_000)])
    one_by_one(backlog, 100)
    late = [entry(loop, enqueued=1.0, client="late") for _ in range(5)]
    backlog.add(late)
    assert [item.client for item in one_by_one(backlog, 12)].count("late") == 5
    assert backlog.counts("burst") == (10_000 - 107, [])


def test_clients_get_equal_work_whatever_the_lengths(loop: asyncio.AbstractEventLoop) -> None:
    backlog = RequestQueue()
    lengths = {"long": 400, "short": 4, "middle": 60}
    backlog.add([entry(loop, length, client=name) for name, length in lengths.items() for _ in range(2000)])
    given = dict.fromkeys(lengths, 0.0)
    for _ in range(1500):
        [item] = one_by_one(backlog, 1)
        given[item.client] += item.seconds
    assert max(given.values()) - min(given.values()) <= 2 * COST.seconds(1, 400)


def test_a_client_that_was_away_has_saved_nothing_up(loop: asyncio.AbstractEventLoop) -> None:
    backlog = RequestQueue()
    backlog.add([entry(loop, client="a") for _ in range(300)] + [entry(loop, client="b")])
    one_by_one(backlog, 200)
    backlog.add([entry(loop, client="b") for _ in range(100)])
    assert 9 <= [item.client for item in one_by_one(backlog, 20)].count("b") <= 11


def test_a_client_that_comes_and_goes_gains_nothing(loop: asyncio.AbstractEventLoop) -> None:
    """A client that never has more than one waiting gets its share, and not more than that."""
    backlog = RequestQueue()
    backlog.add([entry(loop, client="steady") for _ in range(300)])
    served = []
    for _ in range(200):
        if not backlog.counts("sly")[0]:
            backlog.add([entry(loop, client="sly")])
        served += one_by_one(backlog, 1)
    assert 95 <= [item.client for item in served].count("sly") <= 105


def test_a_withdrawn_burst_is_not_held_against_its_client(loop: asyncio.AbstractEventLoop) -> None:
    backlog, burst = RequestQueue(), [entry(loop, client="a") for _ in range(1000)]
    backlog.add([*burst, *(entry(loop, client="b") for _ in range(100))])
    for item in burst:
        backlog.remove(item)
    one_by_one(backlog, 10)
    backlog.add([entry(loop, client="a") for _ in range(20)])
    assert 9 <= [item.client for item in one_by_one(backlog, 20)].count("a") <= 11


def test_priority_moves_a_client_ahead_by_so_much_work_and_no_more(loop: asyncio.AbstractEventLoop) -> None:
    backlog, seconds = RequestQueue(), COST.seconds(1, 10)
    backlog.add([entry(loop, client="plain") for _ in range(100)])
    backlog.add([entry(loop, client="urgent", priority=10 * seconds) for _ in range(100)])
    order = [item.client for item in one_by_one(backlog, 60)]
    assert 9 <= order.index("plain") <= 11
    assert 24 <= order[order.index("plain") :].count("plain") <= 26


def test_waiting_work_is_told_by_client(loop: asyncio.AbstractEventLoop) -> None:
    backlog, seconds = RequestQueue(), COST.seconds(1, 10)
    backlog.add([entry(loop, client=name) for name in "aab"])
    assert backlog.counts("a") == (2, [1])
    assert backlog.counts("nobody") == (0, [2, 1])
    mine, others = backlog.shares("b")
    assert [mine, *others] == pytest.approx([seconds, 2 * seconds])
    assert backlog.seconds == pytest.approx(3 * seconds)


def test_a_hold_ends_when_the_one_that_waits_longest_has_waited_enough(loop: asyncio.AbstractEventLoop) -> None:
    backlog, limits = RequestQueue(), BatchLimits(max_delay=0.5)
    assert backlog.held_for(0.0, limits) is None
    backlog.add([entry(loop, enqueued=2.0, priority=60.0), entry(loop, enqueued=1.8, client="other")])
    assert backlog.held_for(2.1, limits) == pytest.approx(0.2)
    assert backlog.held_for(9.0, limits) == 0.0


steps = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "withdraw", "take"]),
        st.integers(1, 400),
        st.sampled_from([None, 0.002, 0.05]),
        st.sampled_from([0.0, 0.0, 1.0, 60.0]),
        st.sampled_from(["", "", "a", "b"]),
    ),
    max_size=120,
)


@settings(max_examples=80, deadline=None)
@given(steps, st.integers(1, 3), st.randoms(use_true_random=False))
def test_each_entry_leaves_once_whatever_happens(
    events: list[tuple[str, int, float | None, float, str]], workers: int, rng: random.Random
) -> None:
    """Arrivals, withdrawals, deadlines that pass and batches, in any order: one fate each, nothing kept."""
    with closing(asyncio.new_event_loop()) as loop:
        backlog, now = RequestQueue(), 0.0
        came, left = list[QueueEntry](), list[QueueEntry]()
        for event, length, patience, priority, client in [*events, *[("take", 1, None, 0.0, "")] * len(events)]:
            now += 0.001
            if event == "arrive":
                came.append(entry(loop, length, patience and now + patience, now, priority, client))
                backlog.add(came[-1:])
            elif event == "withdraw" and came:
                gone = rng.choice(came)
                left += [gone] * backlog.remove(gone)
            elif len(backlog):
                batch, late = backlog.take(now, COST, BatchLimits(), workers)
                assert batch or late
                assert all(item.deadline is not None for item in late)
                left += [*batch, *late]
        assert (len(backlog), backlog.seconds) == (0, 0.0)
        assert sorted(map(id, left)) == sorted(map(id, came))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 400), st.sampled_from([0.0, 2.0, 5.0])), min_size=1, max_size=60))
def test_nobody_waits_for_more_batches_than_had_a_better_rank(arriving: list[tuple[int, float]]) -> None:
    with closing(asyncio.new_event_loop()) as loop:
        backlog = RequestQueue()
        entries = [entry(loop, length, None, float(n), priority) for n, (length, priority) in enumerate(arriving)]
        backlog.add(entries)
        taken: dict[int, int] = {}
        while len(backlog):
            number = len(set(taken.values()))
            taken |= {id(item): number for item in backlog.take(1e3, COST, BatchLimits(max_items=4), 1)[0]}
        for item in entries:
            assert taken[id(item)] < sum(other.rank <= item.rank for other in entries)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.sampled_from("abc")), min_size=1, max_size=80),
    st.sampled_from([0.0, 0.05]),
    st.integers(1, 8),
)
def test_nobody_waits_longer_than_for_a_fair_share(
    arriving: list[tuple[int, str]], priority: float, max_items: int
) -> None:
    """Whatever others send: by the time a light curve runs, no other client got much more work than its own did."""
    with closing(asyncio.new_event_loop()) as loop:
        backlog = RequestQueue()
        backlog.add([entry(loop, length, client=name, priority=priority * (name == "a")) for length, name in arriving])
        given = dict.fromkeys("abc", 0.0)
        longest = COST.seconds(1, 400)
        while len(backlog):
            waiting = [name for name in "abc" if backlog.counts(name)[0]]
            batch, _ = backlog.take(1.0, COST, BatchLimits(max_items=max_items), 1)
            for name in "abc":
                given[name] += sum(item.seconds for item in batch if item.client == name)
            for name in waiting:
                if backlog.counts(name)[0]:
                    ahead = max(given.values()) - given[name]
                    # Mates may come from anywhere in the window: at most what one batch holds, beside the head start.
                    assert ahead <= priority + (max_items + 1) * longest + 1e-9
