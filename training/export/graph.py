"""Trace a network to one ONNX file and simplify the graph.

Notable: a grouped computation (``parts.packing``) is traced as one Split whose sizes go through five nodes per
group, a fifth of the graph; :func:`split_by_counts` passes the counts directly. All operators are standard, some of
them in functions that native kernels can replace (``training.export.functions``), and the file has no external data.
Recurrent layers (``parts.positional_content``) are ONNX's LSTM and GRU, boosted trees (``parts.trees``) one
TreeEnsemble of ONNX-ML.

Simplification makes a traced graph faster without changing its outputs. Every operator has an overhead of some
microseconds, which is most of the time for one light curve. The tracer writes some single operations as two
(:func:`slice_to_gather`). A graph computes all of its nodes for any input, unless a part is conditional
(:func:`only_where_present`): alerts of real surveys have none of the metadata columns, and the transformer over them
then has a constant output.
"""

import ast
import logging
import operator
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnx_ir.passes.common as passes
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxscript import opset20, optimizer
from onnxscript.onnx_opset import opset_ai_onnx_ml5
from torch import Tensor, nn

from nightjar_alerts.models.networks.parts import positional_content, routing
from nightjar_alerts.models.networks.parts.trees import BoostedTrees, Forest, trees
from nightjar_alerts.models.networks.statistics import curve_statistics
from nightjar_alerts.training.export.functions import FUNCTIONS, Attributes

Node = onnx.NodeProto


