"""The training loop: plain torch, on one process or several, resumable at every step.

Notable:

- a :class:`Task` defines the training: batches, a loss, a score. Classification, reconstruction, forecasting and every
  reproduced experiment run through this one loop;
- AdamW with linear warm-up and cosine decay, clipped gradients, and optionally an average of the
  weights over steps, which is then scored and exported;
- every random number comes from (seed, step), so a resumed run ends with bitwise the weights of an uninterrupted one
  (same machine, threads and processes);
- launched by torchrun, processes share every batch (``training.fit.distributed``);
- ``bfloat16`` is the one reduced precision: it has the range of float32, so no loss scale is needed;
- a progress bar on a terminal, else one line for each validation; ``log.jsonl`` has everything, ``metrics.csv`` and
  ``learning-curves.png`` are made from it;
- SIGINT and SIGTERM save a checkpoint; a full disk or a loss that is not finite leaves the last one as it was. No
  checkpoint has weights that are not finite.

**Expert load** is monitored for each mixture, since the loss does not show a collapsed mixture. It is relative to an
even share: 1 is even, 0 is an expert without tokens. Every log line has the smallest and largest load of each mixture
(``expert_load``) and the numbers of experts that have stayed under a tenth of their even share for three lines in a row
(``starved_experts``), with one warning for each.

**Weight averaging** starts fast and slows down to its decay (:func:`update_average`), so that the average of a short
run does not retain the random initial weights.
"""

import copy
import logging
import math
import shutil
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
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

from nightjar_alerts.models.networks.network import NetworkOutput, Reconstruction
from nightjar_alerts.training.fit.checkpoints import (
    BEST,
    CHECKPOINT,
    Checkpoint,
    RunError,
    append_log,
    append_start,
    describe_start,
    open_run,
    save_checkpoint,
    save_weights,
)
from nightjar_alerts.training.fit.curves import draw_curves, write_metrics
from nightjar_alerts.training.fit.distributed import Ranks, join_launch, map_tensors
from nightjar_alerts.training.recipes.schema import FitConfig, OptimizerConfig, ScheduleConfig


class Interval:
    """Sums of logged values over the steps since the last log line, on the device of the values."""

    def __init__(self) -> None:
        self.started, self.steps = time.perf_counter(), 0
        self.sums: dict[str, Tensor] = {}
        self.counts: set[str] = set()

    def add(self, values: dict[str, Tensor]) -> None:
        """Add one step; values stay on the device until the line is written."""
        self.steps += 1
        for name, value in values.items():
            if not value.is_floating_point():
                self.counts.add(name)
            total = value.detach().double()
            self.sums[name] = self.sums[name] + total if name in self.sums else total

    def means(self, ranks: Ranks) -> dict[str, NDArray[np.float64]]:
        """Return the mean of each value over the steps and processes; integers (counts) are added over processes."""
        own = {name: (total / self.steps).cpu().numpy() for name, total in self.sums.items()}
        return ranks.means(own, self.counts)

    def seconds_per_step(self) -> float:
        """Return the mean wall time of a step, including everything between two log lines."""
        return (time.perf_counter() - self.started) / self.steps


log = logging.getLogger(__name__)

STARVED = 0.1  # of an even share
INTERVALS = 3  # consecutive log lines
_PREFIX = "load/"

Shares = dict[str, NDArray[np.float64]]


def expert_loads(output: NetworkOutput | Reconstruction) -> dict[str, Tensor]:
    """Return assignments per expert of every mixture, for the log of a step; empty for a network without mixtures."""
    loads = {}
    if output.input_expert_load_1X is not None:
        loads[f"{_PREFIX}input"] = output.input_expert_load_1X[0]
    if output.expert_load_SX is not None:
        loads |= {f"{_PREFIX}block_{number}": row for number, row in enumerate(output.expert_load_SX)}
    return loads


def expert_shares(means: dict[str, NDArray[np.float64]]) -> Shares:
    """Return the load of each expert relative to an even share, by mixture, from the means of :func:`expert_loads`."""
    loads = {name.removeprefix(_PREFIX): load for name, load in means.items() if name.startswith(_PREFIX)}
    return {name: load * len(load) / load.sum() for name, load in loads.items() if load.sum() > 0}


def load_range(shares: Shares) -> dict[str, list[float]]:
    """Return the smallest and largest share in every mixture."""
    return {name: [round(float(share.min()), 3), round(float(share.max()), 3)] for name, share in shares.items()}


