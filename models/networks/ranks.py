"""Means over a batch that is shared out over processes: exact in value and in gradient.

Processes of a distributed run hold different numbers of curves, observations or tokens, so the mean of their means is
not the mean of the batch. :func:`mean` divides by what all of them hold together. Its value is the same everywhere; its
gradient is that of the own part times the number of processes, so gradients averaged over processes are those of the
whole batch, whatever is computed from the mean afterwards (a root, a product of means).

Notable: processes take part inside :func:`joined` only, which training enters around its loss. Everywhere else, and in
training with one process, :func:`mean` is a division: serving, export and validation never reach ``torch.distributed``.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

_joined = False


@contextmanager
def joined() -> Iterator[None]:
    """Make the means computed inside those of all processes; all of them must compute the same ones in turn."""
    global _joined
    _joined = True
    try:
        yield
    finally:
        _joined = False


def mean(total: Tensor, count: Tensor | int) -> Tensor:
    """Divide a sum by a count, both over all processes.

    Parameters
    ----------
    total : sums over what this process holds, any shape.
    count : how many things were summed, a scalar; the mean of none is 0.
    """
    if not _joined:
        # In an export the number of tokens is a symbol, which max() cannot compare; torch leaves sym_max unannotated.
        least: Tensor | int
        least = count.clamp(min=1) if isinstance(count, Tensor) else torch.sym_max(count, 1)
        return total / least
    count_1 = torch.as_tensor(count, dtype=torch.float64, device=total.device).reshape(1)
    whole = torch.cat([total.detach().double().flatten(), count_1])
    dist.all_reduce(whole)
    everywhere = whole[-1].clamp(min=1)
    own = total * (dist.get_world_size() / everywhere).to(total.dtype)
    value = (whole[:-1] / everywhere).to(total.dtype).view_as(total)
    return own + (value - own).detach()