def walk(graph: onnx.GraphProto) -> Iterator[Node]:
    """Yield all nodes of a graph, including those of subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from walk(attribute.g)


def slice_to_gather(model: onnx.ModelProto) -> None:
    """Replace each Slice of one element whose axis is then squeezed by a Gather."""
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
        index = f"take/{start}"
        if index not in numbers:
            numbers[index] = np.array(start)
            graph.initializer.append(numpy_helper.from_array(np.array(start, dtype=np.int64), index))
        node.op_type = "Gather"
        node.input[:] = [cut.input[0], index]
        node.attribute.append(helper.make_attribute("axis", axis))
        graph.node.remove(cut)


def square_by_product(model: onnx.ModelProto) -> None:
    """Replace every square, which the tracer writes as a power, by a product, which takes two thirds of the time."""
    graph = model.graph
    twos = {tensor.name for tensor in graph.initializer if not tensor.dims and numpy_helper.to_array(tensor) == 2.0}
    for node in walk(graph):
        if node.op_type == "Pow" and node.input[1] in twos:
            node.op_type = "Mul"
            node.input[1] = node.input[0]


def only_where_present(model: onnx.ModelProto, module: str, column: str, otherwise_D: NDArray[np.float32]) -> bool:
    """Run a module's nodes only if an input has a value that is not NaN; return whether there were any nodes.

    Parameters
    ----------
    module : name prefix of the nodes; one of their values, a vector per row, is used outside.
    column : the input, [batch, columns], NaN for missing values.
    otherwise_D : output of the module for a row of missing values.
    """
    graph = model.graph
    inside = _nodes_of(graph, module)
    if not inside:
        return False
    result = inside[-1].output[0]
    batch, shape = f"{module}/batch", f"{module}/shape"
    vector = numpy_helper.from_array(otherwise_D[None].astype(np.float32), f"{module}/missing")
    width = numpy_helper.from_array(np.array([len(otherwise_D)], dtype=np.int64), f"{module}/width")
    missing = [
        helper.make_node("Shape", [column], [batch], start=0, end=1, name=f"{module}/Shape_missing"),
        helper.make_node("Concat", [batch, width.name], [shape], axis=0, name=f"{module}/Concat_missing"),
        helper.make_node("Expand", [vector.name, shape], [f"{result}/missing"], name=f"{module}/Expand_missing"),
    ]
    condition = _any_value(model, module, column)
    _add_condition(graph, module, inside, condition, (missing, [vector, width], f"{result}/missing"))
    return True


def only_with_rows(model: onnx.ModelProto, module: str, width: int) -> bool:
    """Run a module's nodes only if its input has rows; return whether there were any nodes.

    Parameters
    ----------
    module : name prefix of the nodes; all inputs have the same rows, and one value, a vector per row, is used outside.
    width : length of that vector.
    """
    graph = model.graph
    inside = _nodes_of(graph, module)
    if not inside:
        return False
    result = inside[-1].output[0]
    own = {name for node in inside for name in node.output} | {tensor.name for tensor in graph.initializer}
    cut = {name for node in graph.node if node.op_type == "Split" for name in node.output}
    source = next(name for node in inside for name in node.input if name in cut - own)
    nothing = numpy_helper.from_array(np.zeros((0, width), dtype=np.float32), f"{module}/nothing")
    zero = numpy_helper.from_array(np.array([0], dtype=np.int64), f"{module}/zero")
    graph.initializer.append(zero)
    condition = [
        helper.make_node("Shape", [source], [f"{module}/rows"], start=0, end=1, name=f"{module}/Shape_rows"),
        helper.make_node("Greater", [f"{module}/rows", zero.name], [f"{module}/any"], name=f"{module}/Greater_rows"),
    ]
    empty = [helper.make_node("Identity", [nothing.name], [f"{result}/nothing"], name=f"{module}/Identity_nothing")]
    _add_condition(graph, module, inside, condition, (empty, [nothing], f"{result}/nothing"))
    return True


def _add_condition(
    graph: onnx.GraphProto,
    module: str,
    inside: Sequence[Node],
    condition: Sequence[Node],
    otherwise: tuple[Sequence[Node], Sequence[TensorProto], str],
) -> None:
    """Move nodes into the then-branch of an If, and ``otherwise`` into its else-branch.

    Parameters
    ----------
    inside : nodes, the last of which computes the result.
    condition : nodes, the last of which computes the condition.
    otherwise : nodes, their constants, and the name of their result.
    """
    result = inside[-1].output[0]
    for node in inside:
        for names in (node.input, node.output):
            names[:] = [f"{result}/computed" if name == result else name for name in names]
    nodes, constants, other = otherwise
    inner = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (f"{result}/computed", other)]
    then_graph = helper.make_graph(inside, f"{module}/computed", [], inner[:1])
    else_graph = helper.make_graph(nodes, f"{module}/otherwise", [], inner[1:], constants)
    branches: dict[str, Any] = {"then_branch": then_graph, "else_branch": else_graph}
    index = list(graph.node).index(inside[-1])
    choice = helper.make_node("If", [condition[-1].output[0]], [result], name=f"{module}/If", **branches)
    for offset, node in enumerate([*condition, choice]):
        graph.node.insert(index + 1 + offset, node)
    for node in inside:
        graph.node.remove(node)


def _any_value(model: onnx.ModelProto, module: str, column: str) -> list[Node]:
    """Return the nodes of a scalar that is true if any value of an input is not NaN."""
    names = [f"{module}/{part}" for part in ("missing_each", "missing_as_number", "all_missing", "some")]
    half = f"{module}/half"
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.5, dtype=np.float32), half))
    return [
        helper.make_node("IsNaN", [column], [names[0]], name=f"{module}/IsNaN"),
        helper.make_node("Cast", [names[0]], [names[1]], to=TensorProto.FLOAT, name=f"{module}/Cast_asked"),
        helper.make_node("ReduceMin", [names[1]], [names[2]], keepdims=0, name=f"{module}/ReduceMin_asked"),
        helper.make_node("Less", [names[2], half], [names[3]], name=f"{module}/Less_asked"),
    ]


def _nodes_of(graph: onnx.GraphProto, module: str) -> list[Node]:
    """Return the nodes of a module that only its last node needs."""
    inside = [node for node in graph.node if node.name.startswith((f"{module}/", f"{module}."))]
    return _exclusive_nodes(graph, inside) if inside else []


def _exclusive_nodes(graph: onnx.GraphProto, inside: Sequence[Node]) -> list[Node]:
    """Return the last of the nodes and those whose outputs no node outside needs."""
    own = {id(node) for node in inside}
    needed = {output.name for output in graph.output}
    nodes: list[Node] = []
    for node in reversed(graph.node):
        last = id(node) in own and not nodes
        if id(node) in own and (last or not needed & set(node.output)):
            nodes.append(node)
        else:
            needed.update(node.input)
    return nodes[::-1]


def _uses(graph: onnx.GraphProto) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in walk(graph):
        for name in node.input:
            counts[name] = counts.get(name, 0) + 1
    for output in graph.output:
        counts[output.name] = counts.get(output.name, 0) + 1
    return counts


OPSET = 20
_LONGEST = 2**31 - 1
"""Largest length of an axis. Without it, torch finds that some multiple of a length overflows, and traces again."""

_SHAPE_OPERATORS = {"Concat", "Gather", "Reshape", "Slice", "Squeeze", "Unsqueeze"}


def write_graph(
    network: nn.Module,
    inputs: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[str]],
    outputs: Sequence[str],
    path: Path,
    missing: Mapping[str, tuple[str, Tensor]] | None = None,
    rows: Mapping[str, int] | None = None,
    native: Mapping[str, Attributes] | None = None,
) -> None:
    """Trace ``network(*inputs)`` and save it.

    Parameters
    ----------
    inputs : example tensors by input name, in the order of the network's arguments; dynamic axes need a length above 1.
    axes : names of the leading dynamic axes of each input; axes of the same name have the same length.
    outputs : names of the outputs, in order.
    missing : modules whose output is constant if an input is all NaN (:func:`only_where_present`): the input and that
        output.
    rows : modules that are skipped if their input has no rows (:func:`only_with_rows`), and the width of their output.
    native : modules that native kernels can replace (``training.export.functions``), with their attributes.
    """
    sizes = {name: torch.export.Dim(name, min=1, max=_LONGEST) for names in axes.values() for name in names}
    shapes = tuple({axis: sizes[name] for axis, name in enumerate(axes[key])} for key in inputs)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for name in ("torch.onnx", "onnxscript"):
            logging.getLogger(name).setLevel(logging.ERROR)
        program = torch.onnx.export(
            network,
            tuple(inputs.values()),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes={"inputs": shapes},  # the networks take *inputs
            custom_translation_table=TRANSLATIONS | _tree_translation(network),
            optimize=False,
        )
    assert program is not None
    _optimise(program.model)
    _rename_inner_values(program.model.graph)
    model = split_by_counts(program.model_proto)
    _strip(model)
    slice_to_gather(model)
    square_by_product(model)
    for module, (column, output_D) in (missing or {}).items():
        only_where_present(model, module, column, output_D.numpy())
    for module, width in (rows or {}).items():
        only_with_rows(model, module, width)
    optimizer.remove_unused_nodes(model)
    for module, attributes in (native or {}).items():
        FUNCTIONS[module.rpartition(".")[2]](model, module, attributes)
    _keep_biases(model, network)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _optimise(model: onnx_ir.Model) -> None:
    """Apply the optimisations of ``torch.onnx.export`` to the same result in a third of the time.

    A traced graph has three times as many nodes as its constants and repetitions leave. They go first, as the optimizer
    compares every node with a hundred patterns; once, as folding alone finds what is left.
    """
    _fold(model)
    optimizer.optimize(model, num_iterations=1)
    _fold(model)


def _fold(model: onnx_ir.Model) -> None:
    optimizer.fold_constants(model)
    passes.RemoveUnusedNodesPass()(model)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    passes.DeduplicateInitializersPass()(model)
    passes.CommonSubexpressionEliminationPass()(model)


def _keep_biases(model: onnx.ModelProto, network: nn.Module) -> None:
    """Add every bias whose weight is in the graph as an initializer, so that ``training.export.weights`` finds it.

    The tracer folds biases that are used in parts, and drops parts without effect.
    """
    names = {tensor.name for tensor in model.graph.initializer}
    for name, value in network.named_parameters():
        if name.endswith(".bias") and name not in names and f"{name.removesuffix('bias')}weight" in names:
            model.graph.initializer.append(numpy_helper.from_array(value.detach().numpy(), name))


def _rename_inner_values(graph: onnx_ir.Graph) -> None:
    """Rename inner values that have the name of a graph output.

    The tracer names values after the operator, so the result of ``nn.Embedding`` is called ``embedding`` like an output
    of the network, and files with duplicate names cannot be loaded.
    """
    outputs = {value.name for value in graph.outputs}
    for node in graph:
        for value in node.outputs:
            if value.name in outputs and not value.is_graph_output():
                value.name = f"{value.name}_within"


def _unused_bound(a: Any, b: Any) -> Any:
    """Translate ``size <= 2**64 - 4``, an unused assertion of torch whose bound does not fit into int64."""
    return opset20.Constant(value_int=1)


def _lstm(x_SBI: Any, input_GI: Any, hidden_GH: Any, input_bias_G: Any, hidden_bias_G: Any) -> Any:
    """Translate ``parts.positional_content.lstm``; ONNX has the gates in the order input, output, forget, cell."""
    weights = _onnx_weights(input_GI, hidden_GH, input_bias_G, hidden_bias_G, (0, 3, 1, 2))
    state_SDBH, _, _ = opset20.LSTM(x_SBI, *weights, hidden_size=hidden_GH.shape[1])
    return opset20.Squeeze(state_SDBH, opset20.Constant(value_ints=[1]))


def _gru(x_SBI: Any, input_GI: Any, hidden_GH: Any, input_bias_G: Any, hidden_bias_G: Any) -> Any:
    """Translate ``parts.positional_content.gru``; ONNX has the gates in the order update, reset, new."""
    weights = _onnx_weights(input_GI, hidden_GH, input_bias_G, hidden_bias_G, (1, 0, 2))
    state_SDBH, _ = opset20.GRU(x_SBI, *weights, hidden_size=hidden_GH.shape[1], linear_before_reset=1)
    return opset20.Squeeze(state_SDBH, opset20.Constant(value_ints=[1]))


def _onnx_weights(
    input_GI: Any, hidden_GH: Any, input_bias_G: Any, hidden_bias_G: Any, order: Sequence[int]
) -> tuple[Any, ...]:
    """Return weights and both biases with the gates in ONNX's order and a leading axis of directions."""
    hidden = hidden_GH.shape[1]
    rows = opset20.Constant(value_ints=[gate * hidden + unit for gate in order for unit in range(hidden)])
    biases = (opset20.Gather(bias_G, rows) for bias_G in (input_bias_G, hidden_bias_G))
    weights = (opset20.Gather(input_GI, rows), opset20.Gather(hidden_GH, rows), opset20.Concat(*biases, axis=0))
    direction = opset20.Constant(value_ints=[0])
    return tuple(opset20.Unsqueeze(weight, direction) for weight in weights)


