"""Fit new heads of an Astro-MoE to drawn light curves, on frozen branches or together with them.

The light curves are drawn once, with their statistics and embeddings. Heads on frozen branches need only these, so that
a step takes milliseconds. With learning branches the embedding is computed in each step.

Legend: B light curves of a batch, N all light curves, K statistics, E embedding of the branches, C classes.
"""

from collections.abc import Generator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.network import INPUTS, NetworkOutput
from nightjar_alerts.models.networks.statistics.points import Statistics
from nightjar_alerts.models.networks.zoo import transfer
from nightjar_alerts.training.data.batches import pooled
from nightjar_alerts.training.data.drawn import network_inputs
from nightjar_alerts.training.fit.checkpoints import load_best
from nightjar_alerts.training.fit.labelled import LabelledDraws
from nightjar_alerts.training.fit.loop import StepLoss, Task, fit, to_device
from nightjar_alerts.training.metrics import confusion, macro_f1
from nightjar_alerts.training.recipes.schema import (
    FitConfig,
    OptimizerConfig,
    ScheduleConfig,
    ValidationConfig,
)

BATCH: Final = 64
POOL: Final = 16
"""Batches that are drawn together and sorted by length."""
HEAD_STEPS: Final = 700
PASSES: Final = 3
"""Passes over the light curves when the branches learn."""
BRANCH_STEPS: Final = (120, 300)
"""Smallest and largest number of steps when the branches learn."""


class HeadBatch(NamedTuple):
    """Embedding, statistics and labels of a batch; the embedding is replaced by padded inputs if branches learn."""

    embedding_BE: Tensor
    value_BK: Tensor
    is_known_BK: Tensor
    label_B: Tensor
    inputs: tuple[Tensor, ...]


class HeadNetwork(nn.Module):
    """Statistics branch and heads of a network, and branches if they learn; the modules are those of the network."""

    new_parameters = ("statistics", "head")

    def __init__(self, network: AstroMoE, branches: AstroMoE | None = None) -> None:
        super().__init__()
        self.statistics = network.statistics
        self.heads = nn.ModuleList([network.head_mix, *network.head_more])
        self.branches = branches

    def forward(self, batch: HeadBatch) -> tuple[list[Tensor], Tensor | None]:
        """Return the logits [B, C] of each copy of the heads, and the balance loss of learning branches."""
        embedding_BE, aux_loss = batch.embedding_BE, None
        if self.branches is not None:
            output: NetworkOutput = self.branches(*batch.inputs)
            embedding_BE, aux_loss = output.embedding_BE, output.aux_loss
        assert self.statistics is not None
        joined_BE = torch.cat([embedding_BE, self.statistics(Statistics(batch.value_BK, batch.is_known_BK))], dim=1)
        return [head(joined_BE) for head in self.heads], aux_loss


class HeadTask(Task):
    """Draw light curves by their weights; the score is the macro-F1 of the complete ones among them."""

    def __init__(self, draws: LabelledDraws, rows: NDArray[np.intp], seed: int, aux_weight: float) -> None:
        self.draws, self.rows, self.seed, self.aux_weight = draws, rows, seed, aux_weight
        self.learns_branches = False
        weight = draws.weights(rows).astype(np.float64)
        self.share = weight / weight.sum()

    def batches(self, step: int) -> Generator[HeadBatch, None, None]:
        """Yield batches of similar length."""
        return pooled(self._pool, POOL, step)

    def _pool(self, number: int) -> list[HeadBatch]:
        rng = np.random.default_rng((self.seed, number))
        drawn = rng.choice(self.rows, BATCH * POOL, p=self.share)
        drawn = drawn[np.argsort(self.draws.light_curves.lengths[drawn], kind="stable")]
        parts = drawn.reshape(POOL, BATCH)
        return [self.batch(parts[index]) for index in rng.permutation(POOL)]

    def batch(self, rows: NDArray[np.intp]) -> HeadBatch:
        """Return some light curves as a batch."""
        embedding_BE, statistics = self.draws.inputs.rows(rows)
        inputs: tuple[Tensor, ...] = ()
        if self.learns_branches:
            padded = network_inputs(self.draws.light_curves, rows).padded()
            inputs = tuple(torch.from_numpy(padded[name]) for name in INPUTS)
        label_B = torch.from_numpy(self.draws.light_curves.label[rows])
        return HeadBatch(embedding_BE, statistics.value_BK, statistics.mask_BK, label_B, inputs)

    def loss(self, network: nn.Module, batch: HeadBatch) -> StepLoss:
        """Return the mean cross-entropy of the copies, plus the balance loss of learning branches."""
        copies, aux_loss = network(batch)
        loss = torch.stack([cross_entropy(logits_BC, batch.label_B) for logits_BC in copies]).mean()
        return StepLoss(loss if aux_loss is None else loss + self.aux_weight * aux_loss, {})

    def score(self, network: nn.Module) -> dict[str, float]:
        """Return the macro-F1 of the complete light curves that the network learns from."""
        complete = self.rows[self.rows < self.draws.objects][: BATCH * POOL]
        predicted = []
        for start in range(0, len(complete), BATCH):
            batch = to_device(self.batch(complete[start : start + BATCH]), next(network.parameters()).device)
            copies, _ = network(batch)
            predicted.append(torch.stack(copies).log_softmax(-1).mean(0).argmax(1).cpu().numpy())
        label_B = self.draws.light_curves.label[complete]
        score = macro_f1(confusion(label_B, np.concatenate(predicted), int(self.draws.light_curves.label.max()) + 1))
        return {"score": score, "macro_f1": score}


class TuningIdentity(BaseModel):
    """Content of ``config.json`` in the folder of a fit."""

    model_config = ConfigDict(frozen=True)

    config: FitConfig
    objects: str


def fit_heads(
    network: AstroMoE,
    draws: LabelledDraws,
    rows: NDArray[np.intp],
    folder: Path,
    *,
    identity: str,
    seed: int,
    branches: AstroMoE | None = None,
    device: str = "cpu",
    steps: int | None = None,
    progress: bool = False,
) -> AstroMoE:
    """Fit statistics branch and heads to some light curves, and return the network in evaluation mode.

    An interrupted fit continues from its folder.

    Parameters
    ----------
    identity : text that identifies the light curves; a folder of other ones is an error.
    branches : copy of the network's branches that learns with the heads; None: they are frozen.
    """
    learns = branches is not None
    few, most = BRANCH_STEPS
    steps = steps or (min(most, max(few, PASSES * len(rows) // BATCH)) if learns else HEAD_STEPS)
    optimizer = OptimizerConfig(
        lr=1e-3 if learns else 2e-3, body_lr=0.2 if learns else 0.0, weight_decay=0.05, ema_decay=0.99
    )
    config = FitConfig(
        name="heads and branches" if learns else "heads",
        schedule=ScheduleConfig(steps=steps, warmup_steps=min(25, steps)),
        optimizer=optimizer,
        validation=ValidationConfig(every=max(1, steps // 4) if learns else steps, log_every=20, keep="last"),
        seed=seed,
        device=device,
    )
    tuned = HeadNetwork(network, branches)
    task = HeadTask(draws, rows, seed, network.config.aux_weight)
    task.learns_branches = learns
    fit(tuned, task, config, folder, TuningIdentity(config=config, objects=identity), progress=progress)
    tuned.to("cpu").load_state_dict(load_best(folder))
    if branches is not None:
        transfer(branches.state_dict(), network)
    return network.eval()
