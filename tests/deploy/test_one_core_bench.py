"""The bench of one core, where it needs no torch: how batches are cut, what small weights answer."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from deploy.bench import lean
from models.bundle import load_bundle
from models.runtime import open_session, run
from training.export.profile import random_inputs


@pytest.mark.parametrize("budget", [1, 100, 10_000])
def test_batches_hold_every_curve_once_and_no_more_than_the_budget(budget: int) -> None:
    rng = np.random.default_rng(0)
    curves = [range(int(length)) for length in rng.integers(1, 90, 50)]
    batches = lean.cut_by_length(curves, budget)
    assert sorted(len(one) for some in batches for one in some) == sorted(map(len, curves))
    assert all(len(some) * max(map(len, some)) <= budget or len(some) == 1 for some in batches)


def test_weights_of_8_bits_answer_nearly_the_same(tiny_bundle: Path, tmp_path: Path) -> None:
    graph = load_bundle(tiny_bundle).model
    small = lean.as_int8(graph, tmp_path / "int8.onnx")
    operators = {node.op_type for node in onnx.load(small).graph.node}
    assert "MatMulInteger" in operators
    inputs = random_inputs(3, 20, metadata=True)
    told = [run(open_session(path), inputs)["probabilities"] for path in (graph, small)]
    np.testing.assert_allclose(told[1], told[0], atol=0.2)
