"""Positional encodings of ASTROMER (Moreno et al. 2023) on Catalina's periodic variables: one band, 13 classes.

For each encoding: pretrain by masked reconstruction on the objects outside the labelled sample; freeze the encoder;
train classifiers on up to 500 objects per class in each of 3 folds, at full, 3/4, 1/2 and 1/4 cadence.

- reconstruction: RMSE (mag) and R2 of the probed observations in windows of objects held out from pretraining and
  validation; half of a window is probed, of which 60 % are hidden, 20 % random and 20 % shown as they are;
  Yardsticks for R2: 0 for the window's mean, 0.10 for half of the value shown at the place itself, 0.38 with the mean
  of what is visible within half an hour, for which times must be compared (the survey exposes four times a visit);
- convergence: the validation RMSE is measured every ``every`` steps; training ends after ``patience`` of them without a
  better one, or after ``steps``. Reported are the epochs (passes over the pretraining objects) until the RMSE was first
  within 2 % of the best: the step of the best itself depends on noise in the last digits;
- classification: the frozen encoder's vectors are computed once per cadence. Two heads read them: the paper's two LSTMs
  and a perceptron on their mean. Batches are class-balanced, a tenth of the training folds decides when to stop, and
  the fold held out is looked at once. Heads are trained and tested at the same cadence.

Notable: the paper pretrains 2 blocks of 4 x 64 heads on windows of 200 observations of MACHO (1.5 million curves) and
uses LSTMs of 256. The defaults here are what a CPU core does in minutes: windows of 128, a width of 64, LSTMs of 64.
``--window 200 --d-model 256 --d-ff 128 --lstm-width 256 --batch 512 --patience 40`` is the paper's network (on a GPU).
Frequencies are those of the authors' branch (base 1000, exponent 1, no 2 pi); ``rotary`` and ``modulation`` are not in
the paper.

Run::

    python -m training experiment encodings --data FILE --encoding pea
    python -m training experiment table encodings
"""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from training.experiments.records import Options

CADENCES = {"full": 1.0, "3/4": 0.75, "1/2": 0.5, "1/4": 0.25}
PER_CLASS, N_FOLDS = 500, 3
STEPS = 20_000
Head = Literal["lstm", "pool"]
EncodingName = Literal["baseline", "trainable", "fourier", "recurrent", "tupe", "concat", "pea", "rotary", "modulation"]


class Encodings(Options):
    """Pretrain ASTROMER with one positional encoding, then classify with its frozen encoder."""

    experiment: ClassVar[str] = "encodings"

    data: Path = Field(description="Parquet file of Catalina light curves")
    encoding: EncodingName = Field(description="how time enters")
    window: int = Field(default=128, ge=2, description="observations the network sees")
    d_model: int = Field(default=64, ge=2, description="width of the encoder")
    n_heads: int = Field(default=4, ge=1, description="attention heads")
    n_blocks: int = Field(default=2, ge=1, description="encoder blocks")
    d_ff: int = Field(default=64, ge=1, description="hidden width of the feed-forward part")
    batch: int = Field(default=32, ge=1, description="windows of a pretraining step")
    lr: float = Field(default=3e-3, gt=0, description="peak learning rate, constant after the warm-up")
    every: int = Field(default=250, ge=1, description="pretraining steps between validations")
    patience: int = Field(default=8, ge=1, description="validations without a better RMSE that end the pretraining")
    head: Literal["lstm", "pool", "both"] = Field(default="both", description="classifiers")
    lstm_width: int = Field(default=64, ge=1, description="of both LSTMs")
    head_steps: int = Field(
        default=250, ge=1, description="most steps of an LSTM head; of a pooled one four times that"
    )
    per_class: int = Field(default=PER_CLASS, ge=1, description="labelled objects of a class to train on")

    @property
    def heads(self) -> tuple[Head, ...]:
        """The classifiers to train."""
        return ("lstm", "pool") if self.head == "both" else (self.head,)
