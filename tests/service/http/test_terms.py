"""Deadlines and roles in headers, and fairness between clients."""

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.requests import Request

from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.service.http.deadlines import DEADLINE_HEADER
from nightjar_alerts.service.http.edge.errors import ProblemError
from nightjar_alerts.service.http.endpoint import infer_options
from support.edge import Live, Network, curve, live, loader, settings, wait_until

SETTINGS = settings(default_deadline_ms=5000, max_deadline_ms=20_000)


def request(**headers: str) -> Request:
    raw = [(name.lower().replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw, "state": {}})


@pytest.mark.parametrize(
    ("option", "header", "expected"),
    [
        (None, None, 5.0),
        (300, None, 0.3),
        (None, "700", 0.7),
        (300, "700", 0.3),
        (9000, "700", 0.7),
        (None, "20000", 20.0),
        (0.5, None, 0.0005),
    ],
)
def test_infer_options_earliest_deadline_counts(option: float | None, header: str | None, expected: float) -> None:
    asked = request(**({} if header is None else {DEADLINE_HEADER: header}))
    assert infer_options(asked, SETTINGS, 100.0, option).deadline == pytest.approx(100 + expected)


@pytest.mark.parametrize("value", ["", "0", "-5", "1.5", "1e3", "soon", "99999999999", "20001", "\u0661"])
def test_deadline_header_invalid_is_a_problem(value: str) -> None:
    with pytest.raises(ProblemError) as refusal:
        infer_options(request(**{DEADLINE_HEADER: value}), SETTINGS, 0.0)
    assert refusal.value.kind.status == 422
    assert refusal.value.errors[0].pointer == "/headers/nightjar-deadline-ms"


KEYS = {name: f"key of {name}" for name in ("burst", "late")}


@pytest.fixture
def network() -> Iterator[Network]:
    """A network for one test, so that a failure does not affect others."""
    network = Network()
    yield network
    network.release()


@pytest.fixture
def edge(network: Network) -> Iterator[Live]:
    """One worker; a light curve is predicted to take 0.1 s, and 2 s may be queued."""
    digests = tuple(hashlib.sha256(key.encode()).hexdigest() for key in KEYS.values())
    changes = {"workers": 1, "api_keys": digests, "max_queued_seconds": 2.0, "max_requests": 8}
    with live(loader(network, CostModel(0.1, 0.0, 0.0)), **changes) as running:
        yield running


def post(edge: Live, who: str, count: int, **headers: str) -> tuple[int, dict[str, str], Any]:
    """Return status, headers and body of the response to a request with ``count`` light curves."""
    body = json.dumps({"light_curves": [curve(8)] * count}).encode()
    sent = {"Content-Type": "application/json", "X-API-Key": KEYS[who], **headers}
    status, received, text = edge.ask("POST", "/v1/classify", body, sent)
    return status, received, json.loads(text)


def test_deadline_header_is_used(edge: Live, network: Network) -> None:
    network.hold()
    with ThreadPoolExecutor() as threads:
        first = threads.submit(post, edge, "late", 1)
        assert network.started.acquire(timeout=10)
        assert post(edge, "late", 1, **{DEADLINE_HEADER: "150"})[0] == 504
        assert not first.done()
        network.release()
        assert first.result()[0] == 200
    status, _, problem = post(edge, "late", 1, **{DEADLINE_HEADER: "never"})
    assert (status, problem["errors"][0]["reason"]) == (422, "not_milliseconds")


def test_queue_burst_of_one_key_does_not_block_another(edge: Live, network: Network) -> None:
    network.hold()
    engine = edge.service.models.default.engine
    with ThreadPoolExecutor() as threads:
        running = threads.submit(post, edge, "burst", 1)
        assert network.started.acquire(timeout=10)
        burst = threads.submit(post, edge, "burst", 19)
        wait_until(lambda: engine.depth == 19)
        status, headers, problem = post(edge, "burst", 3)
        assert (status, problem["type"]) == (429, "/problems/overloaded")
        assert headers["retry-after"] == str(problem["retry_after"]) == "1"
        late = threads.submit(post, edge, "late", 3)
        wait_until(lambda: engine.depth == 22)
        network.release()
        assert [done.result()[0] for done in (running, burst, late)] == [200, 200, 200]


def test_limiter_open_requests_of_one_key_do_not_block_another(edge: Live, network: Network) -> None:
    network.hold()
    with ThreadPoolExecutor(16) as threads:
        running = threads.submit(post, edge, "burst", 1)
        assert network.started.acquire(timeout=10)
        waiting = [threads.submit(post, edge, "burst", 1) for _ in range(7)]
        wait_until(lambda: edge.service.models.default.engine.depth == 7)
        status, _, problem = post(edge, "burst", 1)
        assert (status, problem["limit"]) == (429, 8)
        other = threads.submit(post, edge, "late", 1)
        wait_until(lambda: edge.service.models.default.engine.depth == 8)
        network.release()
        assert {done.result()[0] for done in (running, *waiting, other)} == {200}
