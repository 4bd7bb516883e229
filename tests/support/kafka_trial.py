"""One trial on a real Kafka: topics, workers, what is fed and what comes out, and the questions it ends with.

Those questions (:func:`ends_well`) are the same after every fault, for Kafka and Redis alike.
"""

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from nightjar_alerts.service.settings import StreamSettings
from support.kafka_brokers import Reader, Writer, commits_of
from support.stream import Process, Running, alert, chosen, eventually

SESSION_MS, TRANSACTION_MS = 3000, 5000
STEADY = {"session.timeout.ms": "30000"}
"""Options of a source for tests in which nobody dies: a busy machine then misses no session."""
PROMISED_SECONDS = 60.0 if "NIGHTJAR_SOAK" in os.environ else 180.0
"""How soon everything is to be answered: within a minute on a machine that does nothing else."""
START_SECONDS = 180.0
"""How soon a worker that starts is to be at work on a busy machine: nothing is promised of that."""
GAINED_MEGABYTES = 60
"""How much more memory a worker may hold once a fault is over: what clients keep for connections and messages."""
BUSY = (KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.REQUEST_TIMED_OUT, KafkaError._TIMED_OUT)
"""What a cluster says while its controller has not heard of its brokers for some seconds."""
_NUMBERS = itertools.count()


