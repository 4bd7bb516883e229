"""Simplified graphs with the same outputs: slices of one element, squares, conditional parts."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from nightjar_alerts.training.export.graph import only_where_present, slice_to_gather, square_by_product, walk

Floats = NDArray[np.float32]


def model(
    nodes: list[onnx.NodeProto], numbers: dict[str, NDArray[np.generic]], shape: tuple[str | int, ...]
) -> onnx.ModelProto:
    """Two columns to whatever ``nodes`` make of them, ``y``."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    held = [numpy_helper.from_array(value, name) for name, value in numbers.items()]
    graph = helper.make_graph(nodes, "graph", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def answer(graph: onnx.ModelProto, x: Floats) -> Floats:
    onnx.checker.check_model(graph)
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    found: Floats = session.run(["y"], {"x": x})[0]
    return found


def sliced(start: int, stop: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Slice", ["x", "start", "stop", "axis"], ["part"], name="a"),
        helper.make_node("Squeeze", ["part", "axis"], ["y"], name="b"),
    ]
    places = {"start": start, "stop": stop, "axis": 1}
    return model(nodes, {name: np.array([place]) for name, place in places.items()}, ("batch",))


@pytest.mark.parametrize("start", [0, 1])
def test_a_slice_of_one_place_is_taken(start: int) -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    graph = sliced(start, start + 1)
    before = answer(graph, x)
    slice_to_gather(graph)
    assert [node.op_type for node in graph.graph.node] == ["Gather"]
    np.testing.assert_array_equal(answer(graph, x), before)


def test_a_slice_that_something_else_uses_stays() -> None:
    graph = sliced(0, 1)
    graph.graph.node.append(helper.make_node("Identity", ["part"], ["other"]))
    slice_to_gather(graph)
    assert [node.op_type for node in graph.graph.node] == ["Slice", "Squeeze", "Identity"]


def test_a_square_is_a_product_and_a_cube_stays() -> None:
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["square"], name="a"),
        helper.make_node("Pow", ["square", "three"], ["y"], name="b"),
    ]
    numbers: dict[str, NDArray[np.generic]] = {
        "two": np.array(2.0, dtype=np.float32),
        "three": np.array(3.0, dtype=np.float32),
    }
    graph = model(nodes, numbers, ("batch", 2))
    x = np.random.default_rng(0).normal(0, 1e3, (50, 2)).astype(np.float32)
    before = answer(graph, x)
    square_by_product(graph)
    assert [node.op_type for node in graph.graph.node] == ["Mul", "Pow"]
    np.testing.assert_array_equal(answer(graph, x), before)


def branch() -> onnx.ModelProto:
    """``y`` = a module's sum of exponentials, times a number that the module shares with the rest."""
    nodes = [
        helper.make_node("Mul", ["half", "two"], ["shared"], name="network.part/Mul_1"),
        helper.make_node("IsNaN", ["x"], ["gone"], name="network.part/IsNaN_1"),
        helper.make_node("Where", ["gone", "half", "x"], ["there"], name="network.part/Where_1"),
        helper.make_node("Exp", ["there"], ["told"], name="network.part.inner/Exp_1"),
        helper.make_node("Mul", ["told", "shared"], ["mixed"], name="network.part/Mul_2"),
        helper.make_node("Mul", ["mixed", "shared"], ["y"], name="network/Mul_1"),
    ]
    return model(nodes, {"half": np.array(0.5, dtype=np.float32), "two": np.array(2.0, dtype=np.float32)}, ("batch", 2))


def test_only_where_present_skips_missing_inputs() -> None:
    some, none = (
        np.array([[1.0, np.nan], [np.nan, np.nan]], dtype=np.float32),
        np.full((3, 2), np.nan, dtype=np.float32),
    )
    graph = branch()
    before = [answer(graph, x) for x in (some, none)]
    assert only_where_present(graph, "network.part", "x", np.exp(np.full(2, 0.5, dtype=np.float32)))
    kinds = [node.op_type for node in graph.graph.node]
    assert kinds.count("If") == 1
    assert "Exp" not in kinds
    assert "Exp" in [node.op_type for node in walk(graph.graph)]
    for x, expected in zip((some, none), before, strict=True):
        np.testing.assert_allclose(answer(graph, x), expected, rtol=1e-6)


def test_only_where_present_returns_the_given_output() -> None:
    graph = branch()
    only_where_present(graph, "network.part", "x", np.array([3.0, 4.0], dtype=np.float32))
    nothing = np.full((2, 2), np.nan, dtype=np.float32)
    np.testing.assert_array_equal(answer(graph, nothing), [[3.0, 4.0], [3.0, 4.0]])


def test_a_module_that_is_not_there_changes_nothing() -> None:
    graph = branch()
    assert not only_where_present(graph, "network.other", "x", np.zeros(2, dtype=np.float32))
    assert len(graph.graph.node) == 6
