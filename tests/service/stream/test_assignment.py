"""Assigned partitions: the committable offset never passes an unfinished message."""

import random
from dataclasses import replace

import pytest

pytest.importorskip("confluent_kafka", reason="confluent_kafka is missing: pip install 'nightjar-alerts[stream]'")

from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.service.stream.kafka.assignment import Assignment, Partition, Position, Token
from nightjar_alerts.service.stream.kafka.processed_messages import MAX_PROCESSED, ProcessedMessages
from nightjar_alerts.service.stream.messages import Message

HERE, THERE = ("alerts", 0), ("alerts", 1)


def assigned(*partitions: Partition, first: int = 0, transactional: bool = False) -> Assignment:
    """Assign partitions of a group without committed offsets, and record their first messages."""
    assignment = Assignment(5, transactional)
    assign(assignment, *partitions, first=first)
    return assignment


def assign(assignment: Assignment, *partitions: Partition, first: int = 0) -> None:
    assignment.add(partitions)
    for partition in partitions:
        assignment.start(partition, None, None)
        one = assignment.get(partition)
        assert one is not None
        one.first_offset = first


def committable(assignment: Assignment, partition: Partition = HERE) -> int:
    (position,) = assignment.positions([partition])
    return position.offset


@given(st.integers(1, 60), st.integers(0, 2**32))
def test_positions_never_pass_an_unfinished_message(count: int, seed: int) -> None:
    draw = random.Random(seed)
    offsets = sorted(draw.sample(range(1000), count))  # compaction leaves gaps
    assignment = assigned(HERE, first=offsets[0])
    tokens = [assignment.deliver(HERE, offset) for offset in offsets]
    waiting, front, committed = set(offsets), offsets[0], offsets[0]
    draw.shuffle(tokens)
    while tokens:
        batch = [tokens.pop() for _ in range(min(len(tokens), draw.randint(1, 5)))]
        owned, ahead = assignment.positions_after(batch)
        assert owned == set(batch)
        assignment.finish(batch)
        waiting -= {token.offset for token in batch}
        moved = committable(assignment)
        assert moved >= front
        assert [(position.partition, position.offset) for position in ahead] == [(HERE, moved)] * (moved > front)
        front = moved
        assert all(offset >= front for offset in waiting)
        assert assignment.unfinished() == assignment.unfinished([HERE]) == len(waiting)
        if draw.random() < 0.5:
            committed = front
            assignment.record_acknowledged(assignment.positions([HERE]))
            assert assignment.changed_positions([HERE]) == []
        assert assignment.uncommitted() == sum(offset >= committed for offset in offsets if offset not in waiting)
    assert front == offsets[-1] + 1


def test_positions_after_the_end_pass_offsets_without_a_record() -> None:
    """The end counts only once everything that was received before it is done."""
    assignment = assigned(HERE)
    for offset in (0, 1):
        assignment.receive(HERE, offset)
    tokens = [assignment.deliver(HERE, offset) for offset in (0, 1)]
    assert assignment.reach_end(HERE, 4)
    assert (committable(assignment), assignment.offsets()[HERE]) == (0, (0, 4))
    _, (ahead,) = assignment.positions_after(tokens)
    assert ahead.offset == 4
    assignment.finish(tokens[:1])
    assert committable(assignment) == 1
    assignment.finish(tokens[1:])
    assert committable(assignment) == 4
    assignment.receive(HERE, 6)  # in the buffer
    assert (committable(assignment), assignment.offsets()[HERE]) == (4, (4, 7))
    assert not assignment.reach_end(HERE, 7)
    assert committable(assignment) == 4


def test_positions_of_a_partition_without_a_message_are_its_end() -> None:
    assignment = Assignment(5)
    assignment.add([HERE, THERE])
    assignment.start(HERE, 3, None)
    assignment.start(THERE, None, None)
    assert assignment.positions([HERE, THERE]) == []
    assert not assignment.reach_end(HERE, 3)  # nothing is new: there is nothing to commit
    assert assignment.reach_end(THERE, 0)
    assert [(position.partition, position.offset) for position in assignment.positions([HERE, THERE])] == [(THERE, 0)]
    assert assignment.reach_end(HERE, 5)
    assert committable(assignment) == 5
    assignment.receive(HERE, 8)
    assert committable(assignment) == 5


def test_finish_after_reassignment_ignores_earlier_messages() -> None:
    assignment = assigned(HERE, first=10)
    old = assignment.deliver(HERE, 10)
    assignment.remove([HERE])
    assert assignment.positions([HERE]) == []
    assign(assignment, HERE, first=10)
    assert not assignment.owns(old)
    new = assignment.deliver(HERE, 10)
    assert (assignment.owns(old), assignment.owns(new)) == (False, True)
    assignment.finish([old])
    assert (committable(assignment), assignment.unfinished()) == (10, 1)
    assignment.finish([new])
    assert (committable(assignment), assignment.unfinished()) == (11, 0)


def test_record_acknowledged_of_an_earlier_assignment_has_no_effect() -> None:
    assignment = assigned(HERE)
    assignment.deliver(HERE, 0)
    former: list[Position] = assignment.positions([HERE])
    assignment.remove([HERE])
    assign(assignment, HERE)
    assignment.finish([assignment.deliver(HERE, 0)])
    assignment.record_acknowledged([position._replace(offset=100) for position in former])
    assert assignment.uncommitted() == 1
    assert [position.offset for position in assignment.changed_positions([HERE])] == [1]


def test_deliver_smaller_offset_resets_progress() -> None:
    """Offsets of a recreated topic start again, so earlier deliveries must not count."""
    assignment = assigned(HERE)
    old = [assignment.deliver(HERE, offset) for offset in (500, 501)]
    new = assignment.deliver(HERE, 0)
    assignment.finish(old)
    assert committable(assignment) == 0
    assignment.finish([new])
    assert committable(assignment) == 1


def test_uncommitted_with_transactions_is_zero() -> None:
    assignment = assigned(HERE, transactional=True)
    assignment.finish([assignment.deliver(HERE, offset) for offset in range(5)])
    assert (committable(assignment), assignment.uncommitted()) == (5, 0)


def test_partitions_progress_independently() -> None:
    assignment = assigned(HERE, THERE, first=5)
    assignment.deliver(HERE, 5)
    assignment.finish([assignment.deliver(THERE, 7)])
    assert (committable(assignment, HERE), committable(assignment, THERE)) == (5, 8)
    assert assignment.unfinished([THERE, ("never", 0)]) == 0
    assert assignment.unfinished() == 1
    assignment.remove([HERE, THERE])
    assert assignment.unfinished() == 0


def test_processed_messages_keeps_the_latest_messages() -> None:
    progress = assigned(HERE).deliver(HERE, 0).progress
    recent, token = ProcessedMessages(), Token(HERE, 7, progress)
    message = Message("alerts", "0:7", b"an alert", timestamp_ms=5, token=token)
    recent.add([message])
    assert recent.has(HERE, 7, message)
    assert not recent.has(HERE, 8, message)
    assert not recent.has(HERE, 7, replace(message, timestamp_ms=6))  # of the former topic
    recent.add([Message("alerts", str(n), b"", token=Token(HERE, n, progress)) for n in range(8, 8 + MAX_PROCESSED)])
    assert not recent.has(HERE, 7, message)
