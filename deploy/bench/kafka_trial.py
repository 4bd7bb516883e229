"""Trial on a real Kafka: new source and sink topics, workers, alerts sent and results received.

The broker timestamps alerts and results. Duplicates are identified by the keys of the results.
"""

import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from deploy.bench.brokers import Brokers
from nightjar_alerts.service.local import WORKER, ServiceProcess, start

PARTITIONS: Final = 4
FIRST_ID: Final = 10**17  # of the alerts of a visit
SESSION_MS: Final = 6000
PATIENCE_SECONDS: Final = 300.0
_NUMBERS: Final = itertools.count(1)


class Trial:
    """New source and sink topics, and workers between them.

    Parameters
    ----------
    bundle : bundle that the workers use.

    Attributes
    ----------
    source, sink : names of the topics.
    """

    def __init__(self, cluster: Brokers, bundle: Path) -> None:
        self._cluster, self._bundle = cluster, bundle
        number = next(_NUMBERS)
        self.source, self.sink = f"alerts-{number}", f"results-{number}"
        stamped = {"message.timestamp.type": "LogAppendTime"}
        cluster.create(self.source, PARTITIONS, **stamped)
        cluster.create(self.sink, 2, **stamped)

    @property
    def hosts(self) -> str:
        """Bootstrap servers of the cluster."""
        return self._cluster.hosts()

    @contextmanager
    def worker(self, once: bool = False, runs: int = 0, session_ms: int = SESSION_MS) -> Iterator[ServiceProcess]:
        """Run a worker process; yield it when it is ready and kill it at the end.

        Parameters
        ----------
        once : whether it publishes in transactions.
        runs : number of concurrent inference runs; 0 for the worker's default.
        session_ms : session timeout of the consumer group.
        """
        session = f"session.timeout.ms={session_ms}&heartbeat.interval.ms={session_ms // 6}"
        with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
            settings = {
                "NIGHTJAR_CACHE_BYTES": "0",
                "NIGHTJAR_WORKERS": str(runs),
                "NIGHTJAR_SOURCE": f"kafka://{self.hosts}/{self.source}?group={self.source}&{session}"
                "&topic.metadata.refresh.interval.ms=2000",
                "NIGHTJAR_SINK": f"kafka://{self.hosts}/{self.sink}{'?exactly_once=yes' if once else ''}",
                "NIGHTJAR_DEAD_LETTERS": f"file:{folder}/letters/",
            }
            service = start(Path(folder), self._bundle, settings, WORKER)
            try:
                service.wait_ready(PATIENCE_SECONDS)
                yield service
            finally:
                service.process.kill()
                service.process.wait()

    def answers(self) -> "AnswerTopic":
        """Return a reader of all results, from the first."""
        return AnswerTopic(self.hosts, self.sink)

    def feed(self, packets: Sequence[bytes], seconds: float) -> Mapping[int, int]:
        """Write alerts evenly over some seconds; return the broker's timestamp of each, ms since 1970, by number."""
        from confluent_kafka import Producer

        producer, stamps = Producer({"bootstrap.servers": self.hosts, "linger.ms": 5}), dict[int, int]()
        started = time.monotonic()
        for number, packet in enumerate(packets):
            while seconds and number / len(packets) > (time.monotonic() - started) / seconds:
                producer.poll(0.005)

            def note(_error: object, message: Any, number: int = number) -> None:
                stamps[number] = message.timestamp()[1]

            while True:
                try:
                    producer.produce(self.source, packet, on_delivery=note)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.flush(60)
        return stamps


class AnswerTopic:
    """Reader of the committed records of the result topic.

    Attributes
    ----------
    stamps : broker's timestamp of the first result of each alert, milliseconds since 1970, by the alert's number.
    last_ms : broker's timestamp of the last result.
    """

    def __init__(self, hosts: str, topic: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        config = {"bootstrap.servers": hosts, "group.id": "bench", "isolation.level": "read_committed", "log_level": 0}
        self._consumer = Consumer(config)
        until(lambda: bool(self._consumer.list_topics(topic, 30).topics[topic].partitions))  # the topic may be new
        partitions = self._consumer.list_topics(topic, 30).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        self._keys: Counter[bytes] = Counter()
        self.stamps: dict[int, int] = {}
        self.last_ms = 0

    def __enter__(self) -> "AnswerTopic":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def wait(self, count: int, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for the results of a number of alerts; raises TimeoutError."""
        until(lambda: self.count() >= count, seconds, f"not all of {count} alerts were answered")

    def wait_total(self, count: int) -> None:
        """Wait for a number of results, including those of repeated alerts; raises TimeoutError."""
        until(lambda: self.count() and self._keys.total() >= count, what=f"{count} results did not come")

    def count(self) -> int:
        """Return the number of alerts with a result so far."""
        for message in self._consumer.consume(2000, 0.05):
            if message.error() is None:
                key, stamp = message.key() or b"", message.timestamp()[1]
                self._keys[key] += 1
                self.stamps.setdefault(_number(key), stamp)
                self.last_ms = max(self.last_ms, stamp)
        return len(self._keys)

    def repeats(self) -> int:
        """Return the number of duplicate results."""
        for _ in range(20):
            self.count()
        return self._keys.total() - len(self._keys)


def _number(key: bytes) -> int:
    """Return the number of a visit's alert from the key of its result; negative for other alerts."""
    alert_id = key.split(b"/")[1]
    return int(alert_id) - FIRST_ID if alert_id.isdigit() and len(alert_id) < 20 else -1


def answered(service: ServiceProcess) -> float:
    """Return the number of alerts that a worker has finished."""
    return service.metric("nightjar_stream_out_total")


def assigned(service: ServiceProcess) -> float:
    """Return the number of partitions assigned to a worker."""
    return service.metric("nightjar_stream_assigned_partitions")


def until(holds: Callable[[], object], seconds: float = PATIENCE_SECONDS, what: str = "waited in vain") -> None:
    """Wait until a condition holds; raises TimeoutError with a message."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.05)
