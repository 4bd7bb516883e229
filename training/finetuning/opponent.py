"""The opponent: class-weighted boosted trees on hand-made features of complete light curves.

The features are those of the light-curve package and the metadata (`fit.trees.features`), of all points in the model's
bands. LightGBM weighs every class equally; the number of rounds has the largest macro-F1 on the inner folds.

Legend: O objects, F features, R numbers of rounds, C classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.lightcurve import Bool, Float32, Int64, LightCurve, Limits, featurise
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.training.data.batches import Example
from nightjar_alerts.training.fit.trees.features import matrix
from nightjar_alerts.training.fit.trees.forest import boost
from nightjar_alerts.training.fit.trees.parameters import HAND_MADE, HAND_MADE_ROUNDS
from nightjar_alerts.training.metrics import confusion, macro_f1
from nightjar_alerts.training.recipes.schema import Recipe


def opponent_features(curves: Sequence[LightCurve], recipe: Recipe) -> Float32:
    """Return the features of complete light curves, NaN where undefined, [O, F]."""
    everything, data = Limits(max_points_per_band=1 << 30, pre_trigger_days=None), recipe.data
    examples = [
        Example(featurise(curve, everything, data.flux_unit, METADATA_COLUMNS, data.bands), 0) for curve in curves
    ]
    return matrix(examples, "light-curve")


def opponent_predictions(
    value_OF: Float32, label_O: Int64, learns_O: Bool, fold_O: Int64, classes: int, seed: int
) -> tuple[NDArray[np.float64], int]:
    """Return the opponent's probabilities of all objects [O, classes], and its number of rounds.

    Probabilities of the objects that it learns from are those of the inner folds, by fits that do not know the object.

    Parameters
    ----------
    learns_O, fold_O : as for `methods.choose`.
    """

    def boosted(rows_O: Bool, rounds: int) -> Any:
        label = label_O[rows_O]
        weight = len(label) / np.maximum(np.bincount(label, minlength=classes), 1)[label]
        parameters = {**HAND_MADE, "num_class": classes}
        return boost(value_OF[rows_O], label, parameters, seed=seed, rounds=rounds, weight_N=weight / weight.mean())

    inner_ROC = np.zeros((len(HAND_MADE_ROUNDS), len(label_O), classes))
    for fold in range(int(fold_O[learns_O].max()) + 1):
        held_out_O = learns_O & (fold_O == fold)
        booster = boosted(learns_O & ~held_out_O, HAND_MADE_ROUNDS[-1])
        for p_OC, rounds in zip(inner_ROC, HAND_MADE_ROUNDS, strict=True):
            p_OC[held_out_O] = booster.predict(value_OF[held_out_O], num_iteration=rounds, num_threads=1)
    counts = [confusion(label_O[learns_O], p_OC[learns_O].argmax(1), classes) for p_OC in inner_ROC]
    best = int(np.argmax([macro_f1(count) for count in counts]))
    p_OC, rounds = inner_ROC[best], HAND_MADE_ROUNDS[best]
    p_OC[~learns_O] = boosted(learns_O, rounds).predict(value_OF[~learns_O], num_threads=1)
    return p_OC, rounds
