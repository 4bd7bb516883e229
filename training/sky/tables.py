"""Folders of light curves with their statistics and embeddings, for trees, calibration, prediction sets and novelty.

    sample      PART.npz              light curves (`training.sky.novelty`)
    featurize   PART.statistics.npz   statistics
                PART.embedding.npz    embeddings of the backbone

Parts are ``train``, ``validation`` and ``outliers`` (objects of no known class).

Legend: N light curves, C classes.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from nightjar_alerts.models.lightcurve import Bool, Int64
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.romae import RoMAE
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.augment import AugmentationConfig
from nightjar_alerts.training.data.mixture import read_mixture, sky_dataset
from nightjar_alerts.training.fit.boosting import bundled_forest, fit_forest, save_forest, tree_logits
from nightjar_alerts.training.recipes.schema import Recipe
from nightjar_alerts.training.score.calibrate import softmax
from nightjar_alerts.training.sky.heads import HeadInputs, join_inputs, scores
from nightjar_alerts.training.sky.load import as_observed
from nightjar_alerts.training.sky.novelty import (
    CurveSet,
    draw_curves,
    draw_from_mixture,
    embeddings_of,
    join_curves,
    read_curve_set,
    statistics_network,
    statistics_of,
    synthetic_outliers,
)
from nightjar_alerts.training.sky.record import SurveySample

PARTS: Final = ("train", "validation", "outliers")
OTHER: Final = "other"  # quality of real objects of no known class
MAX_PER_LABEL: Final = 80
_NOT_SUPERNOVAE: Final = [
    index
    for index, leaf in enumerate(ELASTICC.classes)
    if leaf.path[-1] in ("Periodic", "Non-Periodic", "Fast") or leaf.name == "TDE"
]
CLASSES: Final = "classes.json"
COPIES: Final = 6  # samples of each real outlier
SYNTHETIC_OUTLIERS: Final = 3_000
MIN_POINTS: Final = 8  # minimum number of points of a real outlier
MIN_DETECTIONS: Final = 3


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
    mixture: Path, sky: SurveySample, recipe: Recipe, numbers: tuple[int, int], folder: Path, seed: int
) -> None:
    """Sample ``numbers`` of training and validation light curves of a mixture, and outliers, into a folder."""
    dataset = read_mixture(mixture)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CLASSES).write_text(json.dumps(dataset.classes), encoding="utf-8")
    for part, number in zip(PARTS[:2], numbers, strict=True):
        draw_from_mixture(dataset, recipe, part, number, seed).save(folder / f"{part}.npz")
    training = read_curve_set(folder / "train.npz")
    some = training.take(np.random.default_rng(seed).permutation(len(training))[:SYNTHETIC_OUTLIERS])
    join_curves([real_outliers(sky, recipe, dataset.classes, seed), synthetic_outliers(some, seed)]).save(
        folder / "outliers.npz"
    )


def real_outliers(sky: SurveySample, recipe: Recipe, classes: tuple[str, ...], seed: int) -> CurveSet:
    """Draw light curves of real training objects outside the known classes; ``source`` is the kind of object."""
    outlier = sky.quality == OTHER
    if classes != ELASTICC.names:  # outliers of the six types of supernovae include other transients and variables
        outlier |= _sample_of_each(np.where(np.isin(sky.label, _NOT_SUPERNOVAE), sky.label, -1), seed)
    usable = outlier & (sky.part == 0) & (sky.lengths >= MIN_POINTS)
    chosen = as_observed(sky.take(usable & (sky.count(sky.detected) >= MIN_DETECTIONS)))
    dataset, _, _ = sky_dataset(chosen)
    names = np.where(chosen.label < 0, chosen.raw_label, np.array(ELASTICC.names)[chosen.label])
    kinds = replace(dataset, object_id=[f"{kind}:" for kind in names])
    rows: Int64 = np.repeat(np.arange(len(kinds)), COPIES)
    return draw_curves(kinds, rows, recipe, np.random.default_rng((seed, len(PARTS))))


def _sample_of_each(label_N: Int64, seed: int) -> Bool:
    """Return a mask of at most `MAX_PER_LABEL` random objects of each label that is not negative."""
    order = np.random.default_rng(seed).permutation(len(label_N))
    flags = np.zeros(len(label_N), dtype=np.bool_)
    for label in np.unique(label_N[label_N >= 0]):
        flags[order[label_N[order] == label][:MAX_PER_LABEL]] = True
    return flags


def write_statistics(recipe: Recipe, folder: Path) -> None:
    """Compute the statistics of a recipe's network for every part."""
    network = statistics_network(recipe)
    for part in PARTS:
        value_NK, mask_NK = statistics_of(network, read_curve_set(folder / f"{part}.npz"))
        np.savez(folder / f"{part}.statistics.npz", value=value_NK, known=mask_NK)


def write_embeddings(backbone: AstroMoE | RoMAE, folder: Path) -> None:
    """Compute the embeddings of every part."""
    for part in PARTS:
        np.savez(
            folder / f"{part}.embedding.npz", embedding=embeddings_of(backbone, read_curve_set(folder / f"{part}.npz"))
        )


def classes_of(folder: Path) -> tuple[str, ...]:
    """Return the class names of a folder, in the order of its labels."""
    return tuple(json.loads((folder / CLASSES).read_text(encoding="utf-8")))


def read_head_inputs(folder: Path, part: str) -> HeadInputs:
    """Read the features of a part."""
    with (
        np.load(folder / f"{part}.statistics.npz") as statistics,
        np.load(folder / f"{part}.embedding.npz") as embeddings,
    ):
        return HeadInputs(embeddings["embedding"], statistics["value"], statistics["known"])


def read_part(folders: Sequence[Path], part: str) -> tuple[HeadInputs, CurveSet]:
    """Read and concatenate features and light curves of a part of several folders."""
    return join_inputs([read_head_inputs(folder, part) for folder in folders]), join_curves(
        [read_curve_set(folder / f"{part}.npz") for folder in folders]
    )


def fit_trees(
    folders: Sequence[Path],
    out: Path,
    *,
    seed: int,
    rounds: int,
    statistics: bool = False,
    start: tuple[Path, int] | None = None,
) -> dict[str, float]:
    """Fit boosted trees to the light curves of folders, write them and return the validation scores.

    Parameters
    ----------
    statistics : use statistics only, for a backbone that was trained on the same light curves and has memorised them.
    start : a bundle to continue boosting from, and the number of its rounds to keep.

    Raises
    ------
    ValueError
        If the bundle has no trees.
    """
    (valid_inputs, validation), (train_inputs, training) = (
        read_part(folders, part) for part in ("validation", "train")
    )
    classes = len(classes_of(folders[0]))
    if statistics:
        train_inputs = replace(
            train_inputs, embedding=np.zeros_like(train_inputs.embedding)
        )  # trees ignore constant features
    columns_NF = train_inputs.columns
    first = None if start is None else bundled_forest(start[0], columns_NF.shape[1], start[1])
    forest = fit_forest(columns_NF, training.label, classes, seed=seed, rounds=rounds, start=first)
    save_forest(forest, out)
    return scores(softmax(tree_logits(forest, valid_inputs.columns)), validation.label)
