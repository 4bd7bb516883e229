"""RoMAE's recipes: the published sizes and the settings of the published run."""

from collections.abc import Callable

import pytest
import torch

from nightjar_alerts.models.networks.zoo import build, count_parameters
from nightjar_alerts.training.recipes import catalogue
from nightjar_alerts.training.recipes.astro_moe import default
from nightjar_alerts.training.recipes.schema import Recipe

ENCODERS: dict[Callable[[], Recipe], int] = {
    catalogue.romae_tiny_shallow: 778_320,
    catalogue.romae_tiny: 4_669_920,
    catalogue.romae_small: 26_884_224,
    catalogue.romae_base: 74_666_880,
    catalogue.romae_tiny_shallow_pretraining: 778_320,
    catalogue.romae_tiny_pretraining: 4_669_920,
}


@pytest.mark.parametrize(("recipe", "encoder"), [(make(), count) for make, count in ENCODERS.items()])
def test_encoders_have_the_published_sizes_and_settings(recipe: Recipe, encoder: int) -> None:
    with torch.device("meta"):
        counts = count_parameters(build(recipe.network, recipe.task)).by_part
    assert counts["encoder"] == encoder
    assert (recipe.optimizer.weight_decay, recipe.optimizer.clip_norm) == (0.05, 10.0)
    assert recipe.schedule.warmup_steps == 2_000
    assert recipe.augmentation.mta_days == ()


def test_romae_pretraining_hides_all_probed_observations() -> None:
    masking = catalogue.romae_tiny_pretraining().masking
    assert (masking.probed, masking.hidden) == (0.5, 1.0)


def test_the_comparison_with_the_shipped_model_differs_in_the_network_alone() -> None:
    ours, shipped = catalogue.romae_default(), default()
    apart = {"name", "network"}
    assert ours.model_dump(exclude=apart) == shipped.model_dump(exclude=apart)
    assert ours.network != shipped.network
