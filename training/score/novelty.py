"""Out-of-distribution scores: how far an object's embedding lies from those of the training objects.

- Mahalanobis (Lee et al. 2018): the smallest distance to a class mean, under one covariance shared by all classes;
- nearest neighbours (Sun et al. 2022): the distance to the k-th nearest training embedding, both scaled to length 1;
- beside them what needs no embedding: one minus the largest probability (Hendrycks & Gimpel 2017), and the entropy.

For every score larger means stranger. It is measured with classes that were left out of training: the AUROC is the
probability that one of their objects looks stranger than an object of a known class.

Legend: N reference objects, B objects, C classes, E embedding width, K reference classes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.lightcurve import Bool, Int64
from training.score.metrics import Float, area_under_roc

SHRINKAGE = 0.01  # of the covariance towards its mean variance: some directions of an embedding hardly vary
NEIGHBOURS = 10
_CHUNK = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What is known of the training embeddings: class means, the whitening of their spread, and unit vectors."""

    mean_KE: NDArray[np.float64]
    whiten_EE: NDArray[np.float64]
    unit_NE: NDArray[np.float64]

    def mahalanobis(self, embedding_BE: Float) -> NDArray[np.float64]:
        """Distance to the nearest class mean in units of the shared spread, shape (B,)."""
        white_BE = embedding_BE.astype(np.float64) @ self.whiten_EE
        return np.asarray(np.sqrt(_squared_distances(white_BE, self.mean_KE @ self.whiten_EE).min(1)))

    def neighbours(self, embedding_BE: Float, k: int = NEIGHBOURS) -> NDArray[np.float64]:
        """Distance to the k-th nearest training embedding on the unit sphere, shape (B,)."""
        unit_BE, k = _unit(embedding_BE), min(k, len(self.unit_NE))
        parts = [unit_BE[start : start + _CHUNK] for start in range(0, len(unit_BE), _CHUNK)]
        nearest = [np.partition(_squared_distances(part, self.unit_NE), k - 1, axis=1)[:, k - 1] for part in parts]
        return np.sqrt(np.concatenate(nearest)) if nearest else np.zeros(0)


def fit_reference(embedding_NE: Float, label_N: Int64) -> Reference:
    """Learn class means and the covariance within classes from training embeddings.

    Raises
    ------
    ValueError
        With fewer than two objects, or with embeddings that are not finite.
    """
    if len(embedding_NE) < 2 or not np.isfinite(embedding_NE).all():
        raise ValueError("an out-of-distribution score needs at least two training embeddings, all finite")
    x_NE = embedding_NE.astype(np.float64)
    known, place_N = np.unique(label_N, return_inverse=True)
    mean_KE = np.stack([x_NE[place_N == place].mean(0) for place in range(len(known))])
    residual_NE = x_NE - mean_KE[place_N]
    covariance_EE = residual_NE.T @ residual_NE / len(x_NE)
    variance = max(float(np.trace(covariance_EE)) / len(covariance_EE), 1e-12)
    values_E, vectors_EE = np.linalg.eigh(covariance_EE)
    shrunk_E = (1 - SHRINKAGE) * np.maximum(values_E, 0) + SHRINKAGE * variance
    return Reference(mean_KE, vectors_EE / np.sqrt(shrunk_E), _unit(x_NE))


def strangeness(reference: Reference, embedding_BE: Float, probabilities_BC: Float) -> dict[str, NDArray[np.float64]]:
    """Every score of every object, each of shape (B,), by name."""
    p_BC = np.clip(probabilities_BC.astype(np.float64), 1e-12, 1.0)
    return {
        "Mahalanobis": reference.mahalanobis(embedding_BE),
        "nearest neighbours": reference.neighbours(embedding_BE),
        "1 - largest probability": 1.0 - p_BC.max(1),
        "entropy": -(p_BC * np.log(p_BC)).sum(1),
    }


def novelty_scores(strange: dict[str, NDArray[np.float64]], label_B: Int64, left_out: Int64) -> dict[str, Any]:
    """AUROC of each score: all left-out classes against the known ones (``all``), and each left-out class alone."""
    new_B: Bool = np.isin(label_B, left_out)
    found: dict[str, Any] = {}
    for name, score_B in strange.items():
        alone = {int(label): ~new_B | (label_B == label) for label in left_out}
        found[name] = {
            "all": area_under_roc(score_B, new_B),
            "by_class": {label: area_under_roc(score_B[kept], new_B[kept]) for label, kept in alone.items()},
        }
    return found


def _unit(x_BE: Float) -> NDArray[np.float64]:
    x_BE = x_BE.astype(np.float64)
    return np.asarray(x_BE / np.maximum(np.linalg.norm(x_BE, axis=1, keepdims=True), 1e-12))


def _squared_distances(a_BE: NDArray[np.float64], b_NE: NDArray[np.float64]) -> NDArray[np.float64]:
    squares_BN = (a_BE**2).sum(1)[:, None] + (b_NE**2).sum(1) - 2 * a_BE @ b_NE.T
    return np.asarray(np.maximum(squares_BN, 0.0))  # rounding may leave a tiny negative
