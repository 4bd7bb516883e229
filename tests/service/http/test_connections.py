"""Connections: time limits, sizes, pipelining, ``Upgrade``, and the required attributes of uvicorn's class."""

import inspect
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from importlib.metadata import requires, version
from typing import cast

import h11
import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from nightjar_alerts.service.http.edge import protocol
from nightjar_alerts.service.http.edge.protocol import MAX_HEADERS, MAX_LINES, LimitedProtocol, ServerConfig
from support.edge import Live, Network, curve, live, loader, raw_head, raw_post, receive_all, wait_until
from support.wire import lines_body

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
CLOSING = GET.replace(b"Host", b"Connection: close\r\nHost")
CHUNKED = raw_head("/v1/classify", "Connection: close", "Transfer-Encoding: chunked")
BODY = json.dumps(curve()).encode()


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    quick = {"header_timeout": 0.5, "body_timeout": 0.5, "stall_timeout": 0.5, "keep_alive": 1}
    with live(loader(Network()), max_connections=60, **quick) as edge:
        yield edge


@pytest.fixture(autouse=True)
def _goes_on(edge: Live) -> Iterator[None]:
    yield
    edge.still_well()


def status(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1])


@pytest.mark.parametrize("count", [2, 8, 500])
def test_pipelined_requests_are_answered_in_order(edge: Live, count: int) -> None:
    with edge.connect() as connection:
        connection.sendall(GET * (count - 1) + CLOSING)
        assert receive_all(connection).count(b"HTTP/1.1 200") == count


def test_pipelined_requests_of_many_connections_take_turns(edge: Live) -> None:
    """All requests of each connection get responses, and connections closed meanwhile are skipped."""
    with ExitStack() as stack:
        connections = [stack.enter_context(edge.connect()) for _ in range(20)]
        for connection in connections:
            connection.sendall(GET * 99 + CLOSING)
        for connection in connections[::2]:
            connection.close()
        edge.still_well()
        for connection in connections[1::2]:
            assert receive_all(connection).count(b"HTTP/1.1 200") == 100
    config = cast(ServerConfig, edge.server.config)
    wait_until(lambda: not edge.server.server_state.connections and not config.pipelining)


def test_pipelined_requests_run_one_at_a_time() -> None:
    network = Network()
    with live(loader(network)) as edge, edge.connect() as connection:
        network.hold()
        connection.sendall(raw_post("/v1/classify", BODY) * 50)
        assert network.started.acquire(timeout=20)
        time.sleep(0.1)
        assert edge.metric("nightjar_inflight_requests") == 1
        network.release()


@pytest.mark.parametrize("line", [b"a:\r\n", b"X-Filler: y\r\n"])
def test_headers_beyond_the_number_allowed_are_rejected(edge: Live, line: bytes) -> None:
    with edge.connect() as connection:
        connection.sendall(GET[:-2] + line * (MAX_HEADERS + 1) + b"\r\n")
        assert receive_all(connection).startswith(b"HTTP/1.1 431 ")
    with edge.connect() as connection:
        connection.sendall(GET[:-2] + line * (MAX_HEADERS - 2) + b"Connection: close\r\n\r\n")
        assert receive_all(connection).startswith(b"HTTP/1.1 200 ")


