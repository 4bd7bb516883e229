"""Parts of a graph that native kernels can replace (``models.native``), as ONNX functions.

An ONNX function is an operator that the graph defines with standard operators. onnxruntime inlines it before it
optimises the graph, unless a library has a kernel for the operator. One file therefore works with and without
kernels, and its golden outputs verify both.

Notable: functions have no weights, only constants. Parameters of a kernel are attributes, which the nodes do not use:
kernel and nodes implement the same formula, and a test compares them. Code that inspects the nodes of a graph inlines
the functions first (:func:`inlined`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import onnx
from onnx import AttributeProto, TensorProto, helper, inliner, shape_inference

from nightjar_alerts.models.bundle import ROUTING_OUTPUTS
from nightjar_alerts.models.native import DOMAIN

Attributes = Mapping[str, int]
STATISTICS, ROUTING = "Statistics", "Routing"
INPUTS: Final = ("flux", "flux_err", "time", "band", "mask")
METADATA: Final = "metadata"
VERSION: Final = 1
"""Version of the operators. A change of their results needs a new version, for which older libraries have no kernel."""
MAX_BANDS: Final = 32
"""Maximum number of bands that the kernels support."""


def add_statistics(model: onnx.ModelProto, module: str, attributes: Attributes) -> bool:
    """Replace the nodes that compute statistics by a function; return whether there were any.

    The inputs of the function are :data:`INPUTS` and the metadata column that is used. Its outputs are values and
    whether they are defined, both [batch, statistics].

    Parameters
    ----------
    module : name prefix of the nodes; the Concat nodes that join their results are included.
    attributes : parameters of the kernel.
    """
    graph = model.graph
    ends = _ends(graph, module)
    if not ends or attributes["bands"] > MAX_BANDS:
        return False
    outputs = _values_first(model, [end.output[0] for end in ends])
    column = _column(graph, module)
    inputs = [*INPUTS, column]
    _add_function(model, STATISTICS, module, inputs, outputs, attributes)
    return True


def add_routing(model: onnx.ModelProto, module: str, attributes: Attributes) -> bool:
    """Replace the nodes that compute experts by band and router entropy by a function; return whether there were any.

    The inputs of the function are the chosen experts and the logits of all layers, ``band`` and ``mask``. Parameters
    are those of :func:`add_statistics`.
    """
    inside = [node for node in model.graph.node if node.name.startswith(f"{module}/")]
    if not inside or attributes["bands"] > MAX_BANDS:
        return False
    bands = {node.output[0] for node in inside if node.op_type == "Where"}
    experts = [node.input[0] for node in inside if node.op_type == "OneHot" and node.input[0] not in bands]
    logits = [node.input[0] for node in inside if node.op_type == "LogSoftmax"]
    _add_function(model, ROUTING, module, [*experts, *logits, "band", "mask"], list(ROUTING_OUTPUTS), attributes)
    return True


def _add_function(
    model: onnx.ModelProto,
    operator: str,
    module: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    attributes: Attributes,
) -> None:
    """Replace the nodes that compute outputs from inputs by a call of a function."""
    graph = model.graph
    inside = _nodes_between(graph, outputs, inputs)
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    constants = [
        helper.make_node("Constant", [], [name], name=f"{module}/Constant", value=tensors[name])
        for name in sorted(_read(inside) & tensors.keys())
    ]
    opsets = [entry for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    function = helper.make_function(
        DOMAIN, operator, inputs, outputs, [*constants, *inside], opsets, attributes=sorted(attributes)
    )
    call = helper.make_node(operator, inputs, outputs, f"{module}/{operator}", domain=DOMAIN)
    call.attribute.extend(helper.make_attribute(name, value) for name, value in sorted(attributes.items()))
    _insert_call(graph, call, {id(node) for node in inside})
    model.functions.append(function)
    if DOMAIN not in {entry.domain for entry in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(DOMAIN, VERSION))
    # The service reads this property, since it cannot parse graphs.
    helper.set_model_props(model, {DOMAIN: " ".join(sorted(function.name for function in model.functions))})


FUNCTIONS: Final[Mapping[str, Callable[[onnx.ModelProto, str, Attributes], bool]]] = {
    "features": add_statistics,
    "routing": add_routing,
}
"""Functions by the name of the module in the network whose nodes they replace."""


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with its functions inlined."""
    if not model.functions:
        return model
    whole = inliner.inline_local_functions(model)
    opsets = [entry for entry in whole.opset_import if entry.domain != DOMAIN]
    del whole.opset_import[:], whole.metadata_props[:]
    whole.opset_import.extend(opsets)
    return whole


def _ends(graph: onnx.GraphProto, module: str) -> list[onnx.NodeProto]:
    """Return the Concat nodes outside a module that concatenate only outputs of the module."""
    own = {output for node in graph.node if node.name.startswith(f"{module}.") for output in node.output}
    return [
        node
        for node in graph.node
        if node.op_type == "Concat" and own.issuperset(node.input) and not node.name.startswith(f"{module}.")
    ]


def _values_first(model: onnx.ModelProto, outputs: list[str]) -> list[str]:
    """Return the output names in order: the values, then whether they are defined."""
    inferred = shape_inference.infer_shapes(model).graph.value_info
    types = {value.name: value.type.tensor_type.elem_type for value in inferred if value.name in outputs}
    ordered = sorted(outputs, key=lambda name: types[name] == TensorProto.BOOL)
    if [types[name] for name in ordered] != [TensorProto.FLOAT, TensorProto.BOOL]:
        raise ValueError(f"statistics are values and which of them are known, not {', '.join(outputs)}")
    return ordered


def _column(graph: onnx.GraphProto, module: str) -> str:
    """Return the name of the metadata column that a module uses."""
    inputs = _read(node for node in graph.node if node.name.startswith(f"{module}."))
    (column,) = {str(node.output[0]) for node in graph.node if METADATA in node.input and node.output[0] in inputs}
    return column


def _nodes_between(graph: onnx.GraphProto, outputs: Collection[str], inputs: Collection[str]) -> list[onnx.NodeProto]:
    """Return the nodes that compute the outputs from the inputs."""
    needed, inside = set(outputs), list[onnx.NodeProto]()
    for node in reversed(graph.node):
        if (needed - set(inputs)) & set(node.output):
            inside.append(node)
            needed |= _read([node])
    return inside[::-1]


def _read(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Return the names of all inputs of nodes, including those of nodes in subgraphs."""
    names = set[str]()
    for node in nodes:
        names.update(node.input)
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                names |= _read(attribute.g.node) | {output.name for output in attribute.g.output}
    return names - {""}


def _insert_call(graph: onnx.GraphProto, call: onnx.NodeProto, inside: Collection[int]) -> None:
    """Insert the call before the first use of its outputs, and remove nodes that nothing else uses."""
    nodes, needed = list[onnx.NodeProto](), {output.name for output in graph.output}
    for node in reversed(graph.node):
        if id(node) in inside and not (needed - set(call.output)) & set(node.output):
            continue
        nodes.append(node)
        needed |= _read([node])
    nodes.reverse()
    uses = (index for index, node in enumerate(nodes) if _read([node]) & set(call.output))
    nodes.insert(next(uses, len(nodes)), call)
    names = _read(nodes) | {output.name for output in graph.output}
    tensors = [tensor for tensor in graph.initializer if tensor.name in names]
    parts: list[tuple[Any, Sequence[Any]]] = [(graph.node, nodes), (graph.initializer, tensors)]
    for field, entries in parts:
        copies = [type(entry).FromString(entry.SerializeToString()) for entry in entries]  # del frees the originals
        del field[:]
        field.extend(copies)
