"""Astro-MoE learned on from simulated to real objects, of which there are few with labels.

``train`` and ``crossvalidate`` take these with ``--pretrained`` and a run of ``default``, ``default-ztf`` or
``default-multiband-astromer``.
"""

from training.data.augment import AugmentationConfig
from training.recipes.astro_moe import default, with_network
from training.recipes.schema import BatchConfig, OptimiserConfig, Recipe, ScheduleConfig, ValidationConfig


def default_finetuning() -> Recipe:
    """Return new heads for a few thousand labelled real objects, on weights trained on simulated ones.

    The branches stay as they are; the heads are four, small, and see statistics of the light curve beside what the
    branches say: with so few objects that is worth more than fitting the branches to them. Classes are drawn half of
    the way to equally often, since rare ones have some 50 objects; for the same reason the last weights are kept.
    """
    heads = {"d_statistics": 64, "head_width": 128, "head_copies": 4, "head_dropout": 0.3, "dropout": 0.0}
    return with_network(default(), "default-finetuning", **heads).model_copy(
        update={
            "schedule": ScheduleConfig(steps=700, warmup_steps=25),
            "batch": BatchConfig(size=64, pool=16, balance=0.5),
            "optimiser": OptimiserConfig(lr=2e-3, body_lr=0.0, weight_decay=0.05, ema_decay=0.99),
            "validation": ValidationConfig(every=350, objects=1_000, keep="last"),
            "augmentation": AugmentationConfig(mta_days=()),
        }
    )


def default_finetuning_metadata() -> Recipe:
    """Fine-tune on some 2,000 objects with metadata, which are learned by heart even sooner."""
    tuned = default_finetuning()
    return with_network(tuned, "default-finetuning-metadata", head_dropout=0.5).model_copy(
        update={
            "schedule": ScheduleConfig(steps=500, warmup_steps=25),
            "batch": tuned.batch.model_copy(update={"balance": 0.6}),
            "optimiser": tuned.optimiser.model_copy(update={"weight_decay": 0.5}),
        }
    )


def default_finetuning_whole() -> Recipe:
    """Return the whole network without statistics on a few thousand labelled objects: short and gentle."""
    return with_network(default(), "default-finetuning-whole", dropout=0.2).model_copy(
        update={
            "schedule": ScheduleConfig(steps=500, warmup_steps=25),
            "batch": BatchConfig(size=64, pool=16, balance=0.55),
            "optimiser": OptimiserConfig(lr=3e-4, weight_decay=0.05, ema_decay=0.99),
            "validation": ValidationConfig(every=100, objects=1_000),
            "augmentation": AugmentationConfig(mta_days=(), at_detection=0.15),
        }
    )


def default_ztf_alerts() -> Recipe:
    """Fine-tune for alerts of ZTF: half of the draws end at a detection, as when an object is still growing.

    In g and r alone: what the labelled objects lack, i, the network would have to guess at.
    """
    tuned = default_finetuning()
    return tuned.model_copy(
        update={
            "name": "default-ztf-alerts",
            "data": tuned.data.model_copy(update={"bands": ("g", "r")}),
            "schedule": ScheduleConfig(steps=1_200, warmup_steps=50),
            "augmentation": AugmentationConfig(mta_days=(), at_detection=0.5, short_history=0.25),
        }
    )


def multiband_astromer_finetuning() -> Recipe:
    """``default-finetuning-whole`` for weights of ``default-multiband-astromer``."""
    changes = {"time_encoding": "baseline", "n_experts": 0, "n_input_experts": 0}
    return with_network(default_finetuning_whole(), "multiband-astromer-finetuning", **changes)
