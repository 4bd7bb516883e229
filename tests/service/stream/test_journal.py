"""The journal that a dead worker leaves in the committed offset's metadata, and what its successors make of it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="the [stream] extra is not installed")

from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.service.stream.kafka.commits import (
    ALONE_AFTER_CRASHES,
    UNRECORDED_MESSAGES,
    CommitGate,
    Commits,
    Journal,
    JournalEntry,
)
from nightjar_alerts.service.stream.kafka.offsets import Offsets

MAX = 5
NUMBERS = st.integers(0, 2**63 - 1)


@given(NUMBERS, NUMBERS, st.none() | NUMBERS, NUMBERS)
def test_an_entry_is_read_as_it_was_written(crashes: int, in_flight_end: int, alone: int | None, tries: int) -> None:
    entry = JournalEntry(crashes, in_flight_end, alone, tries)
    assert JournalEntry.parse(str(entry)) == entry


@given(st.text() | st.from_regex(r"nightjar/1( [-0-9]{0,30}){0,6}", fullmatch=True))
def test_metadata_of_others_is_no_entry(text: str) -> None:
    entry = JournalEntry.parse(text)
    assert entry is None or str(entry).split() == [str(int(w)) if w.isdigit() else w for w in text.split()]


def test_nothing_goes_before_the_broker_knows_of_its_owner() -> None:
    journal = Journal(None, MAX)
    journal.extend_in_flight(10)
    assert not journal.may_deliver(0)
    journal.acknowledged = journal.entry
    assert journal.may_deliver(0)
    assert journal.may_deliver(99)  # after a final commit the entry may lag behind
    assert journal.deliveries(0) == 1


def test_after_a_crash_messages_are_named_before_they_go() -> None:
    journal = Journal(JournalEntry(0, 10), MAX)
    assert journal.crashes == 1
    journal.acknowledged = journal.entry
    assert [journal.may_deliver(place) for place in (0, 9, 10)] == [True, True, False]
    journal.extend_in_flight(12)
    journal.acknowledged = journal.entry
    assert journal.may_deliver(11)
    assert [journal.deliveries(place) for place in (9, 10)] == [2, 1]


def test_crashes_are_forgotten_behind_the_suspects() -> None:
    for offset, caught_up, crashes in (
        (9, True, 1),
        (10, False, 1),
        (10, True, 0),
        (10 + UNRECORDED_MESSAGES, False, 0),
    ):
        journal = Journal(JournalEntry(0, 10), MAX)
        journal.note_done_before(offset, caught_up)
        assert journal.crashes == crashes, (offset, caught_up)


def test_a_killer_among_innocents_becomes_a_dead_letter_and_they_do_not() -> None:
    """Worker after worker dies over offset 7 of ten messages; each finds what its predecessor has written."""
    left_behind: JournalEntry | None = None
    front, killer, crashes = 0, 7, 0
    while front < 10:
        journal = Journal(left_behind, MAX)
        journal.extend_in_flight(10)
        journal.acknowledged = journal.entry
        if not journal.must_deliver_alone(front):
            left_behind, crashes = journal.acknowledged, crashes + 1  # all at once, and the killer is among them
            continue
        while front < 10:
            if journal.must_deliver_alone(front):
                journal.begin_alone_try(front)
                assert not journal.may_deliver(front)
                journal.acknowledged = journal.entry
                assert journal.may_deliver(front)
            too_often = journal.deliveries(front) > MAX
            assert too_often <= (front == killer), front
            if front == killer and not too_often:
                left_behind, crashes = journal.acknowledged, crashes + 1
                break
            front += 1
            journal.note_done_before(front, caught_up=False)
    assert crashes == MAX
    assert ALONE_AFTER_CRASHES < MAX


def test_one_delivery_is_too_few_to_blame_anybody() -> None:
    """Messages under way together when a worker died are tried alone, even where only one delivery is lawful."""
    journal = Journal(JournalEntry(ALONE_AFTER_CRASHES, 10), 1)
    assert journal.must_deliver_alone(3)
    assert journal.deliveries(3) == 1
    assert Journal(JournalEntry(ALONE_AFTER_CRASHES, 10, alone=3, tries=1), 1).deliveries(3) > 1


class EndingCommitGate(CommitGate):
    """A gate at which a transaction ends just before the journal gets its turn."""

    def __init__(self, end: Callable[[], None]) -> None:
        super().__init__()
        self._end = end

    def acquire_for_journal(self, timeout: float = 0.0) -> bool:
        self._end()
        return super().acquire_for_journal(timeout)


def test_no_transaction_begins_while_a_commit_is_in_doubt() -> None:
    """One that the broker takes late would set the group back to before the transaction; so it is said again first."""
    place, commits_sent = ("alerts", 0), []
    offsets, gate = Offsets(transactional=True), CommitGate()
    consumer: Any = SimpleNamespace(commit=lambda offsets, **_: commits_sent.append(offsets))
    commits = Commits(offsets, MAX, gate)
    commits.assign([place])
    commits.note_message(place, 10)
    commits.open_journal(place, None)
    for code in (KafkaError._TRANSPORT, KafkaError.REQUEST_TIMED_OUT):
        commits.send(consumer, [place])
        commits.on_commit(KafkaError(code), commits_sent[-1])
        assert not gate.acquire_for_transaction(0)
    commits.send(consumer)  # although nobody waits for it any more
    assert len(commits_sent) == 3
    commits.on_commit(None, commits_sent[-1])
    assert gate.acquire_for_transaction(0)


@pytest.mark.parametrize("end", ["refused", "lost", "left"])
def test_a_doubt_ends_with_the_partition_or_a_refusal(end: str) -> None:
    place, commits_sent = ("alerts", 0), []
    gate = CommitGate()
    consumer: Any = SimpleNamespace(commit=lambda offsets, **_: commits_sent.append(offsets))
    commits = Commits(Offsets(transactional=True), MAX, gate)
    commits.assign([place])
    commits.note_message(place, 10)
    commits.open_journal(place, None)
    commits.send(consumer, [place])
    commits.on_commit(KafkaError(KafkaError._TIMED_OUT), commits_sent[-1])
    if end == "refused":
        commits.send(consumer)
        commits.on_commit(KafkaError(KafkaError.ILLEGAL_GENERATION), commits_sent[-1])
    elif end == "left":
        commits.commit_final(consumer, [place], clean=True, timeout=0)
        assert commits_sent[-1][0].metadata == ""
        commits.unassign([place])
        commits.on_commit(None, commits_sent[-1])
    else:
        commits.unassign([place])
    assert gate.acquire_for_transaction(0)
    assert not gate.acquire_for_transaction(0)  # its time was ended once


@pytest.mark.parametrize("leaving", [False, True], ids=["journal", "final commit"])
def test_a_commit_says_what_is_true_once_its_turn_has_come(leaving: bool) -> None:
    """One that said what was true before it would set the group back to before a transaction that ended meanwhile."""
    place, commits_sent = ("alerts", 0), []
    offsets = Offsets()
    consumer: Any = SimpleNamespace(commit=lambda offsets, **_: commits_sent.extend(offsets))
    tokens = [offsets.take(place, offset) for offset in range(10, 14)]
    commits = Commits(offsets, MAX, EndingCommitGate(lambda: offsets.finish(tokens)))
    commits.assign([place])
    commits.note_message(place, 10)
    commits.open_journal(place, None)
    if leaving:
        commits.commit_final(consumer, [place], clean=True, timeout=1.0)
    else:
        commits.send(consumer, [place])
    assert [position.offset for position in commits_sent] == [14]
