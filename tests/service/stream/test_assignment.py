"""Offsets that may be committed: never past a message that is not done."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.service.stream.kafka.offsets import RECENT_ANSWERS, Offsets, RecentAnswers, Token
from nightjar_alerts.service.stream.messages import Message

HERE = ("alerts", 0)


@given(st.integers(1, 60), st.integers(0, 2**32))
def test_only_what_has_nothing_unfinished_before_it_is_committed(count: int, seed: int) -> None:
    draw, offsets = random.Random(seed), Offsets()
    places = sorted(draw.sample(range(1000), count))  # compaction leaves gaps
    tokens = [offsets.take(HERE, place) for place in places]
    waiting, front, committed = set(places), places[0], places[0]
    draw.shuffle(tokens)
    while tokens:
        batch = [tokens.pop() for _ in range(min(len(tokens), draw.randint(1, 5)))]
        owned, ahead = offsets.committable_after(batch)
        assert owned == set(batch)
        offsets.finish(batch)
        waiting -= {token.offset for token in batch}
        moved = offsets.committable(HERE)
        assert moved is not None
        assert moved >= front
        assert ahead == ({HERE: moved} if moved > front else {})
        front = moved
        assert all(place >= front for place in waiting)
        assert offsets.unfinished() == offsets.unfinished([HERE]) == len(waiting)
        if draw.random() < 0.5:
            committed = front
            offsets.committed(HERE, front)
        assert offsets.uncommitted() == sum(place >= committed for place in places if place not in waiting)
    assert front == places[-1] + 1


def test_a_partition_that_came_back_begins_anew() -> None:
    offsets = Offsets()
    old = offsets.take(HERE, 10)
    offsets.drop([HERE])
    assert offsets.committable(HERE) is None
    new = offsets.take(HERE, 10)
    assert (offsets.owns(old), offsets.owns(new)) == (False, True)
    offsets.finish([old])
    assert (offsets.committable(HERE), offsets.unfinished()) == (10, 1)
    offsets.finish([new])
    assert (offsets.committable(HERE), offsets.unfinished()) == (11, 0)


def test_a_topic_made_again_begins_anew() -> None:
    """Offsets of a topic that was made again go back: what was taken of the former one says nothing about it."""
    offsets = Offsets()
    old = [offsets.take(HERE, place) for place in (500, 501)]
    new = offsets.take(HERE, 0)
    offsets.finish(old)
    assert offsets.committable(HERE) == 0
    offsets.finish([new])
    assert offsets.committable(HERE) == 1


def test_messages_committed_with_their_answers_wait_for_no_commit() -> None:
    offsets = Offsets(transactional=True)
    offsets.finish([offsets.take(HERE, place) for place in range(5)])
    assert (offsets.committable(HERE), offsets.uncommitted()) == (5, 0)


def test_a_message_that_was_answered_lately_is_known_again() -> None:
    recent, token = RecentAnswers(), Token(HERE, 7, 1)
    message = Message("alerts", "0:7", b"an alert", timestamp_ms=5, token=token)
    recent.add([message])
    assert recent.has(HERE, 7, message)
    assert not recent.has(HERE, 8, message)
    assert not recent.has(HERE, 7, replace(message, timestamp_ms=6))  # of the former topic
    recent.add(
        [Message("alerts", str(place), b"", token=Token(HERE, place, 1)) for place in range(8, 8 + RECENT_ANSWERS)]
    )
    assert not recent.has(HERE, 7, message)


def test_partitions_are_apart() -> None:
    offsets, there = Offsets(), ("alerts", 1)
    offsets.take(HERE, 5)
    offsets.finish([offsets.take(there, 7)])
    assert (offsets.committable(HERE), offsets.committable(there)) == (5, 8)
    assert offsets.unfinished([there, ("never", 0)]) == 0
    assert (offsets.next_offset(HERE), offsets.next_offset(("never", 0))) == (6, None)
    offsets.drop([HERE, there])
    assert offsets.unfinished() == 0
