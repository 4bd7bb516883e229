"""Worker with source and sink on a real Redis server, which is stopped and restarted."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from structlog.testing import capture_logs

# What follows imports the extra, hence stands after the question whether it is there.
# ruff: noqa: E402
redis = pytest.importorskip("redis", reason="redis is missing: pip install 'nightjar-alerts[cpu]'")

from nightjar_alerts.service.stream.addresses import parse_address
from nightjar_alerts.service.stream.redis_streams import (
    FIRST_ENTRIES,
    READ_FOR_DEAD_LETTER,
    REPLY_BYTES,
    FetchSize,
    RedisRange,
    RedisSource,
)
from support.edge import Network, wait_until
from support.graphs import poison
from support.redis import RedisServer, needs_redis, redis_server
from support.stream import alert, chosen, dead_letters, eventually, forget_in_classifying, running

pytestmark = [pytest.mark.slow, needs_redis]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


def client(server: RedisServer) -> Any:
    return redis.Redis(port=server.port, protocol=2)


def address(server: RedisServer, stream: str, **options: object) -> str:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"redis://127.0.0.1:{server.port}/{stream}?{query}"


def feed(server: RedisServer, *values: bytes) -> None:
    pipeline = client(server).pipeline()
    for value in values:
        pipeline.xadd("alerts", {"value": value})
    pipeline.execute()


def published(server: RedisServer) -> list[dict[str, Any]]:
    return [json.loads(fields[b"value"]) for _, fields in client(server).xrange("results")]


def settings(server: RedisServer, folder: Path, **changes: Any) -> Any:
    usual = {"source": address(server, "alerts", idle=0.3), "sink": address(server, "results")}
    return chosen(folder, **(usual | changes))


def test_worker_redis_streams_classifies_alerts(server: RedisServer, tmp_path: Path) -> None:
    feed(server, *map(alert, range(60)), b"junk")
    with running(settings(server, tmp_path, batch_messages=16)) as worker:
        wait_until(lambda: worker.totals().get("pending") == 0 and worker.totals()["in"] == 61)
        feed(server, alert(60))
        wait_until(lambda: worker.totals()["classified"] == 61)
        assert worker.stop() == 0
    assert len({one["key"] for one in published(server)}) == 61
    assert worker.totals() == {"in": 62, "classified": 61, "dead:unknown_envelope": 1, "pending": 0}
    assert client(server).xpending("alerts", "nightjar")["pending"] == 0
    assert [one["value"] for one in dead_letters(tmp_path)] == [b"junk"]


def test_redis_sources_with_one_name_read_different_entries_and_keep_them_when_one_stops(server: RedisServer) -> None:
    feed(server, b"1", b"2")
    one, other = (RedisSource(parse_address(address(server, "alerts", consumer="same"))) for _ in range(2))
    assert [source.poll(1, 0.1)[0].value for source in (one, other)] == [b"1", b"2"]
    one.close()
    (entry,) = client(server).xpending_range("alerts", "nightjar", "-", "+", 9, "same")
    assert entry["times_delivered"] == 1
    other.close()


def test_redis_entries_of_a_dead_worker_are_claimed(server: RedisServer, tmp_path: Path) -> None:
    feed(server, *map(alert, range(5)))
    client(server).xgroup_create("alerts", "nightjar", "0")
    client(server).xreadgroup("nightjar", "the dead one", {"alerts": ">"}, 3)
    with running(settings(server, tmp_path)) as worker:
        wait_until(lambda: worker.totals().get("classified") == 5)
        assert worker.stop() == 0
    assert client(server).xpending("alerts", "nightjar")["pending"] == 0


def test_redis_entry_that_kills_workers_becomes_a_dead_letter(server: RedisServer, tmp_path: Path) -> None:
    feed(server, alert(1), alert(2))
    connection = client(server)
    connection.xgroup_create("alerts", "nightjar", "0")
    ((_, ((first, _), *_)),) = connection.xreadgroup("nightjar", "victim 1", {"alerts": ">"}, 1)
    for number in range(3):
        connection.xclaim("alerts", "nightjar", f"victim {number}", 0, [first])
    with running(settings(server, tmp_path, max_deliveries=3)) as worker:
        wait_until(lambda: worker.totals().get("pending") == 0 and worker.totals()["in"] == 2)
        assert worker.stop() == 0
    (dead,) = dead_letters(tmp_path)
    assert (dead["headers"]["nightjar-dead-reason"], dead["value"]) == ("too_many_deliveries", alert(1))
    assert int(dead["headers"]["nightjar-dead-deliveries"]) > 3


def deliver(server: RedisServer, entry: bytes, times: int) -> None:
    """Set the number of deliveries of an entry to workers that died."""
    client(server).xclaim("alerts", "nightjar", "victim", 0, [entry], retrycount=times, justid=True)


def sent(server: RedisServer) -> int:
    """Return the bytes that the server has sent to all clients."""
    return int(client(server).info("stats")["total_net_output_bytes"])


def test_redis_entry_that_kills_fetching_workers_becomes_a_dead_letter_unread(
    server: RedisServer, tmp_path: Path
) -> None:
    connection = client(server)
    connection.xgroup_create("alerts", "nightjar", "0", mkstream=True)
    feed(server, bytes(8 << 20))
    ((_, ((first, _),)),) = connection.xreadgroup("nightjar", "victim", {"alerts": ">"}, 1)
    deliver(server, first, 3 + READ_FOR_DEAD_LETTER)
    feed(server, alert(1))
    before = sent(server)
    source = address(server, "alerts", idle=0.3, delete="yes")
    with running(settings(server, tmp_path, source=source, max_deliveries=3)) as worker:
        wait_until(lambda: worker.totals().get("pending") == 0 and worker.totals()["in"] == 2)
        assert worker.stop() == 0
    assert sent(server) - before < 8 << 20  # the body never came
    (dead,) = dead_letters(tmp_path)
    headers = dead["headers"]
    assert (headers["nightjar-dead-reason"], dead["value"]) == ("too_many_deliveries", b"")
    assert headers["nightjar-dead-place"] == first.decode()
    assert "5 times and never read" in headers["nightjar-dead-detail"]
    assert connection.xpending("alerts", "nightjar")["pending"] == 0
    assert [entry for entry, _ in connection.xrange("alerts")] == [first]  # what nobody has read is not deleted


def test_redis_entry_just_above_max_deliveries_is_read_for_its_dead_letter(server: RedisServer) -> None:
    connection = client(server)
    feed(server, b"body")
    connection.xgroup_create("alerts", "nightjar", "0")
    ((_, ((first, _),)),) = connection.xreadgroup("nightjar", "victim", {"alerts": ">"}, 1)
    fetched = []
    for times in (3, 3 + READ_FOR_DEAD_LETTER - 1, 3 + READ_FOR_DEAD_LETTER):
        deliver(server, first, times)
        sleep(0.05)
        source = RedisSource(parse_address(address(server, "alerts", idle=0.01)), 3)
        fetched += [(one.value, one.unread, one.deliveries > 3) for one in source.poll(10, 0.1)]
        source.close()
    assert fetched == [(b"body", False, True), (b"body", False, True), (b"", True, True)]


@pytest.mark.parametrize("times", [1, 3, 3 + READ_FOR_DEAD_LETTER])
def test_redis_clean_close_does_not_count_the_delivery(times: int, server: RedisServer) -> None:
    connection = client(server)
    feed(server, b"body")
    connection.xgroup_create("alerts", "nightjar", "0")
    ((_, ((first, _),)),) = connection.xreadgroup("nightjar", "victim", {"alerts": ">"}, 1)
    deliver(server, first, times)
    sleep(0.05)
    source = RedisSource(parse_address(address(server, "alerts", idle=0.01)), 3)
    assert len(source.poll(10, 0.1)) == 1
    source.close()
    (pending,) = connection.xpending_range("alerts", "nightjar", "-", "+", 10)
    assert (pending["times_delivered"], pending["consumer"]) == (times, b"returned")


def counts(source: RedisSource | RedisRange, total: int) -> list[int]:
    """Return the sizes of the replies that deliver a number of entries."""
    sizes: list[int] = []
    while sum(sizes) < total:
        sizes.append(len(source.poll(256, 0.1)))
    source.close()
    return sizes


@pytest.mark.parametrize("end", [RedisSource, RedisRange])
def test_redis_small_entries_increase_the_fetch_size(end: Any, server: RedisServer) -> None:
    feed(server, *[b"small"] * 600)
    assert counts(end(parse_address(address(server, "alerts"))), 600) == [4, 8, 16, 32, 64, 128, 256, 92]


@pytest.mark.parametrize("end", [RedisSource, RedisRange])
def test_redis_large_entries_reduce_the_fetch_size(end: Any, server: RedisServer) -> None:
    for _ in range(9):
        feed(server, bytes(REPLY_BYTES // 3))
    assert counts(end(parse_address(address(server, "alerts"))), 9) == [4, 2, 2, 1]


def test_redis_lost_reply_resets_the_fetch_size() -> None:
    fetch_size, full = FetchSize(), [(b"1-0", {b"value": b"small"})] * 64
    fetch_size.update(64, full)
    assert fetch_size.at_most(256) == 128
    fetch_size.reset()
    assert fetch_size.at_most(256) == FIRST_ENTRIES
    huge = [(b"1-0", {b"junk": bytes(REPLY_BYTES)})]  # what is no field of ours is read all the same
    fetch_size.update(1, huge)
    assert fetch_size.at_most(256) == 1


def test_alert_lost_repeatedly_becomes_a_dead_letter(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lost alert stops the worker, since it is a bug; restarted workers must not fail forever."""
    forget_in_classifying(monkeypatch, "10003")
    feed(server, *map(alert, range(5)))
    stops = 0
    while not dead_letters(tmp_path):
        with running(settings(server, tmp_path, max_deliveries=3)) as worker:
            eventually(lambda: worker.status is not None or bool(dead_letters(tmp_path)))
            stops += worker.status == 1
    (dead,) = dead_letters(tmp_path)
    assert (dead["headers"]["nightjar-dead-reason"], dead["value"]) == ("too_many_deliveries", alert(3))
    assert stops == 3
    assert {one["alert_id"] for one in published(server)} == {"10000", "10001", "10002", "10004"}


