"""Limits on requests for every route and format, with a real service."""

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from nightjar_alerts.core.request import MAX_ID_LENGTH
from nightjar_alerts.service.http.edge.errors import Problem
from nightjar_alerts.service.http.formats import NDJSON_TYPE
from nightjar_alerts.service.http.lifecycle import LARGE_BYTES, Service
from support import alerts
from support.edge import Live, Network, curve, live, loader, raw_head, wait_until
from support.oip import JSON_LENGTH, binary_body, history, json_body

pytest.importorskip("pyarrow", reason="pyarrow is missing: pip install 'nightjar-alerts[tables]'")
from support.wire import ENCODINGS, JSON_TYPE, MSGPACK_TYPE, Curve, Encoding, results_of

POINTS, ITEMS, BYTES = 20, 3, 60_000
OCTETS = "application/octet-stream"

Headers = dict[str, str]


class Request(NamedTuple):
    """A request with a number of items."""

    path: str
    headers: Headers
    body: bytes


def classify(encoding: Encoding) -> Callable[[int], Request]:
    headers = {"Content-Type": encoding.media_type}
    return lambda items: Request("/v1/classify", headers, encoding.encode([curve(1)] * items))


def alerts_json(items: int) -> Request:
    body = f"[{','.join([alerts.plain_json(alerts.ztf_alert())] * items)}]".encode()
    return Request("/v1/alerts", {"Content-Type": JSON_TYPE}, body)


def alerts_multipart(items: int) -> Request:
    packet = alerts.confluent(1000, alerts.lsst_alert())
    body = b"".join(b"--limit\r\n\r\n%s\r\n" % packet for _ in range(items)) + b"--limit--\r\n"
    return Request("/v1/alerts", {"Content-Type": "multipart/mixed; boundary=limit"}, body)


def infer_json(items: int) -> Request:
    body = json.dumps(json_body(history(*[1.0] * items, points=1))).encode()
    return Request("/v2/models/echo/infer", {"Content-Type": JSON_TYPE}, body)


def infer_binary(items: int) -> Request:
    body, length = binary_body(history(*[1.0] * items, points=1))
    return Request("/v2/models/echo/infer", {"Content-Type": OCTETS, JSON_LENGTH: str(length)}, body)


ENDPOINTS: dict[str, Callable[[int], Request]] = {
    **{f"classify-{name}": classify(encoding) for name, encoding in ENCODINGS.items()},
    "alerts-json": alerts_json,
    "alerts-multipart": alerts_multipart,
    "infer-json": infer_json,
    "infer-binary": infer_binary,
}


def head_of(request: Request, framing: str) -> bytes:
    return raw_head(request.path, framing, *(f"{name}: {value}" for name, value in request.headers.items()))


