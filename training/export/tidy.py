"""Tidying of a traced graph, which makes it cheaper without changing its answers: fewer operations.

Notable: every operation of a graph costs some microseconds before it computes anything, which for one light curve is
most of the bill. The tracer writes two where one will do (:func:`take_one`). And a graph computes all of itself
whatever it is given, unless a part stands under a condition (:func:`only_where_present`): alerts of real surveys carry
none of the metadata columns, and the transformer over them then has one answer, known when the graph is made.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Node = onnx.NodeProto


def walk(graph: onnx.GraphProto) -> Iterator[Node]:
    """All nodes of a graph, those under conditions as well."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from walk(attribute.g)


def take_one(model: onnx.ModelProto) -> None:
    """Replace a Slice of one place, whose axis is then squeezed, by the Gather of that place."""
    graph = model.graph
    numbers = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.dims in ([], [1])}
    uses = _uses(graph)
    slices = {node.output[0]: node for node in graph.node if node.op_type == "Slice"}
    for node in list(graph.node):
        cut = slices.get(node.input[0]) if node.op_type == "Squeeze" and len(node.input) == 2 else None
        if cut is None or uses[cut.output[0]] != 1 or not {*cut.input[1:], node.input[1]} <= numbers.keys():
            continue
        start, stop, axis, *step = (int(numbers[name].reshape(())) for name in cut.input[1:])
        if stop != start + 1 or step not in ([], [1]) or start < 0 or axis != int(numbers[node.input[1]].reshape(())):
            continue
        place = f"take/{start}"
        if place not in numbers:
            numbers[place] = np.array(start)
            graph.initializer.append(numpy_helper.from_array(np.array(start, dtype=np.int64), place))
        node.op_type = "Gather"
        node.input[:] = [cut.input[0], place]
        node.attribute.append(helper.make_attribute("axis", axis))
        graph.node.remove(cut)


def only_where_present(model: onnx.ModelProto, module: str, column: str, otherwise_D: NDArray[np.float32]) -> bool:
    """Put a module's nodes under the condition that an input holds any number at all; return whether there were any.

    Parameters
    ----------
    module : whose nodes; they are named after it, and one value of theirs, a vector per row, is used outside.
    column : the input, [batch, columns], NaN where a value is missing.
    otherwise_D : the module's answer to a row of missing values.
    """
    graph = model.graph
    inside = [node for node in graph.node if node.name.startswith((f"{module}/", f"{module}."))]
    if not inside:
        return False
    inside = _answering(graph, inside)
    answer = inside[-1].output[0]
    batch, whole = f"{module}/batch", f"{module}/shape"
    vector = numpy_helper.from_array(otherwise_D[None].astype(np.float32), f"{module}/missing")
    width = numpy_helper.from_array(np.array([len(otherwise_D)], dtype=np.int64), f"{module}/width")
    missing = [
        helper.make_node("Shape", [column], [batch], start=0, end=1, name=f"{module}/Shape_missing"),
        helper.make_node("Concat", [batch, width.name], [whole], axis=0, name=f"{module}/Concat_missing"),
        helper.make_node("Expand", [vector.name, whole], [f"{answer}/missing"], name=f"{module}/Expand_missing"),
    ]
    ends = (f"{answer}/told", f"{answer}/missing")
    inner = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ends]
    for node in inside:
        for names in (node.input, node.output):
            names[:] = [f"{answer}/told" if name == answer else name for name in names]
    told = helper.make_graph(inside, f"{module}/told", [], inner[:1])
    without = helper.make_graph(missing, f"{module}/missing", [], inner[1:], [vector, width])
    asked = _any_number(model, module, column)
    place = list(graph.node).index(inside[-1])
    branches = {"then_branch": told, "else_branch": without}
    chosen = helper.make_node("If", [asked[-1].output[0]], [answer], name=f"{module}/If", **branches)
    for offset, node in enumerate([*asked, chosen]):
        graph.node.insert(place + 1 + offset, node)
    for node in inside:
        graph.node.remove(node)
    return True


def _any_number(model: onnx.ModelProto, module: str, column: str) -> list[Node]:
    """Return a scalar that is true where a value is not NaN."""
    names = [f"{module}/{part}" for part in ("missing_each", "missing_as_number", "all_missing", "some")]
    half = f"{module}/half"
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.5, dtype=np.float32), half))
    return [
        helper.make_node("IsNaN", [column], [names[0]], name=f"{module}/IsNaN"),
        helper.make_node("Cast", [names[0]], [names[1]], to=TensorProto.FLOAT, name=f"{module}/Cast_asked"),
        helper.make_node("ReduceMin", [names[1]], [names[2]], keepdims=0, name=f"{module}/ReduceMin_asked"),
        helper.make_node("Less", [names[2], half], [names[3]], name=f"{module}/Less_asked"),
    ]


def _answering(graph: onnx.GraphProto, inside: Sequence[Node]) -> list[Node]:
    """Return the nodes that only the last one needs: what others use as well stays where all see it."""
    own = {id(node) for node in inside}
    needed = {output.name for output in graph.output}
    kept: list[Node] = []
    for node in reversed(graph.node):
        last = id(node) in own and not kept
        if id(node) in own and (last or not needed & set(node.output)):
            kept.append(node)
        else:
            needed.update(node.input)
    return kept[::-1]


def _uses(graph: onnx.GraphProto) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in walk(graph):
        for name in node.input:
            counts[name] = counts.get(name, 0) + 1
    for output in graph.output:
        counts[output.name] = counts.get(output.name, 0) + 1
    return counts
