"""The sparse mixture against its dense twin: the same network with one feed-forward block in place of the experts.

Both graphs run bare, one thread, turn and turn about, on batches of equal length; the ratio is taken within a round.

What a graph costs beside the one it replaces: the weights of one bundle, as it holds them and exported anew.

The bundle's weights are read back from its graph (``training.export.weights``) and traced again by the exporter of
today; both graphs answer the same light curves, one thread, turn and turn about, and every ratio is taken within a
round, of processor time. Before that their probabilities are compared on thousands of ragged light curves: a cheaper
graph with other answers would say nothing. A bundle of today may stand beside, as it is.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnx import numpy_helper

from deploy.bench.report import Numbers, spread
from models.bundle import Manifest, load_bundle
from models.lightcurve import LightCurve, RaggedBatch, featurise
from models.runtime import Run, open_session, run, session_options
from training.export.confidence import NoveltyScore
from training.export.graph import write_graph
from training.export.profile import profile_graph, random_inputs
from training.export.served import AXES, ServedNetwork
from training.export.weights import read_network

TWIN_SHAPES = ((1, 50), (16, 128), (64, 32))  # curves, points
TWIN_ROUNDS = 7
SECONDS_PER_ARM = 0.5


def measure_twin(bundle: Path, twin: Path, say: Callable[[str], None]) -> Numbers:
    """Keys ``twin.ratio.bB_lL``: time of the mixture over time of the dense twin."""
    mixture, dense = load_bundle(bundle), load_bundle(twin)
    sessions = open_session(mixture.model), open_session(dense.model)
    numbers: Numbers = {}
    for size, length in TWIN_SHAPES:
        feeds = [_twin_batch(size, length, one.manifest) for one in (mixture, dense)]
        times = [[_twin_seconds(*arm) for arm in zip(sessions, feeds, strict=True)] for _ in range(TWIN_ROUNDS)]
        numbers[f"twin.ratio.b{size}_l{length}"] = spread([moe / flat for moe, flat in times])
        say(f"{size} curves of {length} points: {1e3 * times[-1][0]:.2f} ms, dense twin {1e3 * times[-1][1]:.2f} ms")
    return numbers


def _twin_batch(size: int, length: int, manifest: Manifest) -> Run:
    rng = np.random.default_rng(size * length)
    curves = [
        LightCurve.from_columns(
            60_000.0 + np.arange(length), rng.normal(0, 5_000, length), np.full(length, 300.0),
            np.arange(length) % 6, np.ones(length, dtype=bool),
        )
        for _ in range(size)
    ]  # fmt: skip
    tokens = [
        featurise(c, manifest.limits, manifest.flux_unit, manifest.metadata_columns, manifest.band_map) for c in curves
    ]
    return RaggedBatch.collate(tokens).padded()


def _twin_seconds(session: ort.InferenceSession, feed: Run) -> float:
    """Mean seconds of a run."""
    run(session, feed)
    runs, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < SECONDS_PER_ARM:
        run(session, feed)
        runs += 1
    return elapsed / max(runs, 1)


SHAPES: Final = {"lone30": (1, 30), "lone100": (1, 100), "b32_l60": (32, 60), "b8_l390": (8, 390)}
ROUNDS: Final = 9
SECONDS: Final = 0.3  # of processor time, of each graph in a round
COMPARED: Final = 2000
NEAR: Final = 1e-5  # probabilities that count as equal

Arrays = dict[str, NDArray[Any]]


def measure(bundle: Path, shipped: Path | None, say: Callable[[str], None]) -> Numbers:
    """Keys ``lean.<shape>_vs_<version>``, ``lean.nodes``, ``lean.products_b32_l60`` and how far the answers differ;
    with ``lean.shipped_<shape>`` where another bundle stands beside.
    """
    version = load_bundle(bundle).manifest.version.replace(".", "_")
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "lean.onnx"
        export_again(bundle, graph)
        old, new = open_session(load_bundle(bundle).model), open_session(graph)
        furthest, other = differences(old, new)
        numbers: Numbers = {
            "lean.furthest": furthest,
            "lean.share_of_other_answers": other,
            "lean.nodes": nodes_run(graph),
        }
        for name, ratio in _ratios(old, new, say).items():
            numbers[f"lean.{name}_vs_{version}"] = spread(ratio)
        told = profile_graph(graph, 32, 60, rounds=15)
        numbers["lean.products_b32_l60"] = told["share_of_products"]
    if shipped is not None:
        for name, ratio in _ratios(old, open_session(load_bundle(shipped).model), say).items():
            numbers[f"lean.shipped_{name}"] = spread(ratio)
    return numbers


def export_again(bundle: Path, path: Path) -> None:
    """Trace the weights of a classifier's bundle, with its calibration and its novelty, once more."""
    held = load_bundle(bundle)
    network, _ = read_network(bundle)
    served = ServedNetwork(network, held.manifest.calibration)
    served.novelty = _novelty(held.model)
    arguments = served.eval().arguments(random_inputs(3, 40, metadata=True))
    with torch.no_grad():
        outputs = list(served.outputs(*arguments.values()))
    write_graph(served, arguments, AXES, outputs, path, served.answers_to_nothing())


