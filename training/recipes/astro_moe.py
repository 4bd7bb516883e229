"""Astro-MoE and its baseline: the paper's networks, the shipped model, a small debug recipe, and fine-tuning.

Fine-tuning continues from simulated to real objects, of which few have labels: ``train`` and ``crossvalidate`` with
``--pretrained`` and a run of ``default``. For real surveys ``surveys`` trains an unpacked bundle on a mixture
(`training.data.mixture`).
"""

from nightjar_alerts.models.lightcurve import Limits
from nightjar_alerts.models.networks.astro_moe import AstroMoEConfig
from nightjar_alerts.training.data.augment import AugmentationConfig, DegradeConfig
from nightjar_alerts.training.data.targets import MaskingConfig
from nightjar_alerts.training.recipes.schema import (
    BatchConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    ValidationConfig,
)


def astro_moe_tm() -> Recipe:
    """Astro-MoE with time modulation (eq. 7): 4,935,334 parameters."""
    return Recipe(
        name="astro-moe-tm",
        network=AstroMoEConfig(time_encoding="modulation"),
        schedule=ScheduleConfig(steps=400_000, shape="constant", patience=3),
        validation=ValidationConfig(every=20_000, objects=20_000, log_every=100),
        optimizer=OptimizerConfig(clip_norm=None),
    )


def astro_moe_pe() -> Recipe:
    """Astro-MoE with fixed positional encoding (eq. 6): 4,640,422 parameters."""
    return with_network(astro_moe_tm(), "astro-moe-pe", time_encoding="baseline")


def multiband_astromer() -> Recipe:
    """Return the paper's baseline, with a dense layer for every mixture: 1,525,372 parameters."""
    return with_network(astro_moe_pe(), "multiband-astromer", n_experts=0, n_input_experts=0)


def astro_moe_tm_pretraining() -> Recipe:
    """Return the pretraining of ``astro-moe-tm``."""
    return pretraining(astro_moe_tm())


def astro_moe_pe_pretraining() -> Recipe:
    """Return the pretraining of ``astro-moe-pe``."""
    return pretraining(astro_moe_pe())


def multiband_astromer_pretraining() -> Recipe:
    """Return the pretraining of ``multiband-astromer``."""
    return pretraining(multiband_astromer())


