"""Seeds, everything that was ever a finding, and thousands of inputs near them, through every decoder."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from fuzz.mutate import mutated
from fuzz.targets import TARGETS, seeds

SECONDS_OF_AN_INPUT = 2.0
TRIES = 150


@pytest.mark.parametrize("name", TARGETS)
def test_earlier_findings_stay_repaired(name: str) -> None:
    for data in seeds(name):
        TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_near_good_ones_are_read_or_refused(name: str) -> None:
    """`make fuzz` goes on for minutes and follows coverage; this is the same for a moment, from one seed."""
    rng, known = random.Random(18), list(seeds(name))
    for _ in range(TRIES):
        data = mutated(known, rng)
        started = time.thread_time()
        TARGETS[name](data)
        assert time.thread_time() - started < SECONDS_OF_AN_INPUT, data[:200]


@pytest.mark.parametrize("name", TARGETS)
def test_good_input_with_anything_in_it_is_read_or_refused(name: str) -> None:
    known = list(seeds(name))

    @effort(max_examples=40, deadline=None)
    @given(data=st.data())
    def once(data: st.DataObject) -> None:
        good = data.draw(st.sampled_from([b"", *known]))
        start = data.draw(st.integers(0, len(good)))
        end = data.draw(st.integers(start, len(good)))
        TARGETS[name](good[:start] + data.draw(st.binary(max_size=60)) + good[end:])

    once()
