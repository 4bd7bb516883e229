"""Recipes: every named run is a function that returns its full configuration.

Notable:

- the three paper recipes have the networks and sizes of the paper: 4,640,422 (``astro-moe-pe``), 4,935,334
  (``astro-moe-tm``) and 1,525,372 (``multiband-astromer``) parameters, with its dropout 0.1, Adam at 1e-4, batches of
  256, load-balance weight 0.01 and ATAT's temporal augmentation; settings missing in the paper are those of ATAT
  (Cabrera-Vives et al. 2024);
- ``default`` is the shipped model: ``astro-moe-tm`` at two thirds of its width, sized for an hour on a CPU core, with
  views like real Rubin and ZTF alerts (few detections, no metadata, g and r only);
- ``default-dense`` is the dense baseline, for comparisons of speed;
- ``default-finetuning`` fits new heads on its weights to a few thousand real objects;
- ``surveys`` trains the network of a bundle on light curves of every survey; ``surveys-heads``, ``surveys-bands`` and
  ``ztf-types`` configure the light curves of ``makers draw``;
- ``debug`` runs the whole pipeline in under a minute, ``debug-<architecture>`` that of every other architecture;
- the task of a recipe is to classify, to reconstruct (``...-pretraining``, for ``fit --pretrained``) or to forecast;
- a variant calls its parent and changes the differences.

``_PURPOSES`` says when to use each. A TOML file or ``--set`` changes a recipe (``training.recipes.resolve``). List the
recipes, and print one::

    nightjar-train describe
    nightjar-train describe default

The recipes of Astro-MoE are in ``astro_moe``. This module has those of the other published networks:

**ASTROMER** in the r band: pretraining by reconstruction, classifiers of the first and the second version, debug
recipes.

- sizes are those of the weights released for MACHO: two blocks (six in v2) of width 256 with four heads, windows of 200
  observations; ``astromer`` follows the published pseudo-code, ``astromer-v2`` the released second version;
- a network in one band uses 200 observations of that band, including those before the trigger, since periodic variables
  have none;
- half of a window is probed, counted as in the released code (``training.data.targets``), and the loss is its RMSE;
- the released optimizer is Adam(0.9, 0.98) with Noam's schedule, which for this width warms up over 4,000 steps to
  9.9e-4; a cosine replaces its slow decay, so that a run ends.

Pretrain, then classify from its weights::

    nightjar-train fit astromer-pretraining --data build/sim.parquet
    nightjar-train fit astromer --data build/sim.parquet --pretrained runs/astromer-pretraining

**Informer**: classification of long histories, light-curve forecasts, and a debug recipe of each.

- AdamW that decays matrices only, linear warm-up, cosine decay, clipping at 1; the released code uses Adam and halves
  the learning rate every epoch;
- histories have up to 1,024 points per band, as in a deep-drilling field of LSST, instead of 65;
- ``factor = 20`` makes ProbSparse attention exact up to 89 tokens, enough for ordinary light curves; rows of 6,144
  tokens attend with 174 queries;
- the time encoding of the forecaster has a factor of 2 pi and learned frequencies, for periods from a day up.

**RoMAE**: the authors' four sizes as trained on ELAsTiCC, and the recipe of the bundled model.

As in the authors' configuration and trainer: masks of one half of a light curve, all forced photometry, no temporal
augmentation; pretraining for 400 epochs with batches of 512 at 4e-4 with betas (0.9, 0.95), fine-tuning for 25 epochs
with batches of 256 at 1e-4, both with 2,000 warm-up steps, a cosine to zero, weight decay 0.05 and gradients clipped at
10. Epochs are converted to steps: 80 % of 1,825,146 light curves (the published set without its test objects) are 2,851
batches of 512 and 5,703 of 256. Only RoMAE-tiny was published for light curves; the other sizes use its settings.

Differences:

- classes are balanced by drawing them equally often instead of by weights of about 1 / count in the loss, which have
  the same expectation but cause very large steps for rare classes;
- the cosine starts at the end of the warm-up, at the peak; theirs starts at step 0 and follows a warm-up that stops two
  steps early, so that the peak is 0.2 % lower;
- flux and error are transformed by asinh (see ``models.networks.romae``), and fine-tuning copies the input projection;
- classes, objects and folds are those of the data file; the authors trained on the first fold.

``romae-default`` trains the smallest network like the shipped model (views of real alerts, an hour on a CPU core), so
that only the architecture differs; it can start from ``romae-tiny-shallow-pretraining``.

Run::

    nightjar-train fit romae-tiny-pretraining --data build/sim.parquet
"""

from collections.abc import Callable

