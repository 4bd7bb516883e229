"""Boosted trees inside a graph: each row reaches one leaf of every tree, and the leaf values are summed by class.

Notable:

- two forms of the same trees. While exporting, the module is an operator of its own that ``training.export.graph``
  writes as one ``TreeEnsemble``, which onnxruntime walks node by node on the CPU and has for no other device. The other
  form is gathers and comparisons, every tree one level at a time (tree traversal of Nakandala et al. 2020), which runs
  wherever a network does: in torch, and in a graph for CUDA;
- a row goes left where its number is at most the threshold, both in single precision;
- a missing number (NaN) goes where training sent such rows. The second form has no NaN: it looks numbers up in two
  copies of the row, one with minus infinity for what is missing, which goes left, and one with infinity.

Sources: gradient boosting (Friedman 2001); the fitting is LightGBM's (Ke et al. 2017); ``TreeEnsemble`` is of ONNX-ML,
opset 5.

Legend: B rows, F numbers of a row, M nodes and leaves of all trees, T trees, C classes.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


class Forest(NamedTuple):
    """Trees as tables, the nodes of each together, its root first; in every round one tree of each class, in order.

    Attributes
    ----------
    look_M : int64, the number that a node looks at; plus ``numbers`` where a missing one goes right.
    threshold_M : float32, at most it goes left; infinity for a leaf.
    left_M : int64, the place of the left child, whose neighbour is the right one; a leaf has its own place.
    value_M : float32, what a leaf adds to its class.
    root_T : int64, where every tree begins.
    numbers, classes, depth : of a row, of the answer, and of the deepest tree.
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
    """Sums of the leaves that rows reach [B, C], the logits of the classes."""

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
        """Logits [B, C] of rows [B, F], NaN where a number is missing."""
        if self.as_operator and torch.compiler.is_exporting():
            logits_BC: Tensor = trees(number_BF, self.forest.classes, self.forest.depth, *self.buffers())
            return logits_BC
        return _add_up(_leaves(number_BF, self.forest.depth, *self.buffers()), self.value_M, self.forest.classes)


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
    """Logits [B, C]: the trees as one operator."""
    place_BT = _leaves(number_BF, depth, look_M, threshold_M, left_M, value_M, root_T)
    return _add_up(place_BT, value_M, classes)


@trees.register_fake
def _logits(number_BF: Tensor, classes: int, *_: object) -> Tensor:
    return number_BF.new_empty(number_BF.shape[0], classes)


def _leaves(
    number_BF: Tensor, depth: int, look_M: Tensor, threshold_M: Tensor, left_M: Tensor, _: Tensor, root_T: Tensor
) -> Tensor:
    """Return the leaf of every tree that a row reaches, [B, T]."""
    twice_BF = _twice(number_BF)
    place_BT = left_M[root_T] + (twice_BF.index_select(1, look_M[root_T]) > threshold_M[root_T]).long()
    for _level in range(1, depth):
        number_BT = twice_BF.gather(1, look_M[place_BT])
        place_BT = left_M[place_BT] + (number_BT > threshold_M[place_BT]).long()
    return place_BT


def _twice(number_BF: Tensor) -> Tensor:
    """Two copies of every row, [B, 2F]: what is missing goes left in the first, right in the second."""
    missing_BF = number_BF.isnan()
    return torch.cat([number_BF.masked_fill(missing_BF, side) for side in (-torch.inf, torch.inf)], dim=1)


def _add_up(place_BT: Tensor, value_M: Tensor, classes: int) -> Tensor:
    """Sum over the rounds of boosting, [B, C]."""
    return value_M[place_BT].view(-1, place_BT.shape[1] // classes, classes).sum(1)
