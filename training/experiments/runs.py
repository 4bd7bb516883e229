"""One run of a trained experiment: through the training loop, and into its record.

Notable:

- the reported metrics are those of the *last* weights, as in the published experiments; the validation scores of the
  log select nothing;
- ``--steps`` shortens a run together with its warm-up and cosine, and the record says which part of the published
  number of steps it is;
- the published RoMAE runs chain a cosine, whose phase counts from step 0, to a linear warm-up. Here the cosine begins
  at the end of the warm-up and ends at zero: the same peak and end, and never more than a few per cent apart between.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from nightjar_alerts.models.lightcurve import Int64
from nightjar_alerts.training.experiments.options import ExperimentOptions, RunRecord, machine, write_record
from nightjar_alerts.training.fit.checkpoints import LOG, read_log
from nightjar_alerts.training.fit.loop import Task, fit
from nightjar_alerts.training.recipes.schema import FitConfig, OptimiserConfig, ScheduleConfig, ValidationConfig


class RunIdentity(BaseModel):
    """Content of a run folder's ``config.json``: a folder that holds another run is refused."""

    model_config = ConfigDict(frozen=True)

    variant: str
    settings: dict[str, Any]
    fit: FitConfig


@dataclass(frozen=True, slots=True, eq=False)
class ExperimentPlan:
    """Plan of an experiment: what it trains, and what it measures in the end.

    Attributes
    ----------
    variant : what its seeds have in common.
    measure : metrics of the trained network, called in evaluation mode; never during training.
    paper, floor : of the metrics, as in :class:`RunRecord`.
    """

    variant: str
    network: nn.Module
    task: Task
    fit: FitConfig
    published_steps: int
    measure: Callable[[nn.Module], dict[str, float]]
    paper: dict[str, str] = field(default_factory=dict)
    floor: dict[str, float] = field(default_factory=dict)


def fit_config(
    options: ExperimentOptions, *, steps: int, warmup: int, lr: float, clip_norm: float | None, validations: int = 10
) -> FitConfig:
    """Loop configuration of a published run of so many steps, shortened to ``options.steps``; AdamW, decay 0.01."""
    done = options.steps or steps
    return FitConfig(
        name=options.experiment,
        schedule=ScheduleConfig(steps=done, warmup_steps=round(warmup * done / steps), final_fraction=0.0),
        optimiser=OptimiserConfig(lr=lr, weight_decay=0.01, clip_norm=clip_norm),
        validation=ValidationConfig(every=max(1, done // validations), log_every=max(1, min(50, done // 10))),
        seed=options.seed,
        threads=options.threads,
        device=options.device,
    )


def run(options: ExperimentOptions, plan: ExperimentPlan) -> RunRecord | None:
    """Train or resume, measure and write the record; None when ``max_minutes`` ended the run before its last step."""
    steps = plan.fit.schedule.steps
    folder = options.runs / options.experiment / f"{plan.variant}-{options.seed}-{steps}"
    identity = RunIdentity(variant=plan.variant, settings=options.settings(), fit=plan.fit)
    result = fit(plan.network, plan.task, plan.fit, folder, identity, max_minutes=options.max_minutes)
    if not result.finished:
        sys.stdout.write(f"stopped at step {result.step} of {steps}: run the same command again to go on\n")
        return None
    with torch.inference_mode():
        metrics = plan.measure(plan.network.eval())
    record = RunRecord(
        experiment=options.experiment,
        variant=plan.variant,
        seed=options.seed,
        metrics=metrics,
        paper=plan.paper,
        floor=plan.floor,
        settings=options.settings() | {"fit": plan.fit.model_dump(mode="json")},
        command=options.command(),
        steps=result.step,
        published_steps=plan.published_steps,
        minutes=minutes(folder, steps),
        machine=machine(options.device),
        threads=options.threads,
    )
    sys.stdout.write(f"{write_record(record, options.records)}: {record.metrics}\n")
    return record


def minutes(folder: Path, steps: int) -> float:
    """Minutes that all calls together have trained, from the pace in the log: it outlives a kill."""
    paces = [line["seconds_per_step"] for line in read_log(folder) if "seconds_per_step" in line]
    if not paces:
        raise ValueError(f"{folder / LOG} has no pace: fewer steps than one interval of the log")
    return round(float(np.mean(paces)) * steps / 60.0, 2)


def epochs(n_examples: int, batch_size: int, seed: int, step: int) -> Iterator[Int64]:
    """Yield the examples of the batch of ``step`` and of every one after it; each epoch is a shuffle of all of them.

    The last batch of an epoch is the remainder. Shuffles come from (seed, epoch), so any step can be the first.
    """
    per_epoch = -(-n_examples // batch_size)
    epoch, first = divmod(step, per_epoch)
    while True:
        order = np.random.default_rng((seed, epoch)).permutation(n_examples)
        for start in range(first * batch_size, n_examples, batch_size):
            yield order[start : start + batch_size]
        epoch, first = epoch + 1, 0
