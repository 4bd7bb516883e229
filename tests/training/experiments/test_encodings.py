"""The positional-encodings experiment: convergence, windows, frozen vectors, folds, and whole runs on tiny curves."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from nightjar_alerts.models.networks.astromer import Astromer, AstromerPretraining
from nightjar_alerts.models.networks.parts.positional import TimeEncodingName
from nightjar_alerts.models.networks.zoo import transfer
from nightjar_alerts.training.experiments.encodings import (
    Catalina,
    EncodingName,
    Encodings,
    MagnitudeReconstruction,
    Parts,
    Vectors,
    classify,
    converged,
    encode,
    make_fold,
    network_config,
    pretrain,
    read_catalina,
    split_unlabelled,
    thinned_windows,
    to_batch,
)
from nightjar_alerts.training.experiments.runner import read_records
from support.catalina import days, write_catalina

pytestmark = pytest.mark.slow


def write_curves(folder: Path, per_class: int = 40) -> Path:
    """Two classes told apart by how often they are observed; magnitudes rise steadily."""
    curves = [("EA", days(24 + i % 5)) for i in range(per_class)]
    curves += [("LPV", days(24 + i % 5, step=40.0)) for i in range(per_class)]
    return write_catalina(folder / "css.parquet", curves, step=0.1)


@pytest.fixture
def data(tmp_path: Path) -> Catalina:
    return read_catalina(write_curves(tmp_path))


def options(folder: Path, **changes: object) -> Encodings:
    places = {"data": write_curves(folder), "runs": folder / "runs", "records": folder / "records"}
    sizes = {"window": 20, "d_model": 16, "n_heads": 2, "n_blocks": 1, "d_ff": 16, "batch": 8, "lstm_width": 8}
    times = {"steps": 12, "every": 4, "head_steps": 30, "per_class": 20}
    return Encodings.model_validate({**places, **sizes, **times, "encoding": "baseline", **changes})


def test_every_encoding_of_the_networks_is_compared() -> None:
    assert set(get_args(EncodingName)) == set(get_args(TimeEncodingName))


def test_convergence_is_the_first_step_within_two_per_cent_of_the_best() -> None:
    curve = {100: 0.5, 200: 0.205, 300: 0.2035, 400: 0.2, 500: 0.21}
    log: list[dict[str, float]] = [{"step": step, "validation_rmse": rmse} for step, rmse in curve.items()]
    assert converged([{"step": 50, "loss": 0.1}, *log]) == 300


def test_unlabelled_objects_are_cut_once() -> None:
    parts = split_unlabelled(np.arange(100, 300))
    assert [len(part) for part in parts] == [180, 10, 10]
    assert sorted(np.concatenate(parts)) == list(range(100, 300))
    assert (split_unlabelled(np.arange(100, 300)).test == parts.test).all()


def test_pretraining_batches_are_a_function_of_seed_and_step(data: Catalina) -> None:
    parts = Parts(np.arange(60), np.arange(60, 70), np.arange(70, 80))
    task = MagnitudeReconstruction(data, parts, window=10, batch=8, seed=3)
    batches = task.batches(0)
    for _ in range(2):
        next(batches)
    third, again = next(batches), next(task.batches(2))
    assert torch.equal(third.curves.flux_BL, again.curves.flux_BL)
    assert torch.equal(third.masking.probed_BL, again.masking.probed_BL)
    assert (third.masking.probed_BL.sum(1) == 5).all()
    assert (third.masking.hidden_BL.sum(1) == 3).all()


def test_frozen_vectors_are_those_of_the_classifier(data: Catalina, tmp_path: Path) -> None:
    """The shortcut past the classifier's forward pass computes the same vectors, whatever the batch."""
    config = network_config(options(tmp_path, encoding="trainable"))
    torch.manual_seed(0)
    network, classifier = AstromerPretraining(config).eval(), Astromer(config).eval()
    transfer(network.state_dict(), classifier)
    indices = np.array([0, 41, 7])
    vectors = encode(network, data, indices, config.window, 0.5)
    batch = to_batch(thinned_windows(data, indices, config.window, 0.5, seed=0))
    outputs: list[torch.Tensor] = []
    classifier.encoder.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    with torch.inference_mode():
        classifier(*batch.inputs_of(classifier))
    assert torch.equal(vectors.mask_NW, batch.mask_BL)
    assert torch.allclose(vectors.x_NWD[vectors.mask_NW], outputs[0][batch.mask_BL], atol=1e-5)


def test_vectors_are_cut_to_the_longest_of_a_batch() -> None:
    mask_NW = torch.arange(5) < torch.tensor([2, 5, 3])[:, None]
    vectors = Vectors(torch.randn(3, 5, 4), mask_NW, torch.tensor([0, 1, 2]))
    shorter = vectors.take(np.array([2, 0]))
    assert shorter.x_NWD.shape == (2, 3, 4)
    assert shorter.label_N.tolist() == [2, 0]


def test_the_fold_held_out_is_neither_trained_nor_validated_on() -> None:
    ends = np.array([0, 30, 60, 90])
    for number in range(3):
        fold = make_fold(ends, number)
        assert fold.test.tolist() == list(range(30 * number, 30 * number + 30))
        assert sorted(np.concatenate(fold)) == list(range(90))
        assert len(fold.validation) == 6


@pytest.mark.parametrize("encoding", get_args(EncodingName))
def test_every_encoding_pretrains(encoding: str, tmp_path: Path) -> None:
    pretrained = pretrain(options(tmp_path, encoding=encoding, steps=4, every=2))
    assert pretrained is not None
    record = read_records("encodings", tmp_path / "records")[0]
    assert record.variant == f"{encoding}-reconstruction"
    assert record.metrics["epochs done"] == pytest.approx(4 * 8 / 18)  # 20 unlabelled objects, two of them held out
    assert np.isfinite([*record.metrics.values()]).all()


def test_classifiers_on_the_frozen_encoder_tell_cadences_apart(tmp_path: Path) -> None:
    chosen = options(tmp_path, head_steps=10)
    pretrained = pretrain(chosen)
    assert pretrained is not None
    before = {name: value.clone() for name, value in pretrained.network.state_dict().items()}
    classify(chosen, pretrained)
    assert all(torch.equal(value, before[name]) for name, value in pretrained.network.state_dict().items())
    records = {(r.variant, r.seed): r.metrics for r in read_records("encodings", chosen.records)}
    assert len(records) == 1 + 2 * 3
    pooled = records["baseline-pool", 0]
    assert list(pooled) == [f"macro-F1, {name}" for name in ("full", "3/4", "1/2", "1/4")]
    assert pooled["macro-F1, full"] > 0.9
