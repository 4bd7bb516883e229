"""Start offsets of partitions, and first messages at a wrong offset."""

from collections.abc import Iterator

import pytest

pytest.importorskip("confluent_kafka", reason="confluent_kafka is missing: pip install 'nightjar-alerts[stream]'")

from confluent_kafka import Consumer, KafkaError, TopicPartition
from structlog.testing import capture_logs

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.addresses import AddressError, parse_address
from nightjar_alerts.service.stream.kafka import source as source_module
from nightjar_alerts.service.stream.kafka.client import GROUP
from nightjar_alerts.service.stream.kafka.source import KafkaSource
from nightjar_alerts.service.stream.messages import Message
from support.kafka_cluster import OFFSET_FETCH, KafkaCluster, kafka_cluster
from support.stream import FAST_GROUP, eventually


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with kafka_cluster() as cluster:
        cluster.create("alerts", 1)
        yield cluster


def source(cluster: KafkaCluster, option: str = "", metrics: Metrics | None = None) -> KafkaSource:
    return KafkaSource(parse_address(f"kafka://{cluster.hosts}/alerts?{FAST_GROUP}{option}"), {}, metrics=metrics)


class Early(Consumer):  # type: ignore[misc]  # confluent-kafka has no types
    """Consumer that starts partitions at offset 3, wherever it is to start."""

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        super().incremental_assign([TopicPartition(each.topic, each.partition, 3) for each in partitions])


def test_source_whose_first_message_is_below_the_committed_offset_stops_the_partition(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.produce("alerts", [b"%d" % number for number in range(20)])
    former = Consumer({"bootstrap.servers": cluster.hosts, "group.id": GROUP})
    former.commit(offsets=[TopicPartition("alerts", 0, 10)], asynchronous=False)
    former.close()
    monkeypatch.setattr(source_module, "Consumer", Early)
    metrics = Metrics()
    member = source(cluster, metrics=metrics)
    eventually(lambda: not member.poll(1, 0.1) and bool(member.status().error))
    assert member.poll(20, 1.0) == []
    assert "below the committed 10" in member.status().error
    assert metrics.registry.get_sample_value("nightjar_stream_stopped_partitions_total") == 1
    member.close()


def test_source_whose_group_moves_to_another_coordinator_starts(cluster: KafkaCluster) -> None:
    """The admin client of librdkafka 2.16 ends the process with a segmentation fault after this answer."""
    cluster.produce("alerts", [b"alert"])
    cluster.fail_next(OFFSET_FETCH, *[KafkaError.NOT_COORDINATOR] * 3)
    member = source(cluster)
    eventually(lambda: [message.value for message in member.poll(1, 0.1)] == [b"alert"])
    member.close()


@pytest.mark.parametrize(("reset", "first"), [("earliest", b"before"), ("latest", b"after")])
def test_source_without_committed_offset_starts_by_auto_offset_reset(
    cluster: KafkaCluster, reset: str, first: bytes
) -> None:
    cluster.produce("alerts", [b"before"])
    member = source(cluster, f"&auto.offset.reset={reset}")
    messages: list[Message] = []

    def reads_another() -> bool:
        """Produce until the member, which may still join its group, reads what comes after."""
        cluster.produce("alerts", [b"after"])
        messages.extend(member.poll(1000, 0.1))
        return bool(messages) and messages[-1].value == b"after"

    eventually(reads_another)
    assert messages[0].value == first
    member.close()


def committed(cluster: KafkaCluster) -> int:
    """Return the offset that the group has committed; negative if there is none."""
    group = Consumer({"bootstrap.servers": cluster.hosts, "group.id": GROUP})
    (position,) = group.committed([TopicPartition("alerts", 0)], timeout=10)
    group.close()
    return int(position.offset)


def test_source_reads_a_topic_that_appears_after_the_start_from_its_oldest_record(cluster: KafkaCluster) -> None:
    cluster.produce("alerts", [b"before the start"])
    metrics, messages = Metrics(), list[Message]()
    options = f"{FAST_GROUP}&auto.offset.reset=latest&topic.metadata.refresh.interval.ms=200"
    member = KafkaSource(parse_address(f"kafka://{cluster.hosts}/alerts,^night.*?{options}"), {}, metrics=metrics)
    eventually(lambda: not member.poll(1, 0.1) and committed(cluster) == 1)
    cluster.create("night-1", 2)
    for number in range(2):
        cluster.produce("night-1", [b"first", b"second"], partition=number)

    def polled() -> list[bytes]:
        messages.extend(member.poll(1, 0.1))
        return [message.value for message in messages]

    with capture_logs() as logs:
        eventually(lambda: len(polled()) == 4)
    assert sorted(polled()) == [b"first", b"first", b"second", b"second"]
    assert metrics.registry.get_sample_value("nightjar_stream_appeared_partitions_total") == 2
    appeared = [line for line in logs if line["event"].startswith("partition appeared after the start")]
    assert {(line["topic"], line["partition"]) for line in appeared} == {("night-1", 0), ("night-1", 1)}
    member.close()


def test_source_that_has_read_a_partition_to_its_end_commits_it_without_a_message(cluster: KafkaCluster) -> None:
    """So the next start begins there, also with ``auto.offset.reset=latest``."""
    cluster.produce("alerts", [b"before"])
    first = source(cluster, "&auto.offset.reset=latest")
    eventually(lambda: not first.poll(1, 0.1) and committed(cluster) == 1)
    first.close()
    cluster.produce("alerts", [b"meanwhile"])
    second, messages = source(cluster, "&auto.offset.reset=latest"), list[Message]()
    while not messages:
        messages += second.poll(5, 1.0)
    assert [message.value for message in messages] == [b"meanwhile"]
    second.close()


def test_source_with_another_auto_offset_reset_is_refused(cluster: KafkaCluster) -> None:
    with pytest.raises(AddressError, match=r"auto\.offset\.reset"):
        source(cluster, "&auto.offset.reset=error")


def test_source_with_another_group_protocol_is_refused(cluster: KafkaCluster) -> None:
    with pytest.raises(AddressError, match=r"group\.protocol must be classic"):
        source(cluster, "&group.protocol=consumer")
