"""Evaluation: the report, its views, and equal scores of a bundle and its run."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.augment import View
from nightjar_alerts.training.data.batches import Example, view_examples
from nightjar_alerts.training.data.dataset import read_dataset, split_indices, write_dataset
from nightjar_alerts.training.metrics import levels
from nightjar_alerts.training.recipes.schema import DataConfig
from nightjar_alerts.training.score.evaluate import DAYS, DETECTIONS, VIEWS, evaluate, sample_split, series_of
from nightjar_alerts.training.score.predictions import (
    ModelOutputs,
    ModelPanel,
    ScoredModel,
    open_model,
    predict_in_order,
)
from nightjar_alerts.training.score.sections import number, numbers, spread
from support.pipeline import Pipeline
from support.toy_dataset import TOY_CLASSES, toy_objects, write_toy_dataset


def test_the_report_is_complete(pipeline: Pipeline) -> None:
    report = json.loads(pipeline.report.read_text())
    test = split_indices(read_dataset(pipeline.data))["test"]
    assert report["data"]["split_objects"] == len(test)
    assert [model["seed"] for model in report["models"]] == [0, 0]
    assert report["models"][0]["name"] == "debug 0.1.0"
    assert list(report["views"]) == list(VIEWS)
    assert list(report["detections"]) == list(report["detections_no_metadata"]) == [str(n) for n in DETECTIONS]
    assert list(report["days"]) == list(report["days_no_metadata"]) == [str(day) for day in DAYS]
    assert np.shape(list(report["f1_growing"]["days"].values())) == (len(DAYS), 20)
    last_C, f1_C = report["f1_growing"]["days"]["2048"], list(report["f1"].values())
    np.testing.assert_allclose(np.array(last_C, dtype=float), np.array(f1_C, dtype=float), atol=0.1)  # of two alike
    assert np.sum(report["confusion"]) == len(test)
    assert list(report["f1"]) == report["classes"] == list(ELASTICC.names)
    assert np.shape(report["reliability"]) == (15, 3)
    assert np.shape(report["confusion_runs"]["median"]) == (20, 20)
    assert {level.key for level in levels(ELASTICC)} < report["days"]["1"].keys()
    assert report["stability"]["days"]["steps"] == [float(day) for day in DAYS]
    assert report["stability"]["detections"]["stable"]["mean"][-1] == 1.0
    assert report["conformal"]["stated_coverage"] == 0.9
    assert list(report["conformal"]["detections"]) == [str(n) for n in DETECTIONS]
    assert report["experts"]["model"] == pipeline.run.name
    assert len(report["embedding"]["x"]) == len(test)
    assert (report["novelty"], report["left_out"]) == (None, [])
    assert report["views"]["as ZTF sends"]["objects"]["mean"] <= report["views"]["everything"]["objects"]["mean"]


def test_a_bundle_and_its_run_score_alike(pipeline: Pipeline) -> None:
    report = json.loads(pipeline.report.read_text())
    for scores in report["views"].values():
        assert scores["log_loss"]["spread"] == pytest.approx(0.0, abs=1e-3)
        assert scores["macro_f1"]["values"][0] == pytest.approx(scores["macro_f1"]["values"][1], abs=0.02)


def test_probabilities_do_not_depend_on_batch_mates_or_order(pipeline: Pipeline) -> None:
    dataset = read_dataset(pipeline.data)
    model = open_model(pipeline.bundle, dataset)
    examples = view_examples(dataset, np.arange(0, 400, 9), model.data, View())
    together, backwards = (predict_in_order(model.predict, order) for order in (examples, examples[::-1]))
    alone = [model.predict([example]) for example in examples[:5]]
    np.testing.assert_allclose(together.probabilities_NC.sum(1), 1.0, atol=1e-5)
    for place in range(2):  # probabilities, then embeddings
        values, turned = together[place], backwards[place]
        assert values is not None
        assert turned is not None
        np.testing.assert_allclose(turned[::-1], values, atol=1e-4)
        np.testing.assert_allclose(np.concatenate([one[place] for one in alone]), values[:5], atol=1e-4)


def test_predictions_come_back_in_order(tmp_path: Path) -> None:
    dataset = read_dataset(write_toy_dataset(tmp_path / "toy.parquet", 70))
    examples = view_examples(dataset, np.arange(70), DataConfig(), View())

    predicted = predict_in_order(lengths, examples)
    assert predicted.embedding_NE is None
    assert predicted.probabilities_NC[:, 0].tolist() == [len(example.tokens) for example in examples]


def lengths(batch: Sequence[Example]) -> ModelOutputs:
    return ModelOutputs(np.array([[float(len(example.tokens))] for example in batch]))


def test_panel_predicts_each_view_once(tmp_path: Path) -> None:
    dataset = read_dataset(write_toy_dataset(tmp_path / "toy.parquet", 40))
    batch_sizes = []

    def counted(batch: Sequence[Example]) -> ModelOutputs:
        batch_sizes.append(len(batch))
        return ModelOutputs(np.ones((len(batch), 2)) / 2, np.zeros((len(batch), 3)))

    panel = ModelPanel(
        dataset, [ScoredModel("a", 0, DataConfig(), counted), ScoredModel("b", 1, DataConfig(), counted)]
    )
    first, again = panel.predict(np.arange(40), View()), panel.predict(np.arange(40), View())
    assert sum(batch_sizes) == 80
    assert [id(one) for one in first] == [id(one) for one in again]
    assert first[0].embedding_NE is None
    embedded = panel.first(np.arange(40), View(), embeddings=True).embedding_NE
    assert embedded is not None
    assert sum(batch_sizes) == 120
    assert len(panel.first(np.arange(7), View(detections=2)).rows_N) == 7


def test_panel_view_without_detections_has_no_predictions(tmp_path: Path) -> None:
    dataset = read_dataset(write_toy_dataset(tmp_path / "toy.parquet", 4))
    panel = ModelPanel(dataset, [ScoredModel("lengths", 0, DataConfig(), lengths)])
    assert len(panel.first(np.zeros(0, dtype=np.int64), View()).label_N) == 0
    with pytest.raises(ValueError, match="no examples"):
        predict_in_order(lengths, [])


def test_predict_in_order_with_nan_raises(tmp_path: Path) -> None:
    dataset = read_dataset(write_toy_dataset(tmp_path / "toy.parquet", 4))
    examples = view_examples(dataset, np.arange(4), DataConfig(), View())
    with pytest.raises(ValueError, match="not finite"):
        predict_in_order(lambda batch: ModelOutputs(np.full((len(batch), 2), np.nan)), examples)


def test_spread_is_the_sample_standard_deviation() -> None:
    several = spread([{"f1": 0.5}, {"f1": 0.7}, {"f1": 0.6}])["f1"]
    assert several["mean"] == pytest.approx(0.6)
    assert several["spread"] == pytest.approx(0.1)
    assert several["values"] == [0.5, 0.7, 0.6]
    assert spread([{"f1": 0.5}])["f1"]["spread"] is None


def test_not_a_number_becomes_none() -> None:
    assert spread([{"auroc": float("nan")}])["auroc"] == {"mean": None, "spread": None, "values": [None]}
    assert numbers(np.array([[1.0, np.nan], [np.inf, 0.25]])) == [[1.0, None], [None, 0.25]]
    assert number(np.float32(0.5)) == 0.5


def test_a_sample_of_a_split_is_always_the_same(tmp_path: Path) -> None:
    dataset = read_dataset(write_toy_dataset(tmp_path / "toy.parquet", 200))
    config = DataConfig()
    sample = sample_split(dataset, config, "train", 30)
    assert len(set(sample)) == 30
    assert set(sample) < set(split_indices(dataset)["train"])
    np.testing.assert_array_equal(sample, sample_split(dataset, config, "train", 30))
    assert len(sample_split(dataset, config, "test", 10**6)) == len(split_indices(dataset)["test"])


def test_other_classes_than_the_models_are_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    write_dataset(path, toy_objects(12), classes=TOY_CLASSES)
    with pytest.raises(ValueError, match="has the classes AGN, CART"):
        evaluate([pipeline.bundle], path)
    with pytest.raises(ValueError, match="20 classes, the data 4"):
        evaluate([pipeline.run], path)


def test_a_survey_is_not_shown_as_another_sends(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    write_dataset(path, toy_objects(12), classes=TOY_CLASSES)
    assert list(series_of(read_dataset(path))["views"]) == ["everything", "no metadata"]


def test_unlabelled_objects_are_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "unlabelled.parquet"
    write_dataset(path, [replace(one, class_name="") for one in toy_objects(3)])
    with pytest.raises(ValueError, match="unlabelled"):
        evaluate([pipeline.bundle], path)


def test_an_unknown_split_is_refused(pipeline: Pipeline) -> None:
    with pytest.raises(ValueError, match="split 'tset'"):
        evaluate([pipeline.bundle], pipeline.data, split="tset")


def test_left_out_classes_count_for_novelty_alone(pipeline: Pipeline) -> None:
    dataset = read_dataset(pipeline.data)
    report = evaluate([pipeline.bundle], pipeline.data, left_out=["AGN", "KN", "Ia"])
    test = split_indices(dataset)["test"]
    new = np.isin(dataset.label[test], [ELASTICC.names.index(name) for name in ("AGN", "KN", "Ia")])
    assert report["data"]["split_objects"] == np.count_nonzero(~new)
    assert report["novelty"]["objects"] == np.count_nonzero(new)
    assert np.array(report["confusion"])[ELASTICC.names.index("KN")].sum() == 0
    for score in report["novelty"]["scores"].values():
        assert 0 <= score["all"]["mean"] <= 1
    json.dumps(report, allow_nan=False)


def test_an_unknown_left_out_class_is_refused(pipeline: Pipeline) -> None:
    with pytest.raises(ValueError, match="no class is called Nova"):
        evaluate([pipeline.bundle], pipeline.data, left_out=["Nova"])


def test_the_calibrating_split_gets_no_sets(pipeline: Pipeline) -> None:
    assert evaluate([pipeline.bundle], pipeline.data, split="validation", objects=10)["conformal"] is None
