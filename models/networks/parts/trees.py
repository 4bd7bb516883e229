"""Boosted trees inside a graph: each row reaches one leaf of every tree, and the leaf values are summed by class.

Notable:

- the trees have two implementations. During export the module is a custom operator, which ``training.export.graph``
  writes as one ``TreeEnsemble``; onnxruntime supports that operator on the CPU only. The other implementation uses
  gathers and comparisons, one tree level at a time (tree traversal of Nakandala et al. 2020), and runs in torch and in
  graphs for CUDA;
- a row goes to the left child if its feature is at most the threshold, both in single precision;
- a missing feature (NaN) goes to the default child learned in training. The second implementation avoids NaN: it
  concatenates two copies of the row, with missing features replaced by minus infinity (left) and infinity (right).

Sources: gradient boosting (Friedman 2001), fitted by LightGBM (Ke et al. 2017); ``TreeEnsemble`` of ONNX-ML, opset 5.

Legend: B rows, F features of a row, M nodes and leaves of all trees, T trees, C classes.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


class Forest(NamedTuple):
    """Trees as arrays of nodes. The nodes of a tree are adjacent, root first; each round has one tree per class.

    Attributes
    ----------
    look_M : int64, feature index of the node's comparison, plus ``numbers`` if a missing feature goes right.
    threshold_M : float32, values up to it go left; infinity for a leaf.
    left_M : int64, index of the left child, which the right child follows; a leaf has its own index.
    value_M : float32, contribution of a leaf to the logit of its class.
    root_T : int64, index of each tree's root.
    numbers, classes, depth : number of features, number of classes, and depth of the deepest tree.
    """

    look_M: NDArray[np.int64]
    threshold_M: NDArray[np.float32]
    left_M: NDArray[np.int64]
    value_M: NDArray[np.float32]
    root_T: NDArray[np.int64]
    numbers: int
    classes: int
    depth: int


class BoostedTrees(nn.Module):
    """Class logits [B, C]: sums of the values of the leaves that each row reaches."""

    look_M: Tensor
    threshold_M: Tensor
    left_M: Tensor
    value_M: Tensor
    root_T: Tensor

    def __init__(self, forest: Forest, *, as_operator: bool = True) -> None:
        super().__init__()
        self.forest, self.as_operator = forest, as_operator
        for name in ("look_M", "threshold_M", "left_M", "value_M", "root_T"):
            self.register_buffer(name, torch.from_numpy(getattr(forest, name)))

    def forward(self, number_BF: Tensor) -> Tensor:
        """Return the logits [B, C] of rows [B, F], NaN where a feature is missing."""
        if self.as_operator and torch.compiler.is_exporting():
            logits_BC: Tensor = trees(number_BF, self.forest.classes, self.forest.depth, *self.buffers())
            return logits_BC
        return _sum_leaves(_leaves(number_BF, self.forest.depth, *self.buffers()), self.value_M, self.forest.classes)


@torch.library.custom_op("nightjar::trees", mutates_args=())
def trees(
    number_BF: Tensor,
    classes: int,
    depth: int,
    look_M: Tensor,
    threshold_M: Tensor,
    left_M: Tensor,
    value_M: Tensor,
    root_T: Tensor,
) -> Tensor:
    """Return the logits [B, C]; a custom operator, so that the exporter can translate it."""
    place_BT = _leaves(number_BF, depth, look_M, threshold_M, left_M, value_M, root_T)
    return _sum_leaves(place_BT, value_M, classes)


@trees.register_fake
def _logits(number_BF: Tensor, classes: int, *_: object) -> Tensor:
    return number_BF.new_empty(number_BF.shape[0], classes)


def _leaves(
    number_BF: Tensor, depth: int, look_M: Tensor, threshold_M: Tensor, left_M: Tensor, _: Tensor, root_T: Tensor
) -> Tensor:
    """Return the leaf that each row reaches in each tree, [B, T]."""
    filled_BF = _with_missing_filled(number_BF)
    place_BT = left_M[root_T] + (filled_BF.index_select(1, look_M[root_T]) > threshold_M[root_T]).long()
    for _level in range(1, depth):
        number_BT = filled_BF.gather(1, look_M[place_BT])
        place_BT = left_M[place_BT] + (number_BT > threshold_M[place_BT]).long()
    return place_BT


def _with_missing_filled(number_BF: Tensor) -> Tensor:
    """Concatenate two copies of every row, [B, 2F]: missing features go left in the first and right in the second."""
    missing_BF = number_BF.isnan()
    return torch.cat([number_BF.masked_fill(missing_BF, side) for side in (-torch.inf, torch.inf)], dim=1)


def _sum_leaves(place_BT: Tensor, value_M: Tensor, classes: int) -> Tensor:
    """Sum the leaf values over the boosting rounds, [B, C]."""
    return value_M[place_BT].view(-1, place_BT.shape[1] // classes, classes).sum(1)
