"""Hostile clients on raw sockets: each gets a 4xx problem or no response, and the service stays available."""

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.edge import Live, Network, curve, live, loader, raw_head, raw_post, receive_all, wait_until

CHUNKED = raw_head("/v1/classify", "Transfer-Encoding: chunked")
LIMIT = 2_000_000


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    quick = {"header_timeout": 0.4, "body_timeout": 0.4, "stall_timeout": 0.4, "keep_alive": 1}
    with live(loader(Network()), max_json_bytes=LIMIT, max_connections=40, **quick) as edge:
        yield edge


@pytest.fixture(autouse=True)
def _goes_on(edge: Live) -> Iterator[None]:
    yield
    edge.still_well()
    wait_until(lambda: edge.service.budget.held == 0)
    assert edge.metric("nightjar_rejected_total", reason="internal") == 0


def answer(connection: socket.socket) -> tuple[int, Any]:
    """Return status and problem that a connection receives before it is closed."""
    head, _, body = receive_all(connection).partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    return int(head.split()[1]), json.loads(body)


def text(**changes: Any) -> bytes:
    return json.dumps(curve(**changes)).encode()


BODIES = {
    "NaN": (text().replace(b"1000.0", b"NaN"), 422),
    "Infinity": (text().replace(b"1000.0", b"-Infinity"), 422),
    "1e999": (text().replace(b"1000.0", b"1e999"), 422),
    "boolean": (text(flux=[True] * 8), 422),
    "string": (text(flux=["1"] * 8), 422),
    "null": (text(flux=None), 422),
    "no points": (text(points=0), 422),
    "a million points": (text(points=30_000), 422),
    "really a million points": (b'{"mjd":[' + b"60000.5," * 1_000_000, 413),
    "unknown band": (text(band=["q"] * 8), 422),
    "zero error": (text(flux_err=[0.0] * 8), 422),
    "negative error": (text(flux_err=[-1.0] * 8), 422),
    "wrong unit": (text(flux_unit="mag"), 422),
    "unknown field": (text(surprise=1), 422),
    "julian date": (text(mjd=[2_460_000.5 + i for i in range(8)]), 422),
    "deep lists": (b"[" * 100_000, 400),
    "deep objects": (b'{"a":' * 100_000, 400),
    "invalid UTF-8": (b'{"object_id":"\xff\xfe"}', 400),
    "invalid JSON": (text()[:-5], 400),
    "UTF-16": (text().decode().encode("utf-16"), 400),
    "nothing": (b"", 400),
    "a thousand and one curves": (json.dumps({"light_curves": [{}] * 1001}).encode(), 413),
    "an endless integer": (b'{"object_id":' + b"9" * 100_000 + b"}", 422),
    "a long integer": (b'{"object_id":' + b"9" * 30 + b"}", 422),
}


@pytest.mark.parametrize("name", BODIES)
def test_classify_invalid_bodies_are_problems(edge: Live, name: str) -> None:
    body, expected = BODIES[name]
    status, problem = edge.classify(body)
    assert status == expected, problem
    assert (problem["status"], problem["instance"]) == (expected, "/v1/classify")
    if expected == 422:
        assert all(error["pointer"].startswith("/") and error["reason"] for error in problem["errors"])
        assert problem["errors"]


def test_classify_unsorted_times_and_single_points_are_classified(edge: Live) -> None:
    assert edge.classify(curve(3, mjd=[60_002, 60_000, 60_001]))[0] == 200
    assert edge.classify(curve(1))[0] == 200


def test_request_with_too_large_content_length_times_out(edge: Live) -> None:
    with edge.connect() as connection:
        connection.sendall(raw_post("/v1/classify", text()).replace(b"Content-Length: ", b"Content-Length: 1"))
        status, problem = answer(connection)
    assert (status, problem["type"]) == (408, "/problems/request-timeout")


def test_request_with_content_length_beyond_the_limit_is_rejected_unread(edge: Live) -> None:
    with edge.connect() as connection:
        connection.sendall(raw_head("/v1/classify", "Content-Length: 99999999999"))
        assert answer(connection)[0] == 413


