"""Isolation of suspected poison messages in the buffer of a Kafka source."""

from typing import Any, cast

import pytest

pytest.importorskip("confluent_kafka", reason="the [stream] extra is not installed")

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.kafka import buffer
from nightjar_alerts.service.stream.kafka.assignment import Assignment, Token
from nightjar_alerts.service.stream.kafka.buffer import DeliveryBuffer
from nightjar_alerts.service.stream.kafka.crash_marker import CrashMarker
from nightjar_alerts.service.stream.messages import Message

HERE, THERE = ("alerts", 0), ("alerts", 1)


class Received:
    """A message as the client returns it."""

    def __init__(self, number: int, offset: int) -> None:
        self._facts = {"topic": "alerts", "partition": number, "offset": offset, "timestamp": (0, 0), "value": b"v"}

    def __getattr__(self, name: str) -> Any:
        return lambda: self._facts.get(name)


class Isolation:
    """Two partitions whose owners have crashed twice with ten messages in flight, all of which are in the buffer."""

    def __init__(self) -> None:
        self.metrics, self.assignment = Metrics(), Assignment(5)
        self.buffer = DeliveryBuffer(self.assignment, self.metrics)
        self.assignment.add([HERE, THERE])
        for partition in (HERE, THERE):
            self.assignment.start(partition, 0, str(CrashMarker("dead", 1, 10)))
            for offset in range(10):
                self.assignment.receive(partition, offset)
                self.buffer.add(cast(Any, Received(partition[1], offset)))

    def commit(self) -> None:
        self.assignment.record_acknowledged(self.assignment.positions([HERE, THERE]))

    def next_group(self) -> list[Message]:
        self.buffer.deliver(100)  # names the group
        self.commit()
        return self.buffer.deliver(100)


def ids(messages: list[Message]) -> list[str]:
    return [message.message_id for message in messages]


def test_deliver_suspects_in_groups_with_nothing_else_in_flight() -> None:
    isolation, groups = Isolation(), list[list[str]]()
    assert isolation.buffer.deliver(100) == []  # the marker does not name the group yet
    while group := isolation.next_group():
        assert isolation.next_group() == []
        groups.append(ids(group))
        isolation.assignment.finish(cast(Token, message.token) for message in group)
    assert groups[:2] == [[f"0:{offset}" for offset in part] for part in (range(5), range(5, 10))]
    assert [one for group in groups for one in group] == [f"{n}:{offset}" for n in (0, 1) for offset in range(10)]
    assert isolation.metrics.registry.get_sample_value("nightjar_stream_suspects_total") == 20


def test_deliver_suspects_that_take_long_delivers_all_of_a_partition_together(monkeypatch: pytest.MonkeyPatch) -> None:
    isolation = Isolation()
    first = isolation.next_group()
    isolation.assignment.finish(cast(Token, message.token) for message in first)
    monkeypatch.setattr(buffer, "ISOLATION_SECONDS", 0.0)
    groups = []
    while group := isolation.next_group():
        groups.append(ids(group))
        isolation.assignment.finish(cast(Token, message.token) for message in group)
    assert groups == [[f"0:{offset}" for offset in range(5, 10)], [f"1:{offset}" for offset in range(10)]]
