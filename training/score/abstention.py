"""The abstention curve: how good the answers are when only the most confident share of the objects is answered.

Objects are ranked by their largest probability; at coverage c the ceil(c * N) most confident are answered. Macro-F1
averages over the classes that occur among the answered objects or their predictions, so a class of which nothing is
answered drops out: the number of classes left is part of the curve.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.lightcurve import Int64
from training.score.metrics import Float, confusion, macro_f1

COVERAGES = tuple(round(0.05 * step, 2) for step in range(1, 21))


class Abstention(NamedTuple):
    """Scores at each coverage, all of shape (K,)."""

    coverage: NDArray[np.float64]
    threshold: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    macro_f1: NDArray[np.float64]
    classes: Int64


def abstention(probabilities_BC: Float, label_B: Int64, coverages: tuple[float, ...] = COVERAGES) -> Abstention:
    """Accuracy, macro-F1, classes left and the least confidence answered, at each coverage in (0, 1].

    Raises
    ------
    ValueError
        Without objects.
    """
    if not len(label_B):
        raise ValueError("an abstention curve needs objects")
    confidence_B, predicted_B = probabilities_BC.max(1), probabilities_BC.argmax(1)
    order = np.argsort(-confidence_B, kind="stable")
    kept = [order[: int(np.ceil(share * len(order) - 1e-9))] for share in coverages]
    counts = [confusion(label_B[part], predicted_B[part], probabilities_BC.shape[1]) for part in kept]
    return Abstention(
        coverage=np.array(coverages),
        threshold=np.array([confidence_B[part[-1]] for part in kept], dtype=np.float64),
        accuracy=np.array([np.trace(count) / count.sum() for count in counts]),
        macro_f1=np.array([macro_f1(count) for count in counts]),
        classes=np.array([(count.sum(1) > 0).sum() for count in counts], dtype=np.int64),
    )
