"""Lifecycle of a process: probes, requests during shutdown, and exit status."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import NoReturn

import pytest

from nightjar_alerts.core.load import LoadedModel
from nightjar_alerts.models.bundle import BundleError
from nightjar_alerts.service.http.lifecycle import Service, State
from nightjar_alerts.service.http.server import Server
from nightjar_alerts.service.local import free_port
from nightjar_alerts.service.settings import CommonSettings
from support.edge import HOST, Live, Network, curve, loader, raw_post, settings, started, wait_until


def server_loop(edge: Live) -> asyncio.AbstractEventLoop:
    return edge.server.servers[0].get_loop()


def answers(port: int) -> bool:
    """Return whether a service is ready at a port."""
    connection = HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


PROBES = ("/healthz", "/startupz", "/readyz")


def probes(edge: Live) -> list[int]:
    return [edge.ask("GET", path)[0] for path in PROBES]


class Client(threading.Thread):
    """Sends one light curve; ``reply`` is the response."""

    def __init__(self, edge: Live) -> None:
        super().__init__()
        self.edge, self.reply = edge, b""
        self.start()

    def run(self) -> None:
        with self.edge.connect() as connection:
            connection.sendall(raw_post("/v1/classify", json.dumps(curve()).encode()))
            connection.settimeout(20)
            self.reply = connection.recv(100_000)

    def status(self) -> int:
        self.join(20)
        return int(self.reply.split()[1])


def test_service_while_starting_is_alive_and_not_ready() -> None:
    may_load = threading.Event()

    def load(chosen: CommonSettings, path: Path) -> LoadedModel:
        assert may_load.wait(20)
        return loader(Network())(chosen, path)

    with started(load) as edge:
        assert probes(edge) == [200, 503, 503]
        assert [edge.ask("GET", path)[0] for path in ("/v2/health/live", "/v2/health/ready")] == [200, 503]
        for path in ("/v1/classify", "/v1/alerts", "/v2/models/echo/infer"):
            status, headers, body = edge.ask("POST", path, b"{}")
            assert (status, headers["retry-after"], json.loads(body)["detail"]) == (503, "5", "the service is starting")
        assert edge.ask("GET", "/v1/models")[0] == 503
        assert edge.ask("GET", "/metrics")[0] == 200
        may_load.set()
        wait_until(lambda: edge.service.state is State.READY)
        assert probes(edge) == [200, 200, 200]
        edge.still_well()
    assert edge.server.exit_status == 0


@pytest.mark.parametrize("error", [BundleError("altered"), ZeroDivisionError("a bug")])
def test_service_model_that_cannot_be_loaded_exits_with_1(error: Exception) -> None:
    def load(*_: object) -> NoReturn:
        raise error

    server = Server(Service(settings(), load))
    server.run()
    assert (server.exit_status, server.service.state) == (1, State.FAILED)


def test_service_port_in_use_exits_with_1(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server((HOST, 0)) as taken:
        server = Server(Service(settings(host=HOST, port=taken.getsockname()[1]), loader(Network())))
        with pytest.raises(SystemExit) as end:
            server.run()
    assert end.value.code == 1
    assert "in use" in caplog.text


def test_service_dead_engine_thread_exits_with_1() -> None:
    network = Network()
    network.on_marker[13.0] = sys.exit
    with started(loader(network)) as edge:
        wait_until(lambda: edge.service.state is State.READY)
        status, problem = edge.classify(curve(flux=[13.0] * 8))
        assert (status, problem["type"]) == (503, "/problems/unavailable")
        wait_until(lambda: edge.service.state is State.FAILED)
        assert (edge.service.alive, edge.server.should_exit) == (False, True)
    assert edge.server.exit_status == 1


def test_service_drain_finishes_requests_in_progress() -> None:
    network = Network()
    with started(loader(network), drain_delay=0.3) as edge:
        wait_until(lambda: edge.service.state is State.READY)
        network.hold()
        client = Client(edge)
        assert network.started.acquire(timeout=10)
        server_loop(edge).call_soon_threadsafe(edge.server.handle_exit, signal.SIGTERM, None)
        wait_until(lambda: edge.service.state is State.DRAINING)
        assert probes(edge) == [200, 200, 503]
        late = Client(edge)
        assert network.started.acquire(timeout=10)
        wait_until(lambda: edge.server.should_exit)
        network.release()
        assert (client.status(), late.status()) == (200, 200)
        assert b"connection: close" in late.reply.lower()
    assert edge.server.exit_status == 0


def test_service_drain_timeout_answers_503() -> None:
    network = Network()
    with started(loader(network), drain_timeout=0) as edge:
        wait_until(lambda: edge.service.state is State.READY)
        network.hold()
        client = Client(edge)
        assert network.started.acquire(timeout=10)
        edge.server.should_exit = True
        assert client.status() == 503
        assert b"/problems/unavailable" in client.reply
        network.release()
    assert edge.server.exit_status == 0


@pytest.mark.parametrize(
    ("delay", "signals", "exits", "forced"),
    [
        (0.0, [signal.SIGTERM], True, False),
        (60.0, [signal.SIGTERM, signal.SIGTERM], True, False),
        (60.0, [signal.SIGINT], True, False),
        (60.0, [signal.SIGINT, signal.SIGINT], True, True),
    ],
)
def test_service_second_signal_stops_at_once(
    delay: float, signals: list[signal.Signals], exits: bool, forced: bool
) -> None:
    server = Server(Service(settings(drain_delay=delay), loader(Network())))

    async def receive() -> None:
        for number in signals:
            server.handle_exit(number, None)

    asyncio.run(receive())
    assert (server.should_exit, server.force_exit) == (exits, forced)
    assert server.service.state is State.DRAINING


def test_serve_sigterm_exits_with_0(tiny_bundle: Path) -> None:
    port = free_port()
    chosen = {"HOST": HOST, "PORT": str(port), "BUNDLE": str(tiny_bundle), "DRAIN_DELAY": "0", "PROT": "1"}
    environment = {**os.environ, **{f"NIGHTJAR_{name}": value for name, value in chosen.items()}}
    process = subprocess.Popen(
        [sys.executable, "-m", "nightjar_alerts.service", "serve"], env=environment, stderr=subprocess.PIPE
    )
    try:
        wait_until(lambda: answers(port), 60)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0
    events = [json.loads(line) for line in log.splitlines()]
    assert {"unknown setting", "listening", "ready", "stopping"} <= {event["event"] for event in events}
    assert [(line["host"], line["port"]) for line in events if line["event"] == "listening"] == [(HOST, port)]
    assert all("timestamp" in event and "level" in event for event in events)
