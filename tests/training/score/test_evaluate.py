"""Scores of what is shipped: the report, its views, and that torch and the bundle are scored alike."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from models.taxonomy import ELASTICC
from support.pipeline import Pipeline
from support.toy_dataset import write_toy_dataset
from training.data.augment import View
from training.data.batches import Example, view_examples
from training.data.dataset import read_dataset, split_indices
from training.recipes.schema import DataConfig
from training.score.evaluate import (
    DAYS,
    DETECTIONS,
    VIEWS,
    evaluate,
    open_model,
    predict_in_order,
    sample_split,
    spread,
)


def test_the_report_is_complete(pipeline: Pipeline) -> None:
    report = json.loads(pipeline.report.read_text())
    test = split_indices(read_dataset(pipeline.data))["test"]
    assert report["data"]["split_objects"] == len(test)
    assert [model["seed"] for model in report["models"]] == [0, 0]
    assert report["models"][0]["name"] == "debug 0.1.0"
    assert list(report["views"]) == list(VIEWS)
    assert list(report["detections"]) == list(report["detections_no_metadata"]) == [str(n) for n in DETECTIONS]
    assert list(report["days"]) == [str(day) for day in DAYS]
    assert np.sum(report["confusion"]) == len(test)
    assert list(report["f1"]) == report["classes"] == list(ELASTICC.names)
    assert np.shape(report["reliability"]) == (15, 3)
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
    together = predict_in_order(model.predict, examples)
    np.testing.assert_allclose(together.sum(1), 1.0, atol=1e-5)
    np.testing.assert_allclose(predict_in_order(model.predict, examples[::-1])[::-1], together, atol=1e-5)
    alone = np.concatenate([model.predict([example]) for example in examples[:5]])
    np.testing.assert_allclose(alone, together[:5], atol=1e-5)


def test_predictions_come_back_in_order(tmp_path: Path) -> None:
    dataset = read_dataset(write_toy_dataset(tmp_path / "toy.parquet", 70))
    examples = view_examples(dataset, np.arange(70), DataConfig(), View())

    def lengths(batch: Sequence[Example]) -> NDArray[np.float64]:
        assert max(len(example.tokens) for example in batch) <= 40
        return np.array([[float(len(example.tokens))] for example in batch])

    predicted = predict_in_order(lengths, examples)
    assert predicted[:, 0].tolist() == [len(example.tokens) for example in examples]


def test_spread_is_the_sample_standard_deviation() -> None:
    several = spread([{"f1": 0.5}, {"f1": 0.7}, {"f1": 0.6}])["f1"]
    assert several["mean"] == pytest.approx(0.6)
    assert several["spread"] == pytest.approx(0.1)
    assert several["values"] == [0.5, 0.7, 0.6]
    assert spread([{"f1": 0.5}])["f1"]["spread"] is None


def test_a_sample_of_a_split_is_always_the_same(tmp_path: Path) -> None:
    dataset = read_dataset(write_toy_dataset(tmp_path / "toy.parquet", 200))
    config = DataConfig()
    sample = sample_split(dataset, config, "train", 30)
    assert len(set(sample)) == 30
    assert set(sample) < set(split_indices(dataset)["train"])
    np.testing.assert_array_equal(sample, sample_split(dataset, config, "train", 30))
    assert len(sample_split(dataset, config, "test", 10**6)) == len(split_indices(dataset)["test"])


def test_an_unknown_split_is_refused(pipeline: Pipeline) -> None:
    with pytest.raises(ValueError, match="split 'tset'"):
        evaluate([pipeline.bundle], pipeline.data, split="tset")
