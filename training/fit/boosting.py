"""Boosted trees on statistics and embeddings (`training.sky`), for an ensemble with a network in one graph.

With few real objects trees learn better than networks. LightGBM (Ke et al. 2017) fits them, and
``models.networks.parts.trees`` evaluates them from tables. Their weight in the ensemble is fitted on validation light
curves, or equal to that of the network.

Notable: LightGBM compares in double precision, a graph in single; thresholds are rounded down to single
precision, which splits all single-precision numbers in the same way.

Legend: N light curves, F numbers of each, M nodes and leaves, T trees, C classes.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import lightgbm
import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch.nn.functional import cross_entropy, log_softmax

from nightjar_alerts.models.bundle import MODEL, Ensemble
from nightjar_alerts.models.lightcurve import Bool, Float32, Float64, Int64
from nightjar_alerts.models.networks.parts.trees import BoostedTrees, Forest

ROUNDS: Final = 140
PARAMETERS: Final[dict[str, Any]] = {
    "objective": "multiclass", "learning_rate": 0.08, "num_leaves": 24, "max_depth": 8, "min_data_in_leaf": 60,
    "feature_fraction": 0.15, "bagging_fraction": 0.7, "bagging_freq": 1, "lambda_l2": 2.0, "max_bin": 63,
    "num_threads": 1, "verbosity": -1, "deterministic": True, "force_col_wise": True,
}  # fmt: skip
BATCH_ROWS: Final = 512  # rows at a time
RIDGE: Final = 1e-4  # on the coefficients of the weight: a weight of 0 or 1 is never certain


def boost(
    value_NF: Float32,
    label_N: Int64,
    parameters: Mapping[str, Any],
    *,
    seed: int,
    rounds: int,
    weight_N: Float32 | Float64 | None = None,
    start_NC: Float32 | None = None,
) -> lightgbm.Booster:
    """Boost trees on numbers, NaN where one is missing; from the logits ``start_NC`` on where there are some."""
    data = lightgbm.Dataset(value_NF, label_N, weight=weight_N, init_score=start_NC)
    parameters = {**parameters, "seed": seed, "boost_from_average": start_NC is None}
    return lightgbm.train(parameters, data, num_boost_round=rounds)


def fit_forest(
    value_NF: Float32,
    label_N: Int64,
    classes: int,
    *,
    seed: int,
    rounds: int = ROUNDS,
    weight_N: Float32 | None = None,
    start: Forest | None = None,
    **changes: Any,
) -> Forest:
    """Fit boosted trees to numbers, NaN where one is missing; ``changes`` are parameters of LightGBM.

    With ``start`` the rounds come after those of that forest, and both together come back.
    """
    fewest = min(PARAMETERS["min_data_in_leaf"], max(1, len(label_N) // 40))  # few rows would make no tree at all
    parameters = {**PARAMETERS, "min_data_in_leaf": fewest, **changes, "num_class": classes}
    start_NC = None if start is None else tree_logits(start, value_NF)
    booster = boost(value_NF, label_N, parameters, seed=seed, rounds=rounds, weight_N=weight_N, start_NC=start_NC)
    forest = forest_of(booster, value_NF.shape[1], classes)
    return forest if start is None else _one_after_the_other(start, forest)


def _one_after_the_other(first: Forest, second: Forest) -> Forest:
    nodes = len(first.left_M)
    return Forest(
        np.concatenate([first.look_M, second.look_M]),
        np.concatenate([first.threshold_M, second.threshold_M]),
        np.concatenate([first.left_M, second.left_M + nodes]),
        np.concatenate([first.value_M, second.value_M]),
        np.concatenate([first.root_T, second.root_T + nodes]),
        first.numbers,
        first.classes,
        max(first.depth, second.depth),
    )


def bundled_forest(bundle: Path, numbers: int, rounds: int) -> Forest:
    """Trees of a bundle's graph, the first ``rounds`` of boosting; ``numbers`` is the number of features.

    Raises
    ------
    ValueError
        When the graph has no trees.
    """
    forest = forest_in(onnx.load(bundle / MODEL), numbers, rounds)
    if forest is None:
        raise ValueError(f"{bundle} has no trees")
    return forest


def forest_in(model: onnx.ModelProto, numbers: int, rounds: int | None = None) -> Forest | None:
    """Read the trees of a graph, all of them or the first rounds of boosting; None where it has none.

    Parameters
    ----------
    numbers : how many features there are, at least.
    """
    nodes = [node for node in model.graph.node if node.op_type == "TreeEnsemble"]
    if not nodes:
        return None
    tables = {attribute.name: helper.get_attribute_value(attribute) for attribute in nodes[0].attribute}
    split, value = (numpy_helper.to_array(tables[name]) for name in ("nodes_splits", "leaf_weights"))
    numbers = max(numbers, max(tables["nodes_featureids"]) + 1)
    rows: list[tuple[int, float, int, float]] = []  # look, threshold, left, value
    roots, deepest = [], 1
    for root in tables["tree_roots"][: None if rounds is None else rounds * tables["n_targets"]]:
        roots.append(len(rows))
        waiting, free = deque([(root, False, 0)]), len(rows) + 1
        while waiting:
            node, is_leaf, depth = waiting.popleft()
            deepest = max(deepest, depth)
            if is_leaf:
                rows.append((0, np.inf, len(rows), float(value[node])))
                continue
            look = tables["nodes_featureids"][node]
            look += 0 if tables["nodes_missing_value_tracks_true"][node] else numbers
            rows.append((look, float(split[node]), free, 0.0))
            for side in ("true", "false"):
                child, leaf = (tables[f"nodes_{side}{what}"][node] for what in ("nodeids", "leafs"))
                waiting.append((child, bool(leaf), depth + 1))
            free += 2
    return _forest(rows, roots, numbers, tables["n_targets"], deepest)


def forest_of(booster: lightgbm.Booster, numbers: int, classes: int) -> Forest:
    """Lay the trees of LightGBM into tables; a tree without a comparison gets one that decides nothing."""
    rows: list[tuple[int, float, int, float]] = []  # look, threshold, left, value
    roots, deepest = [], 1
    for tree in booster.dump_model()["tree_info"]:
        roots.append(len(rows))
        top = tree["tree_structure"]
        if "left_child" not in top:
            leaf = {"leaf_value": top["leaf_value"]}
            top = {
                "split_feature": 0,
                "threshold": 0.0,
                "missing_type": "None",
                "left_child": leaf,
                "right_child": leaf,
            }
        depth, table = _laid(top, len(rows), numbers)
        rows += table
        deepest = max(deepest, depth)
    return _forest(rows, roots, numbers, classes, deepest)


def _forest(
    rows: Sequence[tuple[int, float, int, float]], roots: Sequence[int], numbers: int, classes: int, depth: int
) -> Forest:
    look, threshold, left, value = zip(*rows, strict=True)
    return Forest(
        np.array(look, dtype=np.int64),
        _rounded_down(np.array(threshold)),
        np.array(left, dtype=np.int64),
        np.array(value, dtype=np.float32),
        np.array(roots, dtype=np.int64),
        numbers,
        classes,
        depth,
    )


def _laid(top: dict[str, Any], start: int, numbers: int) -> tuple[int, list[tuple[int, float, int, float]]]:
    """Depth and rows of one tree, siblings side by side."""
    rows: list[tuple[int, float, int, float]] = []
    waiting, free, deepest = deque([(top, 0)]), start + 1, 0
    while waiting:
        node, depth = waiting.popleft()
        deepest = max(deepest, depth)
        if "left_child" not in node:
            rows.append((0, np.inf, start + len(rows), node["leaf_value"]))
            continue
        look = node["split_feature"] + (0 if _missing_goes_left(node) else numbers)
        rows.append((look, node["threshold"], free, 0.0))
        waiting += [(node["left_child"], depth + 1), (node["right_child"], depth + 1)]
        free += 2
    return deepest, rows


def _missing_goes_left(node: dict[str, Any]) -> bool:
    """Return whether LightGBM sends a missing number to the left; without missing numbers in training it means zero."""
    return bool(node["default_left"]) if node["missing_type"] == "NaN" else node["threshold"] >= 0


def _rounded_down(value_M: Float64) -> Float32:
    """Round to the largest number of single precision that is no larger."""
    with np.errstate(over="ignore"):
        nearest_M = value_M.astype(np.float32)
    return np.where(nearest_M > value_M, np.nextafter(nearest_M, np.float32(-np.inf)), nearest_M)


@torch.inference_mode()
def tree_logits(forest: Forest, value_NF: Float32) -> Float32:
    """Return the scores of trees, [N, C]."""
    trees, rows = BoostedTrees(forest), torch.from_numpy(value_NF)
    return np.concatenate([trees(rows[at : at + BATCH_ROWS]).numpy() for at in range(0, len(rows), BATCH_ROWS)])


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
    """Weigh trees and network so that the log loss of both together is smallest; a temperature takes part in the fit.

    Parameters
    ----------
    trees_NC, network_NC : logits of light curves that neither was fitted to.
    """
    log_length_N = torch.from_numpy(np.log(length_N.astype(np.float64)))
    redshift_known_N, label = torch.from_numpy(has_redshift_N.astype(np.float64)), torch.from_numpy(label_N)
    one_NC, other_NC = (log_softmax(torch.from_numpy(each_NC).double(), -1) for each_NC in (network_NC, trees_NC))
    fitted = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([fitted], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        weight_N = (fitted[0] + fitted[1] * log_length_N + fitted[2] * redshift_known_N).sigmoid()
        both_NC = one_NC + weight_N[:, None] * (other_NC - one_NC)
        value = cross_entropy(both_NC * fitted[3].exp(), label) + RIDGE * fitted[:3].square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    constant, per_length, redshift, _ = fitted.tolist()
    update = {"coefficients": (constant, per_length, redshift), "split": "validation"}
    return equal_weights(forest, length_N).model_copy(update=update)


def pooled(
    ensemble: Ensemble, trees_NC: Float32, network_NC: Float32, length_N: Int64, has_redshift_N: Bool
) -> Float32:
    """Logits of both together, [N, C]."""
    weight_N1 = ensemble.weights(length_N, has_redshift_N)[:, None]
    one_NC, other_NC = (log_softmax(torch.from_numpy(each).double(), -1).numpy() for each in (network_NC, trees_NC))
    together_NC: Float32 = (one_NC + weight_N1 * (other_NC - one_NC)).astype(np.float32)
    return together_NC


def save_forest(forest: Forest, path: Path) -> None:
    """Write the tables to an npz without pickles."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, allow_pickle=False, **{name: np.asarray(part) for name, part in forest._asdict().items()})


def read_forest(path: Path) -> Forest:
    """Read what :func:`save_forest` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        tables: dict[str, NDArray[Any]] = {name: arrays[name] for name in Forest._fields}
    return Forest(**{name: table if table.ndim else int(table) for name, table in tables.items()})  # type: ignore[arg-type]  # fields are arrays or numbers, by name
