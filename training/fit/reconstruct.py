"""RMSE and R2 of a masked reconstruction, as ASTROMER's released code defines them.

    RMSE = sqrt(mean over objects of the mean over its probed observations of (x - x^)^2)
    R2   = 1 - sum of (x - x^)^2 / sum of (x - mean of the object's probed x)^2, sums over all probed observations

Notable: the root is taken last, and every object weighs the same in the RMSE, however many observations it has. An
object without probed observations counts as reconstructed without error, as in the released code. R2 is relative to
predicting each object's own mean, which a network that has learned nothing but brightness does not reach; relative to
one mean for all objects it would be larger.

Legend: B objects, L length, K values per observation.

Masked reconstruction: pretraining on light curves without using their labels.

Notable: which observations are probed, hidden or replaced is drawn from (seed, pool number) like the views themselves,
so a resumed run hides what an uninterrupted one would have hidden; validation masks are drawn once. The loss is read as
the papers do: ``mse`` over all probed observations (RoMAE) or ``rmse``, the root of the mean over objects of each
object's masked MSE (ASTROMER).
"""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.lightcurve import Bool, Int64
from models.networks import ranks
from models.networks.network import Masking, Reconstruction
from training.data.batches import Batch, collate, stream
from training.data.dataset import Dataset
from training.data.masking import draw_masking
from training.fit.classify import draw_validation
from training.fit.loop import Step, Task, to_device
from training.fit.optimise import StarvationWatch, expert_loads, expert_shares, load_range
from training.recipes.schema import Recipe, ReconstructionLoss

Float = NDArray[np.floating]


@dataclass(slots=True)
class ReconstructionScore:
    """Sums over the batches added so far."""

    objects: int = 0
    mean_squares: float = 0.0
    squares: float = 0.0
    deviations: float = 0.0

    def add(self, target_BLK: Float, prediction_BLK: Float, probed_BL: Bool) -> None:
        """Take in a padded batch; only places in ``probed_BL`` count."""
        target_BLK, probed_BL1 = target_BLK.astype(np.float64), probed_BL[..., None]
        count_B = np.maximum(probed_BL.sum(1), 1)
        error_B = ((prediction_BLK - target_BLK) ** 2 * probed_BL1).mean(2).sum(1)
        mean_B1K = (target_BLK * probed_BL1).sum(1, keepdims=True) / count_B[:, None, None]
        self.objects += len(probed_BL)
        self.mean_squares += float((error_B / count_B).sum())
        self.squares += float(error_B.sum())
        self.deviations += float((((target_BLK - mean_B1K) ** 2) * probed_BL1).mean(2).sum())

    @property
    def rmse(self) -> float:
        """Root of the mean over objects of their mean squared error; NaN before anything was added."""
        return float(np.sqrt(self.mean_squares / self.objects)) if self.objects else float("nan")

    @property
    def r2(self) -> float:
        """Share of the variance about each object's mean that is predicted; NaN where there is none."""
        return 1.0 - self.squares / self.deviations if self.deviations else float("nan")


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