def test_rejected_headers_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection stays open for a short time after a rejection; many of them must not exhaust the memory."""
    monkeypatch.setattr(protocol, "REJECT_SECONDS", 1000.0)
    with live(loader(Network())) as edge:
        connections = edge.server.server_state.connections
        with edge.connect() as connection:
            wait_until(lambda: len(connections) == 1)
            (served,) = connections
            assert isinstance(served, LimitedProtocol)
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * 10 * MAX_LINES)
            wait_until(lambda: served.rejected and served.unparsed == b"")
            assert status(connection.recv(65536)) == 431
            assert served in connections
        wait_until(lambda: not connections)  # it notices that the client has closed the connection


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nConnection: close\r\nhost: localhost\r\n\r\n", 200),
        (raw_head("/v1/classify", "Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n", 501),
    ],
)
def test_request_head_gets_the_status_of_the_standard(edge: Live, head: bytes, expected: int) -> None:
    with edge.connect() as connection:
        connection.sendall(head)
        assert status(receive_all(connection)) == expected


def test_garbage_behind_a_request_gets_no_reply_in_its_place(edge: Live) -> None:
    for garbage in (b"\0\0\0\0\r\n\r\n", b"GET /healthz HTTP/9.9\r\n\r\n"):
        with edge.connect() as connection:
            connection.sendall(GET + garbage)
            reply = receive_all(connection)
        assert reply.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.0", "anything"])
@pytest.mark.parametrize("chunked", [False, True])
def test_upgrade_header_keeps_the_body(edge: Live, protocol: str, chunked: bool) -> None:
    """Java's HttpClient and ``curl --http2`` send one with every request."""
    upgrade = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\nHTTP2-Settings: AAMAAABk\r\n".encode()
    request = raw_post("/v1/classify", BODY)
    if chunked:
        head = raw_head("/v1/classify", "Transfer-Encoding: chunked")
        request = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    with edge.connect() as connection:
        connection.sendall(request.replace(b"Host: localhost\r\n", b"Host: localhost\r\n" + upgrade, 1) + CLOSING)
        assert receive_all(connection).count(b"HTTP/1.1 200") == 2


def test_http_1_0_stream_ends_with_the_connection(edge: Live) -> None:
    body = lines_body([curve(), curve()])
    head = b"POST /v1/classify HTTP/1.0\r\nContent-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n"
    with edge.connect() as connection:
        connection.sendall(head % len(body) + body)
        head, _, reply = receive_all(connection).partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert [json.loads(line)["status"] for line in reply.splitlines()] == ["classified"] * 2


