"""Costs of a connection before any key is looked at: requests sent ahead, headers, idle places, unread replies."""

import asyncio
import contextlib
import gc
import inspect
import json
import re
import socket
import struct
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from functools import partial
from http.client import HTTPResponse
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from nightjar_alerts.service.http.curves import classified
from nightjar_alerts.service.http.edge import protocol
from nightjar_alerts.service.http.edge.protocol import (
    MAX_AHEAD,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    ONE_PIECE_BYTES,
    LimitedProtocol,
    LingeringTransport,
)
from nightjar_alerts.service.http.edge.turns import MOST_TURNS, Turns
from nightjar_alerts.service.http.endpoint import INLINE_ITEMS
from nightjar_alerts.service.http.forms import Answers
from support.edge import HOST, Live, Network, curve, live, loader, raw_post, receive_all, wait_until

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
SLOW = b"GET /docs HTTP/1.1\r\nHost: x\r\n\r\n"


PLACES = 80


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    with live(loader(Network()), header_timeout=5, stall_timeout=0.5, max_connections=PLACES, keep_alive=20) as edge:
        yield edge


@pytest.fixture(autouse=True)
def _goes_on(edge: Live) -> Iterator[None]:
    yield
    edge.still_well()


def connections(edge: Live) -> int:
    return len(edge.server.server_state.connections)


def count_of_protocols() -> int:
    return sum(type(each) is LimitedProtocol for each in gc.get_objects())


def hung_up(connection: socket.socket) -> bool:
    """Tell if the service ends the connection within two seconds, whatever it sent before."""
    connection.settimeout(2)
    try:
        receive_all(connection)
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def test_a_few_requests_sent_ahead_are_answered_in_order(edge: Live) -> None:
    with edge.connect() as connection:
        connection.sendall(GET * (MAX_AHEAD - 1) + GET.replace(b"Host", b"Connection: close\r\nHost"))
        assert receive_all(connection).count(b"HTTP/1.1 200") == MAX_AHEAD


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        GET,
        GET + b"garbage",
        b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n{",
        b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 1000,
    ],
    ids=["nothing", "whole", "garbage", "refused", "half", "headers"],
)
def test_a_connection_that_ended_leaves_nothing_for_the_search_for_cycles(edge: Live, sent: bytes) -> None:
    """A thousand of them kept every other thread waiting for 30 ms."""
    gc.collect()
    gc.disable()
    try:
        before = count_of_protocols()
        for _ in range(5):
            with edge.connect() as connection:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionError, TimeoutError):
                    receive_all(connection)
        wait_until(lambda: count_of_protocols() <= before)
    finally:
        gc.enable()


def test_a_connection_with_thousands_of_requests_ahead_ends(edge: Live) -> None:
    """Each took 2 kB of memory for 18 bytes, before any key: 300 connections of 53 kB ended a process of 2 GB."""
    with edge.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(SLOW * 12)
        assert hung_up(connection)
    with edge.connect() as connection:
        connection.sendall(GET * 3000)
        assert hung_up(connection)


def test_requests_in_small_pieces_wait_unread() -> None:
    network = Network()
    with live(loader(network)) as edge:
        network.hold()
        body = b'{"mjd":[60000],"flux":[1],"flux_err":[1],"band":["r"]}'
        head = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        with edge.connect() as connection:
            connection.sendall(head % len(body) + body)
            try:
                for _ in range(200):
                    connection.sendall(GET * 8)
                    time.sleep(0.002)
            except OSError:
                pass
            (server_side,) = edge.server.server_state.connections or (None,)
            assert server_side is None or len(server_side.pipeline) <= MAX_AHEAD  # type: ignore[union-attr]  # ours
        network.release()
        edge.still_well()


