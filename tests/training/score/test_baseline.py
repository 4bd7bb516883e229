"""Boosted trees: features, training, and scores on the same views as the network."""

import json
from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.models.lightcurve import LightCurve, Limits, featurise
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.training.data.augment import View
from nightjar_alerts.training.data.batches import Example, view_examples
from nightjar_alerts.training.data.dataset import read_dataset, split_indices, write_dataset
from nightjar_alerts.training.fit.trees.classical import train_trees
from nightjar_alerts.training.fit.trees.features import FEATURE_SETS, FEATURES, FeatureSet, features, matrix
from nightjar_alerts.training.fit.trees.parameters import BASELINE_FOREST
from nightjar_alerts.training.recipes.astro_moe import debug
from nightjar_alerts.training.score.baseline import baseline
from support.pipeline import Pipeline
from support.toy_dataset import TOY_CLASSES, toy_objects, write_toy_dataset

pytestmark = pytest.mark.slow


def named(curve: LightCurve) -> dict[str, float]:
    values = features(featurise(curve, Limits(), "FLUXCAL", METADATA_COLUMNS))
    return dict(zip(FEATURES, values.tolist(), strict=True))


def test_features_by_hand() -> None:
    njy = 10 ** (0.4 * 3.9)
    curve = LightCurve.from_columns(
        mjd=[60_000.0, 60_001.0, 60_003.0, 60_003.5],
        flux=[1 * njy, 9 * njy, 4 * njy, 2 * njy],
        flux_err=[njy] * 4,
        band=["g", "g", "g", "r"],
        detected=[False, True, False, False],
        metadata={"mwebv": 0.25},
    )
    row = named(curve)
    assert (row["g_points"], row["g_detections"], row["r_points"], row["u_points"]) == (3, 1, 1, 0)
    assert row["g_maximum"] == pytest.approx(np.arcsinh(9.0), rel=1e-6)
    assert row["g_best_snr"] == pytest.approx(9.0, rel=1e-5)
    assert (row["g_time_of_maximum"], row["g_span"]) == (1.0, 3.0)
    assert row["g_rise"] == pytest.approx(np.arcsinh(9.0) - np.arcsinh(1.0), rel=1e-5)
    assert row["g_fall"] == pytest.approx((np.arcsinh(4.0) - np.arcsinh(9.0)) / 2, rel=1e-5)
    assert row["g_excess"] == pytest.approx(np.log10(1e-3 + ((np.array([1, 9, 4]) - 14 / 3) ** 2).sum() / 2), rel=1e-5)
    assert row["g-r"] == pytest.approx(np.arcsinh(9.0) - np.arcsinh(2.0), rel=1e-5)
    assert (row["points"], row["duration"], row["time_to_detection"], row["since_maximum"]) == (4, 3.5, 1.0, 2.5)
    assert row["mwebv"] == 0.25
    assert np.isnan([row["u_maximum"], row["u-g"], row["r_scatter"], row["r_rise"], row["z_final"]]).all()


def test_one_point_without_detection_has_features() -> None:
    row = named(LightCurve.from_columns([60_000.0], [-1.0], [5.0], ["z"]))
    assert row["z_points"] == 1
    assert row["z_detections"] == 0
    assert np.isnan(row["time_to_detection"])
    assert not any(np.isinf(value) for value in row.values())


def test_a_constant_band_has_no_skewness() -> None:
    row = named(LightCurve.from_columns([1.0, 2.0, 3.0], [7.0] * 3, [1.0] * 3, ["i"] * 3))
    assert row["i_skewness"] == 0.0
    assert row["i_excess"] == pytest.approx(-3.0)


def test_trees_learn_easy_classes_and_are_scored_on_the_test_split(tmp_path: Path) -> None:
    data = write_toy_dataset(tmp_path / "toy.parquet", 240)
    report = baseline(debug(), data, feature_set="summary", examples=300)
    assert report["views"]["everything"]["macro_f1"]["mean"] > 0.8
    assert report["views"]["no metadata"]["macro_f1"]["mean"] < report["views"]["everything"]["macro_f1"]["mean"]
    assert report["models"][0]["features"] == len(FEATURES)


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
def test_a_forest_learns_them_from_any_features(tmp_path: Path, feature_set: FeatureSet) -> None:
    dataset = read_dataset(write_toy_dataset(tmp_path / "toy.parquet", 160))
    forest = train_trees(dataset, debug(), 200, "forest", feature_set)
    test = split_indices(dataset)["test"]
    examples = view_examples(dataset, test, debug().data, View())
    predicted_NC = forest.predict(matrix(examples, feature_set))
    np.testing.assert_allclose(predicted_NC.sum(1), 1.0)
    assert (predicted_NC.argmax(1) == dataset.label[test]).mean() > 0.7
    assert forest.iterations == BASELINE_FOREST["n_estimators"]


def test_classes_are_those_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    write_dataset(path, toy_objects(80), classes=TOY_CLASSES)
    dataset = read_dataset(path)
    trees = train_trees(dataset, debug(), 60, "forest")
    examples = view_examples(dataset, np.arange(3), debug().data, View())
    assert trees.predict(matrix(examples)).shape == (3, len(TOY_CLASSES))


def test_both_sets_together_hold_the_metadata_once() -> None:
    curve = LightCurve.from_columns([1.0, 2.0], [5.0, 9.0], [1.0, 1.0], ["g", "g"])
    example = [Example(featurise(curve, Limits(), "FLUXCAL", METADATA_COLUMNS), 0)]
    summary, package, union = (matrix(example, name) for name in ("summary", "light-curve", "union"))
    assert union.shape[1] == summary.shape[1] + package.shape[1] - len(METADATA_COLUMNS)
    np.testing.assert_array_equal(union[:, : summary.shape[1]], summary)


def test_trees_answer_the_networks_questions(pipeline: Pipeline) -> None:
    trees, network = (json.loads(path.read_text()) for path in (pipeline.baseline, pipeline.report))
    assert trees["data"] == network["data"]
    for series in ("views", "detections", "detections_no_metadata", "days", "days_no_metadata"):
        for view, scores in trees[series].items():
            assert scores["objects"]["mean"] == network[series][view]["objects"]["mean"]