from nightjar_alerts.models.lightcurve import Limits
from nightjar_alerts.models.networks.astromer import AstromerConfig
from nightjar_alerts.models.networks.informer import InformerConfig
from nightjar_alerts.models.networks.parts.attention import AttentionConfig
from nightjar_alerts.models.networks.romae import BASE, SMALL, TINY, TINY_SHALLOW, RoMAEConfig, RoMAEEncoderConfig
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.training.data.augment import AugmentationConfig
from nightjar_alerts.training.data.targets import ForecastingConfig, MaskingConfig
from nightjar_alerts.training.recipes import astro_moe
from nightjar_alerts.training.recipes.schema import (
    BatchConfig,
    DataConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    ValidationConfig,
)

VISIT_NOISE = 3.0  # FLUXCAL, of a Rubin visit: 24.5 mag at 5 sigma
ASTROMER = AstromerConfig(band=BANDS.index("r"), flux_scale=VISIT_NOISE)
ASTROMER_V2 = ASTROMER.model_copy(
    update={
        "version": "v2",
        "n_blocks": 6,
        "pe_base": 10_000.0,  # used by the released code, independent of its configuration
        "pe_exponent": 2.0,
        "layer_mix": True,
        "head": "pool",
    }
)
ASTROMER_PRETRAINING = ScheduleConfig(steps=200_000, warmup_steps=4_000)
DEBUG_ASTROMER = ASTROMER.model_copy(update={"d_model": 32, "n_heads": 2, "d_ff": 32, "lstm_width": 32, "dropout": 0.0})


def astromer() -> Recipe:
    """Return the published pseudo-code with the LSTM classifier; the encoder is trained, too."""
    return Recipe(
        name="astromer",
        network=ASTROMER,
        data=DataConfig(limits=Limits(max_points_per_band=ASTROMER.window, pre_trigger_days=None), bands=("r",)),
        augmentation=AugmentationConfig(mta_days=()),
        schedule=ScheduleConfig(steps=20_000, warmup_steps=500),
        batch=BatchConfig(size=256),
        optimizer=OptimizerConfig(lr=1e-3, betas=(0.9, 0.98)),
    )


def astromer_v2() -> Recipe:
    """Return six blocks without residual connections, with a learned mix of layers and the mean-pool classifier."""
    return astromer().model_copy(update={"name": "astromer-v2", "network": ASTROMER_V2})


def astromer_pretraining() -> Recipe:
    """Return the pretraining of ``astromer``."""
    return _astromer_pretraining(astromer(), ASTROMER_PRETRAINING)


def astromer_v2_pretraining() -> Recipe:
    """Return the pretraining of ``astromer-v2``."""
    return _astromer_pretraining(astromer_v2(), ASTROMER_PRETRAINING)


def debug_astromer() -> Recipe:
    """Return a classifier small enough to run the whole pipeline in under a minute on two cores."""
    return astromer().model_copy(
        update={
            "name": "debug-astromer",
            "network": DEBUG_ASTROMER,
            "schedule": ScheduleConfig(steps=100, warmup_steps=10),
            "batch": BatchConfig(size=32),
            "optimizer": OptimizerConfig(lr=3e-3, ema_decay=0.9),
            "validation": ValidationConfig(every=50, objects=100, log_every=10),
        }
    )


def debug_astromer_pretraining() -> Recipe:
    """Return the pretraining of ``debug-astromer``."""
    return _astromer_pretraining(debug_astromer(), debug_astromer().schedule)


def _astromer_pretraining(recipe: Recipe, schedule: ScheduleConfig) -> Recipe:
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


LONG_HISTORY = Limits(max_points_per_band=1024)
SPARSE = AttentionConfig(kind="probsparse", sparsity="paper", factor=20.0, max_length=6 * 1024)


def informer() -> Recipe:
    """Return a classifier of histories of up to 6 x 1,024 points, without metadata."""
    return Recipe(
        name="informer",
        network=InformerConfig(attention=SPARSE, time_encoding="modulation", modulation_init_std=0.125),
        data=DataConfig(limits=LONG_HISTORY),
        augmentation=AugmentationConfig(at_detection=0.5, g_r_only=0.1, detected_only=0.15, short_history=0.1),
        schedule=ScheduleConfig(steps=7_200, warmup_steps=200),
        batch=BatchConfig(size=64, pool=16),
        optimizer=OptimizerConfig(lr=1e-3, weight_decay=0.01, decay="matrices", clip_norm=1.0, ema_decay=0.998),
        validation=ValidationConfig(),
    )


def informer_forecast() -> Recipe:
    """Return a forecaster of flux and its uncertainty up to 60 days after an alert."""
    base = informer()
    learning = {"time_encoding": "trainable", "pe_two_pi": True, "flux_scale": 100.0}  # 22.5 mag, a typical source
    return base.model_copy(
        update={
            "name": "informer-forecast",
            "task": "forecast",
            "network": InformerConfig(attention=SPARSE, **learning),
            "forecasting": ForecastingConfig(horizon_days=60.0, max_queries=32),
            # Forecasting truncates light curves itself, so views only remove bands or forced photometry.
            "augmentation": AugmentationConfig(mta_days=(), g_r_only=0.1, detected_only=0.15, short_history=0.1),
        }
    )


