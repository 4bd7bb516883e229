"""Start of partitions on a real Kafka: at the stable committed offset, even if offsets are pending, missing or old."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from nightjar_alerts.service.stream.worker import RESTART_STATUS
from support.kafka_trial import START_SECONDS, STEADY, Trial, begins_well, ends_well, repeats, trial
from support.stream import eventually, running

PARTITIONS = 4
OLD_FORMATS = {
    "final commit": "",
    "in flight": "nightjar/1 0 {end} - 0",
    "after two crashes": "nightjar/1 1 {end} - 0",
    "tried alone": "nightjar/1 2 {end} {offset} 1",
}
"""Metadata of a commit, as written by f0368e3."""


def commit(one: Trial, offset: int, metadata: str) -> None:
    """Commit an offset of every partition, as an earlier worker did."""
    consumer = Consumer({"bootstrap.servers": one.hosts, "group.id": one.group, "log_level": 0})
    entry = metadata.format(offset=offset, end=offset + 5)
    positions = [TopicPartition(one.source, number, offset, entry) for number in range(PARTITIONS)]
    consumer.commit(offsets=positions, asynchronous=False)
    consumer.close()


def feed_evenly(one: Trial, count: int) -> None:
    """Write alerts to the partitions in turn, so that alert N has the offset N // PARTITIONS."""
    for number in range(count):
        one.feed_one(number % PARTITIONS)


@pytest.mark.parametrize("metadata", OLD_FORMATS.values(), ids=OLD_FORMATS)
def test_worker_after_an_upgrade_continues_at_the_committed_offset(both: Trial, metadata: str) -> None:
    feed_evenly(both, 40)
    commit(both, 4, metadata)
    answered = set(range(16))  # by the former version, before offset 4
    with running(both.settings(STEADY)) as worker:
        counts = ends_well(both, worker, but=answered)
    assert not answered & set(counts)
    assert repeats(counts) == 0


def open_transaction(one: Trial, offset: int) -> Any:
    """Leave a transaction open that contains an offset of every partition, as a killed worker does."""
    member = Consumer({"bootstrap.servers": one.hosts, "group.id": one.group, "log_level": 0})
    producer = Producer({
        "bootstrap.servers": one.hosts, "transactional.id": f"killed-{one.group}", "transaction.timeout.ms": 60_000,
        "log_level": 0,
    })  # fmt: skip
    producer.init_transactions(30)
    producer.begin_transaction()
    positions = [TopicPartition(one.source, number, offset) for number in range(PARTITIONS)]
    producer.send_offsets_to_transaction(positions, member.consumer_group_metadata(), 30)
    member.close()
    return producer


@pytest.mark.parametrize("ending", ["aborted", "committed"])
def test_worker_with_a_pending_offset_publishes_nothing(hosts: str, tmp_path: Path, ending: str) -> None:
    """A rebalance meanwhile must not start the partition at offset 0, which would publish alerts twice."""
    with trial(hosts, tmp_path, exactly_once=True) as one:
        feed_evenly(one, 40)
        commit(one, 4, "")
        pending = open_transaction(one, 6)
        with running(one.settings(STEADY)) as worker:
            eventually(lambda: worker.metric("nightjar_stream_assigned_partitions") == PARTITIONS)
            with running(one.settings(STEADY)) as visitor:
                eventually(lambda: visitor.metric("nightjar_stream_assigned_partitions") == 2)
                assert visitor.stop() == 0
            eventually(lambda: worker.metric("nightjar_stream_assigned_partitions") == PARTITIONS)
            assert one.answers() == {}
            pending.abort_transaction(30) if ending == "aborted" else pending.commit_transaction(30)
            answered = set(range(16 if ending == "aborted" else 24))
            counts = ends_well(one, worker, but=answered)
        assert not answered & set(counts)
        assert repeats(counts) == 0


def test_auto_offset_reset_applies_only_to_groups_without_offsets(hosts: str, tmp_path: Path) -> None:
    latest = {"auto.offset.reset": "latest"} | STEADY
    with trial(hosts, tmp_path) as one:
        feed_evenly(one, 20)
        with running(one.settings(latest)) as worker:
            first = feed_until_every_partition_is_read(one)
            feed_evenly(one, 40)
            one.all_answered(but=range(first))
            assert worker.stop() == 0  # now every partition has a committed offset
        feed_evenly(one, 20)  # while no worker runs
        with running(one.settings(latest)) as worker:
            counts = ends_well(one, worker, but=range(first))
        assert not set(range(20)) & set(counts)
        assert repeats(counts) == 0


def feed_until_every_partition_is_read(one: Trial) -> int:
    """Write one alert per partition repeatedly until a round is published; return its first number.

    A worker that starts at the end of a partition skips what was written before it knew where that end is.
    """
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        first = one.fed
        feed_evenly(one, PARTITIONS)
        with suppress(AssertionError):
            eventually(lambda: set(one.answers()) >= set(range(first, first + PARTITIONS)), 3)  # noqa: B023
            return first
    raise AssertionError("no alert is answered")


def test_kafka_static_member_with_a_used_name_fences_the_other(hosts: str, tmp_path: Path) -> None:
    """The broker fences the first worker, whose client cannot continue."""
    with trial(hosts, tmp_path) as one, one.process({"group.instance.id": "same", **STEADY}) as first:
        begins_well(one, first)
        with one.process({"group.instance.id": "same", **STEADY}) as second:
            eventually(lambda: first.status is not None, 120)
            assert first.status == RESTART_STATUS
            assert any(event["event"] == "the worker failed" for event in first.events())
            ends_well(one, second)
