"""Networks without a group of surveys: each answers about its group alone, which sets none of its thresholds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.zoo import build
from nightjar_alerts.training.fit.boosting import fit_forest, save_forest
from nightjar_alerts.training.fit.checkpoints import DataSource
from nightjar_alerts.training.recipes.astro_moe import debug, with_network
from nightjar_alerts.training.recipes.schema import Recipe
from nightjar_alerts.training.sky.heads import HeadInputs, HeadsConfig, fit_heads, save_run
from nightjar_alerts.training.sky.left_out import Fitting, LeftOutModel, Part, Show, allowed, asker_of_left_out, shower
from nightjar_alerts.training.sky.measure import Column
from nightjar_alerts.training.sky.novelty import embeddings_of
from nightjar_alerts.training.sky.record import PARTS, Sky, collect
from support.sky import bump, pulsator


def recipe() -> Recipe:
    statistics = {"d_statistics": 24, "lag_statistics": True, "period_statistics": True, "shape_statistics": True}
    return with_network(debug(), "debug-heads", head_width=32, head_copies=2, **statistics)


@pytest.fixture(scope="module")
def sky() -> Sky:
    record = collect(
        [bump(f"SN{n}", seed=n, z=0.1, source="ztf_sn" if n % 3 == 0 else "one") for n in range(48)]
        + [pulsator(f"RR{n}", seed=n, source="ztf_dr" if n % 3 == 0 else "var") for n in range(48)]
        + [bump(f"odd{n}", seed=n, label=-1, source="odd") for n in range(6)]
    )
    record.part[:] = np.where(np.arange(len(record)) % 2 == 0, PARTS.index("train"), PARTS.index("valid"))
    record.quality[record.label < 0] = "other"
    record.part[record.label < 0] = PARTS.index("train")
    return record


@pytest.fixture(scope="module")
def show() -> Show:
    return shower(recipe())


@pytest.fixture(scope="module")
def run(sky: Sky, show: Show, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of branches as they were born and heads that learned from other surveys than ZTF."""
    torch.manual_seed(0)
    body = build(debug().network)
    assert isinstance(body, AstroMoE)
    objects = show(sky.take((sky.part == 0) & np.isin(sky.source, ("one", "var"))), "nothing")
    inputs = HeadInputs(embeddings_of(body.eval(), objects.curve_set), objects.value, objects.is_known)
    config = HeadsConfig(steps=200, batch=32, rate=5e-3, average=0.9)
    network = fit_heads(body, recipe(), inputs, objects.curve_set.label, config, seed=0)
    folder = tmp_path_factory.mktemp("apart")
    forest = fit_forest(objects.columns, objects.curve_set.label, 20, seed=0, rounds=4)
    save_forest(forest, folder / "trees.npz")
    return save_run(network, recipe(), folder, DataSource(name="", sha256="", objects=1), folder / "run")


def fitted(sky: Sky, show: Show, run: Path, trees: Path | None) -> LeftOutModel:
    nothing = sky.take(np.zeros(len(sky), np.bool_))
    views: dict[Part, Sky] = {"train": nothing, "valid": nothing}
    return Fitting(sky, views, "adapted", recipe(), show, strangers=40, seed=0)("ztf", run, trees)


@pytest.mark.parametrize("beside", [False, True])
def test_a_network_answers_about_its_group_alone(sky: Sky, show: Show, run: Path, beside: bool) -> None:
    model = fitted(sky, show, run, run.parent / "trees.npz" if beside else None)
    assert (model.trees is not None) == beside
    answers = asker_of_left_out({"ztf": model}, show)(sky, "nothing")
    assert set(sky.source[answers.rows_N].tolist()) == {"ztf_sn", "ztf_dr"}
    label = sky.label[answers.rows_N]
    assert (answers.probabilities_NC.argmax(axis=1) == label).mean() > 0.8
    np.testing.assert_allclose(answers.probabilities_NC.sum(axis=1), 1.0, atol=1e-5)
    assert answers.inside_NC[np.arange(len(label)), answers.probabilities_NC.argmax(axis=1)].all()
    assert np.isfinite(answers.novelty_N).all()
    assert 0 <= model.threshold <= 1


@pytest.mark.parametrize("column", ["adapted", "left out"])
def test_nothing_of_the_group_calibrates(sky: Sky, column: Column) -> None:
    record = sky.take(sky.label >= 0)
    origin = np.where(np.arange(len(record)) % 2 == 0, "ztf_sn", "one")
    views = replace(record, quality=np.full(len(record), "view"), raw_label=origin)
    allowed_sky = allowed(sky, views, "valid", "ztf", 1000, column)
    is_view = allowed_sky.quality == "view"
    assert set(allowed_sky.source[~is_view].tolist()) == {"one", "var"}
    assert set(allowed_sky.raw_label[is_view].tolist()) == {"one"}
    assert ("ztf_sn" in allowed_sky.source[is_view]) == (column == "adapted")  # its patterns need no label
    assert len(allowed(sky, views, "valid", "ztf", 10, column)) == 10
