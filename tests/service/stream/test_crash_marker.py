"""The journal that a dead worker leaves in the committed offset's metadata, and what its successors make of it."""

import pytest

pytest.importorskip("confluent_kafka", reason="the [stream] extra is not installed")

from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.service.stream.kafka.journal import (
    ISOLATE_AFTER_CRASHES,
    UNRECORDED_MESSAGES,
    Journal,
    JournalEntry,
)

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
        if not journal.must_isolate(front):
            left_behind, crashes = journal.acknowledged, crashes + 1  # all at once, and the killer is among them
            continue
        while front < 10:
            if journal.must_isolate(front):
                journal.begin_try(front)
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
    assert ISOLATE_AFTER_CRASHES < MAX


def test_one_delivery_is_too_few_to_blame_anybody() -> None:
    """Messages under way together when a worker died are tried alone, even where only one delivery is lawful."""
    journal = Journal(JournalEntry(ISOLATE_AFTER_CRASHES, 10), 1)
    assert journal.must_isolate(3)
    assert journal.deliveries(3) == 1
    assert Journal(JournalEntry(ISOLATE_AFTER_CRASHES, 10, alone=3, tries=1), 1).deliveries(3) > 1
