"""Astro-MoE for the real sky: the body learned on from simulated light curves to those of all surveys, then its heads.

``train`` takes the first two with a mixture file (`training.data.mixture`) and ``--pretrained`` a run of
``default-periods`` or a bundle unpacked; ``sky-heads`` is fitted by ``sky heads`` on tables of what that body says.
"""

from training.data.augment import AugmentationConfig, DegradeConfig
from training.recipes.astro_moe import default, with_network
from training.recipes.schema import BatchConfig, OptimiserConfig, Recipe, ScheduleConfig, ValidationConfig


def sky_body() -> Recipe:
    """Return the branches of the shipped model on light curves of every survey, two thirds of them degraded."""
    known = default()
    return known.model_copy(
        update={
            "name": "sky-body",
            "schedule": ScheduleConfig(steps=6_000, warmup_steps=100, shape="constant"),
            "batch": BatchConfig(size=64, pool=16),
            "optimiser": OptimiserConfig(lr=6e-4, weight_decay=0.01, ema_decay=0.998),
            "validation": ValidationConfig(every=500, objects=2_000, keep="last"),
            "augmentation": known.augmentation.model_copy(update={"degraded": 0.65}),
        }
    )


def sky_body_views() -> Recipe:
    """Train on with re-observed light curves in the mixture, to the end."""
    body = sky_body()
    return body.model_copy(
        update={
            "name": "sky-body-views",
            "schedule": ScheduleConfig(steps=6_000, warmup_steps=50),
            "optimiser": body.optimiser.model_copy(update={"lr": 5e-4}),
        }
    )


def sky_heads() -> Recipe:
    """Mixed heads on what the branches say and on statistics beside it; the branches stay as they are."""
    statistics = {"d_statistics": 192, "lag_statistics": True, "period_statistics": True, "period_search": "fitted"}
    heads = {"head_width": 192, "head_copies": 4, "head_dropout": 0.15}
    shown = AugmentationConfig(
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
    return with_network(sky_body(), "sky-heads", **statistics, **heads).model_copy(update={"augmentation": shown})


def sky_heads_ztf() -> Recipe:
    """Put such heads on it for the six types of supernovae of ZTF, in g and r, complete or as alerts show them."""
    heads = sky_heads()
    degraded = DegradeConfig(brightness=0.2, bands=0.1, thinned=0.25, late=0.15, early=0.2, misjudged=0.2)
    shown = AugmentationConfig(mta_days=(), at_detection=0.25, degraded=0.4, degrade=degraded)
    data = heads.data.model_copy(update={"bands": ("g", "r")})
    return heads.model_copy(update={"name": "sky-heads-ztf", "augmentation": shown, "data": data})
