"""Named API keys and rate limits: authentication, quotas and retry times."""

import asyncio
import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import ValidationError
from redis.asyncio import Redis
from structlog.testing import capture_logs

from nightjar_alerts.service import SAMPLES
from nightjar_alerts.service.__main__ import main
from nightjar_alerts.service.http.edge.budget import ConcurrencyLimiter
from nightjar_alerts.service.http.edge.counts import (
    DAY_SECONDS,
    REDIS_CLOCK,
    SCRIPT,
    Counts,
    Limit,
    RedisUnavailable,
    SharedCounts,
    list_limits,
)
from nightjar_alerts.service.http.edge.errors import ProblemError
from nightjar_alerts.service.http.edge.keys import ANONYMOUS, KeyRing, Quotas
from nightjar_alerts.service.http.server import serve
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.settings import KeyLimits, Settings
from support.edge import Live, Network, curve, live, loader, raw_head, send_until_cut_off, settings, wait_until
from support.redis import needs_redis, redis_server
from support.wire import lines_body

STREAM = raw_head("/v1/classify", "Content-Type: application/x-ndjson", "Transfer-Encoding: chunked")
KEYS = {"fink": ("old key of fink", "new key of fink"), "lasair": ("key of lasair",)}


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


DIGESTS = {name: tuple(map(digest, keys)) for name, keys in KEYS.items()}


def ask(edge: Live, key: str = "", path: str = "/v1/models", body: bytes | None = None) -> tuple[int, dict[str, str]]:
    headers = {"X-API-Key": key} if key else {}
    status, found, _ = edge.ask("POST" if body else "GET", path, body, headers | {"Content-Type": "application/json"})
    return status, found


def test_key_ring_several_digests_of_a_name_are_accepted() -> None:
    with live(loader(Network()), named_keys=DIGESTS) as edge:
        for key in (*KEYS["fink"], *KEYS["lasair"]):
            assert ask(edge, key)[0] == 200
        assert ask(edge, "another")[0] == ask(edge)[0] == 401
        assert edge.metric("nightjar_key_requests_total", key="fink") == 2
        assert edge.metric("nightjar_key_requests_total", key="lasair") == 1


@pytest.mark.parametrize("also", [(), ("metrics", "docs", "v2")])
def test_protected_paths_require_a_key(also: tuple[str, ...]) -> None:
    expected = 401 if also else 200
    with live(loader(Network()), named_keys=DIGESTS, protected_paths=also) as edge:
        for path in ("/metrics", "/docs", "/openapi.json", "/problems/invalid", "/v2", "/v2/health/ready"):
            assert ask(edge, path=path)[0] == expected, path
            assert ask(edge, KEYS["fink"][1], path)[0] == 200, path
        assert ask(edge, path="/v2/models/echo/ready")[0] == expected
        assert ask(edge, path="/healthz")[0] == ask(edge, path="/readyz")[0] == 200


class Clock:
    def __init__(self) -> None:
        self.now = 1_790_000_000.0

    def __call__(self) -> float:
        return self.now


def per_second(rate: float, counted: Any = "requests") -> Limit:
    return Limit(counted, False, rate)


def test_counts_per_second_limit_has_exact_wait() -> None:
    clock = Clock()
    counts, limits = Counts(clock), [per_second(5)]
    assert [counts.admit("a", limits) for _ in range(5)] == [None] * 5
    refused = counts.admit("a", limits)
    assert refused is not None
    assert refused.seconds == pytest.approx(0.2, abs=1e-5)
    assert counts.admit("b", limits) is None
    clock.now += refused.seconds - 0.001
    assert counts.admit("a", limits) is not None
    clock.now += 0.001 + 1e-6
    assert counts.admit("a", limits) is None


