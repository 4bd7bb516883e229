"""Whether the process that wrote a crash marker has crashed, by the members of its group."""

from collections.abc import Sequence
from concurrent.futures import Future
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="the [stream] extra is not installed")

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.kafka import committed
from nightjar_alerts.service.stream.kafka.assignment import Assignment
from nightjar_alerts.service.stream.kafka.client import ClientErrors
from nightjar_alerts.service.stream.kafka.committed import CommittedOffsets, member_name
from nightjar_alerts.service.stream.kafka.crash_marker import GIVEN_BACK, CrashMarker
from support.stream import eventually

HERE = ("alerts", 0)


class Client:
    """Client of brokers that know one committed offset, and the members of the group; None if they refuse to say."""

    metadata = ""
    members: Sequence[tuple[str, str | None]] | None = ()

    def __init__(self, config: Any) -> None: ...

    def committed(self, *_: Any) -> list[TopicPartition]:
        return [TopicPartition(*HERE, 5, self.metadata)]

    def describe_consumer_groups(self, *_: Any, **__: Any) -> dict[str, Future[Any]]:
        if self.members is None:
            return {"g": done(error=KafkaException(KafkaError(KafkaError._TIMED_OUT)))}
        members = [SimpleNamespace(client_id=name, group_instance_id=instance) for name, instance in self.members]
        return {"g": done(SimpleNamespace(members=members))}


class InlineThread(Thread):
    """Thread that has ended when it was started."""

    def start(self) -> None:
        super().start()
        self.join()


def done(result: Any = None, error: Exception | None = None) -> Future[Any]:
    future: Future[Any] = Future()
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
    return future


def crashes_after(
    monkeypatch: pytest.MonkeyPatch,
    marker: CrashMarker,
    members: Sequence[tuple[str, str | None]] | None = (),
    instance: str | None = None,
) -> int | None:
    """Take over a partition with this marker; return the crashes that the next one counts, None while undecided."""
    for name in ("AdminClient", "Consumer"):
        monkeypatch.setattr(committed, name, Client)
    monkeypatch.setattr(committed, "Thread", InlineThread)
    monkeypatch.setattr(committed, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(Client, "metadata", str(marker))
    monkeypatch.setattr(Client, "members", members)
    assignment = Assignment(5, process="this")
    assignment.add([HERE])
    offsets = CommittedOffsets({}, "g", "earliest", ClientErrors("source"), lambda _: True, Metrics(), instance)
    starts = [start for _ in range(5) for start in offsets.poll(assignment)]
    guard = assignment.guard(HERE)
    assert [start.offset for start in starts] == ([] if guard is None else [5])
    return None if guard is None else guard.crashes


@pytest.mark.parametrize("process", ["this", GIVEN_BACK])
def test_marker_of_this_process_or_of_a_given_back_partition_counts_no_crash(
    process: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert crashes_after(monkeypatch, CrashMarker(process, 1, 20)) == 1


@pytest.mark.parametrize("crashes", [0, 1, 3])
def test_marker_of_a_member_of_the_group_counts_no_crash(crashes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [(member_name("other"), None)]
    assert crashes_after(monkeypatch, CrashMarker("other", crashes, 20), members) == crashes


@pytest.mark.parametrize("members", [(), None], ids=["not a member", "no description"])
def test_marker_of_another_process_counts_a_first_crash_at_once(
    members: Sequence[tuple[str, str | None]] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert crashes_after(monkeypatch, CrashMarker("other", 0, 20), members) == 1


@pytest.mark.parametrize("members", [(), None], ids=["not a member", "no description"])
def test_marker_of_another_process_counts_a_second_crash_once_it_could_have_rejoined(
    members: Sequence[tuple[str, str | None]] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = CrashMarker("other", 1, 20)
    assert crashes_after(monkeypatch, marker, members) is None
    monkeypatch.setattr(committed, "REJOIN_SECONDS", -1.0)
    assert crashes_after(monkeypatch, marker, members) == 2


def test_marker_of_a_killed_static_member_counts_a_crash_in_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator keeps the name of the process that joined first."""
    members = [(member_name("killed"), "slot-1")]
    assert crashes_after(monkeypatch, CrashMarker("killed", 0, 20), members, "slot-1") == 1


def test_marker_of_an_earlier_version_counts_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    marker = CrashMarker.parse("nightjar/1 0 20 - 0")
    assert marker is not None
    assert crashes_after(monkeypatch, marker, [(member_name("other"), None)]) == 1


def test_pending_offset_of_a_partition_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client repeats a query until no offset in it is pending, or its time is over."""
    ended = Event()

    def fetch(_: Client, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if HERE[1] in {each.partition for each in partitions}:
            ended.wait(timeout)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return [TopicPartition(each.topic, each.partition, 5) for each in partitions]

    monkeypatch.setattr(committed, "Consumer", Client)
    monkeypatch.setattr(committed, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(committed, "ALONE_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(Client, "committed", fetch)
    assignment = Assignment(5, process="this")
    assignment.add([HERE, ("alerts", 1)])
    offsets = CommittedOffsets({}, "g", "earliest", ClientErrors("source"), lambda _: True, Metrics())
    eventually(lambda: [(start.partition, start.offset) for start in offsets.poll(assignment)] == [(1, 5)])
    ended.set()
