"""A cheaper model answers when the one asked is full, and every reply that it gives says so."""

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nightjar_alerts.models.bundle import Bundle, Manifest
from nightjar_alerts.models.taxonomy import Taxonomy
from nightjar_alerts.service.engine.load import LoadedModel
from nightjar_alerts.service.engine.policy import CostModel
from nightjar_alerts.service.http.endpoint import ROLE_HEADER
from nightjar_alerts.service.http.lifecycle import Service, State
from nightjar_alerts.service.http.server import Server
from nightjar_alerts.service.registry.load import Models
from nightjar_alerts.service.settings import Settings
from support.edge import Live, Load, Network, curve, live, settings, wait_until
from support.graphs import echo_manifest

SLOW = CostModel(0.1, 0.0, 0.0)
SAMPLE = Path("service/samples/ztf_ZTF26dqoimhj.avro")


def model(network: Network, manifest: Manifest) -> LoadedModel:
    return LoadedModel(Bundle(Path(manifest.name), manifest, manifest.name[0] * 64), "cpu", network, SLOW, 0.0, 0.0)


def loading(network: Network, cheap: Network, **changes: Any) -> Load:
    manifest = echo_manifest()
    other = manifest.model_copy(update={"name": "cheap"} | changes)
    return lambda _: Models(model(network, manifest), None, model(cheap, other))


@contextmanager
def full(network: Network, cheap: Network, **changes: Any) -> Iterator[Live]:
    """A service whose model has all that it takes."""
    with (
        live(loading(network, cheap), workers=1, max_queued_seconds=0.5, **changes) as edge,
        ThreadPoolExecutor() as pool,
    ):
        network.hold()
        first = pool.submit(edge.classify, curve())
        assert network.started.acquire(timeout=10)
        waiting: list[Future[tuple[int, Any]]] = [pool.submit(edge.classify, curve()) for _ in range(5)]
        wait_until(lambda: edge.service.classifier.engine.depth == 5)
        yield edge
        network.release()
        assert {done.result()[0] for done in (first, *waiting)} == {200}


def test_a_cheaper_model_answers_and_says_so() -> None:
    network, cheap = Network(), Network()
    with full(network, cheap) as edge:
        body = json.dumps({"light_curves": [curve()] * 3}).encode()
        status, headers, text = edge.ask("POST", "/v1/classify", body, {"Content-Type": "application/json"})
        reply = json.loads(text)
        assert (status, headers[ROLE_HEADER.lower()]) == (200, "fallback")
        assert {name: reply["model"][name] for name in ("name", "sha256", "role")} == {
            "name": "cheap", "sha256": "c" * 64, "role": "fallback",
        }  # fmt: skip
        assert [result["status"] for result in reply["results"]] == ["classified"] * 3
        assert edge.metric("nightjar_substitutes_total", role="fallback") == 1
    assert len(cheap.seen) == 3


def test_packets_are_answered_likewise() -> None:
    network, cheap = Network(), Network()
    with full(network, cheap) as edge:
        packet, kind = SAMPLE.read_bytes(), {"Content-Type": "application/octet-stream"}
        status, headers, text = edge.ask("POST", "/v1/alerts", packet, kind)
        assert (status, headers[ROLE_HEADER.lower()]) == (200, "fallback")
        assert json.loads(text)["model"]["role"] == "fallback"


def test_nothing_is_said_while_the_model_answers_itself() -> None:
    network, cheap = Network(), Network()
    with live(loading(network, cheap)) as edge:
        status, headers, text = edge.ask("POST", "/v1/classify", json.dumps(curve()).encode())
        assert (status, json.loads(text)["model"]["name"]) == (200, "echo")
        assert ROLE_HEADER.lower() not in headers
        assert "role" not in json.loads(text)["model"]
    assert cheap.seen == []


def test_a_request_that_names_a_model_gets_that_one_or_none() -> None:
    network, cheap = Network(), Network()
    with full(network, cheap) as edge:
        for name in ("echo", "echo@0.0.1"):
            assert edge.post(f"/v1/classify?model={name}", curve())[0] == 429
        status, reply = edge.post("/v1/classify?model=default", curve())
        assert (status, reply["model"]["name"]) == (200, "cheap")
        status, reply = edge.post("/v1/classify?model=fallback", curve())
        assert (status, reply["model"]["name"], "role" in reply["model"]) == (200, "cheap", False)


def test_when_both_are_full_the_request_is_refused() -> None:
    network, cheap = Network(), Network()
    with full(network, cheap) as edge, ThreadPoolExecutor() as pool:
        cheap.hold()
        waiting = [pool.submit(edge.classify, curve())]
        assert cheap.started.acquire(timeout=10)  # or six might be waiting at once, which is one too many
        waiting += [pool.submit(edge.classify, curve()) for _ in range(5)]
        wait_until(lambda: edge.service.models.classifier("fallback").served.engine.depth == 5)
        status, problem = edge.classify(curve())
        assert (status, problem["type"], problem["retry_after"]) == (429, "/problems/overloaded", 1)
        cheap.release()
        assert {done.result()[0] for done in waiting} == {200}


def test_a_fallback_is_not_kept_by_the_requests_it_answered() -> None:
    network, cheap = Network(), Network()
    with full(network, cheap) as edge:
        assert edge.classify(curve())[0] == 200
        models = edge.service.models
        assert models.classifier("fallback").served.leases == 0
        assert models.default.leases == 6
    assert models.default.leases == 0


@pytest.mark.parametrize(
    "changes",
    [{"name": "echo"}, {"taxonomy": Taxonomy(name="other", version="1", classes=echo_manifest().classes.classes[:5])}],
)
def test_a_fallback_that_cannot_be_one_ends_the_process(changes: dict[str, object]) -> None:
    load = loading(Network(), Network(), **changes)
    server = Server(Service(settings(), load))
    server.run()
    assert (server.exit_status, server.service.state) == (1, State.FAILED)


def test_the_fallback_is_a_setting() -> None:
    assert Settings(fallback_bundle=Path("cheap")).fallback_bundle == Path("cheap")
