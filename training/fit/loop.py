"""The training loop: plain torch, on one process or several, resumable at every step, whatever is trained.

Notable:

- what is trained is a :class:`Task`: batches, a loss, a score. Classification, reconstruction, forecasting and every
  reproduced experiment run through this one loop;
- AdamW with linear warm-up and cosine decay, clipped gradients, and weights averaged over steps where the
  configuration says so: the averaged ones are scored and exported;
- every random number comes from (seed, step), so a run that is killed and started again ends with bitwise the weights
  of an uninterrupted one (same machine, same threads and processes);
- launched by torchrun, processes share every batch (``training.fit.distributed``);
- ``bfloat16`` is the one reduced precision: it has the range of float32, so no loss scale has to be kept and resumed;
- the progress bar is for a terminal; written to a file a run is silent but for its warnings, and ``log.jsonl`` tells
  the rest.
"""

import copy
import math
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import Tensor, nn
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from training.fit.checkpoints import (
    BEST,
    CHECKPOINT,
    Checkpoint,
    append_log,
    append_start,
    describe_start,
    open_run,
    save_checkpoint,
    save_weights,
)
from training.fit.distributed import Ranks, join_launch, map_tensors
from training.fit.optimise import Interval, clip_gradients, lr_factor, make_optimiser, set_lr, update_average
from training.recipes.schema import FitConfig


class Step(NamedTuple):
    """Loss of one batch, and tensors of any shape whose means over an interval the log wants; integers are counts."""

    loss: Tensor
    log: dict[str, Tensor]


class Task(Protocol):
    """Task of a run; subclass it."""

    def batches(self, step: int) -> Generator[Any, None, None]:
        """Yield the batch of ``step`` and of every step after it: tensors in tuples or dicts, a function of the step.

        The loop moves them to its device, and of several processes each takes its rows: the first axis of every tensor
        is that of the batch. Anything random in a batch must come from (seed, step), or a resumed run is another run.
        """
        ...

    def loss(self, network: nn.Module, batch: Any) -> Step:
        """Loss of one batch, a scalar in float32; an average in it is a ``models.networks.ranks.mean``."""
        ...

    def score(self, network: nn.Module) -> dict[str, float]:
        """Validate, in the first process: all is logged, ``score`` decides which weights are kept (larger: better)."""
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
    ranks: Ranks = field(default_factory=Ranks)
    step: int = 0
    best_score: float = -math.inf
    stale: int = 0

    @property
    def scored(self) -> nn.Module:
        """The network that is validated and exported."""
        return self.average or self.network

    @property
    def finished(self) -> bool:
        """True once the schedule has ended or patience has run out."""
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
    ranks = join_launch(config.device)
    checkpoint = ranks.from_first(lambda: open_run(folder, identity))
    run = begin(network.to(config.device), config, folder, ranks)
    if checkpoint is not None:
        _restore(run, checkpoint)
    if ranks.first and not run.finished:
        append_start(folder, describe_start(run.step, config.device, ranks.size))
    deadline = None if max_minutes is None else time.monotonic() + 60.0 * max_minutes
    if not run.finished:
        _loop(run, task, deadline, progress=progress)
    return FitResult(run.step, run.best_score, run.finished)


def begin(network: nn.Module, config: FitConfig, folder: Path, ranks: Ranks) -> Run:
    """Step 0 of a run of a network on its device."""
    ranks.align(network)
    average = copy.deepcopy(network).eval() if config.optimiser.ema_decay is not None else None
    return Run(config, folder, network, average, make_optimiser(config.optimiser, network), ranks)


def _restore(run: Run, checkpoint: Checkpoint) -> None:
    run.network.load_state_dict(checkpoint.network)
    if run.average is not None and checkpoint.average is not None:
        run.average.load_state_dict(checkpoint.average)
    run.optimiser.load_state_dict(checkpoint.optimiser)
    run.step, run.best_score, run.stale = checkpoint.step, checkpoint.best_score, checkpoint.stale


