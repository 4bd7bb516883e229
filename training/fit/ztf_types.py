"""A network of ELAsTiCC's 20 classes and trees, fitted to ZTF's supernovae in six classes.

``fit_ztf_types`` maps a network of ELAsTiCC's 20 classes to six:

- the branches were trained on the training part, so heads are fitted to the other parts only: the last layer of the 20
  classes, followed by a linear map to six (`fit_class_map`);
- trees use statistics and shapes, and are fitted to all parts;
- heads and trees have equal weights;
- a fifth of the other parts is held out: for calibration in the released model (``prepare``), for scores in
  cross-validation (`training.score.ztf_types`).

Legend: N light curves, O objects, H copies of the heads, F numbers, C classes of a network, six classes here.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.lightcurve import Bool, Float64, RaggedBatch, Tokens, featurise
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.networks.parts.trees import Forest
from nightjar_alerts.models.taxonomy import ZTF_SUPERNOVAE
from nightjar_alerts.training.data.batches import draw_examples
from nightjar_alerts.training.data.drawn import CLASSES, drawn_sample, join_drawn, write_drawn
from nightjar_alerts.training.data.mixture import with_all_metadata
from nightjar_alerts.training.data.outliers import SYNTHETIC_OUTLIERS, real_outliers, synthetic_outliers
from nightjar_alerts.training.data.sample import PARTS, Sample
from nightjar_alerts.training.data.surveys import as_observed
from nightjar_alerts.training.fit.class_map import fit_class_map, logits_of_copies, with_mapped_heads
from nightjar_alerts.training.fit.heads import (
    HeadInputs,
    embeddings_of,
    load_astro_moe,
    load_backbone,
    save_run,
    statistics_network,
    statistics_of,
)
from nightjar_alerts.training.fit.labelled import LabelledDraws
from nightjar_alerts.training.fit.trees.forest import fit_forest, save_forest
from nightjar_alerts.training.fit.trees.parameters import REGULAR, REGULAR_ROUNDS
from nightjar_alerts.training.importers.surveys import ZTF_CLASSES
from nightjar_alerts.training.recipes.schema import Recipe

Int = NDArray[np.int64]

FOLDS: Final = 5
NUMBER: Final = {name: number for number, name in enumerate(ZTF_SUPERNOVAE.names)}


def typed(sample: Sample) -> tuple[Sample, Int]:
    """Supernovae of ZTF with one of the six types, and its number (O,)."""
    six = as_observed(sample.take(sample.source == "ztf_sn"))
    label = np.array([NUMBER.get(ZTF_CLASSES.get(str(kind), ""), -1) for kind in six.raw_label], dtype=np.int64)
    return six.take(label >= 0), label[label >= 0]


def calibration_objects(unlearned_O: Bool, group_O: Int, seed: int) -> Bool:
    """Return the objects for calibration: one fold in `FOLDS` of those that the branches have not learned from."""
    fold_O = np.random.default_rng(seed).permutation(group_O.max() + 1)[group_O] % FOLDS
    held_out_O: Bool = unlearned_O & (fold_O == 0)
    return held_out_O


def held_out_types(sample: Sample, *, seed: int = 0) -> Sample:
    """Return the supernovae that neither heads nor trees of the model were fitted to; ``label`` is the type.

    Parameters
    ----------
    seed : that of `prepare`.
    """
    six, label_O = typed(sample)
    group_O = np.unique(six.group, return_inverse=True)[1].astype(np.int64)
    chosen_O = calibration_objects(six.part != PARTS.index("train"), group_O, seed)
    return replace(six.take(chosen_O), label=label_O[chosen_O])


DRAWN: Final = (1, 2, 5, 5, 5, 5)  # times that an object of each class is drawn as alerts show it


@dataclass(frozen=True, eq=False)
class SupernovaDraws(LabelledDraws):
    """Light curves of the supernovae of all parts, complete ones first, with predictions of a network.

    Attributes
    ----------
    unlearned_O : objects that the network's branches have not learned from.
    group_O : objects that are one by another name have the same number.
    """

    unlearned_O: Bool
    group_O: Int


class ZtfTypesFit(NamedTuple):
    """Trees, and the linear map from 20 logits to six."""

    forest: Forest
    map_6C: Float64
    bias_6: Float64


def draw_ztf_types(sample: Sample, run: Path, recipe: Recipe, *, seed: int) -> SupernovaDraws:
    """Sample supernovae of all parts, complete and as in alerts, and run the network of a run folder."""
    six, label_O = typed(sample)
    dataset = with_all_metadata(six)
    rng, data = np.random.default_rng(seed), recipe.data
    tokens: list[Tokens] = [
        featurise(six.curve(row, "nothing"), data.limits, data.flux_unit, METADATA_COLUMNS, data.bands)
        for row in range(len(six))
    ]
    object_indices = list(range(len(six)))
    for row in range(len(six)):
        for _ in range(DRAWN[label_O[row]]):
            for example in draw_examples(dataset, np.array([row]), data, recipe.augmentation, rng):
                tokens.append(example.tokens)
                object_indices.append(row)
    owner_N = np.array(object_indices, dtype=np.int64)
    light_curves = drawn_sample(RaggedBatch.collate(tokens), label_O[owner_N], six.source[owner_N], owner_N)
    network, backbone = load_astro_moe(run)[0].eval(), load_backbone(run)[0]
    inputs = HeadInputs(embeddings_of(backbone, light_curves), *statistics_of(statistics_network(recipe), light_curves))
    group_O = np.unique(six.group, return_inverse=True)[1].astype(np.int64)
    return SupernovaDraws(
        light_curves, inputs, logits_of_copies(network, inputs), six.part != PARTS.index("train"), group_O
    )


def fit_ztf_types(drawn: SupernovaDraws, learns_O: Bool, *, seed: int) -> ZtfTypesFit:
    """Fit trees and heads to some objects."""
    label_N, rows = drawn.light_curves.label, drawn.rows(learns_O)
    forest = fit_forest(
        drawn.statistics[rows], label_N[rows], len(NUMBER),
        seed=seed, rounds=REGULAR_ROUNDS, weight_N=drawn.weights(rows), **REGULAR,
    )  # fmt: skip
    rows = drawn.rows(learns_O & drawn.unlearned_O)
    return ZtfTypesFit(forest, *fit_class_map(drawn.heads_NHC[rows], label_N[rows], drawn.weights(rows), len(NUMBER)))


def prepare(sample: Sample, drawn: SupernovaDraws, run: Path, recipe: Recipe, out: Path, *, seed: int) -> None:
    """Fit the model and write it for ``sample export``: a folder of light curves, a run, and trees.

    `calibration_objects` are for calibration; heads and trees are fitted to the rest, the trees to the training part as
    well.
    """
    held_out_O = calibration_objects(drawn.unlearned_O, drawn.group_O, seed)
    fit = fit_ztf_types(drawn, ~held_out_O, seed=seed)
    folder = out / "drawn"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CLASSES).write_text(json.dumps(tuple(NUMBER)), encoding="utf-8")
    network, config = load_astro_moe(run)
    backbone = load_backbone(run)[0]
    for part, chosen_O in (("train", ~held_out_O), ("validation", held_out_O)):
        rows = drawn.rows(chosen_O)
        _write(folder, part, drawn.light_curves.take(rows), drawn.inputs.take(rows))
    some = drawn.light_curves.take(
        np.random.default_rng(seed).permutation(len(drawn.light_curves))[:SYNTHETIC_OUTLIERS]
    )
    outliers = join_drawn([real_outliers(sample, recipe, tuple(NUMBER), seed), synthetic_outliers(some, seed)])
    inputs = HeadInputs(embeddings_of(backbone, outliers), *statistics_of(statistics_network(recipe), outliers))
    _write(folder, "outliers", outliers, inputs)
    save_forest(fit.forest, out / "trees.npz")
    save_run(with_mapped_heads(network, fit.map_6C, fit.bias_6, recipe), recipe, run, config.data, out / "run")


def _write(folder: Path, part: str, light_curves: Sample, inputs: HeadInputs) -> None:
    write_drawn(light_curves, folder / f"{part}.npz")
    np.savez(folder / f"{part}.statistics.npz", value=inputs.value, known=inputs.is_known)
    np.savez(folder / f"{part}.embedding.npz", embedding=inputs.embedding)
