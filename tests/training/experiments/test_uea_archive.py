"""The two file layouts of the UEA sets, dropping time steps, and scaling."""

from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.training.experiments.uea import NPZ_TRAINING, ArchiveError, drop_steps, read_set, standardise
from support.shared import needs_shared, shared

HEADER = "#a comment: with a colon\n@problemName Toy\n@dimensions 2\n@classLabel true up down\n@DATA\n"


def write_ts(folder: Path, name: str = "Toy", series: int = 6, length: int = 10) -> Path:
    """Two channels; the classes go up and down; lengths differ."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    for side, offset in (("TRAIN", 0), ("TEST", 100)):
        lines = []
        for number in range(series):
            up = number % 2 == 0
            slope = np.arange(length + number) * (1.0 if up else -1.0) + offset
            channels = (",".join(f"{value:g}" for value in slope * factor) for factor in (1, 10))
            lines.append(":".join((*channels, "up" if up else "down")))
        (folder / name / f"{name}_{side}.ts").write_text(HEADER + "\n".join(lines) + "\n")
    return folder


def test_ts_files_of_unequal_length(tmp_path: Path) -> None:
    data = read_set(write_ts(tmp_path), "Toy")
    assert data.classes == ("down", "up")
    assert data.channels == 2
    assert data.train.label.tolist() == [1, 0, 1, 0, 1, 0]
    assert [len(series.step) for series in data.test.observed] == [10, 11, 12, 13, 14, 15]
    assert data.train.observed[1].values[:3].tolist() == [[0, 0], [-1, -10], [-2, -20]]


def test_npz_files_hold_the_training_block_first(tmp_path: Path) -> None:
    cut = NPZ_TRAINING["Epilepsy"]
    values = np.arange((cut + 3) * 4 * 2, dtype=np.float64).reshape(cut + 3, 4, 2)
    np.savez(tmp_path / "Epilepsy_mlmts.npz", X=values, y=np.arange(cut + 3) % 2 + 1.0)
    data = read_set(tmp_path, "Epilepsy")
    assert (len(data.train), len(data.test)) == (cut, 3)
    assert data.classes == ("1", "2")
    assert data.test.observed[0].values[0].tolist() == values[cut, 0].tolist()


def test_dropped_steps_are_the_same_for_all_channels_and_a_function_of_the_seed(tmp_path: Path) -> None:
    data = read_set(write_ts(tmp_path), "Toy")
    dropped = drop_steps(data, 0.3, seed=1)
    for full, part in zip(data.train.observed, dropped.train.observed, strict=True):
        assert len(part.step) == len(full.step) - round(0.3 * len(full.step))
        assert (part.values == full.values[part.step]).all()
        assert (np.diff(part.step) > 0).all()
    again, other = drop_steps(data, 0.3, seed=1), drop_steps(data, 0.3, seed=2)
    assert (again.test.observed[5].step == dropped.test.observed[5].step).all()
    assert any(
        not np.array_equal(a.step, b.step) for a, b in zip(other.train.observed, dropped.train.observed, strict=True)
    )


def test_one_step_always_stays(tmp_path: Path) -> None:
    dropped = drop_steps(read_set(write_ts(tmp_path), "Toy"), 1.0, seed=0)
    assert {len(series.step) for series in dropped.train.observed} == {1}


def test_scales_are_those_of_the_training_side(tmp_path: Path) -> None:
    scaled = standardise(read_set(write_ts(tmp_path), "Toy"))
    train = np.concatenate([series.values for series in scaled.train.observed])
    assert np.allclose(train.mean(0), 0, atol=1e-5)
    assert np.allclose(train.std(0), 1, atol=1e-5)
    assert np.concatenate([series.values for series in scaled.test.observed]).mean() > 5  # offset by 100 units


def test_unreadable_archives_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="has no set Absent"):
        read_set(tmp_path, "Absent")
    write_ts(tmp_path, "Bad")
    (tmp_path / "Bad" / "Bad_TRAIN.ts").write_text("@problemName Bad\n")
    with pytest.raises(ArchiveError, match="no @data"):
        read_set(tmp_path, "Bad")
    (tmp_path / "Bad" / "Bad_TRAIN.ts").write_text("@data\n1,2:1,2,3:up\n")
    with pytest.raises(ArchiveError, match="unequal length"):
        read_set(tmp_path, "Bad")
    np.savez(tmp_path / "Other_mlmts.npz", X=np.zeros((2, 3, 1)), y=np.ones(2))
    with pytest.raises(ArchiveError, match="number of training series is unknown"):
        read_set(tmp_path, "Other")


@needs_shared
@pytest.mark.parametrize(
    ("name", "train", "test", "channels", "classes"),
    [
        ("BasicMotions", 40, 40, 6, 4),
        ("JapaneseVowels", 270, 370, 12, 9),
        ("Epilepsy", 137, 138, 3, 4),
        ("RacketSports", 151, 152, 6, 4),
    ],
)
def test_the_real_sets_have_the_archives_counts(name: str, train: int, test: int, channels: int, classes: int) -> None:
    data = read_set(shared("data", "uea"), name)
    assert (len(data.train), len(data.test), data.channels, len(data.classes)) == (train, test, channels, classes)
    if name in NPZ_TRAINING:  # sorted by class within each block: the split is where the archive has it
        assert (np.diff(data.train.label) >= 0).all()
        assert (np.diff(data.test.label) >= 0).all()
