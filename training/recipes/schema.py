"""Configuration of a training run, except the data file.

Recipes are immutable, and unknown fields are errors. :class:`FitConfig` has the settings of the training loop, for any
experiment; :class:`Recipe` adds the network, the data and the task of a run on light curves.
"""

from typing import Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from nightjar_alerts.models.lightcurve import Limits
from nightjar_alerts.models.networks.zoo import NetworkConfig, NetworkTask
from nightjar_alerts.models.photometry import BANDS, FluxUnit
from nightjar_alerts.training.data.augment import AugmentationConfig
from nightjar_alerts.training.data.targets import ForecastingConfig, MaskingConfig

Fraction = tuple[float, float, float]
ReconstructionLoss = Literal["mse", "rmse"]


class Frozen(BaseModel):
    """Base of the recipe models: immutable, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DataConfig(Frozen):
    """Settings for converting stored objects to examples."""

    limits: Limits = Limits()
    flux_unit: FluxUnit = "FLUXCAL"
    bands: tuple[str, ...] = Field(default=BANDS, description="bands of the network; other points are ignored")
    fractions: Fraction = Field(default=(0.8, 0.1, 0.1), description="train, validation, test")
    turn: float = Field(default=0.0, ge=0, lt=1, description="rotates the split: 0, 0.2, ... 0.8 are five folds")


class BatchConfig(Frozen):
    """Settings of the batches."""

    size: int = Field(default=256, ge=1)
    pool: int = Field(default=4, ge=1, description="batches drawn together and grouped by length, to save padding")
    balance: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="1: classes equally often; 0: as in the data; else share ** (1 - balance)",
    )


class OptimizerConfig(Frozen):
    """AdamW, gradient clipping and the averaged weights."""

    lr: float = Field(default=1e-4, gt=0, description="peak learning rate")
    body_lr: float = Field(default=1.0, ge=0, description="factor for all but heads and statistics; 0: frozen")
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled (AdamW)")
    decay: Literal["all", "matrices"] = Field(default="all", description="matrices: no decay of biases, norms, tokens")
    clip_norm: float | None = Field(default=1.0, gt=0)
    ema_decay: float | None = Field(default=None, gt=0, lt=1, description="averaged weights are scored and exported")


class ScheduleConfig(Frozen):
    """Length of the run and schedule of the learning rate."""

    steps: int = Field(ge=1)
    warmup_steps: int = Field(default=0, ge=0)
    shape: Literal["constant", "cosine"] = "cosine"
    cycles: int = Field(default=1, ge=1, description="number of cosines of equal length, each from the peak (SGDR)")
    final_fraction: float = Field(default=0.01, ge=0, le=1, description="fraction of the peak at the end of a cosine")
    patience: int | None = Field(default=None, ge=1, description="validations without a better score before stopping")


class ValidationConfig(Frozen):
    """Settings of validation, logging and checkpoints."""

    every: int = Field(default=500, ge=1, description="steps between validations; each saves a checkpoint")
    objects: int = Field(default=2_000, ge=1, description="validation curves, drawn once")
    log_every: int = Field(default=20, ge=1)
    keep: Literal["best", "last"] = Field(default="best", description="weights to keep; last: for few objects")


class FitConfig(Frozen):
    """Settings of the training loop."""

    name: str
    schedule: ScheduleConfig
    optimizer: OptimizerConfig = Field(
        default=OptimizerConfig(),
        validation_alias=AliasChoices("optimizer", "optimiser"),  # its name in the manifests of the shipped bundles
    )
    validation: ValidationConfig = ValidationConfig()
    seed: int = Field(default=0, ge=0)
    threads: int | None = Field(default=None, ge=1, description="torch threads; default: torch's own choice")
    bfloat16: bool = Field(default=False, description="autocast matrix products; no loss scaling is needed")
    device: Literal["cpu", "cuda"] = "cpu"


class Recipe(FitConfig):
    """Full configuration of a run on light curves, except the data file."""

    network: NetworkConfig
    task: NetworkTask = "classify"
    data: DataConfig = DataConfig()
    augmentation: AugmentationConfig = AugmentationConfig()
    batch: BatchConfig = BatchConfig()
    masking: MaskingConfig = Field(default=MaskingConfig(), description="masks of a reconstruction")
    reconstruction_loss: ReconstructionLoss = "mse"
    forecasting: ForecastingConfig = Field(default=ForecastingConfig(), description="queries of a forecaster")
    keep_heads: bool = Field(default=False, description="start from the heads of a pretrained run as well")

    @property
    def aux_weight(self) -> float:
        """Weight of the load-balance loss; 0 for networks without mixtures."""
        return getattr(self.network, "aux_weight", 0.0)
