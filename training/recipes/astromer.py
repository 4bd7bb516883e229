"""ASTROMER in the r band: pretraining by reconstruction, classifiers of the first and the second version, small twins.

Notable:

- sizes are those of the weights released for MACHO: two blocks (six in v2) of width 256 with four heads, windows of 200
  observations; ``astromer`` follows the published pseudo-code, ``astromer-v2`` the released second version;
- a network in one band sees 200 observations of that band, with nothing cut before the trigger: the periodic variables
  it was made for have none;
- half of a window is probed, counted as the released code does (``training.data.targets``), and the loss is its RMSE;
- the released optimiser is Adam(0.9, 0.98) under Noam's schedule, which for this width warms up over 4,000 steps to
  9.9e-4; a cosine takes the place of its slow decay, so that a run has an end.

Pretrain, then classify from its weights::

    python -m training train astromer-pretraining --data build/sim.parquet
    python -m training train astromer --data build/sim.parquet --pretrained runs/astromer-pretraining
"""

from models.bands import BANDS
from models.lightcurve import Limits
from models.networks.astromer import AstromerConfig
from training.data.augment import AugmentationConfig
from training.data.targets import MaskingConfig
from training.recipes.schema import (
    BatchConfig,
    DataConfig,
    OptimiserConfig,
    Recipe,
    ScheduleConfig,
    ValidationConfig,
)

NOTE = AstromerConfig(band=BANDS.index("r"), flux_scale=3.0)  # FLUXCAL: the noise of a Rubin visit, 24.5 mag at 5 sigma
V2 = NOTE.model_copy(
    update={
        "version": "v2",
        "n_blocks": 6,
        "pe_base": 10_000.0,  # what the released code computes, whatever is configured
        "pe_exponent": 2.0,
        "layer_mix": True,
        "head": "pool",
    }
)
LONG = ScheduleConfig(steps=200_000, warmup_steps=4_000)
DEBUG = NOTE.model_copy(update={"d_model": 32, "n_heads": 2, "d_ff": 32, "lstm_width": 32, "dropout": 0.0})


def astromer() -> Recipe:
    """Return the published pseudo-code with the LSTM classifier; the encoder learns on."""
    return Recipe(
        name="astromer",
        network=NOTE,
        data=DataConfig(limits=Limits(max_points_per_band=NOTE.window, pre_trigger_days=None), bands=("r",)),
        augmentation=AugmentationConfig(mta_days=()),
        schedule=ScheduleConfig(steps=20_000, warmup_steps=500),
        batch=BatchConfig(size=256),
        optimiser=OptimiserConfig(lr=1e-3, betas=(0.9, 0.98)),
    )


def astromer_v2() -> Recipe:
    """Six blocks without residual connections, a learned mix of layers, the mean-pool classifier."""
    return astromer().model_copy(update={"name": "astromer-v2", "network": V2})


def astromer_pretraining() -> Recipe:
    """Reconstruction for ``astromer``."""
    return _pretraining(astromer(), LONG)


def astromer_v2_pretraining() -> Recipe:
    """Reconstruction for ``astromer-v2``."""
    return _pretraining(astromer_v2(), LONG)


def debug_astromer() -> Recipe:
    """Return a classifier small enough to run the whole pipeline in under a minute on two cores."""
    return astromer().model_copy(
        update={
            "name": "debug-astromer",
            "network": DEBUG,
            "schedule": ScheduleConfig(steps=100, warmup_steps=10),
            "batch": BatchConfig(size=32),
            "optimiser": OptimiserConfig(lr=3e-3, ema_decay=0.9),
            "validation": ValidationConfig(every=50, objects=100, log_every=10),
        }
    )


def debug_astromer_pretraining() -> Recipe:
    """Reconstruction for ``debug-astromer``."""
    return _pretraining(debug_astromer(), debug_astromer().schedule)


def _pretraining(recipe: Recipe, schedule: ScheduleConfig) -> Recipe:
    return recipe.model_copy(
        update={
            "name": f"{recipe.name}-pretraining",
            "task": "reconstruct",
            "masking": MaskingConfig(counting="sequential"),
            "reconstruction_loss": "rmse",
            "schedule": schedule,
            "batch": recipe.batch.model_copy(update={"balance": 0.0}),
        }
    )
