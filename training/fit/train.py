"""The training loop: plain torch, one process, resumable at every step.

Notable:

- the loss is ATAT's, the unweighted sum of the cross-entropies of the light-curve, metadata and mixed heads, plus the
  weighted load-balance loss of the mixtures (eq. 5); predictions use the mixed head;
- Adam with linear warm-up and cosine decay, clipped gradients, and weights averaged over steps where the recipe says
  so: the averaged ones are validated and exported;
- every random number comes from (seed, step), so a run that is killed and started again ends with bitwise the weights
  of an uninterrupted one (same machine, same thread count);
- the log watches the experts: a layer that stops using one of its experts is reported, because nothing else shows it.

Run, and run again to resume::

    python -m training train default --data build/sim.parquet
"""

import copy
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from models.astro_moe import AstroMoE, Output
from models.lightcurve import Int64
from training.data.batches import Batch, Example, collate, draw_examples, stream
from training.data.dataset import Dataset, read_dataset, split_indices
from training.fit.checkpoints import (
    BEST,
    CHECKPOINT,
    Checkpoint,
    RunConfig,
    append_log,
    fingerprint,
    open_run,
    save_checkpoint,
    save_weights,
)
from training.fit.monitor import Interval, StarvationWatch
from training.recipes.schema import Recipe, ScheduleConfig
from training.score.metrics import confusion, log_loss, macro_f1

VALIDATION_DRAW = 2**32  # a pool number that no training step reaches


class TrainingResult(NamedTuple):
    """Outcome of a call of :func:`train`."""

    step: int
    best_macro_f1: float
    finished: bool


@dataclass(slots=True, eq=False)
class Run:
    """The moving parts of a training run."""

    recipe: Recipe
    folder: Path
    network: AstroMoE
    average: AstroMoE | None
    optimiser: torch.optim.Optimizer
    step: int = 0
    best_score: float = -math.inf
    stale: int = 0

    @property
    def scored(self) -> AstroMoE:
        """The network that is validated and exported."""
        return self.average or self.network

    @property
    def finished(self) -> bool:
        """Whether the schedule has ended or patience has run out."""
        schedule = self.recipe.schedule
        return self.step >= schedule.steps or (schedule.patience is not None and self.stale >= schedule.patience)


def train(
    recipe: Recipe, data: Path, folder: Path, *, max_minutes: float | None = None, progress: bool = True
) -> TrainingResult:
    """Train a recipe on a data file, from the start or from the folder's checkpoint.

    Parameters
    ----------
    max_minutes : save and return after this long, at the next step; call again to go on.

    Raises
    ------
    RunError
        When the folder holds a different run.
    FloatingPointError
        When the loss stops being finite.
    ValueError
        When the data are too few to have training and validation objects.
    """
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    dataset = read_dataset(data)
    split = split_indices(dataset, recipe.data.fractions)
    if not len(split["train"]) or not len(split["validation"]):
        raise ValueError(f"{data} has too few objects for training and validation: {len(dataset)}")
    checkpoint = open_run(folder, RunConfig(recipe=recipe, data=fingerprint(data, len(dataset))))
    run = start(recipe, folder, dataset, split["train"]) if checkpoint is None else resume(recipe, folder, checkpoint)
    deadline = math.inf if max_minutes is None else time.monotonic() + 60.0 * max_minutes
    if not run.finished:
        _loop(run, dataset, split, deadline, progress=progress)
    return TrainingResult(run.step, run.best_score, run.finished)


def start(recipe: Recipe, folder: Path, dataset: Dataset, train_indices: Int64) -> Run:
    """Build a seeded, untrained run; the network learns its metadata quantiles from the training objects."""
    torch.manual_seed(recipe.seed)
    network = AstroMoE(recipe.network)
    network.fit_metadata_quantiles(dataset.metadata[train_indices])
    average = copy.deepcopy(network).eval() if recipe.optimiser.ema_decay is not None else None
    return Run(recipe, folder, network, average, _optimiser(recipe, network))


def resume(recipe: Recipe, folder: Path, checkpoint: Checkpoint) -> Run:
    """Rebuild a run as its checkpoint left it."""
    network = AstroMoE(recipe.network)
    network.load_state_dict(checkpoint.network)
    average = None
    if checkpoint.average is not None:
        average = copy.deepcopy(network).eval()
        average.load_state_dict(checkpoint.average)
    optimiser = _optimiser(recipe, network)
    optimiser.load_state_dict(checkpoint.optimiser)
    return Run(recipe, folder, network, average, optimiser, checkpoint.step, checkpoint.best_score, checkpoint.stale)


