"""Scores of predicted class probabilities.

Shapes: B objects, C classes; rows of ``probabilities_BC`` sum to 1, ``label_B`` are class indices.

- macro-F1 averages over the classes that occur among the labels or the predictions (scikit-learn's convention);
- log loss clips probabilities at 1e-7, about the precision of float32 near 1;
- Brier is the multi-class sum over classes of squared errors, from 0 to 2;
- AUROC is the unweighted mean over classes of one class against the rest (ties count half), over the classes with
  positive and negative objects; NaN if there are none, as with one true class;
- ECE is the expected calibration error of the top class in equally wide confidence bins (Guo et al. 2017).

**Levels of the taxonomy** give credit for the right group: a Type Ia classified as a Type Ib/c is correct as "SN-like".

- Macro-F1 of a level: probabilities are summed over the groups of that level (`Taxonomy.rollup`), and the most probable
  group is the prediction, which may differ from the group of the most probable leaf.
- Hierarchical F1 (Kiritchenko et al. 2006): true and predicted leaf are each replaced by the set of themselves and
  their ancestors; precision and recall count shared members, summed over all objects. The common root is left out,
  since it is always correct.

Legend: B objects, C leaf classes, G groups of a level.

**The abstention curve** is the score if only the most confident fraction of the objects is classified. Objects are
ranked by their largest probability; at coverage c the ceil(c * N) most confident are classified. Macro-F1 averages over
the classes that occur among these objects or their predictions, so the curve includes the number of classes.

**Stability** of a classification while the light curve grows. The top class of an object is followed over K steps (days
since the first alert, or number of detections):

- the flip rate is the share of the K - 1 transitions at which the top class changes;
- the class is stable from the first step after which it never changes. This is known in hindsight only, and an object
  that is no longer observed is trivially stable, so the time at which the class is stable *and correct* is given, too.

Legend: N objects, K steps.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special
from sklearn.metrics import roc_auc_score

from nightjar_alerts.models.lightcurve import Int64
from nightjar_alerts.models.taxonomy import Taxonomy

Float = NDArray[np.floating]

ECE_BINS = 15
SCORES = ("macro_f1", "balanced_accuracy", "accuracy", "top_2", "auroc", "log_loss", "brier", "ece")
_FLOOR = 1e-7


def confusion(label_B: Int64, predicted_B: Int64, classes: int) -> Int64:
    """Return counts, shape (C, C): row is the true class, column the predicted one."""
    counts: Int64 = np.bincount(label_B * classes + predicted_B, minlength=classes**2).reshape(classes, classes)
    return counts


def f1_per_class(confusion_CC: Int64 | Float) -> NDArray[np.float64]:
    """Return the F1 of every class, NaN for a class that neither occurs nor is predicted."""
    hits, total = np.diag(confusion_CC), confusion_CC.sum(0) + confusion_CC.sum(1)
    scores_C: NDArray[np.float64] = np.divide(2.0 * hits, total, out=np.full(len(hits), np.nan), where=total > 0)
    return scores_C


def macro_f1(confusion_CC: Int64 | Float) -> float:
    """Return the unweighted mean of the F1 of the classes that occur or are predicted; 0 if there are none."""
    scores = f1_per_class(confusion_CC)
    return float(np.nanmean(scores)) if np.isfinite(scores).any() else 0.0


def balanced_accuracy(confusion_CC: Int64) -> float:
    """Return the mean recall of the classes that occur among the labels."""
    support = confusion_CC.sum(1)
    present = support > 0
    return float(np.mean(np.diag(confusion_CC)[present] / support[present]))


def log_loss(probabilities_BC: Float, label_B: Int64) -> float:
    """Return the mean negative log-probability of the true class, nats."""
    truth = probabilities_BC[np.arange(len(label_B)), label_B].astype(np.float64)
    return float(-np.log(np.clip(truth, _FLOOR, 1.0)).mean())


def brier(probabilities_BC: Float, label_B: Int64) -> float:
    """Return the mean over objects of the summed squared error over classes."""
    error = probabilities_BC.astype(np.float64)
    error[np.arange(len(label_B)), label_B] -= 1.0
    return float((error**2).sum(1).mean())


def top_k(probabilities_BC: Float, label_B: Int64, k: int) -> float:
    """Return the share of objects whose true class is among the ``k`` most probable."""
    best = np.argsort(-probabilities_BC, axis=1, kind="stable")[:, :k]
    return float((best == label_B[:, None]).any(1).mean())


def area_under_roc(score_B: Float, positive_B: NDArray[np.bool_]) -> float:
    """Return the probability that a positive object has a higher score than a negative one; NaN if either is missing.

    Ties count half.
    """
    if positive_B.all() or not positive_B.any():
        return float("nan")
    return float(roc_auc_score(positive_B, score_B))


def auroc(probabilities_BC: Float, label_B: Int64) -> float:
    """Return the macro-averaged area under the ROC curve, one class against the rest."""
    columns = range(probabilities_BC.shape[1])
    areas = np.array([area_under_roc(probabilities_BC[:, column], label_B == column) for column in columns])
    return float(np.nanmean(areas)) if np.isfinite(areas).any() else float("nan")


def reliability(probabilities_BC: Float, label_B: Int64, bins: int = ECE_BINS) -> NDArray[np.float64]:
    """Return the reliability table (bins, 3): objects, mean confidence and accuracy of each bin (NaN if empty)."""
    confidence = probabilities_BC.max(1).astype(np.float64)
    correct = probabilities_BC.argmax(1) == label_B
    bin_B = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    count = np.bincount(bin_B, minlength=bins)
    filled = np.where(count > 0, count, np.nan)
    mean_confidence = np.bincount(bin_B, weights=confidence, minlength=bins) / filled
    accuracy = np.bincount(bin_B, weights=correct, minlength=bins) / filled
    return np.stack([count, mean_confidence, accuracy], axis=1)


def ece(probabilities_BC: Float, label_B: Int64, bins: int = ECE_BINS) -> float:
    """Return the expected calibration error: |accuracy - confidence| of each bin, averaged over objects."""
    count, confidence, accuracy = reliability(probabilities_BC, label_B, bins).T
    return float(np.nansum(count * np.abs(accuracy - confidence)) / len(label_B))


def scores(probabilities_BC: Float, label_B: Int64) -> dict[str, float]:
    """Return every score that needs no taxonomy; all NaN without objects.

    Raises
    ------
    ValueError
        If a probability is not finite, since NaN would count as the most probable class.
    """
    if not np.isfinite(probabilities_BC).all():
        raise ValueError("probabilities must be finite numbers")
    if not len(label_B):
        return dict.fromkeys(SCORES, float("nan"))
    counts = confusion(label_B, probabilities_BC.argmax(1), probabilities_BC.shape[1])
    return {
        "macro_f1": macro_f1(counts),
        "balanced_accuracy": balanced_accuracy(counts),
        "accuracy": top_k(probabilities_BC, label_B, 1),
        "top_2": top_k(probabilities_BC, label_B, 2),
        "auroc": auroc(probabilities_BC, label_B),
        "log_loss": log_loss(probabilities_BC, label_B),
        "brier": brier(probabilities_BC, label_B),
        "ece": ece(probabilities_BC, label_B),
    }


class TaxonomyLevel(NamedTuple):
    """Groups of one depth of the taxonomy, and the group of every leaf, int64 (C,)."""

    key: str
    groups: tuple[str, ...]
    group_C: Int64


def levels(taxonomy: Taxonomy) -> list[TaxonomyLevel]:
    """Levels above the leaves that hold more than one group, from the coarsest; a shallow leaf is its own group."""
    deepest = max(len(leaf.path) for leaf in taxonomy.classes)
    above = []
    for depth in range(deepest):
        names = [leaf.path[depth] if depth < len(leaf.path) else leaf.name for leaf in taxonomy.classes]
        groups = tuple(dict.fromkeys(names))
        if 1 < len(groups) < len(names):
            group_C = np.array([groups.index(name) for name in names], dtype=np.int64)
            above.append(TaxonomyLevel(f"macro_f1_of_{len(groups)}_groups", groups, group_C))
    return above


def roll_up(probabilities_BC: Float, level: TaxonomyLevel) -> NDArray[np.float64]:
    """Return the probability of every group of a level, shape (B, G)."""
    member_CG = np.eye(len(level.groups))[level.group_C]
    return np.asarray(probabilities_BC.astype(np.float64) @ member_CG)


def level_f1(probabilities_BC: Float, label_B: Int64, level: TaxonomyLevel) -> float:
    """Return the macro-F1 over the groups of a level."""
    predicted_B = roll_up(probabilities_BC, level).argmax(1)
    return macro_f1(confusion(level.group_C[label_B], predicted_B, len(level.groups)))


def ancestry(taxonomy: Taxonomy) -> NDArray[np.int64]:
    """Return the membership of leaves in nodes, int64 (C, nodes): leaves and ancestors, without nodes of all leaves."""
    names = list(dict.fromkeys(name for leaf in taxonomy.classes for name in (*leaf.path, leaf.name)))
    member = np.array([[name in (*leaf.path, leaf.name) for name in names] for leaf in taxonomy.classes])
    return member[:, ~member.all(0)].astype(np.int64)


def hierarchical_f1(label_B: Int64, predicted_B: Int64, taxonomy: Taxonomy) -> float:
    """Return the harmonic mean of hierarchical precision and recall, micro-averaged over objects."""
    member = ancestry(taxonomy)
    truth, predicted = member[label_B], member[predicted_B]
    return float(2 * (truth & predicted).sum() / (truth.sum() + predicted.sum()))


def all_scores(probabilities_BC: Float, label_B: Int64, taxonomy: Taxonomy) -> dict[str, float]:
    """Return every reported score of one set of predictions; all NaN without objects."""
    by_name = scores(probabilities_BC, label_B)
    above = levels(taxonomy)
    if not len(label_B):
        return by_name | dict.fromkeys(["hierarchical_f1", *(level.key for level in above)], float("nan"))
    by_name["hierarchical_f1"] = hierarchical_f1(label_B, probabilities_BC.argmax(1), taxonomy)
    return by_name | {level.key: level_f1(probabilities_BC, label_B, level) for level in above}


COVERAGES = tuple(round(0.05 * step, 2) for step in range(1, 21))


class Abstention(NamedTuple):
    """Scores at each coverage, all of shape (K,)."""

    coverage: NDArray[np.float64]
    threshold: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    macro_f1: NDArray[np.float64]
    classes: Int64


def abstention(probabilities_BC: Float, label_B: Int64, coverages: tuple[float, ...] = COVERAGES) -> Abstention:
    """Return accuracy, macro-F1, number of classes and smallest confidence at each coverage in (0, 1].

    Raises
    ------
    ValueError
        If there are no objects.
    """
    if not len(label_B):
        raise ValueError("an abstention curve needs objects")
    confidence_B, predicted_B = probabilities_BC.max(1), probabilities_BC.argmax(1)
    order = np.argsort(-confidence_B, kind="stable")
    parts = [order[: int(np.ceil(share * len(order) - 1e-9))] for share in coverages]
    counts = [confusion(label_B[part], predicted_B[part], probabilities_BC.shape[1]) for part in parts]
    return Abstention(
        coverage=np.array(coverages),
        threshold=np.array([confidence_B[part[-1]] for part in parts], dtype=np.float64),
        accuracy=np.array([np.trace(count) / count.sum() for count in counts]),
        macro_f1=np.array([macro_f1(count) for count in counts]),
        classes=np.array([(count.sum(1) > 0).sum() for count in counts], dtype=np.int64),
    )


class Stability(NamedTuple):
    """Stability of the top classes of one model.

    Attributes
    ----------
    flip_rate : share of transitions that change the top class, over all objects.
    flips_per_object : mean number of changes.
    never_flipped : share of objects whose top class never changes.
    stable_K : share of objects that are stable from each step on; 1 at the last step.
    stable_and_right_K : share of objects that are stable with the true class.
    median_step : step at which half of the objects are stable.
    median_step_right : the same for objects with a correct last class; NaN if there are none.
    """

    flip_rate: float
    flips_per_object: float
    never_flipped: float
    stable_K: NDArray[np.float64]
    stable_and_right_K: NDArray[np.float64]
    median_step: float
    median_step_right: float


def first_stable(top_NK: Int64) -> Int64:
    """Return the index of the first step from which each object's top class does not change, shape (N,)."""
    differs_NK = top_NK != top_NK[:, -1:]
    last_difference_N = differs_NK.shape[1] - 1 - differs_NK[:, ::-1].argmax(1)
    stable_N: Int64 = np.where(differs_NK.any(1), last_difference_N + 1, 0).astype(np.int64)
    return stable_N


