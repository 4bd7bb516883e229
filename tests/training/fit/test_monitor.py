"""Starved experts: warnings, log lines, and a router that collapses."""

import logging
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from nightjar_alerts.models.networks.astro_moe import AstroMoEConfig
from nightjar_alerts.training.data.dataset import read_dataset, split_indices
from nightjar_alerts.training.fit.checkpoints import DataSource, RunConfig, read_log
from nightjar_alerts.training.fit.loop import INTERVALS, STARVED, StarvationWatch, expert_shares, fit, load_range
from nightjar_alerts.training.fit.train import TASKS, start
from nightjar_alerts.training.recipes.astro_moe import debug, debug_pretraining
from nightjar_alerts.training.recipes.schema import OptimizerConfig, ScheduleConfig, ValidationConfig
from support.toy_dataset import write_toy_dataset

FAIR, FALLEN = np.array([1.0, 1.0, 1.0]), np.array([1.6, STARVED / 2, 1.35])


def test_an_expert_starves_after_three_lines_and_is_reported_once_per_fall(caplog: pytest.LogCaptureFixture) -> None:
    watch = StarvationWatch(first_step=10)
    with caplog.at_level(logging.WARNING):
        for step in (2, 4, 6, 8):
            assert watch.update(step, {"block_0": FALLEN}) == {}, "warm-up is not watched"
        reports = [watch.update(step, {"block_0": FALLEN, "input": FAIR}) for step in (10, 20, 30, 40)]
        assert reports == [{}, {}, {"block_0": [1]}, {"block_0": [1]}]
        assert [record.args for record in caplog.records] == [(30, 1, "block_0", STARVED, INTERVALS, STARVED / 2)]
        assert "step 30: expert 1 of mixture block_0 has had under 0.1 of an even share" in caplog.text
        assert watch.update(50, {"block_0": FAIR}) == {}
        assert [watch.update(step, {"block_0": FALLEN}) for step in (60, 70)] == [{}, {}]
        assert watch.update(80, {"block_0": FALLEN}) == {"block_0": [1]}
        assert len(caplog.records) == 2


def test_shares_are_relative_to_an_even_share() -> None:
    means = {"load/input": np.array([10.0, 30.0]), "load/block_0": np.zeros(2), "padding": np.array(0.2)}
    shares = expert_shares(means)
    assert {name: share.tolist() for name, share in shares.items()} == {"input": [0.5, 1.5]}
    assert load_range(shares) == {"input": [0.5, 1.5]}


@pytest.mark.parametrize("task", ["classify", "reconstruct"])
def test_a_collapsing_router_sets_off_the_alarm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, task: Literal["classify", "reconstruct"]
) -> None:
    """The balance loss turned round draws tokens together: training itself empties two of four experts."""
    data = write_toy_dataset(tmp_path / "toy.parquet", 120)
    base = debug() if task == "classify" else debug_pretraining()
    assert isinstance(base.network, AstroMoEConfig)
    recipe = base.model_copy(
        update={
            "network": base.network.model_copy(update={"aux_weight": -3.0, "n_input_experts": 0}),
            "schedule": ScheduleConfig(steps=36, warmup_steps=3),
            "optimizer": OptimizerConfig(lr=1e-2),
            "batch": base.batch.model_copy(update={"size": 8}),
            "validation": ValidationConfig(every=36, objects=4, log_every=3),
            "threads": 1,
        }
    )
    dataset = read_dataset(data)
    split = split_indices(dataset)
    network = start(recipe, dataset, split["train"])
    identity = RunConfig(recipe=recipe, data=DataSource(name="toy", sha256="0" * 64, objects=120))
    with caplog.at_level(logging.WARNING):
        fit(network, TASKS[task](recipe, dataset, split), recipe, tmp_path / "run", identity, progress=False)
    lines = [line for line in read_log(tmp_path / "run") if "loss" in line]
    assert [line["starved_experts"] for line in lines[: INTERVALS - 1]] == [{}] * (INTERVALS - 1)
    last = lines[-1]
    assert last["starved_experts"].keys() == {"block_0", "block_1"}
    assert all(smallest < STARVED for smallest, _ in last["expert_load"].values())
    for mixture, experts in last["starved_experts"].items():
        assert len(experts) == 2, "two of four, as every token takes two"
        assert all(f"expert {expert} of mixture {mixture} has had under" in caplog.text for expert in experts)
