"""Hostile and valid messages in one topic: valid ones are classified, hostile ones become dead letters."""

import sys
from typing import Any

from confluent_kafka import Producer

from support.hostile_messages import CLOCKLESS, Flood, floods
from support.kafka_trial import Trial
from support.stream import eventually

EACH = 12
MEMORY_MB = 150


def send(one: Trial, topic: str, flood: Flood) -> None:
    """Write messages of a kind and wait until the broker has them."""
    refused: list[object] = []
    producer: Any = Producer({"bootstrap.servers": one.hosts, "message.max.bytes": 4_100_000, "log_level": 0})
    for number in range(EACH):
        harm = flood.make(number)
        more = {"timestamp": harm.timestamp_ms} if harm.timestamp_ms else {}
        producer.produce(
            topic, harm.value, harm.key, headers=list(harm.headers),
            on_delivery=lambda error, _: refused.append(error) if error else None, **more,
        )  # fmt: skip
        producer.poll(0)
    assert producer.flush(60) == 0
    assert refused == []


def good_are_answered(one: Trial) -> None:
    """Wait until these alerts are classified, whatever happens to others."""
    eventually(lambda: set(one.answers()) >= set(range(one.fed)), 120, 0.2)
    counts = one.answers()
    assert not one.exactly_once or all(counts[number] == 1 for number in range(one.fed))


def test_floods_of_hostile_messages_lose_no_valid_alert(both: Trial) -> None:
    """Each kind in turn on one worker, which stays within its memory bound, accounts for all and exits cleanly."""
    kinds = floods()
    source = f"{both.source}-hostile"
    both.create(source, 4, **CLOCKLESS)
    addresses = both.addresses()
    with both.process(source=addresses["source"].replace(f"/{both.source}?", f"/{source}?")) as worker:
        both.source = source
        both.feed(20)
        good_are_answered(both)
        before = most = worker.megabytes
        for flood in kinds:
            send(both, source, flood)
            both.feed(20)
            good_are_answered(both)
            most = max(most, worker.megabytes)
        eventually(lambda: worker.metric("nightjar_stream_in_total") >= both.fed + EACH * len(kinds), 120)
        eventually(lambda: worker.metric("nightjar_stream_inflight_messages") == 0, 120)
        sys.stdout.write(f"{before:.0f} MB before, {most:.0f} MB at most\n")
        assert most < before + MEMORY_MB
        assert worker.ask("/readyz")[0] == 200
        assert worker.stop() == 0
