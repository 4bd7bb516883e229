"""Probes of a worker: connection limit, hidden server version, and when it is not ready or unhealthy."""

import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse

import pytest

from nightjar_alerts.service.observe.live import LiveFeed
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.messages import SourceStatus
from nightjar_alerts.service.stream.probes import MAX_CONNECTIONS, LiveView, Probes, ProgressMonitor
from support.edge import HOST, wait_until


@pytest.fixture
def probes() -> Iterator[Probes]:
    server = Probes(HOST, 0, Metrics(), lambda: "", lambda: "still loading")
    yield server
    server.close()


def ask(probes: Probes, path: str) -> tuple[int, str, str]:
    connection = HTTPConnection(HOST, probes.port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.getheader("Server", ""), response.read().decode()
    finally:
        connection.close()


def test_probes_respond_without_the_server_version(probes: Probes) -> None:
    assert ask(probes, "/healthz") == (200, "nightjar ", "ok\n")
    assert ask(probes, "/readyz")[::2] == (503, "still loading\n")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/nope"])
def test_probes_head_returns_no_body(probes: Probes, path: str) -> None:
    connection = HTTPConnection(HOST, probes.port, timeout=30)
    connection.request("HEAD", path)
    response = connection.getresponse()
    assert response.status == ask(probes, path)[0]
    assert int(response.getheader("Content-Length", "0")) > 0
    assert response.read() == b""
    connection.close()


def test_probes_options_lists_the_methods(probes: Probes) -> None:
    connection = HTTPConnection(HOST, probes.port, timeout=30)
    connection.request("OPTIONS", "/readyz")
    response = connection.getresponse()
    assert (response.status, response.getheader("Allow")) == (204, "GET, HEAD, OPTIONS")
    connection.close()


KEY = "the key of the live view"


@pytest.fixture
def feed_and_probes() -> Iterator[tuple[LiveFeed, Probes]]:
    feed = LiveFeed()
    view = LiveView(feed, hashlib.sha256(KEY.encode()).hexdigest())
    server = Probes(HOST, 0, Metrics(), lambda: "", lambda: "", view)
    yield feed, server
    server.close()


def open_events(probes: Probes, query: str = "", key: str = KEY) -> tuple[HTTPConnection, HTTPResponse]:
    connection = HTTPConnection(HOST, probes.port, timeout=60)
    connection.request("GET", f"/live/events{query}", headers={"Authorization": f"Bearer {key}"})
    return connection, connection.getresponse()


def test_live_events_of_a_worker_show_its_results(feed_and_probes: tuple[LiveFeed, Probes]) -> None:
    feed, probes = feed_and_probes
    connection, response = open_events(probes, "?class=Ia")
    assert (response.status, response.getheader("Content-Type")) == (200, "text/event-stream; charset=utf-8")
    document = {"status": "classified", "object_id": "one", "survey": "ztf", "class": "Ia", "confidence": 0.8}
    probabilities = {"Ia": 0.8, "II": 0.2}
    feed.publish([{**document, "probabilities": probabilities, "class": name} for name in ("Ia", "II")])
    lines = iter(response.readline, b"")
    assert b'"object_id":"one"' in next(line for line in lines if b'"results":[{' in line)
    probes.close()
    assert list(lines)[-1] == b"\n"
    connection.close()


@pytest.mark.parametrize(
    ("query", "key", "status"), [("", "", 401), ("", "wrong", 401), ("?class=a&class=b", KEY, 422)]
)
def test_live_events_of_a_worker_with_an_invalid_request_are_rejected(
    feed_and_probes: tuple[LiveFeed, Probes], query: str, key: str, status: int
) -> None:
    connection, response = open_events(feed_and_probes[1], query, key)
    assert response.status == status
    connection.close()


def test_live_page_of_a_worker_with_a_key_is_served_with_its_files(feed_and_probes: tuple[LiveFeed, Probes]) -> None:
    for path, kind in (("/live", "text/html"), ("/page/live.js", "text/javascript"), ("/page/page.css", "text/css")):
        connection = HTTPConnection(HOST, feed_and_probes[1].port, timeout=30)
        connection.request("GET", path)
        response = connection.getresponse()
        assert (response.status, response.getheader("Content-Type", "").partition(";")[0]) == (200, kind)
        assert ("script-src 'self'" in response.getheader("Content-Security-Policy", "")) == (kind == "text/html")
        assert response.read()
        connection.close()
    assert ask(feed_and_probes[1], "/page/../probes.py")[0] == 404


def test_live_page_of_a_worker_without_a_key_does_not_exist(probes: Probes) -> None:
    assert ask(probes, "/live")[0] == ask(probes, "/page/live.js")[0] == 404


def test_live_events_of_a_worker_without_a_key_do_not_exist(probes: Probes) -> None:
    connection, response = open_events(probes)
    assert response.status == 404
    connection.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6: sysctl net.ipv6.conf.lo.disable_ipv6=0")
def test_probes_listen_on_ipv6_addresses() -> None:
    server = Probes("::1", 0, Metrics(), lambda: "", lambda: "")
    try:
        with socket.create_connection(("::1", server.port), timeout=30) as connection:
            connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.0 200")
    finally:
        server.close()


def test_probes_idle_connections_use_few_threads(probes: Probes) -> None:
    before = set(threading.enumerate())  # threads of earlier tests may end meanwhile

    def answering() -> int:
        return sum("process_request" in thread.name for thread in set(threading.enumerate()) - before)

    idle = [socket.create_connection((HOST, probes.port)) for _ in range(3 * MAX_CONNECTIONS)]
    try:
        wait_until(lambda: answering() >= MAX_CONNECTIONS - 1)
        assert answering() <= MAX_CONNECTIONS
    finally:
        for connection in idle:
            connection.close()
    wait_until(lambda: answering() == 0)
    assert ask(probes, "/healthz")[0] == 200


def test_probes_slow_requests_are_disconnected(probes: Probes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends bytes slowly must not keep its connection forever."""
    monkeypatch.setattr("nightjar_alerts.service.stream.probes.TIMEOUT_SECONDS", 0.5)
    dripping = [socket.create_connection((HOST, probes.port)) for _ in range(MAX_CONNECTIONS)]
    open_connections = set(dripping)

    def drip() -> None:
        for connection in list(open_connections):
            try:
                connection.send(b"G")
            except OSError:
                open_connections.discard(connection)

    try:
        give_up = time.monotonic() + 60
        while open_connections and time.monotonic() < give_up:
            drip()
            time.sleep(0.05)
        assert not open_connections
        assert ask(probes, "/healthz")[0] == 200
    finally:
        for connection in dripping:
            connection.close()


class Standstill:
    """Worker that consumes nothing: 5 pending messages, 2 partitions, limits of 60 s and 300 s."""

    def __init__(self) -> None:
        self.now, self.error, self.metrics = 1000.0, "", Metrics()
        clock, outside = (lambda: self.now), (lambda: self.error)
        self.progress = ProgressMonitor(self.metrics, 60, 300, outside, clock)

    def lasts(self, seconds: float, standing: SourceStatus | None = None, in_flight: int = 0) -> None:
        """Advance the clock, and observe the source every ten seconds."""
        for _ in range(int(seconds / 10)):
            self.now += 10
            self.progress.observe(standing or SourceStatus(assigned=2, waiting=5), in_flight)

    def metric(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"nightjar_stream_{name}")


def test_worker_that_consumes_nothing_becomes_not_ready_and_unhealthy() -> None:
    still = Standstill()
    still.lasts(60)
    assert (still.progress.unready(), still.progress.unhealthy()) == ("", "")
    still.lasts(10)
    assert "nothing consumed for 70 s although 5 messages wait" in still.progress.unready()
    assert (still.metric("untaken_seconds"), still.metric("assigned_partitions"), still.metric("not_ready")) == (
        70,
        2,
        1,
    )
    still.lasts(230)
    assert still.progress.unhealthy() == ""
    still.lasts(10)
    assert "nothing has moved for 310 s" in still.progress.unhealthy()
    still.progress.record_consumed()
    assert (still.progress.unready(), still.progress.unhealthy()) == ("", "")


def test_worker_without_pending_messages_stays_ready() -> None:
    still = Standstill()
    still.lasts(3600, SourceStatus(assigned=2, waiting=0))
    assert (still.progress.unready(), still.progress.unhealthy()) == ("", "")


def test_worker_with_a_batch_that_never_ends_is_unhealthy() -> None:
    still = Standstill()
    still.progress.record_consumed()
    still.lasts(310, SourceStatus(assigned=2, waiting=0), in_flight=3)
    assert still.progress.unhealthy()


def test_worker_outside_its_group_becomes_not_ready_and_unhealthy() -> None:
    """A client that lost its group never recovers; it has no partitions, so no messages are pending."""
    apart, joined = SourceStatus(assigned=0, member=False), SourceStatus(assigned=0)
    still = Standstill()
    still.lasts(60, joined)
    still.lasts(50, apart)
    assert still.progress.unready() == ""
    still.lasts(20, apart)
    assert still.progress.unready() == "source: not a member of its group for 70 s although the brokers answer"
    assert still.metric("not_ready") == 1
    assert still.progress.unhealthy() == ""
    still.lasts(10, SourceStatus(error="no broker answers", assigned=0, member=False))
    still.lasts(300, apart)
    assert still.progress.unhealthy() == ""
    still.lasts(10, apart)
    assert "not a member" in still.progress.unhealthy()
    still.lasts(10, joined)
    assert still.progress.unready() == still.progress.unhealthy() == ""


@pytest.mark.parametrize("where", ["sink", "broker", "no partition"])
def test_external_error_does_not_make_a_worker_unhealthy(where: str) -> None:
    still = Standstill()
    still.error = "sink: no broker answers" if where == "sink" else ""
    error = "no broker answers" if where == "broker" else ""
    standing = SourceStatus(error=error, assigned=0 if where == "no partition" else 2, waiting=5)
    still.lasts(3600, standing)
    assert still.progress.unhealthy() == ""
    assert still.progress.unready()
    still.error = ""
    still.lasts(290)
    assert still.progress.unhealthy() == ""
    still.lasts(20)
    assert still.progress.unhealthy()
