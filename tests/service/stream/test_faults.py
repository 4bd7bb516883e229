"""Faults of a night: killed workers, poison of every kind, outages, a full disk, duplicates.

    SOAK_KILLS=100 python -m pytest -s tests/service/stream/test_faults.py      a hundred kills instead of one

Each test ends with the same question: is every alert answered or accounted for, and do equal keys say the same?
"""

import errno
import json
import os
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

# What follows imports the extra, hence stands after the question whether it is there.
# ruff: noqa: E402
redis = pytest.importorskip("redis", reason="redis is missing: pip install 'nightjar-alerts[cpu]'")
pytest.importorskip("confluent_kafka", reason="confluent_kafka is missing: pip install 'nightjar-alerts[stream]'")

from support import alerts
from support.kafka_cluster import KafkaCluster, kafka_cluster
from support.redis import RedisServer, needs_redis, redis_server
from support.stream import FAST_GROUP, Process, alert, chosen, dead_letters, eventually, results, running

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("SOAK_KILLS", "1"))
PER_KILL = 200


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with kafka_cluster() as cluster:
        cluster.create("alerts", 4)
        cluster.create("results", 1)
        yield cluster


def check_equal_keys_say_the_same(records: list[tuple[bytes, bytes]]) -> None:
    by_key: dict[bytes, set[bytes]] = {}
    for key, value in records:
        by_key.setdefault(key, set()).add(value)
    assert {key: values for key, values in by_key.items() if len(values) > 1} == {}


def ids(records: list[tuple[bytes, bytes]]) -> set[int]:
    return {int(json.loads(value)["alert_id"]) - 10_000 for _, value in records}