class StarvationWatch:
    """Detects experts under ``STARVED`` of an even share for ``INTERVALS`` intervals, and warns once for each.

    It ignores steps before ``first_step``, the warm-up of the routers. A resumed run restarts the count.
    """

    def __init__(self, first_step: int) -> None:
        self.first_step = first_step
        self.intervals: dict[str, NDArray[np.int64]] = {}

    def update(self, step: int, shares: Shares) -> dict[str, list[int]]:
        """Add the shares of one interval; return the numbers of the starved experts, by mixture."""
        if step < self.first_step:
            return {}
        starved = {}
        for name, share in shares.items():
            before = self.intervals.get(name, np.zeros(len(share), dtype=np.int64))
            self.intervals[name] = now = np.where(share < STARVED, before + 1, 0)
            for expert in np.flatnonzero(now == INTERVALS):
                self._warn(step, name, int(expert), float(share[expert]))
            if (now >= INTERVALS).any():
                starved[name] = np.flatnonzero(now >= INTERVALS).tolist()
        return starved

    def _warn(self, step: int, mixture: str, expert: int, share: float) -> None:
        log.warning(
            "step %d: expert %d of mixture %s has had under %g of an even share of the tokens for %d log lines "
            "(now %.3f); a larger weight of the balance loss or a lower learning rate may bring it back",
            *(step, expert, mixture, STARVED, INTERVALS, share),
        )


NEW = ("head",)  # prefixes of parameters that are not transferred, unless a network has ``new_parameters``

Group = dict[str, Any]


def make_optimizer(config: OptimizerConfig, network: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW over the trained parameters; ``decay = "matrices"`` excludes one-dimensional parameters from decay.

    With ``body_lr`` other than 1 the transferred parameters learn at that share of the rate (discriminative
    fine-tuning, Howard & Ruder 2018); with 0 they are frozen.
    """
    new: tuple[str, ...] = getattr(network, "new_parameters", NEW)
    body = {name for name, _ in network.named_parameters() if not name.startswith(new)}
    if config.body_lr == 1:
        groups = _groups(config, list(network.parameters()), 1.0)
    else:
        for name in body:
            network.get_parameter(name).requires_grad_(config.body_lr > 0)
        groups = _groups(config, [part for name, part in network.named_parameters() if name not in body], 1.0)
        groups += _groups(config, [part for name, part in network.named_parameters() if name in body], config.body_lr)
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate; groups with a ``share`` get that share of it."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("share", 1.0)


def _groups(config: OptimizerConfig, parameters: Sequence[nn.Parameter], share: float) -> list[Group]:
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    decayed = [parameter for parameter in trained if config.decay == "all" or parameter.ndim > 1]
    undecayed = [parameter for parameter in trained if config.decay == "matrices" and parameter.ndim <= 1]
    groups: list[Group] = [{"params": decayed}, {"params": undecayed, "weight_decay": 0.0}]
    return [group | ({} if share == 1 else {"share": share}) for group in groups if group["params"]]


def lr_factor(step: int, schedule: ScheduleConfig) -> float:
    """Return the learning rate at a step (from 0) as a share of the peak: linear warm-up, then constant or cosines.

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


def clip_gradients(config: OptimizerConfig, network: nn.Module) -> torch.Tensor:
    """Clip the gradients to the maximum norm; return the norm before clipping."""
    limit = math.inf if config.clip_norm is None else config.clip_norm
    return torch.nn.utils.clip_grad_norm_(network.parameters(), limit)


def update_average(average: nn.Module, network: nn.Module, decay: float, step: int) -> None:
    """Move averaged weights towards the current ones, faster in early steps, to forget the random initial weights."""
    weight = max(1 - decay, 9 / (10 + step))
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), weight)
        for buffer, current in zip(average.buffers(), network.buffers(), strict=True):
            buffer.copy_(current)


class StepLoss(NamedTuple):
    """Loss of one batch, and tensors of any shape whose means over an interval are logged; integers are counts."""

    loss: Tensor
    log: dict[str, Tensor]


