"""Secrets must not leak, and unauthorised requests are rejected; ``test_hostile`` tests size limits.

Here: framing that counts as neither header nor body, other origins, keys, and secrets in logs, problems and traces.
"""

import hashlib
import hmac
import json
import re
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from nightjar_alerts.service.http.edge.protocol import MAX_HEADER_BYTES
from support.edge import Live, Network, curve, live, loader, raw_head, raw_post, receive_all, wait_until

KEYS = ("correct horse", "battery staple", "tower of babel")
DIGESTS = tuple(hashlib.sha256(key.encode()).hexdigest() for key in KEYS)


def head(*lines: str) -> bytes:
    return raw_head("/v1/classify", "Content-Type: application/json", *lines)


CHUNKED = head("Transfer-Encoding: chunked")
BODY = json.dumps(curve()).encode()


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    with live(loader(Network()), header_timeout=5, body_timeout=5, max_json_bytes=1_000_000) as edge:
        yield edge


@pytest.fixture(autouse=True)
def _goes_on(edge: Live) -> Iterator[None]:
    yield
    edge.still_well()
    wait_until(lambda: edge.service.budget.held == 0)


def flood(edge: Live, start: bytes, piece: bytes, most: int = 4_000_000) -> int:
    """Return the bytes of an endless request that the service read before it closed the connection or read no more."""
    sent = 0
    with edge.connect() as connection:
        connection.settimeout(2)
        connection.sendall(start)
        try:
            while sent < most:
                connection.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
    return sent


ENDLESS = {
    "chunk extension": (CHUNKED + b"1;", b"a" * 8192),
    "trailers": (CHUNKED + b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY), b"X-Filler: " + b"a" * 8000 + b"\r\n"),
    "one trailer": (CHUNKED + b"%x\r\n%s\r\n0\r\nX-Filler: " % (len(BODY), BODY), b"a" * 8192),
    "chunk size": (CHUNKED, b"0" * 8192),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_connection_bytes_outside_headers_and_body_are_bounded(edge: Live, kind: str) -> None:
    """Socket buffers hold a few megabytes, but the connection must be closed long before the end of the body."""
    start, piece = ENDLESS[kind]
    assert flood(edge, start, piece, most=200_000_000) < 50_000_000


def test_connection_headers_of_a_pipelined_request_are_bounded() -> None:
    network = Network()
    with live(loader(network), hung_run_seconds=300) as edge:  # the run is held for as long as the flood lasts
        network.hold()
        first = raw_post("/v1/classify", BODY)
        assert flood(edge, first + b"GET / HTTP/1.1\r\nX-Filler: ", b"a" * 8192, most=200_000_000) < 50_000_000
        network.release()
        edge.still_well()


