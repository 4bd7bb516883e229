"""Crash markers in the metadata of committed offsets, and how the next owners of a partition use them."""

import pytest

pytest.importorskip("confluent_kafka", reason="confluent_kafka is missing: pip install 'nightjar-alerts[stream]'")

from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.service.stream.kafka.crash_marker import (
    ISOLATE_AFTER_CRASHES,
    UNRECORDED_MESSAGES,
    CrashGuard,
    CrashMarker,
)

MAX = 5
NUMBERS = st.integers(0, 2**63 - 1)


@given(NUMBERS, NUMBERS, st.none() | NUMBERS, NUMBERS)
def test_crash_marker_parse_of_its_text_returns_it(
    crashes: int, in_flight_end: int, isolated: int | None, tries: int
) -> None:
    marker = CrashMarker(crashes, in_flight_end, isolated, tries)
    assert CrashMarker.parse(str(marker)) == marker


@given(st.text() | st.from_regex(r"nightjar/1( [-0-9]{0,30}){0,6}", fullmatch=True))
def test_crash_marker_parse_of_other_metadata_returns_none(text: str) -> None:
    marker = CrashMarker.parse(text)
    assert marker is None or str(marker).split() == [str(int(w)) if w.isdigit() else w for w in text.split()]


def test_may_deliver_before_a_marker_is_acknowledged_is_false() -> None:
    guard = CrashGuard(None, MAX)
    guard.extend_in_flight(10)
    assert not guard.may_deliver(0)
    guard.acknowledged = guard.marker
    assert guard.may_deliver(0)
    assert guard.may_deliver(99)  # after a final commit the marker may lag behind
    assert guard.deliveries(0) == 1


def test_may_deliver_after_a_crash_needs_a_marker_that_covers_the_message() -> None:
    guard = CrashGuard(CrashMarker(0, 10), MAX)
    assert guard.crashes == 1
    guard.acknowledged = guard.marker
    assert [guard.may_deliver(place) for place in (0, 9, 10)] == [True, True, False]
    guard.extend_in_flight(12)
    guard.acknowledged = guard.marker
    assert guard.may_deliver(11)
    assert [guard.deliveries(place) for place in (9, 10)] == [2, 1]


def test_record_done_before_after_all_candidates_resets_crashes() -> None:
    for offset, caught_up, crashes in (
        (9, True, 1),
        (10, False, 1),
        (10, True, 0),
        (10 + UNRECORDED_MESSAGES, False, 0),
    ):
        guard = CrashGuard(CrashMarker(0, 10), MAX)
        guard.record_done_before(offset, caught_up)
        assert guard.crashes == crashes, (offset, caught_up)


def test_poison_message_becomes_the_only_dead_letter() -> None:
    """Workers die one after another on offset 7 of ten messages; each reads the marker of the previous one."""
    left_behind: CrashMarker | None = None
    front, killer, crashes = 0, 7, 0
    while front < 10:
        guard = CrashGuard(left_behind, MAX)
        guard.extend_in_flight(10)
        guard.acknowledged = guard.marker
        if not guard.must_isolate(front):
            left_behind, crashes = guard.acknowledged, crashes + 1  # all at once, and the killer is among them
            continue
        while front < 10:
            if guard.must_isolate(front):
                guard.begin_isolation(front)
                assert not guard.may_deliver(front)
                guard.acknowledged = guard.marker
                assert guard.may_deliver(front)
            too_often = guard.deliveries(front) > MAX
            assert too_often <= (front == killer), front
            if front == killer and not too_often:
                left_behind, crashes = guard.acknowledged, crashes + 1
                break
            front += 1
            guard.record_done_before(front, caught_up=False)
    assert crashes == MAX
    assert ISOLATE_AFTER_CRASHES < MAX


def test_must_isolate_with_one_delivery_allowed_isolates_each_candidate() -> None:
    """Messages in flight together when a worker died are isolated, even if the maximum is one delivery."""
    guard = CrashGuard(CrashMarker(ISOLATE_AFTER_CRASHES, 10), 1)
    assert guard.must_isolate(3)
    assert guard.deliveries(3) == 1
    assert CrashGuard(CrashMarker(ISOLATE_AFTER_CRASHES, 10, isolated=3, tries=1), 1).deliveries(3) > 1
