"""ZTF's six classes: paired with trees, on objects that neither has seen."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, SURVEY_BUNDLES, load_bundle, verify_golden, write_manifest
from nightjar_alerts.models.networks.zoo import build
from nightjar_alerts.models.runtime import open_session
from nightjar_alerts.training.fit.checkpoints import DataSource
from nightjar_alerts.training.recipes.astro_moe import debug, sky_heads_ztf, with_network
from nightjar_alerts.training.recipes.schema import Recipe
from nightjar_alerts.training.sky.heads import answers, load_whole, save_run
from nightjar_alerts.training.sky.record import PARTS, Sky, collect
from nightjar_alerts.training.sky.shipping import ship
from nightjar_alerts.training.sky.six import (
    NUMBER,
    SupernovaDraws,
    draw_six,
    fit_six,
    folded,
    folds,
    left_for_testing,
    paired,
    prepare,
    six_report,
    with_six_heads,
)
from nightjar_alerts.training.sky.table_page import write_page, write_sky_card
from support.sky import bump, pulsator


def ztf() -> Sky:
    rows, parts = [], []
    for i in range(90):
        kind, width = ("SN Ia", 8.0) if i % 3 else ("SN II", 30.0)
        rows.append(bump(f"ZTF{i}", source="ztf_sn", seed=i, bands="gr", width=width, raw_label=kind))
        parts.append(PARTS.index("test" if i % 2 else "train"))
    rows.append(bump("ZTFx", source="ztf_sn", seed=1000, bands="gr", raw_label="SN I"))
    rows += [pulsator(f"RR{i}", seed=i) for i in range(3)]  # of none of the six types
    return collect(rows, [row.object_id for row in rows], [*parts, *(0,) * 4])


def test_equal_answers_differ_by_nothing() -> None:
    truth, named = np.array([0, 1, 0, 1] * 20), np.array([0, 1, 1, 1] * 20)
    assert paired(truth, named, named) == (0.0, 0.0, 0.0)
    better, low, high = paired(truth, truth, named)
    assert low < better < high + 1e-9
    assert low > 0


@pytest.fixture(scope="module")
def learned_from_a_part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model, as if it had left a fifth of the objects by a hash of their names for testing."""
    bundle = Path(shutil.copytree(SURVEY_BUNDLES["ztf"], tmp_path_factory.mktemp("part") / "bundle"))
    recipe = {"data": {"fractions": [0.4, 0.4, 0.2]}}
    write_manifest(bundle, load_bundle(bundle).manifest.model_copy(update={"recipe": recipe, "data": {}}))
    return bundle


def test_trees_and_bundle_stand_side_by_side(learned_from_a_part: Path) -> None:
    report = six_report(ztf(), [learned_from_a_part], seeds=(0,))
    assert report["objects"] == 45
    assert report["trees"]["macro-F1"] > 0.7
    (row,) = report["bundles"].values()
    assert 0 < row["objects"] < 45
    assert row["interval"][0] <= row["difference"] <= row["interval"][1]
    page = write_page({"prior": "p", "looks": "once", "table": [], "reports": {}, "six": report}, "sky.json")
    assert "## ZTF supernovae, six classes" in page


def test_a_card_tells_both_scores_and_who_was_ahead(tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(SURVEY_BUNDLES["ztf"], tmp_path / "bundle"))
    manifest = load_bundle(bundle).manifest
    report = {"objects": 1089, "macro-F1": 0.4, "trees": 0.5, "difference": -0.1, "interval": [-0.2, 0.05]}
    write_sky_card(bundle, {"bundles": {f"{manifest.name} {manifest.version}": report}})
    card = (bundle / "CARD.md").read_text(encoding="utf-8")
    assert "**0.400**" in card
    assert "-0.100, from -0.200 to +0.050" in card
    assert "nothing but supernovae" in card
    assert "OGLE" not in card


def test_a_bundle_of_other_classes_is_refused() -> None:
    with pytest.raises(ValueError, match="six classes"):
        six_report(ztf(), [DEFAULT_BUNDLE], seeds=(0,))


