"""``POST /v1/forecast`` over a real socket, with a real graph whose answers can be worked out."""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightjar_alerts.models.forecast import MAX_QUERIES
from nightjar_alerts.models.photometry import BANDS, NJY_PER_UNIT, FluxUnit
from nightjar_alerts.service.answers.models import ForecasterDescription, ModelsReply
from nightjar_alerts.service.answers.replies import ForecastReply
from nightjar_alerts.service.engine.batch import Arrays
from nightjar_alerts.service.http.lifecycle import Service, State
from nightjar_alerts.service.http.server import Server
from nightjar_alerts.service.observe.metrics import STAGES
from nightjar_alerts.service.registry.load import Models, load_configured
from nightjar_alerts.service.settings import CommonSettings
from support.edge import Live, Network, curve, live, loader, settings, wait_until
from support.graph_bundles import classifier_bundle, forecaster_bundle

JSON = {"Content-Type": "application/json"}
LIMIT = 5
NETWORK_BANDS = ("g", "r", "i", "z")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    return {
        "bundle": classifier_bundle(folder / "counter").path,
        "forecast_bundle": forecaster_bundle(folder / "ruler", flux_unit="FLUXCAL", bands=NETWORK_BANDS).path,
    }


@pytest.fixture(scope="module")
def edge(bundles: dict[str, Path]) -> Iterator[Live]:
    with live(load_configured, max_queries=LIMIT, **bundles) as edge:
        yield edge


def asked(points: int = 8, at: Any = (60_009.0, 60_004.5), inside: Any = ("r", "g"), **changes: Any) -> dict[str, Any]:
    """A light curve, and a forecast wanted ``at`` times ``inside`` bands."""
    return curve(points, forecast={"mjd": list(at), "band": list(inside)}, **changes)


