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
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

from nightjar_alerts.models.common import markdown_table
from nightjar_alerts.models.taxonomy import taxonomy_of
from nightjar_alerts.training.data.augment import View
from nightjar_alerts.training.data.batches import Example, view_examples
from nightjar_alerts.training.data.dataset import Dataset, read_dataset, require_labels, split_indices
from nightjar_alerts.training.fit.checkpoints import fingerprint
from nightjar_alerts.training.fit.train import train
from nightjar_alerts.training.recipes.schema import Recipe
from nightjar_alerts.training.score.baseline import NAMES, FeatureSet, Kind, fit_trees, matrix
from nightjar_alerts.training.score.metrics import all_scores, confusion, f1_per_class
from nightjar_alerts.training.score.predictions import ModelAnswers, ModelPanel, ScoredModel, labels, open_model
from nightjar_alerts.training.score.sections import number, spread

VALIDATION = 0.1
BOOSTING = {"max_iter": 200, "learning_rate": 0.05, "l2_regularization": 1.0, "max_leaf_nodes": 15}
FOREST = {"n_estimators": 400, "min_samples_leaf": 3, "n_jobs": -1}

Make = Callable[[Recipe, Dataset], ScoredModel]


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
    trees: Sequence[tuple[Kind, FeatureSet]] = (),
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
    sides: dict[str, Make] = {}
    if runs is not None:

        def trained(turned: Recipe, dataset: Dataset) -> ScoredModel:
            folder = runs / f"fold-{round(turned.data.turn * folds)}"
            train(turned, data, folder, pretrained=pretrained, progress=progress)
            return open_model(folder, dataset)

        sides[recipe.name] = trained
    measured = Features()
    for kind, features in trees:
        sides[f"{NAMES[kind]}, {features} features"] = _grower(kind, features, measured)
    source = {**fingerprint(data, len(dataset)).model_dump(), "folds": folds}
    return {"data": source, "models": {name: score(dataset, recipe, make, folds) for name, make in sides.items()}}


def score(dataset: Dataset, recipe: Recipe, make: Make, folds: int) -> dict[str, Any]:
    """Scores by fold, and the F1 of every class over all objects, each predicted by the model of its fold."""
    taxonomy = taxonomy_of(dataset.classes)
    counts_CC, by_fold = np.zeros((len(dataset.classes),) * 2, dtype=np.int64), []
    for fold in range(folds):
        turned = of_fold(recipe, fold, folds)
        rows = split_indices(dataset, turned.data.fractions, turned.data.turn)["test"]
        predictions = ModelPanel(dataset, [make(turned, dataset)]).first(rows, View())
        counts_CC += confusion(predictions.label_N, predictions.top_N, len(dataset.classes))
        by_fold.append(all_scores(predictions.probabilities_NC, predictions.label_N, taxonomy))
    f1_C = f1_per_class(counts_CC)
    return {
        "scores": spread(by_fold),
        "f1": {name: number(value) for name, value in zip(dataset.classes, f1_C, strict=True)},
        "confusion": counts_CC.tolist(),
    }


class Features:
    """Cached features of light curves, which folds and kinds of trees share."""

    def __init__(self) -> None:
        self._rows: dict[tuple[FeatureSet, bytes], NDArray[np.float32]] = {}

    def of(self, examples: Sequence[Example], feature_set: FeatureSet) -> NDArray[np.float32]:
        """Features of light curves, as `training.score.baseline.matrix` has them."""
        return np.stack([self._row(example, feature_set) for example in examples])

    def _row(self, example: Example, feature_set: FeatureSet) -> NDArray[np.float32]:
        tokens = example.tokens
        columns = (tokens.time, tokens.flux, tokens.flux_err, tokens.band, tokens.detected, tokens.metadata)
        key = feature_set, sha256(b"".join(column.tobytes() for column in columns)).digest()
        if key not in self._rows:
            self._rows[key] = matrix([example], feature_set)[0]
        return self._rows[key]


def _grower(kind: Kind, features: FeatureSet, measured: Features) -> Make:
    def grown(recipe: Recipe, dataset: Dataset) -> ScoredModel:
        split = split_indices(dataset, recipe.data.fractions, recipe.data.turn)
        complete = view_examples(dataset, np.concatenate([split["train"], split["validation"]]), recipe.data, View())
        return ScoredModel(
            NAMES[kind], recipe.seed, recipe.data, grow(kind, features, complete, len(dataset.classes), measured)
        )

    return grown


def grow(
    kind: Kind, features: FeatureSet, examples: Sequence[Example], classes: int, measured: Features
) -> Callable[[Sequence[Example]], ModelAnswers]:
    """Fit class-weighted trees on complete light curves; return a classifier of others."""
    estimator = _boosted() if kind == "boosted" else _forest()
    fitted = fit_trees(estimator, measured.of(examples, features), labels(examples), classes)
    return lambda others: ModelAnswers(fitted.predict(measured.of(others, features)))


def _boosted() -> HistGradientBoostingClassifier:
    return HistGradientBoostingClassifier(**BOOSTING, early_stopping=False, class_weight="balanced", random_state=0)


def _forest() -> RandomForestClassifier:
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
