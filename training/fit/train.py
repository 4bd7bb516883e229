"""A training run on light curves: from a recipe and a data file to a run folder.

Run, and run again to resume; with torchrun on several processes (``training.fit.distributed``)::

    nightjar-train fit default --data build/sim.parquet
    torchrun --nproc-per-node 2 -m nightjar_alerts.training fit default --data build/sim.parquet --threads 1
"""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from nightjar_alerts.models.bundle import sha256_of
from nightjar_alerts.models.lightcurve import Int64
from nightjar_alerts.models.networks.zoo import NetworkTask, build, transfer
from nightjar_alerts.training.data.batches import (
    collate,
    draw_examples,
)
from nightjar_alerts.training.data.dataset import require_labels, split_indices
from nightjar_alerts.training.data.mixture import read_training_data
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.fit.checkpoints import CHECKPOINT, RunConfig, State, best_path, fingerprint, load_best
from nightjar_alerts.training.fit.distributed import is_first
from nightjar_alerts.training.fit.loop import FitResult, Task, fit
from nightjar_alerts.training.fit.tasks import ClassificationTask, ForecastingTask, MaskedReconstruction
from nightjar_alerts.training.recipes.schema import Recipe

SCALES_DRAW = 2**32 + 3  # random stream
SCALES_OBJECTS, SCALES_BATCH = 4_000, 64  # light curves for the normalisation of statistics

TASKS: dict[NetworkTask, Callable[[Recipe, Sample, dict[str, Int64]], Task]] = {
    "classify": ClassificationTask,
    "reconstruct": MaskedReconstruction,
    "forecast": ForecastingTask,
}


class Pretrained(NamedTuple):
    """Weights that a run starts from: their origin, its hash, and the weights by name."""

    origin: str
    sha256: str
    weights: State


def weights_of_run(folder: Path) -> Pretrained:
    """Return the best weights of a run folder. Raises RunError if there are none."""
    return Pretrained(str(folder), sha256_of(best_path(folder)), load_best(folder))


def train(
    recipe: Recipe,
    data: Path,
    folder: Path,
    *,
    pretrained: Path | Pretrained | None = None,
    max_minutes: float | None = None,
    progress: bool = True,
) -> FitResult:
    """Train a recipe on a data file, from the start or from the folder's checkpoint.

    A classifier has the number of classes of the file, not of the recipe.

    Parameters
    ----------
    pretrained : weights that are transferred where name and shape agree, or the run folder that has them.
    max_minutes : save and return at the first step after this time; call again to resume.

    Raises
    ------
    RunError
        If the folder has a different run.
    DatasetError
        If the task is classification and the file has unlabelled objects or fewer than two classes.
    FloatingPointError
        If the loss is not finite.
    ValueError
        If there are too few objects for training and validation, or no pretrained weight fits.
    """
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    dataset = read_training_data(data)
    if recipe.task == "classify":
        require_labels(dataset, data)
        recipe = with_classes(recipe, len(dataset.classes))
    split = split_indices(dataset, recipe.data.fractions, recipe.data.turn)
    if not len(split["train"]) or not len(split["validation"]):
        raise ValueError(f"{data} has too few objects for training and validation: {len(dataset)}")
    source, origin = fingerprint(data, len(dataset)), {}
    if isinstance(pretrained, Path):
        pretrained = weights_of_run(pretrained)
    if pretrained is not None:
        origin = {"pretrained": pretrained.origin, "pretrained_sha256": pretrained.sha256}
    identity = RunConfig(recipe=recipe, data=source, **origin)
    network = start(recipe, dataset, split["train"])
    if pretrained is not None and not (folder / CHECKPOINT).exists():
        copied = transfer(pretrained.weights, network, heads=recipe.keep_heads)
        if progress and is_first():
            sys.stderr.write(describe_transfer(pretrained, network, copied))
    task = TASKS[recipe.task](recipe, dataset, split)
    return fit(network, task, recipe, folder, identity, max_minutes=max_minutes, progress=progress)


def describe_transfer(pretrained: Pretrained, network: nn.Module, copied: Collection[str]) -> str:
    """Return lines about the tensors of a network that were copied, those that are new and why, and unused ones."""
    own = network.state_dict()
    reasons: dict[str, list[str]] = {}
    for name in own.keys() - set(copied):
        known = pretrained.weights.get(name)
        reason = "not in it" if known is None else "another shape" if known.shape != own[name].shape else "heads"
        reasons.setdefault(f"new ({reason})", []).append(name)
    if unused := pretrained.weights.keys() - own.keys():
        reasons["unused"] = list(unused)
    lines = [f"{len(copied)} of {len(own)} tensors are from {pretrained.origin}"]
    lines += [f"  {reason}: {_by_part(names)}" for reason, names in sorted(reasons.items())]
    return "\n".join(lines) + "\n"


def _by_part(names: Sequence[str]) -> str:
    parts = Counter(name.partition(".")[0] for name in names)
    return ", ".join(f"{part} ({count})" for part, count in sorted(parts.items()))


def with_classes(recipe: Recipe, n_classes: int) -> Recipe:
    """Return the recipe with a network of ``n_classes``."""
    return recipe.model_copy(update={"network": recipe.network.model_copy(update={"n_classes": n_classes})})


def start(recipe: Recipe, dataset: Sample, train_indices: Int64) -> nn.Module:
    """Build a seeded, untrained network; a classifier's inputs are normalised by the training objects."""
    torch.manual_seed(recipe.seed)
    network = build(recipe.network, recipe.task)
    if recipe.task == "classify":
        fit_inputs = getattr(network, "fit_inputs", None)  # of networks that take metadata
        if fit_inputs is not None:
            fit_inputs(dataset.metadata[train_indices])
        fit_statistics = getattr(network, "fit_statistics", None)
        if fit_statistics is not None:
            fit_statistics(partial(_sample_inputs, network, recipe, dataset, train_indices))
    return network


def _sample_inputs(
    network: nn.Module, recipe: Recipe, dataset: Sample, train_indices: Int64
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield batches of a fixed sample of the training objects, with augmentation."""
    rng = np.random.default_rng((recipe.seed, SCALES_DRAW))
    sample = rng.permutation(train_indices)[:SCALES_OBJECTS]
    examples = draw_examples(dataset, sample, recipe.data, recipe.augmentation, rng)
    for start in range(0, len(examples), SCALES_BATCH):
        yield collate(examples[start : start + SCALES_BATCH]).inputs_of(network)
