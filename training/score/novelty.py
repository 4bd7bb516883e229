"""Out-of-distribution scores: how far an object's embedding lies from those of the training objects.

- Mahalanobis (Lee et al. 2018): the smallest distance to a class mean, under one covariance shared by all classes;
- nearest neighbours (Sun et al. 2022): the distance to the k-th nearest training embedding, both scaled to length 1;
- beside them what needs no embedding: one minus the largest probability (Hendrycks & Gimpel 2017), and the entropy.

For every score larger means stranger. It is measured with classes that were left out of training: the AUROC is the
probability that one of their objects looks stranger than an object of a known class. A bundle serves the first
(:func:`fit_novelty`), as the share of validation objects that look less strange: nobody knows what a distance of 14
means.

Legend: N reference objects, B objects, C classes, E embedding width, K reference classes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.confidence import Novelty
from models.lightcurve import Bool, Int64
from training.score.calibrate import DETECTION_GROUPS, ServedSample
from training.score.metrics import Float, area_under_roc

SHRINKAGE = 0.01  # of the covariance towards its mean variance: some directions of an embedding hardly vary
NEIGHBOURS = 10
FALSE_ALARMS = 0.01  # stated share of known objects beyond the threshold of a bundle
GRID = 1e-3  # of the median distance: knots nearer than that (views that hardly differ) would make steps of slopes
REFERENCE_PER_CLASS = 200
_CHUNK = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Facts about the training embeddings: class means, the whitening of their spread, and unit vectors."""

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


@dataclass(frozen=True, slots=True, eq=False)
class NoveltyFit:
    """Fit by which a bundle tells how unusual an embedding is.

    Attributes
    ----------
    reference : class means and spread of the training embeddings.
    distance_Q, share_Q : distances, ascending, and the share of validation objects that are nearer, from 0 to 1.
    described : for the manifest.
    """

    reference: Reference
    distance_Q: NDArray[np.float64]
    share_Q: NDArray[np.float64]
    described: Novelty

    def novelty(self, embedding_BE: Float) -> NDArray[np.float64]:
        """Share of validation objects that look less strange, shape (B,), as the graph computes it but in float64."""
        return np.interp(self.reference.mahalanobis(embedding_BE), self.distance_Q, self.share_Q)


def fit_novelty(training: ServedSample, validation: ServedSample) -> NoveltyFit:
    """Learn the reference from training objects and what is usual from validation objects.

    Raises
    ------
    ValueError
        As :func:`fit_reference` does, and when all validation objects are equally far.
    """
    reference = fit_reference(training.embedding_NE, training.label_N)
    distance_N = reference.mahalanobis(validation.embedding_NE)
    distance_Q, share_Q = quantiles_of(distance_N)
    alarm_N = np.interp(distance_N, distance_Q, share_Q) > 1 - FALSE_ALARMS
    group_N = np.searchsorted(DETECTION_GROUPS, validation.detections_N, side="right") - 1
    described = Novelty(
        threshold=1 - FALSE_ALARMS,
        false_alarm_rate=float(alarm_N.mean()),
        by_detections={
            DETECTION_GROUPS[group]: float(alarm_N[group_N == group].mean()) for group in np.unique(group_N)
        },
        split="validation",
        objects=len(np.unique(validation.object_N)),
        reference_objects=len(np.unique(training.object_N)),
    )
    return NoveltyFit(reference, distance_Q, share_Q, described)


def quantiles_of(distance_N: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Distinct quantiles and their shares: steps of a hundredth, and finer ones in the tail that alarms look at."""
    tail = 1 - np.geomspace(0.01, 1 / max(len(distance_N), 101), 30)
    share_Q = np.unique(np.concatenate([np.linspace(0, 1, 101), tail]))
    grid = GRID * abs(float(np.median(distance_N))) or 1.0
    quantile_Q = np.round(np.quantile(distance_N, share_Q) / grid) * grid  # apart by more than the graph's rounding
    distance_Q, first = np.unique(quantile_Q, return_index=True)
    if len(distance_Q) < 2:
        raise ValueError("novelty cannot be told: all validation objects are equally far from the training objects")
    share_Q = share_Q[first]
    share_Q[-1] = 1.0
    return distance_Q.astype(np.float64), share_Q


def _unit(x_BE: Float) -> NDArray[np.float64]:
    x_BE = x_BE.astype(np.float64)
    return np.asarray(x_BE / np.maximum(np.linalg.norm(x_BE, axis=1, keepdims=True), 1e-12))


def _squared_distances(a_BE: NDArray[np.float64], b_NE: NDArray[np.float64]) -> NDArray[np.float64]:
    squares_BN = (a_BE**2).sum(1)[:, None] + (b_NE**2).sum(1) - 2 * a_BE @ b_NE.T
    return np.asarray(np.maximum(squares_BN, 0.0))  # rounding may leave a tiny negative
