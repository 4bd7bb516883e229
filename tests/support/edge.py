"""A real HTTP service for tests: a real engine and real sockets around a network that can be held and poisoned."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import structlog

from nightjar_alerts.core.adapter import Arrays
from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.core.load import LoadedModel
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.service.http.lifecycle import Service, State
from nightjar_alerts.service.http.server import Server
from nightjar_alerts.service.registry.loader import LoadOne, load_one
from nightjar_alerts.service.settings import CommonSettings, Settings
from support.graphs import EchoGraph, echo_manifest

HOST = "127.0.0.1"
CLASSES = len(ELASTICC.classes)
QUICK = CostModel(1e-5, 1e-7, 0.0)


def _drop(*_: object) -> NoReturn:
    raise structlog.DropEvent


structlog.configure(processors=[_drop])  # what is logged is tested with structlog.testing.capture_logs


class Network(EchoGraph):
    """An :class:`EchoGraph` that answers as a network of the taxonomy does; the first flux picks the class."""

    def __call__(self, inputs: Arrays) -> Arrays:
        outputs = super().__call__(inputs)
        logits = np.full((len(inputs["flux"]), CLASSES), -2.0, dtype=np.float32)
        logits[np.arange(len(logits)), np.abs(inputs["flux"][:, 0]).astype(np.int64) % CLASSES] = 2.0
        weights = np.exp(logits)
        return outputs | {"probabilities": weights / weights.sum(axis=1, keepdims=True)}


def loader(network: Network, cost: CostModel = QUICK) -> LoadOne:
    """Return a loader that loads ``network`` in place of the bundle of the settings, and other bundles as usual."""
    bundle = Bundle(Path("echo"), echo_manifest(), "0" * 64)

    def load(chosen: CommonSettings, path: Path) -> LoadedModel:
        if path != chosen.bundle:
            return load_one(chosen, path)
        return LoadedModel(bundle, chosen.provider, network, cost, 0.0, 0.0)

    return load


def settings(**changes: Any) -> Settings:
    """Settings for a test: any port, no pauses, two workers, every question asked anew."""
    chosen: dict[str, Any] = {"host": HOST, "port": 0, "drain_delay": 0, "drain_timeout": 5, "workers": 2}
    return Settings(**(chosen | {"cache_bytes": 0, "bundle": Path("echo")} | changes))


@dataclass(frozen=True, slots=True)
class Live:
    """A running service and how to talk to it."""

    service: Service
    server: Server
    port: int

    @property
    def url(self) -> str:
        """Base URL without a trailing slash."""
        return f"http://{HOST}:{self.port}"

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (lower case) and body of one request on a connection of its own."""
        connection = HTTPConnection(HOST, self.port, timeout=20)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def post(self, path: str, body: object) -> tuple[int, Any]:
        """Status and parsed reply of a JSON request; bytes go as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, _, text = self.ask("POST", path, data, {"Content-Type": "application/json"})
        return status, json.loads(text)

    def classify(self, body: object) -> tuple[int, Any]:
        """Post to ``/v1/classify``; status and decoded reply."""
        return self.post("/v1/classify", body)

    def connect(self) -> socket.socket:
        """Open a raw connection."""
        return socket.create_connection((HOST, self.port), timeout=20)

    def metric(self, name: str, **labels: str) -> float:
        """Value of a sample, 0 when it does not exist yet."""
        return self.service.metrics.registry.get_sample_value(name, labels) or 0.0

    def still_well(self) -> None:
        """Assert that a good request is answered as ever."""
        status, reply = self.classify(curve())
        assert (status, reply["results"][0]["status"]) == (200, "classified")


@contextmanager
def started(load: LoadOne, **changes: Any) -> Iterator[Live]:
    """A server that listens on a port of its own, ready or not; stopped at the end of the block."""
    service = Service(settings(**changes), load)
    server = Server(service)
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield Live(service, server, server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive()


@contextmanager
def live(load: LoadOne, **changes: Any) -> Iterator[Live]:
    """A server as :func:`started` yields it, once its model is loaded."""
    with started(load, **changes) as edge:
        wait_until(lambda: edge.service.state is not State.STARTING)
        yield edge


def wait_until(holds: Callable[[], bool], seconds: float = 300.0) -> None:
    """Return when ``holds()``; fail after ``seconds``."""
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.005)


def curve(points: int = 8, **changes: Any) -> dict[str, Any]:
    """A light curve as JSON has it."""
    return {
        "object_id": "SN 2099zz",
        "mjd": [60_000.0 + i for i in range(points)],
        "flux": [1000.0 + i for i in range(points)],
        "flux_err": [100.0] * points,
        "band": ["ugrizY"[i % 6] for i in range(points)],
    } | changes


def raw_head(path: str, *lines: str) -> bytes:
    """Head of a POST as bytes; a test sends its body in its own way."""
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def raw_post(path: str, body: bytes, content_type: str = "application/json") -> bytes:
    """One POST as bytes."""
    return raw_head(path, f"Content-Type: {content_type}", f"Content-Length: {len(body)}") + body


def send_until_cut_off(connection: socket.socket, data: bytes, pause: float = 0.0, times: int = 100_000) -> None:
    """Send data again and again, every ``pause`` seconds; raises OSError once the service has closed the connection."""
    for _ in range(times):
        connection.sendall(data)
        time.sleep(pause)


def receive_all(connection: socket.socket) -> bytes:
    """Receive everything until the other side closes."""
    chunks = []
    while chunk := connection.recv(65536):
        chunks.append(chunk)
    return b"".join(chunks)


def outside_address() -> str:
    """Return an address of this machine other than loopback; skip the test if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        try:
            route.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address other than loopback")
        return str(route.getsockname()[0])
