"""Thresholds of prediction sets by stratum, fitted so that no survey is covered at another's expense.

The score is that of :class:`models.confidence.PredictionSets`. Strata are cut by detections, then bands, then novelty;
a stratum with too few light curves takes its threshold from the one around it. Within a stratum surveys weigh by the
root of their number: a threshold of all together would be that of the largest simulation.

Notable: no threshold is below a floor, so that a second class of some probability is always named. With other class
shares in mind every light curve counts by the ratio of shares of its class (weighted conformal prediction, Tibshirani
et al. 2019), and its probabilities are those under the shares.

Legend: N light curves, C classes, W coverages.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.confidence import PredictionSets, SetThresholds
from models.lightcurve import Bool, Float64, Int64
from training.score.confidence import COVERAGES, DEFAULT, lac_scores

DETECTIONS: Final = (0, 3, 8, 20)
BANDS: Final = (0, 2, 3)
NOVELTY: Final = (0.0, 0.8)
FEWEST: Final = 150  # light curves of a stratum
FLOOR: Final = 0.5
MARGIN: Final = 0.01  # asked for beyond the stated coverage: strata move between the split's parts


class Strata(NamedTuple):
    """Measures that tell a light curve's stratum, each [N], and the survey that it looks like."""

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
    ratio_N : how much each light curve counts, where other class shares are meant; None: all alike.
    """
    score_N = lac_scores(p_NC, label_N)
    weight_N = _weights(strata.source) * (1.0 if ratio_N is None else ratio_N)
    groups = list(_groups(score_N, weight_N, strata))
    return PredictionSets(
        coverages=COVERAGES,
        default=DEFAULT,
        floor=FLOOR,
        measured_on=measured_on,
        groups=tuple(groups),
        split="validation",
    )


def _weights(source_N: NDArray[np.str_]) -> Float64:
    _, place_N, count_S = np.unique(source_N, return_inverse=True, return_counts=True)
    weight: Float64 = 1.0 / np.sqrt(count_S[place_N])
    return weight


def _groups(score_N: Float64, weight_N: Float64, strata: Strata) -> list[SetThresholds]:
    everything = np.ones(len(score_N), dtype=np.bool_)
    found: list[SetThresholds] = []
    for detections, many_N in _cut(strata.detections, DETECTIONS, everything):
        of_detections = _largest(score_N, weight_N, many_N, _largest(score_N, weight_N, everything, None))
        for bands, inside_N in _cut(strata.bands, BANDS, many_N):
            of_bands = _largest(score_N, weight_N, inside_N, of_detections)
            for novelty, strange_N in _cut(strata.novelty, NOVELTY, inside_N):
                largest = _largest(score_N, weight_N, strange_N, of_bands)
                if novelty:  # what is stranger is never told more surely
                    largest = tuple(max(pair) for pair in zip(largest, found[-1].largest, strict=True))
                found.append(
                    SetThresholds(
                        detections=detections,
                        bands=bands,
                        novelty=novelty,
                        largest=largest,
                        views=max(1, int(np.count_nonzero(strange_N))),
                    )
                )
    return found


def _cut(values_N: NDArray[Any], edges: Sequence[Any], within_N: Bool) -> list[tuple[Any, Bool]]:
    """Edges and the light curves from each edge up to the next."""
    ends = [*edges[1:], np.inf]
    return [(edge, within_N & (values_N >= edge) & (values_N < end)) for edge, end in zip(edges, ends, strict=True)]


def _largest(
    score_N: Float64, weight_N: Float64, rows_N: Bool, otherwise: tuple[float, ...] | None
) -> tuple[float, ...]:
    """Thresholds for all coverages; ``otherwise`` where there are too few light curves."""
    if otherwise is not None and np.count_nonzero(rows_N) < FEWEST:
        return otherwise
    order = np.argsort(score_N[rows_N], kind="stable")
    score, weight = score_N[rows_N][order], weight_N[rows_N][order]
    reached = np.cumsum(weight) / weight.sum()
    wanted = [min(coverage + MARGIN * (1 - coverage) / (1 - DEFAULT), 1.0) for coverage in COVERAGES]
    places = [min(int(np.searchsorted(reached, share)), len(score) - 1) for share in wanted]
    return tuple(max(FLOOR, float(score[place])) for place in places)


def reweighted(p_NC: Float64, ratio_C: Float64) -> Float64:
    """Probabilities under other class shares, of which ``ratio_C`` is the ratio to those assumed."""
    weighed = p_NC * ratio_C
    told: Float64 = weighed / np.maximum(weighed.sum(1, keepdims=True), 1e-300)
    return told


def measure(
    sets: PredictionSets, p_NC: Float64, label_N: Int64, strata: Strata, weight_N: Float64 | None = None
) -> Mapping[str, float]:
    """Coverage and mean size of the sets of light curves, at the default coverage."""
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
