"""NDJSON streams to ``POST /v1/classify`` over a real socket: bidirectional, in order, within limits."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.service.http.formats import NDJSON_TYPE
from support.edge import CLASSES, Live, Network, curve, live, loader, raw_head, send_until_cut_off, wait_until
from support.graphs import poison
from support.wire import lines_body

CHUNKED_LINES = f"Content-Type: {NDJSON_TYPE}", "Transfer-Encoding: chunked"
LINE_LIMIT = 100_000
POISONOUS = 666.0
END = b"0\r\n\r\n"


@pytest.fixture(scope="module")
def network() -> Network:
    network = Network()
    network.on_marker[POISONOUS] = poison
    return network


@pytest.fixture(scope="module")
def edge(network: Network) -> Iterator[Live]:
    quick = {"body_timeout": 0.5, "stall_timeout": 0.5, "max_json_bytes": LINE_LIMIT, "max_stream_curves": 5000}
    with live(loader(network), **quick) as edge:
        yield edge


@pytest.fixture(autouse=True)
def _goes_on(edge: Live) -> Iterator[None]:
    yield
    edge.still_well()
    wait_until(lambda: edge.service.budget.held == 0)
    wait_until(lambda: edge.metric("nightjar_inflight_requests") == 0)
    assert edge.metric("nightjar_rejected_total", reason="internal") == 0


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Talk:
    """Client that reads its response line by line on demand."""

    def __init__(self, edge: Live, path: str = "/v1/classify") -> None:
        self.socket = edge.connect()
        self.file = self.socket.makefile("rb")
        self.socket.sendall(raw_head(path, *CHUNKED_LINES))
        self.headers: dict[str, str] = {}
        self.status = 0
        self._rest = b""

    def __enter__(self) -> "Talk":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def say(self, *curves: object) -> None:
        self.socket.sendall(chunk(lines_body(curves)))

    def read_head(self) -> int:
        self.status = int(self.file.readline().split()[1])
        while (line := self.file.readline().strip()) and b":" in line:
            name, _, value = line.partition(b":")
            self.headers[name.decode().lower()] = value.strip().decode()
        return self.status

    def result(self) -> dict[str, Any] | None:
        """Return the next line; None at the end of the response."""
        if not self.status:
            self.read_head()
        while b"\n" not in self._rest:
            size = int(self.file.readline(), 16)
            self._rest += self.file.read(size + 2)[:-2]
            if not size:
                return None
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def results(self) -> list[dict[str, Any]]:
        return list(iter(self.result, None))


def marked(index: int, **changes: Any) -> dict[str, Any]:
    return curve(3, flux=[float(index % 100)] * 3, object_id=str(index)) | changes


def test_ndjson_results_are_sent_while_lines_arrive(edge: Live) -> None:
    with Talk(edge) as talk:
        for index in range(3):
            talk.say(marked(index))
            found = talk.result()
            assert found is not None
            assert (found["status"], found["object_id"]) == ("classified", str(index))
            assert found["class"] == ELASTICC.names[index % CLASSES]
        assert talk.headers["content-type"] == NDJSON_TYPE
        assert talk.headers["nightjar-model"].startswith("echo/0.0.1; sha256=000")
        talk.socket.sendall(END)
        assert talk.result() is None


def test_ndjson_thousands_of_lines_are_answered_in_order(edge: Live) -> None:
    body = lines_body([marked(index) for index in range(3000)])
    status, headers, reply = edge.ask("POST", "/v1/classify", body, {"Content-Type": NDJSON_TYPE})
    results = [json.loads(line) for line in reply.splitlines()]
    assert (status, "content-length" in headers) == (200, False)
    assert [result["object_id"] for result in results] == [str(index) for index in range(3000)]
    assert [result["class"] for result in results] == [ELASTICC.names[i % 100 % CLASSES] for i in range(3000)]


def test_ndjson_invalid_line_is_rejected_alone(edge: Live) -> None:
    lines = [
        json.dumps(marked(1)).encode(),
        b"{not json",
        b"\xff\xfe",
        b"[" * 10_000,
        b"7",
        b"  \r",
        json.dumps(marked(2, flux_err=[1.0, -1.0, 1.0])).encode(),
        json.dumps(marked(3, flux=[1.0, float("nan"), 1.0])).encode(),
        json.dumps(marked(4, options={})).encode(),
        json.dumps(marked(5, flux=[POISONOUS] * 3)).encode(),
        json.dumps(marked(6)).encode() + b"\r",
        json.dumps(marked(7)).encode(),
    ]
    _, _, reply = edge.ask("POST", "/v1/classify", b"\n".join(lines), {"Content-Type": NDJSON_TYPE})
    found = [json.loads(line) for line in reply.splitlines()]
    told = [(r["status"], r.get("reason", ""), [e["pointer"] for e in r.get("errors", ())]) for r in found]
    malformed = ("rejected", "malformed", [""])
    assert told == [
        ("classified", "", []), malformed, malformed, malformed, ("rejected", "not_an_object", [""]),
        ("rejected", "not_positive", ["/flux_err/1"]), ("rejected", "not_finite", ["/flux/1"]),
        ("rejected", "unknown_field", ["/options"]), ("failed", "inference_failed", []),
        ("classified", "", []), ("classified", "", []),
    ]  # fmt: skip


def test_ndjson_options_are_query_parameters(edge: Live) -> None:
    path = "/v1/classify?embedding=true&embedding_dtype=float16&embedding_encoding=base64"
    _, _, reply = edge.ask("POST", path, lines_body([marked(1)]), {"Content-Type": NDJSON_TYPE})
    assert json.loads(reply)["embedding"] == "ADwAPAA8ADw="
    status, _, reply = edge.ask(
        "POST", "/v1/classify?embeding=1", lines_body([marked(1)]), {"Content-Type": NDJSON_TYPE}
    )
    assert (status, json.loads(reply)["errors"][0]["pointer"]) == (422, "/query/embeding")


@pytest.mark.parametrize(("body", "status"), [(b"", 400), (b"\n \n", 400), (b"x" * (LINE_LIMIT + 1), 413)])
def test_ndjson_error_before_the_first_result_is_a_problem(edge: Live, body: bytes, status: int) -> None:
    answered, headers, reply = edge.ask("POST", "/v1/classify", body, {"Content-Type": NDJSON_TYPE})
    assert (answered, headers["content-type"], json.loads(reply)["status"]) == (
        status, "application/problem+json", status
    )  # fmt: skip


def test_ndjson_other_accept_is_406(edge: Live) -> None:
    headers = {"Content-Type": NDJSON_TYPE, "Accept": "application/json"}
    assert edge.ask("POST", "/v1/classify", lines_body([marked(1)]), headers)[0] == 406


def test_ndjson_endless_line_ends_the_stream_after_earlier_results(edge: Live) -> None:
    with Talk(edge) as talk:
        talk.say(marked(1))
        for _ in range(LINE_LIMIT // 10_000 + 1):
            talk.socket.sendall(chunk(b"x" * 10_000))
        first, last = talk.results()
    assert (first["status"], last["problem"]["status"], last["problem"]["limit"]) == ("classified", 413, LINE_LIMIT)
    wait_until(lambda: edge.metric("nightjar_requests_total", route="/v1/classify", code="413") >= 1)


def test_ndjson_client_that_stops_sending_times_out(edge: Live) -> None:
    with Talk(edge) as talk:
        talk.say(marked(1))
        talk.socket.sendall(chunk(b'{"mjd": [60'))
        first, last = talk.results()
    assert (first["status"], last["problem"]["status"]) == ("classified", 408)


def test_ndjson_client_that_sends_single_bytes_times_out(edge: Live) -> None:
    with Talk(edge) as talk, pytest.raises((BrokenPipeError, ConnectionResetError)):
        send_until_cut_off(talk.socket, chunk(b" "), 0.05, 160)


def test_ndjson_too_many_lines_end_the_stream(edge: Live) -> None:
    _, _, reply = edge.ask("POST", "/v1/classify", b"7\n" * 5001, {"Content-Type": NDJSON_TYPE})
    *answered, last = reply.splitlines()
    assert (len(answered), json.loads(last)["problem"]["limit"]) == (5000, 5000)


def test_ndjson_client_that_does_not_read_is_disconnected(edge: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    budget, take = edge.service.budget, edge.service.budget.change

    def taken(size: int, client: str) -> None:
        take(size, client)
        held.append(budget.held)

    monkeypatch.setattr(budget, "change", taken)
    with edge.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(raw_head("/v1/classify", *CHUNKED_LINES))
        connection.settimeout(0.3)
        with pytest.raises((TimeoutError, BrokenPipeError, ConnectionResetError)):
            send_until_cut_off(connection, chunk(lines_body([marked(1)] * 50)))
        wait_until(lambda: edge.metric("nightjar_inflight_requests") == 0)
    assert LINE_LIMIT < max(held) < 3 * LINE_LIMIT + 512 * 1500  # one more group than fits, and what it became


def test_ndjson_disconnected_client_withdraws_its_work(edge: Live, network: Network) -> None:
    withdrawn = edge.metric("nightjar_withdrawn_total")
    network.hold()
    try:
        with Talk(edge) as talk:
            talk.say(*(marked(index) for index in range(40)))
            wait_until(lambda: edge.service.models.default.engine.running > 0)
        wait_until(lambda: edge.metric("nightjar_withdrawn_total") == withdrawn + 40)
        assert edge.metric("nightjar_queue_depth") == 0
    finally:
        network.release()
    wait_until(lambda: edge.metric("nightjar_requests_total", route="/v1/classify", code="499") >= 1)


def test_ndjson_deadline_passed_fails_the_light_curve(edge: Live, network: Network) -> None:
    network.hold()
    try:
        with Talk(edge, "/v1/classify?deadline_ms=50") as talk:
            talk.say(marked(1), 7)
            talk.socket.sendall(END)
            late, bad = talk.results()
    finally:
        network.release()
    assert (late["status"], late["reason"]) == ("failed", "deadline_exceeded")
    assert (bad["status"], bad["reason"]) == ("rejected", "not_an_object")


def holds(edge: Live, waiting: int) -> bool:
    return edge.metric("nightjar_queue_depth") == waiting


def test_ndjson_overload_rejects_new_streams_and_delays_running_ones() -> None:
    network = Network()
    with live(loader(network, CostModel(0.5, 0.0, 0.0)), workers=1, max_queued_seconds=1.2) as edge:
        network.hold()
        with Talk(edge) as first, Talk(edge) as second:
            first.say(marked(0))
            assert network.started.acquire(timeout=10)
            for index in (1, 2):
                first.say(marked(index))
                wait_until(partial(holds, edge, index))
            first.say(marked(3), marked(4))
            second.say(marked(9))
            assert second.read_head() == 429
            network.release()
            first.socket.sendall(END)
            assert [result["object_id"] for result in first.results()] == list("01234")


def test_ndjson_service_that_stops_has_a_problem_in_the_last_line() -> None:
    network = Network()
    with live(loader(network), drain_timeout=1) as edge, Talk(edge) as talk:
        talk.say(marked(1))
        assert talk.result() is not None
        edge.server.should_exit = True
        last = talk.results()[-1]
    assert last["problem"]["status"] == 503


def test_ndjson_client_that_stays_does_not_block_shutdown() -> None:
    """Closing the event loop could fail while the connection was open."""
    with ExitStack() as stack:
        with live(loader(Network()), drain_timeout=1) as edge:
            talk = stack.enter_context(Talk(edge))
            talk.say(marked(1))
            assert talk.result() is not None
        (last,) = talk.results()
        assert edge.server.server_state.connections == set()
    assert (last["problem"]["status"], edge.server.exit_status) == (503, 0)


def test_ndjson_held_bytes_are_charged_to_the_budget() -> None:
    network = Network()
    with live(loader(network), max_held_bytes=5000) as edge, Talk(edge) as talk:
        network.hold()
        talk.say(*(marked(index) for index in range(20)))
        assert edge.service.budget.held < 5000
        talk.say(*(marked(index) for index in range(20)))
        assert talk.read_head() == 429
        network.release()
        wait_until(lambda: edge.service.budget.held == 0)