def _whole_sums(chosen_KBLL: Any, whole_BLX: Any) -> Any:
    """Translate ``statistics.curve_statistics.whole_sums``."""
    return opset20.MatMulInteger(opset20.Cast(chosen_KBLL, to=TensorProto.UINT8), whole_BLX)


def _routing_by_band(
    expert_TK: Any, logits_TX: Any, band_BL: Any, mask_BL: Any, layers: int, bands: int, leading: bool
) -> tuple[Any, Any]:
    """Translate ``parts.routing.routing_by_band``: sums over each row's observations as one product per layer."""
    experts = logits_TX.shape[1]

    def ints(*values: int) -> Any:
        return opset20.Constant(value_ints=values)

    off_on = opset20.Constant(value_floats=[0.0, 1.0])
    chosen_TKX = opset20.OneHot(expert_TK, ints(experts), off_on)
    log_p_TX = opset20.LogSoftmax(logits_TX)
    values_TY = opset20.Concat(
        opset20.ReduceSum(chosen_TKX, ints(1), keepdims=0), opset20.Mul(opset20.Exp(log_p_TX), log_p_TX), axis=1
    )
    number = opset20.Cast(opset20.Reshape(mask_BL, ints(-1)), to=TensorProto.INT64)
    number = opset20.Sub(opset20.CumSum(number, opset20.Constant(value_int=0)), ints(1))
    if leading:
        number = opset20.Add(number, opset20.Shape(mask_BL, start=0, end=1))
    token_BL = opset20.Reshape(number, opset20.Shape(mask_BL))
    values_SBLY = opset20.Gather(opset20.Reshape(values_TY, ints(layers, -1, 2 * experts)), token_BL, axis=1)
    # Padding gets a band that does not exist, hence a row of zeros.
    band_BL = opset20.Where(mask_BL, band_BL, opset20.Constant(value_int=bands))
    sums_SBGY = opset20.MatMul(opset20.OneHot(band_BL, ints(bands), off_on, axis=1), values_SBLY)
    sums_BSGY = opset20.Transpose(sums_SBGY, perm=[1, 0, 2, 3])
    counts_BSGX, log_BSGX = opset20.Split(sums_BSGY, axis=3, num_outputs=2)
    length_B1 = opset20.ReduceSum(opset20.Cast(mask_BL, to=TensorProto.FLOAT), ints(1), keepdims=1)
    return counts_BSGX, opset20.Div(opset20.Neg(opset20.ReduceSum(log_BSGX, ints(2, 3), keepdims=0)), length_B1)