def test_connection_body_in_smallest_chunks_is_read(edge: Live) -> None:
    body = BODY + b" " * (2 * MAX_HEADER_BYTES)
    with edge.connect() as connection:
        connection.sendall(CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"


def test_connection_trailer_is_no_header() -> None:
    """It neither authenticates the request nor sets its id."""
    chunks = b"%x\r\n%s\r\n0\r\nX-API-Key: %s\r\nX-Request-ID: smuggled\r\n\r\n" % (len(BODY), BODY, KEYS[0].encode())
    with live(loader(Network()), api_keys=DIGESTS) as edge, edge.connect() as connection:
        connection.sendall(head("Connection: close", "Transfer-Encoding: chunked") + chunks)
        reply = receive_all(connection)
    assert reply.startswith(b"HTTP/1.1 401")
    assert b"smuggled" not in reply


AMBIGUOUS = {
    "two lengths": head("Content-Length: 5", "Content-Length: 6"),
    "length and chunks": head("Content-Length: 5", "Transfer-Encoding: chunked"),
    "negative length": head("Content-Length: -1"),
    "length with a sign": head("Content-Length: +5"),
    "length beyond 64 bits": head("Content-Length: 99999999999999999999999"),
    "unknown coding": head("Transfer-Encoding: chunked, identity"),
    "chunk size beyond 64 bits": CHUNKED + b"fffffffffffffffff\r\n",
    "chunk size that is no number": CHUNKED + b"xyz\r\n",
    "space before the colon": b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
    "zero byte in a value": b"GET / HTTP/1.1\r\nHost: localhost\x00y\r\n\r\n",
}


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_connection_ambiguous_framing_is_rejected(edge: Live, kind: str) -> None:
    with edge.connect() as connection:
        connection.sendall(AMBIGUOUS[kind] + b"hello")
        connection.shutdown(socket.SHUT_WR)
        reply = receive_all(connection)
    assert reply == b"" or re.match(rb"HTTP/1.1 (4\d\d|501) ", reply)


def test_connection_rejections_are_counted_and_logged() -> None:
    with capture_logs() as logged, live(loader(Network())) as edge:
        with edge.connect() as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nX-Filler: " + b"x" * (2 * MAX_HEADER_BYTES))
            reply = receive_all(connection)
        assert edge.metric("nightjar_rejected_total", reason="headers-too-large") == 1
    (line,) = [line for line in logged if line["event"] == "connection rejected"]
    assert (line["status"], line["reason"]) == (431, "headers-too-large")
    assert line["request_id"].encode() in reply


def test_cors_without_setting_sends_no_headers(edge: Live) -> None:
    origin = {"Origin": "https://elsewhere.example"}
    asked = (("GET", "/v1/models", None, 200), ("POST", "/v1/classify", BODY, 403), ("GET", "/metrics", None, 200))
    for method, path, body, expected in asked:
        status, headers, _ = edge.ask(method, path, body, origin)
        assert status == expected
        assert [name for name in headers if name.startswith("access-control-")] == []
    preflight = origin | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    status, headers, _ = edge.ask("OPTIONS", "/v1/classify", headers=preflight)
    assert (status, headers["allow"]) == (204, "OPTIONS, POST")
    assert [name for name in headers if name.startswith("access-control-")] == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
def test_cors_simple_requests_of_pages_are_rejected(edge: Live, kind: str) -> None:
    assert edge.ask("POST", "/v1/classify", BODY, {"Content-Type": kind})[0] == 415


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/v1/models", "/problems/invalid", "/nowhere", "/metrics"])
def test_response_has_nosniff(edge: Live, path: str) -> None:
    assert edge.ask("GET", path)[1]["x-content-type-options"] == "nosniff"


def test_key_ring_compares_every_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """All digests are compared, so that timing reveals neither the position of a key nor a partial match."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(sent: bytes, known: bytes) -> bool:
        compared.append((sent, known))
        return hmac.compare_digest(sent, known)

    monkeypatch.setattr("nightjar_alerts.service.http.edge.keys.hmac", SimpleNamespace(compare_digest=compare))
    with live(loader(Network()), api_keys=DIGESTS) as guarded:
        for key in (KEYS[0], KEYS[2], "wrong", ""):
            compared.clear()
            status = guarded.ask("GET", "/v1/models", headers={"X-API-Key": key})[0]
            assert status == (200 if key in KEYS else 401)
            digest = hashlib.sha256(key.encode()).digest()
            assert compared == [(digest, bytes.fromhex(known)) for known in DIGESTS]


SECRET = "marker-of-a-secret"
EVERY_WAY_IN: list[tuple[str, bytes, str]] = [
    ("/v1/classify", json.dumps(curve(object_id=SECRET)).encode(), "application/json"),
    ("/v1/classify", json.dumps(curve(object_id=SECRET, flux=[7.0] * 8)).encode(), "application/json"),
    ("/v1/classify", json.dumps(curve(**{SECRET: 1})).encode(), "application/json"),
    ("/v1/classify", json.dumps(curve(object_id=SECRET)).encode() + b"\n" + SECRET.encode(), "application/x-ndjson"),
    ("/v1/classify", b"\x81\xb2" + SECRET.encode() + b"\xc0", "application/msgpack"),
    ("/v1/classify", SECRET.encode(), "application/vnd.apache.arrow.stream"),
    ("/v1/alerts", SECRET.encode(), "application/octet-stream"),
    ("/v1/alerts?schema=" + SECRET, b"x", "application/octet-stream"),
    ("/v1/alerts", SECRET.encode(), f"multipart/form-data; boundary={SECRET}"),
    ("/v2/models/echo/infer", json.dumps({"id": SECRET, "inputs": [{"name": SECRET}]}).encode(), "application/json"),
    (f"/v2/models/{SECRET}/infer", b"{}", "application/json"),
    (f"/v1/models/{SECRET}", b"{}", "application/json"),
]


def test_access_log_has_only_the_route_of_a_request() -> None:
    network = Network()
    network.on_marker[7.0] = lambda: 1 / 0
    with capture_logs() as logged, live(loader(network), api_keys=DIGESTS) as guarded:
        for path, body, kind in EVERY_WAY_IN:
            for key in (KEYS[0], SECRET):
                headers = {"Content-Type": kind, "Authorization": f"Bearer {key}", "Cookie": SECRET, "X-Other": SECRET}
                guarded.ask("POST", path, body, headers)
    assert len([line for line in logged if line["event"] == "request"]) == 2 * len(EVERY_WAY_IN)
    text = repr([{name: value for name, value in line.items() if name != "exc_info"} for line in logged])
    for secret in (SECRET, *KEYS, *DIGESTS):
        assert secret not in text


LEAKS = re.compile(
    rb'Traceback|File "|site-packages|\.py\b|onnxruntime|pydantic|msgspec|orjson|starlette|uvicorn| object at 0x'
)


def test_problem_reveals_no_internals(edge: Live) -> None:
    asked = [*EVERY_WAY_IN, ("/nowhere", b"", ""), ("/v1/classify", b"[" * 1000, "application/json")]
    asked += [
        ("/v1/classify", body, kind) for body in (b"\xff", b"{", b'{"mjd": 1e999}') for _, _, kind in EVERY_WAY_IN
    ]
    for path, body, kind in asked:
        status, headers, reply = edge.ask("POST", path, body, {"Content-Type": kind} if kind else {})
        assert not LEAKS.search(reply), (path, body, reply)
        assert "server" not in headers
        if status >= 400:
            assert headers["content-type"] == "application/problem+json"


def test_metrics_unknown_paths_add_no_series(edge: Live) -> None:
    """Clients cannot create metric labels, which would use memory."""
    before = _series(edge)
    for number in range(50):
        edge.ask("GET", f"/nowhere/{number}")
        edge.ask("GET", f"/v1/models/nobody-{number}")
        edge.ask("POST", f"/v2/models/nobody-{number}/infer", b"{}")
        edge.ask("GET", f"/problems/{number}", headers={"X-Request-ID": f"id-{number}"})
    assert _series(edge) - before < 80  # a histogram for each route that was not asked before


def _series(edge: Live) -> int:
    text = edge.ask("GET", "/metrics")[2].decode()
    return sum(line.startswith("nightjar_") for line in text.splitlines())
