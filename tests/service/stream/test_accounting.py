"""An alert that a stage loses stops the worker, is named, and is not acknowledged.

One alert is dropped, or answered twice, in each stage in turn, on each way from a source to a sink.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import iscoroutinefunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

# What follows imports the extra, hence stands after the question whether it is there.
# ruff: noqa: E402
redis = pytest.importorskip("redis", reason="redis is missing: pip install 'nightjar-alerts[cpu]'")
pytest.importorskip("confluent_kafka", reason="confluent_kafka is missing: pip install 'nightjar-alerts[stream]'")

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream import redis_streams
from nightjar_alerts.service.stream.batches import Batch, FailedAlert
from nightjar_alerts.service.stream.exactly_once import ExactlyOnce
from nightjar_alerts.service.stream.ledger import MAX_TOPICS, OTHER, DeliveryLedger, LostAlertError
from nightjar_alerts.service.stream.messages import AlertResult, DeadLetterCause, Message
from nightjar_alerts.service.stream.pipeline import DecodeStage, InferStage
from nightjar_alerts.service.stream.publishing import PublishStage
from support.kafka_cluster import kafka_cluster
from support.redis import needs_redis, redis_server
from support.stream import FAST_GROUP, alert, chosen, running

pytestmark = pytest.mark.slow

COUNT = 10
LOST = "10003"  # the alert that is dropped


def stages() -> dict[str, tuple[tuple[type, str], ...]]:
    """Return the methods of each stage, for at-least-once and exactly-once delivery."""
    return {
        "decode": ((DecodeStage, "decode"),),
        "classify": ((InferStage, "infer"),),
        "publish": ((PublishStage, "publish"), (PublishStage, "encode")),
        "dead_letters": ((PublishStage, "write_dead_letters"), (ExactlyOnce, "_dead_letters")),
    }


def drop_in(stage: str, once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make one stage lose one alert."""
    owner, name = stages()[stage][-1 if once else 0]
    monkeypatch.setattr(owner, name, forgetful(getattr(owner, name)))


def forgetful(whole: Callable[..., Any]) -> Callable[..., Any]:
    def kept(found: Any) -> Any:
        if isinstance(found, Batch):
            alerts = tuple(one for one in found.alerts if not is_lost(one))
            return replace(found, alerts=alerts, results=tuple(one for one in found.results if not is_lost(one)))
        return [one for one in found if not is_lost(one)]

    async def forgets_later(*arguments: Any) -> Any:
        return kept(await whole(*arguments))

    return forgets_later if iscoroutinefunction(whole) else lambda *arguments: kept(whole(*arguments))


def is_lost(one: Any) -> bool:
    message = one if isinstance(one, Message) else getattr(one, "message", None)
    if getattr(one, "packet", None) is None and message is not None:  # a dead letter
        return bool(message.value == b"junk")
    return bool(one.packet.alert_id == LOST)


class Way:
    """A source and a sink.

    Attributes
    ----------
    undone : messages that the source would deliver again.
    """

    def __init__(self, settings: Any, undone: Callable[[], int | None]) -> None:
        self.settings, self.undone = settings, undone