def debug_informer() -> Recipe:
    """Return a classifier small enough for tests."""
    return _small_informer(informer(), "debug-informer")


def debug_informer_forecast() -> Recipe:
    """Return a forecaster small enough for tests."""
    return _small_informer(informer_forecast(), "debug-informer-forecast", n_decoder_blocks=1, start_tokens=8)


def _small_informer(recipe: Recipe, name: str, **changes: object) -> Recipe:
    sizes = {"d_model": 32, "n_heads": 2, "n_blocks": 2, "d_ff": 64, "n_harmonics": 8, "dropout": 0.0}
    network = InformerConfig.model_validate({**recipe.network.model_dump(), **sizes, **changes})
    return recipe.model_copy(
        update={
            "name": name,
            "network": network,
            "schedule": ScheduleConfig(steps=100, warmup_steps=10),
            "batch": BatchConfig(size=32),
            "optimizer": recipe.optimizer.model_copy(update={"lr": 3e-3, "ema_decay": 0.9}),
            "validation": ValidationConfig(every=50, objects=100, log_every=10),
        }
    )


PRETRAINING_EPOCH, TRAINING_EPOCH = 2_851, 5_703  # steps

AS_SEEN = AugmentationConfig(mta_days=())
HALF_HIDDEN = MaskingConfig(probed=0.5, hidden=1.0, random=0.0, same=0.0)


def romae_tiny_shallow() -> Recipe:
    """Two blocks of width 180: 778,320 parameters in the encoder."""
    return _romae("romae-tiny-shallow", TINY_SHALLOW)


def romae_tiny() -> Recipe:
    """Twelve blocks of width 180, the authors' choice for light curves: 4,669,920 parameters in the encoder."""
    return _romae("romae-tiny", TINY)


def romae_small() -> Recipe:
    """Twelve blocks of width 432: 26,884,224 parameters in the encoder."""
    return _romae("romae-small", SMALL)


def romae_base() -> Recipe:
    """Twelve blocks of width 720: 74,666,880 parameters in the encoder."""
    return _romae("romae-base", BASE)


def romae_tiny_shallow_pretraining() -> Recipe:
    """Masked pretraining of ``romae-tiny-shallow``."""
    return _romae_pretraining("romae-tiny-shallow-pretraining", TINY_SHALLOW)


def romae_tiny_pretraining() -> Recipe:
    """Masked pretraining of ``romae-tiny``."""
    return _romae_pretraining("romae-tiny-pretraining", TINY)


def romae_default() -> Recipe:
    """Return ``romae-tiny-shallow`` with the training of the shipped Astro-MoE."""
    network = RoMAEConfig(encoder=TINY_SHALLOW)
    return astro_moe.default().model_copy(update={"name": "romae-default", "network": network})


def romae_surveys() -> Recipe:
    """Return a recipe that continues ``romae-default``, including its head, on the views of ``surveys``."""
    surveys = astro_moe.surveys()
    return surveys.model_copy(
        update={
            "name": "romae-surveys",
            "network": romae_default().network,
            "schedule": ScheduleConfig(steps=1_050, warmup_steps=100, final_fraction=0.0),
            "optimizer": surveys.optimizer.model_copy(update={"lr": 8e-4}),
            "validation": ValidationConfig(every=400, objects=1_000, keep="last"),
        }
    )


def debug_romae() -> Recipe:
    """Return a network small enough to run the whole pipeline in under a minute on two cores."""
    return romae_tiny_shallow().model_copy(
        update={
            "name": "debug-romae",
            "network": _debug_romae(),
            "schedule": ScheduleConfig(steps=100, warmup_steps=10),
            "batch": BatchConfig(size=32),
            "optimizer": OptimizerConfig(lr=3e-3, ema_decay=0.9),
            "validation": ValidationConfig(every=50, objects=100, log_every=10),
        }
    )


def debug_romae_pretraining() -> Recipe:
    """Masked pretraining of ``debug-romae``."""
    return debug_romae().model_copy(
        update={"name": "debug-romae-pretraining", "task": "reconstruct", "masking": HALF_HIDDEN}
    )


def _romae(name: str, encoder: RoMAEEncoderConfig) -> Recipe:
    return Recipe(
        name=name,
        network=RoMAEConfig(encoder=encoder),
        augmentation=AS_SEEN,
        schedule=ScheduleConfig(steps=25 * TRAINING_EPOCH, warmup_steps=2_000, final_fraction=0.0),
        batch=BatchConfig(size=256),
        optimizer=OptimizerConfig(lr=1e-4, weight_decay=0.05, clip_norm=10.0),
        validation=ValidationConfig(every=500, log_every=100),
    )


