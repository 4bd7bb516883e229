"""Prediction sets with stated coverage.

**Sets** by split conformal prediction, for all objects or for every class. A threshold q is the ceil((n + 1)(1 -
alpha))-th smallest nonconformity score of n calibration objects; a class is in the set of an object if its score does
not exceed q. The true class is then in the set with probability at least 1 - alpha, for any network, *for objects with
the distribution of the calibration objects*. Thresholds fitted to complete light curves are not valid for alerts with
two detections, so fit them to light curves like those of the requests.

The score is 1 - p of the class (Sadinle et al. 2019), which gives the smallest sets; a set is empty if no class is
probable enough. With ``by_class`` each class has a threshold from its own calibration objects, which guarantees the
coverage of rare classes, too; a class with too few of them (fewer than 1 / alpha - 1) is in every set.

**The sets of a bundle** (:func:`fit_sets`) are fitted to validation light curves with the score of
:class:`models.posterior.PredictionSets`: 1 - p of the true class, 0 if it is the most probable one. Thresholds may
differ between strata by detections, then bands, then novelty (:class:`SetRules`); a stratum with too few light curves
uses the threshold of the enclosing one. Within a stratum surveys are weighted by the square root of their number, so
that the largest simulation does not dominate. For other class shares every light curve is weighted by the ratio of
shares of its class (weighted conformal prediction, Tibshirani et al. 2019), and its probabilities are converted to
those shares.

- A bundle of one data set has one threshold (:func:`fit_sets_by_detections`), which holds on average over all light
  curves, so coverage may be too low where the network is least accurate. To test this, the threshold of one half of the
  objects is applied to the other half. If the coverage for some number of detections differs from the stated one by
  more than ``TOLERANCE`` (and twice the standard error), every number of detections gets its own threshold.
- A bundle of many surveys has thresholds for all strata (:data:`BY_STRATUM`), so that it has the stated coverage for
  each survey.

Legend: B objects, N light curves, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.lightcurve import Bool, Float64, Int64
from nightjar_alerts.models.posterior import PredictionSets, SetThresholds
from nightjar_alerts.training.confidence.calibration import DETECTION_GROUPS
from nightjar_alerts.training.metrics import Float


def fit_conformal(probabilities_BC: Float, label_B: Int64, *, alpha: float = 0.1, by_class: bool = False) -> Float64:
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


def sets_of(probabilities_BC: Float, threshold_C: Float64) -> Bool:
    """Return whether each class is in the set of each object, bool (B, C)."""
    inside_BC: Bool = 1.0 - probabilities_BC.astype(np.float64) <= threshold_C
    return inside_BC


def conformal_quantile(score_B: Float64, alpha: float) -> float:
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


def class_coverage(inside_BC: Bool, label_B: Int64) -> Float64:
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


class Strata(NamedTuple):
    """Quantities that define the stratum of a light curve, each [N], and the survey of its cadence."""

    detections: Int64
    bands: Int64
    novelty: Float64
    source: NDArray[np.str_]

    def take(self, rows: Bool) -> "Strata":
        """Return some of the light curves."""
        return Strata(self.detections[rows], self.bands[rows], self.novelty[rows], self.source[rows])


@dataclass(frozen=True, slots=True)
class SetRules:
    """How thresholds are fitted.

    Attributes
    ----------
    detections, bands, novelty : lower edges of the strata. smallest : minimum number of light curves of a stratum.
    floor : smallest threshold, so that a second class of some probability is always included.
    margin : added to the stated coverage of 0.9, since strata vary between the parts of the split. None: thresholds are
        those of split conformal prediction, which are exact for any number of light curves of equal weight.
    """

    detections: tuple[int, ...] = (0,)
    bands: tuple[int, ...] = (0,)
    novelty: tuple[float, ...] = (0.0,)
    smallest: int = 0
    floor: float = 0.0
    margin: float | None = None


BY_STRATUM: Final = SetRules(
    detections=(0, 3, 8, 20), bands=(0, 2, 3), novelty=(0.0, 0.8), smallest=150, floor=0.5, margin=0.02
)
"""Rules of bundles trained on many surveys."""


def lac_scores(p_NC: Float, label_N: Int64) -> Float64:
    """Return 1 - p of the true class, 0 if it is the most probable class; shape (N,)."""
    truth_N = p_NC[np.arange(len(label_N)), label_N].astype(np.float64)
    return np.where(p_NC.argmax(1) == label_N, 0.0, 1.0 - truth_N)


def fit_sets(
    p_NC: Float,
    label_N: Int64,
    strata: Strata,
    rules: SetRules,
    *,
    ratio_N: Float64 | None = None,
    measured_on: str | None = None,
) -> PredictionSets:
    """Fit thresholds to calibrated probabilities of validation light curves.

    Parameters
    ----------
    ratio_N : weight of each light curve for other class shares; None: equal weights.
    measured_on : description of the light curves for the manifest.

    Raises
    ------
    ValueError
        If there are no light curves.
    """
    if not len(label_N):
        raise ValueError("prediction sets need at least one validation object")
    weight_N = _weights(strata.source) * (1.0 if ratio_N is None else ratio_N)
    described = {} if measured_on is None else {"measured_on": measured_on}
    return PredictionSets(
        coverages=COVERAGES,
        default=DEFAULT,
        floor=rules.floor,
        groups=tuple(_groups(lac_scores(p_NC, label_N), weight_N, strata, rules)),
        split="validation",
        **described,
    )


def fit_sets_by_detections(p_NC: Float, label_N: Int64, detections_N: Int64, object_N: Int64) -> SetsFit:
    """Fit one threshold, or one for each number of detections where the coverage of one differs too much.

    Raises the errors of :func:`fit_sets`.
    """
    nothing_N = np.zeros(len(label_N))
    strata = Strata(detections_N, nothing_N.astype(np.int64), nothing_N, np.full(len(label_N), ""))
    if not len(label_N):
        return SetsFit(fit_sets(p_NC, label_N, strata, SetRules()), {})  # raises
    starts = _starts(detections_N)
    coverages = _coverage_of_one(lac_scores(p_NC, label_N), detections_N, object_N, starts)
    rules = SetRules(detections=starts if any(far for _, far in coverages.values()) else (0,))
    sets = fit_sets(p_NC, label_N, strata, rules)
    return SetsFit(sets, {str(start): coverage for start, (coverage, _) in coverages.items()})


def _starts(detections_N: Int64) -> tuple[int, ...]:
    """Return the first number of detections of every group with enough rows; the first group starts at 0."""
    starts = [0]
    for start in DETECTION_GROUPS[1:]:
        before = np.count_nonzero((detections_N >= starts[-1]) & (detections_N < start))
        if before >= SMALLEST_GROUP and np.count_nonzero(detections_N >= start) >= SMALLEST_GROUP:
            starts.append(start)
    return tuple(starts)


def _coverage_of_one(
    score_N: Float64, detections_N: Int64, object_N: Int64, starts: tuple[int, ...]
) -> dict[int, tuple[float, bool]]:
    """Return the coverage in every group with one threshold from the other half, and whether it differs too much."""
    _, index_N = np.unique(object_N, return_inverse=True)
    half_N = np.random.default_rng(0).permutation(index_N.max() + 1)[index_N] % 2
    largest_N = np.array([conformal_quantile(score_N[half_N != half], 1 - DEFAULT) for half in (0, 1)])[half_N]
    covered_N = score_N <= largest_N
    coverages = {}
    for start, inside_N in _cut(detections_N, starts, np.ones(len(score_N), dtype=np.bool_)):
        coverage = float(covered_N[inside_N].mean()) if inside_N.any() else float("nan")
        error = np.sqrt(DEFAULT * (1 - DEFAULT) / max(1, len(np.unique(object_N[inside_N]))))
        coverages[start] = coverage, bool(abs(coverage - DEFAULT) > max(TOLERANCE, 2 * error))
    return coverages


def _weights(source_N: NDArray[np.str_]) -> Float64:
    _, index_N, count_S = np.unique(source_N, return_inverse=True, return_counts=True)
    weight: Float64 = 1.0 / np.sqrt(count_S[index_N])
    return weight


def _groups(score_N: Float64, weight_N: Float64, strata: Strata, rules: SetRules) -> list[SetThresholds]:
    def largest(rows_N: Bool, otherwise: tuple[float, ...] | None) -> tuple[float, ...]:
        if otherwise is not None and np.count_nonzero(rows_N) < rules.smallest:
            return otherwise
        return _largest(score_N[rows_N], weight_N[rows_N], rules)

    everything = np.ones(len(score_N), dtype=np.bool_)
    groups: list[SetThresholds] = []
    for detections, many_N in _cut(strata.detections, rules.detections, everything):
        of_detections = largest(many_N, largest(everything, None))
        for bands, inside_N in _cut(strata.bands, rules.bands, many_N):
            of_bands = largest(inside_N, of_detections)
            for novelty, stratum_N in _cut(strata.novelty, rules.novelty, inside_N):
                thresholds = largest(stratum_N, of_bands)
                if novelty:  # more unusual light curves never get smaller sets
                    thresholds = tuple(max(pair) for pair in zip(thresholds, groups[-1].largest, strict=True))
                groups.append(
                    SetThresholds(
                        detections=detections,
                        bands=bands,
                        novelty=novelty,
                        largest=thresholds,
                        views=max(1, int(np.count_nonzero(stratum_N))),
                    )
                )
    return groups


def _cut(values_N: NDArray[Any], edges: Sequence[Any], within_N: Bool) -> list[tuple[Any, Bool]]:
    """Return each edge with a mask of the light curves from it up to the next edge."""
    ends = [*edges[1:], np.inf]
    return [(edge, within_N & (values_N >= edge) & (values_N < end)) for edge, end in zip(edges, ends, strict=True)]


def _largest(score_N: Float64, weight_N: Float64, rules: SetRules) -> tuple[float, ...]:
    """Return the thresholds of one stratum for all coverages."""
    if rules.margin is None:
        return tuple(max(rules.floor, min(conformal_quantile(score_N, 1 - coverage), 1.0)) for coverage in COVERAGES)
    order = np.argsort(score_N, kind="stable")
    score, weight = score_N[order], weight_N[order]
    reached = np.cumsum(weight) / weight.sum()
    targets = [min(coverage + rules.margin * (1 - coverage) / (1 - DEFAULT), 1.0) for coverage in COVERAGES]
    indices = [min(int(np.searchsorted(reached, share)), len(score) - 1) for share in targets]
    return tuple(max(rules.floor, float(score[index])) for index in indices)


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