def torment(
    folder: Path,
    settings: dict[str, Any],
    feed: Callable[[range], None],
    published: Callable[[], int],
    read: Callable[[], list[tuple[bytes, bytes]]],
) -> None:
    """Repeatedly kill one of two workers during its work; then let the survivors finish."""
    draw = random.Random(7)
    workers = [Process(settings, folder / f"{number}.log") for number in range(2)]
    try:
        for kill in range(KILLS):
            before = published()
            feed(range(kill * PER_KILL, (kill + 1) * PER_KILL))
            moment = before + draw.randint(1, PER_KILL // 2)
            eventually(lambda: published() >= moment, 60, 0.003)  # noqa: B023 - asked within this turn
            workers[kill % 2].kill()
            read()
            workers[kill % 2] = Process(settings, folder / f"{kill + 2}.log")
        count = KILLS * PER_KILL
        eventually(lambda: len(ids(read())) == count, 120)
        eventually(lambda: all(worker.ready for worker in workers), 60)
        statuses = [worker.stop() for worker in workers]
        records = read()
        check_equal_keys_say_the_same(records)
        assert ids(records) == set(range(count))
        for worker, status in zip(workers, statuses, strict=True):
            final = worker.events()[-1]
            assert (status, final["event"]) == (0, "final account"), worker.events()
            assert all(topic["pending"] == 0 for topic in final["topics"].values())
    finally:
        for worker in workers:
            worker.kill()
    sys.stdout.write(f"{KILLS} kills, {count} alerts, {len(records) - count} published twice, 0 lost\n")


@needs_redis
def test_redis_killed_workers_lose_no_alert(server: RedisServer, tmp_path: Path) -> None:
    client = redis.Redis(port=server.port, protocol=2)
    settings = {
        "source": f"redis://127.0.0.1:{server.port}/alerts?idle=0.5",
        "sink": f"redis://127.0.0.1:{server.port}/results",
        "dead_letters": f"file:{tmp_path}/letters/",
        "batch_messages": 4,
        "max_deliveries": 1000,
    }

    def feed(numbers: range) -> None:
        pipeline = client.pipeline()
        for number in numbers:
            pipeline.xadd("alerts", {"value": alert(number)})
        pipeline.execute()

    def read() -> list[tuple[bytes, bytes]]:
        return [(fields[b"key"], fields[b"value"]) for _, fields in client.xrange("results")]

    torment(tmp_path, settings, feed, lambda: client.xlen("results"), read)
    assert client.xpending("alerts", "nightjar")["pending"] == 0


def test_kafka_killed_workers_lose_no_alert(cluster: KafkaCluster, tmp_path: Path) -> None:
    settings = {
        "source": f"kafka://{cluster.hosts}/alerts?{FAST_GROUP}",
        "sink": f"kafka://{cluster.hosts}/results",
        "dead_letters": f"file:{tmp_path}/letters/",
        "batch_messages": 4,
    }

    def feed(numbers: range) -> None:
        cluster.produce("alerts", [alert(number) for number in numbers])

    with cluster.following("results") as so_far:

        def read() -> list[tuple[bytes, bytes]]:
            return [(message.key(), message.value()) for message in so_far()]

        torment(tmp_path, settings, feed, lambda: cluster.length("results"), read)


def nan_everywhere() -> bytes:
    record = alerts.lsst_alert("lsst/10.0")
    for rows in ([record["diaSource"]], record["prvDiaSources"], record["prvDiaForcedSources"]):
        for row in rows:
            row |= {"psfFlux": float("nan"), "psfFluxErr": float("nan"), "midpointMjdTai": float("nan")}
    return alerts.confluent(1000, record)


def bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(bytes(200 << 20)) + packer.flush()
    return alerts.header(alerts.schema("ztf/4.02"), "deflate") + alerts.block(1, packed)


POISON: dict[str, tuple[bytes, str]] = {
    "truncated": (alert(1)[:-9], "dead:truncated_avro"),
    "trailing bytes": (alert(1) + b"\0", "dead:malformed_avro"),
    "wrong schema": (b"\0" + (1101).to_bytes(4, "big") + alert(1)[5:], "dead:malformed_avro"),
    "unknown schema": (b"\0" + (9999).to_bytes(4, "big") + alert(1)[5:], "dead:unknown_schema"),
    "huge": (b"\0" + (1000).to_bytes(4, "big") + bytes(3 << 20), "dead:record_too_large"),
    "a zip bomb": (bomb(), "dead:decompressed_too_large"),
    "NaN everywhere": (nan_everywhere(), "abstained:no_usable_points"),
    "empty": (b"", "dead:empty"),
    "text": (b"hello, world", "dead:unknown_envelope"),
    "broken JSON": (b'{"diaSource": ', "dead:malformed_json"),
    "a recursive schema": (
        alerts.header({"type": "record", "name": "n", "fields": [{"name": "n", "type": ["null", "n"]}]}),
        "dead:unsafe_schema",
    ),
}


def test_poison_messages_of_every_kind_affect_only_themselves(tmp_path: Path) -> None:
    place = tmp_path / "alerts"
    place.mkdir()
    for number, (data, _) in enumerate(POISON.values()):
        (place / f"{number:03d}a.avro").write_bytes(alert(number))
        (place / f"{number:03d}b.avro").write_bytes(data)
    with running(chosen(tmp_path, source=f"file:{place}")) as worker:
        assert worker.join() == 3
    totals = worker.totals()
    assert (totals["in"], totals["pending"], totals["classified"]) == (2 * len(POISON), 0, len(POISON))
    expected: dict[str, int] = {}
    for _, ending in POISON.values():
        expected[ending] = expected.get(ending, 0) + 1
    assert {name: totals[name] for name in expected} == expected
    dead_values = {one["value"] for one in dead_letters(tmp_path)}
    assert dead_values == {data for data, ending in POISON.values() if ending.startswith("dead")}


@needs_redis
def test_duplicate_messages_get_equal_results(server: RedisServer, tmp_path: Path) -> None:
    client = redis.Redis(port=server.port, protocol=2)
    for number in [1, 2, 1, 3, 1, 2]:
        client.xadd("alerts", {"value": alert(number)})
    source = f"redis://127.0.0.1:{server.port}/alerts"
    with running(chosen(tmp_path, source=source, batch_messages=2)) as worker:
        eventually(lambda: worker.totals().get("classified") == 6)
        assert worker.stop() == 0
    lines = (tmp_path / "results.jsonl").read_bytes().splitlines()
    records = [(json.loads(line)["key"].encode(), line) for line in lines]
    assert len({key for key, _ in records}) == 3
    check_equal_keys_say_the_same(records)


@needs_redis
def test_slow_sink_loses_no_alert(server: RedisServer, tmp_path: Path) -> None:
    client = redis.Redis(port=server.port, protocol=2)
    place = tmp_path / "alerts"
    place.mkdir()
    for number in range(30):
        (place / f"{number}.avro").write_bytes(alert(number))
    client.client_pause(1500)
    settings = chosen(tmp_path, source=f"file:{place}", sink=f"redis://127.0.0.1:{server.port}/results")
    with running(settings) as worker:
        assert worker.join() == 0
    assert (worker.totals()["classified"], client.xlen("results")) == (30, 30)


def test_full_disk_stops_the_worker_and_loses_no_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "alerts"
    place.mkdir()
    (place / "1.avro").write_bytes(b"junk")
    (place / "2.avro").write_bytes(alert(2))
    sync, full = os.fsync, [True]

    def no_room(file: int) -> None:
        if full[0] and "letters" in str(Path(f"/proc/self/fd/{file}").readlink()):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(file)

    monkeypatch.setattr(os, "fsync", no_room)
    with running(chosen(tmp_path, source=f"file:{place}")) as worker:
        eventually(lambda: "No space left" in worker.ask("/readyz")[1])
        assert worker.ask("/healthz")[0] == 200  # a new process would find the disk as full
        assert worker.totals()["pending"] == 1
        assert [path.name for path in (tmp_path / "letters").iterdir()] == []
        full[0] = False
        assert worker.join() == 3
    assert len(dead_letters(tmp_path)) == 1
    assert len(results(tmp_path)) == 1


class Registry(ThreadingHTTPServer):
    """Schema registry that may fail; every id is the newest LSST schema."""

    broken = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.thread = Thread(target=self.serve_forever, args=(0.01,))
        self.thread.start()


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        self.send_response(503 if self.server.broken else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"schema": json.dumps(alerts.schema("lsst/11.1"))}).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[Registry]:
    server = Registry()
    yield server
    server.shutdown()
    server.server_close()
    server.thread.join()


