"""Read weights from a bundle, to continue training without a run folder, or to export them again.

Notable: the exporter keeps most names; the others are identified by use, by shape, and by the order in
the graph. Auxiliary heads are not in the graph and stay random; transfers ignore heads. The result is verified by the
bundle's golden outputs.

    nightjar-train makers unpack tests/assets/astro-moe-elasticc-1.2.0 runs/unpacked

:func:`export_again` traces weights, calibration, novelty and trees with the current exporter, and compares the new
graph with the bundle's golden outputs::

    nightjar-train makers export-again models/pretrained/astro-moe-elasticc/3.1.1 build/again
"""

import hashlib
import re
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor, nn

from nightjar_alerts.models.bundle import (
    CUDA_MODEL,
    MANIFEST,
    BundleError,
    load_bundle,
    pretrained_bundles,
    read_golden,
    verify_golden,
    write_golden,
    write_manifest,
)
from nightjar_alerts.models.common import write_atomic
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.networks.network import NetworkOutput
from nightjar_alerts.models.networks.parts.trees import BoostedTrees
from nightjar_alerts.models.networks.zoo import build
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.confidence.novelty import NoveltyScore, OutlierScore
from nightjar_alerts.training.export.describe import output_spec
from nightjar_alerts.training.export.functions import inlined
from nightjar_alerts.training.export.graph import walk, write_graph
from nightjar_alerts.training.export.served import AXES, Ensembled, ServedNetwork
from nightjar_alerts.training.fit.checkpoints import BEST, CONFIG, DataSource, RunConfig, RunError, save_weights
from nightjar_alerts.training.fit.train import Pretrained, weights_of_run
from nightjar_alerts.training.fit.trees.forest import forest_in
from nightjar_alerts.training.recipes.schema import Recipe

PREFIX: Final = "network."
NOVELTY: Final = "novelty."
TOLERANCE: Final = 1e-4
UNSERVED: Final = ("head_lc.", "head_tab.", "head_statistics.")
_BIAS: Final = re.compile(r"select_\d+")  # the statistics have tables named select_scatter_...

Array = NDArray[Any]


def read_network(path: Path) -> tuple[nn.Module, Recipe]:
    """Build the network of a classifier's bundle with the weights of its graph, in evaluation mode.

    Raises
    ------
    BundleError
        If the bundle is altered, a weight is missing in its graph, or the golden embeddings are not reproduced.
    """
    bundle = load_bundle(path)
    recipe = Recipe.model_validate(bundle.manifest.recipe)
    if recipe.network.architecture == "python":  # a bundle, which anybody may have made, imports no code
        raise BundleError(f"{path}: its network is not part of Nightjar; use the run folder that it was exported from")
    network = build(recipe.network, recipe.task)
    weights = _weights(onnx.load(bundle.model))
    own = network.state_dict()
    missing = [name for name in own if name not in weights and not name.startswith(UNSERVED)]
    if missing:
        raise BundleError(f"{path}: the graph does not contain {', '.join(missing)}")
    state = {name: torch.from_numpy(weights[name].copy()).reshape(own[name].shape) for name in own if name in weights}
    network.load_state_dict(own | state)
    _check_embeddings(network.eval(), path)
    return network, recipe


def unpack(path: Path, folder: Path) -> Path:
    """Write the weights of a bundle as a run folder for ``fit --pretrained``, and return the folder."""
    network, recipe = read_network(path)
    graph = load_bundle(path).model
    folder.mkdir(parents=True, exist_ok=True)
    source = DataSource(name=graph.name, sha256=hashlib.sha256(graph.read_bytes()).hexdigest(), objects=0)
    write_atomic(folder / CONFIG, RunConfig(recipe=recipe, data=source).model_dump_json(indent=2).encode())
    save_weights(folder / BEST, network.state_dict())
    return folder


def initial_weights(source: str) -> Pretrained:
    """Return the weights of a run folder, a bundle's folder or a bundle of the package by name, for ``--pretrained``.

    Raises
    ------
    RunError, BundleError
        If there is no such run or bundle, or its weights cannot be read.
    """
    bundles = pretrained_bundles()
    folder = bundles.get(source, Path(source))
    if (folder / CONFIG).exists():
        return weights_of_run(folder)
    if not (folder / MANIFEST).exists():
        raise RunError(f"{source} is neither a run folder, nor a bundle's folder, nor one of {', '.join(bundles)}")
    bundle = load_bundle(folder)
    network, _ = read_network(folder)
    return Pretrained(f"{bundle.manifest.name} {bundle.manifest.version}", bundle.sha256, network.state_dict())


