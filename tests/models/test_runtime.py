"""Sessions are opened from bytes that were hashed, and from nothing besides; nobody is told of them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from nightjar_alerts.models.bundle import sha256_of
from nightjar_alerts.models.runtime import GraphError, open_session, run, run_within

FLOAT = TensorProto.FLOAT


def graph(folder: Path, external: str = "") -> Path:
    """A graph that multiplies by a matrix, which it keeps in a file of its own where one is named."""
    weights = numpy_helper.from_array(np.full((600, 2), 3.0, np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, n]) for name, n in (("x", 600), ("y", 2)))
    network = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    model = helper.make_model(network, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=bool(external), location=external or None, size_threshold=0)
    return path


@pytest.mark.parametrize(
    "module",
    [
        "nightjar_alerts.models.runtime",
        "nightjar_alerts.core.load",
        "nightjar_alerts.training.export.weights",
    ],
)
def test_the_runtime_reports_to_nobody(module: str, tmp_path: Path) -> None:
    """Left to itself, onnxruntime keeps an identifier of the machine in its user's home and sends reports."""
    mute = ("CI", "ORT_", "XDG_", "GITHUB_", "TF_BUILD")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(mute)}
    command = [sys.executable, "-c", f"import {module}; import os; print(os.environ['ORT_DISABLE_TELEMETRY'])"]
    environment |= {"HOME": str(tmp_path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert ended.stdout == "1\n"
    assert not list(tmp_path.rglob("*onnxruntime*"))


def test_a_graph_is_opened_from_its_bytes(tmp_path: Path) -> None:
    path = graph(tmp_path)
    session = open_session(path, sha256=sha256_of(path))
    path.unlink()
    assert run(session, {"x": np.ones((1, 600), np.float32)})["y"].tolist() == [[1800.0, 1800.0]]


def test_a_graph_that_was_exchanged_after_its_hash_was_taken_is_refused(tmp_path: Path) -> None:
    path = graph(tmp_path)
    digest = sha256_of(path)
    path.write_bytes(path.read_bytes() + b"\x12\x00")
    with pytest.raises(GraphError, match="not the file that was verified"):
        open_session(path, sha256=digest)


@pytest.mark.parametrize("here", [True, False])
def test_weights_beside_the_graph_are_refused(tmp_path: Path, here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """External weights lie outside the manifest's hashes: exchanging them would exchange the model."""
    path = graph(tmp_path, external="weights.bin")
    assert (tmp_path / "weights.bin").exists()
    if here:
        monkeypatch.chdir(tmp_path)
    with pytest.raises(GraphError, match="which no hash covers"):
        open_session(path)


def test_a_run_without_end_is_interrupted(tmp_path: Path) -> None:
    """A graph without end would keep every other bundle from being loaded, and the process from ending."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["going_on"], ["go_on"]), helper.make_node("Identity", ["last"], ["next"])],
        "body",
        [value("turn", TensorProto.INT64, []), value("going_on", TensorProto.BOOL, []), value("last", FLOAT, [1])],
        [value("go_on", TensorProto.BOOL, []), value("next", FLOAT, [1])],
    )
    node = helper.make_node("Loop", ["", "", "x"], ["y"], body=body)
    endless = helper.make_graph([node], "endless", [value("x", FLOAT, [1])], [value("y", FLOAT, [1])])
    model = helper.make_model(endless, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, tmp_path / "model.onnx")
    session, inputs = open_session(tmp_path / "model.onnx"), {"x": np.zeros(1, np.float32)}
    with pytest.raises(TimeoutError, match=r"longer than 0\.1 s"):
        run_within(0.1, session, inputs)
