"""Trial of killed workers on a real Kafka: are all alerts answered, none twice, and how long does any of them wait?

    python -m support.kafka_kills --kills 20 --alerts 6000                  exactly once, one broker
    python -m support.kafka_kills --brokers 3 --busy --at-least-once        three brokers, both cores busy

Two workers of one group share eight partitions. A supervisor restarts each worker that ends. Workers are killed with
SIGKILL at random times while alerts arrive, and a third worker joins and leaves between kills. A consumer with
``isolation.level=read_committed`` counts the results.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from nightjar_alerts.service.local import free_port
from support.kafka_brokers import brokers, commits_of
from support.kafka_trial import Trial, trial
from support.stream import Process, alert, eventually

PARTITIONS, SESSION_MS = 8, 6000
SLOTS, RATE = 2, 60.0
VISITOR_EVERY = 3
"""Kills between two visits of a third worker, which changes the assignment of the group twice."""
RESTART_SECONDS = 0.5
"""Pause of the supervisor before it starts a worker again."""
READY_SECONDS, ANSWER_SECONDS = 180.0, 300.0
BRIGHT = 3000.0


@dataclass(frozen=True, slots=True)
class KillReport:
    """Result of one trial.

    Attributes
    ----------
    twice, lost : alerts with more than one result, and with none.
    restarts : worker processes that ended by themselves and were started again; exit statuses are in the log.
    longest_wait_s : longest time from the writing of an alert to its committed result.
    late_s : the longest such wait after each kill, in the order of the kills.
    offset_writes_per_1000 : records of the group's offsets in ``__consumer_offsets`` for each 1,000 alerts.
    """

    exactly_once: bool
    replicas: int
    busy: bool
    real: bool
    static: bool
    kills: int
    alerts: int
    results: int
    twice: int
    extra: int
    lost: int
    restarts: int
    longest_wait_s: float
    late_s: list[float]
    offset_writes_per_1000: float
    seconds: float
    details: str = ""


class Feed:
    """Thread that writes alerts at a steady rate, as many as it was allowed to, and notes when it wrote each."""

    def __init__(self, one: Trial, rate: float) -> None:
        self._one, self._rate = one, rate
        self._allowed, self._closing = 0, threading.Event()
        self.written_at: dict[int, float] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def allow(self, count: int) -> None:
        """Write so many more alerts."""
        self._allowed += count

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self._one.hosts, "enable.idempotence": True, "log_level": 0})
        while not self._closing.is_set() or self._one.fed < self._allowed:
            for _ in range(min(self._allowed - self._one.fed, max(1, int(self._rate / 20)))):
                number = self._one.fed
                self.written_at[number] = time.monotonic()
                producer.produce(self._one.source, alert(number, BRIGHT), partition=number % PARTITIONS)
                self._one.fed = number + 1
            producer.poll(0.05)
        assert producer.flush(120) == 0

    def close(self) -> None:
        """Write the rest and wait until Kafka has all."""
        self._closing.set()
        self._thread.join(300)


class Results:
    """Thread that reads committed results and notes when each could be read first."""

    def __init__(self, one: Trial) -> None:
        self.counts: Counter[int] = Counter()
        self.read_at: dict[int, float] = {}
        self._closing = threading.Event()
        self._consumer = Consumer({
            "bootstrap.servers": one.hosts, "group.id": f"reader-{os.urandom(4).hex()}", "log_level": 0,
            "isolation.level": "read_committed", "enable.auto.commit": False,
        })  # fmt: skip
        numbers = self._consumer.list_topics(one.sink, 30).topics[one.sink].partitions
        self._consumer.assign([TopicPartition(one.sink, number, 0) for number in numbers])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            for message in self._consumer.consume(1000, 0.1):
                if message.error() is None:
                    number = int(json.loads(message.value())["alert_id"]) - 10_000
                    self.counts[number] += 1
                    self.read_at.setdefault(number, time.monotonic())
        self._consumer.close()

    def close(self) -> None:
        """Read once more and end."""
        time.sleep(2)
        self._closing.set()
        self._thread.join(30)


class Slot:
    """Place of one worker, with a port of its own; :meth:`kill` ends its process, and it is started again."""

    def __init__(self, one: Trial, number: int, real: bool, static: bool, session_ms: int = SESSION_MS) -> None:
        self._one, self._number, self._port, self._real = one, number, free_port(), real
        beat_ms = min(3000, session_ms // 6)
        self._options = {"session.timeout.ms": str(session_ms), "heartbeat.interval.ms": str(beat_ms)}
        self._options |= {"group.instance.id": f"slot-{number}"} if static else {}
        self._starts, self.restarts = 0, 0
        self.statuses: list[int] = []
        self.process = self._start()

    def _start(self) -> Process:
        self._starts += 1
        settings = self._one.addresses(**self._options)
        return Process(settings | {"worker_port": self._port}, self._log(self._starts), self._real)

    def _log(self, start: int) -> Path:
        return self._one.folder / f"slot-{self._number}.{start}.log"

    def events(self) -> list[dict[str, Any]]:
        """Events that all processes of this place have logged."""
        lines = [line for start in range(self._starts) for line in self._log(start + 1).read_text().splitlines()]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def kill(self) -> None:
        """SIGKILL, and a new process after a short pause."""
        self.process.kill()
        time.sleep(RESTART_SECONDS)
        self.process = self._start()

    def supervise(self) -> None:
        """Start the worker again where it has ended by itself."""
        if (status := self.process.status) is not None:
            self.statuses.append(status)
            self.restarts += 1
            time.sleep(RESTART_SECONDS)
            self.process = self._start()

    def wait_ready(self) -> None:
        """Wait until the worker has loaded its model and is at work."""
        end = time.monotonic() + READY_SECONDS
        while not self.process.ready:
            self.supervise()
            assert time.monotonic() < end, f"slot {self._number} does not become ready"
            time.sleep(0.1)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        return self.process.stop()

    def end(self) -> None:
        """Kill the process for good, if it still runs."""
        if self.process.status is None:
            self.process.kill()


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep so many cores busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_kills(
    one: Trial,
    kills: int,
    alerts: int,
    busy: bool = False,
    seed: int = 0,
    pause: float = 3.0,
    real: bool = False,
    static: bool = False,
    settle: bool = False,
) -> KillReport:
    """Kill workers while alerts flow, wait until all are answered, and count.

    Parameters
    ----------
    pause : mean number of seconds from a worker's readiness to the next kill.
    real : whether the workers classify with the default model; a stand-in for it starts sooner.
    settle : whether everything is answered before the next kill, so that the waits after one kill are its own.
    static : whether they are static members, which get their partitions back without a change of the group.
    """
    draw, started = random.Random(seed), time.monotonic()
    killed_at: list[float] = []
    with ExitStack() as stack:
        if busy:
            stack.enter_context(busy_cores(os.cpu_count() or 2))
        slots = [Slot(one, number, real, static) for number in range(SLOTS)]
        for slot in slots:
            stack.callback(slot.end)
        for slot in slots:
            slot.wait_ready()
        results = Results(one)
        feed = Feed(one, RATE)
        visitor: Slot | None = None
        for number in range(kills):
            feed.allow(alerts * (number + 1) // kills - alerts * number // kills)
            time.sleep(pause * draw.uniform(0.2, 1.8))
            for slot in slots:
                slot.supervise()
            victim = draw.choice(slots)
            killed_at.append(time.monotonic())
            victim.kill()
            if number % VISITOR_EVERY == 0 and visitor is None:
                visitor = Slot(one, SLOTS + number, real, static)
                stack.callback(visitor.end)
            elif visitor is not None and number % VISITOR_EVERY == VISITOR_EVERY - 1:
                visitor.stop()
                visitor = None
            victim.wait_ready()
            if settle:
                eventually(lambda: len(results.counts) >= alerts * (number + 1) // kills, ANSWER_SECONDS)  # noqa: B023
        if visitor is not None:
            visitor.stop()
        feed.close()
        end = time.monotonic() + ANSWER_SECONDS
        while len(results.counts) < alerts and time.monotonic() < end:
            for slot in slots:
                slot.supervise()
            time.sleep(0.2)
        for slot in slots:
            slot.wait_ready()
        statuses = [slot.stop() for slot in slots]
        results.close()
    written_at = feed.written_at
    waits = {number: results.read_at[number] - at for number, at in written_at.items() if number in results.read_at}
    windows = zip(killed_at, [*killed_at[1:], float("inf")], strict=True)
    late = [
        max((wait for number, wait in waits.items() if since <= written_at[number] + wait < until), default=0.0)
        for since, until in windows
    ]
    twice = sorted(number for number, count in results.counts.items() if count > 1)
    commits = commits_of(one.hosts, one.group, one.source)
    return KillReport(
        exactly_once=one.exactly_once,
        replicas=one.replicas,
        busy=busy,
        real=real,
        static=static,
        kills=kills,
        alerts=alerts,
        results=results.counts.total(),
        twice=len(twice),
        extra=results.counts.total() - len(results.counts),
        lost=alerts - len(results.counts),
        restarts=sum(slot.restarts for slot in slots),
        longest_wait_s=round(max(waits.values(), default=0.0), 1),
        late_s=[round(wait, 1) for wait in late],
        offset_writes_per_1000=round(1000 * sum(map(len, commits.values())) / alerts, 1),
        seconds=round(time.monotonic() - started, 1),
        details=f"statuses at the end {statuses}, on the way {[s for slot in slots for s in slot.statuses]}"
        + (f"; answered twice: {twice[:5]} ...\n{one.account(twice[:5])}" if twice and one.exactly_once else ""),
    )


def main() -> int:
    """Run trials and print one JSON line for each; the status is 1 if an alert was lost, or answered twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--alerts", type=int, default=6000)
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--busy", action="store_true", help="keep all cores busy")
    parser.add_argument("--real", action="store_true", help="classify with the default model, not a stand-in")
    parser.add_argument("--settle", action="store_true", help="have everything answered before the next kill")
    parser.add_argument("--static", action="store_true", help="static members of the group")
    parser.add_argument("--at-least-once", action="store_true")
    parser.add_argument("--pause", type=float, default=3.0, help="mean seconds between a restart and the next kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the logs of the workers")
    arguments = parser.parse_args()
    failed = False
    for number in range(arguments.trials):
        with ExitStack() as stack:
            folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kills-")))
            folder = folder / f"trial-{number}"
            folder.mkdir(parents=True)
            cluster = stack.enter_context(brokers(folder, arguments.brokers))
            once = not arguments.at_least_once
            one = stack.enter_context(
                trial(
                    cluster.hosts(),
                    folder,
                    exactly_once=once,
                    partitions=PARTITIONS,
                    replicas=arguments.brokers,
                    transaction_ms=None,
                )
            )
            report = run_kills(
                one, arguments.kills, arguments.alerts, arguments.busy, arguments.seed + number, arguments.pause,
                arguments.real, arguments.static, arguments.settle,
            )  # fmt: skip
        sys.stdout.write(json.dumps(asdict(report)) + "\n")
        sys.stdout.flush()
        failed = failed or report.lost > 0 or (once and report.twice > 0)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