def export_again(path: Path, folder: Path) -> dict[str, Any]:
    """Copy a classifier's bundle to a new folder with its weights traced by the current exporter.

    New outputs are added to the manifest and the golden vectors.

    Returns
    -------
    The number of ``nodes`` of both graphs, and the largest difference between the golden outputs.

    Raises
    ------
    BundleError
        If the weights cannot be read, or the golden outputs are not reproduced.
    """
    bundle = load_bundle(path)
    served = read_served(path)
    shutil.copytree(path, folder, ignore=shutil.ignore_patterns(CUDA_MODEL))  # it was made from the old graph
    graph = folder / bundle.model.name
    trace(served, graph)
    inputs, outputs = read_golden(path)
    values = run(open_session(graph), inputs)
    write_golden(folder, inputs, values | outputs)
    added = tuple(output_spec(name, value) for name, value in values.items() if name not in outputs)
    copy = write_manifest(folder, bundle.manifest.model_copy(update={"outputs": (*bundle.manifest.outputs, *added)}))
    nodes = [_nodes(onnx.load(file)) for file in (bundle.model, graph)]
    return {"nodes_before": nodes[0], "nodes": nodes[1], "furthest": verify_golden(copy, open_session(graph))}


def _nodes(model: onnx.ModelProto) -> int:
    """Count the operators of a model, including those of functions, without constants."""
    return sum(node.op_type != "Constant" for node in walk(inlined(model).graph))


def read_served(path: Path) -> ServedNetwork:
    """Build the served module of a classifier's bundle: network, calibration, novelty and trees."""
    network, _ = read_network(path)
    bundle = load_bundle(path)
    model = onnx.load(bundle.model)
    described = bundle.manifest.ensemble
    ensemble = None
    if described is not None:
        forest = forest_in(model, _statistics(network, path))
        assert forest is not None
        ensemble = Ensembled(BoostedTrees(forest), described)
    served = ServedNetwork(network, bundle.manifest.calibration, ensemble=ensemble)
    served.novelty = _novelty(model)
    return served.eval()


def _statistics(network: nn.Module, path: Path) -> int:
    """Return the number of statistics of a network, which are the first features of trees."""
    names: tuple[str, ...] = network.input_names  # type: ignore[assignment]  # a module's attributes are untyped
    inputs, _ = read_golden(path)
    with torch.no_grad():
        output: NetworkOutput = network(*(torch.from_numpy(inputs[name]) for name in names))
    assert output.statistics is not None
    return output.statistics.value_BK.shape[1]


def trace(served: ServedNetwork, path: Path) -> None:
    """Write the ONNX graph of a served module."""
    arguments = served.arguments(random_inputs(3, 40, metadata=True))
    with torch.no_grad():
        outputs = list(served.outputs(*arguments.values()))
    conditions = served.missing_input_outputs(), served.row_subset_modules(), served.native_kernels()
    write_graph(served, arguments, AXES, outputs, path, *conditions)


def _novelty(model: onnx.ModelProto) -> nn.Module | None:
    """Read the novelty score of a graph, whose tables have the names of the module's buffers."""
    tensors = {
        tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy()) for tensor in model.graph.initializer
    }
    tables = {name.removeprefix(NOVELTY): table for name, table in tensors.items() if name.startswith(NOVELTY)}
    if not tables:
        return None
    return NoveltyScore.from_tables(tables) if "distance_Q" in tables else OutlierScore.from_tables(tables)


def _weights(model: onnx.ModelProto) -> dict[str, Array]:
    """Return every weight in the graph by its name in the network."""
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    named = {name.removeprefix(PREFIX): value for name, value in tensors.items() if name.startswith(PREFIX)}
    named |= _sliced_biases(model, tensors, named)
    return named | _input_experts(tensors, named) | _expert_biases(tensors, named) | _tabular(model, tensors)


def _sliced_biases(model: onnx.ModelProto, tensors: dict[str, Array], named: dict[str, Array]) -> dict[str, Array]:
    """Return biases that the graph has in parts, one for each slice of a weight, in the order of the slices."""
    sliced = {node.output[0]: node.input[0] for node in walk(model.graph) if node.op_type == "Slice"}
    parts: dict[str, list[Array]] = {}
    for node in walk(model.graph):
        weight = sliced.get(node.input[1], "") if node.op_type == "Gemm" and len(node.input) == 3 else ""
        if weight.startswith(PREFIX) and node.input[2] in tensors:
            parts.setdefault(weight.removeprefix(PREFIX).replace("weight", "bias"), []).append(tensors[node.input[2]])
    return {name: np.concatenate(part) for name, part in parts.items() if name not in named}


