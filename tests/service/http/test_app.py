"""The whole application: consistent responses, and a correct OpenAPI document."""

import inspect
import json
from typing import Any

import pytest

from nightjar_alerts.core.request import LightCurveIn
from nightjar_alerts.service.answers.models import ClassifierDescription, ModelsReply
from nightjar_alerts.service.http import openapi
from nightjar_alerts.service.http.edge.errors import KINDS, MEDIA_TYPE, Problem
from nightjar_alerts.service.http.lifecycle import Service
from nightjar_alerts.service.http.server import create_app
from support.edge import Live, Network, curve, live, loader, settings


@pytest.fixture(scope="module")
def document(edge: Live) -> dict[str, Any]:
    built: dict[str, Any] = json.loads(edge.ask("GET", "/openapi.json")[2])
    return built


def problem(text: bytes) -> Problem:
    return Problem.model_validate_json(text, strict=True)


@pytest.mark.parametrize("path", ["/nowhere", "/v1/nowhere", "/problems/nowhere", "//", "/%00", "/v1"])
def test_app_unknown_path_is_not_found(edge: Live, path: str) -> None:
    status, headers, body = edge.ask("GET", path)
    assert (status, headers["content-type"], problem(body).type) == (404, MEDIA_TYPE, "/problems/not-found")


GETS = "GET, HEAD, OPTIONS"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("GET", "/v1/classify", "OPTIONS, POST"), ("POST", "/healthz", GETS), ("PUT", "/", GETS)],
)
def test_app_wrong_method_answers_405_with_allow(edge: Live, method: str, path: str, allow: str) -> None:
    status, headers, body = edge.ask(method, path)
    assert (status, headers["allow"], problem(body).instance) == (405, allow, path)


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics", "/v1/models", "/v2"]
)
def test_app_head_answers_as_get_without_body(edge: Live, path: str) -> None:
    (got, headers, body), (status, head, nothing) = edge.ask("GET", path), edge.ask("HEAD", path)
    assert (status, nothing) == (got, b"")
    assert head["content-type"] == headers["content-type"] if body else True
    status, headers, _ = edge.ask("OPTIONS", path)
    assert (status, headers["allow"]) == (204, GETS)


def test_app_path_with_trailing_slash_redirects(edge: Live) -> None:
    status, headers, _ = edge.ask("POST", "/v1/classify/", b"{}")
    assert (status, headers["location"].endswith("/v1/classify")) == (307, True)


def test_models_by_name_are_described(edge: Live) -> None:
    models = json.loads(edge.ask("GET", "/v1/models")[2])["models"]
    for name in ("default", models[0]["name"], f"{models[0]['name']}@{models[0]['version']}"):
        assert json.loads(edge.ask("GET", f"/v1/models/{name}")[2]) == models[0]
    assert edge.ask("GET", "/v1/models/nobody")[0] == 404


def test_app_root_path_is_in_every_address() -> None:
    with live(loader(Network()), root_path="/nightjar", cors_origins=("https://broker.example",)) as edge:
        assert json.loads(edge.ask("GET", "/nowhere")[2])["type"] == "/nightjar/problems/not-found"
        assert json.loads(edge.ask("GET", "/openapi.json")[2])["servers"] == [{"url": "/nightjar"}]
        for prefix in ("", "/nightjar"):  # whether the proxy strips it or not
            assert edge.post(f"{prefix}/v1/classify", curve())[0] == 200
        origin = {"Origin": "https://broker.example", "Access-Control-Request-Method": "POST"}
        status, headers, _ = edge.ask("OPTIONS", "/v1/classify", headers=origin)
        assert (status, headers["access-control-allow-origin"]) == (200, "https://broker.example")


def test_problems_every_type_has_a_description(edge: Live) -> None:
    for kind in KINDS.values():
        status, _, body = edge.ask("GET", kind.type)
        assert (status, json.loads(body)["status"]) == (200, kind.status)


def test_models_served_model_is_described(edge: Live) -> None:
    status, _, body = edge.ask("GET", "/v1/models")
    described = ModelsReply.model_validate_json(body).models[0]
    assert isinstance(described, ClassifierDescription)
    assert (status, described.name, described.provider, len(described.classes)) == (200, "echo", "cpu", 20)
    assert (described.limits.max_points_per_band, described.flux_unit) == (65, "nJy")


def test_models_states_the_unit_of_the_network_and_of_requests(default_edge: Live) -> None:
    (described, *_) = ModelsReply.model_validate_json(default_edge.ask("GET", "/v1/models")[2]).models
    assert (described.network_flux_unit, described.flux_unit) == ("FLUXCAL", "FLUXCAL")
    assert described.default_flux_unit == inspect.signature(LightCurveIn).parameters["flux_unit"].default


def test_metrics_are_text(edge: Live) -> None:
    status, headers, body = edge.ask("GET", "/metrics")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    assert b"nightjar_requests_total" in body


def test_openapi_references_resolve(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])
    assert document["info"]["title"] == "Nightjar"
    assert "HTTPValidationError" not in text


def test_openapi_every_operation_has_descriptions_and_problems(document: dict[str, Any]) -> None:
    for method, path, operation in openapi.operations(document):
        assert operation["summary"], path
        assert operation["description"], path
        if method == "POST":
            assert operation["requestBody"]["content"], path
            assert {"400", "408", "413", "415", "422", "429", "503", "504"} <= set(operation["responses"]), path


def test_openapi_every_operation_has_one_of_the_described_tags(document: dict[str, Any]) -> None:
    described = [tag["name"] for tag in document["tags"] if tag["description"].endswith(".")]
    used = [operation["tags"] for _, _, operation in openapi.operations(document)]
    assert all(len(tags) == 1 for tags in used)
    assert list(dict.fromkeys(tags[0] for tags in used)) == described
    summaries = [operation["summary"] for _, _, operation in openapi.operations(document)]
    assert len(set(summaries)) == len(summaries)


def test_openapi_models_with_an_alias_keep_it(document: dict[str, Any]) -> None:
    assert "class" in document["components"]["schemas"]["CurveResult"]["properties"]


def test_openapi_limits_are_those_of_the_settings() -> None:
    document = create_app(Service(settings(max_curves=7, max_deadline_ms=1234))).openapi()
    schemas = document["components"]["schemas"]
    curves = schemas["BatchClassifyRequest"]["properties"]["light_curves"]
    assert (curves["minItems"], curves["maxItems"]) == (1, 7)
    assert json.dumps(document).count('"maximum": 1234') == 5


def test_openapi_with_api_keys_has_security_schemes() -> None:
    document = create_app(Service(settings(api_keys=("ab" * 32,)))).openapi()
    assert document["paths"]["/v1/models"]["get"]["security"] == [{"bearer": []}, {"key": []}]
    assert "401" in document["paths"]["/v1/models"]["get"]["responses"]
    assert "security" not in document["paths"]["/healthz"]["get"]


def test_openapi_without_enable_docs_is_not_served() -> None:
    with live(loader(Network()), enable_docs=False) as edge:
        assert [edge.ask("GET", path)[0] for path in ("/", "/docs", "/page/app.js", "/openapi.json")] == [404] * 4
        assert edge.ask("GET", "/problems/invalid")[0] == 200


def test_openapi_responses_forbid_additional_fields(document: dict[str, Any]) -> None:
    for name in ("ClassifyReply", "CurveResult", "CurveFailure", "PacketResult", "PacketFailure"):
        assert document["components"]["schemas"][name]["additionalProperties"] is False
