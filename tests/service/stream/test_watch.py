"""The client that asks the brokers how things stand: what it tells while nobody answers, and while everybody does."""

from concurrent.futures import Future
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="the [stream] extra is not installed")

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from service.stream.kafka.client import Complaints, View, Watch
from support.kafka_cluster import kafka_cluster
from support.stream import eventually

NOBODY = {"bootstrap.servers": "127.0.0.1:9", "group.id": "g", "log_level": 0}


def test_a_journal_that_cannot_be_read_keeps_no_round_from_telling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals are read again and again while nobody answers; the probes must say so meanwhile."""
    monkeypatch.setattr("service.stream.kafka.client.ASK_SECONDS", 0.3)
    monkeypatch.setattr("service.stream.kafka.client.TROUBLED_SECONDS", 0.05)
    watch = Watch(NOBODY, ["alerts"], Complaints("source"), lambda topic: None)
    watch.read_journals([("alerts", 0)], lambda found: None)
    try:
        for _ in range(3):
            eventually(lambda: "no broker answers" in watch.view.trouble)
            watch.view = View()
    finally:
        watch.close()


@pytest.mark.parametrize("when", ["at once", "in the midst of the next round"])
def test_every_partition_has_an_end_and_a_lag_whenever_the_ids_of_topics_are_told(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A round of questions gives way to a journal that is wanted, and not to an answer about ids."""
    asked: list[Future[None]] = []

    def describe(self: AdminClient, topics: TopicCollection, **options: Any) -> dict[str, Future[None]]:
        asked.append(Future())
        if when == "at once":
            tell()
        return {"alerts": asked[-1]}

    def tell() -> None:
        for one in asked:
            if not one.done():
                one.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))

    class Telling(Consumer):
        """A client that is told of ids whenever it asks for an end, as happens while a broker is silent."""

        def get_watermark_offsets(self, *partition: Any, **options: Any) -> Any:
            tell()
            return super().get_watermark_offsets(*partition, **options)

    monkeypatch.setattr(AdminClient, "describe_topics", describe)
    monkeypatch.setattr("service.stream.kafka.client.Consumer", Telling)
    monkeypatch.setattr("service.stream.kafka.client.ASK_SECONDS", 1.0)
    partitions = [("alerts", number) for number in range(4)]
    with kafka_cluster() as cluster:
        cluster.create("alerts", len(partitions))
        for topic, number in partitions:
            cluster.produce(topic, [b"alert"] * (number + 1), partition=number)
        expected = {partition: partition[1] + 1 for partition in partitions}
        config = {"bootstrap.servers": cluster.hosts, "group.id": "g", "log_level": 0}
        watch = Watch(config, ["alerts"], Complaints("source"), lambda topic: None)
        try:
            watch.begin(partitions)  # asks for ids, before the first round that asks for ends
            watch.look_at(partitions)
            eventually(lambda: watch.view == View(lag=expected, ends=expected))
        finally:
            watch.close()
