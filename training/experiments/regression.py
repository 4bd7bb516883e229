"""Two regressions with RoMAE: positions of tokens, and angles of a pendulum in images.

**Position reconstruction** (RoMAE, section 4, table 1): does a network with relative positions know absolute ones?

Ten tokens, each with the value 1, at positions drawn from U(1, 50); the target of each token is its own position. The
learned [CLS] token sits at position 0 and gives the network an origin.

Notable:

- *without* [CLS] nothing can be learned, and the best prediction is the mean: its MSE is 49^2 / 12 = 200.08. The
  reason is stronger than shift invariance, from which alone one could do better (ten positions that span almost the
  whole range give the shift away; about 9 is possible): attention mixes values, all tokens have the same one, so every
  token stays equal to every other whatever the positions. A result below 200 by more than sampling (of 0.9 in the
  variance of the test draws) is a leak of position past the rotation;
- the text says positions from 0 to 50; the code draws from U(1, 50), and the printed 200.33 agrees with that and not
  with U(0, 50), whose variance is 208.33;
- the three widths share a feed-forward width of 720 and 3 heads: heads of 60, 144 and 240 channels, encoders of
  4.67, 16.4 and 37.3 million parameters.

AdamW (decay 0.01), peak 5e-4, batch 64, ten epochs of 20,000 fixed draws, 625 steps of warm-up, no clipping.

Run::

    nightjar-train experiment position --width 180 --seed 40
    nightjar-train experiment position --width 180 --cls false --seed 40

**Pendulum regression** (RKN, CRU, S5; RoMAE, table 5): the angle in irregular, noisy images.

50 of 100 frames of 24 x 24 pixels; predict (sin, cos) of the angle at each. Reported: ``MSE`` per element.

Notable:

- mind the published unit. RoMAE's script prints the sum of squared errors over 1,000 sequences, times 1e-3, and a
  sequence has 100 numbers: it prints *100 times* the MSE. The table's "3.32" in units of 1e-3 is most probably that
  print, hence an MSE near 3.3e-2, ten times S5's 3.41e-3 and not equal to it;
- ``head="cls"`` is the published network: [CLS] -> 100 numbers for 50 frames, whichever frames were kept, so it must
  carry all angles through 60 channels. ``head="frames"`` is the natural one: each frame's token -> its 2 numbers;
- the published inputs are (pixel / 255 - 0.002) / 0.0021, with a wrong mean and deviation, so they reach 475.
  ``scale="measured"`` uses the mean and deviation of the training pixels instead.

RoMAE with width 60, 2 heads, 2 layers, feed-forward 30; a frame is one patch, its number the position. AdamW 3e-4
(decay 0.01), batch 16, 50 epochs, 1,000 steps of warm-up, no clipping, loss = sum of squared errors.

Run (the images are drawn first, half a minute, and kept)::

    nightjar-train experiment pendulum --seed 42
    nightjar-train experiment pendulum --seed 42 --head frames --scale measured

The images:

- A pendulum (mass 1, length 1, friction 0.1, 29.43 = m g l / (m l^2 / 3)) starts at rest at a random angle; semi-
  implicit Euler, 100 steps of 1e-4 a frame, and its angular velocity gets a kick from N(0, 0.1^2) after each frame.
- The image of an angle is a rod of width 8 on 128 x 128 pixels, reduced to 24 x 24 (Lanczos).
- Image noise is correlated in time: a factor that walks in [0, 1], cut so that spells of pure noise and of clean images
  both occur, blends each image with uniform noise. The first five frames are clean.
- Of the 100 frames of a sequence 50 are kept (irregular sampling); the target is (sin, cos) of the angle at each.

2,000 training and 1,000 test sequences come from seed 42 and 1,000 validation sequences from seed 43, as in the
published sets; the order in which numbers are drawn is not theirs (all sequences move together here), the kept frames
are exactly theirs. Writing the sets takes about half a minute; they are cached.

Legend: N examples or sequences, B batch, L tokens, K values of a token or kept frames, A = 1 axis of position, O
numbers of a token, T frames, P side of an image in pixels.
"""

from collections.abc import Callable, Generator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from nightjar_alerts.models.common import replacing
from nightjar_alerts.models.lightcurve import Int64
from nightjar_alerts.models.networks.romae import TINY, Readout, RoMAEEncoderConfig, SequenceModel
from nightjar_alerts.training.experiments.options import (
    PENDULUM_BATCH,
    PENDULUM_EPOCHS,
    PENDULUM_PAPER,
    PENDULUM_TRAIN,
    PENDULUM_WARMUP,
    POSITION_PAPER,
    POSITION_PAPER_WITHOUT_CLS,
    POSITION_TRAIN,
    PUBLISHED_MEAN,
    PUBLISHED_STD,
    VARIANCE,
    Pendulum,
    Position,
    Scale,
    draw_positions,
)
from nightjar_alerts.training.experiments.runs import ExperimentPlan, epochs, fit_config
from nightjar_alerts.training.fit.loop import StepLoss, Task

