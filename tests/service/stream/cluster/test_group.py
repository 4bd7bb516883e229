"""Consumer group on a real Kafka: workers join, leave, die and sleep under load; others do not stall or repeat."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from nightjar_alerts.service.local import free_port
from nightjar_alerts.service.stream.kafka import transactions
from nightjar_alerts.service.stream.kafka.commits import MAX_UNCOMMITTED, TransactionCommits
from nightjar_alerts.service.stream.kafka.crash_marker import CrashMarker
from support.kafka_brokers import Brokers
from support.kafka_trial import SESSION_MS, START_SECONDS, STEADY, Trial, begins_well, ends_well, repeats, trial
from support.stream import Process, Running, alert, eventually, forget_in_classifying, running


def classified(worker: Running) -> int:
    return worker.totals().get("classified", 0)


def longest_standstill(count: Callable[[], int], seconds: float, work_remains: Callable[[], bool]) -> float:
    """Return the longest time in seconds for which a number did not grow although work was left."""
    longest, last, since = 0.0, count(), time.monotonic()
    end = since + seconds
    while (now := time.monotonic()) < end and work_remains():
        if (current := count()) != last:
            last, since = current, now
        longest = max(longest, now - since)
        time.sleep(0.02)
    return longest


def test_kafka_group_classifies_and_counts_all_alerts(both: Trial) -> None:
    both.feed(200)
    with running(both.settings(STEADY)) as worker:
        counts = ends_well(both, worker)
    assert worker.totals() == {"in": both.fed, "classified": both.fed, "pending": 0}
    assert repeats(counts) == 0


def test_kafka_restarted_worker_repeats_nothing(both: Trial) -> None:
    for _ in range(2):
        both.feed(100)
        with running(both.settings(STEADY)) as worker:
            counts = ends_well(both, worker)
    assert repeats(counts) == 0


def test_kafka_many_rebalances_lose_no_alert(both: Trial) -> None:
    with running(both.settings(batch_messages=4)) as first:
        begins_well(both, first)
        for _ in range(3):
            with running(both.settings(batch_messages=4)) as visitor:
                both.feed(80, over=1.0)
                assert visitor.stop() == 0
        counts = ends_well(both, first)
    assert repeats(counts) <= 64


def test_kafka_transaction_committed_during_a_revocation_is_not_repeated(
    hosts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The final commit waits for the running transaction, and commits the offsets after it."""
    revoked, commit_began = threading.Event(), threading.Event()
    send_final = TransactionCommits.send_final

    class Late(Producer):  # type: ignore[misc]  # confluent-kafka has no types
        def send_offsets_to_transaction(self, positions: list[TopicPartition], *arguments: Any) -> None:
            if len(positions) == 2:  # messages of a partition that stays and of one that leaves
                commit_began.set()
                revoked.wait(4)
            super().send_offsets_to_transaction(positions, *arguments)

    def watched_final(self: TransactionCommits, *arguments: Any, **options: Any) -> None:
        revoked.set()
        send_final(self, *arguments, **options)

    monkeypatch.setattr(transactions, "Producer", Late)
    monkeypatch.setattr(TransactionCommits, "send_final", watched_final)
    settings: dict[str, Any] = {"options": STEADY, "batch_messages": 8}
    with trial(hosts, tmp_path, exactly_once=True, partitions=2) as one, running(one.settings(**settings)) as first:
        begins_well(one, first)
        first.network.hold()  # what comes now waits, and so later batches hold messages of both partitions
        for number in range(40):
            one.feed_one(number % 2)
        first.network.release()
        assert commit_began.wait(30)
        with running(one.settings(**settings)) as visitor:
            ends_well(one, first, visitor)


def test_kafka_second_worker_joins_under_load_and_leaves(plain: Trial) -> None:
    plain.feed(5_000)
    with running(plain.settings()) as first:
        eventually(lambda: classified(first) > 500)
        with running(plain.settings()) as second:

            def work_remains() -> bool:
                return classified(first) + classified(second) < plain.fed

            still = longest_standstill(lambda: classified(first), 3, work_remains)
            assert second.stop() == 0
        still = max(still, longest_standstill(lambda: classified(first), 3, work_remains))
        counts = ends_well(plain, first)
    assert still <= 2
    assert repeats(counts) <= 256


SMALL_BATCHES: dict[str, Any] = {"batch_messages": 16, "max_inflight_messages": 32}


def suspend_for_longer_than_its_session(one: Trial, worker: Process, load: int) -> None:
    begins_well(one, worker)
    one.feed(load)
    time.sleep(0.1)
    worker.suspend()
    time.sleep(SESSION_MS / 1000 + 2)
    worker.resume()
    one.feed(40)
    ends_well(one, worker)


