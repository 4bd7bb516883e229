"""Middleware: request ids, API keys, concurrency limits and access log."""

import gc
import hashlib
import json
import weakref
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs

from nightjar_alerts.service.http.edge import errors
from nightjar_alerts.service.http.edge.admission import Admission
from nightjar_alerts.service.http.edge.errors import Problem, ProblemError
from nightjar_alerts.service.http.edge.keys import KeyRing, Quotas
from nightjar_alerts.service.http.edge.middleware import AuthMiddleware, RequestMiddleware
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.settings import KeyLimits
from support.edge import Live, Network, curve, live, loader, raw_post, wait_until

KEYS = ("correct horse", "battery staple")
DIGESTS = tuple(hashlib.sha256(key.encode()).hexdigest() for key in KEYS)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("my-id_1.2", True),
        ("x" * 64, True),
        ("x" * 65, False),
        ("", False),
        ("a b", False),
        ("é", False),
        ("a/b", False),
    ],
)
def test_request_id_valid_one_is_kept(edge: Live, sent: str, kept: bool) -> None:
    _, headers, body = edge.ask("GET", "/nowhere", headers={"X-Request-ID": sent.encode("latin-1").decode("latin-1")})
    assert (headers["x-request-id"] == sent) == kept
    assert json.loads(body)["request_id"] == headers["x-request-id"]


ACCEPTED: list[dict[str, str]] = [
    {"Authorization": f"Bearer {KEYS[0]}"},
    {"Authorization": f"bearer  {KEYS[1]}"},
    {"X-API-Key": KEYS[1]},
]
REFUSED: list[dict[str, str]] = [
    {},
    {"X-API-Key": "x"},
    {"X-API-Key": DIGESTS[0]},
    {"Authorization": f"Basic {KEYS[0]}"},
]


def test_auth_requests_need_a_known_key() -> None:
    with live(loader(Network()), api_keys=DIGESTS) as edge:
        assert [edge.ask("GET", "/v1/models", headers=key)[0] for key in ACCEPTED] == [200, 200, 200]
        for key in REFUSED:
            status, headers, body = edge.ask("GET", "/v1/models", headers=key)
            assert (status, Problem.model_validate_json(body).type) == (401, "/problems/unauthorized")
            assert headers["www-authenticate"].startswith("Bearer")
        assert [edge.ask("GET", path)[0] for path in ("/healthz", "/readyz", "/metrics", "/docs")] == [200] * 4
        assert edge.metric("nightjar_rejected_total", reason="unauthorized") == len(REFUSED)


def test_auth_requests_beyond_the_limit_are_rejected() -> None:
    network = Network()
    with live(loader(network), max_requests=1) as edge:
        network.hold()
        with edge.connect() as first:
            first.sendall(raw_post("/v1/classify", json.dumps(curve()).encode()))
            assert network.started.acquire(timeout=10)
            status, headers, body = edge.ask("GET", "/v1/models")
            assert (status, headers["retry-after"], json.loads(body)["limit"]) == (429, "1", 1)
            assert edge.ask("GET", "/readyz")[0] == 200
            network.release()
            assert first.recv(12) == b"HTTP/1.1 200"
        edge.still_well()


def test_metrics_requests_are_counted_by_route_and_code() -> None:
    with live(loader(Network())) as edge:
        edge.still_well()
        edge.ask("GET", "/nowhere/1")
        edge.ask("GET", "/nowhere/2")
        wait_until(lambda: edge.metric("nightjar_inflight_requests") == 0)  # a request is counted after its reply
        wait_until(lambda: edge.metric("nightjar_requests_total", route="unmatched", code="404") == 2)
        assert edge.metric("nightjar_requests_total", route="/v1/classify", code="200") == 1
        assert edge.metric("nightjar_request_duration_seconds_count", route="/v1/classify") == 1


def test_unexpected_exception_is_logged_and_not_revealed(monkeypatch: pytest.MonkeyPatch) -> None:
    def buggy(*_: object) -> Any:
        raise ZeroDivisionError("the secret of the house")

    monkeypatch.setattr("nightjar_alerts.service.http.routes.meta.describe", buggy)
    with capture_logs() as logged, live(loader(Network())) as edge:
        status, headers, body = edge.ask("GET", "/v1/models")
    assert (status, json.loads(body)["type"]) == (500, "/problems/internal")
    assert b"secret" not in body
    (line,) = [entry for entry in logged if entry["event"] == "unexpected exception"]
    assert isinstance(line["exc_info"], ZeroDivisionError)
    assert headers["x-request-id"]


def test_access_log_has_no_text_of_bodies() -> None:
    with capture_logs() as logged, live(loader(Network())) as edge:
        edge.classify({**curve(), "marker-in-the-body": "marker-in-the-body"})
        edge.classify(b"marker-in-the-body")
        edge.ask("POST", "/v1/alerts?schema=marker-in-the-body", b"marker-in-the-body")
    assert "marker-in-the-body" not in repr(logged)
    assert [entry["status"] for entry in logged if entry["event"] == "request"] == [422, 400, 422]


async def test_rejected_request_frees_its_body_without_gc() -> None:
    """A reference cycle of a problem and its traceback would keep the body in memory until garbage collection."""

    class Held(bytearray):
        pass

    held: list[weakref.ref[Held]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = Held(b"x")
        held.append(weakref.ref(body))
        raise ProblemError(errors.MALFORMED, f"{len(body)} bytes are no document")

    async def send(message: Message) -> None:
        pass

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    edge = RequestMiddleware(app, Metrics())
    gc.disable()
    try:
        await edge({"type": "http", "method": "GET", "path": "/v1/x", "headers": []}, receive, send)
        assert held[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("started", [False, True])
async def test_auth_request_that_ends_with_503_is_refunded_unless_its_response_has_started(started: bool) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["charged"] = 2
        if started:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ProblemError(errors.UNAVAILABLE)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        pass

    quotas = Quotas({"*": KeyLimits(requests_per_day=1)}, Metrics())
    guard = AuthMiddleware(app, Admission(KeyRing({}), max_requests=1, quotas=quotas))
    kinds = []
    for _ in range(2):
        scope = {"type": "http", "method": "POST", "path": "/v1/classify", "headers": []}
        with pytest.raises(ProblemError) as caught:
            await guard(scope, receive, send)
        kinds.append(caught.value.kind)
    assert kinds == [errors.UNAVAILABLE, errors.RATE_LIMITED if started else errors.UNAVAILABLE]
