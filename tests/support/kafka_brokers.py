"""A real Kafka for tests: brokers of this machine that may be killed, silenced, cut off and started again.

NIGHTJAR_KAFKA_HOME=path/to/kafka_2.13-4.2.1 NIGHTJAR_SOAK=1 python -m pytest tests/service/stream/cluster
"""

import json
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.bench import brokers as deployed
from support.proxy import Proxy

PASSWORD, USER = deployed.PASSWORD, deployed.USER
home, make_certificate = deployed.home, deployed.make_certificate
NONE_FOUND = "no unpacked Kafka (set NIGHTJAR_KAFKA_HOME), or no Java 17"
needs_brokers = pytest.mark.skipif(home() is None, reason=NONE_FOUND)


class Brokers(deployed.Brokers):
    """Brokers whose last listener is reached through proxies.

    Attributes
    ----------
    proxies : by broker.
    """

    def _advertise(self) -> dict[int, dict[str, int]]:
        self.proxies = {node: Proxy(self._ports[node]["PROXIED"]) for node in self.nodes}
        return {node: {"PROXIED": proxy.port} for node, proxy in self.proxies.items()}

    def close(self) -> None:
        """End all brokers and proxies."""
        super().close()
        for proxy in self.proxies.values():
            proxy.close()


def named_cluster() -> str | None:
    """Bootstrap servers of a running cluster for tests that break nothing, where one is named."""
    return os.environ.get("NIGHTJAR_TEST_KAFKA") or None


@contextmanager
def brokers(folder: Path, count: int = 1, secure: bool = False, **extra: Any) -> Iterator[Brokers]:
    """Brokers, running; where they do not start at all, nothing is said of the worker: `make soak` alone fails then."""
    cluster = Brokers(folder, count, {name.replace("_", "."): value for name, value in extra.items()}, secure)
    try:
        try:
            cluster.start()
        except RuntimeError as error:
            if "NIGHTJAR_SOAK" in os.environ:
                raise
            pytest.skip(f"Kafka does not start here: {str(error)[-200:]}")
        yield cluster
    finally:
        cluster.close()


class Writer:
    """Writes each message once, however often that must be tried on a busy machine; keeps its connection."""

    def __init__(self, hosts: str, **config: Any) -> None:
        import confluent_kafka

        settings: dict[str, Any] = {"bootstrap.servers": hosts, "log_level": 0, "linger.ms": 20}
        settings |= {"message.max.bytes": 4 << 20, "enable.idempotence": True}
        self._producer = confluent_kafka.Producer(settings | config)

    def write(self, topic: str, values: Sequence[bytes], partition: int | None = None) -> None:
        """Write messages and wait until they are acknowledged."""
        for number, value in enumerate(values):
            where: dict[str, Any] = {} if partition is None else {"partition": partition}
            self._producer.produce(topic, value, **where)
            if not number % 5_000:
                self._producer.poll(0)
        assert self._producer.flush(60) == 0


def produce(hosts: str, topic: str, values: Sequence[bytes], partition: int | None = None, **config: Any) -> None:
    """Write messages and wait until they are acknowledged; takes a second, as it connects anew."""
    Writer(hosts, **config).write(topic, values, partition)


class Reader:
    """Reads a topic from its start, as often as it is asked; only what is committed, unless told otherwise."""

    def __init__(self, hosts: str, topic: str, isolation: str = "read_committed", **config: Any) -> None:
        import confluent_kafka

        usual = {
            "bootstrap.servers": hosts, "group.id": f"reader-{os.urandom(4).hex()}", "log_level": 0,
            "isolation.level": isolation, "enable.auto.commit": False, "auto.offset.reset": "earliest",
        }  # fmt: skip
        self._consumer = confluent_kafka.Consumer(usual | config)
        described = _partitions(self._consumer, topic)
        self._consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in described])
        self.messages: list[Any] = []

    def read(self, patience: float = 0.3) -> list[Any]:
        """All messages so far."""
        while found := self._consumer.consume(5000, patience):
            self.messages += [message for message in found if message.error() is None]
        return self.messages

    def ids(self) -> list[int]:
        """Alert numbers of all answers so far, in the order of the topic; strange alerts may have none."""
        ids = (json.loads(message.value())["alert_id"] for message in self.read())
        return [int(one) - 10_000 for one in ids if one.lstrip("-").isdigit()]

    def close(self) -> None:
        """Let go of the broker."""
        self._consumer.close()


def commits_of(hosts: str, group: str, topic: str) -> dict[int, list[str]]:
    """Everything that a group has committed of a topic, by partition, as Kafka's own topic of offsets holds it.

    Each as ``milliseconds: offset``, with a mark where a crash marker stands beside it, which a final commit has not.
    """
    reader = Reader(hosts, "__consumer_offsets")
    found: dict[int, list[str]] = {}
    try:
        for message in reader.read(1.0):
            key, value = message.key() or b"", message.value()
            named = b"".join(struct.pack(">h", len(name)) + name.encode() for name in (group, topic))
            if value is not None and key[:2] in (b"\0\0", b"\0\1") and key[2:-4] == named:
                (partition,), (offset,) = struct.unpack(">i", key[-4:]), struct.unpack_from(">q", value, 2)
                mark = " with a crash marker" if b"nightjar/1" in value else ""
                found.setdefault(partition, []).append(f"{message.timestamp()[1]}: {offset}{mark}")
    finally:
        reader.close()
    return found


def _partitions(client: Any, topic: str) -> list[int]:
    """Partitions of a topic that may have been made just now."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        described = client.list_topics(topic, 20).topics[topic]
        if described.error is None and described.partitions:
            return list(described.partitions)
        time.sleep(0.05)
    raise AssertionError(f"{topic} does not come to be")
