"""Quantile transform and missing metadata."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import QuantileTransformer

from nightjar_alerts.models.networks.parts.transformer import SCORE_LIMIT, QuantileTransform
from support.bundles import tiny_network


def _scores(transform: QuantileTransform, values: list[float]) -> NDArray[np.float32]:
    column_P = torch.zeros(1, dtype=torch.int64)
    scores: NDArray[np.float32] = transform(torch.tensor(values)[:, None], column_P).numpy()[:, 0]
    return scores


def test_agrees_with_scikit_learn_at_the_knots() -> None:
    values = np.random.default_rng(0).lognormal(size=(5000, 1))
    transform = QuantileTransform(1, 101)
    transform.fit(values)
    reference = QuantileTransformer(n_quantiles=101, output_distribution="normal", subsample=None).fit(values)
    knots = transform.x_CQ[0, 1:-1].numpy()
    expected = reference.transform(knots.astype(np.float64)[:, None])[:, 0]
    np.testing.assert_allclose(_scores(transform, knots.tolist()), expected, atol=2e-4)


def test_out_of_range_values_clip_and_order_is_kept() -> None:
    transform = QuantileTransform(1, 64)
    transform.fit(np.random.default_rng(0).normal(size=(1000, 1)))
    scores = _scores(transform, [-1e9, -0.5, 0.0, 0.5, 1e9])
    assert scores[0] == pytest.approx(-SCORE_LIMIT)
    assert scores[-1] == pytest.approx(SCORE_LIMIT)
    assert (np.diff(scores) > 0).all()


def test_ties_map_to_the_middle_and_constants_to_zero() -> None:
    transform = QuantileTransform(2, 64)
    rng = np.random.default_rng(0)
    tied = np.concatenate([np.zeros(500), rng.uniform(1, 2, 500)])
    transform.fit(np.stack([tied, np.full(1000, 3.0)], 1))
    assert _scores(transform, [0.0])[0] == pytest.approx(-SCORE_LIMIT / 2, abs=0.05)
    assert transform(torch.tensor([[3.0]]), torch.tensor([1])).item() == pytest.approx(0.0, abs=1e-6)


def test_missing_values_are_left_out_of_the_fit() -> None:
    transform = QuantileTransform(2, 16)
    values = np.full((50, 2), np.nan)
    values[:25, 0] = np.linspace(0, 1, 25)
    transform.fit(values)
    assert _scores(transform, [0.5])[0] == pytest.approx(0.0, abs=0.05)
    assert transform(torch.tensor([[7.0]]), torch.tensor([1])).isfinite().all()


def test_a_missing_column_does_not_touch_the_others() -> None:
    network = tiny_network()
    torch.manual_seed(0)
    metadata_BC = torch.randn(3, 64)
    metadata_BC[:, 5:] = torch.nan
    alone = network.metadata(metadata_BC)
    mates = torch.cat([metadata_BC, torch.randn(2, 64)])  # batch mates that have every column
    torch.testing.assert_close(network.metadata(mates)[:3], alone, atol=1e-5, rtol=1e-5)


def test_without_metadata_the_answer_is_the_same_for_all() -> None:
    network = tiny_network()
    metadata_BC = torch.full((2, 64), torch.nan)
    first, second = network.metadata(metadata_BC)
    assert first.isfinite().all()
    torch.testing.assert_close(first, second)
