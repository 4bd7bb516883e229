"""Folders of drawn light curves: training and validation light curves of a mixture, and outliers."""

import json
from pathlib import Path

import numpy as np

from nightjar_alerts.training.data.augment import AugmentationConfig
from nightjar_alerts.training.data.drawn import CLASSES, PARTS, draw_from_mixture, join_drawn, read_drawn, write_drawn
from nightjar_alerts.training.data.mixture import read_mixture
from nightjar_alerts.training.data.outliers import SYNTHETIC_OUTLIERS, real_outliers, synthetic_outliers
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.recipes.schema import Recipe


def untruncated(recipe: Recipe) -> Recipe:
    """Return a recipe without augmentation of points; metadata and redshifts may still be removed."""
    config = recipe.augmentation
    whole = AugmentationConfig(
        mta_days=(),
        no_metadata=config.no_metadata,
        no_redshift=config.no_redshift,
        common_metadata=config.common_metadata,
    )
    return recipe.model_copy(update={"augmentation": whole})


def write_samples(
    mixture: Path, sample: Sample, recipe: Recipe, numbers: tuple[int, int], folder: Path, seed: int
) -> None:
    """Sample ``numbers`` of training and validation light curves of a mixture, and outliers, into a folder."""
    dataset = read_mixture(mixture)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CLASSES).write_text(json.dumps(dataset.classes), encoding="utf-8")
    for part, number in zip(PARTS[:2], numbers, strict=True):
        write_drawn(draw_from_mixture(dataset, recipe, part, number, seed), folder / f"{part}.npz")
    training = read_drawn(folder / "train.npz")
    some = training.take(np.random.default_rng(seed).permutation(len(training))[:SYNTHETIC_OUTLIERS])
    outliers = join_drawn([real_outliers(sample, recipe, dataset.classes, seed), synthetic_outliers(some, seed)])
    write_drawn(outliers, folder / "outliers.npz")
