"""A real bundle on onnxruntime: verified, warmed up, with the same results in batches as alone."""

import asyncio
import json
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from nightjar_alerts.core.adapter import Adapter
from nightjar_alerts.core.load import LoadedModel, load_model
from nightjar_alerts.core.warmup import BatchShape, dummy_batch
from nightjar_alerts.models.bundle import GOLDEN_TOLERANCE, BundleError, load_bundle, write_manifest
from nightjar_alerts.models.lightcurve import RaggedBatch, featurise
from nightjar_alerts.models.runtime import OnnxGraph
from nightjar_alerts.service.engine.engine import Engine, EngineOptions
from nightjar_alerts.service.inference import Predictor
from nightjar_alerts.service.observe.metrics import Metrics
from support.curves import random_curve

LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233) * 4


@pytest.fixture(scope="module")
def model(tiny_bundle: Path) -> LoadedModel:
    return load_model(tiny_bundle)


def test_load_model_verifies_and_measures(model: LoadedModel) -> None:
    assert model.golden_error <= GOLDEN_TOLERANCE
    assert 0 < model.load_seconds < 10
    assert 1e-5 < model.cost.seconds(1, 50) < 1
    assert model.cost.seconds(16, 64) > 2 * model.cost.seconds(1, 64)


def test_load_model_altered_bundle_raises(tiny_bundle: Path, tmp_path: Path) -> None:
    copytree(tiny_bundle, tmp_path / "altered")
    manifest = json.loads((tmp_path / "altered" / "manifest.json").read_text())
    manifest["files"]["model.onnx"] = "0" * 64
    (tmp_path / "altered" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"model\.onnx"):
        load_model(tmp_path / "altered")


def test_load_model_manifest_with_other_outputs_raises(tiny_bundle: Path, tmp_path: Path) -> None:
    copytree(tiny_bundle, tmp_path / "other")
    bundle = load_bundle(tmp_path / "other")
    write_manifest(bundle.path, bundle.manifest.model_copy(update={"embedding_dim": 7}))
    with pytest.raises(BundleError, match="embedding of width 7"):
        load_model(bundle.path)


def test_graph_trim_does_not_change_results(model: LoadedModel) -> None:
    assert isinstance(model.graph, OnnxGraph)
    adapter = Adapter(model.bundle.manifest)
    large, small = (
        adapter.assemble(dummy_batch(adapter, shape)) for shape in (BatchShape(32, 128, 64), BatchShape(1, 4, 0))
    )
    before = model.graph(large)
    model.graph.trim(small)
    for name, values in model.graph(large).items():
        np.testing.assert_array_equal(values, before[name])


async def test_engine_result_does_not_depend_on_batch_mates(model: LoadedModel) -> None:
    rng, metrics, manifest = np.random.default_rng(3), Metrics(), model.bundle.manifest
    adapter = Adapter(manifest)
    model_metrics = metrics.model(model.bundle)
    curves = [random_curve(rng, length, metadata=bool(length % 2)) for length in LENGTHS]
    engine = Engine(
        model.graph,
        adapter,
        model.cost,
        EngineOptions(workers=2),
        listener=model_metrics.record_run,
    )
    await engine.start()
    predictor = Predictor(engine, adapter, model_metrics)
    together = await predictor.infer(curves)
    one_by_one = [outcome for curve in curves for outcome in await predictor.infer([curve])]
    at_once = await asyncio.gather(*(predictor.infer([curve]) for curve in curves))
    await engine.stop()
    assert max(o.prediction.batch_size for o in together if o.prediction) > 1
    for curve, outcomes in zip(curves, zip(together, one_by_one, (o for [o] in at_once), strict=True), strict=True):
        tokens = featurise(curve, manifest.limits, manifest.flux_unit, manifest.metadata_columns)
        expected = model.graph(RaggedBatch.collate([tokens]).padded())
        for outcome in outcomes:
            assert outcome.prediction is not None
            outputs = outcome.prediction.outputs
            np.testing.assert_allclose(outputs["probabilities"], expected["probabilities"][0], atol=1e-5)
            np.testing.assert_allclose(outputs["embedding"], expected["embedding"][0], atol=1e-4, rtol=1e-4)
            assert abs(float(outputs["probabilities"].sum()) - 1) < 1e-5


async def test_engine_expert_loads_reach_the_metrics(model: LoadedModel) -> None:
    rng, metrics, manifest = np.random.default_rng(4), Metrics(), model.bundle.manifest
    adapter = Adapter(manifest)
    model_metrics = metrics.model(model.bundle)
    engine = Engine(
        model.graph,
        adapter,
        model.cost,
        EngineOptions(workers=1),
        listener=model_metrics.record_run,
    )
    await engine.start()
    outcomes = await Predictor(engine, adapter, model_metrics).infer([random_curve(rng, 40) for _ in range(5)])
    await engine.stop()
    loads: dict[str, float] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "nightjar_expert_load_total":
                loads[sample.labels["layer"]] = loads.get(sample.labels["layer"], 0) + sample.value
    layers = [str(layer) for layer in range(manifest.recipe["network"]["n_blocks"])]
    assert set(loads) == {"input", *layers}
    observations = sum(sum(outcome.points_per_band) for outcome in outcomes)
    assert loads["input"] == manifest.recipe["network"]["input_top_k"] * observations