def _loop(run: Run, task: Task, deadline: float | None, *, progress: bool) -> None:
    config = run.config
    batches = task.batches(run.step)
    interval, shown = Interval(), dict[str, str]()
    with _bar(run, progress and run.ranks.first) as bar:
        while not run.finished and not _is_over(run, deadline):
            train_step(run, task, next(batches), interval)
            if run.step % config.validation.log_every == 0:
                shown["loss"] = f"{_log_interval(run, task, interval):.3f}"
                interval = Interval()
            if run.step % config.validation.every == 0 or run.step == config.schedule.steps:
                _validate(run, task)
                _save(run)
                shown["best"] = f"{run.best_score:.3f}"
            bar.set_postfix(shown, refresh=False)
            bar.update()
    batches.close()
    if not run.finished:
        _save(run)


@contextmanager
def _bar(run: Run, progress: bool) -> Iterator["tqdm[None]"]:
    """Progress bar on a terminal, above which warnings appear; nothing where the output goes to a file."""
    steps, shown = run.config.schedule.steps, None if progress else True  # None: on a terminal only
    with tqdm(total=steps, initial=run.step, desc=run.config.name, unit="step", disable=shown) as bar:
        if bar.disable:
            yield bar
            return
        with logging_redirect_tqdm():
            yield bar


def _is_over(run: Run, deadline: float | None) -> bool:
    """Return whether time is up by the clock of any process; without a deadline nobody is asked."""
    return deadline is not None and run.ranks.any(time.monotonic() >= deadline)


def train_step(run: Run, task: Task, batch: Any, interval: Interval) -> None:
    """Take one step on a batch, a pure function of the run's state and step."""
    config = run.config
    torch.manual_seed(_step_seed(config.seed, run.step, run.ranks.rank))
    set_lr(run.optimiser, config.optimiser.lr * lr_factor(run.step, config.schedule))
    run.network.train()
    with torch.autocast(config.device, torch.bfloat16, enabled=config.bfloat16), run.ranks.joined():
        step = task.loss(run.network, to_device(run.ranks.share(batch), config.device))
    run.optimiser.zero_grad(set_to_none=True)
    step.loss.backward()
    loss = run.ranks.average_gradients(run.network, step.loss)
    if not torch.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss.item()} at step {run.step}; lower the learning rate")
    norm = clip_gradients(config.optimiser, run.network)
    run.optimiser.step()
    run.step += 1
    if run.average is not None and config.optimiser.ema_decay is not None:
        update_average(run.average, run.network, config.optimiser.ema_decay, run.step)
    interval.add({"loss": loss, "gradient_norm": norm, **step.log})


def to_device(batch: Any, device: str | torch.device) -> Any:
    """Move the tensors of a batch: (named) tuples, lists and dicts of tensors; other values stay as they are."""
    return map_tensors(batch, lambda tensor: tensor.to(device))


def _step_seed(seed: int, step: int, rank: int) -> int:
    """Seed of a step in one process; the first one's is that of a process alone."""
    entropy = (seed, step, rank) if rank else (seed, step)
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)


def _log_interval(run: Run, task: Task, interval: Interval) -> float:
    """Write the log line of an interval; return its mean loss."""
    means, seconds = interval.means(run.ranks), interval.seconds_per_step()
    loss, norm = float(means.pop("loss")), float(means.pop("gradient_norm"))
    if not run.ranks.first:
        return loss
    means["seconds_per_step"] = np.asarray(seconds)
    line = {
        "step": run.step,
        "lr": run.optimiser.param_groups[0]["lr"],
        "loss": loss,
        "gradient_norm": norm,
        "seconds_per_step": seconds,
        **task.line(run.step, means),
    }
    append_log(run.folder, line)
    return loss


def _validate(run: Run, task: Task) -> None:
    with torch.inference_mode():
        scores = run.ranks.from_first(lambda: task.score(run.scored.eval()))
    better = scores["score"] > run.best_score
    run.stale = 0 if better else run.stale + 1
    run.best_score = max(run.best_score, scores["score"])
    if not run.ranks.first:
        return
    if better or run.config.validation.keep == "last":
        save_weights(run.folder / BEST, run.scored.state_dict())
    append_log(run.folder, {"step": run.step, **{f"validation_{name}": score for name, score in scores.items()}})


def _save(run: Run) -> None:
    if not run.ranks.first:
        return
    checkpoint = Checkpoint(
        step=run.step,
        network=run.network.state_dict(),
        optimiser=run.optimiser.state_dict(),
        average=None if run.average is None else run.average.state_dict(),
        best_score=run.best_score,
        stale=run.stale,
    )
    save_checkpoint(run.folder / CHECKPOINT, checkpoint)