def _input_experts(tensors: dict[str, Array], named: dict[str, Array]) -> dict[str, Array]:
    """Return the weights of the input experts, which the exporter merges into one matrix."""
    gate, cls = named.get("embed.router.gate.weight"), named.get("light_curve.cls_1D")
    if gate is None or cls is None:
        return {}
    experts, inputs = gate.shape
    width = cls.shape[1]
    shape = (experts * inputs, width)
    view = [value for name, value in tensors.items() if name.startswith("view") and value.shape == shape]
    return {"embed.weight_EID": view[0].reshape(experts, inputs, width)} if len(view) == 1 else {}


def _expert_biases(tensors: dict[str, Array], named: dict[str, Array]) -> dict[str, Array]:
    """Return the biases of the experts; the graph has one tensor each, in the order of blocks, experts and layers."""
    numbered = sorted(
        (name for name in tensors if _BIAS.fullmatch(name) and tensors[name].ndim == 1),
        key=lambda name: int(name.split("_")[1]),
    )
    biases, stacks = iter([tensors[name] for name in numbered]), dict[str, Array]()
    for name in sorted(key for key in named if key.endswith("feed_forward.w1_EDF")):
        pairs = [(next(biases), next(biases)) for _ in range(named[name].shape[0])]
        stacks[name.replace("w1_EDF", "b1_EF")] = np.stack([first for first, _ in pairs])
        stacks[name.replace("w1_EDF", "b2_ED")] = np.stack([second for _, second in pairs])
    return stacks


def _tabular(model: onnx.ModelProto, tensors: dict[str, Array]) -> dict[str, Array]:
    """Return scales and weights of the metadata columns, which are four tables used by Gather nodes, in this order."""
    names = ("quantiles.x_CQ", "quantiles.score_CQ", "weight_CD", "bias_CD")
    gathered = dict.fromkeys(
        node.input[0] for node in walk(model.graph) if node.op_type.startswith("Gather") and node.input[0] in tensors
    )
    columns = [node.type.tensor_type.shape.dim[1].dim_value for node in model.graph.input if node.name == "metadata"]
    tables = [tensors[name] for name in gathered if tensors[name].ndim == 2 and tensors[name].dtype == np.float32]
    tables = [table for table in tables if [len(table)] == columns]
    if len(tables) != len(names):
        return {}
    return {f"metadata.{name}": table for name, table in zip(names, tables, strict=True)}


def _check_embeddings(network: nn.Module, path: Path) -> None:
    """Raise BundleError unless the network reproduces the golden embeddings."""
    inputs, outputs = read_golden(path)
    names: tuple[str, ...] = network.input_names  # type: ignore[assignment]  # a module's attributes are untyped
    arguments: list[Tensor] = [torch.from_numpy(inputs[name]) for name in names]
    with torch.no_grad():
        embedding_BE = network(*arguments).embedding_BE.numpy()
    largest = float(np.abs(embedding_BE - outputs["embedding"]).max())
    if not largest <= TOLERANCE * max(1.0, float(np.abs(outputs["embedding"]).max())):
        raise BundleError(f"{path}: embeddings of the weights read differ from the golden ones by {largest:.2e}")


def random_inputs(batch: int, length: int, *, metadata: bool = False, seed: int = 0) -> dict[str, Array]:
    """Return light curves of noise over two years as inputs of a graph, with all metadata columns or none."""
    rng = np.random.default_rng(seed)
    shape = (batch, length)
    time = np.sort(rng.uniform(0, 700, shape), axis=1)
    columns = rng.uniform(0, 1, (batch, len(METADATA_COLUMNS))) if metadata else np.nan
    numbers = {
        "flux": rng.normal(50, 40, shape),
        "flux_err": rng.uniform(2, 8, shape),
        "time": time - time[:, :1],
        "metadata": np.broadcast_to(columns, (batch, len(METADATA_COLUMNS))),
    }
    bands, masks = {"band": rng.integers(0, 6, shape)}, {"mask": np.ones(shape, dtype=bool)}
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in numbers.items()} | bands | masks
