"""``POST /v1/evolution`` over a real socket, compared with separate classifications of each prefix."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nightjar_alerts.core.result import AlertsReply, EvolutionReply
from support import alerts
from support.edge import Live, Network, live, loader
from support.results import checked

JSON = {"Content-Type": "application/json"}
OCTETS = {"Content-Type": "application/octet-stream"}
ZTF = alerts.container("ztf/4.02", [alerts.ztf_alert()])
LSST = alerts.confluent(1000, alerts.lsst_alert("lsst/10.0"))


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    with live(loader(Network()), max_alert_bytes=1_000_000) as edge:
        yield edge


def post(edge: Live, path: str, body: bytes | dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, _, text = edge.ask("POST", path, data, headers)
    return status, json.loads(text)


def evolve(edge: Live, body: bytes | dict[str, Any], query: str = "", headers: dict[str, str] | None = None) -> Any:
    status, document = post(edge, f"/v1/evolution{query}", body, headers or JSON)
    assert status == 200, document
    checked(EvolutionReply, document)
    return document


def light_curve(points: int, **more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(points)
    return {
        "object_id": "SN",
        "mjd": (60_000.0 + np.arange(points) * 2.5).tolist(),
        "flux": rng.normal(2000, 900, points).tolist(),
        "flux_err": [100.0] * points,
        "band": [("g", "r", "i")[index % 3] for index in range(points)],
        "detected": [index % 4 != 0 for index in range(points)],
        **more,
    }


def first(curve: dict[str, Any], points: int) -> dict[str, Any]:
    return {name: column[:points] if isinstance(column, list) else column for name, column in curve.items()}


def problem(edge: Live, body: bytes | dict[str, Any], query: str = "", headers: dict[str, str] | None = None) -> Any:
    status, document = post(edge, f"/v1/evolution{query}", body, headers or JSON)
    return (
        status,
        document["type"].rpartition("/")[2],
        [(e["pointer"], e["reason"]) for e in document.get("errors", ())],
    )


def test_evolution_of_a_light_curve_has_the_classification_of_each_prefix(edge: Live) -> None:
    curve = light_curve(30, metadata={"mwebv": 0.1})
    reply = evolve(edge, curve)
    detections = [index for index in range(30) if index % 4]
    assert [step["mjd"] for step in reply["steps"]] == [curve["mjd"][index] for index in detections]
    assert [step["detections"] for step in reply["steps"]] == list(range(1, len(detections) + 1))
    prefixes = [first(curve, index + 1) for index in detections]
    status, classified = post(edge, "/v1/classify", {"light_curves": prefixes}, JSON)
    assert status == 200
    for step, result in zip(reply["steps"], classified["results"], strict=True):
        assert step["class"] == result["class"]
        assert step["probabilities"] == pytest.approx(result["probabilities"], abs=2e-5)
        assert step.get("prediction_set") == result.get("prediction_set")
    tops = [step["class"] for step in reply["steps"]]
    assert reply["class_changes"] == sum(a != b for a, b in itertools.pairwise(tops))
    assert (reply["object_id"], reply["detections"], reply["sampled"]) == ("SN", len(detections), False)
    assert reply["model"] == classified["model"]


def test_evolution_of_a_long_light_curve_is_sampled(edge: Live) -> None:
    curve = light_curve(390, detected=[True] * 390)
    reply = evolve(edge, curve)
    assert reply["sampled"]
    assert len(reply["steps"]) == 100
    assert reply["steps"][-1]["detections"] == reply["detections"] == 390


@pytest.mark.parametrize("data", [ZTF, LSST], ids=["ztf", "lsst"])
def test_evolution_of_a_packet_is_that_of_its_light_curve(edge: Live, data: bytes) -> None:
    reply = evolve(edge, data, headers=OCTETS)
    _, classified = post(edge, "/v1/alerts?light_curve=true", data, OCTETS)
    checked(AlertsReply, classified)
    (result,) = classified["results"]
    assert evolve(edge, result["light_curve"]) == reply
    assert reply["object_id"] == result["object_id"]


@pytest.mark.parametrize("data", [ZTF, LSST], ids=["ztf", "lsst"])
def test_light_curve_of_a_packet_is_classified_as_the_packet(edge: Live, data: bytes) -> None:
    _, reply = post(edge, "/v1/alerts?light_curve=true", data, OCTETS)
    (result,) = reply["results"]
    status, classified = post(edge, "/v1/classify", result["light_curve"], JSON)
    assert status == 200, classified
    (again,) = classified["results"]
    assert again["probabilities"] == pytest.approx(result["probabilities"], abs=2e-5)
    assert again["points_per_band"] == result["points_per_band"]


def test_alerts_without_the_option_return_no_light_curve(edge: Live) -> None:
    _, reply = post(edge, "/v1/alerts", ZTF, OCTETS)
    assert "light_curve" not in reply["results"][0]


def test_evolution_outside_the_bands_of_the_model_has_abstained_steps(edge: Live) -> None:
    curve = light_curve(4, detected=[True] * 4, band=["BP"] * 4)
    reply = evolve(edge, curve)
    assert [step["status"] for step in reply["steps"]] == ["abstained"] * 4
    assert {step["reason"] for step in reply["steps"]} == {"no_usable_points"}
    assert (reply["class_changes"], reply["last_change_mjd"], reply["recent_variation"]) == (0, None, None)


@pytest.mark.parametrize(
    ("body", "query", "headers", "expected"),
    [
        (light_curve(3, flux=[1, 2]), "", JSON, (422, "invalid", [("/flux", "length_mismatch")])),
        ({"light_curves": [light_curve(3)]}, "", JSON, (422, "invalid", [("/light_curves", "several_light_curves")])),
        (light_curve(3, options={"prior": "uniform"}), "", JSON, (422, "invalid", [("/options", "unknown_field")])),
        (light_curve(3), "?embedding=true", JSON, (422, "invalid", [("/query/embedding", "unknown_field")])),
        (light_curve(3), "?schema=ztf/4.02", JSON, (422, "invalid", [("/query/schema", "not_a_packet")])),
        (light_curve(3), "?prior=nobody", JSON, (422, "invalid", [("/query/prior", "unknown_prior")])),
        (b"{", "", JSON, (400, "malformed", [])),
        (ZTF, "?schema=nobody/1", OCTETS, (422, "invalid", [("/query/schema", "unknown_schema")])),
        (b"nonsense", "", OCTETS, (422, "invalid", [("", "unknown_envelope")])),
        (
            alerts.container("ztf/4.02", [alerts.ztf_alert(), alerts.ztf_alert()]),
            "",
            OCTETS,
            (422, "invalid", [("", "several_alerts")]),
        ),
    ],
)
def test_evolution_of_an_invalid_request_is_a_problem(
    edge: Live, body: Any, query: str, headers: dict[str, str], expected: Any
) -> None:
    assert problem(edge, body, query, headers) == expected
