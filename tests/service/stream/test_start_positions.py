"""Start offsets of partitions, and first messages at a wrong offset."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="the [stream] extra is not installed")

from structlog.testing import capture_logs

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


def test_source_reads_a_topic_that_appears_after_the_start_from_its_oldest_record(cluster: KafkaCluster) -> None:
    cluster.produce("alerts", [b"before the start"])
    metrics, messages = Metrics(), list[Message]()
    options = f"{FAST_GROUP}&auto.offset.reset=latest&topic.metadata.refresh.interval.ms=200"
    member = KafkaSource(parse_address(f"kafka://{cluster.hosts}/alerts,^night.*?{options}"), {}, metrics=metrics)
    eventually(lambda: not member.poll(1, 0.1) and HERE in member._consumed)
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

    def committed() -> bool:
        first.poll(1, 0.1)
        assigned = first._assignment.get(HERE)
        return assigned is not None and assigned.acknowledged is not None

    eventually(committed)
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
