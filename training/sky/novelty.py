"""Light curves for fitting heads and novelty (`CurveSet`), and the novelty score.

Light curves are sampled once from a mixture and written to a file, so that statistics can be computed while the
backbone is still training, and embeddings afterwards.

A small perceptron on the embedding and its Mahalanobis distance from the classes is trained to separate training
objects from outliers (outlier exposure, Hendrycks et al. 2019): real objects of no known class, and synthetic light
curves (:func:`synthetic_outliers`). Novelty is the fraction of validation objects with a lower score.
:func:`auroc_by_kind` evaluates the score on kinds of outliers that it was not trained on.

Legend: N light curves, M outliers, V validation light curves, K statistics, E embedding, Q quantiles.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from nightjar_alerts.models.lightcurve import Bool, Float32, Int64, RaggedBatch
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.network import INPUTS
from nightjar_alerts.models.networks.romae import RoMAE
from nightjar_alerts.models.networks.zoo import build
from nightjar_alerts.models.posterior import Novelty
from nightjar_alerts.training.data.batches import draw_examples, draw_weighted
from nightjar_alerts.training.data.dataset import SPLITS, Dataset, split_indices
from nightjar_alerts.training.export.served import OutlierScore
from nightjar_alerts.training.recipes.schema import Recipe
from nightjar_alerts.training.score.confidence import fit_reference
from nightjar_alerts.training.score.metrics import area_under_roc

CURVES_AT_ONCE: Final = 64
_REDSHIFT: Final = METADATA_COLUMNS.index("z_final")
_POINTS: Final = ("time", "flux", "flux_err", "band", "detected")


@dataclass(frozen=True, eq=False)
class CurveSet:
    """Light curves as network inputs, with label, source and object.

    Attributes
    ----------
    curves : the light curves.
    label : i64[N], -1 for no known class.
    source : survey of each light curve, ``simulated`` for the simulator, or the kind of outlier.
    object_index : i64[N], the same for all draws of an object.
    """

    curves: RaggedBatch
    label: Int64
    source: NDArray[np.str_]
    object_index: Int64

    def __len__(self) -> int:
        return len(self.label)

    @property
    def length(self) -> Int64:
        """Number of points, [N]."""
        lengths: Int64 = np.diff(self.curves.offsets)
        return lengths

    @property
    def detections(self) -> Int64:
        """Number of detections, [N]."""
        total = np.concatenate(([0], np.cumsum(self.curves.detected)))
        counts: Int64 = total[self.curves.offsets[1:]] - total[self.curves.offsets[:-1]]
        return counts

    @property
    def bands(self) -> Int64:
        """Number of bands with a point, [N]."""
        has_point = np.zeros((len(self), 8), dtype=np.bool_)
        has_point[np.repeat(np.arange(len(self)), self.length), self.curves.band] = True
        count: Int64 = has_point.sum(1).astype(np.int64)
        return count

    @property
    def has_redshift(self) -> Bool:
        """Whether the redshift is given, [N]."""
        flags: Bool = np.isfinite(self.curves.metadata[:, _REDSHIFT])
        return flags

    def take(self, rows: Int64) -> "CurveSet":
        """Return some of the light curves, in that order."""
        return CurveSet(take(self.curves, rows), self.label[rows], self.source[rows], self.object_index[rows])

    def batches(self, size: int = CURVES_AT_ONCE) -> Iterator[tuple[Int64, dict[str, torch.Tensor]]]:
        """Yield rows and padded inputs of all light curves, sorted by length."""
        order = np.argsort(self.length, kind="stable")
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            padded = take(self.curves, rows).padded()
            yield rows, {name: torch.from_numpy(padded[name]) for name in INPUTS}

    def save(self, path: Path) -> None:
        """Write to one uncompressed npz without pickles."""
        arrays: dict[str, NDArray[Any]] = {name: getattr(self.curves, name) for name in (*_POINTS, "offsets")}
        arrays |= {
            "metadata": self.curves.metadata,
            "label": self.label,
            "source": self.source,
            "object_index": self.object_index,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, allow_pickle=False, **arrays)


def read_curve_set(path: Path) -> CurveSet:
    """Read a file of `CurveSet.save`."""
    with np.load(path, allow_pickle=False) as arrays:
        curves = RaggedBatch(**{name: arrays[name] for name in ("offsets", *_POINTS, "metadata")})
        return CurveSet(curves, arrays["label"], arrays["source"], arrays["object_index"])


def take(curves: RaggedBatch, rows: Int64) -> RaggedBatch:
    """Return some of the sequences, in that order."""
    lengths = np.diff(curves.offsets)[rows]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    picked = np.repeat(curves.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
    points = {name: getattr(curves, name)[picked] for name in _POINTS}
    return RaggedBatch(offsets=offsets, **points, metadata=curves.metadata[rows])


def join_curves(parts: Sequence[CurveSet]) -> CurveSet:
    """Concatenate several sets; objects of different sets get different indices."""
    lengths = np.concatenate([part.length for part in parts])
    points = {name: np.concatenate([getattr(part.curves, name) for part in parts]) for name in (*_POINTS, "metadata")}
    shifts = np.cumsum([0, *(int(part.object_index.max(initial=-1)) + 1 for part in parts)])
    return CurveSet(
        RaggedBatch(offsets=np.concatenate(([0], np.cumsum(lengths))), **points),
        np.concatenate([part.label for part in parts]),
        np.concatenate([part.source for part in parts]),
        np.concatenate([part.object_index + shift for part, shift in zip(parts, shifts, strict=False)]),
    )


def draw_from_mixture(dataset: Dataset, recipe: Recipe, part: str, number: int, seed: int) -> CurveSet:
    """Draw light curves of one part of a mixture, with the recipe's augmentation."""
    rng = np.random.default_rng((seed, SPLITS.index(part)))
    rows = draw_weighted(dataset, split_indices(dataset, recipe.data.fractions)[part], number, recipe, rng)
    return draw_curves(dataset, rows, recipe, rng)


