"""Versions change under continuous requests: none fails, and each result is from the version that it names."""

import json
import socket
import threading
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import pytest

from nightjar_alerts.service.registry.loader import load_one
from support.edge import HOST, Live, curve, live, raw_head, wait_until
from support.graph_bundles import classifier_bundle
from support.repository import version

pytestmark = pytest.mark.serial

VERSIONS = {f"1.{i}.0": 1.0 + i for i in range(6)}
BODY = json.dumps(curve(points=5)).encode()


class Client(threading.Thread):
    """Sends requests continuously over one connection; ``answers`` pairs each version with its confidence."""

    def __init__(self, edge: Live) -> None:
        super().__init__()
        self.edge, self.going_on = edge, True
        self.answers: list[tuple[str, float]] = []
        self.faults: list[object] = []
        self.start()

    def got(self, number: str) -> bool:
        """Return whether a version gave the last result."""
        return bool(self.answers) and self.answers[-1][0] == number

    def run(self) -> None:
        connection = HTTPConnection(HOST, self.edge.port, timeout=20)
        while self.going_on:
            connection.request("POST", "/v1/classify?model=mine", BODY, {"Content-Type": "application/json"})
            response = connection.getresponse()
            reply = json.loads(response.read())
            if response.status != 200:
                self.faults.append(reply)
                continue
            self.answers.append((reply["model"]["version"], reply["results"][0]["confidence"]))
        connection.close()


@pytest.mark.parametrize("cache_bytes", [0, 1_000_000])
def test_reload_under_load_fails_no_request_and_mixes_no_results(tmp_path: Path, cache_bytes: int) -> None:
    root = tmp_path / "bundles"
    version(root, "1.0.0", VERSIONS["1.0.0"])
    chosen = {"bundle": classifier_bundle(tmp_path / "default", name="first").path, "repository": root}
    with live(load_one, **chosen, repository_poll=0.02, cache_bytes=cache_bytes) as edge:
        clients = [Client(edge) for _ in range(3)]
        for number, factor in VERSIONS.items():
            version(root, number, factor)
            wait_until(partial(clients[0].got, number))
        for client in clients:
            client.going_on = False
            client.join(20)
        wait_until(lambda: not edge.service.models.draining)
        assert [str(served.reference) for served in edge.service.models.served] == ["first@0.0.1", "mine@1.5.0"]
    answers = [answer for client in clients for answer in client.answers]
    assert [fault for client in clients for fault in client.faults] == []
    assert {number for number, _ in answers} == set(VERSIONS)
    assert len({(number, round(confidence, 5)) for number, confidence in answers}) == len(VERSIONS)
    for client in clients:
        numbers = [number for number, _ in client.answers]
        assert numbers == sorted(numbers), "once a new version answers, the old one answers nobody"


def test_reload_ndjson_stream_keeps_its_version(tmp_path: Path) -> None:
    root = tmp_path / "bundles"
    version(root, "1.0.0", 1.0)
    bundle = classifier_bundle(tmp_path / "default", name="first").path
    with live(load_one, bundle=bundle, repository=root, repository_poll=0.02) as edge:
        with edge.connect() as stream:
            lines = "Content-Type: application/x-ndjson", "Transfer-Encoding: chunked", "Connection: close"
            stream.sendall(raw_head("/v1/classify?model=mine", *lines) + chunk(BODY))
            first = until(stream, b'"confidence"')
            assert b"nightjar-model: mine/1.0.0;" in first.lower()
            version(root, "1.1.0", 2.0)
            wait_until(lambda: edge.post("/v1/classify?model=mine", curve())[1]["model"]["version"] == "1.1.0")
            assert [str(left.reference) for left in edge.service.models.draining] == ["mine@1.0.0"]
            stream.sendall(chunk(BODY) + b"0\r\n\r\n")
            second = until(stream, b"0\r\n\r\n")
        results = [json.loads(line) for line in (first + second).split(b"\r\n") if line.startswith(b'{"status"')]
        assert [result["confidence"] for result in results] == [results[0]["confidence"]] * 2
        wait_until(lambda: not edge.service.models.draining)


def chunk(line: bytes) -> bytes:
    """A line as a chunk of a body."""
    return f"{len(line) + 1:x}\r\n".encode() + line + b"\n\r\n"


def until(stream: socket.socket, mark: bytes) -> bytes:
    """Read up to and including a mark."""
    received = b""
    while mark not in received:
        data = stream.recv(65536)
        assert data, received
        received += data
    return received