def test_redis_delete_and_maxlen_delete_entries_and_trim_results(server: RedisServer, tmp_path: Path) -> None:
    feed(server, *map(alert, range(300)))
    ends = {"source": address(server, "alerts", delete="yes"), "sink": address(server, "results", maxlen=50)}
    with running(settings(server, tmp_path, **ends)) as worker:
        wait_until(lambda: worker.totals().get("classified") == 300)
        assert worker.stop() == 0
    assert client(server).xlen("alerts") == 0
    assert 50 <= client(server).xlen("results") < 200


def test_redis_entry_without_value_is_a_tombstone(server: RedisServer, tmp_path: Path) -> None:
    client(server).xadd("alerts", {"key": b"170028485706776685", "h:origin": b"compaction"})
    client(server).xadd("alerts", {"value": alert(1)})
    with running(settings(server, tmp_path)) as worker:
        wait_until(lambda: worker.totals().get("classified") == 1)
        assert worker.stop() == 0
    assert worker.totals() == {"in": 2, "classified": 1, "tombstone": 1, "pending": 0}
    assert client(server).xpending("alerts", "nightjar")["pending"] == 0


def test_redis_entry_with_another_value_field_is_not_deleted(server: RedisServer, tmp_path: Path) -> None:
    client(server).xadd("alerts", {"packet": alert(1)})
    with running(settings(server, tmp_path, source=address(server, "alerts", delete="yes"))) as worker:
        wait_until(lambda: worker.totals().get("dead:empty") == 1)
        assert worker.stop() == 0
    assert client(server).xlen("alerts") == 1


