"""Novelty: how unlike the training objects the embedding of a light curve is.

- Mahalanobis (Lee et al. 2018): the smallest distance to a class mean, under one covariance shared by all classes
  (:func:`fit_novelty`, without outliers);
- outlier exposure (Hendrycks et al. 2019): a small perceptron on the embedding and that distance, trained to separate
  training objects from outliers (:func:`fit_outliers`). :func:`auroc_by_kind` evaluates it on kinds of outliers that it
  was not trained on;
- for comparison, one minus the largest probability (Hendrycks & Gimpel 2017).

A bundle returns the share of validation objects with a smaller score. Larger scores are more unusual. Scores are
evaluated with classes that were left out of training: the AUROC is the probability that one of their objects has a
larger score than an object of a known class.

Legend: B objects, N training objects, M outliers, V validation light curves, K classes of the reference, E embedding
width, Q quantiles.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from nightjar_alerts.models.lightcurve import Bool, Float32, Float64, Int64
from nightjar_alerts.models.posterior import Novelty
from nightjar_alerts.training.confidence.calibration import DETECTION_GROUPS, ServedSample
from nightjar_alerts.training.metrics import Float, area_under_roc

SHRINKAGE: Final = 0.01
"""Shrinkage of the covariance towards its mean variance, since some directions of an embedding hardly vary."""
REFERENCE_PER_CLASS: Final = 200
FALSE_ALARMS: Final = 0.01
"""Share of known objects beyond the threshold of a Mahalanobis score."""
GRID: Final = 1e-3
"""Minimum distance of knots as a fraction of the median distance."""
MAX_DEVIATION: Final = 6.0  # standard deviations of a whitened embedding

STEPS: Final = 1_000
BATCH: Final = 512  # half of it outliers
RATE, DECAY = 2e-3, 0.1
MIN_STEP: Final = 0.02  # of the spread of the odds
THRESHOLD: Final = 0.97  # flags 3 % of known objects as unusual


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingReference:
    """Class means of the training embeddings, and the whitening matrix of their covariance."""

    mean_KE: Float64
    whiten_EE: Float64

    def mahalanobis(self, embedding_BE: Float) -> Float64:
        """Return the Mahalanobis distance to the nearest class mean, shape (B,)."""
        white_BE = embedding_BE.astype(np.float64) @ self.whiten_EE
        return np.asarray(np.sqrt(_squared_distances(white_BE, self.mean_KE @ self.whiten_EE).min(1)))


def fit_reference(embedding_NE: Float, label_N: Int64) -> EmbeddingReference:
    """Compute class means and the covariance within classes from training embeddings.

    Raises
    ------
    ValueError
        If there are fewer than two objects, or an embedding is not finite.
    """
    if len(embedding_NE) < 2 or not np.isfinite(embedding_NE).all():
        raise ValueError("an out-of-distribution score needs at least two training embeddings, all finite")
    x_NE = embedding_NE.astype(np.float64)
    classes, class_N = np.unique(label_N, return_inverse=True)
    mean_KE = np.stack([x_NE[class_N == index].mean(0) for index in range(len(classes))])
    residual_NE = x_NE - mean_KE[class_N]
    covariance_EE = residual_NE.T @ residual_NE / len(x_NE)
    variance = max(float(np.trace(covariance_EE)) / len(covariance_EE), 1e-12)
    values_E, vectors_EE = np.linalg.eigh(covariance_EE)
    shrunk_E = (1 - SHRINKAGE) * np.maximum(values_E, 0) + SHRINKAGE * variance
    return EmbeddingReference(mean_KE, vectors_EE / np.sqrt(shrunk_E))


def _squared_distances(a_BE: Float64, b_NE: Float64) -> Float64:
    squares_BN = (a_BE**2).sum(1)[:, None] + (b_NE**2).sum(1) - 2 * a_BE @ b_NE.T
    return np.asarray(np.maximum(squares_BN, 0.0))  # negative values come from rounding


class NoveltyScore(nn.Module):
    """Mahalanobis distance to the nearest class mean, as the share of validation objects that are nearer.

    Embeddings are centred before they are whitened, to avoid cancellation in float32.
    """

    centre_E: Tensor
    whiten_EE: Tensor
    mean_KE: Tensor
    distance_Q: Tensor
    width_Q: Tensor
    step_Q: Tensor

    def __init__(self, reference: EmbeddingReference, distance_Q: Float64, share_Q: Float64) -> None:
        super().__init__()
        centre_E = reference.mean_KE.mean(0)
        self.register_buffer("centre_E", _single(centre_E))
        self.register_buffer("whiten_EE", _single(reference.whiten_EE))
        self.register_buffer("mean_KE", _single((reference.mean_KE - centre_E) @ reference.whiten_EE))
        self.register_buffer("distance_Q", _single(distance_Q[:-1]))
        self.register_buffer("width_Q", _single(np.diff(distance_Q)))
        self.register_buffer("step_Q", _single(np.diff(share_Q)))

    @classmethod
    def from_tables(cls, tables: Mapping[str, Tensor]) -> "NoveltyScore":
        """Create a score from the tables in a graph."""
        score = cls.__new__(cls)
        nn.Module.__init__(score)
        for name, table in tables.items():
            score.register_buffer(name, table)
        return score

    def forward(self, embedding_BE: Tensor) -> Tensor:
        """Return the novelty [B], from 0 to 1."""
        white_BE = (embedding_BE - self.centre_E) @ self.whiten_EE
        squared_BK = (white_BE[:, None] - self.mean_KE).square().sum(-1)
        distance_B = squared_BK.amin(1).sqrt()
        passed_BQ = (distance_B[:, None] - self.distance_Q) / self.width_Q
        return (passed_BQ.clamp(0, 1) * self.step_Q).sum(1).clamp(0, 1)


class OutlierScore(nn.Module):
    """Log odds of an outlier by a perceptron on embedding and distance, as the share of known objects with lower odds.

    :func:`fit_outliers` fits it; :meth:`set_quantiles` sets the distribution of known objects.
    """

    centre_E: Tensor
    whiten_EE: Tensor
    mean_KE: Tensor
    odds_Q: Tensor
    width_Q: Tensor
    step_Q: Tensor

    def __init__(self, reference: EmbeddingReference, hidden: int = 64, dropout: float = 0.3) -> None:
        super().__init__()
        centre_E, width = reference.mean_KE.mean(0), reference.mean_KE.shape[1]
        self.register_buffer("centre_E", _single(centre_E))
        self.register_buffer("whiten_EE", _single(reference.whiten_EE))
        self.register_buffer("mean_KE", _single((reference.mean_KE - centre_E) @ reference.whiten_EE))
        self._build(width, hidden, dropout)
        self.set_quantiles(np.array([0.0, 1.0]), np.array([0.0, 1.0]))

    def _build(self, width: int, hidden: int, dropout: float) -> None:
        self.scale = float(np.sqrt(width))
        self.layers = nn.Sequential(nn.Linear(width + 1, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, 1))

    @classmethod
    def from_tables(cls, tables: Mapping[str, Tensor]) -> "OutlierScore":
        """Create a score from the tables and weights in a graph."""
        score = cls.__new__(cls)
        nn.Module.__init__(score)
        score._build(tables["centre_E"].shape[0], tables["layers.0.bias"].shape[0], 0.0)
        for name, table in tables.items():
            if not name.startswith("layers."):
                score.register_buffer(name, table)
        score.load_state_dict(dict(tables))
        return score

    def set_quantiles(self, odds_Q: Float64, share_Q: Float64) -> None:
        """Set the fraction of known objects with lower odds than each of ``odds_Q``."""
        self.register_buffer("odds_Q", _single(odds_Q[:-1]))
        self.register_buffer("width_Q", _single(np.diff(odds_Q)))
        self.register_buffer("step_Q", _single(np.diff(share_Q)))

    def odds(self, embedding_BE: Tensor) -> Tensor:
        """Return the log odds [B], larger for objects that are less like the known classes."""
        white_BE = (embedding_BE - self.centre_E) @ self.whiten_EE
        white_BE = white_BE.clamp(-MAX_DEVIATION, MAX_DEVIATION)  # limits rounding errors
        distance_B = (white_BE[:, None] - self.mean_KE).square().sum(-1).amin(1).sqrt() / self.scale
        odds_B: Tensor = self.layers(torch.cat([white_BE, distance_B[:, None]], dim=1))[:, 0]
        return odds_B

    def forward(self, embedding_BE: Tensor) -> Tensor:
        """Return the novelty [B], from 0 to 1."""
        passed_BQ = (self.odds(embedding_BE)[:, None] - self.odds_Q) / self.width_Q
        return (passed_BQ.clamp(0, 1) * self.step_Q).sum(1).clamp(0, 1)


def _single(values: Float64) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class NoveltyFit:
    """Fitted novelty: the module of the graph, from embeddings [B, E] to novelty [B], and its entry in the manifest."""

    score: nn.Module
    described: Novelty

    @torch.inference_mode()
    def novelty(self, embedding_NE: Float) -> Float64:
        """Return the share of validation objects with a lower score, [N]."""
        share_N: Float64 = self.score(torch.from_numpy(embedding_NE.astype(np.float32))).numpy().astype(np.float64)
        return share_N


def fit_novelty(training: ServedSample, validation: ServedSample) -> NoveltyFit:
    """Fit the reference to training objects and the quantiles of distances to validation objects.

    Raises
    ------
    ValueError
        If :func:`fit_reference` does, or all validation objects have the same distance.
    """
    reference = fit_reference(training.embedding_NE, training.label_N)
    return mahalanobis_novelty(
        reference,
        reference.mahalanobis(validation.embedding_NE),
        validation.detections_N,
        split="validation",
        objects=len(np.unique(validation.object_N)),
        reference_objects=len(np.unique(training.object_N)),
    )


def mahalanobis_novelty(
    reference: EmbeddingReference,
    distance_N: Float64,
    detections_N: Int64,
    *,
    split: str,
    objects: int,
    reference_objects: int,
) -> NoveltyFit:
    """Return the score by distances to a reference, for distances of objects that it was not fitted to.

    Raises
    ------
    ValueError
        If all distances are equal.
    """
    distance_Q, share_Q = quantiles_of(distance_N)
    alarm_N = np.interp(distance_N, distance_Q, share_Q) > 1 - FALSE_ALARMS
    group_N = np.searchsorted(DETECTION_GROUPS, detections_N, side="right") - 1
    described = Novelty(
        threshold=1 - FALSE_ALARMS,
        false_alarm_rate=float(alarm_N.mean()),
        by_detections={
            DETECTION_GROUPS[group]: float(alarm_N[group_N == group].mean()) for group in np.unique(group_N)
        },
        split=split,
        objects=objects,
        reference_objects=reference_objects,
    )
    return NoveltyFit(NoveltyScore(reference, distance_Q, share_Q).eval(), described)


def quantiles_of(distance_N: Float64) -> tuple[Float64, Float64]:
    """Return distinct quantiles and their shares, in steps of 0.01, and finer ones in the tail."""
    tail = 1 - np.geomspace(0.01, 1 / max(len(distance_N), 101), 30)
    share_Q = np.unique(np.concatenate([np.linspace(0, 1, 101), tail]))
    grid = GRID * abs(float(np.median(distance_N))) or 1.0
    quantile_Q = np.round(np.quantile(distance_N, share_Q) / grid) * grid  # steps are larger than rounding errors
    distance_Q, first = np.unique(quantile_Q, return_index=True)
    if len(distance_Q) < 2:
        raise ValueError("novelty cannot be fitted: all validation objects are equally far from the training objects")
    share_Q = share_Q[first]
    share_Q[-1] = 1.0
    return distance_Q.astype(np.float64), share_Q


def fit_outliers(
    inlier_NE: Float32, label_N: Int64, outlier_ME: Float32, validation_VE: Float32, *, seed: int, steps: int = STEPS
) -> NoveltyFit:
    """Fit the score to training objects and outliers, and its quantiles to validation objects."""
    reference = fit_reference(inlier_NE, label_N)
    torch.manual_seed(seed)
    score = OutlierScore(reference)
    optimizer = torch.optim.AdamW(score.layers.parameters(), lr=RATE, weight_decay=DECAY)
    rng = np.random.default_rng(seed)
    half = BATCH // 2
    truth_B = torch.cat([torch.zeros(half), torch.ones(half)])
    score.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * max(0.01, 0.5 * (1 + np.cos(np.pi * step / steps)))
        rows, outlier_rows = rng.integers(0, len(inlier_NE), half), rng.integers(0, len(outlier_ME), half)
        batch_BE = torch.from_numpy(np.concatenate([inlier_NE[rows], outlier_ME[outlier_rows]]))
        loss = binary_cross_entropy_with_logits(score.odds(batch_BE), truth_B)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    score.eval()
    with torch.inference_mode():
        odds_V = score.odds(torch.from_numpy(validation_VE)).numpy().astype(np.float64)
    score.set_quantiles(*_quantiles(odds_V))
    with torch.inference_mode():
        alarm_V = score(torch.from_numpy(validation_VE)).numpy() > THRESHOLD
    described = Novelty(
        method="fitted",
        threshold=THRESHOLD,
        false_alarm_rate=float(alarm_V.mean()),
        split="validation",
        objects=len(validation_VE),
        reference_objects=len(inlier_NE),
    )
    return NoveltyFit(score.eval(), described)


def _quantiles(odds_V: Float64) -> tuple[Float64, Float64]:
    """Return odds and the share of validation objects below, in steps so wide that rounding moves no share by 1e-4."""
    share_Q = np.concatenate([np.linspace(0, 0.9, 19), [0.93, 0.95, 0.97, 0.98, 0.99, 1.0]])
    odds_Q = np.quantile(odds_V, share_Q)
    min_step = MIN_STEP * float(odds_Q[18] - odds_Q[2])
    kept = [0]
    for index in range(1, len(odds_Q)):
        if odds_Q[index] - odds_Q[kept[-1]] >= min_step:
            kept.append(index)
    return odds_Q[kept], share_Q[kept] / share_Q[kept[-1]]


def auroc_by_kind(
    inlier_NE: Float32,
    label_N: Int64,
    validation_VE: Float32,
    outlier_ME: Float32,
    kind_M: NDArray[np.str_],
    *,
    seed: int,
) -> dict[str, float]:
    """Return the AUROC of each kind of outlier against validation objects, with a score fitted without that kind."""
    areas = {}
    for kind in np.unique(kind_M):
        fit = fit_outliers(inlier_NE, label_N, outlier_ME[kind_M != kind], validation_VE, seed=seed, steps=STEPS // 4)
        outlier_M, known_V = fit.novelty(outlier_ME[kind_M == kind]), fit.novelty(validation_VE)
        is_outlier = np.concatenate([np.ones(len(outlier_M), np.bool_), np.zeros(len(known_V), np.bool_)])
        areas[str(kind)] = float(area_under_roc(np.concatenate([outlier_M, known_V]), is_outlier))
    return areas


def ood_scores(reference: EmbeddingReference, embedding_BE: Float, probabilities_BC: Float) -> dict[str, Float64]:
    """Return both out-of-distribution scores of every object, each of shape (B,), by name."""
    return {
        "Mahalanobis": reference.mahalanobis(embedding_BE),
        "1 - largest probability": 1.0 - probabilities_BC.max(1).astype(np.float64),
    }


def novelty_scores(ood: dict[str, Float64], label_B: Int64, left_out: Int64) -> dict[str, Any]:
    """Return the AUROC of each score against the known classes, for ``all`` left-out classes and for each of them."""
    new_B: Bool = np.isin(label_B, left_out)
    by_score: dict[str, Any] = {}
    for name, score_B in ood.items():
        alone = {int(label): ~new_B | (label_B == label) for label in left_out}
        by_score[name] = {
            "all": area_under_roc(score_B, new_B),
            "by_class": {label: area_under_roc(score_B[rows_B], new_B[rows_B]) for label, rows_B in alone.items()},
        }
    return by_score
