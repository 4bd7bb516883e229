"""Local Kafka brokers for benchmarks and tests, which may be killed and restarted.

NIGHTJAR_KAFKA_HOME is the folder of an unpacked Kafka (with ``libs/*.jar``), which needs Java 17 or newer. Each broker
is also a controller.
"""

import os
import random
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from nightjar_alerts.service.local import HOST

CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qk"
START_SECONDS: Final = 400  # on a busy machine; usually a few
OLDEST_JAVA: Final = 17
PORTS: Final = (12_000, 32_000)
_JVM: Final = ("-Xms64m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_LOGGING: Final = """
appender.console.type=Console
appender.console.name=out
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ABSOLUTE} %p %c: %m%n
rootLogger.level=INFO
rootLogger.appenderRef.out.ref=out
"""
_QUIET: Final = _LOGGING.replace("INFO", "ERROR")


@cache
def home() -> Path | None:
    """Return the folder of an unpacked Kafka, None if there is none or Java is missing or too old.

    It is searched for in NIGHTJAR_KAFKA_HOME, in ``build/kafka``, where `make kafka` installs it, and in a shared
    folder next to the repository.
    """
    repository = Path(__file__).resolve().parents[2]
    named = os.environ.get("NIGHTJAR_KAFKA_HOME")
    candidates = ([Path(named)] if named else []) + [repository / "build/kafka", repository.parent / "shared/kafka"]
    folders = (folder for folder in candidates if (folder / "libs").is_dir())
    return next(folders, None) if _java_version() >= OLDEST_JAVA else None


def _java_version() -> int:
    """Return the major version of Java, 0 if it cannot be run."""
    try:
        text = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(\d+)', text)
    return int(match[1]) if match else 0


def _free_ports(count: int) -> list[int]:
    """Return unused ports below the ephemeral range, so that clients do not occupy them.

    A client that keeps connecting to an ephemeral port while its broker is down may even connect to itself.
    """
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            one, port = stack.enter_context(socket.socket()), random.randrange(*PORTS)
            with suppress(OSError):
                one.bind((HOST, port))
                ports.append(port)
        return ports


class Brokers:
    """A cluster of one or three brokers.

    Parameters
    ----------
    extra : further properties of each broker.

    Attributes
    ----------
    listeners : names of what each broker listens for, each at a port of its own; the last one is the controller's.
    """

    listeners: Sequence[str] = ("PLAINTEXT", "CONTROLLER")

    def __init__(self, folder: Path, count: int = 1, extra: Mapping[str, Any] | None = None) -> None:
        self.folder, self.nodes = folder, range(1, count + 1)
        self._extra = dict(extra or {})
        ports = iter(_free_ports(count * len(self.listeners)))
        self._ports = {node: {listener: next(ports) for listener in self.listeners} for node in self.nodes}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        (folder / "broker.log4j2.properties").write_text(_LOGGING)
        (folder / "tool.log4j2.properties").write_text(_QUIET)
        for node in self.nodes:
            self._prepare(node)

    def hosts(self, listener: str = "PLAINTEXT") -> str:
        """Bootstrap servers."""
        return ",".join(f"{HOST}:{self._advertised(node, listener)}" for node in self.nodes)

    def _advertised(self, node: int, listener: str) -> int:
        """Return the port by which clients reach a listener."""
        return self._ports[node][listener]

    def start(self, *nodes: int) -> None:
        """Start brokers, all of them by default, and wait until they serve."""
        chosen = nodes or tuple(self.nodes)
        marks = {node: self._log(node).stat().st_size if self._log(node).exists() else 0 for node in chosen}
        for node in chosen:
            command = self._java("broker", "kafka.Kafka", self.folder / f"{node}.properties")
            with self._log(node).open("ab") as log:
                self._processes[node] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        end = time.monotonic() + START_SECONDS
        for node in chosen:
            while b"Kafka Server started" not in self._log(node).read_bytes()[marks[node] :]:
                if self._processes[node].poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"broker {node} does not start\n{self._log(node).read_text()[-3000:]}")
                time.sleep(0.05)

    def kill(self, node: int) -> None:
        """Kill a broker, like a machine that loses power."""
        process = self._processes.pop(node, None)
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End all brokers."""
        for node in self.nodes:
            self.kill(node)

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic with a client, which starts faster than Kafka's tools."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        client = AdminClient({"bootstrap.servers": self.hosts(), "log_level": 0})
        for future in client.create_topics([NewTopic(topic, partitions, len(self.nodes), config=configs)]).values():
            future.result(START_SECONDS)

    def _java(self, logging: str, main: str, *arguments: object) -> list[str]:
        settings = f"-Dlog4j2.configurationFile={self.folder / f'{logging}.log4j2.properties'}"
        return ["java", *_JVM, settings, "-cp", f"{home()}/libs/*", main, *map(str, arguments)]

    def _log(self, node: int) -> Path:
        return self.folder / f"{node}.log"

    def _prepare(self, node: int) -> None:
        path = self.folder / f"{node}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in self._properties(node).items()))
        command = self._java(
            "tool", "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", path, *self._format_options()
        )
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)

    def _format_options(self) -> list[str]:
        """Return further options of the tool that formats the folder of a broker."""
        return []

    def _properties(self, node: int) -> dict[str, Any]:
        """Return the configuration of a broker: KRaft in combined mode; of three replicas two must be in sync."""
        ports, replicas = self._ports[node], len(self.nodes)
        advertised = {one: self._advertised(node, one) for one in self.listeners[:-1]}
        in_sync = 2 if replicas > 1 else 1
        return {
            "process.roles": "broker,controller",
            "node.id": node,
            "controller.quorum.voters": ",".join(f"{n}@{HOST}:{self._ports[n]['CONTROLLER']}" for n in self.nodes),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": ",".join(f"{one}://{HOST}:{ports[one]}" for one in self.listeners),
            "advertised.listeners": ",".join(f"{one}://{HOST}:{port}" for one, port in advertised.items()),
            "listener.security.protocol.map": ",".join(
                f"{one}:{'PLAINTEXT' if one in ('PROXIED', 'CONTROLLER') else one}" for one in self.listeners
            ),
            "log.dirs": self.folder / f"{node}.data",
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": 3,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "transaction.state.log.num.partitions": 3,
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1000,
            "broker.session.timeout.ms": 6000,
            "replica.lag.time.max.ms": 6000,
            "log.retention.check.interval.ms": 1000,
            "log.cleaner.backoff.ms": 500,
            "log.cleaner.dedupe.buffer.size": 4 << 20,
            "log.cleaner.threads": 1,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
            "num.network.threads": 2,
            "num.io.threads": 2,
            "message.max.bytes": 4 << 20,
            "auto.create.topics.enable": "false",
            **self._extra,
        }


@contextmanager
def running_brokers(folder: Path) -> Iterator[Brokers]:
    """Run one broker."""
    cluster = Brokers(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
