"""Throughput: both variants have the same light curves and differ in order and padding only."""

from pathlib import Path

import numpy as np
import pytest
import torch

from nightjar_alerts.training.data.dataset import read_dataset, split_indices
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.fit.throughput import TrainingPace, grouped_pool, plain_pool, summarise, throughput
from nightjar_alerts.training.recipes.astro_moe import debug, debug_pretraining
from support.toy_dataset import write_toy_dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_dataset(tmp_path_factory.mktemp("data") / "toy.parquet", 120)


@pytest.fixture(scope="module")
def dataset(data: Path) -> Sample:
    return read_dataset(data)


def test_grouped_and_plain_pools_have_the_same_curves(dataset: Sample) -> None:
    indices = split_indices(dataset)["train"]
    grouped, plain = (pool(dataset, indices, debug(), 3) for pool in (grouped_pool, plain_pool))
    assert sum(batch.observations for batch in grouped) == sum(batch.observations for batch in plain)
    sums = [
        sorted(float(curve) for counted in side for curve in counted.batch.flux_BL.double().sum(1))
        for side in (grouped, plain)
    ]
    np.testing.assert_allclose(sums[0], sums[1])
    places = [sum(counted.batch.mask_BL.numel() for counted in side) for side in (grouped, plain)]
    assert places[0] < places[1]
    assert all(counted.batch.mask_BL.all() for counted in plain)
    assert all((counted.batch.flux_err_BL > 0).all() for counted in plain)
    assert all(counted.observations == counted.batch.mask_BL.sum() for counted in grouped)


def test_every_round_is_reported(data: Path) -> None:
    lines: list[str] = []
    base = debug()
    recipe = base.model_copy(update={"batch": base.batch.model_copy(update={"size": 4, "pool": 2})})
    threads = torch.get_num_threads()
    report = throughput(recipe, data, 2, lines.append)
    torch.set_num_threads(threads)
    assert len(lines) == 2
    assert report["rounds"] == 2
    assert report["ratio"]["lowest"] <= report["ratio"]["median"] <= report["ratio"]["highest"]
    assert 0 <= report["grouped_padding"] <= report["plain_padding"] < 1


def test_ratios_are_of_paired_rounds() -> None:
    paces = {
        "grouped": [TrainingPace(200.0, 0.1), TrainingPace(90.0, 0.2)],
        "plain": [TrainingPace(100.0, 0.5), TrainingPace(30.0, 0.7)],
    }
    report = summarise(paces)
    assert report["ratio"] == {"median": 2.5, "lowest": 2.0, "highest": 3.0}
    assert report["plain_curves_per_second"]["median"] == 65.0
    assert (report["grouped_padding"], report["plain_padding"]) == (0.15, 0.6)


def test_only_classifiers_are_timed(data: Path) -> None:
    with pytest.raises(ValueError, match="not the recipe of a classifier"):
        throughput(debug_pretraining(), data, 1, print)