@pytest.mark.parametrize("load", [40, 1500])
@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
def test_kafka_suspended_worker_continues(hosts: str, tmp_path: Path, exactly_once: bool, load: int) -> None:
    """The session of a worker ends while it is suspended, idle or busy; its partitions return and are not paused.

    Its transaction has not timed out: by default it lasts longer than a session.
    """
    with (
        trial(hosts, tmp_path, exactly_once=exactly_once, transaction_ms=None) as one,
        one.process(**SMALL_BATCHES) as worker,
    ):
        suspend_for_longer_than_its_session(one, worker, load)


@pytest.mark.parametrize("load", [40, 1500])
def test_kafka_worker_suspended_longer_than_its_transaction_is_restarted(hosts: str, tmp_path: Path, load: int) -> None:
    """Its producer may fail: the process exits with the restart status, and the next one continues."""
    with (
        trial(hosts, tmp_path, exactly_once=True) as one,
        one.process(supervise=True, worker_port=free_port(), **SMALL_BATCHES) as worker,
    ):
        suspend_for_longer_than_its_session(one, worker, load)
        assert worker.restarts <= 1


def crash_counts(one: Trial) -> set[int]:
    """Crashes that the markers of all partitions count."""
    consumer = Consumer({"bootstrap.servers": one.hosts, "group.id": one.group, "log_level": 0})
    try:
        positions = consumer.committed([TopicPartition(one.source, number) for number in range(4)], 30)
    finally:
        consumer.close()
    return {0 if (marker := CrashMarker.parse(position.metadata)) is None else marker.crashes for position in positions}


@pytest.mark.parametrize("count", [1, 2], ids=["taken by itself", "taken by another worker"])
@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
def test_kafka_partitions_lost_by_living_workers_have_no_suspects(
    hosts: str, tmp_path: Path, exactly_once: bool, count: int
) -> None:
    """Each worker loses its partitions twice while it has messages in flight, and lives."""
    with ExitStack() as stack:
        one = stack.enter_context(trial(hosts, tmp_path, exactly_once=exactly_once, transaction_ms=None))
        workers = [stack.enter_context(one.process(**SMALL_BATCHES)) for _ in range(count)]
        begins_well(one, workers[0])
        for worker in workers * 2:
            one.feed(1500)
            time.sleep(0.2)
            worker.suspend()
            time.sleep(SESSION_MS / 1000 + 2)
            worker.resume()
            eventually(lambda: worker.metric("nightjar_stream_assigned_partitions") > 0, 60)  # noqa: B023
        ends_well(one, *workers)
        assert not any("suspect" in event["event"] for worker in workers for event in worker.events())
        assert crash_counts(one) == {0}


def test_kafka_suspended_worker_publishes_no_duplicates(both: Trial) -> None:
    limits: dict[str, Any] = {"batch_messages": 16, "max_inflight_messages": 64}
    with both.process(**limits) as sleeper, both.process(**limits) as other:
        begins_well(both, sleeper, 200)
        both.feed(1000)
        sleeper.suspend()
        time.sleep(SESSION_MS / 1000 + 3)
        sleeper.resume()
        counts = ends_well(both, sleeper, other)
    assert repeats(counts) <= 64  # what the sleeper had published and not committed


def test_kafka_killed_worker_repeats_few_alerts(both: Trial) -> None:
    with both.process() as first:
        both.feed(540, over=2)
        first.kill()
        with both.process() as second:
            counts = ends_well(both, second)
    assert repeats(counts) <= 64


def test_kafka_worker_killed_at_full_load_repeats_few_alerts(plain: Trial) -> None:
    """The bound is a count, so it holds on slow machines: the number of messages published before their commit."""
    for _ in range(2):
        plain.feed(2_000)
        before = len(plain.answers())
        with plain.process() as victim:
            eventually(lambda: len(plain.answers()) > before + 300, START_SECONDS)  # noqa: B023
            victim.kill()
        with plain.process() as heir:
            counts = ends_well(plain, heir)
    assert repeats(counts) <= 2 * MAX_UNCOMMITTED


