"""The baseline to beat: gradient-boosted trees on summary features and metadata.

Trained on the same objects through the same random views as the network, and scored on the same views of the same
test objects, so both know the same and are asked the same. Trees take missing values as they are. ``--examples``
draws are class-balanced; a tenth more of them, from the validation split, decide when to stop.

Run::

    python -m training baseline --data build/sim.parquet --report build/baseline.json
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from models.lightcurve import Int64
from models.taxonomy import ELASTICC
from training.data.augment import NO_METADATA, View
from training.data.batches import Example, draw_examples, draw_indices
from training.data.dataset import Dataset, read_dataset, split_indices
from training.fit.checkpoints import fingerprint
from training.recipes.schema import Recipe
from training.score.evaluate import DETECTIONS, VIEWS, Model, labels, sample_split, score_view, spread
from training.score.features import FEATURES, features

MAX_TREES = 200  # per class; early stopping usually ends before
SCORED_VIEWS = {
    "views": VIEWS,
    "detections": {str(n): View(detections=n) for n in DETECTIONS},
    "detections_no_metadata": {str(n): View(detections=n, missing=NO_METADATA) for n in DETECTIONS},
}


def baseline(
    recipe: Recipe, data: Path, *, examples: int = 60_000, split: str = "test", objects: int | None = None
) -> dict[str, Any]:
    """Train the baseline on a recipe's views and score it; the report is shaped like that of ``evaluate``.

    Parameters
    ----------
    recipe : the network's recipe: split, limits and random views are taken from it.
    examples : training draws.
    objects : score a fixed random sample of the split of this size, the sample the network is scored on.
    """
    dataset = read_dataset(data)
    trees = train_trees(dataset, recipe, examples)
    model = Model("boosted trees", recipe.seed, recipe.data, trees.predict)
    indices = sample_split(dataset, recipe.data, split, objects)
    scored = {
        series: {name: spread([score_view(model, dataset, indices, view)]) for name, view in views.items()}
        for series, views in SCORED_VIEWS.items()
    }
    described = {
        "name": model.name,
        "examples": examples,
        "features": len(FEATURES),
        "iterations": trees.classifier.n_iter_,
    }
    source = {**fingerprint(data, len(dataset)).model_dump(), "split": split, "split_objects": len(indices)}
    return {"data": source, "models": [described], **scored}


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """A fitted classifier and the indices of the features it uses: those that had a value in training."""

    classifier: HistGradientBoostingClassifier
    used: Int64

    def predict(self, examples: Sequence[Example]) -> NDArray[np.floating]:
        """Probabilities over the taxonomy, shape (N, C); 0 for classes without training objects."""
        predicted_NC = np.zeros((len(examples), len(ELASTICC.names)))
        predicted_NC[:, self.classifier.classes_] = self.classifier.predict_proba(matrix(examples)[:, self.used])
        return predicted_NC


def train_trees(dataset: Dataset, recipe: Recipe, examples: int) -> Trees:
    """Fit boosted trees on random views of training objects."""
    rng = np.random.default_rng(recipe.seed)
    parts = split_indices(dataset, recipe.data.fractions)
    train, validation = (
        _draw(dataset, parts[name], recipe, count, rng)
        for name, count in (("train", examples), ("validation", max(1, examples // 10)))
    )
    trees = HistGradientBoostingClassifier(
        max_iter=MAX_TREES, learning_rate=0.1, l2_regularization=1.0, early_stopping=True, n_iter_no_change=10
    )
    # The binning of scikit-learn fails on a column without a value.
    used: Int64 = np.flatnonzero(np.isfinite(train[0]).sum(axis=0))
    trees.set_params(random_state=recipe.seed)
    return Trees(trees.fit(train[0][:, used], train[1], X_val=validation[0][:, used], y_val=validation[1]), used)


def _draw(
    dataset: Dataset, indices: Int64, recipe: Recipe, count: int, rng: np.random.Generator
) -> tuple[NDArray[np.float32], Int64]:
    drawn = draw_indices(dataset.label, indices, count, balanced=True, rng=rng)
    examples = draw_examples(dataset, drawn, recipe.data, recipe.augmentation, rng)
    return matrix(examples), labels(examples)


def matrix(examples: Sequence[Example]) -> NDArray[np.float32]:
    """Features of all examples, shape ``(len(examples), len(FEATURES))``."""
    return np.stack([features(example.tokens) for example in examples]).astype(np.float32)
