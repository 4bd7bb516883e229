"""Cross-validation: a recipe trained once for every fold, and trees on the same folds, scored on complete light curves.

For real data sets that are too small for one test split. The split of the recipe is rotated by a fifth (of five folds)
for each fold, so every object is tested once by models that were trained on neither it nor a related object; a further
tenth is for early stopping. Trees get every training and validation object once, complete, with class weights and
without early stopping.

Notable: the network is trained with balanced classes, which suits macro-F1; its folds are ordinary run folders, so an
interrupted cross-validation resumes, and ``evaluate`` can report on any of them.

Run::

    nightjar-train crossvalidate default-finetuning --data build/ztf.parquet --pretrained runs/default-0 \\
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
from nightjar_alerts.training.data.dataset import Dataset, read_dataset, require_labels, split_indices
from nightjar_alerts.training.fit.checkpoints import fingerprint
from nightjar_alerts.training.fit.train import train
from nightjar_alerts.training.recipes.schema import Recipe
from nightjar_alerts.training.score.baseline import NAMES, FeatureSet, Kind, fit_trees, matrix
from nightjar_alerts.training.score.metrics import all_scores, confusion, f1_per_class
from nightjar_alerts.training.score.predictions import ModelPanel, Predictions, open_model
from nightjar_alerts.training.score.sections import number, spread

VALIDATION = 0.1
BOOSTING = {"max_iter": 200, "learning_rate": 0.05, "l2_regularization": 1.0, "max_leaf_nodes": 15}
FOREST = {"n_estimators": 400, "min_samples_leaf": 3, "n_jobs": -1}

Fold = Callable[[Recipe], Predictions]  # from the recipe on a split to predictions of its test objects


def of_fold(recipe: Recipe, fold: int, folds: int) -> Recipe:
    """Return the recipe on one of ``folds`` splits that together test every object once."""
    test = 1 / folds
    data = recipe.data.model_copy(update={"fractions": (1 - VALIDATION - test, VALIDATION, test), "turn": fold / folds})
    return recipe.model_copy(update={"data": data})


def crossvalidate(
    recipe: Recipe,
    data: Path,
    runs: Path | None,
    *,
    folds: int = 5,
    pretrained: Path | None = None,
    trees: Sequence[Kind] = (),
    features: FeatureSet = "union",
    progress: bool = True,
) -> dict[str, Any]:
    """Train and score a recipe, and trees, on every fold.

    Parameters
    ----------
    runs : folder for a run folder of each fold; None scores the trees alone.
    pretrained : run folder whose best weights every fold starts from. It must not have seen objects of this file.

    Raises
    ------
    DatasetError
        For a data file with unlabelled objects.
    """
    dataset = read_dataset(data)
    require_labels(dataset, data)
    sides: dict[str, Fold] = {}
    if runs is not None:

        def trained(turned: Recipe) -> Predictions:
            folder = runs / f"fold-{round(turned.data.turn * folds)}"
            train(turned, data, folder, pretrained=pretrained, progress=progress)
            return ModelPanel(dataset, [open_model(folder, dataset)]).first(_rows(dataset, turned, "test"), View())

        sides[recipe.name] = trained
    if trees:
        rows_N, value_NF = _features(dataset, recipe, features)
        for kind in trees:
            sides[f"{NAMES[kind]}, {features} features"] = _grower(kind, dataset, rows_N, value_NF)
    source = {**fingerprint(data, len(dataset)).model_dump(), "folds": folds}
    return {"data": source, "models": {name: score(dataset, recipe, fold, folds) for name, fold in sides.items()}}


def score(dataset: Dataset, recipe: Recipe, predict: Fold, folds: int) -> dict[str, Any]:
    """Scores by fold, and the F1 of every class over all objects, each predicted by the model of its fold."""
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


def _rows(dataset: Dataset, recipe: Recipe, *parts: str) -> Int64:
    split = split_indices(dataset, recipe.data.fractions, recipe.data.turn)
    return np.concatenate([split[part] for part in parts])


def _features(dataset: Dataset, recipe: Recipe, features: FeatureSet) -> tuple[Int64, NDArray[np.float32]]:
    """Rows [N] of the objects that show a detection, and features [N, F] of their complete light curves."""
    examples = [view_examples(dataset, np.array([row]), recipe.data, View()) for row in range(len(dataset))]
    rows_N = np.array([row for row, found in enumerate(examples) if found], dtype=np.int64)
    return rows_N, matrix([found[0] for found in examples if found], features)


def _grower(kind: Kind, dataset: Dataset, rows_N: Int64, value_NF: NDArray[np.float32]) -> Fold:
    """Fit class-weighted trees to complete light curves of training and validation objects."""
    place = np.full(len(dataset), -1)
    place[rows_N] = np.arange(len(rows_N))

    def grown(turned: Recipe) -> Predictions:
        fitted_N, tested_N = (
            place[rows][place[rows] >= 0]
            for rows in (_rows(dataset, turned, "train", "validation"), _rows(dataset, turned, "test"))
        )
        label_N = dataset.label[rows_N]
        trees = fit_trees(_estimator(kind), value_NF[fitted_N], label_N[fitted_N], len(dataset.classes))
        return Predictions(rows_N[tested_N], label_N[tested_N], trees.predict(value_NF[tested_N]), None)

    return grown


def _estimator(kind: Kind) -> HistGradientBoostingClassifier | RandomForestClassifier:
    if kind == "boosted":
        return HistGradientBoostingClassifier(**BOOSTING, early_stopping=False, class_weight="balanced", random_state=0)
    return RandomForestClassifier(**FOREST, class_weight="balanced_subsample", random_state=0)


def table(report: dict[str, Any]) -> str:
    """Markdown: macro-F1, balanced accuracy and log loss as mean ± standard deviation over folds, F1 of every class."""
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