class Task(Protocol):
    """Base class of the tasks of a run."""

    def batches(self, step: int) -> Generator[Any, None, None]:
        """Yield the batches of ``step`` and all later steps: tensors in tuples or dicts.

        The first axis of every tensor is the batch. The loop moves tensors to the device and splits them by rows over
        processes. Random numbers in a batch must depend on (seed, step) only, so that a resumed run is reproducible.
        """
        ...

    def loss(self, network: nn.Module, batch: Any) -> StepLoss:
        """Return the loss of one batch, a scalar in float32; averages use ``models.networks.ranks.mean``."""
        ...

    def score(self, network: nn.Module) -> dict[str, float]:
        """Return validation scores, which are logged; the weights with the best ``score`` are kept.

        Only the first process calls this.
        """
        ...

    def line(self, step: int, means: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
        """Return the log line of an interval that ends at ``step``, from the means of the logged values."""
        return {name: mean.tolist() for name, mean in means.items()}


class Stopped(KeyboardInterrupt):
    """End of a run after a signal; ``number`` is that of the signal."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class FitResult(NamedTuple):
    """Result of :func:`fit`."""

    step: int
    best_score: float
    finished: bool


@dataclass(slots=True, eq=False)
class TrainingRun:
    """State of a training run."""

    config: FitConfig
    folder: Path
    network: nn.Module
    average: nn.Module | None
    optimizer: torch.optim.Optimizer
    ranks: Ranks = field(default_factory=Ranks)
    step: int = 0
    best_score: float = -math.inf
    stale: int = 0
    saved: int | None = None
    """Step of the last checkpoint."""

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
    """Train a network, from its current weights or from the folder's checkpoint.

    Parameters
    ----------
    network : its weights are replaced if there is a checkpoint.
    identity : configuration that identifies the run; a folder of another run is rejected.
    max_minutes : save and return at the first step after this time; call again to resume.

    Raises
    ------
    RunError
        If the folder has a different run or cannot be written.
    ValueError
        If there is no such device.
    FloatingPointError
        If the loss, a gradient or a weight is not finite.
    Stopped
        After SIGINT or SIGTERM, when a checkpoint has been saved.
    """
    require_device(config.device)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    ranks = join_launch(config.device)
    try:
        checkpoint = ranks.from_first(lambda: open_run(folder, identity))
    except OSError as error:
        raise RunError(f"{_problem(folder, error)}. A checkpoint in it is kept. {RESUME}") from error
    run = begin(network.to(config.device), config, folder, ranks)
    if checkpoint is not None:
        try:
            _restore(run, checkpoint)
        except (KeyError, RuntimeError, ValueError) as error:
            path = folder / CHECKPOINT
            raise RunError(f"{path} is that of another network; remove it to start the run again") from error
    deadline = None if max_minutes is None else time.monotonic() + 60.0 * max_minutes
    if not run.finished:
        _loop(run, task, deadline, progress=progress)
    return FitResult(run.step, run.best_score, run.finished)


def require_device(device: str) -> None:
    """Raise ValueError if torch has no such device."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch finds no CUDA device on this machine; train with --device cpu")


def begin(network: nn.Module, config: FitConfig, folder: Path, ranks: Ranks) -> TrainingRun:
    """Return the initial state of a run of a network on its device."""
    ranks.align(network)
    average = copy.deepcopy(network).eval() if config.optimizer.ema_decay is not None else None
    return TrainingRun(config, folder, network, average, make_optimizer(config.optimizer, network), ranks)


def _restore(run: TrainingRun, checkpoint: Checkpoint) -> None:
    run.network.load_state_dict(checkpoint.network)
    if run.average is not None and checkpoint.average is not None:
        run.average.load_state_dict(checkpoint.average)
    run.optimizer.load_state_dict(checkpoint.optimizer)
    run.step, run.best_score, run.stale = checkpoint.step, checkpoint.best_score, checkpoint.stale
    run.saved = checkpoint.step


def _loop(run: TrainingRun, task: Task, deadline: float | None, *, progress: bool) -> None:
    with _bar(run, progress and run.ranks.first) as bar, _signals(twice_ends=run.ranks.alone) as received:
        report = _Report(run, bar, progress and bar.disable and run.ranks.first)
        try:
            if run.ranks.first:
                append_start(run.folder, describe_start(run.step, run.config.device, run.ranks.size))
            _steps(run, task, deadline, report, received)
        except FloatingPointError as error:
            raise FloatingPointError(
                f"{error}. {_kept(run)}. Start another run with a lower learning rate (--set optimizer.lr=...)"
            ) from error
        except OSError as error:
            raise RunError(f"{_problem(run.folder, error)}. {_kept(run)}. {RESUME}") from error
    if received:
        raise Stopped(f"stopped at step {run.step}; run the same command to resume from {run.folder}", received[0])


