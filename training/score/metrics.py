"""Scores of predicted class probabilities, in numpy: the formulas behind every number that is reported.

Shapes: B objects, C classes; ``probabilities_BC`` rows sum to 1, ``label_B`` holds class indices.

- macro-F1 averages over the classes that occur among the labels or the predictions (scikit-learn's convention);
- log loss clips probabilities at 1e-7, the grain of float32 near 1;
- Brier is the multi-class sum over classes of squared errors, from 0 to 2;
- AUROC is the unweighted mean over classes of one class against the rest (ties count half), over the classes that have
  objects on both sides; NaN when none has, which is so with one true class only;
- ECE is the expected calibration error of the top class in equally wide confidence bins (Guo et al. 2017).
"""

import numpy as np
from numpy.typing import NDArray

from models.lightcurve import Int64

Float = NDArray[np.floating]

ECE_BINS = 15
SCORES = ("macro_f1", "balanced_accuracy", "accuracy", "top_2", "auroc", "log_loss", "brier", "ece")
_FLOOR = 1e-7


def confusion(label_B: Int64, predicted_B: Int64, classes: int) -> Int64:
    """Counts, shape (C, C): row is the true class, column the predicted one."""
    counts: Int64 = np.bincount(label_B * classes + predicted_B, minlength=classes**2).reshape(classes, classes)
    return counts


def f1_per_class(confusion_CC: Int64 | Float) -> NDArray[np.float64]:
    """F1 of every class, NaN for a class that neither occurs nor is predicted."""
    hits, total = np.diag(confusion_CC), confusion_CC.sum(0) + confusion_CC.sum(1)
    scores_C: NDArray[np.float64] = np.divide(2.0 * hits, total, out=np.full(len(hits), np.nan), where=total > 0)
    return scores_C


def macro_f1(confusion_CC: Int64 | Float) -> float:
    """Unweighted mean of the F1 of the classes that occur; 0 without any."""
    scores = f1_per_class(confusion_CC)
    return float(np.nanmean(scores)) if np.isfinite(scores).any() else 0.0


def balanced_accuracy(confusion_CC: Int64) -> float:
    """Mean recall of the classes that occur among the labels."""
    support = confusion_CC.sum(1)
    present = support > 0
    return float(np.mean(np.diag(confusion_CC)[present] / support[present]))


def log_loss(probabilities_BC: Float, label_B: Int64) -> float:
    """Mean negative log-probability of the true class, nats."""
    truth = probabilities_BC[np.arange(len(label_B)), label_B].astype(np.float64)
    return float(-np.log(np.clip(truth, _FLOOR, 1.0)).mean())


def brier(probabilities_BC: Float, label_B: Int64) -> float:
    """Mean over objects of the summed squared error over classes."""
    error = probabilities_BC.astype(np.float64)
    error[np.arange(len(label_B)), label_B] -= 1.0
    return float((error**2).sum(1).mean())


def top_k(probabilities_BC: Float, label_B: Int64, k: int) -> float:
    """Share of objects whose true class is among the ``k`` most probable."""
    best = np.argsort(-probabilities_BC, axis=1, kind="stable")[:, :k]
    return float((best == label_B[:, None]).any(1).mean())


def area_under_roc(score_B: Float, positive_B: NDArray[np.bool_]) -> float:
    """Probability that a positive object scores higher than a negative one, ties counting half; NaN without either.

    The Mann-Whitney statistic on average ranks (Hanley & McNeil 1982).
    """
    positives = int(positive_B.sum())
    negatives = len(positive_B) - positives
    if not positives or not negatives:
        return float("nan")
    _, place_B, count = np.unique(score_B, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - (count - 1) / 2
    return float((rank[place_B][positive_B].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def auroc(probabilities_BC: Float, label_B: Int64) -> float:
    """Macro-averaged area under the ROC curve, one class against the rest."""
    columns = range(probabilities_BC.shape[1])
    areas = np.array([area_under_roc(probabilities_BC[:, column], label_B == column) for column in columns])
    return float(np.nanmean(areas)) if np.isfinite(areas).any() else float("nan")


def reliability(probabilities_BC: Float, label_B: Int64, bins: int = ECE_BINS) -> NDArray[np.float64]:
    """Reliability table, shape (bins, 3): objects, mean confidence and accuracy per bin (NaN where empty)."""
    confidence = probabilities_BC.max(1).astype(np.float64)
    correct = probabilities_BC.argmax(1) == label_B
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    filled = np.where(count > 0, count, np.nan)
    mean_confidence = np.bincount(place, weights=confidence, minlength=bins) / filled
    accuracy = np.bincount(place, weights=correct, minlength=bins) / filled
    return np.stack([count, mean_confidence, accuracy], axis=1)


def ece(probabilities_BC: Float, label_B: Int64, bins: int = ECE_BINS) -> float:
    """Expected calibration error: mean |accuracy - confidence| over objects, by bin of the top probability."""
    count, confidence, accuracy = reliability(probabilities_BC, label_B, bins).T
    return float(np.nansum(count * np.abs(accuracy - confidence)) / len(label_B))


def scores(probabilities_BC: Float, label_B: Int64) -> dict[str, float]:
    """Every score that needs no taxonomy; all NaN without objects.

    Raises
    ------
    ValueError
        When a probability is not a finite number: a NaN would otherwise count as the most probable class.
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
