"""The UEA experiment: its batches, and one whole run on an easy set."""

from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.models.networks.romae import RoMAEEncoderConfig
from nightjar_alerts.training.experiments import uea
from nightjar_alerts.training.experiments.runner import read_records
from nightjar_alerts.training.experiments.uea import SETS, UEA, ObservedSteps, Setting, collate

CHANNELS = 2


def write_set(folder: Path, name: str = "BasicMotions", series: int = 24) -> Path:
    """Rising and falling noisy ramps of 12 to 15 steps."""
    rng = np.random.default_rng(0)
    (folder / name).mkdir(parents=True, exist_ok=True)
    for side in ("TRAIN", "TEST"):
        lines = ["@data"]
        for number in range(series):
            slope = 1.0 if number % 2 else -1.0
            ramp = slope * np.linspace(-1, 1, 12 + number % 4) + rng.normal(0, 0.1, (CHANNELS, 12 + number % 4))
            lines.append(":".join([*(",".join(f"{v:.3f}" for v in row) for row in ramp), str(number % 2)]))
        (folder / name / f"{name}_{side}.ts").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(uea.SIZES, "tiny", RoMAEEncoderConfig(d_model=16, n_heads=2, depth=1))
    monkeypatch.setitem(SETS, "BasicMotions", Setting(epochs=20, batch=8, smoothing=0.0, dropout=0.0))


def options(folder: Path, **changes: object) -> UEA:
    places = {"data": write_set(folder / "data"), "runs": folder / "runs", "records": folder / "records"}
    return UEA.model_validate({**places, "name": "BasicMotions", "lr": 5e-3, **changes})


def test_padding_is_at_the_end_and_positions_are_step_numbers() -> None:
    observed = [
        ObservedSteps(np.array([0, 3, 4]), np.ones((3, 2), np.float32)),
        ObservedSteps(np.array([1]), np.full((1, 2), 5.0)),
    ]
    batch = collate(observed, np.array([1, 0]))
    assert batch.position_BL1[..., 0].tolist() == [[0, 3, 4], [1, 0, 0]]
    assert batch.mask_BL.tolist() == [[True] * 3, [True, False, False]]
    assert batch.values_BLK[1].tolist() == [[5, 5], [0, 0], [0, 0]]
    assert batch.label_B.tolist() == [1, 0]


@pytest.mark.usefixtures("small")
def test_a_run_learns_and_is_recorded(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    chosen.cli_cmd()
    record = read_records("uea", chosen.records)[0]
    assert record.variant == "BasicMotions-tiny"
    assert record.metrics["test accuracy"] > 0.9
    assert record.steps == record.published_steps == 60
    assert record.command.endswith("--name BasicMotions --lr 0.005")
