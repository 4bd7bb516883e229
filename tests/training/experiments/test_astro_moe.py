"""The arms of Astro-MoE's ablations: differences, shared settings, and runs on tiny data."""

from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.training.experiments import astro_moe
from nightjar_alerts.training.experiments.astro_moe import CHANGES, AstroMoEArm, mallorn, recipe_of, run_arm
from nightjar_alerts.training.experiments.runner import RunRecord
from nightjar_alerts.training.fit.tasks import ClassificationTask
from nightjar_alerts.training.importers.surveys import MALLORN_CLASSES, read_mallorn, to_dataset
from support.mallorn import write_mallorn
from support.toy_dataset import write_toy_dataset


def options(folder: Path, **changes: object) -> AstroMoEArm:
    places = {"runs": folder / "runs", "records": folder / "records"}
    small = {"width": 16, "batch": 8, "steps": 8, "pretrain_steps": 8, "objects": 20, "examples": 100}
    return AstroMoEArm.model_validate({**places, **small, **changes})


def run(folder: Path, **changes: object) -> RunRecord:
    record = run_arm(options(folder, **changes))
    assert record is not None
    return record


def test_each_arm_changes_one_thing_and_shares_the_rest(tmp_path: Path) -> None:
    chosen = options(tmp_path, dataset="simulated", data=tmp_path, arm="tm")
    reference = recipe_of(chosen)
    for arm, changes in CHANGES.items():
        recipe = recipe_of(chosen.model_copy(update={"arm": arm}))
        assert recipe.network == reference.network.model_copy(update=changes)
        assert recipe.model_copy(update={"network": None, "name": ""}) == reference.model_copy(
            update={"network": None, "name": ""}
        )


def test_arms_see_the_same_curves(tmp_path: Path) -> None:
    folder = write_mallorn(tmp_path / "mallorn", objects=60)
    batches = []
    for arm in ("tm", "pe-dense"):
        chosen = options(tmp_path, dataset="mallorn", data=folder, arm=arm)
        problem = mallorn(chosen, recipe_of(chosen))
        batches.append(next(ClassificationTask(recipe_of(chosen), problem.dataset, problem.split).batches(3)))
    assert all(bool((a == b).all()) for a, b in zip(*(batch[:5] for batch in batches), strict=True))


def test_folds_of_mallorn_are_stratified_and_cover_everything(tmp_path: Path) -> None:
    folder = write_mallorn(tmp_path / "mallorn", objects=60)
    tested = []
    for seed in range(5):
        chosen = options(tmp_path, dataset="mallorn", data=folder, arm="tm", seed=seed)
        problem = mallorn(chosen, recipe_of(chosen))
        sides = [set(problem.split[name].tolist()) for name in ("train", "validation", "test")]
        assert sum(map(len, sides)) == len(set.union(*sides)) == 60
        assert (np.bincount(problem.dataset.label[problem.split["test"]], minlength=5) >= 2).all()
        assert {len(examples) for examples in problem.tests.values()} == {12}
        tested += problem.split["test"].tolist()
    assert sorted(tested) == list(range(60))


def test_the_dataset_of_mallorn_keeps_labels_and_metadata(tmp_path: Path) -> None:
    objects = read_mallorn(write_mallorn(tmp_path / "mallorn"))
    dataset = to_dataset(objects)
    curve = dataset.curve(2)
    assert MALLORN_CLASSES[int(dataset.label[2])] == "core-collapse"
    assert curve.metadata == pytest.approx({"z_final": 0.3, "mwebv": 0.05})
    assert curve.flux.tolist() == objects.curves[2].flux.tolist()


@pytest.mark.parametrize("arm", ["tm", "pretrained"])
def test_mallorn_arms_run(tmp_path: Path, arm: str) -> None:
    folder = write_mallorn(tmp_path / "mallorn", objects=60, unlabelled=80)
    record = run(tmp_path, dataset="mallorn", data=folder, arm=arm)
    assert record.variant == f"mallorn-{arm}"
    assert set(record.metrics) == {"macro-F1", "macro-F1, no metadata"}
    assert (record.steps, record.published_steps) == (8, 400_000)
    assert (tmp_path / "runs" / "astro-moe" / "mallorn-16-pretraining-8").exists() == (arm == "pretrained")


def test_pretraining_is_shared_by_the_seeds(tmp_path: Path) -> None:
    data = write_toy_dataset(tmp_path / "toy.parquet", 200)
    run(tmp_path, dataset="simulated", data=data, arm="pretrained", seed=0)
    weights = tmp_path / "runs" / "astro-moe" / "simulated-16-pretraining-8" / "best.pt"
    written = weights.stat().st_mtime_ns
    record = run(tmp_path, dataset="simulated", data=data, arm="pretrained", seed=1)
    assert weights.stat().st_mtime_ns == written
    assert 0 <= record.metrics["macro-F1"] <= 1


def test_trees_are_the_floor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(astro_moe, "FOREST_TREES", 20)
    folder = write_mallorn(tmp_path / "mallorn", objects=60)
    forest = run(tmp_path, dataset="mallorn", data=folder, arm="trees")
    assert forest.metrics["macro-F1"] > 0.5  # flux alone gives the object away
    boosted = run(
        tmp_path, dataset="simulated", data=write_toy_dataset(tmp_path / "toy.parquet", 200), arm="trees", examples=300
    )
    assert boosted.metrics["macro-F1"] > 0.8
