"""Rewrite a bundle's graph for CUDA and check it against the table of onnxruntime's CUDA kernels.

onnxruntime runs nodes without a CUDA kernel on the CPU, which costs two copies and a synchronisation for each. The
table (``cuda_kernels.json``) holds the kernels that onnxruntime documents (``docs/OperatorKernels.md``: opsets and
element types), so a graph can be checked without a GPU. Arithmetic on shapes stays on the CPU.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, inliner, numpy_helper, shape_inference

from nightjar_alerts.models.bundle import CUDA_MODEL, load_bundle, verify_golden, write_manifest
from nightjar_alerts.models.runtime import open_session
from nightjar_alerts.training.export.functions import inlined
from nightjar_alerts.training.export.graph import walk

Numbers = NDArray[Any]
TABLE: Final = Path(__file__).with_name("cuda_kernels.json")
_DOMAIN: Final = "nightjar.cuda"


class Kernel(TypedDict):
    """Opsets of a kernel (``until`` None: up to the newest), and element types of its main input."""

    since: int
    until: int | None
    types: list[str]


class KernelTable(TypedDict):
    """Kernels of one version of onnxruntime by operator of the domain ``ai.onnx``."""

    source: str
    version: str
    operators: dict[str, list[Kernel]]


def kernels() -> KernelTable:
    """Return the table of CUDA kernels."""
    table: KernelTable = json.loads(TABLE.read_text())
    return table


def without_kernel(model: onnx.ModelProto) -> list[str]:
    """Return the nodes without a CUDA kernel and the reason for each, including nodes in subgraphs."""
    operators = kernels()["operators"]
    opsets = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    inferred = shape_inference.infer_shapes(model, data_prop=True)
    types = _types(inferred.graph)
    return [
        f"{node.name or node.output[0]}: {reason}"
        for node in walk(inferred.graph)
        if (reason := _reason(node, operators, opsets, types))
    ]


def _reason(
    node: onnx.NodeProto,
    operators: Mapping[str, Sequence[Kernel]],
    opsets: Mapping[str, int],
    types: Mapping[str, str],
) -> str:
    """Return the reason why a node has no kernel; empty if it has one."""
    if node.domain not in ("", "ai.onnx"):
        return f"{node.domain}.{node.op_type} is no standard operator"
    if node.op_type == "Constant":
        return ""  # folded when the session is opened
    opset = opsets["ai.onnx"]
    candidates = operators.get(node.op_type, [])
    version = onnx.defs.get_schema(node.op_type, opset, "").since_version
    matching = [
        kernel
        for kernel in candidates
        if kernel["since"] <= version and (kernel["until"] is None or version <= kernel["until"])
    ]
    if not matching:
        return f"{node.op_type}, defined in opset {version}, has no kernel"
    main = _main_type(node, types)
    if main and not any(main in kernel["types"] for kernel in matching):
        return f"{node.op_type} has no kernel for {main}"
    return ""


def _main_type(node: onnx.NodeProto, types: Mapping[str, str]) -> str:
    """Return the element type that selects a kernel: that of the first input, or of the values of a Where.

    Empty if it is not known.
    """
    if not node.input or node.op_type == "If":
        return ""
    return types.get(node.input[1 if node.op_type == "Where" else 0], "")


def _types(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the element type of each value, including those of subgraphs."""
    graphs = [graph, *_subgraphs(graph)]
    values = (value for each in graphs for value in (*each.input, *each.output, *each.value_info))
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for each in graphs for tensor in each.initializer}
    return {name: TensorProto.DataType.Name(kind).lower() for name, kind in types.items() if kind}


def _subgraphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield attribute.g
                yield from _subgraphs(attribute.g)


