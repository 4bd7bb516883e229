"""Priors, domains and filters of requests on every route, with bundles that have them."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import numpy as np
import orjson
import pytest

from nightjar_alerts.core.load import load_model
from nightjar_alerts.core.result import AlertsReply, ClassifyReply
from nightjar_alerts.models.bundle import AssumedPrior, Bundle, load_bundle, write_manifest
from nightjar_alerts.models.metadata import Context
from nightjar_alerts.models.posterior import Domain, Posterior
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.service.registry.loader import load_one
from support.edge import Live, curve, live
from support.results import checked
from support.wire import results_of

IA, RRL = "Ia", "RR Lyrae"
BRIGHT = 2000.0  # nJy, beyond which the default of these tests was not measured
ALERT = (Path(__file__).parents[3] / "service" / "samples").glob("lsst_*")


def variant(source: Path, folder: Path, **fields: object) -> Bundle:
    """Copy a bundle with changes to its manifest."""
    shutil.copytree(source, folder)
    return write_manifest(folder, load_bundle(source).manifest.model_copy(update={"format_version": 2, **fields}))


@pytest.fixture(scope="module")
def bundles(confident_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    folder = tmp_path_factory.mktemp("bundles")
    shares = {name: 1.0 + (name == IA) for name in ELASTICC.names}
    novelty = load_bundle(confident_bundle).manifest.novelty
    assert novelty is not None
    never, always = novelty.model_copy(update={"threshold": 1.0}), novelty.model_copy(update={"threshold": 0.0})
    faint = Domain(bands=("g", "r", "i"), brightest_njy=BRIGHT, measured_on="faint light curves")
    bright = Domain(bands=("g", "r"), faintest_njy=BRIGHT, brightest_njy=1e6, measured_on="bright light curves")
    return {
        "usual": variant(
            confident_bundle, folder / "usual", name="usual", domain=faint, context=Context(), novelty=never,
            prior=AssumedPrior(name="measured", shares=shares, source="tests"),
        ),
        "bright": variant(
            confident_bundle, folder / "bright", name="bright", domain=bright, context=Context(), novelty=always
        ),
        "atlas": variant(confident_bundle, folder / "atlas", name="atlas", bands=("c", "o"), band_groups={"r": "o"}),
    }  # fmt: skip


@pytest.fixture(scope="module")
def edge(bundles: dict[str, Bundle]) -> Iterator[Live]:
    with live(load_one, bundle=bundles["usual"].path, ztf_bundle=bundles["bright"].path) as edge:
        yield edge


FAINT = curve(6, flux=[100.0 + 90 * i for i in range(6)], band=["g", "r", "i", "g", "r", "i"])
SHINING = curve(6, flux=[5e3 + 90 * i for i in range(6)], band=["g", "r", "i", "g", "r", "i"])
BLINDING = curve(6, flux=[5e7] * 6, band=["g", "r", "i", "g", "r", "i"])


def exactly(p: dict[str, float], old: dict[str, float], new: dict[str, float]) -> dict[str, float]:
    terms = {name: p[name] * new.get(name, 0.0) / old[name] for name in p}
    total = sum(terms.values())
    return {name: term / total for name, term in terms.items()}


def one(reply: Any) -> dict[str, Any]:
    (result,) = reply["results"]
    return dict(result)


@pytest.mark.parametrize("prior", ["uniform", "lsst-alerts", {IA: 3.0, RRL: 1.0}])
def test_classify_prior_reweights_the_probabilities(edge: Live, bundles: dict[str, Bundle], prior: Any) -> None:
    manifest = bundles["usual"].manifest
    _, plain = edge.classify(FAINT)
    status, asked = edge.classify({**FAINT, "options": {"prior": prior}})
    assert status == 200
    checked(ClassifyReply, asked)
    share = dict(zip(ELASTICC.names, Posterior(manifest).prior(prior).share_C.tolist(), strict=True))
    expected = exactly(one(plain)["probabilities"], manifest.assumed_shares, share)
    assert one(asked)["probabilities"] == pytest.approx(expected, abs=1e-5)
    assert plain["model"]["prior"] == "measured"
    assert asked["model"]["prior"] == (prior if isinstance(prior, str) else "given")
    assert set(one(asked)["prediction_set"]) <= {name for name in share if share[name]} | {one(asked)["class"]}


def test_classify_prior_in_body_and_query_give_the_same(edge: Live) -> None:
    weights = {IA: 3.0, RRL: 1.0}
    _, expected = edge.classify({**FAINT, "options": {"prior": weights}})
    path = "/v1/classify?" + urlencode({"prior": orjson.dumps(weights).decode()})
    _, _, packed = edge.ask(
        "POST", "/v1/classify", msgspec.msgpack.encode({**FAINT, "options": {"prior": weights}}),
        {"Content-Type": "application/msgpack"},
    )  # fmt: skip
    answers = [results_of("application/msgpack", packed)[0]]
    for media_type in ("application/json", "application/x-ndjson"):
        _, _, body = edge.ask("POST", path, orjson.dumps(FAINT) + b"\n", {"Content-Type": media_type})
        answers.append(results_of(media_type, body)[0])
    for answer in answers:
        assert answer["probabilities"] == pytest.approx(one(expected)["probabilities"], abs=1e-5)


@pytest.mark.parametrize(
    ("prior", "pointer"),
    [
        ("nonsense", "/options/prior"),
        ({"Ia": 1.0, "Ib": 1.0}, "/options/prior/Ib"),
        ({"Ib/c": -0.5}, "/options/prior/Ib~1c"),
        ({"Ia": 0.0}, "/options/prior"),
        ({}, "/options/prior"),
        ({"Ia": True}, "/options/prior/Ia"),
        ({"Ia": "1"}, "/options/prior/Ia"),
        ({"Ia": None}, "/options/prior/Ia"),
        (["Ia"], "/options/prior"),
        (1.5, "/options/prior"),
        ("{", "/options/prior"),
        ("x" * 65, "/options/prior"),
    ],
)
def test_classify_invalid_prior_points_at_the_class(edge: Live, prior: Any, pointer: str) -> None:
    status, problem = edge.classify({**FAINT, "options": {"prior": prior}})
    assert (status, problem["errors"][0]["pointer"]) == (422, pointer)


def test_classify_msgpack_prior_of_other_types_is_a_problem(edge: Live) -> None:
    for weight in (float("nan"), float("inf")):
        body = msgspec.msgpack.encode({**FAINT, "options": {"prior": {IA: weight}}})
        status, _, answer = edge.ask("POST", "/v1/classify", body, {"Content-Type": "application/msgpack"})
        assert status == 422
        assert b"/options/prior" in answer


def test_alerts_prior_parameter_reweights_the_probabilities(edge: Live) -> None:
    packet = next(iter(ALERT)).read_bytes()
    head = {"Content-Type": "application/octet-stream"}
    _, _, body = edge.ask("POST", "/v1/alerts?prior=ztf-bright&model=usual", packet, head)
    reply = checked(AlertsReply, body)
    assert reply.model.prior == "ztf-bright"
    assert orjson.loads(body)["results"][0]["probabilities"][RRL] == 0.0
    status, _, body = edge.ask("POST", "/v1/alerts?prior=nonsense&model=usual", packet, head)
    assert (status, orjson.loads(body)["errors"][0]["pointer"]) == (422, "/query/prior")


def tensors(sent: dict[str, Any], prior: object) -> dict[str, Any]:
    n = len(sent["mjd"])
    kinds = {"mjd": "FP64", "flux": "FP32", "flux_err": "FP32", "band": "BYTES"}
    inputs = [{"name": name, "shape": [n], "datatype": kind, "data": sent[name]} for name, kind in kinds.items()]
    return {"inputs": inputs, "outputs": [{"name": "probabilities"}], "parameters": {"prior": prior}}


def test_infer_prior_parameter_reweights_the_probabilities(edge: Live) -> None:
    _, expected = edge.classify({**FAINT, "options": {"prior": "uniform"}})
    status, reply = edge.post("/v2/models/usual/infer", tensors(FAINT, "uniform"))
    assert status == 200
    np.testing.assert_allclose(
        reply["outputs"][0]["data"], list(one(expected)["probabilities"].values()), atol=1e-5
    )  # fmt: skip
    status, problem = edge.post("/v2/models/usual/infer", tensors(FAINT, {"Ia": -1}))
    assert (status, problem["errors"][0]["pointer"]) == (422, "/parameters/prior/Ia")


def test_classify_redshift_evidence_is_used_and_reported(edge: Live) -> None:
    _, reply = edge.classify({**FAINT, "metadata": {"zspec": 0.4}})
    assert one(reply)["probabilities"][RRL] == 0.0
    assert "excludes" in one(reply)["evidence"][0]


def test_classify_light_curve_outside_the_domain_uses_a_substitute(edge: Live) -> None:
    status, reply = edge.classify({"light_curves": [FAINT, SHINING, BLINDING]})
    checked(ClassifyReply, reply)
    faint, shining, blinding = reply["results"]
    assert (status, reply["model"]["name"]) == (200, "usual")
    assert (faint["status"], "model" in faint) == ("classified", False)
    assert (shining["status"], shining["model"]["name"]) == ("classified", "bright")
    assert (blinding["status"], blinding["reason"]) == ("abstained", "outside_domain")
    assert "measured up to" in blinding["detail"]
    assert "name the model usual" in blinding["detail"]


def test_classify_unusual_light_curve_has_no_set(edge: Live) -> None:
    _, reply = edge.classify({"light_curves": [FAINT, SHINING]})
    usual, unusual = reply["results"]
    assert (usual["unusual"], usual["coverage"]) == (False, 0.9)
    assert unusual["unusual"] is True
    assert not {"prediction_set", "coverage"} & unusual.keys()


def test_classify_named_model_ignores_its_domain(edge: Live) -> None:
    status, reply = edge.post("/v1/classify?model=usual", BLINDING)
    assert (status, one(reply)["status"], reply["model"]["name"]) == (200, "classified", "usual")


def test_classify_ndjson_uses_a_substitute_and_arrow_none(edge: Live) -> None:
    lines = b"".join(orjson.dumps(sent) + b"\n" for sent in (FAINT, SHINING))
    _, _, body = edge.ask("POST", "/v1/classify", lines, {"Content-Type": "application/x-ndjson"})
    faint, shining = results_of("application/x-ndjson", body)
    assert (faint["status"], "model" in faint) == ("classified", False)
    assert (shining["status"], shining["model"]["name"]) == ("classified", "bright")
    _, _, body = edge.ask("POST", "/v1/classify?model=usual", lines, {"Content-Type": "application/x-ndjson"})
    assert [result["status"] for result in results_of("application/x-ndjson", body)] == ["classified"] * 2
    arrow = "application/vnd.apache.arrow.stream"
    both = orjson.dumps({"light_curves": [FAINT, SHINING]})
    _, _, body = edge.ask("POST", "/v1/classify", both, {"Content-Type": "application/json", "Accept": arrow})
    assert [result["status"] for result in results_of(arrow, body)] == ["classified", "abstained"]


def test_classify_duplicates_and_other_filters_are_counted(edge: Live) -> None:
    sent = {name: [*FAINT[name], FAINT[name][2]] for name in ("mjd", "flux", "flux_err", "band")}
    sent = {
        name: [*column, extra] for (name, column), extra in zip(sent.items(), (59_999.0, 5.0, 1.0, "c"), strict=True)
    }
    _, plain = edge.classify(FAINT)
    status, reply = edge.classify(sent)
    assert status == 200
    assert one(reply)["duplicates"] == 1
    assert one(reply)["other_filters"] == {"c": 1}
    assert one(reply)["probabilities"] == pytest.approx(one(plain)["probabilities"], abs=1e-5)


def test_classify_survey_with_its_own_filters_is_classified(bundles: dict[str, Bundle]) -> None:
    loaded = load_model(bundles["atlas"].path)
    sent = curve(6, band=["c", "o", "c", "o", "r", "i"])
    with live(lambda *_: loaded) as edge:
        status, reply = edge.classify({**sent, "survey": "atlas"})
        _, models = edge.ask("GET", "/v1/models")[0], orjson.loads(edge.ask("GET", "/v1/models")[2])
        status_of_none, none = edge.classify(curve(2, band=["g", "i"]))
    assert status == 200
    assert one(reply)["points_per_band"] == {"c": 2, "o": 3}
    assert one(reply)["other_filters"] == {"i": 1}
    assert models["models"][0]["bands"] == ["c", "o"]
    assert (status_of_none, one(none)["reason"]) == (200, "no_usable_points")