def draw_curves(dataset: Dataset, rows: Int64, recipe: Recipe, rng: np.random.Generator) -> CurveSet:
    """Draw a light curve of each chosen object with the recipe's augmentation; those without a point are left out."""
    examples = [
        draw_examples(dataset, rows[n : n + 1], recipe.data, recipe.augmentation, rng) for n in range(len(rows))
    ]
    kept = [index for index, drawn in enumerate(examples) if drawn]
    names = [dataset.object_id[int(rows[index])].partition(":") for index in kept]
    return CurveSet(
        RaggedBatch.collate([examples[index][0].tokens for index in kept]),
        np.array([examples[index][0].label for index in kept], dtype=np.int64),
        np.array([source if colon else "simulated" for source, colon, _ in names], dtype=np.str_),
        rows[kept],
    )


def statistics_network(recipe: Recipe) -> AstroMoE:
    """Return an untrained network of a recipe, for computing statistics."""
    network = build(recipe.network)
    assert isinstance(network, AstroMoE)
    return network.eval()


@torch.inference_mode()
def statistics_of(network: AstroMoE, curve_set: CurveSet) -> tuple[Float32, Bool]:
    """Return the statistics and whether they are defined, both [N, K]."""
    value_NK, mask_NK = np.zeros((len(curve_set), 0), np.float32), np.zeros((len(curve_set), 0), np.bool_)
    for rows, inputs in curve_set.batches():
        statistics = network.statistics_of(*(inputs[name] for name in network.input_names))
        if not value_NK.shape[1]:
            value_NK = np.zeros((len(curve_set), statistics.value_BK.shape[1]), np.float32)
            mask_NK = np.zeros(value_NK.shape, np.bool_)
        value_NK[rows], mask_NK[rows] = statistics.value_BK.numpy(), statistics.mask_BK.numpy()
    return value_NK, mask_NK


@torch.inference_mode()
def embeddings_of(network: AstroMoE | RoMAE, curve_set: CurveSet) -> Float32:
    """Return the embeddings [N, E] of the branches, or of RoMAE."""
    embedding_NE = np.zeros((len(curve_set), network.embedding_dim), np.float32)
    for rows, inputs in curve_set.batches():
        embedding_NE[rows] = network(*(inputs[name] for name in network.input_names)).embedding_BE.numpy()
    return embedding_NE


