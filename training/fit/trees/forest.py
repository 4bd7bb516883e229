"""Boosted trees on statistics and embeddings, for an ensemble with a network in one graph.

Trees need fewer real objects than networks. LightGBM (Ke et al. 2017) fits them, and
``models.networks.parts.trees`` evaluates them from tables. Their weight in the ensemble is fitted on validation light
curves, or equal to that of the network.

Notable: LightGBM compares in double precision, a graph in single precision. Thresholds are rounded down to single
precision, so all single-precision numbers take the same path. torch and onnxruntime round differently, and LightGBM
finds thresholds between 1 and the number before it, and next to zero: it learns from rounded features
(:data:`DECIMALS`).

Legend: N light curves, F features, M nodes and leaves, T trees, C classes.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import lightgbm
import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from nightjar_alerts.models.bundle import MODEL
from nightjar_alerts.models.lightcurve import Float32, Float64, Int64
from nightjar_alerts.models.networks.parts.trees import BoostedTrees, Forest
from nightjar_alerts.training.data.drawn import classes_of
from nightjar_alerts.training.fit.heads import read_part
from nightjar_alerts.training.fit.trees.parameters import SURVEYS, SURVEYS_ROUNDS
from nightjar_alerts.training.metrics import main_scores, softmax

BATCH_ROWS: Final = 512
DECIMALS: Final = 4
"""Digits of the features that trees learn from. Features are of order one, and rounding errors below 1e-5."""


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
    """Boost trees on features, NaN if missing, optionally starting from the logits ``start_NC``."""
    data = lightgbm.Dataset(value_NF, label_N, weight=weight_N, init_score=start_NC)
    parameters = {**parameters, "seed": seed, "boost_from_average": start_NC is None}
    return lightgbm.train(parameters, data, num_boost_round=rounds)


def fit_forest(
    value_NF: Float32,
    label_N: Int64,
    classes: int,
    *,
    seed: int,
    rounds: int = SURVEYS_ROUNDS,
    weight_N: Float32 | None = None,
    start: Forest | None = None,
    **changes: Any,
) -> Forest:
    """Fit boosted trees to features, NaN if missing; ``changes`` are parameters of LightGBM.

    With ``start``, boosting continues from that forest, and the result has the trees of both.
    """
    # With few rows the default minimum would allow no split.
    min_data = min(SURVEYS["min_data_in_leaf"], max(1, len(label_N) // 40))
    parameters = {**SURVEYS, "min_data_in_leaf": min_data, **changes, "num_class": classes}
    start_NC = None if start is None else tree_logits(start, value_NF)
    rounded_NF = np.round(value_NF, DECIMALS)
    booster = boost(rounded_NF, label_N, parameters, seed=seed, rounds=rounds, weight_N=weight_N, start_NC=start_NC)
    forest = forest_of(booster, value_NF.shape[1], classes)
    forest = forest._replace(threshold_M=_away_from_zero(forest.threshold_M))
    return forest if start is None else _concatenated(start, forest)


def _concatenated(first: Forest, second: Forest) -> Forest:
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
    """Return the trees of the first ``rounds`` of a bundle's graph; ``numbers`` is the number of features.

    Raises
    ------
    ValueError
        If the graph has no trees.
    """
    forest = forest_in(onnx.load(bundle / MODEL), numbers, rounds)
    if forest is None:
        raise ValueError(f"{bundle} has no trees")
    return forest


def forest_in(model: onnx.ModelProto, numbers: int, rounds: int | None = None) -> Forest | None:
    """Read the trees of a graph, all of them or those of the first ``rounds``; None if it has none.

    Parameters
    ----------
    numbers : minimum number of features.
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
        queue, free = deque([(root, False, 0)]), len(rows) + 1
        while queue:
            node, is_leaf, depth = queue.popleft()
            deepest = max(deepest, depth)
            if is_leaf:
                rows.append((0, np.inf, len(rows), float(value[node])))
                continue
            look = tables["nodes_featureids"][node]
            look += 0 if tables["nodes_missing_value_tracks_true"][node] else numbers
            rows.append((look, float(split[node]), free, 0.0))
            for side in ("true", "false"):
                child, leaf = (tables[f"nodes_{side}{what}"][node] for what in ("nodeids", "leafs"))
                queue.append((child, bool(leaf), depth + 1))
            free += 2
    return _forest(rows, roots, numbers, tables["n_targets"], deepest)


