"""What may be committed: never past a message that is not done."""

import random
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.stream.offsets import Offsets

HERE = ("alerts", 0)


@given(st.integers(1, 60), st.integers(0, 2**32))
def test_only_what_has_nothing_unfinished_before_it_is_stored(count: int, seed: int) -> None:
    draw, offsets = random.Random(seed), Offsets()
    places = sorted(draw.sample(range(1000), count))  # compaction leaves gaps
    tokens = [offsets.take(HERE, place) for place in places]
    waiting, stored = set(places), 0
    draw.shuffle(tokens)
    while tokens:
        batch = [tokens.pop() for _ in range(min(len(tokens), draw.randint(1, 5)))]
        moved = offsets.finish(batch)
        waiting -= {token.offset for token in batch}
        assert moved.get(HERE, stored) >= stored
        stored = moved.get(HERE, stored)
        assert all(place >= stored for place in waiting)
    assert stored == places[-1] + 1


def test_a_partition_that_came_back_begins_anew() -> None:
    offsets = Offsets()
    old = offsets.take(HERE, 10)
    offsets.drop([HERE])
    new = offsets.take(HERE, 10)
    assert offsets.finish([old]) == {}
    assert offsets.finish([new]) == {HERE: 11}


def test_partitions_are_apart() -> None:
    offsets, there = Offsets(), ("alerts", 1)
    offsets.take(HERE, 5)
    assert offsets.finish([offsets.take(there, 7)]) == {there: 8}


@pytest.mark.parametrize("way", ["done", "dropped", "cleared"])
def test_waiting_ends_when_nothing_is_unfinished(way: str) -> None:
    offsets = Offsets()
    token = offsets.take(HERE, 1)
    assert not offsets.wait_idle([HERE], 0.01)
    ends: dict[str, Callable[[], object]] = {
        "done": lambda: offsets.finish([token]),
        "dropped": lambda: offsets.drop([HERE]),
        "cleared": offsets.clear,
    }
    timer = threading.Timer(0.05, ends[way])
    timer.start()
    started = time.monotonic()
    assert offsets.wait_idle([HERE, ("never", 0)], 5)
    assert time.monotonic() - started < 4
    timer.join()