@pytest.fixture(params=["file", "redis", "kafka", "exactly once"])
def way(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    monkeypatch.setattr(redis_streams, "FIRST_ENTRIES", 2 * COUNT)  # all is one batch, as elsewhere
    data = [*map(alert, range(COUNT)), b"junk"]
    if request.param == "file":
        place = tmp_path / "alerts"
        place.mkdir()
        for number, one in enumerate(data):
            (place / f"{number:04d}.avro").write_bytes(one)
        yield Way(chosen(tmp_path, source=f"file:{place}"), lambda: None)
    elif request.param == "redis":
        yield from between_streams(tmp_path, data)
    else:
        yield from between_topics(tmp_path, data, "?exactly_once=yes" if request.param == "exactly once" else "")


def between_streams(folder: Path, data: list[bytes]) -> Iterator[Way]:
    with redis_server(folder) as server:
        client = redis.Redis(port=server.port, protocol=2)
        for one in data:
            client.xadd("alerts", {"value": one})
        ends = {name: f"redis://127.0.0.1:{server.port}/{name}" for name in ("alerts", "results", "dead")}
        settings = chosen(folder, source=ends["alerts"], sink=ends["results"], dead_letters=ends["dead"])
        yield Way(settings, lambda: int(client.xpending("alerts", "nightjar")["pending"]))


def between_topics(folder: Path, data: list[bytes], option: str) -> Iterator[Way]:
    from confluent_kafka import Consumer, TopicPartition

    with kafka_cluster() as cluster:
        for topic in ("alerts", "results", "dead"):
            cluster.create(topic, 1)
        cluster.produce("alerts", data)

        def undone() -> int:
            consumer = Consumer({"bootstrap.servers": cluster.hosts, "group.id": "nightjar", "log_level": 0})
            (position,) = consumer.committed([TopicPartition("alerts", 0)], 10)
            consumer.close()
            return len(data) - max(int(position.offset), 0)

        settings = chosen(
            folder,
            source=f"kafka://{cluster.hosts}/alerts?{FAST_GROUP}",
            sink=f"kafka://{cluster.hosts}/results{option}",
            dead_letters=f"kafka://{cluster.hosts}/dead",
        )
        yield Way(settings, undone)


@needs_redis
@pytest.mark.parametrize("stage", stages())
def test_a_lost_alert_stops_the_worker_and_is_named(
    way: Way, stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop_in(stage, "exactly_once" in way.settings.sink, monkeypatch)
    with capture_logs() as logs, running(way.settings) as worker:
        assert worker.join(60) == 1
    (failure,) = [line["reason"] for line in logs if line["event"] == "the worker failed"]
    assert "no stage resolved alert 0" in failure
    if stage != "dead_letters":
        assert LOST in failure
    totals = worker.totals()
    assert (totals["in"], totals["lost"], totals["pending"]) == (COUNT + 1, 1, 0)
    assert way.undone() in (None, COUNT + 1)


def opened(*messages: Message) -> DeliveryLedger:
    ledger = DeliveryLedger(Metrics())
    ledger.open(messages)
    return ledger


def result(message: Message, number: int) -> AlertResult:
    outcome: Any = SimpleNamespace(status="classified", reason="")
    unused: Any = None
    return AlertResult(message, number, unused, outcome, unused, 0)


def test_ledger_alert_resolved_twice_raises() -> None:
    message = Message("alerts", "0:1", b"")
    ledger = opened(message)
    ledger.expand(message, ["a", "b"])
    ledger.resolve_results([result(message, 1)])
    with pytest.raises(LostAlertError, match="alert 1 of alerts 0:1 was resolved a second time"):
        ledger.resolve_results([result(message, 1)])


def test_ledger_check_counts_alerts_about_to_be_resolved() -> None:
    message, other = Message("alerts", "0:1", b""), Message("alerts", "0:2", b"")
    ledger = opened(message, other)
    ledger.expand(message, ["a", "b"])
    failed = [FailedAlert(other, None, DeadLetterCause("decode", "empty"))]
    ledger.check_resolved([message, other], [result(message, 0), result(message, 1)], failed)
    with pytest.raises(LostAlertError, match=r"alert 1 \(b\) of alerts 0:1"):
        ledger.check_resolved([message, other], [result(message, 0)], failed)


def test_ledger_message_given_back_is_returned_once() -> None:
    message = Message("alerts", "0:1", b"")
    ledger = opened(message)
    ledger.expand(message, ["a", "b"])
    ledger.give_back([message])
    ledger.check_resolved([message])
    ledger.close([message])
    assert ledger.summary() == {"alerts": {"in": 2, "returned": 2, "pending": 0}}


def test_ledger_message_read_again_counts_its_alerts_once() -> None:
    message = Message("alerts", "0:1", b"")
    ledger = opened(message)
    ledger.expand(message, ["a", "b", "c"])
    ledger.expand(message, ["a", "b", "c"])
    ledger.close([message])
    assert ledger.summary() == {"alerts": {"in": 3, "returned": 3, "pending": 0}}


def test_ledger_many_topics_are_counted_as_other() -> None:
    """Restored dead letters may name any number of topics."""
    messages = [Message(f"topic {number}", "0:1", b"") for number in range(MAX_TOPICS + 500)]
    ledger = opened(*messages)
    ledger.resolve_tombstones(messages)
    ledger.check()
    summary = ledger.summary()
    assert len(summary) == MAX_TOPICS + 1
    assert summary[OTHER]["in"] == 500


def test_ledger_long_topic_is_counted_as_other() -> None:
    messages = [Message(topic, "0:1", b"") for topic in ("t" * 249, "t" * 1_000_000)]
    ledger = opened(*messages)
    ledger.resolve_tombstones(messages)
    ledger.check()
    assert ledger.summary().keys() == {"t" * 249, OTHER}