def stability(top_NK: Int64, label_N: Int64, steps: Sequence[float]) -> Stability:
    """Return the stability of top classes over steps.

    Parameters
    ----------
    top_NK : top class of each object at each step.
    steps : days or detections of the steps, ascending, at least one.

    Raises
    ------
    ValueError
        If there are no objects, or the number of steps differs.
    """
    if not len(top_NK) or top_NK.shape[1] != len(steps) or not steps:
        raise ValueError(f"stability needs objects followed over all {len(steps)} steps, got {top_NK.shape}")
    flips_N = (top_NK[:, 1:] != top_NK[:, :-1]).sum(1)
    stable_N, right_N = first_stable(top_NK), top_NK[:, -1] == label_N
    by_step_NK = stable_N[:, None] <= np.arange(len(steps))
    value_N = np.asarray(steps, dtype=np.float64)[stable_N]
    return Stability(
        flip_rate=float(flips_N.mean() / max(1, len(steps) - 1)),
        flips_per_object=float(flips_N.mean()),
        never_flipped=float((flips_N == 0).mean()),
        stable_K=by_step_NK.mean(0),
        stable_and_right_K=(by_step_NK & right_N[:, None]).mean(0),
        median_step=_lower_median(value_N),
        median_step_right=_lower_median(value_N[right_N]),
    )


