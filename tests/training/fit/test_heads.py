"""Stored embeddings and statistics: outputs of the heads, novelty, trees and export from folders."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from nightjar_alerts.models.bundle import verify_golden
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.romae import RoMAE
from nightjar_alerts.models.networks.zoo import build, transfer
from nightjar_alerts.models.runtime import open_session
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.confidence.fit import fit_to_drawn
from nightjar_alerts.training.confidence.novelty import OutlierScore, auroc_by_kind, fit_outliers, fit_reference
from nightjar_alerts.training.data.dataset import read_dataset
from nightjar_alerts.training.data.drawn import draw_from_mixture, join_drawn, padded_batches, read_drawn, write_drawn
from nightjar_alerts.training.data.folders import untruncated
from nightjar_alerts.training.data.outliers import synthetic_outliers
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.export import parity
from nightjar_alerts.training.export.bundle import export_run
from nightjar_alerts.training.export.graph import walk
from nightjar_alerts.training.fit.checkpoints import DataSource, load_network
from nightjar_alerts.training.fit.heads import (
    HeadInputs,
    embeddings_of,
    head_outputs,
    load_backbone,
    read_head_inputs,
    save_run,
    shares,
    statistics_of,
    write_embeddings,
    write_features,
    write_statistics,
)
from nightjar_alerts.training.fit.trees.forest import fit_bundled_trees, read_forest
from nightjar_alerts.training.recipes.astro_moe import debug, surveys_heads, with_network
from nightjar_alerts.training.recipes.catalogue import debug_romae
from nightjar_alerts.training.recipes.schema import Recipe
from nightjar_alerts.training.simulate.generate import simulate

SMALL = with_network(debug(), "small", n_blocks=1, n_experts=0, n_input_experts=0)
"""The experts take most of the time of an export, and these tests are not about them."""


@pytest.fixture(scope="module")
def light_curves(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    path = simulate(
        tmp_path_factory.mktemp("sim") / "s.parquet", 30, seed=2, classes=["RR Lyrae", "Ia"], workers=1, progress=False
    )
    return draw_from_mixture(read_dataset(path), debug(), "train", 120, seed=0)


def test_whole_light_curves_keep_every_point() -> None:
    whole = untruncated(surveys_heads()).augmentation
    assert (whole.degraded, whole.at_detection, whole.mta_days) == (0.0, 0.0, ())
    assert whole.no_metadata == surveys_heads().augmentation.no_metadata


@pytest.fixture(scope="module")
def backbone() -> AstroMoE:
    torch.manual_seed(0)
    network = build(SMALL.network)
    assert isinstance(network, AstroMoE)
    return network.eval()


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    statistics = {f"{kind}_statistics": True for kind in ("lag", "period", "shape", "fold")}
    return with_network(SMALL, "debug-heads", d_statistics=24, head_width=32, head_copies=2, **statistics)


@pytest.fixture(scope="module")
def inputs(light_curves: Sample, backbone: AstroMoE, recipe: Recipe) -> HeadInputs:
    network = build(recipe.network)
    assert isinstance(network, AstroMoE)
    return HeadInputs(embeddings_of(backbone, light_curves), *statistics_of(network.eval(), light_curves))


@pytest.fixture(scope="module")
def whole(backbone: AstroMoE, recipe: Recipe, inputs: HeadInputs) -> AstroMoE:
    """A network with the branches of the backbone, the scales of the statistics, and untrained heads."""
    torch.manual_seed(0)
    network = build(recipe.network)
    assert isinstance(network, AstroMoE)
    assert network.statistics is not None
    transfer(backbone.state_dict(), network)
    network.statistics.fit(inputs.rows(slice(None))[1])
    network.statistics.spread_K.clamp_(min=0.2)
    return network.eval()


def test_curve_set_round_trips(light_curves: Sample, tmp_path: Path) -> None:
    write_drawn(light_curves, tmp_path / "asked.npz")
    read = read_drawn(tmp_path / "asked.npz")
    assert np.array_equal(read.flux, light_curves.flux)
    assert np.array_equal(read.detections, light_curves.detections)
    assert (light_curves.band < 6).all()
    assert (light_curves.detections <= light_curves.lengths).all()
    assert len(join_drawn([light_curves, read])) == 2 * len(light_curves)


def test_shares_are_positive_and_sum_to_one(light_curves: Sample) -> None:
    share = shares(light_curves.label, 20)
    assert share.sum() == pytest.approx(1)
    assert (share > 0).all()


def test_head_outputs_equal_those_of_the_network(whole: AstroMoE, inputs: HeadInputs, light_curves: Sample) -> None:
    logits, embedding = head_outputs(whole, inputs)
    rows, batch = next(padded_batches(light_curves, 8))
    with torch.no_grad():
        output = whole(*(batch[name] for name in whole.input_names))
    np.testing.assert_allclose(output.logits_BC.numpy(), logits[rows], atol=1e-4)
    np.testing.assert_allclose(output.embedding_BE.numpy(), embedding[rows], atol=1e-4)


def test_load_backbone_of_a_saved_run_has_no_heads(
    whole: AstroMoE, recipe: Recipe, light_curves: Sample, inputs: HeadInputs, tmp_path: Path
) -> None:
    source = DataSource(name="mix.json", sha256="0", objects=1)
    run = save_run(whole, recipe, tmp_path / "backbone", source, tmp_path / "run")
    network, config = load_network(run)
    assert config.recipe.name == "debug-heads"
    for name, value in whole.state_dict().items():
        assert torch.equal(network.state_dict()[name], value)
    assert np.array_equal(embeddings_of(load_backbone(run)[0], light_curves), inputs.embedding)


def test_fit_outliers_separates_outliers_and_novelty_is_uniform(light_curves: Sample) -> None:
    rng = np.random.default_rng(0)
    usual_curves = rng.standard_normal((600, 12)).astype(np.float32)
    label = (usual_curves[:, 0] > 0).astype(np.int64)
    outliers = (rng.standard_normal((200, 12)) + np.r_[np.zeros(6), 3 * np.ones(6)]).astype(np.float32)
    usual = rng.standard_normal((500, 12)).astype(np.float32)
    fit = fit_outliers(usual_curves, label, outliers, usual, seed=0)
    assert np.median(fit.novelty(outliers)) > 0.95
    assert fit.novelty(usual).mean() == pytest.approx(0.5, abs=0.03)
    assert fit.described.false_alarm_rate < 0.05
    kinds = np.array(["a", "b"] * 100)
    assert min(auroc_by_kind(usual_curves, label, usual, outliers, kinds, seed=0).values()) > 0.9
    assert isinstance(fit.score, OutlierScore)
    assert fit_reference(usual_curves, label).mean_KE.shape == (2, 12)


def test_synthetic_outliers_are_finite_and_unlabelled(light_curves: Sample) -> None:
    outliers = synthetic_outliers(light_curves, 0)
    assert set(outliers.source) == {"shuffled", "doubled"}
    assert (outliers.label == -1).all()
    assert np.isfinite(outliers.flux).all()


@pytest.mark.slow
def test_export_run_writes_trees_shares_strata_and_card(
    whole: AstroMoE,
    recipe: Recipe,
    backbone: AstroMoE,
    light_curves: Sample,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("DRAWN_CURVES", "NOISE"):  # without experts, a few light curves reach every part
        monkeypatch.setattr(parity, name, 60)
    folder, run = tmp_path / "tables", tmp_path / "run"
    folder.mkdir()
    (folder / "classes.json").write_text(json.dumps(ELASTICC.names), encoding="utf-8")
    for part in ("train", "validation"):
        write_drawn(light_curves, folder / f"{part}.npz")
    write_drawn(synthetic_outliers(light_curves, 1), folder / "outliers.npz")
    save_run(backbone, SMALL, tmp_path, DataSource(name="sim", sha256="0", objects=1), tmp_path / "backbone")
    write_statistics(recipe, folder)
    write_embeddings(load_backbone(tmp_path / "backbone")[0], folder)
    save_run(whole, recipe, tmp_path / "backbone", DataSource(name="sim", sha256="0", objects=1), run)
    trees = tmp_path / "trees.npz"
    assert fit_bundled_trees([folder], trees, seed=0, rounds=6)["top_1"] > 0.9
    both = fit_bundled_trees([folder, folder], tmp_path / "both.npz", seed=0, rounds=2)
    assert both["light_curves"] == 2 * len(light_curves)
    numbers = read_head_inputs(folder, "train").value.shape[1]
    fit_bundled_trees([folder], tmp_path / "some.npz", seed=0, rounds=2, statistics=True)
    some = read_forest(tmp_path / "some.npz")
    assert (some.look_M % some.numbers < numbers).all()
    about = {"mixture": {"sim": 1.0}}
    bundle = export_run(
        run, tmp_path / "bundle", name="small", version="1.0.0", drawn=[folder], trees=trees, about=about
    )
    manifest = bundle.manifest
    assert manifest.format_version == 2
    assert manifest.prior is not None
    assert set(manifest.prior.shares) == set(ELASTICC.names)
    assert manifest.prediction_sets is not None
    assert manifest.prediction_sets.floor > 0
    assert manifest.novelty is not None
    assert manifest.novelty.method == "fitted"
    assert manifest.input_statistics is not None
    assert manifest.input_statistics.light_curves == len(light_curves)
    assert verify_golden(bundle, open_session(bundle.model)) < 1e-4
    card = (bundle.path / "CARD.md").read_text(encoding="utf-8")
    assert "Training data" in card
    assert "## Boosted trees" in card
    assert [node.op_type for node in onnx.load(bundle.model).graph.node].count("TreeEnsemble") == 1
    assert manifest.ensemble is not None
    assert manifest.ensemble.trees == 20 * 6
    assert any("ensemble.trees" in node.name for node in walk(onnx.load(bundle.model).graph))


def test_fit_to_drawn_romae_uses_its_embeddings_and_no_metadata(light_curves: Sample, tmp_path: Path) -> None:
    folder, recipe = tmp_path / "tables", debug_romae()
    folder.mkdir()
    (folder / "classes.json").write_text(json.dumps(ELASTICC.names), encoding="utf-8")
    for part in ("train", "validation"):
        write_drawn(light_curves, folder / f"{part}.npz")
    write_drawn(synthetic_outliers(light_curves, 1), folder / "outliers.npz")
    run = save_run(
        build(recipe.network), recipe, tmp_path, DataSource(name="sim", sha256="0", objects=1), tmp_path / "run"
    )
    write_statistics(with_network(debug(), "few", d_statistics=8), folder)
    write_features(folder, None, run)
    network, _ = load_network(run)
    assert isinstance(network, RoMAE)
    rows, batch = next(padded_batches(light_curves, 8))
    with torch.no_grad():
        whole = network(*(batch[name] for name in network.input_names))
    logits, embedding = head_outputs(network, read_head_inputs(folder, "train"))
    np.testing.assert_allclose(whole.logits_BC.numpy(), logits[rows], atol=1e-5)
    np.testing.assert_allclose(whole.embedding_BE.numpy(), embedding[rows], atol=1e-5)
    fitted = fit_to_drawn(network, [folder], recipe)
    assert fitted.ensemble is None
    assert fitted.inputs.missing_metadata == {}
    assert fitted.novelty.described.method == "fitted"
    assert fitted.metrics["validation"]["light_curves"] == len(light_curves)