def with_headers(request: Request, **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return request._replace(headers=request.headers | named)


# What is wrong with a request for one item; the status and the member `limit` of the problem that answers it.
LIMITS: dict[str, tuple[Callable[[Callable[[int], Request]], Request], int, int | None]] = {
    "bytes": (lambda make: make(1)._replace(body=b"x" * (BYTES + 1)), 413, BYTES),
    "decompressed-bytes": (
        lambda make: with_headers(make(1)._replace(body=gzip.compress(bytes(BYTES + 1))), Content_Encoding="gzip"),
        413,
        BYTES,
    ),
    "items": (lambda make: make(ITEMS + 1), 413, ITEMS),
    "empty-body": (lambda make: make(1)._replace(body=b""), 400, None),
    "truncated-body": (lambda make: make(1)._replace(body=make(1).body[:-9]), 400, None),
    "corrupt-compression": (lambda make: with_headers(make(1), Content_Encoding="gzip"), 400, None),
    "content-encoding": (lambda make: with_headers(make(1), Content_Encoding="br"), 415, None),
    "content-type": (lambda make: with_headers(make(1), Content_Type="text/plain"), 415, None),
    "deadline-header": (lambda make: with_headers(make(1), Nightjar_Deadline_Ms="soon"), 422, None),
    "deadline-too-long": (lambda make: with_headers(make(1), Nightjar_Deadline_Ms="999999999"), 422, None),
    "unknown-model": (lambda make: unknown_model(make(1)), 404, None),
}


def unknown_model(request: Request) -> Request:
    path = request.path.replace("echo", "unknown")
    return request._replace(path=path if path != request.path else f"{path}?model=unknown")


EXCEPTIONS: dict[tuple[str, str], int] = {
    ("classify-ndjson", "items"): 200,  # the problem is the last line
    ("classify-ndjson", "truncated-body"): 200,  # the line is rejected
    ("alerts-json", "truncated-body"): 200,  # the packet is rejected
}


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    limits = {"max_points": POINTS, "max_curves": ITEMS, "max_stream_curves": ITEMS, "max_packets": ITEMS}
    sizes = dict.fromkeys(("max_json_bytes", "max_alert_bytes", "max_tensor_bytes"), BYTES)
    with live(loader(Network()), **limits, **sizes) as edge:
        yield edge


@pytest.fixture(autouse=True)
def _nothing_is_left_held(edge: Live) -> Iterator[None]:
    yield
    wait_until(lambda: edge.service.budget.held == 0)
    edge.still_well()


def send(edge: Live, request: Request) -> tuple[int, Headers, bytes]:
    return edge.ask("POST", request.path, request.body, request.headers)


def problem_of(status: int, headers: Headers, body: bytes) -> Problem:
    assert headers["content-type"] == "application/problem+json"
    problem = Problem.model_validate_json(body, strict=True)
    assert problem.status == status
    return problem


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_request_within_the_limits_succeeds(edge: Live, endpoint: str) -> None:
    for request in (ENDPOINTS[endpoint](1), ENDPOINTS[endpoint](ITEMS)):
        assert send(edge, request)[0] == 200
        compressed = request._replace(body=gzip.compress(request.body))
        assert send(edge, with_headers(compressed, Content_Encoding="gzip"))[0] == 200


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_request_beyond_a_limit_is_a_problem(edge: Live, endpoint: str, limit: str) -> None:
    make, status, value = LIMITS[limit]
    request = make(ENDPOINTS[endpoint])
    answer = send(edge, request)
    expected = EXCEPTIONS.get((endpoint, limit), status)
    assert answer[0] == expected
    if expected == 200:
        return
    problem = problem_of(*answer)
    assert (problem.limit, problem.instance) == (value, request.path.partition("?")[0])
    if limit.startswith("deadline"):
        assert problem.errors[0].pointer == "/headers/nightjar-deadline-ms"
    if endpoint.startswith("infer"):
        assert problem.error


def test_ndjson_with_too_many_lines_has_a_problem_in_its_last_line(edge: Live) -> None:
    request = ENDPOINTS["classify-ndjson"](ITEMS + 1)
    *results, last = results_of(NDJSON_TYPE, send(edge, request)[2])
    assert [result["status"] for result in results] == ["classified"] * ITEMS
    assert (last["problem"]["status"], last["problem"]["limit"]) == (413, ITEMS)


@pytest.mark.parametrize("endpoint", ["classify-ndjson", "alerts-json"])
def test_truncated_item_is_rejected_alone(edge: Live, endpoint: str) -> None:
    request = ENDPOINTS[endpoint](1)
    _, headers, body = send(edge, request._replace(body=request.body[:-9]))
    (result,) = results_of(headers["content-type"], body)
    assert result["status"] == "rejected"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_chunked_body_beyond_the_limit_is_a_problem(edge: Live, endpoint: str) -> None:
    """The body has no Content-Length."""
    request = ENDPOINTS[endpoint](1)
    with edge.connect() as connection:
        connection.sendall(head_of(request, "Transfer-Encoding: chunked"))
        connection.sendall(b"".join(b"400\r\n%s\r\n" % (b"x" * 1024) for _ in range(BYTES // 1024 + 2)))
        assert connection.recv(12) == b"HTTP/1.1 413"


@pytest.fixture(scope="module")
def small() -> Iterator[Live]:
    """A service with a small memory budget and a short body timeout."""
    with live(loader(Network()), max_held_bytes=80, body_timeout=1.0) as edge:
        yield edge


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_body_beyond_the_memory_budget_is_a_problem(small: Live, endpoint: str) -> None:
    problem = problem_of(*send(small, ENDPOINTS[endpoint](ITEMS)))
    assert (problem.type, problem.status) == ("/problems/overloaded", 429)
    assert problem.retry_after
    wait_until(lambda: small.service.budget.held == 0)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_body_that_stops_is_a_problem(small: Live, endpoint: str) -> None:
    request = ENDPOINTS[endpoint](1)
    with small.connect() as connection:
        connection.sendall(head_of(request, f"Content-Length: {len(request.body)}") + request.body[:9])
        assert connection.recv(12) == b"HTTP/1.1 408"


def classify_all(edge: Live, encoding: str, curves: Sequence[Curve]) -> list[dict[str, Any]]:
    media_type, encode = ENCODINGS[encoding]
    status, headers, body = send(edge, Request("/v1/classify", {"Content-Type": media_type}, encode(curves)))
    assert status == 200
    return results_of(headers["content-type"], body)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_light_curve_with_too_many_observations_is_rejected_alone(edge: Live, encoding: str) -> None:
    longest, longer, short = classify_all(edge, encoding, [curve(POINTS), curve(POINTS + 1), curve(1)])
    assert [longest["status"], longer["status"], short["status"]] == ["classified", "rejected", "classified"]
    assert longer["reason"] == "too_many_points"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_light_curve_with_a_long_object_id_is_rejected_alone(edge: Live, encoding: str) -> None:
    longest = "ä" * (MAX_ID_LENGTH // 2)
    curves = [curve(object_id=longest), curve(object_id="x" * (MAX_ID_LENGTH + 1))]
    accepted, rejected = classify_all(edge, encoding, curves)
    assert (accepted["status"], accepted["object_id"]) == ("classified", longest)
    assert (rejected["status"], rejected["reason"], rejected["object_id"]) == ("rejected", "too_long", "")


@pytest.mark.parametrize("path", ["/v1/classify", "/v2/models/echo/infer"])
def test_large_bodies_are_decoded_one_at_a_time(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once would need twice the memory and, as decoding holds the GIL, no less time."""
    used: list[str] = []
    run_in_turn = Service.run_in_turn

    async def watched(self: Service, work: Any, client: str) -> Any:
        used.append(client)
        return await run_in_turn(self, work, client)

    monkeypatch.setattr(Service, "run_in_turn", watched)
    body = b"{" + b" " * LARGE_BYTES + b"}"
    with live(loader(Network())) as edge:
        assert edge.ask("POST", path, body, {"Content-Type": JSON_TYPE})[0] >= 400
    assert len(used) == 1


@pytest.mark.parametrize(
    ("media_type", "body"), [(JSON_TYPE, b'{"light_curves":' * 1500), (MSGPACK_TYPE, b"\x81\xa1a" * 1500)]
)
def test_classify_deeply_nested_body_is_malformed(edge: Live, media_type: str, body: bytes) -> None:
    assert send(edge, Request("/v1/classify", {"Content-Type": media_type}, body))[0] == 400


def test_classify_deeply_nested_line_is_rejected_alone(edge: Live) -> None:
    body = b'{"a":' * 2000 + b"\n" + json.dumps(curve()).encode() + b"\n"
    status, headers, answer = send(edge, Request("/v1/classify", {"Content-Type": NDJSON_TYPE}, body))
    deep, good = results_of(headers["content-type"], answer)
    assert (status, deep["status"], deep["errors"][0]["reason"], good["status"]) == (
        200, "rejected", "malformed", "classified"
    )  # fmt: skip


@pytest.mark.parametrize("number", ["1e400", "9" * 400, "-" + "9" * 400, "1" + "0" * 309 + ".0"])
def test_classify_number_too_large_for_a_double_is_rejected_alone(edge: Live, number: str) -> None:
    good, invalid = json.dumps(curve(1)), json.dumps(curve(1)).replace("1000.0", number)
    status, reply = edge.classify(f'{{"light_curves": [{invalid}, {good}]}}'.encode())
    if status == 200:
        assert [result["status"] for result in reply["results"]] == ["rejected", "classified"]
    else:
        assert status in (400, 422)


@pytest.mark.parametrize("deadline", [0, -1, 1e300, 2**63, 2**4096, "1000", 1.5, True])
def test_classify_deadline_out_of_range_is_a_problem(edge: Live, deadline: object) -> None:
    status, problem = edge.classify({"light_curves": [curve(1)], "options": {"deadline_ms": deadline}})
    assert status in (400, 422)
    assert problem["type"] in ("/problems/invalid", "/problems/malformed")
