"""Recipes: every named run is a function that returns its full configuration.

Notable:

- the three paper recipes hold the networks whose sizes the paper states: 4,640,422 (``astro-moe-pe``), 4,935,334
  (``astro-moe-tm``) and 1,525,372 (``multiband-astromer``) parameters, with its dropout 0.1, Adam at 1e-4, batches of
  256, load-balance weight 0.01 and ATAT's temporal augmentation; what the paper leaves open is ATAT's (Cabrera-Vives
  et al. 2024);
- ``default`` is the shipped model: ``astro-moe-tm`` at two thirds of its width, sized for an hour on a CPU core, on
  views of the curves as real Rubin and ZTF alerts show them (few detections, no metadata, g and r only);
- ``default-dense`` is its twin without experts, for comparisons of speed;
- ``debug`` runs the whole pipeline in under a minute;
- a variant calls its parent and changes what differs, so a diff of two recipes is a diff of two functions.

Print one, resolved::

    python -m training describe default
"""

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from models.astro_moe import AstroMoEConfig
from models.lightcurve import FluxUnit, Limits
from training.augment import AugmentationConfig

Fraction = tuple[float, float, float]


class Frozen(BaseModel):
    """Base of every part of a recipe: immutable, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DataConfig(Frozen):
    """How stored objects become examples."""

    limits: Limits = Limits()
    flux_unit: FluxUnit = "FLUXCAL"
    fractions: Fraction = Field(default=(0.8, 0.1, 0.1), description="train, validation, test")


class BatchConfig(Frozen):
    """How examples become batches."""

    size: int = Field(default=256, ge=1)
    pool: int = Field(default=4, ge=1, description="batches drawn together and grouped by length, to save padding")
    balanced: bool = Field(default=True, description="classes equally often, whatever their share of the data")


class OptimiserConfig(Frozen):
    """Adam, gradient clipping and the averaged weights."""

    lr: float = Field(default=1e-4, gt=0, description="peak learning rate")
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled (AdamW)")
    clip_norm: float | None = Field(default=1.0, gt=0)
    ema_decay: float | None = Field(default=None, gt=0, lt=1, description="averaged weights are scored and exported")


class ScheduleConfig(Frozen):
    """Length of the run and the learning rate over it."""

    steps: int = Field(ge=1)
    warmup_steps: int = Field(default=0, ge=0)
    shape: Literal["constant", "cosine"] = "cosine"
    cycles: int = Field(default=1, ge=1, description="cosines, each of equal length and from the peak (SGDR)")
    final_fraction: float = Field(default=0.01, ge=0, le=1, description="of the peak, at the end of each cosine")
    patience: int | None = Field(default=None, ge=1, description="validations without a better score before stopping")


class ValidationConfig(Frozen):
    """When the run is scored, logged and saved."""

    every: int = Field(default=500, ge=1, description="steps between validations; each saves a checkpoint")
    objects: int = Field(default=2_000, ge=1, description="validation curves, drawn once")
    log_every: int = Field(default=20, ge=1)


class Recipe(Frozen):
    """Everything that decides a training run, except the data file."""

    name: str
    network: AstroMoEConfig
    schedule: ScheduleConfig
    data: DataConfig = DataConfig()
    augmentation: AugmentationConfig = AugmentationConfig()
    batch: BatchConfig = BatchConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    validation: ValidationConfig = ValidationConfig()
    seed: int = Field(default=0, ge=0)
    threads: int | None = Field(default=None, ge=1, description="torch threads; default: torch's own choice")
    bfloat16: bool = Field(default=False, description="autocast matrix products to bfloat16")


def astro_moe_tm() -> Recipe:
    """Astro-MoE with time modulation (eq. 7): 4,935,334 parameters."""
    return Recipe(
        name="astro-moe-tm",
        network=AstroMoEConfig(time_encoding="modulation"),
        schedule=ScheduleConfig(steps=400_000, shape="constant", patience=3),
        validation=ValidationConfig(every=20_000, objects=20_000, log_every=100),
        optimiser=OptimiserConfig(clip_norm=None),
    )


def astro_moe_pe() -> Recipe:
    """Astro-MoE with fixed positional encoding (eq. 6): 4,640,422 parameters."""
    return _with_network(astro_moe_tm(), "astro-moe-pe", time_encoding="sinusoidal")


def multiband_astromer() -> Recipe:
    """The paper's baseline, every mixture replaced by one dense layer: 1,525,372 parameters."""
    return _with_network(astro_moe_pe(), "multiband-astromer", n_experts=0, n_input_experts=0)


def default() -> Recipe:
    """The shipped model: Astro-MoE with time modulation at two thirds of the paper's width, 2,140,966 parameters.

    Sized, like its schedule, for an hour on a CPU core; trained on views as real alerts show them.
    """
    compact = {"d_model": 128, "d_ff": 256, "d_tab": 64, "tab_ff": 128, "tab_blocks": 2}
    learning = {"dropout": 0.0, "modulation_init_std": 0.125}  # 1 / sqrt(harmonics): modulations start near unit size
    return _with_network(astro_moe_tm(), "default", **compact, **learning).model_copy(
        update={
            "schedule": ScheduleConfig(steps=7_200, warmup_steps=200, cycles=2),
            "batch": BatchConfig(size=64, pool=16),
            "optimiser": OptimiserConfig(lr=1e-3, ema_decay=0.998),
            "validation": ValidationConfig(),
            "threads": 1,  # a second seed beside it uses the other core better than a second thread
            "augmentation": AugmentationConfig(
                at_detection=0.5,
                as_ztf=0.1,
                ztf_brightness=(15.0, 60.0),
                g_r_only=0.1,
                detected_only=0.15,
                short_history=0.1,
                no_metadata=0.3,
                no_host=0.1,
                no_redshift=0.2,
            ),
        }
    )


def default_dense() -> Recipe:
    """The dense twin of the shipped model: what the speed and the worth of its experts are measured against."""
    return _with_network(default(), "default-dense", n_experts=0, n_input_experts=0)


def debug() -> Recipe:
    """A network small enough to run the whole pipeline in under a minute on two cores."""
    network = {"d_model": 32, "n_heads": 2, "n_blocks": 2, "d_ff": 64, "n_harmonics": 8, "n_experts": 4}
    tabular = {"d_tab": 32, "tab_heads": 2, "tab_blocks": 1, "tab_ff": 64}
    return _with_network(default(), "debug", **network, **tabular).model_copy(
        update={
            "schedule": ScheduleConfig(steps=100, warmup_steps=10),
            "batch": BatchConfig(size=32),
            "optimiser": OptimiserConfig(lr=3e-3, ema_decay=0.9),
            "validation": ValidationConfig(every=50, objects=100, log_every=10),
        }
    )


def _with_network(recipe: Recipe, name: str, **changes: object) -> Recipe:
    network = AstroMoEConfig.model_validate({**recipe.network.model_dump(), **changes})
    return recipe.model_copy(update={"name": name, "network": network})


RECIPES: dict[str, Callable[[], Recipe]] = {
    "astro-moe-pe": astro_moe_pe,
    "astro-moe-tm": astro_moe_tm,
    "multiband-astromer": multiband_astromer,
    "default": default,
    "default-dense": default_dense,
    "debug": debug,
}
