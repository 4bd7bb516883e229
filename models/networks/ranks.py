"""Means over a batch that is split across processes, exact in value and in gradient.

The processes of a distributed run hold different numbers of light curves, observations or tokens, so the mean of their
means is not the mean of the batch. :func:`mean` divides by the total count over all processes. Its value is the same in
every process. Its gradient is that of the local part times the number of processes, so that the average of the
gradients over processes is the gradient of the whole batch, even after non-linear functions of the mean.

Notable: processes communicate only inside :func:`joined`, which training enters around its loss. Elsewhere, and in
training with one process, :func:`mean` is a division: serving, export and validation do not use ``torch.distributed``.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

_joined = False


@contextmanager
def joined() -> Iterator[None]:
    """Compute means over all processes inside the context; every process must compute the same means in order."""
    global _joined
    _joined = True
    try:
        yield
    finally:
        _joined = False


def mean(total: Tensor, count: Tensor | int) -> Tensor:
    """Return the sum over all processes divided by the count over all processes.

    Parameters
    ----------
    total : sums of this process, any shape.
    count : number of summed values, a scalar; the mean of no values is 0.
    """
    if not _joined:
        # During export the number of tokens is a symbol, which max() cannot compare; torch does not annotate sym_max.
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
