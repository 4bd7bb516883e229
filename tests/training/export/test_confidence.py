"""Calibration and novelty inside the graph: torch and onnxruntime against the formulas in float64."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nightjar_alerts.core.load import load_model
from nightjar_alerts.models.bundle import Bundle, Calibration, load_bundle, verify_golden
from nightjar_alerts.models.lightcurve import RaggedBatch
from nightjar_alerts.models.posterior import PredictionSets
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.confidence.calibration import ServedSample
from nightjar_alerts.training.confidence.novelty import NoveltyFit, fit_novelty
from nightjar_alerts.training.export.graph import write_graph
from nightjar_alerts.training.export.served import Calibrated
from support.bundles import random_tokens, tiny_network
from support.pipeline import Pipeline

pytestmark = pytest.mark.slow

BY_LENGTH = Calibration(
    method="temperature_by_length", temperature=1.1, coefficients=(0.5, -0.3, 0.06), lengths=(3, 90)
)
ONE = Calibration(method="temperature", temperature=1.7)


class Both(nn.Module):
    """Calibration and novelty without a network before them."""

    def __init__(self, calibration: Calibration, novelty: NoveltyFit) -> None:
        super().__init__()
        self.calibrated, self.novelty = Calibrated(calibration), novelty.score

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        logits_BC, embedding_BE, mask_BL = inputs
        return self.calibrated(logits_BC, mask_BL), self.novelty(embedding_BE)


def sample(seed: int, n: int, classes: int = 4, width: int = 8) -> ServedSample:
    rng = np.random.default_rng(seed)
    label_N = rng.integers(0, classes, n)
    centre_CE = 30 + 5 * np.random.default_rng(99).normal(size=(classes, width))
    embedding_NE = centre_CE[label_N] + rng.normal(size=(n, width)) * np.geomspace(0.05, 3, width)
    logits_NC = rng.normal(size=(n, classes)) * 4
    length_N = rng.integers(1, 120, n)
    columns = (logits_NC.astype(np.float32), embedding_NE.astype(np.float32))
    return ServedSample(*columns, label_N, np.arange(n), length_N, length_N // 3)


def oracle_probabilities(asked: ServedSample, calibration: Calibration) -> NDArray[np.float64]:
    """Softmax of logits over exp(c0 + c1 ln n + c2 (ln n)^2), n within the fitted lengths."""
    rows = []
    for logits, n in zip(asked.logits_NC.astype(np.float64), asked.length_N.tolist(), strict=True):
        x = np.log(min(max(n, 3), 90))
        temperature = np.exp(0.5 - 0.3 * x + 0.06 * x * x) if calibration is BY_LENGTH else 1.7
        weights = np.exp(logits / temperature)
        rows.append(weights / weights.sum())
    return np.array(rows)


def oracle_novelty(training: ServedSample, validation: ServedSample, asked: ServedSample) -> NDArray[np.float64]:
    """Share of validation objects of smaller distance to their nearest class mean; pooled covariance, shrunk by 1 %."""
    known = training.embedding_NE.astype(np.float64)
    means = np.stack([known[training.label_N == label].mean(0) for label in np.unique(training.label_N)])
    residual = known - means[training.label_N]
    covariance = residual.T @ residual / len(known)
    width = len(covariance)
    inverse = np.linalg.inv(0.99 * covariance + 0.01 * np.trace(covariance) / width * np.eye(width))

    def distance(x: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.array([min(np.sqrt((one - mean) @ inverse @ (one - mean)) for mean in means) for one in x])

    usual = distance(validation.embedding_NE)
    return np.array([(usual < one).mean() for one in distance(asked.embedding_NE)])


@pytest.mark.parametrize("calibration", [ONE, BY_LENGTH], ids=lambda one: str(one.method))
def test_torch_and_onnxruntime_compute_the_formulas(calibration: Calibration, tmp_path: Path) -> None:
    training, validation, asked = sample(1, 500), sample(2, 1000), sample(3, 60)
    both = Both(calibration, fit_novelty(training, validation)).eval()
    mask = np.arange(130) < asked.length_N[:, None]
    inputs = {"logits": asked.logits_NC, "embedding": asked.embedding_NE, "mask": mask}
    tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
    axes = {"logits": ("batch",), "embedding": ("batch",), "mask": ("batch", "length")}
    write_graph(both, tensors, axes, ["probabilities", "novelty"], tmp_path / "model.onnx")
    answers = run(open_session(tmp_path / "model.onnx"), inputs)
    with torch.no_grad():
        expected = dict(zip(("probabilities", "novelty"), both(*tensors.values()), strict=True))
    for name, value in expected.items():
        np.testing.assert_allclose(answers[name], value, atol=2e-6)
    np.testing.assert_allclose(answers["probabilities"], oracle_probabilities(asked, calibration), atol=2e-6)
    np.testing.assert_allclose(answers["novelty"], oracle_novelty(training, validation, asked), atol=0.006)
    fit = fit_novelty(training, validation)
    np.testing.assert_allclose(answers["novelty"], fit.novelty(asked.embedding_NE), atol=1e-4)


@pytest.fixture(scope="module")
def confident(confident_bundle: Path) -> Bundle:
    return load_bundle(confident_bundle)


def test_a_bundle_with_everything_is_loaded_and_served(confident: Bundle) -> None:
    loaded = load_model(confident.path)
    assert verify_golden(confident, open_session(confident.model)) < 1e-5
    spec = {output.name: output for output in confident.manifest.outputs}["novelty"]
    assert (spec.dtype, spec.shape) == ("float32", ("batch",))
    assert isinstance(confident.manifest.prediction_sets, PredictionSets)
    batch = RaggedBatch.collate(random_tokens(5, 9)).padded()
    answers = loaded.graph(batch)
    assert answers["novelty"].shape == (9,)
    assert ((answers["novelty"] >= 0) & (answers["novelty"] <= 1)).all()


def test_the_calibration_changes_nothing_but_the_probabilities(confident: Bundle) -> None:
    batch = RaggedBatch.collate(random_tokens(5, 9)).padded()
    answers = run(open_session(confident.model), batch)
    network = tiny_network()
    with torch.no_grad():
        output = network(*(torch.from_numpy(batch[name]) for name in network.input_names))
    np.testing.assert_allclose(answers["embedding"], output.embedding_BE, atol=1e-4)
    temperature_B = confident.manifest.calibration.temperatures(batch["mask"].sum(1))
    expected = (output.logits_BC.double() / torch.from_numpy(temperature_B)[:, None]).softmax(1)
    np.testing.assert_allclose(answers["probabilities"], expected, atol=1e-5)


def test_graph_and_manifest_hold_a_steep_temperature_within_the_same_bounds() -> None:
    steep = Calibration(method="temperature_by_length", temperature=1.0, coefficients=(-9.0, 9.0), lengths=(1, 50))
    length_B = np.array([1, 2, 50])
    logits_BC = np.random.default_rng(0).normal(size=(3, 4))
    mask_BL = torch.arange(50) < torch.from_numpy(length_B)[:, None]
    told = Calibrated(steep)(torch.from_numpy(logits_BC), mask_BL)
    expected = torch.from_numpy(logits_BC / steep.temperatures(length_B)[:, None]).softmax(1)
    np.testing.assert_allclose(told, expected, atol=1e-5)


def test_the_graph_stays_standard_operators(confident: Bundle) -> None:
    graph = onnx.load(confident.model)
    functions = {(function.domain, function.name) for function in graph.functions}  # made of standard operators
    nodes = [*graph.graph.node, *(node for function in graph.functions for node in function.node)]
    others = {(node.domain, node.op_type) for node in nodes if node.domain not in {"", "ai.onnx"}}
    assert others <= functions


def test_the_pipeline_exports_all_of_it(pipeline: Pipeline) -> None:
    manifest = load_bundle(pipeline.bundle).manifest
    assert manifest.novelty is not None
    assert manifest.prediction_sets is not None
    assert manifest.novelty.false_alarm_rate < 0.05
    assert manifest.metrics["prediction_sets"]["coverage_of_one_threshold"].keys() >= {"0"}
    card = (pipeline.bundle / "CARD.md").read_text(encoding="utf-8")
    for heading in ("## Calibration", "## Prediction sets", "## Novelty"):
        assert heading in card
    load_model(pipeline.bundle)
