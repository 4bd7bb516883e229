"""Trace a network to one ONNX file, and tidy what the tracer leaves behind.

Notable: a grouped computation (``parts.grouping``) arrives as one Split whose sizes take a detour through five little
nodes per group, a fifth of the graph; :func:`split_by_counts` hands Split the counts themselves. Everything is standard
operators, nothing lies outside the file; the recurrent layers of ``parts.recurrent`` are ONNX's LSTM and GRU, boosted
trees (``parts.trees``) one TreeEnsemble of ONNX-ML.
"""

import ast
import logging
import operator
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import torch
from onnx import numpy_helper
from onnxscript import opset20, optimizer
from onnxscript.onnx_opset import opset_ai_onnx_ml5
from torch import Tensor, nn

from models.networks.parts import recurrent
from models.networks.parts.trees import BoostedTrees, Forest, trees
from training.export.tidy import only_where_present, take_one

OPSET = 20

_DETOUR = {"Concat", "Gather", "Reshape", "Slice", "Squeeze", "Unsqueeze"}


def write_graph(
    network: nn.Module,
    inputs: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[str]],
    outputs: Sequence[str],
    path: Path,
    missing: Mapping[str, tuple[str, Tensor]] | None = None,
) -> None:
    """Trace ``network(*inputs)`` and save it.

    Parameters
    ----------
    inputs : example tensors by input name, in the order of the network's arguments; no dynamic axis may be 0 or 1 long.
    axes : names of the leading dynamic axes of each input; the same name is the same length.
    outputs : names of the outputs, in order.
    missing : modules whose answer is known where an input holds no number (:func:`tidy.only_where_present`): the input,
        and that answer.
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
    for module, (column, answer_D) in (missing or {}).items():
        only_where_present(model, module, column, answer_D.numpy())
    optimizer.remove_unused_nodes(model)
    onnx.checker.check_model(model)
    onnx.save(model, path)


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
    """Translate ``parts.recurrent.lstm``; ONNX has the gates in the order input, output, forget, cell."""
    weights = _onnx_weights(input_GI, hidden_GH, input_bias_G, hidden_bias_G, (0, 3, 1, 2))
    state_SDBH, _, _ = opset20.LSTM(x_SBI, *weights, hidden_size=hidden_GH.shape[1])
    return opset20.Squeeze(state_SDBH, opset20.Constant(value_ints=[1]))


def _gru(x_SBI: Any, input_GI: Any, hidden_GH: Any, input_bias_G: Any, hidden_bias_G: Any) -> Any:
    """Translate ``models.networks.parts.recurrent.gru``; ONNX has the gates in the order update, reset, new."""
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


TRANSLATIONS: dict[Any, Any] = {
    operator.le: _unused_bound,
    recurrent.lstm._opoverload: _lstm,
    recurrent.gru._opoverload: _gru,
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
