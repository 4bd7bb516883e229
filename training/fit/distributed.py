"""Training on several processes: every batch is split by rows, gradients are averaged, one process writes output.

    torchrun --standalone --nproc-per-node 2 -m nightjar_alerts.training fit default --data build/sim.parquet

Use one process per GPU, or per group of cores (``--threads``). Without torchrun, :class:`Ranks` does nothing.

The following equals training with one process, up to the rounding of sums: every process draws the same batch and keeps
every ``size``-th row of it, so the batch of a step does not depend on the number of processes, and a run may be resumed
with another number. Losses and balance losses are means over the whole batch (``ranks``), gradients are averaged before
they are clipped, weights and optimizer states are the same in all processes. The first process validates, logs and
saves.

The following differs: dropout, and other random numbers of a network, depend on (seed, step, process); BatchNorm (only
``distilling = "released"`` of Informer) uses the statistics of the rows of one process, and those of the first process
are kept; a task that averages with ``torch.mean`` instead of ``ranks.mean`` weights rows equally only if all processes
have equally many values.

Notable: gradients are reduced as one vector after the backward pass instead of by ``DistributedDataParallel``. Tasks
can then call any method of a network, and the layout of the vector is the same in every step (DDP rebuilds its buckets
after the first), so a resumed run with two processes is bitwise equal to an uninterrupted one. The drawback is that
communication does not overlap the backward pass: a million parameters are 4 MB. Every process prepares the whole batch,
so preparation does not get faster. Processes with GPUs use NCCL, which has not been tested; others use Gloo.
"""

import atexit
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from nightjar_alerts.models.networks import ranks

T = TypeVar("T")

TIMEOUT = timedelta(hours=2)  # long enough for the validation by the first process


@dataclass(frozen=True, slots=True)
class Ranks:
    """Rank of this process and number of processes; ``alone`` if torchrun did not launch it."""

    rank: int = 0
    size: int = 1
    alone: bool = True

    @property
    def first(self) -> bool:
        """Whether this process validates, logs and saves."""
        return self.rank == 0

    def joined(self) -> AbstractContextManager[None]:
        """Return a context for the loss in which means are over the whole batch."""
        return nullcontext() if self.alone else ranks.joined()

    def share(self, batch: Any) -> Any:
        """Return this process's rows of every tensor of a batch; neighbours of similar length go to different ones."""
        return batch if self.alone else map_tensors(batch, self._rows)

    def _rows(self, tensor: Tensor) -> Tensor:
        if tensor.ndim and len(tensor) < self.size:
            raise ValueError(f"a batch of {len(tensor)} cannot be split over {self.size} processes")
        return tensor[self.rank :: self.size].contiguous() if tensor.ndim else tensor

    def average_gradients(self, network: nn.Module, loss: Tensor) -> Tensor:
        """Replace gradients by their means over processes; return the mean of the losses.

        A parameter without a gradient in any process keeps none, so that the optimizer skips it.
        """
        if self.alone:
            return loss.detach()
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        has_gradient_P = loss.new_tensor([parameter.grad is not None for parameter in trained])
        flat = [(torch.zeros_like(each) if each.grad is None else each.grad).flatten() for each in trained]
        whole = torch.cat([loss.detach().reshape(1), has_gradient_P, *flat])
        dist.all_reduce(whole)
        whole /= self.size
        parts = torch.split(whole, [1, len(trained), *(each.numel() for each in trained)])
        for parameter, has_gradient, part in zip(trained, parts[1].tolist(), parts[2:], strict=True):
            parameter.grad = part.view_as(parameter) if has_gradient else None
        return parts[0][0]

    def align(self, network: nn.Module) -> None:
        """Broadcast the weights of the first process."""
        for value in () if self.alone else network.state_dict().values():
            dist.broadcast(value, 0)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is true in any process."""
        return flag if self.alone else any(self._gather(flag))

    def from_first(self, make: Callable[[], T]) -> T:
        """Call a function in the first process and broadcast the result; the others wait."""
        if self.alone:
            return make()
        objects = [make() if self.first else None]
        dist.broadcast_object_list(objects, 0)
        return objects[0]  # type: ignore[return-value]  # None in no process once it is broadcast

    def means(self, own: dict[str, NDArray[np.float64]], counts: set[str]) -> dict[str, NDArray[np.float64]]:
        """Combine the means of an interval over processes: those named in ``counts`` are added, others averaged."""
        if self.alone:
            return own
        gathered = self._gather(own)
        combined = {}
        for name in dict.fromkeys(name for means in gathered for name in means):
            values = [means[name] for means in gathered if name in means]
            combined[name] = np.asarray(np.sum(values, axis=0) / (1 if name in counts else len(values)))
        return combined

    def _gather(self, own: T) -> list[T]:
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, own)
        return gathered


def join_launch(device: str) -> Ranks:
    """Join the process group of torchrun until this process ends; without torchrun do nothing.

    With ``device`` "cuda" each process uses the GPU of its local rank.
    """
    if not _by_torchrun():
        return Ranks()
    if not dist.is_initialized():
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=TIMEOUT)
        atexit.register(dist.destroy_process_group)
    return Ranks(dist.get_rank(), dist.get_world_size(), alone=False)


def is_first() -> bool:
    """Return whether this process prints and writes: the only process, or the first one of torchrun."""
    return not _by_torchrun() or os.environ["RANK"] == "0"


def _by_torchrun() -> bool:
    return dist.is_available() and dist.is_torchelastic_launched()


def map_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to the tensors in (named) tuples, lists and dicts; other values are unchanged."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {name: map_tensors(value, change) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        changed = (map_tensors(value, change) for value in batch)
        return type(batch)(*changed) if hasattr(batch, "_fields") else type(batch)(changed)
    return batch