def _optimiser(recipe: Recipe, network: AstroMoE) -> torch.optim.Optimizer:
    config = recipe.optimiser
    return torch.optim.AdamW(
        network.parameters(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
    )


def _loop(run: Run, dataset: Dataset, split: dict[str, Int64], deadline: float, *, progress: bool) -> None:
    recipe = run.recipe
    validation = draw_validation(dataset, split["validation"], recipe)
    batches = stream(dataset, split["train"], recipe, run.step)
    interval, watch = Interval(), StarvationWatch(recipe.schedule.warmup_steps)
    with tqdm(total=recipe.schedule.steps, initial=run.step, desc=recipe.name, disable=not progress) as bar:
        while not run.finished and time.monotonic() < deadline:
            _train_step(run, next(batches), interval)
            bar.update()
            if run.step % recipe.validation.log_every == 0:
                interval = _log_interval(run, interval, watch, bar)
            if run.step % recipe.validation.every == 0 or run.step == recipe.schedule.steps:
                _validate(run, validation)
                _save(run)
    batches.close()
    if not run.finished:
        _save(run)


def _train_step(run: Run, batch: Batch, interval: Interval) -> None:
    torch.manual_seed(_step_seed(run.recipe.seed, run.step))
    lr = run.recipe.optimiser.lr * lr_factor(run.step, run.recipe.schedule)
    for group in run.optimiser.param_groups:
        group["lr"] = lr
    run.network.train()
    with torch.autocast("cpu", torch.bfloat16, enabled=run.recipe.bfloat16):
        output: Output = run.network(*batch.inputs)
        loss = loss_of(output, batch.label_B, run.recipe.network.aux_weight)
    if not torch.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss.item()} at step {run.step}; lower the learning rate")
    run.optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    clip = run.recipe.optimiser.clip_norm
    norm = torch.nn.utils.clip_grad_norm_(run.network.parameters(), math.inf if clip is None else clip)
    run.optimiser.step()
    run.step += 1
    if run.average is not None and run.recipe.optimiser.ema_decay is not None:
        update_average(run.average, run.network, run.recipe.optimiser.ema_decay, run.step)
    interval.add(output, batch.mask_BL, batch.label_B, loss, norm)


def loss_of(output: Output, label_B: Tensor, aux_weight: float) -> Tensor:
    """Sum of the three heads' cross-entropies and the weighted load-balance loss; a scalar in float32."""
    heads = (output.logits_lc_BC, output.logits_tab_BC, output.logits_mix_BC)
    total = sum((cross_entropy(logits_BC.float(), label_B) for logits_BC in heads), start=torch.zeros(()))
    return total + aux_weight * output.aux_loss.float()


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


def update_average(average: AstroMoE, network: AstroMoE, decay: float, step: int) -> None:
    """Move averaged weights towards the current ones; young averages move faster, so they forget the random start."""
    weight = max(1 - decay, 9 / (10 + step))
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), weight)
        for kept, current in zip(average.buffers(), network.buffers(), strict=True):
            kept.copy_(current)


def _step_seed(seed: int, step: int) -> int:
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> 1)


def _log_interval(run: Run, interval: Interval, watch: StarvationWatch, bar: "tqdm[None]") -> Interval:
    line = interval.line()
    append_log(run.folder, {"step": run.step, "lr": run.optimiser.param_groups[0]["lr"], **line})
    watch.update(run.step, line["expert_load"])
    bar.set_postfix(loss=f"{line['loss']:.3f}", f1=f"{line['macro_f1']:.3f}", per_s=f"{line['curves_per_second']:.0f}")
    return Interval()


def draw_validation(dataset: Dataset, indices: Int64, recipe: Recipe) -> list[Example]:
    """Random views of a fixed sample of validation objects, in order of length; the same ones for every call."""
    rng = np.random.default_rng((recipe.seed, VALIDATION_DRAW))
    sample = rng.permutation(indices)[: recipe.validation.objects]
    examples = draw_examples(dataset, sample, recipe.data, recipe.augmentation, rng)
    return sorted(examples, key=lambda example: len(example.tokens))


@torch.inference_mode()
def predict(network: AstroMoE, examples: list[Example], batch_size: int = 64) -> NDArray[np.float32]:
    """Logits of the mixed head, shape (len(examples), C), in order; fastest when examples are ordered by length."""
    network.eval()
    parts = [examples[start : start + batch_size] for start in range(0, len(examples), batch_size)]
    return np.concatenate([network(*collate(part).inputs).logits_mix_BC.float().numpy() for part in parts])


def _validate(run: Run, validation: list[Example]) -> None:
    logits_BC = predict(run.scored, validation, run.recipe.batch.size)
    probabilities_BC = torch.from_numpy(logits_BC).double().softmax(1).numpy()
    label_B = np.array([example.label for example in validation], dtype=np.int64)
    score = macro_f1(confusion(label_B, probabilities_BC.argmax(1), probabilities_BC.shape[1]))
    better = score > run.best_score
    run.stale = 0 if better else run.stale + 1
    if better:
        run.best_score = score
        save_weights(run.folder / BEST, run.scored.state_dict())
    line = {"step": run.step, "validation_macro_f1": score, "validation_log_loss": log_loss(probabilities_BC, label_B)}
    append_log(run.folder, line)


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