def test_kafka_message_that_kills_workers_becomes_a_dead_letter(both: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Crash markers count deliveries, which Kafka does not."""
    from support.kafka_brokers import produce

    monkeypatch.setenv("TEST_DEADLY_FLUX", "77")
    both.feed(30)
    produce(both.hosts, both.source, [alert(both.fed, flux=77.0)])
    deadly = both.fed
    both.fed += 1
    both.feed(30)
    dead = 0
    while True:
        with both.process(max_deliveries=3) as worker:
            eventually(lambda: worker.status is not None or len(both.dead_letters()) == 1, 60)
            if worker.status is None:
                counts = ends_well(both, worker, but={deadly})
                break
        dead += 1
        assert dead < 6
    assert dead == 3
    assert deadly not in counts
    (dead_letter,) = both.dead_letters()
    headers = dict(dead_letter.headers())
    assert (headers["nightjar-dead-reason"], dead_letter.value()) == (b"too_many_deliveries", alert(deadly, flux=77.0))


def test_alert_lost_repeatedly_becomes_a_dead_letter(both: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lost alert stops the worker, which leaves a crash marker as if it had been killed."""
    forget_in_classifying(monkeypatch, "10030")
    both.feed(60)
    stops = 0
    while True:
        with running(both.settings(max_deliveries=3)) as worker:
            eventually(lambda: worker.status is not None or len(both.dead_letters()) == 1)
            if worker.status is None:
                ends_well(both, worker, but={30})
                break
            assert worker.status == 1
            stops += 1
    (dead_letter,) = both.dead_letters()
    assert (dict(dead_letter.headers())["nightjar-dead-reason"], dead_letter.value()) == (
        b"too_many_deliveries",
        alert(30),
    )
    assert stops == 3


def test_kafka_stuck_worker_becomes_not_ready_and_unhealthy(plain: Trial) -> None:
    """A run that never ends is not an external error: a supervisor must restart the worker."""
    with running(plain.settings(STEADY, max_inflight_messages=8, unready_after=2, unhealthy_after=6)) as worker:
        begins_well(plain, worker)
        worker.network.hold()
        plain.feed(300)  # 8 are in flight, 64 lie in the buffer, and the others wait at the broker
        eventually(lambda: "messages wait" in worker.ask("/readyz")[1])
        eventually(lambda: worker.metric("nightjar_stream_untaken_seconds") > 2)
        eventually(lambda: worker.ask("/healthz")[0] == 503)
        assert "nothing has moved" in worker.ask("/healthz")[1]
        worker.network.release()
        ends_well(plain, worker)


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
def test_kafka_member_without_partitions_is_ready(hosts: str, exactly_once: bool, tmp_path: Path) -> None:
    with trial(hosts, tmp_path, exactly_once=exactly_once, partitions=1) as one:
        patience: dict[str, Any] = {"unready_after": 2, "unhealthy_after": 4}
        with one.process(**patience) as first, one.process(**patience) as second:
            workers = (first, second)
            begins_well(one, first)
            eventually(lambda: sorted(w.metric("nightjar_stream_assigned_partitions") for w in workers) == [0, 1])
            time.sleep(8)
            for worker in workers:
                assert worker.ask("/readyz")[0] == worker.ask("/healthz")[0] == 200
            ends_well(one, *workers)


def test_kafka_lag_agrees_with_kafkas_tool(one_broker: Brokers, tmp_path: Path) -> None:
    with trial(one_broker.hosts(), tmp_path) as one:
        one.feed(100)
        with running(one.settings(STEADY)) as worker:
            one.all_answered()
            partitions = [(one.source, number) for number in range(4)]
            eventually(lambda: sum(one_broker.group_lag(one.group).values()) == 0)
            eventually(lambda: worker.metric("nightjar_stream_assigned_partitions") == 4)
            worker.network.hold()
            one.feed(50)

            def agree() -> bool:
                lag = {
                    (topic, number): worker.metric("nightjar_stream_lag_messages", topic=topic, partition=str(number))
                    for topic, number in partitions
                }
                return lag == one_broker.group_lag(one.group) and sum(lag.values()) == 50

            eventually(agree, 120, 1.0)
            worker.network.release()
            one.all_answered()
            eventually(lambda: sum(one_broker.group_lag(one.group).values()) == 0)
            ends_well(one, worker)
        assert sum(one_broker.group_lag(one.group).values()) == 0


def test_kafka_static_members_keep_their_partitions(plain: Trial) -> None:
    """A restart within the session causes no rebalance."""
    static = {"session.timeout.ms": "20000"}
    with running(plain.settings({"group.instance.id": "other", **static})) as other:
        with running(plain.settings({"group.instance.id": "one", **static})) as one:
            eventually(lambda: other.metric("nightjar_stream_assigned_partitions") == 2)
            plain.feed(40)
            plain.all_answered()
            assert one.stop() == 0
        changes = other.metric("nightjar_stream_rebalance_seconds_count")
        plain.feed(40)
        with running(plain.settings({"group.instance.id": "one", **static})) as again:
            plain.all_answered()
            eventually(lambda: again.metric("nightjar_stream_assigned_partitions") == 2)
            assert other.metric("nightjar_stream_rebalance_seconds_count") == changes
            counts = ends_well(plain, again, other)
    assert repeats(counts) == 0
