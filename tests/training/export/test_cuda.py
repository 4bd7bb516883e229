"""Graphs for CUDA: what onnxruntime has kernels for, by its own table, and asinh written out."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, GOLDEN_TOLERANCE, load_bundle, read_golden
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.export.cuda import (
    add_cuda,
    cuda_graph,
    kernels,
    read_documentation,
    shape_arithmetic,
    without_kernel,
    write_cuda,
)
from nightjar_alerts.training.export.graph import walk

SHIPPED = sorted(path.parent for path in DEFAULT_BUNDLE.parents[1].glob("*/*/manifest.json"))
DOCUMENTATION = """
|Asinh|*in* input:**T**<br> *out* output:**T**|9+|**T** = tensor(float)|
<a name="cudaexecutionprovider"/>

## Operators implemented by CUDAExecutionProvider

| Op Name | Parameters | OpSet Version | Types Supported |
|---------|------------|---------------|-----------------|
|**Operator Domain:** *ai.onnx*||||
|Add|*in* A:**T**<br> *in* B:**T**<br> *out* C:**T**|14+|**T** = tensor(double), tensor(float)|
|||13|**T** = tensor(float)|
|||[7, 12]|**T** = tensor(double), tensor(float), tensor(int32)|
|Where|*in* condition:**B**<br> *in* X:**T**<br> *out* output:**T**|16+|**B** = tensor(bool)<br/> **T** = tensor(float)|
| |
| |
|**Operator Domain:** *com.microsoft*||||
|Attention|*in* input:**T**<br> *out* output:**T**|1+|**T** = tensor(float), tensor(float16)|
<a name="dmlexecutionprovider"/>
|Abs|*in* X:**T**<br> *out* Y:**T**|13+|**T** = tensor(float)|
"""


def model(operator: str, kind: int = TensorProto.FLOAT, opset: int = 20) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, kind, ["batch"]) for name in "xy")
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"], name="one")], "graph", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def answer(graph: onnx.ModelProto, x: NDArray[np.float32]) -> NDArray[np.float32]:
    onnx.checker.check_model(graph)
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    found: NDArray[np.float32] = session.run(["y"], {"x": x})[0]
    return found


def test_asinh_written_out_loses_no_digits() -> None:
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


def test_a_missing_operator_a_missing_type_and_an_old_opset_are_told() -> None:
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


def test_arithmetic_on_lengths_is_listed() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in "xy")
    nodes = [
        helper.make_node("Shape", ["x"], ["whole"], name="a"),
        helper.make_node("Mul", ["whole", "two"], ["twice"], name="b"),
        helper.make_node("Div", ["twice", "two"], ["again"], name="c"),
        helper.make_node("Reshape", ["x", "again"], ["y"], name="d"),
    ]
    two = helper.make_tensor("two", TensorProto.INT64, [1], [2])
    graph = helper.make_graph(nodes, "graph", [x], [y], [two])
    told = shape_arithmetic(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))
    assert told == ["a: Shape", "b: Mul", "c: Div"]


def test_counts_that_depend_on_the_data_are_made_on_the_device() -> None:
    """The places that NonZero finds, as many numbers from 0, and a number in the shape of others."""
    x = helper.make_tensor_value_info("x", TensorProto.BOOL, ["batch"])
    outputs = [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in ("count", "inverse", "ones")]
    nodes = [
        helper.make_node("NonZero", ["x"], ["found"], name="a"),
        helper.make_node("Shape", ["found"], ["length"], name="b", start=1),
        helper.make_node("Squeeze", ["length"], ["rows"], name="c"),
        helper.make_node("Identity", ["rows"], ["count"], name="d"),
        helper.make_node("Squeeze", ["found", "zero"], ["place"], name="e"),
        helper.make_node("CumSum", ["place", "axis"], ["summed"], name="f"),
        helper.make_node("Sub", ["summed", "summed"], ["none"], name="g"),
        helper.make_node("Range", ["start", "rows", "step"], ["numbers"], name="h"),
        helper.make_node("CumSum", ["flat", "axis"], ["until"], name="i", exclusive=1),
        helper.make_node("Add", ["none", "until"], ["order"], name="j"),
        helper.make_node("ScatterElements", ["order", "order", "numbers"], ["inverse"], name="k", axis=0),
        helper.make_node("Shape", ["place"], ["shape"], name="l"),
        helper.make_node("Expand", ["step", "shape"], ["flat"], name="m"),
        helper.make_node("Identity", ["flat"], ["ones"], name="n"),
    ]
    order = "abcdefglmhijkn"  # as they need each other
    nodes = sorted(nodes, key=lambda node: order.index(node.name))
    numbers = {"zero": [0], "axis": 0, "start": 0, "step": 1}
    held = [numpy_helper.from_array(np.array(value), name) for name, value in numbers.items()]
    before = helper.make_model(
        helper.make_graph(nodes, "graph", [x], outputs, held),
        opset_imports=[helper.make_opsetid("", 20)], ir_version=9,
    )  # fmt: skip
    after = cuda_graph(before)
    assert shape_arithmetic(before) != []
    assert shape_arithmetic(after) == []
    for mask in ([True, False, True, True], [False, False], [True]):
        asked = {"x": np.array(mask)}
        told = [
            ort.InferenceSession(one.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, asked)
            for one in (before, after)
        ]
        for expected, actual in zip(*told, strict=True):
            np.testing.assert_array_equal(actual, expected)
        assert told[1][0] == sum(mask)


def test_a_bundle_gets_a_graph_for_cuda_that_is_taken_there(tiny_bundle: Path, tmp_path: Path) -> None:
    add_cuda(tiny_bundle, tmp_path / "made")
    made = load_bundle(tmp_path / "made")
    assert made.graph("cpu").name == "model.onnx"
    assert made.graph("cuda").name == "model.cuda.onnx"
    assert load_bundle(tiny_bundle).graph("cuda").name == "model.onnx"


def test_the_documentation_is_read() -> None:
    table = read_documentation(DOCUMENTATION, "v0")
    assert table["version"] == "v0"
    assert table["operators"] == {
        "Add": [
            {"since": 14, "until": None, "types": ["double", "float"]},
            {"since": 13, "until": 13, "types": ["float"]},
            {"since": 7, "until": 12, "types": ["double", "float", "int32"]},
        ],
        "Where": [{"since": 16, "until": None, "types": ["float"]}],
    }


@pytest.mark.parametrize("operator", ["MatMul", "Gemm", "TopK", "NonZero", "CumSum", "ScatterElements", "If"])
def test_the_table_knows_what_networks_are_made_of(operator: str) -> None:
    assert kernels()["operators"][operator]
    assert "commit" in kernels()["version"]