def test_redis_dead_letters_are_replayed_and_deleted(server: RedisServer, tmp_path: Path) -> None:
    network = Network()
    network.on_marker = {3.0: poison}
    feed(server, *map(alert, range(5)))
    dead = {"dead_letters": address(server, "dead")}
    with running(settings(server, tmp_path, **dead), network) as worker:
        wait_until(lambda: worker.totals().get("pending") == 0 and worker.totals()["in"] == 5)
        assert worker.stop() == 0
    assert client(server).xlen("dead") == 1
    with running(settings(server, tmp_path, source=address(server, "dead"), **dead), replay=True) as worker:
        assert worker.join() == 0
    assert client(server).xlen("dead") == 0
    assert {one["key"] for one in published(server)} == {f"alerts/{10_000 + n}/echo-0.0.1" for n in range(5)}


@pytest.mark.parametrize(
    ("options", "read", "unmatched"),
    [
        ({"since": "2026-11-22"}, 2, []),
        ({"until": "2026-11-22"}, 3, []),
        ({"since": "2026-11-20", "until": "2026-11-22T00:00:01"}, 4, []),
        ({"since": "2026-11-25"}, 0, ["no entry of days is in the range"]),
    ],
)
def test_redis_replay_by_time_reads_the_range(
    options: dict[str, str], read: int, unmatched: list[str], server: RedisServer, tmp_path: Path
) -> None:
    for number, day in enumerate([20, 20, 21, 22, 22]):
        second = 1 if number == 4 else 0
        time_ms = int(datetime(2026, 11, day, 0, 0, second, tzinfo=UTC).timestamp() * 1000)
        client(server).xadd("days", {"value": alert(number)}, id=f"{time_ms}-{number}")
    source = address(server, "days", **options)
    with capture_logs() as logs, running(settings(server, tmp_path, source=source), replay=True) as worker:
        assert worker.join() == (1 if unmatched else 0)
    assert worker.totals().get("classified", 0) == read
    (account,) = [line for line in logs if line["event"] == "final account"]
    assert list(account.get("unmatched", ())) == unmatched


