"""Training runs on light curves: exact resume, determinism, learning, what they write, pretrained weights."""

import multiprocessing
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nightjar_alerts.models.networks.zoo import build
from nightjar_alerts.training.data.batches import batches_of_pool
from nightjar_alerts.training.data.dataset import read_dataset, split_indices
from nightjar_alerts.training.fit import loop
from nightjar_alerts.training.fit.checkpoints import (
    BEST,
    CHECKPOINT,
    RunError,
    State,
    load_checkpoint,
    load_network,
    read_log,
)
from nightjar_alerts.training.fit.loop import Task, TrainingRun
from nightjar_alerts.training.fit.tasks import draw_validation, loss_of, predict
from nightjar_alerts.training.fit.train import train
from nightjar_alerts.training.recipes.astro_moe import debug
from nightjar_alerts.training.recipes.schema import OptimizerConfig, Recipe, ScheduleConfig, ValidationConfig
from support.toy_dataset import write_toy_dataset

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_dataset(tmp_path_factory.mktemp("data") / "toy.parquet", 120)


def tiny(steps: int = 6, **changes: object) -> Recipe:
    """A recipe of a few seconds, with dropout on so that the resumed random numbers matter."""
    base = debug()
    update: dict[str, object] = {
        "network": base.network.model_copy(update={"n_blocks": 1, "dropout": 0.1}),
        "batch": base.batch.model_copy(update={"size": 8, "pool": 4}),
        "schedule": ScheduleConfig(steps=steps, warmup_steps=2),
        "validation": ValidationConfig(every=3, objects=10, log_every=2),
        "threads": 1,
    }
    return base.model_copy(update=update | changes)


def assert_same(left: State, right: State) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(data: Path, tmp_path: Path) -> None:
    recipe = tiny()
    train(recipe, data, tmp_path / "whole", progress=False)
    halfway = train(recipe, data, tmp_path / "halves", max_minutes=1e-9, progress=False)
    assert (halfway.step, halfway.finished) == (0, False)
    _train_until_killed(recipe, data, tmp_path / "halves")
    # Killed after step 3's checkpoint, possibly after further steps that were logged and must be forgotten.
    assert load_checkpoint(tmp_path / "halves" / CHECKPOINT).step == 3
    resumed = train(recipe, data, tmp_path / "halves", progress=False)
    assert resumed.finished
    whole, halves = (load_checkpoint(tmp_path / name / CHECKPOINT) for name in ("whole", "halves"))
    assert_same(whole.network, halves.network)
    assert whole.average is not None
    assert halves.average is not None
    assert_same(whole.average, halves.average)
    for number, moments in whole.optimizer["state"].items():
        assert_same(moments, halves.optimizer["state"][number])
    assert whole.best_score == halves.best_score
    steps = [line["step"] for line in read_log(tmp_path / "halves") if "loss" in line]
    assert steps == [2, 4, 6]


def _train_until_killed(recipe: Recipe, data: Path, folder: Path) -> None:
    """Train in another process and kill -9 it once it has passed the first checkpoint."""
    worker = multiprocessing.get_context("spawn").Process(target=_train_slowly, args=(recipe, data, folder))
    worker.start()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (folder / "slow").exists():
            break
        time.sleep(0.05)
    worker.kill()
    worker.join()
    assert (folder / "slow").exists()


def _train_slowly(recipe: Recipe, data: Path, folder: Path) -> None:
    """Train, but fall asleep in step 5 so that the kill lands between two checkpoints."""
    step = loop.train_step

    def sleepy(run: TrainingRun, task: Task, batch: Any, interval: loop.Interval) -> None:
        step(run, task, batch, interval)
        if run.step == 5:
            (folder / "slow").touch()
            time.sleep(600)

    loop.train_step = sleepy
    train(recipe, data, folder, progress=False)


