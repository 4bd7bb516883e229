"""The ensemble of a network and boosted trees: their weights, and the logits of both together.

Legend: N light curves, C classes.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch.nn.functional import cross_entropy, log_softmax

from nightjar_alerts.models.bundle import Ensemble
from nightjar_alerts.models.lightcurve import Bool, Float32, Int64
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.networks.parts.trees import Forest
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.confidence.calibration import ServedSample
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.fit.heads import HeadInputs
from nightjar_alerts.training.fit.trees.forest import tree_logits
from nightjar_alerts.training.metrics import main_scores, softmax

_REDSHIFT: Final = METADATA_COLUMNS.index("z_final")
RIDGE: Final = 1e-4  # penalty on the coefficients of the weight, which keeps it away from 0 and 1


def equal_weights(forest: Forest, length_N: Int64) -> Ensemble:
    """Weigh trees and network equally."""
    return Ensemble(
        trees=len(forest.root_T),
        nodes=len(forest.left_M),
        depth=forest.depth,
        coefficients=(0.0, 0.0, 0.0),
        lengths=(int(length_N.min()), int(length_N.max())),
        split="none",
    )


def fit_ensemble(
    forest: Forest, trees_NC: Float32, network_NC: Float32, label_N: Int64, length_N: Int64, has_redshift_N: Bool
) -> Ensemble:
    """Fit the weights of trees and network by the log loss of the ensemble, together with a temperature.

    Parameters
    ----------
    trees_NC, network_NC : logits of light curves that neither was fitted to.
    """
    log_length_N = torch.from_numpy(np.log(length_N.astype(np.float64)))
    redshift_known_N, label = torch.from_numpy(has_redshift_N.astype(np.float64)), torch.from_numpy(label_N)
    log_p_network_NC, log_p_trees_NC = (
        log_softmax(torch.from_numpy(logits_NC).double(), -1) for logits_NC in (network_NC, trees_NC)
    )
    fitted = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([fitted], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        weight_N = (fitted[0] + fitted[1] * log_length_N + fitted[2] * redshift_known_N).sigmoid()
        both_NC = log_p_network_NC + weight_N[:, None] * (log_p_trees_NC - log_p_network_NC)
        value = cross_entropy(both_NC * fitted[3].exp(), label) + RIDGE * fitted[:3].square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    constant, per_length, redshift, _ = fitted.tolist()
    update = {"coefficients": (constant, per_length, redshift), "split": "validation"}
    return equal_weights(forest, length_N).model_copy(update=update)


def pooled(
    ensemble: Ensemble, trees_NC: Float32, network_NC: Float32, length_N: Int64, has_redshift_N: Bool
) -> Float32:
    """Return the logits of the ensemble, [N, C]."""
    weight_N1 = ensemble.weights(length_N, has_redshift_N)[:, None]
    log_p_network_NC, log_p_trees_NC = (
        log_softmax(torch.from_numpy(logits_NC).double(), -1).numpy() for logits_NC in (network_NC, trees_NC)
    )
    both_NC: Float32 = (log_p_network_NC + weight_N1 * (log_p_trees_NC - log_p_network_NC)).astype(np.float32)
    return both_NC


def combine_with_trees(
    forest: Forest, inputs: HeadInputs, light_curves: Sample, sample: ServedSample, classes: Sequence[str]
) -> tuple[ServedSample, Ensemble, dict[str, Any]]:
    """Return the sample as trees and network answer together, their weights, and the scores of each and of both.

    Scores are cross-fitted: each half uses the weights fitted to the other half. For other classes than the 20 the
    weights are equal: no weights fitted to a few hundred supernovae scored better.
    """
    redshift_N, trees_NC = np.isfinite(light_curves.metadata[:, _REDSHIFT]), tree_logits(forest, inputs.columns)
    columns = trees_NC, sample.logits_NC, sample.length_N, redshift_N
    half_N = np.random.default_rng(0).permutation(int(sample.object_N.max()) + 1)[sample.object_N] % 2
    crossed_NC = np.zeros_like(trees_NC)

    def weights(rows_N: Any) -> Ensemble:
        if tuple(classes) != ELASTICC.names:
            return equal_weights(forest, sample.length_N)
        trees, network, length, has_redshift = (column[rows_N] for column in columns)
        return fit_ensemble(forest, trees, network, sample.label_N[rows_N], length, has_redshift)

    for half in (0, 1):
        mine = half_N == half
        crossed_NC[mine] = pooled(weights(~mine), *(column[mine] for column in columns))
    ensemble = weights(np.ones(len(half_N), np.bool_))
    each = {"network": sample.logits_NC, "trees": trees_NC, "both": crossed_NC}
    scores_by_model = {name: main_scores(softmax(logits_NC), sample.label_N) for name, logits_NC in each.items()}
    return sample._replace(logits_NC=pooled(ensemble, *columns)), ensemble, {"network_and_trees": scores_by_model}
