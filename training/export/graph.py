"""Trace a network to one ONNX file and simplify the graph.

Notable: a grouped computation (``parts.packing``) is traced as one Split whose sizes go through five nodes per
group, a fifth of the graph; :func:`split_by_counts` passes the counts directly. Everything is standard
operators, some of them in a function that native kernels can replace (``training.export.functions``), and nothing
lies outside the file; recurrent layers (``parts.positional_content``) are ONNX's LSTM and GRU, boosted trees
(``parts.trees``) one TreeEnsemble of ONNX-ML.

Simplification makes a traced graph faster without changing its outputs. Every operator has an overhead of some
microseconds, which is most of the time for one light curve. The tracer writes two operators where one is enough
(:func:`take_one`). A graph computes all of its nodes for any input, unless a part is conditional
(:func:`only_where_present`): alerts of real surveys carry none of the metadata columns, and the transformer over them
then has one answer, known when the graph is made.
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


def square_by_product(model: onnx.ModelProto) -> None:
    """Replace every square, which the tracer writes as a power, by the product of the value with itself: the same
    number in two thirds of the time.
    """
    graph = model.graph
    twos = {tensor.name for tensor in graph.initializer if not tensor.dims and numpy_helper.to_array(tensor) == 2.0}
    for node in walk(graph):
        if node.op_type == "Pow" and node.input[1] in twos:
            node.op_type = "Mul"
            node.input[1] = node.input[0]


def only_where_present(model: onnx.ModelProto, module: str, column: str, otherwise_D: NDArray[np.float32]) -> bool:
    """Put a module's nodes under the condition that an input holds any number at all; return whether there were any.

    Parameters
    ----------
    module : whose nodes; they are named after it, and one value of theirs, a vector per row, is used outside.
    column : the input, [batch, columns], NaN where a value is missing.
    otherwise_D : the module's answer to a row of missing values.
    """
    graph = model.graph
    inside = _nodes_of(graph, module)
    if not inside:
        return False
    answer = inside[-1].output[0]
    batch, whole = f"{module}/batch", f"{module}/shape"
    vector = numpy_helper.from_array(otherwise_D[None].astype(np.float32), f"{module}/missing")
    width = numpy_helper.from_array(np.array([len(otherwise_D)], dtype=np.int64), f"{module}/width")
    missing = [
        helper.make_node("Shape", [column], [batch], start=0, end=1, name=f"{module}/Shape_missing"),
        helper.make_node("Concat", [batch, width.name], [whole], axis=0, name=f"{module}/Concat_missing"),
        helper.make_node("Expand", [vector.name, whole], [f"{answer}/missing"], name=f"{module}/Expand_missing"),
    ]
    condition = _any_number(model, module, column)
    _under(graph, module, inside, condition, (missing, [vector, width], f"{answer}/missing"))
    return True


def only_with_rows(model: onnx.ModelProto, module: str, width: int) -> bool:
    """Put a module's nodes under the condition that it is given any rows; return whether there were any nodes.

    Parameters
    ----------
    module : whose nodes; they are named after it, all it is given has the same rows, and one value of theirs, a vector
        per row, is used outside.
    width : of that vector.
    """
    graph = model.graph
    inside = _nodes_of(graph, module)
    if not inside:
        return False
    answer = inside[-1].output[0]
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
    none = [helper.make_node("Identity", [nothing.name], [f"{answer}/nothing"], name=f"{module}/Identity_nothing")]
    _under(graph, module, inside, condition, (none, [nothing], f"{answer}/nothing"))
    return True


def _under(
    graph: onnx.GraphProto,
    module: str,
    inside: Sequence[Node],
    condition: Sequence[Node],
    otherwise: tuple[Sequence[Node], Sequence[TensorProto], str],
) -> None:
    """Move nodes, the last of which answers, under a condition; ``otherwise`` answers where it is false.

    Parameters
    ----------
    condition : nodes, the last of which is the condition.
    otherwise : nodes, their constants, and the name of what they answer.
    """
    answer = inside[-1].output[0]
    for node in inside:
        for names in (node.input, node.output):
            names[:] = [f"{answer}/computed" if name == answer else name for name in names]
    nodes, constants, other = otherwise
    inner = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (f"{answer}/computed", other)]
    then_graph = helper.make_graph(inside, f"{module}/computed", [], inner[:1])
    else_graph = helper.make_graph(nodes, f"{module}/otherwise", [], inner[1:], constants)
    branches = {"then_branch": then_graph, "else_branch": else_graph}
    place = list(graph.node).index(inside[-1])
    chosen = helper.make_node("If", [condition[-1].output[0]], [answer], name=f"{module}/If", **branches)
    for offset, node in enumerate([*condition, chosen]):
        graph.node.insert(place + 1 + offset, node)
    for node in inside:
        graph.node.remove(node)


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


def _nodes_of(graph: onnx.GraphProto, module: str) -> list[Node]:
    """Return the nodes named after a module that its last one needs."""
    inside = [node for node in graph.node if node.name.startswith((f"{module}/", f"{module}."))]
    return _answering(graph, inside) if inside else []


def _answering(graph: onnx.GraphProto, inside: Sequence[Node]) -> list[Node]:
    """Return the nodes that only the last one needs: what others use as well stays where all see it."""
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

_DETOUR = {"Concat", "Gather", "Reshape", "Slice", "Squeeze", "Unsqueeze"}


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
    inputs : example tensors by input name, in the order of the network's arguments; no dynamic axis may be 0 or 1 long.
    axes : names of the leading dynamic axes of each input; the same name is the same length.
    outputs : names of the outputs, in order.
    missing : modules whose answer is known where an input holds no number (:func:`tidy.only_where_present`): the input,
        and that answer.
    rows : modules that are left out where they are given no rows (:func:`only_with_rows`), and the width of what they
        answer.
    native : modules that native kernels can replace (``training.export.functions``), with their attributes.
    """
    sizes = {name: torch.export.Dim(name, min=1) for names in axes.values() for name in names}
    shapes = tuple({place: sizes[name] for place, name in enumerate(axes[key])} for key in inputs)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            network,
            tuple(inputs.values()),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes={"inputs": shapes},  # the networks take *inputs
            custom_translation_table=TRANSLATIONS | _trees_of(network),
        )
    assert program is not None
    _make_room_for_names(program.model.graph)
    model = split_by_counts(program.model_proto)
    _strip(model)
    take_one(model)
    square_by_product(model)
    for module, (column, answer_D) in (missing or {}).items():
        only_where_present(model, module, column, answer_D.numpy())
    for module, width in (rows or {}).items():
        only_with_rows(model, module, width)
    optimizer.remove_unused_nodes(model)
    for module, attributes in (native or {}).items():
        FUNCTIONS[module.rpartition(".")[2]](model, module, attributes)
    _keep_biases(model, network)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _keep_biases(model: onnx.ModelProto, network: nn.Module) -> None:
    """Keep every bias whose weight the graph holds, so that ``training.export.weights`` finds it.

    The tracer folds a bias that is used in parts, and no part may be used where it changes nothing.
    """
    names = {tensor.name for tensor in model.graph.initializer}
    for name, value in network.named_parameters():
        if name.endswith(".bias") and name not in names and f"{name.removesuffix('bias')}weight" in names:
            model.graph.initializer.append(numpy_helper.from_array(value.detach().numpy(), name))


