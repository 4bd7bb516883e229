"""ZTF's six classes: heads mapped to them, trees, and their cross-validation."""

from pathlib import Path

import numpy as np
import pytest
import torch

from nightjar_alerts.models.bundle import load_bundle, verify_golden
from nightjar_alerts.models.networks.zoo import build
from nightjar_alerts.models.runtime import open_session
from nightjar_alerts.training.data.drawn import read_drawn
from nightjar_alerts.training.data.sample import PARTS, Sample, collect
from nightjar_alerts.training.export import parity
from nightjar_alerts.training.export.bundle import export_run
from nightjar_alerts.training.export.card import write_card
from nightjar_alerts.training.fit.checkpoints import DataSource
from nightjar_alerts.training.fit.class_map import mapped_logits, with_mapped_heads
from nightjar_alerts.training.fit.heads import head_outputs, load_astro_moe, save_run
from nightjar_alerts.training.fit.ztf_types import (
    NUMBER,
    SupernovaDraws,
    draw_ztf_types,
    fit_ztf_types,
    held_out_types,
    prepare,
    typed,
)
from nightjar_alerts.training.recipes.astro_moe import debug, with_network, ztf_types
from nightjar_alerts.training.recipes.schema import Recipe
from nightjar_alerts.training.score.follow_up import add_follow_up
from nightjar_alerts.training.score.ztf_types import answers, folds, paired
from support.surveys import bump, pulsator


def ztf() -> Sample:
    rows, parts = [], []
    for i in range(90):
        kind, width = ("SN Ia", 8.0) if i % 3 else ("SN II", 30.0)
        rows.append(bump(f"ZTF{i}", source="ztf_sn", seed=i, bands="gr", width=width, raw_label=kind))
        parts.append(PARTS.index("test" if i % 2 else "train"))
    rows.append(bump("ZTFx", source="ztf_sn", seed=1000, bands="gr", raw_label="SN I"))
    rows += [pulsator(f"RR{i}", seed=i) for i in range(3)]  # of none of the six types
    return collect(rows, [row.object_id for row in rows], [*parts, *(0,) * 4])


def test_paired_equal_predictions_have_no_difference() -> None:
    truth, named = np.array([0, 1, 0, 1] * 20), np.array([0, 1, 1, 1] * 20)
    assert paired(truth, named, named) == (0.0, 0.0, 0.0)
    better, low, high = paired(truth, truth, named)
    assert low < better < high + 1e-9
    assert low > 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of 20 classes that nothing taught."""
    recipe = small(20)
    torch.manual_seed(0)
    network = build(recipe.network)
    folder: Path = tmp_path_factory.mktemp("run")
    return save_run(network.eval(), recipe, folder, DataSource(name="none", sha256="0", objects=1), folder / "run")


def small(classes: int) -> Recipe:
    sizes = {"n_blocks": 1, "n_experts": 0, "n_input_experts": 0}  # experts take most of the time of an export
    recipe = with_network(debug(), "small", **sizes, head_width=32, head_copies=2, n_classes=classes, d_statistics=24)
    data = ztf_types().data
    return recipe.model_copy(update={"augmentation": ztf_types().augmentation, "data": data})


@pytest.fixture(scope="module")
def drawn(run: Path) -> SupernovaDraws:
    return draw_ztf_types(ztf(), run, small(6), seed=0)


def test_complete_light_curves_come_first_and_rare_classes_are_drawn_more_often(drawn: SupernovaDraws) -> None:
    assert drawn.light_curves.group[:90].tolist() == list(range(90))
    assert (drawn.light_curves.lengths[:90] == 40).all()
    times = np.bincount(drawn.light_curves.group) - 1
    assert set(times[drawn.label_O == NUMBER["Ia"]]) == {1}
    assert set(times[drawn.label_O == NUMBER["II"]]) == {2}
    assert drawn.unlearned_O.sum() == 45
    assert drawn.weights(drawn.rows(drawn.unlearned_O)).mean() == pytest.approx(1.0, rel=1e-5)


def test_with_six_heads_equals_folded_logits(run: Path, drawn: SupernovaDraws) -> None:
    held_out_O = drawn.unlearned_O & (np.arange(90) % 5 == 0)
    fit = fit_ztf_types(drawn, ~held_out_O, seed=0)
    network, _ = load_astro_moe(run)
    expected = mapped_logits(drawn.heads_NHC, fit.map_6C, fit.bias_6)
    np.testing.assert_allclose(
        head_outputs(with_mapped_heads(network, fit.map_6C, fit.bias_6, small(6)), drawn.inputs)[0], expected, atol=1e-4
    )
    probabilities = answers(fit, drawn, np.arange(90))
    assert (probabilities["both"].argmax(axis=1) == drawn.label_O).mean() > 0.9
    mean = np.sqrt(probabilities["trees inside"] * probabilities["heads"])
    np.testing.assert_allclose(probabilities["both"], mean / mean.sum(axis=1, keepdims=True), atol=1e-5)


def test_folds_report_scores_of_every_model(drawn: SupernovaDraws) -> None:
    report = folds(drawn, draws=(0,), seeds=(0,))
    (draw,) = report["draws"].values()
    assert report["objects"] == 45
    assert set(draw["macro-F1"]) == {"both", "heads", "trees inside", "trees 0", "more regular trees 0"}
    for middle, low, high in draw["difference"].values():
        assert low <= middle <= high


@pytest.mark.slow
def test_prepare_writes_the_inputs_of_export(
    run: Path, drawn: SupernovaDraws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DRAWN_CURVES", "NOISE"):  # without experts, a few light curves reach every part
        monkeypatch.setattr(parity, name, 60)
    prepare(ztf(), drawn, run, small(6), tmp_path / "types", seed=0)
    types = tmp_path / "types"
    bundle = export_run(
        types / "run",
        tmp_path / "bundle",
        name="astro-moe-ztf",
        version="9.0.0",
        drawn=[types / "drawn"],
        trees=types / "trees.npz",
        about={"learned_from": "every part"},
    )
    assert bundle.manifest.classes.names == tuple(NUMBER)
    calibrated = np.unique(read_drawn(types / "drawn" / "validation.npz").group)
    held_out = held_out_types(ztf())
    assert held_out.object_id.tolist() == typed(ztf())[0].object_id[calibrated].tolist()
    lists = add_follow_up(bundle.path, ztf()).manifest.follow_up
    assert set(lists) == {"training", "ztf-bright"}
    stated = {name: horizons[-1].objects for name, horizons in lists["training"].classes.items()}
    assert list(stated.values()) == np.bincount(held_out.label, minlength=len(NUMBER)).tolist()
    assert bundle.manifest.ensemble is not None
    assert bundle.manifest.ensemble.weights(np.array([1, 100]), np.ones(2, np.bool_)).tolist() == [0.5, 0.5]
    assert verify_golden(bundle, open_session(bundle.model)) < 1e-4
    assert load_bundle(bundle.path).manifest.data["learned_from"] == "every part"
    write_card(bundle.path, folds(drawn, draws=(0,), seeds=(0,)))
    assert "ensemble, as released" in (bundle.path / "CARD.md").read_text(encoding="utf-8")
