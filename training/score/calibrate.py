"""Temperature scaling (Guo et al. 2017): one number that makes a network's probabilities mean what they say.

The temperature divides the logits of the predicting head. It is fitted on the validation split, over random views drawn
as in training, so that it fits what a broker asks about (few detections, missing metadata) and not only complete light
curves. Simulated classes are equally common, so the probabilities assume equally common classes too: reweight them by
your survey's rates before you count anything.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from models.bundle import Calibration
from models.lightcurve import Int64
from training.data.batches import draw_examples
from training.data.dataset import Dataset, split_indices
from training.fit.classify import predict
from training.recipes.schema import Recipe
from training.score.metrics import Float, ece, log_loss

CALIBRATION_DRAW = 2**32 + 1  # a generator of its own: neither training pools nor validation draws
LARGEST = 20.0  # temperatures are sought between its inverse and it
_GOLDEN = (5**0.5 - 1) / 2


class TemperatureFit(NamedTuple):
    """A fitted temperature and what it changed on the objects it was fitted to."""

    temperature: float
    ece_before: float
    ece_after: float
    log_loss_before: float
    log_loss_after: float
    objects: int

    def as_calibration(self) -> Calibration:
        """The manifest's record of it."""
        return Calibration(method="temperature", temperature=self.temperature, ece=self.ece_after, split="validation")


def softmax(logits_BC: Float, temperature: float = 1.0) -> NDArray[np.float64]:
    """Probabilities, shape (B, C), of logits divided by a temperature, in float64."""
    scaled_BC = logits_BC.astype(np.float64) / temperature
    weights_BC = np.exp(scaled_BC - scaled_BC.max(1, keepdims=True))
    probabilities_BC: NDArray[np.float64] = weights_BC / weights_BC.sum(1, keepdims=True)
    return probabilities_BC


def fit_temperature(logits_BC: Float, label_B: Int64) -> TemperatureFit:
    """Temperature of the smallest log loss, by golden-section search (the loss is convex in 1 / temperature).

    Raises
    ------
    ValueError
        Without objects, or with logits that are not finite.
    """
    if not len(label_B) or not np.isfinite(logits_BC).all():
        raise ValueError("a temperature needs at least one object, and finite logits")

    def loss(inverse: float) -> float:
        return log_loss(softmax(logits_BC, 1 / inverse), label_B)

    low, high = 1 / LARGEST, LARGEST
    while high - low > 1e-5 * low:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, right) if loss(left) <= loss(right) else (left, high)
    temperature = 2 / (low + high)
    before_BC, after_BC = softmax(logits_BC), softmax(logits_BC, temperature)
    return TemperatureFit(
        temperature=temperature,
        ece_before=ece(before_BC, label_B),
        ece_after=ece(after_BC, label_B),
        log_loss_before=log_loss(before_BC, label_B),
        log_loss_after=log_loss(after_BC, label_B),
        objects=len(label_B),
    )


def calibrate(network: nn.Module, dataset: Dataset, recipe: Recipe) -> TemperatureFit:
    """Fit a network's temperature on one random view of every validation object."""
    rng = np.random.default_rng((recipe.seed, CALIBRATION_DRAW))
    indices = split_indices(dataset, recipe.data.fractions)["validation"]
    examples = draw_examples(dataset, indices, recipe.data, recipe.augmentation, rng)
    examples.sort(key=lambda example: len(example.tokens))
    label_B = np.array([example.label for example in examples], dtype=np.int64)
    return fit_temperature(predict(network, examples, recipe.batch.size), label_B)
