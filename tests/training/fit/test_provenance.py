"""A run folder has everything that is needed to reproduce its weights."""

import json
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from nightjar_alerts.models.bundle import sha256_of
from nightjar_alerts.training.data.dataset import read_dataset
from nightjar_alerts.training.fit import checkpoints
from nightjar_alerts.training.fit.checkpoints import (
    BEST,
    CHECKPOINT,
    CONFIG,
    LOG,
    STARTS,
    RunConfig,
    fingerprint,
    load_checkpoint,
    open_run,
    read_config,
)
from nightjar_alerts.training.fit.curves import METRICS, PICTURE
from nightjar_alerts.training.fit.train import train
from nightjar_alerts.training.recipes.astro_moe import debug, debug_pretraining
from nightjar_alerts.training.recipes.schema import Recipe, ScheduleConfig, ValidationConfig
from support.toy_dataset import write_toy_dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_dataset(tmp_path_factory.mktemp("data") / "toy.parquet", 120)


def tiny(base: Recipe) -> Recipe:
    return base.model_copy(
        update={
            "batch": base.batch.model_copy(update={"size": 8, "pool": 2}),
            "schedule": ScheduleConfig(steps=4, warmup_steps=1),
            "validation": ValidationConfig(every=2, objects=8, log_every=2),
            "threads": 1,
            "seed": 5,
        }
    )


def test_run_folder_reproduces_the_weights(data: Path, tmp_path: Path) -> None:
    train(tiny(debug_pretraining()), data, tmp_path / "before", progress=False)
    first, again = tmp_path / "first", tmp_path / "again"
    train(tiny(debug()), data, first, pretrained=tmp_path / "before", progress=False)
    assert {path.name for path in first.iterdir()} == {CONFIG, STARTS, LOG, METRICS, PICTURE, CHECKPOINT, BEST}
    config = read_config(first)  # everything below comes from the folder and the files that it names
    assert config.data == fingerprint(data, len(read_dataset(data)))
    assert config.pretrained is not None
    assert config.pretrained_sha256 == sha256_of(Path(config.pretrained) / BEST)
    train(config.recipe, data, again, pretrained=Path(config.pretrained), progress=False)
    one, other = (load_checkpoint(folder / CHECKPOINT) for folder in (first, again))
    assert all(torch.equal(value, other.network[name]) for name, value in one.network.items())
    assert sha256_of(first / BEST) == sha256_of(again / BEST)
    assert (first / CONFIG).read_bytes() == (again / CONFIG).read_bytes()


def test_starts_log_has_every_start(data: Path, tmp_path: Path) -> None:
    train(tiny(debug()), data, tmp_path, max_minutes=1e-9, progress=False)
    train(tiny(debug()), data, tmp_path, progress=False)
    starts = [json.loads(line) for line in (tmp_path / STARTS).read_text().splitlines()]
    assert [line["step"] for line in starts] == [0, 0]
    assert starts[0]["packages"]["torch"] == version("torch")
    assert (starts[0]["threads"], starts[0]["processes"]) == (1, 1)
    assert starts[0].keys() >= {"time", "command", "commit", "python", "platform", "processor", "cores"}


def test_the_commit_says_whether_the_tree_differs_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert checkpoints.commit() is None
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    (tmp_path / "file").write_text("1")
    for command in (("init", "-q"), ("add", "file"), (*who, "commit", "-qm", "First")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert checkpoints.commit() == head.stdout.strip()
    (tmp_path / "file").write_text("2")
    assert checkpoints.commit() == head.stdout.strip() + "+"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checkpoints.commit() is None


def test_a_folder_of_an_older_version_is_the_same_run(data: Path, tmp_path: Path) -> None:
    """An older folder lacks the fields that have come since."""
    config = RunConfig(recipe=tiny(debug()), data=fingerprint(data, 120))
    open_run(tmp_path, config)
    stored = json.loads((tmp_path / CONFIG).read_text())
    del stored["pretrained_sha256"], stored["recipe"]["forecasting"]
    (tmp_path / CONFIG).write_text(json.dumps(stored))
    assert open_run(tmp_path, config) is None
