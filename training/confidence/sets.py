"""Prediction sets with stated coverage, and novelty.

**Sets** by split conformal prediction, for all objects or for every class. A threshold q is the ceil((n + 1)(1 -
alpha))-th smallest nonconformity score of n calibration objects; a class is in the set of an object if its score does
not exceed q. The true class is then in the set with probability at least 1 - alpha, for any network, *for objects with
the distribution of the calibration objects*. Thresholds fitted to complete light curves are not valid for alerts with
two detections, so fit them to light curves like those of the requests.

The score is 1 - p of the class (Sadinle et al. 2019), which gives the smallest sets; a set is empty if no class is
probable enough. With ``by_class`` each class has a threshold from its own calibration objects, which guarantees the
coverage of rare classes, too; a class with too few of them (fewer than 1 / alpha - 1) is in every set.

**The sets of a bundle** (:func:`fit_sets`) are fitted to validation objects in views as in the service, with the score
of :class:`models.posterior.PredictionSets`: 1 - p of the true class, 0 if it is the most probable one. A threshold
holds on average over all light curves, so coverage may be too low where the network is least accurate. To test this,
the threshold of one half of the objects is applied to the other half. If the coverage for some number of detections
differs from the stated one by more than ``TOLERANCE`` (and twice the standard error), every number of detections gets
its own threshold.

**Sets by stratum** (:func:`fit_strata`) have the stated coverage for each survey. Strata are by detections, then bands,
then novelty; a stratum with too few light curves uses the threshold of the enclosing one. Within a stratum surveys
are weighted by the square root of their number, so that the largest simulation does not dominate. No threshold is
below a minimum, so that a second class of some probability is always included. For other class shares every light
curve is weighted by the ratio of shares of its class (weighted conformal prediction, Tibshirani et al. 2019), and its
probabilities are converted to those shares.

**Novelty** is the distance of an object's embedding from those of the training objects:

- Mahalanobis (Lee et al. 2018): the smallest distance to a class mean, under one covariance shared by all classes;
- without an embedding: one minus the largest probability (Hendrycks & Gimpel 2017).

Larger scores are more unusual. Scores are evaluated with classes that were left out of training: the AUROC is the
probability that one of their objects has a larger score than an object of a known class. Bundles return the first score
(:func:`fit_novelty`), as the fraction of validation objects with a smaller distance.

Legend: B objects, N rows (views of objects) or reference objects, C classes, K reference classes, E embedding width.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.lightcurve import Bool, Float64, Int64
from nightjar_alerts.models.posterior import PredictionSets, SetThresholds
from nightjar_alerts.training.confidence.calibration import DETECTION_GROUPS
from nightjar_alerts.training.score.metrics import Float


def fit_conformal(
    probabilities_BC: Float, label_B: Int64, *, alpha: float = 0.1, by_class: bool = False
) -> NDArray[np.float64]:
    """Fit thresholds on calibration objects that are neither training nor test objects.

    Returns
    -------
    Largest 1 - p of a class in the set, float64 (C,); infinite if a class is always included.

    Raises
    ------
    ValueError
        If ``alpha`` is not between 0 and 1, there are no objects, or a probability is not finite.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, not {alpha}")
    if not len(label_B) or not np.isfinite(probabilities_BC).all():
        raise ValueError("conformal sets need at least one calibration object, and finite probabilities")
    score_B = 1.0 - probabilities_BC[np.arange(len(label_B)), label_B].astype(np.float64)
    classes = probabilities_BC.shape[1]
    if by_class:
        return np.array([conformal_quantile(score_B[label_B == label], alpha) for label in range(classes)])
    return np.full(classes, conformal_quantile(score_B, alpha))


def sets_of(probabilities_BC: Float, threshold_C: NDArray[np.float64]) -> Bool:
    """Return whether each class is in the set of each object, bool (B, C)."""
    inside_BC: Bool = 1.0 - probabilities_BC.astype(np.float64) <= threshold_C
    return inside_BC


def conformal_quantile(score_B: NDArray[np.float64], alpha: float) -> float:
    """Return the ceil((n + 1)(1 - alpha))-th smallest of n scores; infinity if there are too few."""
    rank = int(np.ceil((len(score_B) + 1) * (1 - alpha) - 1e-9))
    return float(np.sort(score_B)[rank - 1]) if rank <= len(score_B) else float("inf")