def _make_room_for_names(graph: onnx_ir.Graph) -> None:
    """Rename what lies within the graph and is called like one of its outputs.

    The tracer calls a value after the operator that made it, so what ``nn.Embedding`` gives is ``embedding``; then the
    output of that name is given its own, and a name that two values share is refused when the file is read.
    """
    outputs = {value.name for value in graph.outputs}
    for node in graph:
        for value in node.outputs:
            if value.name in outputs and not value.is_graph_output():
                value.name = f"{value.name}_within"


def _unused_bound(a: Any, b: Any) -> Any:
    """Translate ``size <= 2**64 - 4``, a bound that torch notes, nothing uses and int64 cannot hold."""
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
    """Weights and both biases with the gates in ONNX's order and its leading axis of directions."""
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
    # A padded place has a band that does not exist, hence a row of zeros.
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


def _trees_of(network: nn.Module) -> dict[Any, Any]:
    """Translate the boosted trees of a network, if there are any: one forest at most."""
    forests = [module.forest for module in network.modules() if isinstance(module, BoostedTrees)]
    if not forests:
        return {}
    (forest,) = forests

    def translate(number_BF: Any, *_: Any) -> Any:
        return opset_ai_onnx_ml5.TreeEnsemble(number_BF, **tree_attributes(forest))

    return {trees._opoverload: translate}


def tree_attributes(forest: Forest) -> dict[str, Any]:
    """Attributes of the ``TreeEnsemble`` of a forest: nodes that compare, then leaves, each counted from 0."""
    place_M = np.arange(len(forest.left_M))
    leaf_M = forest.left_M == place_M
    number_M = np.where(leaf_M, np.cumsum(leaf_M), np.cumsum(~leaf_M)) - 1
    class_M = np.searchsorted(forest.root_T, place_M, side="right") - 1
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
    """Give each data-dependent Split the tensor of counts that its sizes were taken apart from."""
    producers = {output: node for node in model.graph.node for output in node.output}
    for node in model.graph.node:
        if node.op_type == "Split" and len(node.input) == 2 and node.input[1] in producers:
            sources = _sources(producers[node.input[1]], producers)
            if len(sources) == 1:
                node.input[1] = sources.pop()
    optimizer.remove_unused_nodes(model)
    return model


def _sources(node: onnx.NodeProto, producers: Mapping[str, onnx.NodeProto]) -> set[str]:
    """Tensors that a value is put together from, seen through nodes that only move numbers about."""
    if node.op_type not in _DETOUR:
        return set(node.output)
    data = node.input if node.op_type == "Concat" else node.input[:1]
    return {source for name in data if name in producers for source in _sources(producers[name], producers)}


def _strip(model: onnx.ModelProto) -> None:
    """Drop what only a debugger of the exporter reads: shapes on the way, metadata, stack traces."""
    graph = model.graph
    del graph.value_info[:]
    _name_by_module(graph.node)
    for holder in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        del holder.metadata_props[:]
    for node in graph.node:
        node.doc_string = ""


def _name_by_module(nodes: Iterable[onnx.NodeProto]) -> None:
    """Name every node after the module it was traced in: ``network.light_curve.blocks.0/Mul_7``; profiles add these up.

    What the tracer or the optimiser made up (constants, shapes) goes by the node before it.
    """
    module, counts = "", Counter[str]()
    for node in nodes:
        scopes = [entry.value for entry in node.metadata_props if entry.key.endswith("name_scopes")]
        if scopes:
            module = ast.literal_eval(scopes[0])[-2]
        name = f"{module or 'served'}/{node.op_type}"
        counts[name] += 1
        node.name = f"{name}_{counts[name]}"