@pytest.mark.parametrize("line", [b"a:\r\n", b"X-Filler: y\r\n"])
def test_headers_are_bounded_in_number(edge: Live, line: bytes) -> None:
    with edge.connect() as connection:
        connection.sendall(GET[:-2] + line * (MAX_HEADERS + 1) + b"\r\n")
        assert receive_all(connection).startswith(b"HTTP/1.1 431 ")
    with edge.connect() as connection:
        connection.sendall(GET[:-2] + line * (MAX_HEADERS - 2) + b"Connection: close\r\n\r\n")
        assert receive_all(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nConnection: close\r\nhost: a\r\n\r\n", 200),
    ],
)
def test_a_request_names_one_host(edge: Live, head: bytes, status: int) -> None:
    with edge.connect() as connection:
        connection.sendall(head)
        assert receive_all(connection).startswith(b"HTTP/1.%d %d " % (1, status))


def test_garbage_behind_a_request_gets_no_answer_in_the_place_of_its_reply(edge: Live) -> None:
    for garbage in (b"\0\0\0\0", b"GET /healthz HTTP/9.9\r\n\r\n", b"x" * 100):
        with edge.connect() as connection:
            connection.sendall(GET + garbage)
            reply = b""
            with contextlib.suppress(ConnectionError):
                reply = receive_all(connection)
        assert not reply.startswith(b"HTTP/1.1 400"), "the first request is answered first or not at all"


def test_the_longest_idle_connection_makes_room_for_a_new_one(edge: Live) -> None:
    """Ten thousand connections that say nothing kept everybody else out until their headers were late."""
    idle = [edge.connect() for _ in range(PLACES + 20)]
    try:
        for _ in range(20):
            assert edge.ask("GET", "/healthz")[0] == 200
        assert connections(edge) <= PLACES
        assert hung_up(idle[0])
        idle[-1].sendall(GET.replace(b"Host", b"Connection: close\r\nHost"))
        assert receive_all(idle[-1]).startswith(b"HTTP/1.1 200")
    finally:
        for connection in idle:
            connection.close()
    wait_until(lambda: connections(edge) == 0)


def test_a_kept_connection_makes_room_as_well(edge: Live) -> None:
    kept = [edge.connect() for _ in range(PLACES)]
    try:
        for connection in kept:
            connection.sendall(GET)
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert edge.classify(curve())[0] == 200
    finally:
        for connection in kept:
            connection.close()


def connect_from(edge: Live, host: str) -> socket.socket:
    """Open a connection from an address, and return it once the service has let it in."""
    connection = socket.create_connection((HOST, edge.port), timeout=20, source_address=(host, 0))
    name = connection.getsockname()
    wait_until(lambda: name in clients(edge))
    return connection


def clients(edge: Live) -> set[tuple[str, int] | None]:
    """Return the address and port of every client that is connected."""
    return {protocol.client for protocol in list(edge.server.server_state.connections)}  # type: ignore[union-attr]  # ours


@pytest.fixture
def kept(edge: Live) -> Iterator[socket.socket]:
    """A connection that has been idle longer than any that a test opens."""
    with edge.connect() as connection:
        connection.sendall(GET)
        reply = HTTPResponse(connection)
        reply.begin()
        assert reply.status == 200
        reply.read()  # the head and the body may come apart
        yield connection
    wait_until(lambda: connections(edge) == 0)


ELSEWHERE = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has more than one address without a network")


@ELSEWHERE
@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", b"HTTP/1.1 404"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", b"HTTP/1.1 400"),
        (GET, b"HTTP/1.1 200"),
        (b"", b""),
    ],
    ids=["lingering", "refused", "kept", "silent"],
)
def test_one_address_pushes_out_its_own_connections_only(
    edge: Live, kept: socket.socket, monkeypatch: pytest.MonkeyPatch, said: bytes, told: bytes
) -> None:
    """Connections that lingered could not be ended: all others were, and then newcomers were refused."""
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 600.0)
    crowd = []
    try:
        for _ in range(2 * PLACES):
            crowd.append(connect_from(edge, "127.0.0.2"))
            crowd[-1].sendall(said)
            assert crowd[-1].recv(len(told)) == told
            assert connections(edge) <= PLACES + 1
        assert edge.ask("GET", "/healthz")[0] == 200
        assert hung_up(crowd[0])
        kept.sendall(GET)
        assert kept.recv(12) == b"HTTP/1.1 200"
    finally:
        for connection in crowd:
            connection.close()


