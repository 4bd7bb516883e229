"""Probes of a worker: few connections at a time, and nothing about what answers."""

import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from service.observe.metrics import Metrics
from service.stream.probes import MAX_CONNECTIONS, Probes
from support.edge import HOST, wait_until


@pytest.fixture
def probes() -> Iterator[Probes]:
    found = Probes(HOST, 0, Metrics(), lambda: "", lambda: "still loading")
    yield found
    found.close()


def ask(probes: Probes, path: str) -> tuple[int, str, str]:
    connection = HTTPConnection(HOST, probes.port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.getheader("Server", ""), response.read().decode()
    finally:
        connection.close()


def test_they_answer_and_do_not_say_what_answers(probes: Probes) -> None:
    assert ask(probes, "/healthz") == (200, "nightjar ", "ok\n")
    assert ask(probes, "/readyz")[::2] == (503, "still loading\n")


def test_connections_that_say_nothing_take_few_threads(probes: Probes) -> None:
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
