"""Topics of a real Kafka that are created, deleted, extended, limit record sizes, or are read by other consumers."""

import json
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.kafka_brokers import Brokers, Reader, produce
from support.kafka_trial import STEADY, Trial, begins_well, ends_well, trial
from support.stream import alert, eventually, running


def test_kafka_missing_topic_is_waited_for(plain: Trial) -> None:
    later = f"{plain.source}-later"
    source = plain.addresses()["source"].replace(f"/{plain.source}?", f"/{later}?")
    with running(plain.settings(source=source)) as worker:
        eventually(lambda: f"waiting for topics that do not exist: {later}" in worker.ask("/readyz")[1])
        assert worker.ask("/healthz")[0] == 200
        plain.create(later, 2)
        produce(plain.hosts, later, [alert(number) for number in range(30)])
        plain.source, plain.fed = later, 30
        ends_well(plain, worker)


def test_kafka_recreated_topic_is_read_from_its_start(both: Trial) -> None:
    with running(both.settings()) as worker:
        begins_well(both, worker)
        both.delete(both.source)
        eventually(lambda: "do not exist" in worker.ask("/readyz")[1])
        both.create(both.source, 4)
        both.feed(30)
        ends_well(both, worker)


def test_kafka_topic_recreated_and_filled_at_once_is_read_from_its_start(both: Trial) -> None:
    """Before any worker can detect the new topic, it is longer than the consumed part of the old one."""
    with running(both.settings()) as worker:
        begins_well(both, worker)
        for _ in range(2):
            both.delete(both.source)
            both.create(both.source, 4)
            both.feed(400)
            both.all_answered()
        ends_well(both, worker)


def test_kafka_topic_recreated_without_consumers_is_read_from_its_start(both: Trial) -> None:
    with running(both.settings()) as worker:
        begins_well(both, worker)
        assert worker.stop() == 0
    both.delete(both.source)
    both.create(both.source, 4)
    both.feed(200)
    with running(both.settings()) as worker:
        ends_well(both, worker)


def test_kafka_added_partitions_are_consumed(one_broker: Brokers, tmp_path: Path) -> None:
    with trial(one_broker.hosts(), tmp_path, partitions=1) as one, running(one.settings()) as worker:
        begins_well(one, worker, 20)
        one_broker.topics("--alter", "--topic", one.source, "--partitions", "3")
        eventually(lambda: worker.metric("nightjar_stream_assigned_partitions") == 3, 60)
        produce(one.hosts, one.source, [alert(number) for number in range(20, 40)], partition=2)
        one.fed = 40
        ends_well(one, worker)


@pytest.mark.parametrize("at_work", [True, False], ids=["worker at work", "worker stopped"])
def test_kafka_partitions_added_later_are_read_from_their_oldest_record(
    one_broker: Brokers, tmp_path: Path, at_work: bool
) -> None:
    """With `auto.offset.reset=latest` their first alerts would be skipped."""
    latest = {"auto.offset.reset": "latest"} | STEADY
    with trial(one_broker.hosts(), tmp_path, partitions=1) as one, ExitStack() as stack:
        one.feed(20)  # before the start of the group
        worker = stack.enter_context(running(one.settings(latest)))
        eventually(lambda: worker.metric("nightjar_stream_lag_messages", topic=one.source, partition="0") == 0)
        eventually(lambda: sum(one_broker.group_lag(one.group).values()) == 0, 60, 2.0)
        if not at_work:
            assert worker.stop() == 0
        one_broker.topics("--alter", "--topic", one.source, "--partitions", "3")
        produce(one.hosts, one.source, [alert(number) for number in range(20, 40)], partition=2)
        one.fed = 40
        if not at_work:
            worker = stack.enter_context(running(one.settings(latest)))
        counts = ends_well(one, worker, but=range(20))
        assert not set(range(20)) & set(counts)
        assert worker.metric("nightjar_stream_appeared_partitions_total") == 2


def test_kafka_dead_letter_above_the_topic_limit_is_shortened(both: Trial) -> None:
    small = f"{both.dead}-small"
    both.create(small, 1, **{"max.message.bytes": "200000"})
    both.feed(10)
    produce(both.hosts, both.source, [b"\0junk" + os.urandom(999_995)], partition=0)  # nothing that shrinks
    both.feed(10)
    with running(both.settings(dead_letters=f"kafka://{both.hosts}/{small}")) as worker:
        both.all_answered()
        eventually(lambda: worker.totals().get("pending") == 0 and worker.totals().get("in") == 21)
        ends_well(both, worker)
    reader = Reader(both.hosts, small)
    (dead_letter,) = reader.read(1.0)
    reader.close()
    headers = dict(dead_letter.headers())
    assert (len(dead_letter.value()), headers["nightjar-dead-length"]) == (65_536, b"1000000")


