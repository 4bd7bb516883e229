"""Boosted trees: both implementations against LightGBM, and weights of the ensemble."""

from pathlib import Path

import lightgbm
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, MODEL
from nightjar_alerts.models.lightcurve import Float32, Int64
from nightjar_alerts.training.confidence.ensemble import fit_ensemble, pooled
from nightjar_alerts.training.fit.trees.forest import (
    bundled_forest,
    fit_forest,
    forest_of,
    read_forest,
    save_forest,
    tree_logits,
)
from nightjar_alerts.training.fit.trees.parameters import SURVEYS
from nightjar_alerts.training.metrics import log_loss, softmax

CLASSES = 4


def table(count: int, seed: int) -> tuple[Float32, Int64]:
    """Rows of four classes that three numbers tell, some of them missing; five more say nothing."""
    rng = np.random.default_rng(seed)
    value = rng.normal(size=(count, 5)).round(1).astype(np.float32)  # few values: many rows tie
    is_known = rng.random(value.shape) > 0.2
    label = (value[:, 0] > 0).astype(np.int64) + 2 * (value[:, 1] * np.where(is_known[:, 2], 1, -1) > 0)
    value[~is_known] = np.nan
    return np.hstack([value, rng.normal(size=(count, 3)).astype(np.float32)]), label


def test_tree_logits_equal_lightgbm() -> None:
    value, label = table(900, 0)
    value[:, 7] = 1.0  # a number that never varies
    data = lightgbm.Dataset(value, label)
    booster = lightgbm.train({**SURVEYS, "num_class": CLASSES + 1}, data, num_boost_round=12)
    forest = forest_of(booster, value.shape[1], CLASSES + 1)
    other, _ = table(400, 1)
    expected = booster.predict(other, raw_score=True)
    np.testing.assert_allclose(tree_logits(forest, other), expected, atol=1e-5, rtol=1e-6)
    assert forest.depth <= SURVEYS["max_depth"]
    assert tree_logits(forest, other)[:, CLASSES].max() < -5  # a class that was never seen


def test_forest_round_trips(tmp_path: Path) -> None:
    value, label = table(300, 2)
    forest = fit_forest(value, label, CLASSES, seed=0, rounds=3)
    save_forest(forest, tmp_path / "trees.npz")
    read = read_forest(tmp_path / "trees.npz")
    assert read[5:] == forest[5:]
    np.testing.assert_array_equal(tree_logits(read, value), tree_logits(forest, value))


def test_fit_forest_with_start_continues_boosting() -> None:
    value, label = table(900, 6)
    start = fit_forest(value, label, CLASSES, seed=0, rounds=3)
    longer = fit_forest(value, label, CLASSES, seed=0, rounds=4, start=start)
    assert len(longer.root_T) == 7 * CLASSES
    assert longer.root_T[: 3 * CLASSES].tolist() == start.root_T.tolist()
    losses = [log_loss(softmax(tree_logits(forest, value)), label) for forest in (start, longer)]
    assert losses[1] < losses[0] - 0.02


@pytest.mark.parametrize("number", [0.0, 1.0, -2.0])
def test_fit_forest_does_not_distinguish_numbers_within_rounding(number: float) -> None:
    value, label = table(400, 7)
    value[:, 4] = np.nextafter(np.float32(number), np.float32(np.inf)) * (label == 1) + number * (label != 1)
    forest = fit_forest(value, label, CLASSES, seed=0, rounds=3)
    away = [value.copy() for _ in range(3)]
    for shift, rows in zip((0.0, -2e-5, 2e-5), away, strict=True):
        rows[:, 4] = number + shift
    logits = [tree_logits(forest, rows) for rows in (value, *away)]
    assert all((one == logits[0]).all() for one in logits)


def test_fit_forest_distinguishes_zero_from_small_numbers() -> None:
    number = np.array([[0.0], [-3e-4], [3e-4]], dtype=np.float32)
    label = np.arange(300) % 3
    forest = fit_forest(number[label], label, 3, seed=0, rounds=3)
    assert tree_logits(forest, number).argmax(1).tolist() == [0, 1, 2]


def test_bundled_forest_equals_the_graph() -> None:
    (node,) = [node for node in onnx.load(DEFAULT_BUNDLE / MODEL).graph.node if node.op_type == "TreeEnsemble"]
    numbers = 1 + max(helper.get_attribute_value(next(a for a in node.attribute if a.name == "nodes_featureids")))
    rows = np.random.default_rng(0).normal(size=(64, numbers)).astype(np.float32)
    rows[np.random.default_rng(1).random(rows.shape) < 0.3] = np.nan
    forest = bundled_forest(DEFAULT_BUNDLE, numbers, rounds=10_000)
    np.testing.assert_allclose(tree_logits(forest, rows), _answers_of(node, rows, forest.classes), atol=1e-4)
    assert len(bundled_forest(DEFAULT_BUNDLE, numbers, rounds=2).root_T) == 2 * forest.classes


def _answers_of(node: onnx.NodeProto, rows: Float32, classes: int) -> Float32:
    """Run one node of a graph on its own."""
    value, answer = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", width])
        for name, width in ((node.input[0], rows.shape[1]), (node.output[0], classes))
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(node.domain, 5)]
    model = helper.make_model(helper.make_graph([node], "trees", [value], [answer]), opset_imports=opsets, ir_version=9)
    (logits,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {node.input[0]: rows})
    return np.asarray(logits, dtype=np.float32)


def test_fit_ensemble_weighs_the_better_model_more() -> None:
    """Trees are right about long light curves, the network about short ones; both together beat either."""
    rng = np.random.default_rng(1)
    value, label = table(2000, 4)
    forest = fit_forest(value, label, CLASSES, seed=0, rounds=3)
    length = rng.integers(1, 100, len(label))
    redshift = rng.random(len(label)) < 0.5
    right = 3.0 * np.eye(CLASSES, dtype=np.float32)[label]
    noise = rng.normal(size=(2, *right.shape)).astype(np.float32) * 2
    long = (length > 20)[:, None]
    trees, network = np.where(long, right, 0) + noise[0], np.where(long, 0, right) + noise[1]
    fitted = fit_ensemble(forest, trees, network, label, length, redshift)
    few, many = fitted.weights(np.array([2, 90]), np.zeros(2, np.bool_))
    assert few < 0.2 < 0.8 < many
    both = pooled(fitted, trees, network, length, redshift)
    losses = [log_loss(softmax(one), label) for one in (both, trees, network)]
    assert losses[0] < min(losses[1:]) - 0.05
    assert fitted.weights(np.array([10**6]), np.ones(1, np.bool_)) == pytest.approx(
        fitted.weights(np.array([99]), np.ones(1, np.bool_))
    )