def test_redis_replay_of_a_missing_stream_names_it(server: RedisServer, tmp_path: Path) -> None:
    source = address(server, "nope")
    with capture_logs() as logs, running(settings(server, tmp_path, source=source), replay=True) as worker:
        assert worker.join() == 1
    (account,) = [line for line in logs if line["event"] == "final account"]
    assert account["unmatched"] == ["no stream nope, or it is empty"]


def test_redis_outage_loses_no_alert(server: RedisServer, tmp_path: Path) -> None:
    network = Network()
    feed(server, *map(alert, range(10)))
    sink = f"file:{tmp_path}/results.jsonl"
    with running(settings(server, tmp_path, sink=sink), network) as worker:
        wait_until(lambda: worker.totals().get("classified") == 10)
        server.kill()
        eventually(lambda: "source" in worker.ask("/readyz")[1])
        assert worker.ask("/healthz")[0] == 200
        server.start()  # and it has forgotten the stream and its group
        feed(server, *map(alert, range(10, 20)))
        eventually(lambda: worker.totals().get("classified") == 20)
        eventually(lambda: worker.ask("/readyz")[0] == 200)
        assert worker.stop() == 0
    assert worker.metric("nightjar_stream_retries_total", step="source") > 0


def test_redis_sink_outage_stops_polling_the_source(server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    feed(server, *map(alert, range(100)))
    with redis_server(tmp_path / "other") as other:
        other.kill()
        limits = {"batch_messages": 10, "max_inflight_messages": 30}
        with running(settings(server, tmp_path, sink=address(other, "results"), **limits)) as worker:
            eventually(lambda: "sink" in worker.ask("/readyz")[1])
            eventually(lambda: worker.totals()["in"] == 30)
            assert worker.totals()["pending"] == 30
            other.start()
            eventually(lambda: worker.totals().get("classified") == 100)
            assert worker.stop() == 0
        assert {one["alert_id"] for one in published(other)} == {str(10_000 + number) for number in range(100)}


def test_redis_source_status_has_the_lag(server: RedisServer) -> None:
    feed(server, *map(alert, range(7)))
    source = RedisSource(parse_address(address(server, "alerts")))
    assert len(source.poll(3, 0.1)) == 3
    assert source.status().lag == {("alerts", ""): 4}
    source.close()
