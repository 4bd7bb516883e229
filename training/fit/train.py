"""A training run on light curves: from a recipe and a data file to a run folder.

Run, and run again to resume; with torchrun on several processes (``training.fit.distributed``)::

    python -m training train default --data build/sim.parquet
    torchrun --standalone --nproc-per-node 2 -m training train default --data build/sim.parquet --threads 1
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from models.bundle import sha256_of
from models.lightcurve import Int64
from models.networks.astro_moe.network import AstroMoE
from models.networks.statistics.points import Statistics
from models.networks.zoo import NetworkTask, build, transfer
from training.data.batches import collate, draw_examples
from training.data.dataset import Dataset, read_dataset, require_labels, split_indices
from training.data.mixture import is_mixture, read_mixture
from training.fit.checkpoints import CHECKPOINT, RunConfig, best_path, fingerprint, load_best
from training.fit.loop import FitResult, Task, fit
from training.fit.tasks import Classification, Forecasting, MaskedReconstruction
from training.recipes.schema import Recipe

SCALES_DRAW = 2**32 + 3  # a draw of its own
SCALES_OBJECTS, SCALES_BATCH = 4_000, 64  # whose statistics are the measure of all others

TASKS: dict[NetworkTask, Callable[[Recipe, Dataset, dict[str, Int64]], Task]] = {
    "classify": Classification,
    "reconstruct": MaskedReconstruction,
    "forecast": Forecasting,
}


def train(
    recipe: Recipe,
    data: Path,
    folder: Path,
    *,
    pretrained: Path | None = None,
    max_minutes: float | None = None,
    progress: bool = True,
) -> FitResult:
    """Train a recipe on a data file, from the start or from the folder's checkpoint.

    A classifier gets as many classes as the file has, whatever the recipe says.

    Parameters
    ----------
    pretrained : run folder whose best weights the network starts from, wherever name and shape agree.
    max_minutes : save and return after this long, at the next step; call again to go on.

    Raises
    ------
    RunError
        When the folder holds a different run.
    DatasetError
        When a classifier is to be trained on a file with unlabelled objects or without two classes.
    FloatingPointError
        When the loss stops being finite.
    ValueError
        When the data are too few to have training and validation objects, or nothing fits of the pretrained weights.
    """
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    dataset = read_mixture(data) if is_mixture(data) else read_dataset(data)
    if recipe.task == "classify":
        require_labels(dataset, data)
        recipe = with_classes(recipe, len(dataset.classes))
    split = split_indices(dataset, recipe.data.fractions, recipe.data.turn)
    if not len(split["train"]) or not len(split["validation"]):
        raise ValueError(f"{data} has too few objects for training and validation: {len(dataset)}")
    source, origin = fingerprint(data, len(dataset)), {}
    if pretrained is not None:
        origin = {"pretrained": str(pretrained), "pretrained_sha256": sha256_of(best_path(pretrained))}
    identity = RunConfig(recipe=recipe, data=source, **origin)
    network = start(recipe, dataset, split["train"])
    if pretrained is not None and not (folder / CHECKPOINT).exists():
        transfer(load_best(pretrained), network)
    task = TASKS[recipe.task](recipe, dataset, split)
    return fit(network, task, recipe, folder, identity, max_minutes=max_minutes, progress=progress)


def with_classes(recipe: Recipe, n_classes: int) -> Recipe:
    """Return the recipe with a network of ``n_classes``."""
    return recipe.model_copy(update={"network": recipe.network.model_copy(update={"n_classes": n_classes})})


def start(recipe: Recipe, dataset: Dataset, train_indices: Int64) -> nn.Module:
    """Build a seeded, untrained network; a classifier learns its metadata scales from the training objects."""
    torch.manual_seed(recipe.seed)
    network = build(recipe.network, recipe.task)
    if recipe.task == "classify":
        network.fit_inputs(dataset.metadata[train_indices])  # type: ignore[operator]
        if isinstance(network, AstroMoE) and network.statistics is not None:
            network.statistics.fit(_statistics(network, recipe, dataset, train_indices))
    return network


def _statistics(network: AstroMoE, recipe: Recipe, dataset: Dataset, train_indices: Int64) -> Statistics:
    """Return statistics of a fixed sample of the training objects, each seen as training might see it."""
    rng = np.random.default_rng((recipe.seed, SCALES_DRAW))
    sample = rng.permutation(train_indices)[:SCALES_OBJECTS]
    examples = draw_examples(dataset, sample, recipe.data, recipe.augmentation, rng)
    batches = [collate(examples[start : start + SCALES_BATCH]) for start in range(0, len(examples), SCALES_BATCH)]
    told = [network.statistics_of(*batch.inputs_of(network)) for batch in batches]
    return Statistics(*(torch.cat(parts) for parts in zip(*told, strict=True)))