def _lower_median(value_N: NDArray[np.float64]) -> float:
    """Return the lower median, which is always one of the steps."""
    return float(np.quantile(value_N, 0.5, method="inverted_cdf")) if len(value_N) else float("nan")


SURE = 0.8


def main_scores(p_NC: NDArray[np.float64], label_N: Int64) -> dict[str, float]:
    """Return macro-F1, log loss, calibration error, and the share with a wrong class of probability `SURE` or more."""
    wrong_N = p_NC.argmax(1) != label_N
    return {
        "light_curves": float(len(label_N)),
        "top_1": float(1 - wrong_N.mean()),
        "macro_f1": macro_f1(confusion(label_N, p_NC.argmax(1), p_NC.shape[1])),
        "log_loss": log_loss(p_NC, label_N),
        "ece": ece(p_NC, label_N),
        "sure_and_wrong": float(((p_NC.max(1) >= SURE) & wrong_N).mean()),
    }


def softmax(logits_NC: Float, temperature: float | NDArray[np.float64] = 1.0) -> NDArray[np.float64]:
    """Return the probabilities (N, C) of logits divided by one temperature, or one for each row, in float64."""
    scaled_NC = logits_NC.astype(np.float64) / np.broadcast_to(temperature, len(logits_NC))[:, None]
    probabilities_NC: NDArray[np.float64] = special.softmax(scaled_NC, axis=1)
    return probabilities_NC


def paired_macro_f1(
    truth_N: Int64, one_N: Int64, other_N: Int64, classes: int, *, seed: int = 0, draws: int = 1000
) -> tuple[float, float, float]:
    """Return the difference of macro-F1 of two predictions, and its central 95 % over bootstrap draws of objects."""
    rng = np.random.default_rng(seed)

    def score(rows: NDArray[np.int64], named_N: Int64) -> float:
        return macro_f1(confusion(truth_N[rows], named_N[rows], classes))

    drawn = [rng.integers(0, len(truth_N), len(truth_N)) for _ in range(draws)]
    low, high = np.quantile([score(rows, one_N) - score(rows, other_N) for rows in drawn], [0.025, 0.975])
    everything = np.arange(len(truth_N))
    return score(everything, one_N) - score(everything, other_N), float(low), float(high)
