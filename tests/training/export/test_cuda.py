"""Graphs for CUDA: what onnxruntime has kernels for, by its own table, and asinh written out."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.bundle import DEFAULT_BUNDLE, load_bundle
from models.runtime import open_session, run
from training.export.cuda import (
    cuda_graph,
    kernels,
    read_documentation,
    shape_arithmetic,
    without_kernel,
)
from training.export.graph import walk
from training.export.profile import random_inputs

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


def test_a_missing_operator_a_missing_type_and_an_old_opset_are_told() -> None:
    assert without_kernel(model("Asinh")) == ["one: Asinh, defined in opset 9, has no kernel"]
    assert without_kernel(model("Neg", TensorProto.UINT8)) == ["one: Neg has no kernel for uint8"]
    assert without_kernel(model("Abs", opset=12)) == ["one: Abs, defined in opset 6, has no kernel"]
    assert without_kernel(model("Abs")) == []


def test_networks_have_a_kernel_for_every_node(tiny_bundle: Path) -> None:
    graph = onnx.load(tiny_bundle / "model.onnx")
    assert any("Asinh" in told for told in without_kernel(graph))
    assert without_kernel(cuda_graph(graph)) == []


def test_the_default_bundle_has_a_kernel_for_every_node_but_its_trees() -> None:
    """Only the CPU has the operator for trees; ``models.networks.parts.trees`` has them in another form."""
    told = without_kernel(cuda_graph(onnx.load(load_bundle(DEFAULT_BUNDLE).model)))
    assert {one.partition(": ")[2] for one in told} <= {"ai.onnx.ml.TreeEnsemble is no standard operator"}


def test_the_graph_for_cuda_answers_as_the_other() -> None:
    bundle = load_bundle(DEFAULT_BUNDLE)
    inputs = random_inputs(3, 40, metadata=True)
    expected = run(open_session(bundle.model), inputs)
    written = cuda_graph(onnx.load(bundle.model))
    assert not [node for node in walk(written.graph) if node.op_type == "Asinh"]
    session = ort.InferenceSession(written.SerializeToString(), providers=["CPUExecutionProvider"])
    actual = run(session, inputs)
    np.testing.assert_allclose(actual["probabilities"], expected["probabilities"], atol=1e-5)


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