def test_two_runs_of_a_recipe_are_the_same_run_and_seeds_differ(data: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(tiny(3, seed=seed), data, tmp_path / name, progress=False)
    a, b, c = (load_checkpoint(tmp_path / name / CHECKPOINT).network for name in "abc")
    assert_same(a, b)
    assert not torch.equal(a["head_mix.1.weight"], c["head_mix.1.weight"])


def test_training_lowers_the_loss_and_raises_the_score(data: Path, tmp_path: Path) -> None:
    recipe = tiny(
        120, optimizer=OptimizerConfig(lr=5e-3), validation=ValidationConfig(every=60, objects=10, log_every=20)
    )
    result = train(recipe, data, tmp_path, progress=False)
    losses = [line["loss"] for line in read_log(tmp_path) if "loss" in line]
    assert losses[0] > 4  # three heads that start near ln 20 each
    assert losses[-1] < 3
    assert result.best_score > 0.2


def test_the_log_says_what_matters(data: Path, tmp_path: Path) -> None:
    train(tiny(), data, tmp_path, progress=False)
    line = next(line for line in read_log(tmp_path) if "loss" in line)
    assert line["loss"] > 0
    assert line["lr"] > 0
    assert line["curves_per_second"] > 0
    assert 0 <= line["padding"] < 1
    assert set(line["expert_load"]) == {"input", "block_0"}
    assert line["starved_experts"] == {}
    for smallest, largest in line["expert_load"].values():
        assert 0 <= smallest <= 1 <= largest
    validation = [line for line in read_log(tmp_path) if "validation_macro_f1" in line]
    assert [line["step"] for line in validation] == [3, 6]


def test_the_exported_weights_are_the_best_averaged_ones(data: Path, tmp_path: Path) -> None:
    recipe = tiny()
    result = train(recipe, data, tmp_path, progress=False)
    network, config = load_network(tmp_path)
    assert not network.training
    assert config.recipe == recipe
    assert config.data.objects == 120
    validation = draw_validation(read_dataset(data), split_indices(read_dataset(data))["validation"], recipe)
    first = predict(network, validation)
    assert np.array_equal(first, predict(network, validation))
    scores = [line["validation_macro_f1"] for line in read_log(tmp_path) if "validation_macro_f1" in line]
    assert result.best_score == max(scores)


def test_a_finished_run_is_left_alone(data: Path, tmp_path: Path) -> None:
    train(tiny(3), data, tmp_path, progress=False)
    before = (tmp_path / BEST).stat().st_mtime_ns
    result = train(tiny(3), data, tmp_path, progress=False)
    assert (result.step, result.finished) == (3, True)
    assert (tmp_path / BEST).stat().st_mtime_ns == before


def test_another_recipe_in_the_same_folder_is_refused(data: Path, tmp_path: Path) -> None:
    train(tiny(3), data, tmp_path, progress=False)
    with pytest.raises(RunError, match="another run"):
        train(tiny(4), data, tmp_path, progress=False)
    other = write_toy_dataset(tmp_path / "other.parquet", 40, seed=9)
    with pytest.raises(RunError, match="another run"):
        train(tiny(3), other, tmp_path, progress=False)


def test_too_few_objects_are_refused(tmp_path: Path) -> None:
    few = write_toy_dataset(tmp_path / "few.parquet", 2)
    with pytest.raises(ValueError, match="too few"):
        train(tiny(), few, tmp_path / "run", progress=False)


def test_patience_ends_a_run_that_does_not_improve(data: Path, tmp_path: Path) -> None:
    schedule = ScheduleConfig(steps=1000, shape="constant", patience=2)
    frozen = OptimizerConfig(lr=1e-12)
    validation = ValidationConfig(every=1, objects=10)
    result = train(tiny(schedule=schedule, optimizer=frozen, validation=validation), data, tmp_path, progress=False)
    assert (result.step, result.finished) == (3, True)


def test_fit_with_a_diverging_loss_raises(data: Path, tmp_path: Path) -> None:
    wild = OptimizerConfig(lr=1e30, clip_norm=None)
    with pytest.raises(FloatingPointError, match="step"):
        train(tiny(20, optimizer=wild), data, tmp_path, progress=False)


@pytest.mark.parametrize("dense", [False, True])
def test_bfloat16_and_dense_networks_train(data: Path, tmp_path: Path, dense: bool) -> None:
    network = tiny().network.model_copy(update={"n_experts": 0, "n_input_experts": 0} if dense else {})
    result = train(tiny(3, bfloat16=True, network=network), data, tmp_path, progress=False)
    assert result.finished


def test_the_loss_is_the_sum_of_three_heads_and_the_weighted_balance_loss(data: Path) -> None:
    recipe = tiny()
    dataset = read_dataset(data)
    batch = batches_of_pool(dataset, split_indices(dataset)["train"], recipe, 0)[0]
    network = build(recipe.network).eval()
    output = network(*batch.inputs_of(network))
    assert output.aux_loss is not None
    expected = 0.01 * output.aux_loss.item()
    for logits in (output.logits_BC, *output.other_logits):
        chosen = logits.log_softmax(1)[torch.arange(len(batch.label_B)), batch.label_B]
        expected -= chosen.mean().item()
    assert loss_of(output, batch.label_B, recipe.aux_weight).item() == pytest.approx(expected, rel=1e-5)


def test_new_heads_on_frozen_branches(data: Path, tmp_path: Path) -> None:
    """Branches stay to the bit what they were; the scales of statistics are those of training objects."""
    train(tiny(), data, tmp_path / "first", progress=False)
    base = tiny()
    heads = {"d_statistics": 8, "head_copies": 2, "head_width": 16, "head_dropout": 0.3, "dropout": 0.0}
    recipe = base.model_copy(
        update={
            "network": base.network.model_copy(update=heads),
            "optimizer": OptimizerConfig(lr=1e-2, body_lr=0.0, weight_decay=0.5),
        }
    )
    train(recipe, data, tmp_path / "second", pretrained=tmp_path / "first", progress=False)
    first, second = (load_network(tmp_path / name)[0].state_dict() for name in ("first", "second"))
    body = [name for name in second if not name.startswith(("head", "statistics"))]
    assert_same({name: first[name] for name in body}, {name: second[name] for name in body})
    assert second["statistics.mean_K"].abs().sum() > 0
    lines = [line for line in read_log(tmp_path / "second") if "loss" in line]
    assert all(line["starved_experts"] == {} for line in lines)
    assert lines[-1]["loss"] < lines[0]["loss"]


@pytest.mark.parametrize("keep_heads", [False, True])
def test_train_on_pretrained_run_keeps_heads_only_with_keep_heads(keep_heads: bool, data: Path, tmp_path: Path) -> None:
    train(tiny(), data, tmp_path / "first", progress=False)
    frozen = OptimizerConfig(lr=1e-12, weight_decay=0.0)
    recipe = tiny().model_copy(update={"optimizer": frozen, "seed": 1, "keep_heads": keep_heads})
    train(recipe, data, tmp_path / "second", pretrained=tmp_path / "first", progress=False)
    first, second = (load_network(tmp_path / name)[0].state_dict() for name in ("first", "second"))
    heads = [name for name in first if name.startswith("head") and name.endswith("weight")]
    assert heads
    assert all(torch.allclose(first[name], second[name], atol=1e-6) == keep_heads for name in heads)


def test_train_on_pretrained_weights_states_which_were_taken(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny(3), data, tmp_path / "first", progress=False)
    wider = tiny(3, network=tiny().network.model_copy(update={"d_tab": 64, "tab_ff": 64}))
    train(wider, data, tmp_path / "second", pretrained=tmp_path / "first")
    first, *reasons = capsys.readouterr().err.splitlines()[:3]
    assert re.fullmatch(rf"\d+ of \d+ tensors are from {tmp_path / 'first'}", first)
    assert re.fullmatch(r"  new \(another shape\): .*metadata \(\d+\)", reasons[0])
    assert re.fullmatch(r"  new \(heads\): head_lc \(\d+\).*", reasons[1])
