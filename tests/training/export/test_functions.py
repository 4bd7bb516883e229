"""Parts of a graph that kernels can take over: functions that mean the same nodes, of the bundles that are shipped."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from deploy.bench.lean import ragged
from nightjar_alerts.models.bundle import (
    DEFAULT_BUNDLE,
    GOLDEN_TOLERANCE,
    SURVEY_BUNDLES,
    load_bundle,
    verify_golden,
    write_manifest,
)
from nightjar_alerts.models.native import held_by
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.export.cuda import cuda_graph, without_kernel
from nightjar_alerts.training.export.functions import STATISTICS, add_statistics, inlined
from nightjar_alerts.training.export.graph import walk
from nightjar_alerts.training.export.profile import profile_graph, random_inputs
from nightjar_alerts.training.export.quantize import as_int8

pytestmark = pytest.mark.slow

MODULE = "network.told"
ATTRIBUTES = {"bands": 6, "lags": 1, "periods": 2, "shapes": 1}


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
    assert held_by(after) == (STATISTICS,)


def test_nodes_come_back_as_they_were(graph: Path) -> None:
    model = inlined(onnx.load(graph))
    assert not model.functions
    assert {entry.domain for entry in model.opset_import} <= {"", "ai.onnx.ml"}
    kinds = sorted(node.op_type for node in walk(model.graph) if node.op_type != "Constant")
    expected = sorted(node.op_type for node in walk(nodes_alone(DEFAULT_BUNDLE).graph) if node.op_type != "Constant")
    assert abs(len(kinds) - len(expected)) <= 2  # the shape of an input, which is asked for on both sides


def test_a_run_has_no_more_operations_for_it(graph: Path) -> None:
    before, after = (profile_graph(path, 1, 30, rounds=2) for path in (load_bundle(DEFAULT_BUNDLE).model, graph))
    assert after["nodes"] == before["nodes"]
    assert {name for name in after["modules"] if "told" in name} == {f"{MODULE}.{part}" for part in PARTS}


PARTS = ("points", "curves", "lags", "periods", "period", "shapes")


def test_kernels_take_the_place_of_the_nodes(graph: Path, native_library: Path) -> None:
    told = profile_graph(graph, 1, 30, rounds=2, kernels=native_library)
    assert told["operators"][STATISTICS]["nodes"] == 1
    assert told["nodes"] < 600


@pytest.mark.parametrize("bundle", [DEFAULT_BUNDLE, SURVEY_BUNDLES["ztf"]], ids=["elasticc", "ztf"])
def test_kernels_reproduce_the_golden_outputs(bundle: Path, native_library: Path, tmp_path: Path) -> None:
    model = nodes_alone(bundle)
    assert add_statistics(model, MODULE, ATTRIBUTES)
    held = load_bundle(bundle)
    onnx.save(model, tmp_path / "model.onnx")
    for name in held.manifest.files.keys() - {"model.onnx"}:
        (tmp_path / name).write_bytes((bundle / name).read_bytes())
    made = write_manifest(tmp_path, held.manifest)
    assert verify_golden(made, open_session(made.model, kernels=native_library)) < GOLDEN_TOLERANCE


def test_kernels_answer_as_the_nodes_do(graph: Path, native_library: Path) -> None:
    rng, differ = np.random.default_rng(1), list[float]()
    nodes, kernels = open_session(graph), open_session(graph, kernels=native_library)
    for seed in range(24):
        inputs = ragged(random_inputs(8, int(rng.choice([3, 12, 40, 120])), seed=seed), rng)
        told = [run(session, inputs)["probabilities"] for session in (nodes, kernels)]
        differ += np.abs(told[0] - told[1]).max(1).tolist()
    assert np.mean(np.array(differ) > 1e-5) <= 0.01


def test_graphs_are_changed_with_their_functions_taken_apart(graph: Path, tmp_path: Path) -> None:
    assert without_kernel(cuda_graph(onnx.load(graph))) == []
    small = open_session(as_int8(graph, tmp_path / "small.onnx"))
    assert np.isfinite(run(small, random_inputs(2, 20))["probabilities"]).all()


def test_a_network_without_statistics_has_no_function(tiny_bundle: Path) -> None:
    model = onnx.load(tiny_bundle / "model.onnx")
    assert not model.functions
    assert not add_statistics(model, MODULE, ATTRIBUTES)
    assert not held_by(open_session(tiny_bundle / "model.onnx"))


def test_more_bands_than_a_kernel_knows_stay_nodes() -> None:
    assert not add_statistics(nodes_alone(DEFAULT_BUNDLE), MODULE, ATTRIBUTES | {"bands": 33})
