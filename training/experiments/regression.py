"""RoMAE trained to give numbers for tokens: the networks and tasks of the position and the pendulum experiments.

Legend: N examples, B batch, L tokens, K values of a token, A = 1 axis of position, O numbers of a token.
"""

from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from models.romae_encoder import TINY, RoMAEEncoderConfig
from models.romae_sequence import Readout, SequenceModel
from training.experiments import pendulum, position
from training.experiments.pendulum_data import N_KEPT, SIDE, Sequences, read_pendulums
from training.experiments.runs import Plan, epochs, fit_config
from training.fit.loop import Step, Task

AT_ONCE = 250  # examples of an evaluation batch
VALIDATED = 500  # examples that the log is about; the record is about all


class Examples(NamedTuple):
    """Tokens and what to say about them; also the batch."""

    values_NLK: Tensor
    position_NLA: Tensor
    target_NLO: Tensor

    def take(self, index: "np.typing.NDArray[np.int64] | slice") -> "Examples":
        """Some of the examples."""
        return Examples(*(part[index] for part in self))


class Regression(Task):
    """Squared error of every number; its sum over the batch where ``summed``, else its mean.

    Parameters
    ----------
    prepare : from stored values to the network's inputs, on the network's device.
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
        """Epochs over all training examples, shuffled."""
        for index in epochs(len(self.train.target_NLO), self.batch_size, self.seed, step):
            yield self.train.take(index)

    def predict(self, network: nn.Module, batch: Examples) -> Tensor:
        """Numbers [B, L, O] of a batch."""
        mask_BL = torch.ones_like(batch.position_NLA[..., 0], dtype=torch.bool)
        out: Tensor = network(self.prepare(batch.values_NLK), batch.position_NLA, mask_BL)
        return out.view(batch.target_NLO.shape)  # a [CLS] readout gives the numbers of all tokens in one row

    def loss(self, network: nn.Module, batch: Examples) -> Step:
        """Sum or mean of the squared errors; the log has the mean."""
        prediction_BLO = self.predict(network, batch)
        mean = mse_loss(prediction_BLO, batch.target_NLO)
        return Step(mean * prediction_BLO.numel() if self.summed else mean, {"mse": mean})

    def score(self, network: nn.Module) -> dict[str, float]:
        """MSE of the validation examples; the score is minus that."""
        mse = self.mse(network, self.validation)
        return {"score": -mse, "mse": mse}

    def mse(self, network: nn.Module, examples: Examples) -> float:
        """Mean squared error per number."""
        device, total = next(network.parameters()).device, 0.0
        for start in range(0, len(examples.target_NLO), AT_ONCE):
            part = Examples(*(tensor.to(device) for tensor in examples.take(slice(start, start + AT_ONCE))))
            total += ((self.predict(network, part) - part.target_NLO).double() ** 2).sum().item()
        return total / examples.target_NLO.numel()


def position_plan(options: position.Position) -> Plan:
    """Network, task and measure of position reconstruction."""
    torch.manual_seed(options.seed)
    encoder = RoMAEEncoderConfig(d_model=options.width, n_heads=TINY.n_heads, depth=TINY.depth, d_ff=720)
    network = SequenceModel(1, 1, 1, encoder, "token", cls=options.cls)
    train, test = (_position_examples(position.draw_positions(split)) for split in ("train", "test"))
    task = Regression(train, test.take(slice(VALIDATED)), batch_size=64, seed=options.seed)
    steps = 10 * -(-position.N_TRAIN // task.batch_size)
    return Plan(
        variant=f"{'cls' if options.cls else 'no-cls'}-{options.width}",
        network=network,
        task=task,
        fit=fit_config(options, steps=steps, warmup=625, lr=5e-4, clip_norm=None),
        published_steps=steps,
        measure=lambda trained: {"MSE": task.mse(trained, test)},
        paper={"MSE": position.PAPER.get(options.width, "none") if options.cls else position.PAPER_WITHOUT_CLS},
        floor={"MSE": 0.0 if options.cls else position.VARIANCE},
    )


def _position_examples(position_NL: "np.typing.NDArray[np.float32]") -> Examples:
    position_NL1 = torch.from_numpy(position_NL)[..., None]
    return Examples(torch.ones_like(position_NL1), position_NL1, position_NL1)


def pendulum_plan(options: pendulum.Pendulum) -> Plan:
    """Network, task and measure of pendulum regression."""
    torch.manual_seed(options.seed)
    encoder = RoMAEEncoderConfig(d_model=60, n_heads=2, depth=2, d_ff=30)
    readout: Readout = "cls" if options.head == "cls" else "token"
    n_outputs = 2 * N_KEPT if options.head == "cls" else 2
    network = SequenceModel(SIDE * SIDE, n_outputs, 1, encoder, readout, cls=True)
    train, validation, test = (
        _pendulum_examples(read_pendulums(split, options.cache)) for split in ("train", "validation", "test")
    )
    task = Regression(
        train,
        validation.take(slice(VALIDATED)),
        batch_size=pendulum.BATCH,
        seed=options.seed,
        prepare=_standardise(options.scale, train.values_NLK),
        summed=True,
    )
    steps = pendulum.EPOCHS * -(-pendulum.N_TRAIN // pendulum.BATCH)
    return Plan(
        variant=f"{options.head}-{options.scale}",
        network=network,
        task=task,
        fit=fit_config(options, steps=steps, warmup=pendulum.WARMUP, lr=3e-4, clip_norm=None),
        published_steps=steps,
        measure=lambda trained: {"MSE": task.mse(trained, test)},
        paper={"MSE": pendulum.PAPER[options.head]},
    )


def _pendulum_examples(sequences: Sequences) -> Examples:
    image_NKP = torch.from_numpy(sequences.image_NKPP).flatten(2)
    frame_NK1 = torch.from_numpy(sequences.frame_NK).float()[..., None]
    return Examples(image_NKP, frame_NK1, torch.from_numpy(sequences.target_NK2))


def _standardise(scale: pendulum.Scale, image_NKP: Tensor) -> Callable[[Tensor], Tensor]:
    mean, std = pendulum.PUBLISHED_MEAN, pendulum.PUBLISHED_STD
    if scale == "measured":
        some = image_NKP.flatten()[::7]  # eight million pixels will do
        histogram = torch.bincount(some.int(), minlength=256).double()
        level = torch.arange(256, dtype=torch.float64) / 255.0
        mean = float((histogram * level).sum() / histogram.sum())
        std = float((histogram * (level - mean) ** 2).sum() / histogram.sum()) ** 0.5
    return lambda image: (image.float() / 255.0 - mean) / std
