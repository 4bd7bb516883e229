"""Position reconstruction (RoMAE, section 4, table 1): does a network with relative positions know absolute ones?

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

    python -m training experiment position --width 180 --seed 40
    python -m training experiment position --width 180 --cls false --seed 40

Legend: N draws, L = 10 tokens.
"""

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from training.experiments.records import Options

N_TOKENS = 10
LOW, HIGH = 1.0, 50.0
N_TRAIN, N_TEST = 20_000, 4_000
VARIANCE = (HIGH - LOW) ** 2 / 12
PAPER = {180: "0.062 ± 0.007", 432: "0.0057 ± 0.002", 720: "0.0031 ± 0.002"}
PAPER_WITHOUT_CLS = "200.33"


def draw_positions(split: Literal["train", "test"]) -> NDArray[np.float32]:
    """Positions [N, L] of a split; the same ones for every model seed."""
    n, stream = (N_TRAIN, 0) if split == "train" else (N_TEST, 1)
    return np.random.default_rng((40, stream)).uniform(LOW, HIGH, (n, N_TOKENS)).astype(np.float32)


class Position(Options):
    """Reconstruct the position of each token, with and without [CLS]; test MSE."""

    experiment: ClassVar[str] = "position"

    seed: int = Field(default=40, ge=0, description="of the weights and of the order of the batches; published: 40..44")
    width: int = Field(default=180, ge=12, multiple_of=12, description="d of the network; published: 180, 432, 720")
    cls: bool = Field(default=True, description="whether there is a [CLS] token; without one 200 is the best")
