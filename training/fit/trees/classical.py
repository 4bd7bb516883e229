"""Trees of scikit-learn on features: gradient boosting and a random forest."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

from nightjar_alerts.models.lightcurve import Int64
from nightjar_alerts.training.data.batches import draw_examples, draw_indices
from nightjar_alerts.training.data.dataset import split_indices
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.fit.trees.features import FeatureSet, matrix
from nightjar_alerts.training.fit.trees.parameters import BASELINE_BOOSTED, BASELINE_FOREST
from nightjar_alerts.training.recipes.schema import Recipe

Kind = Literal["boosted", "forest"]
TreeClassifier: TypeAlias = HistGradientBoostingClassifier | RandomForestClassifier


@dataclass(frozen=True, slots=True, eq=False)
class FittedTrees:
    """A fitted classifier, and the columns that it uses, which have a value in training."""

    classifier: TreeClassifier
    classes: int
    used_F: Int64

    @property
    def iterations(self) -> int:
        """Rounds of boosting, or trees of the forest."""
        fitted = self.classifier
        return int(fitted.n_iter_ if isinstance(fitted, HistGradientBoostingClassifier) else fitted.n_estimators)

    def predict(self, value_NF: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the probabilities [N, classes], 0 for classes without training objects."""
        p_NC = np.zeros((len(value_NF), self.classes))
        p_NC[:, self.classifier.classes_] = self.classifier.predict_proba(value_NF[:, self.used_F])
        return p_NC


def fit_trees(
    classifier: TreeClassifier,
    value_NF: NDArray[np.floating],
    label_N: Int64,
    classes: int,
    validation: tuple[NDArray[np.floating], Int64] | None = None,
) -> FittedTrees:
    """Fit trees on features, NaN if missing.

    Columns without any value are left out, since the binning of scikit-learn fails on them.

    Parameters
    ----------
    validation : features and labels for early stopping of boosting; a forest is fitted to them, too.
    """
    used_F: Int64 = np.flatnonzero(np.isfinite(value_NF).any(axis=0))
    if validation is None:
        fitted = classifier.fit(value_NF[:, used_F], label_N)
    elif isinstance(classifier, HistGradientBoostingClassifier):
        fitted = classifier.fit(value_NF[:, used_F], label_N, X_val=validation[0][:, used_F], y_val=validation[1])
    else:
        values = np.concatenate([value_NF, validation[0]])[:, used_F]
        fitted = classifier.fit(values, np.concatenate([label_N, validation[1]]))
    return FittedTrees(fitted, classes, used_F)


def train_trees(
    dataset: Sample,
    recipe: Recipe,
    examples: int,
    classifier: Kind = "boosted",
    feature_set: FeatureSet = "summary",
) -> FittedTrees:
    """Fit boosted trees, or a forest, on random views of training objects."""
    rng = np.random.default_rng(recipe.seed)
    parts = split_indices(dataset, recipe.data.fractions, recipe.data.turn)
    train, validation = (
        _draw(dataset, parts[name], recipe, count, feature_set, rng)
        for name, count in (("train", examples), ("validation", max(1, examples // 10)))
    )
    estimator: TreeClassifier = (
        HistGradientBoostingClassifier(**BASELINE_BOOSTED, random_state=recipe.seed)
        if classifier == "boosted"
        else RandomForestClassifier(**BASELINE_FOREST, random_state=recipe.seed)
    )
    fitted = fit_trees(estimator, *train, len(dataset.classes), validation)
    if classifier == "forest":
        fitted.classifier.set_params(n_jobs=None)  # batches of predictions are too small for threads
    return fitted


def _draw(
    dataset: Sample,
    indices: Int64,
    recipe: Recipe,
    count: int,
    feature_set: FeatureSet,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float32], Int64]:
    drawn = draw_indices(dataset.label, indices, count, balance=1.0, rng=rng)
    examples = draw_examples(dataset, drawn, recipe.data, recipe.augmentation, rng)
    return matrix(examples, feature_set), np.array([example.label for example in examples], dtype=np.int64)
