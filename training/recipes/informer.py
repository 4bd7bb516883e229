"""Informer: classification of long histories, light-curve forecasts, and a small twin of each.

Notable:

- optimised as write-ups of the paper do: AdamW that decays matrices only, linear warm-up, cosine decay, clipping at 1;
  the released code runs plain Adam and halves its learning rate every epoch;
- histories keep up to 1,024 points per band, what a deep-drilling field of LSST sends, instead of 65;
- ``factor = 20`` makes ProbSparse attention exact up to 89 tokens, so ordinary light curves lose nothing; rows of
  6,144 tokens attend with 174 queries;
- the forecaster's time has a 2 pi and learned frequencies: periods from a day up.
"""

from models.lightcurve import Limits
from models.networks.informer import InformerConfig
from models.networks.parts.attention import AttentionConfig
from training.data.augment import AugmentationConfig
from training.data.targets import ForecastingConfig
from training.recipes.schema import (
    BatchConfig,
    DataConfig,
    OptimiserConfig,
    Recipe,
    ScheduleConfig,
    ValidationConfig,
)

LONG = Limits(max_points_per_band=1024)
SPARSE = AttentionConfig(kind="probsparse", sparsity="paper", factor=20.0, max_length=6 * 1024)


def informer() -> Recipe:
    """Classification of histories of up to 6 x 1,024 points, without metadata."""
    return Recipe(
        name="informer",
        network=InformerConfig(attention=SPARSE, time_encoding="modulation", modulation_init_std=0.125),
        data=DataConfig(limits=LONG),
        augmentation=AugmentationConfig(at_detection=0.5, g_r_only=0.1, detected_only=0.15, short_history=0.1),
        schedule=ScheduleConfig(steps=7_200, warmup_steps=200),
        batch=BatchConfig(size=64, pool=16),
        optimiser=OptimiserConfig(lr=1e-3, weight_decay=0.01, decay="matrices", clip_norm=1.0, ema_decay=0.998),
        validation=ValidationConfig(),
    )


def informer_forecast() -> Recipe:
    """Return expected flux and its spread up to 60 days after an alert."""
    base = informer()
    learning = {"time_encoding": "trainable", "pe_two_pi": True, "flux_scale": 100.0}  # 22.5 mag, a usual source
    return base.model_copy(
        update={
            "name": "informer-forecast",
            "task": "forecast",
            "network": InformerConfig(attention=SPARSE, **learning),
            "forecasting": ForecastingConfig(horizon_days=60.0, max_queries=32),
            # The cut is the forecaster's own; views only take bands or forced photometry away.
            "augmentation": AugmentationConfig(mta_days=(), g_r_only=0.1, detected_only=0.15, short_history=0.1),
        }
    )


def debug_informer() -> Recipe:
    """Return a classifier small enough for tests."""
    return _debug(informer(), "debug-informer")


def debug_informer_forecast() -> Recipe:
    """Return a forecaster small enough for tests."""
    return _debug(informer_forecast(), "debug-informer-forecast", n_decoder_blocks=1, start_tokens=8)


def _debug(recipe: Recipe, name: str, **changes: object) -> Recipe:
    sizes = {"d_model": 32, "n_heads": 2, "n_blocks": 2, "d_ff": 64, "n_harmonics": 8, "dropout": 0.0}
    network = InformerConfig.model_validate({**recipe.network.model_dump(), **sizes, **changes})
    return recipe.model_copy(
        update={
            "name": name,
            "network": network,
            "schedule": ScheduleConfig(steps=100, warmup_steps=10),
            "batch": BatchConfig(size=32),
            "optimiser": recipe.optimiser.model_copy(update={"lr": 3e-3, "ema_decay": 0.9}),
            "validation": ValidationConfig(every=50, objects=100, log_every=10),
        }
    )
