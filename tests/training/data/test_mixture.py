"""Mixtures: shares of files, classes and surveys, and parts that every file keeps."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.batches import stream
from nightjar_alerts.training.data.dataset import split_indices
from nightjar_alerts.training.data.mixture import is_mixture, read_mixture, weights
from nightjar_alerts.training.data.sample import LABELS, SurveyObject, collect, write_sample
from nightjar_alerts.training.fit.train import train
from nightjar_alerts.training.recipes.astro_moe import debug
from nightjar_alerts.training.simulate.generate import simulate

IA, II = LABELS["Ia"], LABELS["II"]


def transient(source: str, number: int, label: int, quality: str = "spectroscopic") -> SurveyObject:
    rng = np.random.default_rng(number)
    time = np.sort(rng.uniform(0, 60, 20))
    flux = 1e4 * np.exp(-0.5 * ((time - 30) / 10) ** 2)
    return SurveyObject(
        source=source,
        object_id=f"{source}{number}",
        mjd=59_000 + time,
        flux=flux,
        flux_err=np.full(20, 100.0),
        band=rng.integers(1, 4, 20).astype(np.int8),
        detected=flux > 500,
        label=label,
        quality=quality,
        z=0.05,
        foreign=np.zeros(20, np.bool_),
        wavelength=np.full(20, 620.0),
    )


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    simulate(tmp_path / "sim.parquet", 8, seed=1, workers=1, progress=False)
    objects = [transient("one", number, IA) for number in range(30)]
    objects += [transient("two", number, IA if number % 3 else II) for number in range(30)]
    objects += [transient("two", 99, II, quality="conflicting")]
    parts = [number % 3 for number in range(len(objects))]
    write_sample(collect(objects, parts=parts), tmp_path / "sky.npz")
    ingredients = [{"file": "sim.parquet", "share": 3.0}, {"file": "sky.npz", "share": 1.0, "one_class": 0.25}]
    (tmp_path / "mix.json").write_text(json.dumps({"ingredients": ingredients, "classes": {"Ia": 2.0}}))
    return tmp_path / "mix.json"


def test_files_are_drawn_by_their_share_and_doubtful_labels_never(mixture: Path) -> None:
    assert is_mixture(mixture)
    data = read_mixture(mixture)
    assert data.weight is not None
    real = np.array([":" in name for name in data.object_id])
    assert data.classes == ELASTICC.names
    assert real.sum() == 60
    train = split_indices(data)["train"]
    np.testing.assert_allclose(data.weight[train].sum(), 1.0)
    np.testing.assert_allclose(data.weight[train][real[train]].sum(), 0.25)


def test_real_objects_keep_their_part_and_their_redshift(mixture: Path) -> None:
    data = read_mixture(mixture)
    parts = split_indices(data)
    assert {data.object_id[index] for index in parts["test"]} >= {"one:one2"}
    assert sum(len(rows) for rows in parts.values()) == len(data)
    assert data.curve(data.object_id.tolist().index("one:one0")).metadata["z_final"] == pytest.approx(0.05)


def test_surveys_of_one_class_weigh_less() -> None:
    label = np.array([IA] * 20 + [IA] * 10 + [II] * 10)
    source = np.array(["one"] * 20 + ["two"] * 20)
    part = np.zeros(40, np.int8)
    even, less = (weights(label, source, part, {}, one_class) for one_class in (1.0, 0.25))
    assert less[:20].sum() / less[20:30].sum() == pytest.approx(0.25 * np.sqrt(2))
    assert even[:20].sum() / even[20:30].sum() == pytest.approx(np.sqrt(2))


@pytest.mark.parametrize(
    ("left_out", "names_left"),
    [
        ({}, {"one0", "two1", "two2", "three3"}),
        ({"without": ["two"]}, {"one0", "three3"}),  # of the views, those of its objects
        ({"without": ["two"], "not_through": ["two"]}, {"one0"}),  # and those through its visits
        ({"not_through": ["one"]}, {"one0", "two1", "three3"}),  # its own objects are no views
    ],
)
def test_surveys_are_left_out_by_object_and_by_visits(
    tmp_path: Path, left_out: dict[str, Any], names_left: set[str]
) -> None:
    raw = [transient("one", 0, IA), transient("two", 1, II)]
    views = [replace(transient("one", 2, IA, "view"), object_id="two2", raw_label="two")]
    views += [replace(transient("two", 3, IA, "view"), object_id="three3", raw_label="three")]
    write_sample(collect(raw + views, parts=[0] * 4), tmp_path / "sky.npz")
    (tmp_path / "mix.json").write_text(json.dumps({"ingredients": [{"file": "sky.npz", "share": 1.0, **left_out}]}))
    names = read_mixture(tmp_path / "mix.json").object_id
    assert {name.partition(":")[2] for name in names} == names_left


def test_a_recipe_trains_on_a_mixture(mixture: Path, tmp_path: Path) -> None:
    recipe = debug()
    augmentation = recipe.augmentation.model_copy(update={"degraded": 0.7})
    schedule = recipe.schedule.model_copy(update={"steps": 3})
    recipe = recipe.model_copy(update={"augmentation": augmentation, "schedule": schedule})
    assert train(recipe, mixture, tmp_path / "run", progress=False).finished
    data = read_mixture(mixture)
    batch = next(stream(data, split_indices(data)["train"], recipe))
    assert set(batch.label_B.tolist()) <= set(range(20))