_REPLACEMENTS: Final = {
    # asinh(x) = sign(x) log1p(z) with z = |x| + x^2 / (1 + sqrt(x^2 + 1)), which is more accurate near 0 than
    # log(|x| + sqrt(x^2 + 1)); log1p(z) = log(1 + z) z / ((1 + z) - 1), and z if 1 + z is 1 (Kahan).
    # Valid for |x| up to 1e19, beyond which the square overflows.
    "Asinh": """
        <domain: "nightjar.cuda", opset_import: ["" : 20]>
        Asinh (x) => (y) {
            one = Constant <value = float {1.0}> ()
            zero = Constant <value = float {0.0}> ()
            size = Abs (x)
            square = Mul (x, x)
            raised = Add (square, one)
            root = Sqrt (raised)
            below = Add (root, one)
            more = Div (square, below)
            z = Add (size, more)
            beyond = Add (z, one)
            seen = Sub (beyond, one)
            tiny = Equal (seen, zero)
            divisor = Where (tiny, one, seen)
            log = Log (beyond)
            product = Mul (log, z)
            quotient = Div (product, divisor)
            positive = Where (tiny, z, quotient)
            sign = Sign (x)
            y = Mul (sign, positive)
        }
    """,
    # Single precision represents the sums of these products exactly, since they stay below 2^24.
    "MatMulInteger": """
        <domain: "nightjar.cuda", opset_import: ["" : 20]>
        MatMulInteger (a, b) => (y) {
            left = Cast <to = 1> (a)
            right = Cast <to = 1> (b)
            product = MatMul (left, right)
            y = Cast <to = 6> (product)
        }
    """,
}
"""Operators without a CUDA kernel, written with operators that have one."""


