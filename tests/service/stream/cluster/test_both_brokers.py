"""The same faults for Redis and Kafka."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

# What follows imports the extra, hence stands after the question whether it is there.
# ruff: noqa: E402
redis = pytest.importorskip("redis", reason="redis is missing: pip install 'nightjar-alerts[cpu]'")

from support.kafka_brokers import Brokers
from support.kafka_trial import Answering, Trial, all_answered, begins_well, ends_well, trial
from support.redis import RedisServer, needs_redis, redis_server
from support.stream import Process, alert, eventually


class Way(Answering, Protocol):
    """A Redis or Kafka broker that can be broken, with a source of alerts and a sink of results."""

    def process(self) -> AbstractContextManager[Process]: ...
    def kill(self) -> None: ...
    def start(self) -> None: ...
    def hang(self) -> None: ...
    def wake(self) -> None: ...
    def remake(self) -> None: ...


class RedisWay:
    """Two streams of a server that persists acknowledged writes, as Kafka does."""

    exactly_once = False

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.kill, self.start, self.hang, self.wake = server.kill, server.start, server.hang, server.wake
        self._client: Any = redis.Redis(port=server.port, protocol=2)
        self._folder, self._processes = folder, 0
        self._ends = f"redis://127.0.0.1:{server.port}"
        self._fed = 0

    @property
    def fed(self) -> int:
        return self._fed

    @contextmanager
    def process(self) -> Iterator[Process]:
        self._processes += 1
        ends = {"source": f"{self._ends}/alerts?idle=1", "sink": f"{self._ends}/results"}
        worker = Process(ends | {"dead_letters": f"{self._ends}/dead"}, self._folder / f"{self._processes}.log")
        try:
            yield worker
        finally:
            if worker.status is None:
                worker.kill()

    def feed(self, count: int) -> None:
        pipeline = self._client.pipeline()
        for number in range(self._fed, self._fed + count):
            pipeline.xadd("alerts", {"value": alert(number)})
        pipeline.execute()
        self._fed += count

    def answers(self) -> Counter[int]:
        answers = (json.loads(fields[b"value"]) for _, fields in self._read())
        return Counter(int(answer["alert_id"]) - 10_000 for answer in answers)

    def account(self, numbers: Collection[int]) -> str:
        """Return the positions of the results of some alerts."""
        answers = ((place, int(json.loads(fields[b"value"])["alert_id"]) - 10_000) for place, fields in self._read())
        return "\n".join(f"answer {number} at {place.decode()}" for place, number in answers if number in numbers)

    def _read(self) -> list[tuple[bytes, dict[bytes, bytes]]]:
        return list(self._client.xrange("results"))

    def remake(self) -> None:
        """Delete the stream and its group; the next alert creates it again."""
        self._client.delete("alerts")


class KafkaWay:
    """Two topics of a cluster with one broker."""

    exactly_once = False

    def __init__(self, cluster: Brokers, one: Trial) -> None:
        self._cluster, self._one = cluster, one
        self.process, self.answers, self.account = one.process, one.answers, one.account

    @property
    def fed(self) -> int:
        return self._one.fed

    def feed(self, count: int) -> None:
        self._one.feed(count)

    def kill(self) -> None:
        self._cluster.kill(1)

    def start(self) -> None:
        self._cluster.start(1)

    def hang(self) -> None:
        self._cluster.hang(1)

    def wake(self) -> None:
        self._cluster.wake(1)

    def remake(self) -> None:
        self._one.delete(self._one.source)
        self._one.create(self._one.source, 4)


@pytest.fixture(params=[pytest.param("redis", marks=needs_redis), "kafka"])
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Way]:
    if request.param == "redis":
        with redis_server(tmp_path, keeps=True) as server:
            yield RedisWay(server, tmp_path)
    else:
        cluster: Brokers = request.getfixturevalue("single")
        with trial(cluster.hosts(), tmp_path) as one:
            yield KafkaWay(cluster, one)


def reports_trouble(worker: Process) -> None:
    """Wait until the worker is not ready; it must stay healthy, as the error is external."""
    eventually(lambda: worker.ask("/readyz")[0] == 503, 60)
    assert worker.ask("/healthz")[0] == 200


def started(worker: Process) -> None:
    """Wait until the worker can be asked; where two run, the other one may answer all alerts before."""
    eventually(lambda: any(event["event"] == "probes" for event in worker.events()))


def answered_before(way: Way, worker: Process) -> None:
    begins_well(way, worker, 60)
    started(worker)
    eventually(lambda: worker.metric("nightjar_stream_inflight_messages") == 0)


def absent_at_the_start(way: Way) -> None:
    way.feed(40)
    way.kill()
    with way.process() as worker:
        started(worker)
        reports_trouble(worker)
        way.start()
        ends_well(way, worker)


def away(leaves: Callable[[Way], None], returns: Callable[[Way], None]) -> Callable[[Way], None]:
    """Stop the broker while the worker has work, wait until the worker reports it, and restart the broker."""

    def fault(way: Way) -> None:
        with way.process() as worker:
            answered_before(way, worker)
            way.feed(60)
            leaves(way)
            try:
                reports_trouble(worker)
            finally:
                returns(way)
            ends_well(way, worker)

    return fault


def made_again(way: Way) -> None:
    with way.process() as worker:
        answered_before(way, worker)
        way.remake()
        way.feed(60)
        ends_well(way, worker)


def worker_killed(way: Way) -> None:
    with way.process() as victim:
        answered_before(way, victim)
        way.feed(200)
        victim.kill()
    with way.process() as heir:
        ends_well(way, heir)


def worker_suspended(way: Way) -> None:
    """Suspend a worker for longer than its session or the idle time of entries, while another one runs."""
    with way.process() as sleeper, way.process() as other:
        answered_before(way, other)
        sleeper.suspend()
        way.feed(200)
        all_answered(way)
        sleeper.resume()
        ends_well(way, other, sleeper)


FAULTS: dict[str, Callable[[Way], None]] = {
    "absent at the start": absent_at_the_start,
    "killed": away(lambda way: way.kill(), lambda way: way.start()),
    "silent": away(lambda way: way.hang(), lambda way: way.wake()),
    "made again": made_again,
    "a worker is killed": worker_killed,
    "a worker is suspended": worker_suspended,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_redis_and_kafka_tolerate_the_same_faults(way: Way, fault: str) -> None:
    FAULTS[fault](way)
