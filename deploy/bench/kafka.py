"""The worker between topics of a real Kafka: visits, rebalances, kills and broken brokers, counted from outside.

One broker of our own (:mod:`deploy.bench.brokers`), worker processes as a user starts them. A broker stamps alerts and
answers alike, so times need no other clock. What is answered twice is told by the keys of the answers. Another checkout
may be measured by the same means: ``BENCH_WORKER_TREE`` names it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from deploy.bench.brokers import Brokers, brokers, home
from deploy.bench.engine import Aim
from deploy.bench.process import HOST, Service, free_port
from deploy.bench.report import Numbers
from deploy.bench.workload import visit

PARTITIONS: Final = 4
VISITS: Final = (10_000, 40_000)
ARRIVAL_SECONDS: Final = 5.0
WAITING: Final = 20_000
LEAST_WAITING: Final = 10_000  # with fewer the work is over before the second worker has come
STAY_SECONDS: Final = 10.0
KILLS: Final = 20
RATE: Final = 270
OUTAGE_SECONDS: Final = 10.0
PATIENCE_SECONDS: Final = 300.0
NEVER_SECONDS: Final = 60.0
"""Seconds of silence after everything is mended that count as standing still."""
SESSION: Final = "session.timeout.ms=6000&heartbeat.interval.ms=1000&topic.metadata.refresh.interval.ms=2000"

AIMS: Final[dict[str, Aim]] = {
    "kafka.visit_10k_s": Aim("10,000 alerts in 5 s through Kafka in and out, s", "at most", 15),
    "kafka.visit_40k_s": Aim("40,000 alerts in 5 s through Kafka in and out, s", "at most", 60),
    "kafka.standstill_s": Aim("longest standstill of a loaded worker while another joins and leaves, s", "at most", 2),
    "kafka.repeats_per_rebalance": Aim("alerts answered twice meanwhile", "at most", 256),
    "kafka.repeats_per_kill": Aim("alerts answered twice for each kill at 270/s", "at most", 64),
}


def measure(bundle: Path, scale: float, say: Callable[[str], None]) -> Numbers:
    """Keys ``kafka.*``.

    Parameters
    ----------
    scale : share of alerts and kills, for a trial.
    """
    if home() is None:
        say("no unpacked Kafka (NIGHTJAR_KAFKA_HOME) or no Java: nothing was measured between topics")
        return {}
    with tempfile.TemporaryDirectory(prefix="nightjar-") as folder, brokers(Path(folder)) as cluster:
        bench = _Bench(cluster, bundle, say)
        numbers: Numbers = {"kafka.scale": scale}
        for size in VISITS:
            numbers[f"kafka.visit_{size // 1000}k_s"] = bench.visit(int(size * scale), ARRIVAL_SECONDS)
        rates = {once: int(VISITS[0] * scale) / bench.visit(int(VISITS[0] * scale), 0, once) for once in (False, True)}
        numbers["kafka.exactly_once_price"] = 1 - rates[True] / rates[False]
        say(f"alerts/s at least once {rates[False]:.0f}, exactly once {rates[True]:.0f}")
        numbers |= bench.rebalance(max(int(WAITING * scale), LEAST_WAITING))
        numbers["kafka.repeats_per_kill"] = bench.kills(max(2, int(KILLS * scale)))
        returns = {
            f"kafka.return_to_first_answer_s.{fault}.{name}": bench.outage(fault, once)
            for fault in ("killed", "silent")
            for name, once in (("at_least_once", False), ("exactly_once", True))
        }
        worst = max(returns.values())
    return numbers | returns | {"kafka.return_to_first_answer_s": worst}


class _Bench:
    """One cluster, a bundle, and workers between topics of their own."""

    def __init__(self, cluster: Brokers, bundle: Path, say: Callable[[str], None]) -> None:
        self._cluster, self._bundle, self._say = cluster, bundle, say
        self._trials = 0
        self._source = self._sink = ""

    def _begin(self) -> None:
        """Topics and a group that nobody has used."""
        self._trials += 1
        self._source, self._sink = f"alerts-{self._trials}", f"results-{self._trials}"
        self._cluster.create(self._source, PARTITIONS)
        self._cluster.create(self._sink, 2)

    @contextmanager
    def _worker(self, once: bool = False) -> Iterator[Service]:
        hosts, port = self._cluster.hosts(), free_port()
        with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
            settings = {
                "HOST": HOST, "WORKER_PORT": port, "BUNDLE": self._bundle, "CACHE_BYTES": 0,
                "SOURCE": f"kafka://{hosts}/{self._source}?group={self._source}&{SESSION}",
                "SINK": f"kafka://{hosts}/{self._sink}{'?exactly_once=yes' if once else ''}",
                "DEAD_LETTERS": f"file:{folder}/letters/",
            }  # fmt: skip
            environment = {**os.environ, **{f"NIGHTJAR_{name}": str(value) for name, value in settings.items()}}
            tree = os.environ.get("BENCH_WORKER_TREE")
            if tree:
                environment["PYTHONPATH"] = tree
            log = Path(folder, "log")
            with log.open("wb") as sink:
                command = [sys.executable, "-m", "service", "worker"]
                process = subprocess.Popen(command, env=environment, stderr=sink, cwd=tree)
            service = Service(process, port, log)
            try:
                service.wait_ready(120)
                yield service
            finally:
                with suppress(ProcessLookupError):
                    service.process.kill()
                service.process.wait()

    def visit(self, count: int, seconds: float, once: bool = False) -> float:
        """Seconds from the first alert's arrival to the last answer."""
        self._begin()
        with self._worker(once), _Answers(self._cluster.hosts(), self._sink) as answers:
            first = self._feed(visit(count), seconds)
            answers.wait(count)
            took = (answers.last_ms - first) / 1000
        self._say(f"{count} alerts{', exactly once' if once else ''}: {took:.1f} s")
        return took

    def _feed(self, packets: Sequence[bytes], seconds: float) -> int:
        """Write alerts evenly over some seconds; when the broker took the first, milliseconds since 1970."""
        from confluent_kafka import Producer

        producer, stamps = Producer({"bootstrap.servers": self._cluster.hosts(), "linger.ms": 5}), list[int]()
        started = time.monotonic()

        def taken(_error: object, message: Any) -> None:
            stamps.append(message.timestamp()[1])

        for number, packet in enumerate(packets):
            while seconds and number / len(packets) > (time.monotonic() - started) / seconds:
                producer.poll(0.005)
            while True:
                try:
                    producer.produce(self._source, packet, on_delivery=taken)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.flush(60)
        return min(stamps)

    def rebalance(self, count: int) -> Numbers:
        """Let a second worker join a loaded one and leave again."""
        self._begin()
        with self._worker() as first, _Answers(self._cluster.hosts(), self._sink) as answers:
            self._feed(visit(count), 0)
            _until(lambda: _answered(first) > count // 50)
            with self._worker() as second:
                still = _standstill(first, STAY_SECONDS, lambda: answers.count() < count)
                second.stop(60)
            still = max(still, _standstill(first, STAY_SECONDS / 2, lambda: answers.count() < count))
            answers.wait(count)
            first.stop(60)
            repeated = answers.repeats()
        self._say(f"rebalance: stands still {still:.1f} s, repeats {repeated}")
        return {"kafka.standstill_s": still, "kafka.repeats_per_rebalance": float(repeated)}

    def kills(self, count: int) -> float:
        """Alerts answered twice for each worker that is killed at a steady rate."""
        self._begin()
        fed = 0
        with _Answers(self._cluster.hosts(), self._sink) as answers:
            for number in range(count + 1):
                with self._worker() as worker:
                    self._feed(visit(RATE * 3, seed=number + 1, first=fed), 3.0)
                    fed += RATE * 3
                    if number == count:  # the last one brings everything to an end
                        answers.wait(fed)
                        worker.stop(60)
            repeated = answers.repeats()
        self._say(f"{count} kills: {repeated} repeats")
        return repeated / count

    def outage(self, fault: str, once: bool) -> float:
        """Seconds from a broker's return to the first new answer."""
        self._begin()
        with self._worker(once), _Answers(self._cluster.hosts(), self._sink) as answers:
            self._feed(visit(300), 1.0)
            answers.wait(300)
            if fault == "killed":
                self._cluster.kill(1)
            else:
                self._cluster.hang(1)
            time.sleep(OUTAGE_SECONDS)
            if fault == "killed":
                self._cluster.start(1)
            else:
                self._cluster.wake(1)
            back = time.monotonic()
            self._feed(visit(300, first=300), 0)
            with suppress(TimeoutError):
                answers.wait(301, NEVER_SECONDS)
            took = min(time.monotonic() - back, NEVER_SECONDS)
        self._say(f"broker {fault}, {'exactly' if once else 'at least'} once: first answer after {took:.1f} s")
        return took


class _Answers:
    """Committed records of a topic of answers."""

    def __init__(self, hosts: str, topic: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        config = {"bootstrap.servers": hosts, "group.id": "bench", "isolation.level": "read_committed", "log_level": 0}
        self._consumer = Consumer(config)
        partitions = self._consumer.list_topics(topic, 30).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        self._keys: Counter[bytes] = Counter()
        self.last_ms = 0

    def __enter__(self) -> "_Answers":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def _read(self) -> None:
        for message in self._consumer.consume(2000, 0.05):
            if message.error() is None:
                self._keys[message.key() or b""] += 1
                self.last_ms = max(self.last_ms, message.timestamp()[1])

    def wait(self, count: int, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until so many alerts are answered; raises TimeoutError."""
        end = time.monotonic() + seconds
        while len(self._keys) < count:
            self._read()
            if time.monotonic() > end:
                raise TimeoutError(f"{len(self._keys)} of {count} alerts were answered")

    def count(self) -> int:
        """Alerts answered so far."""
        self._read()
        return len(self._keys)

    def repeats(self) -> int:
        """Answers beyond the first to the same alert."""
        for _ in range(20):
            self._read()
        return self._keys.total() - len(self._keys)


def _answered(service: Service) -> int:
    """Alerts that a worker has answered, by its metrics."""
    with urllib.request.urlopen(f"{service.url}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith("nightjar_stream_out_total{"))


def _standstill(service: Service, seconds: float, left: Callable[[], bool]) -> float:
    """Return the longest time in which a worker answered nothing, while something was left to do."""
    longest, last, since = 0.0, _answered(service), time.monotonic()
    end = since + seconds
    while (now := time.monotonic()) < end and left():
        if (current := _answered(service)) != last:
            last, since = current, now
        longest = max(longest, now - since)
    return longest


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError("waited in vain")
        time.sleep(0.05)


def main() -> None:
    """Measure one tree alone and print the numbers: ``python -m deploy.bench.kafka SCALE``."""
    from models.bundle import DEFAULT_BUNDLE

    print(json.dumps(measure(DEFAULT_BUNDLE, float(sys.argv[1]), print), indent=1))


if __name__ == "__main__":
    main()
