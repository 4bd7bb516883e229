"""A graph for CUDA, without operators that onnxruntime has no CUDA kernel for, checked against its table of kernels.

onnxruntime quietly runs on the CPU what its CUDA provider has no kernel for, which costs two copies and a wait for each
such node. The table of kernels (``cuda_kernels.json``) is made from onnxruntime's own documentation::

    curl -LO https://raw.githubusercontent.com/microsoft/onnxruntime/v1.22.0/docs/OperatorKernels.md
    nightjar-train cuda-kernels OperatorKernels.md v1.22.0

so that the claim that a graph runs on CUDA can fail without a GPU. It stays a claim until a GPU has run it.

Notable: lengths of axes are another matter. ``Shape`` has a kernel for CUDA whose answer lies in the memory of the CPU,
and onnxruntime leaves small arithmetic on it to the CPU, which a session that forbids the fall-back refuses. Where the
axes are fixed when the session is opened, it folds that away; what depends on the data (how many points there are)
stays. :func:`shape_arithmetic` lists it.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, shape_inference
from onnxscript import optimizer

from nightjar_alerts.models.bundle import CUDA_MODEL, load_bundle, verify_golden, write_manifest
from nightjar_alerts.models.runtime import open_session
from nightjar_alerts.training.export.functions import inlined
from nightjar_alerts.training.export.graph import walk

Numbers = NDArray[Any]
TABLE: Final = Path(__file__).with_name("cuda_kernels.json")
ASINH: Final = "asinh"
COUNT: Final = "count"
_SECTION: Final = '<a name="cudaexecutionprovider"/>'
_ROW: Final = re.compile(
    r"^\|(?P<operator>[^|]*)\|(?P<inputs>[^|]*)\|(?P<opsets>\[\d+, \d+\]|\d+\+?)\|(?P<types>.*)\|$"
)
_MAKE_SHAPES: Final = {"Shape", "Size"}


class Kernel(TypedDict):
    """Opsets that a kernel is for, ``until`` None where it is the newest, and element types of its main input."""

    since: int
    until: int | None
    types: list[str]


class KernelTable(TypedDict):
    """The kernels of one version of onnxruntime by operator of the domain ``ai.onnx``."""

    source: str
    version: str
    operators: dict[str, list[Kernel]]


def kernels() -> KernelTable:
    """Read the table that is kept."""
    table: KernelTable = json.loads(TABLE.read_text())
    return table


def without_kernel(model: onnx.ModelProto) -> list[str]:
    """Nodes that the CUDA provider has no kernel for, each with the reason; those under conditions as well."""
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
    """Reason for which a node has no kernel; empty where it has one."""
    if node.domain not in ("", "ai.onnx"):
        return f"{node.domain}.{node.op_type} is no standard operator"
    if node.op_type == "Constant":
        return ""  # folded when the session is opened
    opset = opsets["ai.onnx"]
    candidates = operators.get(node.op_type, [])
    version = onnx.defs.get_schema(node.op_type, opset, "").since_version
    fitting = [
        one for one in candidates if one["since"] <= version and (one["until"] is None or version <= one["until"])
    ]
    if not fitting:
        return f"{node.op_type}, defined in opset {version}, has no kernel"
    main = _main_type(node, types)
    if main and not any(main in one["types"] for one in fitting):
        return f"{node.op_type} has no kernel for {main}"
    return ""


def _main_type(node: onnx.NodeProto, types: Mapping[str, str]) -> str:
    """Element type by which a kernel is chosen: that of the first input, of the values of a Where, not known: empty."""
    if not node.input or node.op_type == "If":
        return ""
    place = 1 if node.op_type == "Where" else 0
    return types.get(node.input[place], "")


def _types(graph: onnx.GraphProto) -> dict[str, str]:
    """Element types by value, those of inner graphs as well."""
    graphs = [graph, *_inner(graph)]
    values = (value for one in graphs for value in (*one.input, *one.output, *one.value_info))
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for one in graphs for tensor in one.initializer}
    return {name: TensorProto.DataType.Name(kind).lower() for name, kind in types.items() if kind}


def _inner(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield attribute.g
                yield from _inner(attribute.g)


def shape_arithmetic(model: onnx.ModelProto) -> list[str]:
    """Nodes that work out lengths of axes from nothing but lengths and constants: those that the CPU keeps."""
    constant = {tensor.name for tensor in model.graph.initializer}
    on_cpu: set[str] = set()
    lines = []
    for node in model.graph.node:
        inputs = [name for name in node.input if name]
        if node.op_type == "Constant":
            constant.update(node.output)
        elif node.op_type in _MAKE_SHAPES or (
            any(name in on_cpu for name in inputs) and all(name in on_cpu or name in constant for name in inputs)
        ):
            on_cpu.update(node.output)
            lines.append(f"{node.name or node.output[0]}: {node.op_type}")
    return lines


def cuda_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a graph with what has no CUDA kernel written out: every Asinh, boosted trees (:func:`_trees`), and products
    of whole numbers, which single precision holds exactly (:func:`_whole_product`).

    Nothing depends on how many points there are any more but by numbers on the device (:func:`_count_there`).

    asinh(x) = sign(x) log1p(z) with z = |x| + x^2 / (1 + sqrt(x^2 + 1)), which loses no digits near 0 as
    log(|x| + sqrt(x^2 + 1)) does; and log1p(z) = log(1 + z) z / ((1 + z) - 1), z itself where 1 + z is 1 (Kahan). Good
    for |x| up to 1e19, where the square of a single number ends.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(inlined(model))
    _count_there(copy)
    for node in [node for node in copy.graph.node if node.op_type == "TreeEnsemble"]:
        place = list(copy.graph.node).index(node)
        copy.graph.node.remove(node)
        steps, tables = _trees(node)
        copy.graph.initializer.extend(tables)
        for offset, step in enumerate(steps):
            copy.graph.node.insert(place + offset, step)
    written = False
    for graph in (copy.graph, *_inner(copy.graph)):
        for node in [node for node in graph.node if node.op_type == "MatMulInteger"]:
            place = list(graph.node).index(node)
            graph.node.remove(node)
            for offset, step in enumerate(_whole_product(node)):
                graph.node.insert(place + offset, step)
        for node in list(graph.node):
            if node.op_type != "Asinh":
                continue
            place = list(graph.node).index(node)
            graph.node.remove(node)
            for offset, step in enumerate(_asinh(node.input[0], node.output[0], node.name or node.output[0])):
                graph.node.insert(place + offset, step)
            written = True
    if written:
        copy.graph.initializer.append(helper.make_tensor(f"{ASINH}/one", TensorProto.FLOAT, [], [1.0]))
    return copy


def _count_there(model: onnx.ModelProto) -> None:
    """Write out what the CPU would work out from lengths that depend on the data, with as many numbers on the device.

    The number of places that NonZero finds is a sum; numbers from 0 as many as are scattered are a running sum; what is
    filled with one number in the shape of others is chosen by those; and a part that stands under the condition that
    there are rows for it always runs, for none if need be.
    """
    graph = model.graph
    for node in [one for one in graph.node if one.op_type == "If" and one.name.startswith("network.told.")]:
        _unfold(graph, node)
    producers = {output: node for node in graph.node for output in node.output}
    graph.initializer.append(numpy_helper.from_array(np.array(0), f"{COUNT}/zero"))
    graph.initializer.append(numpy_helper.from_array(np.array(1), f"{COUNT}/one"))
    for node in list(graph.node):
        steps: list[onnx.NodeProto] = []
        if node.op_type == "Squeeze" and (nonzero := _counted_nonzero(node, producers)):
            steps = _sum_of(nonzero, node)
        elif node.op_type == "ScatterElements" and (last := producers.get(node.input[2])) and last.op_type == "Range":
            steps = _running(node)
        elif node.op_type == "Expand" and (last := producers.get(node.input[1])) and last.op_type == "Shape":
            steps = _filled(node, last, graph)
        if steps:
            place = list(graph.node).index(node)
            if node.op_type != "ScatterElements":
                graph.node.remove(node)
            for offset, step in enumerate(steps):
                graph.node.insert(place + offset, step)
    optimizer.remove_unused_nodes(model)


def _unfold(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """Put the nodes of the branch that is taken where a condition holds in the place of the condition."""
    branch = next(each.g for each in node.attribute if each.name == "then_branch")
    place = list(graph.node).index(node)
    graph.node.remove(node)
    graph.initializer.extend(branch.initializer)
    answer = branch.output[0].name
    for offset, inner in enumerate(branch.node):
        for names in (inner.input, inner.output):
            names[:] = [node.output[0] if name == answer else name for name in names]
        graph.node.insert(place + offset, inner)


def _counted_nonzero(node: onnx.NodeProto, producers: Mapping[str, onnx.NodeProto]) -> onnx.NodeProto | None:
    """Return the NonZero whose number of places a node tells, if it does."""
    shape = producers.get(node.input[0])
    while shape is not None and shape.op_type in ("Gather", "Slice"):
        shape = producers.get(shape.input[0])
    source = producers.get(shape.input[0]) if shape is not None and shape.op_type == "Shape" else None
    while source is not None and source.op_type in ("Transpose", "Gather", "Squeeze", "Slice", "Split"):
        source = producers.get(source.input[0])
    return source if source is not None and source.op_type == "NonZero" else None


def _sum_of(nonzero: onnx.NodeProto, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    name = f"{node.name}/{COUNT}"
    return [
        helper.make_node("Cast", [nonzero.input[0]], [f"{name}/each"], name=f"{name}_0", to=TensorProto.INT64),
        helper.make_node("ReduceSum", [f"{name}/each"], [node.output[0]], name=f"{name}_1", keepdims=0),
    ]


def _running(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    name, place = f"{node.name}/{COUNT}", node.input[1]
    node.input[2] = f"{name}/numbers"
    return [
        helper.make_node("GreaterOrEqual", [place, f"{COUNT}/zero"], [f"{name}/any"], name=f"{name}_0"),
        helper.make_node("Cast", [f"{name}/any"], [f"{name}/ones"], name=f"{name}_1", to=TensorProto.INT64),
        helper.make_node("CumSum", [f"{name}/ones", f"{COUNT}/zero"], [f"{name}/until"], name=f"{name}_2"),
        helper.make_node("Sub", [f"{name}/until", f"{COUNT}/one"], [f"{name}/numbers"], name=f"{name}_3"),
    ]


def _filled(node: onnx.NodeProto, shape: onnx.NodeProto, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Choose between a number and itself, wherever there is a number of the tensor whose shape is meant."""
    part = [each for each in shape.attribute if each.name == "end" or each.i]
    kinds = (TensorProto.FLOAT, TensorProto.INT64)
    filled = [one for one in graph.initializer if one.name == node.input[0] and one.data_type in kinds]
    if part or not filled or np.prod(filled[0].dims) != 1:
        return []  # part of a shape, or no number
    name = f"{node.name}/{COUNT}"
    return [
        helper.make_node("Equal", [shape.input[0]] * 2, [f"{name}/same"], name=f"{name}_0"),
        helper.make_node("Where", [f"{name}/same", node.input[0], node.input[0]], list(node.output), name=f"{name}_1"),
    ]