def _novelty(graph: Path) -> NoveltyScore | None:
    """Read the score that a graph holds, whose tables keep their names."""
    tables = [tensor for tensor in onnx.load(graph).graph.initializer if tensor.name.startswith("novelty.")]
    if not tables:
        return None
    score = NoveltyScore.__new__(NoveltyScore)
    torch.nn.Module.__init__(score)
    for tensor in tables:
        score.register_buffer(
            tensor.name.removeprefix("novelty."), torch.from_numpy(numpy_helper.to_array(tensor).copy())
        )
    return score


def nodes_run(graph: Path) -> int:
    """Operations of a graph as onnxruntime runs it; what stands under a condition counts as one."""
    with tempfile.TemporaryDirectory() as folder:
        options = session_options(1)
        options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        return len(onnx.load(options.optimized_model_filepath).graph.node)


def differences(old: ort.InferenceSession, new: ort.InferenceSession) -> tuple[float, float]:
    """Largest difference of probabilities over ragged light curves, and the share that differs by more than
    :data:`NEAR`: a tie of experts or of periods that rounding decides.
    """
    found: list[NDArray[np.float64]] = []
    rng = np.random.default_rng(0)
    while sum(len(some) for some in found) < COMPARED:
        size, length = int(rng.choice([1, 4, 16])), int(rng.choice([3, 12, 40, 120]))
        inputs = ragged(random_inputs(size, length, metadata=bool(rng.integers(2)), seed=len(found)), rng)
        first, second = (_ask(session, inputs, ["probabilities"])[0] for session in (old, new))
        found.append(np.abs(first - second).max(1))
    each = np.concatenate(found)
    return float(each.max()), float(np.mean(each > NEAR))


def ragged(inputs: Arrays, rng: np.random.Generator) -> Arrays:
    """Cut light curves to unequal lengths; the first keeps its own. Every third has no metadata."""
    size, length = inputs["mask"].shape
    lengths = rng.integers(1, length + 1, size)
    lengths[0] = length
    mask = np.arange(length) < lengths[:, None]
    cut = {name: np.where(mask, inputs[name], 0).astype(inputs[name].dtype) for name in ("flux", "time", "band")}
    metadata = inputs["metadata"].copy()
    metadata[::3] = np.nan
    errors = np.where(mask, inputs["flux_err"], 1).astype(np.float32)
    return {**inputs, **cut, "mask": mask, "flux_err": errors, "metadata": metadata}


def _ratios(old: ort.InferenceSession, new: ort.InferenceSession, say: Callable[[str], None]) -> dict[str, list[float]]:
    """Time of the new graph over that of the old, by shape and round; no metadata, as in alerts."""
    ratios: dict[str, list[float]] = {}
    for name, (size, length) in SHAPES.items():
        inputs = random_inputs(size, length)
        times = [[_seconds(session, inputs) for session in (old, new)] for _ in range(ROUNDS)]
        ratios[name] = [after / before for before, after in times]
        say(f"{name}: {1e3 * times[-1][0]:.2f} ms, anew {1e3 * times[-1][1]:.2f} ms")
    return ratios


def _seconds(session: ort.InferenceSession, inputs: Arrays) -> float:
    """Mean processor seconds of a run."""
    _ask(session, inputs)
    runs, started = 0, time.process_time()
    while (spent := time.process_time() - started) < SECONDS:
        _ask(session, inputs)
        runs += 1
    return spent / max(runs, 1)


def _ask(session: ort.InferenceSession, inputs: Arrays, outputs: list[str] | None = None) -> list[NDArray[Any]]:
    found: list[NDArray[Any]] = session.run(outputs, {node.name: inputs[node.name] for node in session.get_inputs()})
    return found
