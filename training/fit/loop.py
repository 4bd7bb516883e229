"""The training loop: plain torch, one process, resumable at every step, whatever is trained.

Notable:

- what is trained is a :class:`Task`: batches, a loss, a score. Classification, reconstruction, forecasting and every
  reproduced experiment run through this one loop;
- AdamW with linear warm-up and cosine decay, clipped gradients, and weights averaged over steps where the
  configuration says so: the averaged ones are scored and exported;
- every random number comes from (seed, step), so a run that is killed and started again ends with bitwise the weights
  of an uninterrupted one (same machine, same thread count).
"""

import copy
import math
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import Tensor, nn
from tqdm import tqdm

from training.fit.checkpoints import (
    BEST,
    CHECKPOINT,
    Checkpoint,
    append_log,
    open_run,
    save_checkpoint,
    save_weights,
)
from training.recipes.schema import FitConfig, OptimiserConfig, ScheduleConfig


class Step(NamedTuple):
    """Loss of one batch, and tensors of any shape whose means over an interval the log wants."""

    loss: Tensor
    log: dict[str, Tensor]


class Task(Protocol):
    """What a run does; subclass it."""

    def batches(self, step: int) -> Generator[Any, None, None]:
        """Yield the batch of ``step`` and of every step after it: tensors in tuples or dicts, a function of the step.

        The loop moves them to its device. Anything random in a batch must come from (seed, step), or a resumed run
        is another run.
        """
        ...

    def loss(self, network: nn.Module, batch: Any) -> Step:
        """Loss of one batch, a scalar in float32."""
        ...

    def score(self, network: nn.Module) -> dict[str, float]:
        """Validate: all of it is logged, the key ``score`` decides which weights are kept (larger is better)."""
        ...

    def line(self, step: int, means: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
        """Log line of an interval that ends at ``step``: from the means of what :meth:`loss` logged, and the pace."""
        return {name: mean.tolist() for name, mean in means.items()}


class FitResult(NamedTuple):
    """Outcome of a call of :func:`fit`."""

    step: int
    best_score: float
    finished: bool


@dataclass(slots=True, eq=False)
class Run:
    """The moving parts of a training run."""

    config: FitConfig
    folder: Path
    network: nn.Module
    average: nn.Module | None
    optimiser: torch.optim.Optimizer
    step: int = 0
    best_score: float = -math.inf
    stale: int = 0

    @property
    def scored(self) -> nn.Module:
        """The network that is validated and exported."""
        return self.average or self.network

    @property
    def finished(self) -> bool:
        """Whether the schedule has ended or patience has run out."""
        schedule = self.config.schedule
        return self.step >= schedule.steps or (schedule.patience is not None and self.stale >= schedule.patience)


def fit(
    network: nn.Module,
    task: Task,
    config: FitConfig,
    folder: Path,
    identity: BaseModel,
    *,
    max_minutes: float | None = None,
    progress: bool = True,
) -> FitResult:
    """Train a network, from its present weights or from the folder's checkpoint.

    Parameters
    ----------
    network : as :func:`seeded` made it; its weights are replaced when there is a checkpoint.
    identity : what makes this run this run; a folder that holds another is refused.
    max_minutes : save and return after this long, at the next step; call again to go on.

    Raises
    ------
    RunError
        When the folder holds a different run.
    FloatingPointError
        When the loss stops being finite.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    checkpoint = open_run(folder, identity)
    run = _start(network.to(config.device), config, folder)
    if checkpoint is not None:
        _restore(run, checkpoint)
    deadline = math.inf if max_minutes is None else time.monotonic() + 60.0 * max_minutes
    if not run.finished:
        _loop(run, task, deadline, progress=progress)
    return FitResult(run.step, run.best_score, run.finished)


def _start(network: nn.Module, config: FitConfig, folder: Path) -> Run:
    average = copy.deepcopy(network).eval() if config.optimiser.ema_decay is not None else None
    return Run(config, folder, network, average, _optimiser(config.optimiser, network))


def _restore(run: Run, checkpoint: Checkpoint) -> None:
    run.network.load_state_dict(checkpoint.network)
    if run.average is not None and checkpoint.average is not None:
        run.average.load_state_dict(checkpoint.average)
    run.optimiser.load_state_dict(checkpoint.optimiser)
    run.step, run.best_score, run.stale = checkpoint.step, checkpoint.best_score, checkpoint.stale


def _optimiser(config: OptimiserConfig, network: nn.Module) -> torch.optim.Optimizer:
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in trained if config.decay == "all" or parameter.ndim > 1]
    kept = [parameter for parameter in trained if config.decay == "matrices" and parameter.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": decayed}]
    if kept:
        groups.append({"params": kept, "weight_decay": 0.0})
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True)


def _loop(run: Run, task: Task, deadline: float, *, progress: bool) -> None:
    config = run.config
    batches = task.batches(run.step)
    interval = _Interval()
    with tqdm(total=config.schedule.steps, initial=run.step, desc=config.name, disable=not progress) as bar:
        while not run.finished and time.monotonic() < deadline:
            _train_step(run, task, next(batches), interval)
            bar.update()
            if run.step % config.validation.log_every == 0:
                interval = _log_interval(run, task, interval, bar)
            if run.step % config.validation.every == 0 or run.step == config.schedule.steps:
                _validate(run, task)
                _save(run)
    batches.close()
    if not run.finished:
        _save(run)


def _train_step(run: Run, task: Task, batch: Any, interval: "_Interval") -> None:
    config = run.config
    torch.manual_seed(_step_seed(config.seed, run.step))
    lr = config.optimiser.lr * lr_factor(run.step, config.schedule)
    for group in run.optimiser.param_groups:
        group["lr"] = lr
    run.network.train()
    with torch.autocast(config.device, torch.bfloat16, enabled=config.bfloat16):
        step = task.loss(run.network, to_device(batch, config.device))
    if not torch.isfinite(step.loss):
        raise FloatingPointError(f"the loss is {step.loss.item()} at step {run.step}; lower the learning rate")
    run.optimiser.zero_grad(set_to_none=True)
    step.loss.backward()  # type: ignore[no-untyped-call]
    clip = config.optimiser.clip_norm
    norm = torch.nn.utils.clip_grad_norm_(run.network.parameters(), math.inf if clip is None else clip)
    run.optimiser.step()
    run.step += 1
    if run.average is not None and config.optimiser.ema_decay is not None:
        update_average(run.average, run.network, config.optimiser.ema_decay, run.step)
    interval.add({"loss": step.loss, "gradient_norm": norm, **step.log})


def to_device(batch: Any, device: str | torch.device) -> Any:
    """Move the tensors of a batch: tuples, named tuples, lists and dicts of tensors; other values stay as they are."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {name: to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        moved = (to_device(value, device) for value in batch)
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch


def lr_factor(step: int, schedule: ScheduleConfig) -> float:
    """Learning rate at a step (from 0) as a share of the peak: linear warm-up, then constant or cosines.

    Several cosines are warm restarts (Loshchilov & Hutter 2017, SGDR); the warm-up is part of the first.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    if schedule.shape == "constant":
        return 1.0
    length = math.ceil(schedule.steps / schedule.cycles)
    cycle = min(step // length, schedule.cycles - 1)
    warmup = schedule.warmup_steps if cycle == 0 else 0
    phase = (step - cycle * length - warmup) / max(1, length - warmup)
    return schedule.final_fraction + (1 - schedule.final_fraction) * 0.5 * (1 + math.cos(math.pi * min(1.0, phase)))


def update_average(average: nn.Module, network: nn.Module, decay: float, step: int) -> None:
    """Move averaged weights towards the current ones; young averages move faster, so they forget the random start."""
    weight = max(1 - decay, 9 / (10 + step))
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), weight)
        for kept, current in zip(average.buffers(), network.buffers(), strict=True):
            kept.copy_(current)


def _step_seed(seed: int, step: int) -> int:
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> 1)


class _Interval:
    """Sums over the steps since the last line of the log."""

    def __init__(self) -> None:
        self.started, self.steps = time.perf_counter(), 0
        self.sums: dict[str, Tensor] = {}

    def add(self, values: dict[str, Tensor]) -> None:
        """Take in one step; nothing leaves the device until the line is written."""
        self.steps += 1
        for name, value in values.items():
            kept = value.detach().double()
            self.sums[name] = self.sums[name] + kept if name in self.sums else kept

    def means(self) -> dict[str, NDArray[np.float64]]:
        """Mean of each value over the steps."""
        return {name: (total / self.steps).cpu().numpy() for name, total in self.sums.items()}


def _log_interval(run: Run, task: Task, interval: _Interval, bar: "tqdm[None]") -> _Interval:
    means, seconds = interval.means(), time.perf_counter() - interval.started
    loss, norm = float(means.pop("loss")), float(means.pop("gradient_norm"))
    means["seconds_per_step"] = np.asarray(seconds / interval.steps)
    line = {
        "step": run.step,
        "lr": run.optimiser.param_groups[0]["lr"],
        "loss": loss,
        "gradient_norm": norm,
        "seconds_per_step": seconds / interval.steps,
        **task.line(run.step, means),
    }
    append_log(run.folder, line)
    bar.set_postfix(loss=f"{loss:.3f}", best=f"{run.best_score:.3f}")
    return _Interval()


def _validate(run: Run, task: Task) -> None:
    with torch.inference_mode():
        scores = task.score(run.scored.eval())
    better = scores["score"] > run.best_score
    run.stale = 0 if better else run.stale + 1
    if better:
        run.best_score = scores["score"]
        save_weights(run.folder / BEST, run.scored.state_dict())
    append_log(run.folder, {"step": run.step, **{f"validation_{name}": score for name, score in scores.items()}})


def _save(run: Run) -> None:
    checkpoint = Checkpoint(
        step=run.step,
        network=run.network.state_dict(),
        optimiser=run.optimiser.state_dict(),
        average=None if run.average is None else run.average.state_dict(),
        best_score=run.best_score,
        stale=run.stale,
    )
    save_checkpoint(run.folder / CHECKPOINT, checkpoint)
