"""The loop by itself, on a task of a few numbers: resume, scores, averages, devices, decay groups."""

import csv
import errno
import io
import logging
import re
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from nightjar_alerts.training.fit import checkpoints
from nightjar_alerts.training.fit.checkpoints import CHECKPOINT, RunError, load_best, load_checkpoint, read_log
from nightjar_alerts.training.fit.curves import METRICS, PICTURE
from nightjar_alerts.training.fit.loop import StepLoss, Task, fit, lr_factor, to_device, update_average
from nightjar_alerts.training.recipes.schema import FitConfig, OptimizerConfig, ScheduleConfig, ValidationConfig


class Pair(NamedTuple):
    x_B3: Tensor
    y_B1: Tensor


class Line(Task):
    """y = x . (1, 2, 3), learned from eight points a step."""

    def batches(self, step: int) -> Generator[Pair, None, None]:
        while True:
            x_B3 = torch.from_numpy(np.random.default_rng((7, step)).normal(size=(8, 3))).float()
            yield Pair(x_B3, (x_B3 * torch.tensor([1.0, 2.0, 3.0])).sum(1, keepdim=True))
            step += 1

    def loss(self, network: nn.Module, batch: Pair) -> StepLoss:
        error = network(batch.x_B3) - batch.y_B1
        return StepLoss(error.square().mean(), {"error": error.abs().mean()})

    def score(self, network: nn.Module) -> dict[str, float]:
        batch = next(self.batches(10**6))
        rmse = (network(batch.x_B3) - batch.y_B1).square().mean().sqrt().item()
        return {"score": -rmse, "rmse": rmse}


def config(steps: int = 40, **changes: Any) -> FitConfig:
    base = FitConfig(
        name="line",
        schedule=ScheduleConfig(steps=steps, warmup_steps=2),
        optimizer=OptimizerConfig(lr=0.3, ema_decay=0.5),
        validation=ValidationConfig(every=10, log_every=5),
        threads=1,
    )
    return base.model_copy(update=changes)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Dropout(0.1), nn.Linear(3, 1))


def test_the_loop_learns_scores_and_logs(tmp_path: Path) -> None:
    result = fit(network(), Line(), config(), tmp_path, config(), progress=False)
    assert (result.step, result.finished) == (40, True)
    lines = read_log(tmp_path)
    assert [line["step"] for line in lines if "loss" in line] == [5, 10, 15, 20, 25, 30, 35, 40]
    first, last = (line for line in lines if line["step"] in (5, 40) and "loss" in line)
    assert last["loss"] < 0.2 * first["loss"]
    assert last["seconds_per_step"] > 0
    assert last["error"] > 0
    scores = [line["validation_score"] for line in lines if "validation_score" in line]
    assert len(scores) == 4
    assert result.best_score == max(scores)
    restored = network()
    restored.load_state_dict(load_best(tmp_path))
    assert Line().score(restored.eval())["score"] == pytest.approx(result.best_score)


class Contrary(Line):
    """Scored the better the worse it fits."""

    def score(self, network: nn.Module) -> dict[str, float]:
        return {"score": -super().score(network)["score"]}


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_weights_kept_are_the_best_or_the_last(tmp_path: Path, keep: str) -> None:
    validation = ValidationConfig.model_validate({"every": 10, "log_every": 5, "keep": keep})
    chosen = config(validation=validation)
    result = fit(network(), Contrary(), chosen, tmp_path, chosen, progress=False)
    last = load_checkpoint(tmp_path / CHECKPOINT).average
    assert last is not None
    is_last = all(torch.equal(value, last[name]) for name, value in load_best(tmp_path).items())
    assert is_last == (keep == "last")
    scores = [line["validation_score"] for line in read_log(tmp_path) if "validation_score" in line]
    assert result.best_score == max(scores) > scores[-1]


def test_an_interrupted_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    fit(network(), Line(), config(), tmp_path / "whole", config(), progress=False)
    for _ in range(3):
        fit(network(), Line(), config(), tmp_path / "parts", config(), max_minutes=1e-4, progress=False)
    result = fit(network(), Line(), config(), tmp_path / "parts", config(), progress=False)
    assert result.finished
    whole, parts = (load_checkpoint(tmp_path / name / CHECKPOINT) for name in ("whole", "parts"))
    assert all(torch.equal(value, parts.network[name]) for name, value in whole.network.items())


