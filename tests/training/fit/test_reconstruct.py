"""Masked reconstruction: its two losses by hand, masks that a resumed run repeats, and learning."""

from pathlib import Path

import numpy as np
import pytest
import torch

from nightjar_alerts.models.networks.network import Reconstruction
from nightjar_alerts.training.data.dataset import read_dataset, split_indices
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.fit.checkpoints import read_log
from nightjar_alerts.training.fit.tasks import MaskedReconstruction, reconstruction_loss
from nightjar_alerts.training.fit.train import train
from nightjar_alerts.training.recipes.astro_moe import debug_pretraining
from nightjar_alerts.training.recipes.schema import ScheduleConfig, ValidationConfig
from support.toy_dataset import write_toy_dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_dataset(tmp_path_factory.mktemp("data") / "toy.parquet", 120)


@pytest.fixture(scope="module")
def dataset(data: Path) -> Sample:
    return read_dataset(data)


def test_mse_is_over_observations_and_rmse_over_objects_first() -> None:
    rng = np.random.default_rng(0)
    prediction, target = rng.normal(size=(2, 3, 5, 2))
    probed = np.array([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], dtype=bool)
    squares = ((prediction - target) ** 2).mean(2)
    output = Reconstruction(torch.from_numpy(prediction), torch.from_numpy(target))
    mse = reconstruction_loss(output, torch.from_numpy(probed), "mse").item()
    assert mse == pytest.approx(squares[probed].mean(), rel=1e-5)
    by_object = [squares[0, :2].mean(), squares[1].mean(), 0.0]
    rmse = reconstruction_loss(output, torch.from_numpy(probed), "rmse").item()
    assert rmse == pytest.approx(np.sqrt(np.mean(by_object)), rel=1e-5)


def test_a_step_hides_the_same_whenever_it_is_reached(dataset: Sample) -> None:
    task = MaskedReconstruction(debug_pretraining(), dataset, split_indices(dataset))
    stream, later = task.batches(0), task.batches(3)
    for _ in range(3):
        next(stream)
    for _ in range(3):
        a, b = next(stream), next(later)
        assert all(torch.equal(x, y) for x, y in zip(a.masking, b.masking, strict=True))
        assert torch.equal(a.curves.flux_BL, b.curves.flux_BL)
        assert not (a.masking.probed_BL & ~a.curves.mask_BL).any()
    stream.close()
    later.close()


def test_a_network_learns_to_reconstruct(data: Path, tmp_path: Path) -> None:
    recipe = debug_pretraining().model_copy(
        update={"schedule": ScheduleConfig(steps=60, warmup_steps=5), "threads": 1}
        | {"validation": ValidationConfig(every=20, objects=12, log_every=10)}
    )
    result = train(recipe, data, tmp_path, progress=False)
    lines = read_log(tmp_path)
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.7 * losses[0]
    scores = [line for line in lines if "validation_rmse" in line]
    assert result.best_score == -min(line["validation_rmse"] for line in scores)
    assert scores[-1]["validation_r2"] > scores[0]["validation_r2"]
    assert lines[0]["aux_loss"] > 0, "experts stay balanced in pretraining too"
