"""An alert that falls between the stages stops the worker, is named, and is not told to the source as done.

One alert is dropped, or answered twice, in each stage in turn, on each way from a source to a sink.
"""

from collections.abc import Callable, Iterator
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest

# What follows imports the extra, hence stands after the question whether it is there.
# ruff: noqa: E402
redis = pytest.importorskip("redis", reason="the [stream] extra is not installed")
pytest.importorskip("confluent_kafka", reason="the [stream] extra is not installed")

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream import redis_streams
from nightjar_alerts.service.stream.batches import OTHER, TOPICS, Accounts, Batch, LostAlertError
from nightjar_alerts.service.stream.exactly_once import ExactlyOnce
from nightjar_alerts.service.stream.messages import DeadLetterCause, Message
from nightjar_alerts.service.stream.pipeline import ClassifyStage, DecodeStage
from nightjar_alerts.service.stream.publishing import PublishStage
from support.kafka_cluster import kafka_cluster
from support.redis import needs_redis, redis_server
from support.stream import FAST_GROUP, alert, chosen, running

pytestmark = pytest.mark.slow

COUNT = 10
LOST = "10003"  # the alert that is dropped


def stages() -> dict[str, tuple[tuple[type, str], ...]]:
    """Methods that bring alerts through each stage: at least once, and exactly once where that is another one."""
    return {
        "decode": ((DecodeStage, "alerts"),),
        "classify": ((ClassifyStage, "results"),),
        "publish": ((PublishStage, "publish"), (PublishStage, "encode")),
        "dead_letters": ((PublishStage, "write_dead_letters"), (ExactlyOnce, "_dead_letters")),
    }


def drop_in(stage: str, once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one stage forget one alert."""
    owner, name = stages()[stage][-1 if once else 0]
    monkeypatch.setattr(owner, name, forgetful(getattr(owner, name)))


def forgetful(whole: Callable[..., Any]) -> Callable[..., Any]:
    def kept(found: Any) -> Any:
        if isinstance(found, dict):
            return {one: record for one, record in found.items() if not is_lost(one)}
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
    """A way from a source to a sink.

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
    with running(way.settings) as worker:
        assert worker.join(60) == 1
        failure = worker.worker._failure
    assert "no stage has brought to an end: alert 0" in failure
    if stage != "dead_letters":
        assert LOST in failure
    totals = worker.totals()
    assert (totals["in"], totals["lost"], totals["pending"]) == (COUNT + 1, 1, 0)
    assert way.undone() in (None, COUNT + 1)


def test_an_alert_that_ends_twice_is_an_error() -> None:
    message = Message("alerts", "0:1", b"")
    batch = Batch([message], Accounts(Metrics()), 0)
    batch.set_alerts(message, ["a", "b"])
    batch.settle_answers([(message, 1, "classified", "")])
    with pytest.raises(LostAlertError, match="alert 1 of alerts 0:1 came to a second end"):
        batch.settle_answers([(message, 1, "classified", "")])


def test_alerts_about_to_be_settled_count() -> None:
    accounts, message, other = Accounts(Metrics()), Message("alerts", "0:1", b""), Message("alerts", "0:2", b"")
    batch = Batch([message, other], accounts, 0)
    batch.set_alerts(message, ["a", "b"])
    batch.give_up(other, None, DeadLetterCause("decode", "empty"))
    batch.check([(message, 0), (message, 1)], [other])
    with pytest.raises(LostAlertError, match=r"alert 1 \(b\) of alerts 0:1"):
        batch.check([(message, 0)], [other])


def test_a_message_that_is_let_go_is_returned_once() -> None:
    accounts, message = Accounts(Metrics()), Message("alerts", "0:1", b"")
    batch = Batch([message], accounts, 0)
    batch.set_alerts(message, ["a", "b"])
    batch.give_up(message, 0, DeadLetterCause("decode", "empty"))
    batch.return_message(message)
    batch.return_all()
    batch.check()
    assert accounts.summary() == {"alerts": {"in": 2, "returned": 2, "pending": 0}}
    assert batch.dead == []


def test_topics_without_number_are_one() -> None:
    """Dead letters name topics, and dead letters may come from anywhere."""
    accounts = Accounts(Metrics())
    for number in range(TOPICS + 500):
        accounts.take(f"topic {number}")
        accounts.settle(f"topic {number}", "classified")
    accounts.check()
    summary = accounts.summary()
    assert len(summary) == TOPICS + 1
    assert summary[OTHER]["in"] == 500


def test_a_topic_of_any_length_is_no_label() -> None:
    accounts = Accounts(Metrics())
    for topic in ("t" * 249, "t" * 1_000_000):
        accounts.take(topic)
        accounts.settle(topic, "classified")
    accounts.check()
    assert accounts.summary().keys() == {"t" * 249, OTHER}