def set_scores(inside_BC: Bool, label_B: Int64) -> dict[str, float]:
    """Return coverage, coverage of the least covered class, mean size, and shares of empty and single-class sets."""
    names = ("coverage", "worst_class_coverage", "mean_size", "empty", "single")
    if not len(label_B):
        return dict.fromkeys(names, float("nan"))
    covered_B, size_B = inside_BC[np.arange(len(label_B)), label_B], inside_BC.sum(1)
    by_class = [covered_B[label_B == label].mean() for label in np.unique(label_B)]
    values = (covered_B.mean(), min(by_class), size_B.mean(), (size_B == 0).mean(), (size_B == 1).mean())
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def class_coverage(inside_BC: Bool, label_B: Int64) -> NDArray[np.float64]:
    """Return the coverage of every class (C,), NaN for classes without objects."""
    support_C = np.bincount(label_B, minlength=inside_BC.shape[1])
    covered_C = np.bincount(label_B, inside_BC[np.arange(len(label_B)), label_B], minlength=inside_BC.shape[1])
    coverage_C = np.full(len(support_C), np.nan)
    np.divide(covered_C, support_C, out=coverage_C, where=support_C > 0)
    return coverage_C


COVERAGES = (0.8, 0.9, 0.95, 0.99)


DEFAULT = 0.9


TOLERANCE = 0.02


SMALLEST_GROUP = 200  # rows; smaller groups are merged with the next


class SetsFit(NamedTuple):
    """Fitted thresholds, and the coverage of a single threshold for 0.9 in each group, which decided on the groups."""

    sets: PredictionSets
    coverage_of_one: dict[str, float]


def lac_scores(p_NC: Float, label_N: Int64) -> NDArray[np.float64]:
    """Return 1 - p of the true class, 0 if it is the most probable class; shape (N,)."""
    truth_N = p_NC[np.arange(len(label_N)), label_N].astype(np.float64)
    return np.where(p_NC.argmax(1) == label_N, 0.0, 1.0 - truth_N)


def fit_sets(p_NC: Float, label_N: Int64, detections_N: Int64, object_N: Int64) -> SetsFit:
    """Fit thresholds to calibrated probabilities of validation objects.

    Raises
    ------
    ValueError
        If there are no objects.
    """
    if not len(label_N):
        raise ValueError("prediction sets need at least one validation object")
    score_N, starts = lac_scores(p_NC, label_N), _groups(detections_N)
    coverages = _coverage_of_one(score_N, detections_N, object_N, starts)
    kept_starts = starts if any(far for _, far in coverages.values()) else (0,)
    groups = [
        _thresholds(score_N[_in_group(detections_N, kept_starts, index)], kept_starts[index])
        for index in range(len(kept_starts))
    ]
    sets = PredictionSets(coverages=COVERAGES, default=DEFAULT, groups=tuple(groups), split="validation")
    return SetsFit(sets, {str(start): coverage for start, (coverage, _) in coverages.items()})


def _thresholds(score_N: NDArray[np.float64], start: int) -> SetThresholds:
    largest = tuple(min(conformal_quantile(score_N, 1 - coverage), 1.0) for coverage in COVERAGES)
    return SetThresholds(detections=start, largest=largest, views=len(score_N))


def _groups(detections_N: Int64) -> tuple[int, ...]:
    """Return the first number of detections of every group with enough rows; the first group starts at 0."""
    starts = [0]
    for start in DETECTION_GROUPS[1:]:
        before = np.count_nonzero((detections_N >= starts[-1]) & (detections_N < start))
        if before >= SMALLEST_GROUP and np.count_nonzero(detections_N >= start) >= SMALLEST_GROUP:
            starts.append(start)
    return tuple(starts)


def _in_group(detections_N: Int64, starts: tuple[int, ...], index: int) -> Bool:
    inside_N: Bool = np.searchsorted(starts, detections_N, side="right") - 1 == index
    return inside_N


def _coverage_of_one(
    score_N: NDArray[np.float64], detections_N: Int64, object_N: Int64, starts: tuple[int, ...]
) -> dict[int, tuple[float, bool]]:
    """Return the coverage in every group with one threshold from the other half, and whether it differs too much."""
    _, index_N = np.unique(object_N, return_inverse=True)
    half_N = np.random.default_rng(0).permutation(index_N.max() + 1)[index_N] % 2
    largest_N = np.array([conformal_quantile(score_N[half_N != half], 1 - DEFAULT) for half in (0, 1)])[half_N]
    covered_N = score_N <= largest_N
    coverages = {}
    for index, start in enumerate(starts):
        inside_N = _in_group(detections_N, starts, index)
        coverage = float(covered_N[inside_N].mean()) if inside_N.any() else float("nan")
        error = np.sqrt(DEFAULT * (1 - DEFAULT) / max(1, len(np.unique(object_N[inside_N]))))
        coverages[start] = coverage, bool(abs(coverage - DEFAULT) > max(TOLERANCE, 2 * error))
    return coverages


STRATA_BY_DETECTIONS: Final = (0, 3, 8, 20)


STRATA_BY_BANDS: Final = (0, 2, 3)


STRATA_BY_NOVELTY: Final = (0.0, 0.8)


SMALLEST_STRATUM: Final = 150  # light curves of a stratum


FLOOR: Final = 0.5


MARGIN: Final = 0.02  # added to the stated coverage, since strata vary between the parts of the split


