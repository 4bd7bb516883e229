"""Patches: images, spectrograms and volumes cut into tokens with positions, for networks that take tokens.

An array with A spatial axes becomes the sequence of its patches, in row-major order, each flattened with the channel
as its last index, and each with its index along every axis as its position: A = 1 for time series (patches of several
samples), 2 for images and spectrograms, 3 for video and volumes. A position is a number, not a place in a table: scale
the positions for another unit, or replace them where the sampling is uneven (frame times, for example).

Legend: B batch, C channels, L patches, K = C * (product of the patch's lengths) values of a patch, A axes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Patches(NamedTuple):
    """Values [B, L, K] and positions [B, L, A]."""

    values_BLK: Tensor
    position_BLA: Tensor


def cut_patches(x: Tensor, patch: Sequence[int]) -> Patches:
    """Cut ``x`` [B, C, n_1, ..., n_A] into patches of lengths ``patch``, one for each of its A axes.

    Raises
    ------
    ValueError
        When the axes do not match, or do not divide into whole patches.
    """
    lengths = x.shape[2:]
    if len(lengths) != len(patch) or any(length % size for length, size in zip(lengths, patch, strict=True)):
        raise ValueError(f"axes of length {tuple(lengths)} do not divide into patches of {tuple(patch)}")
    grid = [length // size for length, size in zip(lengths, patch, strict=True)]
    split = (length for pair in zip(grid, patch, strict=True) for length in pair)
    x = x.reshape(*x.shape[:2], *split)  # [B, C, g_1, p_1, ..., g_A, p_A]
    n_axes = len(patch)
    rows, columns = range(2, 2 + 2 * n_axes, 2), range(3, 3 + 2 * n_axes, 2)
    values_BLK = x.permute(0, *rows, *columns, 1).flatten(1 + n_axes).flatten(1, n_axes)
    index = torch.meshgrid(*(torch.arange(count, device=x.device) for count in grid), indexing="ij")
    position_LA = torch.stack(index, dim=-1).flatten(0, -2).to(x.dtype)
    return Patches(values_BLK, position_LA.expand(x.shape[0], -1, -1))
