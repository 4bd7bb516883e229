"""Astro-MoE's comparisons: fixed encoding against time modulation, experts against dense, pretrained against not.

Every arm differs from the reference, ``tm`` (time modulation, experts, from scratch), in one thing, and sees the same
curves in the same views in the same number of steps:

    tm          Astro-MoE (TM)
    pe          Astro-MoE (PE): fixed sinusoids added (eq 6), which say nothing about the band
    pe-band     the same with a learned vector per band, which separates the time encoding from that
    dense       every mixture replaced by one dense layer
    pe-dense    both: the paper's "Multiband-Astromer" baseline
    pretrained  ``tm`` after masked reconstruction of other steps' worth of curves, labels unused
    trees       the floor: boosted trees (simulated) or a random forest (MALLORN) on summary features

Data:

- ``simulated``: the file of ``python -m training simulate``, 20 classes; the views, split and limits of the shipped
  model's recipe. The test curves are shown in full and again without metadata; pretraining sees the training curves;
- ``mallorn``: the folder of the challenge, five classes, redshift and extinction as metadata, complete curves; one of
  five stratified folds is held out, fold ``seed % 5``. Pretraining sees the unlabelled curves. Objects that share a
  parent may sit on both sides of a split (see ``training.experiments.mallorn``), for all arms alike.

Notable: the paper's network is 192 wide and trained for 400,000 steps of 256 curves of ELAsTiCC, which is ``--width 192
--batch 256 --steps 400000``; the defaults do all arms in an hour of one CPU core. An eighth of the training folds
(MALLORN) or the recipe's validation split decides which weights are scored. The pretraining of a data set is shared by
all seeds.

Run::

    python -m training experiment astro-moe --dataset simulated --data build/sim.parquet --arm tm --seed 0
    python -m training experiment astro-moe --dataset mallorn --data DIR --arm pretrained --seed 3
"""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from training.experiments.records import Options

Arm = Literal["tm", "pe", "pe-band", "dense", "pe-dense", "pretrained", "trees"]
N_FOLDS = 5
STEPS = {"simulated": 1_500, "mallorn": 1_000}
PUBLISHED_STEPS = 400_000


class AstroMoEArm(Options):
    """Train one arm of Astro-MoE's comparisons; macro-F1 on untouched objects."""

    experiment: ClassVar[str] = "astro-moe"

    seed: int = Field(default=0, ge=0, description="of weights, draws and, for MALLORN, which fold is held out")
    dataset: Literal["simulated", "mallorn"] = Field(description="which data")
    data: Path = Field(description="Parquet file of `simulate`, or the folder of MALLORN")
    arm: Arm = Field(description="what is compared")
    width: int = Field(default=64, ge=8, multiple_of=8, description="of the light-curve branch; the paper's is 192")
    batch: int = Field(default=16, ge=2, description="curves of a step")
    lr: float = Field(default=1e-3, gt=0, description="peak learning rate")
    pretrain_steps: int = Field(default=1_000, ge=1, description="steps of masked reconstruction, for `pretrained`")
    objects: int = Field(default=2_000, ge=1, description="test objects of the simulated set")
    examples: int = Field(default=10_000, ge=100, description="training draws of the boosted trees")