def test_kafka_results_above_the_topic_limit_become_dead_letters(both: Trial) -> None:
    small = f"{both.sink}-small"
    both.create(small, 1, **{"max.message.bytes": "150"})
    both.feed(10)
    sink = both.addresses()["sink"].replace(f"/{both.sink}", f"/{small}")
    with running(both.settings(sink=sink)) as worker:
        eventually(lambda: worker.totals().get("dead:refused") == 10)
        eventually(lambda: worker.ask("/readyz")[0] == 200)
        assert worker.stop() == 0
    assert sorted(dead_letter.value() for dead_letter in both.dead_letters()) == sorted(map(alert, range(10)))


def test_kafka_read_committed_consumer_sees_each_result_once(hosts: str, tmp_path: Path) -> None:
    """A read_committed consumer sees each result once, even while a transaction of a killed worker is open."""
    with trial(hosts, tmp_path, exactly_once=True) as one:
        with one.process() as victim:
            one.feed(300, over=1)
            victim.kill()
        with one.process() as heir:
            ends_well(one, heir)
            everything = Reader(hosts, one.sink, "read_uncommitted")
            alert_ids = [json.loads(message.value())["alert_id"] for message in everything.read()]
            everything.close()
            assert set(alert_ids) == {str(10_000 + number) for number in range(one.fed)}


def test_kafka_deleted_committed_offset_continues_at_the_earliest_message(one_broker: Brokers, tmp_path: Path) -> None:
    """Messages deleted by retention are lost; the remaining ones are classified."""
    with trial(one_broker.hosts(), tmp_path, partitions=1) as one:
        one.feed(40)
        with running(one.settings()) as worker:
            one.all_answered()
            assert worker.stop() == 0
        one.feed(40)
        path = tmp_path / "delete.json"
        records = [{"topic": one.source, "partition": 0, "offset": 60}]
        path.write_text(json.dumps({"version": 1, "partitions": records}))
        one_broker.tool(
            "org.apache.kafka.tools.DeleteRecordsCommand",
            "--bootstrap-server", one_broker.hosts(), "--offset-json-file", str(path),
        )  # fmt: skip
        gone = set(range(40, 60))
        with running(one.settings()) as worker:
            counts = ends_well(one, worker, but=gone)
        assert not gone & set(counts)
        assert worker.metric("nightjar_stream_gap_messages_total") == len(gone)


def test_kafka_compaction_keeps_a_result_per_key(one_broker: Brokers, tmp_path: Path) -> None:
    with trial(one_broker.hosts(), tmp_path) as one:
        compact = "cleanup.policy=compact,segment.ms=500,min.cleanable.dirty.ratio=0.01,max.compaction.lag.ms=500"
        one_broker.configure("--entity-type", "topics", "--entity-name", one.sink, "--add-config", compact)

        def answered_numbers() -> list[int]:
            reader = Reader(one.hosts, one.sink)
            try:
                return reader.ids()
            finally:
                reader.close()

        def compacted() -> bool:
            one.feed(10)  # begins another segment: the one that is written to is never compacted
            numbers = answered_numbers()
            return len(numbers) <= one.fed and set(numbers) >= set(range(one.fed - 10))

        with running(one.settings()) as worker:
            begins_well(one, worker)
            for _ in range(9):
                produce(one.hosts, one.source, [alert(number) for number in range(40)])  # the same again
            eventually(lambda: worker.totals().get("classified") == 400)
            assert len(answered_numbers()) > 40
            eventually(compacted, 180, 2.0)
            ends_well(one, worker)
        assert set(answered_numbers()) == set(range(one.fed))


def test_kafka_quota_loses_no_alert(one_broker: Brokers, tmp_path: Path) -> None:
    with trial(one_broker.hosts(), tmp_path) as one:
        quota = ("--entity-type", "clients", "--entity-name", "nightjar")  # of each client id
        rates = "producer_byte_rate=60000,consumer_byte_rate=60000"
        one_broker.configure(*quota, "--add-config", rates)
        try:
            with running(one.settings({"client.id": "nightjar"})) as worker:
                begins_well(one, worker)
                one.feed(600)
                one.all_answered(120)
                ends_well(one, worker)
        finally:
            one_broker.configure(*quota, "--delete-config", "producer_byte_rate,consumer_byte_rate")
