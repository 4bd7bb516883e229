"""Results in a real Redis, which is killed, hangs, and holds what others wrote: no request fails or waits for it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

pytest.importorskip("redis", reason="needs the [redis] extra")

from redis import Redis

from nightjar_alerts.service.engine.batch import Row
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.registry.cache import (
    FIRST_PAUSE,
    KEEP_SECONDS,
    PREFIX,
    RedisResults,
    RedisUnavailable,
    pack,
    unpack,
)
from support.edge import Live, Network, curve, live, loader
from support.redis import RedisServer, needs_redis, redis_server

KEY, OTHER = b"k" * 32, b"o" * 32
ROW: Row = {"probabilities": np.linspace(0, 1, 20, dtype=np.float32), "novelty": np.array(0.5, np.float32)}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as running:
        yield running


def same(first: Row | None, second: Row) -> bool:
    return first is not None and first.keys() == second.keys() and all((first[k] == second[k]).all() for k in first)


def test_a_value_is_read_as_it_was_written_and_under_its_key_only() -> None:
    value = pack(KEY, ROW)
    found = unpack(KEY, value)
    assert same(found, ROW)
    assert found is not None
    assert {name: array.shape for name, array in found.items()} == {"probabilities": (20,), "novelty": ()}
    assert unpack(OTHER, value) is None
    for wrong in (None, b"", value[:-1], value[:20], b"x" + value[1:], "text", value + b"\0"):
        assert unpack(KEY, wrong) is None


def test_a_secret_seals_results() -> None:
    """The key of a result is known to whoever asks the question: it seals nothing by itself."""
    sealed = pack(KEY, ROW, b"secret")
    assert same(unpack(KEY, sealed, b"secret"), ROW)
    for value, secret in ((sealed, b""), (sealed, b"other"), (pack(KEY, ROW), b"secret")):
        assert unpack(KEY, value, secret) is None


def test_an_address_is_never_repeated() -> None:
    with pytest.raises(RedisUnavailable) as caught:
        RedisResults("http://user:hunter2@nowhere", 10, Metrics())
    assert "hunter2" not in str(caught.value)
    RedisResults("rediss://nowhere", 10, Metrics())


def test_settings_of_redis_that_cannot_work_are_told_at_once() -> None:
    with pytest.raises(RedisUnavailable, match="not an address"):
        RedisResults("http://nowhere", 10, Metrics())


@needs_redis
async def test_results_are_shared_and_forgotten(server: RedisServer) -> None:
    writer, reader = (RedisResults(server.url, 1, Metrics()) for _ in range(2))
    writer.keep([(KEY, ROW)])
    for _ in range(100):
        found = await reader.find([OTHER, KEY])
        if found[1] is not None:
            break
        await asyncio.sleep(0.01)
    assert found[0] is None
    assert same(found[1], ROW)
    await asyncio.sleep(1.1)
    assert await reader.find([KEY]) == [None]
    await writer.close()
    await reader.close()


@needs_redis
async def test_results_that_somebody_else_wrote_are_refused(server: RedisServer) -> None:
    with Redis.from_url(server.url) as other:
        other.set(PREFIX + KEY, pack(OTHER, ROW))
        other.set(PREFIX + OTHER, b"\xff" * 100)
        other.lpush(PREFIX + b"list", 1)
    reader = RedisResults(server.url, 10, Metrics())
    assert await reader.find([KEY, OTHER, b"list"]) == [None, None, None]
    await reader.close()


@needs_redis
async def test_a_redis_that_hangs_costs_one_moment(server: RedisServer) -> None:
    metrics = Metrics()
    results = RedisResults(server.url, 10, metrics)
    await results.find([KEY])
    server.hang()
    started = monotonic()
    assert await asyncio.gather(*(results.find([KEY]) for _ in range(10))) == [[None]] * 10
    assert monotonic() - started < KEEP_SECONDS, "which is what the client itself would wait"
    started = monotonic()
    for _ in range(1000):
        assert await results.find([KEY]) == [None]
        results.keep([(KEY, ROW)])
    assert monotonic() - started < FIRST_PAUSE, "for a while nobody asks again"
    assert (metrics.registry.get_sample_value("nightjar_cache_errors_total") or 0) >= 1
    await results.close()


@needs_redis
def test_a_redis_killed_in_the_middle_fails_no_request(server: RedisServer) -> None:
    changes = {"cache_bytes": 700, "cache_redis_url": server.url}  # room for one result: all others come from Redis
    with live(loader(Network()), **changes) as edge:
        objects = [curve(flux=[float(i)] * 8) for i in range(5)]
        first = answers(edge, objects)
        for _ in range(200):
            if edge.metric("nightjar_cache_answers_total", found="redis") >= 4:
                break
            assert answers(edge, objects) == first
        assert edge.metric("nightjar_cache_answers_total", found="redis") >= 4
        server.kill()
        assert answers(edge, objects) == first
        server.start()
        assert answers(edge, objects) == first
        edge.still_well()


def answers(edge: Live, objects: list[dict[str, object]]) -> list[object]:
    replies = [edge.classify(each) for each in objects]
    assert [status for status, _ in replies] == [200] * len(objects)
    return [reply["results"] for _, reply in replies]
