"""Packed tokens and grouped computation.

**Packing**: layers that act on single tokens run on the real tokens only; attention alone uses a padded grid. Padded
light curves have 1.1 to 6 times as many positions as tokens; with packing, padding costs nothing outside attention and
is never routed to an expert.

Legend: B batch, L length, S positions in the grid (L, plus a leading one for a [CLS] token), M packed tokens, D width.

**Grouped computation**: each row is passed to the function of its own group only. Mixtures of experts use it (rows
grouped by expert), and so do per-band weights (rows grouped by band). ``nonzero`` of the one-hot matrix is a stable
counting sort, one ``split`` divides the sorted rows into groups, and the inverse permutation restores the order. The
code trains in torch and exports to standard ONNX operators (NonZero, Gather, one Split, a Gemm pair per group, Concat,
Gather), the fastest form measured.

Legend: N rows, K choices per row, A = N * K assignments, G groups, D width, X = 2 or 3 indices of an assignment.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Packing(NamedTuple):
    """Mapping between packed tokens and positions in the padded grid.

    Attributes
    ----------
    row_M : row of each packed token; with a [CLS] token the first B packed tokens are the [CLS]s.
    place_M : flat grid position (b * S + s) of each packed token.
    token_BS : packed token of each grid position; an arbitrary one if the position is empty.
    mask_BS : True where attention may use the token.
    leading : whether each row begins with a [CLS] token; if not, a batch may have no tokens.
    """

    row_M: Tensor
    place_M: Tensor
    token_BS: Tensor
    mask_BS: Tensor
    leading: bool

    @classmethod
    def of(cls, mask_BL: Tensor, leading: bool, packed_BL: Tensor | None = None) -> "Packing":
        """Pack the tokens of ``mask_BL``; ``leading`` adds a [CLS] position in front of each row.

        ``packed_BL`` selects more tokens to pack than attention may use, for the variant of the balance loss that
        counts padding.
        """
        packed_BL = mask_BL if packed_BL is None else packed_BL
        batch, length = mask_BL.shape
        width, first = length + int(leading), batch * int(leading)
        row_M, column_N = packed_BL.nonzero(as_tuple=True)
        number_BL = packed_BL.long()
        token_BS, mask_BS = number_BL.flatten().cumsum(0).view(batch, length) + (first - 1), mask_BL
        place_M = row_M * length + column_N  # as pack_values has it
        if leading:
            row_B = torch.arange(batch, device=mask_BL.device)
            place_M = torch.cat([row_B * width, place_M + (row_M + 1)])
            row_M = torch.cat([row_B, row_M])
            token_BS = torch.cat([row_B[:, None], token_BS], dim=1)
            mask_BS = F.pad(mask_BL, (1, 0), value=True)
        else:
            token_BS = token_BS * number_BL  # 0 instead of -1 before the first token
        return cls(row_M, place_M, token_BS, mask_BS, leading)

    def unpack(self, x_MD: Tensor) -> Tensor:
        """Return a padded grid [B, S, D] of packed tokens; empty positions have arbitrary values and must be masked."""
        return F.embedding(self.token_BS, self._non_empty(x_MD))

    def pack(self, x_BSD: Tensor) -> Tensor:
        """Return the packed tokens [M, D] of a padded grid."""
        return x_BSD.flatten(0, 1).index_select(0, self.place_M)

    def unpack_heads(self, x_MQ: Tensor, parts: int, heads: int) -> list[Tensor]:
        """Return each part of packed tokens as a padded grid [B, H, S, E], by one gather per part.

        A token holds the heads of the first part, then those of the next.
        """
        per_token = parts * heads
        x_NE = self._non_empty(x_MQ).view(-1, x_MQ.shape[1] // per_token)
        first_B1S = self.token_BS[:, None] * per_token
        head_H1 = torch.arange(heads, device=x_MQ.device)[:, None]
        return [F.embedding(first_B1S + (head_H1 + part * heads), x_NE) for part in range(parts)]

    def pack_heads(self, x_BHSE: Tensor) -> Tensor:
        """Return the packed tokens [M, H * E] of padded grids of heads."""
        _, heads, width, _ = x_BHSE.shape
        first_M = self.place_M + self.row_M * ((heads - 1) * width)
        place_MH = first_M[:, None] + torch.arange(heads, device=x_BHSE.device) * width
        return F.embedding(place_MH, x_BHSE.flatten(0, 2)).flatten(1)

    def _non_empty(self, x_MD: Tensor) -> Tensor:
        """Append a zero token if there is no [CLS], so that empty positions can refer to a token in an empty batch."""
        return x_MD if self.leading else F.pad(x_MD, (0, 0, 0, 1))


def pack_values(values_BL: Tensor, mask_BL: Tensor) -> Tensor:
    """Return the values of the real tokens, [N], in row-major order; a third axis is kept."""
    row_N, column_N = mask_BL.nonzero(as_tuple=True)
    return values_BL.flatten(0, 1).index_select(0, row_N * mask_BL.shape[1] + column_N)


GroupFunction = Callable[[int, Tensor], Tensor]

_check: Callable[[bool], None] = torch._check


def apply_grouped(
    x_ND: Tensor,
    group: Tensor,
    n_groups: int,
    function: GroupFunction,
    prepare: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Apply ``function(group, rows)`` to each row for its group, or for each of its K groups.

    Parameters
    ----------
    x_ND : rows, [N, D].
    group : group index of each row, [N], or of each of its choices, [N, K], in ``range(n_groups)``.
    function : maps (group, [rows, D]) to [rows, D'].
    prepare : applied to all rows, sorted by group, before ``function``; use it to widen rows after the sort.

    Returns
    -------
    Results [N, D'], or those of each choice [N, K, D'].
    """
    y_AD, slot_A = _by_group(x_ND, group, n_groups, function, prepare)
    place_A = _inverse(slot_A, group)
    return F.embedding(place_A if group.ndim == 1 else place_A.view(group.shape), y_AD)


