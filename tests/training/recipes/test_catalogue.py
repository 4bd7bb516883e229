"""Recipes: the paper's sizes and settings, immutability, and round trips."""

import pytest
from pydantic import ValidationError

from nightjar_alerts.models.networks.astro_moe import AstroMoEConfig
from nightjar_alerts.models.networks.zoo import build, count_parameters
from nightjar_alerts.training.recipes.astro_moe import debug, default
from nightjar_alerts.training.recipes.catalogue import RECIPES
from nightjar_alerts.training.recipes.schema import Recipe

PAPER = {"astro-moe-pe": 4_640_422, "astro-moe-tm": 4_935_334, "multiband-astromer": 1_525_372}


@pytest.mark.parametrize(("name", "total"), PAPER.items())
def test_paper_recipes_have_the_papers_sizes_and_settings(name: str, total: int) -> None:
    recipe = RECIPES[name]()
    assert count_parameters(build(recipe.network)).total == total
    assert isinstance(recipe.network, AstroMoEConfig)
    assert recipe.network.dropout == 0.1
    assert recipe.network.aux_weight == 0.01
    assert (recipe.optimizer.lr, recipe.batch.size) == (1e-4, 256)
    assert recipe.augmentation.mta_days == (8.0, 128.0, 2048.0)
    assert recipe.augmentation.at_detection == recipe.augmentation.as_ztf == recipe.augmentation.no_metadata == 0


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_named_and_survive_json(name: str) -> None:
    recipe = RECIPES[name]()
    assert recipe.name == name
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


def test_the_default_sees_what_real_alerts_show() -> None:
    drawn = default().augmentation
    assert drawn.no_metadata > 0.2
    assert min(drawn.at_detection, drawn.as_ztf, drawn.g_r_only, drawn.detected_only, drawn.short_history) > 0
    assert drawn.ztf_brightness[0] > 10


def test_recipes_are_frozen_and_misspelt_fields_are_errors() -> None:
    with pytest.raises(ValidationError):
        debug().seed = 3  # type: ignore[misc]  # frozen: it must raise
    with pytest.raises(ValidationError):
        Recipe.model_validate({**debug().model_dump(), "sead": 3})
    with pytest.raises(ValidationError):
        Recipe.model_validate({**debug().model_dump(), "seed": -1})