TRANSLATIONS: dict[Any, Any] = {
    routing.routing_by_band._opoverload: _routing_by_band,
    curve_statistics.whole_sums._opoverload: _whole_sums,
    operator.le: _unused_bound,
    positional_content.lstm._opoverload: _lstm,
    positional_content.gru._opoverload: _gru,
}


def _tree_translation(network: nn.Module) -> dict[Any, Any]:
    """Return the translation of a network's boosted trees; empty without trees. It can have one forest."""
    forests = [module.forest for module in network.modules() if isinstance(module, BoostedTrees)]
    if not forests:
        return {}
    (forest,) = forests

    def translate(number_BF: Any, *_: Any) -> Any:
        return opset_ai_onnx_ml5.TreeEnsemble(number_BF, **tree_attributes(forest))

    return {trees._opoverload: translate}


def tree_attributes(forest: Forest) -> dict[str, Any]:
    """Return the attributes of the ``TreeEnsemble`` of a forest. Inner nodes and leaves are numbered separately."""
    index_M = np.arange(len(forest.left_M))
    leaf_M = forest.left_M == index_M
    number_M = np.where(leaf_M, np.cumsum(leaf_M), np.cumsum(~leaf_M)) - 1
    class_M = np.searchsorted(forest.root_T, index_M, side="right") - 1
    low = forest.left_M[~leaf_M]
    children = {
        f"nodes_{side}{what}": table[low + step].astype(int).tolist()
        for step, side in enumerate(("true", "false"))
        for what, table in (("nodeids", number_M), ("leafs", leaf_M))
    }
    compared = forest.look_M[~leaf_M]
    return children | {
        "aggregate_function": 1,  # the sum
        "post_transform": 0,
        "n_targets": forest.classes,
        "tree_roots": number_M[forest.root_T].tolist(),
        "nodes_featureids": (compared % forest.numbers).tolist(),
        "nodes_missing_value_tracks_true": (compared < forest.numbers).astype(int).tolist(),
        "nodes_modes": numpy_helper.from_array(np.zeros(len(compared), dtype=np.uint8)),  # at most
        "nodes_splits": numpy_helper.from_array(forest.threshold_M[~leaf_M]),
        "leaf_targetids": (class_M[leaf_M] % forest.classes).tolist(),
        "leaf_weights": numpy_helper.from_array(forest.value_M[leaf_M]),
    }


