from collections.abc import Callable
from pathlib import Path

import pytest

from nightjar_alerts.models.networks.zoo import build
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.training.data.dataset import read_dataset, split_indices
from nightjar_alerts.training.fit.tasks import MaskedReconstruction
from nightjar_alerts.training.recipes import catalogue
from nightjar_alerts.training.recipes.schema import Recipe
from support.toy_dataset import write_toy_dataset

CLASSIFIERS = (catalogue.astromer, catalogue.astromer_v2, catalogue.debug_astromer)
PRETRAININGS = (
    catalogue.astromer_pretraining,
    catalogue.astromer_v2_pretraining,
    catalogue.debug_astromer_pretraining,
)


@pytest.mark.parametrize("make", [*CLASSIFIERS, *PRETRAININGS])
def test_a_history_is_cut_to_the_window(make: Callable[[], Recipe]) -> None:
    recipe = make()
    assert recipe.data.limits.max_points_per_band == recipe.network.window  # type: ignore[union-attr]  # an ASTROMER: it has a window
    assert Recipe.model_validate(recipe.model_dump()) == recipe


def test_pretraining_is_of_the_same_network() -> None:
    for classifier, pretraining in zip(CLASSIFIERS, PRETRAININGS, strict=True):
        assert pretraining().network == classifier().network
        assert pretraining().name == f"{classifier().name}-pretraining"
        assert pretraining().task == "reconstruct"


def test_encoders_have_the_released_sizes() -> None:
    width, hidden = 4 * 64, 128
    attention, feed_forward, norms = 4 * (width + 1) * width, 2 * width * hidden + width + hidden, 4 * width
    block = attention + feed_forward + norms
    for recipe, n_blocks, mix in ((catalogue.astromer(), 2, 0), (catalogue.astromer_v2(), 6, 6)):
        encoder = build(recipe.network).get_submodule("encoder")
        assert sum(value.numel() for value in encoder.parameters()) == 2 * width + n_blocks * block + mix


def test_astromer_pretraining_probes_only_its_band(tmp_path: Path) -> None:
    recipe = catalogue.debug_astromer_pretraining()
    dataset = read_dataset(write_toy_dataset(tmp_path / "toy.parquet", count=60))
    task = MaskedReconstruction(recipe, dataset, split_indices(dataset, (0.5, 0.25, 0.25)))
    batches = task.batches(0)
    curves, masking = next(batches)
    batches.close()
    seen_BL = curves.mask_BL & curves.band_BL.eq(BANDS.index("r"))
    assert not (masking.probed_BL & ~seen_BL).any()
    assert masking.probed_BL.any(1).equal(seen_BL.any(1))
