"""Classifiers of other shapes in a real service: no metadata, one band, long histories, other embeddings."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightjar_alerts.core.result import AlertsReply, ClassifyReply
from nightjar_alerts.models.lightcurve import Limits
from nightjar_alerts.service.answers.models import ModelsReply
from nightjar_alerts.service.registry.loader import load_one
from support import alerts
from support.edge import Live, curve, live
from support.graph_bundles import classifier_bundle
from support.results import checked

HISTORY = ("flux", "flux_err", "time", "band", "mask")
LIMITS = Limits(max_points_per_band=1024, pre_trigger_days=None)


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A single-band network for long histories, without metadata, errors or expert loads."""
    changes: dict[str, Any] = {"bands": ("r",), "limits": LIMITS, "embedding_dim": 9}
    bundle = classifier_bundle(tmp_path_factory.mktemp("r"), ("flux", "time", "band", "mask"), **changes)
    with live(load_one, bundle=bundle.path) as edge:
        yield edge


def ask(edge: Live, *curves: dict[str, Any]) -> list[dict[str, Any]]:
    status, reply = edge.classify({"light_curves": list(curves), "options": {"embedding": True}})
    checked(ClassifyReply, reply)
    assert status == 200
    results: list[dict[str, Any]] = reply["results"]
    return results


def test_classify_single_band_model_uses_its_band_only(edge: Live) -> None:
    posted = curve(6, band=["g", "r", "g", "r", "i", "r"], metadata={"mwebv": 0.1})
    (result,) = ask(edge, posted)
    n, flux, time, band = result["embedding"][:4]
    assert (n, band, len(result["embedding"])) == (3, 2, 9)
    assert flux == pytest.approx(sum(posted["flux"][1::2]) / 3)
    assert time == pytest.approx((0 + 2 + 4) / 3)  # days since the first point in r
    assert result["points_per_band"] == {"u": 0, "g": 0, "r": 3, "i": 0, "z": 0, "Y": 0}
    assert (result["truncated"], result["metadata_missing"]) == (False, 0)


def test_classify_curve_in_other_bands_is_abstained(edge: Live) -> None:
    first, other, last = ask(edge, curve(3, band=["r"] * 3), curve(3, band=["g"] * 3), curve(3, band=["r"] * 3))
    assert (first["status"], other["status"], last["status"]) == ("classified", "abstained", "classified")
    assert (other["reason"], other["errors"], other["object_id"]) == ("no_usable_points", [], "SN 2099zz")
    status, reply = edge.classify(curve(3, band=["g"] * 3))
    assert (status, reply["results"][0]["status"]) == (200, "abstained")
    assert edge.metric("nightjar_outcomes_total", survey="none", status="abstained", reason="no_usable_points") >= 2


def test_classify_long_history_is_truncated_to_the_limit(edge: Live) -> None:
    short, long = ask(edge, curve(1024, band=["r"] * 1024), curve(1500, band=["r"] * 1500))
    assert (short["embedding"][0], short["truncated"]) == (1024, False)
    assert (long["embedding"][0], long["truncated"]) == (1024, True)


def test_alerts_without_a_point_in_the_band_are_abstained(edge: Live) -> None:
    seen = alerts.confluent(1000, alerts.lsst_alert("lsst/10.0"))
    unseen = alerts.bare("elasticc/0.9.1", alerts.elasticc_alert())  # Y and g
    for packet, status, reason in ((seen, "classified", None), (unseen, "abstained", "no_usable_points")):
        code, _, body = edge.ask("POST", "/v1/alerts", packet, {"Content-Type": "application/octet-stream"})
        checked(AlertsReply, body)
        (result,) = json.loads(body)["results"]
        assert (code, result["status"], result.get("reason")) == (200, status, reason)


def test_models_single_band_model_is_described(edge: Live) -> None:
    (model,) = ModelsReply.model_validate_json(edge.ask("GET", "/v1/models")[2]).models
    assert (model.bands, model.metadata_columns, model.limits) == (["r"], [], LIMITS)
    assert edge.metric("nightjar_missing_metadata_total") == 0
    assert edge.ask("GET", "/docs")[0] == 200


def test_classify_metadata_missing_counts_the_columns_of_the_model(tmp_path: Path) -> None:
    columns = ("mwebv", "z_final")
    bundle = classifier_bundle(tmp_path, (*HISTORY, "metadata"), metadata_columns=columns)
    with live(load_one, bundle=bundle.path) as edge:
        one, none = ask(edge, curve(metadata={"mwebv": 0.1, "hostgal_snsep": 1.0}), curve())
        assert (one["metadata_missing"], none["metadata_missing"]) == (1, 2)
        assert (one["embedding"][5], none["embedding"][5]) == (1, 0)
