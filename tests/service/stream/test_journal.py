"""The journal that a dead worker leaves in the committed offset's metadata, and what its successors make of it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="the [stream] extra is not installed")

from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from service.stream.kafka.commits import ALONE_AFTER, UNNAMED, Apart, Commits, Entry, Journal
from service.stream.kafka.offsets import Offsets

MAX = 5
NUMBERS = st.integers(0, 2**63 - 1)


@given(NUMBERS, NUMBERS, st.none() | NUMBERS, NUMBERS)
def test_an_entry_is_read_as_it_was_written(crashes: int, reach: int, alone: int | None, tries: int) -> None:
    entry = Entry(crashes, reach, alone, tries)
    assert Entry.parse(str(entry)) == entry


@given(st.text() | st.from_regex(r"nightjar/1( [-0-9]{0,30}){0,6}", fullmatch=True))
def test_metadata_of_others_is_no_entry(text: str) -> None:
    found = Entry.parse(text)
    assert found is None or str(found).split() == [str(int(w)) if w.isdigit() else w for w in text.split()]


def test_nothing_goes_before_the_broker_knows_of_its_owner() -> None:
    journal = Journal(None, MAX)
    journal.reach_to(10)
    assert not journal.may_go(0)
    journal.acknowledged = journal.entry
    assert journal.may_go(0)
    assert journal.may_go(99)  # after a farewell its reach may be told later
    assert journal.deliveries(0) == 1


def test_after_a_crash_messages_are_named_before_they_go() -> None:
    journal = Journal(Entry(0, 10), MAX)
    assert journal.crashes == 1
    journal.acknowledged = journal.entry
    assert [journal.may_go(place) for place in (0, 9, 10)] == [True, True, False]
    journal.reach_to(12)
    journal.acknowledged = journal.entry
    assert journal.may_go(11)
    assert [journal.deliveries(place) for place in (9, 10)] == [2, 1]


def test_crashes_are_forgotten_behind_the_suspects() -> None:
    for offset, caught_up, crashes in ((9, True, 1), (10, False, 1), (10, True, 0), (10 + UNNAMED, False, 0)):
        journal = Journal(Entry(0, 10), MAX)
        journal.done_before(offset, caught_up)
        assert journal.crashes == crashes, (offset, caught_up)


def test_a_killer_among_innocents_becomes_a_dead_letter_and_they_do_not() -> None:
    """Worker after worker dies over offset 7 of ten messages; each finds what its predecessor has written."""
    found: Entry | None = None
    front, killer, crashes = 0, 7, 0
    while front < 10:
        journal = Journal(found, MAX)
        journal.reach_to(10)
        journal.acknowledged = journal.entry
        if not journal.wants_alone(front):
            found, crashes = journal.acknowledged, crashes + 1  # all at once, and the killer is among them
            continue
        while front < 10:
            if journal.wants_alone(front):
                journal.name_alone(front)
                assert not journal.may_go(front)
                journal.acknowledged = journal.entry
                assert journal.may_go(front)
            too_often = journal.deliveries(front) > MAX
            assert too_often <= (front == killer), front
            if front == killer and not too_often:
                found, crashes = journal.acknowledged, crashes + 1
                break
            front += 1
            journal.done_before(front, caught_up=False)
    assert crashes == MAX
    assert ALONE_AFTER < MAX


def test_one_delivery_is_too_few_to_blame_anybody() -> None:
    """Messages under way together when a worker died are tried alone, even where only one delivery is lawful."""
    journal = Journal(Entry(ALONE_AFTER, 10), 1)
    assert journal.wants_alone(3)
    assert journal.deliveries(3) == 1
    assert Journal(Entry(ALONE_AFTER, 10, alone=3, tries=1), 1).deliveries(3) > 1


class EndingApart(Apart):
    """A gate at which a transaction ends just before the journal gets its turn."""

    def __init__(self, end: Callable[[], None]) -> None:
        super().__init__()
        self._end = end

    def begin_journal(self, timeout: float = 0.0) -> bool:
        self._end()
        return super().begin_journal(timeout)


def test_no_transaction_begins_while_a_commit_is_in_doubt() -> None:
    """One that the broker takes late would set the group back to before the transaction; so it is said again first."""
    place, said = ("alerts", 0), []
    offsets, apart = Offsets(committed_with=True), Apart()
    consumer: Any = SimpleNamespace(commit=lambda offsets, **_: said.append(offsets))
    commits = Commits(offsets, MAX, apart)
    commits.begin([place])
    commits.start(place, 10)
    commits.open(place, None)
    for code in (KafkaError._TRANSPORT, KafkaError.REQUEST_TIMED_OUT):
        commits.send(consumer, [place])
        commits.answered(KafkaError(code), said[-1])
        assert not apart.begin_transaction(0)
    commits.send(consumer)  # although nobody waits for it any more
    assert len(said) == 3
    commits.answered(None, said[-1])
    assert apart.begin_transaction(0)


@pytest.mark.parametrize("end", ["refused", "lost", "left"])
def test_a_doubt_ends_with_the_partition_or_a_refusal(end: str) -> None:
    place, said = ("alerts", 0), []
    apart = Apart()
    consumer: Any = SimpleNamespace(commit=lambda offsets, **_: said.append(offsets))
    commits = Commits(Offsets(committed_with=True), MAX, apart)
    commits.begin([place])
    commits.start(place, 10)
    commits.open(place, None)
    commits.send(consumer, [place])
    commits.answered(KafkaError(KafkaError._TIMED_OUT), said[-1])
    if end == "refused":
        commits.send(consumer)
        commits.answered(KafkaError(KafkaError.ILLEGAL_GENERATION), said[-1])
    elif end == "left":
        commits.farewell(consumer, [place], clean=True, patience=0)
        assert said[-1][0].metadata == ""
        commits.forget([place])
        commits.answered(None, said[-1])
    else:
        commits.forget([place])
    assert apart.begin_transaction(0)
    assert not apart.begin_transaction(0)  # its time was ended once


@pytest.mark.parametrize("leaving", [False, True], ids=["journal", "farewell"])
def test_a_commit_says_what_is_true_once_its_turn_has_come(leaving: bool) -> None:
    """One that said what was true before it would set the group back to before a transaction that ended meanwhile."""
    place, said = ("alerts", 0), []
    offsets = Offsets()
    consumer: Any = SimpleNamespace(commit=lambda offsets, **_: said.extend(offsets))
    tokens = [offsets.take(place, offset) for offset in range(10, 14)]
    commits = Commits(offsets, MAX, EndingApart(lambda: offsets.finish(tokens)))
    commits.begin([place])
    commits.start(place, 10)
    commits.open(place, None)
    if leaving:
        commits.farewell(consumer, [place], clean=True, patience=1.0)
    else:
        commits.send(consumer, [place])
    assert [position.offset for position in said] == [14]
