import math
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nightjar_alerts.models.networks.romae import RoMAEEncoderConfig, SequenceModel
from nightjar_alerts.training.experiments.position import VARIANCE, Examples, Position, Regression, draw_positions
from nightjar_alerts.training.experiments.runner import ExperimentPlan, epochs, fit_config, read_records, run

SMALL = RoMAEEncoderConfig(d_model=24, n_heads=2, depth=2, d_ff=24)


def test_positions_are_uniform_from_1_to_50() -> None:
    test_NL = draw_positions("test")
    assert test_NL.shape == (4_000, 10)
    assert draw_positions("train").shape == (20_000, 10)
    assert (test_NL.min() >= 1.0, test_NL.max() <= 50.0) == (True, True)
    assert test_NL.mean() == pytest.approx(25.5, abs=0.3)
    assert test_NL.var() == pytest.approx(49.0**2 / 12, rel=0.02)
    assert pytest.approx(200.083, abs=1e-3) == VARIANCE


def test_the_draws_are_fixed_and_disjoint() -> None:
    np.testing.assert_array_equal(draw_positions("test"), draw_positions("test"))
    assert not np.isin(draw_positions("test")[:, 0], draw_positions("train")[:4_000, 0]).any()


@pytest.mark.parametrize(("width", "millions"), [(180, 4.67), (432, 16.4), (720, 37.3)])
def test_networks_have_the_published_sizes(width: Literal[180, 432, 720], millions: float) -> None:
    plan = Position(width=width).plan()
    assert isinstance(plan.network, SequenceModel)
    parameters = sum(parameter.numel() for parameter in plan.network.encoder.parameters())
    assert parameters / 1e6 == pytest.approx(millions, rel=3e-3)
    assert (plan.published_steps, plan.fit.schedule.warmup_steps) == (3_130, 625)
    assert (plan.fit.optimizer.lr, plan.fit.optimizer.weight_decay, plan.fit.optimizer.clip_norm) == (5e-4, 0.01, None)


def test_without_cls_every_token_says_the_same() -> None:
    """All values are equal, so attention mixes equals: not even differences of positions show."""
    torch.manual_seed(0)
    position_BL1 = torch.rand(3, 10, 1) * 49 + 1
    mask_BL, ones = torch.ones(3, 10, dtype=torch.bool), torch.ones(3, 10, 1)
    spreads = []
    for cls in (False, True):
        network = SequenceModel(1, 1, 1, SMALL, "token", cls=cls).eval()
        for parameter in network.parameters():
            nn.init.normal_(parameter, std=0.3)  # attention has something to look at, in the [CLS] token too
        with torch.inference_mode():
            out_BL1 = network(ones, position_BL1, mask_BL)
        spreads.append(float(out_BL1.std() / out_BL1.abs().mean()))
    assert spreads[0] < 1e-5
    assert spreads[1] > 1e-3


def small_plan(options: Position) -> ExperimentPlan:
    torch.manual_seed(options.seed)
    position_NL1 = torch.from_numpy(draw_positions("test"))[:64, :, None]
    examples = Examples(torch.ones_like(position_NL1), position_NL1, position_NL1)
    task = Regression(examples, examples, batch_size=16, seed=options.seed)
    return ExperimentPlan(
        variant="small",
        network=SequenceModel(1, 1, 1, SMALL, "token", cls=options.cls),
        task=task,
        fit=fit_config(options, steps=40, warmup=8, lr=1e-3, clip_norm=None),
        published_steps=40,
        measure=lambda network: {"MSE": task.mse(network, examples)},
        floor={"MSE": 0.0},
    )


def test_a_run_ends_in_a_record(tmp_path: Path) -> None:
    options = Position(steps=10, records=tmp_path / "records", runs=tmp_path / "runs")
    record = run(options, small_plan(options))
    assert record is not None
    assert read_records("position", options.records) == [record]
    assert (record.steps, record.published_steps, record.threads, record.seed) == (10, 40, 1, 40)
    assert record.settings["fit"]["schedule"]["warmup_steps"] == 2
    assert math.isfinite(record.metrics["MSE"])
    assert record.minutes >= 0


def test_a_run_that_is_cut_off_goes_on_to_the_same_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = Position(steps=6, records=tmp_path / "records", runs=tmp_path / "cut", max_minutes=1e-9)
    assert run(cut, small_plan(cut)) is None
    assert "stopped at step 0 of 6" in capsys.readouterr().out
    resumed = run(cut.model_copy(update={"max_minutes": None}), small_plan(cut))
    whole = Position(steps=6, records=tmp_path / "records", runs=tmp_path / "whole")
    uninterrupted = run(whole, small_plan(whole))
    assert resumed is not None
    assert uninterrupted is not None
    assert resumed.metrics == uninterrupted.metrics


def test_epochs_show_every_example_once_and_can_begin_anywhere() -> None:
    indices = epochs(10, 4, seed=3, step=0)
    first = [next(indices) for _ in range(6)]
    assert [len(index) for index in first] == [4, 4, 2, 4, 4, 2]
    assert sorted(np.concatenate(first[:3])) == list(range(10))
    assert not np.array_equal(np.concatenate(first[:3]), np.concatenate(first[3:]))
    np.testing.assert_array_equal(next(epochs(10, 4, seed=3, step=4)), first[4])


class Constant(nn.Module):
    """Predicts the same number for every token."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))

    def forward(self, values_BLK: Tensor, position_BLA: Tensor, mask_BL: Tensor) -> Tensor:
        return self.value.expand_as(position_BLA)


def test_the_mean_scores_the_variance() -> None:
    position_NL1 = torch.from_numpy(draw_positions("test"))[..., None]
    examples = Examples(torch.ones_like(position_NL1), position_NL1, position_NL1)
    task = Regression(examples, examples, batch_size=16, seed=0)
    assert task.mse(Constant(25.5), examples) == pytest.approx(VARIANCE, abs=3.0)
    step = task.loss(Constant(0.0), examples.take(slice(2)))
    assert step.loss.item() == pytest.approx(float((position_NL1[:2] ** 2).mean()), rel=1e-5)
