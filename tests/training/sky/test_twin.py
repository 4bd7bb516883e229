"""The twin of the network for surveys left out: rows as its heads take them, and heads that learn from them."""

import numpy as np
import pytest
import torch

from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.zoo import build
from nightjar_alerts.training.recipes.astro_moe import debug, with_network
from nightjar_alerts.training.recipes.schema import Recipe
from nightjar_alerts.training.sky.heads import HeadsConfig
from nightjar_alerts.training.sky.left_out import TwinFeatures, head_inputs_of, train_twin
from nightjar_alerts.training.sky.record import Sky, collect
from nightjar_alerts.training.sky.trees import FeatureRows, rows_of
from support.sky import bump, pulsator


@pytest.fixture(scope="module")
def features() -> TwinFeatures:
    torch.manual_seed(0)
    body = build(debug().network)
    assert isinstance(body, AstroMoE)
    return TwinFeatures(body.eval(), _recipe())


def _recipe() -> Recipe:
    statistics = {"d_statistics": 24, "lag_statistics": True, "period_statistics": True}
    return with_network(debug(), "debug-heads", head_width=32, head_copies=2, **statistics)


def _sky(start: int) -> Sky:
    return collect(
        [bump(f"SN{n}", seed=n, z=0.1, mwebv=0.05) for n in range(start, start + 24)]
        + [pulsator(f"RR{n}", seed=n) for n in range(start, start + 24)]
    )


def test_branches_see_redshifts_and_no_other_metadata(features: TwinFeatures) -> None:
    sky = _sky(0)
    dusty = sky.take(np.arange(4))
    clean = collect([bump(f"SN{n}", seed=n, z=0.1) for n in range(4)])
    (dusty_features, rows), (other, _) = features(dusty, "redshift"), features(clean, "redshift")
    np.testing.assert_array_equal(dusty_features, other)
    assert rows.tolist() == [0, 1, 2, 3]
    assert not np.array_equal(dusty_features, features(dusty, "nothing")[0], equal_nan=True)


def test_a_twin_learns_from_the_rows_of_trees(features: TwinFeatures) -> None:
    nothing = collect([])
    learns, others = (rows_of(_sky(start), nothing, features=features) for start in (0, 100))
    assert isinstance(learns, FeatureRows)
    assert head_inputs_of(learns.value_NF, features.width).value.shape == (48, told_width(features))
    twin = train_twin(features, learns, others, 0, HeadsConfig(steps=250, batch=64, rate=5e-3, average=0.9))
    assert (twin.probabilities(others.value_NF).argmax(axis=1) == others.label_N).mean() > 0.9
    assert 0 <= twin.threshold <= 1


def told_width(features: TwinFeatures) -> int:
    """Return how many statistics a row has."""
    network = build(features.recipe.network)
    assert isinstance(network, AstroMoE)
    assert network.statistics is not None
    return len(network.statistics.spread_K)
