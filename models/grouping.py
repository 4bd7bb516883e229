"""Grouped computation: each row goes through the function of its own group, and only through that one.

This is the sparse half of a sparse mixture (rows grouped by chosen expert) and of per-band weights (rows grouped by
band). ``nonzero`` of the one-hot matrix is a stable counting sort, one ``split`` cuts the sorted rows into groups, and
the inverse permutation puts the results back. The same code trains in torch and exports to standard ONNX operators
(NonZero, Gather, one Split, a Gemm pair per group, Concat, Gather), where it was the fastest of the forms measured.

Legend: N rows, K choices per row, A = N * K assignments, G groups, D width.
"""

from collections.abc import Callable

import torch
from torch import Tensor

GroupFunction = Callable[[int, Tensor], Tensor]

_check: Callable[[bool], None] = torch._check


def apply_grouped(x_ND: Tensor, group_NK: Tensor, n_groups: int, function: GroupFunction) -> Tensor:
    """Send row n through ``function(group, rows)`` for each of its K groups.

    Parameters
    ----------
    x_ND : rows, [N, D].
    group_NK : integer group of each choice, [N, K], in ``range(n_groups)``.
    function : maps (group, [rows, D]) to [rows, D'].

    Returns
    -------
    Results by row and choice, [N, K, D'].
    """
    n_rows, n_choices = group_NK.shape
    group_G = torch.arange(n_groups, device=x_ND.device)
    chosen_GNK = group_G[:, None, None] == group_NK
    index_A3 = chosen_GNK.nonzero()
    _check(index_A3.shape[0] == n_rows * n_choices)
    row_A, slot_A = index_A3[:, 1], index_A3[:, 1] * n_choices + index_A3[:, 2]
    counts = _sizes(chosen_GNK.sum((1, 2)), n_rows * n_choices)
    parts = torch.split(x_ND.index_select(0, row_A), counts)
    y_AD = torch.cat([function(group, part) for group, part in enumerate(parts)])
    return y_AD.index_select(0, _inverse(slot_A)).view(n_rows, n_choices, y_AD.shape[1])


def _sizes(count_G: Tensor, limit: int) -> list[int]:
    counts: list[int] = count_G.tolist()
    for count in counts:  # tells the exporter that these data-dependent sizes are sizes
        _check(count >= 0)
        _check(count <= limit)
    return counts


def _inverse(permutation_A: Tensor) -> Tensor:
    position_A = torch.arange(permutation_A.shape[0], device=permutation_A.device)
    return torch.zeros_like(permutation_A).scatter(0, permutation_A, position_A)