def split_by_counts(model: onnx.ModelProto) -> onnx.ModelProto:
    """Connect each data-dependent Split directly to the tensor of counts that its sizes come from."""
    producers = {output: node for node in model.graph.node for output in node.output}
    for node in model.graph.node:
        if node.op_type == "Split" and len(node.input) == 2 and node.input[1] in producers:
            sources = _sources(producers[node.input[1]], producers)
            if len(sources) == 1:
                node.input[1] = sources.pop()
    optimizer.remove_unused_nodes(model)
    return model


def _sources(node: onnx.NodeProto, producers: Mapping[str, onnx.NodeProto]) -> set[str]:
    """Return the tensors that a value is assembled from by shape operators."""
    if node.op_type not in _SHAPE_OPERATORS:
        return set(node.output)
    data = node.input if node.op_type == "Concat" else node.input[:1]
    return {source for name in data if name in producers for source in _sources(producers[name], producers)}


def _strip(model: onnx.ModelProto) -> None:
    """Remove debugging information of the exporter: intermediate shapes, metadata and stack traces."""
    graph = model.graph
    del graph.value_info[:]
    _name_by_module(graph.node)
    holders: list[Any] = [model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output]
    for holder in holders:
        del holder.metadata_props[:]
    for node in graph.node:
        node.doc_string = ""


def _name_by_module(nodes: Iterable[onnx.NodeProto]) -> None:
    """Name every node after its module, for profiles: ``network.light_curve.blocks.0/Mul_7``.

    Nodes that the tracer or the optimizer added (constants, shapes) get the module of the previous node.
    """
    module, counts = "", Counter[str]()
    for node in nodes:
        scopes = [entry.value for entry in node.metadata_props if entry.key.endswith("name_scopes")]
        if scopes:
            module = ast.literal_eval(scopes[0])[-2]
        name = f"{module or 'served'}/{node.op_type}"
        counts[name] += 1
        node.name = f"{name}_{counts[name]}"