def _steps(run: TrainingRun, task: Task, deadline: float | None, report: "_Report", received: Sequence[int]) -> None:
    config, interval = run.config, Interval()
    batches = task.batches(run.step)
    while not run.finished and not _is_over(run, deadline, is_interrupted=bool(received)):
        train_step(run, task, next(batches), interval)
        if run.step % config.validation.log_every == 0:
            report.loss = _log_interval(run, task, interval)
            interval = Interval()
        is_validated = run.step % config.validation.every == 0 or run.step == config.schedule.steps
        if is_validated:
            _require_finite(run)
            scores = _validate(run, task)
            _save(run)
            report.validated(scores)
        report.bar.set_postfix(report.postfix(), refresh=False)
        report.bar.update()
    batches.close()
    if not run.finished:
        _require_finite(run)
        _save(run)
    report.draw()


RESUME = "Run the same command to resume"


def _problem(folder: Path, error: OSError) -> str:
    return f"{error.filename or folder}: {error.strerror or error}"


def _kept(run: TrainingRun) -> str:
    return "No checkpoint has been saved" if run.saved is None else f"The checkpoint of step {run.saved} is kept"


def _require_finite(run: TrainingRun) -> None:
    """Raise FloatingPointError for a weight that is not finite, before it is validated or saved."""
    for name, value in run.network.named_parameters():
        if not torch.isfinite(value).all():
            raise FloatingPointError(f"the weights {name} are not finite at step {run.step}")


@contextmanager
def _signals(*, twice_ends: bool) -> Iterator[list[int]]:
    """Yield a list that SIGINT and SIGTERM are added to.

    A step is not interrupted, so that the checkpoint is that of a whole step. A second signal stops at once if
    ``twice_ends``; torchrun passes on Ctrl-C to processes that get it from the terminal too, so there it does not.
    """
    received: list[int] = []

    def stop(number: int, _: object) -> None:
        if received and twice_ends:
            raise Stopped("stopped at once; the last checkpoint is kept", number)
        received.append(number)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield received
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


DRAWN_EVERY = 60.0  # seconds


class _Report:
    """Progress of a run for its reader: the bar or a line for each validation, the table of metrics, the picture."""

    def __init__(self, run: TrainingRun, bar: "tqdm[None]", prints: bool) -> None:
        self.run, self.bar, self.prints = run, bar, prints
        self.began, self.first_step, self.drawn = time.monotonic(), run.step, time.monotonic()
        self.loss: float | None = None
        self.is_validated = False

    def postfix(self) -> dict[str, str]:
        """Return what the bar shows after rate and time."""
        shown = {} if self.loss is None else {"loss": f"{self.loss:.3f}"}
        return shown | ({"best": f"{self.run.best_score:.3f}"} if self.is_validated else {})

    def validated(self, scores: dict[str, float]) -> None:
        """Report a validation."""
        self.is_validated = True
        if self.prints:
            sys.stderr.write(self._line(scores) + "\n")
            sys.stderr.flush()
        self.draw(DRAWN_EVERY)

    def _line(self, scores: dict[str, float]) -> str:
        run, steps = self.run, self.run.config.schedule.steps
        rate = (run.step - self.first_step) / max(time.monotonic() - self.began, 1e-9)
        named = {name: value for name, value in scores.items() if name != "score"} or scores
        shown = {"loss": self.loss} if self.loss is not None else {}
        texts = [f"{name} {value:.3f}" for name, value in {**shown, **named, "best score": run.best_score}.items()]
        left = tqdm.format_interval(round((steps - run.step) / rate))
        return f"{run.config.name}: step {run.step:,} of {steps:,}, {', '.join(texts)}, {rate:.2f} steps/s, {left} left"

    def draw(self, pause: float = 0.0) -> None:
        """Write the table of metrics, and the picture if the last one is older than ``pause`` seconds."""
        rows = write_metrics(self.run.folder) if self.run.ranks.first else []
        if rows and time.monotonic() >= self.drawn + pause:
            draw_curves(self.run.folder, rows)
            self.drawn = time.monotonic()