def _whole_product(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Multiply whole numbers as single ones: exact where sums stay below 2^24, as those of ``whole_sums`` do."""
    name = node.name or node.output[0]
    singles = [f"{name}/left", f"{name}/right"]
    return [
        *(
            helper.make_node("Cast", [whole], [single], name=f"{single}_single", to=TensorProto.FLOAT)
            for whole, single in zip(node.input, singles, strict=True)
        ),
        helper.make_node("MatMul", singles, [f"{name}/product"], name=f"{name}/MatMul_whole"),
        helper.make_node("Cast", [f"{name}/product"], list(node.output), name=f"{name}/whole", to=TensorProto.INT32),
    ]


def _asinh(x: str, y: str, name: str) -> list[onnx.NodeProto]:
    """Nodes of :func:`cuda_graph`."""
    one = f"{ASINH}/one"
    steps = (
        ("Abs", [x], "size"),
        ("Mul", [x, x], "square"),
        ("Add", ["square", one], "raised"),
        ("Sqrt", ["raised"], "root"),
        ("Add", ["root", one], "below"),
        ("Div", ["square", "below"], "more"),
        ("Add", ["size", "more"], "z"),
        ("Add", ["z", one], "beyond"),
        ("Sub", ["beyond", one], "seen"),
        ("Equal", ["seen", "zero"], "tiny"),
        ("Where", ["tiny", one, "seen"], "divisor"),
        ("Log", ["beyond"], "log"),
        ("Mul", ["log", "z"], "product"),
        ("Div", ["product", "divisor"], "quotient"),
        ("Where", ["tiny", "z", "quotient"], "positive"),
        ("Sign", [x], "sign"),
        ("Mul", ["sign", "positive"], y),
    )
    inner = {output for _, _, output in steps} - {y} | {"zero"}

    def named(value: str) -> str:
        return f"{name}/{value}" if value in inner else value

    nodes = [helper.make_node("Sub", [one, one], [named("zero")], name=f"{name}/{ASINH}_zero")]
    for number, (operator, inputs, output) in enumerate(steps):
        names = [named(value) for value in inputs]
        nodes.append(helper.make_node(operator, names, [named(output)], name=f"{name}/{ASINH}_{number}"))
    return nodes


class _Places(NamedTuple):
    """The nodes and leaves of all trees in one table; a leaf leads to itself.

    Attributes
    ----------
    look_M : number of the row that is compared, in two copies of it: one goes left where it is missing, one right.
    threshold_M, value_M : at most it goes left; what a leaf adds to its class.
    child_2M : the left one and the right one of every place.
    root_T, class_T : where every tree begins, and what class it is for.
    """

    look_M: Numbers
    threshold_M: Numbers
    value_M: Numbers
    child_2M: Numbers
    root_T: Numbers
    class_T: Numbers
    depth: int


def _places(attributes: Mapping[str, Any]) -> _Places:
    """Read the attributes of a TreeEnsemble; ValueError where it is no sum of trees of one class each."""
    splits, weights = (numpy_helper.to_array(attributes[name]) for name in ("nodes_splits", "leaf_weights"))
    inner, leaves = len(splits), len(weights)
    if numpy_helper.to_array(attributes["nodes_modes"]).any() or attributes.get("aggregate_function", 1) != 1:
        raise ValueError("trees that compare otherwise than by at most, or that are not added up")
    children = [
        np.array(attributes[f"nodes_{side}nodeids"]) + inner * np.array(attributes[f"nodes_{side}leafs"])
        for side in ("true", "false")
    ]
    itself = np.arange(inner, inner + leaves)
    child_2M = np.stack([np.concatenate([side, itself]) for side in children], axis=1).ravel()
    root_T = np.array(attributes["tree_roots"])
    place_T, depth = root_T, 0
    reached = root_T[:, None]
    while (reached < inner).any():
        reached = np.unique(child_2M.reshape(-1, 2)[reached], axis=None)[None]
        depth += 1
    for _ in range(depth):
        place_T = child_2M[2 * place_T]
    classes = np.array(attributes["leaf_targetids"])
    missing_right = 1 - np.array(attributes["nodes_missing_value_tracks_true"])
    none = np.zeros(leaves, dtype=np.int64)
    return _Places(
        look_M=np.concatenate([2 * np.array(attributes["nodes_featureids"]) + missing_right, none]),
        threshold_M=np.concatenate([splits, np.full(leaves, np.inf, dtype=np.float32)]),
        value_M=np.concatenate([np.zeros(inner, dtype=np.float32), weights]),
        child_2M=child_2M,
        root_T=root_T,
        class_T=classes[place_T - inner],
        depth=depth,
    )


def _trees(node: onnx.NodeProto) -> tuple[list[onnx.NodeProto], list[TensorProto]]:
    """Nodes and tables of a TreeEnsemble: all trees one level at a time (tree traversal of Nakandala et al. 2020)."""
    tree_attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    forest, name = _places(tree_attributes), node.name or node.output[0]
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
        helper.make_node(operator, [named(one) for one in inputs], [named(output)], f"{name}/{number}", **attributes)
        for number, (operator, inputs, output, attributes) in enumerate(steps)
    ]
    return nodes, [numpy_helper.from_array(table, named(key)) for key, table in constants.items()]


def write_cuda(bundle: Path, out: Path) -> dict[str, Any]:
    """Write the graph of a bundle as CUDA can run it; how many nodes it has, and which stay on the CPU.

    Raises
    ------
    ValueError
        When a node has no CUDA kernel by the table.
    """
    model = cuda_graph(onnx.load(load_bundle(bundle).model))
    if missing := without_kernel(model):
        raise ValueError(f"{bundle} has nodes without a CUDA kernel: {'; '.join(missing)}")
    onnx.save(model, out)
    return {"nodes": sum(1 for _ in walk(model.graph)), "on_the_cpu": shape_arithmetic(model)}


def add_cuda(bundle: Path, folder: Path) -> dict[str, Any]:
    """Copy a bundle to a new folder, with its graph for CUDA in it; returns and raises as :func:`write_cuda`.

    The golden outputs of the bundle have to come back from that graph as well, here on the CPU.
    """
    original = load_bundle(bundle)
    shutil.copytree(bundle, folder)
    summary = write_cuda(bundle, folder / CUDA_MODEL)
    copy = write_manifest(folder, original.manifest)
    verify_golden(copy, open_session(folder / CUDA_MODEL))
    return summary


def write_table(documentation: Path, version: str) -> None:
    """Make :data:`TABLE` anew, one operator a line."""
    table = read_documentation(documentation.read_text(), version)
    rows = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(entries)}" for name, entries in sorted(table["operators"].items())
    )
    head = "\n".join(f" {json.dumps(key)}: {json.dumps(table[key])}," for key in ("source", "version"))
    TABLE.write_text(f'{{\n{head}\n "operators": {{\n{rows}\n }}\n}}\n')


def read_documentation(text: str, version: str) -> KernelTable:
    """Take the standard operators of the CUDA provider out of onnxruntime's ``docs/OperatorKernels.md``."""
    section = text.partition(_SECTION)[2].partition("<a name=")[0]
    operators: dict[str, list[Kernel]] = {}
    operator = inputs = ""
    for line in section.splitlines():
        if "Operator Domain" in line and "ai.onnx" not in line:
            break  # operators of onnxruntime's own
        row = _ROW.match(line)
        if row is None:
            continue
        operator = row["operator"] or operator
        inputs = row["inputs"] or inputs
        opsets = [int(number) for number in re.findall(r"\d+", row["opsets"])]
        until = None if row["opsets"].endswith("+") else opsets[-1]
        operators.setdefault(operator, []).append(
            {"since": opsets[0], "until": until, "types": _types_of(row["types"], inputs)}
        )
    source = "onnxruntime docs/OperatorKernels.md, CUDAExecutionProvider"
    return {"source": source, "version": version, "operators": operators}


def _types_of(constraints: str, inputs: str) -> list[str]:
    """Element types of the constraint called T, the main one, or else of that of the first input."""
    first = re.search(r"\*in\* \w+:\*\*(\w+)\*\*", inputs)
    types = dict(re.findall(r"\*\*(\w+)\*\* = ((?:tensor\(\w+\)(?:, )?)+)", constraints))
    chosen = types.get("T") or types.get(first[1] if first else "", "")
    return sorted(re.findall(r"tensor\((\w+)\)", chosen))