def forest_of(booster: lightgbm.Booster, numbers: int, classes: int) -> Forest:
    """Convert the trees of LightGBM to tables; a tree without a split gets one with two equal leaves."""
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
        depth, table = _table_of_tree(top, len(rows), numbers)
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


def _table_of_tree(top: dict[str, Any], start: int, numbers: int) -> tuple[int, list[tuple[int, float, int, float]]]:
    """Return depth and rows of one tree, with siblings next to each other."""
    rows: list[tuple[int, float, int, float]] = []
    queue, free, deepest = deque([(top, 0)]), start + 1, 0
    while queue:
        node, depth = queue.popleft()
        deepest = max(deepest, depth)
        if "left_child" not in node:
            rows.append((0, np.inf, start + len(rows), node["leaf_value"]))
            continue
        look = node["split_feature"] + (0 if _missing_goes_left(node) else numbers)
        rows.append((look, node["threshold"], free, 0.0))
        queue += [(node["left_child"], depth + 1), (node["right_child"], depth + 1)]
        free += 2
    return deepest, rows


def _missing_goes_left(node: dict[str, Any]) -> bool:
    """Return whether a missing value goes left; LightGBM treats it as zero if training had no missing values."""
    return bool(node["default_left"]) if node["missing_type"] == "NaN" else node["threshold"] >= 0


def _away_from_zero(threshold_M: Float32) -> Float32:
    """Move the thresholds at 1e-35 and its negative, which LightGBM sets around zero, halfway to the next number."""
    half = np.float32(0.5 * 10.0**-DECIMALS)
    return np.where(np.abs(threshold_M) < half, np.copysign(half, threshold_M), threshold_M)


def _rounded_down(value_M: Float64) -> Float32:
    """Round down to single precision."""
    with np.errstate(over="ignore"):
        nearest_M = value_M.astype(np.float32)
    return np.where(nearest_M > value_M, np.nextafter(nearest_M, np.float32(-np.inf)), nearest_M)


@torch.inference_mode()
def tree_logits(forest: Forest, value_NF: Float32) -> Float32:
    """Return the logits of the trees, [N, C]."""
    trees, rows = BoostedTrees(forest), torch.from_numpy(value_NF)
    return np.concatenate([trees(rows[at : at + BATCH_ROWS]).numpy() for at in range(0, len(rows), BATCH_ROWS)])


def save_forest(forest: Forest, path: Path) -> None:
    """Write the tables to an npz without pickles."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, allow_pickle=False, **{name: np.asarray(part) for name, part in forest._asdict().items()})


def read_forest(path: Path) -> Forest:
    """Read a file of :func:`save_forest`."""
    with np.load(path, allow_pickle=False) as arrays:
        tables: dict[str, NDArray[Any]] = {name: arrays[name] for name in Forest._fields}
    return Forest(**{name: table if table.ndim else int(table) for name, table in tables.items()})  # type: ignore[arg-type]  # fields are arrays or numbers, by name


def fit_bundled_trees(
    folders: Sequence[Path],
    out: Path,
    *,
    seed: int,
    rounds: int,
    statistics: bool = False,
    start: tuple[Path, int] | None = None,
) -> dict[str, float]:
    """Fit boosted trees to the light curves of folders, write them and return the validation scores.

    Parameters
    ----------
    statistics : use statistics only, for a backbone that was trained on the same light curves and has memorised them.
    start : a bundle to continue boosting from, and the number of its rounds to keep.

    Raises
    ------
    ValueError
        If the bundle has no trees.
    """
    (valid_inputs, validation), (train_inputs, training) = (
        read_part(folders, part) for part in ("validation", "train")
    )
    classes = len(classes_of(folders[0]))
    if statistics:
        constant = np.zeros_like(train_inputs.embedding)  # trees ignore constant features
        train_inputs = replace(train_inputs, embedding=constant)
    columns_NF = train_inputs.columns
    first = None if start is None else bundled_forest(start[0], columns_NF.shape[1], start[1])
    forest = fit_forest(columns_NF, training.label, classes, seed=seed, rounds=rounds, start=first)
    save_forest(forest, out)
    return main_scores(softmax(tree_logits(forest, valid_inputs.columns)), validation.label)