def expected(posted: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Answer of the graph, in the unit posted; it sees FLUXCAL and four bands."""
    unit: FluxUnit = posted.get("flux_unit", "nJy")
    scale = NJY_PER_UNIT[unit] / NJY_PER_UNIT["FLUXCAL"]
    known = np.isin(posted["band"], NETWORK_BANDS)
    origin = np.array(posted["mjd"])[known].min()
    days = np.array(posted["forecast"]["mjd"]) - origin
    band = np.array([BANDS.index(name) for name in posted["forecast"]["band"]])
    flux = np.array(posted["flux"])[known].mean() * scale + days + 1000 * band
    flux_err = np.array(posted["flux_err"])[known].mean() * scale + days**2
    return list(flux / scale), list(flux_err / scale)


def assert_answers(result: dict[str, Any], posted: dict[str, Any]) -> None:
    flux, flux_err = expected(posted)
    assert result["flux"] == pytest.approx(flux, rel=1e-5)
    assert result["flux_err"] == pytest.approx(flux_err, rel=1e-5)
    assert (result["mjd"], result["band"]) == (posted["forecast"]["mjd"], posted["forecast"]["band"])


def test_one_curve(edge: Live) -> None:
    posted = asked()
    status, headers, body = edge.ask("POST", "/v1/forecast", json.dumps(posted).encode(), JSON)
    assert (status, headers["content-type"]) == (200, "application/json")
    document = json.loads(body)
    ForecastReply.model_validate(document, strict=True)
    assert document["model"].keys() == {"name", "version", "sha256"}
    (result,) = document["results"]
    assert (result["status"], result["object_id"], result["flux_unit"]) == ("forecast", "SN 2099zz", "nJy")
    assert_answers(result, posted)
    assert result["points_per_band"] == {"u": 0, "g": 2, "r": 1, "i": 1, "z": 1, "Y": 0}
    assert (result["truncated"], result["metadata_missing"]) == (False, 0)
    assert tuple(re.findall(r"(\w+);dur=[\d.]+", headers["server-timing"])) == (*STAGES, "total")


@pytest.mark.parametrize("unit", ["nJy", "uJy", "FLUXCAL"])
def test_answers_come_in_the_unit_that_was_posted(edge: Live, unit: str) -> None:
    posted = asked(flux_unit=unit)
    (result,) = edge.forecast(posted)[1]["results"]
    assert result["flux_unit"] == unit
    assert_answers(result, posted)


def test_any_time_in_any_order_also_before_the_history(edge: Live) -> None:
    posted = asked(at=(60_050.0, 59_000.0, 60_003.25, 60_003.25, 60_000.0), inside=("z", "g", "r", "g", "i"))
    status, reply = edge.forecast(posted)
    assert status == 200
    assert_answers(reply["results"][0], posted)


def test_many_curves_each_for_itself(edge: Live) -> None:
    posted = [asked(points, flux=[100.0 * points] * points, object_id=str(points)) for points in (2, 3, 5, 40, 200)]
    posted[1] = asked(3, at=(60_001.0, 2_460_000.5))
    posted.append(asked(90, flux=[3e38] * 90))  # finite in single precision; its mean is not
    posted.append(asked(2, band=["u", "Y"]))
    status, reply = edge.forecast({"light_curves": posted, "options": {"deadline_ms": 20_000}})
    ForecastReply.model_validate(reply, strict=True)
    results = reply["results"]
    statuses = ["forecast", "rejected", "forecast", "forecast", "forecast", "failed", "abstained"]
    assert (status, [result["status"] for result in results]) == (200, statuses)
    for place in (0, 2, 3, 4):
        assert_answers(results[place], posted[place])
    assert (results[1]["reason"], results[1]["errors"][0]["pointer"]) == (
        "time_out_of_range",
        "/light_curves/1/forecast/mjd/1",
    )
    assert results[5]["reason"] == "inference_failed"
    assert (results[6]["reason"], results[6]["errors"]) == ("no_usable_points", [])


def test_a_history_beyond_the_limits_is_cut_and_said_so(edge: Live) -> None:
    posted = asked(200, band=["r"] * 200, detected=[True] * 200)
    (result,) = edge.forecast(posted)[1]["results"]
    assert (result["truncated"], result["points_per_band"]["r"]) == (True, 65)


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"forecast": None}, "/forecast", "not_an_object"),
    ({"forecast": []}, "/forecast", "not_an_object"),
    ({"forecast": {}}, "/forecast/mjd", "missing"),
    ({"forecast": {"mjd": [60_009.0]}}, "/forecast/band", "missing"),
    ({"forecast": {"mjd": [], "band": []}}, "/forecast/mjd", "empty"),
    ({"forecast": {"mjd": [60_009.0, 60_010.0], "band": ["r"]}}, "/forecast/band", "length_mismatch"),
    ({"forecast": {"mjd": 60_009.0, "band": ["r"]}}, "/forecast/mjd", "not_a_list"),
    ({"forecast": {"mjd": [60_009.0], "band": "r"}}, "/forecast/band", "not_a_list"),
    ({"forecast": {"mjd": [60_009.0, True], "band": ["r", "r"]}}, "/forecast/mjd/1", "not_a_number"),
    ({"forecast": {"mjd": ["60009.0"], "band": ["r"]}}, "/forecast/mjd/0", "not_a_number"),
    ({"forecast": {"mjd": [None], "band": ["r"]}}, "/forecast/mjd/0", "not_a_number"),
    ({"forecast": {"mjd": [60_009.0, float("nan")], "band": ["r", "r"]}}, "/forecast/mjd/1", "not_finite"),
    ({"forecast": {"mjd": [float("-inf")], "band": ["r"]}}, "/forecast/mjd/0", "not_finite"),
    ({"forecast": {"mjd": [2_460_009.5], "band": ["r"]}}, "/forecast/mjd/0", "time_out_of_range"),
    ({"forecast": {"mjd": [60_009.0, 60_009.0], "band": ["r", "q"]}}, "/forecast/band/1", "unknown_band"),
    ({"forecast": {"mjd": [60_009.0], "band": [2]}}, "/forecast/band/0", "not_a_string"),
    ({"forecast": {"mjd": [60_009.0, 60_009.0], "band": ["r", "u"]}}, "/forecast/band/1", "unsupported_band"),
    ({"forecast": {"mjd": [60_009.0] * 6, "band": ["r"] * 6}}, "/forecast/mjd", "too_many_queries"),
    ({"forecast": {"mjd": ["x"] * 100_000, "band": []}}, "/forecast/mjd", "too_many_queries"),
    ({"forecast": {"mjd": [60_009.0], "band": ["r"], "days": [1]}}, "/forecast/days", "unknown_field"),
    ({"forecast": {str(i): 1 for i in range(50_000)}}, "/forecast/0", "unknown_field"),
    ({"options": {"embedding": True}}, "/options/embedding", "unknown_field"),
    ({"options": {"deadline_ms": 10**9}}, "/options/deadline_ms", "deadline_too_long"),
    ({"flux_err": [0.0] * 8}, "/flux_err/0", "not_positive"),
    ({"horizon": 3}, "/horizon", "unknown_field"),
]


@pytest.mark.parametrize(("changes", "pointer", "reason"), BAD)
def test_a_bad_request_is_pointed_at(edge: Live, changes: dict[str, Any], pointer: str, reason: str) -> None:
    status, problem = edge.forecast({**asked(), **changes})
    assert (status, problem["type"], problem["instance"]) == (422, "/problems/invalid", "/v1/forecast")
    assert (problem["errors"][0]["pointer"], problem["errors"][0]["reason"]) == (pointer, reason)
    assert len(problem["errors"]) <= 20
    if "options" not in changes:
        status, reply = edge.forecast({"light_curves": [asked(), {**asked(), **changes}]})
        good, bad = reply["results"]
        assert (status, good["status"], bad["status"]) == (200, "forecast", "rejected")
        assert bad["errors"][0]["pointer"] == f"/light_curves/1{pointer}"


def test_a_number_that_json_cannot_hold_is_named(edge: Live) -> None:
    body = json.dumps(asked()).encode().replace(b"60009.0", b"1e999")
    status, problem = edge.forecast(body)
    assert (status, problem["errors"][0]["pointer"]) == (422, "/forecast/mjd/0")


def test_a_forecast_is_not_asked_of_the_classifier(edge: Live) -> None:
    status, problem = edge.classify(asked())
    assert (status, problem["errors"][0]["pointer"]) == (422, "/forecast")


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream"])
def test_media_types(edge: Live, kind: str) -> None:
    assert edge.ask("POST", "/v1/forecast", b"{}", {"Content-Type": kind})[0] == 415


def test_both_models_are_described(edge: Live) -> None:
    models = ModelsReply.model_validate_json(edge.ask("GET", "/v1/models")[2]).models
    assert [(model.name, model.task) for model in models] == [("counter", "classification"), ("ruler", "forecast")]
    assert isinstance(models[1], ForecasterDescription)
    assert models[1].bands == list(NETWORK_BANDS)
    assert edge.metric("nightjar_model_load_seconds", task="forecast") > 0


def test_forecasts_are_counted(edge: Live) -> None:
    def counted() -> tuple[float, float, float]:
        outcomes = edge.metric("nightjar_outcomes_total", survey="none", status="forecast", reason="")
        runs = edge.metric("nightjar_batch_size_count", task="forecast")
        return outcomes, runs, edge.metric("nightjar_batch_size_count", task="classification")

    before = counted()
    assert edge.forecast(asked())[0] == 200
    wait_until(lambda: counted() == (before[0] + 1, before[1] + 1, before[2]))
    wait_until(lambda: edge.metric("nightjar_requests_total", route="/v1/forecast", code="200") >= 1)


def test_the_classifier_answers_beside_it(edge: Live) -> None:
    edge.still_well()


def test_as_many_times_as_allowed_by_default(bundles: dict[str, Path]) -> None:
    posted = asked(at=60_000.0 + np.arange(MAX_QUERIES), inside=["g"] * MAX_QUERIES)
    with live(load_configured, **bundles) as edge:
        status, reply = edge.forecast(posted)
        assert status == 200
        assert_answers(reply["results"][0], posted)


def test_without_a_forecaster_the_route_says_so() -> None:
    with live(loader(Network())) as edge:
        status, problem = edge.forecast(asked())
        assert (status, problem["type"]) == (404, "/problems/not-found")
        assert "NIGHTJAR_FORECAST_BUNDLE" in problem["detail"]
        edge.still_well()


def test_a_deadline_that_passes_and_a_queue_that_is_full(bundles: dict[str, Path]) -> None:
    may_run = threading.Event()

    def load(chosen: CommonSettings) -> Models:
        models = load_configured(chosen)
        assert models.forecaster is not None
        run = models.forecaster.run

        def held(inputs: Arrays) -> Arrays:
            assert may_run.wait(20)
            return run(inputs)

        return models._replace(forecaster=replace(models.forecaster, run=held))

    with live(load, workers=1, **bundles) as edge:
        status, problem = edge.forecast(asked() | {"options": {"deadline_ms": 50}})
        assert (status, problem["type"]) == (504, "/problems/deadline")
        assert edge.classify(curve())[0] == 200  # the other engine has its own workers
        may_run.set()
        assert edge.forecast(asked())[0] == 200


def test_a_classifier_in_its_place_is_refused(bundles: dict[str, Path]) -> None:
    server = Server(Service(settings(bundle=bundles["bundle"], forecast_bundle=bundles["bundle"])))
    server.run()
    assert (server.exit_status, server.service.state) == (1, State.FAILED)