def test_counts_less_than_one_per_second_is_admitted_one_by_one() -> None:
    clock = Clock()
    counts, limits = Counts(clock), [per_second(0.1)]
    assert counts.admit("a", limits) is None
    refused = counts.admit("a", limits)
    assert refused is not None
    assert refused.seconds == pytest.approx(10, abs=1e-5)
    clock.now += 10.001
    assert counts.admit("a", limits) is None


def test_counts_large_request_delays_the_next() -> None:
    clock = Clock()
    counts, limits = Counts(clock), [per_second(100, "curves")]
    assert counts.admit("a", limits) is None
    counts.charge("a", limits, 1000)
    refused = counts.admit("a", limits)
    assert refused is not None
    assert refused.seconds == pytest.approx(10 - 0.99, abs=1e-5)


def test_counts_per_day_restart_at_midnight_utc() -> None:
    clock = Clock()
    counts, limits = Counts(clock), [Limit("requests", True, 3)]
    assert [counts.admit("a", limits) for _ in range(3)] == [None] * 3
    refused = counts.admit("a", limits)
    assert refused is not None
    assert (clock.now + refused.seconds) % DAY_SECONDS == 0
    clock.now += refused.seconds
    assert counts.admit("a", limits) is None


def test_counts_refund_after_midnight_gives_no_free_requests() -> None:
    clock = Clock()
    counts, limits = Counts(clock), [Limit("requests", True, 3)]
    counts.charge("a", limits, 1)
    clock.now += DAY_SECONDS
    counts.charge("a", limits, -1)
    assert [counts.admit("a", limits) is None for _ in range(4)] == [True, True, True, False]