def test_another_configuration_in_the_folder_is_refused(tmp_path: Path) -> None:
    fit(network(), Line(), config(10), tmp_path, config(10), progress=False)
    with pytest.raises(RunError, match=r"another run \(schedule\.steps is 10, now 20\)"):
        fit(network(), Line(), config(20), tmp_path, config(20), progress=False)


def test_fit_with_a_checkpoint_of_another_network_names_it(tmp_path: Path) -> None:
    fit(network(), Line(), config(), tmp_path, config(), max_minutes=0, progress=False)
    with pytest.raises(RunError, match=r"checkpoint\.pt is that of another network"):
        fit(nn.Linear(2, 1), Line(), config(), tmp_path, config(), progress=False)


def test_fit_into_a_file_names_it(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(RunError, match="run is a file"):
        fit(network(), Line(), config(), tmp_path / "run", config(), progress=False)


def test_fit_in_a_pipe_prints_a_line_for_each_validation(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fit(network(), Line(), config(20), tmp_path, config(20), progress=True)
    out, err = capfd.readouterr()
    first, last = err.splitlines()
    assert out == ""
    assert re.fullmatch(
        r"line: step 10 of 20, loss [\d.]+, rmse [\d.]+, best score -[\d.]+, [\d.]+ steps/s, 00:0\d left", first
    )
    assert last.startswith("line: step 20 of 20")


def test_fit_writes_metrics_as_a_table_and_a_picture(tmp_path: Path) -> None:
    fit(network(), Line(), config(), tmp_path, config(), progress=False)
    with (tmp_path / METRICS).open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert [bool(row["validation_rmse"]) for row in rows] == [False, True] * 4
    assert all(float(row["loss"]) > 0 for row in rows)
    assert (tmp_path / PICTURE).read_bytes().startswith(b"\x89PNG")


def test_on_a_terminal_there_is_a_bar_and_warnings_stand_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    class Warned(Line):
        def line(self, step: int, means: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
            logging.getLogger("training").warning("look at step %d", step)
            return {}

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    fit(network(), Warned(), config(10), tmp_path, config(10))
    lines = terminal.getvalue().replace("\r", "\n").splitlines()
    assert "look at step 5" in [line.strip() for line in lines]
    last = [line for line in lines if line.startswith("line:")][-1]
    assert "10/10" in last
    assert "loss=" in last
    assert "best=-" in last  # minus an error


def test_make_optimizer_with_matrices_does_not_decay_biases(tmp_path: Path) -> None:
    for decay in ("all", "matrices"):
        optimizer = OptimizerConfig(lr=1e-6, weight_decay=1e5, decay=decay)
        fit(network(), Line(), config(5, optimizer=optimizer), tmp_path / decay, config(), progress=False)
    spared, decayed = (load_checkpoint(tmp_path / name / CHECKPOINT).network for name in ("matrices", "all"))
    before = network().state_dict()
    torch.testing.assert_close(spared["1.bias"], before["1.bias"], atol=1e-4, rtol=1e-4)
    for weights in (spared["1.weight"], decayed["1.weight"], decayed["1.bias"]):
        assert weights.abs().max() < 0.8 * max(before["1.weight"].abs().max(), before["1.bias"].abs().max())


def test_batches_of_any_shape_move_to_the_device() -> None:
    x = torch.zeros(2)
    moved = to_device({"a": [x, (x, 3)], "b": Pair(x, x)}, "meta")
    assert moved["a"][0].device.type == moved["a"][1][0].device.type == moved["b"].y_B1.device.type == "meta"
    assert moved["a"][1][1] == 3
    assert isinstance(moved["b"], Pair)


def test_devices_are_named() -> None:
    with pytest.raises(ValidationError):
        FitConfig.model_validate({**config().model_dump(), "device": "gpu"})


def test_learning_rate_warms_up_then_decays() -> None:
    schedule = ScheduleConfig(steps=110, warmup_steps=10, final_fraction=0.1)
    factors = [lr_factor(step, schedule) for step in range(110)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9] == factors[10] == 1.0
    assert factors[60] == pytest.approx(0.55)
    assert factors == sorted(factors[:10]) + sorted(factors[10:], reverse=True)
    assert lr_factor(110, schedule) == pytest.approx(0.1)
    assert lr_factor(999, schedule.model_copy(update={"shape": "constant"})) == 1.0


def test_warm_restarts_repeat_the_cosine_without_the_warm_up() -> None:
    once = ScheduleConfig(steps=110, warmup_steps=10, final_fraction=0.1)
    twice = once.model_copy(update={"steps": 220, "cycles": 2})
    assert [lr_factor(step, twice) for step in range(110)] == [lr_factor(step, once) for step in range(110)]
    second = [lr_factor(step, twice) for step in range(110, 220)]
    assert second[0] == 1.0
    assert second == sorted(second, reverse=True)
    assert lr_factor(220, twice) == pytest.approx(0.1)


def test_averaged_weights_forget_the_start_and_follow_slowly() -> None:
    average, followed = nn.Linear(3, 1), nn.Linear(3, 1)
    for step, share in ((1, 9 / 11), (10**6, 0.01)):
        before = average.weight.detach().clone()
        update_average(average, followed, 0.99, step)
        moved = (average.weight - before).norm() / (followed.weight - before).norm()
        assert moved.item() == pytest.approx(share, rel=1e-2)


class Interrupted(Line):
    """Gets a signal during the loss of its seventh step."""

    def __init__(self, number: signal.Signals) -> None:
        self.number, self.losses = number, 0

    def loss(self, network: nn.Module, batch: Pair) -> StepLoss:
        self.losses += 1
        if self.losses == 7:
            signal.raise_signal(self.number)
        return super().loss(network, batch)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_fit_after_a_signal_saves_the_step_and_resumes(number: signal.Signals, tmp_path: Path) -> None:
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt, match="stopped at step 7; run the same command"):
        fit(network(), Interrupted(number), config(), tmp_path / "run", config(), progress=False)
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    fit(network(), Line(), config(), tmp_path / "run", config(), progress=False)
    fit(network(), Line(), config(), tmp_path / "whole", config(), progress=False)
    for name, value in load_best(tmp_path / "whole").items():
        assert torch.equal(load_best(tmp_path / "run")[name], value)


def assert_resumes_as(whole: Path, run: Path) -> None:
    """Resume a run and compare its weights with those of an uninterrupted one."""
    fit(network(), Line(), config(), run, config(), progress=False)
    fit(network(), Line(), config(), whole, config(), progress=False)
    assert all(torch.equal(load_best(run)[name], value) for name, value in load_best(whole).items())


def test_fit_on_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, save = [], torch.save

    def full(content: object, file: Any) -> None:
        calls.append(file)
        if len(calls) > 2:  # the weights and the checkpoint of the first validation fit
            raise OSError(errno.ENOSPC, "No space left on device")
        save(content, file)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(RunError, match=r"No space left on device\. The checkpoint of step 10 is kept\. Run the same"):
        fit(network(), Line(), config(), tmp_path / "run", config(), progress=False)
    monkeypatch.undo()
    assert_resumes_as(tmp_path / "whole", tmp_path / "run")


def test_save_weights_on_a_full_disk_raises_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "best.pt.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save_weights(tmp_path / "best.pt", network().state_dict())
    assert list(tmp_path.iterdir()) == []


class Broken(Line):
    """A loss whose value or gradient is not finite in its fifteenth step."""

    def __init__(self, factor: float) -> None:
        self.factor, self.losses = factor, 0

    def loss(self, network: nn.Module, batch: Pair) -> StepLoss:
        self.losses += 1
        loss = super().loss(network, batch).loss
        return StepLoss(loss if self.losses < 15 else (loss - loss.detach()).abs().sqrt() + self.factor, {})


@pytest.mark.parametrize(("factor", "name"), [(float("nan"), "loss"), (1.0, "gradient")])
def test_fit_with_a_value_that_is_not_finite_keeps_the_last_checkpoint(
    factor: float, name: str, tmp_path: Path
) -> None:
    with pytest.raises(FloatingPointError, match=f"the {name} is nan at step 14. The checkpoint of step 10 is kept"):
        fit(network(), Broken(factor), config(), tmp_path / "run", config(), progress=False)
    assert_resumes_as(tmp_path / "whole", tmp_path / "run")


def test_fit_saves_no_weights_that_are_not_finite(tmp_path: Path) -> None:
    wild = config(10, optimizer=OptimizerConfig(lr=1e39))
    with pytest.raises(FloatingPointError, match="No checkpoint has been saved"):
        fit(network(), Line(), wild, tmp_path, wild, progress=False)
    assert not (tmp_path / CHECKPOINT).exists()


def test_fit_without_a_gpu_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no CUDA device"):
        fit(network(), Line(), config(device="cuda"), tmp_path, config(), progress=False)
