"""The client that asks the brokers how things stand: what it tells while nobody answers, and while everybody does."""

from concurrent.futures import wait
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="the [stream] extra is not installed")

from confluent_kafka.admin import AdminClient

from service.stream.kafka.client import Complaints, View, Watch
from support.kafka_cluster import kafka_cluster
from support.stream import eventually

NOBODY = {"bootstrap.servers": "127.0.0.1:9", "group.id": "g"}


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


def test_every_partition_has_an_end_and_a_lag_however_soon_the_ids_of_topics_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Work that waits cuts a round of questions short: the answer about ids must not be such work."""
    describe = AdminClient.describe_topics

    def describe_at_once(self: AdminClient, *asked: Any, **options: Any) -> Any:
        told = describe(self, *asked, **options)
        wait(told.values())  # as a quick broker has it, before anything else is asked
        return told

    monkeypatch.setattr(AdminClient, "describe_topics", describe_at_once)
    monkeypatch.setattr("service.stream.kafka.client.ASK_SECONDS", 1.0)
    partitions = [("alerts", number) for number in range(4)]
    with kafka_cluster() as cluster:
        cluster.create("alerts", len(partitions))
        for topic, number in partitions:
            cluster.produce(topic, [b"alert"] * (number + 1), partition=number)
        expected = {partition: partition[1] + 1 for partition in partitions}
        config = {"bootstrap.servers": cluster.hosts, "group.id": "g"}
        watch = Watch(config, ["alerts"], Complaints("source"), lambda topic: None)
        try:
            watch.look_at(partitions)
            eventually(lambda: watch.view == View(lag=expected, ends=expected))
        finally:
            watch.close()