@hypothesis_settings(deadline=None)  # a busy machine takes long over an example
@given(
    st.floats(0.05, 1000),
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 50)), max_size=40),
)
def test_quotas_client_that_waits_retry_after_is_admitted(rate: float, steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    counts, limits = Counts(clock), [per_second(rate)]
    began, admitted = clock.now, 0
    for pause, tries in steps:
        clock.now += pause
        for _ in range(tries):
            refused = counts.admit("a", limits)
            if refused is None:
                admitted += 1
                continue
            assert 0 < refused.seconds <= max(1, 1 / rate) + 1e-3
            clock.now += refused.seconds + 1e-5
            assert counts.admit("a", limits) is None
            admitted += 1
    assert admitted <= 1 + rate * (clock.now - began + 1) + 1e-3


def test_quotas_rejection_has_limit_and_retry_after() -> None:
    limits = {"*": KeyLimits(requests_per_day=1), "lasair": KeyLimits()}
    with live(loader(Network()), named_keys=DIGESTS, key_limits=limits) as edge:
        assert ask(edge, KEYS["fink"][0])[0] == 200
        status, headers, text = edge.ask("GET", "/v1/models", headers={"X-API-Key": KEYS["fink"][1]})
        problem = json.loads(text)
        midnight = DAY_SECONDS - time.time() % DAY_SECONDS
        assert (status, problem["type"], problem["limit"]) == (429, "/problems/rate-limited", 1)
        assert abs(int(headers["retry-after"]) - midnight) < 5
        assert problem["retry_after"] == int(headers["retry-after"])
        assert "requests per day" in problem["detail"]
        assert [ask(edge, KEYS["lasair"][0])[0] for _ in range(3)] == [200] * 3
        assert edge.metric("nightjar_key_refused_total", key="fink", limit="requests_per_day") == 1


@pytest.mark.parametrize("path", ["/v1/classify", "/v1/evolution", "/v1/alerts"])
def test_quotas_charge_happens_while_the_model_is_acquired(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Charging may wait for Redis, and a model unloaded meanwhile must stay open for the request."""
    holders: list[int] = []

    async def charge(key: str, curves: int) -> None:
        holders.append(edge.service.models.default.requests)

    body, media_type = json.dumps(curve()).encode(), "application/json"
    if path == "/v1/alerts":
        body, media_type = next(iter(sorted(SAMPLES.glob("ztf_*.avro")))).read_bytes(), "application/octet-stream"
    with live(loader(Network()), key_limits={"*": KeyLimits(curves_per_day=1000)}) as edge:
        monkeypatch.setattr(edge.service.quotas, "charge", charge)
        assert edge.ask("POST", path, body, {"Content-Type": media_type})[0] == 200
    assert holders == [1]


def test_quotas_light_curves_count_in_every_format() -> None:
    body = json.dumps({"light_curves": [curve(), curve(), curve()]}).encode()
    with live(loader(Network()), key_limits={"*": KeyLimits(curves_per_day=7)}) as edge:
        assert ask(edge, path="/v1/classify", body=body)[0] == 200
        assert edge.ask("POST", "/v1/alerts", b"no alert", {"Content-Type": "application/octet-stream"})[0] == 200
        lines = lines_body([curve(), curve()])
        assert edge.ask("POST", "/v1/classify", lines, {"Content-Type": "application/x-ndjson"})[0] == 200
        assert edge.metric("nightjar_key_curves_total", key=ANONYMOUS) == 6
        assert ask(edge, path="/v1/classify", body=body)[0] == 200  # one is left: the request is answered whole
        assert ask(edge, path="/v1/classify", body=body)[0] == 429


def test_quotas_ndjson_stream_waits_for_its_limit() -> None:
    started = time.monotonic()
    with live(loader(Network()), key_limits={"*": KeyLimits(curves_per_second=100)}) as edge:
        lines = lines_body([curve()] * 192)  # three groups
        status, _, text = edge.ask("POST", "/v1/classify", lines, {"Content-Type": "application/x-ndjson"})
    assert (status, text.count(b"classified")) == (200, 192)
    assert time.monotonic() - started > 0.25


def test_quotas_ndjson_stream_sends_results_before_the_quota_is_exhausted() -> None:
    with live(loader(Network()), key_limits={"*": KeyLimits(curves_per_day=130)}) as edge:
        lines = lines_body([curve()] * 640)
        status, _, text = edge.ask("POST", "/v1/classify", lines, {"Content-Type": "application/x-ndjson"})
        charged = edge.metric("nightjar_key_curves_total", key=ANONYMOUS)
    *results, last = text.splitlines()
    assert (status, json.loads(last)["problem"]["status"]) == (200, 429)
    assert len(results) == charged >= 128


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for Redis on a busy machine, where requests would be counted locally after 50 ms."""
    monkeypatch.setattr("nightjar_alerts.service.http.edge.counts.REDIS_SECONDS", 10.0)


@needs_redis
@pytest.mark.usefixtures("patience")
async def test_shared_counts_replicas_count_together_across_restarts(tmp_path: Path) -> None:
    limits = {"*": KeyLimits(requests_per_second=4, curves_per_day=10)}
    with redis_server(tmp_path) as server:
        first, second = (Quotas(limits, Metrics(), SharedCounts(server.url)) for _ in range(2))
        for quotas in (first, second, first, second):
            await quotas.admit("a")
        with pytest.raises(ProblemError) as caught:
            await first.admit("a")
        assert caught.value.kind.slug == "rate-limited"
        assert caught.value.retry_after == 1
        await second.charge("b", 10)
        with pytest.raises(ProblemError, match="10 light curves per day"):
            await first.admit("b")
        await first.close()
        await second.close()
        third = Quotas(limits, Metrics(), SharedCounts(server.url))
        with pytest.raises(ProblemError, match="per day"):
            await third.admit("b")
        await third.close()


@needs_redis
@pytest.mark.usefixtures("patience")
async def test_shared_counts_refund_without_a_charge_gives_no_free_requests(tmp_path: Path) -> None:
    limits = list_limits(KeyLimits(requests_per_day=3))
    with redis_server(tmp_path) as server:
        counts = SharedCounts(server.url)
        await counts.charge("a", limits, -1)
        admitted = [await counts.admit("a", limits) is None for _ in range(4)]
        await counts.close()
    assert admitted == [True, True, True, False]


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a Redis server that lives as long as the tests of this file."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


rates = st.sampled_from([0.5, 1.0, 3.0, 7.0, 100.0])
key_limits = st.builds(
    KeyLimits,
    requests_per_second=st.none() | rates,
    requests_per_day=st.none() | st.integers(1, 3),
    curves_per_second=st.none() | rates,
    curves_per_day=st.none() | st.integers(1, 9),
)
calls = st.tuples(st.integers(0, 3_000), st.sampled_from(["requests", "curves"]), st.just(0) | st.integers(-9, 9))


@needs_redis
@hypothesis_settings(deadline=None)
@given(key_limits, st.lists(calls, max_size=25))
@example(KeyLimits(requests_per_day=2), [(0, "requests", 5), (0, "requests", 0), (3000, "requests", 0)])
@example(KeyLimits(requests_per_day=2), [(0, "requests", 1), (3000, "requests", -1), *[(0, "requests", 0)] * 3])
def test_shared_counts_any_calls_equal_those_of_one_process(
    redis_url: str, limits: KeyLimits, steps: list[tuple[int, Any, int]]
) -> None:
    """The calls start two seconds before midnight UTC; an amount of 0 is a request, a negative one a refund."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nightjar_alerts.service.http.edge.counts.REDIS_SECONDS", 10.0)
        patch.setattr(
            "nightjar_alerts.service.http.edge.counts.SCRIPT",
            SCRIPT.replace(REDIS_CLOCK, "local now = tonumber(redis.call('GET', 'clock'))"),
        )
        asyncio.run(compare_counts(redis_url, list_limits(limits), steps))


async def compare_counts(url: str, limits: Sequence[Limit], steps: list[tuple[int, Any, int]]) -> None:
    clock = Clock()
    clock.now = 20_000 * DAY_SECONDS - 2.0
    shared, local, redis = SharedCounts(url), Counts(clock), Redis.from_url(url)
    await redis.flushall()
    for milliseconds, counted, amount in steps:
        clock.now = round(clock.now + milliseconds / 1000, 3)
        await redis.set("clock", repr(clock.now))
        charged = [limit for limit in limits if limit.counted == counted]
        if amount:
            await shared.charge("a", charged, amount)
            local.charge("a", charged, amount)
            continue
        found, expected = await shared.admit("a", limits), local.admit("a", limits)
        assert (found and found.limit) == (expected and expected.limit)
        assert (found and found.seconds) == pytest.approx(expected and expected.seconds, abs=1e-6)
    await shared.close()
    await redis.aclose()


async def test_shared_counts_without_redis_each_process_counts() -> None:
    quotas = Quotas({"*": KeyLimits(requests_per_day=2)}, Metrics(), SharedCounts("redis://127.0.0.1:9"))
    await quotas.admit("a")
    await quotas.admit("a")
    with pytest.raises(ProblemError):
        await quotas.admit("a")
    await quotas.close()


def test_limiter_busy_address_does_not_block_others() -> None:
    limiter = ConcurrencyLimiter(10)
    for _ in range(9):
        limiter.acquire("10.0.0.1")
    limiter.acquire("10.0.0.2")
    with pytest.raises(ProblemError):
        limiter.acquire("10.0.0.1")
    for share in ("10.0.0.3", "10.0.0.4"):
        limiter.acquire(share)
        limiter.release(share)


def test_limiter_streams_do_not_block_requests() -> None:
    with live(loader(Network()), max_streams=3) as edge:
        streams = [edge.connect() for _ in range(4)]
        for stream in streams:
            stream.sendall(STREAM + b"1\r\n{\r\n")
        wait_until(lambda: edge.metric("nightjar_rejected_total", reason="overloaded") == 1)
        edge.still_well()
        for stream in streams:
            stream.close()


def test_ndjson_stream_slower_than_the_minimum_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty bytes every twenty seconds must not keep a slot forever, within the timeout of each line."""
    monkeypatch.setattr("nightjar_alerts.service.http.edge.lines.IDLE_BUDGET_SECONDS", 0.5)
    with live(loader(Network()), stream_rate=1000, body_timeout=5) as edge, edge.connect() as stream:
        stream.sendall(STREAM)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send_until_cut_off(stream, b"3\r\n1\n2\r\n", 0.1, 80)


@pytest.mark.parametrize("text", [b"", b"\n"], ids=["printf", "echo"])
@pytest.mark.parametrize("form", ["api_keys", "named_keys", "admin_keys", "live_key"])
def test_settings_digest_of_an_empty_key_is_rejected(form: str, text: bytes) -> None:
    digest = hashlib.sha256(text).hexdigest()
    values: dict[str, Any] = {"named_keys": {"fink": [digest]}, "live_key": digest}
    with pytest.raises(ValidationError, match="is the digest of an empty key"):
        Settings(**{form: values.get(form, [digest])})


def test_settings_key_name_without_digests_is_rejected() -> None:
    """It would look like a key that is set, and let every request in."""
    with pytest.raises(ValidationError, match="named_keys"):
        Settings(named_keys={"fink": ()})


@pytest.mark.parametrize("headers", [{}, {b"x-api-key": b""}, {b"authorization": b"Bearer "}, {b"authorization": b""}])
def test_key_ring_request_with_an_empty_key_is_rejected(headers: dict[bytes, bytes]) -> None:
    ring = KeyRing({"nobody": (hashlib.sha256(b"").hexdigest(),)})
    with pytest.raises(ProblemError):
        ring.authenticate({"headers": list(headers.items())})


def test_serve_without_keys_on_other_address_exits() -> None:
    with capture_logs() as logged, pytest.MonkeyPatch.context() as patch:
        patch.setattr("nightjar_alerts.service.http.server.configure_log", lambda _: None)
        assert serve(settings(host="0.0.0.0")) == 1
    (line,) = [line for line in logged if line["event"] == "refusing to listen without API keys"]
    assert line["log_level"] == "critical"
    assert "NIGHTJAR_ALLOW_ANONYMOUS" in line["reason"]


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({"host": "127.0.0.1"}, False),
        ({"host": "0.0.0.0", "named_keys": DIGESTS}, False),
        ({"host": "0.0.0.0", "allow_anonymous": True}, True),
    ],
)
def test_serve_with_keys_or_allow_anonymous_runs(
    changes: dict[str, Any], warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[bool] = []
    monkeypatch.setattr("nightjar_alerts.service.http.server.configure_log", lambda _: None)
    monkeypatch.setattr("nightjar_alerts.service.http.server.Server.run", lambda self: ran.append(True))
    monkeypatch.setattr("nightjar_alerts.service.http.server.gc.freeze", lambda: None)
    with capture_logs() as logged:
        assert serve(settings(**changes)) == 0
    assert ran == [True]
    assert any("anonymous access" in line["event"] for line in logged) == warned


def test_settings_passwords_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["worker", "--source", "redis://user:hunter2@redis:6379/alerts"])
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert "NIGHTJAR_SOURCE" in told
    assert "hunter2" not in told
    secret = settings(limits_redis_url="redis://:hunter2@redis")
    assert "hunter2" not in repr(secret)


def test_shared_counts_invalid_address_error_hides_password() -> None:
    with pytest.raises(RedisUnavailable, match="invalid URL") as caught:
        SharedCounts("http://user:hunter2@nowhere")
    assert "hunter2" not in str(caught.value)


def test_settings_invalid_key_limits_raise() -> None:
    for limits in (
        {"requests_per_second": 0},
        {"curves_per_day": -1},
        {"per_hour": 3},
        {"requests_per_second": math.inf},
    ):
        with pytest.raises(ValueError):
            settings(key_limits={"*": limits})
