"""Graphs for CUDA: the kernel table of onnxruntime, and replaced operators."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, GOLDEN_TOLERANCE, load_bundle, read_golden
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.export.cuda import add_cuda, cuda_graph, kernels, without_kernel, write_cuda
from nightjar_alerts.training.export.graph import walk

SHIPPED = sorted(path.parent for path in DEFAULT_BUNDLE.parents[1].glob("*/*/manifest.json"))


def model(operator: str, kind: int = TensorProto.FLOAT, opset: int = 20) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, kind, ["batch"]) for name in "xy")
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"], name="one")], "graph", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def answer(graph: onnx.ModelProto, x: NDArray[np.float32]) -> NDArray[np.float32]:
    onnx.checker.check_model(graph)
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    found: NDArray[np.float32] = session.run(["y"], {"x": x})[0]
    return found


def test_cuda_asinh_is_accurate() -> None:
    size = np.concatenate([[0.0], np.logspace(-30, 15, 4001)])
    x = np.concatenate([-size, size]).astype(np.float32)
    graph = cuda_graph(model("Asinh"))
    assert not [node for node in graph.graph.node if node.op_type == "Asinh"]
    np.testing.assert_allclose(answer(graph, x), np.arcsinh(x.astype(np.float64)), rtol=1e-6)


def test_products_of_whole_numbers_are_products_of_single_ones() -> None:
    inputs = [
        helper.make_tensor_value_info(*each)
        for each in (("a", TensorProto.UINT8, [2, 3]), ("b", TensorProto.INT8, [3, 1]))
    ]
    output = helper.make_tensor_value_info("y", TensorProto.INT32, [2, 1])
    nodes = [helper.make_node("MatMulInteger", ["a", "b"], ["y"], name="one")]
    whole = helper.make_model(helper.make_graph(nodes, "graph", inputs, [output]), ir_version=9)
    whole.opset_import[0].version = 20
    written = cuda_graph(whole)
    assert without_kernel(whole)
    assert without_kernel(written) == []
    a, b = np.array([[1, 0, 1], [1, 1, 1]], dtype=np.uint8), np.array([[-128], [127], [64]], dtype=np.int8)
    session = ort.InferenceSession(written.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(["y"], {"a": a, "b": b})[0].tolist() == [[-64], [63]]


def test_without_kernel_names_missing_operators_types_and_opsets() -> None:
    assert without_kernel(model("Asinh")) == ["one: Asinh, defined in opset 9, has no kernel"]
    assert without_kernel(model("Neg", TensorProto.UINT8)) == ["one: Neg has no kernel for uint8"]
    assert without_kernel(model("Abs", opset=12)) == ["one: Abs, defined in opset 6, has no kernel"]
    assert without_kernel(model("Abs")) == []


def test_networks_have_a_kernel_for_every_node(tiny_bundle: Path) -> None:
    graph = onnx.load(tiny_bundle / "model.onnx")
    assert any("Asinh" in told for told in without_kernel(graph))
    assert without_kernel(cuda_graph(graph)) == []


@pytest.mark.parametrize("bundle", SHIPPED, ids=lambda path: path.parent.name)
def test_every_shipped_bundle_has_a_graph_for_cuda_that_gives_its_golden_answers(bundle: Path, tmp_path: Path) -> None:
    """On the CPU, of every node of which CUDA has a kernel by the table, boosted trees included."""
    told = write_cuda(bundle, tmp_path / "cuda.onnx")
    written = onnx.load(tmp_path / "cuda.onnx")
    assert told["nodes"] > 0
    assert without_kernel(written) == []
    assert not [node for node in walk(written.graph) if node.op_type in ("Asinh", "TreeEnsemble")]
    inputs, golden = read_golden(bundle)
    actual = run(open_session(tmp_path / "cuda.onnx"), inputs)
    for name, value in golden.items():
        np.testing.assert_allclose(actual[name], value, atol=GOLDEN_TOLERANCE)


def test_a_bundle_gets_a_graph_for_cuda_that_is_taken_there(tiny_bundle: Path, tmp_path: Path) -> None:
    add_cuda(tiny_bundle, tmp_path / "made")
    made = load_bundle(tmp_path / "made")
    assert made.graph("cpu").name == "model.onnx"
    assert made.graph("cuda").name == "model.cuda.onnx"
    assert load_bundle(tiny_bundle).graph("cuda").name == "model.onnx"


@pytest.mark.parametrize("operator", ["MatMul", "Gemm", "TopK", "NonZero", "CumSum", "ScatterElements", "If"])
def test_kernel_table_has_the_operators_of_networks(operator: str) -> None:
    assert kernels()["operators"][operator]
    assert "commit" in kernels()["version"]