def mix_grouped(x_ND: Tensor, group_NK: Tensor, weight_NK: Tensor, n_groups: int, function: GroupFunction) -> Tensor:
    """Return the weighted sum [N, D'] of the results of each row's K choices (:func:`apply_grouped`).

    Choices are added one by one: a sum over an axis of length two is three times as slow in an exported graph.
    """
    y_AD, slot_A = _by_group(x_ND, group_NK, n_groups, function)
    place_A, choices = _inverse(slot_A, group_NK), group_NK.shape[1]
    each = [
        F.embedding(place_A[choice::choices], y_AD) * weight_N1.to(y_AD.dtype)
        for choice, weight_N1 in enumerate(torch.split(weight_NK, 1, dim=1))
    ]
    return sum(each[1:], start=each[0])


def _by_group(
    x_ND: Tensor,
    group: Tensor,
    n_groups: int,
    function: GroupFunction,
    prepare: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the results [A, D'], sorted by group, and the index [A] of each in the order of rows and choices."""
    limit = group.numel()
    chosen_G = group_mask(group, n_groups)
    index_AX = chosen_G.nonzero()  # group, row and, where a row has several, the choice
    _check(index_AX.shape[0] == limit)
    row_A = index_AX[:, 1]
    slot_A = row_A if group.ndim == 1 else row_A * group.shape[1] + index_AX[:, 2]
    sorted_AD = F.embedding(row_A, x_ND)
    sorted_AD = sorted_AD if prepare is None else prepare(sorted_AD)
    parts = torch.split(sorted_AD, _sizes(group_counts(chosen_G), limit))
    y_AD = torch.cat([function(number, part) for number, part in enumerate(parts)])
    return y_AD, slot_A


def _inverse(slot_A: Tensor, group: Tensor) -> Tensor:
    """Return the inverse of the permutation ``slot_A``."""
    return slot_A.scatter(0, slot_A, torch.arange(group.numel(), device=slot_A.device))


def group_mask(group: Tensor, n_groups: int) -> Tensor:
    """Return the one-hot mask of the groups, bool [G, N] or [G, N, K]."""
    number_G = torch.arange(n_groups, device=group.device)
    return number_G.view(-1, *[1] * group.ndim) == group


def group_counts(chosen_GNK: Tensor) -> Tensor:
    """Count the members of each group, int64 [G]. Summed in float32, which is fastest and exact up to 16 million."""
    return chosen_GNK.float().sum(list(range(1, chosen_GNK.ndim))).long()


def _sizes(count_G: Tensor, limit: int) -> list[int]:
    counts: list[int] = count_G.tolist()
    for count in counts:  # constrains these data-dependent sizes for the exporter
        _check(count >= 0)
        _check(count <= limit)
    return counts