@ELSEWHERE
def test_a_connection_that_lingers_gives_way_before_one_that_is_idle(
    edge: Live, kept: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 600.0)
    with contextlib.ExitStack() as crowd:
        idle = [crowd.enter_context(edge.connect()) for _ in range(PLACES - 2)]
        lingering = crowd.enter_context(connect_from(edge, "127.0.0.2"))
        lingering.sendall(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
        assert lingering.recv(12) == b"HTTP/1.1 404"
        assert edge.ask("GET", "/healthz")[0] == 200
        assert hung_up(lingering)
        for connection in (kept, idle[0], idle[-1]):
            connection.sendall(GET)
            assert connection.recv(12) == b"HTTP/1.1 200"


def test_newcomers_that_were_refused_hold_no_places(edge: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 600.0)
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(edge.connect()) for _ in range(PLACES)]
        for connection in crowd:
            connection.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        wait_until(lambda: edge.metric("nightjar_inflight_requests") == PLACES)
        for _ in range(10):
            refused = stack.enter_context(edge.connect())
            assert refused.recv(12) == b"HTTP/1.1 503"
        crowd[0].close()
        wait_until(lambda: connections(edge) == PLACES + 9)
        assert edge.ask("GET", "/healthz")[0] == 200
    wait_until(lambda: connections(edge) == 0)


HELD = raw_post("/v1/classify", json.dumps(curve()).encode())


def test_a_connection_whose_request_sent_ahead_is_at_work_keeps_its_place() -> None:
    network = Network()
    with live(loader(network), max_connections=4) as edge, edge.connect() as busy:
        network.hold()
        busy.sendall(GET + HELD.replace(b"Host", b"Connection: close\r\nHost"))
        assert network.started.acquire(timeout=20)
        with contextlib.ExitStack() as crowd:
            for _ in range(8):
                other = crowd.enter_context(edge.connect())
                other.sendall(GET)
                assert other.recv(12) == b"HTTP/1.1 200"
            network.release()
            assert receive_all(busy).count(b"HTTP/1.1 200") == 2


