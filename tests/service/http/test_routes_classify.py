"""``POST /v1/classify`` over a real socket."""

import json
import re
from collections.abc import Iterator
from functools import partial

import pytest

from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.core.result import ClassifyReply
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.service.observe.metrics import STAGES
from support.edge import CLASSES, Live, Network, curve, live, loader, raw_post, wait_until
from support.graphs import poison
from support.results import checked

JSON = {"Content-Type": "application/json"}
POISONOUS = 666.0


@pytest.fixture(scope="module")
def network() -> Network:
    network = Network()
    network.on_marker[POISONOUS] = poison
    return network


@pytest.fixture(scope="module")
def edge(network: Network) -> Iterator[Live]:
    with live(loader(network)) as edge:
        yield edge


def test_classify_one_light_curve_has_a_full_result(edge: Live) -> None:
    status, headers, body = edge.ask("POST", "/v1/classify", json.dumps(curve()).encode(), JSON)
    assert (status, headers["content-type"]) == (200, "application/json")
    document = json.loads(body)
    checked(ClassifyReply, document)
    (result,) = document["results"]
    assert result["class"] == ELASTICC.names[1000 % CLASSES]
    assert result["class_id"] == ELASTICC.ids[1000 % CLASSES]
    assert list(result["probabilities"]) == list(ELASTICC.names)
    assert abs(sum(result["probabilities"].values()) - 1) < 1e-9
    assert result["confidence"] == max(result["probabilities"].values())
    assert abs(result["hierarchy"]["Variable"] - 1) < 1e-9
    assert result["points_per_band"] == {"u": 2, "g": 2, "r": 1, "i": 1, "z": 1, "Y": 1}
    assert (result["truncated"], result["metadata_missing"], "embedding" in result) == (False, 64, False)
    stages = re.findall(r"(\w+);dur=[\d.]+", headers["server-timing"])
    assert tuple(stages) == (*STAGES, "total")


def test_classify_batch_has_a_result_for_each(edge: Live) -> None:
    curves = [curve(flux=[float(i)] * 8, object_id=str(i)) for i in range(5)]
    curves[2]["flux_err"][4] = -1.0
    status, reply = edge.classify({"light_curves": curves, "options": {"embedding": True}})
    checked(ClassifyReply, reply)
    assert (status, [result["object_id"] for result in reply["results"]]) == (200, ["0", "1", "2", "3", "4"])
    bad = reply["results"].pop(2)
    assert (bad["status"], bad["reason"]) == ("rejected", "not_positive")
    assert bad["errors"][0]["pointer"] == "/light_curves/2/flux_err/4"
    assert [result["class"] for result in reply["results"]] == [ELASTICC.names[i] for i in (0, 1, 3, 4)]
    assert [result["embedding"] for result in reply["results"]] == [[float(i)] * 4 for i in (0, 1, 3, 4)]


def test_classify_failing_light_curve_fails_alone(edge: Live) -> None:
    bad = curve(flux=[POISONOUS] * 8)
    status, reply = edge.classify({"light_curves": [curve(), bad]})
    assert (status, [result["status"] for result in reply["results"]]) == (200, ["classified", "failed"])
    checked(ClassifyReply, reply)
    status, problem = edge.classify(bad)
    assert (status, problem["type"]) == (500, "/problems/internal")
    assert "division" not in json.dumps(problem)


def test_classify_long_history_is_truncated(edge: Live) -> None:
    _, reply = edge.classify(curve(200, band=["r"] * 200, detected=[True] * 200))
    (result,) = reply["results"]
    assert (result["truncated"], result["points_per_band"]["r"]) == (True, 65)


def test_classify_large_request_is_classified(edge: Live) -> None:
    status, reply = edge.classify({"light_curves": [curve(200) for _ in range(60)]})
    assert (status, {result["status"] for result in reply["results"]}) == (200, {"classified"})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Type": "Application/JSON"}, 200),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({**JSON, "Content-Encoding": "identity"}, 200),
    ],
)
def test_classify_content_types_are_accepted(edge: Live, headers: dict[str, str], status: int) -> None:
    assert edge.ask("POST", "/v1/classify", json.dumps(curve()).encode(), headers)[0] == status


def test_classify_deadline_passed_is_504(edge: Live, network: Network) -> None:
    network.hold()
    try:
        status, problem = edge.classify({**curve(), "options": {"deadline_ms": 30}})
    finally:
        network.release()
    assert (status, problem["type"]) == (504, "/problems/deadline")


def test_classify_disconnected_client_withdraws_its_work() -> None:
    network = Network()
    with live(loader(network), workers=1) as edge:
        network.hold()
        with edge.connect() as first, edge.connect() as second:
            first.sendall(raw_post("/v1/classify", json.dumps(curve(flux=[1.0] * 8)).encode()))
            assert network.started.acquire(timeout=10)
            second.sendall(raw_post("/v1/classify", json.dumps(curve(flux=[2.0] * 8)).encode()))
            wait_until(partial(queued, edge, 1))
            second.close()
            wait_until(lambda: edge.metric("nightjar_withdrawn_total") == 1)
            network.release()
            assert first.recv(12) == b"HTTP/1.1 200"
        wait_until(lambda: edge.metric("nightjar_requests_total", route="/v1/classify", code="499") == 1)
        assert 2.0 not in network.seen
        assert edge.service.budget.held == 0


def queued(edge: Live, count: int) -> bool:
    return edge.metric("nightjar_queue_depth") == count


def test_classify_overload_is_429_with_retry_after() -> None:
    network = Network()
    slow = CostModel(1.0, 0.0, 0.0)
    with live(loader(network, slow), workers=1, max_queued_seconds=2.5) as edge:
        network.hold()
        connections = [edge.connect() for _ in range(3)]
        for waiting, connection in enumerate(connections):
            connection.sendall(raw_post("/v1/classify", json.dumps(curve()).encode()))
            if waiting == 0:
                assert network.started.acquire(timeout=10)
            wait_until(partial(queued, edge, waiting))
        status, headers, body = edge.ask("POST", "/v1/classify", json.dumps(curve()).encode(), JSON)
        network.release()
        for connection in connections:
            assert connection.recv(12) == b"HTTP/1.1 200"
            connection.close()
        assert (status, json.loads(body)["type"]) == (429, "/problems/overloaded")
        assert 1 <= int(headers["retry-after"]) <= 3
        assert edge.metric("nightjar_rejected_total", reason="overloaded") == 1


def test_classify_real_network_is_served(tiny_edge: Live) -> None:
    body = {"light_curves": [curve(n) for n in (1, 8, 60)], "options": {"embedding": True}}
    status, reply = tiny_edge.classify(body)
    assert status == 200
    checked(ClassifyReply, reply)
    assert reply["model"]["name"] == "tiny"
    for result in reply["results"]:
        assert abs(sum(result["probabilities"].values()) - 1) < 1e-9


def test_classify_table_names_the_endpoint_for_tables(edge: Live) -> None:
    status, _, body = edge.ask("POST", "/v1/classify", b"a,b", {"Content-Type": "text/csv; charset=utf-8"})
    assert status == 415
    assert "/v1/tables" in json.loads(body)["detail"]


def test_classify_misspelt_parameter_names_the_similar_one(edge: Live) -> None:
    status, _, body = edge.ask("POST", "/v1/classify?covrage=0.5", json.dumps(curve()).encode(), JSON)
    assert status == 422
    assert json.loads(body)["errors"] == [
        {"pointer": "/query/covrage", "reason": "unknown_field", "detail": "unknown parameter; send coverage"}
    ]