@contextmanager
def _bar(run: TrainingRun, progress: bool) -> Iterator["tqdm[None]"]:
    """Show a progress bar on a terminal, with warnings above it; none if the output goes to a file."""
    steps, disable = run.config.schedule.steps, None if progress else True  # None: on a terminal only
    columns = shutil.get_terminal_size().columns  # tqdm shows nothing on a terminal that states no size
    with tqdm(
        total=steps, initial=run.step, desc=run.config.name, unit=" steps", disable=disable, ncols=columns
    ) as bar:
        if bar.disable:
            yield bar
            return
        with logging_redirect_tqdm():
            yield bar


def _is_over(run: TrainingRun, deadline: float | None, *, is_interrupted: bool) -> bool:
    """Return whether any process was interrupted or its deadline has passed.

    Processes ask each other before every step if there is a deadline, else only when they log, since asking takes time.
    """
    if deadline is None and not run.ranks.alone and run.step % run.config.validation.log_every:
        return False
    return run.ranks.any(is_interrupted or (deadline is not None and time.monotonic() >= deadline))


def train_step(run: TrainingRun, task: Task, batch: Any, interval: Interval) -> None:
    """Take one step on a batch; the result depends only on the state and the step of the run."""
    config = run.config
    torch.manual_seed(_step_seed(config.seed, run.step, run.ranks.rank))
    set_lr(run.optimizer, config.optimizer.lr * lr_factor(run.step, config.schedule))
    run.network.train()
    with torch.autocast(config.device, torch.bfloat16, enabled=config.bfloat16), run.ranks.joined():
        step = task.loss(run.network, to_device(run.ranks.share(batch), config.device))
    run.optimizer.zero_grad(set_to_none=True)
    step.loss.backward()
    loss = run.ranks.average_gradients(run.network, step.loss)
    norm = clip_gradients(config.optimizer, run.network)
    if not torch.isfinite(loss + norm):
        name, value = ("gradient", norm) if torch.isfinite(loss) else ("loss", loss)
        raise FloatingPointError(f"the {name} is {value.item()} at step {run.step}")
    run.optimizer.step()
    run.step += 1
    if run.average is not None and config.optimizer.ema_decay is not None:
        update_average(run.average, run.network, config.optimizer.ema_decay, run.step)
    interval.add({"loss": loss, "gradient_norm": norm, **step.log})


def to_device(batch: Any, device: str | torch.device) -> Any:
    """Move the tensors in (named) tuples, lists and dicts to a device; other values are unchanged."""
    return map_tensors(batch, lambda tensor: tensor.to(device))


def _step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of a step in one process; that of the first process is the one used without torchrun."""
    entropy = (seed, step, rank) if rank else (seed, step)
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)


def _log_interval(run: TrainingRun, task: Task, interval: Interval) -> float:
    """Write the log line of an interval; return its mean loss."""
    means, seconds = interval.means(run.ranks), interval.seconds_per_step()
    loss, norm = float(means.pop("loss")), float(means.pop("gradient_norm"))
    if not run.ranks.first:
        return loss
    means["seconds_per_step"] = np.asarray(seconds)
    line = {
        "step": run.step,
        "lr": run.optimizer.param_groups[0]["lr"],
        "loss": loss,
        "gradient_norm": norm,
        "seconds_per_step": seconds,
        **task.line(run.step, means),
    }
    append_log(run.folder, line)
    return loss


def _validate(run: TrainingRun, task: Task) -> dict[str, float]:
    with torch.inference_mode():
        scores = run.ranks.from_first(lambda: task.score(run.scored.eval()))
    better = scores["score"] > run.best_score
    run.stale = 0 if better else run.stale + 1
    run.best_score = max(run.best_score, scores["score"])
    if not run.ranks.first:
        return scores
    if better or run.config.validation.keep == "last":
        save_weights(run.folder / BEST, run.scored.state_dict())
    append_log(run.folder, {"step": run.step, **{f"validation_{name}": score for name, score in scores.items()}})
    return scores


def _save(run: TrainingRun) -> None:
    if not run.ranks.first:
        return
    checkpoint = Checkpoint(
        step=run.step,
        network=run.network.state_dict(),
        optimizer=run.optimizer.state_dict(),
        average=None if run.average is None else run.average.state_dict(),
        best_score=run.best_score,
        stale=run.stale,
    )
    save_checkpoint(run.folder / CHECKPOINT, checkpoint)
    run.saved = run.step
