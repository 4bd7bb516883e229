"""Probes of a worker: connection limits, host names, and when it is not ready or unhealthy."""

import hashlib
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse

import pytest

from nightjar_alerts.service.observe.live import LiveFeed
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream import probes as probes_module
from nightjar_alerts.service.stream.messages import SourceStatus
from nightjar_alerts.service.stream.probes import LIMITS, LiveView, Probes, ProgressMonitor
from support.edge import HOST, outside_address, receive_all
from support.results import classified


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
    assert ask(probes, "/healthz") == (200, "", "ok\n")
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
    feed.publish([classified(object_id="one", survey="ztf", class_name=name) for name in ("Ia", "II")])
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
        assert "script-src 'self'" in response.getheader("Content-Security-Policy", "")
        assert response.read()
        connection.close()
    assert ask(feed_and_probes[1], "/page/../probes.py")[0] == 404


def test_live_page_of_a_worker_without_a_key_does_not_exist(probes: Probes) -> None:
    assert ask(probes, "/live")[0] == ask(probes, "/page/live.js")[0] == 404


def test_live_events_of_a_worker_without_a_key_do_not_exist(probes: Probes) -> None:
    connection, response = open_events(probes)
    assert response.status == 404
    connection.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
@pytest.mark.parametrize(("listening", "address"), [("::1", "::1"), ("::", "::1"), ("::", HOST)])
def test_probes_listen_on_ipv6_addresses(listening: str, address: str) -> None:
    with closing(Probes(listening, 0, Metrics(), lambda: "", lambda: "")) as server:
        connection = HTTPConnection(address, server.port, timeout=30)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()


def test_probes_port_in_use_raises() -> None:
    with socket.create_server((HOST, 0)) as taken, pytest.raises(OSError, match="in use"):
        Probes(HOST, taken.getsockname()[1], Metrics(), lambda: "", lambda: "")


def test_probes_request_without_host_is_answered(probes: Probes) -> None:
    """HTTP/1.0, as some load balancers check a server; browsers always send the header."""
    with socket.create_connection((HOST, probes.port), timeout=30) as connection:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert receive_all(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("host", "status"), [("evil.example", 403), ("worker", 200), ("worker:8081", 200)])
def test_probes_check_the_host(host: str, status: int) -> None:
    with closing(Probes(HOST, 0, Metrics(), lambda: "", lambda: "", allowed_hosts="worker")) as server:
        connection = HTTPConnection(HOST, server.port, timeout=30)
        connection.request("GET", "/metrics", headers={"Host": host})
        assert connection.getresponse().status == status
        connection.close()


@pytest.mark.parametrize("number", [LIMITS.max_connections // 2, 2 * LIMITS.max_connections + 10])
def test_probes_flood_from_one_client_leaves_slots(number: int) -> None:
    address = outside_address()
    with closing(Probes("0.0.0.0", 0, Metrics(), lambda: "", lambda: "")) as server, ExitStack() as stack:
        for _ in range(number):
            slow = stack.enter_context(socket.create_connection((address, server.port), timeout=30))
            with suppress(ConnectionError):  # aborted, beyond twice as many as are accepted
                slow.sendall(b"GET / HTTP/1.1\r\n")
        assert ask(server, "/healthz")[0] == 200
        with socket.create_connection((address, server.port), timeout=30) as rejected, suppress(ConnectionError):
            assert receive_all(rejected)[:12] in (b"", b"HTTP/1.1 503")


def test_probes_flood_of_other_clients_leaves_slots_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each connection had another address, so that the share of one client is no limit."""
    monkeypatch.setattr(probes_module, "LIMITS", replace(LIMITS, max_per_client=None))
    test_probes_flood_from_one_client_leaves_slots(LIMITS.max_connections + 10)


def test_probes_slow_requests_from_loopback_leave_slots(probes: Probes) -> None:
    with ExitStack() as stack:
        for _ in range(64):
            stack.enter_context(socket.create_connection((HOST, probes.port))).sendall(b"G")
        assert [ask(probes, "/healthz")[0] for _ in range(20)] == [200] * 20


def test_probes_slow_requests_are_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends bytes slowly must not keep its connection forever."""
    monkeypatch.setattr(probes_module, "LIMITS", replace(LIMITS, header_timeout=0.5))
    with closing(Probes(HOST, 0, Metrics(), lambda: "", lambda: "")) as server:
        dripping = socket.create_connection((HOST, server.port), timeout=0.05)
        give_up = time.monotonic() + 60
        with dripping, suppress(ConnectionError):
            while time.monotonic() < give_up:
                dripping.sendall(b"G")
                with suppress(TimeoutError):
                    if not dripping.recv(4096):
                        break
        assert time.monotonic() < give_up


def test_probes_close_with_open_connections_returns(feed_and_probes: tuple[LiveFeed, Probes]) -> None:
    _, probes = feed_and_probes
    connection, response = open_events(probes)
    with closing(connection), response, socket.create_connection((HOST, probes.port)) as slow:
        slow.sendall(b"GET /metr")
        probes.close()


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