def test_only_a_small_reply_is_written_on_the_event_loop(edge: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody else waited while a reply about a thousand packets was put together there in one go."""
    threads: list[str] = []

    def noted(*items: Any) -> Answers:
        threads.append(threading.current_thread().name)
        return classified(*items)

    monkeypatch.setattr("nightjar_alerts.service.http.routes.light_curves.classified", noted)
    for count in (1, INLINE_ITEMS, INLINE_ITEMS + 1):
        status, reply = edge.classify({"light_curves": [curve() for _ in range(count)]})
        assert (status, len(reply["results"])) == (200, count)
    assert threads[0] == threads[1] != threads[2]
    assert threads[2].startswith("decode")


def test_headers_that_never_end_are_not_parsed_to_their_end(edge: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    data_received = HttpToolsProtocol.data_received

    def noted(self: HttpToolsProtocol, data: bytes) -> None:
        parsed.append(len(data))
        data_received(self, data)

    monkeypatch.setattr(HttpToolsProtocol, "data_received", noted)
    with loop_stands_still(edge), edge.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + (b"X-Filler: " + b"x" * 8000 + b"\r\n") * 20)
    edge.still_well()
    first = sum(length for length in parsed if length > 1000)
    assert MAX_HEADER_BYTES < first <= MAX_HEADER_BYTES + 1


RESET = struct.pack("ii", 1, 0)


@contextlib.contextmanager
def loop_stands_still(edge: Live) -> Iterator[None]:
    """Stop the event loop for the length of the block: nothing is accepted or read."""
    begun, over = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        over.wait(30)

    edge.server.servers[0].get_loop().call_soon_threadsafe(wait)
    assert begun.wait(30)
    try:
        yield
    finally:
        over.set()


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells of a connection that has ended")
def test_nothing_is_made_for_connections_that_were_reset_before_they_were_accepted(
    edge: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    original = HttpToolsProtocol.connection_made

    def connection_made(self: HttpToolsProtocol, transport: asyncio.Transport) -> None:
        made.append(self)
        original(self, transport)

    monkeypatch.setattr(HttpToolsProtocol, "connection_made", connection_made)
    with loop_stands_still(edge):
        for _ in range(50):
            with edge.connect() as connection:
                connection.sendall(GET)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    edge.still_well()
    assert len(made) == 1
    wait_until(lambda: not connections(edge))


def test_a_request_whose_client_left_before_its_turn_never_begins(edge: Live) -> None:
    before = edge.metric("nightjar_requests_total", route="/healthz", code="200")
    peers = [edge.connect() for _ in range(4 * MOST_TURNS)]
    edge.still_well()
    with loop_stands_still(edge):
        for peer in peers:
            peer.sendall(GET)
        for peer in peers[MOST_TURNS:]:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            peer.close()
    for peer in peers[:MOST_TURNS]:
        assert peer.recv(100).startswith(b"HTTP/1.1 200")
        peer.close()
    edge.still_well()
    assert edge.metric("nightjar_requests_total", route="/healthz", code="200") < before + 4 * MOST_TURNS


async def test_a_single_request_does_not_stand_behind_a_crowd() -> None:
    turns, begun = Turns(), list[str]()

    def ask(client: str) -> bool:
        begun.append(client)
        return True

    for _ in range(500):
        turns.add("many", partial(ask, "many"))
    assert begun == ["many"] * MOST_TURNS
    turns.add("one", partial(ask, "one"))
    while "one" not in begun:
        await asyncio.sleep(0)
    assert begun.count("many") < 5 * MOST_TURNS
    while len(begun) < 501:
        await asyncio.sleep(0)


async def test_a_turn_is_given_on_by_who_has_left() -> None:
    turns, begun = Turns(), list[str]()

    def ask(client: str) -> bool:
        begun.append(client)
        return client == "stays"

    for place in range(20 * MOST_TURNS):
        turns.add(
            "stays" if place < MOST_TURNS else "leaves", partial(ask, "stays" if place < MOST_TURNS else "leaves")
        )
    turns.add("leaves", partial(ask, "stays"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert begun.count("leaves") == 19 * MOST_TURNS
    assert begun.count("stays") == MOST_TURNS + 1


async def test_a_crowd_cannot_outgrow_its_turns() -> None:
    turns, begun, rounds = Turns(), list[bool](), 0

    def begin() -> bool:
        begun.append(True)
        return True

    for _ in range(10_000):
        turns.add("many", begin)
    while len(begun) < 10_000:
        await asyncio.sleep(0)
        rounds += 1
    assert rounds < 1000


class Unread(asyncio.Transport):
    """A transport whose peer reads nothing."""

    def __init__(self, waiting: int) -> None:
        self.waiting, self.calls = waiting, list[str]()

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")

    def is_closing(self) -> bool:
        return bool({"close", "abort"} & {*self.calls})

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.calls.append(bytes(data).decode())


@pytest.mark.parametrize(("waiting", "calls"), [(0, ["close"]), (7, ["close", "abort"])])
async def test_a_reply_that_is_never_read_is_dropped(waiting: int, calls: list[str]) -> None:
    """Closing waits for what is unread, without end, and the connection keeps its place meanwhile."""
    peer = Unread(waiting)
    transport = LingeringTransport(peer, lambda: False, 0.02)
    transport.close()
    assert peer.calls == ["close"]
    await asyncio.sleep(0.1)
    assert peer.calls == calls


async def test_a_reply_in_one_piece_is_written_once() -> None:
    peer = Unread(0)
    transport = LingeringTransport(peer, lambda: False, 0.02)
    with transport.in_one_piece():
        transport.write(b"head ")
        transport.write(b"body")
        assert peer.calls == []
    assert peer.calls == ["head body"]


async def test_a_large_reply_is_not_copied_into_one_piece() -> None:
    peer = Unread(0)
    transport = LingeringTransport(peer, lambda: False, 0.02)
    with transport.in_one_piece():
        transport.write(b"head")
        transport.write(b"b" * ONE_PIECE_BYTES)
    assert [len(call) for call in peer.calls] == [4, ONE_PIECE_BYTES]


async def test_a_reply_in_one_piece_is_out_before_the_connection_closes() -> None:
    peer = Unread(0)
    transport = LingeringTransport(peer, lambda: False, 0.02)
    with transport.in_one_piece():
        transport.write(b"last")
        transport.close()
    assert peer.calls == ["last", "close"]


def test_an_answer_is_sent_in_one_piece(edge: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    replies: list[bytes] = []
    send_pieces = LingeringTransport._send_pieces

    def note(self: LingeringTransport) -> None:
        replies.append(b"".join(self._pieces or ()))
        send_pieces(self)

    monkeypatch.setattr(LingeringTransport, "_send_pieces", note)
    assert edge.post("/v1/classify", curve())[0] == 200
    assert any(reply.startswith(b"HTTP/1.1 200") and reply.endswith(b"}") for reply in replies)


ATTRIBUTES = (
    "client",
    "connections",
    "cycle",
    "flow",
    "headers",
    "loop",
    "parser",
    "pipeline",
    "server_state",
    "transport",
)
METHODS = (
    "connection_made", "connection_lost", "data_received", "on_message_begin", "on_header", "on_headers_complete",
    "on_body", "on_message_complete", "on_response_complete", "pause_writing", "resume_writing", "send_400_response",
    "timeout_keep_alive_handler", "_start_asgi_task",
)  # fmt: skip


def test_the_private_class_is_still_what_it_was() -> None:
    """Methods and attributes of uvicorn's private class that we override or read must exist and do what they did."""
    source = inspect.getsource(HttpToolsProtocol)
    for name in METHODS:
        assert callable(getattr(HttpToolsProtocol, name)), name
    for name in ATTRIBUTES:
        assert re.search(rf"self\.{name}\b", source), name
    ours = inspect.getsource(LimitedProtocol)
    assert set(re.findall(r"super\(\)\.(\w+)", ours)) - {"__init__"} <= set(METHODS)
    inherited = set(re.findall(r"self\.([a-z]\w*)", ours)) - set(vars(LimitedProtocol))
    assert inherited <= {*ATTRIBUTES, *METHODS}
    for name in ("more_body", "response_complete", "body", "disconnected", "scope"):
        assert re.search(rf"self\.{name}\b", inspect.getsource(RequestResponseCycle)), name
    assert "self.pipeline.appendleft(" in source
    assert "self.pipeline.pop()" in source


def test_a_version_of_uvicorn_that_was_not_tried_is_not_installed() -> None:
    project = tomllib.loads((Path(protocol.__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (wanted,) = [Requirement(line) for line in project["dependencies"] if line.startswith("uvicorn")]
    bounds = [clause for clause in wanted.specifier if clause.operator == "<"]
    assert len(bounds) == 1
    assert Version(version("uvicorn")) in wanted.specifier
    assert requires("uvicorn") is not None


def test_a_request_that_has_ended_is_gone_without_a_search_for_cycles() -> None:
    """Requests that held their state, and were held by it, kept refused bodies for minutes."""
    gc.collect()
    gc.disable()
    try:
        with live(loader(Network())) as edge:
            for _ in range(20):
                assert edge.ask("POST", "/v1/classify", b"{" + b" " * 1000)[0] == 400
            left = [one for one in gc.get_objects() if type(one) is RequestResponseCycle]
    finally:
        gc.enable()
    assert len(left) <= 1
