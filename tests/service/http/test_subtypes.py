"""Supernova types of ZTF: the default model returns the class, the type model the subtype of supernovae."""

import json
from typing import Any

import numpy as np
import pytest

from nightjar_alerts.core.result import AlertsReply, ClassifyReply
from nightjar_alerts.models.taxonomy import ELASTICC, MALLORN, ZTF_SUPERNOVAE
from nightjar_alerts.service import SAMPLES
from support.edge import Live
from support.results import checked

ZTF = sorted(SAMPLES.glob("ztf_*.avro"))


@pytest.fixture
def edge(default_edge: Live) -> Live:
    return default_edge


def supernova(**changes: object) -> dict[str, Any]:
    days = np.arange(-12.0, 60.0, 3.0)
    flux = 3000 * np.exp(-np.abs(days) / np.where(days < 0, 6, 20))
    return {
        "mjd": (60000 + days).tolist(), "flux": flux.tolist(), "flux_err": [60.0] * len(days),
        "band": ["g", "r"] * (len(days) // 2), "metadata": {"zspec": 0.05},
    } | changes  # fmt: skip


def variable(**changes: object) -> dict[str, Any]:
    days = np.sort(np.random.default_rng(3).uniform(0, 400, 160))
    flux = 2e6 * (1 + 0.3 * np.sin(2 * np.pi * days / 0.57) + 0.1 * np.sin(4 * np.pi * days / 0.57))
    return {
        "mjd": (60000 + days).tolist(), "flux": flux.tolist(), "flux_err": [2e4] * len(days),
        "band": ["g", "r"] * (len(days) // 2), "flux_kind": "total",
    } | changes  # fmt: skip


def classify(edge: Live, *curves: dict[str, Any], model: str = "") -> list[dict[str, Any]]:
    status, reply = edge.post(f"/v1/classify?model={model}", {"light_curves": list(curves)})
    assert status == 200, reply
    checked(ClassifyReply, reply)
    results: list[dict[str, Any]] = reply["results"]
    return results


def test_classify_ztf_supernova_has_class_and_subtype(edge: Live) -> None:
    plain, ztf = classify(edge, supernova(), supernova(survey="ztf"))
    assert "subtype" not in plain
    subtype = ztf.pop("subtype")
    assert [warning["reason"] for warning in ztf.pop("warnings")] == ["implausible_depth"]  # deeper than ZTF sees
    assert plain.keys() == ztf.keys()
    assert ztf["probabilities"] == pytest.approx(plain["probabilities"], abs=1e-4)
    assert subtype["class"] in ZTF_SUPERNOVAE.names
    assert list(subtype["probabilities"]) == list(ZTF_SUPERNOVAE.names)
    assert subtype["confidence"] == max(subtype["probabilities"].values())
    assert subtype["model"]["name"] == "astro-moe-ztf"


def table(curve: dict[str, Any]) -> bytes:
    """Return a light curve as a CSV of ZTF's forced photometry."""
    names = "name,mjd,filter,flux,fluxerr,zp,magsys"
    rows = zip(curve["mjd"], curve["band"], curve["flux"], curve["flux_err"], strict=True)
    lines = [f"a,{mjd},ztf{band},{flux},{error},31.4,ab" for mjd, band, flux, error in rows]
    return "\n".join([names, *lines]).encode()


def test_every_interface_gives_the_subtype_of_a_ztf_supernova(edge: Live) -> None:
    curve = supernova(survey="ztf", metadata={})
    (expected,) = classify(edge, curve)
    lines = b"".join(json.dumps(line).encode() + b"\n" for line in (supernova(), curve))
    _, _, stream = edge.ask("POST", "/v1/classify", lines, {"Content-Type": "application/x-ndjson"})
    plain, streamed = map(json.loads, stream.splitlines())
    assert "subtype" not in plain
    path = '/v1/tables?options={"survey":"ztf"}'
    _, _, reply = edge.ask("POST", path, table(supernova()), {"Content-Type": "text/csv"})
    _, tabled, _ = map(json.loads, reply.splitlines())
    for found in (streamed, tabled):
        assert found["subtype"]["model"] == expected["subtype"]["model"]
        assert "model" not in found
    assert streamed["subtype"]["probabilities"] == expected["subtype"]["probabilities"]
    assert tabled["subtype"]["class"] == expected["subtype"]["class"]


def test_stream_names_the_model_of_a_line_that_another_one_classifies(edge: Live) -> None:
    vega = supernova(band=["BP", "RP"] * 12)
    body = b"".join(json.dumps(line).encode() + b"\n" for line in (vega, supernova()))
    _, _, stream = edge.ask("POST", "/v1/classify", body, {"Content-Type": "application/x-ndjson"})
    outside, inside = map(json.loads, stream.splitlines())
    status, reply = edge.post("/v1/classify", {"light_curves": [supernova(), vega]})
    assert status == 200
    for found, expected in zip((inside, outside), reply["results"], strict=True):
        assert (found["status"], found.get("model")) == (expected["status"], expected.get("model"))


def test_classify_ztf_variable_star_has_no_subtype(edge: Live) -> None:
    plain, ztf = classify(edge, variable(), variable(survey="ztf"))
    assert plain.keys() == ztf.keys()
    assert ztf["probabilities"] == pytest.approx(plain["probabilities"], abs=1e-4)
    assert ztf["hierarchy"]["Periodic"] > 0.9


def test_classify_named_model_of_types_returns_its_classes(edge: Live) -> None:
    for result in classify(edge, supernova(survey="ztf"), supernova(), model="astro-moe-ztf"):
        assert list(result["probabilities"]) == list(ZTF_SUPERNOVAE.names)
        assert "subtype" not in result
    (result,) = classify(edge, supernova(survey="ztf"), model="default")
    assert "subtype" not in result


def test_classify_prior_without_supernovae_leaves_the_subtype_out(edge: Live) -> None:
    status, reply = edge.post("/v1/classify", supernova(survey="ztf", options={"prior": {"AGN": 1, "EB": 1}}))
    assert status == 200
    (result,) = reply["results"]
    assert result["class"] in ("AGN", "EB")
    assert "subtype" not in result


def test_alerts_ztf_packets_have_a_class_of_the_default_model(edge: Live) -> None:
    counted = edge.metric("nightjar_outcomes_total", survey="ztf", status="classified", reason="")
    for path in ZTF:
        status, _, text = edge.ask(
            "POST", "/v1/alerts", path.read_bytes(), {"Content-Type": "application/octet-stream"}
        )
        assert status == 200
        reply = checked(AlertsReply, text)
        (result,) = json.loads(text)["results"]
        assert reply.model.name == "astro-moe-elasticc"
        assert list(result["probabilities"]) == list(ELASTICC.names)
        assert ("subtype" in result) == (ELASTICC.names.index(result["class"]) in ELASTICC.supernovae)
    after = edge.metric("nightjar_outcomes_total", survey="ztf", status="classified", reason="")
    assert after == counted + len(ZTF)  # each packet once, although two models saw some


def test_taxonomy_supernovae_are_sn_like_or_superluminous() -> None:
    found = {ELASTICC.names[index] for index in ELASTICC.supernovae}
    assert found == {"91bg", "Ia", "Iax", "Ib/c", "II", "SN-like/Other", "SLSN"}
    assert ZTF_SUPERNOVAE.only_supernovae
    assert not MALLORN.only_supernovae
