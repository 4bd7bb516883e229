"""Cluster monitor: its view while no broker responds, and while all do."""

import threading
from concurrent.futures import Future
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="confluent_kafka is missing: pip install 'nightjar-alerts[stream]'")

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from nightjar_alerts.service.stream.addresses import AddressError
from nightjar_alerts.service.stream.kafka import monitor as monitor_module
from nightjar_alerts.service.stream.kafka.client import ClientErrors
from nightjar_alerts.service.stream.kafka.monitor import ClusterMonitor, ClusterView
from support.kafka_cluster import kafka_cluster
from support.stream import eventually

NOBODY = {"bootstrap.servers": "127.0.0.1:9", "group.id": "g", "log_level": 0}


@pytest.mark.parametrize("when", ["at once", "in the midst of the next round"])
def test_cluster_monitor_has_end_and_lag_of_every_partition(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """A response with topic ids does not end a round of queries."""
    queries: list[Future[None]] = []

    def describe(self: AdminClient, topics: TopicCollection, **options: Any) -> dict[str, Future[None]]:
        queries.append(Future())
        if when == "at once":
            tell()
        return {"alerts": queries[-1]}

    def tell() -> None:
        for one in queries:
            if not one.done():
                one.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))

    def ends(self: AdminClient, *partitions: Any, **options: Any) -> Any:
        tell()  # as happens while a broker is silent
        return list_offsets(self, *partitions, **options)

    list_offsets = AdminClient.list_offsets
    monkeypatch.setattr(AdminClient, "describe_topics", describe)
    monkeypatch.setattr(AdminClient, "list_offsets", ends)
    monkeypatch.setattr(monitor_module, "QUERY_SECONDS", 1.0)
    partitions = [("alerts", number) for number in range(4)]
    with kafka_cluster() as cluster:
        cluster.create("alerts", len(partitions))
        for topic, number in partitions:
            cluster.produce(topic, [b"alert"] * (number + 1), partition=number)
        expected = {partition: partition[1] + 1 for partition in partitions}
        config = {"bootstrap.servers": cluster.hosts, "group.id": "g", "log_level": 0}
        monitor = ClusterMonitor(config, ["alerts"], ClientErrors("source"), lambda topic: None)
        try:
            monitor.record_assigned(partitions)  # asks for ids, before the first round that asks for ends
            monitor.set_partitions(partitions)
            eventually(lambda: monitor.view == ClusterView(lag=expected, end_offsets=expected))
        finally:
            monitor.close()


@pytest.mark.slow
def test_cluster_monitor_omits_ends_of_an_unresponsive_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the leaders do not respond; querying them one by one would exceed the duration of a round."""
    monkeypatch.setattr(monitor_module, "QUERY_SECONDS", 2.0)
    monkeypatch.setattr(monitor_module, "FAILING_SECONDS", 0.5)
    with kafka_cluster(2) as cluster:
        cluster.create("many", 48)
        partitions = [("many", number) for number in range(48)]
        for _, number in partitions:
            cluster.set_leader("many", number, 1 + number % 2)
        config = {"bootstrap.servers": cluster.hosts, "group.id": "watched", "log_level": 0}
        monitor = ClusterMonitor(config, ["many"], ClientErrors("source"), lambda topic: None)
        monitor.set_partitions(partitions)
        try:
            eventually(lambda: monitor.view.lag == monitor.view.end_offsets == dict.fromkeys(partitions, 0))
            cluster.set_down(2)
            eventually(lambda: monitor.view.end_offsets == dict.fromkeys(partitions[::2], 0))
        finally:
            monitor.close()


class Losable(Consumer):  # type: ignore[misc]  # confluent-kafka has no types
    """Consumer that may lose its brokers (librdkafka 5301)."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.lost, self.closed = False, threading.Event()

    def list_topics(self, *arguments: Any, **options: Any) -> Any:
        if self.lost:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return super().list_topics(*arguments, **options)

    def close(self) -> None:
        super().close()
        self.closed.set()


def test_cluster_monitor_creates_new_clients_after_losing_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_module, "FAILING_SECONDS", 0.05)
    monkeypatch.setattr(monitor_module, "QUERY_SECONDS", 0.5)
    with kafka_cluster(1) as cluster:
        cluster.create("alerts", 1)
        clients = list[Losable]()

        def consumer(config: Any) -> Losable:
            clients.append(Losable(config))
            return clients[-1]

        monkeypatch.setattr(monitor_module, "Consumer", consumer)
        config = {**NOBODY, "bootstrap.servers": cluster.hosts}
        monitor = ClusterMonitor(config, ["alerts"], ClientErrors("source"), lambda _: None)
        try:
            monitor.wait_for_first_round(10)
            clients[0].lost = True
            assert clients[0].closed.wait(20)
            eventually(lambda: monitor.view.error == "")
            assert len(clients) == 2
        finally:
            monitor.close()


def test_cluster_monitor_without_new_clients_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate file may be missing for a short time, which must not end the thread."""
    monkeypatch.setattr(monitor_module, "FAILING_SECONDS", 0.05)
    monkeypatch.setattr(monitor_module, "QUERY_SECONDS", 0.3)
    tries = list[object]()

    def missing(*arguments: object) -> None:
        tries.append(arguments)
        raise AddressError("no certificate") if len(tries) % 2 else OSError("no thread is left")

    monitor = ClusterMonitor(NOBODY, ["alerts"], ClientErrors("source"), lambda topic: None)
    monkeypatch.setattr(monitor_module, "AdminClient", missing)
    try:
        eventually(lambda: len(tries) > 3)
        assert "no broker answers" in monitor.view.error
    finally:
        monitor.close()
