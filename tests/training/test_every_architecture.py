"""Every architecture with the same commands: train, kill, resume, export, serve."""

from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.models.bundle import Bundle, load_bundle
from nightjar_alerts.models.networks.zoo import ARCHITECTURES
from nightjar_alerts.service.registry.loader import load_one
from nightjar_alerts.training.__main__ import main
from nightjar_alerts.training.fit.checkpoints import BEST, CHECKPOINT, load_best, load_checkpoint
from nightjar_alerts.training.recipes.catalogue import RECIPES
from support.edge import curve, live
from support.pipeline import Pipeline
from support.toy_dataset import write_toy_dataset

pytestmark = pytest.mark.slow

DEBUG = {name: RECIPES[name]() for name in RECIPES if name.startswith("debug")}
UNSHIPPED = ("debug-astromer", "debug-informer")
"""Recipes of networks that no released bundle contains."""
CLASSIFIERS = [
    pytest.param(name, marks=pytest.mark.nightly if name in UNSHIPPED else ())
    for name, recipe in DEBUG.items()
    if recipe.task == "classify"
]
PRETRAININGS = [name for name, recipe in DEBUG.items() if recipe.task == "reconstruct"]
OTHERS = [name for name, recipe in DEBUG.items() if recipe.task != "classify"]
STEPS = 6


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_dataset(tmp_path_factory.mktemp("data") / "toy.parquet", 160)


def train(name: str, data: Path, out: Path, *more: str) -> None:
    main(["fit", name, "--data", str(data), "--out", str(out), "--steps", str(STEPS), "--threads", "1", *more])


def test_every_architecture_has_a_debug_recipe_for_each_of_its_tasks() -> None:
    covered = {(recipe.network.architecture, recipe.task) for recipe in DEBUG.values()}
    tasks = {(name, task) for name, architecture in ARCHITECTURES.items() for task in architecture.tasks}
    assert covered == tasks


@pytest.mark.parametrize("name", DEBUG)
def test_training_resumes_exactly(name: str, data: Path, tmp_path: Path) -> None:
    train(name, data, tmp_path / "whole")
    for _ in range(2):
        train(name, data, tmp_path / "parts", "--max-minutes", "0.0001")
    train(name, data, tmp_path / "parts")
    whole, parts = (load_checkpoint(tmp_path / part / CHECKPOINT) for part in ("whole", "parts"))
    assert whole.step == parts.step == STEPS
    assert all(np.array_equal(value, parts.network[key]) for key, value in whole.network.items())


@pytest.mark.parametrize("name", PRETRAININGS)
def test_pretrained_weights_reach_the_classifier(name: str, data: Path, tmp_path: Path) -> None:
    train(name, data, tmp_path / "pretrained")
    classifier = name.removesuffix("-pretraining")
    train(classifier, data, tmp_path / "tuned", "--pretrained", str(tmp_path / "pretrained"))
    before, after = load_best(tmp_path / "pretrained"), load_best(tmp_path / "tuned")
    shared = [key for key, value in before.items() if key in after and after[key].shape == value.shape]
    assert any(key.startswith("encoder") or key.startswith("light_curve") for key in shared)
    assert any("embed" in key or "projection" in key for key in shared), "the input projection comes along"


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_is_exported_and_served(
    name: str, data: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Export proves parity over ragged batches and every expert; the service then answers as the golden vectors do."""
    if name == "debug":  # exported by the same commands for other tests
        pipeline: Pipeline = request.getfixturevalue("pipeline")
        bundle = load_bundle(pipeline.bundle)
    else:
        bundle = _export(name, data, tmp_path)
    assert bundle.manifest.architecture == DEBUG[name].network.architecture
    with live(load_one, bundle=bundle.path) as edge:
        status, reply = edge.classify({"light_curves": [curve(points) for points in (1, 4, 9, 40)]})
        assert status == 200
        first, *others = reply["results"]  # one point, in u
        assert first["status"] == ("classified" if "u" in bundle.manifest.bands else "abstained")
        for result in others:
            assert result["status"] == "classified"
            assert sum(result["probabilities"].values()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_export_of_a_run_that_is_no_classifier_raises(name: str, data: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="only classifiers are exported"):
        _export(name, data, tmp_path)


def _export(name: str, data: Path, folder: Path) -> Bundle:
    train(name, data, folder / "run")
    assert (folder / "run" / BEST).exists()
    main(["export", str(folder / "run"), str(folder / "bundle"), "--data", str(data), "--name", name])
    return load_bundle(folder / "bundle")