def _romae_pretraining(name: str, encoder: RoMAEEncoderConfig) -> Recipe:
    return Recipe(
        name=name,
        network=RoMAEConfig(encoder=encoder),
        task="reconstruct",
        augmentation=AS_SEEN,
        masking=HALF_HIDDEN,
        schedule=ScheduleConfig(steps=400 * PRETRAINING_EPOCH, warmup_steps=2_000, final_fraction=0.0),
        batch=BatchConfig(size=512, balance=0.0),
        optimizer=OptimizerConfig(lr=4e-4, betas=(0.9, 0.95), weight_decay=0.05, clip_norm=10.0),
        validation=ValidationConfig(every=1_000, log_every=100),
    )


def _debug_romae() -> RoMAEConfig:
    sizes = RoMAEEncoderConfig(d_model=32, n_heads=2, depth=2)
    return RoMAEConfig(encoder=sizes, decoder=sizes.model_copy(update={"depth": 1}))


_PURPOSES: dict[Callable[[], Recipe], str] = {
    astro_moe.astro_moe_pe: "the published Astro-MoE with fixed positional encoding; needs a GPU and ELAsTiCC's size",
    astro_moe.astro_moe_tm: "the published Astro-MoE with time modulation; needs a GPU and ELAsTiCC's size",
    astro_moe.multiband_astromer: "the published baseline of Astro-MoE without experts, for comparisons with it",
    astro_moe.astro_moe_pe_pretraining: "masked pretraining of astro-moe-pe on light curves without labels",
    astro_moe.astro_moe_tm_pretraining: "masked pretraining of astro-moe-tm on light curves without labels",
    astro_moe.multiband_astromer_pretraining: "masked pretraining of multiband-astromer on light curves without labels",
    astro_moe.default: "the network to begin with: alerts with or without metadata, an hour on one core",
    astro_moe.default_dense: "the default without experts, to measure what experts change",
    astro_moe.default_finetuning: "new heads for a few hundred to a few thousand labelled objects; needs --pretrained",
    astro_moe.surveys_heads: "the light curves that `makers draw` draws for trees and calibration",
    astro_moe.surveys_bands: "as surveys-heads, with more light curves in few bands",
    astro_moe.surveys: "continue a bundle on light curves of many surveys, its heads included; needs --pretrained",
    astro_moe.ztf_types: "the light curves of ZTF's six types of supernovae for `makers ztf-types`",
    astro_moe.default_pe: "the default with fixed positional encoding, to measure what time modulation changes",
    astro_moe.default_pretraining: "masked pretraining of default on light curves without labels",
    astro_moe.debug: "a try of all commands within a minute; its scores are poor",
    astro_moe.debug_pretraining: "a try of pretraining within a minute, for debug",
    romae_tiny_shallow: "RoMAE's smallest network, for light curves without metadata on a CPU",
    romae_tiny: "the authors' RoMAE for light curves without metadata; needs a GPU",
    romae_small: "a wider RoMAE, for at least a million light curves on a GPU",
    romae_base: "the widest RoMAE, for at least a million light curves on a GPU",
    romae_tiny_shallow_pretraining: "masked pretraining of romae-tiny-shallow on light curves without labels",
    romae_tiny_pretraining: "masked pretraining of romae-tiny on light curves without labels",
    romae_default: "RoMAE's smallest network with the training of default, an hour on one core",
    romae_surveys: "continue romae-default on light curves of many surveys, its head included; needs --pretrained",
    debug_romae: "a try of RoMAE within a minute; its scores are poor",
    debug_romae_pretraining: "a try of RoMAE's pretraining within a minute, for debug-romae",
    astromer: "ASTROMER as published, for archives of long light curves in one band",
    astromer_v2: "ASTROMER's second version, six blocks, for archives of long light curves in one band",
    astromer_pretraining: "masked pretraining of astromer on light curves without labels",
    astromer_v2_pretraining: "masked pretraining of astromer-v2 on light curves without labels",
    debug_astromer: "a try of ASTROMER within a minute; its scores are poor",
    debug_astromer_pretraining: "a try of ASTROMER's pretraining within a minute, for debug-astromer",
    informer: "histories of up to 1,024 points per band, which other networks cut",
    informer_forecast: "forecasts of the flux up to 60 days after an alert; cannot be exported",
    debug_informer: "a try of Informer within a minute; its scores are poor",
    debug_informer_forecast: "a try of forecasts within a minute; cannot be exported",
}

RECIPES: dict[str, Callable[[], Recipe]] = {make().name: make for make in _PURPOSES}
PURPOSES: dict[str, str] = {make().name: purpose for make, purpose in _PURPOSES.items()}
"""When to use each recipe."""