STEPS: Final = 1_000
BATCH: Final = 512  # half of it outliers
RATE, DECAY = 2e-3, 0.1
MIN_STEP: Final = 0.02  # of the spread of the odds
THRESHOLD: Final = 0.97  # flags 3 % of known objects as unusual


@dataclass(frozen=True, eq=False)
class OutlierModel:
    """Fitted novelty score: a module of the graph and its entry in the manifest."""

    score: OutlierScore
    described: Novelty

    def module(self) -> nn.Module:
        """Return the module for the graph."""
        return self.score

    @torch.inference_mode()
    def novelty(self, embedding_NE: Float32) -> NDArray[np.float64]:
        """Return the share of validation objects with a lower score, [N]."""
        share_N: NDArray[np.float64] = self.score(torch.from_numpy(embedding_NE)).numpy().astype(np.float64)
        return share_N


def fit_outliers(
    inlier_NE: Float32, label_N: Int64, outlier_ME: Float32, validation_VE: Float32, *, seed: int, steps: int = STEPS
) -> OutlierModel:
    """Fit the score to training objects and outliers, and its quantiles to validation objects."""
    reference = fit_reference(inlier_NE, label_N)
    torch.manual_seed(seed)
    score = OutlierScore(reference)
    optimiser = torch.optim.AdamW(score.layers.parameters(), lr=RATE, weight_decay=DECAY)
    rng = np.random.default_rng(seed)
    half = BATCH // 2
    truth_B = torch.cat([torch.zeros(half), torch.ones(half)])
    score.train()
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * max(0.01, 0.5 * (1 + np.cos(np.pi * step / steps)))
        rows, outlier_rows = rng.integers(0, len(inlier_NE), half), rng.integers(0, len(outlier_ME), half)
        batch_BE = torch.from_numpy(np.concatenate([inlier_NE[rows], outlier_ME[outlier_rows]]))
        loss = binary_cross_entropy_with_logits(score.odds(batch_BE), truth_B)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
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
    return OutlierModel(score.eval(), described)


def _quantiles(odds_V: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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


def synthetic_outliers(curve_set: CurveSet, seed: int) -> CurveSet:
    """Return unphysical light curves: fluxes shuffled in time, or the second half replaced by the mirrored first half.

    They are made from light curves with five detections or more, since others could not be distinguished.
    """
    rng = np.random.default_rng(seed)
    good = np.flatnonzero(curve_set.detections >= 5)
    half = len(good) // 2
    shuffled, mirrored = rng.permutation(good)[:half], rng.permutation(good)[:half]
    return join_curves([_shuffled(curve_set, shuffled, rng), _doubled(curve_set, mirrored, rng)])


def _shuffled(curve_set: CurveSet, rows: Int64, rng: np.random.Generator) -> CurveSet:
    """Return light curves with fluxes and errors shuffled in time."""
    curves = take(curve_set.curves, rows)
    order = np.arange(int(curves.offsets[-1]))
    for start, stop in zip(curves.offsets[:-1], curves.offsets[1:], strict=True):
        order[start:stop] = start + rng.permutation(int(stop - start))
    changed = replace(curves, flux=curves.flux[order], flux_err=curves.flux_err[order], detected=curves.detected[order])
    return _outliers(changed, "shuffled", rows)


def _doubled(curve_set: CurveSet, rows: Int64, rng: np.random.Generator) -> CurveSet:
    """Return light curves whose second half is the first half mirrored and scaled by a factor of 1/4 to 4."""
    curves = take(curve_set.curves, rows)
    flux = curves.flux.copy()
    for start, stop in zip(curves.offsets[:-1], curves.offsets[1:], strict=True):
        half = (int(stop) - int(start)) // 2
        factor = np.float32(4.0 ** rng.uniform(-1, 1))
        flux[stop - half : stop] = factor * flux[start : start + half][::-1]
    changed = replace(curves, flux=flux, detected=np.abs(flux) >= 5 * curves.flux_err)
    return _outliers(changed, "doubled", rows)


def _outliers(curves: RaggedBatch, kind: str, rows: Int64) -> CurveSet:
    return CurveSet(curves, np.full(len(rows), -1, np.int64), np.full(len(rows), kind), rows)
