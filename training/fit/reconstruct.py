"""Masked reconstruction: pretraining on light curves without using their labels.

Notable: which observations are probed, hidden or replaced is drawn from (seed, pool number) like the views themselves,
so a resumed run hides what an uninterrupted one would have hidden; validation masks are drawn once. The loss is read as
the papers do: ``mse`` over all probed observations (RoMAE) or ``rmse``, the root of the mean over objects of each
object's masked MSE (ASTROMER).
"""

from collections.abc import Generator, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models import ranks
from models.lightcurve import Int64
from models.network import Masking, Reconstruction
from training.data.batches import Batch, collate, stream
from training.data.dataset import Dataset
from training.data.masking import draw_masking
from training.fit.classify import draw_validation
from training.fit.loop import Step, Task, to_device
from training.fit.monitor import StarvationWatch, expert_loads, expert_shares, load_range
from training.recipes.schema import Recipe, ReconstructionLoss
from training.score.reconstruction import ReconstructionScore

VALIDATION_MASKS = 2**32 + 2  # a draw of its own


class MaskedBatch(NamedTuple):
    """A batch of light curves and what is hidden of them."""

    curves: Batch
    masking: Masking


class MaskedReconstruction(Task):
    """Pretrain a network on what its recipe hides."""

    def __init__(self, recipe: Recipe, dataset: Dataset, split: dict[str, Int64]) -> None:
        self.recipe, self.dataset, self.split = recipe, dataset, split
        self.validation = list(self._validation())
        self.watch = StarvationWatch(recipe.schedule.warmup_steps)

    def batches(self, step: int) -> Generator[MaskedBatch, None, None]:
        """Batches of similar length, masked anew each time."""
        curves = stream(self.dataset, self.split["train"], self.recipe, step)
        for number, batch in enumerate(curves, start=step):
            yield self._mask(batch, np.random.default_rng((self.recipe.seed, VALIDATION_MASKS, number)))

    def loss(self, network: nn.Module, batch: MaskedBatch) -> Step:
        """Error of the probed observations, and the weighted balance loss of a network with mixtures."""
        output: Reconstruction = network(*batch.curves.inputs_of(network), batch.masking)
        error = reconstruction_loss(output, batch.masking.probed_BL, self.recipe.reconstruction_loss)
        log = {"curves": torch.tensor(len(batch.curves.label_B)), "error": error, **expert_loads(output)}
        if output.aux_loss is None:
            return Step(error, log)
        return Step(error + self.recipe.aux_weight * output.aux_loss.float(), log | {"aux_loss": output.aux_loss})

    def line(self, step: int, means: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
        """Error of the interval, pace, the range of expert loads, and the experts that starve."""
        line: dict[str, Any] = {name: float(means[name]) for name in ("error", "aux_loss") if name in means}
        line["curves_per_second"] = float(means["curves"] / means["seconds_per_step"])
        shares = expert_shares(means)
        return line | {"expert_load": load_range(shares), "starved_experts": self.watch.update(step, shares)}

    def score(self, network: nn.Module) -> dict[str, float]:
        """RMSE and R2 of the probed observations of the validation draw; the score is minus the RMSE."""
        return reconstruction_scores(network, self.validation)

    def _validation(self) -> Iterator[MaskedBatch]:
        examples, size = draw_validation(self.dataset, self.split["validation"], self.recipe), self.recipe.batch.size
        rng = np.random.default_rng((self.recipe.seed, VALIDATION_MASKS))
        for start in range(0, len(examples), size):
            yield self._mask(collate(examples[start : start + size]), rng)

    def _mask(self, batch: Batch, rng: np.random.Generator) -> MaskedBatch:
        return MaskedBatch(batch, draw_masking(batch.mask_BL.numpy(), self.recipe.masking, rng))


def reconstruction_scores(network: nn.Module, batches: Iterable[MaskedBatch]) -> dict[str, float]:
    """RMSE and R2 of the probed observations of all batches, and minus the RMSE as ``score``."""
    total, device = ReconstructionScore(), next(network.parameters()).device
    for batch in batches:
        moved = to_device(batch, device)
        output: Reconstruction = network(*moved.curves.inputs_of(network), moved.masking)
        values = (output.target_BLK.float(), output.prediction_BLK.float(), moved.masking.probed_BL)
        total.add(*(value.cpu().numpy() for value in values))
    return {"score": -total.rmse, "rmse": total.rmse, "r2": total.r2}


def reconstruction_loss(output: Reconstruction, probed_BL: Tensor, kind: ReconstructionLoss) -> Tensor:
    """Error over probed observations, a scalar: ``mse`` over all of them, ``rmse`` over objects first."""
    error_BL = (output.prediction_BLK.float() - output.target_BLK.float()).square().mean(-1) * probed_BL
    if kind == "mse":
        return ranks.mean(error_BL.sum(), probed_BL.sum())
    error_B = error_BL.sum(1) / probed_BL.sum(1).clamp(min=1)
    return ranks.mean(error_B.sum(), len(error_B)).sqrt()
