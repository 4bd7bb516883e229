"""Functions that native kernels can replace, in the graphs of the shipped bundles."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from nightjar_alerts.models.bundle import (
    DEFAULT_BUNDLE,
    GOLDEN_TOLERANCE,
    load_bundle,
    verify_golden,
    write_manifest,
)
from nightjar_alerts.models.native import native_operators
from nightjar_alerts.models.runtime import open_session, run, session_options
from nightjar_alerts.routing import SURVEY_BUNDLES
from nightjar_alerts.training.export.cuda import cuda_graph, without_kernel
from nightjar_alerts.training.export.functions import ROUTING, STATISTICS, add_statistics, inlined
from nightjar_alerts.training.export.graph import walk
from nightjar_alerts.training.export.weights import random_inputs

pytestmark = pytest.mark.slow

MODULE = "network.features"
ATTRIBUTES = {"bands": 6, "lags": 1, "periods": 2, "shapes": 2}


def ragged(inputs: dict[str, NDArray[Any]], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
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


def nodes_alone(bundle: Path) -> onnx.ModelProto:
    return inlined(onnx.load(load_bundle(bundle).model))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graph of the default bundle with its statistics set apart, whether or not they were."""
    model = nodes_alone(DEFAULT_BUNDLE)
    assert add_statistics(model, MODULE, ATTRIBUTES)
    onnx.checker.check_model(model, full_check=True)
    path = tmp_path_factory.mktemp("functions") / "model.onnx"
    onnx.save(model, path)
    return path


def test_a_function_means_the_nodes_that_it_was_made_of(graph: Path) -> None:
    before, after = open_session(load_bundle(DEFAULT_BUNDLE).model), open_session(graph)
    inputs = ragged(random_inputs(5, 30), np.random.default_rng(0))
    told = run(after, inputs)
    for name, value in run(before, inputs).items():
        np.testing.assert_array_equal(told[name], value)
    assert native_operators(after) == (STATISTICS,)


def test_nodes_come_back_as_they_were(graph: Path) -> None:
    model = inlined(onnx.load(graph))
    assert not model.functions
    assert {entry.domain for entry in model.opset_import} <= {"", "ai.onnx.ml"}
    kinds = sorted(node.op_type for node in walk(model.graph) if node.op_type != "Constant")
    expected = sorted(node.op_type for node in walk(nodes_alone(DEFAULT_BUNDLE).graph) if node.op_type != "Constant")
    assert abs(len(kinds) - len(expected)) <= 2  # the shape of an input, which is asked for on both sides


def test_statistics_kernel_takes_the_place_of_the_function(graph: Path, native_library: Path, tmp_path: Path) -> None:
    options = session_options(native_library)
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "run")
    session = ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    inputs = random_inputs(1, 30)
    session.run(None, {node.name: inputs[node.name] for node in session.get_inputs()})
    events = json.loads(Path(session.end_profiling()).read_text())
    operators = [event["args"]["op_name"] for event in events if event["name"].endswith("_kernel_time")]
    assert operators.count(STATISTICS) == 1
    assert len(operators) < 600


@pytest.mark.parametrize(
    ("bundle", "shapes"), [(DEFAULT_BUNDLE, 2), (SURVEY_BUNDLES["ztf"], 1)], ids=["elasticc", "ztf"]
)
def test_kernels_reproduce_the_golden_outputs(bundle: Path, shapes: int, native_library: Path, tmp_path: Path) -> None:
    model = nodes_alone(bundle)
    assert add_statistics(model, MODULE, ATTRIBUTES | {"shapes": shapes})
    held = load_bundle(bundle)
    onnx.save(model, tmp_path / "model.onnx")
    for name in held.manifest.files.keys() - {"model.onnx"}:
        (tmp_path / name).write_bytes((bundle / name).read_bytes())
    made = write_manifest(tmp_path, held.manifest)
    assert verify_golden(made, open_session(made.model, kernels=native_library)) < GOLDEN_TOLERANCE


def test_kernels_equal_the_nodes(graph: Path, native_library: Path) -> None:
    rng, differ = np.random.default_rng(1), list[float]()
    nodes, kernels = open_session(graph), open_session(graph, kernels=native_library)
    for seed in range(24):
        inputs = ragged(random_inputs(8, int(rng.choice([3, 12, 40, 120])), seed=seed), rng)
        told = [run(session, inputs)["probabilities"] for session in (nodes, kernels)]
        differ += np.abs(told[0] - told[1]).max(1).tolist()
    assert np.mean(np.array(differ) > 1e-5) <= 0.01


def test_cuda_graph_of_a_graph_with_functions_has_kernels(graph: Path) -> None:
    assert without_kernel(cuda_graph(onnx.load(graph))) == []


def test_add_statistics_for_network_without_statistics_adds_no_function(tiny_bundle: Path) -> None:
    model = onnx.load(tiny_bundle / "model.onnx")
    assert not add_statistics(model, MODULE, ATTRIBUTES)
    assert native_operators(open_session(tiny_bundle / "model.onnx")) == (ROUTING,)


def test_functions_are_not_added_for_more_bands_than_a_kernel_supports() -> None:
    assert not add_statistics(nodes_alone(DEFAULT_BUNDLE), MODULE, ATTRIBUTES | {"bands": 33})
