"""Boosted trees: the tensor form, the operator and a walk in plain Python lead every row to the same leaves."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nightjar_alerts.models.networks.parts.trees import BoostedTrees, Forest, trees
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.export.graph import tree_attributes, write_graph
from nightjar_alerts.training.fit.trees.forest import forest_in

NUMBERS, CLASSES, ROUNDS, DEPTH = 7, 3, 11, 5


def random_forest(seed: int = 0) -> Forest:
    """Trees of random shapes, thresholds of few values, so that numbers often meet them exactly."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, float, int, float]] = []
    roots = []
    for _ in range(ROUNDS * CLASSES):
        roots.append(len(rows))
        free, depths = len(rows) + 1, {len(rows): 0}
        while len(rows) < free:
            here = len(rows)
            if depths[here] == DEPTH or (depths[here] and rng.random() < 0.3):
                rows.append((0, np.inf, here, rng.normal()))
                continue
            rows.append((int(rng.integers(2 * NUMBERS)), rng.choice([-1.0, 0.1, 0.3]), free, 0.0))
            depths |= {free: depths[here] + 1, free + 1: depths[here] + 1}
            free += 2
    look, threshold, left, value = (np.array(column) for column in zip(*rows, strict=True))
    tables = look, threshold.astype(np.float32), left, value.astype(np.float32), np.array(roots)
    return Forest(*tables, numbers=NUMBERS, classes=CLASSES, depth=DEPTH)


def random_rows(count: int, seed: int = 1) -> NDArray[np.float32]:
    """Numbers at a threshold, next to one or anywhere, a quarter of them missing."""
    rng = np.random.default_rng(seed)
    number_BF = rng.normal(size=(count, NUMBERS)).astype(np.float32)
    number_BF[rng.random(number_BF.shape) < 0.4] = np.float32(0.3)
    up = rng.random(number_BF.shape) < 0.2
    number_BF[up] = np.nextafter(np.float32(0.1), np.float32(1))
    number_BF[rng.random(number_BF.shape) < 0.25] = np.nan
    return number_BF


def walked(forest: Forest, number_BF: NDArray[np.float32]) -> NDArray[np.float64]:
    """Logits [B, C], node by node."""
    sums = np.zeros((len(number_BF), forest.classes))
    for row, numbers in enumerate(number_BF):
        for tree, place in enumerate(forest.root_T):
            while forest.left_M[place] != place:
                number, missing_goes_right = numbers[forest.look_M[place] % NUMBERS], forest.look_M[place] >= NUMBERS
                right = missing_goes_right if np.isnan(number) else number > forest.threshold_M[place]
                place = forest.left_M[place] + int(right)
            sums[row, tree % forest.classes] += forest.value_M[place]
    return sums


def test_the_tensor_form_walks_every_tree() -> None:
    forest, rows = random_forest(), random_rows(200)
    told = BoostedTrees(forest)(torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(told, walked(forest, rows), atol=1e-5)


class Answering(nn.Module):
    def __init__(self, forest: Forest, *, as_operator: bool) -> None:
        super().__init__()
        self.trees = BoostedTrees(forest, as_operator=as_operator)

    def forward(self, *inputs: Tensor) -> tuple[Tensor]:
        return (self.trees(inputs[0]),)


ON_CUDA = {  # onnxruntime has kernels there for the types that occur; no shape is computed, which the CPU would do
    *("Add", "Cast", "Concat", "Gather", "GatherElements", "GatherND", "Greater", "IsNaN", "ReduceSum", "Reshape"),
    *("Unsqueeze", "Where"),
}


@pytest.mark.slow
@pytest.mark.parametrize("as_operator", [True, False])
def test_both_graphs_give_the_same_leaves(tmp_path: Path, as_operator: bool) -> None:
    """Ties and missing numbers included; one is a single operator, the other nothing that CUDA does not have."""
    forest, path = random_forest(2), tmp_path / "trees.onnx"
    module = Answering(forest, as_operator=as_operator)
    write_graph(module, {"number": torch.from_numpy(random_rows(4))}, {"number": ("batch",)}, ["logits"], path)
    operators = {(node.domain, node.op_type) for node in onnx.load(path).graph.node}
    assert (("ai.onnx.ml", "TreeEnsemble") in operators) is as_operator
    assert as_operator or operators <= {("", name) for name in ON_CUDA}
    session = open_session(path)
    for count in (1, 3, 64):
        rows = random_rows(count, seed=count)
        told = run(session, {"number": rows})["logits"]
        np.testing.assert_allclose(told, walked(forest, rows), atol=1e-5)


def test_the_operator_is_the_tensor_form() -> None:
    forest = random_forest(3)
    module, rows = BoostedTrees(forest), torch.from_numpy(random_rows(20))
    assert torch.equal(trees(rows, CLASSES, DEPTH, *module.buffers()), module(rows))


def test_trees_read_back_lead_to_the_same_leaves() -> None:
    forest = random_forest()
    node = onnx.helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", **tree_attributes(forest))
    graph = onnx.helper.make_graph([node], "trees", [], [])
    rows_BF = torch.from_numpy(random_rows(200))
    again = forest_in(onnx.helper.make_model(graph), NUMBERS)
    assert again is not None
    assert torch.equal(BoostedTrees(again)(rows_BF), BoostedTrees(forest)(rows_BF))
