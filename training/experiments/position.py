"""Position reconstruction (RoMAE, section 4, table 1): can a network with relative positions learn absolute ones?

Ten tokens, each with the value 1, are at positions drawn from U(1, 50); the target of each token is its position. The
learned [CLS] token is at position 0 and gives the network an origin.

Notable:

- *without* [CLS] nothing can be learned, and the best prediction is the mean, with an MSE of 49^2 / 12 = 200.08.
  Attention mixes values, and all tokens have the same value, so all tokens remain equal for any positions. (With shift
  invariance only, an MSE of about 9 would be possible, since ten positions that span almost the whole range determine
  the shift.) A result below 200 by more than the sampling error (0.9 in the variance of the test positions) means that
  positions are used outside the rotation;
- the paper states positions from 0 to 50; the code draws from U(1, 50), which agrees with the printed 200.33, while the
  variance of U(0, 50) is 208.33;
- the three widths share a feed-forward width of 720 and 3 heads: heads of 60, 144 and 240 channels, encoders of
  4.67, 16.4 and 37.3 million parameters.

AdamW (decay 0.01), peak 5e-4, batch 64, ten epochs of 20,000 fixed draws, 625 steps of warm-up, no clipping.

Run::

    nightjar-train experiment position --width 180 --seed 40
    nightjar-train experiment position --width 180 --cls false --seed 40

Legend: N examples, B batch, L tokens, K values of a token, A = 1 axis of position, O numbers of a token.
"""

from collections.abc import Callable, Generator
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from nightjar_alerts.models.networks.romae import TINY, RoMAEEncoderConfig, SequenceModel
from nightjar_alerts.training.experiments.runner import ExperimentOptions, ExperimentPlan, epochs, fit_config
from nightjar_alerts.training.fit.loop import StepLoss, Task

N_TOKENS = 10
LOW, HIGH = 1.0, 50.0
POSITION_TRAIN, POSITION_TEST = 20_000, 4_000
VARIANCE = (HIGH - LOW) ** 2 / 12
POSITION_PAPER = {180: "0.062 ± 0.007", 432: "0.0057 ± 0.002", 720: "0.0031 ± 0.002"}
POSITION_PAPER_WITHOUT_CLS = "200.33"


def draw_positions(split: Literal["train", "test"]) -> NDArray[np.float32]:
    """Return the positions [N, L] of a split, which are the same for every model seed."""
    n, stream = (POSITION_TRAIN, 0) if split == "train" else (POSITION_TEST, 1)
    return np.random.default_rng((40, stream)).uniform(LOW, HIGH, (n, N_TOKENS)).astype(np.float32)


AT_ONCE = 250  # examples of an evaluation batch
VALIDATED = 500  # examples for validation scores; the record uses all


class Examples(NamedTuple):
    """Tokens and targets of examples or of a batch."""

    values_NLK: Tensor
    position_NLA: Tensor
    target_NLO: Tensor

    def take(self, index: "np.typing.NDArray[np.int64] | slice") -> "Examples":
        """Return some of the examples."""
        return Examples(*(part[index] for part in self))


class Regression(Task):
    """Regression by squared error, its sum over the batch if ``summed``, or else its mean.

    Parameters
    ----------
    prepare : converts stored values to inputs of the network, on its device.
    """

    def __init__(
        self,
        train: Examples,
        validation: Examples,
        *,
        batch_size: int,
        seed: int,
        prepare: Callable[[Tensor], Tensor] = Tensor.float,
        summed: bool = False,
    ) -> None:
        self.train, self.validation, self.batch_size, self.seed = train, validation, batch_size, seed
        self.prepare, self.summed = prepare, summed

    def batches(self, step: int) -> Generator[Examples, None, None]:
        """Yield the batches of shuffled epochs over all training examples."""
        for index in epochs(len(self.train.target_NLO), self.batch_size, self.seed, step):
            yield self.train.take(index)

    def predict(self, network: nn.Module, batch: Examples) -> Tensor:
        """Return the predictions [B, L, O] for a batch."""
        mask_BL = torch.ones_like(batch.position_NLA[..., 0], dtype=torch.bool)
        out: Tensor = network(self.prepare(batch.values_NLK), batch.position_NLA, mask_BL)
        return out.view(batch.target_NLO.shape)  # a [CLS] readout gives the numbers of all tokens in one row

    def loss(self, network: nn.Module, batch: Examples) -> StepLoss:
        """Return the sum or mean of the squared errors; the mean is logged."""
        prediction_BLO = self.predict(network, batch)
        mean = mse_loss(prediction_BLO, batch.target_NLO)
        return StepLoss(mean * prediction_BLO.numel() if self.summed else mean, {"mse": mean})

    def score(self, network: nn.Module) -> dict[str, float]:
        """Return the MSE of the validation examples; the score is minus that."""
        mse = self.mse(network, self.validation)
        return {"score": -mse, "mse": mse}

    def mse(self, network: nn.Module, examples: Examples) -> float:
        """Return the mean squared error per element."""
        device, total = next(network.parameters()).device, 0.0
        for start in range(0, len(examples.target_NLO), AT_ONCE):
            part = Examples(*(tensor.to(device) for tensor in examples.take(slice(start, start + AT_ONCE))))
            total += ((self.predict(network, part) - part.target_NLO).double() ** 2).sum().item()
        return total / examples.target_NLO.numel()


class Position(ExperimentOptions):
    """Reconstruct the position of each token, with and without [CLS]; test MSE."""

    experiment: ClassVar[str] = "position"

    seed: int = Field(default=40, ge=0, description="seed of weights and order of batches; published: 40..44")
    width: int = Field(default=180, ge=12, multiple_of=12, description="width of the network; published: 180, 432, 720")
    cls: bool = Field(default=True, description="use a [CLS] token; without it the best MSE is 200")

    def plan(self) -> ExperimentPlan:
        """Return network, task and metrics."""
        torch.manual_seed(self.seed)
        encoder = RoMAEEncoderConfig(d_model=self.width, n_heads=TINY.n_heads, depth=TINY.depth, d_ff=720)
        network = SequenceModel(1, 1, 1, encoder, "token", cls=self.cls)
        train, test = (_position_examples(draw_positions(split)) for split in ("train", "test"))
        task = Regression(train, test.take(slice(VALIDATED)), batch_size=64, seed=self.seed)
        steps = 10 * -(-POSITION_TRAIN // task.batch_size)
        return ExperimentPlan(
            variant=f"{'cls' if self.cls else 'no-cls'}-{self.width}",
            network=network,
            task=task,
            fit=fit_config(self, steps=steps, warmup=625, lr=5e-4, clip_norm=None),
            published_steps=steps,
            measure=lambda trained: {"MSE": task.mse(trained, test)},
            paper={"MSE": POSITION_PAPER.get(self.width, "none") if self.cls else POSITION_PAPER_WITHOUT_CLS},
            floor={"MSE": 0.0 if self.cls else VARIANCE},
        )


def _position_examples(position_NL: "np.typing.NDArray[np.float32]") -> Examples:
    position_NL1 = torch.from_numpy(position_NL)[..., None]
    return Examples(torch.ones_like(position_NL1), position_NL1, position_NL1)
