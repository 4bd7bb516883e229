"""The score table of real surveys: scores by hand, separate columns, and earlier reports."""

import json
from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.models.bundle import DEFAULT_BUNDLE
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.routing import SURVEY_BUNDLES
from nightjar_alerts.training.data.sample import PARTS, ContextPolicy, Sample, collect
from nightjar_alerts.training.score.report import ServedPredictions, rounded
from nightjar_alerts.training.score.report_page import page
from nightjar_alerts.training.score.survey_rows import ROWS
from nightjar_alerts.training.score.survey_scores import (
    BROAD,
    broad_scores,
    novelty_auroc,
    open_bundle,
    predict,
    restricted,
    summary,
    to_broad,
)
from nightjar_alerts.training.score.surveys import (
    evaluate_on_surveys,
    measure,
    measure_bundle,
    report_on_surveys,
    scored_part,
    spread,
)
from support.surveys import bump, pulsator

pytestmark = pytest.mark.slow

IA, II, IBC, RRL = (ELASTICC.names.index(name) for name in ("Ia", "II", "Ib/c", "RR Lyrae"))
C = len(ELASTICC.names)
TEST = PARTS.index("test")
DEFAULT_NAME = f"{DEFAULT_BUNDLE.parent.name} {DEFAULT_BUNDLE.name}"


def predictions(*named: tuple[int, float], unusual: tuple[bool, ...] = ()) -> ServedPredictions:
    """Answers that give a class a probability and spread the rest; the set holds that class alone."""
    probabilities = np.stack([np.where(np.arange(C) == c, p, (1 - p) / (C - 1)) for c, p in named])
    inside = probabilities == probabilities.max(axis=1, keepdims=True)
    strange = np.array(unusual or [False] * len(named))
    return ServedPredictions(np.arange(len(named)), probabilities, inside, strange.astype(float), strange, strange)


def small_sky() -> Sample:
    rows = [bump(f"S{i}", source="snls", seed=i, z=0.3) for i in range(6)]
    rows += [bump(f"Z{i}", source="ztf_sn", seed=20 + i, label=II if i % 2 else IA, bands="gr") for i in range(8)]
    rows += [pulsator(f"P{i}", source="s82_rrlyrae", seed=i, label=RRL) for i in range(6)]
    odd = [pulsator(f"O{i}", source="s82_rrlyrae", seed=50 + i, label=-1) for i in range(6)]
    for row in odd:
        row.quality = "other"
    every = [*rows, *odd]
    return collect(every, [row.object_id for row in every], [TEST] * len(every))


def surely_ia(sky: Sample, context: ContextPolicy) -> ServedPredictions:
    return predictions(*[(IA, 0.9)] * len(sky))


def test_summary_scores_equal_hand_calculation() -> None:
    row_predictions = predictions((IA, 0.9), (IA, 0.9), (II, 0.5), (RRL, 0.6), unusual=(False, False, False, True))
    scores = summary(row_predictions, np.array([IA, II, II, IA]))
    assert scores["top_1"] == pytest.approx(0.5)
    assert scores["balanced"] == pytest.approx(0.5)
    assert scores["sure_and_wrong"] == pytest.approx(0.25)
    assert scores["withheld"] == pytest.approx(0.25)
    assert scores["coverage"] == pytest.approx(2 / 3)
    assert scores["size"] == pytest.approx(1.0)
    assert scores["single_and_missing"] == pytest.approx(0.25)
    assert scores["broad"] == pytest.approx(0.75)
    assert scores["recurring"] == pytest.approx(0.75)


def test_scores_without_objects_are_empty() -> None:
    assert summary(predictions((IA, 0.9)).take(np.array([False])), np.zeros(0, dtype=np.int64)) == {"objects": 0}


def test_restricted_ignores_other_classes() -> None:
    row_predictions = predictions((RRL, 0.9), (IA, 0.4))
    row_predictions.probabilities_NC[0, IBC] += 0.01
    assert restricted(row_predictions, np.array([IBC, II]))["top_1"] == pytest.approx(0.5)


def test_to_broad_sums_probabilities() -> None:
    p = np.zeros((1, C))
    p[0, [IA, II, RRL]] = 0.3, 0.3, 0.4
    assert BROAD[to_broad(p).argmax()] == "SN-like"


def test_broad_scores_worst_bin_ignores_small_bins() -> None:
    row_predictions = predictions(*[(IA, 0.9)] * 12, (RRL, 0.9))
    scores = broad_scores(row_predictions, np.full(13, IA), np.array([23.0] * 12 + [17.0]))
    assert scores["worst_bin"] == pytest.approx(1.0)
    assert scores["recall"]["SN-like"]["recall"] == pytest.approx(12 / 13)


def test_novelty_auroc_without_scores_is_nan() -> None:
    row_predictions = predictions((IA, 0.9), (IA, 0.9))
    assert novelty_auroc(row_predictions, row_predictions) == pytest.approx(0.5)
    row_predictions.novelty_N[:] = np.nan
    assert np.isnan(novelty_auroc(row_predictions, row_predictions))


def test_measure_has_every_row_and_scores_only_the_test_part() -> None:
    sky = small_sky()
    sky.part[:3] = PARTS.index("train")
    objects, strange = scored_part(sky)
    assert len(objects) == 17
    assert len(strange) == 6
    report = measure("always Ia", surely_ia, sky)
    assert set(report["rows"]) == {row.key for row in ROWS}
    assert report["rows"]["deep"]["SNLS (3)"] == 1.0
    assert report["rows"]["ztf3"]["balanced"] == pytest.approx(0.5)
    assert report["rows"]["ztf3"]["top-1"] == pytest.approx(0.5)
    for figures in (report["rows"][row.key] for row in ROWS if row.key != "views"):
        for beside in ("top-1", "withheld"):
            assert any(name.startswith(beside) for name in figures)
    assert report["sets"]["ztf_sn"]["nothing"]["top_1"] == pytest.approx(0.5)
    assert report["novelty"]["oddities"] == 6
    json.dumps(report, allow_nan=False)