class Trial:
    """Topics of its own in a cluster, a group, and the account of what was fed.

    Parameters
    ----------
    hosts : where the test itself reads and writes.
    exactly_once : whether the workers publish in transactions.
    replicas : of each topic.
    through : where the workers find the cluster, if not by ``hosts``.
    flux : of all alerts, nJy; the default model refuses faint ones before it asks the network.
    transaction_ms : timeout of transactions; None for the default, which is longer than an outage of a minute.
    """

    def __init__(
        self,
        hosts: str,
        folder: Path,
        exactly_once: bool = False,
        partitions: int = 4,
        replicas: int = 1,
        through: str = "",
        flux: float | None = None,
        transaction_ms: int | None = TRANSACTION_MS,
    ) -> None:
        self._flux, self._transaction_ms = flux, transaction_ms
        self.hosts, self.folder, self.exactly_once = hosts, folder, exactly_once
        self._through = through or hosts
        tag = f"{os.getpid()}-{next(_NUMBERS)}"
        self.group, self.source, self.sink, self.dead = (
            f"{name}-{tag}" for name in ("group", "alerts", "results", "dead")
        )
        self._admin = AdminClient({"bootstrap.servers": hosts, "log_level": 0})
        self.replicas = replicas
        self.create(self.source, partitions)
        self.create(self.sink, 2)
        self.create(self.dead, 1)
        self.fed = 0
        self._reader = Reader(hosts, self.sink)
        self._writer: Writer | None = None
        self._processes = 0

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Create a topic; as often as it takes a broker that is busy."""
        new, tried = NewTopic(topic, partitions, self.replicas, config=config), False
        end = time.monotonic() + PROMISED_SECONDS
        while True:
            try:
                for future in self._admin.create_topics([new]).values():
                    future.result(PROMISED_SECONDS)
                return
            except KafkaException as error:
                code = error.args[0].code()
                if tried and code == KafkaError.TOPIC_ALREADY_EXISTS:
                    return
                if code not in BUSY or time.monotonic() > end:
                    raise
            tried = True
            time.sleep(0.5)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        for future in self._admin.delete_topics([topic]).values():
            future.result(30)
        self._writer = None  # it would go on writing to what it knows of the topic

    def addresses(self, **options: str) -> dict[str, str]:
        """Source, sink and dead letters, with options of the source."""
        usual = {"group": self.group, "session.timeout.ms": str(SESSION_MS), "heartbeat.interval.ms": "500"}
        usual |= {"topic.metadata.refresh.interval.ms": "1000"}
        query = "&".join(f"{name}={value}" for name, value in (usual | options).items())
        short = self._transaction_ms  # for what a killed worker has left open
        timeouts = f"&transaction.timeout.ms={short}&message.timeout.ms={short - 1000}" if short else ""
        once = f"?exactly_once=yes{timeouts}" if self.exactly_once else ""
        return {
            "source": f"kafka://{self._through}/{self.source}?{query}",
            "sink": f"kafka://{self._through}/{self.sink}{once}",
            "dead_letters": f"kafka://{self._through}/{self.dead}",
        }

    def settings(self, options: dict[str, str] | None = None, **changes: Any) -> StreamSettings:
        """Settings of a worker in this process."""
        return chosen(self.folder, **(self.addresses(**(options or {})) | changes))

    @contextmanager
    def process(
        self,
        options: Mapping[str, str] | None = None,
        real: bool = False,
        supervise: bool = False,
        **changes: object,
    ) -> Iterator[Process]:
        """A worker process, of the default model where it is to be real; killed at the end if it still runs."""
        self._processes += 1
        settings = self.addresses(**(options or {})) | changes
        process = Process(settings, self.folder / f"{self._processes}.log", real, supervise)
        try:
            yield process
        finally:
            if process.status is None:
                process.resume()
                process.kill()

    def feed(self, count: int, over: float = 0.0, parts: int = 20) -> None:
        """Write the next alerts, evenly over some seconds."""
        for _ in range(parts if over else 1):
            share = count // parts if over else count
            alerts = [alert(number, self._flux) for number in range(self.fed, self.fed + share)]
            self._write(alerts)
            self.fed += share
            time.sleep(over / parts)

    def feed_one(self, partition: int) -> None:
        """Write the next alert to a partition."""
        self._write([alert(self.fed, self._flux)], partition)
        self.fed += 1

    def _write(self, alerts: Sequence[bytes], partition: int | None = None) -> None:
        self._writer = self._writer or Writer(self.hosts)
        self._writer.write(self.source, alerts, partition)

    def answers(self) -> Counter[int]:
        """Count how often each alert was answered, among what is committed."""
        return Counter(self._reader.ids())

    def account(self, numbers: Collection[int]) -> str:
        """Tell where some alerts and all their answers lie, and what the group committed of the alerts' partitions.

        So it shows whether an alert was written twice, an answer read twice, or the group set back.
        """
        source = Reader(self.hosts, self.source)
        try:
            source.read(1.0)
        finally:
            source.close()
        lines, partitions = [], set()
        alerts = {alert(number, self._flux): number for number in numbers}
        for message in source.messages:
            if (number := alerts.get(message.value())) is not None:
                partitions.add(message.partition())
                lines.append(f"alert {number} at {_place(message)}")
        for number, message in zip(self._reader.ids(), self._reader.messages, strict=False):
            lines += [f"answer {number} at {_place(message)}"] if number in numbers else []
        commits = commits_of(self.hosts, self.group, self.source)
        lines += [f"commits of partition {one}: {', '.join(commits.get(one, []))}" for one in sorted(partitions)]
        return "\n".join(lines)

    def outcomes(self) -> Counter[str]:
        """Count the answers of each status and reason."""
        answers = (json.loads(message.value()) for message in self._reader.messages)
        return Counter(f"{one['status']} {one.get('reason') or ''}".strip() for one in answers)

    def dead_letters(self) -> list[Any]:
        """All dead letters."""
        reader = Reader(self.hosts, self.dead)
        try:
            return list(reader.read())
        finally:
            reader.close()

    def all_answered(self, within: float = PROMISED_SECONDS, but: Collection[int] = ()) -> Counter[int]:
        """Wait until every alert is answered: see the function of this name."""
        return all_answered(self, within, but)

    def close(self) -> None:
        """Let go of the cluster."""
        self._reader.close()


def _place(message: Any) -> str:
    """Partition, offset and time of a message in Kafka."""
    return f"{message.partition()}:{message.offset()}, {message.timestamp()[1]} ms"


@contextmanager
def trial(hosts: str, folder: Path, **options: Any) -> Iterator[Trial]:
    """A trial."""
    one = Trial(hosts, folder, **options)
    try:
        yield one
    finally:
        one.close()


class Answering(Protocol):
    """Alerts on one side, answers on the other, and a broker between.

    Attributes
    ----------
    exactly_once : whether no alert may be answered twice.
    fed : the number of alerts so far.
    """

    @property
    def exactly_once(self) -> bool: ...
    @property
    def fed(self) -> int: ...
    def feed(self, count: int) -> None: ...
    def answers(self) -> Counter[int]: ...
    def account(self, numbers: Collection[int]) -> str: ...


def all_answered(way: Answering, within: float = PROMISED_SECONDS, but: Collection[int] = ()) -> Counter[int]:
    """Wait until every alert is answered, ask whether any was answered twice that must not be; the counts.

    Parameters
    ----------
    but : numbers of alerts that nobody can answer.
    """
    expected = set(range(way.fed))
    try:
        eventually(lambda: set(way.answers()) >= expected - set(but), within, 0.2)
    except AssertionError:
        missing = sorted(expected - set(way.answers()))
        raise AssertionError(f"{len(missing)} of {way.fed} are not answered: {missing[:10]}") from None
    counts = way.answers()
    assert set(counts) <= expected
    if way.exactly_once:
        twice = sorted(number for number, count in counts.items() if count > 1)
        assert not twice, way.account(twice)
    return counts


def begins_well(way: Answering, worker: Process | Running, count: int = 40) -> None:
    """Have the first alerts answered, and note the memory that this takes."""
    way.feed(count)
    all_answered(way, START_SECONDS)
    worker.noted_megabytes = worker.megabytes


def ends_well(way: Answering, *workers: Process | Running, but: Collection[int] = ()) -> Counter[int]:
    """Ask the four questions that every trial ends with, then end its workers; how often each alert was answered.

    Is everything answered within a minute, and what comes after it? Was nothing answered twice that must not be? Does
    no worker hold much more memory than before the fault, or, where nobody noted that, than when it was ready? Does
    each say that it is ready, now that nothing is wrong?
    """
    for worker in workers:
        eventually(lambda: worker.ready, START_SECONDS)  # noqa: B023 - asked within this turn
        worker.noted_megabytes = worker.noted_megabytes or worker.megabytes
    all_answered(way, but=but)
    way.feed(20)
    counts = all_answered(way, but=but)
    for worker in workers:
        eventually(lambda: worker.ask("/readyz") == (200, "ok\n"), PROMISED_SECONDS, 0.5)  # noqa: B023
        assert worker.ask("/healthz") == (200, "ok\n")
        assert worker.megabytes < worker.noted_megabytes + GAINED_MEGABYTES
    assert [worker.stop() for worker in workers] == [0] * len(workers)
    return counts


def repeats(counts: Counter[int]) -> int:
    """Answers beyond the first."""
    return counts.total() - len(counts)
