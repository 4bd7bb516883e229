"""Work of each of two processes that torchrun launches from ``test_distributed``: ``two_processes.py DATA FOLDER``.

Every check is a collective one: where a process fails, torchrun ends both and reports it.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nightjar_alerts.models.networks.zoo import build
from nightjar_alerts.training.__main__ import main
from nightjar_alerts.training.data.dataset import read_dataset, split_indices
from nightjar_alerts.training.fit import loop
from nightjar_alerts.training.fit.distributed import Ranks, join_launch
from nightjar_alerts.training.fit.loop import Interval, StepLoss, Task, train_step
from nightjar_alerts.training.fit.train import TASKS, train
from nightjar_alerts.training.recipes.astro_moe import debug, debug_pretraining
from nightjar_alerts.training.recipes.catalogue import debug_informer_forecast
from nightjar_alerts.training.recipes.schema import Recipe, ScheduleConfig, ValidationConfig


def odd(recipe: Recipe) -> Recipe:
    """Batches of 7 rows, so that the two processes hold different numbers of everything."""
    return recipe.model_copy(update={"batch": recipe.batch.model_copy(update={"size": 7, "pool": 2})})


RECIPES = {
    "classify": odd(debug()),
    "mse": odd(debug_pretraining()),
    "rmse": odd(debug_pretraining()).model_copy(update={"reconstruction_loss": "rmse"}),
    "forecast": odd(debug_informer_forecast()),
}


def short(steps: int = 8) -> Recipe:
    """A recipe with dropout, for what must be equal bit for bit."""
    base = odd(debug())
    return base.model_copy(
        update={
            "network": base.network.model_copy(update={"n_blocks": 1, "dropout": 0.1}),
            "schedule": ScheduleConfig(steps=steps, warmup_steps=2),
            "validation": ValidationConfig(every=3, objects=10, log_every=2),
            "threads": 1,
        }
    )


def gradients(network: nn.Module, task: Task, batch: Any, ranks: Ranks) -> tuple[StepLoss, Tensor, list[Tensor | None]]:
    """Step, averaged loss and averaged gradients of a batch shared by ``ranks``."""
    network.zero_grad()
    with ranks.joined():
        step = task.loss(network, ranks.share(batch))
    step.loss.backward()
    loss = ranks.average_gradients(network, step.loss)
    return step, loss, [None if each.grad is None else each.grad.clone() for each in network.parameters()]


def check_gradients(recipe: Recipe, data: Path, ranks: Ranks) -> None:
    """The averaged gradient of two shares is the gradient of the batch, and so are loss and counts."""
    dataset = read_dataset(data)
    task = TASKS[recipe.task](recipe, dataset, split_indices(dataset))
    torch.manual_seed(0)
    network = build(recipe.network, recipe.task).eval()
    stream = task.batches(0)
    batch = next(stream)
    stream.close()
    whole, loss, expected = gradients(network, task, batch, Ranks())
    shared, shared_loss, averaged = gradients(network, task, batch, ranks)
    torch.testing.assert_close(shared_loss, loss, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(shared.loss.detach(), loss, rtol=1e-5, atol=0.0)  # the same in every process
    scale = max(float(gradient.abs().max()) for gradient in expected if gradient is not None)
    for one, other in zip(expected, averaged, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6 * scale)
    counts = {name for name, value in whole.log.items() if not value.is_floating_point()}
    assert "curves" in counts
    totals = ranks.means({name: shared.log[name].double().numpy() for name in counts}, counts)
    for name in counts:
        torch.testing.assert_close(torch.from_numpy(totals[name]), whole.log[name].double(), msg=name)


def check_ranks(ranks: Ranks) -> None:
    """Check what processes tell each other."""
    assert (ranks.size, ranks.alone) == (2, False)
    assert ranks.any(ranks.rank == 1)
    assert not ranks.any(False)
    assert ranks.from_first(lambda: ("made by", ranks.rank)) == ("made by", 0)
    linear = nn.Linear(2, 2)
    nn.init.constant_(linear.weight, 1.0 + ranks.rank)
    ranks.align(linear)
    assert (linear.weight == 1.0).all()
    with pytest.raises(ValueError, match="cannot be split over 2"):
        ranks.share(torch.zeros(1, 3))


class BrokenOffError(Exception):
    """Stands for a process that ends at once; an OSError would be reported as one of the folder."""


def fail_at_five(run: loop.TrainingRun, task: Task, batch: Any, interval: Interval) -> None:
    """Take a step; after the fifth, between two checkpoints, break off in both processes."""
    train_step(run, task, batch, interval)
    if run.step == 5:
        raise BrokenOffError


def run(data: Path, folder: Path) -> None:
    """All checks, then the runs that the test compares."""
    torch.set_num_threads(1)
    ranks = join_launch("cpu")
    check_ranks(ranks)
    for recipe in RECIPES.values():
        check_gradients(recipe, data, ranks)
    main(f"fit debug --data {data} --out {folder / 'command'} --steps 10 --threads 1".split())
    train(short(), data, folder / "whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train_step", fail_at_five)
        with pytest.raises(BrokenOffError):
            train(short(), data, folder / "parts")
    train(short(), data, folder / "parts")


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]))
