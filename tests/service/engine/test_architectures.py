"""Networks of several architectures on onnxruntime: which bundles are served, and that each gets its inputs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from nightjar_alerts.core.adapter import Adapter
from nightjar_alerts.core.failures import InferenceFailed
from nightjar_alerts.core.load import check_bundle, load_model
from nightjar_alerts.core.warmup import LONGEST_DUMMY, BatchShape, dummy_batch, measure, warm_up_shapes
from nightjar_alerts.models.bundle import MODEL, Bundle, BundleError, write_golden, write_manifest
from nightjar_alerts.models.lightcurve import Limits
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.runtime import open_session, run
from support.graph_bundles import HISTORY, classifier_bundle

CLASSIFIERS: dict[str, tuple[Sequence[str], dict[str, Any]]] = {
    "all six inputs": ((*HISTORY, "metadata"), {"metadata_columns": METADATA_COLUMNS}),
    "two metadata columns": ((*HISTORY, "metadata"), {"metadata_columns": ("mwebv", "z_final")}),
    "no metadata": (HISTORY, {}),
    "no errors": (("flux", "time", "band", "mask"), {}),
    "one band, which it is not told": (("flux", "flux_err", "time", "mask"), {"bands": ("g",)}),
    "two bands": (HISTORY, {"bands": ("r", "g")}),
    "a wide embedding": (HISTORY, {"embedding_dim": 720}),
    "long histories": (HISTORY, {"limits": Limits(max_points_per_band=1024, pre_trigger_days=None)}),
    "another unit": (HISTORY, {"flux_unit": "FLUXCAL"}),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_load_model_serves_any_architecture(name: str, tmp_path: Path) -> None:
    inputs, changes = CLASSIFIERS[name]
    model = load_model(classifier_bundle(tmp_path, inputs, **changes).path)
    assert model.golden_error == 0
    adapter = Adapter(model.bundle.manifest)
    questions = dummy_batch(adapter, BatchShape(3, 30, 7))
    rows = adapter.split(model.graph(adapter.assemble(questions)), len(questions))
    assert [row["embedding"][0] for row in rows if not isinstance(row, InferenceFailed)] == [30, 7, 7]


def test_load_model_network_with_fewer_bands_keeps_their_indices(tmp_path: Path) -> None:
    model = load_model(classifier_bundle(tmp_path, HISTORY, bands=("i",)).path)
    adapter = Adapter(model.bundle.manifest)
    [row] = adapter.split(model.graph(adapter.assemble(dummy_batch(adapter, BatchShape(1, 9, 0)))), 1)
    assert not isinstance(row, InferenceFailed)
    assert row["embedding"][4] == 3  # the mean band: i is the fourth of six


def test_check_bundle_times_every_shape(tmp_path: Path) -> None:
    assert len(check_bundle(classifier_bundle(tmp_path).path, "cpu")[1]) == 9


def altered(bundle: Bundle, **changes: Any) -> Path:
    return write_manifest(bundle.path, bundle.manifest.model_copy(update=changes)).path


def test_load_model_metadata_inputs_without_names_raise(tmp_path: Path) -> None:
    without, having = classifier_bundle(tmp_path / "a"), tmp_path / "b"
    classifier_bundle(having, (*HISTORY, "metadata"), metadata_columns=("mwebv",))
    with pytest.raises(BundleError, match="disagree on whether metadata"):
        load_model(altered(without, metadata_columns=("mwebv",)))
    bundle = classifier_bundle(tmp_path / "c", (*HISTORY, "metadata"), metadata_columns=("mwebv",))
    with pytest.raises(BundleError, match="disagree on whether metadata"):
        load_model(altered(bundle, metadata_columns=()))
    with pytest.raises(BundleError, match="does not run on the inputs of its manifest"):
        load_model(altered(bundle, metadata_columns=METADATA_COLUMNS))


def test_load_model_unknown_input_raises(tmp_path: Path) -> None:
    bundle = classifier_bundle(tmp_path)
    graph = onnx.load(bundle.model)
    graph.graph.input.append(onnx.helper.make_tensor_value_info("redshift", onnx.TensorProto.FLOAT, ["batch"]))
    onnx.save(graph, tmp_path / MODEL)
    adapter = Adapter(bundle.manifest)
    inputs = adapter.assemble(dummy_batch(adapter, BatchShape(2, 3, 3))) | {"redshift": np.zeros(2, np.float32)}
    session = open_session(tmp_path / MODEL)
    names = {node.name for node in session.get_inputs()}
    assert "redshift" in names
    write_golden(tmp_path, {name: inputs[name] for name in names}, run(session, inputs))
    with pytest.raises(BundleError, match="takes unknown inputs: redshift"):
        load_model(altered(bundle))


def test_load_model_outputs_of_another_width_raise(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="embedding of width 8"):
        load_model(altered(classifier_bundle(tmp_path / "c"), embedding_dim=8))


def test_measure_includes_long_histories_if_supported(tmp_path: Path) -> None:
    lengths = []
    adapter = Adapter(classifier_bundle(tmp_path, limits=Limits(max_points_per_band=1024)).manifest)

    def watched(inputs: dict[str, Any]) -> dict[str, Any]:
        lengths.append(inputs["mask"].shape[1])
        return inputs

    measure(watched, adapter, repeats=1, budget=0.0)
    assert max(lengths) == LONGEST_DUMMY
    assert max(shape.length for shape in warm_up_shapes(390)) == 384