def test_body_in_chunks_of_one_byte_is_read(edge: Live) -> None:
    with edge.connect() as connection:
        connection.sendall(CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n")
        assert status(receive_all(connection)) == 200
    assert len(BODY) * 2 > MAX_LINES


def test_many_tiny_chunks_do_not_stall_other_connections() -> None:
    """Parsing steps are small, so that a probe gets a response meanwhile."""
    flood = CHUNKED + b"1\r\n \r\n" * 20_000
    with live(loader(Network())) as edge, edge.connect() as busy, edge.connect() as probe:
        busy.sendall(flood)
        probe.sendall(CLOSING)
        assert status(receive_all(probe)) == 200
        busy.sendall(b"2\r\n{}\r\n0\r\n\r\n")
        assert status(receive_all(busy)) == 422


def test_rejected_body_that_goes_on_is_read_until_the_time_limit(edge: Live) -> None:
    with edge.connect() as connection:
        connection.sendall(raw_head("/nowhere", "Content-Length: 99999"))
        assert status(connection.recv(65536)) == 404
        connection.sendall(b"x" * 1000)
        connection.settimeout(20)
        assert connection.recv(65536) == b""


def test_pipelined_body_may_arrive_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken for a rest of the request before it, and cut off."""
    monkeypatch.setattr(protocol, "DRAIN_SECONDS", 0.1)
    head = CHUNKED.replace(b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(BODY))
    with live(loader(Network())) as edge, edge.connect() as connection:
        connection.sendall(GET + head + BODY[:10])
        time.sleep(0.5)
        connection.sendall(BODY[10:])
        assert receive_all(connection).count(b"HTTP/1.1 200") == 2


def test_reply_that_is_never_read_ends_the_connection(edge: Live) -> None:
    with edge.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(0.2)
        try:
            for _ in range(400):
                connection.sendall(GET.replace(b"/healthz", b"/openapi.json") * 10)
        except OSError:
            pass  # the service reads no further
        wait_until(lambda: not edge.server.server_state.connections)


def test_connections_beyond_the_limit_are_rejected() -> None:
    with live(loader(Network()), max_connections=5) as edge:
        crowd = [edge.connect() for _ in range(5)]
        wait_until(lambda: len(edge.server.server_state.connections) == 5)
        with edge.connect() as late:
            assert status(receive_all(late)) == 503
        for connection in crowd:
            connection.close()
        wait_until(lambda: not edge.server.server_state.connections)
        edge.still_well()


def test_connections_beyond_twice_the_limit_are_closed_without_a_response() -> None:
    """A rejected connection stays open for a second, during which the third one must arrive."""
    with live(loader(Network()), max_connections=1, header_timeout=300) as edge, edge.connect() as first:

        def third_gets_nothing() -> bool:
            with edge.connect() as second, edge.connect() as third:
                answers = [b"", b""]
                for index, connection in enumerate((second, third)):
                    with suppress(ConnectionResetError):
                        answers[index] = receive_all(connection)
                return answers[0].startswith(b"HTTP/1.1 503") and answers[1] == b""

        wait_until(third_gets_nothing)
        first.sendall(CLOSING)
        assert status(receive_all(first)) == 200


def test_idle_connection_is_closed_after_keep_alive(edge: Live) -> None:
    with edge.connect() as connection:
        connection.settimeout(60)
        connection.sendall(GET)
        assert connection.recv(12) == b"HTTP/1.1 200"
        receive_all(connection)  # returns when the service closes the connection


OVERRIDDEN = (
    "connection_made", "connection_lost", "data_received", "on_response_complete", "pause_writing", "resume_writing",
    "send_400_response",
)  # fmt: skip
USED = [
    *(
        (H11Protocol, name)
        for name in (*OVERRIDDEN, "connections", "transport", "loop", "conn", "flow", "cycle", "client")
    ),
    *((RequestResponseCycle, name) for name in ("response_complete", "response_started", "more_body", "disconnected")),
    (RequestResponseCycle, "message_event"),
    (FlowControl, "read_paused"),
    *((h11.Connection, name) for name in ("our_state", "their_state", "trailing_data")),
]


@pytest.mark.parametrize(("of", "name"), USED, ids=lambda value: value if isinstance(value, str) else value.__name__)
def test_uvicorn_and_h11_have_what_the_protocol_uses(of: type, name: str) -> None:
    """Undocumented, so a new version may lack them; then :mod:`service.http.edge.protocol` has to change."""
    assert hasattr(of, name) or f"self.{name}" in inspect.getsource(of)
    if name in OVERRIDDEN:
        parameters, theirs = (list(inspect.signature(getattr(each, name)).parameters) for each in (LimitedProtocol, of))
        assert parameters == theirs


def test_limited_protocol_uses_nothing_else_of_uvicorn() -> None:
    """Every attribute is the protocol's own, or listed above; every overridden method is listed above."""
    own = {*vars(LimitedProtocol), *re.findall(r"self\.(\w+)", inspect.getsource(LimitedProtocol.__init__))}
    source = inspect.getsource(LimitedProtocol)
    listed = {of: {name for each, name in USED if each is of} for of, _ in USED}
    assert set(re.findall(r"self\.(\w+)", source)) - own <= listed[H11Protocol]
    assert set(re.findall(r"self\.cycle\.(\w+)", source)) == listed[RequestResponseCycle]
    assert set(re.findall(r"self\.flow\.(\w+)", source)) == listed[FlowControl]
    assert set(re.findall(r"self\.conn\.(\w+)", source)) == listed[h11.Connection]
    overridden = {name for name in vars(LimitedProtocol).keys() & vars(H11Protocol) if not name.startswith("__")}
    assert overridden == set(OVERRIDDEN)
    assert not [name for name in own if name.startswith("_") and not name.startswith("__")]  # uvicorn may have it too


def test_uvicorn_version_is_bounded() -> None:
    wanted, *_ = [each for each in map(Requirement, requires("nightjar-alerts") or ()) if each.name == "uvicorn"]
    assert version("uvicorn") in wanted.specifier
    major, minor = Version(version("uvicorn")).release[:2]
    assert f"{major}.{minor + 1}.0" not in wanted.specifier
