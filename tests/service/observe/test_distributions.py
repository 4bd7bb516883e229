"""Quantiles out of buckets, held to the values themselves."""

import numpy as np
import pytest

from nightjar_alerts.service.observe.model_statistics import Distribution

SHARES = (0.1, 0.5, 0.9, 0.99, 1.0)


def of(values: object) -> Distribution:
    distribution = Distribution()
    for value in np.asarray(values).tolist():
        distribution.add(value)
    return distribution


@pytest.mark.parametrize("seed", range(3))
def test_quantiles_are_within_five_percent(seed: int) -> None:
    values = np.random.default_rng(seed).lognormal(-6, 2, 5000)
    exact = np.quantile(values, SHARES, method="inverted_cdf")
    found = list(of(values).quantiles(*SHARES))
    assert np.abs(np.array(found) / exact - 1).max() < 0.05
    assert of(values).largest == values.max() >= found[-1]


def test_two_distributions_add_up() -> None:
    first, second = np.linspace(1, 2, 50), np.linspace(5, 90, 70)
    merged, both = of(first), of(np.concatenate([first, second]))
    merged.merge(of(second))
    assert list(merged.quantiles(*SHARES)) == list(both.quantiles(*SHARES))
    assert (merged.count, merged.largest) == (120, 90)
    assert merged.mean == pytest.approx(np.concatenate([first, second]).mean())


def test_a_value_counts_as_often_as_it_is_said_to() -> None:
    distribution = of([1.0])
    distribution.add(100.0, times=3)
    assert (distribution.count, distribution.mean) == (4, 75.25)
    assert list(distribution.quantiles(0.25, 0.26)) == pytest.approx([1.0, 100.0], rel=0.05)


def test_nothing_and_next_to_nothing() -> None:
    assert list(Distribution().quantiles(*SHARES)) == [0.0] * 5
    assert Distribution().mean == 0.0
    assert list(of([0.0, 0.0]).quantiles(0.5)) == [0.0]