def cuda_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a graph with boosted trees and the operators of :data:`_REPLACEMENTS` rewritten for CUDA."""
    copy = onnx.ModelProto()
    copy.CopyFrom(inlined(model))
    for node in [node for node in copy.graph.node if node.op_type == "TreeEnsemble"]:
        index = list(copy.graph.node).index(node)
        copy.graph.node.remove(node)
        steps, tables = _trees(node)
        copy.graph.initializer.extend(tables)
        for offset, step in enumerate(steps):
            copy.graph.node.insert(index + offset, step)
    replaced = [node for node in walk(copy.graph) if node.op_type in _REPLACEMENTS]
    if not replaced:
        return copy
    for node in replaced:
        node.domain = _DOMAIN
    copy.functions.extend(onnx.parser.parse_function(_REPLACEMENTS[name]) for name in {n.op_type for n in replaced})
    copy.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return inliner.inline_local_functions(copy)


class _TreeTables(NamedTuple):
    """Nodes and leaves of all trees in one table; a leaf is its own child.

    Attributes
    ----------
    look_M : index of the compared feature in two copies of the row: missing values go left in one, right in the other.
    threshold_M, value_M : values up to the threshold go left; contribution of a leaf to its class.
    child_2M : left and right child of each node.
    root_T, class_T : root and class of each tree.
    """

    look_M: Numbers
    threshold_M: Numbers
    value_M: Numbers
    child_2M: Numbers
    root_T: Numbers
    class_T: Numbers
    depth: int


def _tree_tables(attributes: Mapping[str, Any]) -> _TreeTables:
    """Read the attributes of a TreeEnsemble; ValueError if it is not a sum of trees of one class each."""
    splits, weights = (numpy_helper.to_array(attributes[name]) for name in ("nodes_splits", "leaf_weights"))
    inner, leaves = len(splits), len(weights)
    if numpy_helper.to_array(attributes["nodes_modes"]).any() or attributes.get("aggregate_function", 1) != 1:
        raise ValueError("only sums of trees with comparisons <= are supported")
    children = [
        np.array(attributes[f"nodes_{side}nodeids"]) + inner * np.array(attributes[f"nodes_{side}leafs"])
        for side in ("true", "false")
    ]
    leaf = np.arange(inner, inner + leaves)
    child_2M = np.stack([np.concatenate([side, leaf]) for side in children], axis=1).ravel()
    root_T = np.array(attributes["tree_roots"])
    leaf_T, depth = root_T, 0
    reached = root_T[:, None]
    while (reached < inner).any():
        reached = np.unique(child_2M.reshape(-1, 2)[reached], axis=None)[None]
        depth += 1
    for _ in range(depth):
        leaf_T = child_2M[2 * leaf_T]
    classes = np.array(attributes["leaf_targetids"])
    missing_right = 1 - np.array(attributes["nodes_missing_value_tracks_true"])
    none = np.zeros(leaves, dtype=np.int64)
    return _TreeTables(
        look_M=np.concatenate([2 * np.array(attributes["nodes_featureids"]) + missing_right, none]),
        threshold_M=np.concatenate([splits, np.full(leaves, np.inf, dtype=np.float32)]),
        value_M=np.concatenate([np.zeros(inner, dtype=np.float32), weights]),
        child_2M=child_2M,
        root_T=root_T,
        class_T=classes[leaf_T - inner],
        depth=depth,
    )


def _trees(node: onnx.NodeProto) -> tuple[list[onnx.NodeProto], list[TensorProto]]:
    """Return nodes and tables that evaluate a TreeEnsemble level by level (tree traversal, Nakandala et al. 2020)."""
    tree_attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    forest, name = _tree_tables(tree_attributes), node.name or node.output[0]
    share_TC = np.eye(tree_attributes["n_targets"], dtype=np.float32)[forest.class_T]
    constants = {
        "look": forest.look_M, "threshold": forest.threshold_M, "value": forest.value_M, "child": forest.child_2M,
        "root": forest.root_T[None], "share": share_TC, "two": np.array(2), "last": np.array([-1]),
        "less": np.array(-np.inf, dtype=np.float32), "more": np.array(np.inf, dtype=np.float32),
    }  # fmt: skip
    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("IsNaN", [node.input[0]], "missing", {}),
        ("Where", ["missing", "less", node.input[0]], "left", {}),
        ("Where", ["missing", "more", node.input[0]], "right", {}),
        ("Unsqueeze", ["left", "last"], "left_1", {}),
        ("Unsqueeze", ["right", "last"], "right_1", {}),
        ("Concat", ["left_1", "right_1"], "twice", {"axis": 2}),
        ("Flatten", ["twice"], "row", {"axis": 1}),
        ("Gather", ["look", "root"], "look_0", {}),
        ("Squeeze", ["look_0"], "look_root", {}),
        ("Gather", ["row", "look_root"], "number_0", {"axis": 1}),
    ]
    place = "root"
    for level in range(forest.depth):
        look, number, least, beyond, step, twice, at = (
            f"{part}_{level}" for part in ("look", "number", "threshold", "beyond", "step", "twice", "at")
        )
        if level:
            steps += [("Gather", ["look", place], look, {}), ("GatherElements", ["row", look], number, {"axis": 1})]
        steps += [
            ("Gather", ["threshold", place], least, {}),
            ("Greater", [number, least], beyond, {}),
            ("Cast", [beyond], step, {"to": TensorProto.INT64}),
            ("Mul", [place, "two"], twice, {}),
            ("Add", [twice, step], at, {}),
            ("Gather", ["child", at], f"place_{level}", {}),
        ]
        place = f"place_{level}"
    steps += [("Gather", ["value", place], "added", {}), ("MatMul", ["added", "share"], node.output[0], {})]
    outside = {node.input[0], node.output[0]}

    def named(value: str) -> str:
        return value if value in outside else f"{name}/{value}"

    nodes = [
        helper.make_node(
            operator, [named(value) for value in inputs], [named(output)], f"{name}/{number}", **attributes
        )
        for number, (operator, inputs, output, attributes) in enumerate(steps)
    ]
    return nodes, [numpy_helper.from_array(table, named(key)) for key, table in constants.items()]


def write_cuda(bundle: Path, out: Path) -> dict[str, int]:
    """Write the graph of a bundle for CUDA, and return its number of nodes.

    Raises
    ------
    ValueError
        If the table has no CUDA kernel for a node.
    """
    model = cuda_graph(onnx.load(load_bundle(bundle).model))
    if missing := without_kernel(model):
        raise ValueError(f"{bundle} has nodes without a CUDA kernel: {'; '.join(missing)}")
    onnx.save(model, out)
    return {"nodes": sum(1 for _ in walk(model.graph))}


def add_cuda(bundle: Path, folder: Path) -> dict[str, int]:
    """Copy a bundle to a new folder and add its graph for CUDA; return and errors as for :func:`write_cuda`.

    The new graph must reproduce the golden outputs of the bundle, on the CPU.
    """
    original = load_bundle(bundle)
    shutil.copytree(bundle, folder)
    summary = write_cuda(bundle, folder / CUDA_MODEL)
    copy = write_manifest(folder, original.manifest)
    verify_golden(copy, open_session(folder / CUDA_MODEL))
    return summary
