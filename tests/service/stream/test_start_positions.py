"""Start offsets of partitions, and first messages at a wrong offset."""

from collections.abc import Iterator

import pytest

pytest.importorskip("confluent_kafka", reason="confluent_kafka is missing: pip install 'nightjar-alerts[stream]'")

from confluent_kafka import Consumer, TopicPartition

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.addresses import AddressError, parse_address
from nightjar_alerts.service.stream.kafka import source as source_module
from nightjar_alerts.service.stream.kafka.client import GROUP
from nightjar_alerts.service.stream.kafka.source import KafkaSource
from nightjar_alerts.service.stream.messages import Message
from support.kafka_cluster import KafkaCluster, kafka_cluster
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


def test_source_with_another_auto_offset_reset_is_refused(cluster: KafkaCluster) -> None:
    with pytest.raises(AddressError, match=r"auto\.offset\.reset"):
        source(cluster, "&auto.offset.reset=error")
