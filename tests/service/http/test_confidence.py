"""Novelty and prediction sets in responses, in every format, for bundles with and without them."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from nightjar_alerts.core.adapter import Adapter
from nightjar_alerts.core.failures import InferenceFailed
from nightjar_alerts.core.load import load_model
from nightjar_alerts.core.result import AlertsReply, Classified, ClassifyReply
from nightjar_alerts.models.bundle import Bundle, load_bundle, write_manifest
from nightjar_alerts.models.lightcurve import LightCurve, RaggedBatch, featurise
from nightjar_alerts.models.runtime import open_session, run
from support.edge import Live, Network, curve, live, loader
from support.results import checked
from support.wire import results_of

CURVES = [curve(n, flux=[100.0 + 900 * i for i in range(n)], object_id=str(n)) for n in (1, 4, 9, 30)]


@pytest.fixture(scope="module")
def bundle(confident_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle whose novelty never exceeds the threshold, so that every result has a prediction set."""
    folder = tmp_path_factory.mktemp("usual") / "bundle"
    manifest = load_bundle(confident_bundle).manifest
    assert manifest.novelty is not None
    shutil.copytree(confident_bundle, folder)
    novelty = manifest.novelty.model_copy(update={"threshold": 1.0})
    return write_manifest(folder, manifest.model_copy(update={"novelty": novelty}))


@pytest.fixture(scope="module")
def edge(bundle: Bundle) -> Iterator[Live]:
    loaded = load_model(bundle.path)
    with live(lambda *_: loaded) as edge:
        yield edge


def light_curve(sent: dict[str, Any]) -> LightCurve:
    return LightCurve.from_columns(*(sent[name] for name in ("mjd", "flux", "flux_err", "band")))


def test_classify_novelty_and_sets_match_graph_and_manifest(edge: Live, bundle: Bundle) -> None:
    manifest = bundle.manifest
    sets = manifest.prediction_sets
    assert sets is not None
    status, reply = edge.classify({"light_curves": CURVES})
    checked(ClassifyReply, reply)
    assert status == 200
    for sent, result in zip(CURVES, reply["results"], strict=True):
        tokens = featurise(light_curve(sent), manifest.limits, manifest.flux_unit, manifest.metadata_columns)
        answers = run(open_session(bundle.model), RaggedBatch.collate([tokens]).padded())
        assert result["novelty"] == pytest.approx(float(answers["novelty"][0]), abs=1e-4)
        largest = sets.groups[int(tokens.detected.sum()) >= 5].largest[1]
        p = result["probabilities"]
        expected = {name for name, value in p.items() if 1 - value <= largest} | {result["class"]}
        assert set(result["prediction_set"]) == expected
        assert [p[name] for name in result["prediction_set"]] == sorted((p[name] for name in expected), reverse=True)
        assert result["coverage"] == 0.9


@pytest.mark.parametrize(("asked", "stated"), [(0.3, 0.8), (0.8, 0.8), (0.85, 0.9), (0.97, 1.0)])
def test_classify_coverage_option_selects_the_set(edge: Live, asked: float, stated: float) -> None:
    for path, body in (
        ("/v1/classify", {**CURVES[2], "options": {"coverage": asked}}),
        (f"/v1/classify?coverage={asked}", CURVES[2]),
    ):
        status, reply = edge.post(path, body)
        (result,) = reply["results"]
        assert (status, result["coverage"]) == (200, stated)
        assert (len(result["prediction_set"]) == 20) >= (stated == 1.0)


@pytest.mark.parametrize("coverage", [0, 1, -0.5, 1.5, "0.9"])
def test_classify_invalid_coverage_is_a_problem(edge: Live, coverage: object) -> None:
    status, problem = edge.classify({**CURVES[0], "options": {"coverage": coverage}})
    assert (status, problem["errors"][0]["pointer"]) == (422, "/options/coverage")


@pytest.mark.parametrize(
    "media_type", ["application/x-ndjson", "application/msgpack", "application/vnd.apache.arrow.stream"]
)
def test_classify_confidence_is_the_same_in_every_format(edge: Live, media_type: str) -> None:
    body = orjson.dumps({"light_curves": CURVES})
    headers = {"Content-Type": "application/json", "Accept": media_type}
    status, told, answer = edge.ask("POST", "/v1/classify", body, headers)
    assert (status, told["content-type"]) == (200, media_type)
    _, reply = edge.classify(body)
    for ours, theirs in zip(results_of(media_type, answer), reply["results"], strict=True):
        assert ours["novelty"] == pytest.approx(theirs["novelty"], abs=1e-5)
        assert (ours["prediction_set"], ours["coverage"]) == (theirs["prediction_set"], theirs["coverage"])


def test_alerts_confidence_is_that_of_classify(edge: Live) -> None:
    packet = next((Path(__file__).parents[3] / "service" / "samples").glob("lsst_*")).read_bytes()
    status, _, body = edge.ask("POST", "/v1/alerts", packet, {"Content-Type": "application/octet-stream"})
    (result,) = checked(AlertsReply, body).results
    assert status == 200
    assert isinstance(result, Classified)
    assert result.novelty is not None
    assert result.prediction_set is not None
    assert (result.prediction_set[0], result.coverage) == (result.class_name, 0.9)


def test_models_confidence_thresholds_are_described(edge: Live, bundle: Bundle) -> None:
    _, _, body = edge.ask("GET", "/v1/models")
    (model,) = orjson.loads(body)["models"]
    assert bundle.manifest.novelty is not None
    assert model["novelty"]["threshold"] == bundle.manifest.novelty.threshold
    assert model["prediction_sets"]["coverages"] == [0.8, 0.9]
    assert model["calibration_details"]["method"] == "temperature_by_length"


def test_classify_model_without_confidence_has_no_such_fields() -> None:
    with live(loader(Network())) as edge:
        _, reply = edge.classify({**CURVES[1], "options": {"coverage": 0.8}})
        assert not {"novelty", "prediction_set", "coverage"} & reply["results"][0].keys()
        _, _, body = edge.ask("GET", "/v1/models")
        (model,) = orjson.loads(body)["models"]
        assert (model["novelty"], model["prediction_sets"]) == (None, None)


def test_classify_novelty_nan_fails_alone(bundle: Bundle) -> None:
    loaded = load_model(bundle.path)
    program = classification(bundle)
    questions = [program.prepare(light_curve(sent)) for sent in CURVES[:2]]
    outputs = loaded.graph(program.assemble(questions))
    outputs["novelty"] = np.array([np.nan, 0.25], dtype=np.float32)
    first, second = program.split(outputs, len(questions))
    assert isinstance(first, InferenceFailed)
    assert not isinstance(second, InferenceFailed)
    assert (second["novelty"].shape, float(second["novelty"])) == ((), 0.25)


def classification(bundle: Bundle) -> Adapter:
    return Adapter(bundle.manifest)