def test_measure_with_views_has_their_row() -> None:
    sky = small_sky()
    report = measure("always Ia", surely_ia, sky, sky.take(sky.label >= 0))
    assert report["rows"]["views"]["balanced, no z"] == pytest.approx(0.5)
    assert "II and Ib/c called Ia, as these surveys see them" in report["rows"]["deep"]
    assert "ztf_sn" in report["patterns"]


def test_predict_returns_normalised_probabilities_and_sets() -> None:
    sky = small_sky().take(np.arange(4))
    row_predictions = predict(open_bundle(DEFAULT_BUNDLE), sky, "redshift")
    assert row_predictions.probabilities_NC.shape == (4, C)
    np.testing.assert_allclose(row_predictions.probabilities_NC.sum(axis=1), 1.0, atol=1e-5)
    assert (row_predictions.inside_NC[np.arange(4), row_predictions.probabilities_NC.argmax(axis=1)]).all()


def test_measure_bundle_of_other_classes_raises() -> None:
    with pytest.raises(ValueError, match="does not have the 20 classes"):
        measure_bundle(SURVEY_BUNDLES["ztf"], small_sky())


def test_measure_all_adds_columns_of_earlier_reports(tmp_path: Path) -> None:
    sky = small_sky()
    trees = {"reports": {"trees": {"left out": measure("trees", surely_ia, sky)}}}
    (tmp_path / "trees.json").write_text(json.dumps(trees), encoding="utf-8")
    score = {"objects": {"mean": 1500.0}, "macro_f1": {"mean": 0.8}}
    evaluated = {"models": [{"name": DEFAULT_NAME}], "views": {"everything": score}}
    report = evaluate_on_surveys(sky, {"seen": [DEFAULT_BUNDLE]}, views=None, report_files=[tmp_path / "trees.json"])
    assert set(report["reports"]) == {DEFAULT_NAME, "trees"}
    (deep,) = [row for row in report["table"] if row["key"] == "deep"]
    assert set(deep["figures"]["trees"]) == {"left out"}
    (tmp_path / "evaluated.json").write_text(json.dumps(evaluated), encoding="utf-8")
    report = evaluate_on_surveys(sky, {"seen": [DEFAULT_BUNDLE]}, views=None, simulated=[tmp_path / "evaluated.json"])
    (simulated,) = [row for row in report["table"] if row["key"] == "simulated"]
    assert simulated["figures"][DEFAULT_NAME]["seen"] == {"macro-F1": 0.8, "objects": 1500}
    under = report["reports"][DEFAULT_NAME]["seen"]["priors"]
    assert {"uniform", "lsst-alerts"} <= set(under)
    assert all(0 <= scores["coverage"] <= 1 <= scores["size"] for scores in under.values())


def test_report_on_surveys_has_the_scores_of_the_table() -> None:
    sky = small_sky()
    served = report_on_surveys([DEFAULT_BUNDLE], sky)
    (model,) = served.values["models"].values()
    rows = measure_bundle(DEFAULT_BUNDLE, sky)["detections"]
    right = sum(row["objects"] * row["top_1"] for row in rows if row["objects"])
    assert model["scores"]["accuracy"] == pytest.approx(right / model["scores"]["classified"])
    assert "real surveys, test part" in page(served)


def test_scored_part_valid_excludes_evaluation_labels() -> None:
    sky = small_sky()
    sky.part[:] = PARTS.index("valid")
    sky.source[:4] = ["rubin", "rubin", "tdecat", "tdecat"]
    objects, _ = scored_part(sky, "valid")
    assert len(objects) == 16
    assert not set(objects.source.tolist()) & {"rubin", "tdecat"}
    objects, _ = scored_part(sky)
    assert set(objects.source.tolist()) == {"rubin"}


def test_measure_all_with_seeds_returns_mean_and_standard_deviation(tmp_path: Path) -> None:
    """Counts are left out, and so is a figure that one of them lacks; a lone measurement has no spread."""
    paths = []
    for number, recall in enumerate((0.5, 0.6, 0.7)):
        figures = {"recall": recall, "objects": 12, "rare": None if number else 0.1}
        table = [{"key": "yse", "title": "YSE", "figures": {"one": {"seen": figures}}}]
        table.append({"key": "simulated", "title": "not scored", "figures": {"one": {}}})
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps({"table": table}), encoding="utf-8")
    report = evaluate_on_surveys(small_sky().take(np.arange(0)), {}, views=None, seeds=paths)
    assert report["seeds"] == [{"key": "yse", "title": "YSE", "seeds": 3, "figures": {"recall": [0.6, 0.1]}}]
    assert spread([json.loads(paths[0].read_text(encoding="utf-8"))]) == []


def test_measure_all_with_an_unknown_column_raises() -> None:
    with pytest.raises(ValueError, match="no column"):
        evaluate_on_surveys(small_sky(), {"guessed": []}, views=None)


def test_rounded_rounds_numbers_and_replaces_nan() -> None:
    assert rounded({"a": np.float64(0.123456), "b": [float("nan"), np.int64(3)], "c": "x"}) == {
        "a": 0.1235, "b": [None, 3], "c": "x",
    }  # fmt: skip
