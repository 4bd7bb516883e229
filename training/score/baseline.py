"""Baselines: gradient-boosted trees and a random forest on features of the light curve and metadata.

They are trained on the same objects in the same random views as the network, and scored on the same views of the same
test objects. Trees accept missing values. The ``--examples`` training examples are class-balanced; another tenth, from
the validation split, is for early stopping.

Run::

    nightjar-train makers baseline --data build/sim.parquet --report build/baseline.json
    nightjar-train makers baseline --data build/sim.parquet --report build/forest.json --classifier forest \\
        --features light-curve
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nightjar_alerts.training.data.batches import Example
from nightjar_alerts.training.data.dataset import read_dataset, require_labels
from nightjar_alerts.training.fit.checkpoints import fingerprint
from nightjar_alerts.training.fit.trees.classical import Kind, train_trees
from nightjar_alerts.training.fit.trees.features import FeatureSet, matrix
from nightjar_alerts.training.recipes.schema import Recipe
from nightjar_alerts.training.score.evaluate import sample_split, series_of, series_scores
from nightjar_alerts.training.score.predictions import ModelOutputs, ModelPanel, ScoredModel

NAMES: dict[Kind, str] = {"boosted": "boosted trees", "forest": "random forest"}


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
    """Train a baseline on a recipe's views and score it; the report has the form of that of ``evaluate``.

    Parameters
    ----------
    recipe : the network's recipe, for split, limits and random views.
    examples : number of training examples.
    objects : score a fixed random sample of the split of this size, the same as for the network.

    Raises
    ------
    DatasetError
        If the data file has unlabelled objects.
    """
    dataset = read_dataset(data)
    require_labels(dataset, data)
    trees = train_trees(dataset, recipe, examples, classifier, feature_set)
    name = NAMES[classifier] + ("" if feature_set == "union" else f", {feature_set} features")

    def predict(drawn: Sequence[Example]) -> ModelOutputs:
        return ModelOutputs(trees.predict(matrix(drawn, feature_set)))

    model = ScoredModel(name, recipe.seed, recipe.data, predict)
    indices = sample_split(dataset, recipe.data, split, objects)
    panel = ModelPanel(dataset, [model])
    scored = {name: series_scores(panel, indices, views) for name, views in series_of(dataset).items()}
    described = {
        **{"name": name, "seed": recipe.seed, "classifier": classifier, "feature_set": feature_set},
        **{"examples": examples, "features": len(trees.used_F), "iterations": trees.iterations},
    }
    source = {**fingerprint(data, len(dataset)).model_dump(), "split": split, "split_objects": len(indices)}
    return {"data": source, "models": [described], **scored}
