"""The worker between topics of a real Kafka: visits, rebalances, kills and broken brokers, counted from outside.

    python -m deploy.bench --parts '["kafka"]' --output build/kafka.json
    python -m deploy.bench.kafka SCALE [PART ...]        some parts alone, in small

One broker of our own (:mod:`deploy.bench.brokers`), worker processes as a user starts them. The broker stamps alerts
and answers alike when it takes them, so times need no other clock. What is answered twice is told by the keys of the
answers. Another checkout may be measured by the same means: ``BENCH_WORKER_TREE`` names it.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from deploy.bench.brokers import Brokers, brokers, home
from deploy.bench.process import HOST, Service, free_port
from deploy.bench.report import Numbers, spread
from deploy.bench.wire import interval
from deploy.bench.workload import visit

PARTITIONS: Final = 4
FIRST_ID: Final = 10**17  # of the alerts of a visit
VISITS: Final = (10_000, 40_000)
ARRIVAL_SECONDS: Final = 5.0
WAITING: Final = 20_000
LEAST_WAITING: Final = 10_000  # with fewer the work is over before the second worker has come
STAY_SECONDS: Final = 10.0
KILLS: Final = 20
RATE: Final = 270
LOADED: Final = 60_000  # alerts that wait while workers are killed at full load
WORK_ALERTS: Final = 500  # that each of them answers at least before it is killed
COMMIT_ROUNDS: Final = 7
SELDOM: Final = """
import runpy, sys
from service.stream.kafka import commits
commits.COMMIT_SECONDS = 5.0
sys.argv = ["service", "worker"]
runpy.run_module("service", run_name="__main__")
"""
"""A worker that commits every five seconds, as clients of Kafka do by themselves, and not twenty times a second."""
STEADY_SECONDS: Final = 30.0
WORKERS: Final = (1, 2, 4)
PRICE_ROUNDS: Final = 3
WARM: Final = 100
FAULTS: Final = ("killed", "silent")
OUTAGE_SECONDS: Final = 10.0
PATIENCE_SECONDS: Final = 300.0
NEVER_SECONDS: Final = 60.0
"""Seconds of silence after everything is mended that count as standing still."""
SESSION: Final = "session.timeout.ms=6000&heartbeat.interval.ms=1000&topic.metadata.refresh.interval.ms=2000"


def measure(bundle: Path, scale: float, say: Callable[[str], None], parts: Sequence[str] = ()) -> Numbers:
    """Keys ``kafka.*``; ``kafka.failed.NAME`` for each part that came to no end.

    Parameters
    ----------
    scale : share of alerts and kills, for a trial.
    parts : names of :data:`PARTS`; all of them when empty.
    """
    if home() is None:
        say("no unpacked Kafka (NIGHTJAR_KAFKA_HOME) or no Java: nothing was measured between topics")
        return {}
    numbers: Numbers = {"kafka.scale": scale}
    with tempfile.TemporaryDirectory(prefix="nightjar-") as folder, brokers(Path(folder)) as cluster:
        bench = Bench(cluster, bundle, say)
        for name in parts or PARTS:
            started = time.monotonic()
            try:
                numbers |= PARTS[name](bench, scale)
            except Exception as error:  # what the others measure is not lost by it
                numbers[f"kafka.failed.{name}"] = 1.0
                say(f"{name}: failed: {type(error).__name__}: {error}")
            say(f"{name}: took {time.monotonic() - started:.0f} s")
    return numbers


class Bench:
    """One cluster, a bundle, and workers between topics of their own.

    Attributes
    ----------
    source, sink : the topics of this trial.
    """

    def __init__(self, cluster: Brokers, bundle: Path, say: Callable[[str], None]) -> None:
        self.cluster, self._bundle, self._say = cluster, bundle, say
        self._trials = 0
        self.source = self.sink = ""

    def begin(self, **config: str) -> None:
        """Create topics that nobody has used; further properties are those of the source."""
        self._trials += 1
        self.source, self.sink = f"alerts-{self._trials}", f"results-{self._trials}"
        stamped = {"message.timestamp.type": "LogAppendTime"}
        self.cluster.create(self.source, PARTITIONS, **(stamped | config))
        self.cluster.create(self.sink, 2, **stamped)

    @contextmanager
    def worker(self, once: bool = False, runs: int = 0, seldom: bool = False) -> Iterator[Service]:
        """Run a worker process, ready.

        Parameters
        ----------
        runs : runs of the network at once; 0 leaves it to the worker.
        seldom : whether it commits every few seconds alone.
        """
        hosts, port = self.cluster.hosts(), free_port()
        with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
            settings = {
                "HOST": HOST, "WORKER_PORT": port, "BUNDLE": self._bundle, "CACHE_BYTES": 0, "WORKERS": runs,
                "SOURCE": f"kafka://{hosts}/{self.source}?group={self.source}&{SESSION}",
                "SINK": f"kafka://{hosts}/{self.sink}{'?exactly_once=yes' if once else ''}",
                "DEAD_LETTERS": f"file:{folder}/letters/",
            }  # fmt: skip
            environment = {**os.environ, **{f"NIGHTJAR_{name}": str(value) for name, value in settings.items()}}
            tree = os.environ.get("BENCH_WORKER_TREE")
            if tree:
                environment["PYTHONPATH"] = tree
            log = Path(folder, "log")
            with log.open("wb") as sink:
                command = [sys.executable, *(("-c", SELDOM) if seldom else ("-m", "service", "worker"))]
                process = subprocess.Popen(command, env=environment, stderr=sink, cwd=tree)
            service = Service(process, port, log)
            try:
                service.wait_ready(120)
                yield service
            finally:
                with suppress(ProcessLookupError):
                    service.process.kill()
                service.process.wait()

    def visit(
        self, count: int, seconds: float, once: bool = False, workers: int = 1, warm: int = 0, seldom: bool = False
    ) -> float:
        """Return seconds from the first alert's arrival to the last answer.

        Parameters
        ----------
        warm : alerts that are answered before: the first transaction of a process begins with a new producer.
        seldom : whether the workers commit every few seconds alone.
        """
        self.begin()
        with ExitStack() as stack:
            started = [stack.enter_context(self.worker(once, _cores() // workers or 1, seldom)) for _ in range(workers)]
            until(lambda: sum(assigned(one) for one in started) == PARTITIONS and all(map(assigned, started)))
            answers = stack.enter_context(Answers(self.cluster.hosts(), self.sink))
            self.feed(visit(warm, seed=5, first=count), 0)
            answers.wait(warm)
            stamps = self.feed(_packets(count), seconds)
            answers.wait(count + warm)
            took = (answers.last_ms - min(stamps.values())) / 1000
        self._say(f"{count} alerts, {workers} workers{', exactly once' if once else ''}: {took:.1f} s")
        return took

    def drain(self, count: int) -> Numbers:
        """Alerts a second when all are there at once, by the number of workers."""
        rates = {workers: count / self.visit(count, 0, workers=workers, warm=WARM) for workers in WORKERS}
        return {f"kafka.drain_per_s.workers_{workers}": rate for workers, rate in rates.items()}

    def price(self, count: int) -> Numbers:
        """Share of the alerts a second that transactions cost: rounds of both, in turn."""
        rates: dict[bool, list[float]] = {False: [], True: []}
        for number in range(PRICE_ROUNDS):
            for once in _turned(number):
                rates[once].append(count / self.visit(count, 0, once, warm=WARM))
        least, exactly = statistics.median(rates[False]), statistics.median(rates[True])
        self._say(f"alerts/s at least once {least:.0f}, exactly once {exactly:.0f}")
        return {
            "kafka.exactly_once_price": 1 - exactly / least,
            "kafka.at_least_once_per_s": least,
            "kafka.exactly_once_per_s": exactly,
        }

    def commits(self, count: int) -> Numbers:
        """Alerts a second with a commit twenty times a second over those with one every five seconds, in turn."""
        ratios = []
        for number in range(COMMIT_ROUNDS):
            took = {seldom: self.visit(count, 0, warm=WARM, seldom=seldom) for seldom in _turned(number)}
            ratios.append(took[True] / took[False])
            self._say(f"round {number + 1}/{COMMIT_ROUNDS}: {ratios[-1]:.3f}")
        low, high = interval(ratios)
        name = "kafka.commit_often_ratio"
        return {name: spread(ratios), f"{name}.low": low, f"{name}.high": high}

    def steady(self, seconds: float, once: bool) -> Numbers:
        """Ages of answers at a steady rate: from the broker's stamp of the alert to that of its answer."""
        self.begin()
        count = int(RATE * seconds)
        with self.worker(once) as worker, Answers(self.cluster.hosts(), self.sink) as answers:
            until(lambda: assigned(worker) == PARTITIONS)
            self.feed(visit(RATE, seed=3), 1.0)  # the first answers come later: a group and a producer begin
            answers.wait(RATE)
            stamps = self.feed(visit(count, seed=2, first=RATE), seconds)
            answers.wait(RATE + count)
            ages = [answers.stamps[number + RATE] - taken for number, taken in stamps.items()]
        p50, p99 = np.percentile(ages, [50, 99]).tolist()
        name = "exactly_once" if once else "at_least_once"
        self._say(f"{RATE} alerts/s for {seconds:.0f} s, {name}: age {p50:.0f} ms, p99 {p99:.0f} ms")
        return {f"kafka.age_p50_ms.{name}": p50, f"kafka.age_p99_ms.{name}": p99}

    def feed(self, packets: Sequence[bytes], seconds: float) -> Mapping[int, int]:
        """Write alerts evenly over some seconds; when the broker took each, milliseconds since 1970, by number."""
        from confluent_kafka import Producer

        producer, stamps = Producer({"bootstrap.servers": self.cluster.hosts(), "linger.ms": 5}), dict[int, int]()
        started = time.monotonic()
        for number, packet in enumerate(packets):
            while seconds and number / len(packets) > (time.monotonic() - started) / seconds:
                producer.poll(0.005)

            def taken(_error: object, message: Any, number: int = number) -> None:
                stamps[number] = message.timestamp()[1]

            while True:
                try:
                    producer.produce(self.source, packet, on_delivery=taken)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.flush(60)
        return stamps

    def rebalance(self, count: int) -> Numbers:
        """Let a second worker join a loaded one and leave again."""
        self.begin()
        with self.worker() as first, Answers(self.cluster.hosts(), self.sink) as answers:
            self.feed(visit(count), 0)
            until(lambda: _answered(first) > count // 50)
            with self.worker() as second:
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
        self.begin()
        fed = 0
        with Answers(self.cluster.hosts(), self.sink) as answers:
            for number in range(count + 1):
                with self.worker() as worker:
                    self.feed(visit(RATE * 3, seed=number + 1, first=fed), 3.0)
                    fed += RATE * 3
                    if number == count:  # the last one brings everything to an end
                        answers.wait(fed)
                        worker.stop(60)
            repeated = answers.repeats()
        self._say(f"{count} kills: {repeated} repeats")
        return repeated / count

    def kills_loaded(self, count: int, waiting: int) -> float:
        """Alerts answered twice for each worker that is killed while a backlog waits."""
        self.begin()
        with Answers(self.cluster.hosts(), self.sink) as answers:
            self.feed(_packets(waiting), 0)
            for number in range(count):
                with self.worker() as worker:
                    until(lambda: _answered(worker) > WORK_ALERTS or answers.count() >= waiting)
                    time.sleep(number % 5 * 0.1)  # anywhere between two commits
                with self.worker() as heir:  # leaves in peace: after two deaths in a row suspects are tried alone
                    until(lambda: _answered(heir) > WORK_ALERTS or answers.count() >= waiting)
                    heir.stop(60)
            left = waiting - answers.count()
            with self.worker() as worker:
                answers.wait(waiting)
                worker.stop(60)
            repeated = answers.repeats()
        self._say(f"{count} kills at full load: {repeated} repeats; {left} were left for the last worker")
        return repeated / count

    def outages(self) -> Numbers:
        """Seconds from a broker's return to the first new answer, by fault and promise."""
        promises = (("at_least_once", False), ("exactly_once", True))
        key = "kafka.return_to_first_answer_s"
        found = {f"{key}.{fault}.{name}": self.outage(fault, once) for fault in FAULTS for name, once in promises}
        return {**found, key: max(found.values())}

    def outage(self, fault: str, once: bool) -> float:
        """Seconds from a broker's return to the first new answer."""
        self.begin()
        with self.worker(once), Answers(self.cluster.hosts(), self.sink) as answers:
            self.feed(visit(300), 1.0)
            answers.wait(300)
            if fault == "killed":
                self.cluster.kill(1)
            else:
                self.cluster.hang(1)
            time.sleep(OUTAGE_SECONDS)
            if fault == "killed":
                self.cluster.start(1)
            else:
                self.cluster.wake(1)
            back = time.monotonic()
            self.feed(visit(300, first=300), 0)
            with suppress(TimeoutError):
                answers.wait(301, NEVER_SECONDS)
            took = min(time.monotonic() - back, NEVER_SECONDS)
        self._say(f"broker {fault}, {'exactly' if once else 'at least'} once: first answer after {took:.1f} s")
        return took


PARTS: Final[Mapping[str, Callable[[Bench, float], Numbers]]] = {
    "visits": lambda bench, scale: {
        f"kafka.visit_{size // 1000}k_s": bench.visit(int(size * scale), ARRIVAL_SECONDS) for size in VISITS
    },
    "drain": lambda bench, scale: bench.drain(int(VISITS[0] * scale)),
    "price": lambda bench, scale: bench.price(int(VISITS[0] * scale)),
    "steady": lambda bench, scale: {
        **bench.steady(max(3.0, STEADY_SECONDS * scale), False),
        **bench.steady(max(3.0, STEADY_SECONDS * scale), True),
    },
    "rebalance": lambda bench, scale: bench.rebalance(max(int(WAITING * scale), LEAST_WAITING)),
    "kills": lambda bench, scale: {"kafka.repeats_per_kill": bench.kills(max(2, int(KILLS * scale)))},
    "kills_loaded": lambda bench, scale: {
        "kafka.repeats_per_kill_full_load": bench.kills_loaded(max(2, int(KILLS * scale)), int(LOADED * scale))
    },
    "commits": lambda bench, scale: bench.commits(int(VISITS[0] * scale)),
    "outages": lambda bench, scale: bench.outages(),
}


class Answers:
    """Committed records of a topic of answers.

    Attributes
    ----------
    stamps : when the broker took the first answer to each alert, milliseconds since 1970, by the alert's number.
    last_ms : when it took the last answer.
    """

    def __init__(self, hosts: str, topic: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        config = {"bootstrap.servers": hosts, "group.id": "bench", "isolation.level": "read_committed", "log_level": 0}
        self._consumer = Consumer(config)
        until(lambda: bool(self._consumer.list_topics(topic, 30).topics[topic].partitions))  # it may be new
        partitions = self._consumer.list_topics(topic, 30).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        self._keys: Counter[bytes] = Counter()
        self.stamps: dict[int, int] = {}
        self.last_ms = 0

    def __enter__(self) -> "Answers":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def _read(self) -> None:
        for message in self._consumer.consume(2000, 0.05):
            if message.error() is None:
                key, stamp = message.key() or b"", message.timestamp()[1]
                self._keys[key] += 1
                self.stamps.setdefault(_number(key), stamp)
                self.last_ms = max(self.last_ms, stamp)

    def wait(self, count: int, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until so many alerts are answered; raises TimeoutError."""
        end = time.monotonic() + seconds
        while len(self._keys) < count:
            self._read()
            if time.monotonic() > end:
                raise TimeoutError(f"{len(self._keys)} of {count} alerts were answered")

    def wait_for(self, numbers: Iterable[int], seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the alerts of these numbers are answered; raises TimeoutError."""
        left, end = set(numbers), time.monotonic() + seconds
        while left := left - self.stamps.keys():
            self._read()
            if time.monotonic() > end:
                raise TimeoutError(f"{len(left)} alerts were not answered: {sorted(left)[:5]}")

    def count(self) -> int:
        """Alerts answered so far."""
        self._read()
        return len(self._keys)

    def repeats(self) -> int:
        """Answers beyond the first to the same alert."""
        for _ in range(20):
            self._read()
        return self._keys.total() - len(self._keys)


@lru_cache(maxsize=1)
def _packets(count: int) -> list[bytes]:
    """Return the packets of a visit, which take longer to make than to classify."""
    return visit(count)


def _turned(number: int) -> tuple[bool, bool]:
    """Return both of two ways; which comes first changes from round to round."""
    return (False, True) if number % 2 else (True, False)


def _number(key: bytes) -> int:
    """Return the number of a visit's alert by the key of its answer; below zero for any other alert."""
    alert_id = key.split(b"/")[1]
    return int(alert_id) - FIRST_ID if alert_id.isdigit() and len(alert_id) < 20 else -1


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def metric(service: Service, name: str) -> int:
    """Sum of a metric over its labels."""
    with urllib.request.urlopen(f"{service.url}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


def _answered(service: Service) -> int:
    """Alerts that a worker has answered."""
    return metric(service, "nightjar_stream_out_total")


def assigned(service: Service) -> int:
    """Partitions that are a worker's."""
    return metric(service, "nightjar_stream_assigned_partitions")


def _standstill(service: Service, seconds: float, left: Callable[[], bool]) -> float:
    """Return the longest time in which a worker answered nothing, while something was left to do."""
    longest, last, since = 0.0, _answered(service), time.monotonic()
    end = since + seconds
    while (now := time.monotonic()) < end and left():
        if (current := _answered(service)) != last:
            last, since = current, now
        longest = max(longest, now - since)
    return longest


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; raises TimeoutError."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError("waited in vain")
        time.sleep(0.05)


def main() -> None:
    """Measure one tree alone and print the numbers."""
    from models.bundle import DEFAULT_BUNDLE

    say = partial(print, flush=True)
    print(json.dumps(measure(DEFAULT_BUNDLE, float(sys.argv[1]), say, sys.argv[2:]), indent=1))


if __name__ == "__main__":
    main()
