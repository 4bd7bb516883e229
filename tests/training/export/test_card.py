"""Model cards: values of manifest and reports, and a valid bundle afterwards."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nightjar_alerts.models.bundle import CARD, BundleError, load_bundle, write_manifest
from nightjar_alerts.training.export.card import PICTURE, draw_confusion, read_report, write_card
from support.pipeline import PER_CLASS, Pipeline


def card_of(bundle: Path) -> str:
    return (bundle / CARD).read_text(encoding="utf-8")


def test_the_card_says_what_matters(pipeline: Pipeline) -> None:
    card, manifest = card_of(pipeline.bundle), load_bundle(pipeline.bundle).manifest
    report, trees = (json.loads(path.read_text()) for path in (pipeline.report, pipeline.baseline))
    assert card.startswith("# debug 0.1.0\n")
    assert f"{manifest.parameters.total:,} parameters" in card
    assert "seed 5" in card
    assert f"objects: {20 * PER_CLASS:,}" in card
    assert f"{report['views']['everything']['macro_f1']['mean']:.3f} ± " in card
    assert f"{trees['views']['no metadata']['macro_f1']['mean']:.3f} |" in card
    assert f"{manifest.calibration.temperature:.3f}" in card
    assert f"]({PICTURE})" in card
    for heading in ("Training data", "Scores", "Early", "boosted trees", "Calibration", "must not be used", "limits"):
        assert heading in card
    assert max(len(line) for line in card.splitlines() if not line.startswith("|")) <= 320


def test_card_and_picture_are_hashed_in_the_manifest(pipeline: Pipeline) -> None:
    manifest = load_bundle(pipeline.bundle).manifest
    assert {CARD, PICTURE} <= manifest.files.keys()
    assert manifest.metrics["test"]["views"]["everything"]["macro_f1"]["mean"] >= 0
    assert manifest.data["splits"].keys() == {"train", "validation", "test"}
    assert sum(manifest.data["classes"].values()) == manifest.data["objects"]


def test_a_bundle_without_scores_says_so(tiny_bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, copy)
    write_card(copy)
    assert "Not scored yet." in card_of(copy)
    assert "the network's own" in card_of(copy)
    assert not (copy / PICTURE).exists()


def test_a_bundle_trained_on_an_import_says_where_the_curves_came_from(tiny_bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, copy)
    report = {"objects_read": 1200, "objects_written": 1100, "dropped_objects": {"too few detections": 100}}
    told = {"format": "ztf-supernovae", "licence": "CC0", "rules": {}, "report": report}
    manifest = load_bundle(copy).manifest
    data = manifest.data | {"source": "ZTF", "import": told, "pretrained": "runs/default-0"}
    write_manifest(copy, manifest.model_copy(update={"data": data}))
    write_card(copy)
    card = " ".join(card_of(copy).split())
    assert "Light curves of ZTF (`nightjar-train import ztf-supernovae`), terms: CC0. Of 1,200 objects" in card
    assert "too few detections (100)" in card
    assert "started from the weights of `runs/default-0`" in card
    assert "imulat" not in card


def test_one_run_has_no_spread(pipeline: Pipeline, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(pipeline.bundle, copy)
    report = json.loads(pipeline.report.read_text())
    report["models"] = report["models"][:1]
    write_card(copy, report)
    assert "has not been measured" in card_of(copy)
    assert "boosted trees" not in card_of(copy)


def test_write_card_with_a_baseline_of_other_objects_raises(pipeline: Pipeline, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(pipeline.bundle, copy)
    report, trees = read_report(pipeline.report), json.loads(pipeline.baseline.read_text())
    trees["data"]["split"] = "validation"
    with pytest.raises(ValueError, match="same objects"):
        write_card(copy, report, trees)
    assert card_of(copy) == card_of(pipeline.bundle)


def test_an_altered_bundle_gets_no_card(tiny_bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, copy)
    (copy / "model.onnx").write_bytes(b"altered")
    with pytest.raises(BundleError):
        write_card(copy)


def test_the_picture_has_dark_diagonal_and_empty_rows_do_no_harm(tmp_path: Path) -> None:
    names = [f"class {number}" for number in range(20)]
    counts = np.diag(np.arange(20))
    draw_confusion(tmp_path / "c.png", counts, names, "title")
    with Image.open(tmp_path / "c.png") as picture:
        assert picture.size == (990, 900)
        grey = np.asarray(picture.convert("L"))
    assert (tmp_path / "c.png").stat().st_size < 200_000
    assert (grey < 80).mean() > 0.005