def framed_as(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + alerts.bare("lsst/11.1", alerts.lsst_alert("lsst/11.1"))


@pytest.mark.parametrize("policy", ["wait", "dead_letter"])
def test_schema_registry_outage_loses_no_alert(
    registry: Registry, tmp_path: Path, policy: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr("nightjar_alerts.alerts.schema_registry.RETRY_SECONDS", 0.2)
    place = tmp_path / "alerts"
    place.mkdir()
    (place / "1.avro").write_bytes(framed_as(77_001))
    (place / "2.avro").write_bytes(alert(2))  # Rubin's id 1000 is at hand
    url = f"http://127.0.0.1:{registry.server_port}"
    settings = chosen(tmp_path, source=f"file:{place}", registry=url, unknown_schema=policy)
    with running(settings) as worker:
        if policy == "wait":
            eventually(lambda: "schema registry" in worker.ask("/readyz")[1])
            assert worker.ask("/healthz")[0] == 200
            assert worker.totals()["pending"] == 2
            registry.broken = False
        assert worker.join() == (0 if policy == "wait" else 3)
    expected = {"classified": 2} if policy == "wait" else {"classified": 1, "dead:schema_unavailable": 1}
    assert worker.totals() == {"in": 2, "pending": 0, **expected}
    registry.broken = False
    if policy == "dead_letter":  # and a replay makes up for it
        again = chosen(tmp_path, source=f"file:{tmp_path}/letters/", registry=url)
        with running(again, replay=True) as worker:
            assert worker.join() == 0
        assert len(results(tmp_path)) == 2
        assert dead_letters(tmp_path) == []
