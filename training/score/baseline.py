"""The baselines to beat: gradient-boosted trees and a random forest on features of the light curve and metadata.

Trained on the same objects through the same random views as the network, and scored on the same views of the same
test objects, so all know the same and are asked the same. Trees take missing values as they are. ``--examples`` draws
are class-balanced; a tenth more of them, from the validation split, decide when boosting stops.

Features are this project's own summary (``summary``), those of the `light-curve` package (``light-curve``), or the
``union`` of both, which is the default because it is the strongest: on simulated objects and few draws (4,000) boosted
trees reached a macro-F1 of 0.68 with it and 0.64 with either set alone, the summary being ahead of the package where
light curves are short. Forests stayed below boosted trees for every set (0.63, 0.61 and 0.61), and their probabilities
are far from calibrated.

Run::

    python -m training baseline --data build/sim.parquet --report build/baseline.json
    python -m training baseline --data build/sim.parquet --report build/forest.json --classifier forest \\
        --features light-curve
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

from models.lightcurve import Int64, Tokens
from training.data.batches import Example, draw_examples, draw_indices
from training.data.dataset import Dataset, read_dataset, require_labels, split_indices
from training.fit.checkpoints import fingerprint
from training.recipes.schema import Recipe
from training.score.evaluate import sample_split, series_of, series_scores
from training.score.features import features, package_features
from training.score.predictions import Answers, Model, Panel, labels

Kind = Literal["boosted", "forest"]
FeatureSet = Literal["summary", "light-curve", "union"]

MAX_TREES = 200  # per class; early stopping usually ends before
FOREST_TREES, FOREST_LEAF = 300, 5  # larger leaves than one object: probabilities of full trees are 0 or 1
NAMES: dict[Kind, str] = {"boosted": "boosted trees", "forest": "random forest"}


def _metadata(tokens: Tokens) -> NDArray[np.floating]:
    return tokens.metadata


FEATURE_SETS: dict[FeatureSet, tuple[Callable[[Tokens], NDArray[np.floating]], ...]] = {
    "summary": (features,),  # which has the metadata
    "light-curve": (package_features, _metadata),
    "union": (features, package_features),
}


def baseline(
    recipe: Recipe,
    data: Path,
    *,
    classifier: Kind = "boosted",
    feature_set: FeatureSet = "union",
    examples: int = 60_000,
    split: str = "test",
    objects: int | None = None,
) -> dict[str, Any]:
    """Train a baseline on a recipe's views and score it; the report is shaped like that of ``evaluate``.

    Parameters
    ----------
    recipe : the network's recipe: split, limits and random views are taken from it.
    examples : training draws.
    objects : score a fixed random sample of the split of this size, the sample the network is scored on.

    Raises
    ------
    DatasetError
        For a data file with unlabelled objects.
    """
    dataset = read_dataset(data)
    require_labels(dataset, data)
    trees = train_trees(dataset, recipe, examples, classifier, feature_set)
    name = NAMES[classifier] + ("" if feature_set == "union" else f", {feature_set} features")
    model = Model(name, recipe.seed, recipe.data, lambda drawn: Answers(trees.predict(drawn)))
    indices = sample_split(dataset, recipe.data, split, objects)
    panel = Panel(dataset, [model])
    scored = {name: series_scores(panel, indices, views) for name, views in series_of(dataset).items()}
    described = {
        **{"name": name, "seed": recipe.seed, "classifier": classifier, "feature_set": feature_set},
        **{"examples": examples, "features": len(trees.used), "iterations": trees.iterations},
    }
    source = {**fingerprint(data, len(dataset)).model_dump(), "split": split, "split_objects": len(indices)}
    return {"data": source, "models": [described], **scored}


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """A fitted classifier of so many classes, and the features it uses: those that had a value in training."""

    classifier: HistGradientBoostingClassifier | RandomForestClassifier
    classes: int
    feature_set: FeatureSet
    used: Int64

    @property
    def iterations(self) -> int:
        """Rounds of boosting, or trees of the forest."""
        fitted = self.classifier
        return int(fitted.n_iter_ if isinstance(fitted, HistGradientBoostingClassifier) else fitted.n_estimators)

    def predict(self, examples: Sequence[Example]) -> NDArray[np.float64]:
        """Probabilities, shape (examples, classes), 0 for classes without training objects."""
        predicted_NC = np.zeros((len(examples), self.classes))
        values = matrix(examples, self.feature_set)[:, self.used]
        predicted_NC[:, self.classifier.classes_] = self.classifier.predict_proba(values)
        return predicted_NC


def train_trees(
    dataset: Dataset,
    recipe: Recipe,
    examples: int,
    classifier: Kind = "boosted",
    feature_set: FeatureSet = "summary",
) -> Trees:
    """Fit boosted trees, or a forest, on random views of training objects."""
    rng = np.random.default_rng(recipe.seed)
    parts = split_indices(dataset, recipe.data.fractions, recipe.data.turn)
    train, validation = (
        _draw(dataset, parts[name], recipe, count, feature_set, rng)
        for name, count in (("train", examples), ("validation", max(1, examples // 10)))
    )
    # The binning of scikit-learn fails on a column without a value.
    used: Int64 = np.flatnonzero(np.isfinite(train[0]).sum(axis=0))
    fit = _boost if classifier == "boosted" else _grow
    values, beside = (part[0][:, used] for part in (train, validation))
    fitted = fit(values, train[1], beside, validation[1], recipe.seed)
    return Trees(fitted, len(dataset.classes), feature_set, used)


def _boost(
    values: NDArray[np.float32], label_N: Int64, beside: NDArray[np.float32], beside_N: Int64, seed: int
) -> HistGradientBoostingClassifier:
    trees = HistGradientBoostingClassifier(
        max_iter=MAX_TREES, learning_rate=0.1, l2_regularization=1.0, early_stopping=True, n_iter_no_change=10
    )
    return trees.set_params(random_state=seed).fit(values, label_N, X_val=beside, y_val=beside_N)


def _grow(
    values: NDArray[np.float32], label_N: Int64, beside: NDArray[np.float32], beside_N: Int64, seed: int
) -> RandomForestClassifier:
    """Grow a forest on all draws: it has nothing to stop early, so those for validation help as well."""
    forest = RandomForestClassifier(FOREST_TREES, min_samples_leaf=FOREST_LEAF, random_state=seed, n_jobs=-1)
    forest.fit(np.concatenate([values, beside]), np.concatenate([label_N, beside_N]))
    return forest.set_params(n_jobs=None)  # batches of answers are too small for threads


def _draw(
    dataset: Dataset,
    indices: Int64,
    recipe: Recipe,
    count: int,
    feature_set: FeatureSet,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float32], Int64]:
    drawn = draw_indices(dataset.label, indices, count, balance=1.0, rng=rng)
    examples = draw_examples(dataset, drawn, recipe.data, recipe.augmentation, rng)
    return matrix(examples, feature_set), labels(examples)


def matrix(examples: Sequence[Example], feature_set: FeatureSet = "summary") -> NDArray[np.float32]:
    """Features of all examples, shape ``(len(examples), features)``, in float32 as trees compare them."""
    rows = [
        np.concatenate([function(example.tokens) for function in FEATURE_SETS[feature_set]]) for example in examples
    ]
    limit = np.finfo(np.float32).max
    values_NF: NDArray[np.float32] = np.clip(np.stack(rows), -limit, limit).astype(np.float32)
    return values_NF
