"""Request queue: order, removal, expiry and predicted waits."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import closing
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.core.policy import BatchLimits
from nightjar_alerts.service.engine.batch import QueueEntry
from nightjar_alerts.service.engine.queue import RequestQueue
from support.graphs import model_input

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
    client: str = "",
) -> QueueEntry:
    asked, seconds = model_input(0, length), COST.seconds(1, length)
    return QueueEntry(length, enqueued, deadline, asked, loop.create_future(), seconds, client=client)


def one_by_one(backlog: RequestQueue, count: int) -> list[QueueEntry]:
    """Return the next entries in order of service."""
    return [backlog.take(9e9, COST, BatchLimits(max_items=1), 1)[0][0] for _ in range(count)]


def test_request_queue_take_keeps_the_order_of_the_rest(loop: asyncio.AbstractEventLoop) -> None:
    backlog, entries = RequestQueue(), [entry(loop) for _ in range(5)]
    backlog.add(entries)
    batch, late = backlog.take(0.0, COST, BatchLimits(max_items=2), 1)
    assert (batch, late) == (entries[:2], [])
    assert backlog.clear() == entries[2:]


def test_request_queue_take_returns_expired_entries_outside_the_batch(loop: asyncio.AbstractEventLoop) -> None:
    backlog, entries = RequestQueue(), [entry(loop, deadline=1.0 if number % 2 else None) for number in range(6)]
    backlog.add(entries)
    batch, late = backlog.take(2.0, COST, BatchLimits(), 1)
    assert (batch, late) == (entries[::2], entries[1::2])
    assert len(backlog) == 0


def test_request_queue_take_window_of_expired_entries_keeps_the_rest(loop: asyncio.AbstractEventLoop) -> None:
    backlog, entries = RequestQueue(), [entry(loop, deadline=1.0) for _ in range(4)] + [entry(loop)]
    backlog.add(entries)
    assert backlog.take(2.0, COST, BatchLimits(window=4), 1) == ([], entries[:4])
    assert backlog.take(2.0, COST, BatchLimits(window=4), 1) == ([entries[4]], [])


def test_request_queue_seconds_follow_the_entries(loop: asyncio.AbstractEventLoop) -> None:
    rng, backlog, inside = random.Random(0), RequestQueue(), list[QueueEntry]()
    for _ in range(2000):
        if inside and rng.random() < 0.4:
            [taken] = one_by_one(backlog, 1)
            inside.remove(taken)
        else:
            inside.append(entry(loop, rng.randint(1, 400)))
            backlog.add(inside[-1:])
        assert backlog.seconds == pytest.approx(sum(waiting.seconds for waiting in inside), abs=1e-9)
    one_by_one(backlog, len(inside))
    assert backlog.seconds == 0.0


@pytest.mark.parametrize("clients", [("",), ("a", "b", "c")])
def test_take_drops_cancelled_entries_before_it_chooses(
    loop: asyncio.AbstractEventLoop, clients: tuple[str, ...]
) -> None:
    backlog, entries = RequestQueue(), [entry(loop, client=clients[n % len(clients)]) for n in range(10_001)]
    backlog.add(entries)
    for waiting in entries[:-1]:
        waiting.future.cancel()
    assert backlog.take(0.0, COST, BatchLimits(), 1) == ([entries[-1]], [])
    assert (len(backlog), backlog.seconds) == (0, 0.0)


def test_take_of_cancelled_entries_only_returns_nothing(loop: asyncio.AbstractEventLoop) -> None:
    backlog, waiting = RequestQueue(), entry(loop, client="a")
    backlog.add([waiting, entry(loop, client="a")])
    for each in backlog.clear():
        each.future.cancel()
    backlog.add([waiting])
    assert backlog.take(0.0, COST, BatchLimits(), 1) == ([], [])
    assert len(backlog) == 0


def test_request_queue_burst_of_one_client_does_not_block_others(loop: asyncio.AbstractEventLoop) -> None:
    backlog = RequestQueue()
    backlog.add([entry(loop, client="burst") for _ in range(10_000)])
    one_by_one(backlog, 100)
    late = [entry(loop, enqueued=1.0, client="late") for _ in range(5)]
    backlog.add(late)
    assert [item.client for item in one_by_one(backlog, 12)].count("late") == 5
    assert len(backlog) == 10_000 - 107
    assert backlog.shares("burst")[0] == pytest.approx((10_000 - 107) * COST.seconds(1, 10))


def test_request_queue_clients_get_equal_work_for_any_lengths(loop: asyncio.AbstractEventLoop) -> None:
    backlog = RequestQueue()
    lengths = {"long": 400, "short": 4, "middle": 60}
    backlog.add([entry(loop, length, client=name) for name, length in lengths.items() for _ in range(2000)])
    given = dict.fromkeys(lengths, 0.0)
    for _ in range(1500):
        [item] = one_by_one(backlog, 1)
        given[item.client] += item.seconds
    assert max(given.values()) - min(given.values()) <= 2 * COST.seconds(1, 400)


def test_request_queue_returning_client_has_no_credit(loop: asyncio.AbstractEventLoop) -> None:
    backlog = RequestQueue()
    backlog.add([entry(loop, client="a") for _ in range(300)] + [entry(loop, client="b")])
    one_by_one(backlog, 200)
    backlog.add([entry(loop, client="b") for _ in range(100)])
    assert 9 <= [item.client for item in one_by_one(backlog, 20)].count("b") <= 11


def test_request_queue_intermittent_client_gains_nothing(loop: asyncio.AbstractEventLoop) -> None:
    """A client that never has more than one queued entry gets its fair share, and no more."""
    backlog = RequestQueue()
    backlog.add([entry(loop, client="steady") for _ in range(300)])
    served = []
    for _ in range(200):
        if not backlog.shares("sly")[0]:
            backlog.add([entry(loop, client="sly")])
        served += one_by_one(backlog, 1)
    assert 95 <= [item.client for item in served].count("sly") <= 105


def test_request_queue_withdrawn_burst_is_not_charged(loop: asyncio.AbstractEventLoop) -> None:
    backlog, burst = RequestQueue(), [entry(loop, client="a") for _ in range(1000)]
    backlog.add([*burst, *(entry(loop, client="b") for _ in range(100))])
    for item in burst:
        item.future.cancel()
    one_by_one(backlog, 10)
    backlog.add([entry(loop, client="a") for _ in range(20)])
    assert 9 <= [item.client for item in one_by_one(backlog, 20)].count("a") <= 11


def test_shares_returns_the_work_of_each_client(loop: asyncio.AbstractEventLoop) -> None:
    backlog, seconds = RequestQueue(), COST.seconds(1, 10)
    backlog.add([entry(loop, client=name) for name in "aab"])
    assert [backlog.shares(name)[0] for name in ("a", "b", "nobody")] == pytest.approx([2 * seconds, seconds, 0.0])
    mine, others = backlog.shares("b")
    assert [mine, *others] == pytest.approx([seconds, 2 * seconds])
    assert backlog.seconds == pytest.approx(3 * seconds)


steps = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "cancel", "take"]),
        st.integers(1, 400),
        st.sampled_from([None, 0.002, 0.05]),
        st.sampled_from(["", "", "a", "b"]),
    ),
    max_size=120,
)


@settings(max_examples=80, deadline=None)
@given(steps, st.integers(1, 3), st.randoms(use_true_random=False))
def test_request_queue_each_entry_leaves_once(
    events: list[tuple[str, int, float | None, str]], workers: int, rng: random.Random
) -> None:
    """For any sequence of arrivals, cancellations, deadlines and batches, each entry leaves the queue exactly once."""
    with closing(asyncio.new_event_loop()) as loop:
        backlog, now = RequestQueue(), 0.0
        came, left = list[QueueEntry](), list[QueueEntry]()
        for event, length, patience, client in [*events, *[("take", 1, None, "")] * len(events)]:
            now += 0.001
            if event == "arrive":
                came.append(entry(loop, length, patience and now + patience, now, client))
                backlog.add(came[-1:])
            elif event == "cancel" and came:
                rng.choice(came).future.cancel()
            elif len(backlog):
                pending = [item for item in came if item not in left and not item.future.done()]
                batch, late = backlog.take(now, COST, BatchLimits(), workers)
                assert bool(batch or late) == bool(pending)
                assert all(item.deadline is not None for item in late)
                assert set(batch) | set(late) <= set(pending)
                left += [*batch, *late]
        assert (len(backlog), backlog.seconds) == (0, 0.0)
        assert len(set(left)) == len(left)
        assert {item for item in came if not item.future.done()} <= set(left)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=60))
def test_request_queue_entry_waits_for_at_most_the_batches_before_it(arriving: list[int]) -> None:
    with closing(asyncio.new_event_loop()) as loop:
        backlog = RequestQueue()
        entries = [entry(loop, length, None, float(number)) for number, length in enumerate(arriving)]
        backlog.add(entries)
        taken: dict[int, int] = {}
        while len(backlog):
            number = len(set(taken.values()))
            taken |= {id(item): number for item in backlog.take(1e3, COST, BatchLimits(max_items=4), 1)[0]}
        for item in entries:
            assert taken[id(item)] < sum(other.enqueued <= item.enqueued for other in entries)


CLIENTS = "abc"


class Served:
    """Tracks the predicted seconds served per client, and the largest batch since the queue was empty."""

    def __init__(self, max_items: int) -> None:
        self.queue = RequestQueue()
        self.limits = BatchLimits(max_items=max_items)
        self.given = dict.fromkeys(CLIENTS, 0.0)
        self.largest = 0.0

    def is_waiting(self, client: str) -> bool:
        return self.queue.shares(client)[0] > 0

    def take(self) -> list[QueueEntry]:
        batch, _ = self.queue.take(1.0, COST, self.limits, 1)
        for item in batch:
            self.given[item.client] += item.seconds
        self.largest = max(self.largest, sum(item.seconds for item in batch))
        return batch


light_curves = st.tuples(st.integers(1, 400), st.sampled_from(CLIENTS))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(light_curves, min_size=1, max_size=80), st.integers(1, 32))
def test_take_clients_that_begin_together_differ_by_two_batches_at_most(
    arriving: list[tuple[int, str]], max_items: int
) -> None:
    with closing(asyncio.new_event_loop()) as loop:
        served = Served(max_items)
        served.queue.add([entry(loop, length, client=name) for length, name in arriving])
        while len(served.queue):
            served.take()
            for name in CLIENTS:
                if served.is_waiting(name):
                    assert max(served.given.values()) - served.given[name] <= 2 * served.largest + 1e-9


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.one_of(st.just("take"), st.integers(0, 79), light_curves), min_size=1, max_size=160),
    st.integers(1, 32),
)
def test_take_clients_that_wait_differ_by_four_batches_at_most(
    events: list[str | int | tuple[int, str]], max_items: int
) -> None:
    """Clients arrive, leave and cancel; each pair is compared while both are waiting."""
    with closing(asyncio.new_event_loop()) as loop:
        served, came = Served(max_items), list[QueueEntry]()
        since: dict[tuple[str, str], float] = {}  # difference at the time when both began to wait
        for event in events:
            if event == "take":
                served.take()
            elif isinstance(event, tuple):
                length, name = event
                came.append(entry(loop, length, client=name))
                served.queue.add(came[-1:])
            elif came:
                came[int(event) % len(came)].future.cancel()
            if not len(served.queue):
                served.largest = 0.0
            pending = {item.client for item in came if not item.future.done()}
            waiting = {name for name in pending if served.is_waiting(name)}
            pairs = set(permutations(sorted(waiting), 2))
            since = {pair: before for pair, before in since.items() if pair in pairs}
            for first, second in pairs:
                difference = served.given[first] - served.given[second]
                before = since.setdefault((first, second), difference)
                assert difference - before <= 4 * served.largest + 1e-9
