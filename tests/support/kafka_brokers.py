"""A real Kafka for tests: brokers of this machine that may be killed, silenced, cut off and started again.

NIGHTJAR_KAFKA_HOME=path/to/kafka_2.13-4.2.1 NIGHTJAR_SOAK=1 python -m pytest tests/service/stream/cluster
"""

import json
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from deploy.bench import brokers as deployed
from deploy.bench.brokers import START_SECONDS
from deploy.bench.brokers import home as home
from nightjar_alerts.service.local import HOST
from support.proxy import Proxy

USER, PASSWORD, STORE_PASSWORD = "reader", "a-secret", "changeit"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
NONE_FOUND = (
    "Kafka or Java 17 is missing: make kafka, apt-get install openjdk-17-jre-headless, NIGHTJAR_KAFKA_HOME=build/kafka"
)
needs_brokers = pytest.mark.skipif(home() is None, reason=NONE_FOUND)


class Brokers(deployed.Brokers):
    """Brokers with a listener that is reached through proxies and, if secure, with users and certificates.

    Parameters
    ----------
    secure : starting is a few seconds quicker without.
    """

    def __init__(
        self, folder: Path, count: int = 1, extra: Mapping[str, Any] | None = None, secure: bool = False
    ) -> None:
        guarded = ("SASL_PLAINTEXT", "SSL", "SASL_SSL") if secure else ()
        self.listeners = ("PLAINTEXT", *guarded, "PROXIED", "CONTROLLER")
        self._secure = secure
        if secure:
            make_certificate(folder, "broker")
        super().__init__(folder, count, (_security(folder) if secure else {}) | dict(extra or {}))

    @cached_property
    def proxies(self) -> dict[int, Proxy]:
        """Proxies by broker."""
        return {node: Proxy(self._ports[node]["PROXIED"]) for node in self.nodes}

    def _advertised(self, node: int, listener: str) -> int:
        return self.proxies[node].port if listener == "PROXIED" else super()._advertised(node, listener)

    def _format_options(self) -> list[str]:
        users = [f"{mechanism}=[name={USER},password={PASSWORD}]" for mechanism in MECHANISMS] if self._secure else []
        return [word for user in users for word in ("--add-scram", user)]

    def hang(self, node: int) -> None:
        """Keep connections open and answer them no more."""
        self._processes[node].send_signal(signal.SIGSTOP)

    def wake(self, node: int) -> None:
        """End :meth:`hang`."""
        self._processes[node].send_signal(signal.SIGCONT)

    def tool(self, main: str, *arguments: str) -> str:
        """Return what one of Kafka's command-line tools prints."""
        command = self._java("tool", main, *arguments)
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=START_SECONDS).stdout

    def topics(self, *arguments: str) -> str:
        """``kafka-topics``."""
        return self.tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.hosts(), *arguments)

    def configure(self, *arguments: str) -> None:
        """``kafka-configs``: quotas, passwords."""
        self.tool("kafka.admin.ConfigCommand", "--bootstrap-server", self.hosts(), "--alter", *arguments)

    def group_lag(self, group: str) -> dict[tuple[str, int], int]:
        """``kafka-consumer-groups --describe``: lag by topic and partition."""
        main = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        text = self.tool(main, "--bootstrap-server", self.hosts(), "--describe", "--group", group)
        rows = [line.split() for line in text.splitlines() if line.startswith(group)]
        return {(row[1], int(row[2])): int(row[5]) for row in rows if row[5].isdigit()}

    def coordinator(self, group: str) -> int:
        """Return the broker that keeps a group's offsets."""
        main = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        text = self.tool(main, "--bootstrap-server", self.hosts(), "--describe", "--group", group, "--state")
        (row,) = (line.split() for line in text.splitlines() if line.startswith(group))
        address = next(word for word in row if word.startswith(f"{HOST}:") or ":" in word)
        port = int(address.rpartition(":")[2])
        return next(n for n, own in self._ports.items() if port in (*own.values(), self._advertised(n, "PROXIED")))

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the broker that leads a partition."""
        text = self.topics("--describe", "--topic", topic)
        words = next(line for line in text.splitlines() if f"Partition: {partition}\t" in line).split()
        return int(words[words.index("Leader:") + 1])

    def close(self) -> None:
        """End all brokers and proxies."""
        super().close()
        for proxy in self.proxies.values():
            proxy.close()


def _security(folder: Path) -> dict[str, Any]:
    store = {"location": folder / "broker.p12", "password": STORE_PASSWORD, "type": "PKCS12"}
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    listeners = [(mechanism, one) for mechanism in MECHANISMS for one in ("sasl_plaintext", "sasl_ssl")]
    return {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        **{f"ssl.keystore.{name}": value for name, value in store.items()},
        **{f"listener.name.{one}.{name.lower()}.sasl.jaas.config": module for name, one in listeners},
    }


def make_certificate(folder: Path, name: str, host: str = HOST, start: str = "-1d") -> None:
    """Make a self-signed certificate for a host: ``NAME.p12`` for the broker, ``NAME.pem`` for who trusts it."""
    store, kind = folder / f"{name}.p12", "ip" if host[0].isdigit() else "dns"
    common = ["keytool", "-keystore", str(store), "-storepass", STORE_PASSWORD, "-alias", "broker"]
    make = ["-genkeypair", "-storetype", "PKCS12", "-keyalg", "EC", "-groupname", "secp256r1", "-validity", "30"]
    names = ["-dname", f"CN={host}", "-ext", "bc:c=ca:true", "-ext", f"san={kind}:{host}", "-startdate", start]
    subprocess.run([*common, *make, *names], check=True, capture_output=True)
    subprocess.run(
        [*common, "-exportcert", "-rfc", "-file", str(folder / f"{name}.pem")], check=True, capture_output=True
    )


def named_cluster() -> str | None:
    """Bootstrap servers of a running cluster for tests that break nothing, where one is named."""
    return os.environ.get("NIGHTJAR_TEST_KAFKA") or None


@contextmanager
def brokers(folder: Path, count: int = 1, secure: bool = False, **extra: Any) -> Iterator[Brokers]:
    """Brokers, running; where they do not start at all, the worker is not judged: `make nightly` alone fails then."""
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
                mark = " with a crash marker" if b"nightjar/" in value else ""
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