def test_a_bundle_left_its_own_share_for_testing(learned_from_a_part: Path) -> None:
    manifest = load_bundle(learned_from_a_part).manifest
    names = np.array([f"ZTF{i}" for i in range(2000)])
    assert left_for_testing(manifest, names).mean() == pytest.approx(0.2, abs=0.03)
    assert left_for_testing(manifest.model_copy(update={"recipe": {}}), names).all()
    assert not left_for_testing(load_bundle(SURVEY_BUNDLES["ztf"]).manifest, names).any()
    assert len(NUMBER) == 6


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of 20 classes that nothing taught."""
    recipe = small(20)
    torch.manual_seed(0)
    network = build(recipe.network)
    folder: Path = tmp_path_factory.mktemp("run")
    return save_run(network.eval(), recipe, folder, DataSource(name="none", sha256="0", objects=1), folder / "run")


def small(classes: int) -> Recipe:
    statistics = {"d_statistics": 24, "lag_statistics": True, "shape_statistics": True}
    recipe = with_network(debug(), "small", head_width=32, head_copies=2, n_classes=classes, **statistics)
    data = sky_heads_ztf().data
    return recipe.model_copy(update={"augmentation": sky_heads_ztf().augmentation, "data": data})


@pytest.fixture(scope="module")
def drawn(run: Path) -> SupernovaDraws:
    return draw_six(ztf(), run, small(6), seed=0)


def test_complete_light_curves_come_first_and_rare_classes_are_drawn_more_often(drawn: SupernovaDraws) -> None:
    assert drawn.curve_set.owner[:90].tolist() == list(range(90))
    assert (drawn.curve_set.length[:90] == 40).all()
    times = np.bincount(drawn.curve_set.owner) - 1
    assert set(times[drawn.label_O == NUMBER["Ia"]]) == {1}
    assert set(times[drawn.label_O == NUMBER["II"]]) == {2}
    assert drawn.unlearned_O.sum() == 45
    assert drawn.weights(drawn.rows(drawn.unlearned_O)).mean() == pytest.approx(1.0, rel=1e-5)


def test_folded_heads_are_those_of_the_network_that_is_shipped(run: Path, drawn: SupernovaDraws) -> None:
    weighs = drawn.unlearned_O & (np.arange(90) % 3 == 0)
    fit = fit_six(drawn, ~weighs, weighs, seed=0)
    network, _ = load_whole(run)
    expected = folded(drawn.heads_NHC, fit.map_6C, fit.bias_6)
    np.testing.assert_allclose(answers(with_six_heads(network, fit, small(6)), drawn.inputs)[0], expected, atol=1e-4)
    probabilities = fit.answers(drawn, np.arange(90))
    assert (probabilities["both"].argmax(axis=1) == drawn.label_O).mean() > 0.9


def test_folds_tell_everybody_apart(drawn: SupernovaDraws) -> None:
    report = folds(drawn, draws=(0,), seeds=(0,))
    (draw,) = report["draws"].values()
    assert report["objects"] == 45
    assert set(draw["macro-F1"]) == {"both", "heads", "trees inside", "trees 0", "more regular trees 0"}
    for middle, low, high in draw["difference"].values():
        assert low <= middle <= high
    page = write_page({"prior": "p", "looks": "once", "table": [], "reports": {}, "six": report}, "sky.json")
    assert "| trees inside |" in page


@pytest.mark.slow
def test_a_prepared_folder_ships_as_a_bundle_that_left_nothing_for_testing(
    run: Path, drawn: SupernovaDraws, tmp_path: Path
) -> None:
    prepare(ztf(), drawn, run, small(6), tmp_path / "six", seed=0)
    about: dict[str, Any] = {"learned_from": "every part"}
    six = tmp_path / "six"
    bundle = ship(
        *(six / "run", six / "tables", tmp_path / "bundle"),
        name="astro-moe-ztf",
        version="9.0.0",
        about=about,
        trees=six / "trees.npz",
    )
    assert bundle.manifest.classes.names == tuple(NUMBER)
    assert bundle.manifest.ensemble is not None
    assert verify_golden(bundle, open_session(bundle.model)) < 1e-4
    with pytest.raises(ValueError, match="learned from every object"):
        six_report(ztf(), [bundle.path], seeds=(0,))
    write_sky_card(bundle.path, folds(drawn, draws=(0,), seeds=(0,)))
    assert "both, as shipped" in (bundle.path / "CARD.md").read_text(encoding="utf-8")
