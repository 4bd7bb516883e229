"""Crash markers in the metadata of committed offsets, and how the next owners of a partition use them."""

import pytest

pytest.importorskip("confluent_kafka", reason="confluent_kafka is missing: pip install 'nightjar-alerts[stream]'")

from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.service.stream.kafka.crash_marker import (
    GIVEN_BACK,
    ISOLATE_AFTER_CRASHES,
    UNKNOWN_PROCESS,
    UNRECORDED_MESSAGES,
    CrashGuard,
    CrashMarker,
    Group,
)

MAX = 5
OFFSETS = st.integers(0, 2**63 - 1)
PROCESSES = st.sampled_from([GIVEN_BACK, UNKNOWN_PROCESS, "5f0c2a"])
GROUPS = st.none() | st.builds(Group, OFFSETS, OFFSETS)


@given(PROCESSES, OFFSETS, OFFSETS, GROUPS, OFFSETS)
def test_crash_marker_parse_of_its_text_returns_it(
    process: str, crashes: int, in_flight_end: int, group: Group | None, tries: int
) -> None:
    marker = CrashMarker(process, crashes, in_flight_end, group, tries)
    assert CrashMarker.parse(str(marker)) == marker


@given(st.text() | st.from_regex(r"nightjar/[12]( [-0-9a-f]{0,30}){0,8}", fullmatch=True))
def test_crash_marker_parse_of_other_metadata_returns_none(text: str) -> None:
    marker = CrashMarker.parse(text)
    assert marker is None or CrashMarker.parse(str(marker)) == marker


@pytest.mark.parametrize(
    ("text", "marker"),
    [
        ("nightjar/1 1 20 - 0", CrashMarker(UNKNOWN_PROCESS, 1, 20)),
        ("nightjar/1 2 20 7 1", CrashMarker(UNKNOWN_PROCESS, 2, 20, Group(7, 8), 1)),
    ],
)
def test_crash_marker_parse_of_the_first_format_returns_a_marker_of_an_unknown_process(
    text: str, marker: CrashMarker
) -> None:
    assert CrashMarker.parse(text) == marker


def test_may_deliver_before_a_marker_is_acknowledged_is_false() -> None:
    guard = CrashGuard(None, MAX)
    guard.extend_in_flight(10)
    assert not guard.may_deliver(0)
    guard.acknowledged = guard.marker
    assert guard.may_deliver(0)
    assert guard.may_deliver(99)  # after a final commit the marker may lag behind
    assert guard.deliveries(0) == 1


def test_may_deliver_after_a_crash_needs_a_marker_that_covers_the_message() -> None:
    guard = CrashGuard(CrashMarker("dead", 0, 10), MAX)
    assert guard.crashes == 1
    guard.acknowledged = guard.marker
    assert [guard.may_deliver(place) for place in (0, 9, 10)] == [True, True, False]
    guard.extend_in_flight(12)
    guard.acknowledged = guard.marker
    assert guard.may_deliver(11)
    assert [guard.deliveries(place) for place in (9, 10)] == [2, 1]


@pytest.mark.parametrize("crashes", [0, 1, 3])
def test_crash_guard_after_an_owner_that_lives_counts_no_crash(crashes: int) -> None:
    guard = CrashGuard(CrashMarker("alive", crashes, 10), MAX, "this", crashed=False)
    assert (guard.crashes, guard.marker.process) == (crashes, "this")


def test_given_back_keeps_suspects_without_the_current_try() -> None:
    assert CrashMarker("this", 0, 10).given_back is None
    given_back = CrashMarker("this", 2, 10, Group(0, 4), 2).given_back
    assert given_back == CrashMarker(GIVEN_BACK, 2, 10, None, 1)
    guard = CrashGuard(given_back, MAX, crashed=False)
    assert guard.crashes == 2
    assert guard.must_isolate(9)


def test_record_done_before_after_all_candidates_resets_crashes() -> None:
    for offset, caught_up, crashes in (
        (9, True, 1),
        (10, False, 1),
        (10, True, 0),
        (10 + UNRECORDED_MESSAGES, False, 0),
    ):
        guard = CrashGuard(CrashMarker("dead", 0, 10), MAX)
        guard.record_done_before(offset, caught_up)
        assert guard.crashes == crashes, (offset, caught_up)


def kill_workers(candidates: int, killers: set[int], max_deliveries: int) -> tuple[int, int, list[int]]:
    """Let workers die one after another on some of these offsets; each reads the marker of the previous one.

    Returns the numbers of crashes and of isolated groups, and the dead letters.
    """
    left_behind: CrashMarker | None = None
    front = crashes = groups = 0
    dead: list[int] = []
    while front < candidates:
        guard = CrashGuard(left_behind, max_deliveries)
        guard.extend_in_flight(candidates)
        guard.acknowledged = guard.marker
        while front < candidates:
            end = candidates
            if guard.must_isolate(front):
                guard.begin_isolation(front)
                assert not guard.may_deliver(front)
                guard.acknowledged, groups = guard.marker, groups + 1
                while not guard.may_deliver(end - 1):
                    end -= 1
            delivered = range(front, end)
            late = [offset for offset in delivered if guard.deliveries(offset) > max_deliveries]
            dead += late
            if killers.intersection(delivered) - set(late):
                left_behind, crashes = guard.acknowledged, crashes + 1
                break
            front = end
            guard.record_done_before(front, caught_up=False)
    return crashes, groups, dead


@pytest.mark.parametrize("max_deliveries", [1, 3, 4, 5, 20])
@given(st.integers(1, 400), st.floats(0, 1, exclude_max=True))
def test_poison_message_becomes_the_only_dead_letter(max_deliveries: int, candidates: int, place: float) -> None:
    killer = int(candidates * place)
    crashes, _, dead = kill_workers(candidates, {killer}, max_deliveries)
    assert dead == [killer]
    assert crashes == max(max_deliveries, ISOLATE_AFTER_CRASHES + 1)


def test_poison_message_among_many_is_found_in_few_groups() -> None:
    assert max(kill_workers(1024, {killer}, MAX)[1] for killer in range(0, 1024, 31)) <= 40


def test_two_poison_messages_become_the_only_dead_letters() -> None:
    crashes, _, dead = kill_workers(200, {20, 150}, MAX)
    assert dead == [20, 150]
    assert crashes == MAX + MAX - ISOLATE_AFTER_CRASHES


def test_begin_isolation_with_a_least_end_reaches_it() -> None:
    guard = CrashGuard(CrashMarker("dead", 4, 1000), 3)
    guard.begin_isolation(0, least_end=64)
    assert guard.marker.group == Group(0, 64)
    guard = CrashGuard(guard.marker, 3)
    assert guard.deliveries(5) == 3  # not a dead letter: it was not alone
    guard.begin_isolation(0)
    assert guard.marker.group == Group(0, 1)


def test_must_isolate_with_one_delivery_allowed_isolates_each_candidate() -> None:
    """Messages in flight together when a worker died are isolated, even if the maximum is one delivery."""
    guard = CrashGuard(CrashMarker("dead", ISOLATE_AFTER_CRASHES, 10), 1)
    assert guard.must_isolate(3)
    assert guard.deliveries(3) == 1
    assert CrashGuard(CrashMarker("dead", ISOLATE_AFTER_CRASHES, 10, Group(3, 4), 1), 1).deliveries(3) > 1