def default() -> Recipe:
    """Return the shipped model: Astro-MoE, time modulation, two thirds of the paper's width, 2,140,966 parameters.

    Size and schedule are for an hour on a CPU core. Training uses views like those of real alerts.
    """
    compact = {"d_model": 128, "d_ff": 256, "d_tab": 64, "tab_ff": 128, "tab_blocks": 2}
    learning = {"dropout": 0.0, "modulation_init_std": 0.125}  # 1 / sqrt(harmonics): modulations start near unit size
    return with_network(astro_moe_tm(), "default", **compact, **learning).model_copy(
        update={
            "schedule": ScheduleConfig(steps=12_000, warmup_steps=200),
            "batch": BatchConfig(size=64, pool=16),
            "optimizer": OptimizerConfig(lr=1e-3, ema_decay=0.998),
            "validation": ValidationConfig(),
            "threads": 1,  # training another seed in parallel is more efficient than a second thread
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


def default_pe() -> Recipe:
    """Return the shipped model with the fixed positional encoding in place of time modulation."""
    return with_network(default(), "default-pe", time_encoding="baseline")


def default_pretraining() -> Recipe:
    """Return masked reconstruction with the light-curve branch of the shipped model and its augmentation."""
    return pretraining(default())


def default_dense() -> Recipe:
    """Return the dense baseline of the shipped model, for comparisons of speed and accuracy with experts."""
    return with_network(default(), "default-dense", n_experts=0, n_input_experts=0)


def debug() -> Recipe:
    """Return a network small enough to run the whole pipeline in under a minute on two cores."""
    network = {"d_model": 32, "n_heads": 2, "n_blocks": 2, "d_ff": 64, "n_harmonics": 8, "n_experts": 4}
    tabular = {"d_tab": 32, "tab_heads": 2, "tab_blocks": 1, "tab_ff": 64}
    return with_network(default(), "debug", **network, **tabular).model_copy(
        update={
            "schedule": ScheduleConfig(steps=100, warmup_steps=10),
            "batch": BatchConfig(size=32),
            "optimizer": OptimizerConfig(lr=3e-3, ema_decay=0.9),
            "validation": ValidationConfig(every=50, objects=100, log_every=10),
        }
    )


def debug_pretraining() -> Recipe:
    """Return masked reconstruction with the debug network."""
    return pretraining(debug())


def pretraining(recipe: Recipe) -> Recipe:
    """Return the pretraining of a recipe's light-curve branch as described in the paper.

    90 % of the observations are probed: of these 30 % are hidden, 30 % have another's values, 40 % are unchanged.
    """
    masking = MaskingConfig(probed=0.9, hidden=0.3, random=0.3, same=0.4)
    changes = {"name": f"{recipe.name}-pretraining", "task": "reconstruct", "masking": masking}
    return recipe.model_copy(update=changes)


def with_network(recipe: Recipe, name: str, **changes: object) -> Recipe:
    """Return a variant of a recipe with another name and network."""
    network = AstroMoEConfig.model_validate({**recipe.network.model_dump(), **changes})
    return recipe.model_copy(update={"name": name, "network": network})


def default_finetuning() -> Recipe:
    """Return a recipe that fits new heads to a few thousand labelled real objects, on branches trained on simulations.

    The branches are frozen. There are four small heads on the embedding of the branches and statistics of the light
    curve, which is better than fitting the branches to so few objects. Since rare classes have some 50 objects, classes
    are drawn by the square root of their share, and the last weights are kept.
    """
    heads = {"d_statistics": 64, "head_width": 128, "head_copies": 4, "head_dropout": 0.3, "dropout": 0.0}
    return with_network(default(), "default-finetuning", **heads).model_copy(
        update={
            "schedule": ScheduleConfig(steps=700, warmup_steps=25),
            "batch": BatchConfig(size=64, pool=16, balance=0.5),
            "optimizer": OptimizerConfig(lr=2e-3, body_lr=0.0, weight_decay=0.05, ema_decay=0.99),
            "validation": ValidationConfig(every=350, objects=1_000, keep="last"),
            "augmentation": AugmentationConfig(mta_days=()),
        }
    )


def surveys_heads() -> Recipe:
    """Return the recipe of the heads of bundles of real surveys; half of the light curves are degraded."""
    statistics = {"d_statistics": 192, "lag_statistics": True, "period_statistics": True, "period_search": "fitted"}
    statistics |= {"shape_statistics": True, "fold_statistics": True}  # for the trees
    heads = {"head_width": 192, "head_copies": 4, "head_dropout": 0.15}
    augmentation = AugmentationConfig(
        mta_days=(128.0, 2048.0, 2048.0),
        at_detection=0.25,
        detected_only=0.1,
        g_r_only=0.05,
        as_ztf=0.05,
        ztf_brightness=(15.0, 60.0),
        no_metadata=0.4,
        no_host=0.1,
        no_redshift=0.15,
        degraded=0.5,
        degrade=DegradeConfig(bands=0.25, thinned=0.2, late=0.15, early=0.25, misjudged=0.3, noisier=0.2),
    )
    recipe = with_network(default(), "surveys-heads", **statistics, **heads)
    data = recipe.data.model_copy(update={"limits": Limits(kept="around_maximum")})
    return recipe.model_copy(update={"augmentation": augmentation, "data": data})


def surveys_bands() -> Recipe:
    """Return ``surveys-heads`` with half of the light curves in few bands and a third ended at a detection.

    These changes do not depend on the class.
    """
    heads = surveys_heads()
    augmentation = heads.augmentation.model_copy(
        update={
            "mta_days": (2048.0,), "at_detection": 0.0, "detected_only": 0.1, "g_r_only": 0.0, "degraded": 0.25,
            "perturbed": 0.6, "few_bands": 0.45, "prefix": 0.35, "common_metadata": True,
        }
    )  # fmt: skip
    return heads.model_copy(update={"name": "surveys-bands", "augmentation": augmentation})


def surveys() -> Recipe:
    """Return a recipe that trains the whole network of a bundle, including heads, with the views of ``surveys-bands``.

    Objects are made up to nine magnitudes brighter.
    """
    bands = surveys_bands()
    augmentation = bands.augmentation.model_copy(
        update={
            "degraded": 0.2, "perturbed": 0.7,
            "degrade": bands.augmentation.degrade.model_copy(update={"magnitudes": (-9.0, 3.0)}),
        }
    )  # fmt: skip
    return bands.model_copy(
        update={
            "name": "surveys",
            "schedule": ScheduleConfig(steps=1_600, warmup_steps=60, final_fraction=0.0),
            "optimizer": OptimizerConfig(lr=3e-4, weight_decay=0.01, ema_decay=0.998),
            "validation": ValidationConfig(every=500, objects=2_000, keep="last"),
            "augmentation": augmentation,
            "keep_heads": True,
        }
    )


def ztf_types() -> Recipe:
    """Return the recipe of heads for ZTF's six types of supernovae, in g and r, complete or as in alerts."""
    heads = surveys_heads()
    degraded = DegradeConfig(brightness=0.2, bands=0.1, thinned=0.25, late=0.15, early=0.2, misjudged=0.2)
    augmentation = AugmentationConfig(mta_days=(), at_detection=0.25, degraded=0.4, degrade=degraded)
    data = heads.data.model_copy(update={"bands": ("g", "r")})
    return heads.model_copy(update={"name": "ztf-types", "augmentation": augmentation, "data": data})
