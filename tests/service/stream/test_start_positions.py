"""Start offsets of partitions, and first messages at a wrong offset."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="the [stream] extra is not installed")

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.addresses import AddressError, parse_address
from nightjar_alerts.service.stream.kafka.source import KafkaSource
from nightjar_alerts.service.stream.messages import Message
from support.kafka_cluster import KafkaCluster, kafka_cluster
from support.stream import FAST_GROUP, eventually

HERE = ("alerts", 0)


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with kafka_cluster() as cluster:
        cluster.create("alerts", 1)
        yield cluster


def source(cluster: KafkaCluster, option: str = "", metrics: Metrics | None = None) -> KafkaSource:
    return KafkaSource(parse_address(f"kafka://{cluster.hosts}/alerts?{FAST_GROUP}{option}"), {}, metrics=metrics)


class Early:
    """A message of the partition at offset 3."""

    def __getattr__(self, name: str) -> Any:
        facts = {"topic": "alerts", "partition": 0, "offset": 3, "value": b"v", "key": None, "headers": None}
        return lambda: facts[name]


def test_source_whose_first_message_is_below_the_committed_offset_stops_the_partition(cluster: KafkaCluster) -> None:
    metrics = Metrics()
    member = source(cluster, metrics=metrics)
    eventually(lambda: not member.poll(1, 0.1) and HERE in member._consumed)
    member._assignment.start(HERE, 10, "")
    member._buffer_message(Early())
    cluster.produce("alerts", [b"after it"])
    assert member.poll(1, 1.0) == []
    assert "below the committed 10" in member.status().error
    assert metrics.registry.get_sample_value("nightjar_stream_stopped_partitions_total") == 1
    member.close()


@pytest.mark.parametrize(("reset", "expected"), [("earliest", [b"before", b"after"]), ("latest", [b"after"])])
def test_source_without_committed_offset_starts_by_auto_offset_reset(
    cluster: KafkaCluster, reset: str, expected: list[bytes]
) -> None:
    cluster.produce("alerts", [b"before"])
    member = source(cluster, f"&auto.offset.reset={reset}")
    messages: list[Message] = []

    def polled_until(done: Callable[[], bool]) -> bool:
        messages.extend(member.poll(1, 0.1))
        return done()

    eventually(lambda: polled_until(lambda: HERE in member._consumed))
    eventually(lambda: polled_until(lambda: bool(messages) or member._client_is_empty))
    cluster.produce("alerts", [b"after"])
    eventually(lambda: polled_until(lambda: len(messages) >= len(expected)))
    assert [message.value for message in messages] == expected
    member.close()


def test_source_with_another_auto_offset_reset_is_refused(cluster: KafkaCluster) -> None:
    with pytest.raises(AddressError, match=r"auto\.offset\.reset"):
        source(cluster, "&auto.offset.reset=error")