N_FRAMES, N_KEPT, SIDE = 100, 50, 24
SIZES = {"train": 2_000, "test": 1_000, "validation": 1_000}

STEP, STEPS_PER_FRAME = 1e-4, 100  # seconds
GRAVITY, FRICTION = 29.43, 0.1  # of the angular acceleration, per second squared and per second
KICK = 0.1  # standard deviation of the velocity's noise per frame
CANVAS, ROD, WIDTH = 128, 55, 8  # pixels
CLEAN_FRAMES = 5

Float64 = NDArray[np.float64]
UInt8 = NDArray[np.uint8]


class Sequences(NamedTuple):
    """Kept frames of some pendulums.

    Attributes
    ----------
    image_NKPP : uint8 brightness.
    frame_NK : int64 number of each kept frame, 0 .. 99, in order of time.
    target_NK2 : float32 sine and cosine of the angle, which is 0 when the pendulum hangs at the lower edge.
    """

    image_NKPP: UInt8
    frame_NK: Int64
    target_NK2: NDArray[np.float32]


def swing(n: int, rng: np.random.Generator) -> Float64:
    """Angle [N, T] in [-pi, pi) of ``n`` pendulums."""
    angle_N, velocity_N = rng.uniform(0.0, 2 * np.pi, n), np.zeros(n)
    angle_NT = np.empty((n, N_FRAMES))
    for frame in range(N_FRAMES):
        angle_NT[:, frame] = angle_N
        angle_N, velocity_N = advance(angle_N, velocity_N)
        velocity_N += rng.normal(0.0, KICK, n)
    return angle_NT - np.pi


def advance(angle_N: Float64, velocity_N: Float64) -> tuple[Float64, Float64]:
    """Angle, measured from the highest point, and velocity one frame later, without noise."""
    for _ in range(STEPS_PER_FRAME):
        velocity_N = velocity_N + STEP * (GRAVITY * np.sin(angle_N) - FRICTION * velocity_N)
        angle_N = angle_N + STEP * velocity_N
    return angle_N % (2 * np.pi), velocity_N


def visibility(n: int, rng: np.random.Generator) -> Float64:
    """Share [N, T] of the clean image in each frame: a clipped random walk, stretched between random levels."""
    walk_NT = np.empty((n, N_FRAMES))
    walk_NT[:, 0] = rng.uniform(0.0, 1.0, n)
    for frame in range(1, N_FRAMES):
        walk_NT[:, frame] = np.clip(walk_NT[:, frame - 1] + rng.uniform(-0.2, 0.2, n), 0.0, 1.0)
    low_N1, high_N1 = rng.uniform(0.0, 0.25, (n, 1)), rng.uniform(0.75, 1.0, (n, 1))
    share_NT = np.clip((walk_NT - low_N1) / (high_N1 - low_N1), 0.0, 1.0)
    share_NT[:, :CLEAN_FRAMES] = 1.0
    return share_NT


def kept_frames(split: str) -> Int64:
    """Numbers of the kept frames [N, K] of a split, those of the published irregular sets."""
    first = {"train": SIZES["train"], "validation": SIZES["validation"], "test": 0}[split]
    generators = (np.random.default_rng(first + index) for index in range(SIZES[split]))
    return np.stack([np.sort(rng.choice(N_FRAMES, N_KEPT, replace=False)) for rng in generators])


def render(angle: float) -> UInt8:
    """Clean image [P, P] of one pendulum."""
    image = Image.new("F", (CANVAS, CANVAS), 0.0)
    centre = CANVAS / 2
    tip = (centre + ROD * np.sin(angle), centre + ROD * np.cos(angle))
    ImageDraw.Draw(image).line([(centre, centre), tip], fill=1.0, width=WIDTH)
    small_PP = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.LANCZOS))
    image_PP: UInt8 = (np.clip(small_PP, 0.0, 1.0) * 255.0).astype(np.uint8)
    return image_PP


def observe(angle: Float64, share: Float64, rng: np.random.Generator) -> UInt8:
    """Noisy images, of the shape of ``angle`` and two axes of pixels."""
    image = np.stack([render(value) for value in angle.ravel()]).reshape(*angle.shape, SIDE, SIDE)
    for row, share_K in zip(image.reshape(-1, angle.shape[-1], SIDE, SIDE), share, strict=True):
        noise_KPP = rng.uniform(0.0, 255.0, row.shape)
        row[:] = (share_K[:, None, None] * row + (1.0 - share_K[:, None, None]) * noise_KPP).astype(np.uint8)
    return image


def draw(n: int, frame_NK: Int64, rng: np.random.Generator) -> Sequences:
    """Draw ``n`` pendulums, seen at the frames given."""
    angle_NK = np.take_along_axis(swing(n, rng), frame_NK, axis=1)
    share_NK = np.take_along_axis(visibility(n, rng), frame_NK, axis=1)
    target_NK2 = np.stack([np.sin(angle_NK), np.cos(angle_NK)], axis=-1).astype(np.float32)
    return Sequences(observe(angle_NK, share_NK, rng), frame_NK, target_NK2)


