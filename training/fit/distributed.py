"""Training on several processes: every batch split by rows, gradients averaged, output by one process.

    torchrun --standalone --nproc-per-node 2 -m nightjar_alerts.training train default --data build/sim.parquet

One process per GPU, or per share of the cores (``--threads``). Launched without torchrun nothing here costs anything: a
:class:`Ranks` that is alone passes everything through.

What is equal to one process, up to the rounding of sums: every process draws the same batch and keeps every
``size``-th row of it, so the batch of a step does not depend on how many work on it (and a run may be resumed with
another number of processes). Losses and balance losses are means over the whole batch (``ranks``), gradients
are averaged before they are clipped, weights and optimiser states are alike everywhere; the first process validates,
logs and saves.

What is not: dropout, and whatever else a network draws at random, comes from (seed, step, process); BatchNorm
(``distilling = "released"`` of Informer alone) takes the statistics of a process's own rows, and the first one's are
kept; a task that averages with ``torch.mean`` instead of ``ranks.mean`` weights rows alike only where all
processes hold equally many things.

Notable: gradients travel as one vector after the backward pass instead of through ``DistributedDataParallel``. Tasks
may then call a network by any of its methods, and the vector is laid out alike in every step (DDP rebuilds its buckets
after the first), so resuming changes no order of summation: with two processes a resumed run is bitwise the
uninterrupted one. The price is that sending does not overlap the backward pass: a million parameters are 4 MB. Every
process prepares the whole batch, so preparing does not get faster. Processes with GPUs talk by NCCL, where this has not
been tested; those without by Gloo.
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

PATIENCE = timedelta(hours=2)  # others wait while the first process validates


@dataclass(frozen=True, slots=True)
class Ranks:
    """One process among those of the run; ``alone`` when torchrun did not launch it."""

    rank: int = 0
    size: int = 1
    alone: bool = True

    @property
    def first(self) -> bool:
        """True where this process validates, logs and saves."""
        return self.rank == 0

    def joined(self) -> AbstractContextManager[None]:
        """Around the loss: its means are those of the whole batch."""
        return nullcontext() if self.alone else ranks.joined()

    def share(self, batch: Any) -> Any:
        """Rows of this process out of every tensor of a batch; neighbours, alike in length, go to different ones."""
        return batch if self.alone else map_tensors(batch, self._rows)

    def _rows(self, tensor: Tensor) -> Tensor:
        if tensor.ndim and len(tensor) < self.size:
            raise ValueError(f"a batch of {len(tensor)} cannot be shared out over {self.size} processes")
        return tensor[self.rank :: self.size].contiguous() if tensor.ndim else tensor

    def average_gradients(self, network: nn.Module, loss: Tensor) -> Tensor:
        """Replace gradients by their means over processes; return the mean of the losses.

        A parameter that no process has a gradient of keeps none, as the optimiser passes it over then.
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
        """Give every process the first one's weights."""
        for value in () if self.alone else network.state_dict().values():
            dist.broadcast(value, 0)

    def any(self, flag: bool) -> bool:
        """Return whether it holds for any process."""
        return flag if self.alone else any(self._gather(flag))

    def from_first(self, make: Callable[[], T]) -> T:
        """Let the first process make something and hand it to all; the others wait."""
        if self.alone:
            return make()
        objects = [make() if self.first else None]
        dist.broadcast_object_list(objects, 0)
        return objects[0]  # type: ignore[return-value]  # None in no process once it is broadcast

    def means(self, own: dict[str, NDArray[np.float64]], counts: set[str]) -> dict[str, NDArray[np.float64]]:
        """Join the means of an interval: those named in ``counts`` add up, the others are averaged."""
        if self.alone:
            return own
        gathered = self._gather(own)
        joined = {}
        for name in dict.fromkeys(name for each in gathered for name in each):
            values = [each[name] for each in gathered if name in each]
            joined[name] = np.asarray(np.sum(values, axis=0) / (1 if name in counts else len(values)))
        return joined

    def _gather(self, own: T) -> list[T]:
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, own)
        return gathered


def join_launch(device: str) -> Ranks:
    """Join the processes that torchrun launched, until this one ends; alone without torchrun.

    With ``device`` "cuda" each process takes the GPU of its number on its machine.
    """
    if not _by_torchrun():
        return Ranks()
    if not dist.is_initialized():
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=PATIENCE)
        atexit.register(dist.destroy_process_group)
    return Ranks(dist.get_rank(), dist.get_world_size(), alone=False)


def is_first() -> bool:
    """Return whether this process prints and writes: the only one, or the first of torchrun's."""
    return not _by_torchrun() or os.environ["RANK"] == "0"


def _by_torchrun() -> bool:
    return dist.is_available() and dist.is_torchelastic_launched()


def map_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change the tensors of a batch: (named) tuples, lists and dicts of tensors; other values stay as they are."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {name: map_tensors(value, change) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        changed = (map_tensors(value, change) for value in batch)
        return type(batch)(*changed) if hasattr(batch, "_fields") else type(batch)(changed)
    return batch