def test_request_in_chunks_is_counted_as_it_arrives(edge: Live) -> None:
    with edge.connect() as connection:
        connection.sendall(CHUNKED)
        chunk = b"%x\r\n%s\r\n" % (100_000, b" " * 100_000)
        for _ in range(LIMIT // 100_000 + 5):
            connection.sendall(chunk)
        status, problem = answer(connection)
    assert (status, problem["limit"]) == (413, LIMIT)


@pytest.mark.parametrize("late", [False, True], ids=["with the headers", "later"])
@pytest.mark.parametrize(
    "body", [b"-1\r\nx", b"0x5\r\n", b"f" * 21 + b"\r\n", b"2\r\n{}x", b"1\r\n{\r\n0\r\nContent-Length: 5\r\n\r\n"]
)
def test_request_with_invalid_chunks_is_malformed(edge: Live, body: bytes, late: bool) -> None:
    with edge.connect() as connection:
        connection.sendall(CHUNKED if late else CHUNKED + body)
        if late:
            wait_until(lambda: edge.metric("nightjar_inflight_requests") == 1)
            connection.sendall(body)
        status, problem = answer(connection)
    assert (status, problem["type"]) == (400, "/problems/malformed")


def test_client_that_keeps_sending_reads_the_response(edge: Live) -> None:
    """Closing at once would reset the connection and lose the response."""
    body = b" " * (LIMIT + 6_000_000)
    status, headers, reply = edge.ask("POST", "/v1/classify", body)
    assert (status, json.loads(reply)["limit"]) == (413, LIMIT)
    assert headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("head", [b"GET /", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b"\r\n"])
def test_client_with_slow_headers_times_out(edge: Live, head: bytes) -> None:
    with edge.connect() as connection:
        connection.sendall(head)
        assert answer(connection)[0] == 408


def test_client_with_headers_byte_by_byte_times_out(edge: Live) -> None:
    with edge.connect() as connection:
        for byte in b"GET / HTTP/1.1":
            connection.sendall(bytes([byte]))
            time.sleep(0.05)
            if edge.server.server_state.connections == set():
                break
        assert answer(connection)[0] == 408


def test_client_with_slow_body_times_out(edge: Live) -> None:
    with edge.connect() as connection:
        connection.sendall(CHUNKED + b'1\r\n{\r\n1\r\n"\r\n')
        assert answer(connection)[0] == 408


def test_client_with_endless_headers_is_rejected(edge: Live) -> None:
    with edge.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n" + b"X-Filler: " + b"x" * 200_000)
        status, problem = answer(connection)
    assert (status, problem["limit"]) == (431, 32768)


@pytest.mark.parametrize(
    "noise",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"HELLO\r\n\r\n", b"GET \xff HTTP/1.1\r\n\r\n"],
)
def test_client_of_another_protocol_is_rejected(edge: Live, noise: bytes) -> None:
    with edge.connect() as connection:
        connection.sendall(noise)
        assert answer(connection)[0] == 400


def test_client_that_disconnects_within_the_body_leaves_nothing(edge: Live) -> None:
    with edge.connect() as connection:
        connection.sendall(raw_post("/v1/classify", text())[:-20])
        connection.shutdown(socket.SHUT_WR)
        assert receive_all(connection) == b""


def test_client_that_disconnects_at_any_byte_leaves_nothing(edge: Live) -> None:
    request = raw_post("/v1/classify", text())
    for cut in range(0, len(request) + 1, 37):
        connection = edge.connect()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
        connection.sendall(request[:cut])
        connection.close()
    wait_until(lambda: edge.metric("nightjar_inflight_requests") == 0)
    wait_until(lambda: not edge.server.server_state.connections)


@pytest.mark.slow
def test_client_that_never_reads_is_disconnected(edge: Live) -> None:
    """The response exceeds all buffers; the service disconnects the client instead of buffering it."""
    request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with edge.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(0.2)
        with contextlib.suppress(OSError):  # it waits for the client to read, or ends with too many requests ahead
            for _ in range(2000):
                connection.sendall(request)
        wait_until(lambda: not edge.server.server_state.connections)


def test_connections_beyond_the_limit_get_503(edge: Live) -> None:
    crowd = [edge.connect() for _ in range(40)]
    for connection in crowd:
        connection.sendall(CHUNKED)
    wait_until(lambda: edge.metric("nightjar_inflight_requests") == 40)
    with edge.connect() as late:
        status, problem = answer(late)
    for connection in crowd:
        connection.close()
    assert (status, problem["type"]) == (503, "/problems/unavailable")
    wait_until(lambda: not edge.server.server_state.connections)


def test_requests_in_one_packet_are_answered_in_order(edge: Live) -> None:
    with edge.connect() as connection:
        connection.sendall(
            raw_post("/v1/classify", text()) + raw_post("/v1/classify", b"{") + b"GET /healthz HTTP/1.0\r\n\r\n"
        )
        replies = receive_all(connection)
    assert [part[:3] for part in replies.split(b"HTTP/1.1 ")[1:]] == [b"200", b"400", b"200"]