class Strata(NamedTuple):
    """Quantities that define the stratum of a light curve, each [N], and the survey of its cadence."""

    detections: Int64
    bands: Int64
    novelty: Float64
    source: NDArray[np.str_]

    def take(self, rows: Bool) -> "Strata":
        """Return some of the light curves."""
        return Strata(self.detections[rows], self.bands[rows], self.novelty[rows], self.source[rows])


def fit_strata(
    p_NC: Float64, label_N: Int64, strata: Strata, measured_on: str, ratio_N: Float64 | None = None
) -> PredictionSets:
    """Fit thresholds to calibrated probabilities of validation light curves.

    Parameters
    ----------
    ratio_N : weight of each light curve for other class shares; None: equal weights.
    """
    score_N = lac_scores(p_NC, label_N)
    weight_N = _weights(strata.source) * (1.0 if ratio_N is None else ratio_N)
    groups = list(_strata_groups(score_N, weight_N, strata))
    return PredictionSets(
        coverages=COVERAGES,
        default=DEFAULT,
        floor=FLOOR,
        measured_on=measured_on,
        groups=tuple(groups),
        split="validation",
    )


def _weights(source_N: NDArray[np.str_]) -> Float64:
    _, index_N, count_S = np.unique(source_N, return_inverse=True, return_counts=True)
    weight: Float64 = 1.0 / np.sqrt(count_S[index_N])
    return weight


def _strata_groups(score_N: Float64, weight_N: Float64, strata: Strata) -> list[SetThresholds]:
    everything = np.ones(len(score_N), dtype=np.bool_)
    groups: list[SetThresholds] = []
    for detections, many_N in _cut(strata.detections, STRATA_BY_DETECTIONS, everything):
        of_detections = _largest(score_N, weight_N, many_N, _largest(score_N, weight_N, everything, None))
        for bands, inside_N in _cut(strata.bands, STRATA_BY_BANDS, many_N):
            of_bands = _largest(score_N, weight_N, inside_N, of_detections)
            for novelty, stratum_N in _cut(strata.novelty, STRATA_BY_NOVELTY, inside_N):
                largest = _largest(score_N, weight_N, stratum_N, of_bands)
                if novelty:  # more unusual light curves never get smaller sets
                    largest = tuple(max(pair) for pair in zip(largest, groups[-1].largest, strict=True))
                groups.append(
                    SetThresholds(
                        detections=detections,
                        bands=bands,
                        novelty=novelty,
                        largest=largest,
                        views=max(1, int(np.count_nonzero(stratum_N))),
                    )
                )
    return groups


def _cut(values_N: NDArray[Any], edges: Sequence[Any], within_N: Bool) -> list[tuple[Any, Bool]]:
    """Return each edge with a mask of the light curves from it up to the next edge."""
    ends = [*edges[1:], np.inf]
    return [(edge, within_N & (values_N >= edge) & (values_N < end)) for edge, end in zip(edges, ends, strict=True)]


def _largest(
    score_N: Float64, weight_N: Float64, rows_N: Bool, otherwise: tuple[float, ...] | None
) -> tuple[float, ...]:
    """Return the thresholds for all coverages; ``otherwise`` if there are too few light curves."""
    if otherwise is not None and np.count_nonzero(rows_N) < SMALLEST_STRATUM:
        return otherwise
    order = np.argsort(score_N[rows_N], kind="stable")
    score, weight = score_N[rows_N][order], weight_N[rows_N][order]
    reached = np.cumsum(weight) / weight.sum()
    targets = [min(coverage + MARGIN * (1 - coverage) / (1 - DEFAULT), 1.0) for coverage in COVERAGES]
    indices = [min(int(np.searchsorted(reached, share)), len(score) - 1) for share in targets]
    return tuple(max(FLOOR, float(score[index])) for index in indices)


def reweighted(p_NC: Float64, ratio_C: Float64) -> Float64:
    """Convert probabilities to other class shares; ``ratio_C`` is the ratio of the new shares to the assumed ones."""
    weighted = p_NC * ratio_C
    normalised: Float64 = weighted / np.maximum(weighted.sum(1, keepdims=True), 1e-300)
    return normalised


def coverage_and_size(
    sets: PredictionSets, p_NC: Float64, label_N: Int64, strata: Strata, weight_N: Float64 | None = None
) -> Mapping[str, float]:
    """Return coverage and mean size of the sets of light curves, at the default coverage."""
    weight = np.ones(len(label_N)) if weight_N is None else weight_N
    inside, size = np.zeros(len(label_N)), np.zeros(len(label_N))
    for row in range(len(label_N)):
        named = sets.named(
            p_NC[row],
            int(strata.detections[row]),
            bands=int(strata.bands[row]),
            novelty=float(strata.novelty[row]),
        )
        inside[row], size[row] = label_N[row] in named.classes, len(named.classes)
    total = max(float(weight.sum()), 1e-300)
    return {"coverage": float(inside @ weight / total), "mean_size": float(size @ weight / total)}
