"""Native kernels are used as configured, and required ones must be available."""

from pathlib import Path
from shutil import copytree

import numpy as np
import onnx
import pytest

pytest.importorskip("onnx", reason="onnx is missing: pip install 'nightjar-alerts[train]'")

from nightjar_alerts.core.adapter import Adapter
from nightjar_alerts.core.load import LoadedModel, check_bundle, load_model
from nightjar_alerts.core.warmup import BatchShape, dummy_batch
from nightjar_alerts.models import native
from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, GOLDEN_TOLERANCE, MODEL, load_bundle, write_manifest
from nightjar_alerts.models.runtime import ProviderError
from nightjar_alerts.training.export.functions import ROUTING, STATISTICS, add_statistics, inlined

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default bundle with its statistics set apart."""
    path = tmp_path_factory.mktemp("native") / "bundle"
    copytree(DEFAULT_BUNDLE, path)
    model = inlined(onnx.load(path / MODEL))
    add_statistics(model, "network.features", {"bands": 6, "lags": 1, "periods": 2, "shapes": 2})
    onnx.save(model, path / MODEL)
    write_manifest(path, load_bundle(DEFAULT_BUNDLE).manifest)
    return path


@pytest.fixture
def built(native_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "BUILT", native_library.parent)


def loaded(path: Path, kernels: native.Native) -> LoadedModel:
    return load_model(path, native=kernels)


@pytest.mark.usefixtures("built")
def test_load_model_lists_its_native_kernels_with_equal_results(bundle: Path) -> None:
    with_kernels, without = loaded(bundle, "on"), loaded(bundle, "off")
    assert (with_kernels.kernels, without.kernels) == ((STATISTICS,), ())
    assert with_kernels.golden_error < GOLDEN_TOLERANCE
    adapter = Adapter(with_kernels.bundle.manifest)
    inputs = adapter.assemble(dummy_batch(adapter, BatchShape(8, 40, 20)))
    expected = without.graph(inputs)["probabilities"]
    np.testing.assert_allclose(with_kernels.graph(inputs)["probabilities"], expected, atol=1e-4)


@pytest.mark.usefixtures("built")
def test_load_model_graph_without_native_operators_runs(tiny_bundle: Path) -> None:
    assert loaded(tiny_bundle, "on").kernels == (ROUTING,)


def test_load_model_required_kernels_missing_raises(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "BUILT", tmp_path)
    with pytest.raises(ProviderError, match="no native kernels for this machine"):
        loaded(bundle, "on")
    assert check_bundle(bundle, "cpu", native="auto")[0].kernels == ()
