"""Cross-validation of a recipe, and of trees on the same folds, on complete light curves.

It is for real data sets that are too small for one test split. The split of the recipe is rotated by a fifth (for five
folds) for each fold, so every object is tested once, by a model that was not trained on it or a related object. Another
tenth is for early stopping. Trees use every training and validation object once, complete, with class weights and
without early stopping.

Notable: the network is trained with balanced classes, which favours macro-F1; its folds are ordinary run folders, so an
interrupted cross-validation resumes, and ``evaluate`` can report on any of them.

Run::

    nightjar-train makers crossvalidate default-finetuning --data build/ztf.parquet --pretrained runs/default-0 \\
        --report build/folds.json
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

from nightjar_alerts.models.common import markdown_table
from nightjar_alerts.models.lightcurve import Int64
from nightjar_alerts.models.taxonomy import taxonomy_of
from nightjar_alerts.training.data.augment import View
from nightjar_alerts.training.data.batches import view_examples
from nightjar_alerts.training.data.dataset import read_dataset, require_labels, split_indices
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.fit.checkpoints import fingerprint
from nightjar_alerts.training.fit.train import Pretrained, train
from nightjar_alerts.training.fit.trees.classical import Kind, fit_trees
from nightjar_alerts.training.fit.trees.features import FeatureSet, matrix
from nightjar_alerts.training.fit.trees.parameters import FOLDS_BOOSTED, FOLDS_FOREST
from nightjar_alerts.training.metrics import all_scores, confusion, f1_per_class
from nightjar_alerts.training.recipes.schema import Recipe
from nightjar_alerts.training.score.baseline import NAMES
from nightjar_alerts.training.score.predictions import ModelPanel, Predictions, open_model
from nightjar_alerts.training.score.sections import number, spread

VALIDATION = 0.1

Fold = Callable[[Recipe], Predictions]  # trains on the split of a recipe and predicts its test objects


def of_fold(recipe: Recipe, fold: int, folds: int) -> Recipe:
    """Return the recipe with the split of one fold."""
    test = 1 / folds
    data = recipe.data.model_copy(update={"fractions": (1 - VALIDATION - test, VALIDATION, test), "turn": fold / folds})
    return recipe.model_copy(update={"data": data})


def crossvalidate(
    recipe: Recipe,
    data: Path,
    runs: Path | None,
    *,
    folds: int = 5,
    pretrained: Path | Pretrained | None = None,
    trees: Sequence[Kind] = (),
    features: FeatureSet = "union",
    progress: bool = True,
) -> dict[str, Any]:
    """Train and score a recipe, and trees, on every fold.

    Parameters
    ----------
    runs : folder for the run folders of the folds; None: trees only.
    pretrained : initial weights of every fold, or the run folder that has them. They must not be trained on objects of
        this file.

    Raises
    ------
    DatasetError
        If the data file has unlabelled objects.
    """
    dataset = read_dataset(data)
    require_labels(dataset, data)
    models: dict[str, Fold] = {}
    if runs is not None:

        def trained(turned: Recipe) -> Predictions:
            folder = runs / f"fold-{round(turned.data.turn * folds)}"
            train(turned, data, folder, pretrained=pretrained, progress=progress)
            return ModelPanel(dataset, [open_model(folder, dataset)]).first(_rows(dataset, turned, "test"), View())

        models[recipe.name] = trained
    if trees:
        rows_N, value_NF = _features(dataset, recipe, features)
        for kind in trees:
            models[f"{NAMES[kind]}, {features} features"] = _tree_fold(kind, dataset, rows_N, value_NF)
    source = {**fingerprint(data, len(dataset)).model_dump(), "folds": folds}
    return {"data": source, "models": {name: score(dataset, recipe, fold, folds) for name, fold in models.items()}}


def score(dataset: Sample, recipe: Recipe, predict: Fold, folds: int) -> dict[str, Any]:
    """Return mean and spread of scores over folds, and the F1 of every class over the test objects of all folds."""
    taxonomy = taxonomy_of(dataset.classes)
    counts_CC, by_fold = np.zeros((len(dataset.classes),) * 2, dtype=np.int64), []
    for fold in range(folds):
        predictions = predict(of_fold(recipe, fold, folds))
        counts_CC += confusion(predictions.label_N, predictions.top_N, len(dataset.classes))
        by_fold.append(all_scores(predictions.probabilities_NC, predictions.label_N, taxonomy))
    f1_C = f1_per_class(counts_CC)
    return {
        "scores": spread(by_fold),
        "f1": {name: number(value) for name, value in zip(dataset.classes, f1_C, strict=True)},
        "confusion": counts_CC.tolist(),
    }


def _rows(dataset: Sample, recipe: Recipe, *parts: str) -> Int64:
    split = split_indices(dataset, recipe.data.fractions, recipe.data.turn)
    return np.concatenate([split[part] for part in parts])


def _features(dataset: Sample, recipe: Recipe, features: FeatureSet) -> tuple[Int64, NDArray[np.float32]]:
    """Return rows [N] and features [N, F] of the complete light curves with a detection."""
    examples = [view_examples(dataset, np.array([row]), recipe.data, View()) for row in range(len(dataset))]
    rows_N = np.array([row for row, found in enumerate(examples) if found], dtype=np.int64)
    return rows_N, matrix([found[0] for found in examples if found], features)


def _tree_fold(kind: Kind, dataset: Sample, rows_N: Int64, value_NF: NDArray[np.float32]) -> Fold:
    """Return a fold that fits class-weighted trees to complete light curves of training and validation objects."""
    index = np.full(len(dataset), -1)
    index[rows_N] = np.arange(len(rows_N))

    def fitted(turned: Recipe) -> Predictions:
        fitted_N, tested_N = (
            index[rows][index[rows] >= 0]
            for rows in (_rows(dataset, turned, "train", "validation"), _rows(dataset, turned, "test"))
        )
        label_N = dataset.label[rows_N]
        trees = fit_trees(_estimator(kind), value_NF[fitted_N], label_N[fitted_N], len(dataset.classes))
        return Predictions(rows_N[tested_N], label_N[tested_N], trees.predict(value_NF[tested_N]), None)

    return fitted


def _estimator(kind: Kind) -> HistGradientBoostingClassifier | RandomForestClassifier:
    if kind == "boosted":
        return HistGradientBoostingClassifier(**FOLDS_BOOSTED, random_state=0)
    return RandomForestClassifier(**FOLDS_FOREST, random_state=0)


def table(report: dict[str, Any]) -> str:
    """Return a Markdown table of macro-F1, balanced accuracy and log loss (mean ± standard deviation), and class F1."""
    classes = list(next(iter(report["models"].values()))["f1"])
    head = ["", "macro-F1", "balanced accuracy", "log loss", *classes]
    rows = []
    for name, result in report["models"].items():
        scores = [_plus_minus(result["scores"][key]) for key in ("macro_f1", "balanced_accuracy", "log_loss")]
        f1 = ["-" if value is None else f"{value:.2f}" for value in result["f1"].values()]
        rows.append([name, *scores, *f1])
    return markdown_table(head, rows) + "\n"


def _plus_minus(figure: dict[str, Any]) -> str:
    return f"{figure['mean']:.3f} ± {figure['spread']:.3f}"