def read_pendulums(split: str, cache: Path) -> Sequences:
    """Read a split from the cache folder, writing all three first when it is not there."""
    path = cache / f"{split}.npz"
    if not path.exists():
        _write_all(cache)
    with np.load(path) as stored:
        return Sequences(**{name: stored[name] for name in Sequences._fields})


def _write_all(cache: Path) -> None:
    first, second = np.random.default_rng(42), np.random.default_rng(43)
    for split, rng in (("train", first), ("test", first), ("validation", second)):
        with replacing(cache / f"{split}.npz", ".npz", shared=True) as partial:  # two runs may start together
            np.savez(partial, allow_pickle=False, **draw(SIZES[split], kept_frames(split), rng)._asdict())


AT_ONCE = 250  # examples of an evaluation batch
VALIDATED = 500  # examples that the log is about; the record is about all


class Examples(NamedTuple):
    """Tokens and what to say about them; also the batch."""

    values_NLK: Tensor
    position_NLA: Tensor
    target_NLO: Tensor

    def take(self, index: "np.typing.NDArray[np.int64] | slice") -> "Examples":
        """Return some of the examples."""
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

    def loss(self, network: nn.Module, batch: Examples) -> StepLoss:
        """Sum or mean of the squared errors; the log has the mean."""
        prediction_BLO = self.predict(network, batch)
        mean = mse_loss(prediction_BLO, batch.target_NLO)
        return StepLoss(mean * prediction_BLO.numel() if self.summed else mean, {"mse": mean})

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


def position_plan(options: Position) -> ExperimentPlan:
    """Network, task and measure of position reconstruction."""
    torch.manual_seed(options.seed)
    encoder = RoMAEEncoderConfig(d_model=options.width, n_heads=TINY.n_heads, depth=TINY.depth, d_ff=720)
    network = SequenceModel(1, 1, 1, encoder, "token", cls=options.cls)
    train, test = (_position_examples(draw_positions(split)) for split in ("train", "test"))
    task = Regression(train, test.take(slice(VALIDATED)), batch_size=64, seed=options.seed)
    steps = 10 * -(-POSITION_TRAIN // task.batch_size)
    return ExperimentPlan(
        variant=f"{'cls' if options.cls else 'no-cls'}-{options.width}",
        network=network,
        task=task,
        fit=fit_config(options, steps=steps, warmup=625, lr=5e-4, clip_norm=None),
        published_steps=steps,
        measure=lambda trained: {"MSE": task.mse(trained, test)},
        paper={"MSE": POSITION_PAPER.get(options.width, "none") if options.cls else POSITION_PAPER_WITHOUT_CLS},
        floor={"MSE": 0.0 if options.cls else VARIANCE},
    )


def _position_examples(position_NL: "np.typing.NDArray[np.float32]") -> Examples:
    position_NL1 = torch.from_numpy(position_NL)[..., None]
    return Examples(torch.ones_like(position_NL1), position_NL1, position_NL1)


def pendulum_plan(options: Pendulum) -> ExperimentPlan:
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
        batch_size=PENDULUM_BATCH,
        seed=options.seed,
        prepare=_standardise(options.scale, train.values_NLK),
        summed=True,
    )
    steps = PENDULUM_EPOCHS * -(-PENDULUM_TRAIN // PENDULUM_BATCH)
    return ExperimentPlan(
        variant=f"{options.head}-{options.scale}",
        network=network,
        task=task,
        fit=fit_config(options, steps=steps, warmup=PENDULUM_WARMUP, lr=3e-4, clip_norm=None),
        published_steps=steps,
        measure=lambda trained: {"MSE": task.mse(trained, test)},
        paper={"MSE": PENDULUM_PAPER[options.head]},
    )


def _pendulum_examples(sequences: Sequences) -> Examples:
    image_NKP = torch.from_numpy(sequences.image_NKPP).flatten(2)
    frame_NK1 = torch.from_numpy(sequences.frame_NK).float()[..., None]
    return Examples(image_NKP, frame_NK1, torch.from_numpy(sequences.target_NK2))


def _standardise(scale: Scale, image_NKP: Tensor) -> Callable[[Tensor], Tensor]:
    mean, std = PUBLISHED_MEAN, PUBLISHED_STD
    if scale == "measured":
        some = image_NKP.flatten()[::7]  # eight million pixels will do
        histogram = torch.bincount(some.int(), minlength=256).double()
        level = torch.arange(256, dtype=torch.float64) / 255.0
        mean = float((histogram * level).sum() / histogram.sum())
        std = float((histogram * (level - mean) ** 2).sum() / histogram.sum()) ** 0.5
    return lambda image: (image.float() / 255.0 - mean) / std
